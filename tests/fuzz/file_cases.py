"""Random data files of every format that the readers know, well-formed and damaged, and what they hold.

Each maker takes a random generator and a suffix and returns a `Case`. What a file holds comes from another parser than
seqloom's where Python has one (csv, json, wave, NumPy, str.split), else from the values that were written.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import importlib.util
import io
import json
import lzma
import random
import struct
import tarfile
import warnings
import wave
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl

from fuzz.mutation import mutate

ROWS = 40
MOST_NUMBERS = 1_000_000  # of an array that is read again as lists of Python
OPTIONAL = {".zst": "zstandard", ".xlsx": "fastexcel", ".xls": "fastexcel", ".ods": "fastexcel"}  # package of a suffix
WORDS = ("sun", "moon", "night", "Straße", "naïve", "日本", "o'clock", "x" * 50)
ODD_FIELDS = (
    "",
    " ",
    '"',
    '""',
    'te"xt',
    "a,b",
    "a;b",
    "a\tb",
    "a|b",
    "two\nlines",
    "a\r\nb",
    "#",
    "NA",
    "NaN",
    "1e999",
)
ODD_FIELDS += ("-0", "007", "1,5", "1.234,5", "true", "[1, 2]", "[", "[[1], [2, 3]]", "\u2028", "=1+1", "9" * 40)
ODD_NAMES = (
    "",
    " ",
    "text",
    "label",
    'te"xt',
    "a,b",
    "two\nlines",
    "x" * 300,
    "名",
    "a;b",
    "lower",
    "__index__",
    "1.5",
)
ODD_JSON = (
    "0",
    "-1",
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "9" * 40,
    "1" * 5000,
    "1e-400",
    "true",
    "null",
    '""',
    "{}",
    "[]",
)
ODD_JSON += (
    '"\\ud800"',
    '"\\u0000"',
    '"\ufeff"',
    '{"a": {"b": [1, {"c": 2}]}}',
    "[[1, 2], [3]]",
    '[1, "a", null]',
    '[{"a": 1}]',
)
LIES = (0, 1, 2, 7, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
PICKLE = b"cposix\nsystem\n(S'touch EXECUTED'\ntR."  # creates the file EXECUTED if it is ever loaded


@dataclass(frozen=True)
class Case:
    """Data to open.

    Attributes:
        files: The files by name, which may begin with folders.
        path: Which to open: a name, two names, or "" for the folder.
        options: Options of `open_task`.
        columns: Columns that must be read like this, if the data are read at all; None without another parser.
        is_valid: Whether the data must be read.
    """

    files: Mapping[str, bytes]
    path: str | tuple[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, list[Any]] | None = None
    is_valid: bool = False


def make_rows(draw: random.Random, rows: int = ROWS) -> dict[str, list[Any]]:
    """Return columns that are easy to learn from: a text, a label, a number."""
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) + f" {i}" for i in range(rows)]
    return {"text": texts, "label": ["ab"[i % 2] for i in range(rows)], "n": [i * 1.5 for i in range(rows)]}


def make_delimited(draw: random.Random, suffix: str) -> Case:
    """Make a table of texts with strange fields, headers, line ends and encodings."""
    table = make_rows(draw)
    names, rows = list(table), [list(map(str, row)) for row in zip(*table.values(), strict=True)]
    separator = "\t" if suffix != ".csv" else draw.choice(",,;\t|")
    odd = [f for f in ODD_FIELDS if suffix == ".csv" or not set(f) & set('\t\r\n"')]
    odd_names = [n for n in ODD_NAMES if suffix == ".csv" or not set(n) & set('\t\r\n"')]
    for _ in range(draw.choice((0, 1, 5, 60))):
        rows[draw.randrange(len(rows))][draw.randrange(2)] = draw.choice(odd)
    for _ in range(draw.choice((0, 0, 1, 2))):
        names[draw.randrange(3)] = draw.choice(odd_names)
    end = draw.choice(("\n", "\n", "\r\n", "\r\n", "\r"))
    out = io.StringIO()
    quoting = draw.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL)) if suffix == ".csv" else csv.QUOTE_NONE
    writer = csv.writer(
        out, delimiter=separator, lineterminator=end, quoting=quoting, quotechar='"' if suffix == ".csv" else None
    )
    writer.writerows([names, *rows])
    text = out.getvalue()
    damage = draw.choice(
        ("none",) * 6 + ("comment", "trailing", "short", "nul", "quote", "head", "empty", "long", "space", "bytes")
    )
    lines = text.split(end)
    if damage == "comment":
        lines.insert(draw.choice((0, len(lines) // 2)), "# a comment, with a separator")
    elif damage == "trailing":
        lines = [line + separator if line else line for line in lines]
    elif damage == "short":
        at = draw.randrange(len(lines))
        lines[at] = lines[at].rpartition(separator)[0]
    elif damage == "nul":
        at = draw.randrange(len(lines))
        lines[at] = f"\0{lines[at]}"
    elif damage == "quote":
        at = draw.randrange(len(lines))
        lines[at] = draw.choice(('"' + lines[at], lines[at] + '"', lines[at].replace(separator, f'"{separator}', 1)))
    elif damage == "head":
        lines = lines[:1]
    elif damage == "empty":
        lines = [end * draw.randrange(3)]
    elif damage == "long":
        at = draw.randrange(len(lines))
        lines[at] = "word " * 300_000 + lines[at]
    elif damage == "space":
        lines[0] = lines[0].replace(separator, f" {separator} ")
    text = end.join(lines)
    encoding = draw.choice(("utf-8",) * 5 + ("utf-8-sig", "utf-16", "utf-32", "cp1252", "cp1252"))
    raw = text.encode(encoding, "replace")
    text = raw.decode(encoding)
    options: dict[str, Any] = {"header": True}
    if encoding == "cp1252" and draw.random() < 0.7:
        options["encoding"] = encoding
    if damage == "bytes":
        return Case({f"a{suffix}": mutate(draw, raw)}, f"a{suffix}", options)
    columns = parse_delimited(text, suffix, separator)
    is_usual = damage in ("none", "comment", "long") and end != "\r" and columns is not None
    is_named = columns is not None and len(columns) == len(names) and "" not in columns
    is_decoded = encoding != "cp1252" or "encoding" in options or raw.isascii()
    has_names = [n.strip() for n in names] == names and not any(n[:1].isdigit() or n == "\ufeff" for n in names)
    is_valid = is_usual and is_named and is_decoded and has_names and damage != "comment"
    return Case({f"a{suffix}": raw}, f"a{suffix}", options, columns, is_valid)


def parse_delimited(text: str, suffix: str, separator: str) -> dict[str, list[Any]] | None:
    """Return the columns that Python's csv module finds; None if it finds an error or the rows differ in length."""
    csv.field_size_limit(1 << 30)
    quoting: dict[str, Any] = {"strict": True} if suffix == ".csv" else {"quoting": csv.QUOTE_NONE}
    source = io.StringIO(text.removeprefix("\ufeff"), newline="")
    try:
        rows = [row for row in csv.reader(source, delimiter=separator, **quoting) if row]
    except csv.Error:
        return None
    if not rows or len({len(row) for row in rows}) > 1 or len(set(rows[0])) < len(rows[0]):
        return None
    return {name: list(column) for name, *column in zip(*rows, strict=True)}


