"""Measure the quality of trained models, and of what the lab concludes from them."""
