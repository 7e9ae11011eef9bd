"""The networks of the papers, and a split of any classifier into features and head."""

from calibrant.models.network import Network
from calibrant.models.registry import available, build, register
from calibrant.models.split import Split, split
from calibrant.models.weights import load_weights

__all__ = ["Network", "Split", "available", "build", "load_weights", "register", "split"]
