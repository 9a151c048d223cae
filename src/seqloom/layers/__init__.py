"""Layers by name and by class: recurrent, Transformer, memory, TCN and hybrids."""
