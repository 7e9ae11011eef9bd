"""Losses: pure functions of logits and labels, one a file."""

from calibrant.losses.cross_entropy import cross_entropy
from calibrant.losses.focal import focal
from calibrant.losses.label_smoothing import label_smoothing
from calibrant.losses.sb_ece import sb_ece

__all__ = ["cross_entropy", "focal", "label_smoothing", "sb_ece"]
