"""How much of the first input is left in the state: a linear probe and a bound of the mutual information."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from research.studies.data.symbols import FIRST, KINDS, TEXT, split_text
from research.studies.support.conditions import EXPLORATORY, EXPLORATORY_QUICK, VALID, Condition, TrialSettings
from research.studies.support.contenders import FUSED, layer
from research.studies.support.growing import Generate
from research.studies.support.metric import ACCURACY, AMOUNT, TrialMetric
from research.studies.support.outcome import Trial, format_contests, groups
from research.studies.support.probe import fit_probes
from research.studies.support.symbol_trials import MIN_WIDTH, SymbolReader, SymbolTrials, draw_curve, rank_models
from seqloom.lab.data.task import IGNORE
from seqloom.lab.report.page import Chart, PageBlock
from seqloom.layers.recurrent.layer import Recurrent

UNTRAINED, UNTRAINED_CHRONO, LATER = "untrained", "untrained, chrono biases", "untrained, the 33rd input"
RECALL, ON_TEXT = "trained to recall it", "trained on text"
CELLS = ("attn_rnn", "gru", "lstm", "rnn")
PRIMARY, OTHER_SEEDS = (
    ("attn_rnn", "gru"),
    5,
)  # models of the primary question have all seeds, others at most OTHER_SEEDS
PRIMARY_SEEDS = 10  # with fewer, every comparison is exploratory
STATES = {"cpu": 1 << 20, "cuda": 1 << 27}  # numbers of a layer's output computed at once
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)
SHORT = DISTANCES[:8]  # of the quick form
ALL_BITS = math.log2(KINDS)
HALF = ALL_BITS / 2  # bits; `reach` is the largest distance with at least this


def probe(
    name: str,
    problem: str,
    steps: int = 1,
    start: str = "",
    T: int = 64,
    distances: Sequence[int] = DISTANCES,
    before: int = 0,
) -> Condition:
    """Return a condition; one with a start is not trained. `before`: inputs before the one that is looked for."""
    task = {"problem": problem, "T": T, "late": 1, "start": start, "distances": list(distances), "before": before}
    return Condition(name, steps, task)


class Memory(SymbolTrials[TrialSettings], name="memory"):
    """How much of the first input is left in the state of RNN, LSTM, GRU and AttnRNN after n steps."""

    metrics = (
        TrialMetric("bits", AMOUNT, highest=ALL_BITS),
        TrialMetric("reach", AMOUNT),
        TrialMetric("accuracy", ACCURACY),
        TrialMetric("training task", ACCURACY),
    )
    full = replace(
        EXPLORATORY,
        conditions=(
            probe(UNTRAINED, FIRST, start="default"),
            probe(UNTRAINED_CHRONO, FIRST, start="chrono"),
            probe(LATER, FIRST, start="default", before=32),
            probe(RECALL, FIRST, 1_000),
            probe(ON_TEXT, TEXT, 1_000),
        ),
        models=CELLS,
        seeds=10,
        starts=("default", "chrono"),
        valid=512,
    )
    quick = replace(
        EXPLORATORY_QUICK,
        conditions=(
            probe(UNTRAINED, FIRST, start="default", distances=SHORT),
            probe(LATER, FIRST, start="default", distances=SHORT, before=32),
            probe(RECALL, FIRST, 200, T=24, distances=SHORT),
        ),
        models=CELLS,
        budget=4_000,
        valid=250,
        test=1_000,
    )

    def layer(self, model: str, symbols: int, hidden: int, start: str, condition: Condition) -> Recurrent:
        if start == "chrono" and model == "rnn":
            start = "orthogonal"  # it has no gates; the second start of its grid
        return layer(model, symbols, hidden, start, condition.task["T"])

    def multiple(self, model: str) -> int:
        return FUSED if self.device == "cuda" else super().multiple(model)

    def tunes(self, condition: Condition, model: str) -> bool:
        return not condition.task["start"] and super().tunes(condition, model)

    def untuned(self, condition: Condition, model: str) -> tuple[float, str]:
        lr, start = super().untuned(condition, model)
        return lr, condition.task["start"] or start

    def count_seeds(self, model: str) -> int:
        return self.settings.seeds if model in PRIMARY else min(self.settings.seeds, OTHER_SEEDS)

    def generate(self, condition: Condition) -> Generate:
        """Draw sequences; without labels if the condition is not trained, so that every gradient is 0."""
        draw, trains = super().generate(condition), not condition.task["start"]

        def draw_some(random: torch.Generator, rows: int, steps: int) -> tuple[Tensor, Tensor]:
            x, y = draw(random, rows, steps)
            return x, (y if trains else torch.full_like(y, IGNORE))

        return draw_some

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        assert isinstance(model, SymbolReader)
        own = self.measure(model, condition, condition.task["T"], split, device)["accuracy"]
        if split == VALID:
            return {"training task": own}
        distances, rows = condition.task["distances"], 2 * self.settings.test + self.settings.valid
        features, labels = self.read_states(model, condition, rows, device)
        result = fit_probes(features, labels, KINDS, self.settings.test, self.settings.valid)
        bits = [max(0.0, ALL_BITS - nats / math.log(2)) for nats in result.nats.tolist()]  # 0 is a bound, too
        accuracies = result.accuracy.tolist()
        reach = max((n for n, b in zip(distances, bits, strict=True) if b >= HALF), default=0)
        scores = {"bits": sum(bits) / len(bits), "reach": float(reach), "accuracy": sum(accuracies) / len(accuracies)}
        scores |= {"training task": own} | {f"bits at {n:,}": b for n, b in zip(distances, bits, strict=True)}
        return scores | {f"accuracy at {n:,}": a for n, a in zip(distances, accuracies, strict=True)}

    def read_states(
        self, model: SymbolReader, condition: Condition, rows: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return the states (distances, rows, F) after each distance, and the symbols (rows,) that are looked for."""
        task, layer = condition.task, model.layer
        assert isinstance(layer, Recurrent)
        problem, distances, before = self.problem(condition), task["distances"], task["before"]
        name = json.dumps([problem.name, "probe", distances, before]).encode()
        random = torch.Generator(device).manual_seed(int.from_bytes(hashlib.sha256(name).digest()[:7], "little"))
        x, _ = problem.draw(random, rows, before + distances[-1] + 1, "test")
        labels = torch.randint(KINDS, (rows,), generator=random, device=device)
        x[:, before] = _first_symbols(task["problem"]).to(device)[labels]
        most = max(1, STATES[device.type] // (x.shape[1] * MIN_WIDTH))
        parts = []
        for some in x.split(most):
            state, done, here = None, 0, []
            for n in distances:
                _, state = layer(model.one_hot(some[:, done : before + n + 1]), state)
                done = before + n + 1
                tensors = (state,) if isinstance(state, Tensor) else state
                here.append(torch.cat([t.transpose(0, 1).flatten(1) for t in tensors], 1))
            parts.append(torch.stack(here))
        return torch.cat(parts, 1), labels

    def rate_tuning(self, trial: Trial) -> float:
        return trial.scores["training task"]

    def trivial(self, condition: Condition) -> float:
        return 0.0

    def blocks(self, rows: Sequence[Trial]) -> list[PageBlock]:
        blocks = [b for b in super().blocks(rows) if "training loss" not in b.title or UNTRAINED not in b.title]
        for what, title in (("bits", "bits of the first input in the state"), ("accuracy", "accuracy of the probe")):
            for c in self.settings.conditions:
                curves, distances = [], c.task["distances"]
                for g in groups(rows):
                    runs = [t.scores for t in g.trials if not t.failed]
                    if g.condition == c.name and runs:
                        values = [[run[f"{what} at {n:,}"] for run in runs] for n in distances]
                        curves.append(draw_curve(g.model, [float(n) for n in distances], values))
                note = f"a state of {KINDS} equally likely symbols can have {ALL_BITS:.0f} bits; range of all seeds"
                x_axis = "steps after the first input"
                blocks += [Chart(f"{c.name}: {title}", x_axis, what, curves, log_x=True, note=note)] if curves else []
        return blocks

    def caption(self) -> str:
        s = self.settings
        last = s.conditions[0].task["distances"][-1]
        return (
            f"{super().caption()}\nThe first symbol is one of {KINDS}, at random; random symbols follow, or text if "
            f"the model was trained on text. A softmax regression of the whole state (for an LSTM h and c) names the "
            f"first symbol: fitted to {s.test:,} sequences, its penalty chosen with {s.valid:,}, scored on {s.test:,} "
            "others.\n"
            f"bits: log2 {KINDS} - cross-entropy of the probe, at least 0: a lower bound of the mutual information of "
            f"first input and state, mean over the distances 1, 2, 4 .. {last:,}; accuracy: of the probe, the same "
            f"mean; reach: the largest of these distances with at least {HALF:g} bits. training task: accuracy of the "
            "model itself.\n"
            f"primary question, written before the runs, with {PRIMARY_SEEDS} seeds: attn_rnn - gru in bits; all "
            "others are "
            f"exploratory, with at most {OTHER_SEEDS} seeds. "
            'RNN has no biases to set: orthogonal weights instead. "the 33rd input" asks for a later input than the '
            "first, "
            "after as many random symbols: a state that is still empty may treat its first input in a special way."
        )

    def verdict(self, rows: Sequence[Trial]) -> str:
        ranks = rank_models(self, rows).partition("; ")[2]
        reaches = []
        for c in self.settings.conditions:
            mine = {g.model: g.summary("reach").mean for g in groups(rows) if g.condition == c.name}
            listed = ", ".join(f"{model} {value:,.0f}" for model, value in mine.items() if value is not None)
            reaches += [f"{c.name}: {listed}"] if listed else []
        differences = format_contests(self.compare_models(rows), self.against, self.metrics[0])
        is_primary = self.settings.seeds >= PRIMARY_SEEDS
        question = "Primary question (gru) and exploratory ones (rnn, lstm)" if is_primary else "Exploratory"
        return (
            f"Mean {ranks} Steps after which half of the bits are left: {'; '.join(reaches)}. {question}: {differences}"
        )


def _first_symbols(problem: str) -> Tensor:
    """Return the ids of the symbols that a sequence may begin with: in text the most frequent characters."""
    if problem != TEXT:
        return torch.arange(KINDS)
    return split_text()["train"].bincount().argsort(descending=True)[:KINDS]