def make_json(draw: random.Random, suffix: str) -> Case:
    """Make objects with strange values, one per line or in one document, deep or with other types in between."""
    table = make_rows(draw)
    rows = [
        {name: json.dumps(v) for name, v in zip(table, row, strict=True)} for row in zip(*table.values(), strict=True)
    ]
    changes = draw.choice((0, 1, 5, 40))
    for _ in range(changes):
        rows[draw.randrange(len(rows))][draw.choice(("text", "label", "n", "more", ""))] = draw.choice(ODD_JSON)
    lines = ["{" + ", ".join(f"{json.dumps(k)}: {v}" for k, v in row.items()) + "}" for row in rows]
    damage = draw.choice(("none",) * 6 + ("deep", "twice", "other", "cut", "bytes", "bytes"))
    at = draw.randrange(len(lines))
    if damage == "deep":
        depth = draw.choice((50, 200, 3000, 100_000))
        lines[at] = draw.choice(
            ('{"text": ' + "[" * depth + "1" + "]" * depth + "}", '{"a":' * depth + "1" + "}" * depth, "[" * depth)
        )
    elif damage == "twice":
        lines[at] = lines[at][:-1] + ', "label": "b"}'
    elif damage == "other":
        lines[at] = draw.choice(("[1, 2]", "3", "null", '"text"', "{}", "nonsense", "{'a': 1}", "\x00", ""))
    elif damage == "cut":
        lines[at] = lines[at][: draw.randrange(len(lines[at]))]
    form = draw.choice(("lines", "list", "splits", "wrapped")) if suffix == ".json" else "lines"
    if form == "lines":
        raw = "\n".join(lines)
    elif form == "list":
        raw = "[" + ",\n".join(lines) + "]"
    elif form == "wrapped":
        raw = '{"data": [' + ",\n".join(lines) + "]}"
    else:
        raw = '{"train": [' + ",".join(lines[5:]) + '], "test": [' + ",".join(lines[:5]) + "]}"
    encoding = draw.choice(("utf-8",) * 6 + ("utf-8-sig", "utf-16"))
    data = raw.encode(encoding, "replace")
    if damage == "bytes":
        return Case({f"a{suffix}": mutate(draw, data)}, f"a{suffix}")
    columns = parse_json(lines) if form != "splits" else None
    return Case({f"a{suffix}": data}, f"a{suffix}", {}, columns, damage == "none" and not changes)


