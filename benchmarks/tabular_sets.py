"""The experiments of ``tabular.py``: sets, scikit-learn models, and their held-out probabilities.

Nothing is downloaded: sets come with scikit-learn or are generated, and logits of real networks
are read where they are found. A set belongs to the half on which the choice was designed, or to
the half that is reported, by a hash of its name; that rule was fixed before any result was seen.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

MODELS = ("logistic", "bayes", "forest", "boosting", "network", "neighbours")
MOST_TRAIN, MOST_TEST, MOST_HELD = 3000, 5000, 10_000
FLOOR = 1e-12
LOGIT_ROWS = (150, 600, MOST_HELD)  # rows to calibrate on, of sets of logits


@dataclass(frozen=True)
class Experiment:
    """A set, the model that made its scores, the number of rows to calibrate on, and a split."""

    set: str
    model: str
    rows: int  # 0: what the set's own rule says
    split: int

    @property
    def name(self) -> str:
        """Return what tells this experiment from others."""
        return f"{self.set}-{self.model}-{self.rows}-{self.split}"

    @property
    def half(self) -> str:
        """Return ``design`` or ``report``."""
        return half_of(self.set)


def half_of(name: str) -> str:
    """Return the half of a set, by a hash of its name."""
    return ("design", "report")[hashlib.sha256(name.encode()).digest()[0] % 2]


# --- sets ------------------------------------------------------------------------------


def _bins(values: Floats, shares: tuple[float, ...]) -> Labels:
    """Return classes in order of a value, each with its share of the rows."""
    edges = np.quantile(values, np.cumsum(shares)[:-1])
    return np.searchsorted(edges, values).astype(np.int64)


def _shipped(name: str) -> tuple[Floats, Labels]:
    from sklearn import datasets

    if name == "patches":
        return _patches()
    if name.startswith("diabetes"):
        x, values = datasets.load_diabetes(return_X_y=True)
        return x, _bins(values, {"diabetes2": (0.7, 0.3), "diabetes4": (0.25,) * 4}[name])
    if name.startswith("digits"):
        x, y = datasets.load_digits(return_X_y=True)
        return x, {"digits": y, "digits_parity": y % 2, "digits_thirds": y % 3}[name]
    return getattr(datasets, f"load_{name}")(return_X_y=True)


def _patches() -> tuple[Floats, Labels]:
    """Return 6×6 patches of the two photographs that scikit-learn ships: which of the two."""
    from sklearn.datasets import load_sample_images

    rng = np.random.default_rng(0)
    rows, labels = [], []
    for label, image in enumerate(load_sample_images().images):
        for _ in range(6000):
            i, j = rng.integers(0, image.shape[0] - 6), rng.integers(0, image.shape[1] - 6)
            patch = image[i : i + 6, j : j + 6].astype(float)
            grey = patch.mean(2)
            rows.append([grey.std(), np.ptp(grey), *patch.std((0, 1)), *np.diff(grey.mean(0))])
            labels.append(label)
    return np.array(rows), np.array(labels)


SHIPPED = (
    *("iris", "wine", "breast_cancer", "digits", "digits_parity", "digits_thirds"),
    *("diabetes2", "diabetes4", "patches"),
)


def _classification(seed: int, rows: int) -> tuple[Floats, Labels]:
    """Return a draw of `make_classification` whose every setting is drawn."""
    from sklearn.datasets import make_classification

    rng = np.random.default_rng([7, seed])
    classes = int(rng.choice([2, 2, 2, 2, 3, 3, 4, 5, 7, 10, 20]))
    informative = int(rng.integers(max(3, int(np.ceil(np.log2(2 * classes)))), 16))
    weights = rng.dirichlet(np.full(classes, rng.choice([1.5, 5.0, 100.0]))) * 0.9 + 0.1 / classes
    return make_classification(
        n_samples=rows,
        n_features=informative + int(rng.integers(0, 20)),
        n_informative=informative,
        n_redundant=0,
        n_classes=classes,
        n_clusters_per_class=int(rng.integers(1, 3)),
        weights=weights.tolist(),
        flip_y=float(rng.choice([0.0, 0.01, 0.05, 0.15, 0.3])),
        class_sep=float(rng.uniform(0.4, 2.0)),
        random_state=seed,
    )


def _drawn(name: str, rows: int, split: int) -> tuple[Floats, Labels]:
    """Return a generated set of that many rows."""
    from sklearn import datasets as d

    kind, _, number = name.partition(":")
    if kind == "classification":
        return _classification(int(number), rows)
    if kind == "moons":
        return d.make_moons(rows, noise=float(number), random_state=split)
    if kind == "circles":
        return d.make_circles(rows, noise=float(number), factor=0.6, random_state=split)
    if kind == "quantiles":
        return d.make_gaussian_quantiles(
            n_samples=rows, n_features=8, n_classes=int(number), random_state=split
        )
    if kind == "hastie":
        x, y = d.make_hastie_10_2(rows, random_state=split)
        return x, (y > 0).astype(np.int64)
    if kind == "blobs":
        centres = np.random.default_rng(int(number)).normal(0, 2.0, (int(number), 5))
        return d.make_blobs(rows, centers=centres, cluster_std=1.8, random_state=split)
    maker = {"friedman1": d.make_friedman1, "friedman2": d.make_friedman2}[kind[:9]]
    noise = 2.0 if kind == "friedman1" else 150.0
    x, values = maker(rows, noise=noise, random_state=split)
    shares = {"2": (0.85, 0.15), "4": (0.1, 0.3, 0.4, 0.2), "6": (0.03, 0.07, 0.4, 0.3, 0.15, 0.05)}
    return x, _bins(values, shares[number])


DRAWN = (
    *(f"classification:{seed}" for seed in range(40)),
    *[
        "moons:0.2",
        "moons:0.45",
        "circles:0.15",
        "circles:0.3",
        "quantiles:2",
        "quantiles:3",
        "quantiles:6",
    ],
    *["hastie:0", "blobs:3", "blobs:8", "blobs:15"],
    *["friedman1:2", "friedman1:4", "friedman1:6", "friedman2:2", "friedman2:4", "friedman2:6"],
)


def _rows_of(name: str) -> int:
    """Return how many rows of a generated set are for calibration: 142 to 10,000."""
    draw = int.from_bytes(hashlib.sha256(f"rows of {name}".encode()).digest()[:4], "big") / 2**32
    return round(142 * (MOST_HELD / 142) ** draw)


# --- models ----------------------------------------------------------------------------


def _model(name: str, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    makers: dict[str, Callable[[], Any]] = {
        "logistic": lambda: LogisticRegression(max_iter=300),
        "bayes": GaussianNB,
        "forest": lambda: RandomForestClassifier(60, random_state=seed),
        "boosting": lambda: HistGradientBoostingClassifier(max_iter=60, random_state=seed),
        "network": lambda: MLPClassifier((50,), max_iter=60, random_state=seed),
        "neighbours": lambda: KNeighborsClassifier(15),
    }
    return make_pipeline(StandardScaler(), makers[name]())


def _held_out(set_name: str, model: str, split: int) -> dict[str, NDArray[Any]]:
    """Train a model and return its probabilities of rows to calibrate on and of rows to test on."""
    if set_name in SHIPPED:
        x, y = _shipped(set_name)
        order = np.random.default_rng(split).permutation(len(y))
        train, held = min(MOST_TRAIN, len(y) * 2 // 5), min(MOST_HELD, len(y) * 3 // 10)
    else:
        held = _rows_of(set_name)
        train = int(np.clip(held, 300, MOST_TRAIN))
        x, y = _drawn(set_name, train + held + MOST_TEST, split)
        order = np.random.default_rng(split).permutation(len(y))
    x, y = np.asarray(x, dtype=np.float64)[order], np.asarray(y, dtype=np.int64)[order]
    first = np.unique(y[:train])
    keep = np.isin(y, first)  # a class that was never trained on has no column
    x, y = x[keep], np.searchsorted(first, y[keep])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = _model(model, split).fit(x[:train], y[:train])
        probs = fitted.predict_proba(x[train:]).astype(np.float64)
    labels, test = y[train:], slice(held, held + MOST_TEST)
    return {
        "probs": probs[:held],
        "labels": labels[:held],
        "test_probs": probs[test],
        "test_labels": labels[test],
    }


# --- logits of networks ----------------------------------------------------------------


def logit_files(folder: Path | None) -> dict[str, Path]:
    """Return the files of logits of real networks by name; none without the folder."""
    if folder is None:
        return {}
    plain = {path.stem: path for path in sorted((folder / "logits").glob("*.npz"))}
    tailed = sorted((folder / "logits-cifar10-lt").glob("*.npz"))
    return plain | {f"lt-{path.stem}": path for path in tailed}


def _logits(path: Path, rows: int, split: int) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as found:
        data = {key: found[key] for key in found.files}
    rng = np.random.default_rng([split, rows])
    if "test_logits" in data:
        given, y = data["validation_logits"], data["validation_labels"]
        chosen = rng.permutation(len(y))[:rows]
        parts = given[chosen], y[chosen], data["test_logits"], data["test_labels"]
    else:
        given = data["logits"] if "logits" in data else np.log(np.maximum(data["probs"], FLOOR))
        order, y = rng.permutation(len(given)), data["labels"]
        half = len(y) // 2
        held, test = order[: min(rows, half)], order[half : half + 2 * MOST_TEST]
        parts = given[held], y[held], given[test], y[test]
    names = ("logits", "labels", "test_logits", "test_labels")
    return {
        name: part.astype(np.int64 if "labels" in name else np.float32)
        for name, part in zip(names, parts, strict=True)
    }


# --- all -------------------------------------------------------------------------------


def list_experiments(folder: Path | None, splits: int) -> list[Experiment]:
    """Return every experiment, the same for everybody who has the same files."""
    made = [
        Experiment(name, model, 0, split)
        for name in (*SHIPPED, *DRAWN)
        for model in MODELS
        for split in range(splits)
    ]
    real = [
        Experiment(name, "network", rows, split)
        for name in logit_files(folder)
        for rows in LOGIT_ROWS
        for split in range(splits)
    ]
    return [*made, *real]


def read(experiment: Experiment, folder: Path | None, cache: Path) -> dict[str, NDArray[Any]]:
    """Return the rows of an experiment; trained models are kept in a cache folder."""
    files = logit_files(folder)
    if experiment.set in files:
        return _logits(files[experiment.set], experiment.rows, experiment.split)
    path = cache / f"{experiment.name.replace(':', '_')}.npz"
    if not path.exists():
        made = _held_out(experiment.set, experiment.model, experiment.split)
        cache.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{hash(experiment)}.npz")
        np.savez_compressed(partial, **made)
        partial.replace(path)
    with np.load(path, allow_pickle=False) as found:
        return {key: found[key] for key in found.files}
