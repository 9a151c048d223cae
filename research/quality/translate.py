"""Translate German to English on Multi30k, with and without attention: BLEU and alignments of four models.

    python -m research translate --data shared/data/multi30k --out research/results

Words of the authors' lower-cased, tokenised files that occur twice or more; 29,000 sentence pairs; a beam
of 5. Needs sacrebleu (on PYTHONPATH, or installed). BLEU compares the joined text with the raw references,
lower-cased; the JSON also has BLEU of the tokens.

Models may be trained in parallel, one process each (--models additive), and joined afterwards:

    python -m research translate --merge none.json additive.json dot.json transformer.json
"""

from __future__ import annotations

import argparse
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from research.quality import multi30k, translate_results
from research.quality.multi30k import Pairs, Vocabulary
from research.quality.translate_training import MODELS, QUICK, Settings, TimeLeft, build, train
from research.record import Stopwatch, build_parser, format_command
from seqloom.models.decoding.beam import Beam
from seqloom.models.translate import Translate
from seqloom.tools import doctor

SHOWN = 4  # sentences whose alignments are drawn


def main() -> None:
    flags = build_parser(__doc__, record=False)
    work = flags.add_mutually_exclusive_group(required=True)
    work.add_argument("--data", type=Path, help="the folder multi30k, with tok/ and raw/")
    work.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="join these runs' JSON, and train nothing")
    flags.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    flags.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, metavar="MODEL", help=" ".join(MODELS))
    flags.add_argument("--epochs", type=int)
    flags.add_argument("--seed", type=int)
    flags.add_argument("--precision", choices=("fp32", "bf16"))
    flags.add_argument("--quick", action="store_true", help="tiny models, few sentences: does everything run?")
    args = flags.parse_args()
    if args.merge:
        return translate_results.merge(args.merge, args.out)
    return run(args)


def run(args: argparse.Namespace) -> None:
    import sacrebleu  # now, rather than after the training

    changes = {k: v for k in ("epochs", "seed", "precision") if (v := getattr(args, k)) is not None}
    s = Settings(**((QUICK if args.quick else {}) | changes))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    german, english = (multi30k.sentences(args.data, "train", language, s.pairs) for language in ("de", "en"))
    de, en = Vocabulary(german, s.min_frequency), Vocabulary(english, s.min_frequency)
    data = multi30k.pairs(german, english, de, en, device)
    validation = multi30k.pairs(
        *(multi30k.sentences(args.data, "val", x, s.tests) for x in ("de", "en")), de, en, device
    )
    wanted = multi30k.sentences(args.data, "test_2016_flickr", "en", s.tests)
    test = multi30k.pairs(multi30k.sentences(args.data, "test_2016_flickr", "de", s.tests), wanted, de, en, device)
    raw = multi30k.lines(args.data / "raw" / "test_2016_flickr.en.gz")[: s.tests]

    left = TimeLeft(s.epochs * len(args.models))
    results: dict[str, dict[str, Any]] = {}
    alignments: dict[str, list[dict[str, Any]]] = {}
    for name in args.models:
        left.name = name
        torch.manual_seed(s.seed)
        model = build(name, len(de), len(en), s).to(device)
        lr = s.transformer_lr if name == "transformer" else s.lr
        results[name] = {"parameters": sum(p.numel() for p in model.parameters())}
        results[name] |= {"training": train(model, data, validation, s, lr, left)}
        start = Stopwatch()
        translations = translate(model.eval(), test, en, s)
        results[name] |= {"decoding_seconds": round(start.seconds, 2)} | multi30k.score(translations, wanted, raw)
        results[name] |= {"examples": [" ".join(words) for words in translations[:5]]}
        alignments |= {name: grids} if (grids := collect_alignments(model, test, de, en, s)) else {}
        left.say(
            f"BLEU {results[name]['bleu']} ({results[name]['decoding_seconds']} s for {len(translations)} sentences)"
        )

    kind = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    document = {
        "what": "Multi30k de-en, test_2016_flickr",
        "quick": args.quick,
        "command": format_command(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": doctor.hardware() | {"device": kind},
        "versions": doctor.versions() | {"sacrebleu": sacrebleu.__version__},
        "seconds": round(left.began.seconds, 1),
        "settings": asdict(s) | {"vocabulary": {"de": len(de), "en": len(en)}},
        "models": results,
    }
    translate_results.write(args.out, document, alignments)


def translate(model: Translate, data: Pairs, en: Vocabulary, s: Settings) -> list[list[str]]:
    translations: list[list[str]] = [[] for _ in data.lengths]
    beam = Beam(s.beam, s.length_penalty, s.max_length)
    for rows in data.buckets(128):
        source, _, n, _ = data.batch(rows)
        for row, (best,) in zip(rows, model.translate(source, n, beam).lists(), strict=True):
            translations[row] = [en.words[i] for i in best]
    return translations


@torch.no_grad()
def collect_alignments(
    model: Translate, data: Pairs, de: Vocabulary, en: Vocabulary, s: Settings
) -> list[dict[str, Any]]:
    """Return the attention weights for each written word in a few sentences of about ten words."""
    rows = sorted(range(len(data.lengths)), key=lambda r: (abs(data.lengths[r][0] - 10), r))[:SHOWN]
    source, _, n, _ = data.batch(rows)
    translations = model.translate(source, n, Beam(s.beam, s.length_penalty, s.max_length))
    weights = model.align(source, translations.tokens[:, 0], n)
    if weights is None:
        return []
    alignments = []
    for i, r in enumerate(rows):
        S, T = data.lengths[r][0], int(translations.lengths[i, 0])
        words = [en.words[t] for t in translations.lists()[i][0]]
        grid = [[round(w, 4) for w in line] for line in weights[i, : T + 1, :S].tolist()]
        alignments.append(
            {
                "source": [de.words[t] for t in source[i, :S].tolist()],
                "target": [*words, multi30k.SPECIAL[2]],
                "weights": grid,
            }
        )
    return alignments
