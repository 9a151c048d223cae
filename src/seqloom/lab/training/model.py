"""Build the model for a task: the kind of task decides the topology, the settings decide the layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.core.init import Init
from seqloom.lab.data.task import END, PAD, START, Features, Labels, Task, Tokens, Values
from seqloom.lab.training import for_task
from seqloom.lab.training.for_task import ForTask
from seqloom.lab.training.settings import TrainSettings
from seqloom.layers import registry
from seqloom.layers.dropouts import Dropouts
from seqloom.layers.memory import Segmented
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.transformer.block import Block
from seqloom.layers.transformer.layer import Projected, Transformer
from seqloom.models.characters import Characters
from seqloom.models.classify import Classify
from seqloom.models.decoding.recurrent import RecurrentDecoder
from seqloom.models.decoding.transformer import TransformerDecoder
from seqloom.models.embed import Embed, Marks
from seqloom.models.encode import Encoder
from seqloom.models.forecast import Forecast
from seqloom.models.generate import Generate
from seqloom.models.scale import SeriesScale
from seqloom.models.segments import SegmentForecast
from seqloom.models.tag import Tag
from seqloom.models.transcribe import Transcribe
from seqloom.models.translate import Translate

EMBEDDING_SCALE = 0.1  # of a classifier's initial embeddings, so that rare words have little influence
NORMALISED_CELLS = ("attn_rnn",)  # their state is normalised, so the embedding must have the same scale
CLASSIFIER_SPAN = 100  # initial memory span of these cells in steps, as a class is read at the end
LETTER_EMBEDDING = 25  # width of a letter's embedding, as in Lample et al. 2016
FIRST_LOG_ODDS = -2.0  # of every label of a multi-label task before training: random guesses would have a fair F1
MAX_SEGMENT = 48  # time steps of a forecast that are read as one segment, if the data allows it


def build(task: Task, settings: TrainSettings) -> ForTask:
    """Build the model of a task over the layer named in the settings, with random weights."""
    builders = {
        "classify": _classify,
        "multilabel": _multilabel,
        "regress": _classify,
        "tag": _tag,
        "generate": _generate,
        "translate": _translate,
        "forecast": _forecast,
        "transcribe": _transcribe,
    }
    model = builders[task.kind](task, settings)
    model.timed, model.attributed = has_timespans(task), bool(task.input.attributes)
    return model


def build_without_memory(task: Task, settings: TrainSettings) -> ForTask:
    """Build the model on the meta device, which has shapes but no values."""
    with torch.device("meta"), _WithoutInitialisation():
        return build(task, settings)


class _WithoutInitialisation(TorchFunctionMode):
    """Skip torch.nn.init, whose random numbers on the meta device import torch's compiler (two seconds)."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return func(*args, **kwargs)


def build_layer(settings: TrainSettings, input_size: int, name: str | None = None) -> nn.Module:
    """Build the layer of the settings, or the one called `name` with the same size and dropout."""
    name = settings.model if name is None else name
    options: dict[str, Any] = {"layers": settings.layers, "dropout": settings.dropout}
    dropouts = Dropouts(settings.recurrent_dropout, settings.zoneout, settings.weight_dropout)
    base = name.removeprefix(registry.BI_PREFIX)
    if base not in registry.LAYERS:
        options |= {"dropouts": dropouts, "init": Init(settings.init, settings.chrono or None)}
        options |= {"residual": True} if settings.residual else {}
    elif dropouts != Dropouts() or settings.residual:
        raise UserError(
            f"recurrent_dropout, zoneout, weight_dropout and residual are for recurrent cells, and {name!r} is not one"
        )
    return registry.make(name, input_size, settings.hidden, **options)


def _build_timed_layer(task: Task, settings: TrainSettings, input_size: int) -> nn.Module:
    """Build a layer; if the last input feature is a time span and the cell takes it, pass it to the cell."""
    layer = build_layer(settings, input_size)
    if not has_timespans(task) or not isinstance(layer, Recurrent) or "dt" not in layer.cell_at(0).takes:
        return layer
    return Timed(cast(Recurrent, build_layer(settings, input_size - 1)))


def has_timespans(task: Task) -> bool:
    """Return whether the batches of a task have irregular time stamps that its model can use."""
    usable = isinstance(task.input, Features) and task.kind in ("classify", "multilabel", "regress", "tag")
    return usable and task.encoding is not None and task.encoding.times is not None


