"""The base class of a kind of task: the interface that the rest of the lab uses.

A task says only the name of its kind; `registry.kind_of(task)` returns the object of a class below. Its methods define
everything that differs between kinds: the model with its loss, what is scored, how models rank, and what a prediction
looks like. To add a kind, write one file with a subclass of `Kind` and one of `ForTask`, and list it in
`registry.KINDS`. The layers that `compare` trains are listed here, too; `:2` stands for two layers.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab.data.task import Batch, Features, Task
from seqloom.lab.kinds.columns import Columns
from seqloom.lab.kinds.for_task import ForTask, Prediction, get_targets
from seqloom.lab.kinds.forms import Kind as Name
from seqloom.lab.kinds.objective import OTHER_NAMES, Objective
from seqloom.lab.kinds.results import Result
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.report.page import PageBlock
from seqloom.lab.stats.metrics import METRICS, Metric

# When time is short, only the first models are kept: a fast one of every family comes first, then its variants.
WHOLE_SEQUENCE = (
    *("gru", "bi_gru", "attn_rnn", "tcn", "lstm", "bi_transformer:2", "gated_deltanet:2", "rnn", "bi_lstm"),
    *("bi_attn_rnn", "gru:2", "attn_rnn:2", "bi_hybrid", "mamba2:2", "mlstm:2"),
    *("bi_linear_transformer:2", "bi_local_transformer:2"),
)
CAUSAL = (
    *("gru", "attn_rnn", "tcn", "lstm", "transformer:2", "gated_deltanet:2", "rnn", "gru:2", "attn_rnn:2"),
    *("lstm:2", "hybrid", "mamba2:2", "mlstm:2", "linear_transformer:2", "local_transformer:2"),
)
ENCODER_DECODER = ("gru", "attn_rnn", "lstm", "transformer:2", "rnn", "gru:2", "tcn", "hybrid", "linear_transformer:2")
BIDIRECTIONAL = ("bi_gru", "bi_attn_rnn", "bi_lstm")  # first for tags, which depend on later tokens too
TAG = (*BIDIRECTIONAL, *(name for name in WHOLE_SEQUENCE if name not in BIDIRECTIONAL))

MOST_LABELS = 20  # labels that a model card lists


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The test rows of a task, scored with a model."""

    model: ForTask
    task: Task
    columns: Columns  # the scores
    batch: int  # examples per batch
    is_late: Callable[[], bool]  # whether to stop with the results so far; called between predictions that take long
    shared: Columns  # the scores of the test rows of all folds, for tables and curves of classes


