"""A run as files that predict elsewhere: the same predictions, and a sentence for what cannot be exported."""

import ast
import json
import random
import shutil
import subprocess
import sys
import warnings
from functools import cache

import numpy as np
import polars as pl
import pytest
import torch

from seqloom.cli.main import main
from seqloom.core.errors import UserError
from seqloom.lab.data.coders.text import WORDS
from seqloom.lab.data.registry import open_task
from seqloom.lab.export import targets
from seqloom.lab.export.c_code import CWriter, format_number
from seqloom.lab.export.c_target import StepModule, check_c, check_streamable, write_c, write_code
from seqloom.lab.export.check import CheckError, compare_predictions, make_rows, measure_difference
from seqloom.lab.export.description import write_pattern
from seqloom.lab.export.export import export_run
from seqloom.lab.export.graph import check_exportable
from seqloom.lab.export.int8 import quantise, round_weights, split_int8
from seqloom.lab.export.targets import join_modules
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.fit import fit
from seqloom.lab.training.model import build
from seqloom.layers.linear.layer import Mixer

SMALL = {"hidden": 8, "embedding": 8}
COMPILER = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
SANITIZERS = ("-std=c99", "-Wall", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="module")
def _one_registry():
    """Share the exporter's table of operators, which takes half of the time of an export to build."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    module = pytest.importorskip("torch.onnx._internal.exporter._registration")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        patch.setattr(module.ONNXRegistry, "from_torchlib", staticmethod(cache(module.ONNXRegistry.from_torchlib)))
        yield


def write_lines(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture(scope="module")
def tasks(work):
    """Return tasks of every kind that export writes, by name."""
    chance = random.Random(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs", "while", "it", "rained", "in", "May"]
    texts = [{"text": " ".join(chance.choices(words, k=8)), "label": "ab"[n % 2]} for n in range(40)]
    tagged = []
    for row in texts:
        tokens = row["text"].split()
        tagged.append({"tokens": tokens, "tags": ["long" if len(t) > 3 else "short" for t in tokens]})
    series = [
        {"s": [[chance.gauss(0, 1), None if chance.random() < 0.1 else 3.0] for _ in range(9)], "label": "ab"[n % 2]}
        for n in range(40)
    ]
    values = [{"s": [chance.gauss(0, 1) for _ in range(9)], "level": chance.gauss(5, 2)} for _ in range(40)]
    days = pl.date_range(pl.date(2024, 1, 1), pl.date(2024, 7, 1), eager=True)
    table = pl.DataFrame(
        {
            "day": days,
            "sales": np.arange(len(days)) % 7 * 3.0 + 100,
            "open": [("yes", "no")[d % 7 == 6] for d in range(len(days))],
        }
    )
    table.write_csv(work / "sales.csv")
    table.select("day", "sales").write_csv(work / "plain.csv")
    forecast = {"kind": "forecast", "target": "sales", "horizon": 8, "lookback": 16}
    return {
        "text": open_task(write_lines(work / "texts.jsonl", texts), kind="classify"),
        "tags": open_task(write_lines(work / "tags.jsonl", tagged), kind="tag"),
        "series": open_task(write_lines(work / "series.jsonl", series), kind="classify", target="label"),
        "values": open_task(write_lines(work / "values.jsonl", values), kind="regress", target="level"),
        "known": open_task(str(work / "sales.csv"), input="sales,open", known="open", **forecast),
        "segments": open_task(str(work / "plain.csv"), **forecast),
    }


FORMS = {
    "text": {"model": "gru", "readout": "attention"},
    "tags": {"model": "bi_lstm", "crf": True},
    "series": {"model": "bi_rnn"},
    "values": {"model": "lstm"},
    "known": {"model": "gru"},
    "segments": {"model": "gru"},
}


def make_model(task, **settings):
    torch.manual_seed(0)
    return build(task, TrainSettings(**(SMALL | settings))).eval()


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.usefixtures("_one_registry")
@pytest.mark.parametrize("name", FORMS)
def test_the_onnx_file_and_its_runner_predict_as_the_run(name, tasks, tmp_path):
    model = make_model(tasks[name], **FORMS[name])
    assert (getattr(model, "segment", 0) > 0) == (name == "segments")
    facts = targets.write_onnx(model, tasks[name], tmp_path, int8=False)
    assert facts["difference"] < 1e-5 and facts["rows"] >= 9
    # a runner that reads rows otherwise is found out
    about = json.loads((tmp_path / "model.json").read_text())
    if name == "text":
        about["encoder"]["words"] = about["encoder"]["words"][::-1]
        (tmp_path / "model.json").write_text(json.dumps(about))
        from seqloom.lab.export.runner.model import Model

        with pytest.raises(CheckError, match=r"differs from its run|predicts"):
            compare_predictions(model, tasks[name], lambda rows: Model(tmp_path).predict(list(rows), True))


def test_the_runner_needs_numpy_and_onnxruntime_alone():
    tree = ast.parse(join_modules())
    imports = {n.module.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    imports |= {a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert imports - set(sys.stdlib_module_names) == {"numpy", "onnxruntime", "tokenizers"}  # the last for subwords


def test_the_runner_splits_texts_into_the_words_of_training():
    import re

    chance = random.Random(1)
    codes = [*range(32, 127)] * 40 + [chance.randrange(0xD800) for _ in range(4000)] + [0x2019, *range(32)] * 9
    texts = ["".join(chr(chance.choice(codes)) for _ in range(60)) for _ in range(400)]
    pattern = re.compile(write_pattern())
    assert [pattern.findall(text) for text in texts] == pl.Series(texts).str.extract_all(WORDS).to_list()
    assert [text.lower() for text in texts] == pl.Series(texts).str.to_lowercase().to_list()


@pytest.mark.long
@pytest.mark.slow
def test_the_pt2_file_predicts_without_seqloom(tasks, tmp_path):
    model = round_weights(make_model(tasks["series"], model="gru", hidden=16))
    assert targets.write_pt2(model, tasks["series"], tmp_path, int8=True)["difference"] < 1e-5
    batch = tasks["series"].encode(make_rows(tasks["series"]))
    torch.save({"x": batch.x, "lengths": batch.lengths}, tmp_path / "batch.pt")
    code = (
        "import sys; sys.modules['seqloom'] = None\n"
        "import torch; batch = torch.load('batch.pt')\n"
        "model = torch.export.load('model.pt2').module()\n"
        "print(model(batch['x'], batch['lengths']).tolist())"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = model.predict(batch).probabilities
    torch.testing.assert_close(torch.tensor(json.loads(ran.stdout)), expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize("name", ["gru", pytest.param("ntm", marks=pytest.mark.long)])  # they use most operators
def test_the_c_file_equals_torch_under_sanitizers(name, tasks, tmp_path):
    model = make_model(tasks["series"], model=name, hidden=4, layers=2)
    stream = StepModule(model, tasks["series"]).eval()
    file = tmp_path / "model.c"
    file.write_text(write_code(stream, tasks["series"], "model"))
    assert "malloc" not in file.read_text()
    facts = check_c(stream, tasks["series"], file, [COMPILER, *SANITIZERS])
    assert facts["difference"] < 1e-5
    if name == "gru":
        torch.nn.init.normal_(model.model.head[1].weight)  # no longer the weights of the file
        with pytest.raises(CheckError, match="differs from its run"):
            check_c(stream, tasks["series"], file, [COMPILER])


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize("readout", ["last", "mean", "attention"])
def test_a_c_stream_has_every_readout_and_reads_ids(readout, tasks, tmp_path):
    model = round_weights(make_model(tasks["text"], readout=readout, hidden=16, embedding=20))
    assert write_c(model, tasks["text"], tmp_path, int8=True)["difference"] < 1e-5
    text = (tmp_path / "model.c").read_text()
    assert "signed char" in text
    assert len(text) < 0.7 * len(write_code(StepModule(model, tasks["text"]), tasks["text"], "model"))


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
def test_the_program_of_a_c_file_refuses_words_and_starts_again_after_an_empty_line(tasks, tmp_path):
    code = write_code(
        StepModule(make_model(tasks["text"], hidden=4, embedding=4), tasks["text"]), tasks["text"], "model"
    )
    (tmp_path / "model.c").write_text(code)
    subprocess.run([COMPILER, "-DMODEL_MAIN", "model.c", "-lm", "-o", "model"], cwd=tmp_path, check=True)

    def run(text):
        return subprocess.run([tmp_path / "model"], input=text, capture_output=True, text=True, check=False)

    first, second, third = run("5\n6\n \n5\n").stdout.splitlines()
    assert first == third != second
    wrong = run("a film\n")
    assert (wrong.returncode, wrong.stdout) == (2, "") and "0 of 1 numbers" in wrong.stderr


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("known", {}, "a forecast needs its whole past"),
        ("text", {"model": "transformer"}, "is not one; use --to onnx"),
        ("text", {"model": "bi_gru"}, "needs the whole sequence"),
        ("tags", {"crf": True}, "a CRF chooses tags after the last step"),
        ("tags", {}, "train with --letters 0"),
    ],
)
def test_what_c_cannot_stream_says_so(name, settings, message, tasks):
    with pytest.raises(UserError, match=message):
        check_streamable(make_model(tasks[name], **settings), tasks[name])


def test_numbers_are_written_exactly_in_c():
    for value in (0.1, -1e-30, 3.0, 123456.789, 1.0000001):
        assert np.float32(format_number(value).strip("()").rstrip("f")) == np.float32(value)


def test_int8_keeps_the_largest_value_of_a_row_and_rounds_the_rest():
    weight = torch.randn(40, 30)
    weight[3] = 0
    q, s = quantise(weight)
    rounded = q * s
    assert q.dtype == torch.int8 and int(q.abs().max()) == 127
    assert ((rounded - weight).abs() <= s / 2 * 1.001).all()
    for stored in (rounded, rounded.T.contiguous()):
        again, scale = split_int8(stored.numpy())
        np.testing.assert_allclose(again * scale, stored.numpy(), rtol=1e-6)
    assert split_int8(torch.randn(40, 30).numpy()) is None


def test_differences_of_names_and_shapes_are_errors():
    assert measure_difference([1.0, {"a": 2.0}], [1.5, {"a": 2.0}], "") == 0.5
    assert measure_difference(200.0, 201.0, "", {"": 10.0}) == 0.005
    for ours, theirs in (("a", "b"), ([1.0], [1.0, 2.0]), ({"a": 1.0}, {"b": 1.0}), (None, 1.0)):
        with pytest.raises(CheckError, match="row 1"):
            measure_difference(ours, theirs, "row 1")


@pytest.fixture(scope="module")
def run(work, tasks):
    assert tasks
    settings = {"epochs": 1, "batch": 8, "hidden": 16, "embedding": 20}
    return fit(str(work / "texts.jsonl"), model="gru", name="texts", runs=str(work / "runs"), **settings)


@pytest.mark.long
@pytest.mark.usefixtures("_one_registry")
@pytest.mark.parametrize("name", Mixer.registry)
def test_linear_recurrences_are_stored_as_int8(name, tasks, tmp_path):
    model = make_model(tasks["series"], model=name, hidden=16)
    rounded = round_weights(model)
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), rounded.parameters(), strict=True))
    sizes = []
    for int8 in (False, True):
        folder = tmp_path / str(int8)
        folder.mkdir()
        assert targets.write_onnx(rounded, tasks["series"], folder, int8=int8)["difference"] < 1e-5
        sizes.append((folder / "model.onnx").stat().st_size)
    assert sizes[1] < sizes[0]
    assert targets.write_pt2(rounded, tasks["series"], tmp_path, int8=True)["difference"] < 1e-5


@pytest.mark.slow
@pytest.mark.usefixtures("_one_registry")
def test_int8_is_smaller_and_its_loss_is_measured_on_the_test_rows(run, work):
    plain = export_run(run, "onnx", work / "plain")
    small = export_run(run, "onnx", work / "small", int8=True)
    assert small["files"]["model.onnx"] < plain["files"]["model.onnx"]
    assert small["loss"]["split"] == "test" and small["loss"]["rows"] == run.record["data"]["test"]["size"]
    assert small["difference"] < 1e-5
    with pytest.raises(UserError, match="exists; choose another folder"):
        export_run(run, "onnx", work / "plain")


def test_a_folder_for_model_hubs_is_read_back_and_pushed(run, work, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    from seqloom.lab.export.hub import Pretrained

    document = export_run(run, "safetensors", work / "hub", licence="mit")
    assert {"config.json", "model.safetensors", "vocab.txt", "README.md"} <= set(document["files"])
    card = (work / "hub" / "README.md").read_text()
    assert card.startswith("---\nlicense: mit\n") and "95 % interval" in card and str(work) not in card
    model = Pretrained.from_pretrained(str(work / "hub"))
    rows = ["the cat sat on a mat", "two dogs"]
    assert model.predict(rows) == run.predict(rows)
    model.save_pretrained(work / "copy")

    def upload(self, *, repo_id, folder_path, **options):
        shutil.copytree(folder_path, work / "remote" / repo_id)

    class Repository:
        repo_id = "me/texts"

    monkeypatch.setattr(hub.HfApi, "create_repo", lambda *_, **__: Repository)
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload)
    model.push_to_hub("me/texts")
    for folder in (work / "copy", work / "remote" / "me" / "texts"):
        assert Pretrained.from_pretrained(str(folder)).predict(rows) == run.predict(rows)
    (work / "copy" / "model.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match="is not a model of seqloom"):
        Pretrained.from_pretrained(str(work / "copy"))
    with pytest.raises(UserError, match="there is no folder"):
        Pretrained.from_pretrained(str(work / "none"))


def test_a_run_that_cannot_be_exported_says_what_to_do(run, work, monkeypatch):
    check_exportable(run)
    with pytest.raises(UserError, match="int8 is for onnx, pt2 and c"):
        export_run(run, "safetensors", work / "new", int8=True)
    with pytest.raises(UserError, match="to must be one of onnx, pt2, safetensors, c"):
        export_run(run, "tflite", work / "new")
    monkeypatch.setattr(run.task, "kind", "translate")
    with pytest.raises(UserError, match="use `seqloom translate`"):
        check_exportable(run)
    assert not (work / "new").exists()


def test_the_command_prints_files_on_stdout_and_mistakes_on_one_line(run, work, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(work)
    (work / "empty").mkdir()
    for words, code in ((["texts", "--to", "safetensors", "--json"], 0), (["empty"], 2), (["texts", "--to", "exe"], 2)):
        with pytest.raises(SystemExit) as end:
            main(["export", *words])
        out, err = capsys.readouterr()
        assert (end.value.code or 0) == code
        if code:
            assert not out and len(err.strip().splitlines()) == 1
        else:
            assert json.loads(out)["files"]["model.safetensors"] > 0
    assert run.name == "texts" and (work / "exports" / "texts-safetensors" / "README.md").is_file()


@pytest.mark.parametrize(("correction", "divisor"), [(0, "5.0f"), (1, "4.0f"), (2, "3.0f")])
def test_c_code_of_a_variance_divides_by_the_corrected_count(correction, divisor):
    writer = CWriter()
    writer.write(lambda x: [torch.var(x, -1, correction=correction)], [torch.ones(2, 5)], ["x"])
    (line,) = [line for line in writer.lines[-3:] if "/" in line]
    assert line.endswith(f"/ {divisor};")
