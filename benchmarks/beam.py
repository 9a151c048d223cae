"""A beam search over a batch beside one sentence at a time: python benchmarks/beam.py [--device cuda] [--json FILE].

A GRU with attention, beam 5, 64 sources of 20 tokens, 20 tokens each; vocabularies from small to a real one.
"""

import argparse
import time
from pathlib import Path

import torch
from record import keep

import seqloom
from seqloom.models.decoding.beam import Beam
from seqloom.models.decoding.recurrent import RecurrentDecoder
from seqloom.models.embed import Embed
from seqloom.models.encode import Encoder
from seqloom.models.translate import Translate

B, S, T, WIDTH = 64, 20, 20, 5
SIZES = ((200, 64), (1_000, 128), (6_000, 256))  # vocabulary, hidden size


def seconds(model: Translate, sources: list[torch.Tensor]) -> float:
    """For all of them, the faster of two times."""
    found = []
    for _ in range(2):
        begun = time.perf_counter()
        for source in sources:
            model.translate(source, beam=Beam(WIDTH, max_length=T)).lists()
        found.append(time.perf_counter() - begun)
    return min(found)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    flags.add_argument("--json", type=Path, help="a file for the result")
    given = flags.parse_args()
    torch.set_num_threads(1)
    rows = []
    for vocabulary, hidden in SIZES:
        torch.manual_seed(0)
        encoder = Encoder(Embed(vocabulary, hidden), seqloom.GRU(hidden, hidden, batch_first=True, bidirectional=True))
        layer = seqloom.GRU(hidden, hidden, batch_first=True)
        model = Translate(encoder, RecurrentDecoder(Embed(vocabulary, hidden), layer, encoder.output_size))
        model = model.to(given.device).eval()
        source = torch.randint(4, vocabulary, (B, S), device=given.device)
        together, alone = seconds(model, [source]), seconds(model, list(source.split(1)))
        rows.append({"vocabulary": vocabulary, "hidden": hidden, "ratio": alone / together})
        print(*(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    command = f"python benchmarks/beam.py --device {given.device}"
    keep(given.json, command, setting={"batch": B, "beam": WIDTH}, rows=rows)


if __name__ == "__main__":
    main()