def parse_json(lines: list[str]) -> dict[str, list[Any]] | None:
    """Return the columns of texts, and of numbers, that Python's json module finds; None if a line is no object."""
    try:
        rows = [json.loads(line, object_pairs_hook=_keep_first) for line in lines if line.strip()]
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(row, dict) for row in rows):
        return None
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    kinds = {name: {type(v) for v in column if v is not None} for name, column in columns.items()}
    return {name: column for name, column in columns.items() if kinds[name] in ({str}, {int}, {float}, {int, float})}


def _keep_first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object in which the first value of a repeated name counts; the standard leaves open which."""
    return dict(reversed(pairs))


TYPED: dict[str, tuple[Any, Any]] = {  # the type of a column, and a value of it
    "i8": (pl.Int8, 3),
    "u64": (pl.UInt64, 2**64 - 1),
    "i64": (pl.Int64, -(2**63)),
    "i128": (pl.Int128, 2**100),
    "f16": (pl.Float16, 0.5),
    "f32": (pl.Float32, float("nan")),
    "f64": (pl.Float64, float("inf")),
    "decimal": (pl.Decimal(20, 3), Decimal("1.125")),
    "date": (pl.Date, date(9999, 12, 31)),
    "datetime": (pl.Datetime("ns"), datetime(1970, 1, 1)),
    "zone": (pl.Datetime("us", "Europe/Berlin"), datetime(2026, 3, 29, 2, 30)),
    "time": (pl.Time, time(23, 59)),
    "duration": (pl.Duration("ms"), timedelta(days=-1)),
    "categorical": (pl.Categorical, "a"),
    "enum": (pl.Enum(["a", "b"]), "a"),
    "binary": (pl.Binary, b"\x00\xff"),
    "null": (pl.Null, None),
    "boolean": (pl.Boolean, True),
    "string": (pl.String, "\x00 \ud7ff"),
    "list": (pl.List(pl.Float64), [1.0, None]),
    "deep": (pl.List(pl.List(pl.List(pl.Int8))), [[[1]], []]),
    "array": (pl.Array(pl.Float32, 2), [1.0, 2.0]),
    "empty array": (pl.Array(pl.Float32, 0), []),
    "matrix": (pl.Array(pl.Int64, (2, 2)), [[1, 2], [3, 4]]),
    "struct": (pl.Struct({"a": pl.Int64, "b": pl.Struct({"c": pl.String})}), {"a": 1, "b": {"c": "x"}}),
    "empty struct": (pl.Struct({}), {}),
    "structs": (pl.List(pl.Struct({"a": pl.Int64})), [{"a": 1}]),
    "binaries": (pl.List(pl.Binary), [b"a"]),
    "dates": (pl.List(pl.Date), [date(2026, 1, 1)]),
    "categories": (pl.List(pl.Categorical), ["a", "b"]),
    "decimals": (pl.List(pl.Decimal(9, 2)), [Decimal("0.25")]),
}


def make_arrow(draw: random.Random, suffix: str) -> Case:
    """Make a Parquet or Arrow file with columns of strange types, or with a changed header or footer."""
    table = make_rows(draw)
    frame = pl.DataFrame(table)
    kinds = sorted(TYPED.keys() - ({"empty struct"} if suffix == ".parquet" else {}))  # Parquet has no such type
    replaced = set[str]()
    for name in draw.sample(kinds, draw.choice((0, 0, 1, 3))):
        kind, value = TYPED[name]
        values = [draw.choice((value, None)) for _ in range(ROWS)]
        place = draw.choice((name, "n", "label"))
        replaced.add(place)
        frame = frame.with_columns(pl.Series(place, values, dtype=kind, strict=False))
    columns = {name: table[name] for name in table if name not in replaced}
    is_plain = len(columns) == frame.width
    file = io.BytesIO()
    if suffix == ".parquet":
        packing = draw.choice(("zstd", "snappy", "gzip", "lz4", "uncompressed", "brotli"))
        frame.write_parquet(file, compression=packing, row_group_size=draw.choice((None, 7)))
    elif draw.random() < 0.5:
        frame.write_ipc(file, compression=draw.choice(("zstd", "lz4", "uncompressed")))
    else:
        frame.write_ipc_stream(file, compression=draw.choice(("zstd", "lz4", "uncompressed")))
    data = bytearray(file.getvalue())
    damage = draw.choice(("none",) * 3 + ("bytes", "bytes", "foot", "foot", "lengths", "cut", "head", "head"))
    if damage == "bytes":
        data = bytearray(mutate(draw, bytes(data)))
    elif damage == "foot":
        _change_numbers(draw, data, max(0, len(data) - 800), len(data))
    elif damage == "head":
        _change_numbers(draw, data, 4, min(len(data), 600))
    elif damage == "lengths":
        at = draw.choice((len(data) - 8, len(data) - 10, 8, 12, 0, 4)) % len(data)
        data[at : at + 4] = struct.pack("<I", draw.choice((*LIES, len(data) - 9)))
    elif damage == "cut":
        del data[draw.randrange(len(data)) :]
    if damage != "none":
        return Case({f"a{suffix}": bytes(data)}, f"a{suffix}")
    return Case({f"a{suffix}": bytes(data)}, f"a{suffix}", {}, columns, is_plain)


def _change_numbers(draw: random.Random, data: bytearray, start: int, end: int) -> None:
    """Change bytes and integers of one to eight bytes between two places."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        size, at = draw.choice((1, 1, 2, 4, 8)), draw.randrange(start, end)
        lie = draw.choice((*LIES, draw.randrange(256), -1, 2**62))
        data[at : at + size] = (lie % 256**size).to_bytes(size, "little")


