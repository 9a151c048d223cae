"""What an exported run.py is made of: numpy, onnxruntime and the standard library alone."""
