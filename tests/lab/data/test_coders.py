"""Coders: fitted on training rows only; decoding restores the values."""

import numpy as np
import polars as pl
import pytest
import torch

from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.coders.series import SeriesCoder, StandardScale, ValuesCoder
from seqloom.lab.data.coders.text import SubwordCoder, TextCoder, guess_unit
from seqloom.lab.data.coders.times import TimesCoder, to_seconds
from seqloom.lab.data.pipeline.encoding import restore_coder
from seqloom.lab.data.task import END, PAD, SPECIALS, UNKNOWN, UNSEEN


def frame(values, name="c"):
    return pl.DataFrame({name: values})


def rows(coder, values):
    ids, lengths = coder.encode(frame(values))
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def fit_coder(unit, values, **options):
    coder = TextCoder("c", unit, **{"size": 100, **options})
    coder.fit([frame(values[:1]), frame(values[1:])])
    return coder


TEXTS = ["I don't like it.<br />Really?", "我 like 你们", "", None]


def test_words_keep_apostrophes_and_markup_and_split_chinese_characters():
    coder = fit_coder("words", TEXTS)
    assert coder.decode(rows(coder, TEXTS)[0]) == "I don't like it . <br /> Really ?"
    assert coder.decode(rows(coder, TEXTS)[1]) == "我 like 你 们"
    assert rows(coder, TEXTS)[2:] == [[], []]


@pytest.mark.parametrize("unit", ["characters", "bytes"])
def test_characters_and_bytes_decode_to_the_text(unit):
    coder = fit_coder(unit, TEXTS)
    assert [coder.decode(row) for row in rows(coder, TEXTS)] == ["" if t is None else t for t in TEXTS]
    assert coder.space.size == (260 if unit == "bytes" else 4 + len(set("".join(TEXTS[:2]))))


def test_a_vocabulary_is_sorted_by_count_and_then_by_name():
    coder = fit_coder("words", ["b a c", "c b d", "c"])
    assert coder.words == ["c", "b", "a", "d"]
    assert fit_coder("words", ["b a c", "c b d", "c"], min_count=2).words == ["c", "b"]
    assert fit_coder("words", ["b a c", "c b d", "c"], size=5).words == ["c"]


def test_unknown_is_not_padding_and_special_names_in_a_text_are_plain_text():
    coder = fit_coder("words", ["a b"])
    assert rows(coder, ["a zzz"])[0] == [4, UNKNOWN]
    assert UNKNOWN != PAD
    listed = TextCoder("c", "tokens", 10)
    listed.fit([frame([["a", "<pad>", "</s>"]])])
    assert rows(listed, [["<pad>", "a", "</s>"]])[0] == [UNKNOWN, 4, UNKNOWN]


def test_case_is_dropped_when_asked():
    assert fit_coder("words", ["A a"], lowercase=True).words == ["a"]
    lists = TextCoder("c", "tokens", 10, lowercase=True)
    lists.fit([frame([["A", "a"]])])
    assert lists.words == ["a"]


def test_an_end_is_added_to_every_row():
    coder = fit_coder("characters", ["ab", "b"], end=True)
    assert rows(coder, ["ab", "", "b"]) == [[5, 4, END], [END], [4, END]]
    assert coder.decode([5, 4, END, 4]) == "ab"


@pytest.mark.parametrize("unit", ["bpe", "unigram"])
def test_subwords_decode_to_the_text_and_are_deterministic(unit):
    texts = [f"the lower the newest widest {w} slower" for w in ("low", "lowest", "new", "wide", "slow")] * 20

    def build():
        coder = SubwordCoder("c", unit, 60, end=True)
        coder.fit([frame(texts)])
        return coder

    coder = build()
    assert len(SPECIALS) < coder.space.size <= 60
    ids = rows(coder, ["the lowest widest", ""])
    assert ids[1] == [END] and ids[0][-1] == END and coder.decode(ids[0]) == "the lowest widest"
    assert UNKNOWN in rows(coder, ["ж"])[0]
    assert rows(build(), texts) == rows(coder, texts) == rows(restore_coder(coder.state()), texts)


@pytest.mark.parametrize(
    ("texts", "unit"),
    [
        (["a plain English sentence of some words"] * 3, "words"),
        (["房间很大床有两米宽整体感觉经济实惠不错"] * 3, "characters"),
        (["Khoury", "Nahas", "O'Neill"], "characters"),
    ],
)
def test_the_guess_unit(texts, unit):
    assert guess_unit(pl.Series(texts)) == unit


def test_labels_are_sorted_by_size_or_name_and_unseen_ones_are_marked():
    coder = LabelCoder("c")
    coder.fit([frame([10, 2]), frame([10, 1])])
    assert coder.names == ("1", "2", "10")
    assert coder.encode(frame([2, 7, 10]))[0].tolist() == [1, UNSEEN, 2]
    assert coder.encode(frame([2.0, 10.0]))[0].tolist() == [1, 2]
    assert coder.decode(2) == "10"
    named = LabelCoder("c")
    named.fit([frame([True, False])])
    assert named.names == ("False", "True")