ARRAY_TYPES = (
    "f8",
    "f4",
    "f2",
    "g",
    "c8",
    "c16",
    "G",
    "i1",
    "u8",
    ">i4",
    ">f8",
    "?",
    "S3",
    "U3",
    ">U3",
    "S0",
    "U0",
    "V5",
    "V0",
)
ARRAY_TYPES += (
    "M8[s]",
    "M8[D]",
    "M8[Y]",
    "M8[as]",
    "M8[7h]",
    "M8",
    "m8[W]",
    "m8[us]",
    ">M8[ms]",
    "O",
    "f4,i4",
    "(2,)f4",
)


def make_npz(draw: random.Random, suffix: str) -> Case:
    """Make arrays of strange types and shapes, or with changed headers."""
    arrays: dict[str, Any] = {
        "x": np.random.default_rng(draw.randrange(99)).normal(size=(ROWS, 5, 2)),
        "y": np.arange(ROWS) % 2,
    }
    changes = draw.choice((0, 1, 1, 2))
    for _ in range(changes):
        kind = np.dtype(draw.choice(ARRAY_TYPES))
        shape = draw.choice(
            (
                (),
                (ROWS,),
                (ROWS, 3),
                (ROWS, 3, 2),
                (ROWS, 2, 2, 2),
                (ROWS, 0),
                (0,),
                (ROWS, 3, 0),
                (0, 4),
                (ROWS,) + (1,) * 31,
            )
        )
        name = draw.choice(("x", "y", "lengths", "x_train", "z", "", "y_test", "a/b"))
        arrays[name] = _make_array(draw, kind, shape)
    file = io.BytesIO()
    packing = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    damage = draw.choice(
        ("none",) * 6 + ("header", "header", "header", "bytes", "bytes", "member", "twice", "bomb", "pickle")
    )
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", packing) as archive:
        warnings.simplefilter("ignore")  # a name that occurs twice
        for name, array in arrays.items():
            data = _write_npy(array)
            if damage == "header":
                data = _change_npy_header(draw, data)
            archive.writestr(f"{name}.npy", data)
        if damage == "member":
            archive.writestr(
                draw.choice(("README.txt", "z.npy", "../z.npy", "z/")), draw.choice((b"", b"hello", b"\x93NUMPY"))
            )
        elif damage == "twice":
            archive.writestr("x.npy", _write_npy(np.zeros(3)))
        elif damage == "bomb":
            archive.writestr("z.npy", _write_npy(np.zeros(1 << 26)), zipfile.ZIP_DEFLATED)
        elif damage == "pickle":
            head = _write_npy(np.zeros(1)).replace(b"'<f8'", b"'|O' ")
            archive.writestr("z.npy", head[:-8] + PICKLE)
    data = file.getvalue()
    if damage == "bytes":
        return Case({f"a{suffix}": mutate(draw, data)}, f"a{suffix}")
    is_valid = damage == "none" and not changes
    return Case({f"a{suffix}": data}, f"a{suffix}", {}, parse_npz(data), is_valid)


