"""Any cell as a layer with the contract of torch.nn.GRU."""
