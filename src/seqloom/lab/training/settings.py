"""The settings of one training: one flat, validated record, which is also the flags and `run.json`."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field, model_validator

from seqloom.core.errors import UserError

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Least = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Sizes(TypedDict):
    """What `Task.batches` takes: one of them is None."""

    batch: int | None
    tokens: int | None


class TrainSettings(BaseModel):
    """What `seqloom train` builds, and how it is trained."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: str = "gru"
    """A layer by name (`seqloom list`), with bi_ before it to look both ways; or path/to/file.py:MyCell."""
    hidden: Annotated[int, Field(ge=1, le=65536)] = 128
    """Width of the layer."""
    layers: Annotated[int, Field(ge=1, le=256)] = 1
    """Layers on top of each other."""
    embedding: Annotated[int, Field(ge=1, le=65536)] = 128
    """Width of a token's vector."""
    readout: Literal["auto", "last", "mean", "max", "max_mean", "attention"] = "auto"
    """How a whole sequence becomes one vector; auto: max_mean to class texts and series, else last."""
    normalise: bool = True
    """Layer normalisation of what the head reads, where it says classes."""
    init: Literal["default", "linear", "orthogonal", "xavier", "he"] = "orthogonal"
    """How a recurrent layer starts; orthogonal is Xavier for the matrices that meet the input."""
    chrono: Annotated[int, Field(ge=0)] | None = None
    """Steps that gates remember for at the start; 0 for the cell's own. By default 100 where attn_rnn classes."""
    dropout: Rate = 0.2
    """On the embedding, between layers and before the head."""
    recurrent_dropout: Rate = 0.0
    """One mask a sequence on the state, in cells that take it."""
    zoneout: Rate = 0.0
    """Chance that a unit of the state keeps its old value."""
    weight_dropout: Rate = 0.0
    """On the recurrent matrices."""
    crf: bool = False
    """Score chains of tags as wholes."""
    tied: bool = False
    """One table for reading and writing tokens; the layer is then as wide as the embedding."""
    stack: Count = 1
    """Frames of a recording that are joined to one step."""
    segment: Annotated[int, Field(ge=0)] | None = None
    """Steps of a series that a forecast reads as one; 0 for single steps, chosen from the data by default."""

    optimiser: Literal["adamw", "adam", "sgd"] = "adamw"
    """sgd has a momentum of 0.9."""
    lr: Positive = 1e-3
    """The learning rate at its highest."""
    schedule: Literal["cosine", "plateau", "step", "constant"] = "cosine"
    """What the learning rate does after it has risen."""
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of all steps in which the learning rate rises."""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """What plateau and step multiply the learning rate by."""
    decay_after: Count = 2
    """Validations without progress (plateau), or validations (step), until they do."""
    clip: Least = 1.0
    """The largest norm of the gradient; 0 for any."""
    label_smoothing: Rate = 0.0
    """Share of each class or token that is spread over all of them; a CRF, which scores whole chains, has none."""
    weight_decay: Least = 0.01
    """On matrices; never on biases, norms and embeddings."""
    accumulate: Count = 1
    """Batches whose gradients make one step."""
    ema: Rate = 0.0
    """Decay of a running average of the weights, which is then the model; 0 for none."""

    epochs: Count | None = None
    """Passes over the training data; by default 2,500 steps' worth, from 10 (3 to class much text) to 200."""
    steps: Count | None = None
    """Steps in all; 2,000 by default where the training data has no end."""
    validate_every: Count | None = None
    """Steps between validations; by default an epoch, or a tenth of all steps."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Validations without progress after which training stops; 0 for never."""
    batch: Count | None = None
    """Examples in a batch; 32 where neither batch nor tokens are given."""
    tokens: Count | None = None
    """Time steps in a batch, padding included, in place of a number of examples."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What products are computed in; fp16 needs a GPU."""
    compile: bool = False
    """Compile the model with torch.compile."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Decides the first weights, the order of the data and all noise."""
    device: str = "auto"
    """cpu, cuda or cuda:1; auto takes a GPU where there is one."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads that torch may use on the CPU."""
    checkpoint_every: Positive = 5.0
    """Minutes between checkpoints; there is one after every validation in any case."""
    checkpoint_steps: Count | None = None
    """Steps between checkpoints, in place of minutes."""
    tensorboard: bool = False
    """Write TensorBoard files, too."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainSettings:
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