def _make_array(draw: random.Random, kind: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if kind.hasobject:
        array = np.empty(shape, object)
        array[...] = draw.choice((None, 1, "a"))
        return array
    array = np.zeros(shape, kind)
    if kind.kind in "iufcMm?":
        numbers = np.random.default_rng(draw.randrange(99)).integers(0, 4, shape)
        array = (
            numbers.astype(kind)
            if kind.kind not in "Mm"
            else numbers.astype(kind.newbyteorder("="), casting="unsafe").astype(kind)
        )
    if kind.kind == "f" and array.size:
        array.flat[0] = draw.choice((np.nan, np.inf, 0.5))
    return np.asfortranarray(array) if draw.random() < 0.3 else array


def _write_npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=True)
    return file.getvalue()


def _change_npy_header(draw: random.Random, data: bytes) -> bytes:
    """Change the shape, the type, the order, the version or the length in the header of an array."""
    end = 10 + int.from_bytes(data[8:10], "little")
    head = data[10:end].decode("latin-1")
    change = draw.randrange(6)
    shapes = (
        "(40, 1000000000)",
        "(-1,)",
        "(40,)",
        "(99999999999999999999,)",
        "(1.5,)",
        "('a',)",
        "(True, 2)",
        "()",
        "(0, 9223372036854775807)",
    )
    kinds = (
        "'<c16'",
        "'|O'",
        "'|V8'",
        "'<M8[s]'",
        "'<U2'",
        "'<f16'",
        "'|S99999999'",
        "[('a', '<f8')]",
        "'<f9'",
        "[]",
        "__import__('os')",
    )
    if change == 0:
        start = head.index("'shape': ") + 9
        head = head[:start] + draw.choice(shapes) + head[head.index(")", start) + 1 :]
    elif change == 1:
        start = head.index("'descr': ") + 9
        head = head[:start] + draw.choice(kinds) + head[head.index(", 'fortran") :]
    elif change == 2:
        head = head.replace("False", draw.choice(("True", "None", "1", "'x'")))
    elif change == 3:
        return data[:6] + bytes((draw.randrange(5), draw.randrange(3))) + data[8:]
    elif change == 4:
        return data[:8] + struct.pack("<H", draw.choice((0, 1, 60, 0xFFFF))) + data[10:]
    else:
        head = draw.choice(
            ("(" * 9000, "{" * 300, "[" * 60000, "9" * 60000, "", "{'a': 1}", "\x00" * 50, "-" * 60000 + "1")
        )
    raw = head.rstrip().encode("latin-1")[:0xFFF0] + b"\n"
    return data[:8] + struct.pack("<H", len(raw)) + raw + data[end:]


def parse_npz(data: bytes) -> dict[str, list[Any]] | None:
    """Return the arrays that NumPy finds, if all have one name each, are numbers or text and not large; else None."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception:
        return None
    if any(name == "lengths" or "_" in name for name in arrays):
        return None
    if any(not isinstance(a, np.ndarray) or a.dtype.kind not in "fiubU" or not a.ndim for a in arrays.values()):
        return None
    if any(a.size > MOST_NUMBERS for a in arrays.values()):
        return None
    return {name: (a.astype(float) if a.dtype.kind == "f" else a).tolist() for name, a in arrays.items()}


def make_lines(draw: random.Random, suffix: str) -> Case:
    """Make a text, or tokens with tags, or series, with some lines changed."""
    universal = "{0}\t{1}\tl\t{2}\tX\t_\t0\troot\t_\t_"
    if suffix == ".ts":
        head = ["@problemName x", "@timeStamps false", "@univariate true", "@classLabel true a b", "@data"]
        lines = head + [f"{i},{i + 1},{i * 2}:{'ab'[i % 2]}" for i in range(ROWS)]
    elif suffix in (".txt", ".text"):
        lines = [f"{text} and so on" for text in make_rows(draw, 10 * ROWS)["text"]]
    elif suffix == ".conllu":
        lines = [
            line
            for i in range(ROWS)
            for line in (universal.format(1, f"w{i}", "N"), universal.format(2, f"r{i % 7}", "V"), "")
        ]
    else:
        lines = [line for i in range(ROWS) for line in (f"word{i}\tN", f"runs{i % 7}\tV", "")]
    changes = draw.choice((0, 0, 1, 3, 20))
    for _ in range(changes):
        at = draw.randrange(len(lines))
        line = lines[at]
        lines[at] = draw.choice(
            (
                "",
                line + "\tmore",
                line + ":",
                line.split("\t")[0],
                f"{line},(",
                "\0",
                "@data",
                "?,?:?",
                "nan,inf:a",
                "1e999:a",
                '"',
                "9" * 400,
                "-DOCSTART-",
                "#",
                " ",
                "\u2028",
                "word " * 200_000,
                "(1,2),(3,4):a",
            )
        )
    end = draw.choice(("\n", "\n", "\r\n", "\r"))
    text, encoding = end.join(lines), draw.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252"))
    raw = text.encode(encoding, "replace")
    if draw.random() < 0.3:
        return Case({f"a{suffix}": mutate(draw, raw)}, f"a{suffix}")
    is_valid = not changes and end != "\r" and encoding != "cp1252"
    columns = None
    if is_valid and suffix in (".txt", ".text"):
        return Case({f"a{suffix}": raw}, f"a{suffix}", {"lines": True}, {"text": lines}, True)
    if is_valid and suffix in (".conll", ".iob", ".bio"):
        columns = {"tokens": [[f"word{i}", f"runs{i % 7}"] for i in range(ROWS)], "column_2": [["N", "V"]] * ROWS}
    elif is_valid and suffix == ".conllu":
        columns = {"tokens": [[f"w{i}", f"r{i % 7}"] for i in range(ROWS)], "upos": [["N", "V"]] * ROWS}
    elif is_valid:
        columns = {
            "series": [[[i], [i + 1], [i * 2]] for i in range(ROWS)],
            "label": ["ab"[i % 2] for i in range(ROWS)],
        }
    return Case({f"a{suffix}": raw}, f"a{suffix}", {}, columns, is_valid)


def write_wav(samples: np.ndarray[Any, Any], width: int = 2, channels: int = 1, rate: int = 8000) -> bytes:
    """Return the WAV file of samples (frames * channels,) of a width in bytes."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(b"".join((int(v) & (256**width - 1)).to_bytes(width, "little") for v in samples))
    return file.getvalue()


