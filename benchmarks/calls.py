"""Time small calls, where the cost of Python shows: python benchmarks/calls.py [--rounds 12].

Print the processor time of a forward without gradients, of one with them, and of a streaming step, in microseconds:
the least of several rounds, on one thread. To compare two versions, run it in turns with PYTHONPATH set to the src
folder of each.
"""

import argparse
import time

import torch

import seqloom

CALLS = 200  # in a round; ten times as many steps


def measure(call, count: int, rounds: int) -> float:
    """Return the least time of one call, in microseconds."""
    for _ in range(50):
        call()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(count):
            call()
        times.append((time.process_time() - start) / count)
    return 1e6 * min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    x = torch.randn(5, 2, 8)
    for kind in (seqloom.GRU, seqloom.AttnRNN, seqloom.LSTM):
        layer = kind(8, 16)
        _, state = layer.step(x[0])
        with torch.no_grad():
            forward = measure(lambda layer=layer: layer(x), CALLS, rounds)
            step = measure(lambda layer=layer, state=state: layer.step(x[0], state), 10 * CALLS, rounds)
        both = measure(lambda layer=layer: layer(x), CALLS, rounds)
        print(f"{kind.__name__:8} forward {forward:6.1f}  with gradients {both:6.1f}  step {step:5.1f}")


if __name__ == "__main__":
    main()
