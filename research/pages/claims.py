"""The generated parts of the page on claims: one line for each claim of the AttnRNN article and of other sources."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence

from research.pages.records import Row
from research.pages.study_pages import (
    ATTN,
    GRU,
    STUDIES,
    VERDICTS,
    all_differences,
    differences,
    effect,
    escape,
    find,
    load,
    score,
)


def summarise(study: str, conditions: Sequence[str], model: str = GRU) -> str:
    """Return the fair result against a model: verdict, means, interval and seeds of each condition."""
    parts = []
    for condition in conditions:
        row = find(study, condition, model)
        verdict = VERDICTS.get(row["result"], row["result"])
        means = f"{score(row[ATTN])} against {score(row['other'])}"
        parts.append(f"{condition}: {verdict} ({means}; {effect(row)}; n = {row['seeds']})")
    return "; ".join(parts)


def reproduced(name: str) -> str:
    """Return the sentences of a verdict that say what was reproduced, with the training if it is not the author's."""
    document = load(name)
    text = re.match(r".*? printed numbers(?: \(not run: [^)]*\))?", document["verdict"], re.S)
    assert text is not None, document["verdict"]
    note = " (not the author's training yet)" if "author's training differs" in document["caption"] else ""
    return f"{text[0]}{note}"


def trials(name: str) -> list[Row]:
    """Return the finished result trials of a stored study."""
    lines = (STUDIES / name / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    values = [json.loads(line)["value"] for line in lines]
    return [t for t in values if t.get("split") == "test" and not t["failed"]]


def convergence() -> str:
    """Return AttnRNN after a few epochs against the best that other models reach in all epochs."""
    parts = [
        early_accuracy("mnist-fair", "sequential MNIST", 5, "validation accuracy"),
        early_accuracy("mnist-fair", "permuted MNIST, lower rate", 5, "validation accuracy", "permuted MNIST"),
        early_accuracy("imdb-paper", "200 words, padding read", 3, "IMDB, test accuracy"),
    ]
    return "; ".join(parts)


def printed_convergence() -> str:
    """Return AttnRNN after 5 epochs against others after 30, in the article's own training."""
    parts = [early_loss(name) for name in ("adding-paper", "copy-paper")]
    rate = "at the article's constant rate of 0.001; longer lengths start from the models of shorter ones"
    return f"{'; '.join(filter(None, parts))}; {rate}" if any(parts) else "not printed as numbers"


def early_accuracy(name: str, condition: str, early: int, what: str, otherwise: str = "") -> str:
    """Compare AttnRNN after `early` epochs with the best epoch of every other model; some are trained `otherwise`."""
    curves: dict[str, list[list[float]]] = {}
    stored_trials = trials(name)
    for model in dict.fromkeys(trial["model"] for trial in stored_trials):
        mine = [trial for trial in stored_trials if trial["model"] == model]
        here = [t for t in mine if t["condition"] == condition] or [t for t in mine if t["condition"] == otherwise]
        rounds = [[value for key, value in t["scores"].items() if key.startswith("round ")] for t in here]
        curves |= {model: rounds} if rounds else {}
    means = [statistics.mean(values) for values in zip(*curves[ATTN], strict=True)]
    best = {m: statistics.mean(max(run) for run in runs) for m, runs in curves.items() if m != ATTN}
    beaten = [model for model, value in best.items() if value < means[early - 1]]
    listed = []
    for model, value in best.items():
        reached = next((i + 1 for i, mean in enumerate(means) if mean >= value), None)
        when = f"matched after {reached}" if reached else "not matched"
        listed.append(f"{model} {value:.4f} (n = {len(curves[model])}; {when})")
    holds = f"holds for {', '.join(beaten)}" if beaten else "does not hold"
    return (
        f"{condition}, {what}: {holds}: {ATTN} after {early} epochs {means[early - 1]:.4f} (n = {len(curves[ATTN])}); "
        f"best of {len(means)} epochs: {', '.join(listed)}"
    )


def early_loss(name: str) -> str:
    """Compare the training loss of AttnRNN after 5 of 30 epochs with others after 30, as the author trained."""
    if not load(name)["settings"].get("constant_rate"):
        return ""  # with a decaying learning rate, 5 epochs of 30 are not a training of 5
    losses: dict[str, dict[str, list[list[float]]]] = {}
    for trial in trials(name):
        losses.setdefault(trial["condition"], {}).setdefault(trial["model"], []).append(trial["losses"])
    pairs = lower = 0
    first = ""
    for condition, by_model in losses.items():
        early = statistics.mean(run[len(run) * 5 // 30] for run in by_model[ATTN])
        late = {m: statistics.mean(run[-1] for run in runs) for m, runs in by_model.items() if m != ATTN}
        pairs += len(late)
        lower += sum(early < value for value in late.values())
        listed = ", ".join(f"{model} {value:.2g}" for model, value in late.items())
        n = len(by_model[ATTN])
        first = first or f"{condition}, n = {n}: {early:.2g} after 5 epochs, after 30: {listed}"
    study = name.removesuffix("-paper")
    return f"training loss on {study}: lower in {lower} of {pairs} pairs of length and model ({first})"


def gradient(model: str, start: str) -> Row:
    rows = load("gradients-fair")["table"]
    wanted = ("start", "normal", model, start)
    return next(r for r in rows if (r["stage"], r["input"], r["model"], r["start"]) == wanted)


def gradients() -> str:
    own, gru, lstm = gradient(ATTN, "default"), gradient(GRU, "chrono"), gradient("lstm", "keep 5")
    at = "T = 1,024"
    return (
        f"normal inputs: {own[at]:.1e} ({own['lowest']:.0e} to {own['highest']:.0e}, n = {own['seeds']}); a GRU with "
        f"chrono biases {gru[at]:.1e}, an LSTM with forget bias 5 {lstm[at]:.1e}: the start decides, not the cell"
    )


def decay() -> str:
    own = gradient(ATTN, "default")
    return (
        f"k = {own['k']:.4f} ({own['k low']:.4f} to {own['k high']:.4f}, n = {own['seeds']}), "
        f"R^2 = {own['R^2']:.2f}: roughly exponential"
    )


def count_parameters() -> tuple[str, str]:
    rows = [r for r in load("parameters-fair")["table"] if (r["source"], r["model"]) == ("AttnRNN article", "AttnRNN")]
    example = next(r for r in rows if r["what"] == "example")
    reproduced_as = f"not reproduced: {example['counted']:,} against {example['printed']}"
    return reproduced_as, f"exact: as many as a GRU, {example['counted'] / 99_328 - 1:+.0%} against an LSTM"


def claims_table() -> str:
    """Return one line for each claim of the AttnRNN article: the answer, the article's setup, the fair result."""
    paper, fair = count_parameters()
    solved = ("T = 50, marks anywhere", "T = 200, marks anywhere", "T = 1,000, marks anywhere")
    norms = load("gradients-paper")["verdict"]
    rows = [
        (
            "gradient norm 5.1e-10 after 1,024 steps, 0 for LSTM and GRU",
            (is_reproduced(norms), compare_gradients()),
            norms,
            gradients(),
        ),
        ("the gradient decays as exp(-k L)", ("", "roughly"), "not printed as numbers", decay()),
        ("66,432 parameters for d = 64, h = 128: fewer than a GRU", (is_reproduced(paper), "as many"), paper, fair),
        (
            "adding: lower error than RNN, GRU and LSTM",
            (is_reproduced(reproduced("adding-paper")), tally("adding")),
            reproduced("adding-paper"),
            summarise("adding", solved),
        ),
        (
            "copy: higher accuracy than RNN, GRU and LSTM",
            (is_reproduced(reproduced("copy-paper")), tally("copy")),
            reproduced("copy-paper"),
            summarise("copy", ("delay, T = 100", "selective, T = 200")),
        ),
        (
            "IMDB: 80.2 against 78.4 of a GRU",
            (is_reproduced(reproduced("imdb-paper")), tally("imdb")),
            reproduced("imdb-paper"),
            summarise("imdb", ("200 words, mean of the words", "400 words, mean of the words")),
        ),
        (
            "attention selects information and filters noise",
            ("", tally("ablation", "uniform weights")),
            "not printed as numbers",
            attention(),
        ),
        (
            "5 epochs reach a lower loss than 30 epochs of others",
            ("", count_early()),
            printed_convergence(),
            convergence(),
        ),
        (
            "better than RNN, GRU and LSTM on all tasks",
            ("", tally()),
            "see above",
            summarise("family", ("1 layer", "8 layers")) + " (nationality of names)",
        ),
        (
            "2.5 to 3 times as slow as a GRU",
            ("as loops", "not with fused kernels"),
            "holds for both as Python loops",
            "with fused kernels: [speed](speed.md)",
        ),
    ]
    lines = ["| claim | reproduced? fair? | as printed | fair result |", "|---|---|---|---|"]
    for claim, (printed, fairly), one, two in rows:
        answer = "; ".join(filter(None, (printed, f"fair: {fairly}")))
        lines.append(f"| {claim} | {answer} | {escape(one)} | {escape(two)} |")
    return "\n".join([*lines, ""])


def is_reproduced(verdict: str) -> str:
    """Return whether all printed numbers are reproduced, from a verdict that begins with it if they are not."""
    return "not reproduced" if verdict.lower().startswith("not reproduced") else "reproduced"


def tally(study: str = "", model: str = GRU) -> str:
    """Return how often AttnRNN wins, ties and loses against a model, in a study or in all of them."""
    rows = [row for name, row in all_differences() if study in ("", name) and row["comparison"] == f"{ATTN} - {model}"]
    results = [VERDICTS.get(row["result"], row["result"]) for row in rows]
    wins, losses = results.count(VERDICTS["attn_rnn better"]), results.count(VERDICTS["attn_rnn worse"])
    against_whom = "equal weights" if model == "uniform weights" else "the GRU"
    return f"{wins} of {len(rows)} conditions won against {against_whom}, {losses} lost"


def compare_gradients() -> str:
    """Say whether a GRU with other biases keeps more of the gradient than AttnRNN."""
    at = "T = 1,024"
    more = gradient(GRU, "chrono")[at] > gradient(ATTN, "default")[at]
    return "less than a GRU with chrono biases" if more else "more than a GRU with chrono biases"


def count_early() -> str:
    parts = convergence().split("; ")
    told = [part for part in parts if "accuracy: " in part]
    return f"holds for some models in {sum(': holds for' in part for part in told)} of {len(told)} trainings"


def attention() -> str:
    conditions = ("adding, T = 20", "copy, delay 10", "adding, T = 200", "copy, delay 100")
    return "against equal weights: " + summarise("ablation", conditions, "uniform weights")


def sources_table() -> str:
    """Return one line for each argument of the sources that a study of its own measures."""
    both, alone = "lstm + attention", "attention alone"
    memory, decoder, state, dense = "attn_rnn memory", "attn_rnn decoder", "1 state", "dense attention"
    rows = [
        ("self-attention article: self-attention on an RNN brings most of the gain", against("stages", both, "lstm")),
        ("self-attention article: without the RNN, results improve", against("stages", both, alone)),
        ("self-attention article: an RNN loses information about the first input step by step", remembered()),
        (
            "AttnRNN article, future work: the memory of a Transformer-XL",
            *(against("extensions", memory, other) for other in ("transformer-xl", "gru memory")),
        ),
        (
            "AttnRNN article, future work: the recurrence of a Transformer decoder",
            *(against("extensions", decoder, other) for other in ("self-attention", "gru decoder")),
        ),
        (
            "AttnRNN article, future work: a state of several rows",
            *(against("extensions", state, other) for other in ("2 states", "4 states", "8 states")),
        ),
        (
            "self-attention article: Performer and Linformer approximate attention",
            *(against("designs", dense, other) for other in ("performer", "linformer")),
        ),
        (
            "NTM: a memory generalises copying to longer sequences",
            *(against("designs", "ntm", m) for m in ("lstm", ATTN)),
        ),
        ("ODE-GRU: a state in continuous time fits irregular samples", against("irregular", "ode_gru", "gru + gaps")),
    ]
    lines = ["| argument | measured |", "|---|---|"]
    return "\n".join(
        [*lines, *(f"| {claim} | {escape('; '.join(filter(None, parts)))} |" for claim, *parts in rows), ""]
    )


def stored_forms() -> str:
    """Say which studies of the sources' arguments are stored in full, and how small the quick forms are."""
    names = ("stages", "extensions", "memory", "irregular", "designs")
    full = [f"`{name}`" for name in names if stored(name).endswith("-fair")]
    documents = [load(stored(name)) for name in names if not stored(name).endswith("-fair")]
    if not documents:
        return f"Stored in full: {', '.join(full)} (in part where the study's page says so).\n"
    sizes = [round(row["parameters"], -2) for d in documents for row in d["rows"] if row.get("parameters")]
    seeds, rates = ({f(d["settings"]) for d in documents} for f in (lambda s: s["seeds"], lambda s: len(s["lrs"])))
    counts = " to ".join(str(n) for n in sorted({min(seeds), max(seeds)}))
    listed = ", ".join(f"`{d['study']}`" for d in documents)
    return (
        f"Stored in full: {', '.join(full)} (in part where the study's page says so). The GPU time for {listed} was\n"
        f"not available: these are quick forms, models of {min(sizes):,} to {max(sizes):,} parameters on a CPU, "
        f"{counts} seeds and {max(rates)} learning rates each.\n"
    )


def against(study: str, reference: str, other_model: str) -> str:
    """Return every comparison of two models in a study: means, effect with its interval, seeds and result."""
    parts = []
    for row in differences(stored(study)) if (STUDIES / stored(study)).exists() else ():
        if row["comparison"] == f"{reference} - {other_model}":
            means = f"{score(row[reference])} against {score(row['other'])}"
            parts.append(f"{row['condition']}: {means} ({effect(row)}; n = {row['seeds']}): {row['result']}")
    return f"{reference} - {other_model}: {'; '.join(parts)}" if parts else ""


def stored(study: str) -> str:
    """Return the folder of a study: that of the full form, or else that of the quick form."""
    return f"{study}-fair" if (STUDIES / f"{study}-fair" / "study.json").exists() else f"{study}-quick"


def remembered() -> str:
    """Return the bits of the first input in the state after few and many steps, and the primary comparison."""
    values = trials(stored("memory"))
    distances = load(stored("memory"))["settings"]["conditions"][0]["task"]["distances"]
    shown = [n for n in (1, 4, 16, 64, 1_024) if n in distances]
    listed = []
    for condition in dict.fromkeys(t["condition"] for t in values):
        named = []
        for model in dict.fromkeys(t["model"] for t in values):
            runs = [t["scores"] for t in values if (t["condition"], t["model"]) == (condition, model)]
            after = [statistics.mean(run[f"bits at {n:,}"] for run in runs) for n in shown]
            named.append(f"{model} {' / '.join(f'{bits:.2f}' for bits in after)}")
        listed.append(f"{condition}: {', '.join(named)}")
    steps = " / ".join(f"{n:,}" for n in shown)
    kind = "Primary question" if load(stored("memory"))["settings"]["seeds"] >= 10 else "Exploratory"
    primary = against("memory", ATTN, GRU)
    return f"bits left of 3 after {steps} steps: {'; '.join(listed)}. {kind}, mean bits: {primary}"


PARTS = (claims_table, sources_table, stored_forms)
