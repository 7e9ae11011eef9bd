"""How often are thresholds and sets broken on populations whose truth is known? Simulated.

    CALIBRANT_TEST_DATA=../shared/data python benchmarks/decide_coverage.py --keep kept \\
        --write benchmarks/COVERAGE.md
    ... --part peers      # needs MAPIE and crepes

Each set of real logits is a population: rows are drawn from it with replacement, as many as it has,
so that the true risk of a threshold and the true coverage of sets are those of the population.
Scores of the population are computed once; before a line is made, `calibrant.decide` and
`calibrant.prediction_sets` are called on some draws, and must find the same thresholds. Lines are
kept as they are made, and a run that was killed resumes. `--draws` says of how many draws.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from scipy.special import ndtr

import calibrant
from calibrant import Predictions
from calibrant.decisions import NoThresholdError, fixed_sequence, sets
from calibrant.decisions.risk_tests import PLAIN, Design
from calibrant.decisions.rule import measure_odds, prepare
from monitor_coverage import share, write_section

SETS = (
    *("cifar10-repvgg-a2", "cifar10-resnet20", "cifar10-vgg19bn", "cifar100-repvgg-a2"),
    *("cifar100-resnet20", "cifar100-vgg19bn", "imagenet5k-efficientnet-lite0"),
    *("imagenet5k-efficientnet-lite2", "20news", "pathmnist-resnet50", "agnews-gpt2"),
    *("iemocap-wav2vec", "sst2-gpt2", "pneumoniamnist-resnet50", "adrenalmnist-resnet50"),
)
DELTA = 0.05
ALPHA = 0.1
CHECKED = 2  # draws on which the public functions must agree
CHUNK = 50


class Population(NamedTuple):
    """A set of real outputs, and what is needed of each row.

    Args:
        rows: The rows.
        labels: (N,) their classes.
        odds: (N,) the log-odds of the confidence.
        cells: (N,) the places of these on the grid of thresholds.
        predicted: (N,) the predicted classes.
        wrong: (N,) whether the predicted class is wrong.
        logits: (N,K) logits.
    """

    rows: Predictions
    labels: np.ndarray
    odds: np.ndarray
    cells: np.ndarray
    predicted: np.ndarray
    wrong: np.ndarray
    logits: torch.Tensor


def load(name: str) -> Population:
    folder = Path(os.environ["CALIBRANT_TEST_DATA"]) / "logits"
    with np.load(folder / f"{name}.npz") as file:
        labels = file["labels"].astype(np.int64)
        if "probs" in file:
            rows = Predictions.from_probs(file["probs"], labels, validate=False)
        else:
            rows = Predictions.from_logits(file["logits"], labels)
    read = prepare(rows, None, max_weight=None, max_cluster_size=None)
    odds, predicted = measure_odds(read.logits, "classes", None)
    odds, predicted = odds.numpy().astype(np.float64), predicted.numpy()
    cells = fixed_sequence.find_cells(odds)
    wrong = (predicted != labels).astype(np.float64)
    return Population(rows, labels, odds, cells, predicted, wrong, read.logits)


class Work(NamedTuple):
    """Where lines are kept, and whether to make any."""

    keep: Path | None
    only_kept: bool

    def run(self, name: str, function: Callable[[np.random.Generator], Any], draws: int) -> list:
        """Return the results of a function of a generator, one a draw; kept ones are read."""
        kept = None if self.keep is None else self.keep / f"decide-{name}.json"
        results = json.loads(kept.read_text()) if kept is not None and kept.exists() else []
        if self.only_kept:
            return results
        for start in range(len(results), draws, CHUNK):
            for draw in range(start, min(start + CHUNK, draws)):
                results.append(function(np.random.default_rng([25, draw])))
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                temporary = kept.with_suffix(".part")
                temporary.write_text(json.dumps(results))
                temporary.replace(kept)
        return results[:draws]


def draw_rows(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.integers(0, size, size)


# Thresholds.


def find_oracle(odds: np.ndarray, wrong: np.ndarray, limit: float) -> float:
    """The largest share that some threshold accepts with a risk of at most the limit."""
    order = np.argsort(-odds, kind="stable")
    ranked = odds[order]
    counts = np.arange(1, len(odds) + 1)
    ends = np.append(ranked[1:] < ranked[:-1], True)  # rows of equal odds go together
    fit = ends & (np.cumsum(wrong[order]) <= limit * counts)
    return float(counts[fit].max() / len(odds)) if fit.any() else 0.0


def find_single(odds: np.ndarray, wrong: np.ndarray, limit: float) -> float:
    """The most that one exact test is expected to accept, of the threshold that is best for it.

    The truth chooses the threshold; of each draw one test at the full level decides.
    """
    from scipy.stats import binom

    order = np.argsort(-odds, kind="stable")
    size, best = len(odds), 0.0
    errors = np.cumsum(wrong[order])
    for count in np.unique(np.linspace(1, size, 400).astype(int)):
        risk = errors[count - 1] / count
        if risk > limit:
            continue
        most = int(binom.ppf(DELTA, count, limit))  # errors with which the test grants
        most -= int(binom.cdf(most, count, limit) > DELTA)
        if most >= 0:
            best = max(best, float(binom.cdf(most, count, risk)) * count / size)
    return best


def accept(population: Population, limit: float, rng: np.random.Generator) -> tuple[float, bool]:
    """Return the accepted share of the population, and whether the promise is broken."""
    chosen = draw_rows(rng, len(population.cells))
    cell = fixed_sequence.find_selective(
        population.cells[chosen], population.wrong[chosen], limit, DELTA, PLAIN
    )
    if cell is None:
        return 0.0, False
    accepted = population.cells >= cell
    broken = population.wrong[accepted].sum() > limit * accepted.sum()
    return float(accepted.mean()), bool(broken)


def check_public_rule(population: Population, limit: float) -> None:
    for draw in range(CHECKED):
        chosen = draw_rows(np.random.default_rng([25, draw]), len(population.cells))
        cell = fixed_sequence.find_selective(
            population.cells[chosen], population.wrong[chosen], limit, DELTA, PLAIN
        )
        try:
            rule = calibrant.decide(population.rows.take(chosen), max_error=limit)
        except NoThresholdError:
            assert cell is None
            continue
        assert cell is not None
        assert float(rule.thresholds[0]) == fixed_sequence.GRID[cell]


def thresholds_part(draws: int, work: Work) -> tuple[str, str, Iterator[list[str]]]:
    words = (
        "`decide(max_error=...)` with 95% confidence. Each set of outputs of real networks is a "
        "population; a draw is as many rows of it with replacement. *Oracle*: the largest share "
        "that a threshold can accept with that risk in the population. *Accepted*: the mean share "
        "that the rule accepts of the population, and that as a share of the oracle's; draws in "
        "which no threshold could be granted count as 0. *One test*: what the threshold that is "
        "best for a single exact test would accept on average, as a share of the oracle's: where "
        "that is low, so few rows can show little. *Broken*: draws whose rule has a larger risk in "
        "the population than promised (± one standard error); at most 5% are allowed."
    )

    def lines() -> Iterator[list[str]]:
        yield [
            *("population", "rows", "risk", "draws", "oracle", "accepted", "of the oracle's"),
            *("one test", "no threshold", "broken"),
        ]
        for name in SETS:
            population = load(name)
            for limit in (0.01, 0.05):
                if not work.only_kept:
                    check_public_rule(population, limit)
                found = work.run(
                    f"thresholds-{name}-{limit}",
                    lambda rng, p=population, r=limit: accept(p, r, rng),
                    draws,
                )
                shares = np.array([each[0] for each in found])
                oracle = find_oracle(population.odds, population.wrong, limit)
                single = find_single(population.odds, population.wrong, limit)
                yield [
                    *(name, f"{len(population.odds):,}", f"{limit:.0%}", f"{len(found):,}"),
                    *(f"{oracle:.1%}", f"{shares.mean():.1%}"),
                    f"{shares.mean() / oracle:.0%}" if oracle else "–",
                    f"{single / oracle:.0%}" if oracle else "–",
                    f"{np.mean(shares == 0):.0%}",
                    share(np.array([each[1] for each in found])),
                ]

    return "Thresholds: is the promise kept?", words, lines()


# Thresholds of other kinds.


class Kind(NamedTuple):
    """A line of the table of other kinds: a name, a population, draws as a share, and a draw."""

    words: str
    name: str
    portion: float
    draw: Callable[[Population, np.random.Generator], tuple[float, bool]]


def by_class(limit: float) -> Callable[..., tuple[float, bool]]:
    """A threshold for each predicted class; broken if one of them is."""

    def run(population: Population, rng: np.random.Generator) -> tuple[float, bool]:
        chosen = draw_rows(rng, len(population.cells))
        count = population.rows.num_classes
        total, broken = 0, False
        for k in range(count):
            own = chosen[population.predicted[chosen] == k]
            if not len(own):
                continue
            cell = fixed_sequence.find_selective(
                population.cells[own], population.wrong[own], limit, DELTA / count, PLAIN
            )
            if cell is None:
                continue
            accepted = (population.predicted == k) & (population.cells >= cell)
            broken |= bool(population.wrong[accepted].sum() > limit * accepted.sum())
            total += int(accepted.sum())
        return total / len(population.cells), broken

    return run


def precision(positive: int, limit: float) -> Callable[..., tuple[float, bool]]:
    """At least 1 − limit of accepted rows are of the class; scores are its log-odds."""

    def run(population: Population, rng: np.random.Generator) -> tuple[float, bool]:
        cells = fixed_sequence.find_cells(class_odds(population, positive))
        wrong = (population.labels != positive).astype(np.float64)
        chosen = draw_rows(rng, len(cells))
        cell = fixed_sequence.find_selective(cells[chosen], wrong[chosen], limit, DELTA, PLAIN)
        if cell is None:
            return 0.0, False
        accepted = cells >= cell
        return float(accepted.mean()), bool(wrong[accepted].sum() > limit * accepted.sum())

    return run


def recall(positive: int, limit: float) -> Callable[..., tuple[float, bool]]:
    """At least 1 − limit of the rows of the class are accepted."""

    def run(population: Population, rng: np.random.Generator) -> tuple[float, bool]:
        odds, good = class_odds(population, positive), population.labels == positive
        chosen = draw_rows(rng, len(odds))
        found = fixed_sequence.find_quantile(odds[chosen][good[chosen]], limit, DELTA, PLAIN)
        if found is None:
            return 0.0, False
        threshold = fixed_sequence.GRID[fixed_sequence.find_cells(np.array([found]))[0]]
        accepted = odds >= threshold
        return float(accepted.mean()), bool((~accepted & good).sum() > limit * good.sum())

    return run


def class_odds(population: Population, k: int) -> np.ndarray:
    logits = population.logits.double()
    others = logits.clone()
    others[:, k] = -torch.inf
    return (logits[:, k] - others.logsumexp(1)).numpy()


def clustered(limit: float, *, stated: bool, weighted: bool) -> Callable[..., tuple[float, bool]]:
    """Rows of five of alike difficulty and label are a cluster; weights double with the label."""

    def run(population: Population, rng: np.random.Generator) -> tuple[float, bool]:
        size = len(population.cells)
        weights = 2.0 ** (population.labels % 3) if weighted else None
        if weighted:
            chosen = draw_rows(rng, size)
            design = Design(weights[chosen], None, 4.0 if stated else None)
        else:
            # Clusters of rows that are wrong together more often than chance would have it.
            order = np.lexsort((population.wrong, population.cells // 800))
            members = order[: size // 5 * 5].reshape(-1, 5)
            taken = rng.integers(0, len(members), len(members))
            chosen = members[taken].reshape(-1)
            design = Design(None, np.arange(len(members)).repeat(5), 5.0 if stated else None)
            size = members.size
        cell = fixed_sequence.find_selective(
            population.cells[chosen], population.wrong[chosen], limit, DELTA, design
        )
        if cell is None:
            return 0.0, False
        each = np.ones(len(population.cells)) if weights is None else weights
        if not weighted:
            each[order[size:]] = 0.0
        accepted = each * (population.cells >= cell)
        risk = float(accepted @ population.wrong) / float(accepted.sum())
        return float(accepted.sum() / each.sum()), risk > limit

    return run


KINDS = (
    *(
        Kind("by class, risk 5%, all classes at once", name, 1.0, by_class(0.05))
        for name in ("cifar10-resnet20", "cifar10-vgg19bn", "pathmnist-resnet50", "iemocap-wav2vec")
    ),
    Kind("precision of class 3, 95%", "cifar10-resnet20", 1.0, precision(3, 0.05)),
    Kind("precision of class 1, 80%", "sst2-gpt2", 1.0, precision(1, 0.2)),
    Kind("precision of class 1, 95%", "pneumoniamnist-resnet50", 1.0, precision(1, 0.05)),
    Kind("recall of class 3, 95%", "cifar10-resnet20", 1.0, recall(3, 0.05)),
    Kind("recall of class 1, 95%", "sst2-gpt2", 1.0, recall(1, 0.05)),
    Kind("recall of class 1, 95%", "pneumoniamnist-resnet50", 1.0, recall(1, 0.05)),
    *(
        Kind(f"{words}, risk 5%", name, 0.3, clustered(0.05, stated=stated, weighted=weighted))
        for words, stated, weighted in (
            ("clusters of five, betting", True, False),
            ("clusters of five, approximate", False, False),
            ("weights 1, 2 and 4, betting", True, True),
            ("weights 1, 2 and 4, approximate", False, True),
        )
        for name in ("cifar10-resnet20", "pathmnist-resnet50")
    ),
)


def kinds_part(draws: int, work: Work) -> tuple[str, str, Iterator[list[str]]]:
    words = (
        "As above, for thresholds of other kinds. By class the rule is broken if it is in any "
        "class. Clusters hold five rows that are wrong together, and are drawn whole. *Betting* "
        "knows the largest weight or cluster; *approximate* does not, and promises less."
    )

    def lines() -> Iterator[list[str]]:
        yield ["rule", "population", "draws", "accepted", "no threshold", "broken"]
        for at, kind in enumerate(KINDS):
            population = load(kind.name)
            found = work.run(
                f"kinds-{at}",
                lambda rng, p=population, kind=kind: kind.draw(p, rng),
                max(int(draws * kind.portion), 1),
            )
            shares = np.array([each[0] for each in found])
            yield [
                *(kind.words, kind.name, f"{len(found):,}", f"{shares.mean():.1%}"),
                f"{np.mean(shares == 0):.0%}",
                share(np.array([each[1] for each in found])),
            ]

    return "Thresholds: classes, events, clusters and weights", words, lines()


# Sets.

_NOISE = 1e-4  # of log-odds, so that rows drawn twice do not tie


class SetPopulation(NamedTuple):
    """What sets need of each row of a population.

    Args:
        lac: (N,) the log-odds of the true class.
        before: (N,) the total probability of more likely classes.
        own: (N,) the probability of the true class.
        labels: (N,) the classes.
        logits: (N,K) logits.
    """

    lac: np.ndarray
    before: np.ndarray
    own: np.ndarray
    labels: np.ndarray
    logits: torch.Tensor

    def draw(self, method: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return drawn scores of true classes, and which rows they are."""
        chosen = draw_rows(rng, len(self.lac))
        if method == "lac":
            return self.lac[chosen] + _NOISE * rng.standard_normal(len(chosen)), chosen
        return -(self.before[chosen] + rng.random(len(chosen)) * self.own[chosen]), chosen

    def cover(self, method: str, threshold: float | None) -> np.ndarray:
        """Return the probability that the set of each row holds its class."""
        if threshold is None:
            return np.ones(len(self.lac))
        if method == "lac":
            return ndtr((self.lac - threshold) / _NOISE)
        return np.clip((-threshold - self.before) / np.maximum(self.own, 1e-300), 0, 1)


