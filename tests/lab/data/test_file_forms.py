"""Files as people have them: encodings, workbooks, archives, nested JSON, recordings beside a table."""

import json
import sys
import zipfile

import numpy as np
import polars as pl
import pytest
from scipy.io import wavfile

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers import excel
from seqloom.lab.data.registry import load_task, open_task

WORDS = ["gut", "schön", "groß", "übel", "böse", "film", "essen", "zimmer"]
TEXTS = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS[:2]]
ROWS = [{"text": text, "label": "ja" if "böse" in text else "nein"} for text in TEXTS]
CSV = "text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in ROWS)


def count_rows(task):
    return sum(split.size for split in task.splits.values())


@pytest.mark.parametrize(
    ("encoding", "options"),
    [
        ("cp1252", {"encoding": "cp1252"}),
        ("utf-16", {}),
        ("utf-32", {}),
        ("utf-8-sig", {}),
        ("utf-16-le", {"encoding": "utf-16-le"}),
        ("utf-8", {"encoding": "cp1252"}),  # UTF-8 is recognised, so a new file may have it
    ],
)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_file_in_another_encoding(tmp_path, encoding, options, form):
    content = CSV if form == "csv" else "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    file = tmp_path / f"a.{form}"
    file.write_bytes(content.encode(encoding))
    task = open_task(file, **options)
    assert (task.kind, count_rows(task)) == ("classify", len(ROWS))
    assert "schön" in task.encoding.x.words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"line 2 is not UTF-8 \(byte 0xf6 at position \d+\); name its encoding with encoding=..., such as cp1252"),
        ({"encoding": "klingon"}, "option encoding='klingon': .*unknown encoding"),
        ({"encoding": "ascii"}, r"a.csv: not ascii \(byte \d+\); name the right encoding with encoding=..."),
    ],
)
def test_a_wrong_encoding_is_one_line_with_the_cure(tmp_path, options, message):
    (tmp_path / "a.csv").write_bytes(b"text,label\nsch\xf6n,ja\ngut,nein\n")
    with pytest.raises(ValueError, match=message):
        open_task(tmp_path / "a.csv", **options)


def write_workbook(path, sheets):
    """Write a minimal .xlsx file of texts."""
    relations = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    packages = "http://schemas.openxmlformats.org/package/2006"
    with zipfile.ZipFile(path, "w") as book:
        names = [f'<sheet name="{name}" sheetId="{i}" r:id="r{i}"/>' for i, name in enumerate(sheets, 1)]
        links = [
            f'<Relationship Id="r{i}" Type="{relations}/worksheet" Target="worksheets/{i}.xml"/>' for i in range(9)
        ]
        book.writestr("[Content_Types].xml", f'<Types xmlns="{packages}/content-types"/>')
        root = f'<Relationship Id="r" Type="{relations}/officeDocument" Target="xl/workbook.xml"/>'
        book.writestr("_rels/.rels", f'<Relationships xmlns="{packages}/relationships">{root}</Relationships>')
        book.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{main}" xmlns:r="{relations}"><sheets>{"".join(names)}</sheets></workbook>',
        )
        listed = "".join(links[1 : len(sheets) + 1])
        book.writestr(
            "xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{packages}/relationships">{listed}</Relationships>'
        )
        for number, rows in enumerate(sheets.values(), 1):
            cells = [
                "".join(f'<c r="{"AB"[k]}{i}" t="inlineStr"><is><t>{v}</t></is></c>' for k, v in enumerate(row))
                for i, row in enumerate(rows, 1)
            ]
            lines = "".join(f'<row r="{i}">{line}</row>' for i, line in enumerate(cells, 1))
            book.writestr(
                f"xl/worksheets/{number}.xml",
                f'<worksheet xmlns="{main}"><sheetData>{lines}</sheetData></worksheet>',
            )


def test_the_first_sheet_of_a_workbook(tmp_path):
    pytest.importorskip("fastexcel")
    rows = [("text", "label"), *(tuple(row.values()) for row in ROWS)]
    write_workbook(tmp_path / "a.xlsx", {"reviews": rows, "notes": [("a", "b"), ("c", "d")]})
    task = open_task(tmp_path / "a.xlsx")
    assert (task.kind, task.target.names, count_rows(task)) == ("classify", ("ja", "nein"), len(ROWS))


def test_titles_above_the_header_of_a_sheet_are_left_out(tmp_path):
    pytest.importorskip("fastexcel")
    rows = [("text", "label"), *(tuple(row.values()) for row in ROWS)]
    write_workbook(tmp_path / "a.xlsx", {"reviews": [("Reviews of 2026",), ("", ""), *rows]})
    task = open_task(tmp_path / "a.xlsx")
    assert (task.target.names, count_rows(task)) == (("ja", "nein"), len(ROWS))
    assert any("left out above the header: 'Reviews of 2026'" in note.text for note in task.notes)


