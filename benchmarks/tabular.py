"""The choice that `calibrate` makes, beside peers: test NLL on many sets, one JSON line a fit.

    python benchmarks/tabular.py --jobs 2 --lines build/tabular.jsonl --write benchmarks/TABULAR.md

Lines that are there already are not measured again, so runs may be done in pieces and on several
machines. Libraries that are not installed are left out. Every fit runs in one thread.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray

from calibrator_contestants import (
    Predict,
    by_name,
    fit_auto,
    fit_netcal,
    fit_ours,
    fit_probmetrics,
    fit_sklearn,
    floored,
    leave_alone,
    quiet_warnings,
    softmax,
    version_of,
)
from tabular_sets import Experiment, list_experiments, read

ROOT = Path(__file__).resolve().parent.parent
AUTO, IDENTITY = "calibrant auto", "identity"
HARM = 0.001  # relative
Fit = Callable[..., Predict]
Line = dict[str, Any]


def contestants() -> dict[str, tuple[str, Fit, bool, bool]]:
    """Return library, fit, and whether a method is for two classes and for more, by name."""
    logits, probs, mixed = "decision_function", "predict_proba", {"calibrate_with_mixture": True}
    quadratic: dict[str, Any] = {"logistic_binary_type": "quadratic"}
    quiet = {"sms_print_init_info": False}
    return {
        IDENTITY: ("calibrant", leave_alone, True, True),
        AUTO: ("calibrant", fit_auto, True, True),
        "calibrant temperature": ("calibrant", partial(fit_ours, "temperature"), True, True),
        "calibrant vector": ("calibrant", partial(fit_ours, "vector"), False, True),
        "calibrant beta": ("calibrant", partial(fit_ours, "beta"), True, False),
        "probmetrics temperature, mixture": (
            "probmetrics",
            partial(fit_probmetrics, partial(by_name, "ts-mix")),
            True,
            True,
        ),
        "probmetrics sms": (
            "probmetrics",
            partial(fit_probmetrics, partial(by_name, "sms", **quiet)),
            False,
            True,
        ),
        "probmetrics sms, mixture": (
            "probmetrics",
            partial(fit_probmetrics, partial(by_name, "sms", **quiet, **mixed)),
            False,
            True,
        ),
        "probmetrics svs, mixture": (
            "probmetrics",
            partial(fit_probmetrics, partial(by_name, "svs", svs_print_init_info=False, **mixed)),
            False,
            True,
        ),
        "probmetrics affine, mixture": (
            "probmetrics",
            partial(fit_probmetrics, partial(by_name, "logistic-mix")),
            True,
            False,
        ),
        "probmetrics quadratic": (
            "probmetrics",
            partial(fit_probmetrics, partial(by_name, "logistic", **quadratic)),
            True,
            False,
        ),
        "probmetrics quadratic, mixture": (
            "probmetrics",
            partial(fit_probmetrics, partial(by_name, "logistic-mix", **quadratic)),
            True,
            False,
        ),
        "probmetrics isotonic, mixture": (
            "probmetrics",
            partial(fit_probmetrics, partial(by_name, "isotonic", **mixed)),
            True,
            True,
        ),
        "probmetrics venn-abers": (
            "probmetrics",
            partial(fit_probmetrics, partial(by_name, "ivap")),
            True,
            False,
        ),
        "netcal beta": (
            "netcal",
            partial(fit_netcal, "scaling", "BetaCalibration", {}),
            True,
            False,
        ),
        "netcal logistic": (
            "netcal",
            partial(fit_netcal, "scaling", "LogisticCalibration", {}),
            True,
            True,
        ),
        "scikit-learn temperature": (
            "scikit-learn",
            partial(fit_sklearn, "temperature", logits, np.float64),
            True,
            True,
        ),
        "scikit-learn sigmoid": (
            "scikit-learn",
            partial(fit_sklearn, "sigmoid", logits, np.float64),
            True,
            True,
        ),
        "scikit-learn isotonic": (
            "scikit-learn",
            partial(fit_sklearn, "isotonic", probs, np.float64),
            True,
            True,
        ),
    }


def measure(
    experiment: Experiment, names: Iterable[str], folder: Path | None, cache: Path
) -> list[Line]:
    """Fit every method on an experiment; return test figures, one line each."""
    torch.set_num_threads(1)
    quiet_warnings()
    _import_all()
    data = read(experiment, folder, cache)
    if "probs" in data:
        given, test = (
            np.log(floored(data[key])).astype(np.float32) for key in ("probs", "test_probs")
        )
    else:
        given, test = data["logits"], data["test_logits"]
    y, rows = data["test_labels"], len(data["labels"])
    classes, base = given.shape[1], _losses(softmax(test), y)
    lines = []
    for name in names:
        _, fit, for_two, for_more = contestants()[name]
        if not (for_two if classes == 2 else for_more):
            continue
        line: Line = {
            "experiment": experiment.name,
            "set": experiment.set,
            "model": experiment.model,
            "half": experiment.half,
            "rows": rows,
            "classes": classes,
            "method": name,
        }
        started = time.perf_counter()
        try:
            predict = fit(given, data["labels"])
            line["seconds"] = time.perf_counter() - started
            losses = _losses(predict(test), y)
            gap = losses - base
            line |= {
                "nll": float(losses.mean()),
                "identity": float(base.mean()),
                "error": float(gap.std(ddof=1) / len(gap) ** 0.5),
                "says": getattr(predict, "says", ""),
            }
        except Exception as error:  # a peer may fail in any way: record it
            line |= {"seconds": time.perf_counter() - started, "failure": f"{error!r}"[:200]}
        lines.append(line)
    return lines


@lru_cache(maxsize=1)
def _import_all() -> None:
    """Fit every method once on a few rows, so that no time includes an import."""
    rng = np.random.default_rng(0)
    for classes in (2, 3):
        z = rng.normal(size=(60, classes)).astype(np.float32)
        y = (z + rng.gumbel(size=z.shape)).argmax(1)
        for library, fit, for_two, for_more in contestants().values():
            if version_of(library) and (for_two if classes == 2 else for_more):
                with suppress(Exception):
                    fit(z, y)


def _losses(probs: NDArray[Any], y: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(-np.log(floored(probs)[np.arange(len(y)), y]))


def run(
    experiments: list[Experiment],
    names: list[str],
    path: Path,
    *,
    folder: Path | None,
    cache: Path,
    jobs: int,
) -> list[Line]:
    """Measure what the file of lines does not have yet; return all lines."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known = {(line["experiment"], line["method"]) for line in lines if "method" in line}
    work = []
    for experiment in experiments:
        left = [name for name in names if (experiment.name, name) not in known]
        if left:
            work.append((experiment, left, folder, cache))
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("a") as file,
        multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=40) as pool,
    ):
        for number, found in enumerate(pool.imap_unordered(_measure_one, work), 1):
            file.writelines(json.dumps(line) + "\n" for line in found)
            file.flush()
            lines += found
            print(f"\r{number} of {len(work)} experiments", end="", file=sys.stderr, flush=True)
    return lines


