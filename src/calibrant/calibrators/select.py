"""The calibrator that chooses: cross-validated likelihood, and the simplest of the best."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators.base import Calibrator, rows_of
from calibrant.calibrators.registry import CALIBRATORS, get, get_for_scores
from calibrant.functional.errors import InputError
from calibrant.metrics.toplabel import ece
from calibrant.predictions import Predictions

if TYPE_CHECKING:
    import pandas as pd

# From simple to complex: of two methods that data cannot tell apart, the first is taken.
MENU = (
    "identity",
    "temperature",
    "ensemble_temperature",
    "beta",
    "vector",
    "isotonic",
    "intra_order",
    "matrix",
    "dirichlet",
)
_FEW_ROWS = 300
_MANY_SCORES = 5_000_000


@dataclass(frozen=True)
class Candidate:
    """One method on the menu, judged on rows it was not fitted on."""

    method: str
    nll: float
    nll_error: float  # standard error of its difference from the best
    ece: float
    ece_error: float  # standard deviation over folds, over the root of their number
    seconds: float
    chosen: bool = False
    note: str = ""


@dataclass(frozen=True)
class Choice:
    """Why a method was chosen."""

    method: str
    candidates: tuple[Candidate, ...]
    num_rows: int
    folds: int
    settings: dict[str, Any] = field(default_factory=dict)

    def to_frame(self) -> pd.DataFrame:
        """The candidates as a table, best likelihood first."""
        import pandas as pd

        rows = sorted((asdict(one) for one in self.candidates), key=lambda row: row["nll"])
        return pd.DataFrame(rows).set_index("method")

    @property
    def explanation(self) -> str:
        """The choice in words."""
        judged = [one for one in self.candidates if np.isfinite(one.nll)]
        best = min(judged, key=lambda one: one.nll)
        own = next(one for one in judged if one.method == self.method)
        start = (
            "Leave it alone: nothing on the menu was shown to help."
            if self.method == "identity"
            else f"{self.method} is chosen."
        )
        if own.method == best.method:
            return (
                f"{start} Its log-likelihood on rows it was not fitted on is the best of "
                f"{len(judged)} methods (NLL {own.nll:.4f}, {self.folds} folds of "
                f"{self.num_rows:,} rows)."
            )
        return (
            f"{start} {best.method} did best on rows it was not fitted on (NLL {best.nll:.4f}), "
            f"but {own.method} ({own.nll:.4f}) is simpler and within one standard error of it "
            f"({own.nll_error:.4f})."
        )


def calibrate(
    val: Predictions,
    *,
    method: str = "auto",
    preserve_predictions: bool = False,
    menu: Sequence[str] | None = None,
    folds: int | None = None,
    time_budget: float | None = None,
    seed: int = 0,
    progress: bool = False,
    **options: Any,
) -> Calibrator:
    """Fit a calibrator on held-out predictions; by default, choose which.

    ``method="auto"`` judges a menu by cross-validated NLL and takes the simplest method
    within one standard error of the best; doing nothing is always on the menu. With
    ``preserve_predictions`` only methods that keep every prediction are considered. When
    ``time_budget`` (seconds) is spent, methods not yet tried are left out, and said to be.
    The result's ``choice_`` explains itself. Any other ``method`` is fitted as named.
    """
    held = val.in_memory()
    if method != "auto":
        made = get_for_scores(method, from_logits=held.is_logits, **options)
        return made.fit(held.array, held.labels, ignore_index=held.ignore_index)
    if options:
        raise InputError(f"options {', '.join(options)} need a method; found method='auto'")
    choice = choose(
        held,
        menu=_menu(menu, preserve_predictions),
        folds=folds,
        time_budget=time_budget,
        seed=seed,
        progress=progress,
    )
    made = get(choice.method, from_logits=held.is_logits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.fit(held.array, held.labels, ignore_index=held.ignore_index)
    made.choice_ = choice
    return made


def choose(
    val: Predictions,
    *,
    menu: Sequence[str] = MENU,
    folds: int | None = None,
    time_budget: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Choice:
    """Judge every method of a menu on rows it was not fitted on."""
    logits, target = rows_of(
        val.array, val.labels, from_logits=val.is_logits, ignore_index=val.ignore_index
    )
    if len(target) < 2:
        raise InputError(f"choosing a calibrator needs at least 2 rows, found {len(target)}")
    parts = folds or (10 if len(target) < _FEW_ROWS else 2 if logits.numel() > _MANY_SCORES else 5)
    parts = min(parts, len(target))
    assigned = fold_of(target.cpu().numpy(), parts, seed)
    losses: dict[str, NDArray[np.float64]] = {}
    found: dict[str, tuple[float, float, float, str]] = {}
    started = time.perf_counter()
    for name in _ticking(menu, progress):
        spent = time.perf_counter() - started
        if time_budget is not None and spent > time_budget and losses:
            found[name] = (np.nan, np.nan, 0.0, "not tried: the time budget was spent")
            continue
        begun = time.perf_counter()
        try:
            losses[name], errors = _held_out(name, logits, target, assigned, parts)
            note = ""
        except InputError as error:
            found[name] = (np.nan, np.nan, time.perf_counter() - begun, str(error))
            continue
        spread = float(np.std(errors, ddof=1) / len(errors) ** 0.5) if len(errors) > 1 else 0.0
        found[name] = (float(np.mean(errors)), spread, time.perf_counter() - begun, note)
    means = {name: float(each.mean()) for name, each in losses.items()}
    best = min(means, key=lambda name: means[name])
    errors_of = {name: _paired_error(each, losses[best]) for name, each in losses.items()}
    simplest = next(n for n in menu if n in means and means[n] - means[best] <= errors_of[n])
    candidates = tuple(
        Candidate(
            name,
            means.get(name, np.nan),
            errors_of.get(name, np.nan),
            *found[name][:3],
            chosen=name == simplest,
            note=found[name][3],
        )
        for name in menu
    )
    return Choice(simplest, candidates, len(target), parts, {"seed": seed})


def fold_of(target: NDArray[np.int64], folds: int, seed: int) -> NDArray[np.int64]:
    """A fold for every row, the rows of each class spread over the folds."""
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(target))
    by_class = shuffled[np.argsort(target[shuffled], kind="stable")]
    assigned = np.empty(len(target), dtype=np.int64)
    assigned[by_class] = np.arange(len(target)) % folds
    return assigned


def _menu(menu: Sequence[str] | None, preserve: bool) -> list[str]:
    names = [n for n in MENU if n in CALIBRATORS] if menu is None else list(menu)
    if "identity" not in names:
        names.insert(0, "identity")
    kept = [name for name in names if not preserve or get(name).preserves_predictions]
    return kept


def _held_out(
    name: str, logits: Tensor, target: Tensor, assigned: NDArray[np.int64], folds: int
) -> tuple[NDArray[np.float64], list[float]]:
    """Each row's loss under a fit on the other folds, and the ECE of each fold."""
    losses = np.empty(len(target))
    errors = []
    for fold in range(folds):
        test = torch.from_numpy(np.flatnonzero(assigned == fold)).to(target.device)
        rest = torch.from_numpy(np.flatnonzero(assigned != fold)).to(target.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bounds reached on a fold are no news
            made = get_for_scores(name, from_logits=True)
            mapped = made.fit(logits[rest], target[rest]).calibrate(logits[test])
        each = torch.nn.functional.cross_entropy(mapped.double(), target[test], reduction="none")
        losses[test.cpu().numpy()] = each.cpu().numpy()
        errors.append(float(ece(mapped, target[test])))
    return losses, errors


def _paired_error(losses: NDArray[np.float64], best: NDArray[np.float64]) -> float:
    return float((losses - best).std(ddof=1) / len(losses) ** 0.5)


def _ticking(menu: Sequence[str], progress: bool) -> Iterator[str]:
    if not progress:
        yield from menu
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("trying calibrators", total=len(menu))
        for name in menu:
            bar.update(task, description=f"trying {name}")
            yield name
            bar.advance(task)
