"""The model for a task: its kind decides the topology, the settings the layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.core.init import Init
from seqloom.lab.data.task import END, PAD, START, Features, Task, Tokens, Values
from seqloom.lab.training import for_task
from seqloom.lab.training.for_task import ForTask
from seqloom.lab.training.settings import TrainSettings
from seqloom.layers import registry
from seqloom.layers.dropouts import Dropouts
from seqloom.layers.memory import Segmented
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.transformer.block import Block
from seqloom.layers.transformer.layer import Projected, Transformer
from seqloom.models.classify import Classify
from seqloom.models.decoding.recurrent import RecurrentDecoder
from seqloom.models.decoding.transformer import TransformerDecoder
from seqloom.models.embed import Embed, Marks
from seqloom.models.encode import Encoder
from seqloom.models.forecast import Forecast
from seqloom.models.generate import Generate
from seqloom.models.segments import SegmentForecast
from seqloom.models.tag import Tag
from seqloom.models.transcribe import Transcribe
from seqloom.models.translate import Translate

SMALL = 0.1  # spread of word vectors at the start, where a whole text has one answer: rare words then say little
BESIDE = ("attn_rnn",)  # cells that hold the input beside a normalised state: it has to be of that size,
SPAN = 100  # and to last, in steps, where the answer comes at the end
SEGMENT = 48  # steps of a forecast that are read as one, where the data allows it


def build(task: Task, settings: TrainSettings) -> ForTask:
    """The right model for this task over the layer named in the settings, with fresh weights."""
    makers = {
        "classify": _classify,
        "regress": _classify,
        "tag": _tag,
        "generate": _generate,
        "translate": _translate,
        "forecast": _forecast,
        "transcribe": _transcribe,
    }
    made = makers[task.kind](task, settings)
    made.timed = has_timespans(task)
    return made


def build_layer(settings: TrainSettings, input_size: int, name: str | None = None) -> nn.Module:
    """The layer of the settings, or another one of the same size and noise."""
    name = settings.model if name is None else name
    options: dict[str, Any] = {"layers": settings.layers, "dropout": settings.dropout}
    inside = Dropouts(settings.recurrent_dropout, settings.zoneout, settings.weight_dropout)
    base = name.removeprefix(registry.BI_PREFIX)
    if base not in registry.LAYERS:
        options |= {"dropouts": inside, "init": Init(settings.init, settings.chrono or None)}
    elif inside != Dropouts():
        raise UserError(f"recurrent_dropout, zoneout and weight_dropout are for recurrent cells; {name!r} is none")
    return registry.make(name, input_size, settings.hidden, **options)


def _layer(task: Task, settings: TrainSettings, input_size: int) -> nn.Module:
    """The layer of a model that is given irregular time stamps as its last feature, where there are any."""
    made = build_layer(settings, input_size)
    if not has_timespans(task) or not isinstance(made, Recurrent) or "dt" not in made.cell_at(0).takes:
        return made
    return Timed(cast(Recurrent, build_layer(settings, input_size - 1)))


def has_timespans(task: Task) -> bool:
    """Whether batches of this task may have timespans, and a model that can take them."""
    saved = getattr(task, "encoding", None)
    takes = isinstance(task.input, Features) and task.kind in ("classify", "regress", "tag")
    return takes and getattr(saved, "times", None) is not None


def _classify(task: Task, settings: TrainSettings) -> ForTask:
    embed, width = _input(task, settings)
    if settings.model.removeprefix(registry.BI_PREFIX) in BESIDE:
        settings = settings.model_copy(update={"chrono": SPAN if settings.chrono is None else settings.chrono})
        embed = embed and Embed(task.input.size, width, settings.dropout, padding=PAD, scaled=True)
    elif embed is not None:
        with torch.no_grad():
            embed.table.weight.mul_(SMALL)
    made = _layer(task, settings, width)
    size = {"classes": task.target.size} if task.kind == "classify" else {"outputs": task.target.size}
    model = Classify(made, readout=_readout(task, settings, made), dropout=settings.dropout, embed=embed, **size)
    if task.kind == "regress":
        return for_task.ForRegress(model)
    return for_task.ForClassify(_normalised(model, settings), settings.label_smoothing)


def _readout(task: Task, settings: TrainSettings, made: nn.Module) -> str:
    """Where a text or a series is classed, and of a layer that looks ahead, the last step knows no more than others.

    Synthetic tokens are about what a state can hold to the end, so there the last step has to know.
    """
    if settings.readout != "auto":
        return settings.readout
    if task.kind == "classify" and not (isinstance(task.input, Tokens) and task.input.unit == "tokens"):
        return "max_mean"
    return "last" if getattr(made, "causal", True) else "mean"


def _tag(task: Task, settings: TrainSettings) -> ForTask:
    embed, width = _input(task, settings)
    model = Tag(
        _layer(task, settings, width), task.target.size, embed=embed, dropout=settings.dropout, crf=settings.crf
    )
    return for_task.ForTag(_normalised(model, settings), settings.label_smoothing)


def _generate(task: Task, settings: TrainSettings) -> ForTask:
    embed, width = _input(task, settings)
    assert embed is not None
    made = build_layer(settings, width)
    model = Generate(embed, made, tied=settings.tied, dropout=settings.dropout)
    return for_task.ForGenerate(model, settings.label_smoothing, carries=_fixed_state(made))


def _fixed_state(made: nn.Module) -> bool:
    """Whether the state stays as large as it is, however long the text: only then it can be carried on."""
    inner = made.layer if isinstance(made, Projected) else made
    if isinstance(inner, Segmented):
        return True
    training = made.training
    with torch.no_grad():
        x = torch.zeros(1, 5, cast(int, made.input_size))
        shapes = [[s.shape for s in _flat(made.eval()(x[:, :T])[1])] for T in (1, 2, 5)]
    made.train(training)
    return shapes[0] == shapes[1] == shapes[2]


def _flat(state: Any) -> list[torch.Tensor]:
    return [state] if isinstance(state, torch.Tensor) else list(state or ())


def _translate(task: Task, settings: TrainSettings) -> ForTask:
    source, width = _input(task, settings)
    assert source is not None
    base = settings.model.removeprefix(registry.BI_PREFIX)
    ahead = registry.BI_PREFIX + base
    encoder = Encoder(source, build_layer(settings, width, ahead if ahead in registry.list_names() else settings.model))
    target = Embed(task.target.size, settings.embedding, settings.dropout, padding=PAD)
    options: dict[str, Any] = {"dropout": settings.dropout, "tied": settings.tied}
    decoder: nn.Module
    if base in ("transformer", "linformer"):  # the second one cannot look back alone
        made = Transformer(
            settings.embedding,
            layers=settings.layers,
            causal=True,
            memory_size=encoder.output_size,
            position="rotary",
            block=Block(dropout=settings.dropout),
        )
        decoder = TransformerDecoder(target, made, **options)
    else:
        decoder = RecurrentDecoder(
            target, build_layer(settings, settings.embedding, base), encoder.output_size, **options
        )
    model = Translate(encoder, decoder, Marks(PAD, START, END))
    return for_task.ForTranslate(model, settings.label_smoothing)


def _forecast(task: Task, settings: TrainSettings) -> ForTask:
    if not isinstance(task.input, Features) or not isinstance(task.target, Values):
        raise UserError(f"a forecast needs numbers in and out, task {task.name!r} has {task.input}, {task.target}")
    inputs, targets, horizon = task.input.names, task.target.names, task.target.steps
    absent = [name for name in targets if name not in inputs]
    if absent:
        raise UserError(f"a forecast of {absent[0]!r} needs its past; the inputs are {', '.join(inputs)}")
    order = [inputs.index(name) for name in targets] + [i for i, name in enumerate(inputs) if name not in targets]
    segment = _segment(task, settings, horizon, len(order) == len(targets))
    if segment:
        made = build_layer(settings, settings.embedding + settings.embedding % 2)
        model: nn.Module = SegmentForecast(made, horizon, len(targets), segment, dropout=settings.dropout)
    else:
        model = Forecast(build_layer(settings, len(inputs)), horizon, targets=len(targets), dropout=settings.dropout)
    return for_task.ForForecast(model, order)


def _segment(task: Task, settings: TrainSettings, horizon: int, all_targets: bool) -> int:
    if settings.segment is not None:
        if settings.segment and not all_targets:
            raise UserError(f"segment={settings.segment} forecasts all inputs; make all of them targets, or segment=0")
        return settings.segment
    ahead = settings.model.startswith(registry.BI_PREFIX) or settings.model == "linformer"
    lookback = getattr(task, "lookback", 0)
    w = math.gcd(horizon, lookback, SEGMENT) if lookback else 0
    return w if all_targets and not ahead and w >= 8 else 0


def _transcribe(task: Task, settings: TrainSettings) -> ForTask:
    made = build_layer(settings, settings.stack * task.input.size)
    model = Transcribe(made, task.target.size - 1, stack=settings.stack, dropout=settings.dropout)
    return for_task.ForTranscribe(_normalised(model, settings))


def _input(task: Task, settings: TrainSettings) -> tuple[Embed | None, int]:
    """The embedding, where ids come in, and the layer's input size."""
    if isinstance(task.input, Features):
        return None, task.input.size + has_timespans(task)
    return Embed(task.input.size, settings.embedding, settings.dropout, padding=PAD), settings.embedding


def _normalised(model: Any, settings: TrainSettings) -> nn.Module:
    """The same model, its head reading what is normalised."""
    if settings.normalise:
        width = getattr(model, "readout", model.layer).output_size
        model.head = nn.Sequential(nn.LayerNorm(width), model.head)
    return model


class Timed(nn.Module):
    """Pass the last input feature, the time since the previous step, to the layer as `timespans`."""

    batch_first = True

    def __init__(self, layer: Recurrent) -> None:
        super().__init__()
        self.layer = layer
        self.input_size, self.output_size = layer.input_size + 1, layer.output_size
        self.bidirectional = layer.bidirectional

    def forward(
        self, x: Tensor, state: Any = None, lengths: Tensor | Sequence[int] | None = None
    ) -> tuple[Tensor, Any]:
        """Run the layer on x (B, T, D + 1), whose last feature is the time span; return y and the state."""
        return self.layer(x[..., :-1], state, lengths, timespans=x[..., -1])
