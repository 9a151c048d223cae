"""Checks for cells, layers and kernels, ours and other people's. Each raises AssertionError with the reason."""

from seqloom.tools.testing.cell import check_cell
from seqloom.tools.testing.kernel import check_kernel, everything
from seqloom.tools.testing.layer import check_layer, same, tensors

__all__ = ["check_cell", "check_kernel", "check_layer", "everything", "same", "tensors"]
