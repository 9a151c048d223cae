"""Every format, compressed or not, gives the same table."""

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
import tarfile
import types
from io import BytesIO

import numpy as np
import polars as pl
import pytest
from scipy.io import wavfile

from seqloom.lab.data.pipeline.reading import make_reading
from seqloom.lab.data.pipeline.source import read_source
from seqloom.lab.data.readers.text import guess_form
from seqloom.lab.data.registry import open_task
from seqloom.lab.data.task import Notes

ROWS = [{"text": f'word{i} and more, of "them"', "label": "ab"[i % 2], "score": i / 2} for i in range(12)]


def read(path, **options):
    return read_source(path, make_reading(**options), Notes()).frame().collect()


def write(path, **how):
    frame = pl.DataFrame(ROWS)
    suffix = path.suffix
    if suffix == ".csv":
        frame.write_csv(path)
    elif suffix == ".tsv":
        path.write_text("text\tlabel\tscore\n" + "".join(f"{r['text']}\t{r['label']}\t{r['score']}\n" for r in ROWS))
    elif suffix == ".jsonl":
        frame.write_ndjson(path)
    elif suffix == ".json":
        path.write_text(json.dumps(ROWS))
    elif suffix == ".parquet":
        frame.write_parquet(path)
    elif suffix == ".arrow":
        frame.write_ipc(path)
    elif suffix == ".feather":
        frame.write_ipc_stream(path)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json", "parquet", "arrow", "feather"])
def test_a_table_is_read_from_every_format(suffix, tmp_path):
    path = tmp_path / f"a.{suffix}"
    write(path)
    assert read(path).to_dicts() == ROWS


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
def test_a_compressed_file_gives_the_same_table(suffix, pack, tmp_path):
    path = tmp_path / "a.csv"
    write(path)
    (tmp_path / f"b.csv.{suffix}").write_bytes(pack(path.read_bytes()))
    assert read(tmp_path / f"b.csv.{suffix}").equals(read(path))


def test_zst_is_read_or_names_the_missing_package(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    try:
        import zstandard
    except ImportError:
        path.write_bytes(b"")
        with pytest.raises(ValueError, match="pip install zstandard"):
            read(path)
    else:
        path.write_bytes(zstandard.compress(b'{"a": 1}\n'))
        assert read(path).to_dicts() == [{"a": 1}]


def test_a_table_of_numbers_alone_needs_no_header(tmp_path):
    (tmp_path / "a.csv").write_text("1.5,2\n3.5,4\n")
    assert read(tmp_path / "a.csv").to_dict(as_series=False) == {"column_1": [1.5, 3.5], "column_2": [2, 4]}


@pytest.mark.parametrize("one", [";", "\t", "|"])
def test_a_csv_may_be_separated_by_another_sign(one, tmp_path):
    (tmp_path / "a.csv").write_text(f"text{one}label\nrather, good{one}x\nbad{one}y\n")
    assert read(tmp_path / "a.csv").rows() == [("rather, good", "x"), ("bad", "y")]


def test_a_first_line_whose_values_come_again_is_no_header(tmp_path):
    (tmp_path / "a.csv").write_text("so good,yes\nnot so,no\nwell,yes\n")
    assert read(tmp_path / "a.csv").columns == ["column_1", "column_2"]
    (tmp_path / "b.csv").write_text("text,label\nso good,yes\ntext,label\nnot so,no\n")  # two files put together
    assert read(tmp_path / "b.csv").columns == ["text", "label"]


def test_na_in_a_column_of_numbers_is_a_gap_and_in_a_text_is_a_word(tmp_path):
    (tmp_path / "a.csv").write_text("n,t\nNA,NA\n2,b\n?,c\n")
    assert read(tmp_path / "a.csv").to_dict(as_series=False) == {"n": [None, 2.0, None], "t": ["NA", "b", "c"]}


def test_a_type_that_changes_late_in_the_file_is_detected(tmp_path):
    (tmp_path / "a.csv").write_text("n\n" + "1\n" * 12_000 + "1.5\n")
    assert read(tmp_path / "a.csv")["n"][-1] == 1.5


def test_npz_with_lengths_and_splits(tmp_path):
    x = np.arange(24.0).reshape(3, 4, 2)
    arrays = {"x_train": x, "y_train": np.array([0, 1, 0]), "x_test": x[:1], "y_test": np.array([1])}
    np.savez(tmp_path / "a.npz", **arrays)
    frame = read(tmp_path / "a.npz")
    assert frame["split"].to_list() == ["train"] * 3 + ["test"]
    assert frame["x"][1].to_list() == x[1].tolist()
    np.savez(tmp_path / "b.npz", x=x, y=np.array([0, 1, 0]), lengths=np.array([4, 1, 2]))
    assert [len(row) for row in read(tmp_path / "b.npz")["x"]] == [4, 1, 2]


CONLL = "EU NNP B-ORG\nrejects VBZ O\n\nGerman JJ B-MISC\n. . O\n"


@pytest.mark.parametrize("name", ["a.conll", "a.txt"])
def test_conll_is_known_by_its_name_or_its_lines(name, tmp_path):
    (tmp_path / name).write_text(CONLL * 3)
    source = read_source(tmp_path / name, make_reading(), Notes())
    assert source.usual == ("tokens", "column_3")
    assert source.frame().collect().row(0) == (["EU", "rejects"], ["NNP", "VBZ"], ["B-ORG", "O"])


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("EU B\n\nBonn B\n\n", "conll"),  # no shorter file is one
        ("EU B\nBonn B\n", "text"),
        ("EU B\n\nBonn\n\n", "text"),
        ("EU\n\nBonn\n\n", "text"),
        ("EU\tB\nBonn\tB\nRom\tB\n", "tsv"),  # the last line may be cut off
        ("EU\tB\nBonn\tB\n", "text"),
    ],
)
def test_the_form_of_a_text_file_is_guessed_from_its_lines(text, form, tmp_path):
    (tmp_path / "a.txt").write_text(text)
    assert guess_form(tmp_path / "a.txt") == form


