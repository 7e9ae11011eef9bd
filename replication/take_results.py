"""Copy results of runs into the published results, as one light file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from calibrant.bench import Store, read_choice, write_choice
from replication.stored import RESULTS


def take_results(source: str | os.PathLike[str], target: Path = RESULTS) -> Path:
    """Copy results that the published store lacks, and the tuning choices.

    Args:
        source: folder of runs.
        target: folder of published results. Default: ``replication/results``.

    Returns:
        The new file in the store.
    """
    for path in sorted((Path(source) / "choices").glob("*.json")):
        choice = read_choice(path)
        if choice is not None:
            write_choice(target / "choices" / path.name, choice)
    store = Store(target / "store")
    known = {path.name for path in store.files()}
    with tempfile.TemporaryDirectory() as folder:
        fresh = Store(folder)
        for path in Store(Path(source) / "store").files():
            if path.name not in known:
                fresh.take_file(path.name, path.read_bytes())
        made = fresh.compact(light=True)
        if made is None:
            raise SystemExit(f"{source} has no new results")
        store.take(fresh)
        print(f"{made.name}: {made.stat().st_size:,} bytes")
        return store.folder / made.name
