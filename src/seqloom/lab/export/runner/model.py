"""Predict with an exported model. Needs numpy and onnxruntime; keep this file beside model.onnx and model.json.

    python run.py "some text" "another one"
    python run.py "[0.1, 0.4, 0.3]"              numbers: a list of steps as JSON
    python run.py --file rows.jsonl              one input per line; - reads standard input

A row is the input itself, or a JSON object with the columns of the training data. Every line of output is a JSON
object with the "prediction".

In Python:

    from run import Model
    Model().predict(["some text", "another one"])
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from seqloom.lab.export.runner.results import DECODERS, Results
from seqloom.lab.export.runner.rows import Array, Arrays, Row, RowError, make_encoder

BATCH_STEPS = 16_384  # time steps in a batch, padding included


class Model:
    """An exported model that predicts rows.

    Args:
        folder: The folder with model.onnx and model.json; default: the folder of this file.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        import onnxruntime

        folder = Path(__file__).parent if folder is None else Path(folder)
        self.about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only
        file = str(folder / self.about["file"])
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.encoder = make_encoder(self.about["encoder"], folder)

    def predict(self, rows: list[Row], probabilities: bool = False) -> Results:
        """Return a dict for each row, with "prediction" and, for classes, "probability".

        Args:
            rows: A list of inputs, or of dicts of columns.
            probabilities: Whether to return the probabilities of all classes.
        """
        inputs = []
        for number, row in enumerate(rows, 1):
            try:
                inputs.append(self.encoder.encode(row))
            except RowError as error:
                raise RowError(f"row {number}: {error}") from None
        results: Results = [{"prediction": None} for _ in rows]
        limit = self.about["limit"]
        inputs = [{k: v[:limit] if k in ("x", "letters") else v for k, v in one.items()} for one in inputs]
        order = sorted((len(one["x"]), k) for k, one in enumerate(inputs) if len(one["x"]))
        while order:
            size = max(1, min(len(order), self.about.get("batch_steps", BATCH_STEPS) // order[-1][0]))
            order, some = order[:-size], [k for _, k in order[-size:]]
            for k, result in zip(some, self._predict_batch([inputs[k] for k in some], probabilities), strict=True):
                results[k] = result
        return results

    def _predict_batch(self, rows: list[Arrays], probabilities: bool) -> Results:
        about, lengths = self.about, np.array([len(row["x"]) for row in rows], dtype=np.int64)
        feeds = {"x": pad([row["x"] for row in rows]), "lengths": lengths}
        if "letters" in rows[0]:
            letters = pad([row["letters"] for row in rows])
            used = np.flatnonzero(letters.any((0, 1)))
            feeds["letters"] = letters[..., : int(used[-1]) + 1 if len(used) else 1]
        if "future" in rows[0]:
            feeds["future"] = np.stack([row["future"] for row in rows])
        past = feeds["x"]
        if about.get("segment"):
            feeds["x"], feeds["lengths"] = pad_to_segments(past, lengths, about["segment"])
        (output,) = self.session.run(None, feeds)
        return DECODERS[about["decoder"]](about, output, lengths, past, probabilities)


def pad(rows: list[Array]) -> Array:
    """Stack arrays (T, ...) of different lengths, with 0 at the end."""
    out = np.zeros((len(rows), max(map(len, rows)), *rows[0].shape[1:]), dtype=rows[0].dtype)
    for k, row in enumerate(rows):
        out[k, : len(row)] = row
    return out


def pad_to_segments(x: Array, lengths: Array, w: int) -> tuple[Array, Array]:
    """Pad rows at the front with their first value, so that lengths are multiples of w."""
    more = -lengths % w
    at = np.arange(-(-x.shape[1] // w) * w) - more[:, None]
    return np.take_along_axis(x, np.clip(at, 0, x.shape[1] - 1)[..., None], 1), lengths + more


def parse(text: str, is_text: bool) -> Row:
    """Return the row that a word of the command line or a line of a file holds."""
    if is_text and not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise RowError(f"{text[:40]!r} is not JSON; give a list of numbers, or an object of columns") from None


def main() -> None:
    """Print one line of JSON for each input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", help="inputs: texts, or numbers as JSON")
    parser.add_argument("--file", help="file with one input per line; - for standard input")
    parser.add_argument("--probabilities", action="store_true", help="print the probabilities of all classes")
    options = parser.parse_args()
    model = Model()
    lines = list(options.inputs)
    try:
        if options.file == "-":
            lines += sys.stdin.read().splitlines()
        elif options.file:
            lines += Path(options.file).read_text(encoding="utf-8").splitlines()
        if not lines:
            parser.error("give an input, such as: python run.py " + model.about["example"])
        is_text = model.about["encoder"]["type"] in ("text", "subwords", "joined")
        results = model.predict([parse(line, is_text) for line in lines], options.probabilities)
    except (RowError, OSError, UnicodeDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    for result in results:
        print(json.dumps(result, ensure_ascii=False))


if __name__ == "__main__":
    main()
