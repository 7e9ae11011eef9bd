"""Does scaling class-wise losses calibrate better? The paper's table, on the data folder's sets.

    python benchmarks/class_scaling.py --jobs 16     # fits what the cache does not hold yet
    python benchmarks/class_scaling.py --report      # writes the tables and sentences from it

Four calibrators by four objectives (class-scaling table 1), their variants (table 3, and the
corrected estimate), and one temperature by soft- and hard-binned ECE (soft-calibration
appendix C), over seeded half/half splits. Runs can be stopped and resumed at any fit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from calibrant import Predictions
from calibrant.calibrators import get
from calibrant.metrics import measure
from calibrant.metrics.base import compute_all
from class_scaling_fits import correlation
from class_scaling_report import write
from harness import cut_off

HERE = Path(__file__).resolve().parent
SETS = (
    "cifar10-repvgg-a2",
    "cifar10-resnet20",
    "cifar10-vgg19bn",
    "cifar100-repvgg-a2",
    "cifar100-resnet20",
    "cifar100-vgg19bn",
    "imagenet5k-efficientnet-lite0",
    "imagenet5k-efficientnet-lite2",
)
SEEDS = 5
SMOOTHING = 0.05

# ETS is eq. 13 as printed, and CTS unregularised, as published; the last two are the library's.
CALIBRATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "TS": ("temperature", {}),
    "ETS": ("ensemble_temperature", {"space": "logits"}),
    "PTS": ("parameterized_temperature", {}),
    "CTS": ("class_temperature", {"spread": None}),
    "ETS of probabilities": ("ensemble_temperature", {}),
    "CTS drawn to TS": ("class_temperature", {}),
}
OBJECTIVES: dict[str, tuple[str, dict[str, Any]]] = {
    "NLL": ("nll", {}),
    "LS": ("label_smoothing", {"smoothing": SMOOTHING}),
    "FL": ("focal", {"gamma": 3.0, "detach_weight": True}),
    "FL whole": ("focal", {"gamma": 3.0}),
    **{
        f"CS {how} {estimate}": ("class_scaled", {"normalisation": how, "estimate": estimate})
        for estimate in ("printed", "corrected")
        for how in ("nd", "mm", "cm")
    },
}
BINNED: dict[str, tuple[str, dict[str, Any]]] = {"SB-ECE": ("sb_ece", {}), "HB-ECE": ("ece", {})}
PATH_POINTS = 11

MEASURES = {
    "ece": measure("ece"),
    "ece_mass_l2": measure("ece", order=2, binning="mass"),  # as soft-calibration measures
    "nll": measure("nll"),
    "classwise_ece": measure("classwise_ece"),
    "accuracy": measure("accuracy"),
    "spread": measure("classwise_nll_std"),
}


class Cell(NamedTuple):
    """One fit: its key in the cache."""

    set: str
    seed: int
    calibrator: str
    objective: str


def cells(sets: Iterable[str], seeds: int, calibrators: Iterable[str]) -> list[Cell]:
    """All fits, the longest first so that processes end together."""
    kinds = [("none", "none"), ("path", "NLL"), ("ETS free", "LS"), ("ETS free", "NLL")]
    kinds += [("TS", objective) for objective in BINNED]
    kinds = [kind for kind in kinds if "TS" in calibrators]
    kinds += [(calibrator, objective) for calibrator in calibrators for objective in OBJECTIVES]
    found = [Cell(name, seed, *kind) for name in sets for seed in range(seeds) for kind in kinds]
    return sorted(found, key=_length, reverse=True)


def _length(cell: Cell) -> tuple[int, bool, bool]:
    classes = 1000 if "imagenet" in cell.set else 100 if "cifar100" in cell.set else 10
    return classes, cell.calibrator in ("PTS", "CTS", "CTS drawn to TS"), "CS" in cell.objective


@lru_cache(maxsize=2)
def halves(data: Path, name: str, seed: int) -> tuple[Predictions, Predictions]:
    """The half that is fitted on and the half that is tested on, as `calibrant rank` splits."""
    with np.load(data / "logits" / f"{name}.npz") as file:
        found = Predictions.from_logits(file["logits"], file["labels"].astype(np.int64))
    return found.split(0.5, seed=seed)


def figures(logits: Any, labels: Any) -> dict[str, float]:
    values = compute_all(list(MEASURES.values()), [(logits, labels)])
    return dict(zip(MEASURES, (float(value) for value in values), strict=True))


class Setting(NamedTuple):
    """Where the data are, what is computed on, and the seconds a fit may take."""

    data: Path
    device: str
    limit: float


def run(setting: Setting, cell: Cell) -> dict[str, Any]:
    """One fit and what the test half says of it."""
    fitting, testing = halves(setting.data, cell.set, cell.seed)
    record: dict[str, Any] = cell._asdict()
    begun = time.perf_counter()
    try:
        with warnings.catch_warnings(record=True) as said, cut_off(setting.limit):
            warnings.simplefilter("always")
            if cell.calibrator == "path":
                record |= path(fitting, testing)
            elif cell.calibrator == "ETS free":
                record["temperature"] = free_mixture(fitting, cell.objective)
            else:
                record |= fit(cell, fitting, testing, setting.device)
        texts = {str(entry.message) for entry in said if entry.category is UserWarning}
        # The first words tell one from another; the rest are figures.
        record["note"] = "; ".join(sorted({text.split(":")[0] for text in texts}))
    except TimeoutError:
        record |= {"failure": f"cut off after {setting.limit:.0f} s", "limit": setting.limit}
    except Exception as error:  # told in the report, and tried again next time
        record["failure"] = f"{type(error).__name__}: {error}"[:300]
    record["seconds"] = round(time.perf_counter() - begun, 2)
    return record


def fit(cell: Cell, fitting: Predictions, testing: Predictions, device: str) -> dict[str, Any]:
    if cell.calibrator == "none":
        return figures(testing.array, testing.labels)
    method, options = CALIBRATORS[cell.calibrator]
    objective, details = {**OBJECTIVES, **BINNED}[cell.objective]
    made = get(method, objective=objective, objective_options=details or None, **options)
    logits, labels = (torch.as_tensor(part).to(device) for part in (fitting.array, fitting.labels))
    made.fit(logits, labels)
    own = figures(made.calibrate(logits).cpu(), torch.as_tensor(fitting.labels))
    rest = made.calibrate(torch.as_tensor(testing.array).to(device)).cpu()
    found = figures(rest, torch.as_tensor(testing.labels))
    found |= {"fit_nll": own["nll"], "fit_spread": own["spread"], **made.facts_}
    if hasattr(made, "temperature_"):
        found["temperature"] = float(made.temperature_)
    return found


def path(fitting: Predictions, testing: Predictions) -> dict[str, float]:
    """Correlations along T: from 1 to the fitted one, and as far again (in ln T) beyond."""
    fitted = get("temperature").fit(fitting.array, fitting.labels)
    whole = float(fitted.temperature_.log())
    steps = np.linspace(0.0, 2 * whole, 2 * PATH_POINTS - 1)
    seen = [figures(testing.array * np.float32(np.exp(-at)), testing.labels) for at in steps]
    found = {"path_spread": correlation([point["spread"] for point in seen], steps.tolist())}
    for part, points in (("toward", seen[:PATH_POINTS]), ("beyond", seen[PATH_POINTS - 1 :])):
        error = [point["ece"] for point in points]
        for figure in ("spread", "nll"):
            found[f"{part}_{figure}"] = correlation([point[figure] for point in points], error)
    return found


def free_mixture(fitting: Predictions, objective: str) -> float:
    """The temperature 1/(w1/T + w2) that eq. 13 of class-scaling comes to, T, w1, w2 all free.

    w3/K is the same for every class and changes nothing. Started from T = 1 and equal weights.
    """
    from scipy.optimize import minimize

    logits = torch.as_tensor(fitting.array).double()
    target = torch.as_tensor(fitting.labels)
    smoothing = SMOOTHING if objective == "LS" else 0.0

    def scale(at: Tensor) -> Tensor:
        return at[1] * (-at[0]).exp() + at[2]

    def value(point: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.tensor(point, requires_grad=True)
        loss = cross_entropy(logits * scale(at), target, label_smoothing=smoothing)
        loss.backward()
        return loss.item(), at.grad.numpy()

    start = np.array([0.0, 1 / 3, 1 / 3])
    best = minimize(value, start, jac=True, method="BFGS", options={"gtol": 1e-8}).x
    return 1.0 / float(scale(torch.tensor(best)))


def known(cache: Path) -> dict[Cell, dict[str, Any]]:
    """What the cache holds, the last of each."""
    if not cache.exists():
        return {}
    records = [json.loads(line) for line in cache.read_text().splitlines() if line.strip()]
    return {Cell(*(record[name] for name in Cell._fields)): record for record in records}


def results(setting: Setting, wanted: list[Cell], jobs: int) -> Iterator[dict[str, Any]]:
    if jobs == 1:
        yield from (run(setting, cell) for cell in reversed(wanted))
        return
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        for done in as_completed([pool.submit(run, setting, cell) for cell in wanted]):
            yield done.result()


def default_data() -> Path:
    named = os.environ.get("CALIBRANT_TEST_DATA")
    return Path(named) if named else HERE.parents[1] / "shared" / "data"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=default_data(), help="folder with logits/")
    parser.add_argument("--sets", nargs="+", default=SETS, metavar="SET")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="splits 0 to N-1")
    parser.add_argument("--calibrators", nargs="+", choices=CALIBRATORS, default=[*CALIBRATORS])
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, a core each")
    parser.add_argument("--limit", type=float, default=1800.0, metavar="SECONDS", help="of a fit")
    parser.add_argument("--device", default="cpu", help="to fit on: cpu or cuda")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build/class_scaling.jsonl")
    parser.add_argument("--fresh", action="store_true", help="fit anew what the cache holds")
    parser.add_argument("--report", action="store_true", help="fit nothing; write from the cache")
    parser.add_argument("--write", type=Path, default=HERE, metavar="FOLDER", help="of the report")
    options = parser.parse_args(arguments)
    if options.report:
        kept = known(options.cache)
        if not kept:
            sys.exit(f"{options.cache} holds no fits yet: run without --report first")
        print(write(kept.values(), options.write))
        return
    torch.set_num_threads(1)
    options.cache.parent.mkdir(parents=True, exist_ok=True)
    held = {} if options.fresh else known(options.cache)
    # What was cut off would be cut off again, given no more time.
    done = {
        cell
        for cell, record in held.items()
        if "failure" not in record or record.get("limit", 0.0) >= options.limit
    }
    every = cells(options.sets, options.seeds, options.calibrators)
    wanted = [cell for cell in every if cell not in done]
    print(f"{len(every)} fits, {len(every) - len(wanted)} of them in {options.cache}", flush=True)
    failed = 0
    with options.cache.open("a") as file:
        setting = Setting(options.data, options.device, options.limit)
        for count, record in enumerate(results(setting, wanted, options.jobs), 1):
            file.write(json.dumps(record) + "\n")
            file.flush()
            failed += "failure" in record
            name = " ".join(str(record[field]) for field in Cell._fields)
            said = record.get("failure", "")
            print(f"{count}/{len(wanted)} {name}: {record['seconds']} s {said}", flush=True)
    if failed:
        sys.exit(f"{failed} fits failed; the report names them")


if __name__ == "__main__":
    main()
