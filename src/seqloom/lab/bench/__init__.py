"""How fast the layers are beside torch.nn's and other libraries'."""

from seqloom.lab.bench.race import GRU, RED, Row, grid, rows
from seqloom.lab.bench.shown import caption, document, table

__all__ = ["GRU", "RED", "Row", "caption", "document", "grid", "rows", "table"]