def make_wav(draw: random.Random, suffix: str) -> Case:
    """Make recordings in folders by class, one of them strange or damaged, in a folder, a table or a tar file."""
    numbers = np.random.default_rng(draw.randrange(99))
    files: dict[str, bytes] = {}
    for i in range(12):
        files[f"{'ab'[i % 2]}/{i:02}.wav"] = write_wav(numbers.integers(-2000, 2000, 800))
    damage = draw.choice(("none", "form", "form", "fields", "fields", "fields", "bytes", "bytes", "cut", "name"))
    width, channels = (draw.choice((1, 2, 3, 4)), draw.choice((1, 2, 5))) if damage == "form" else (2, 1)
    frames = numbers.integers(0, 256**width, 600 * channels)
    raw = bytearray(write_wav(frames, width, channels, draw.choice((100, 8000, 44100))))
    if damage == "fields":  # of the 44 bytes before the samples
        at, size = draw.choice(((4, 4), (16, 4), (20, 2), (22, 2), (24, 4), (28, 4), (32, 2), (34, 2), (40, 4)))
        lie = draw.choice((*LIES, 3, 6, 0x11, 0xFFFE, draw.randrange(2**16)))
        raw[at : at + size] = (lie % 256**size).to_bytes(size, "little")
    elif damage == "bytes":
        raw = bytearray(mutate(draw, bytes(raw)))
    elif damage == "cut":
        del raw[draw.randrange(len(raw)) :]
    files["a/00.wav"] = bytes(raw)
    columns = None
    if damage in ("none", "form"):
        low = 0 if width == 1 else 256**width // 2
        signed = frames - 128 if width == 1 else np.where(frames >= low, frames - 256**width, frames)
        mono = (signed / (256**width / 2)).reshape(-1, channels).mean(1)
        columns = {"first": mono.astype(np.float32).tolist()}
    if suffix == ".wav":
        return Case({"a.wav": bytes(raw)}, "a.wav", {}, columns)
    if suffix == ".tar":
        return Case({"a.tar": _write_tar(draw, files, damage)}, "a.tar", {}, columns, damage in ("none", "form"))
    if suffix == "table of recordings":
        table = "file,label\n" + "".join(f"{name},{name[0]}\n" for name in files)
        if damage == "name":
            table += draw.choice(
                (
                    "../../../etc/passwd.wav,a\n",
                    "/dev/zero.wav,a\n",
                    ",a\n",
                    "\0.wav,a\n",
                    "missing.wav,b\n",
                    "x" * 9000 + ".wav,a\n",
                )
            )
        return Case({"t.csv": table.encode(), **files}, "t.csv", {}, columns, damage in ("none", "form"))
    return Case(files, "", {}, columns, damage in ("none", "form"))


