"""Goals on images, pixel by pixel: sequential and permuted MNIST."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.quality.goal_recipe import Batch, Training
from research.quality.goal_size import Size
from research.studies.data.examples import LabelledRows
from research.studies.data.mnist import PIXELS, mnist
from research.studies.support.contenders import layer
from seqloom.layers.dropouts import Dropouts
from seqloom.layers.linear.lru import LRU
from seqloom.layers.recurrent.layer import Recurrent

SIDE = 28  # pixels
ANGLE, SCALE, SHEAR = 0.2, 0.12, 0.15  # the most that distorted images are turned (radians), scaled and sheared
BEND, COARSE = 0.8, 6  # pixels (standard deviation) by which points of a 6 x 6 grid are moved, smoothly between them
SHIFT = 1  # pixels, the most that distorted images are shifted
VIEWS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))  # an image as it is and shifted by a pixel


@cache
def read_images(device: torch.device) -> dict[str, LabelledRows]:
    """Return 55,000, 5,000 and 10,000 images in reading order."""
    train, test = (mnist(name).shuffle().to(device) for name in ("train", "test"))
    return {"train": train.part(5_000, 60_000), "valid": train.part(0, 5_000), "test": test}


def order_pixels(permuted: bool, device: torch.device) -> Tensor:
    """Return the order (784,) in which pixels are read: one random order for permuted images."""
    order = torch.randperm(PIXELS, generator=torch.Generator().manual_seed(0)) if permuted else torch.arange(PIXELS)
    return order.to(device)


def shift_images(x: Tensor, most: int, random: torch.Generator) -> Tensor:
    """Shift each image (B, 784) by up to `most` pixels in both directions, with zeros at its edges."""
    return move_images(x, most, torch.randint(2 * most + 1, (2, len(x)), generator=random, device=x.device))


def move_images(x: Tensor, most: int, by: Tensor) -> Tensor:
    """Move each image (B, 784) up and to the left by `by` (2, B or 1) less `most` pixels."""
    wide = SIDE + 2 * most
    padded = F.pad(x.view(-1, SIDE, SIDE), (most, most, most, most)).flatten(1)
    side = torch.arange(SIDE, device=x.device)
    y, z = by.unsqueeze(-1)
    places = ((side + y) * wide).unsqueeze(2) + (side + z).unsqueeze(1)  # (B, 28, 28)
    return padded.gather(1, places.flatten(1).expand(len(x), -1))


def distort_images(x: Tensor, strength: float, random: torch.Generator) -> Tensor:
    """Rotate, scale, shear, shift and bend each image (B, 784) a little; one in five only moves by whole pixels.

    The amount of each change is drawn for each image between none and `strength` times `ANGLE`, `SCALE`, `SHEAR` and
    `BEND`; it moves by up to `SHIFT` pixels.
    """
    B, device = len(x), x.device
    amount = strength * torch.rand(B, 1, generator=random, device=device)
    amount = amount * (torch.rand(B, 1, generator=random, device=device) > 0.2)  # (B, 1)
    turn, wide, high, lean = ((2 * torch.rand(4, B, 1, generator=random, device=device) - 1) * amount).unbind(0)
    turn, wide, high, lean = ANGLE * turn, 1 + SCALE * wide, 1 + SCALE * high, SHEAR * lean
    rows = torch.cat([wide * torch.cos(turn), lean - torch.sin(turn), torch.sin(turn), high * torch.cos(turn)], 1)
    side = torch.arange(SIDE, device=device) - (SIDE - 1) / 2
    places = torch.stack([side.expand(SIDE, SIDE), side.unsqueeze(1).expand(SIDE, SIDE)], -1)  # (28, 28, 2): x, y
    places = torch.einsum("ijk,blk->bijl", places, rows.view(B, 2, 2))
    bend = BEND * torch.randn(B, 2, COARSE, COARSE, generator=random, device=device) * amount.view(B, 1, 1, 1)
    places = places + F.interpolate(bend, (SIDE, SIDE), mode="bicubic", align_corners=True).permute(0, 2, 3, 1)
    places = places + torch.randint(-SHIFT, SHIFT + 1, (B, 1, 1, 2), generator=random, device=device)
    images = x.view(B, 1, SIDE, SIDE).float()
    return F.grid_sample(images, 2 * places / (SIDE - 1), padding_mode="zeros", align_corners=True).flatten(1)


class ScanBlocks(nn.Module):
    """Residual blocks of a linear recurrence (minGRU) and an MLP, with normalised inputs."""

    def __init__(self, width: int, blocks: int, dropout: float) -> None:
        super().__init__()
        self.read = nn.Linear(1, width)
        self.mixers = nn.ModuleList(Recurrent("min_gru", width, width, batch_first=True) for _ in range(blocks))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width))
            for _ in range(blocks)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * blocks + 1))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        h = self.read(x)
        for i, (mixer, out, mlp) in enumerate(zip(self.mixers, self.outs, self.mlps, strict=True)):
            h = h + self.dropout(out(mixer(self.norms[2 * i](h))[0]))
            h = h + self.dropout(mlp(self.norms[2 * i + 1](h)))
        return self.norms[-1](h), None


class LinearMemory(nn.Module):
    """The last state of a linear recurrence (LRU) over x (B, T, 1), read by an MLP.

    The last state is a weighted sum of all inputs, with weights g B a^(T-1-t), so training computes it as one product.
    Evaluation runs the recurrence itself.
    """

    def __init__(self, channels: int, width: int, dropout: float) -> None:
        super().__init__()
        self.memory = LRU(1, channels=channels, shortest=0.99, longest=0.9999)
        self.mlp = nn.Sequential(
            nn.LayerNorm(2 * channels), nn.Linear(2 * channels, width), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(width, width), nn.GELU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        if self.training:
            h = self.sum_inputs(x)
        else:
            with torch.autocast(x.device.type, enabled=False):
                h = torch.cat([self.memory(rows)[1][0] for rows in x.float().split(125)]).flatten(1)
        return self.mlp(h).unsqueeze(1), None

    def sum_inputs(self, x: Tensor) -> Tensor:
        """Return the last state (B, 2 channels), real and imaginary parts in turn."""
        m, (B, T, _) = self.memory, x.shape
        left = torch.arange(T - 1, -1, -1, device=x.device).unsqueeze(1)  # steps after each input
        size, angle = torch.exp(m.gamma - left * torch.exp(m.nu)), left * torch.exp(m.theta)  # (T, channels)
        cos, sin, (re, im) = size * torch.cos(angle), size * torch.sin(angle), m.B.squeeze(-1)
        weights = torch.stack([cos * re - sin * im, cos * im + sin * re], -1)
        with torch.autocast(x.device.type, enabled=False):
            return x.view(B, T).float() @ weights.flatten(1)


class PixelClassifier(nn.Module):
    """Read bytes (B, T) and predict ten digits from the last or the mean output."""

    def __init__(self, body: nn.Module, width: int, mean: bool, dropout: float, pixel_dropout: float) -> None:
        super().__init__()
        self.body, self.mean, self.pixels = body, mean, nn.Dropout(pixel_dropout)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.body(self.pixels((x.float().unsqueeze(-1) / 255 - 0.1307) / 0.3081))
        return self.head(self.dropout(y.mean(1) if self.mean else y[:, -1])).float()


def classify_pixels(
    goal: str,
    recipe: str,
    seed: int,
    size: Size,
    body: Callable[[], nn.Module],
    width: int,
    *,
    epochs: int,
    lr: float,
    batch: int = 128,
    mean: bool = False,
    dropout: float = 0.2,
    pixel_dropout: float = 0.0,
    weight_decay: float = 0.01,
    smoothing: float = 0.0,
    ema: float = 0.999,
    shift: int = 0,
    distort: float = 0.0,
    score_every: float = 0.05,
    views: Sequence[tuple[int, int]] = ((0, 0),),
    **settings: object,
) -> Training:
    """Return a training on sequential ("smnist") or permuted ("psmnist") MNIST.

    Each of `views` is a shift of the images, by at most a pixel, at which they are scored; the chances are averaged.
    """
    data, order = read_images(size.device), order_pixels(goal == "psmnist", size.device)
    train, B = data["train"], size.batch(batch)
    order = order[: size.length(PIXELS)] if size.tiny else order

    def draw(random: torch.Generator) -> Batch:
        rows = train.rows(torch.randint(len(train), (B,), generator=random, device=size.device))
        x = shift_images(rows.x, shift, random) if shift else rows.x
        x = distort_images(x, distort, random) if distort else x
        return x.index_select(1, order), rows.y

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with size.low():
            scores = model(batch[0])
        return F.cross_entropy(scores, batch[1], label_smoothing=smoothing)

    def score(model: nn.Module, split: str) -> dict[str, float]:
        return score_together([model], split)

    def score_together(models: list[nn.Module], split: str) -> dict[str, float]:
        rows, right, right_at_once = data[split].part(0, size.rows(10_000)), 0, 0
        for x, labels in zip(rows.x.split(1_000), rows.y.split(1_000), strict=True):
            shown = [move_images(x, 1, torch.tensor([[1 + y], [1 + z]], device=x.device)) for y, z in views]
            with size.low():
                chances = [sum(model(view.index_select(1, order)).softmax(-1) for model in models) for view in shown]
            right += int((sum(chances).argmax(-1) == labels).sum())
            right_at_once += int((chances[0].argmax(-1) == labels).sum())
        one = {"accuracy of one reading": right_at_once / len(rows)} if len(views) > 1 else {}
        return {"accuracy": right / len(rows)} | one

    described = {"epochs": epochs, "batch": B, "dropout": dropout, "pixel_dropout": pixel_dropout, "mean": mean}
    described |= {"shift_by_pixels": shift} if shift else {}
    described |= {"distortion": distort} if distort else {}
    described |= {"views": len(views)} if len(views) > 1 else {}
    return Training(
        goal, recipe, seed,
        lambda: PixelClassifier(body(), width, mean, dropout, pixel_dropout),
        draw, loss, score, size.steps(epochs * 55_000 // batch), lr,
        described | {"label_smoothing": smoothing, "precision": "bf16"} | settings,
        weight_decay=weight_decay, ema=ema, score_every=score_every, together=score_together,
    )  # fmt: skip


def smnist(seed: int, size: Size) -> Training:
    H, zoneout = size.units(128), 0.05
    dropouts = Dropouts(zoneout=zoneout)

    def body() -> nn.Module:
        return Recurrent("attn_rnn", 1, H, batch_first=True, dropouts=dropouts)

    return classify_pixels(
        "smnist", "attn_rnn", seed, size, body, H, epochs=100, lr=2e-3, model="attn_rnn", hidden=H, zoneout=zoneout
    )


def smnist_shift(seed: int, size: Size) -> Training:
    """Train with images that are shifted by a pixel, since the recipe above learns the training images by heart.

    Each test image is read five times, as it is and shifted by a pixel.
    """
    H, zoneout = size.units(128), 0.05
    dropouts = Dropouts(zoneout=zoneout)

    def body() -> nn.Module:
        return Recurrent("attn_rnn", 1, H, batch_first=True, dropouts=dropouts)

    return classify_pixels(
        "smnist", "attn_rnn, shifted images, five views", seed, size, body, H, epochs=60, lr=3e-3, model="attn_rnn",
        hidden=H, zoneout=zoneout, shift=1, score_every=0.1, views=VIEWS,
    )  # fmt: skip


def smnist_distort(seed: int, size: Size) -> Training:
    """Train with distorted images in larger batches, which cost little more; each test image is read five times."""
    H, dropouts = size.units(128), Dropouts(zoneout=0.05)

    def body() -> nn.Module:
        return layer("attn_rnn", 1, H, "keep 1", PIXELS, dropouts=dropouts)

    return classify_pixels(
        "smnist", "attn_rnn, distorted images, five views", seed, size, body, H, epochs=150, lr=3e-3, batch=256,
        dropout=0.1, distort=1.0, views=VIEWS, score_every=0.11, model="attn_rnn", hidden=H, zoneout=0.05,
        gate="keep 1",
    )  # fmt: skip


def smnist_linear(seed: int, size: Size) -> Training:
    """Train a linear recurrence whose last state an MLP reads, with distorted images."""
    channels, width = size.units(512), size.units(2_048)
    return classify_pixels(
        "smnist", "LRU and MLP, distorted images", seed, size,
        lambda: LinearMemory(channels, width, 0.2), width, epochs=400, lr=2e-3, batch=512, dropout=0.2, ema=0.9995,
        distort=1.6, score_every=0.25, model="lru", channels=channels, hidden=width,
    )  # fmt: skip


def smnist_wide(seed: int, size: Size) -> Training:
    H, dropouts = size.units(256), Dropouts(recurrent=0.1, zoneout=0.05)

    def body() -> nn.Module:
        return Recurrent("attn_rnn", 1, H, batch_first=True, dropouts=dropouts)

    return classify_pixels(
        "smnist", "attn_rnn, 256 units", seed, size, body, H, epochs=80, lr=2e-3, model="attn_rnn", hidden=H,
        zoneout=0.05, recurrent_dropout=0.1, pixel_dropout=0.05,
    )  # fmt: skip


def permuted(recipe: str, seed: int, size: Size, drop: float, weight_drop: float, pixel_drop: float) -> Training:
    """Return a training of two layers with residuals and this much dropout."""
    H, dropouts = size.units(256), Dropouts(recurrent=drop, weight=weight_drop)

    def body() -> nn.Module:
        return Recurrent("attn_rnn", 1, H, 2, batch_first=True, dropout=drop, dropouts=dropouts, residual=True)

    return classify_pixels(
        "psmnist", recipe, seed, size, body, H, epochs=100, lr=3e-3, pixel_dropout=pixel_drop, model="attn_rnn",
        hidden=H, layers=2, residuals=True, recurrent_dropout=drop, weight_dropout=weight_drop,
    )  # fmt: skip


def psmnist(seed: int, size: Size) -> Training:
    return permuted("attn_rnn", seed, size, 0.2, 0.2, 0.1)


def psmnist_light(seed: int, size: Size) -> Training:
    return permuted("attn_rnn, less dropout", seed, size, 0.1, 0.1, 0.05)


def psmnist_shift(seed: int, size: Size) -> Training:
    """Train one layer with shifted images and little dropout, and read the mean of its outputs."""
    H, dropouts = size.units(256), Dropouts(recurrent=0.1)

    def body() -> nn.Module:
        return Recurrent("attn_rnn", 1, H, batch_first=True, dropouts=dropouts)

    return classify_pixels(
        "psmnist", "attn_rnn, shifted images", seed, size, body, H, epochs=60, lr=3e-3, model="attn_rnn", hidden=H,
        recurrent_dropout=0.1, shift=1, mean=True,
    )  # fmt: skip


def psmnist_scan(seed: int, size: Size) -> Training:
    d = size.units(256)
    return classify_pixels(
        "psmnist", "min_gru blocks", seed, size, lambda: ScanBlocks(d, 4, 0.2), d, epochs=60, lr=2e-3, mean=True,
        pixel_dropout=0.1, weight_decay=0.05, model="min_gru", hidden=d, layers=4, residuals=True,
    )  # fmt: skip


def psmnist_linear(seed: int, size: Size) -> Training:
    """Train a linear recurrence whose last state an MLP reads, with shifted images."""
    channels, width = size.units(512), size.units(512)
    return classify_pixels(
        "psmnist", "LRU and MLP, shifted images", seed, size, lambda: LinearMemory(channels, width, 0.3), width,
        epochs=60, lr=2e-3, dropout=0.3, shift=1, score_every=0.3, model="lru", channels=channels, hidden=width,
    )  # fmt: skip
