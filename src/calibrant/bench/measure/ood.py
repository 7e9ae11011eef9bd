"""Measure how well confidence tells test rows from rows of another data set."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from calibrant.bench.measure.measurement import (
    Measurement,
    check_metrics,
    compute_metrics,
    make_measurements,
)
from calibrant.bench.measure.stage_two import list_calibrators, predict_after
from calibrant.bench.measure.subject import Subject
from calibrant.core.errors import InputError
from calibrant.data import load
from calibrant.data.images import Images
from calibrant.data.ood import convert_channels, resize
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
    against: str | Sequence[str] | None = None,
    calibrators: Sequence[str] = (),
    metrics: Sequence[str] = METRICS,
    precision: str = "fp32",
) -> Iterator[Measurement]:
    """Measure part ``ood:OTHER``: the run's test rows are positive, the other set's are not.

    With several other sets each has its part, and tables show the mean over them (``ood:*``).
    ``mean_entropy`` and ``mean_confidence`` there are of the other set's rows.

    Args:
        subject: the run.
        against: the other data set, or a list of them. Default: None, that of `PAIRS`.
        calibrators: as a suite writes them, and second stages (``tst+temperature``).
        metrics: what is measured. Default: `METRICS`.
        precision: of the network, fp32 or bf16. Default: fp32.
    """
    name = subject.config.data
    others = [against] if isinstance(against, str) else list(against or ())
    if not others and name in PAIRS:
        others = [PAIRS[name]]
    if not others or name in others:
        problem = "is no other set" if name in others else "has no default other set"
        raise InputError(f"{name} {problem}: name one, as in `ood: {{against: svhn}}`")
    names, wanted = list_calibrators(subject, calibrators), check_metrics(metrics)
    inside = subject.data.test
    if inside.is_dense:
        raise InputError("ood takes a label for each image, and these have one for each pixel")
    device = subject.networks(precision)[0].device
    inside_rows = dict(predict_after(subject, inside.to(device), names, precision))
    for other in others:
        outside = load_outside(other, inside, subject.config.data_folder)
        outside_rows = dict(predict_after(subject, outside.to(device), names, precision))
        for calibrator in names:
            known, unknown = inside_rows[calibrator], outside_rows[calibrator]
            values = compute_metrics(_label_origin(known, unknown), wanted)
            sure = torch.softmax(torch.as_tensor(unknown.array).double(), 1).amax(1).mean()
            values |= compute_metrics(unknown, ["mean_entropy"])
            values |= {"mean_confidence": float(sure)}
            rows = known.num_rows + unknown.num_rows
            yield from make_measurements(f"ood:{other}", calibrator, values, rows=rows)


def load_outside(name: str, inside: Images, folder: str | None = None) -> Images:
    """Load the test images of another set in the shape of ours; labels are all 0, as unknown."""
    _, channels, height, width = inside.images.shape
    if name == PHOTOGRAPHS:
        images = cut_photographs(height, width)
    else:
        images = _test_images(name, folder or os.environ.get("CALIBRANT_DATA"))
    images = resize(convert_channels(images, channels), height, width)
    return replace(
        inside, images=images, labels=torch.zeros(len(images), dtype=torch.int64), name=name
    )


@lru_cache(maxsize=2)
def _test_images(name: str, folder: str | None) -> torch.Tensor:
    return load(name, folder=folder).test.images


def cut_photographs(height: int, width: int) -> torch.Tensor:
    """Cut scikit-learn's two colour photographs into squares side by side."""
    from sklearn.datasets import load_sample_images

    pieces = []
    for picture in load_sample_images().images:
        bytes_ = torch.from_numpy(picture.copy()).permute(2, 0, 1)
        rows, columns = bytes_.shape[1] // height, bytes_.shape[2] // width
        if not rows * columns:
            raise InputError(f"photographs are smaller than {height}x{width}")
        cut = bytes_[:, : rows * height, : columns * width]
        cut = cut.reshape(3, rows, height, columns, width).permute(1, 3, 0, 2, 4)
        pieces.append(cut.reshape(-1, 3, height, width))
    squares = torch.cat(pieces)
    # About as many as a test set has, from both photographs.
    step = max(1, math.ceil(len(squares) / 2000))
    return squares[::step].contiguous()


def _label_origin(known: Predictions, unknown: Predictions) -> Predictions:
    """Join both sets; the label is 1 for rows of our own."""
    logits = torch.cat((torch.as_tensor(known.array), torch.as_tensor(unknown.array)))
    labels = torch.zeros(len(logits), dtype=torch.int64)
    labels[: known.num_rows] = 1
    return Predictions.from_logits(logits, labels)
