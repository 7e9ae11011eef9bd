"""The command `calibrant`: thin commands over the public API.

PyTorch is imported inside the commands that need it, so that help and version are instant.
"""

from calibrant.cli import repair, training
from calibrant.cli.commands import app, main

__all__ = ["app", "main", "repair", "training"]
