"""The evidence: studies, measurements, and the generators of the pages. Not part of the installed package.

`python -m research` lists the commands; they run from the root of a checkout.
"""
