"""Losses to train with: each a module like `torch.nn.CrossEntropyLoss`, and its function.

``losses.get("focal+0.5*s_avuc")`` reads one from text, `compose` adds secondary losses to a
primary one, and `available` says when to use each. The function of each loss is
``losses.focal``, its class ``losses.Focal``.
"""

from __future__ import annotations

from calibrant.losses.base import Loss, PrimaryLoss, SecondaryLoss
from calibrant.losses.compose import Composed, compose
from calibrant.losses.cross_entropy import CrossEntropy, cross_entropy
from calibrant.losses.focal import Focal, focal
from calibrant.losses.label_smoothing import LabelSmoothing, label_smoothing
from calibrant.losses.registry import available, get, make, parse
from calibrant.losses.sb_ece import SoftBinnedECE, sb_ece

__all__ = [
    "Composed",
    "CrossEntropy",
    "Focal",
    "LabelSmoothing",
    "Loss",
    "PrimaryLoss",
    "SecondaryLoss",
    "SoftBinnedECE",
    "available",
    "compose",
    "cross_entropy",
    "focal",
    "get",
    "label_smoothing",
    "make",
    "parse",
    "sb_ece",
]
