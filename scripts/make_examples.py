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
    options = parser.parse_args()
    data, model = options.name.split("-")
    keys = {
        method: spec.key
        for method, spec in Suite.read(options.bench / "suite.yaml").specs
        if (spec.config.data, spec.config.model, spec.config.seed) == (data, model, 0)
    }
    arrays: dict[str, np.ndarray] = {}
    for method in options.methods:
        run = Run(options.bench / "runs" / keys[method])
        for part in PARTS:
            predictions = to_half(run.predictions(part))
            labels = np.asarray(predictions.labels).astype(np.uint8)
            assert (arrays.setdefault(f"labels/{part}", labels) == labels).all()
            arrays[f"{method}/{part}"] = np.asarray(predictions.array)
            arrays["class_names"] = np.asarray(predictions.class_names)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{options.name}.npz"
    np.savez_compressed(path, **arrays)
    print(f"{path}: {path.stat().st_size:,} bytes, {', '.join(options.methods)}")


if __name__ == "__main__":
    main()
