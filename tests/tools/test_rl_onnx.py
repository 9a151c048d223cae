"""A recurrent policy with its state runs under onnxruntime as it does under torch."""

import pytest
import torch
from torch import nn
from torch.export import Dim

import seqloom
from seqloom.tools.rl.flat import FlatRecurrent


class Policy(nn.Module):
    """One step of many environments: logits of the actions and the new state."""

    def __init__(self, cell):
        super().__init__()
        self.memory = FlatRecurrent(seqloom.Recurrent(cell, 3, 8, num_layers=2, batch_first=True))
        self.head = nn.Linear(8, 4)

    def forward(self, seen, state, starts):
        y, state = self.memory(seen.unsqueeze(1), state, starts.unsqueeze(1))
        return self.head(y.squeeze(1)), state


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell", ["gru", *(pytest.param(cell, marks=pytest.mark.long) for cell in ("lstm", "attn_rnn", "slstm"))]
)
def test_an_exported_policy_plays_episodes_as_torch_does(cell, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'seqloom[onnx]'")
    pytest.importorskip("onnxscript", reason="needs onnxscript: pip install 'seqloom[onnx]'")
    torch.manual_seed(0)
    policy = Policy(cell).eval()
    size, rows = policy.memory.state_size, Dim("rows", min=1, max=256)
    example = (torch.randn(2, 3), torch.zeros(2, size), torch.ones(2))
    names = ["seen", "state", "starts"]
    file = tmp_path / "policy.onnx"
    shapes = tuple({0: rows} for _ in names)
    seqloom.export_onnx(policy, example, file, shapes, input_names=names, output_names=["logits", "new_state"])
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    state, other = torch.zeros(5, size), torch.zeros(5, size).numpy()
    for step in range(6):
        seen, starts = torch.randn(5, 3), (torch.arange(5) == step).float()  # each row starts again once
        with torch.no_grad():
            logits, state = policy(seen, state, starts)
        found, other = session.run(None, {"seen": seen.numpy(), "state": other, "starts": starts.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), logits, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(torch.from_numpy(other), state, atol=1e-5, rtol=1e-4)
