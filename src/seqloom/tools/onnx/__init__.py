"""ONNX files: native operators for GRU, LSTM and RNN, a Scan for every other cell."""
