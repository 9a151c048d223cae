"""Train a recurrent policy on rollouts in which episodes end and begin at any step.

    python examples/recurrent_policy.py

The environment shows a signal (+1 or -1) in the first step of an episode, then nothing for some steps; in the last step
the agent must answer with the action that belongs to the signal, and earns 1 if it is right. Only memory helps.
`reset` marks the first step of each episode: the layer starts there with an empty state, so a whole rollout is one
call, and a signal of the last episode cannot leak into the next one.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import seqloom


class SignalGame:
    """Many copies of the game, each at its own step. Observation: signal, and 1 when an answer is due."""

    def __init__(self, copies: int, seed: int = 0) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.signal, self.length, self.time = torch.zeros(copies), torch.zeros(copies), torch.zeros(copies)

    def observe(self) -> tuple[Tensor, Tensor]:
        """Start new episodes where the last one is over; return observations (B, 2) and reset flags (B,)."""
        new = self.time >= self.length
        copies = len(new)
        signal = 2 * torch.randint(2, (copies,), generator=self.random) - 1.0
        length = torch.randint(4, 11, (copies,), generator=self.random).float()
        self.signal, self.length = torch.where(new, signal, self.signal), torch.where(new, length, self.length)
        self.time = torch.where(new, 0.0, self.time)
        due = self.time == self.length - 1
        return torch.stack([self.signal * new, due.float()], -1), new

    def act(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rewards (B,) and where an answer was due (B,)."""
        due = self.time == self.length - 1
        self.time = self.time + 1
        return (due & (action == (self.signal > 0))).float(), due


class Policy(nn.Module):
    """A GRU and the logits of two actions."""

    def __init__(self, hidden_size: int = 32) -> None:
        super().__init__()
        self.layer, self.head = seqloom.GRU(2, hidden_size, batch_first=True), nn.Linear(hidden_size, 2)

    def forward(self, x: Tensor, state: Tensor | None, reset: Tensor) -> tuple[Tensor, Tensor]:
        y, state = self.layer(x, state, reset=reset)
        return self.head(y), state


def main(updates: int = 80, copies: int = 32, steps: int = 40) -> float:
    """Train by policy gradient and return the share of right answers in the last ten updates."""
    torch.manual_seed(0)
    game, policy = SignalGame(copies), Policy()
    state: Tensor | None = None
    shares: list[float] = []
    optimiser = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for update in range(updates):
        rows, first = [], state  # the rollout starts from the state in which the last one ended
        for _ in range(steps):
            seen, reset = game.observe()
            with torch.no_grad():
                logits, state = policy(seen.unsqueeze(1), state, reset.unsqueeze(1))
            action = Categorical(logits=logits[:, 0]).sample()
            rows.append((seen, reset, action, *game.act(action), logits[:, 0]))
        seen, reset, action, reward, due, logits = (torch.stack(part, 1) for part in zip(*rows, strict=True))
        again, _ = policy(seen, first, reset)  # the whole rollout at once, many episodes in each row
        assert torch.allclose(again, logits, atol=1e-5), "the rollout and the update must agree"
        shares.append(float(reward.sum() / due.sum()))
        gain = (reward - 0.5) * due  # 0.5 is what guessing earns
        loss = -(gain * Categorical(logits=again).log_prob(action)).sum() / due.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if (update + 1) % 20 == 0:
            print(f"update {update + 1}: {sum(shares[-10:]) / 10:.3f} of the answers are right")
    return sum(shares[-10:]) / len(shares[-10:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=80)
    main(**vars(parser.parse_args()))
