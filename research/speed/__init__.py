"""Measure the speed of layers, kernels and the lab, one script per question."""
