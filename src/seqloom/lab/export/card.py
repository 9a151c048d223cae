"""A model card: what a run was trained on, how good it is, and how to use it."""

from __future__ import annotations

import json
from typing import Any

from seqloom.lab.data.coders.joined import JoinedTextCoder
from seqloom.lab.data.task import Task
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.training.results import summarise_run
from seqloom.lab.training.run import Run


def write_card(run: Run, licence: str = "") -> str:
    """Return the model card of a run as Markdown with a YAML header.

    Args:
        run: The trained run.
        licence: An identifier such as mit; "" says that none was chosen.
    """
    facts, task = summarise_run(run), run.task
    name = run.name
    lines = ["---", f"license: {licence or 'unknown'}", "library_name: seqloom"]
    if pipeline := kind_of(task).find_pipeline(task):
        lines.append(f"pipeline_tag: {pipeline}")
    lines += ["tags:", "- seqloom", f"- {_quote(run.settings.model)}", f"- {task.kind}", "---", "", f"# {name}", ""]
    lines += [f"{_describe(task)} Model: `{run.settings.model}`, {run.settings.hidden} units, layers: "]
    lines[-1] += f"{run.settings.layers}. Trained with seqloom."
    lines += ["", "## Data", "", _describe_data(run), "", "## Metrics", ""]
    lines += _tabulate(facts)
    lines += ["", "## How to use", "", "```python", "from seqloom.lab.export.hub import Pretrained", ""]
    lines += ['model = Pretrained.from_pretrained("FOLDER_OR_REPOSITORY")']
    lines += [f"print(model.predict([{_write_example(task)}]))", "```", ""]
    lines += [
        "`pip install 'seqloom[lab,hub]'`. The weights are in `model.safetensors`, the settings in `config.json`, "
    ]
    lines[-1] += "and the vocabulary, scales and labels in `task/task.json`. No file is executed."
    lines += [
        "",
        "## Licence",
        "",
        licence or "Not chosen: `seqloom export RUN --to safetensors --licence mit` sets it.",
    ]
    lines += ["", "## Versions", "", ", ".join(f"{k} {v}" for k, v in run.record.get("versions", {}).items()), ""]
    return "\n".join(lines)


def _quote(text: str) -> str:
    return json.dumps(text.rpartition(":")[2])


def _describe(task: Task) -> str:
    return kind_of(task).describe_use(task, getattr(task.input, "unit", "numbers"))


def _describe_data(run: Run) -> str:
    sizes = ", ".join(f"{split} {facts['size']:,}" for split, facts in run.record["data"].items() if facts["size"])
    return f"{run.record['task']['name']} ({sizes} examples), read as a task of kind {run.record['task']['kind']}."


def _tabulate(facts: dict[str, Any]) -> list[str]:
    values, split = (facts["test"], "test") if facts["test"] else (facts["valid"], "validation")
    lines = [f"| metric | {split} | 95 % interval |", "|---|---|---|"]
    for name, value in values.items():
        if isinstance(value, int | float):
            ends = facts["test_intervals"].get(name) if facts["test"] else None
            interval = f"{ends[0]:.4f} to {ends[1]:.4f}" if ends and None not in ends else "-"
            lines.append(f"| {name} | {value:.4f} | {interval} |")
    return lines


def _write_example(task: Task) -> str:
    coder = None if task.encoding is None else task.encoding.x
    if isinstance(coder, JoinedTextCoder):
        return json.dumps(dict.fromkeys(coder.columns, "some text"), ensure_ascii=False)
    if getattr(task.input, "unit", None):
        return '"some text"' if task.input.unit != "tokens" else '["some", "words"]'  # type: ignore[union-attr]
    return "row  # a list of steps, or a dict of columns"
