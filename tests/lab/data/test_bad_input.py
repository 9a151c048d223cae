"""Each bad input is one clear line, or a counted warning with file and row."""

import bz2
import codecs
import gzip
import io
import json
import lzma
import re
import struct
import zipfile

import numpy as np
import polars as pl
import pytest

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.series import SeriesCoder
from seqloom.lab.data.pipeline.new_rows import make_frame
from seqloom.lab.data.readers import compression
from seqloom.lab.data.registry import open_task

WORDS = ["sun", "moon", "star", "sea", "hill", "road", "tree", "house"]
TEXTS = [" ".join(WORDS[(i * k + k) % 8] for k in range(1, 8)) + f" {i}" for i in range(40)]
GOOD = [{"text": t, "label": "ab"[i % 2]} for i, t in enumerate(TEXTS)]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def assert_fails(path, message, **options):
    with pytest.raises(ValueError, match=message) as caught:
        open_task(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_column(tmp_path):
    message = assert_fails(
        write_jsonl(tmp_path / "a.jsonl", GOOD), "no column 'labl'; did you mean 'label'", target="labl"
    )
    assert "a.jsonl" in message


def test_a_missing_file_or_format(tmp_path):
    assert_fails(tmp_path / "nowhere.csv", "nowhere.csv: no such file or folder")
    (tmp_path / "a.docx").write_text("x")
    assert_fails(tmp_path / "a.docx", "a.docx: unknown format; files may end in .csv")
    (tmp_path / "d").mkdir()
    assert_fails(tmp_path / "d", "holds no data")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet", "a.arrow", "a.txt", "a.conll"])
def test_an_empty_file(name, tmp_path):
    (tmp_path / name).write_text("")
    assert_fails(tmp_path / name, f"{name}: the file is empty")


def test_a_table_with_only_a_header(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n")
    assert_fails(tmp_path / "a.csv", "a.csv: holds no rows")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("only one", "line 4 has 1 field, the first line has 2; complete"),
        ("a,b,c", "line 4 has 3 fields, the first line has 2; put"),
    ],
)
def test_a_row_with_the_wrong_number_of_fields(row, message, tmp_path):
    (tmp_path / "a.csv").write_text(f"text,label\nx y,a\nz w,b\n{row}\nu v,a\n")
    assert_fails(tmp_path / "a.csv", message)


def test_an_unclosed_quote_is_reported_where_it_opens(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\na b,x\n"c d,y\ne f,x\n')
    assert_fails(tmp_path / "a.csv", "line 3 opens a quote that is not closed; close it")


def test_a_wrong_row_in_a_compressed_file_names_that_file(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"text,label\nx,a\ny\n"))
    assert_fails(tmp_path / "a.csv.gz", r"a\.csv\.gz: line 3 has 1 field,")


def test_a_wrong_line_of_conll(tmp_path):
    (tmp_path / "a.conll").write_text("EU NNP O\nsays O\n\n")
    assert_fails(tmp_path / "a.conll", "a.conll: line 2 has 2 fields, not 3")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', "line 3 is not JSON"),
        (b'["a", "b"]', "line 3 is not an object"),
        (b'{"text": "\xff"}', "line 3 is not UTF-8 \\(byte 0xff"),
    ],
)
def test_a_bad_line_of_json(line, message, tmp_path):
    good = b'{"text": "a b", "label": 1}\n'
    (tmp_path / "a.jsonl").write_bytes(good * 2 + line + b"\n" + good)
    assert_fails(tmp_path / "a.jsonl", f"a.jsonl: {message}")


@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.conll"])
def test_bytes_that_are_not_utf8(name, tmp_path):
    (tmp_path / name).write_bytes(
        b"text\tlabel\nok\ta\nna\xefve\tb\n".replace(b"\t", b"," if name == "a.csv" else b"\t")
    )
    assert_fails(
        tmp_path / name,
        f"{name}: line 3 is not UTF-8 \\(byte 0xef at position 2\\); name its encoding with encoding=...",
    )


def test_a_text_file_by_class_that_is_not_utf8(tmp_path):
    (tmp_path / "pos").mkdir()
    (tmp_path / "pos" / "1.txt").write_bytes(b"\xff")
    assert_fails(tmp_path, r"1\.txt is not UTF-8")


