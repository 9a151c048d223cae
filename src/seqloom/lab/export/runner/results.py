"""Decode a model's output as results, with numpy alone. This file is a part of every exported run.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from seqloom.lab.export.runner.rows import About, Array, Row

Results = list[dict[str, Any]]


def round_all(p: Array) -> Row:
    """Return probabilities as Python numbers with six decimals, the precision of float32."""
    return np.round(p.astype(np.float64), 6).tolist()


def decode_classes(about: About, p: Array, lengths: Array, past: Array, probabilities: bool) -> Results:
    """Return the class of each row, by the threshold or reject option of the run."""
    names, rule = about["names"], about["decision"]
    if rule["threshold"] is not None:
        positive = rule["positive"]
        chosen = np.where(p[:, positive] >= rule["threshold"], positive, 1 - positive)
    elif rule["weights"] and not rule["reject"]:
        chosen = (np.log(np.maximum(p, 1e-38)) * rule["temperature"] + np.log(rule["weights"])).argmax(1)
    else:
        chosen = p.argmax(1)
    results = []
    for k, row in zip(chosen.tolist(), round_all(p), strict=True):
        result = {"prediction": names[k], "probability": row[k]}
        if probabilities:
            result["probabilities"] = dict(zip(names, row, strict=True))
        if rule["reject"]:
            result["is_unsure"] = row[k] < rule["reject"]
            result["prediction"] = None if result["is_unsure"] else result["prediction"]
        results.append(result)
    return results


def choose_labels(names: list[str], row: list[float]) -> tuple[list[str], list[float]]:
    """Return the labels with a probability of at least a half, the most probable first."""
    chosen = sorted((k for k, p in enumerate(row) if p >= 0.5), key=lambda k: -row[k])
    return [names[k] for k in chosen], [row[k] for k in chosen]


def decode_labels(about: About, p: Array, lengths: Array, past: Array, probabilities: bool) -> Results:
    """Return the labels of each row, or of each step."""
    names, results = about["names"], []
    for row, n in zip(round_all(p), lengths.tolist(), strict=True):
        if about["per_step"]:
            each = [choose_labels(names, step) for step in row[:n]]
            results.append({"prediction": [one for one, _ in each], "probability": [q for _, q in each]})
            continue
        labels, q = choose_labels(names, row)
        results.append({"prediction": labels, "probability": q})
        if probabilities:
            results[-1]["probabilities"] = dict(zip(names, row, strict=True))
    return results


def decode_tags(about: About, scores: Array, lengths: Array, past: Array, probabilities: bool) -> Results:
    """Return the tags of each row; with a CRF, the best chain."""
    names, results = about["names"], []
    for row, n in zip(scores, lengths.tolist(), strict=True):
        if about.get("crf"):
            results.append({"prediction": [names[k] for k in find_chain(row[:n], about["crf"])]})
            continue
        best = row[:n].argmax(1)
        p = round_all(row[np.arange(n), best])
        results.append({"prediction": [names[k] for k in best.tolist()], "probability": p})
    return results


def find_chain(e: Array, crf: About) -> list[int]:
    """Return the best chain of tags for emissions (T, K) by the Viterbi algorithm."""
    A, b, c = (np.array(crf[name], dtype=np.float32) for name in "Abc")
    best, back = b + e[0], []
    for t in range(1, len(e)):
        scores = best[:, None] + A
        back.append(scores.argmax(0))
        best = scores.max(0) + e[t]
    tag = int((best + c).argmax())
    chain = [tag]
    for before in reversed(back):
        tag = int(before[tag])
        chain.append(tag)
    return chain[::-1]


def name_numbers(about: About, values: list[Any]) -> Row:
    """Return the numbers of a single target as they are, those of several by name."""
    names = about["names"]
    by_name = list(map(list, zip(*values, strict=True))) if values and isinstance(values[0], list) else values
    return by_name[0] if len(names) == 1 else dict(zip(names, by_name, strict=True))


def invert(about: About, values: Array) -> Array:
    """Return standardised values in the units of the data."""
    scale = about["scale"]
    return values.astype(np.float64) * np.array(scale["deviation"]) + np.array(scale["mean"])


def decode_values(about: About, values: Array, lengths: Array, past: Array, probabilities: bool) -> Results:
    """Return numbers in the units of the data."""
    return [{"prediction": name_numbers(about, row)} for row in invert(about, values).tolist()]


def decode_forecast(about: About, values: Array, lengths: Array, past: Array, probabilities: bool) -> Results:
    """Return the forecast values, with the ends of their intervals."""
    columns = {"prediction": values}
    rule = about.get("intervals")
    if rule:
        unit = measure_unit(past[..., about["target_features"]], lengths, rule["season"])
        unit = np.maximum(unit, np.array(rule["floor"], dtype=np.float32))[:, None]
        for level, width in rule["widths"].items():
            half = np.array([[np.inf if v is None else v for v in row] for row in width], dtype=np.float32) * unit
            columns |= {f"lower_{level}": values - half, f"upper_{level}": values + half}
    lists = {name: drop_infinite(invert(about, column).tolist()) for name, column in columns.items()}
    return [{name: name_numbers(about, lists[name][k]) for name in columns} for k in range(len(values))]


def drop_infinite(values: list[Any]) -> list[Any]:
    """Replace infinite numbers in nested lists with None."""
    return [drop_infinite(v) if isinstance(v, list) else v if np.isfinite(v) else None for v in values]


def measure_unit(past: Array, lengths: Array, season: int) -> Array:
    """Return the mean change of each row and target in a season, or in a step for short rows."""

    def measure(m: int) -> Array:
        if past.shape[1] <= m:
            return np.zeros((len(past), past.shape[2]), dtype=past.dtype)
        change = np.abs(past[:, m:] - past[:, :-m])
        real = (np.arange(m, past.shape[1]) < lengths[:, None])[..., None]
        return (change * real).sum(1) / np.maximum(real.sum(1), 1)

    return np.where((lengths > 2 * season)[:, None], measure(season), measure(1))


DECODERS = {
    "classes": decode_classes,
    "labels": decode_labels,
    "tags": decode_tags,
    "values": decode_values,
    "series": decode_forecast,
}
