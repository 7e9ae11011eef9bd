"""Pack data sets into the `.npz` files that CALIBRANT_DATA may name.

    python scripts/pack_data.py FOLDER OUT [cifar10 cifar100 camvid]

FOLDER holds CIFAR and CamVid as compressed parts, and a `load.py` that reads them.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

import numpy as np

CAMVID = ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence")
CAMVID += ("car", "pedestrian", "bicyclist")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", default=["cifar10", "cifar100", "camvid"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    load = reader(options.folder)
    for name in options.names or ["cifar10", "cifar100", "camvid"]:
        pack = camvid(load) if name == "camvid" else load.images(name, options.folder)
        np.savez(options.out / f"{name}.npz", **pack)
        print(
            f"{options.out / name}.npz: {len(pack['x_train']):,} training images", file=sys.stderr
        )


def reader(folder: Path):
    spec = importlib.util.spec_from_file_location("load", folder / "load.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def camvid(load) -> dict[str, np.ndarray]:
    parts = load.camvid()
    pack = {"classes": np.array(CAMVID), "void": np.array(11)}
    for ours, theirs in (("train", "train"), ("validation", "val"), ("test", "test")):
        pack[f"x_{ours}"] = parts[f"{theirs}_image"]
        pack[f"y_{ours}"] = parts[f"{theirs}_mask"].astype(np.uint8)
    return pack


if __name__ == "__main__":
    main()
