"""Mutated files and random settings: no reader may crash, hang, run code or silently give another result.

python -m fuzz --cases 10000 --seed 0        (with tests/ on the path; `make fuzz N=10000`)
"""
