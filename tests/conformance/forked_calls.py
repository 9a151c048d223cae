"""Call layers in a process and in its fork; used by test_processes.py.

The parent makes no backward pass: torch refuses one in the fork of a process that has made one.
"""

import os
import sys

import torch
from subjects import CALLED_IN_FORKS, LAYER_SUBJECTS, find_loss


def run_in_fork(function):
    """Return whether a function returns True in a fork of this process."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        os._exit(0 if function() else 1)
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(2)


def main():
    torch.set_num_threads(1)
    for name in CALLED_IN_FORKS:
        torch.manual_seed(0)
        layer = LAYER_SUBJECTS[name]()
        dimension = 0 if layer.batch_first else 1
        x = torch.randn(300, 6, 8).transpose(0, dimension)  # enough rows for memory that is kept
        for _ in range(3):
            y = layer(x)[0]

        def runs_the_same(layer=layer, x=x, y=y):
            again = layer(x)[0]
            gradients = torch.autograd.grad(find_loss(again), list(layer.parameters()), allow_unused=True)
            late = torch.autograd.grad(find_loss(y), list(layer.parameters()), allow_unused=True)  # saved by the parent
            pairs = zip(gradients, late, strict=True)
            return torch.equal(again, y) and all(g is None or torch.allclose(g, d) for g, d in pairs)

        assert run_in_fork(runs_the_same), f"{name} differs in a fork"
        assert torch.equal(layer(x)[0], y), f"{name} differs after a fork"
        print(f"{name} runs in a fork", flush=True)


if __name__ == "__main__":
    main()
