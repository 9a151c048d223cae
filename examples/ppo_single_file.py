"""Train PPO with any recurrent cell, all in one file to read and to change.

    python examples/ppo_single_file.py [--cell lstm] [--device cuda]
    python examples/ppo_single_file.py --export policy.onnx

The game is POPGym's RepeatPrevious, as in recurrent_ppo.py, but all copies of
it are one tensor on the device. The agent sees the suits of 52 cards, one at a
time, and names the suit that it saw `--back` steps ago. All answers right give
1 in an episode, all wrong -1, guessing about -0.5.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional as F

import seqloom
from seqloom.core.errors import UserError
from seqloom.tools.rl.flat import FlatRecurrent

SUITS = 4


class RepeatPrevious:
    """Copies of the game, which start at different cards so that episodes end at every step of a rollout."""

    def __init__(self, copies: int, back: int, device: str, cards: int = 52) -> None:
        if not 0 <= back <= cards - 2:
            raise UserError(f"back={back}, but an episode has {cards - 1} steps; take 0 to {cards - 2}")
        self.back, self.cards = back, cards
        self.decks = (torch.arange(cards, device=device) % SUITS).expand(copies, -1)
        self.time = torch.randint(cards - 1, (copies,), device=device)
        self.start(torch.ones(copies, dtype=torch.bool, device=device))

    def start(self, rows: Tensor) -> None:
        """Shuffle the decks of the rows (B,) that are True."""
        order = torch.rand(self.decks.shape, device=rows.device).argsort(1)
        self.decks = torch.where(rows.unsqueeze(1), self.decks.gather(1, order), self.decks)

    def observe(self) -> Tensor:
        """Return (B, 5): the suit as one of four, and 1 when an answer counts."""
        suit = self.decks.gather(1, self.time.unsqueeze(1)).squeeze(1)
        return torch.cat([F.one_hot(suit, SUITS).float(), (self.time >= self.back).float().unsqueeze(1)], 1)

    def act(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rewards (B,) and whether the next observation starts an episode (B,)."""
        asked = self.decks.gather(1, (self.time - self.back).clamp(min=0).unsqueeze(1)).squeeze(1)
        reward = torch.where(action == asked, 1.0, -1.0) * (self.time >= self.back) / (self.cards - 1 - self.back)
        ended = self.time + 1 == self.cards - 1
        self.time = torch.where(ended, 0, self.time + 1)
        self.start(ended)
        return reward, ended