def _classify(task: Task, settings: TrainSettings) -> ForTask:
    embed: Any
    embed, width = _build_input(task, settings)
    if settings.model.removeprefix(registry.BI_PREFIX) in NORMALISED_CELLS:
        settings = settings.model_copy(
            update={"chrono": CLASSIFIER_SPAN if settings.chrono is None else settings.chrono}
        )
        embed = embed and Embed(task.input.size, width, settings.dropout, padding=PAD, scaled=True)
    elif embed is not None:
        with torch.no_grad():
            embed.table.weight.mul_(EMBEDDING_SCALE)
    if embed is not None and task.input.attributes:
        embed, width = EmbedWithAttributes(embed, len(task.input.attributes)), width + len(task.input.attributes)
    layer = _build_timed_layer(task, settings, width)
    size = {"classes": task.target.size} if task.kind == "classify" else {"outputs": task.target.size}
    model = Classify(
        layer, readout=_choose_readout(task, settings, layer), dropout=settings.dropout, embed=embed, **size
    )
    if task.kind == "regress":
        return for_task.ForRegress(model)
    if task.kind == "multilabel":
        return _predict_labels(model, settings)
    return for_task.ForClassify(_normalise(model, settings), settings.label_smoothing)


def _multilabel(task: Task, settings: TrainSettings) -> ForTask:
    if not (isinstance(task.target, Labels) and task.target.per_step):
        return _classify(task, settings)
    embed, width = _build_input(task, settings)
    layer = _build_timed_layer(task, settings, width)
    return _predict_labels(Tag(layer, task.target.size, embed=embed, dropout=settings.dropout), settings)


def _predict_labels(model: Classify | Tag, settings: TrainSettings) -> ForTask:
    """Return a model of labels that are all improbable before training (Lin et al. 2017, section 3.3)."""
    with torch.no_grad():
        model.head.bias.fill_(FIRST_LOG_ODDS)
    return for_task.ForMultilabel(_normalise(model, settings), settings.label_smoothing)


def looks_ahead(model: str) -> bool:
    """Return whether a layer of this name reads later steps."""
    return model.startswith(registry.BI_PREFIX) or model == "linformer"


def check_sight(task: Task, model: str) -> None:
    """Raise a UserError if a layer looks ahead and the labels of a step are the input of the next one."""
    if isinstance(task.target, Labels) and task.target.shifted and looks_ahead(model):
        other = "transformer" if model == "linformer" else model.removeprefix(registry.BI_PREFIX)
        raise UserError(
            f"{model} looks ahead, and the labels of a step are the input of the next one; use {other} instead"
        )


def _choose_readout(task: Task, settings: TrainSettings, layer: nn.Module) -> str:
    """Choose max_mean to classify texts and series, mean for layers that look ahead, otherwise last.

    Synthetic tokens test what a state remembers to the end, so they are read at the last step.
    """
    if settings.readout != "auto":
        return settings.readout
    if task.kind in ("classify", "multilabel") and not (isinstance(task.input, Tokens) and task.input.unit == "tokens"):
        return "max_mean"
    return "last" if getattr(layer, "causal", True) else "mean"


def _tag(task: Task, settings: TrainSettings) -> ForTask:
    embed, width = _build_input(task, settings)
    characters = None
    if isinstance(task.input, Tokens) and task.input.alphabet and settings.letters:
        characters = Characters(task.input.alphabet, LETTER_EMBEDDING, settings.letters, kind="cnn")
        width += settings.letters
    model = Tag(
        _build_timed_layer(task, settings, width),
        task.target.size,
        embed=embed,
        characters=characters,
        dropout=settings.dropout,
        crf=settings.crf,
    )
    return for_task.ForTag(_normalise(model, settings), settings.label_smoothing)


def _generate(task: Task, settings: TrainSettings) -> ForTask:
    embed, width = _build_input(task, settings)
    assert embed is not None
    layer = build_layer(settings, width)
    model = Generate(embed, layer, tied=settings.tied, dropout=settings.dropout)
    return for_task.ForGenerate(model, settings.label_smoothing, carries=_has_fixed_state(layer))


def _has_fixed_state(layer: nn.Module) -> bool:
    """Return whether the state has the same size for every length, so that it can be carried to the next batch."""
    inner = layer.layer if isinstance(layer, Projected) else layer
    if isinstance(inner, Segmented):
        return True
    training = layer.training
    with torch.no_grad():
        x = torch.zeros(1, 5, cast(int, layer.input_size))
        shapes = [[s.shape for s in _flatten(layer.eval()(x[:, :T])[1])] for T in (1, 2, 5)]
    layer.train(training)
    return shapes[0] == shapes[1] == shapes[2]


def _flatten(state: Tensor | State | None) -> list[torch.Tensor]:
    return [state] if isinstance(state, torch.Tensor) else list(state or ())


