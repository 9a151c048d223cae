"""Order and overlap of work on a GPU: sorted rows, directions on streams, layers as a wavefront."""
