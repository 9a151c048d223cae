"""Train layers in two processes with DistributedDataParallel and FSDP2, and alone; used by test_processes.py."""

import copy
import sys

import torch
from subjects import LAYER_SUBJECTS, TRAINED_IN_RANKS, find_loss
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RANKS, STEPS, ROWS = 2, 3, 4


def train(layer, x, dimension, parts):
    """Return the gradients of each step of Adam, and the weights at the end.

    Args:
        layer: A layer, or what wraps it.
        x: Its input.
        dimension: Of the rows.
        parts: Into how many parts the loss divides the rows; processes with one part each have the mean gradient.
    """
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
    found = []
    for _ in range(STEPS):
        optimiser.zero_grad()
        sum(find_loss(part) for part in layer(x)[0].chunk(parts, dimension)).div(parts).backward()
        found += [gather(p.grad) for p in layer.parameters() if p.grad is not None]
        optimiser.step()
    return found + [gather(p) for p in layer.parameters()]


def gather(t):
    """Return a tensor of which each process may hold a part."""
    t = t.detach()
    return t.full_tensor() if hasattr(t, "full_tensor") else t.clone()


def compare(actual, expected, where):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, msg=lambda text: f"{where}: {text}")


def main(rank, store):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    for name in TRAINED_IN_RANKS:
        torch.manual_seed(0)
        layer = LAYER_SUBJECTS[name]()
        dimension = 0 if layer.batch_first else 1
        x = torch.randn(ROWS, 6, 8).transpose(0, dimension)
        alone, mine = train(copy.deepcopy(layer), x, dimension, RANKS), x.chunk(RANKS, dimension)[rank]
        whole = nn.parallel.DistributedDataParallel(copy.deepcopy(layer))
        compare(train(whole, mine, dimension, 1), alone, f"{name} in DistributedDataParallel")
        sharded = copy.deepcopy(layer)
        fully_shard(sharded, mesh=mesh, reshard_after_forward=True)  # frees the weights between the passes
        compare(train(sharded, mine, dimension, 1), alone, f"{name} in FSDP2")
        print(f"{name} trains in {RANKS} processes", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
