"""Write a recurrent model as one C99 file that runs a stream step by step."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.series import SeriesCoder
from seqloom.lab.data.task import Task, Tokens
from seqloom.lab.export.c_code import CWriter, declare
from seqloom.lab.export.check import TOLERANCE, CheckError, make_rows
from seqloom.lab.export.description import describe
from seqloom.lab.export.graph import ExportedModel
from seqloom.lab.files import scratch
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.models.classify import Classify
from seqloom.models.tag import Tag

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-Wall", "-Werror", "-O2")
LOWEST = -3.4e38  # the largest output before the first step


def check_streamable(model: ForTask, task: Task) -> None:
    """Raise a UserError if a model cannot run step by step in C."""
    instead = "use --to onnx"
    if not model.streams:
        raise UserError(f"{model.why_whole}, which a stream in C does not keep; {instead}")
    layer = getattr(model.model, "layer", model.model)  # a baseline has no layer
    if not isinstance(layer, Recurrent):
        raise UserError(f"--to c writes recurrent cells, and {type(layer).__name__} is not one; {instead}")
    if layer.bidirectional:
        raise UserError(f"a bidirectional layer needs the whole sequence, so it cannot run step by step; {instead}")
    if getattr(model.model, "crf", None) is not None:
        raise UserError(f"a CRF chooses tags after the last step, so it cannot run step by step; {instead}")
    if getattr(model.model, "reads_letters", False):
        raise UserError(
            f"this model reads the letters of words, which the C file does not; train with --letters 0, or {instead}"
        )


class StepModule(nn.Module):
    """One step of a model: an input and all states in, the output and the new states out."""

    def __init__(self, model: ForTask, task: Task) -> None:
        super().__init__()
        self.model: Any = model
        self.exported = ExportedModel(model, ("x", "lengths"))
        self.layer: Recurrent = self.model.model.layer
        cells = [self.layer.cell_at(i) for i in range(len(self.layer.cells))]
        # Number of states of each cell.
        self.counts = [len(cell.start(torch.zeros(1, 1, cell.input_size))) for cell in cells]
        coder = task.encoding.x if task.encoding is not None else None
        self.scale = coder.scale if isinstance(coder, SeriesCoder) else None
        self.target = task.encoding.y.scale if task.encoding is not None and kind_of(task).has_values else None
        inner: Classify | Tag = self.model.model
        self.readout = inner.readout if isinstance(inner, Classify) else None

    def start(self) -> list[Tensor]:
        """Return the states before the first step: those of the cells, then those of the readout."""
        states: list[Tensor] = []
        for i in range(len(self.layer.cells)):
            cell = self.layer.cell_at(i)
            states += [s.detach().clone() for s in cell.start(torch.zeros(1, 1, cell.input_size))]
        width = self.layer.output_size
        how = self.readout.name if self.readout is not None else "last"
        zero, lowest = torch.zeros(1, width), torch.full((1, width), LOWEST)
        more = {
            "last": [],
            "mean": [zero],
            "max": [lowest],
            "max_mean": [lowest, zero],
            "attention": [torch.full((1, 1), LOWEST), torch.zeros(1, 1), zero],
        }[how]
        return [*states, torch.zeros(1, 1), *more]

    def forward(self, x: Tensor, *states: Tensor) -> list[Tensor]:
        """Return the output (1, K) and the new states."""
        inner, after, rest = self.model.model, [], list(states)
        y = self._embed(x)
        for i, count in enumerate(self.counts):
            cell = self.layer.cell_at(i)
            y, state = cell.step(cell.project(y.unsqueeze(1)).squeeze(1), tuple(rest[:count]))
            rest = rest[count:]
            after += list(state)
        n = rest[0] + 1
        y, more = self._summarise(y, n, rest[1:])
        return [self._finish(inner.head(y)), *after, n, *more]

    def _embed(self, x: Tensor) -> Tensor:
        embed = self.model.model.embed
        if self.scale is None:
            return x if embed is None else embed.table(x) * embed.scale
        mean, deviation = (torch.tensor(v, dtype=torch.float32) for v in (self.scale.mean, self.scale.deviation))
        missing = x.isnan()
        z = torch.where(missing, torch.zeros(1), (x - mean) / deviation)
        masks = [missing[:, k : k + 1].float() for k in np.flatnonzero(self.scale.missing).tolist()]
        return torch.cat([z, *masks], 1)

    def _summarise(self, y: Tensor, n: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the summary of all steps so far, and the new states of the readout."""
        how = self.readout.name if self.readout is not None else "last"
        if how == "last":
            return y, []
        if how == "mean":
            total = states[0] + y
            return total / n, [total]
        if how == "max":
            highest = torch.maximum(states[0], y)
            return highest, [highest]
        if how == "max_mean":
            highest, total = torch.maximum(states[0], y), states[1] + y
            return torch.cat([highest, total / n], 1), [highest, total]
        readout: Any = self.readout
        m, z, total = states
        s = readout.query(torch.tanh(readout.key(y)))
        now = torch.maximum(m, s)
        old, new = torch.exp(m - now), torch.exp(s - now)
        z, total = z * old + new, total * old + new * y
        return total / z, [now, z, total]

    def _finish(self, scores: Tensor) -> Tensor:
        """Return probabilities, or values in the units of the data."""
        decision = self.exported.inner.decision
        if self.target is not None:
            mean, deviation = (torch.tensor(v, dtype=torch.float32) for v in (self.target.mean, self.target.deviation))
            return scores * deviation + mean
        return self.exported.inner.finish(scores if decision is None else decision.calibrate(scores))