def _write_tar(draw: random.Random, files: Mapping[str, bytes], damage: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        if damage == "name":
            odd = tarfile.TarInfo(draw.choice(("../../x.wav", "/etc/x.wav", "a/l.wav", "a/\udcff.wav", "b//.wav")))
            odd.type = draw.choice(
                (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.REGTYPE)
            )
            odd.linkname = draw.choice(("/etc/passwd", "/dev/zero", "a/00.wav", "a/l.wav", "missing"))
            tar.addfile(odd)
    data = file.getvalue()
    return mutate(draw, data) if damage == "bytes" else data


PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def make_packed(draw: random.Random, suffix: str) -> Case:
    """Make a compressed table, whole, cut, changed, in several streams, or far larger than its file."""
    inner = make_delimited(draw, ".csv") if draw.random() < 0.5 else make_json(draw, ".jsonl")
    ((name, data),) = inner.files.items()
    damage = draw.choice(
        ("none",) * 3 + ("bytes", "bytes", "cut", "streams", "rest", "bomb", "other", "archive", "archive")
    )
    if damage == "bomb":
        data += b"\n" * (1 << 25)
    if suffix == ".zip":
        packed = _write_zip(draw, name, data, damage)
    elif suffix == ".zst":
        import zstandard

        packed = zstandard.compress(data)
        if damage == "archive":  # the size of the content that the header claims
            packed = zstandard.ZstdCompressor(write_content_size=True).compress(data)
            packed = packed[:6] + struct.pack("<I", draw.choice(LIES)) + packed[10:]
    else:
        pack = PACKERS[suffix]
        packed = pack(data[:100]) + pack(data[100:]) if damage == "streams" else pack(data)
    if damage == "bytes":
        packed = mutate(draw, packed)
    elif damage == "cut":
        packed = packed[: draw.randrange(len(packed))]
    elif damage == "rest":
        packed += draw.choice((b"\0" * 50, b"rest", packed[:20]))
    elif damage == "other":
        packed = draw.choice((b"", b"hello", data, b"\x1f\x8b", b"PK\x03\x04"))
    case = replace(inner, files={f"{name}{suffix}": packed}, path=f"{name}{suffix}")
    is_whole = damage in ("none", "streams") or (damage == "archive" and suffix in PACKERS)
    return case if is_whole else replace(case, columns=None, is_valid=False)


def _write_zip(draw: random.Random, name: str, data: bytes, damage: str) -> bytes:
    file = io.BytesIO()
    change = draw.randrange(6) if damage == "archive" else -1
    names = {0: "../../a.csv", 1: "/tmp/a.csv", 2: "C:\\a.csv", 3: "a.csv/"}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(names.get(change, name), data)
        if change == 4:
            archive.writestr("b.csv", data)
    packed = bytearray(file.getvalue())
    if change == 5:  # sizes, checksum, method or flags of the directory
        at = packed.rindex(b"PK\x01\x02") + draw.choice((8, 10, 16, 20, 24, 28, 42))
        packed[at : at + 2] = struct.pack("<H", draw.choice(LIES) & 0xFFFF)
    return bytes(packed)


def make_excel(draw: random.Random, suffix: str) -> Case:
    """Make a workbook, with changed XML or bytes; .xls files are workbooks of the other form or damaged."""
    table = make_rows(draw)
    rows = [list(table), *map(list, zip(*table.values(), strict=True))]
    parts = _write_ods(rows) if suffix == ".ods" else _write_xlsx(rows)
    damage = draw.choice(("none", "xml", "xml", "xml", "bytes", "bytes", "cut", "other"))
    if damage == "xml":
        name = draw.choice(sorted(parts))
        text = parts[name].decode()
        change = draw.randrange(4)
        if change == 0:
            text = mutate(draw, text.encode()).decode("latin-1")
        elif change == 1:
            text = text.replace('t="n"', f't="{draw.choice("bsde")}"')
        elif change == 2:
            text = text.replace(
                'r="A2"', f'r="{draw.choice(("XFD1048576", "A0", "ZZZZZZZ9999999999", "", "A1", "é"))}"'
            )
        else:
            text = text.replace("<v>1.5</v>", f"<v>{draw.choice(('1e999', 'x', '', '9' * 400, '&a;'))}</v>")
        parts[name] = text.encode("latin-1", "replace")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    raw = file.getvalue()
    if damage == "bytes":
        raw = mutate(draw, raw)
    elif damage == "cut":
        raw = raw[: draw.randrange(len(raw))]
    elif damage == "other":
        magic = bytes.fromhex("d0cf11e0a1b11ae1")
        raw = draw.choice((b"", b"hello", magic, magic + draw.randbytes(2000), magic + b"\0" * 1000))
    is_valid = damage == "none" and suffix != ".xls"
    return Case({f"a{suffix}": raw}, f"a{suffix}", {}, table if damage == "none" else None, is_valid)


def _write_xlsx(rows: list[list[Any]]) -> dict[str, bytes]:
    spreadsheet = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    cells = "".join(
        f'<row r="{r}">' + "".join(_write_cell(f"{'ABC'[c]}{r}", value) for c, value in enumerate(row)) + "</row>"
        for r, row in enumerate(rows, 1)
    )
    types = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="rels" ContentType='
        '"application/vnd.openxmlformats-package.relationships+xml"/><Override PartName="/xl/workbook.xml" ContentType='
        f'"{types}.sheet.main+xml"/><Override PartName="/xl/worksheets/sheet1.xml" ContentType="{types}.worksheet+xml"/></Types>',  # noqa: E501
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="rId1" Type="{office}/officeDocument" '  # noqa: E501
        'Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{spreadsheet}" xmlns:r="{office}"><sheets><sheet name="s" sheetId="1" r:id="rId1"/>'  # noqa: E501
        "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="rId1" '
        f'Type="{office}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{spreadsheet}"><sheetData>{cells}</sheetData></worksheet>',
    }
    return {name: text.encode() for name, text in parts.items()}