def test_duplicate_column_names(tmp_path):
    (tmp_path / "a.csv").write_text("text,label,text\nx,a,y\n")
    assert_fails(
        tmp_path / "a.csv", "two columns are named 'text'; rename one, or set header=False if the first line is"
    )


def test_a_truncated_compressed_file(tmp_path):
    packed = gzip.compress(b"text,label\n" + b"x,a\n" * 1000)
    (tmp_path / "a.csv.gz").write_bytes(packed[: len(packed) // 2])
    assert_fails(tmp_path / "a.csv.gz", r"a\.csv\.gz: ends in the middle or is damaged")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zip"])
def test_a_compressed_file_with_a_changed_byte_is_unpacked_as_before_or_refused(suffix, tmp_path):
    table, path, work = b"text,label\nsun,a\nmoon,b\n", tmp_path / f"ä.csv{suffix}", tmp_path / "work"
    work.mkdir()
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("ä.csv", table)
    else:
        path.write_bytes({".gz": gzip, ".bz2": bz2, ".xz": lzma}[suffix].compress(table))
    packed = path.read_bytes()
    messages = []
    for place, byte in enumerate(packed):
        for changed in {0, 255, *(byte ^ 1 << bit for bit in range(8))} - {byte}:
            path.write_bytes(packed[:place] + bytes([changed]) + packed[place + 1 :])
            try:
                assert compression.unpack(path, work).read_bytes() == table
            except UserError as error:
                messages.append(str(error))
    assert len(messages) > len(packed)
    assert all(path.name in message and "\n" not in message for message in messages)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.npz"])
def test_a_binary_file_that_is_something_else(name, tmp_path):
    (tmp_path / name).write_bytes(b"this is no such file, but some text")
    assert_fails(tmp_path / name, f"{name}: (damaged, or not|not an .npz)")


def test_pickled_objects_are_never_read(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([[1], [1, 2]], dtype=object))
    assert_fails(tmp_path / "a.npz", "pickle is never read; save numbers")


def test_arrays_of_different_numbers_of_rows(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 4)), y=np.zeros(2))
    assert_fails(tmp_path / "a.npz", "different numbers of rows: x 3, y 2")


def test_a_file_that_is_not_a_wav(tmp_path):
    (tmp_path / "0_a.wav").write_bytes(b"RIFFxxxx")
    assert_fails(tmp_path, r"0_a\.wav: not a readable WAV file")