def write_c(model: ForTask, task: Task, folder: Path, int8: bool, name: str = "model") -> dict[str, Any]:
    """Write model.c and model.json; compile and compare the file if there is a compiler.

    Args:
        model: The trained model; with `int8`, the one with rounded weights.
        task: Its task.
        folder: An existing folder.
        int8: Whether to store matrices as int8.
        name: The prefix of all C names.

    Returns:
        {"difference", "rows", "compiler"} of the comparison; "compiler" is None if there is none.
    """
    check_streamable(model, task)
    stream = StepModule(copy.deepcopy(model), task).eval()
    text = write_code(stream, task, name, int8)
    file = folder / f"{name}.c"
    file.write_text(text, encoding="utf-8")
    about = describe(model, task) | {"file": file.name}
    (folder / "model.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")
    compiler = next((c for c in COMPILERS if shutil.which(c)), None)
    facts: dict[str, Any] = {"compiler": compiler}
    if compiler is not None:
        facts |= check_c(stream, task, file, [compiler, *FLAGS])
    return facts


def write_code(stream: StepModule, task: Task, name: str, int8: bool = False) -> str:
    """Return the C file of a stream."""
    writer, states = CWriter(int8), stream.start()
    is_text = isinstance(task.input, Tokens)
    width = 1 if is_text else len(task.encoding.x.scale.mean)
    x = torch.zeros(1, dtype=torch.long) if is_text else torch.zeros(1, width)
    names = [f"s->s{k}" for k in range(len(states))]
    output, *after = writer.write(stream, [x, *states], ["id" if is_text else "x", *names])
    copies = []
    for k, (value, state) in enumerate(zip(after, states, strict=True)):
        copies += writer.copy(value, f"s->s{k}", state.numel())
    copies = [*writer.copy(output, "y", output.meta.numel()), *copies]
    K = output.meta.numel()
    sizes = {k: s.numel() for k, s in enumerate(states)}
    starts = [declare(f"start{k}", s.numpy()) for k, s in enumerate(states) if bool(s.any())]
    reset = [
        f"    for (int i = 0; i < {n}; i++) s->s{k}[i] = " + (f"start{k}[i];" if bool(states[k].any()) else "0.0f;")
        for k, n in sizes.items()
    ]
    labels = list(getattr(task.target, "names", ()))
    return TEMPLATE.format(
        name=name,
        upper=name.upper(),
        task=_clean(task.name),
        labels=", ".join(f"{k} {_clean(label)}" for k, label in enumerate(labels)),
        inputs=1 if is_text else width,
        outputs=K,
        constants="\n\n".join([*starts, *writer.constants]),
        fields="\n".join(f"    float s{k}[{n}];" for k, n in sizes.items()),
        work=max(1, writer.work),
        reset="\n".join(reset),
        argument="int id" if is_text else "const float *x",
        check=f"    if (id < 0 || id >= {task.input.size}) id = 1; /* unknown */\n" if is_text else "",
        body="\n".join([*writer.lines, *copies]),
        read="int x[1]" if is_text else f"float x[{width}]",
        form="%d" if is_text else "%f",
        value="x[0]" if is_text else "x",
        what="the id of a token (see model.json)"
        if is_text
        else "the numbers of a step in their units, NAN if missing",
    )


def _clean(text: str) -> str:
    """Escape a text for a C comment."""
    return re.sub(r"[^\w .,:=+-]", "_", str(text), flags=re.ASCII)


