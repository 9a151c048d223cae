"""Train two models with nn.LSTM and with seqloom.LSTM in its place: python -m research swapped_lstm [--device cuda].

A word language model (embedding 200, two layers of 200 units, dropout 0.2, 20 rows of 35 words, truncated
back-propagation, 10,000 words drawn by Zipf's law) and a recurrent PPO loop (a policy of 128 units that must recall a
cue; rollouts of 64 steps in 16 environments step by step, then 4 epochs over the whole sequences). Float32, torch's
defaults. All sides start from the same weights and take turns, part by part, so that other work on the machine slows
all; the time is that of everything: data, model, loss, optimiser. A ratio above 1 means that seqloom's is faster; both
must end with about the same loss. nn.LSTM takes part twice: the ratio of these two, the control, says how much chance
makes.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import seqloom
from research.record import Stopwatch, build_parser, print_row, take_plain_step, write_record
from research.speed.call_overhead import low

WORDS, WIDTH, LAYERS, ROWS, STEPS = 10_000, 200, 2, 20, 35
ENVIRONMENTS, ROLLOUT, POLICY, EPOCHS, ACTIONS, OBSERVED = 16, 64, 128, 4, 4, 8
LEAST_PARTS = 6
Make = Callable[..., nn.Module]


class LanguageModel(nn.Module):
    """Words to the words that follow."""

    def __init__(self, lstm: Make) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.lstm = lstm(WIDTH, WIDTH, LAYERS, dropout=0.2)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = self.lstm(F.dropout(self.embedding(ids), 0.2, self.training), state)
        return self.head(F.dropout(y, 0.2, self.training)), state


class Policy(nn.Module):
    """Observations to the logits of actions and to values."""

    def __init__(self, lstm: Make) -> None:
        super().__init__()
        self.enter = nn.Linear(OBSERVED, POLICY)
        self.lstm = lstm(POLICY, POLICY)
        self.action, self.value = nn.Linear(POLICY, ACTIONS), nn.Linear(POLICY, 1)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        y, state = self.lstm(torch.tanh(self.enter(x)), state)
        return self.action(y), self.value(y).squeeze(-1), state


class TrainLanguageModel:
    """One side of the comparison; a call makes one step of the optimiser and returns the loss."""

    def __init__(self, lstm: Make, device: str) -> None:
        self.model = LanguageModel(lstm).to(device)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1.0)
        weights = 1 / torch.arange(1, WORDS + 1, dtype=torch.float64)
        draw = torch.Generator().manual_seed(1)
        self.ids = torch.multinomial(weights, ROWS * 64 * STEPS, True, generator=draw).view(-1, ROWS).to(device)
        self.state: tuple[Tensor, Tensor] | None = None
        self.at = 0

    def __call__(self) -> Tensor:
        if self.at + STEPS + 1 > len(self.ids):
            self.at, self.state = 0, None
        words, after = self.ids[self.at : self.at + STEPS], self.ids[self.at + 1 : self.at + STEPS + 1]
        self.at += STEPS
        logits, state = self.model(words, self.state)
        self.state = (state[0].detach(), state[1].detach())
        loss = F.cross_entropy(logits.flatten(0, 1), after.flatten())
        take_plain_step(loss, self.optimiser, 0.25)
        return loss.detach()


@dataclass
class Rollout:
    """What a policy saw and did, (steps, environments, ...)."""

    seen: Tensor
    actions: Tensor
    chances: Tensor
    values: Tensor
    rewards: Tensor


class TrainPolicy:
    """One side of the comparison; a call makes a rollout and its epochs, and returns the last loss."""

    def __init__(self, lstm: Make, device: str) -> None:
        self.model, self.device = Policy(lstm).to(device), device
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=3e-4)
        self.random = torch.Generator(device).manual_seed(1)

    def _play(self) -> Rollout:
        """Play one episode in every environment: the cue of the first step is the right action of all later ones."""
        cue = torch.randint(ACTIONS, (ENVIRONMENTS,), generator=self.random, device=self.device)
        rows: list[tuple[Tensor, ...]] = []
        state = None
        with torch.no_grad():
            for t in range(ROLLOUT):
                noise = torch.randn(ENVIRONMENTS, OBSERVED, generator=self.random, device=self.device)
                seen = torch.cat([F.one_hot(cue, ACTIONS).float() * (t == 0), noise[:, ACTIONS:]], 1)
                logits, value, state = self.model(seen.unsqueeze(0), state)
                chances = logits.squeeze(0).log_softmax(-1)
                action = torch.multinomial(chances.exp(), 1, generator=self.random).squeeze(1)
                chance = chances.gather(1, action.unsqueeze(1)).squeeze(1)
                rows.append((seen, action, chance, value.squeeze(0), (action == cue).float()))
        return Rollout(*(torch.stack(part) for part in zip(*rows, strict=True)))

    def __call__(self) -> Tensor:
        played = self._play()
        advantage, last = torch.zeros_like(played.rewards), torch.zeros(ENVIRONMENTS, device=self.device)
        following = torch.cat([played.values[1:], torch.zeros_like(played.values[:1])])
        change = played.rewards + 0.99 * following - played.values
        for t in reversed(range(ROLLOUT)):
            last = change[t] + 0.99 * 0.95 * last
            advantage[t] = last
        goal, advantage = advantage + played.values, (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(EPOCHS):
            logits, values, _ = self.model(played.seen, None)
            chances = logits.log_softmax(-1)
            ratio = (chances.gather(2, played.actions.unsqueeze(2)).squeeze(2) - played.chances).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            entropy = -(chances.exp() * chances).sum(-1).mean()
            loss = -gain + 0.5 * F.mse_loss(values, goal) - 0.01 * entropy
            take_plain_step(loss, self.optimiser, 0.5)
        return loss.detach()


TASKS: dict[str, type] = {"language model": TrainLanguageModel, "recurrent PPO": TrainPolicy}


def compare(
    name: str, side: type, device: str, limit: tuple[int, float], calls: int, wait: Callable[[], object]
) -> dict[str, object]:
    """Return the times of three sides: nn.LSTM, ours, and nn.LSTM once more, which shows what chance makes.

    Args:
        name: Of the task.
        side: A class whose objects make one call of training.
        device: Where the models are.
        limit: How many times the sides take turns, and after how many seconds they stop at the latest.
        calls: Calls of a part.
        wait: Waits until the device has finished.
    """
    torch.manual_seed(0)
    sides = [side(kind, device) for kind in (nn.LSTM, seqloom.LSTM, nn.LSTM)]
    for one in sides[1:]:
        one.model.load_state_dict(sides[0].model.state_dict())
    times: list[list[float]] = [[], [], []]
    losses = [0.0, 0.0, 0.0]
    parts, seconds = limit
    started = Stopwatch()
    for part in range(parts + 1):
        if part > LEAST_PARTS and started.seconds > seconds:
            break
        for i in [(part + k) % 3 for k in range(3)][
            :: 1 if part % 2 else -1
        ]:  # each side first, in the middle and last
            torch.manual_seed(part)  # all sides drop the same units
            wait()
            start = Stopwatch()
            for _ in range(calls):
                loss = sides[i]()
            wait()
            if part:  # the first one warms up
                times[i].append(1e3 * start.seconds / calls)
            losses[i] = float(loss)
    row: dict[str, object] = {"task": name, "device": device, "parts": len(times[0]), "calls": calls}
    row |= {"torch_ms": round(min(times[0]), 3), "seqloom_ms": round(min(times[1]), 3)}
    row |= {"torch_median_ms": round(statistics.median(times[0]), 3)}
    row |= {"seqloom_median_ms": round(statistics.median(times[1]), 3)}
    for what, other in (("ratio", 1), ("control", 2)):
        ratios = sorted(a / b for a, b in zip(times[0], times[other], strict=True))
        row |= {f"{what}_of_best": round(min(times[0]) / min(times[other]), 4)}
        row |= {f"{what}_of_low": round(low(times[0]) / low(times[other]), 4)}
        row |= {f"{what}_median": round(statistics.median(ratios), 4)}
        row |= {f"{what}_of_medians": round(statistics.median(times[0]) / statistics.median(times[other]), 4)}
    row |= {"torch_loss": round(losses[0], 4), "seqloom_loss": round(losses[1], 4)}
    print_row(row)
    return row


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--parts", type=int, default=12, help="how many times the sides take turns")
    parser.add_argument("--seconds", type=float, default=600.0, help="of a task at the most")
    parser.add_argument("--calls", type=int, default=5, help="calls of a part")
    parser.add_argument("--tasks", default=",".join(TASKS), help="names, separated by commas")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    wait: Callable[[], object] = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    names = args.tasks.split(",")
    rows = []
    for name in names:
        rows.append(compare(name, TASKS[name], args.device, (args.parts, args.seconds), args.calls, wait))
        write_record(args.json, seed=0, threads=args.threads, rows=rows)
