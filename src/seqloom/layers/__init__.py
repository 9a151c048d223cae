"""Layers: recurrent, Transformer, segmented with a memory, TCN and hybrids, by class and by name."""