def _measure_one(work: tuple[Experiment, list[str], Path | None, Path]) -> list[Line]:
    return measure(*work)


SIZES = ((5_000, 2), (5_000, 10), (5_000, 100), (25_000, 1_000))


def measure_times(repeats: int) -> list[Line]:
    """Fit the choice on logits of the sizes that have a limit; return processor seconds."""
    import calibrant

    torch.set_num_threads(1)
    _import_all()
    lines = []
    for rows, classes in SIZES:
        rng = np.random.default_rng(0)
        logits = 2 * rng.standard_normal((rows, classes), dtype=np.float32)
        labels = np.empty(rows, dtype=np.int64)
        for start in range(0, rows, 1_000):
            part = logits[start : start + 1_000]
            labels[start : start + 1_000] = (part + rng.gumbel(size=part.shape)).argmax(1)
        held = calibrant.Predictions.from_logits(1.5 * logits, labels)
        taken = []
        for _ in range(repeats if classes < 1_000 else 1):
            started = time.process_time()
            calibrant.calibrate(held)
            taken.append(time.process_time() - started)
        lines.append({"rows": rows, "classes": classes, "processor": taken})
    return lines


# --- the report ------------------------------------------------------------------------


def tabulate(lines: list[Line], half: str, *, two: bool) -> list[str]:
    """Return a table of one half's sets of two classes, or of more: the best method first."""
    chosen = [x for x in lines if x["half"] == half and (x["classes"] == 2) == two]
    table: dict[str, dict[str, Line]] = defaultdict(dict)
    for line in chosen:
        table[line["method"]][line["experiment"]] = line
    if AUTO not in table:
        return ["(not measured)"]
    experiments = sorted(table[AUTO])
    set_of = {name: table[AUTO][name]["set"] for name in experiments}
    nll = {
        method: np.array([found.get(e, {}).get("nll", np.inf) for e in experiments])
        for method, found in table.items()
        if any("nll" in line for line in found.values())
    }
    base = np.array([table[AUTO][e]["identity"] for e in experiments])
    wins = {method: _win_rates(nll, method) for method in nll}
    rows = []
    for method in sorted(nll, key=lambda name: -wins[name].mean()):
        found = table[method]
        finite = np.isfinite(nll[method])
        gain = 1.0 - np.where(finite, nll[method], base) / base
        errors = np.array([found.get(e, {}).get("error", np.inf) for e in experiments])
        worse = finite & (nll[method] > base * (1 + HARM))
        surely = worse & (nll[method] - base > 2 * errors)
        seconds = [found[e]["seconds"] for e in experiments if e in found]
        gap, error = _by_set(wins[AUTO] - wins[method], [set_of[e] for e in experiments])
        against = "" if method == AUTO else f"{gap:+.3f} ± {error:.3f}"
        rows.append(
            f"| {method} | {wins[method].mean():.3f} | {against} | {gain.mean():.2%} | "
            f"{np.median(gain):.2%} | {worse.mean():.1%} | {int(surely.sum())} | "
            f"{np.median(seconds):.3f} | {max(seconds):.2f} | {int((~finite).sum())} |"
        )
    sets = len(set(set_of.values()))
    return [
        f"{len(experiments)} set-splits of {sets} sets.",
        "",
        "| method | win rate | auto − it | mean gain | median gain | worse | surely | "
        "median s | most s | failed |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
        *rows,
    ]


