"""`seqloom export`: write a run as files that predict without seqloom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from seqloom.cli.commands import Json, print_warnings
from seqloom.cli.commands.inference import Name, Trust
from seqloom.lab import console
from seqloom.lab.export import EXPORTS, Target
from seqloom.lab.training.folders import find_run_folder

NEXT_STEPS = {
    "onnx": "python {out}/run.py {example}",
    "pt2": "torch.export.load('{out}/model.pt2').module()({inputs})",
    "c": "cc -std=c99 -O2 -DMODEL_MAIN {out}/model.c -lm -o model",
    "safetensors": "read {out}/README.md",
}


@print_warnings
def export(
    run: Name,
    *,
    to: Annotated[Target, Parameter(help="What to write.")] = "onnx",
    out: Annotated[
        Path | None, Parameter(help=f"Folder to create. Default: {EXPORTS}/NAME-TO, such as {EXPORTS}/reviews-onnx.")
    ] = None,
    int8: Annotated[
        bool, Parameter(help="Store matrices as int8, a quarter of the size; measures the loss on the test rows.")
    ] = False,
    licence: Annotated[
        str, Parameter(name=["--licence", "--license"], help="Licence in the model card of safetensors, such as mit.")
    ] = "",
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Write a trained model as files that predict without seqloom, and compare them with the run."""
    folder = find_run_folder(run)
    place = out or Path(EXPORTS) / f"{folder.resolve().name}-{to}{'-int8' if int8 else ''}"
    with console.show_status(f"exporting to {to}"):
        from seqloom.lab.export.export import export_run
        from seqloom.lab.training.folders import find_run

        document = export_run(find_run(run, trust=trust), to, place, int8=int8, licence=licence)
    if json:
        return console.show_json(document)
    return _report(document)


def _report(document: dict[str, Any]) -> None:
    console.show_table([{"file": name, "kB": f"{size / 1e3:,.1f}"} for name, size in document["files"].items()])
    if "difference" in document:
        console.note(
            f"\nchecked: {document['rows']} rows of three lengths, largest difference from the run "
            f"{document['difference']:.0e}"
        )
    elif document["to"] == "c":
        console.note("\nnot checked: there is no C compiler here (cc, gcc or clang)")
    if "loss" in document:
        loss = document["loss"]
        console.note(
            f"int8: {loss['metric']} {loss['float32']:.4f} -> {loss['int8']:.4f} on {loss['rows']:,} rows "
            f"({loss['split']})"
        )
    words = {"example": document.get("example", ""), "inputs": ", ".join(document.get("inputs", ()))}
    console.note("next: " + NEXT_STEPS[document["to"]].format(out=document["out"], **words))
