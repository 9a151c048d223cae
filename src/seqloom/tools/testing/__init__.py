"""Checks for cells, layers and kernels, built-in or custom. Each raises an AssertionError with the reason."""

from seqloom.tools.testing.cell import check_cell
from seqloom.tools.testing.kernel import check_kernel
from seqloom.tools.testing.layer import check_layer

__all__ = ["check_cell", "check_kernel", "check_layer"]