def test_two_languages_in_a_folder_are_input_and_target(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.de").write_text(f"Haus {split}\nBaum {split}\n")
        (tmp_path / f"{split}.en").write_text(f"house {split}\ntree {split}\n")
    (tmp_path / "about.md").write_text("a note beside them")
    source = read_source(tmp_path, make_reading(input="de", target="en"), Notes())
    assert source.frame().collect().select("de", "en").rows()[0] == ("Haus train", "house train")


def test_conllu_leaves_out_ranges_and_comments(tmp_path):
    line = "{}\t{}\tl\t{}\tX\t_\t0\troot\t_\t_\n"
    text = "# text = vamonos\n" + line.format("1-2", "vamonos", "_") + line.format(1, "vamos", "VERB")
    (tmp_path / "a.conllu").write_text(text + line.format(2, "nos", "PRON") + line.format("2.1", "e", "X") + "\n")
    frame = read(tmp_path / "a.conllu")
    assert frame["tokens"].to_list() == [["vamos", "nos"]] and frame["upos"].to_list() == [["VERB", "PRON"]]


def test_ts_with_dimensions_gaps_and_time_stamps(tmp_path):
    (tmp_path / "a.ts").write_text("#c\n@classLabel true a b\n@data\n1,2,?:4,5,6:a\n7:8:b\n")
    frame = read(tmp_path / "a.ts")
    assert frame["series"].to_list() == [[[1, 4], [2, 5], [None, 6]], [[7, 8]]]
    assert frame["label"].to_list() == ["a", "b"]
    (tmp_path / "b.ts").write_text("@timeStamps true\n@targetlabel true\n@data\n(0,1.5),(2.5,3):0.25\n")
    frame = read(tmp_path / "b.ts")
    assert frame.row(0, named=True) == {"series": [[1.5], [3.0]], "times": [0.0, 2.5], "value": 0.25}


def test_two_files_whose_lines_belong_together(tmp_path):
    (tmp_path / "t.de").write_text("ja\nnein\n")
    (tmp_path / "t.en").write_text("yes\nno\n")
    source = read_source((tmp_path / "t.de", tmp_path / "t.en"), make_reading(), Notes())
    assert source.frame().collect().to_dict(as_series=False) == {"de": ["ja", "nein"], "en": ["yes", "no"]}
    assert source.usual == ("de", "en")
    (tmp_path / "t.en").write_text("yes\n")
    with pytest.raises(ValueError, match=r"t\.en: ends after 1 line"):
        read_source((tmp_path / "t.de", tmp_path / "t.en"), make_reading(), Notes())


def test_a_plain_text_is_one_text_or_its_lines(tmp_path):
    text = "one two\n\nthree\n"
    (tmp_path / "a.txt").write_text(text)
    source = read_source(tmp_path / "a.txt", make_reading(), Notes())
    assert source.stream and "".join(source.frame().collect()["text"]) == text
    source = read_source(tmp_path / "a.txt", make_reading(lines=True), Notes())
    assert not source.stream and source.frame().collect()["text"].to_list() == ["one two", "three"]


def test_a_text_in_one_line_is_split_too_and_stays_whole(tmp_path):
    (tmp_path / "a.txt").write_text(text := "some words and more " * 400)
    assert "".join(read(tmp_path / "a.txt")["text"]) == text
    assert len(text) == sum(split.size + 1 for split in open_task(tmp_path / "a.txt").splits.values())


def test_folders_by_class_and_by_split(tmp_path):
    for side in ("train", "test"):
        for label in ("pos", "neg"):
            (tmp_path / side / label).mkdir(parents=True)
            (tmp_path / side / label / "1.txt").write_text(f"{side} {label}")
    source = read_source(tmp_path, make_reading(), Notes())
    assert {part.split for part in source.parts} == {"train", "test"}
    assert sorted(source.frame().collect().select("text", "label").rows())[0] == ("test neg", "neg")
    assert read_source(tmp_path / "train", make_reading(), Notes()).rows == 2


def wav(kind, channels=1):
    sound = np.sin(np.arange(2_000) * 0.3)
    samples = {"i2": sound * 32767, "u1": sound * 127 + 128, "i4": sound * 2147483647, "f4": sound}[kind].astype(kind)
    file = BytesIO()
    wavfile.write(file, 8_000, np.stack([samples] * channels, 1) if channels > 1 else samples)
    return file.getvalue(), sound


@pytest.mark.parametrize(("kind", "channels"), [("i2", 1), ("u1", 1), ("i4", 2), ("f4", 1)])
def test_wav_of_every_kind_is_read_between_minus_one_and_one(kind, channels, tmp_path):
    content, sound = wav(kind, channels)
    (tmp_path / "3_ann_0.wav").write_bytes(content)
    row = read(tmp_path).row(0, named=True)
    assert row["rate"] == 8_000 and (row["part_1"], row["part_2"]) == ("3", "ann")
    assert np.abs(np.array(row["audio"]) - sound).max() < (0.02 if kind == "u1" else 1e-4)


def test_wav_in_a_tar_labelled_by_folder_with_texts_beside(tmp_path):
    with tarfile.open(tmp_path / "a.tar.xz", "w:xz") as tar:
        for label in ("yes", "no"):
            for name, content in ((f"{label}/1.wav", wav("i2")[0]), (f"{label}/1.txt", f"he says {label}\n".encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, BytesIO(content))
    frame = read(tmp_path / "a.tar.xz")
    assert frame["label"].to_list() == ["yes", "no"] and frame["text"].to_list() == ["he says yes", "he says no"]


def test_given_files_are_splits_and_a_prefix_names_them(tmp_path):
    for name in ("Gun_TRAIN.ts", "Gun_TEST.ts", "Bow_TRAIN.ts", "Bow_TEST.ts"):
        (tmp_path / name).write_text("@classLabel true a b\n@data\n1,2:a\n3,4:b\n")
    source = read_source(tmp_path / "Gun", make_reading(), Notes())
    assert [part.split for part in source.parts] == ["train", "test"] and source.name == "Gun"
    with pytest.raises(ValueError, match="several data sets"):
        read_source(tmp_path, make_reading(), Notes())


def test_parallel_files_in_a_folder_are_paired_by_their_ends(tmp_path):
    for stem in ("train", "val", "test_2016", "test_2017"):
        for end in ("de", "en"):
            (tmp_path / f"{stem}.{end}").write_text(f"{stem} {end}\n")
    notes = Notes()
    source = read_source(tmp_path, make_reading(input="de", target="en"), notes)
    assert [part.split for part in source.parts] == ["train", "valid", "test", "test_2017"]
    assert "additional split 'test_2017'" in notes[0].text


def test_a_train_file_alone_is_noted_with_its_neighbours(tmp_path):
    for name in ("train.jsonl", "test.jsonl"):
        write(tmp_path / name)
    notes = Notes()
    read_source(tmp_path / "train.jsonl", make_reading(), notes)
    assert notes[0].text == f"only train.jsonl is read; give {tmp_path} to use test.jsonl too"
    for name in ("a_TRAIN.csv", "a_TEST.csv", "b_TRAIN.csv"):
        write(tmp_path / name)
    read_source(tmp_path / "a_TRAIN.csv", make_reading(), notes)
    assert notes[1].text == f"only a_TRAIN.csv is read; give {tmp_path / 'a'} to use a_TEST.csv too"


def test_data_sets_of_hugging_face_by_name(monkeypatch):
    class Part:
        _fingerprint = "f"
        features = {"label": types.SimpleNamespace(names=["neg", "pos"]), "text": object()}

        def to_polars(self):
            return pl.DataFrame({"text": ["a b c", "d e f"], "label": [0, 1]})

    asked = []
    fake = types.ModuleType("datasets")
    fake.load_dataset = lambda path, config: asked.append((path, config)) or {"train": Part(), "validation": Part()}
    monkeypatch.setitem(sys.modules, "datasets", fake)
    source = read_source("hf:glue:sst2", make_reading(), Notes())
    assert asked == [("glue", "sst2")] and [part.split for part in source.parts] == ["train", "valid"]
    assert source.frame().collect()["label"].to_list() == ["neg", "pos"] * 2
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install datasets"):
        read_source("hf:imdb", make_reading(), Notes())


def test_frames_are_taken_as_they_are():
    frame = pl.DataFrame({"text": [f"some words {i}" for i in range(20)], "label": ["a", "b"] * 10})
    task = open_task({"train": frame, "test": frame.head(4)})
    assert task.splits["test"].size == 4 and task.kind == "classify"


def test_a_comma_is_a_decimal_point_if_it_does_not_separate_fields(tmp_path):
    rows = [f"{1 + n % 28:02d}.{1 + n // 28:02d}.2026;{n},5;{n % 3}.000" for n in range(60)]
    (tmp_path / "de.csv").write_text("datum;wert;rest\n" + "\n".join(rows) + "\n;1.234,5;NA\n;-2.000;1,5\n")
    frame = read_source(tmp_path / "de.csv", make_reading(), Notes()).frame().collect()
    assert frame["wert"].to_list() == [n + 0.5 for n in range(60)] + [1234.5, -2000.0]
    assert frame["rest"].to_list() == [1000.0 * (n % 3) for n in range(60)] + [None, 1.5]
    (tmp_path / "en.csv").write_text('a,b\n"1,5",x\n"2,5",y\n')
    assert read_source(tmp_path / "en.csv", make_reading(), Notes()).frame().collect()["a"].to_list() == ["1,5", "2,5"]


def test_lists_of_numbers_in_a_field_are_series(tmp_path):
    (tmp_path / "a.csv").write_text('x,deep,no\n"[0.5, -2e1]","[[1, 2], [3, 4]]","[1, b]"\n"[]","[[5, 6]]","[2]"\n')
    frame = read_source(tmp_path / "a.csv", make_reading(), Notes()).frame().collect()
    assert frame["x"].to_list() == [[0.5, -20.0], []] and frame["deep"].to_list() == [[[1, 2], [3, 4]], [[5, 6]]]
    assert frame["no"].to_list() == ["[1, b]", "[2]"]


HEADERS = {
    "doubled quotes": 'a"b,c',
    "separators": "a,b;c|d",
    "line ends": "a\nb",
    "windows line ends": "a\r\nb",
    "quotes alone": '""',
    "blanks": " a ",
    "long": "x" * 5000,
}


@pytest.mark.parametrize("name", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_quoted_header_is_read_as_the_csv_module_reads_it(name, separator, end, encoding, tmp_path):
    out = io.StringIO()
    rows = [[name, "label"], ["some, text", "a"], ['more "text"', "b"]]
    csv.writer(out, delimiter=separator, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(rows)
    (tmp_path / "a.csv").write_bytes(out.getvalue().encode(encoding))
    frame = read(tmp_path / "a.csv", header=True)
    parsed = list(csv.reader(io.StringIO(out.getvalue(), newline=""), delimiter=separator))
    assert [frame.columns, *map(list, frame.rows())] == parsed


TABLES = {
    "a quote in a header without quotes": 'te"xt,label\nu v,a\n',
    "a quote at the end of a header": 'text",label\nu v,a\n',
    "a nameless column": ",label\n1 x,a\n",
    "a zero byte": "te\0xt,label\nu\0v,a\n",
    "blank lines": '\n\ntext,label\n\nu v,a\n\n"w\n\nx",b\n\n',
    "blank windows lines": "text,label\r\n\r\nu v,a\r\n\r\nw x,b\r\n",
    "a header longer than a block of lines": '"' + "x\n" * 50 + '",label\nu v,a\n',
    "mixed line ends": "text,label\r\nu v,a\nw x,b\r\n",
    "no last line end": "text,label\nu v,a",
}


@pytest.mark.parametrize("text", TABLES.values(), ids=TABLES)
def test_a_strange_table_is_read_as_the_csv_module_reads_it(text, tmp_path):
    (tmp_path / "a.csv").write_bytes(text.encode())
    frame = read(tmp_path / "a.csv", header=True)
    assert [frame.columns, *map(list, frame.rows())] == [
        row for row in csv.reader(io.StringIO(text, newline="")) if row
    ]


@pytest.mark.parametrize("separator", ["|", "\t", ";"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_comma_in_a_name_does_not_make_the_comma_the_separator(separator, quote, tmp_path):
    rows = [["text", "a,b", "label"], *([f"word {i}", f"n {i}", "xy"[i % 2]] for i in range(20))]
    text = "\n".join(separator.join(f"{quote}{field}{quote}" for field in row) for row in rows)
    (tmp_path / "a.csv").write_text(text + "\n")
    frame = read(tmp_path / "a.csv", header=True)
    assert [frame.columns, *map(list, frame.rows())] == rows


def test_the_line_by_which_excel_names_the_separator_is_no_header(tmp_path):
    (tmp_path / "a.csv").write_text("sep=;\ntext;label\nu, v;a\n")
    assert read(tmp_path / "a.csv", header=True).rows(named=True) == [{"text": "u, v", "label": "a"}]


ARRAYS = {
    "f2": 0.5,
    "longdouble": 0.5,
    ">f4": 0.5,
    ">i8": 3,
    "u1": 3,
    "?": True,
    "U3": "ä",
    ">U3": "ä",
    "S3": b"b",
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 2)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_every_type_that_is_read_keep_their_values(kind, shape, order, tmp_path):
    array = np.full(shape, ARRAYS[kind], dtype=kind, order=order)
    value = ARRAYS[kind].decode() if isinstance(ARRAYS[kind], bytes) else ARRAYS[kind]
    for lengths in ({}, {"lengths": np.full(3, 2)}):
        np.savez(tmp_path / "a.npz", x=array, y=np.arange(3), **lengths)
        assert read(tmp_path / "a.npz")["x"].to_list() == np.full(shape, value, dtype=object).tolist()
