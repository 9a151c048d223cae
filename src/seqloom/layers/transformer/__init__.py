"""The Transformer, its layers, and conversion from torch.nn."""
