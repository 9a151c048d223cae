"""The file of a cell that shows whether it was executed: it creates the file that $SEQLOOM_WITNESS names."""

WITNESS = "SEQLOOM_WITNESS"
LEAVE_WITNESS = f"""
if os.environ.get("{WITNESS}"):
    Path(os.environ["{WITNESS}"]).touch()
"""
CELL = f"""
import os
from pathlib import Path

import torch
import seqloom
{LEAVE_WITNESS}

class Mine(seqloom.Cell):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.w = torch.nn.Linear(input_size + hidden_size, hidden_size)

    def step(self, x, state):
        h = torch.tanh(self.w(torch.cat([x, state[0]], -1)))
        return h, (h,)
"""
QUIET_CELL = CELL.replace(LEAVE_WITNESS, "")
