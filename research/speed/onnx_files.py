"""Measure exported ONNX files: native operators against torch's own export, and int8 against float32.

    python -m research onnx_files [--json results.json]

Times are medians of the ratio of alternating runs in onnxruntime with one thread, after a warm-up. The two forms of
int8 are weights alone, as `seqloom export --int8` writes them, and onnxruntime's dynamic quantisation, with the
largest error of the outputs.
"""

import tempfile
import warnings
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch.export import Dim

import seqloom
from research.record import build_parser, measure, write_record
from seqloom.lab.export.int8 import compress_onnx, is_rounded, quantise
from seqloom.tools.onnx.export import export_onnx

SIZES = ((64, 1), (256, 16))  # units, rows
STEPS, ROUNDS = 100, 41
B, T = Dim("B", min=1, max=256), Dim("T", min=1, max=4096)


def open_file(file):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def run_file(session, x):
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def compare_times(first, second, x):
    """Return the median seconds of the first file, and the median ratio of the first to the second."""
    seconds = []
    for number in range(ROUNDS + 3):
        pair = []
        for session in (first, second) if number % 2 else (second, first):
            pair.append(measure(partial(run_file, session, x)))
        seconds.append(pair if number % 2 else pair[::-1])
    seconds = seconds[3:]
    return median(a for a, _ in seconds), median(a / b for a, b in seconds)


def measure_native(folder):
    rows = {}
    for name in ("gru", "lstm", "rnn"):
        for hidden, batch in SIZES:
            ours = getattr(seqloom, name.upper())(hidden, hidden, batch_first=True).eval()
            theirs = seqloom.convert(ours, to="torch").eval()
            x = torch.randn(batch, STEPS, hidden)
            export_onnx(ours, (x,), folder / "ours.onnx", ({0: B, 1: T},) if batch > 1 else ({1: T},))
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(theirs, (x,), dynamo=True, verbose=False).save(folder / "theirs.onnx")
            sessions = [open_file(folder / f"{who}.onnx") for who in ("ours", "theirs")]
            difference = float(np.abs(run_file(sessions[0], x.numpy()) - run_file(sessions[1], x.numpy())).max())
            seconds, ratio = compare_times(*sessions, x.numpy())
            rows[f"{name} H={hidden} B={batch}"] = {
                "milliseconds": round(seconds * 1e3, 3),
                "over torch's export": round(ratio, 2),
                "difference": difference,
            }
            print(f"{name} H={hidden} B={batch}", rows[f"{name} H={hidden} B={batch}"], flush=True)
    return rows


def measure_int8(folder):
    rows = {}
    for name in ("gru", "lstm", "rnn", "attn_rnn"):
        layer = seqloom.Recurrent(name, 128, 128, batch_first=True).eval()
        x = torch.randn(4, STEPS, 128)
        plain, small, dynamic = (folder / f"{form}.onnx" for form in ("plain", "small", "dynamic"))
        export_onnx(layer, (x,), plain, ({0: B, 1: T},))
        expected = run_file(open_file(plain), x.numpy())
        stripped = onnx.load(plain)
        del stripped.graph.value_info[:]
        onnx.save(stripped, folder / "stripped.onnx")
        rows[name] = {"float32 kB": round(plain.stat().st_size / 1e3)}
        try:
            quantize_dynamic(
                folder / "stripped.onnx",
                dynamic,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=["MatMul", "Gemm", "LSTM", "Gather"],
                extra_options={"EnableSubgraph": True},
            )
            error = float(np.abs(run_file(open_file(dynamic), x.numpy()) - expected).max())
            _, ratio = compare_times(open_file(dynamic), open_file(plain), x.numpy())
            rows[name]["dynamic"] = {"kB": round(dynamic.stat().st_size / 1e3), "error": error, "time": round(ratio, 2)}
        except Exception as error:  # what onnxruntime cannot quantise is a result, too
            rows[name]["dynamic"] = {"failure": f"{type(error).__name__}: {error}"[:200]}
        with torch.no_grad():
            for p in layer.parameters():
                if is_rounded(p):
                    q, s = quantise(p)
                    p.copy_(q * s)
        export_onnx(layer, (x,), folder / "rounded.onnx", ({0: B, 1: T},))
        written = onnx.load(folder / "rounded.onnx")
        compress_onnx(written)
        onnx.save(written, small)
        error = float(np.abs(run_file(open_file(small), x.numpy()) - expected).max())
        _, ratio = compare_times(open_file(small), open_file(plain), x.numpy())
        rows[name]["weights"] = {"kB": round(small.stat().st_size / 1e3), "error": error, "time": round(ratio, 2)}
        print(name, rows[name], flush=True)
    return rows


def main():
    args = build_parser(__doc__).parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        document = {"native": measure_native(folder), "int8": measure_int8(folder)}
    write_record(args.json, **document)
