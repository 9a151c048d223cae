"""The cell compiler: a cell's step, written in torch, becomes fused loops with their gradients."""
