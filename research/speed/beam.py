"""Time beam search over a batch and one sentence at a time: python -m research beam [--device cuda] [--json FILE].

A GRU with attention, beam 5, 64 sources of 20 tokens, 20 tokens each; vocabularies from small to a real one.
"""

import torch

import seqloom
from research.record import build_parser, print_row, time_best, write_record
from seqloom.models.decoding.beam import Beam
from seqloom.models.decoding.recurrent import RecurrentDecoder
from seqloom.models.embed import Embed
from seqloom.models.encode import Encoder
from seqloom.models.translate import Translate

B, S, T, WIDTH = 64, 20, 20, 5
SIZES = ((200, 64), (1_000, 128), (6_000, 256))  # vocabulary, hidden size


def time_search(model: Translate, sources: list[torch.Tensor]) -> float:
    """Return the seconds for all sources, the faster of two rounds."""
    beam = Beam(WIDTH, max_length=T)
    return time_best(lambda: [model.translate(source, beam=beam).lists() for source in sources], rounds=2)


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for vocabulary, hidden in SIZES:
        torch.manual_seed(0)
        encoder = Encoder(Embed(vocabulary, hidden), seqloom.GRU(hidden, hidden, batch_first=True, bidirectional=True))
        layer = seqloom.GRU(hidden, hidden, batch_first=True)
        model = Translate(encoder, RecurrentDecoder(Embed(vocabulary, hidden), layer, encoder.output_size))
        model = model.to(args.device).eval()
        source = torch.randint(4, vocabulary, (B, S), device=args.device)
        together, alone = time_search(model, [source]), time_search(model, list(source.split(1)))
        rows.append({"vocabulary": vocabulary, "hidden": hidden, "ratio": alone / together})
        print_row(rows[-1])
    write_record(args.json, setting={"batch": B, "beam": WIDTH}, rows=rows)
