"""Calibrators of dense predictions: fitted on CamVid's held-out frames, judged on its test frames.

    python benchmarks/dense.py camvid.npz --write benchmarks/DENSE.md

The file is what ``scripts/pack_data.py`` writes. A small encoder and decoder is trained on the
CPU for every seed (some three minutes each on two cores), so that the figures can be made again
without a GPU; ``--epochs 1 --frames 8`` is a rehearsal.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from calibrant.bench.tables.formatting import with_error
from calibrant.bench.tables.statistics import mean_of
from calibrant.calibrators import get
from calibrant.metrics import accuracy, ece, nll
from harness import table, versions

CALIBRATORS = ("none", "temperature", "ensemble_temperature", "local_temperature")
METRICS = {"accuracy": accuracy, "nll": nll, "ece": ece}
PARTS = ("validation", "test")
BATCH, RATE, DECAY = 8, 0.1, 5e-4


def block(inner: int, outer: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outer), nn.ReLU())


class Small(nn.Module):
    """Four halvings down, and up again with what was there on the way."""

    def __init__(self, classes: int, width: int = 24) -> None:
        super().__init__()
        sizes = (3, width, 2 * width, 4 * width, 4 * width)
        self.down = nn.ModuleList(
            nn.Sequential(block(inner, outer, 2), block(outer, outer))
            for inner, outer in pairwise(sizes)
        )
        self.up = nn.ModuleList([block(8 * width, 2 * width), block(4 * width, width)])
        self.classify = nn.Conv2d(2 * width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of every pixel."""
        kept, now = [], images
        for step in self.down:
            now = step(now)
            kept.append(now)
        for step, features in zip(self.up, kept[-2:0:-1], strict=True):
            now = step(torch.cat([resized(now, features), features], 1))
        return resized(self.classify(torch.cat([resized(now, kept[0]), kept[0]], 1)), images)


def resized(features: Tensor, like: Tensor) -> Tensor:
    return interpolate(features, like.shape[-2:], mode="bilinear", align_corners=False)


def read(path: Path, frames: int | None) -> tuple[dict[str, tuple[Tensor, Tensor]], int, int]:
    """Images and labels of each part, how many classes, and the label that does not count."""
    with np.load(path) as found:
        parts = {
            name: (
                torch.from_numpy(found[f"x_{name}"][:frames]).permute(0, 3, 1, 2).float() / 255,
                torch.from_numpy(found[f"y_{name}"][:frames]).long(),
            )
            for name in ("train", *PARTS)
        }
        return parts, len(found["classes"]), int(found["void"])


def trained(
    images: Tensor, labels: Tensor, classes: int, void: int, *, epochs: int, seed: int
) -> nn.Module:
    torch.manual_seed(seed)
    network = Small(classes)
    steps = epochs * -(-len(images) // BATCH)
    solver = torch.optim.SGD(
        network.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=DECAY
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(solver, RATE, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(BATCH):
            x, y = images[rows], labels[rows]
            if torch.rand(()) < 0.5:
                x, y = x.flip(-1), y.flip(-1)
            loss = cross_entropy(network(x), y, ignore_index=void)
            solver.zero_grad()
            loss.backward()
            solver.step()
            schedule.step()
    return network.eval()


def judged(network: nn.Module, parts, void: int) -> dict[tuple[str, str, str], float]:
    """Every figure, by calibrator, part and metric."""
    with torch.no_grad():
        said = {name: torch.cat([network(x) for x in parts[name][0].split(16)]) for name in PARTS}
    found = {}
    for name in CALIBRATORS:
        fitted = None
        if name != "none":
            fitted = get(name).fit(said["validation"], parts["validation"][1], ignore_index=void)
        for part in PARTS:
            logits = said[part] if fitted is None else fitted(said[part])
            for metric, measure in METRICS.items():
                value = measure(logits, parts[part][1], ignore_index=void)
                found[name, part, metric] = float(value)
    return found


def page(seeds: list[dict[tuple[str, str, str], float]], epochs: int) -> str:
    header = ("calibrator", "accuracy, %", "NLL", "ECE, %", "NLL, held out", "ECE, held out, %")
    lines = [
        "# Calibrators of dense predictions",
        f"CamVid at 240×180, a small encoder and decoder trained from scratch for {epochs} epochs, "
        f"{len(seeds)} seeds: mean ± standard error over seeds. Calibrators are fitted on the "
        "held-out frames, which are easier than the test frames.",
        table(header, [_row(name, seeds) for name in CALIBRATORS]),
        f"Made by `python benchmarks/dense.py`, {versions(['torch'])}, "
        f"{torch.get_num_threads()} CPU threads.",
    ]
    return "\n\n".join(lines) + "\n"


def _row(name: str, seeds: list[dict[tuple[str, str, str], float]]) -> list[str]:
    places = [("test", metric) for metric in METRICS]
    places += [("validation", "nll"), ("validation", "ece")]
    cells = [name]
    for part, metric in places:
        mean = mean_of([figures[name, part, metric] for figures in seeds])
        cells.append(with_error(metric, mean.mean, mean.error))
    return cells


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--frames", type=int, help="of each part; all when left out")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args(arguments)
    parts, classes, void = read(given.data, given.frames)
    seeds = []
    for seed in range(given.seeds):
        network = trained(*parts["train"], classes, void, epochs=given.epochs, seed=seed)
        seeds.append(judged(network, parts, void))
    text = page(seeds, given.epochs)
    print(text)
    if given.write is not None:
        given.write.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
