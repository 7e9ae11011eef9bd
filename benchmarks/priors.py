"""Adapt real networks to other shares of classes, beside `abstention`.

    python benchmarks/priors.py --data ../shared/data --write benchmarks/PRIORS.md
    python benchmarks/priors.py --data ../shared/data --keep kept    # resumes; a file a set

The networks' outputs are not part of the project. `abstention` (PyPI) is optional: without it only
ours is measured. Each draw takes source rows with labels, and new rows whose labels are hidden from
the methods and used to judge them.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from calibrant import Predictions, metrics
from calibrant.calibrators import apply
from calibrant.calibrators.methods.prior_shift import Shift
from calibrant.decisions.adapt import _prepare  # whose estimate has no intervals yet

LONG_TAILED = ("densenet40", "resnet110", "resnet110sd", "wrn28")
OTHERS = (
    "cifar10-resnet20",
    "cifar10-vgg19bn",
    "cifar100-resnet20",
    "pathmnist-resnet50",
    "agnews-gpt2",
    "iemocap-wav2vec",
    "pneumoniamnist-resnet50",
)
FIGURES = ("error", "nll", "ece")


class Rows(NamedTuple):
    """Logits with labels."""

    logits: np.ndarray
    labels: np.ndarray

    def take(self, rows: np.ndarray) -> Rows:
        """Some of the rows."""
        return Rows(self.logits[rows], self.labels[rows])


class Set(NamedTuple):
    """Source and new rows of a network, and how the new rows' shares are drawn."""

    name: str
    shift: str
    source: Callable[[np.random.Generator], tuple[Rows, Rows]]
    new: int

    def draw(self, seed: int) -> tuple[Rows, Rows]:
        """Source rows, and new ones with other shares."""
        rng = np.random.default_rng([26, seed])
        source, pool = self.source(rng)
        classes = pool.logits.shape[1]
        shares = np.full(classes, 1 / classes)
        if self.shift == "random":
            shares = rng.dirichlet(np.ones(classes))
        if self.shift == "long tail":
            shares = np.logspace(0, -2, classes)[rng.permutation(classes)]
        counts = rng.multinomial(self.new, shares / shares.sum())
        rows = [
            rng.choice(own, count, replace=count > len(own))
            for own, count in zip(
                (np.flatnonzero(pool.labels == k) for k in range(classes)), counts, strict=True
            )
        ]
        return source, pool.take(np.concatenate(rows))


