"""From columns to arrays and back; what is fitted is fitted on training rows alone.

A coder has

    space               Tokens, Features, Classes, Tags or Values
    fit(frames)         looks at training rows, some at a time
    encode(frame)       -> (values, lengths): the rows end to end, and how long each is
    decode(row)         -> a Python value in the words and units of the file
    state()             -> JSON; `restore(state)` in coders/states.py makes the coder again
"""
