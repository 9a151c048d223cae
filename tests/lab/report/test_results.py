import json
import os
import threading
from pathlib import Path

import pytest
import sample_page

from seqloom.cli import main
from seqloom.lab import report
from seqloom.lab.report.page import Page, Table
from seqloom.lab.report.results import build_results

ROOT = Path(__file__).resolve().parents[3]
STUDIES, PAGE = ROOT / "research" / "results" / "studies", ROOT / "docs" / "results" / "studies.md"


@pytest.fixture
def studies(tmp_path):
    """Store two studies and keep only their study.json."""
    other = Page("A | title", "It `holds`.", [Table("T", [{"a": 1.5}], "A note.")], {"command": "seqloom study b"})
    for name, page, rest in (("b", other, {"finished": False}), ("a", sample_page.page(), {})):
        for file in report.write_report(page, tmp_path / name, {"study": name} | rest):
            if file.name != "study.json":
                file.unlink()
    return tmp_path


def test_the_stored_studies_make_the_page_in_the_docs():
    if not STUDIES.exists():
        pytest.skip("no study is stored")
    assert PAGE.read_text(encoding="utf-8") == build_results(STUDIES), (
        f"run: seqloom results --out {PAGE.relative_to(ROOT)}"
    )


def test_the_results_hold_verdicts_tables_commands_and_hardware_in_the_order_of_the_folders(studies):
    text = build_results(studies)
    assert text == build_results(studies)
    assert text.index("## Which model") < text.index("## A \\| title")
    for part in ("**It `holds`.**", "### T\n\n| a |", "A note.", "```sh\nseqloom study b\n```", "NVIDIA H200"):
        assert part in text
    assert text.count("This study was interrupted") == 1
    assert "(#a-title)" in text and '<a id="a-title"></a>' in text


def test_a_note_is_shown_before_the_verdict(studies):
    (studies / "b" / "note.md").write_text("Measured again since.\n")
    assert "\n\nMeasured again since.\n\n**It `holds`.**" in build_results(studies)


def test_the_command_prints_the_results_or_writes_them(studies, capsys):
    for words in (["results", str(studies)], ["results", str(studies), "--out", str(studies / "docs" / "results.md")]):
        with pytest.raises(SystemExit) as end:
            main.main(words)
        assert not end.value.code
    printed = capsys.readouterr()
    assert printed.out == build_results(studies) == (studies / "docs" / "results.md").read_text(encoding="utf-8")
    assert printed.err.startswith("written: ")


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (None, "contains no stored study"),
        ("{", "is not the document of a study"),
        (json.dumps({"study": "x"}), "study 'x' contains no page"),
        (json.dumps({"page": {"title": "x"}}), "is not the document of a study: 'verdict'"),
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
    assert read == [build_results(studies)] == [file.read_text(encoding="utf-8")]
    assert pipe.is_fifo() and link.is_symlink()
    assert "is a folder; name a file in it" in capsys.readouterr().err
