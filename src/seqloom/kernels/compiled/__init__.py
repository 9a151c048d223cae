"""Run what the compiler made of a cell: packed rows, programs, and gradients."""