def read_sets(data: Path) -> Iterator[Set]:
    for name in LONG_TAILED:
        held = np.load(data / "logits-cifar10-lt" / f"{name}.npz")
        val = Rows(held["validation_logits"].astype(float), held["validation_labels"].astype(int))
        test = Rows(held["test_logits"].astype(float), held["test_labels"].astype(int))

        def cut(rng: np.random.Generator, rows: Rows = test) -> tuple[Rows, Rows]:
            """Half of the test rows with a long tail, and the other half."""
            order = rng.permutation(len(rows.labels))
            first, second = (rows.take(half) for half in np.array_split(order, 2))
            own = [np.flatnonzero(first.labels == k) for k in range(10)]
            counts = (500 * np.logspace(0, -2, 10)).astype(int)
            kept = np.concatenate([each[:n] for each, n in zip(own, counts, strict=True)])
            return first.take(kept), second

        for shift in ("even", "random"):
            yield Set(f"CIFAR-10-LT {name}", shift, lambda _, v=val, t=test: (v, t), 2_000)
            yield Set(f"CIFAR-10-LT {name}, halves", shift, cut, 1_000)
    for name in OTHERS:
        held = np.load(data / "logits" / f"{name}.npz")
        rows = Rows(held["logits"].astype(float), held["labels"].astype(int))

        def halve(rng: np.random.Generator, rows: Rows = rows) -> tuple[Rows, Rows]:
            order = rng.permutation(len(rows.labels))
            middle = len(order) // 2
            return rows.take(order[:middle]), rows.take(order[middle:])

        for shift in ("random", "long tail"):
            yield Set(name, shift, halve, min(1_000, len(rows.labels) // 2))


Found = dict[str, tuple[np.ndarray, np.ndarray]]


def adapt_ours(source: Rows, target: Rows) -> tuple[Found, Shift]:
    """Shares and probabilities: without adapting, ours, and with the true shares."""
    val = Predictions.from_logits(source.logits, source.labels)
    new = Predictions.from_logits(target.logits, None)
    prepared = _prepare(None, val, new, None, force=True)
    classes = source.logits.shape[1]
    count = np.bincount(target.labels, minlength=classes) + 1e-6
    found: Found = {}
    for name, shares in (
        ("not adapted", prepared.shift.source),
        ("calibrant, EM", prepared.shift.target),
        ("calibrant, true shares", tuple((count / count.sum()).tolist())),
    ):
        made = prepared.make(replace(prepared.shift, target=shares))
        found[name] = (np.array(shares), softmax(np.asarray(apply(made, new).array)))
    return found, prepared.shift


def softmax(logits: np.ndarray) -> np.ndarray:
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def adapt_theirs(source: Rows, target: Rows) -> Found:
    """The same by abstention: its EM as documented, on calibrated rows, and BBSE."""
    try:
        from abstention.calibration import TempScaling
        from abstention.label_shift import BBSEImbalanceAdapter, EMImbalanceAdapter
    except ImportError:
        return {}
    classes = source.logits.shape[1]
    val, new = softmax(source.logits), softmax(target.logits)
    hot = np.eye(classes)[source.labels]
    bcts = TempScaling(bias_positions=list(range(classes)))
    fitted = bcts(valid_preacts=val, valid_labels=hot, posterior_supplied=True)
    val_fitted, new_fitted = fitted(val), fitted(new)
    prior = val_fitted.mean(0)
    found = {}
    for name, adapter, first, second in (
        ("abstention, EM", EMImbalanceAdapter(calibrator_factory=bcts), new, val),
        ("abstention, EM, calibrated first", EMImbalanceAdapter(), new_fitted, val_fitted),
        ("abstention, BBSE", BBSEImbalanceAdapter(), new_fitted, val_fitted),
        ("abstention, BBSE soft", BBSEImbalanceAdapter(soft=True), new_fitted, val_fitted),
    ):
        try:
            function = adapter(
                valid_labels=hot, tofit_initial_posterior_probs=first, valid_posterior_probs=second
            )
        except np.linalg.LinAlgError:  # a singular matrix
            continue
        weights = np.asarray(function.multipliers)
        shares = prior * weights
        raised = new_fitted * weights.clip(min=0)
        probs = raised / raised.sum(1, keepdims=True).clip(min=1e-300)
        found[name] = (shares / shares.sum(), probs)
    return found


def run_draw(each: Set, seed: int) -> dict[str, Any]:
    """Return the figures of every method on one draw."""
    source, target = each.draw(seed)
    if np.bincount(source.labels, minlength=source.logits.shape[1]).min() == 0:
        return {}
    truth = np.bincount(target.labels, minlength=source.logits.shape[1]) / len(target.labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, shift = adapt_ours(source, target)
        found |= adapt_theirs(source, target)
    figures: dict[str, Any] = {
        "fit": {
            "p": shift.fit_p_value,
            "misfit": shift.misfit,
            "singular": shift.smallest_singular_value,
            "forced": shift.forced,
        }
    }
    for name, (shares, probs) in found.items():
        safe = probs.clip(1e-12)
        safe = safe / safe.sum(1, keepdims=True)
        figures[name] = {
            "error": 0.5 * float(np.abs(shares - truth).sum()),
            "nll": float(metrics.nll(safe, target.labels, from_logits=False)),
            "ece": float(metrics.ece(safe, target.labels, from_logits=False)),
        }
    return figures


def read_or_run(each: Set, draws: int, keep: Path | None) -> list[dict[str, Any]]:
    """Return the figures of all draws; those kept in a file are read, and more are added."""
    name = f"{each.name} {each.shift}".replace(" ", "-")
    kept = None if keep is None else keep / f"priors-{name}.jsonl"
    results = []
    if kept is not None and kept.exists():
        results = [json.loads(line) for line in kept.read_text().splitlines()][:draws]
    for seed in range(len(results), draws):
        results.append(run_draw(each, seed))
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with kept.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
    return [each for each in results if each]


METHODS = (
    "not adapted",
    "calibrant, EM",
    "abstention, EM",
    "abstention, EM, calibrated first",
    "abstention, BBSE",
    "abstention, BBSE soft",
    "calibrant, true shares",
)
WORDS = """# Changed priors on real networks

Labelled source rows and new rows with other shares of classes, whose labels the methods do not
see; {draws} draws a line (± one standard error). *CIFAR-10-LT*: outputs of four networks trained
on long-tailed CIFAR-10; the source is its long-tailed validation set (10,216 rows), the new rows
are 2,000 of the even test set, evenly or by random shares. *Halves*: the source is one half of
the test set with a long tail again (up to 500 rows a class, 5 of the rarest), 1,000 new rows come
from the other half. Others: one half of a test set is the source, up to 1,000 rows are drawn from
the other half; *random*: shares drawn evenly from all; *long tail*: the last class is 100 times
rarer than the first, in random order. Sources and shares: `benchmarks/priors.py`.

All methods calibrate by bias-corrected temperature scaling on the source rows. *Abstention, EM*
is its `EMImbalanceAdapter(calibrator_factory=...)`, which in version 0.1.3.1 iterates on the
probabilities before they are calibrated; *calibrated first* gives it calibrated ones. Its RLLS
needs cvxpy and is left out. *True shares*: the counted shares of the new rows in closed form,
which no method that sees no labels can reach. A negative weight of BBSE is set to 0.
"""
TABLES = (
    (
        "error",
        "Error of the estimated shares",
        "Total variation from the counted shares, in points.",
    ),
    ("nll", "NLL on the new rows", "Before adapting, and after."),
    ("ece", "ECE on the new rows", "15 bins, in points."),
)


def format_mean(values: list[float], scale: float, digits: int) -> str:
    numbers = scale * np.array(values)
    error = numbers.std(ddof=1) / len(numbers) ** 0.5
    return f"{numbers.mean():.{digits}f} ± {error:.{digits}f}"


def write_page(found: dict[tuple[str, str], list[dict[str, Any]]], draws: int) -> str:
    parts = [WORDS.format(draws=draws)]
    for key, title, words in TABLES:
        skipped = {"calibrant, true shares"} if key == "error" else set()
        names = [name for name in METHODS if name not in skipped]
        lines = [f"| network | shares | {' | '.join(names)} |", "|" + "---|" * (len(names) + 2)]
        scale, digits = (1, 3) if key == "nll" else (100, 1)
        for (network, shift), results in found.items():
            cells = []
            for name in names:
                values = [each[name][key] for each in results if name in each]
                whole = len(values) == len(results) > 1
                cells.append(format_mean(values, scale, digits) if whole else "–")
            lines.append(f"| {network} | {shift} | {' | '.join(cells)} |")
        parts.append(f"## {title}\n\n{words}\n\n" + "\n".join(lines) + "\n")
    lines = [
        "| network | shares | warned | refused | median misfit, points | smallest singular value |",
        "|---|---|---|---|---|---|",
    ]
    for (network, shift), results in found.items():
        fits = [each["fit"] for each in results]
        p_values = np.array([1.0 if fit["p"] is None else fit["p"] for fit in fits])
        misfit = 100 * np.median([fit["misfit"] or 0.0 for fit in fits])
        lines.append(
            f"| {network} | {shift} | {(p_values < 0.05).mean():.0%} | "
            f"{np.mean([fit['forced'] for fit in fits]):.0%} | {misfit:.1f} | "
            f"{np.median([fit['singular'] for fit in fits]):.2f} |"
        )
    parts.append(
        "## The fit test\n\nHow often it warned (p < 5%) and refused (p < 1% with a misfit above 5 "
        "points, or a singular value below .05). Where validation and test rows are alike, 5% of "
        "draws should warn. In CIFAR-10-LT they are not: validation rows have smaller logits than "
        "test rows of the same class (largest logit of class 0 of wrn28: 10.1 and 11.5 on "
        "average), and the test says so; halves of the test set do not differ.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    parts.append(
        "Made by `python benchmarks/priors.py --data FOLDER --write benchmarks/PRIORS.md`.\n"
    )
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="folder of draws made before")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    found = {}
    for each in read_sets(options.data):
        found[each.name, each.shift] = read_or_run(each, options.draws, options.keep)
        print(each.name, each.shift, flush=True)
    page = write_page(found, options.draws)
    if options.write:
        options.write.write_text(page)
    else:
        print(page)


if __name__ == "__main__":
    main()