def test_a_label_that_training_never_saw(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", GOOD)
    write_jsonl(tmp_path / "test.jsonl", [*GOOD[:4], {"text": "new words here", "label": "c"}])
    (warning,) = [w for w in open_task(tmp_path).notes.warnings if "does not occur in training" in w]
    assert warning.startswith("rows of 'test' with a label that does not occur in training: 1 (first: ")
    assert "test.jsonl: row 5, 'c')" in warning


def test_a_class_with_one_example(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [*GOOD, {"text": "a lonely text of its own", "label": "z"}])
    task = open_task(path)
    assert "classes with one training example: 1 of 3 (z)" in task.notes.warnings
    assert task.target.names == ("a", "b", "z")


def test_a_column_called_label_with_one_value_is_not_passed_over(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": f"some words {i}", "label": "x"} for i in range(30)])
    assert_fails(path, "'label' is 'x' in every row; classifying needs at least two")
    assert open_task(path, kind="generate").kind == "generate"


def test_a_single_class(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [row | {"label": "a"} for row in GOOD])
    assert_fails(path, "target 'label' has only 'a' in training", target="label")


def test_a_series_with_gaps(tmp_path):
    rows = [{"series": [1.0 + i, None if i in (3, 7) else 2.0, 3.0], "label": "ab"[i % 2]} for i in range(20)]
    task = open_task(write_jsonl(tmp_path / "a.jsonl", rows))
    (warning,) = task.notes.warnings
    assert warning.startswith("sequences with missing values: 2 of 20 (") and "a.jsonl: row 4)" in warning
    assert task.input.names == ("series", "missing:series")
    for name in task.splits:
        assert all(batch.x.isfinite().all() for batch in task.batches(name, batch=4))


def test_infinite_numbers_are_gaps_too():
    data = pl.DataFrame(
        {"series": [[1.0, float("inf") if i == 2 else 0.5] for i in range(20)], "label": ["a", "b"] * 10}
    )
    task = open_task(data)
    assert task.notes.warnings and all(b.x.isfinite().all() for n in task.splits for b in task.batches(n, batch=8))


@pytest.mark.parametrize("empty", ["", "   ", None])
def test_a_text_of_length_0(empty, tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [*GOOD[:9], {"text": empty, "label": "a"}, *GOOD[9:]])
    task = open_task(path)
    assert task.notes.warnings[0].startswith("rows with an empty 'text': 1 of 41 (first: ")
    assert "row 10); left out" in task.notes.warnings[0]
    assert sum(split.size for split in task.splits.values()) == 40
    assert task.encode(["", "sun"]).lengths.tolist() == [0, 1]


def test_a_target_that_is_missing(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [*GOOD, {"text": "no label here"}])
    assert any("rows with no 'label': 1 of 41" in w for w in open_task(path).notes.warnings)


def test_a_sequence_of_a_million_steps(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [*GOOD, {"text": "sun " * 1_000_000, "label": "a"}])
    task = open_task(path, limit=100)
    (warning,) = task.notes.warnings
    assert warning.startswith("sequences longer than 100 steps: 1 of 41 (") and "row 41)" in warning
    assert max(int(b.lengths.max()) for n in task.splits for b in task.batches(n, batch=8)) == 100
    with pytest.warns(UserWarning, match="more than 100 steps; the first 100 are read"):
        assert task.encode(["moon " * 300]).lengths.tolist() == [100]


def test_a_cut_target_still_ends_and_tags_are_cut_alike():
    from seqloom.lab.data.task import END

    data = pl.DataFrame({"source": TEXTS, "target": ["sea " * 30] * 40})
    task = open_task(data, input="source", target="target", kind="translate", limit=10)
    batch = next(task.batches("train", batch=5))
    assert batch.y.shape[1] == 10 and (batch.y[:, -1] == END).all()
    tagged = open_task(
        pl.DataFrame(
            {
                "tokens": [[*WORDS * 2, *(f"w{i}{k}" for k in range(8))] for i in range(20)],
                "tags": [["A", "B"] * 12] * 20,
            }
        ),
        limit=7,
    )
    batch = next(tagged.batches("train", batch=5))
    assert batch.x.shape == batch.y.shape == (5, 7)


def test_tokens_and_tags_of_different_length(tmp_path):
    rows = [{"tokens": ["a", "b"], "tags": ["O", "B"]} for _ in range(9)] + [{"tokens": ["a", "b"], "tags": ["O"]}]
    message = assert_fails(
        write_jsonl(tmp_path / "a.jsonl", rows), "2 tokens but 1 tags", input="tokens", target="tags", kind="tag"
    )
    assert "row 10" in message


@pytest.mark.parametrize("raw", [b"text,label\rgood,a\rbad,b\r", bytes(range(256))], ids=["old", "binary"])
def test_a_file_without_lines(tmp_path, raw):
    (tmp_path / "a.csv").write_bytes(raw)
    assert_fails(tmp_path / "a.csv", "a.csv: not a text table, or its lines end in carriage returns alone")


def test_an_invalid_time_stamp():
    data = pl.DataFrame({"date": ["2026-01-01"] * 30 + ["soon"], "v": [0.5 * i for i in range(31)]})
    assert_fails(
        data, "row 31: 'soon' in 'date' is not a time stamp", time="date", kind="forecast", lookback=3, horizon=1
    )


def test_a_text_too_short_to_split(tmp_path):
    (tmp_path / "a.txt").write_text("ab")
    assert_fails(tmp_path / "a.txt", "give a longer text")


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(compression, "RATIO_FROM", 2**20)
    (tmp_path / "bomb.csv.xz").write_bytes(lzma.compress(b"text,label\n" + b"a,b\n" * 2**20))
    with pytest.raises(ValueError, match=r"bomb\.csv\.xz: .* unpack to more than .* allow it with unpacked_gib=32"):
        open_task(tmp_path / "bomb.csv.xz")
    (tmp_path / "large.csv.gz").write_bytes(gzip.compress(b"text,label\n" + b"a,b\n" * 2**20))
    with pytest.raises(ValueError, match="allow it with unpacked_gib="):
        open_task(tmp_path / "large.csv.gz", unpacked_gib=0.001)


def test_an_array_that_claims_more_numbers_than_its_file_holds_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)})
    with zipfile.ZipFile(tmp_path / "claims.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(64))
    with pytest.raises(
        ValueError, match=r"claims\.npz: x\.npy claims the shape \(1000000, 1000000\), more than it holds"
    ):
        open_task(tmp_path / "claims.npz")


@pytest.mark.parametrize("name", ["deep.json", "deep.jsonl"])
def test_deeply_nested_json_is_refused_in_one_line(tmp_path, name):
    (tmp_path / name).write_text("[" * 3000 + "]" * 3000)
    with pytest.raises(ValueError, match=name) as message:
        open_task(tmp_path / name)
    assert "\n" not in str(message.value)


def test_a_recording_without_channels_is_refused(tmp_path):
    head = b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 0, 8000, 0, 0, 16)
    (tmp_path / "none_a.wav").write_bytes(head + b"data" + struct.pack("<I", 0))
    with pytest.raises(ValueError, match=r"none_a\.wav"):
        open_task(tmp_path / "none_a.wav")


