"""What needs no sequence model: each is a model without a gradient, scored as the others are."""