def test_tags_are_one_for_each_token():
    coder = LabelCoder("c", per_token=True)
    coder.fit([frame([["O", "B"], ["O"]])])
    ids, lengths = coder.encode(frame([["B", "I", "O"], []]))
    assert ids.tolist() == [0, UNSEEN, 1] and lengths.tolist() == [3, 0]
    assert coder.decode([0, 1]) == ["B", "O"]


def test_a_scale_fitted_in_pieces_equals_the_scale_of_all_values():
    values = np.random.default_rng(0).normal(3, 5, (70, 3))
    values[:, 1] = 7.0
    values[4, 2] = np.nan
    scale = StandardScale.fit([values[:10], values[10:11], values[11:]])
    np.testing.assert_allclose(scale.mean, np.nanmean(values, 0))
    np.testing.assert_allclose(scale.deviation[[0, 2]], np.nanstd(values, 0)[[0, 2]])
    assert scale.deviation[1] == 1 and scale.missing.tolist() == [False, False, True]
    np.testing.assert_allclose(scale.invert(scale.standardise(values)), values)
    masked = scale.encode(values)
    assert masked.shape == (70, 4) and masked[4, 2:].tolist() == [0, 1] and masked[:, 3].sum() == 1


def test_a_large_mean_does_not_lose_the_deviation():
    values = 1e8 + np.random.default_rng(0).normal(size=(1000, 1))
    scale = StandardScale.fit(np.array_split(values, 7))
    assert scale.deviation[0] == pytest.approx(values.std(), rel=1e-6)


def test_series_of_lists_of_steps_and_of_columns():
    flat, nested = SeriesCoder(["c"]), SeriesCoder(["c"])
    flat.fit([frame([[1.0, 2.0], [3.0]])])
    nested.fit([frame([[[1.0, 5.0], [3.0, None]], []])])
    assert flat.space.names == ("c",) and flat.encode(frame([[2.0], None, [2.0, 2.0]]))[1].tolist() == [1, 0, 2]
    assert nested.space.names == ("c_1", "c_2", "missing:c_2")
    values, lengths = nested.encode(frame([[[2.0, None]]]))
    assert values.tolist() == [[0.0, 0.0, 1.0]] and lengths.tolist() == [1]
    with pytest.raises(ValueError, match="1 number in a step of series 2 of this piece, not 2"):
        nested.encode(frame([[[1.0, 2.0]], [[1.0, 2.0], [3.0]]]))


def test_real_targets_come_back_in_their_units():
    coder = ValuesCoder(["a", "b"])
    data = pl.DataFrame({"a": [1.0, 2.0, 6.0], "b": [10, None, 30]})
    coder.fit([data])
    y, _ = coder.encode(data)
    assert np.isnan(y[1, 1]) and y[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert coder.decode(y[2]) == pytest.approx([6, 30])


def test_times_become_spans_with_the_usual_one_as_unit():
    coder = TimesCoder("c")
    data = frame([[0.0, 2.0, 4.0, 10.0], [5.0], [1.0, 3.0]])
    coder.fit([data])
    assert coder.tick == 2.0 and not coder.is_regular
    assert coder.encode(data)[0].tolist() == [0, 1, 1, 3, 0, 0, 1]
    coder.fit([frame([[0.0, 2.0], [7.0, 9.0]])])
    assert coder.is_regular
    with pytest.raises(ValueError, match="missing or decrease"):
        coder.encode(frame([[3.0, 1.0]]))


def test_dates_are_seconds():
    day = 86_400
    assert np.diff(to_seconds(pl.Series(["2026-01-30", "2026-02-01"]))).tolist() == [2 * day]
    assert np.diff(to_seconds(pl.Series(["1949-01", "1949-02"]))).tolist() == [31 * day]
    assert np.diff(to_seconds(pl.Series(["2016-07-01 00:00:00", "2016-07-01 01:00:00"]))).tolist() == [3600]


def test_the_energy_of_a_tone_is_in_its_band():
    coder = AudioCoder("c", 20)

    def loudest(f, rate=8_000):
        x = torch.sin(2 * np.pi * f * torch.arange(rate) / rate)
        data = pl.DataFrame({"c": [x.tolist()], "rate": [rate]})
        values, lengths = coder._read(data)
        assert lengths.tolist() == [1 + (8_000 - 256) // 80] == [len(values)]
        return int(values.mean(0).argmax())

    bands = [loudest(f) for f in (200, 600, 1200, 2400, 3500)]
    assert bands == sorted(set(bands))
    corners = 700 * (10 ** (np.linspace(2595 * np.log10(1 + 20 / 700), 2595 * np.log10(1 + 4000 / 700), 22) / 2595) - 1)
    assert corners[bands[2]] < 1200 < corners[bands[2] + 2]
    assert loudest(1200, 16_000) == bands[2]  # resampled


@pytest.mark.parametrize("coder", [fit_coder("words", ["a b"]), LabelCoder("c", names=["x"]), TimesCoder("c", 3.0)])
def test_a_coder_is_restored_from_its_state(coder):
    assert restore_coder(coder.state()).state() == coder.state()
