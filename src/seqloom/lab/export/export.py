"""Export a run: check it, write it to a folder, compare it, and report what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from seqloom.core.errors import UserError
from seqloom.lab.export import Target
from seqloom.lab.files import scratch
from seqloom.lab.training.run import Run


def export_run(run: Run, to: Target, out: Path | str, *, int8: bool = False, licence: str = "") -> dict[str, Any]:
    """Write the best model of a run in a form that predicts elsewhere.

    The folder appears only after the exported model has made the same predictions as the run.

    Args:
        run: The trained run.
        to: "onnx", "pt2", "safetensors" or "c".
        out: The folder to create; it may exist if it is empty.
        int8: Whether to store matrices as int8 and to measure the effect on the run's test rows.
        licence: The licence in the model card of "safetensors", such as mit.

    Returns:
        A JSON-serialisable document: the folder, its files with their sizes, and what was compared.

    Raises:
        UserError: If the run cannot be exported, or the folder is taken.

    Example:
        `export_run(seqloom.Run.load("runs/reviews-gru"), "onnx", "reviews-onnx")` writes model.onnx, model.json and
        run.py.
    """
    from seqloom.lab.export.graph import check_exportable

    out = Path(out)
    if to not in get_args(Target):
        raise UserError(f"to must be one of {', '.join(get_args(Target))}, got {to!r}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--out: {out} exists; choose another folder, or remove it")
    if int8 and to == "safetensors":
        raise UserError("--int8 is for onnx, pt2 and c; safetensors keeps the weights as they were trained")
    check_exportable(run)
    if int8 and "baseline" in run.record:
        raise UserError(
            f"--int8 stores the matrices of layers, and {run.folder} is a baseline ({run.settings.model}), "
            "which has none; export it without --int8"
        )
    model, loss = run.model("best"), {}
    if int8:
        from seqloom.lab.export.int8 import measure_loss, round_weights

        rounded = round_weights(model)
        loss = {"loss": measure_loss(run, model, rounded)}
        model = rounded
    with scratch.make_folder(out) as work:
        facts = _write(run, model, to, work, int8, licence)
        work.chmod(0o755)
        if out.is_dir():
            out.rmdir()
        work.rename(out)
    files = {str(f.relative_to(out)): f.stat().st_size for f in sorted(out.rglob("*")) if f.is_file()}
    return {"run": str(run.folder), "to": to, "out": str(out), "int8": int8, "files": files, **facts, **loss}


def _write(run: Run, model: Any, to: Target, folder: Path, int8: bool, licence: str) -> dict[str, Any]:  # noqa: ANN401
    if to in ("onnx", "pt2"):
        from seqloom.lab.export import targets

        return (targets.write_onnx if to == "onnx" else targets.write_pt2)(model, run.task, folder, int8)
    if to == "c":
        from seqloom.lab.export.c_target import write_c

        return write_c(model, run.task, folder, int8)
    from seqloom.lab.export.hub_folder import write_hub_folder

    return write_hub_folder(run, model, folder, licence)
