"""What holds for every metric: precision, order, shape and the edges of its domain."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant import InputError, metrics
from tests.helpers.metric_cases import (
    CURVES,
    DEVICES,
    OOD,
    SLOPES,
    Plain,
    every_case,
    is_defined,
    labels_for,
    rows,
    value,
)

TOLERANCE = {"smooth_ece": 3e-5} | dict.fromkeys((*SLOPES, "hosmer_lemeshow"), 1e-6)


def close(actual, expected, tolerance=1e-11):
    return actual == pytest.approx(expected, rel=tolerance, abs=tolerance)


@pytest.mark.sampled(by="name")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@every_case
def test_any_precision_gives_a_float64_scalar(name, options, dtype, device):
    logits, labels = rows()
    target = labels_for(name, labels)
    narrow = logits.to(dtype)
    actual = getattr(metrics, name)(narrow.to(device), target.to(device), **options)
    assert actual.shape == ()
    assert actual.dtype == torch.float64
    assert actual.device.type == device
    expected = value(name, narrow.double(), target, **options)
    loose = 1e-3 if name == "kde_ece" else 2e-5
    assert close(actual.item(), expected, 1e-9 if dtype == torch.float64 else loose)


@pytest.mark.sampled(by="name")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@every_case
def test_any_precision_of_probabilities(name, options, dtype):
    rng = np.random.default_rng(1)
    probs = torch.from_numpy(rng.multinomial(12, [0.3, 0.2, 0.5], size=80) + 1.0) / 15
    probs = torch.round(probs * 16) / 16  # exact in any precision
    probs[:, 0] += 1 - probs.sum(1)
    target = labels_for(name, torch.from_numpy(rng.integers(0, 3, 80)))
    expected = value(name, probs, target, from_logits=False, **options)
    if options.get("score") == "neg_entropy":
        return  # rows of equal entropy are told apart by their rounding, another in float32
    actual = value(name, probs.to(dtype), target, from_logits=False, **options)
    assert close(actual, expected, 1e-3 if name == "kde_ece" else 1e-6)


@every_case
def test_numpy_in_numpy_out(name, options):
    logits, labels = rows()
    target = labels_for(name, labels)
    actual = getattr(metrics, name)(logits.numpy(), target.numpy(), **options)
    assert isinstance(actual, np.float64)
    assert actual == value(name, logits, target, **options)


@every_case
def test_the_order_of_rows_does_not_matter(name, options):
    logits, labels = rows()
    logits = (logits * 2).round()  # ties
    target = labels_for(name, labels)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    expected = value(name, logits, target, **options)
    assert close(value(name, logits[order], target[order], **options), expected)


@every_case
def test_a_binary_score_is_two_classes(name, options):
    logits, labels = rows(80, 2)
    score = logits[:, 1]
    pair = torch.stack((torch.zeros_like(score), score), 1)
    target = labels_for(name, labels)
    expected = value(name, pair, target, **options)
    assert close(value(name, score, target, **options), expected)
    sure = torch.sigmoid(score)
    pair = torch.stack((1 - sure, sure), 1)
    expected = value(name, pair, target, from_logits=False, **options)
    assert close(value(name, sure, target, from_logits=False, **options), expected)


def test_a_half_precision_binary_probability_keeps_its_digits():
    sure = torch.tensor([0.1, 0.2, 0.3]).half()
    target = torch.tensor([0, 0, 1])
    actual = value("ece", sure, target, from_logits=False)
    assert close(actual, value("ece", sure.double(), target, from_logits=False), 1e-6)


@pytest.mark.parametrize("from_logits", [True, False])
@every_case
def test_dense_predictions_are_their_pixels(name, options, from_logits):
    logits, labels = rows(3 * 5 * 4, 6)
    target = labels_for(name, labels).clone()
    target[::7] = 255
    preds = logits if from_logits else logits.softmax(1)
    keep = target != 255
    expected = value(name, preds[keep], target[keep], from_logits=from_logits, **options)
    image = preds.reshape(3, 5, 4, 6).permute(0, 3, 1, 2)
    common = {"from_logits": from_logits, "ignore_index": 255} | options
    assert close(value(name, image, target.reshape(3, 5, 4), **common), expected)
    assert close(value(name, image.contiguous(), target.reshape(3, 5, 4), **common), expected)
    volume, cut = image.flatten(2), target.reshape(3, 20)
    assert close(value(name, volume, cut, **common), expected)
    assert close(value(name, preds, target, **common), expected)  # rows to leave out, not dense


def edge_sets():
    """Named sets of probabilities and labels at the edges of what a classifier can say."""
    logits, labels = rows(40, 3)
    probs = logits.softmax(1)
    guess = probs.argmax(1)
    flat = torch.full((12, 4), 0.25, dtype=torch.float64)
    sure = torch.eye(3, dtype=torch.float64)[torch.arange(12) % 3]
    cyclic = torch.arange(12) % 3
    absent = torch.where(labels == 2, 0, labels)
    return {
        "all right": (probs, guess),
        "all wrong": (probs, (guess + 1) % 3),
        "a class absent": (probs, absent),
        "one class present": (probs, torch.zeros_like(labels)),
        "one row repeated": (probs[:1].repeat(40, 1), labels),
        "constant": (flat, torch.arange(12) % 4),
        "constant, one label": (flat, torch.zeros(12, dtype=torch.int64)),
        "one-hot, right": (sure, cyclic),
        "one-hot, wrong": (sure, (cyclic + 1) % 3),
        "one-hot, mixed": (sure, torch.where(cyclic == 0, cyclic, torch.tensor(2))),
        "halves": (torch.full((6, 2), 0.5, dtype=torch.float64), torch.arange(6) % 2),
        "two rows": (probs[:2], labels[:2]),
        "one row": (probs[:1], labels[:1]),
        "two classes": (probs[:, :2] / probs[:, :2].sum(1, keepdim=True), labels % 2),
    }


@pytest.mark.sampled(count=182)
@pytest.mark.parametrize("edge", edge_sets())
@every_case
def test_edges_are_defined(name, options, edge):
    probs, labels = edge_sets()[edge]
    target = labels_for(name, labels)
    if name in OOD and target.unique().numel() < 2:
        with pytest.raises(InputError, match="both kinds are needed"):
            value(name, probs, target, from_logits=False, **options)
        return
    if name == "kde_ece" and len(labels) == 1:
        with pytest.raises(InputError, match="at least two rows"):
            value(name, probs, target, from_logits=False, **options)
        return
    if name in SLOPES and not is_defined(name, probs, labels):
        with pytest.raises(InputError, match="slope"):
            value(name, probs, target, from_logits=False, **options)
        return
    impossible = bool((probs.gather(1, labels[:, None]) == 0).any())
    if options.get("loss") == "cross_entropy" and impossible:
        with pytest.raises(InputError, match="first in rows"):
            value(name, probs, target, from_logits=False, **options)
        return
    actual = value(name, probs, target, from_logits=False, **options)
    assert not math.isnan(actual)
    if options.get("score") == "neg_entropy":
        return  # the plain version sums classes in another order, which breaks ties
    if (name == "kde_ece" and "bandwidth" not in options) or name in CURVES:
        assert 0 <= actual <= 2  # a few rows do not determine a local polynomial
        return
    expected = Plain(probs, labels).value(name, **options)
    expected = 0.5 if name == "failure_auroc" and math.isnan(expected) else expected
    assert close(actual, expected, TOLERANCE.get(name, 1e-11))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_case
def test_huge_logits_saturate_without_nan(name, options, dtype):
    """Confidence is exactly 1; the log-likelihood stays finite."""
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [0.0, -1e4, 1e4]], dtype=dtype)
    logits = logits.repeat(4, 1)
    labels = torch.tensor([0, 1, 0] * 4)
    if name in SLOPES:
        with pytest.raises(InputError, match="all rows have one probability"):
            value(name, logits, labels, **options)
        return
    actual = value(name, logits, labels_for(name, labels), **options)
    assert math.isfinite(actual)
    if name in ("kde_ece", "classwise_nll_std"):
        return  # the plain versions start from probabilities, where these have underflowed
    exact = Plain(logits.double().softmax(1), labels, logits.double())
    assert close(actual, exact.value(name, **options), TOLERANCE.get(name, 1e-11))


@every_case
def test_constant_logits_say_one_in_k(name, options):
    logits, labels = torch.full((10, 5), -3.0), torch.arange(10) % 5
    if name in SLOPES:
        with pytest.raises(InputError, match="all rows have one probability"):
            value(name, logits, labels, **options)
        return
    actual = value(name, logits, labels_for(name, labels), **options)
    if name in ("ece", "mce", "adaptive_ece", "ks_error", "smooth_ece", "brier_calibration"):
        assert close(actual, 0.0, 1e-7)  # one row in five is right, and so it says
    assert math.isfinite(actual)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_classes", [3, 10, 15, 100])
def test_one_in_k_may_lie_on_an_edge(num_classes, dtype):
    """float32(1/10) is above 1/10: the value, its count and its hits go to one bin together."""
    logits = torch.zeros(4 * num_classes, num_classes, dtype=dtype)
    labels = torch.arange(4 * num_classes) % num_classes
    for name in ("classwise_ece", "marginal_ece", "brier_calibration"):
        assert close(value(name, logits, labels, num_bins=num_classes), 0.0, 1e-7), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_classes", [3, 64])
@pytest.mark.parametrize("score", ["msp", "margin", "neg_entropy", "max_logit"])
def test_rows_that_are_one_in_float32_are_still_told_apart(score, num_classes, device):
    """The surer the righter, from e-17 to e-28 away from certainty: the AUROC is 1."""
    logits = torch.zeros(12, num_classes)
    logits[:, 0] = torch.arange(17.0, 29.0)
    logits = logits[torch.randperm(12, generator=torch.Generator().manual_seed(0))]
    right = (logits[:, 0] > 22).long()
    assert torch.all(logits.softmax(1).amax(1) == 1) or num_classes > 3
    actual = value("failure_auroc", logits.to(device), (1 - right).to(device), score=score)
    assert actual == 1.0
    assert value("ood_auroc", logits.to(device), right.to(device), score=score) == 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_bin_holds_a_probability_a_hair_above_one(dtype):
    probs = torch.tensor([[1.0005, 0.0], [0.0, 1.0005]], dtype=dtype)
    actual = value("classwise_ece", probs, torch.tensor([0, 1]), num_bins=1, from_logits=False)
    assert actual == pytest.approx(0.00025, rel=1e-3)


def test_documented_values_at_the_edges():
    sure, wrong = torch.eye(3), torch.tensor([1, 2, 0])
    assert value("nll", sure, wrong, from_logits=False) == math.inf
    assert value("classwise_nll_std", sure, wrong, from_logits=False) == math.inf
    assert value("classwise_nll_std", sure, torch.zeros(3, dtype=int), from_logits=True) == 0.0
    assert value("brier", sure, wrong, from_logits=False) == 2.0
    assert value("ece", sure, wrong, from_logits=False) == 1.0
    assert value("accuracy", torch.zeros(4, 3), torch.tensor([0, 0, 1, 2])) == 0.5  # first class
    assert value("failure_auroc", sure, torch.arange(3), from_logits=False) == 0.5
    assert value("coverage_at_risk", sure, wrong, from_logits=False) == 0.0
    assert value("nll", torch.tensor([[3e38, -3e38]]), torch.tensor([1])) == pytest.approx(6e38)


def test_entropy_needs_no_labels():
    logits, labels = rows()
    assert metrics.mean_entropy(logits) == metrics.mean_entropy(logits, labels)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_bins", [1, 3, 7, 10, 15, 100])
def test_values_on_an_edge_are_binned_as_by_exact_comparison(num_bins, device):
    edge = np.arange(num_bins + 1) / num_bins
    sure = np.unique(np.clip([edge, np.nextafter(edge, 0), np.nextafter(edge, 1)], 0, 1))
    probs = np.stack((sure, 1 - sure), 1)
    labels = np.random.default_rng(0).integers(0, 2, len(sure))
    preds, target = torch.from_numpy(probs).to(device), torch.from_numpy(labels).to(device)
    for name in ("ece", "mce", "classwise_ece", "brier_calibration"):
        actual = value(name, preds, target, num_bins=num_bins, from_logits=False)
        assert close(actual, Plain(probs, labels).value(name, num_bins=num_bins), 1e-12), name
