"""Time the layers against torch.nn and other libraries."""