def _translate(task: Task, settings: TrainSettings) -> ForTask:
    source, width = _build_input(task, settings)
    assert source is not None
    base = settings.model.removeprefix(registry.BI_PREFIX)
    ahead = registry.BI_PREFIX + base
    encoder = Encoder(source, build_layer(settings, width, ahead if ahead in registry.list_names() else settings.model))
    target = Embed(task.target.size, settings.embedding, settings.dropout, padding=PAD)
    options: dict[str, Any] = {"dropout": settings.dropout, "tied": settings.tied}
    decoder: nn.Module
    if base in ("transformer", "linformer"):  # linformer has no causal form
        layers = Transformer(
            settings.embedding,
            layers=settings.layers,
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
    model = Translate(encoder, decoder, Marks(PAD, START, END))
    return for_task.ForTranslate(model, settings.label_smoothing)


def _forecast(task: Task, settings: TrainSettings) -> ForTask:
    if not isinstance(task.input, Features) or not isinstance(task.target, Values):
        raise UserError(f"a forecast needs numbers in and out, task {task.name!r} has {task.input}, {task.target}")
    inputs, targets, horizon = task.input.names, task.target.names, task.target.steps
    absent = [name for name in targets if name not in inputs]
    if absent:
        raise UserError(f"a forecast of {absent[0]!r} needs its past; the inputs are {', '.join(inputs)}")
    order = for_task.order_features(task)
    segment = _choose_segment(task, settings, horizon, len(order) == len(targets))
    if segment:
        layer = build_layer(settings, settings.embedding + settings.embedding % 2)
        model: nn.Module = SegmentForecast(layer, horizon, len(targets), segment, dropout=settings.dropout)
    else:
        known = len(task.input.known)
        plain = len({*task.input.known, *task.input.flags})
        model = Forecast(
            build_layer(settings, len(inputs)),
            horizon,
            targets=len(targets),
            known=known,
            scale=SeriesScale("last", plain),
            dropout=settings.dropout,
        )
    return for_task.ForForecast(model, order)


def _choose_segment(task: Task, settings: TrainSettings, horizon: int, all_targets: bool) -> int:
    if settings.segment is not None:
        if settings.segment and not all_targets:
            raise UserError(
                f"segment={settings.segment} forecasts all inputs; make all of them targets, or set segment=0"
            )
        return settings.segment
    ahead = settings.model.startswith(registry.BI_PREFIX) or settings.model == "linformer"
    w = math.gcd(horizon, task.lookback, MAX_SEGMENT) if task.lookback else 0
    return w if all_targets and not ahead and w >= 8 else 0


def _transcribe(task: Task, settings: TrainSettings) -> ForTask:
    layer = build_layer(settings, settings.stack * task.input.size)
    model = Transcribe(layer, task.target.size - 1, stack=settings.stack, dropout=settings.dropout)
    return for_task.ForTranscribe(_normalise(model, settings))


def _build_input(task: Task, settings: TrainSettings) -> tuple[Embed | None, int]:
    """Return the embedding, if the inputs are ids, and the input size of the layer."""
    if isinstance(task.input, Features):
        return None, task.input.size + len(task.input.attributes) + has_timespans(task)
    return Embed(task.input.size, settings.embedding, settings.dropout, padding=PAD), settings.embedding


def _normalise(model: nn.Module, settings: TrainSettings) -> nn.Module:
    """Put a layer normalisation before the head, if the settings ask for it."""
    if settings.normalise:
        last: Any = model.readout if isinstance(model, Classify) else model.layer
        model.head = nn.Sequential(nn.LayerNorm(last.output_size), cast(nn.Module, model.head))
    return model


class EmbedWithAttributes(nn.Module):
    """Embed ids and keep the attributes of the row beside each vector.

    Ids and attributes come as one tensor of floats, exact up to 2**24, so that a model has one input.
    """

    def __init__(self, embed: Embed, attributes: int) -> None:
        super().__init__()
        self.embed = embed
        self.output_size = embed.output_size + attributes

    def forward(self, x: Tensor) -> Tensor:
        """Map ids and attributes (B, T, 1 + A) to (B, T, output_size)."""
        return torch.cat([self.embed(x[..., 0].long()), x[..., 1:]], -1)


class Timed(nn.Module):
    """Pass the last input feature, the time since the previous step, to the layer as `timespans`."""

    batch_first = True

    def __init__(self, layer: Recurrent) -> None:
        super().__init__()
        self.layer = layer
        self.input_size, self.output_size = layer.input_size + 1, layer.output_size
        self.bidirectional, self.causal = layer.bidirectional, layer.causal

    def forward(
        self, x: Tensor, state: Tensor | State | None = None, lengths: Tensor | Sequence[int] | None = None
    ) -> tuple[Tensor, Any]:
        """Run the layer on x (B, T, D + 1), whose last feature is the time span; return y and the state."""
        return self.layer(x[..., :-1], state, lengths, timespans=x[..., -1])
