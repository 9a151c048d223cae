"""Export a run as files that predict without seqloom."""

from typing import Literal

Target = Literal["onnx", "pt2", "safetensors", "c"]
EXPORTS = "exports"  # the folder in which exports are written by default
