"""The networks of the papers, and any classifier taken apart."""

from calibrant.models.network import Network
from calibrant.models.registry import available, build
from calibrant.models.split import Split, split

__all__ = ["Network", "Split", "available", "build", "split"]
