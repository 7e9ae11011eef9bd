"""Every metric, with all its options, against independent naive float64 code."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch

from calibrant import InputError, metrics
from calibrant.functional.kernels import choose_bandwidth
from calibrant.metrics.registry import METRICS
from tests.helpers.metric_cases import (
    CURVES,
    LOSSES,
    OOD,
    OPTIONS,
    SELECTIVE,
    SLOPES,
    Plain,
    labels_for,
    value,
)
from tests.reference import metrics as ref

SETS = [
    "20news",
    "adrenalmnist-resnet50",
    "agnews-gpt2",
    "cifar10-resnet20",
    "cifar100-resnet20",
    "iemocap-wav2vec",
    "imagenet5k-efficientnet-lite0",
    "pathmnist-resnet50",
    *(
        pytest.param(name, marks=pytest.mark.slow)  # each like one above
        for name in (
            "cifar10-repvgg-a2",
            "cifar10-vgg19bn",
            "cifar100-repvgg-a2",
            "cifar100-vgg19bn",
            "imagenet5k-efficientnet-lite2",
            "pneumoniamnist-resnet50",
            "sst2-gpt2",
        )
    ),
]
# The plain versions of these loop over rows times classes, or over pairs of rows.
PER_CLASS = ("classwise_ece", "marginal_ece", "brier_calibration", "brier_refinement")
# Smooth ECE works on a grid of 4,096 cells; everything else is exact but for the solvers of the
# plain versions.
LOOSE = {"smooth_ece": 2e-5} | dict.fromkeys((*SLOPES, *CURVES, "hosmer_lemeshow"), 1e-6)
# In float32 a logit near certainty has few digits, and a p-value is the tail of a sum of squares.
LOOSER = dict.fromkeys((*SLOPES, *CURVES, "calibration_in_the_large", "hosmer_lemeshow"), 1e-3)
TOLERANCE = {name: LOOSE.get(name, 1e-9) for name in METRICS}
SINGLE = {
    name: ({"smooth_ece": 2e-5, "kde_ece": 1e-4} | LOOSER).get(name, 1e-6) for name in METRICS
}


def close(actual, expected, tolerance):
    return actual == pytest.approx(expected, rel=tolerance, abs=tolerance)


@lru_cache(maxsize=1)
def real_set(folder, name):
    """Scores as stored, their float64 probabilities and the labels of one real set."""
    with np.load(folder / "logits" / f"{name}.npz") as file:
        is_logits = "logits" in file
        given, labels = file["logits" if is_logits else "probs"], file["labels"]
    wide = given.astype(np.float64)
    return given, ref.softmax(wide) if is_logits else wide, labels, is_logits


@lru_cache(maxsize=4)
def plain(folder, name, rows):
    """The plain metrics of some rows, spread over the set."""
    _, probs, labels, _ = real_set(folder, name)
    some = slice(None, None, -(-len(labels) // rows))
    return Plain(probs[some], labels[some])


def rows_of(metric, num_classes, at_most):
    """How many rows keep the plain version fast."""
    if metric == "kde_ece":
        return 120 if num_classes <= 20 else 40 if num_classes <= 200 else 20
    if metric == "smooth_ece" or metric in CURVES:
        return 300
    if metric in PER_CLASS:
        return min(at_most, max(40, 20 * at_most // num_classes))
    return at_most


def options_on_real_data(metric):
    """Fewer of the largest products; random data see them whole.

    Entropies of saturated rows differ in their last bits by how they are summed, and order
    such rows at will: scores by entropy are compared on random data alone.
    """
    if metric == "risk_at_coverage":
        return [o for o in OPTIONS[metric] if o["score"] == "msp"]
    return [o for o in OPTIONS[metric] if o.get("score") != "neg_entropy"]


@pytest.mark.sampled(by="metric")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("name", SETS)
def test_real_sets_with_all_options(name, metric, data_folder):
    rows = rows_of(metric, real_set(data_folder, name)[1].shape[1], 600)
    expected = plain(data_folder, name, rows)
    probs, labels = expected.probs, labels_for(metric, expected.labels)
    impossible = bool((probs[range(len(labels)), expected.labels] == 0).any())
    for options in options_on_real_data(metric):
        if impossible and options.get("loss") == "cross_entropy":
            with pytest.raises(InputError, match="losses hold NaN or infinity"):
                value(metric, probs, labels, from_logits=False, **options)
            continue
        actual = value(metric, probs, labels, from_logits=False, **options)
        assert close(actual, expected.value(metric, **options), TOLERANCE[metric]), options


@pytest.mark.sampled(by="metric")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("name", SETS)
def test_real_sets_as_stored(name, metric, data_folder):
    """Whole sets (the slow ones in part) in the float32 or float16 they are stored in.

    In two of them float32 gives a quarter and a half of the rows a confidence of exactly 1;
    their ranks must be those of float64 all the same.
    """
    given, probs, labels, is_logits = real_set(data_folder, name)
    rows = rows_of(metric, probs.shape[1], len(labels))
    expected = plain(data_folder, name, rows)
    step = -(-len(labels) // rows)
    preds = torch.from_numpy(given[::step])
    target = labels_for(metric, torch.from_numpy(labels[::step]))
    options = {"bandwidth": 0.05} if metric == "kde_ece" else {}
    actual = value(metric, preds, target, from_logits=is_logits, **options)
    # Many of these lie within a float64 step of 1, where two ways to write a softmax differ.
    saturated = name == "pathmnist-resnet50" and metric in OOD
    assert close(actual, expected.value(metric, **options), 2e-5 if saturated else SINGLE[metric])


@lru_cache
def random_rows(num_rows, num_classes, seed):
    """Overconfident float64 logits and their labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_rows, num_classes))
    noisy = logits + rng.normal(size=logits.shape)
    return 2.5 * logits, noisy.argmax(1)


