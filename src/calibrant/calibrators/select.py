"""The calibrator that chooses: cross-validated likelihood, and the simplest of the best."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.calibrators.base import Calibrator, rows_of
from calibrant.calibrators.cross_fit import (
    HeldOut,
    fold_of,
    held_out,
    mixed_held_out,
    stacked_weights,
)
from calibrant.calibrators.registry import CALIBRATORS, get, get_for_scores
from calibrant.functional.errors import InputError
from calibrant.predictions import Predictions

if TYPE_CHECKING:
    import pandas as pd

MIXTURE = "mixture"

# From simple to complex: of two methods that data cannot tell apart, the first is taken.
# The mixture is of those before it on the menu in use.
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
    MIXTURE,
)
_FEW_ROWS = 300
_TOO_FEW = 50  # to choose by
_MANY_SCORES = 5_000_000
_MOST_KEPT = 50_000_000  # numbers held for the mixture's ECE; beyond, it is not measured
_LEAST_SHARE = 0.01  # of a mixture: a method with less is left out of it


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
    shares: dict[str, float] = field(default_factory=dict)  # of methods, where a mixture is chosen

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
        if self.shares:
            parts = sorted(self.shares.items(), key=lambda part: -part[1])
            start = f"A mixture is chosen ({', '.join(f'{s:.0%} {m}' for m, s in parts)})."
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
    within one standard error of the best. Doing nothing is always on the menu; last on it is
    the mixture of all others that stacking makes of their held-out rows, so taken only where
    it is better than each by more than that error. With ``preserve_predictions`` only methods
    that keep every prediction are considered. When ``time_budget`` (seconds) is spent, methods
    not yet tried are left out, and said to be. The result's ``choice_`` explains itself. Any
    other ``method`` is fitted as named.
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
    shares = choice.shares
    parts = {"members": list(shares), "weights": list(shares.values())} if shares else {}
    made = get(choice.method, from_logits=held.is_logits, **parts)
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
    if len(target) < _TOO_FEW:
        warnings.warn(
            f"{len(target)} rows are too few to choose a calibrator by: chance decides; hold out "
            f"{_TOO_FEW} or more, better {_FEW_ROWS:,}",
            stacklevel=3,
        )
    parts = folds or (10 if len(target) < _FEW_ROWS else 2 if logits.numel() > _MANY_SCORES else 5)
    parts = min(parts, len(target))
    assigned = fold_of(target.cpu().numpy(), parts, seed)
    keep = MIXTURE in menu and logits.numel() * len(menu) <= _MOST_KEPT
    judged: dict[str, HeldOut] = {}
    shares: dict[str, float] = {}
    found: dict[str, tuple[float, float, float, str]] = {}
    started = time.perf_counter()
    for name in _ticking(menu, progress):
        spent = time.perf_counter() - started
        if time_budget is not None and spent > time_budget and judged:
            found[name] = (np.nan, np.nan, 0.0, "not tried: the time budget was spent")
            continue
        begun = time.perf_counter()
        try:
            if name == MIXTURE:
                shares = _shares(judged)
                judged[name] = mixed_held_out(list(judged.values()), target, assigned)
            else:
                judged[name] = held_out(name, logits, target, assigned, keep_outputs=keep)
        except InputError as error:
            found[name] = (np.nan, np.nan, time.perf_counter() - begun, str(error))
            continue
        found[name] = (*_mean_and_error(judged[name].errors), time.perf_counter() - begun, "")
    losses = {name: one.losses for name, one in judged.items()}
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
    return Choice(
        simplest,
        candidates,
        len(target),
        parts,
        {"seed": seed},
        shares if simplest == MIXTURE else {},
    )


def _menu(menu: Sequence[str] | None, preserve: bool) -> list[str]:
    names = [n for n in MENU if n in CALIBRATORS] if menu is None else list(menu)
    if "identity" not in names:
        names.insert(0, "identity")
    if MIXTURE in names[:-1]:
        raise InputError("the mixture is of the methods before it: put it last on the menu")
    # Of methods that keep every prediction, so does the mixture.
    return [n for n in names if not preserve or n == MIXTURE or get(n).preserves_predictions]


def _shares(judged: dict[str, HeldOut]) -> dict[str, float]:
    """The mixture of methods judged, without those it hardly needs."""
    names = list(judged)
    while True:
        weights = stacked_weights(np.stack([judged[name].losses for name in names]))
        kept = [n for n, w in zip(names, weights, strict=True) if w >= _LEAST_SHARE]
        if len(kept) == 1:
            raise InputError(f"{kept[0]} alone is the best mixture")
        if len(kept) == len(names):
            return dict(zip(names, (weights / weights.sum()).tolist(), strict=True))
        names = kept


def _mean_and_error(errors: list[float]) -> tuple[float, float]:
    if not errors:
        return np.nan, np.nan
    spread = float(np.std(errors, ddof=1) / len(errors) ** 0.5) if len(errors) > 1 else 0.0
    return float(np.mean(errors)), spread


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
