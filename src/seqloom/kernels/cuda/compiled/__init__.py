"""CUDA source for programs of the compiler: operators, and the table of their buffers."""