@lru_cache
def plain_random(shape, from_logits):
    logits, labels = random_rows(*shape)
    return Plain(ref.softmax(logits), labels, logits if from_logits else None)


@pytest.mark.sampled(by="metric")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", ["logits-torch", "probs-torch", "logits-numpy", "probs-numpy"])
@pytest.mark.parametrize("shape", [(157, 2, 0), (211, 7, 1), (90, 60, 2)], ids=str)
def test_random_rows_with_all_options(shape, kind, metric):
    logits, labels = random_rows(*shape)
    from_logits = kind.startswith("logits")
    expected = plain_random(shape, from_logits)
    preds, target = logits if from_logits else expected.probs, labels_for(metric, labels)
    if kind.endswith("torch"):
        preds, target = torch.from_numpy(preds), torch.from_numpy(target)
    for options in OPTIONS[metric]:
        actual = value(metric, preds, target, from_logits=from_logits, **options)
        assert close(actual, expected.value(metric, **options), TOLERANCE[metric]), options


@pytest.mark.parametrize("metric", METRICS)
def test_random_float32_rows(metric):
    logits, labels = random_rows(400, 5, 3)
    logits = logits.astype(np.float32)
    options = {"bandwidth": 0.05} if metric == "kde_ece" else {}
    expected = Plain(ref.softmax(logits), labels, logits)
    actual = value(metric, logits, labels_for(metric, labels), **options)
    assert close(actual, expected.value(metric, **options), max(SINGLE[metric], 1e-6))


@pytest.mark.parametrize("metric", METRICS)
def test_rows_with_many_ties(metric):
    """Probabilities in eighths: confidences tie, and lie on the edges of eight bins."""
    rng = np.random.default_rng(5)
    probs = rng.multinomial(8, [0.5, 0.3, 0.2], size=300) / 8
    labels = rng.integers(0, 3, 300)
    expected = Plain(probs, labels)
    for options in OPTIONS[metric]:
        if options.get("loss") == "cross_entropy" or options.get("score") == "neg_entropy":
            continue  # infinite where p_y = 0; equal entropies differ in their last bits
        for more in ({}, {"num_bins": 8}) if "num_bins" in options else ({},):
            chosen = options | more
            actual = value(metric, probs, labels_for(metric, labels), from_logits=False, **chosen)
            assert close(actual, expected.value(metric, **chosen), TOLERANCE[metric]), chosen


@pytest.mark.parametrize("form", ["canonical", "top", "marginal"])
def test_the_bandwidth_chosen_maximises_the_leave_one_out_likelihood(form):
    logits, labels = random_rows(80, 3, 7)
    probs = ref.softmax(logits)
    grid = [*np.logspace(-5, -1, 15), *np.linspace(0.2, 1.0, 5)]

    def best(points):
        likelihood = [ref.loo_log_likelihood(points, h, floor=1e-12) for h in grid]
        return grid[int(np.argmax(likelihood))]

    if form == "canonical":
        expected = ref.kde_ece(probs, labels, best(probs), form, floor=1e-12)
        assert choose_bandwidth(torch.from_numpy(probs)) == pytest.approx(best(probs), rel=1e-6)
    elif form == "top":
        expected = ref.kde_ece(probs, labels, best(probs.max(1)), form, floor=1e-12)
    else:
        each = [ref.one_class(probs, labels, k) for k in range(3)]
        errors = [ref.binary_kde_ece(p, y, best(np.array(p)), floor=1e-12) for p, y in each]
        expected = sum(errors) / 3
    # The package's grid is a float32 one: a width may differ in its eighth digit.
    assert close(value("kde_ece", logits, labels, form=form), expected, 1e-6)


@pytest.mark.parametrize("weights", ["empirical", "log"])
@pytest.mark.parametrize("ties", [False, True])
def test_aurc_from_scores_takes_any_scores_and_losses(weights, ties):
    rng = np.random.default_rng(11)
    score = rng.normal(size=200) * 30
    score = score.round(-1) if ties else score
    loss = rng.exponential(size=200)
    actual = metrics.aurc_from_scores(score, loss, weights=weights)
    assert isinstance(actual, np.float64)
    assert close(actual, ref.aurc(score.tolist(), loss.tolist(), weights), 1e-12)
    same = metrics.aurc_from_scores(
        torch.from_numpy(score), torch.from_numpy(loss), weights=weights
    )
    assert same.dtype == torch.float64
    assert close(same.item(), actual, 1e-15)


def test_scores_and_losses_may_be_functions_of_a_block():
    logits, labels = random_rows(200, 4, 9)
    for name in SELECTIVE:
        for loss in LOSSES:
            twin = {"cross_entropy": "nll", "brier": "brier", "zero_one": None}[loss]
            actual = value(
                name,
                logits,
                labels,
                score=lambda block: block.margin,
                loss=lambda block, twin=twin: (
                    getattr(block, twin) if twin else (~block.correct).double()
                ),
            )
            assert close(actual, value(name, logits, labels, score="margin", loss=loss), 1e-12)