def _write_cell(place: str, value: Any) -> str:  # text or number
    if isinstance(value, str):
        return f'<c r="{place}" t="inlineStr"><is><t>{value}</t></is></c>'
    return f'<c r="{place}" t="n"><v>{value}</v></c>'


def _write_ods(rows: list[list[Any]]) -> dict[str, bytes]:
    names = "urn:oasis:names:tc:opendocument:xmlns"

    def cell(value: Any) -> str:
        kind = "string" if isinstance(value, str) else f'float" office:value="{value}'
        return f'<table:table-cell office:value-type="{kind}"><text:p>{value}</text:p></table:table-cell>'

    cells = "".join(f"<table:table-row>{''.join(map(cell, row))}</table:table-row>" for row in rows)
    content = (
        f'<office:document-content xmlns:office="{names}:office:1.0" xmlns:table="{names}:table:1.0" xmlns:text="{names}:text:1.0">'  # noqa: E501
        f'<office:body><office:spreadsheet><table:table table:name="s">{cells}</table:table></office:spreadsheet></office:body>'  # noqa: E501
        "</office:document-content>"
    )
    manifest = f'<manifest:manifest xmlns:manifest="{names}:manifest:1.0"></manifest:manifest>'
    return {
        "mimetype": b"application/vnd.oasis.opendocument.spreadsheet",
        "content.xml": content.encode(),
        "META-INF/manifest.xml": manifest.encode(),
    }


def make_class_folder(draw: random.Random, suffix: str) -> Case:
    """Make texts in folders by class, one of them damaged."""
    texts = make_rows(draw)["text"]
    files = {f"{'ab'[i % 2]}/{i:02}.txt": text.encode() for i, text in enumerate(texts)}
    if damaged := draw.random() < 0.7:
        files["a/00.txt"] = draw.choice((b"", b"\xff", b"\0", "ä".encode("utf-16"), mutate(draw, files["a/00.txt"])))
    return Case(files, "", {}, None if damaged else {"text": texts[::2] + texts[1::2]}, not damaged)


def make_parallel(draw: random.Random, suffix: str) -> Case:
    """Make two files whose lines belong together, one of them damaged."""
    texts = make_rows(draw)["text"]
    one, other = "\n".join(texts).encode(), "\n".join(text[::-1] for text in texts).encode()
    if damaged := draw.random() < 0.7:
        other = mutate(draw, other)
    columns = None if damaged else {"de": texts, "en": [text[::-1] for text in texts]}
    return Case({"t.de": one, "t.en": other}, ("t.de", "t.en"), {}, columns, not damaged)


MAKERS: dict[str, Callable[[random.Random, str], Case]] = {
    **dict.fromkeys((".csv", ".tsv", ".tab"), make_delimited),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), make_json),
    **dict.fromkeys((".parquet", ".arrow", ".feather", ".ipc"), make_arrow),
    ".npz": make_npz,
    **dict.fromkeys((".conll", ".conllu", ".iob", ".bio", ".ts", ".txt", ".text"), make_lines),
    **dict.fromkeys((".tar", ".wav", "folder of recordings", "table of recordings"), make_wav),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), make_excel),
    **dict.fromkeys((".gz", ".xz", ".bz2", ".zst", ".zip"), make_packed),
    "folder of texts": make_class_folder,
    "parallel files": make_parallel,
}


def list_formats() -> list[str]:
    """List the formats whose packages are installed."""
    return [name for name in MAKERS if name not in OPTIONAL or importlib.util.find_spec(OPTIONAL[name])]


def make_case(draw: random.Random, form: str) -> Case:
    """Make a case of a format."""
    return MAKERS[form](draw, form)
