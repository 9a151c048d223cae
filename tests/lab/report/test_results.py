import json
import os
import threading
from pathlib import Path

import pytest
import sample_page

from seqloom.cli import main
from seqloom.lab import report
from seqloom.lab.report.page import Page, Table
from seqloom.lab.report.results import results

ROOT = Path(__file__).resolve().parents[3]
STUDIES, PAGE = ROOT / "benchmarks" / "results" / "studies", ROOT / "docs" / "results" / "studies.md"


@pytest.fixture
def studies(tmp_path):
    """Two stored studies, of which nothing but study.json is kept."""
    other = Page("A | title", "It `holds`.", [Table("T", [{"a": 1.5}], "A note.")], {"command": "seqloom study b"})
    for name, page, rest in (("b", other, {"finished": False}), ("a", sample_page.page(), {})):
        for file in report.write(page, tmp_path / name, {"study": name} | rest):
            if file.name != "study.json":
                file.unlink()
    return tmp_path


def test_the_stored_studies_make_the_page_in_the_docs():
    if not STUDIES.exists():
        pytest.skip("no study is stored")
    assert PAGE.read_text(encoding="utf-8") == results(STUDIES), f"run: seqloom results --out {PAGE.relative_to(ROOT)}"


def test_the_results_hold_verdicts_tables_commands_and_hardware_in_the_order_of_the_folders(studies):
    text = results(studies)
    assert text == results(studies)
    assert text.index("## Which model") < text.index("## A \\| title")
    for part in ("**It `holds`.**", "### T\n\n| a |", "A note.", "```sh\nseqloom study b\n```", "NVIDIA H200"):
        assert part in text
    assert text.count("Interrupted before its end") == 1
    assert "(#a-title)" in text and '<a id="a-title"></a>' in text


def test_the_command_prints_the_results_or_writes_them(studies, capsys):
    for words in (["results", str(studies)], ["results", str(studies), "--out", str(studies / "docs" / "results.md")]):
        with pytest.raises(SystemExit) as end:
            main.main(words)
        assert not end.value.code
    printed = capsys.readouterr()
    assert printed.out == results(studies) == (studies / "docs" / "results.md").read_text(encoding="utf-8")
    assert printed.err.startswith("written: ")


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (None, "holds no stored study"),
        ("{", "is not a study's document"),
        (json.dumps({"study": "x"}), "study 'x' holds no page"),
        (json.dumps({"page": {"title": "x"}}), "is not a study's document: 'verdict'"),
    ],
)
def test_a_folder_that_cannot_be_read_is_named(document, says, tmp_path, capsys):
    if document is not None:
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "study.json").write_text(document)
    with pytest.raises(SystemExit) as end:
        main.main(["results", str(tmp_path)])
    told = capsys.readouterr().err
    assert end.value.code == 2 and says in told and str(tmp_path) in told


def test_a_pipe_and_a_link_are_written_through_and_a_folder_is_refused(studies, capsys):
    pipe, link, file, read = studies / "pipe", studies / "link", studies / "file.md", []
    os.mkfifo(pipe)
    link.symlink_to(file)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text(encoding="utf-8")), daemon=True)
    reader.start()
    for out, code in ((pipe, 0), (link, 0), (studies, 2)):
        with pytest.raises(SystemExit) as left:
            main.main(["results", str(studies), "--out", str(out)])
        assert (left.value.code or 0) == code
    reader.join(10)
    assert read == [results(studies)] == [file.read_text(encoding="utf-8")]
    assert pipe.is_fifo() and link.is_symlink()
    assert "is a folder; name a file in it" in capsys.readouterr().err
