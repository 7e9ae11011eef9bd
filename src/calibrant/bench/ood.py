"""Out of distribution: can the network's confidence tell its own test rows from others?"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from calibrant.bench.judging import Figure, checked, figures, told
from calibrant.bench.shift import chosen
from calibrant.bench.stage_two import answers
from calibrant.bench.subject import Subject
from calibrant.data import load
from calibrant.data.ood import recoloured, resized
from calibrant.data.value import Images
from calibrant.functional.errors import InputError
from calibrant.predictions import Predictions

PHOTOGRAPHS = "photographs"  # small squares of scikit-learn's two photographs
PAIRS = {"cifar10": "cifar100", "cifar100": "cifar10", "digits": PHOTOGRAPHS}
METRICS = tuple(
    f"{metric}{score}"
    for metric in ("ood_auroc", "fpr95")
    for score in ("", "(score=neg_entropy)", "(score=max_logit)")
)


def ood(
    subject: Subject,
    *,
    against: str | None = None,
    calibrators: Sequence[str] = (),
    metrics: Sequence[str] = METRICS,
    precision: str = "fp32",
) -> Iterator[Figure]:
    """Figures of part ``ood:OTHER``: the run's test rows are positive, the other set's are not.

    ``mean_entropy`` and ``mean_confidence`` there are of the other set's rows.
    """
    name = subject.config.data
    other = against or PAIRS.get(name)
    if other is None:
        raise InputError(f"no set stands against {name}: name one, as in `ood: {{against: ...}}`")
    names, wanted = chosen(subject, calibrators), checked(metrics)
    inside = subject.data.test
    if inside.is_dense:
        raise InputError("pairs are of whole images: this set has a label a pixel")
    device = subject.networks(precision)[0].device
    outside = outside_of(other, inside, subject.config.data_folder)
    both = [dict(answers(subject, one.to(device), names, precision)) for one in (inside, outside)]
    for calibrator in names:
        known, unknown = (one[calibrator] for one in both)
        values = figures(_together(known, unknown), wanted)
        sure = torch.softmax(torch.as_tensor(unknown.array).double(), 1).amax(1).mean()
        values |= figures(unknown, ["mean_entropy"]) | {"mean_confidence": float(sure)}
        rows = known.num_rows + unknown.num_rows
        yield from told(f"ood:{other}", calibrator, values, rows=rows)


def outside_of(name: str, inside: Images, folder: str | None = None) -> Images:
    """The test images of another set, in the form of one's own; labels all 0, as unknown."""
    _, channels, height, width = inside.images.shape
    if name == PHOTOGRAPHS:
        found = photographs(height, width)
    else:
        found = _test_images(name, folder or os.environ.get("CALIBRANT_DATA"))
    images = resized(recoloured(found, channels), height, width)
    return replace(
        inside, images=images, labels=torch.zeros(len(images), dtype=torch.int64), name=name
    )


@lru_cache(maxsize=2)
def _test_images(name: str, folder: str | None) -> torch.Tensor:
    return load(name, folder=folder).test.images


def photographs(height: int, width: int) -> torch.Tensor:
    """Squares side by side of two photographs that come with scikit-learn, in colours."""
    from sklearn.datasets import load_sample_images

    found = []
    for picture in load_sample_images().images:
        bytes_ = torch.from_numpy(picture.copy()).permute(2, 0, 1)
        rows, columns = bytes_.shape[1] // height, bytes_.shape[2] // width
        if not rows * columns:
            raise InputError(f"photographs are smaller than {height}x{width}")
        cut = bytes_[:, : rows * height, : columns * width]
        cut = cut.reshape(3, rows, height, columns, width).permute(1, 3, 0, 2, 4)
        found.append(cut.reshape(-1, 3, height, width))
    squares = torch.cat(found)
    # As many as a test set has, spread over both.
    step = max(1, math.ceil(len(squares) / 2000))
    return squares[::step].contiguous()


def _together(known: Predictions, unknown: Predictions) -> Predictions:
    logits = torch.cat((torch.as_tensor(known.array), torch.as_tensor(unknown.array)))
    labels = torch.zeros(len(logits), dtype=torch.int64)
    labels[: known.num_rows] = 1
    return Predictions.from_logits(logits, labels)