UNREADABLE = {
    "c8": "x holds complex64 values, which cannot be read; save the real and the imaginary part",
    "c16": "x holds complex128 values",
    "O": "x holds Python objects, and pickle is never read",
    "V5": "x holds void40 values, which are not numbers",
    "f4,i4": "x holds void64 values, which are not numbers; save each field as an array",
    "m8[us]": "x holds timedelta64\\[us\\] values, which cannot be read; save a duration as a number",
    "M8": "x holds dates without a unit",
}


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 2)])
@pytest.mark.parametrize("more", [{}, {"lengths": np.ones(3, int)}], ids=["whole", "lengths"])
def test_arrays_that_are_not_numbers_texts_or_dates_are_refused_by_type(kind, shape, more, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(shape, kind), y=np.arange(3), **more)
    assert_fails(tmp_path / "a.npz", f"a.npz: {UNREADABLE[kind]}")


@pytest.mark.parametrize("shape", [(), (3, 2, 2, 2), (3, *(1,) * 20)])
def test_arrays_of_too_few_or_many_dimensions_are_refused(shape, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(shape), y=np.arange(3))
    assert_fails(tmp_path / "a.npz", r"a\.npz: x has shape \(.*\); give arrays of \(rows\), \(rows, steps\)")


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([1, -1, 2], "row 2 of lengths is -1, but x has 2 steps"),
        ([1, 2, 3], "row 3 of lengths is 3, but x has 2 steps"),
        ([1.0, 2.0, 1.0], "lengths has shape .* of float64; give an integer per row"),
        ([[1], [2], [1]], "lengths has shape .* of int64; give an integer per row"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths, message, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.arange(3), lengths=np.array(lengths))
    assert_fails(tmp_path / "a.npz", f"a.npz: {message}")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_file_that_aborts_the_process_which_reads_it_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.setattr("seqloom.lab.data.readers.table.ENTRY", "import os; os.abort()")
    frame = pl.DataFrame(GOOD)
    frame.write_parquet(tmp_path / name) if name == "a.parquet" else frame.write_ipc(tmp_path / name)
    assert_fails(tmp_path / name, rf"{name}: damaged, or larger than the memory \(reading it ended with SIGABRT\)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('text,label\nu "v,a\nw x,b\n', "line 2 has a quotation mark within a field"),
        ('text,label\n"u v"x,a\nw x,b\n', "line 2 has a closing quote that no separator follows"),
        ('"text,label\nu v,a\n', "line 1 opens a quote that is not closed"),
        (",,label\nx,y,a\n", "columns 1 and 2 have no name; name them"),
        ("text,label\r\r\nu v,a\r\r\n", "its lines end in two carriage returns"),
    ],
)
def test_a_table_with_wrong_quotes_or_names_is_refused_by_line(text, message, tmp_path):
    (tmp_path / "a.csv").write_bytes(text.encode())
    assert_fails(tmp_path / "a.csv", rf"a\.csv: {message}", header=True)


