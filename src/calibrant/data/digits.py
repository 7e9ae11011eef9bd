"""Handwritten digits, embedded in scikit-learn: 1,797 images of 8x8."""

from __future__ import annotations

import torch

from calibrant.data.splits import stratified_split
from calibrant.data.value import Images


def digits(*, test: float = 0.3) -> tuple[Images, Images]:
    """Training and test images; the test rows are the same for every seed."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images * (255.0 / 16.0)).round().to(torch.uint8).unsqueeze(1)
    whole = Images(
        images,
        torch.tensor(found.target, dtype=torch.int64),
        tuple(str(digit) for digit in range(10)),
        name="digits",
    )
    kept, out = stratified_split(whole.labels, test, seed=20)
    return whole.take(kept), whole.take(out)
