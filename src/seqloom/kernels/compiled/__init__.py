"""Run compiled cells: packed rows, programs, and gradients."""
