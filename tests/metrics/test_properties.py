"""What must hold for any predictions at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrant.core.errors import UndefinedFigureError
from calibrant.metrics import measure
from calibrant.metrics.base import compute_all
from calibrant.metrics.selective import SELECTIVE
from tests.helpers.metric_cases import (
    CASES,
    IDS,
    OOD,
    SIGNED,
    SLOPES,
    is_defined,
    labels_for,
    value,
)
from tests.reference import metrics as ref

quick = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
# What is not a share of rows, nor a difference of shares.
UNBOUNDED = ("nll", "mean_entropy", "classwise_nll_std", "kde_ece", "marginal_ece", "debiased_ece")
UNBOUNDED = (*UNBOUNDED, "oe_ratio", "calibration_slope")


@st.composite
def predictions(draw, min_rows=2, both_parities=True):
    """A few rows of logits, coarse enough to tie, and labels of both parities."""
    num_rows, num_classes = draw(st.integers(min_rows, 25)), draw(st.integers(2, 5))
    steps = draw(hnp.arrays(np.int64, (num_rows, num_classes), elements=st.integers(-40, 40)))
    scale = draw(st.sampled_from([0.05, 0.25, 1.0]))
    labels = draw(hnp.arrays(np.int64, num_rows, elements=st.integers(0, num_classes - 1)))
    if both_parities:
        labels[:2] = (0, 1)
    return steps * scale, labels


every_option = pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)


@pytest.mark.sampled(count=13)
@every_option
@quick
@given(data=predictions(), random=st.randoms(use_true_random=False))
def test_neither_order_nor_batches_change_a_value(name, options, data, random):
    logits, labels = data
    target = labels_for(name, labels)
    assume(name not in SLOPES or is_defined(name, ref.softmax(logits), labels))
    whole = value(name, logits, target, **options)
    order = list(range(len(labels)))
    random.shuffle(order)
    assert value(name, logits[order], target[order], **options) == pytest.approx(
        whole, rel=1e-9, abs=1e-9
    )
    cuts = sorted(random.sample(range(1, len(labels)), k=min(3, len(labels) - 1)))
    batches = zip(np.split(logits, cuts), np.split(target, cuts), strict=True)
    made = measure(name, **options)
    events = logits.shape[1] == 2 and "events" in made.views and name not in SELECTIVE
    (actual,) = compute_all([made], batches, positive=1 if events else None)
    assert actual.item() == pytest.approx(whole, rel=1e-9, abs=1e-9)


@pytest.mark.sampled(count=13)
@every_option
@quick
@given(data=predictions())
def test_values_lie_where_they_should(name, options, data):
    logits, labels = data
    assume(name not in SLOPES or is_defined(name, ref.softmax(logits), labels))
    try:
        actual = value(name, logits, labels_for(name, labels), **options)
    except UndefinedFigureError:  # nearly separated: the fit does not converge
        assert name in SLOPES
        return
    assert not np.isnan(actual)
    if name in SIGNED:
        return
    assert actual >= (-1e-12 if name == "brier_refinement" else 0)
    if name.startswith("brier"):
        assert actual <= 2 + 1e-12
    elif name not in UNBOUNDED and "loss" not in options:
        assert actual <= 1 + 1e-12
    if name == "mean_entropy":
        assert actual <= np.log(logits.shape[1]) + 1e-12


@quick
@given(
    data=predictions(),
    order=st.sampled_from([1, 1.5, 2, 4]),
    num_bins=st.integers(1, 30),
    binning=st.sampled_from(["width", "mass"]),
)
def test_the_label_form_is_never_below_the_bin_form(data, order, num_bins, binning):
    options = {"order": order, "num_bins": num_bins, "binning": binning}
    by_label = value("ece", *data, form="label", **options)
    assert by_label >= value("ece", *data, form="bin", **options) - 1e-12
    assert value("mce", *data, num_bins=num_bins, binning=binning) >= (
        value("ece", *data, **options) - 1e-12
    )


@quick
@given(data=predictions(), num_bins=st.integers(1, 30))
def test_the_parts_of_the_brier_score_are_its_sum(data, num_bins):
    parts = [
        value(f"brier_{part}", *data, num_bins=num_bins) for part in ("calibration", "refinement")
    ]
    assert sum(parts) == pytest.approx(value("brier", *data, view="top"), abs=1e-12)


@quick
@given(data=predictions())
def test_one_bin_of_any_kind_is_the_gap_of_the_means(data):
    logits, labels = data
    gap = value("ece", logits, labels, num_bins=1)
    for name, options in (
        ("mce", {"num_bins": 1}),
        ("adaptive_ece", {"num_bins": 1, "order": 3}),
        ("ece", {"num_bins": 1, "order": 2}),
    ):
        assert value(name, logits, labels, **options) == pytest.approx(gap, abs=1e-9)
    assert value("ks_error", logits, labels) >= gap - 1e-12


@quick
@given(data=predictions(), shift=st.floats(-50, 50))
def test_adding_a_constant_to_a_row_of_logits_changes_nothing(data, shift):
    logits, labels = data
    for name in ("nll", "brier", "mean_entropy", "classwise_nll_std"):
        assert value(name, logits + shift, labels) == pytest.approx(
            value(name, logits, labels), rel=1e-9, abs=1e-9
        )


@pytest.mark.parametrize("name", OOD)
@quick
@given(data=predictions())
def test_swapping_in_and_out_mirrors_the_auroc(name, data):
    logits, labels = data
    inside = labels % 2
    if name == "ood_auroc":
        mirrored = 1 - value(name, logits, 1 - inside)
        assert value(name, logits, inside) == pytest.approx(mirrored, abs=1e-12)
    else:
        assert value(name, logits, inside) in [
            pytest.approx(k / (inside == 0).sum()) for k in range((inside == 0).sum() + 1)
        ]


def test_chance_is_what_perfectly_calibrated_rows_show():
    """The mean ECE of labels drawn from the probabilities themselves, to the noise of 300 draws."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 10)) * rng.uniform(0.5, 6.0, size=(2000, 1))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    below = probs.cumsum(1)
    actual = []
    for _ in range(300):
        labels = (rng.uniform(size=(2000, 1)) > below).sum(1).clip(max=9)
        actual.append(value("ece", logits, labels))
    chance = value("chance_ece", logits, np.zeros(2000, np.int64))
    error = np.std(actual) / len(actual) ** 0.5
    # Rows of a bin are taken as equally sure: a little more than they are.
    assert np.mean(actual) - 4 * error < chance < 1.03 * np.mean(actual) + 4 * error
    assert error < 0.02 * chance
    # As the rows grow the floor falls by their root.
    assert value("chance_ece", np.tile(logits, (4, 1)), np.zeros(8000, np.int64)) == pytest.approx(
        chance / 2, rel=0.02
    )
