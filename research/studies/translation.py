"""German into English: from a recurrent encoder and decoder to attention alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from research.studies.data.place import CHECKOUT
from research.studies.data.target_texts import join_tokens, multi30k
from research.studies.support.conditions import TEST, Condition, TrialSettings
from research.studies.support.corpora import ROWS, Corpora, Corpus
from research.studies.support.epochs import use_precision
from research.studies.support.metric import AMOUNT, TrialMetric
from research.studies.support.outcome import Trial, groups
from research.studies.support.trials import Tensors
from seqloom.attention.score import AdditiveScore, DotScore
from seqloom.core.errors import UserError, require
from seqloom.core.plurals import count
from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.report.page import PageBlock, Table
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.transformer.block import Block as Shape
from seqloom.layers.transformer.layer import Transformer
from seqloom.models.decoding.beam import Beam
from seqloom.models.decoding.recurrent import RecurrentDecoder
from seqloom.models.decoding.transformer import TransformerDecoder
from seqloom.models.embed import Embed
from seqloom.models.encode import Encoder
from seqloom.models.translate import Translate
from seqloom.tools.timing import time_call

if TYPE_CHECKING:  # takes long to import
    from sacrebleu.metrics.bleu import BLEU

# Self-attention article: BLEU, and training time relative to the first.
PRINTED = {"none": (28.4, 1.0), "additive": (31.2, 1.2), "dot": (31.2, 1.2), "transformer": (35.7, 0.6)}
HEADS = 8
SMOOTHING = 0.1
BEAM = 5  # hypotheses


def at(steps: int, vocabulary: int, T: int, budget: int, pairs: int = 29_000, **more: object) -> Condition:
    task: dict[str, object] = {
        "vocabulary": vocabulary,
        "T": T,
        "budget": budget,
        "pairs": pairs,
        "width": 256,
        "dropout": 0.3,
        "layers": 3,
    }
    return Condition("Multi30k, German into English", steps, task | more)


class Translation(Corpora[TrialSettings], name="translation"):
    """BLEU and training time of encoder-decoders without attention, with attention, and Transformers."""

    metrics = (TrialMetric("BLEU", AMOUNT, highest=100.0),)
    against = "transformer"
    full = TrialSettings(
        (at(1_000, 8_000, 30, 9_000_000),),
        tuple(PRINTED),
        seeds=3,
        lrs=(3e-4, 1e-3, 3e-3),
        starts=("default",),
        batch=128,
        valid=1_014,
        test=1_000,
        together=12,
        tuning=0.75,
        tuning_seeds=2,
        widen=True,
        widen_by=0.3,
        precision="bfloat16",
    )
    quick = TrialSettings(
        (at(300, 800, 16, 150_000, width=32, layers=1, beam=1, dropout=0.0),),
        tuple(PRINTED),
        seeds=1,
        lrs=(1e-2,),
        starts=("default",),
        batch=32,
        valid=200,
        test=200,
    )

    def corpus(self, condition: Condition) -> Corpus:
        _bleu()  # or an error before anything is trained
        task, most = condition.task, {"valid": self.settings.valid, TEST: self.settings.test}
        parts, english, self._references = multi30k(task["vocabulary"], task["T"], task["pairs"])
        cut = {name: tuple(t[: most.get(name, len(t))] for t in part) for name, part in parts.items()}
        return Corpus(cut, (english,))

    def build(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        task = condition.task
        size, p = task["vocabulary"], task["dropout"]
        if model == "transformer":
            shape = Shape(hidden=2 * hidden, dropout=p / 2)
            options: dict[str, Any] = {"position": "sinusoidal", "block": shape}
            inner = Transformer(hidden, HEADS, task["layers"], causal=True, memory_size=hidden, **options)
            encoder = Encoder(
                Embed(size, hidden, p / 2, scaled=True), Transformer(hidden, HEADS, task["layers"], **options)
            )
            return Translate(encoder, TransformerDecoder(Embed(size, hidden, p / 2, scaled=True), inner, tied=True))
        width, half = task["width"], hidden // 2
        both = Recurrent("gru", width, half, batch_first=True, bidirectional=True)
        H = both.output_size
        scores = {"none": None, "additive": AdditiveScore(H, H, weighted=True), "dot": DotScore(H, H)}
        layer = Recurrent("gru", width + (H if model == "none" else 0), H, batch_first=True)
        decoder = RecurrentDecoder(Embed(size, width, p), layer, H, attention=scores[model], dropout=p)
        return Translate(Encoder(Embed(size, width, p), both), decoder)

    def multiple(self, model: str) -> int:
        return 2 * HEADS

    def grid(self, model: str) -> list[tuple[float, str]]:
        if model not in PRINTED:
            raise UserError(f"there is no model {model!r}; known are {', '.join(PRINTED)}")
        return [(lr, "default") for lr in self.settings.lrs]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        assert isinstance(model, Translate)
        source, target, n, m = batch
        with use_precision(self.settings.precision, model, source.device):
            return model.loss(source, target, n, m, smoothing=SMOOTHING)

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        assert isinstance(model, Translate)
        corpus, hypotheses = self.read(condition), []
        source, target, n, _ = corpus.parts[split]
        beam = Beam(condition.task.get("beam", BEAM), 0.6, target.shape[1])
        for begin in range(0, len(source), ROWS):
            with use_precision(self.settings.precision, model, device):
                beams = model.translate(source[begin : begin + ROWS], n[begin : begin + ROWS], beam)
            hypotheses += [join_tokens([corpus.words[0][i] for i in best]) for (best,) in beams.lists()]
        return {"BLEU": float(_bleu().corpus_score(hypotheses, [self._references[split][: len(hypotheses)]]).score)}

    def run(self, before: Callable[[str], None]) -> Iterator[Trial]:
        yield from super().run(before)
        if not self.replays:
            self.time_models()

    def time_models(self) -> None:
        """Store the time of a training step of each model in the ledger, measured while no training runs."""
        for condition in self.settings.conditions:
            for model in self.models(condition):
                key = self._time_key(model, condition)
                if self.ledger.get(key) is None:
                    self.ledger.add(key, {"ms": self._time_step(model, condition)})

    def _time_key(self, model: str, condition: Condition) -> dict[str, Any]:
        return {
            "study": self.name,
            "timed": [model, self.find_hidden(model, condition)],
            "task": condition.task,
            "batch": self.settings.batch,
            "device": self.device,
        }

    def _time_step(self, name: str, condition: Condition) -> float:
        """Return the milliseconds of a forward and backward pass of a new model."""
        device = torch.device(self.device)
        model = self.build(name, self.find_hidden(name, condition), "default", condition).to(device).train()
        batch = self.draw(condition)(torch.Generator(device).manual_seed(0), device)

        def run() -> None:
            model.zero_grad()
            self.loss(model, batch).backward()

        with use_one_thread():
            run()
            return 1e3 * time_call(run, self.device)

    def trivial(self, condition: Condition) -> float:
        return 0.0

    def article_value(self, condition: Condition, model: str) -> float | None:
        return PRINTED[model][0] if model in PRINTED else None

    def blocks(self, rows: Sequence[Trial]) -> list[PageBlock]:
        note = (
            "time of a forward and backward pass, without other trainings, relative to the model without attention; "
            "the article does not name its data"
        )
        return [*super().blocks(rows), Table("Relative training time", self._relative(rows), note), *_read_benchmark()]

    def _relative(self, rows: Sequence[Trial]) -> list[dict[str, Any]]:
        (condition,) = self.settings.conditions
        known = {g.model: self.ledger.get(self._time_key(g.model, condition)) for g in groups(rows)}
        times = {model: None if record is None else float(record["ms"]) for model, record in known.items()}
        base = times.get("none")
        return [
            {"model": m, "ms per step": t, "time": t / base if base and t else None, "article": PRINTED[m][1]}
            for m, t in times.items()
        ]

    def caption(self) -> str:
        task = self.settings.conditions[0].task
        return (
            f"{super().caption()}\n"
            "BLEU: sacreBLEU, 13a, lower-cased, against the raw test_2016_flickr, beam width "
            f"{task.get('beam', BEAM)}; at most {task['T']} words, a vocabulary of {task['vocabulary']:,}; "
            "the article does not name its data.\n"
            "none, additive, dot: GRUs with a bidirectional encoder and this attention; transformer: "
            f"{count(task['layers'], 'layer')} on each side."
        )

    def verdict(self, rows: Sequence[Trial]) -> str:
        beside = [_beside(g.model, g.summary("BLEU").mean) for g in groups(rows)]
        times = [f"{r['model']} {r['time']:.2f} ({r['article']})" for r in self._relative(rows) if r["time"]]
        summary = f"BLEU (self-attention article in brackets): {', '.join(beside)}."
        speed = f" Relative time per step: {', '.join(times)}." if times else ""
        return f"{summary}{speed} {super().verdict(rows)}"


def _beside(model: str, bleu: float | None) -> str:
    return f"{model} {'failed' if bleu is None else f'{bleu:.1f}'} ({PRINTED[model][0]})"


def _read_benchmark() -> list[PageBlock]:
    """Return the results of research/quality/translate.py, if this is a checkout that contains them."""
    files = sorted((CHECKOUT / "research" / "results").glob("*/*-translate.json"))
    if not files:
        return []
    record = json.loads(files[-1].read_text(encoding="utf-8"))
    times = {name: sum(one["training"]["seconds"]) for name, one in record["models"].items()}
    rows = [
        {"model": name, "BLEU": one["bleu"], "article": PRINTED[name][0], "parameters": one["parameters"]}
        | {"time": times[name] / times["none"] if "none" in times else None, "article, time": PRINTED[name][1]}
        for name, one in record["models"].items()
        if name in PRINTED
    ]
    epochs, device = record["settings"]["epochs"], record["hardware"]["device"]
    note = f"one seed, ragged batches, {count(epochs, 'epoch')}, {device}; {record['date']}"
    return [Table(f"A longer training, {files[-1].name}", rows, note)]


def _bleu() -> BLEU:
    return require("sacrebleu.metrics.bleu", "the study 'translation'", "lab").BLEU(lowercase=True)