class Agent(nn.Module):
    """A recurrent layer with two heads: the logits of the actions and the value of the state."""

    def __init__(self, cell: str, units: int) -> None:
        super().__init__()
        self.memory = FlatRecurrent(seqloom.Recurrent(cell, SUITS + 1, units, batch_first=True))
        size = self.memory.layer.output_size
        self.actor = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, SUITS))
        self.critic = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, seen: Tensor, state: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take (B, T, 5), (B, S) and (B, T); return logits (B, T, 4), values (B, T) and the last state (B, S)."""
        y, state = self.memory(seen, state, starts)
        return self.actor(y), self.critic(y).squeeze(-1), state


def estimate_advantages(rewards: Tensor, values: Tensor, starts: Tensor, gamma: float, decay: float = 0.95) -> Tensor:
    """Return generalised advantage estimates (B, T); values (B, T + 1) and starts (B, T + 1) reach one step further."""
    advantages, later = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        goes_on = (~starts[:, t + 1]).float()
        error = rewards[:, t] + gamma * goes_on * values[:, t + 1] - values[:, t]
        advantages[:, t] = later = error + gamma * decay * goes_on * later
    return advantages


def export(agent: Agent, file: Path) -> None:
    """Write one step of the agent for any number of games; the state is an input and an output."""
    rows = torch.export.Dim("rows", min=1, max=4096)
    example = (torch.zeros(2, 1, SUITS + 1), torch.zeros(2, agent.memory.state_size), torch.ones(2, 1))
    names = {"input_names": ["seen", "state", "starts"], "output_names": ["logits", "value", "new_state"]}
    seqloom.export_onnx(agent.cpu().eval(), example, file, ({0: rows}, {0: rows}, {0: rows}), **names)
    print(f"wrote {file}: seen, state and starts give logits, value and new_state")


def main(
    cell: str = "gru",
    frames: int = 40_000,
    device: str = "cpu",
    back: int = 1,
    copies: int = 32,
    steps: int = 64,
    units: int = 64,
    rate: float = 3e-3,
    gamma: float = 0.5,
    seed: int = 0,
    export_to: Path | None = None,
) -> float:
    """Train, and return the mean reward of an episode in the last five rollouts."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device={device}, but torch finds no GPU; take cpu")
    if export_to and not export_to.parent.is_dir():
        raise UserError(f"export_to={export_to}, but {export_to.parent} is no folder; make it first")
    torch.set_num_threads(1)  # the tensors are small
    torch.manual_seed(seed)
    game, agent = RepeatPrevious(copies, back, device), Agent(cell, units).to(device)
    optimiser = torch.optim.Adam(agent.parameters(), lr=rate, eps=1e-5)
    state = torch.zeros(copies, agent.memory.state_size, device=device)
    starts = torch.ones(copies, dtype=torch.bool, device=device)
    rewards_of_steps, began, updates = [], time.perf_counter(), max(1, frames // (copies * steps))
    for update in range(updates):
        first, rows = state, []
        with torch.no_grad():
            for _ in range(steps):  # act: one step of all copies
                seen = game.observe()
                logits, value, state = agent(seen.unsqueeze(1), state, starts.unsqueeze(1))
                choice = Categorical(logits=logits[:, 0])
                action = choice.sample()
                reward, ended = game.act(action)
                rows.append((seen, starts, action, choice.log_prob(action), value[:, 0], reward))
                starts = ended
            _, value, _ = agent(game.observe().unsqueeze(1), state, starts.unsqueeze(1))
            seen, began_here, actions, old, values, rewards = (torch.stack(part, 1) for part in zip(*rows, strict=True))
            flags = torch.cat([began_here, starts.unsqueeze(1)], 1)
            advantages = estimate_advantages(rewards, torch.cat([values, value], 1), flags, gamma)
            targets = advantages + values
        for _ in range(4):  # learn: a minibatch is whole rollouts of some copies, each in one call
            for some in torch.randperm(copies, device=device).chunk(4):
                logits, value, _ = agent(seen[some], first[some], began_here[some])
                choice = Categorical(logits=logits)
                ratio = (choice.log_prob(actions[some]) - old[some]).exp()
                gain = (advantages[some] - advantages[some].mean()) / (advantages[some].std() + 1e-8)
                policy_loss = -torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()
                loss = policy_loss + 0.5 * F.mse_loss(value, targets[some]) - 0.001 * choice.entropy().mean()
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimiser.step()
        rewards_of_steps.append(rewards.mean())
        if (update + 1) % 10 == 0 or update + 1 == updates:
            episode = float(torch.stack(rewards_of_steps[-5:]).mean()) * (game.cards - 1)
            done = (update + 1) * copies * steps
            print(f"{done} frames, {done / (time.perf_counter() - began):.0f} a second: reward {episode:.3f}")
    if export_to:
        export(agent, export_to)
    return episode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", default="gru", help="the name of a cell, see seqloom list cells")
    parser.add_argument("--frames", type=int, metavar="N", default=40_000, help="steps of all copies in all")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1")
    parser.add_argument("--back", type=int, metavar="N", default=1, help="how many steps ago the asked suit was seen")
    parser.add_argument("--copies", type=int, metavar="N", default=32, help="games that are played at the same time")
    parser.add_argument("--steps", type=int, metavar="N", default=64, help="steps of a rollout")
    parser.add_argument("--units", type=int, metavar="N", default=64, help="units of the cell")
    parser.add_argument("--rate", type=float, metavar="R", default=3e-3, help="learning rate")
    parser.add_argument("--gamma", type=float, metavar="R", default=0.5, help="discount of later rewards")
    parser.add_argument("--seed", type=int, metavar="N", default=0)
    parser.add_argument(
        "--export", dest="export_to", type=Path, metavar="FILE", help="write the agent to this ONNX file at the end"
    )
    try:
        main(**vars(parser.parse_args()))
    except UserError as error:  # such as an unknown cell
        parser.error(str(error))