@pytest.mark.parametrize("rate", [1, 99, 1_000_001, 2**31 - 1])
def test_a_recording_with_an_impossible_sampling_rate_is_refused(rate, tmp_path):
    format_ = struct.pack("<IHHIIHH", 16, 1, 1, rate, (2 * rate) % 2**32, 2, 16)
    data = b"fmt " + format_ + b"data" + struct.pack("<I", 1000) + bytes(1000)
    (tmp_path / "0_a.wav").write_bytes(b"RIFF" + struct.pack("<I", 4 + len(data)) + b"WAVE" + data)
    assert_fails(tmp_path, rf"0_a\.wav: has {rate:,} samples a second, not 100 to 1,000,000")


def test_a_value_that_is_too_large_names_the_whole_path(tmp_path):
    rows = [{"series": [1.0, 2e41 if i == 3 else 0.5], "label": "ab"[i % 2]} for i in range(20)]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    message = assert_fails(path, "column 'series' holds 2e\\+41")
    assert str(path) in message


def test_a_message_about_a_column_whose_name_holds_a_line_end_is_one_line(tmp_path):
    rows = "".join(f"{text},{i % 2},{i * 1.5}\n" for i, text in enumerate(TEXTS))
    (tmp_path / "a.csv").write_text(f'text,"two\nlines",n\n{rows}')
    assert "two lines" in assert_fails(tmp_path / "a.csv", "a.csv: more than one task is possible")


@pytest.mark.parametrize("row", [3, None, [1, 2], [[1, 2], 3], [[1, 2], [3]], "word"])
@pytest.mark.parametrize("is_wide", [False, True])
def test_a_new_row_of_another_form_is_refused(row, is_wide):
    coder = SeriesCoder(("a", "b", "c"), wide=is_wide)
    with pytest.raises(UserError):
        make_frame([row], coder)


@pytest.mark.parametrize(
    ("text", "half"),
    [
        (r"\ud83d\ude00 and \\ud800", ""),
        (r"\ud800", r"\ud800"),
        (r"\\\udc00", r"\udc00"),
        (r"\uD83D\uDE00\uD83D", r"\uD83D"),
    ],
)
@pytest.mark.parametrize("form", ["lines", "list"])
def test_half_a_character_of_json_is_refused(tmp_path, text, half, form):
    texts = [f"word {i} {text if i == 7 else ''}" for i in range(40)]
    rows = [f'{{"text": "{text}", "label": "{"ab"[i % 2]}"}}' for i, text in enumerate(texts)]
    path = tmp_path / ("a.jsonl" if form == "lines" else "a.json")
    path.write_text("\n".join(rows) if form == "lines" else "[" + ",\n".join(rows) + "]")
    if half:
        assert_fails(path, re.escape(f"line 8 has {half}, which is half a character"))
    else:
        open_task(path)


def test_a_wrong_encoding_of_a_packed_table_names_the_file_that_was_given(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(codecs.BOM_UTF32_LE + b"text,label\n" * 9 + b"x"))
    assert_fails(path, r"^[^ ]*/a\.csv\.gz: not utf-32")


def test_a_name_of_a_recording_that_is_too_long_is_shown_shortened(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    (tmp_path / "t.csv").write_text(f"file,label\n{'x' * 5000}.wav,y\na.wav,x\n")
    assert_fails(tmp_path / "t.csv", r"row 1 names 'x{10,80}\.\.\.', which is not in")


def test_a_short_row_after_empty_lines_is_named_by_its_line(tmp_path):
    rows = "\n\n".join(f"{text},{'ab'[i % 2]}" for i, text in enumerate(TEXTS))
    (tmp_path / "a.csv").write_text(f"text,label\n\n\n{rows}\n\n\nsun and moon\n")
    assert_fails(tmp_path / "a.csv", "line 85 has 1 field, the first line has 2")
