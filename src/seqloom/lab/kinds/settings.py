"""The settings of one training: one flat, validated record that defines the CLI flags and `run.json`."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from seqloom.core import renamed
from seqloom.core.errors import UserError

Count = Annotated[int, Field(ge=1, lt=2**31)]
Number = Annotated[int, Field(ge=0, lt=2**31)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Sizes(TypedDict):
    """The batch size as `Task.batches` takes it; one of the two is None."""

    batch: int | None
    tokens: int | None


class TrainSettings(BaseModel):
    """Settings of `seqloom train`: the model and how it is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: str = "gru"
    """Layer name (`seqloom list layers`), with the prefix bi_ for both directions; or path/to/file.py:MyCell."""
    hidden: Annotated[int, Field(ge=1, le=65536)] = 128
    """Hidden size of the layer."""
    layers: Annotated[int, Field(ge=1, le=256)] = 1
    """Number of stacked layers."""
    residual: bool = False
    """Add the input of every recurrent layer after the first to its output, so that deep stacks train."""
    embedding: Annotated[int, Field(ge=1, le=65536)] = 128
    """Size of a token embedding."""
    letters: Annotated[int, Field(ge=0, le=65536)] = 50
    """Features of a word that are computed from its letters, in their case, to tag words; 0 turns them off."""
    readout: Literal["auto", "last", "mean", "max", "max_mean", "attention"] = "auto"
    """How a sequence becomes one vector. auto: max_mean to classify texts and series, otherwise last."""
    normalise: bool = True
    """Apply layer normalisation before a head that predicts classes."""
    init: Literal["default", "linear", "orthogonal", "xavier", "he"] = "orthogonal"
    """Initialisation of a recurrent layer; orthogonal uses Xavier for the input matrices."""
    chrono: Number | None = None
    """Initial memory span of the gates in steps (chrono initialisation). 0 keeps the cell's default. Default: 100 for
    attn_rnn classifiers."""
    dropout: Rate = 0.2
    """Dropout on the embedding, between layers and before the head."""
    recurrent_dropout: Rate = 0.0
    """Dropout on the state with one mask per sequence, for cells that support it."""
    zoneout: Rate = 0.0
    """Probability that a unit of the state keeps its old value."""
    weight_dropout: Rate = 0.0
    """Dropout on the recurrent weight matrices."""
    crf: bool = False
    """Use a conditional random field (CRF), which scores whole sequences of tags."""
    tied: bool = False
    """Share the embedding table with the output layer; hidden and embedding must be equal."""
    stack: Count = 1
    """Frames of a recording that are joined into one step."""
    segment: Number | None = None
    """Time steps that a forecast reads as one segment; 0 reads single steps. Default: chosen from the data."""

    optimiser: Literal["adamw", "adam", "sgd"] = "adamw"
    """Optimiser; sgd uses a momentum of 0.9."""
    lr: Positive = 1e-3
    """Maximum learning rate."""
    schedule: Literal["cosine", "plateau", "step", "constant"] = "cosine"
    """Learning rate schedule after the warm-up."""
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Fraction of all steps in which the learning rate rises."""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Factor by which plateau and step reduce the learning rate."""
    decay_after: Count = 2
    """Validations without progress (plateau), or validations (step), before each reduction."""
    clip: NonNegative = 1.0
    """Maximum norm of the gradient; 0 turns clipping off."""
    label_smoothing: Rate = 0.0
    """Label smoothing: the probability spread over all classes or tokens; not available with a CRF."""
    weight_decay: NonNegative = 0.01
    """Weight decay of matrices; biases, norms and embeddings do not decay."""
    class_weights: Literal["none", "balanced"] | None = None
    """Weights of the classes in the loss; balanced gives all classes the same total weight. Default: balanced if one
    class has 90 % of the rows and the metric treats classes alike, otherwise none."""
    accumulate: Count = 1
    """Batches per optimiser step (gradient accumulation)."""
    ema: Rate = 0.0
    """Decay of an exponential moving average of the weights, which becomes the model; 0 turns it off."""
    average_checkpoints: Number = 0
    """Number of last validations whose weights are averaged at the end. The mean becomes the model if it is better on
    the validation rows than every single one; 0 turns it off."""

    metric: str | None = None
    """Metric that selects the best weights: accuracy, balanced_accuracy, macro_f1, f1, auroc, average_precision, loss;
    span_f1; rmse, mae; cer, wer; ... Default: the usual one of the kind of task, or average_precision or
    balanced_accuracy if one class has 90 % of the rows."""
    positive: str | None = None
    """Class that counts as positive, of two. Default: the rarer one."""
    threshold: str | None = None
    """Least probability to predict the positive class: a number, or a goal on the validation rows such as recall=0.9,
    precision=0.9 or f1. Default: the likelier class, or f1 if the classes are imbalanced."""
    reject: str | None = None
    """Least probability to predict a class at all: a number, or accuracy=0.95, the accuracy of the predictions that
    are left on the validation rows. Default: always predict."""
    epochs: Count | None = None
    """Passes over the training data. Default: about 2,500 steps, but at least 10 epochs (3 to classify large amounts of
    text) and at most 200."""
    steps: Count | None = None
    """Total number of steps. Default: 2,000 for endless training data, otherwise set by epochs."""
    validate_every: Count | None = None
    """Steps between validations. Default: one epoch, or a tenth of all steps for endless data."""
    patience: Number = 0
    """Validations without progress after which training stops; 0 means never."""
    batch: Count | None = None
    """Examples per batch. Default: 32, unless tokens is given."""
    tokens: Count | None = None
    """Time steps per batch, padding included, instead of a number of examples."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Precision of matrix products; fp16 needs a GPU."""
    compile: bool = False
    """Compile the model with torch.compile."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Random seed of the initial weights, the order of the data and all noise."""
    device: str = "auto"
    """Device: cpu, cuda or cuda:1; auto uses a GPU if one is available."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Number of torch threads on the CPU. Default: torch's."""
    checkpoint_every: Positive = 5.0
    """Minutes between checkpoints; one is also written after every validation."""
    checkpoint_steps: Count | None = None
    """Steps between checkpoints, instead of minutes."""
    tensorboard: bool = False
    """Also write TensorBoard files."""

    @field_validator("model")
    @classmethod
    def _rename_model(cls, name: str) -> str:
        """Replace a layer's old name, which runs of an earlier release hold."""
        return renamed.LAYERS.get(name, name)

    @model_validator(mode="after")
    def _check_consistency(self) -> TrainSettings:
        if self.batch is not None and self.tokens is not None:
            raise UserError(f"give one of batch and tokens, got batch={self.batch} and tokens={self.tokens}")
        if self.epochs is not None and self.steps is not None:
            raise UserError(f"give one of epochs and steps, got epochs={self.epochs} and steps={self.steps}")
        if self.tied and self.embedding != self.hidden:
            raise UserError(
                f"tied needs embedding and hidden to be equal, got embedding={self.embedding} and hidden={self.hidden}"
            )
        return self

    @property
    def sizes(self) -> Sizes:
        return {"batch": self.batch if self.batch or self.tokens else 32, "tokens": self.tokens}
