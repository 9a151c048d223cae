"""Order and overlap of work on a GPU: rows, directions and stacked layers."""