def test_a_sheet_is_read_by_its_name_or_number(tmp_path):
    pytest.importorskip("fastexcel")
    rows = [("text", "label"), *(tuple(row.values()) for row in ROWS)]
    write_workbook(tmp_path / "a.xlsx", {"about": [("a", "b"), ("c", "d")], "reviews": rows})
    for sheet in ("reviews", "2"):
        assert count_rows(open_task(tmp_path / "a.xlsx", sheet=sheet)) == len(ROWS)
    with pytest.raises(UserError, match=r"no sheet 'review': did you mean 'reviews'\?"):
        open_task(tmp_path / "a.xlsx", sheet="review")
    with pytest.raises(UserError, match=r"no sheet '3': its sheets are 'about', 'reviews'"):
        open_task(tmp_path / "a.xlsx", sheet="3")
    (tmp_path / "b.csv").write_text("text,label\n" + "gut,ja\nschlecht,nein\n" * 20)
    with pytest.raises(UserError, match=r"sheet=reviews is for workbooks \(.xlsx, .xls, .ods\); leave it out"):
        open_task(tmp_path / "b.csv", sheet="reviews")


def test_a_sheet_without_a_header(tmp_path):
    pytest.importorskip("fastexcel")
    write_workbook(tmp_path / "a.xlsx", {"a": [tuple(row.values()) for row in ROWS]})
    assert count_rows(open_task(tmp_path / "a.xlsx", header=False)) == len(ROWS)


def test_sheets_that_are_named_after_splits(tmp_path):
    pytest.importorskip("fastexcel")
    rows = [tuple(row.values()) for row in ROWS]
    write_workbook(tmp_path / "a.xlsx", {k: [("text", "label"), *rows[a::2]] for a, k in enumerate(("train", "test"))})
    assert open_task(tmp_path / "a.xlsx").splits["test"].size == len(ROWS) // 2


def test_a_damaged_workbook_is_an_error(tmp_path):
    pytest.importorskip("fastexcel")
    (tmp_path / "a.xlsx").write_bytes(b"PK not a workbook")
    with pytest.raises(ValueError, match=r"a.xlsx: damaged, empty, or not xlsx"):
        open_task(tmp_path / "a.xlsx")


def test_a_workbook_without_fastexcel_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastexcel", None)
    write_workbook(tmp_path / "a.xlsx", {"a": [("text", "label")]})
    with pytest.raises(
        ValueError, match=r"reading .xlsx needs fastexcel; install it with: pip install 'seqloom\[excel"
    ):
        excel.scan_sheets(tmp_path / "a.xlsx", Reading())  # elsewhere a process of its own reads it


def test_a_zip_file_with_one_table(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/reviews.csv", CSV.encode("cp1252"))
        archive.writestr("data/README.md", "about")
        archive.writestr("__MACOSX/data/._reviews.csv", "x")
    task = open_task(tmp_path / "a.zip", encoding="cp1252")
    assert (task.name, count_rows(task)) == ("a", len(ROWS))


def test_a_zip_file_with_several_tables_or_damage_is_an_error(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.csv", CSV)
        archive.writestr("b.csv", CSV)
    with pytest.raises(ValueError, match=r"a.zip: holds a.csv, b.csv; .* unpack it, and give the folder"):
        open_task(tmp_path / "a.zip")
    (tmp_path / "b.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"b.zip: ends in the middle or is damaged"):
        open_task(tmp_path / "b.zip")


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_object_of_splits(tmp_path, indent):
    parts = {"train": ROWS[:80], "validation": ROWS[80:100], "test": ROWS[100:], "oos_test": ROWS[:5]}
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, **parts}, indent=indent))
    sizes = {name: split.size for name, split in open_task(tmp_path / "a.json").splits.items()}
    assert sizes == {"train": 80, "valid": 20, "test": len(ROWS) - 100, "oos_test": 5}


def test_a_json_object_of_splits_with_pairs(tmp_path):
    pairs = {k: [[row["text"], row["label"]] for row in ROWS[i::2]] for i, k in enumerate(("train", "test"))}
    (tmp_path / "a.json").write_text(json.dumps(pairs))
    task = open_task(tmp_path / "a.json")
    assert (task.kind, task.target.names) == ("classify", ("ja", "nein"))


