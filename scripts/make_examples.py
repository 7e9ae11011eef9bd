"""Pack the predictions a bench kept into the file of examples that comes with the package.

    python scripts/make_examples.py BENCH NAME METHOD...

BENCH holds runs of its suite whose predictions were kept (seed 0, `keep: predictions`). Logits
become float16, each row less its largest; no prediction changes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from calibrant.bench import Suite
from calibrant.bench.store.half_precision import to_half
from calibrant.predictions.examples import FOLDER
from calibrant.training import Run

PARTS = ("validation", "test")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", type=Path)
    parser.add_argument("name", help="such as cifar10-resnet18")
    parser.add_argument("methods", nargs="+")
    given = parser.parse_args()
    data, model = given.name.split("-")
    keys = {
        method: spec.key
        for method, spec in Suite.read(given.bench / "suite.yaml").specs
        if (spec.config.data, spec.config.model, spec.config.seed) == (data, model, 0)
    }
    found: dict[str, np.ndarray] = {}
    for method in given.methods:
        run = Run(given.bench / "runs" / keys[method])
        for part in PARTS:
            said = to_half(run.predictions(part))
            labels = np.asarray(said.labels).astype(np.uint8)
            assert (found.setdefault(f"labels/{part}", labels) == labels).all()
            found[f"{method}/{part}"] = np.asarray(said.array)
            found["class_names"] = np.asarray(said.class_names)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{given.name}.npz"
    np.savez_compressed(path, **found)
    print(f"{path}: {path.stat().st_size:,} bytes, {', '.join(given.methods)}")


if __name__ == "__main__":
    main()