def _win_rates(nll: dict[str, NDArray[np.float64]], method: str) -> NDArray[np.float64]:
    """Return the share of other methods that a method beats, by experiment; ties are halves."""
    own = nll[method]
    won = [
        np.where(np.isclose(own, other, rtol=1e-6, atol=0), 0.5, own < other)
        for name, other in nll.items()
        if name != method
    ]
    return np.asarray(np.mean(won, axis=0))


def _by_set(gaps: NDArray[np.float64], sets: list[str]) -> tuple[float, float]:
    """Return the mean gap and its standard error, whose units are whole sets."""
    codes = np.unique(sets, return_inverse=True)[1]
    parts = np.bincount(codes, gaps - gaps.mean()) / len(gaps)
    count = len(parts)
    return float(gaps.mean()), float(np.sqrt((parts**2).sum() * count / max(1, count - 1)))


def write_report(lines: list[Line], note: str = "") -> str:
    """Return the report: what is measured, and a table for each half and kind."""
    times = [line for line in lines if "processor" in line]
    lines = [line for line in lines if "method" in line]
    libraries = sorted({contestants()[line["method"]][0] for line in lines})
    text = [
        "# The choice that `calibrate` makes, on many sets",
        "",
        "Written by `benchmarks/tabular.py` (`--help` says how).",
        "",
        f"- {', '.join(f'{name} {version_of(name)}'.strip() for name in libraries)}",
        "- sets that scikit-learn ships or generates, six of its models each, 53 to 10,000 rows to "
        "calibrate on; logits of real networks, 150 rows, 600 rows and all",
        "- one thread",
        *([f"- {note}"] if note else []),
        "",
        "*Win rate*: the share of the other methods that a method beats in test NLL, mean over "
        "set-splits. *auto − it*: difference of win rates, ± its standard error over sets. *Gain*: "
        "NLL saved, relative to leaving scores alone. *Worse*: test NLL over 0.1% above that of "
        "leaving scores alone; *surely*: and above it by two paired standard errors too (a "
        "count). A method that fails loses. Probabilities are floored at 1e-12, in and out. "
        "Seconds are of the clock, on a machine that may have been busy.",
        "",
        "The design was chosen on the first half of the sets; which half a set is in was fixed, by "
        "a hash of its name, before any result was seen. **The second half is the report.**",
    ]
    if times:
        text += ["", "## Processor seconds of `calibrate`", "", "| rows | classes | s | fits |"]
        text += ["| --: | --: | --: | --: |"]
        text += [
            f"| {line['rows']:,} | {line['classes']:,} | {np.median(line['processor']):.2f} | "
            f"{len(line['processor'])} |"
            for line in times
        ]
    for half in ("report", "design"):
        for two in (True, False):
            kind = "two classes" if two else "more classes"
            text += [
                "",
                f"## {half.capitalize()} half, {kind}",
                "",
                *tabulate(lines, half, two=two),
            ]
    return "\n".join(text) + "\n"