def load_sets(name: str) -> SetPopulation:
    population = load(name)
    logits, labels = population.logits.double(), torch.from_numpy(population.labels)[:, None]
    lac = sets.measure_conformity(logits, "lac").gather(1, labels)[:, 0].numpy()
    probs = logits.softmax(1)
    own = probs.gather(1, labels)
    zeros, ones = torch.zeros(len(lac)), torch.ones(len(lac))
    ends = [
        -sets.measure_conformity(logits, "aps", each.double()).gather(1, labels)[:, 0].numpy()
        for each in (zeros, ones)
    ]
    assert np.allclose(ends[1] - ends[0], own[:, 0].numpy(), atol=1e-9)
    return SetPopulation(lac, ends[0], own[:, 0].numpy(), population.labels, logits)


def check_public_sets(name: str, population: SetPopulation) -> None:
    rows = load(name).rows
    for draw in range(CHECKED):
        chosen = draw_rows(np.random.default_rng([25, draw]), len(population.lac))
        found = sets.find_marginal(population.lac[chosen], ALPHA, PLAIN)
        rule = calibrant.prediction_sets(rows.take(chosen), coverage=1 - ALPHA)
        assert abs(float(rule.thresholds[0]) - found) < 1e-4 * max(1, abs(found))


def draw_marginal(
    population: SetPopulation, method: str, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the coverage of marginal sets, and by how much they may exceed 1 − α."""
    scores, _ = population.draw(method, rng)
    found = sets.find_marginal(scores, ALPHA, PLAIN)
    return float(population.cover(method, found).mean()), 1 / (len(scores) + 1)


def draw_conditional(population: SetPopulation, rng: np.random.Generator) -> list[list[float]]:
    """Return the coverage of each class's marginal sets, and by how much it may exceed 1 − α."""
    scores, chosen = population.draw("lac", rng)
    drawn, results = population.labels[chosen], []
    for k in range(population.logits.shape[1]):
        own = scores[drawn == k]
        found = sets.find_marginal(own, ALPHA, PLAIN)
        covered = population.cover("lac", found)[population.labels == k].mean()
        results.append([float(covered), 1 / (len(own) + 1)])
    return results


def draw_pac(population: SetPopulation, method: str, rng: np.random.Generator) -> float:
    """Return the coverage of sets that hold with confidence."""
    scores, _ = population.draw(method, rng)
    found = fixed_sequence.find_quantile(scores, ALPHA, DELTA, PLAIN)
    return float(population.cover(method, found).mean())


def place(covered: np.ndarray, excess: np.ndarray) -> tuple[float, float]:
    """Return mean coverage, and how far it lies outside of its range in Monte Carlo errors."""
    mean, error = covered.mean(), covered.std(ddof=1) / len(covered) ** 0.5
    outside = max(1 - ALPHA - mean, mean - (1 - ALPHA + excess.mean()), 0.0)
    return float(mean), float(outside / error)


def sets_part(draws: int, work: Work) -> tuple[str, str, Iterator[list[str]]]:
    words = (
        "`prediction_sets(coverage=0.9)` on the same populations. The coverage of the population "
        "is known for each draw. *Marginal*: its mean over draws, which lies between 0.9 and "
        "0.9 + 1/(n + 1); in brackets by how many Monte Carlo errors it is outside of that (0: "
        "inside). Rows that are drawn twice tie, which would raise coverage above the upper end: "
        "noise of 0.0001 on the log-odds of `lac` tells them apart. *By class*: the mean over "
        "classes, and the class that is furthest outside. *Pac broken*: the share of draws in "
        "which `guarantee='pac'` covers less than 0.9 of the population (± one standard error); "
        "at most 5% are allowed."
    )

    def lines() -> Iterator[list[str]]:
        yield [
            *("population", "rows", "draws", "lac, marginal", "aps, marginal", "lac by class"),
            *("lac, pac broken", "aps, pac broken"),
        ]
        for name in SETS:
            population = load_sets(name)
            if not work.only_kept:
                check_public_sets(name, population)
            cells, count = [], 0
            for method in ("lac", "aps"):
                found = np.array(
                    work.run(
                        f"marginal-{name}-{method}",
                        lambda rng, p=population, m=method: draw_marginal(p, m, rng),
                        draws,
                    )
                )
                count = len(found)
                mean, outside = place(found[:, 0], found[:, 1])
                cells.append(f"{mean:.4f} ({outside:.1f})")
            if population.logits.shape[1] > 100:
                cells.append("–")
            else:
                found = np.array(
                    work.run(
                        f"conditional-{name}",
                        lambda rng, p=population: draw_conditional(p, rng),
                        draws,
                    )
                )
                outside = max(
                    place(found[:, k, 0], found[:, k, 1])[1] for k in range(found.shape[1])
                )
                cells.append(f"{found[:, :, 0].mean():.4f} ({outside:.1f})")
            for method in ("lac", "aps"):
                found = np.array(
                    work.run(
                        f"pac-{name}-{method}",
                        lambda rng, p=population, m=method: draw_pac(p, m, rng),
                        draws,
                    )
                )
                cells.append(share(found < 1 - ALPHA))
            yield [name, f"{len(population.lac):,}", f"{count:,}", *cells]

    return "Sets: is the promise kept?", words, lines()


# Beside MAPIE and crepes.

PEER_SETS = ("cifar10-resnet20", "cifar100-repvgg-a2", "20news", "pathmnist-resnet50")
PEER_LIMIT = 0.01


def read_mapie_threshold(odds: np.ndarray, wrong: np.ndarray) -> float:
    """MAPIE's controller of precision, where a row that is right is the event."""
    from mapie.risk_control import BinaryClassificationController

    confidence = 1 / (1 + np.exp(-odds))
    grid = np.unique(np.quantile(confidence, np.linspace(0, 1, 100)))
    controller = BinaryClassificationController(
        lambda given: np.column_stack([1 - given[:, 0], given[:, 0]]),
        risk="precision",
        target_level=1 - PEER_LIMIT,
        confidence_level=1 - DELTA,
        best_predict_param_choice="recall",
        list_predict_params=grid,
    )
    controller.calibrate(confidence[:, None], (1 - wrong).astype(int))
    best = controller.best_predict_param
    return np.inf if best is None else float(best)


class _Prefit:
    """A classifier for MAPIE whose probabilities are its features."""

    def __init__(self, count: int) -> None:
        self.classes_ = np.arange(count)

    def fit(self, features: np.ndarray, target: np.ndarray) -> _Prefit:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict_proba(self, features: np.ndarray) -> np.ndarray:
        return features

    def predict(self, features: np.ndarray) -> np.ndarray:
        return features.argmax(1)


def make_prefit(count: int) -> Any:
    from sklearn.base import BaseEstimator, ClassifierMixin

    bases = (_Prefit, ClassifierMixin, BaseEstimator)
    return type("Prefit", bases, {"__init__": _Prefit.__init__})(count)


def run_peer(name: str, rng: np.random.Generator, cache: dict[str, Any]) -> dict[str, Any]:
    """Return what every method does on one draw: of thresholds, and of sets; and its seconds."""
    from crepes import ConformalClassifier
    from crepes.extras import hinge
    from mapie.classification import SplitConformalClassifier

    if name not in cache:
        population = load(name)
        cache[name] = population, population.logits.double().softmax(1).numpy()
    population, probs = cache[name]
    size, count = probs.shape
    chosen = draw_rows(rng, size)
    rows = population.rows.take(chosen)
    results: dict[str, Any] = {}

    begin = time.perf_counter()
    try:
        accepted = calibrant.decide(rows, max_error=PEER_LIMIT).accept(population.rows)
    except NoThresholdError:
        accepted = np.zeros(size, dtype=bool)
    results["calibrant"] = judge(accepted, population.wrong, begin)
    begin = time.perf_counter()
    threshold = read_mapie_threshold(population.odds[chosen], population.wrong[chosen])
    accepted = 1 / (1 + np.exp(-population.odds)) >= threshold
    results["MAPIE"] = judge(accepted, population.wrong, begin)
    # What a reader of a risk-coverage table would do: the largest share with that risk.
    begin = time.perf_counter()
    order = np.argsort(-population.odds[chosen])
    fit = np.cumsum(population.wrong[chosen][order]) <= PEER_LIMIT * np.arange(1, size + 1)
    own = population.odds[chosen][order][np.flatnonzero(fit)[-1]] if fit.any() else np.inf
    results["table"] = judge(population.odds >= own, population.wrong, begin)

    given = probs[chosen]
    labels, drawn = population.labels, population.labels[chosen]
    begin = time.perf_counter()
    members = calibrant.prediction_sets(rows, coverage=1 - ALPHA).sets(population.rows)
    results["calibrant, sets"] = judge_sets(members, labels, begin)
    begin = time.perf_counter()
    members = calibrant.prediction_sets(rows, coverage=1 - ALPHA, guarantee="pac").sets(
        population.rows
    )
    results["calibrant, pac"] = judge_sets(members, labels, begin)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        conformal = SplitConformalClassifier(
            make_prefit(count), confidence_level=1 - ALPHA, conformity_score="lac", prefit=True
        )
        conformal.conformalize(given, drawn)
        members = conformal.predict_set(probs)[1][:, :, 0]
    results["MAPIE, sets"] = judge_sets(members, labels, begin)
    begin = time.perf_counter()
    model = ConformalClassifier()
    model.fit(hinge(given, np.arange(count), drawn), seed=0)
    members = model.predict_set(hinge(probs), confidence=1 - ALPHA, smoothing=False, seed=0)
    results["crepes, sets"] = judge_sets(np.asarray(members).astype(bool), labels, begin)
    return results


def judge(accepted: np.ndarray, wrong: np.ndarray, begin: float) -> list[float]:
    seconds = time.perf_counter() - begin
    broken = wrong[accepted].sum() > PEER_LIMIT * accepted.sum()
    return [float(accepted.mean()), float(broken), seconds]


def judge_sets(members: np.ndarray, labels: np.ndarray, begin: float) -> list[float]:
    seconds = time.perf_counter() - begin
    covered = members[np.arange(len(labels)), labels].mean()
    return [float(covered), float(covered < 1 - ALPHA), seconds, float(members.sum(1).mean())]


def peers_part(draws: int, work: Work) -> tuple[str, str, Iterator[list[str]]]:
    words = (
        f"Thresholds at a risk of {PEER_LIMIT:.0%} and sets of coverage 0.9 in one run, on the "
        "same draws. MAPIE's `BinaryClassificationController` controls the precision of a binary "
        "classifier, so rows that are right are its events here, at 100 thresholds. *Table*: the "
        "largest share whose error among the drawn rows is at most the risk, as one would read it "
        "from a risk-coverage table. crepes has no thresholds, and neither it nor MAPIE has sets "
        "that hold with confidence: *less than promised* is then about half of all draws. So few "
        "draws say little of a share near 5%: the first table has 1,000. "
        "Seconds are the mean of one draw, found and applied, on one busy core."
    )

    def lines() -> Iterator[list[str]]:
        yield [
            *("population", "draws", "method", "accepted or covered", "size of sets"),
            *("less than promised", "seconds"),
        ]
        cache: dict[str, Any] = {}
        for name in PEER_SETS:
            found = work.run(f"peers-{name}", lambda rng, n=name: run_peer(n, rng, cache), draws)
            for method in found[0] if found else ():
                table = np.array([each[method] for each in found])
                size = f"{table[:, 3].mean():.2f}" if table.shape[1] > 3 else "–"
                yield [
                    *(name, f"{len(found):,}", method, f"{table[:, 0].mean():.1%}", size),
                    *(share(table[:, 1]), f"{table[:, 2].mean():.3f}"),
                ]
            cache.clear()

    return "Thresholds and sets beside MAPIE and crepes", words, lines()


PARTS = {
    "thresholds": thresholds_part,
    "kinds": kinds_part,
    "sets": sets_part,
    "peers": peers_part,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--keep", type=Path, help="folder of lines made before")
    parser.add_argument("--only-kept", action="store_true", help="make tables of what is kept")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    work = Work(options.keep, options.only_kept)
    for name in options.part or PARTS:
        begin = time.perf_counter()
        heading, words, lines = PARTS[name](options.draws, work)
        table = []
        for line in lines:
            table.append("| " + " | ".join(line) + " |")
            print(table[-1], f"({time.perf_counter() - begin:.0f} s)", flush=True)
        table.insert(1, "|" + "---|" * (table[0].count("|") - 1))
        made_by = f"Made by `python benchmarks/decide_coverage.py --part {name}`."
        if options.write:
            body = "\n".join([words, "", *table, "", f"({made_by})"])
            write_section(options.write, heading, body)


if __name__ == "__main__":
    main()
