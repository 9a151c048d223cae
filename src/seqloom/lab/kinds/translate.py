"""A text for a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.lab.data.task import END, IGNORE, PAD, START, Batch, Task
from seqloom.lab.kinds.columns import Columns, count_edits, join_words, mark_unknown, name_edits
from seqloom.lab.kinds.for_task import ForTask, Prediction, get_targets
from seqloom.lab.kinds.generate import score_tokens
from seqloom.lab.kinds.kind import ENCODER_DECODER, Kind, ScoredRows
from seqloom.lab.kinds.layers import build_input, build_layer
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.report.page import PageBlock, Table
from seqloom.lab.stats.ngrams import NGRAMS, count_characters
from seqloom.layers import registry
from seqloom.layers.transformer.block import Block
from seqloom.layers.transformer.layer import Transformer
from seqloom.models.decoding.recurrent import RecurrentDecoder
from seqloom.models.decoding.transformer import TransformerDecoder
from seqloom.models.embed import Embed, Marks
from seqloom.models.encode import Encoder
from seqloom.models.translate import Translate

TRANSLATED_BATCHES, TRANSLATED_ROWS = 8, 10  # batches that are translated, rows that are shown
UNKNOWN_IN_REFERENCE, UNKNOWN_IN_TRANSLATION = "\ue000", "\ue001"  # private characters: one word each, never equal


class ForTranslate(ForTask):
    """Cross-entropy with teacher forcing; `predict` decodes greedily."""

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        return self.model(batch.x, shift_target(get_targets(batch)), batch.lengths)[0], None

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        y = get_targets(batch)
        return self._nats(scores, y.masked_fill(y == PAD, IGNORE)).sum(1)

    def count_targets(self, batch: Batch) -> Tensor:
        return (get_targets(batch) != PAD).sum(1)

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        return Prediction(scores.argmax(-1), batch.y_lengths)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Prediction:
        limits = 2 * batch.lengths + 20  # per row, so that a translation does not depend on the rest of the batch
        decoded = self.model.greedy(batch.x, batch.lengths, max_length=int(limits.max()))
        return Prediction(decoded.tokens, torch.minimum(decoded.lengths, limits))


class WithoutSource(ForTranslate):
    """A translation model that reads only the preceding target tokens."""

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        return self.model(shift_target(get_targets(batch))), None

    def predict(self, batch: Batch) -> Prediction:
        """Decode greedily, with the maximum length of a translation."""
        limits = 2 * batch.lengths + 20
        tokens = [torch.full((len(batch), 1), START, device=batch.x.device)]
        for _ in range(int(limits.max())):
            tokens.append(self.model(tokens[-1]).argmax(-1))
        return Prediction(torch.cat(tokens[1:], 1), limits)


def shift_target(y: Tensor) -> Tensor:
    """Return the input of a decoder: START, then each token but the last."""
    return torch.cat([torch.full_like(y[:, :1], START), y[:, :-1]], 1)


class TranslateKind(Kind):
    """A text for a text: an encoder and a decoder, cross-entropy of each token."""

    name = "translate"
    topology = "N to M"
    padding = PAD
    models = ENCODER_DECODER
    predicts_text = True
    fewest_scored = 300
    writes = True
    command = "translate"
    metrics = ("bleu", "chrf", "exact", "cer", "wer", "perplexity")
    baselines = ("unigram", "bigram")
    baseline_model = WithoutSource

    def build(self, task: Task, settings: TrainSettings) -> ForTask:
        source, width = build_input(task, settings)
        assert source is not None
        base = settings.model.removeprefix(registry.BI_PREFIX)
        ahead = registry.BI_PREFIX + base
        encoder = Encoder(
            source, build_layer(settings, width, ahead if ahead in registry.list_names() else settings.model)
        )
        target = Embed(task.target.size, settings.embedding, settings.dropout, padding=PAD)
        options: dict[str, Any] = {"dropout": settings.dropout, "tied": settings.tied}
        decoder: nn.Module
        if base in ("transformer", "linformer"):  # linformer has no causal form
            layers = Transformer(
                settings.embedding,
                num_layers=settings.layers,
                causal=True,
                memory_size=encoder.output_size,
                position="rotary",
                block=Block(dropout=settings.dropout),
            )
            decoder = TransformerDecoder(target, layers, **options)
        else:
            decoder = RecurrentDecoder(
                target, build_layer(settings, settings.embedding, base), encoder.output_size, **options
            )
        return ForTranslate(Translate(encoder, decoder, Marks(PAD, START, END)), settings.label_smoothing)

    def analyse_errors(self, rows: ScoredRows) -> list[PageBlock]:
        return [translate_examples(rows.model, rows.task, rows.batch, rows.is_late)]

    def score(self, task: Task, batch: Batch, prediction: Prediction) -> Columns:
        return score_tokens(batch, prediction, get_targets(batch) != PAD)

    def score_decoded(self, task: Task, batch: Batch, model: ForTask) -> Columns:
        new = replace(batch, y=None, y_lengths=None)  # a translation must not read its reference
        return score_texts(task, batch, model.predict(new))


def score_texts(task: Task, batch: Batch, prediction: Prediction) -> Columns:
    """Compare decoded translations with the references of a batch; an unknown word is never correct."""
    from sacrebleu.metrics.bleu import BLEU

    assert batch.y is not None and batch.y_lengths is not None
    texts = task.decode(batch.y, batch.y_lengths - 1)  # without END
    bleu = BLEU(effective_order=True, force=True)
    stats, exact, chrf, edits = [], [], [], []
    for reference, written in zip(texts, task.decode(prediction.values, prediction.lengths), strict=True):
        true, output = mark_unknown(reference, UNKNOWN_IN_REFERENCE), mark_unknown(written, UNKNOWN_IN_TRANSLATION)
        exact.append(float(true == output))
        one = bleu.sentence_score(output, [true])
        counts = [*one.counts, *[0] * (NGRAMS - len(one.counts)), *one.totals, *[0] * (NGRAMS - len(one.totals))]
        stats.append([one.sys_len, one.ref_len, *counts])
        chrf.append(count_characters(true, output))
        edits.append(count_edits(true, output))
    columns = {"exact": np.array(exact), "rows": np.ones(len(batch))}
    columns |= {"bleu": np.array(stats, dtype=np.float64), "chrf": np.array(chrf, dtype=np.float64)}
    return columns | name_edits(edits)


@torch.no_grad()
def translate_examples(model: ForTask, task: Task, batch: int, is_late: Callable[[], bool] = lambda: False) -> Table:
    """Show the source, reference, translation and BLEU of some test rows, both short and long."""
    from sacrebleu import corpus_bleu

    every = max(1, (task.count("test", batch=batch) or 1) // TRANSLATED_BATCHES)
    coder = task.encoding.x if task.encoding is not None else None
    rows: list[dict[str, Any]] = []
    for one in islice(task.batches("test", batch=batch), every // 2, None, every):
        assert one.y is not None and one.y_lengths is not None
        if rows and is_late():
            break
        prediction = model.predict(one)
        sources = [row[:n] for row, n in zip(one.x.tolist(), one.lengths.tolist(), strict=True)]
        references = task.decode(one.y, one.y_lengths - 1)
        translations = task.decode(prediction.values, prediction.lengths)
        for source, reference, translation in zip(sources, references, translations, strict=True):
            text = coder.decode(source) if coder is not None else join_words(source)
            rows.append({"source": text, "reference": join_words(reference), "translation": join_words(translation)})
    bleu = corpus_bleu([row["translation"] for row in rows], [[row["reference"] for row in rows]], force=True)
    examples = rows[:: max(1, len(rows) // TRANSLATED_ROWS)][:TRANSLATED_ROWS]
    note = f"BLEU of {len(rows):,} test rows with greedy decoding: {bleu.score:.1f}."
    return Table("Example translations", examples, note)
