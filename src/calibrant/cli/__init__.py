"""The command `calibrant`: thin commands over the public API.

PyTorch is imported inside the commands that need it, so that help and version are instant.
"""

from calibrant.cli import bench, bench_choices, bench_transport, repair, training
from calibrant.cli.commands import app, main

__all__ = ["app", "bench", "bench_choices", "bench_transport", "main", "repair", "training"]
