"""Mutated files and random settings against what reads them: nothing may crash, hang, run code or change in silence.

python -m fuzz --cases 10000 --seed 0        (with tests/ on the path; `make fuzz N=10000`)
"""
