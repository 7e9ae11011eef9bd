"""Results of a folder of runs, taken into those that are published here, as one light file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from calibrant.bench import Store, read_choice, write_choice
from replication.stored import RESULTS


def take_results(source: str | os.PathLike[str], target: Path = RESULTS) -> Path:
    """Take what the published store does not have yet, and the choices of tuning.

    Args:
        source: a folder of runs.
        target: the folder of published results. Default: that of the checkout.

    Returns:
        The new file of the store.
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
            raise SystemExit(f"{source} has no results that are not there already")
        store.take(fresh)
        print(f"{made.name}: {made.stat().st_size:,} bytes")
        return store.folder / made.name
