"""Coders turn columns into arrays and back; they are fitted on training rows only.

A coder has

    space               Tokens, Features, Classes, Tags or Values
    fit(frames)         reads training rows, some at a time
    encode(frame)       -> (values, lengths): the concatenated rows, and the length of each
    decode(row)         -> a Python value in the names and units of the file
    state()             -> JSON; `coder.restore_coder` makes the coder from it
"""
