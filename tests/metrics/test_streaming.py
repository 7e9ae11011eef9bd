"""Any number of updates of any size, merged in any order, is one pass; in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from calibrant import InputError, metrics
from calibrant.functional.blocks import blocks
from calibrant.metrics import measure
from calibrant.metrics.base import compute_all
from calibrant.metrics.classwise import ProbState
from tests.helpers.metric_cases import DEVICES, every_case, labels_for, rows, value


def close(actual, expected, tolerance=1e-11):
    return actual == pytest.approx(expected, rel=tolerance, abs=tolerance)


def fill_states(metric, preds, target, **options):
    """Return the states of a measure after one batch."""
    states = metric.build()
    for block in blocks(preds, target, num_labels=states[0].num_labels, **options):
        for state in states:
            state.update(block)
    return states


def merged(left, right):
    return tuple(a.merge(b) for a, b in zip(left, right, strict=True))


@pytest.mark.sampled(by="name")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes", [[1] * 60, [59, 1], [7, 20, 33]], ids=["ones", "most", "three"])
@every_case
def test_batches_of_any_size_are_one_pass(name, options, sizes, device):
    logits, labels = rows()
    target = labels_for(name, labels)
    batches = zip(logits.to(device).split(sizes), target.to(device).split(sizes), strict=True)
    (actual,) = compute_all([measure(name, **options)], batches)
    assert close(actual.item(), value(name, logits, target, **options))


@pytest.mark.parametrize("from_logits", [True, False])
@every_case
def test_merging_is_associative_and_an_empty_state_changes_nothing(name, options, from_logits):
    logits, labels = rows()
    preds = logits if from_logits else logits.softmax(1)
    target = labels_for(name, labels)
    expected = measure(name, **options)

    def part(begin, end):
        return fill_states(expected, preds[begin:end], target[begin:end], from_logits=from_logits)

    left = merged(merged(part(0, 10), part(10, 35)), part(35, 60))
    right = merged(part(0, 10), merged(part(10, 35), part(35, 60)))
    empty_first = merged(expected.build(), part(0, 60))
    empty_last = merged(part(0, 60), expected.build())
    whole = value(name, preds, target, from_logits=from_logits, **options)
    for states in (left, right, empty_first, empty_last):
        assert close(expected.compute(*states).item(), whole)


def test_states_that_differ_do_not_merge():
    logits, labels = rows()
    ten, fifteen = (fill_states(measure("ece", num_bins=m), logits, labels)[0] for m in (10, 15))
    with pytest.raises(InputError, match="options differ"):
        ten.merge(fifteen)
    few = fill_states(measure("classwise_ece"), logits[:, :3], labels % 3)[0]
    with pytest.raises(InputError, match="numbers of classes differ"):
        few.merge(fill_states(measure("classwise_ece"), logits, labels)[0])
    kept = fill_states(measure("classwise_ece", binning="mass"), logits, labels)[0]
    probs = fill_states(
        measure("classwise_ece", binning="mass"), logits.softmax(1), labels, from_logits=False
    )[0]
    with pytest.raises(InputError, match="cannot merge logits with probabilities"):
        kept.merge(probs)


def test_the_number_of_classes_must_not_change():
    logits, labels = rows()
    batches = [(logits, labels), (logits[:, :3], labels % 3)]
    with pytest.raises(InputError, match="number of classes changed"):
        compute_all([measure("classwise_ece")], batches)


def test_metrics_of_one_pass_share_their_states():
    logits, labels = rows()
    names = [name for name in metrics.available() if name not in ("ood_auroc", "fpr95")]
    values = compute_all([measure(name) for name in names], [(logits, labels)])
    for name, actual in zip(names, values, strict=True):
        assert close(actual.item(), value(name, logits, labels)), name


def test_a_copying_state_does_not_see_its_batch_overwritten():
    logits, labels = rows()
    state = ProbState(copy=True)
    for block in blocks(logits, labels):
        state.update(block)
    expected, kept = state.columns(0, 4).clone(), labels.clone()
    logits.zero_()
    labels.zero_()
    assert torch.equal(state.columns(0, 4), expected)
    assert torch.equal(state.concatenate("targets"), kept)


@pytest.mark.parametrize("name", ["ece", "classwise_ece", "adaptive_ece", "aurc", "brier", "miou"])
def test_many_blocks_are_one(name):
    """More rows than a block holds, and a last block of another size."""
    logits, labels = rows(150_000, 3)
    whole = value(name, logits, labels)
    sizes = [7_777] * 19 + [150_000 - 19 * 7_777]
    batches = zip(logits.split(sizes), labels.split(sizes), strict=True)
    (actual,) = compute_all([measure(name)], batches)
    assert close(actual.item(), whole)
    image = logits.reshape(2, 250, 300, 3).permute(0, 3, 1, 2)
    assert close(value(name, image, labels.reshape(2, 250, 300)), whole)


@pytest.fixture(scope="module")
def million():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1_000_000, 10, generator=generator) * 3
    noise = torch.randn(1_000_000, 10, generator=generator) * 2
    return logits, (logits + noise).argmax(1)


@pytest.mark.sampled(count=3)
@pytest.mark.parametrize(
    "name", ["accuracy", "nll", "brier", "ece", "ks_error", "aurc", "mean_entropy", "adaptive_ece"]
)
def test_a_million_float32_rows_add_up_as_in_float64(name, million):
    logits, labels = million
    actual, expected = value(name, logits, labels), value(name, logits.double(), labels)
    assert actual == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("name", ["classwise_ece", "marginal_ece", "brier_calibration"])
def test_ten_million_float32_probabilities_add_up_as_in_float64(name, million):
    """From the same float32 softmax: one in ten million falls on the other side of an edge."""
    logits, labels = million
    probs = logits.t().contiguous().softmax(0).t()
    expected = value(name, probs.double(), labels, from_logits=False)
    assert value(name, probs, labels, from_logits=False) == pytest.approx(expected, rel=1e-7)
    assert value(name, logits, labels) == pytest.approx(expected, rel=1e-7)


def test_float32_sums_of_a_million_rows_would_not_do(million):
    """What the float64 sums are for: the same bins, accumulated in float32."""
    logits, labels = million
    confidence, guess = logits.softmax(1).max(1)
    index = (confidence * 15).ceil().long().sub(1).clamp(0, 14)
    totals = torch.zeros(15).index_add_(0, index, confidence)
    right = torch.zeros(15).index_add_(0, index, (guess == labels).float())
    ece = float((totals - right).abs().sum() / len(labels))
    expected = value("ece", logits.double(), labels)
    assert abs(ece / expected - 1) > 1e-5
    assert abs(value("ece", logits, labels) / expected - 1) < 1e-7


MEMORY = """
    import json, resource, sys, torch
    from calibrant import metrics

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    name, options = sys.argv[1], json.loads(sys.argv[2])
    logits = torch.empty(50_000, 1_000)
    for part in logits.split(1_000):
        part.normal_()
    labels = torch.arange(50_000) % 1_000
    getattr(metrics, name)(logits[:64].clone(), labels[:64], **options)
    before = peak()
    getattr(metrics, name)(logits, labels, **options)
    print(peak() - before)
"""


@pytest.mark.sampled(count=1)
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux alone")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ece", {}),
        ("classwise_ece", {}),
        ("adaptive_ece", {}),
        ("brier", {}),
        ("aurc", {"score": "margin", "loss": "cross_entropy"}),
        ("classwise_ece", {"binning": "mass"}),
    ],
    ids=str,
)
def test_no_second_array_of_the_size_of_the_input(name, options):
    """50,000 x 1,000 float32 logits are 191 MB; a metric adds less than 100."""
    command = [sys.executable, "-c", textwrap.dedent(MEMORY), name, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100


def test_batches_may_be_generated_and_be_numpy_or_torch():
    logits, labels = rows()
    parts = ((logits[i : i + 20].numpy(), labels[i : i + 20]) for i in range(0, 60, 20))
    (actual,) = compute_all([measure("ece")], parts)
    assert close(actual.item(), value("ece", logits, labels))
    with pytest.raises(InputError, match="no rows were seen"):
        compute_all([measure("ece")], iter([]))


def test_a_sum_takes_its_device_from_the_first_batch():
    logits, labels = rows()
    (actual,) = compute_all([measure("nll")], [(logits, np.asarray(labels))])
    assert actual.device.type == "cpu"
