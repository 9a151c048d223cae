"""Find out why a gradient of the study `mnist` was not finite: compute it again by other kernels and in float64.

    python -m research overflow --model lstm --rate 0.03 --start chrono --seed 2 [--json FILE]

Trains on permuted MNIST as the study does until the first gradient that is not finite, then computes the gradient of
the same batch with the same weights in bfloat16, float32 and float64, by the fused kernels and by the loop.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.record import build_parser, print_row, write_record
from research.studies.mnist import PERMUTED, Mnist
from research.studies.support.conditions import TEST, Spec
from seqloom.lab.training.many import SmallStep
from seqloom.lab.training.recipe import SmallTraining
from seqloom.lab.training.update import Update
from seqloom.layers.recurrent.layer import Recurrent

WAYS = {
    "bfloat16, kernel": (torch.float32, "auto", True),
    "bfloat16, loop": (torch.float32, "loop", True),
    "float32, kernel": (torch.float32, "auto", False),
    "float32, loop": (torch.float32, "loop", False),
    "float64, loop": (torch.float64, "loop", False),
}
PLACES = (783, 700, 600, 400, 200, 100, 0)  # steps at which the gradient of the input is shown


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--model", default="lstm")
    parser.add_argument("--rate", type=float, default=0.03)
    parser.add_argument("--start", default="chrono")
    parser.add_argument("--seed", type=int, default=2)
    args = parser.parse_args()
    study = Mnist(Mnist.choose_settings(models=[args.model]), device="cuda")
    study._sizes, study._kept = {}, {}
    condition = next(c for c in study.settings.conditions if c.name == PERMUTED)
    training = study._training(Spec(condition, args.model, args.rate, args.start, args.seed, TEST))
    step, largest = train_until_overflow(training)
    print_row({"first step": len(largest) - 1, "largest gradients before": largest[-12:]})
    rows = []
    if step is not None:
        model, x, y = step
        rows = [{"computed in": way} | differentiate(model, x, y, *setting) for way, setting in WAYS.items()]
        for row in rows:
            print_row(row)
    write_record(args.json, seed=args.seed, largest=largest[-40:], rows=rows)


def train_until_overflow(training: SmallTraining) -> tuple[tuple[nn.Module, Tensor, Tensor] | None, list[float]]:
    """Return the model and the batch whose gradient is not finite, if any, and the largest gradient of each step."""
    device = torch.device("cuda")
    step, largest = SmallStep(training, device), []

    class Watch(Update):
        def clip_gradients(self) -> Tensor:
            gradients = [p.grad for p in self.weights if p.grad is not None]
            largest.append(float(torch.stack(torch._foreach_norm(gradients, float("inf"))).max()))
            return super().clip_gradients()

    step.update = Watch(step.update.weights, step.update.optimiser, step.update.clip)
    for _ in range(training.recipe.steps):
        before = step.generators[0].get_state()
        step()
        if not torch.tensor(largest[-1]).isfinite():
            noise = torch.Generator(device)
            noise.set_state(before)
            x, _, y = training.batch(noise, device)
            return (step.model.model.model, x, y), largest
    return None, largest


def differentiate(
    model: nn.Module, x: Tensor, y: Tensor, dtype: torch.dtype, kernel: str, low: bool
) -> dict[str, object]:
    """Return the loss, the largest gradient of a weight, and the largest gradient of the input at some steps."""
    model = copy.deepcopy(model).to(dtype)
    for part in model.modules():
        if isinstance(part, Recurrent):
            part.kernel = kernel
    pixels = ((x.to(dtype).unsqueeze(-1) / 255 - 0.1307) / 0.3081).requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=low):
        scores = model(pixels)
    loss = F.cross_entropy(scores.to(dtype), y)
    inputs, *weights = torch.autograd.grad(loss, [pixels, *model.parameters()])
    by_step = inputs.abs().amax((0, 2)).tolist()
    return {
        "loss": round(loss.item(), 3),
        "largest": f"{max(float(w.abs().max()) for w in weights):.1e}",
        "input": {t: f"{by_step[t]:.1e}" for t in PLACES},
    }