def test_dotted_names_of_nested_json_in_training_and_prediction(tmp_path):
    rows = [
        {"data": {"content": row["text"], "meta": {"lang": "de"}}, "labels": {"emotion": row["label"]}} for row in ROWS
    ]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    task = open_task(tmp_path / "a.json", input="data.content", target="labels.emotion")
    assert [column.name for column in task.columns] == ["data.content", "data.meta.lang", "labels.emotion"]
    short = open_task(tmp_path / "a.json", input="content", target="emotion", kind="classify")
    assert short.encoding.plan == task.encoding.plan
    task.save(tmp_path / "saved")
    restored = load_task(tmp_path / "saved")
    assert restored.encode(rows[:2]).x.equal(restored.encode(next(restored.read_rows(tmp_path / "a.json", 2))).x)


def test_lists_of_objects_are_lists_of_each_field(tmp_path):
    words = [[{"form": w, "tag": "A" if w == "gut" else "B"} for w in text.split()] for text in TEXTS]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"words": w}) + "\n" for w in words))
    task = open_task(tmp_path / "a.jsonl", input="form", target="tag")
    assert (task.kind, task.encoding.plan.input) == ("tag", ("words.form",))


PITCHES = {"a": 300, "b": 600, "c": 1_200}


def write_tone(file, letters, rate):
    t = np.arange(rate // 20) / rate
    sound = np.concatenate([np.sin(2 * np.pi * PITCHES[letter] * t) for letter in letters])
    wavfile.write(file, rate, (sound * 30_000).astype(np.int16))


def write_tones(folder, rates=(8_000,)):
    texts = [a + b + c for a in "abc" for b in "abc" for c in "abc"]
    folder.mkdir(parents=True)
    for i, text in enumerate(texts):
        write_tone(folder / f"{i}.wav", text, rates[i % len(rates)])
    return texts


@pytest.mark.parametrize("given", ["", "meta.csv"])
def test_a_table_of_files_and_texts_beside_recordings(tmp_path, given):
    texts = write_tones(tmp_path / "tones" / "wavs")
    lines = [f"wavs/{i}.wav,{text}" if i % 2 else f"{i}.wav,{text}" for i, text in enumerate(texts)]
    (tmp_path / "tones" / "meta.csv").write_text("file,text\n" + "\n".join(lines))
    task = open_task(tmp_path / "tones" / given)
    assert (task.kind, task.target.unit, count_rows(task)) == ("transcribe", "characters", 27)
    write_tone(tmp_path / "tones" / "wavs" / "0.wav", "ccccccccc", 8_000)  # a changed recording is read again
    longest = max(
        int(b.lengths.max())
        for s in ("train", "valid", "test")
        for b in open_task(tmp_path / "tones" / given).batches(s, batch=32)
    )
    assert longest > 40


def test_a_table_that_names_a_missing_recording_is_an_error(tmp_path):
    write_tones(tmp_path / "tones")
    (tmp_path / "tones" / "meta.csv").write_text("file,text\n0.wav,aaa\n99.wav,abc\n")
    with pytest.raises(ValueError, match=r"meta.csv: row 2 names '99.wav', which is not in"):
        open_task(tmp_path / "tones")


def test_texts_beside_recordings(tmp_path):
    for i, text in enumerate(write_tones(tmp_path / "tones" / "one")):
        (tmp_path / "tones" / "one" / f"{i}.txt").write_text(text + "\n")
    task = open_task(tmp_path / "tones")
    assert (task.kind, task.encoding.plan.target) == ("transcribe", ("text",))


def test_recordings_of_several_rates_are_resampled_to_the_lowest(tmp_path):
    write_tones(tmp_path / "tones", (8_000, 16_000, 11_025))
    lines = [f"{i}.wav,{'ab'[i % 2]}" for i in range(27)]
    (tmp_path / "tones" / "meta.csv").write_text("file,label\n" + "\n".join(lines))
    task = open_task(tmp_path / "tones", kind="classify")
    note = "recordings have 3 sampling rates (8,000, 11,025, 16,000); all are resampled to 8,000"
    assert note in [n.text for n in task.notes] and task.encoding.x.rate == 8_000

    def encode(rate):
        sound = np.sin(2 * np.pi * 600 * np.arange(rate) / rate)
        return task.encode([{"audio": sound.tolist(), "rate": rate}])

    low, high = encode(8_000), encode(16_000)
    assert abs(int(low.lengths[0]) - int(high.lengths[0])) <= 1
    middle = slice(20, 60)  # the ends differ by the filter
    assert low.x[0, middle].mean(0).argmax() == high.x[0, middle].mean(0).argmax()


def test_frames_with_structs_have_dotted_names():
    frame = pl.DataFrame({"data": [{"text": row["text"]} for row in ROWS], "label": [row["label"] for row in ROWS]})
    assert open_task(frame).encoding.plan.input == ("data.text",)
