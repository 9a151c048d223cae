"""A run as a folder with the files that model hubs expect: config.json, model.safetensors, tokenizer, README.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from seqloom.cells.lookup import split_name
from seqloom.core.errors import UserError
from seqloom.lab.data.coders.text import JoinedTextCoder
from seqloom.lab.data.registry import load_task
from seqloom.lab.data.task import SPECIALS, Task, Tokens
from seqloom.lab.export.description import write_tokenizer
from seqloom.lab.files import sealed
from seqloom.lab.files.checkpoint import check_finite, check_weights, load_weights, weights_of
from seqloom.lab.kinds import decision, prediction_intervals
from seqloom.lab.kinds.baselines.registry import build_baseline
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.model import build, build_without_memory
from seqloom.lab.training.results import summarise_run
from seqloom.lab.training.run import Run
from seqloom.layers.registry import BI_PREFIX

FORMAT = 1
CONFIG, WEIGHTS, CARD, VOCABULARY, TASK = "config.json", "model.safetensors", "README.md", "vocab.txt", "task"


def write_hub_folder(run: Run, model: ForTask, folder: Path, licence: str = "") -> dict[str, Any]:
    """Write a run to a folder, read it back and compare the predictions.

    Args:
        run: The trained run.
        model: Its model.
        folder: An existing folder.
        licence: The licence of the model card.

    Returns:
        {"difference", "rows"} of the comparison.

    Raises:
        UserError: If the model is a cell from a file, whose code a hub's folder must not hold.
    """
    from seqloom.lab.export.check import compare_predictions
    from seqloom.lab.training.predict import predict_pieces

    if split_name(run.settings.model.removeprefix(BI_PREFIX)) is not None:
        raise UserError(f"{run.folder} uses a cell from a file, which this folder does not hold; use --to onnx")
    task = run.task
    config = {
        "format": FORMAT,
        "library_name": "seqloom",
        "model_type": run.settings.model,
        "task": task.kind,
        "labels": list(getattr(task.target, "names", ())),
        "settings": run.settings.model_dump(),
    }
    if "baseline" in run.record:
        config["baseline"] = run.record["baseline"]
    (folder / CONFIG).write_text(json.dumps(config, indent=1, ensure_ascii=False), encoding="utf-8")
    weights = model.model.arrays() if "baseline" in config else weights_of(model)
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / WEIGHTS, {"format": "pt"})
    task.save(folder / TASK)
    for name in (decision.FILE, prediction_intervals.FILE):
        if (run.folder / name).is_file():
            shutil.copyfile(run.folder / name, folder / name)
    write_tokenizer(task, folder)
    words = getattr(task.encoding.x if task.encoding is not None else None, "words", None)
    if isinstance(task.input, Tokens) and words:
        (folder / VOCABULARY).write_text("\n".join([*SPECIALS, *words]) + "\n", encoding="utf-8")
    (folder / CARD).write_text(write_card(run, licence), encoding="utf-8")
    loaded, loaded_task = read_hub_folder(folder)

    def predict(rows: Any) -> list[dict[str, Any]]:  # noqa: ANN401  # a sequence of any rows
        return list(predict_pieces(loaded, loaded_task, [list(rows)], probabilities=True))

    difference, rows = compare_predictions(model, task, predict)
    return {"difference": difference, "rows": rows}


def read_hub_folder(folder: Path) -> tuple[ForTask, Task]:
    """Read a model and its task from a folder that `write_hub_folder` wrote. Nothing in it is executed.

    Raises:
        UserError: If a file is missing or damaged.
    """
    try:
        for name in (CONFIG, WEIGHTS):
            if not (folder / name).is_file():  # reading a device would not end
                raise FileNotFoundError(f"{name} is missing")
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if config["format"] > FORMAT:
            raise UserError(f"{folder / CONFIG} was written by a newer seqloom (format {config['format']}); update it")
        settings = TrainSettings(**config["settings"])
        tensors = load_file(folder / WEIGHTS)
    except UserError:
        raise
    except (OSError, LookupError, TypeError, ValueError, RecursionError, SafetensorError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{folder} is not a model of seqloom ({reason}); write one with `seqloom export RUN --to safetensors`"
        ) from None
    task = load_task(folder / TASK)
    try:
        if "baseline" in config:
            with sealed.interpret(folder / CONFIG):
                model = build_baseline(task, config["baseline"], tensors)
        else:
            model = _build(task, settings, tensors)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    model.restore_decision(folder, task)
    return model.eval(), task


def _build(task: Task, settings: TrainSettings, tensors: dict[str, Tensor]) -> ForTask:
    if split_name(settings.model.removeprefix(BI_PREFIX)) is not None:
        raise UserError(f"{CONFIG} names a cell from a file, which is never executed; export it to ONNX")
    check_weights(build_without_memory(task, settings), tensors)
    check_finite(tensors)
    model = build(task, settings)
    load_weights(model, tensors)
    return model


def write_card(run: Run, licence: str = "") -> str:
    """Return the model card of a run as Markdown with a YAML header.

    Args:
        run: The trained run.
        licence: An identifier such as mit; "" says that none was chosen.
    """
    task, kind, record, settings = run.task, kind_of(run.task), run.record, run.settings
    pipeline = kind.find_pipeline(task)
    header = [f"license: {licence or 'unknown'}", "library_name: seqloom"]
    header += [f"pipeline_tag: {pipeline}"] if pipeline else []
    header += ["tags:", "- seqloom", f"- {json.dumps(settings.model.rpartition(':')[2])}", f"- {task.kind}"]
    use = kind.describe_use(task, getattr(task.input, "unit", "numbers"))
    sizes = ", ".join(f"{split} {facts['size']:,}" for split, facts in record["data"].items() if facts["size"])
    built = f"`{settings.model}`"
    if "baseline" not in record:
        built += f", {settings.hidden} units, layers: {settings.layers}"
    example = f"print(model.predict([{_write_example(task)}]))"
    load = 'model = Pretrained.from_pretrained("FOLDER_OR_REPOSITORY")'
    code = ["```python", "from seqloom.lab.export.hub import Pretrained", "", load, example, "```"]
    parts = [
        "\n".join(["---", *header, "---"]),
        f"# {run.name}",
        f"{use} Model: {built}. Trained with seqloom.",
        "## Data",
        f"{record['task']['name']} ({sizes} examples), read as a task of kind {record['task']['kind']}.",
        "## Metrics",
        "\n".join(_tabulate(summarise_run(run))),
        "## How to use",
        "\n".join(code),
        "`pip install 'seqloom[lab,hub]'`. The weights are in `model.safetensors`, the settings in `config.json`, and "
        "the vocabulary, scales and labels in `task/task.json`. No file is executed.",
        "## Licence",
        licence or "Not chosen: `seqloom export RUN --to safetensors --licence mit` sets it.",
        "## Versions",
        ", ".join(f"{k} {v}" for k, v in record.get("versions", {}).items()),
    ]
    return "\n\n".join(parts) + "\n"


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