class Kind(ABC):
    """A kind of task."""

    name: ClassVar[Name]  # its name on the command line and on disk
    command: ClassVar[str] = "predict"  # the command that applies a run to new data
    # The metrics from which a user may choose to rank models; the first that the data allow is the default.
    metrics: ClassVar[tuple[str, ...]]
    # The metrics that select the best weights of a training: the first that a validation computes, otherwise the
    # loss.
    selecting: ClassVar[tuple[str, ...]] = ()
    models: ClassVar[tuple[str, ...]] = WHOLE_SEQUENCE  # the layers to compare; when time is short, only the first ones
    topology: ClassVar[str]  # how many steps go in and how many targets come out, for `advise`
    noun: ClassVar[str] = "distinct token"  # the name of one output
    padding: ClassVar[int | None] = None  # the padding of target sequences; None if a target is not a sequence of names
    has_classes: ClassVar[bool] = False  # whether each target is one of some classes
    # Whether the target is a text in the order of the input's steps, without their places.
    aligns_text: ClassVar[bool] = False
    predicts_text: ClassVar[bool] = False  # whether targets are tokens of a text, which needs larger models
    separator: ClassVar[str] = " "  # the separator of items of a prediction in a CSV field
    # Minimum number of held-out rows that a comparison scores, however long it takes; 1,000 show an accuracy of 90 %
    # to 2 points.
    fewest_scored: ClassVar[int] = 1_000
    # The baselines to fit for comparison, the simplest first: keys of `baselines.registry.FITS`.
    baselines: ClassVar[tuple[str, ...]] = ()
    is_per_row: ClassVar[bool] = False  # whether each row has one target, read at its end: a class, labels or numbers
    reads_timespans: ClassVar[bool] = False  # whether the time between steps may be an input
    # Whether targets are numbers; then no metric is a share of rows with Wilson's interval.
    has_values: ClassVar[bool] = False
    writes: ClassVar[bool] = False  # whether a model writes a text token by token, which takes longer than scoring it
    # Whether a model continues a text, which is read chunk by chunk with the state carried over; rows have no
    # prediction.
    continues_text: ClassVar[bool] = False
    spans_rows: ClassVar[bool] = False  # whether a prediction is a table with one row for each step ahead
    explains_last: ClassVar[bool] = False  # whether the last output step is explained by default, not the first
    # The class that gives a fitted baseline the loss and the predictions of this kind.
    baseline_model: ClassVar[type[ForTask]]
    use: ClassVar[str] = ""  # what a model does with its inputs, if it predicts names: "Classifies"; "" for other kinds
    pipeline: ClassVar[str] = ""  # the Hugging Face Hub's name of such a task; "" if it has none
    # What turns the output of an exported model into results: a key of `export.runner.results.DECODERS`; "" if
    # `seqloom export` does not write such models.
    decoder: ClassVar[str] = ""
    row: ClassVar[str] = "row"  # the name of a row of the held-out data

    # the model

    @abstractmethod
    def build(self, task: Task, settings: TrainSettings) -> ForTask:
        """Build the model of a task, with its loss, over the layer named in the settings, with random weights."""

    def check_settings(self, task: Task, settings: TrainSettings) -> None:  # noqa: B027
        """Raise a UserError if a setting would have no effect or let the model see the value to predict."""

    def must_not_look_ahead(self, task: Task) -> bool:
        """Return whether a layer that reads later steps would see what it has to predict."""
        return False

    def check_sight(self, task: Task, model: str) -> None:  # noqa: B027
        """Raise a UserError if a layer of this name would see the value to predict."""

    def has_timespans(self, task: Task) -> bool:
        """Return whether the batches of a task have irregular time stamps that its model can use."""
        usable = self.reads_timespans and isinstance(task.input, Features)
        return usable and task.encoding is not None and task.encoding.times is not None

    def wrap_baseline(self, task: Task, module: nn.Module) -> ForTask:
        """Give a fitted baseline the loss and the predictions of this kind."""
        return self.baseline_model(module)

    # metrics

    @abstractmethod
    def score(self, task: Task, batch: Batch, prediction: Prediction) -> Columns:
        """Return the contributions of each row of a batch to the metrics: arrays (B, ...) by name."""

    def score_decoded(self, task: Task, batch: Batch, model: ForTask) -> Columns:
        """Return the contributions of rows to metrics of decoded texts, which take longer; {} if there are none."""
        return {}

    def describe_test(self, task: Task, model: ForTask, columns: Columns) -> dict[str, Any]:
        """Return what `evaluate` reports besides metrics, such as a table of classes, as JSON types."""
        return {}

    def list_metrics(self, task: Task) -> list[str]:
        """Return the metrics that fit a task, the default first."""
        return list(self.metrics)

    def find_metric(self, task: Task, name: str) -> Metric:
        """Return the metric of this name, in any of its spellings.

        Raises:
            UserError: If there is no such metric, or it does not fit the task.
        """
        fitting = self.list_metrics(task)
        plain = re.sub(r"[\s-]+", "_", name.strip().lower())
        plain = OTHER_NAMES.get(plain, plain)
        if plain in fitting:
            return METRICS[plain]
        choices = f"choose one of {', '.join(fitting)}"
        if plain not in METRICS:
            hint = suggest(plain, fitting)
            raise UserError(f"there is no metric {name!r}; {hint + ' ' if hint else ''}{choices}")
        what = self._describe_data(task) if plain in self.metrics else ""
        raise UserError(f"the metric {plain} does not fit {what or f'a task of kind {self.name}'}; {choices}")

    def _describe_data(self, task: Task) -> str:
        """Explain for which data of this kind a metric is missing; "" if that depends only on the kind."""
        return ""

    def choose_objective(
        self, task: Task, metric: str | None, class_weights: str | None = None, threshold: str | None = None
    ) -> Objective:
        """Choose the metric and the class weights from the settings and from the targets of the training rows.

        Args:
            metric: The metric of the settings; None for the default.
            class_weights: "balanced" or "none"; None for the default.
            threshold: The threshold of the settings; None for the default.

        Raises:
            UserError: If a setting does not fit the task.
        """
        if class_weights == "balanced":
            raise UserError(f"class_weights=balanced is for classes; this is a task of kind {self.name}")
        chosen = METRICS[self.list_metrics(task)[0]] if metric is None else self.find_metric(task, metric)
        return Objective(chosen, metric is not None, class_weights or "none", threshold or "")

    def choose_selecting(self, values: Mapping[str, float], chosen: str | None = None) -> str:
        """Return the name of the metric that selects the best weights.

        Args:
            values: The metrics that a validation computed.
            chosen: The metric of the settings. One that needs decoded texts is not computed while training; the loss
                then selects the weights.
        """
        if chosen is not None:
            return chosen if chosen in values else "loss"
        return next((name for name in self.selecting if name in values), "loss")

    def choose_shown(self, values: Mapping[str, object], chosen: str | None = None) -> str:
        """Return the metric that tables show: the chosen one, the default of the kind, or the loss."""
        return next((name for name in (chosen or "", *self.metrics) if name in values), "loss")

    def list_decided(self, task: Task) -> tuple[str, ...]:
        """Return the classes among which a threshold or a reject option decides; () if nothing is decided."""
        return ()

    def name_positive(self, task: Task, positive: str | None) -> str | None:
        """Return the class that counts as positive, of two; `positive` is the setting."""
        return positive

    # predictions

    def build_results(
        self, task: Task, prediction: Prediction, probabilities: bool, reject: float = 0.0
    ) -> list[Result]:
        """Return the results of a batch in the words and units of the data.

        Args:
            probabilities: Whether to return the probabilities of all classes.
            reject: Minimum probability of a class to predict it.
        """
        return [{"prediction": value} for value in task.decode(prediction.values, prediction.lengths)]

    def build_step_results(self, task: Task, model: ForTask, scores: Tensor, probabilities: bool) -> list[Result]:
        """Return the results of single steps of streams.

        Args:
            scores: Its scores (N, K) after the steps; those of a classifier are not calibrated.
            probabilities: Whether to return the probabilities of all classes.
        """
        nothing = Batch(scores, torch.ones(len(scores), dtype=torch.long), torch.arange(len(scores)))
        reject = 0.0
        if model.decision is not None:
            scores, reject = model.decision.calibrate(scores), model.decision.reject
        if not self.is_per_step(task):
            return self.build_results(task, model.choose(scores, nothing), probabilities, reject)
        results = self.build_results(task, model.choose(scores.unsqueeze(1), nothing), probabilities, reject)
        return [{key: value[0] if value else None for key, value in result.items()} for result in results]

    def is_per_step(self, task: Task) -> bool:
        """Return whether each input step has its own output."""
        return False

    def list_classes(self, task: Task) -> list[str] | None:
        """Return the names of the probabilities that a prediction may have; None if there are none."""
        return None

    def decode_target(self, task: Task, batch: Batch, row: int) -> object:
        """Return the target of a row of a batch in the words and units of the data; "" if there is none to show."""
        lengths = None if batch.y_lengths is None else batch.y_lengths[row : row + 1]
        return task.decode(get_targets(batch)[row : row + 1], lengths)[0]

    def lengthen_results(self, results: Iterator[Result], task: Task) -> Iterator[Result]:
        """Return results with one row for each step of a prediction, if it `spans_rows`."""
        return results

    # pages and comparisons

    def analyse_errors(self, rows: ScoredRows) -> list[PageBlock]:
        """Return report blocks about a model's test errors, the most informative first."""
        return []

    def write_value(self, task: Task, value: Any) -> str:  # noqa: ANN401  # whatever `Task.decode` returns
        """Write a decoded target or prediction as text."""
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)

    # export

    def describe_export(self, task: Task, model: ForTask) -> dict[str, Any]:
        """Return what a runner needs to turn outputs into predictions, as JSON types."""
        return {}

    def find_pipeline(self, task: Task) -> str:
        """Return the Hugging Face Hub's name of a task; "" if it has none. Names of targets are for texts alone."""
        return self.pipeline if self.has_values or getattr(task.input, "unit", None) else ""

    def describe_use(self, task: Task, inputs: str) -> str:
        """Describe in a sentence what a model does with sequences of `inputs`."""
        names: Sequence[str] = getattr(task.target, "names", ())
        if not self.use:
            return f"Predicts {', '.join(names)} from sequences of {inputs}."
        more = f" and {len(names) - MOST_LABELS} more" if len(names) > MOST_LABELS else ""
        return f"{self.use} sequences of {inputs}; labels: {', '.join(names[:MOST_LABELS])}{more}."
