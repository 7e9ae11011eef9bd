"""The choice among calibrators: cross-validated likelihood, and the simplest of the best."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.calibrators.base import Calibrator, Design, design_of, rows_of
from calibrant.calibrators.methods.blend import Blend, error_of
from calibrant.calibrators.methods.by_label import fit_by_label
from calibrant.calibrators.methods.mixture import HeldOut, hold_out, mix_held_out, stack_weights
from calibrant.calibrators.registry import CALIBRATORS, get, get_for_scores, kind_of
from calibrant.calibrators.solvers.folds import assign_folds
from calibrant.core.errors import InputError
from calibrant.core.progress import progress_bar
from calibrant.functional.arrays import as_numpy
from calibrant.predictions import Predictions

if TYPE_CHECKING:
    import pandas as pd

MIXTURE, BLEND = "mixture", "blend"

# From simple to complex: of two methods that data cannot tell apart, the first is taken.
# The mixture mixes the methods before it on the menu.
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
# Of events and of two classes: none maps what is said at p to what is said at 1 − p.
EVENT_MENU = (
    "identity",
    "temperature",
    "platt",
    "beta",
    "quadratic",
    "spline",
    "isotonic",
    "venn_abers",
)
OPTION_MENU = ("identity", "temperature", "ensemble_temperature")  # which treat options alike
_FEW_ROWS = 300
_TOO_FEW = 50  # rows; a choice on fewer is left to chance
_PATIENCE = 2.0  # seconds before a bar is shown
_MANY_SCORES = 5_000_000
_MOST_KEPT = 50_000_000  # numbers held for the ECE of the mixture; beyond, it is not measured
_LEAST_SHARE = 0.01  # a method with a smaller share is left out of the mixture


@dataclass(frozen=True)
class Candidate:
    """A method on the menu, measured on rows it was not fitted on."""

    method: str
    nll: float
    nll_error: float  # standard error of the difference from the best
    ece: float
    ece_error: float  # standard error over folds
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
    shares: dict[str, float] = field(default_factory=dict)  # of methods, if a mixture is chosen
    task: str = "classes"  # or "events"
    num_clusters: int | None = None  # None if rows are independent

    def __str__(self) -> str:
        return self.explanation

    def to_frame(self) -> pd.DataFrame:
        """Return the candidates as a table, best likelihood first."""
        import pandas as pd

        rows = sorted(
            (asdict(candidate) for candidate in self.candidates), key=lambda row: row["nll"]
        )
        columns = [entry.name for entry in fields(Candidate)]
        return pd.DataFrame(rows, columns=columns).set_index("method")

    @property
    def explanation(self) -> str:
        """Return the choice in words."""
        measured = [candidate for candidate in self.candidates if np.isfinite(candidate.nll)]
        if not measured:
            return "Leave it alone: the time budget was spent before anything was measured."
        best = min(measured, key=lambda candidate: candidate.nll)
        chosen = next(candidate for candidate in measured if candidate.method == self.method)
        start = (
            "Leave it alone: nothing on the menu was shown to help."
            if self.method == "identity"
            else f"{self.method} is chosen."
        )
        if self.shares:
            parts = sorted(self.shares.items(), key=lambda part: -part[1])
            start = f"A {self.method} is chosen ({', '.join(f'{s:.0%} {m}' for m, s in parts)})."
        if any(candidate.method == BLEND for candidate in measured):
            return f"{start} {self._explain_blend(chosen)}"
        if chosen.method == best.method:
            return (
                f"{start} Its log-likelihood on rows it was not fitted on is the best of "
                f"{len(measured)} methods (NLL {chosen.nll:.4f}, {self.folds} folds of "
                f"{self.num_rows:,} rows{self._clusters})."
            )
        return (
            f"{start} {best.method} did best on rows it was not fitted on (NLL {best.nll:.4f}), "
            f"but {chosen.method} ({chosen.nll:.4f}) is simpler and within one standard error of "
            f"it ({chosen.nll_error:.4f})."
        )

    def _explain_blend(self, chosen: Candidate) -> str:
        """Compare the blend with doing nothing."""
        of = {candidate.method: candidate for candidate in self.candidates}
        blend, identity = of[BLEND], of["identity"]
        where = f"{self.folds} folds of {self.num_rows:,} rows{self._clusters}"
        if chosen is blend:
            return (
                f"On rows it was not fitted on its NLL is {blend.nll:.4f}, and {identity.nll:.4f} "
                f"if scores are left alone (difference ± {identity.nll_error:.4f}, {where})."
            )
        return (
            f"On rows it was not fitted on the blend's NLL is {blend.nll:.4f}, and "
            f"{identity.nll:.4f} if scores are left alone: too little evidence of a gain "
            f"(difference ± {identity.nll_error:.4f}, {where})."
        )

    @property
    def _clusters(self) -> str:
        count = self.num_clusters
        return "" if count is None else f" in {count:,} clusters, never split"


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
    pool: bool | None = None,
    **options: Any,
) -> Calibrator:
    """Fit a calibrator on held-out predictions; by default, choose which.

    The choice is a `blend`: nested maps, from doing nothing over temperature to a structured
    matrix, weighed by the likelihood of rows that they were not fitted on. If those rows do not
    show that the blend beats doing nothing, scores are left alone. ``choice_`` of the result
    explains the choice.

    A menu makes another choice: among its methods, the simplest within one standard error of the
    best cross-validated NLL. Doing nothing is always on it. ``"mixture"``, last on it, mixes all
    others by stacking, so it is taken only if it beats each by more than that error.

    Events, and two classes, are fitted as the probability of the event, or of the second class;
    many labels a row, each label as an event. Weights and clusters count in the fits and in the
    choice, and clusters are never split.

    Args:
        val: Held-out predictions with labels.
        method: The name of a calibrator, or ``"auto"``. Default: 'auto' (ours: no method is
            best everywhere).
        preserve_predictions: True considers only methods that keep every prediction. Default:
            False (ours: likelihood decides).
        menu: The names of the methods to choose from, simplest first, such as `MENU` or, for
            events, two classes and labels, `EVENT_MENU`. Default: None (a blend; `OPTION_MENU`
            for questions with different numbers of options).
        folds: The number of folds. Default: None (10 below 300 rows, else 5, and 3 where fits are
            dear; of a menu 2 above 5,000,000 scores).
        time_budget: Seconds: parts and folds of the blend that would not fit into it, and methods
            of a menu that would start after it, are left out. Default: None (no limit).
        seed: The seed of the folds. Default: 0 (ours: a choice repeats exactly).
        progress: True shows a bar on stderr, after two seconds. Default: False (silent).
        pool: For many labels a row: True fits one calibrator on all labels, False one for each.
            Default: None (one for each, but a shared one for labels with fewer than 20 rows where
            they are true, or where they are not).
        options: Options of the method, if it is named.
    """
    held = val.in_memory()
    if options and method == "auto":
        raise InputError(f"options {', '.join(options)} need a method, found method='auto'")
    if held.task == "multilabel":
        share = None if time_budget is None else time_budget / held.num_classes

        def fit(events: Predictions) -> Calibrator:
            return calibrate(
                events,
                method=method,
                preserve_predictions=preserve_predictions,
                menu=menu,
                folds=folds,
                time_budget=share,
                seed=seed,
                **options,
            )

        return fit_by_label(held, fit, pool=pool)
    if pool is not None:
        raise InputError("pool is for many labels a row (Predictions.from_multilabel)")
    _refuse_one_outcome(held)
    if method != "auto":
        return get_for_scores(method, from_logits=held.is_logits, **options).fit(held)
    two = held.task == "classes" and held.num_classes == 2 and not held.is_dense
    task = "events" if held.task == "events" or (two and menu is None) else "classes"
    if menu is None and held.num_options is None:
        return _fit_blend(
            held,
            task,
            keep=preserve_predictions,
            folds=folds,
            time_budget=time_budget,
            seed=seed,
            progress=progress,
        )
    usual = EVENT_MENU if task == "events" else MENU if held.num_options is None else OPTION_MENU
    choice = choose(
        held,
        task=task,
        menu=_check_menu(usual if menu is None else menu, preserve_predictions),
        folds=folds,
        time_budget=time_budget,
        seed=seed,
        progress=progress,
    )
    shares = choice.shares
    parts = {"members": list(shares), "weights": list(shares.values())} if shares else {}
    calibrator = get(choice.method, from_logits=held.is_logits, **parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator.fit(held, task=task)
    calibrator.choice_ = choice
    return calibrator


def _refuse_one_outcome(held: Predictions) -> None:
    """Raise if all labels are the same: every map of the scores would then say so of any row."""
    labels = as_numpy(held.known_labels).reshape(-1)
    ignored = -1 if held.task == "events" else held.ignore_index
    known = labels if ignored is None else labels[labels != ignored]
    if held.num_options is None and len(known) > 1 and known.min() == known.max():
        if held.task == "events":
            where = "all" if known[0] else "none of"
            raise InputError(
                f"the event happens in {where} {len(known):,} rows: a calibrator needs rows of "
                "both outcomes"
            )
        raise InputError(
            f"all {len(known):,} labels are {int(known[0])}: a calibrator needs rows of more than "
            "one class"
        )


def _fit_blend(
    held: Predictions,
    task: str,
    *,
    keep: bool,
    folds: int | None,
    time_budget: float | None,
    seed: int,
    progress: bool,
) -> Calibrator:
    """Fit a blend, or the identity where the blend is no better; see `calibrate`."""
    labels, codes = np.asarray(held.known_labels), held.cluster_codes
    ignored = -1 if task == "events" else held.ignore_index
    rows = int(labels.size if ignored is None else (labels != ignored).sum())
    clusters = None if codes is None else len(np.unique(codes))
    if rows < 2:
        raise InputError(f"choosing a calibrator needs at least 2 rows, found {rows}")
    if clusters == 1:
        raise InputError("all rows are one cluster, which is never split: there are no folds")
    if rows < _TOO_FEW:
        _warn_of_few(rows, stacklevel=4)
    blend = Blend(
        keep_predictions=keep,
        folds=folds,
        seed=seed,
        time_budget=time_budget,
        from_logits=held.is_logits,
    )
    made: Calibrator = blend
    with (
        warnings.catch_warnings(),
        progress_bar("choosing a calibrator", None, shown=progress, after=_PATIENCE) as advance,
    ):
        warnings.simplefilter("ignore")
        blend.advance_ = advance
        blend.fit(held, task=task)
        blend.advance_ = None
        shares = blend.shares_
        if list(shares) == ["identity"]:
            made, shares = get("identity", from_logits=held.is_logits).fit(held, task=task), {}
    made.choice_ = Choice(
        made.name,
        tuple(
            Candidate(name, *found[:2], np.nan, np.nan, found.seconds, chosen=name == made.name)
            for name, found in blend.measured_.items()
        ),
        rows,
        blend.num_folds_,
        {"seed": seed},
        shares,
        task,
        clusters,
    )
    return made


def _warn_of_few(rows: int, *, stacklevel: int) -> None:
    warnings.warn(
        f"{rows} rows are too few to choose a calibrator: chance decides; hold out at least "
        f"{_TOO_FEW}, better {_FEW_ROWS:,}",
        stacklevel=stacklevel,
    )


def choose(
    val: Predictions,
    *,
    task: str | None = None,
    menu: Sequence[str] = MENU,
    folds: int | None = None,
    time_budget: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Choice:
    """Measure every method of a menu on rows it was not fitted on. See `calibrate`."""
    task = task or val.task
    logits, target = rows_of(
        val.array, val.known_labels, from_logits=val.is_logits, ignore_index=val.ignore_index
    )
    if task == "events":
        logits = logits[:, 1] - logits[:, 0]
    absent = val.num_options is not None
    design = design_of(
        val.known_labels, val.weights, val.cluster_codes, val.ignore_index, target.device
    )
    if len(target) < 2:
        raise InputError(f"choosing a calibrator needs at least 2 rows, found {len(target)}")
    if len(target) < _TOO_FEW:
        _warn_of_few(len(target), stacklevel=4)
    codes = None if design.clusters is None else design.clusters.cpu().numpy()
    units = len(target) if codes is None else len(np.unique(codes))
    parts = folds or (10 if len(target) < _FEW_ROWS else 2 if logits.numel() > _MANY_SCORES else 5)
    parts = min(parts, units)
    assigned = assign_folds(target.cpu().numpy(), parts, seed, codes)
    keep = MIXTURE in menu and logits.numel() * len(menu) <= _MOST_KEPT
    measured: dict[str, HeldOut] = {}
    shares: dict[str, float] = {}
    figures: dict[str, tuple[float, float, float, str]] = {}
    started = time.perf_counter()
    with progress_bar("trying calibrators", len(menu), shown=progress) as advance:
        for name in menu:
            begun = time.perf_counter()
            if time_budget is not None and begun - started > time_budget and measured:
                figures[name] = (np.nan, np.nan, 0.0, "not tried: the time budget was spent")
                continue
            try:
                if name == MIXTURE:
                    shares = _mixture_shares(measured, design)
                    held = list(measured.values())
                    measured[name] = mix_held_out(held, target, assigned, design.weights)
                else:
                    measured[name] = hold_out(
                        name,
                        logits,
                        target,
                        assigned,
                        keep_outputs=keep,
                        design=design,
                        task=task,
                        absent=absent,
                    )
                ece, ece_error = _mean_and_error(measured[name].errors)
                note = ""
            except InputError as error:
                ece = ece_error = np.nan
                note = str(error)
            figures[name] = (ece, ece_error, time.perf_counter() - begun, note)
            advance(1)
    losses = {name: result.losses for name, result in measured.items()}
    if not losses:
        raise InputError(
            f"no method on the menu could be fitted: {next(iter(figures.values()))[3]}"
        )
    weights = None if design.weights is None else design.weights.cpu().numpy()
    means = {name: float(np.average(each, weights=weights)) for name, each in losses.items()}
    best = min(means, key=lambda name: means[name])
    errors_of = {
        name: error_of(each - losses[best], weights, codes) for name, each in losses.items()
    }
    simplest = next(n for n in menu if n in means and means[n] - means[best] <= errors_of[n])
    candidates = tuple(
        Candidate(
            name,
            means.get(name, np.nan),
            errors_of.get(name, np.nan),
            *figures[name][:3],
            chosen=name == simplest,
            note=figures[name][3],
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
        task,
        None if codes is None else units,
    )


def _check_menu(menu: Sequence[str], preserve: bool) -> list[str]:
    names = [name for name in menu if menu is not MENU or name in CALIBRATORS]
    for name in names:
        kind_of(name)  # an unknown name is an error before any work
    if "identity" not in names:
        names.insert(0, "identity")
    if MIXTURE in names[:-1]:
        raise InputError("the mixture mixes the methods before it: put it last on the menu")
    # A mixture of methods that keep every prediction keeps them too.
    return [n for n in names if not preserve or n == MIXTURE or get(n).preserves_predictions]


def _mixture_shares(measured: dict[str, HeldOut], design: Design) -> dict[str, float]:
    """Return the shares of the methods in their mixture, without those it hardly needs."""
    names = list(measured)
    own = None if design.weights is None else design.weights.cpu().numpy()
    while True:
        weights = stack_weights(np.stack([measured[name].losses for name in names]), own)
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
