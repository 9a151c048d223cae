"""GRU and LSTM, with and without layer normalisation: launch code, and the CUDA source beside it."""