def write_table(lines: list[Line], path: Path) -> None:
    """Write the test NLL of every method, one line an experiment."""
    import pandas as pd

    table = pd.DataFrame([line for line in lines if "method" in line])
    keys = ["half", "experiment", "set", "model", "rows", "classes"]
    table = table.pivot(index=keys, columns="method", values="nll")
    table.to_csv(path, float_format="%.5g")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--splits", type=int, default=2, help="splits of each set")
    parser.add_argument("--half", choices=("design", "report", "both"), default="both")
    parser.add_argument("--every", type=int, default=1, help="measure every Nth experiment")
    parser.add_argument("--most", type=int, default=0, help="leave out sets of more numbers")
    parser.add_argument("--method", action="append", help="a method (repeat for more)")
    parser.add_argument("--data", type=Path, default=os.environ.get("CALIBRANT_TEST_DATA"))
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "tabular")
    parser.add_argument("--lines", type=Path, default=ROOT / "build" / "tabular.jsonl")
    parser.add_argument("--note", default="", help="a line to add, such as what was left out")
    parser.add_argument("--times", type=int, default=0, help="also time so many fits of a size")
    parser.add_argument("--write", type=Path, help="the report")
    options = parser.parse_args()
    beside = ROOT.parent / "shared" / "data"
    folder = Path(options.data) if options.data else beside if beside.is_dir() else None
    found = list_experiments(folder, options.splits)
    found = [e for e in found if options.half in ("both", e.half)][:: options.every]
    if options.most:
        found = [e for e in found if count_numbers(e, folder, options.cache) <= options.most]
    names = [
        name
        for name, (library, *_) in contestants().items()
        if version_of(library) and (not options.method or name in options.method)
    ]
    if options.times:
        with options.lines.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in measure_times(options.times))
    lines = run(found, names, options.lines, folder=folder, cache=options.cache, jobs=options.jobs)
    report = write_report(lines, options.note)
    if options.write:
        options.write.write_text(report)
        write_table(lines, options.write.with_name("tabular.csv"))
    else:
        print(report)


def count_numbers(experiment: Experiment, folder: Path | None, cache: Path) -> int:
    """Return how many scores there are to calibrate on."""
    data = read(experiment, folder, cache)
    return int(data.get("probs", data.get("logits")).size)


if __name__ == "__main__":
    main()
