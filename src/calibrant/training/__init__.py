"""Training: one engine, and the procedures of the papers."""

from calibrant.training.config import Config
from calibrant.training.engine import Diverged, train
from calibrant.training.run import Run

__all__ = ["Config", "Diverged", "Run", "train"]