TEMPLATE = """\
/* A sequence model trained on {task}, one step of a stream at a time. C99; needs math.h alone, allocates nothing.

   {name}_state s;
   {name}_reset(&s);                    before a new sequence
   {name}_step(&s, x, y);               x: {what}
                                        y: {outputs} numbers about the sequence so far

   Outputs: {labels}

   To try it: cc -std=c99 -O2 -D{upper}_MAIN {name}.c -lm -o {name} && echo "..." | ./{name}
   It reads the numbers of one step per line; an empty line starts a new sequence. */

#include <math.h>

#define {upper}_INPUTS {inputs}
#define {upper}_OUTPUTS {outputs}

typedef struct {{
{fields}
    float w[{work}];
}} {name}_state;

{constants}

static inline float sigmoid(float x) {{ return 1.0f / (1.0f + expf(-x)); }}

void {name}_reset({name}_state *s);
void {name}_step({name}_state *s, {argument}, float *y);

void {name}_reset({name}_state *s)
{{
    (void)sigmoid;
{reset}
}}

void {name}_step({name}_state *s, {argument}, float *y)
{{
    float *const w = s->w;
{check}{body}
}}

#ifdef {upper}_MAIN
#include <stdio.h>

int main(void)
{{
    static {name}_state s;
    static char line[65536], blank;
    {read};
    float y[{upper}_OUTPUTS];
    {name}_reset(&s);
    while (fgets(line, sizeof line, stdin)) {{
        int used = 0, at = 0, n = 0;
        while (n < {upper}_INPUTS && sscanf(line + at, "{form}%n", &x[n], &used) == 1) {{
            at += used;
            n++;
        }}
        if (sscanf(line, " %c", &blank) != 1) {{
            {name}_reset(&s);
            continue;
        }}
        if (n < {upper}_INPUTS) {{
            fprintf(stderr, "a line has %d of %d numbers; give those of one step (words as their ids)\\n", n,
                    {upper}_INPUTS);
            return 2;
        }}
        {name}_step(&s, {value}, y);
        for (int k = 0; k < {upper}_OUTPUTS; k++) printf(k ? " %.9g" : "%.9g", (double)y[k]);
        printf("\\n");
    }}
    return 0;
}}
#endif
"""


def check_c(stream: StepModule, task: Task, file: Path, command: Sequence[str]) -> dict[str, Any]:
    """Compile a C file and compare it with torch on rows of three lengths.

    Args:
        stream: What the file computes.
        task: Its task.
        file: The C file.
        command: The compiler and its flags.

    Raises:
        CheckError: If it does not compile, or its predictions differ.
    """
    rows = make_rows(task)
    batch = task.encode(rows)
    with torch.no_grad():
        expected = stream.exported(batch.x, batch.lengths).numpy()
    if stream.target is not None:
        expected = stream.target.invert(expected.astype(np.float64))
    sequences = [_write_steps(row, batch.x[k, : batch.lengths[k]], task) for k, row in enumerate(rows)]
    with scratch.make_folder(file.with_name("check")) as folder:
        program = folder / "program"
        arguments = [*command, f"-D{file.stem.upper()}_MAIN", str(file), "-o", str(program), "-lm"]
        built = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if built.returncode:
            raise CheckError(f"{command[0]} does not compile {file.name}: {built.stderr.strip()[:300]}")
        text = "\n\n".join("\n".join(steps) for steps in sequences) + "\n"
        ran = subprocess.run([str(program)], input=text, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise CheckError(f"the compiled {file.name} fails: {ran.stderr.strip()[:300]}")
    outputs = np.array([[float(v) for v in line.split()] for line in ran.stdout.splitlines()])
    worst, at = 0.0, 0
    unit = 1.0 if stream.target is None else max(1.0, float(np.abs(expected).max()))
    for k, steps in enumerate(sequences):
        ours = outputs[at : at + len(steps)]
        at += len(steps)
        if not steps:
            continue
        theirs = expected[k, : len(steps)] if expected.ndim == 3 else expected[k][None]
        ours = ours if expected.ndim == 3 else ours[-1:]
        worst = max(worst, float(np.abs(ours - theirs).max()) / unit)
    if not worst <= TOLERANCE:
        raise CheckError(f"the C file differs from its run by {worst:.1e}, more than {TOLERANCE:.0e}")
    return {"difference": worst, "rows": len(rows)}


def _write_steps(row: Any, x: Tensor, task: Task) -> list[str]:  # noqa: ANN401  # any row
    """Return the lines of one sequence: ids, or values in their units."""
    if isinstance(task.input, Tokens):
        return [str(k) for k in x.tolist()]
    assert task.encoding is not None
    if isinstance(row, dict):
        values = np.stack([np.array(row[name], dtype=np.float64) for name in task.encoding.x.columns], -1)
    else:
        values = np.array(row, dtype=np.float64)
    values = values.reshape(len(x), -1)
    return [" ".join(f"{v:.9g}" for v in step) for step in values]
