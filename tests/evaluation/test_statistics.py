"""Intervals, the paired comparison and the calibration test do what they promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrant import InputError, Predictions, bootstrap_interval, compare, evaluate, metrics
from calibrant.evaluation.bootstrap import resample_counts
from calibrant.evaluation.compare import Comparison, Difference
from calibrant.evaluation.intervals import Plan
from calibrant.evaluation.permutation_test import permutation_spread
from calibrant.evaluation.verdict import calibration_test
from calibrant.metrics.base import compute_all
from calibrant.metrics.rank_state import RankState


def binary(num_rows, shift, rng):
    """Confidences of a known law, right with chance c − shift: the true ECE is |shift|.

    The gap has one sign everywhere, so binning hides none of it, whatever the bins.
    """
    confidence = 0.55 + 0.45 * rng.beta(3, 1, size=num_rows)
    right = rng.random(num_rows) < confidence - shift
    probs = np.stack((1 - confidence, confidence), axis=1)
    return probs, np.where(right, 1, 0)


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("num_rows", [500, 10_000])
@pytest.mark.parametrize("truth", [0.0, 0.02, 0.1])
def test_the_interval_of_ece_covers_the_truth(num_rows, truth):
    rng = np.random.default_rng(7)
    trials, inside = (120 if num_rows < 1000 else 60), 0
    for trial in range(trials):
        probs, labels = binary(num_rows, truth, rng)
        interval = bootstrap_interval(
            metrics.measure("ece"), probs, labels, from_logits=False, resamples=300, seed=trial
        )
        inside += interval.low <= truth <= interval.high
    # With a true coverage of 95%, fewer happen once in 400 runs.
    assert inside / trials >= (0.89 if trials == 120 else 0.865)


def test_a_percentile_bootstrap_of_ece_misses_a_calibrated_model():
    """Why the interval is not the usual one: at N = 500 that one never holds the truth."""
    rng = np.random.default_rng(8)
    missed = 0
    for _ in range(20):
        probs, labels = binary(500, 0.0, rng)
        picks = rng.integers(0, 500, size=(100, 500))
        drawn = [metrics.ece(probs[rows], labels[rows], from_logits=False) for rows in picks]
        missed += np.quantile(drawn, 0.025) > 0.0
    assert missed == 20


def test_the_corrected_estimate_removes_most_of_the_bias():
    rng = np.random.default_rng(9)
    plain, corrected = [], []
    for trial in range(40):
        probs, labels = binary(500, 0.0, rng)
        measure = metrics.measure("ece")
        plain.append(metrics.ece(probs, labels, from_logits=False))
        corrected.append(
            bootstrap_interval(
                measure, probs, labels, from_logits=False, resamples=200, seed=trial
            ).estimate
        )
    assert np.mean(corrected) < 0.6 * np.mean(plain)


def ranks(probs, labels):
    state = RankState()
    compute_all([], [(probs, labels)], from_logits=False, extra=[state])
    return state


def test_the_calibration_test_keeps_its_false_alarm_rate():
    rng = np.random.default_rng(10)
    values = [
        calibration_test(ranks(*binary(num_rows, 0.0, rng)), resamples=200, seed=trial)
        for trial in range(200)
        for num_rows in (60, 600)
    ]
    alarms = np.mean(np.array(values) < 0.05)
    # 400 trials at 5%: outside 2% to 8.5% once in some hundred runs.
    assert 0.02 <= alarms <= 0.085
    assert abs(np.mean(values) - 0.5) < 0.06


@pytest.mark.parametrize("shift", [0.06, -0.04])
def test_the_calibration_test_sees_miscalibration(shift):
    rng = np.random.default_rng(11)
    tests = [
        calibration_test(ranks(*binary(3000, shift, rng)), resamples=200, seed=trial)
        for trial in range(20)
    ]
    assert np.mean(np.array(tests) < 0.05) >= 0.95


def test_the_calibration_test_sees_errors_that_cancel_on_average():
    rng = np.random.default_rng(12)
    confidence = 0.5 + 0.5 * rng.random(6000)
    wave = 0.08 * np.where(np.floor(confidence * 15) % 2 == 0, 1.0, -1.0)
    right = rng.random(6000) < np.clip(confidence + wave, 0, 1)
    probs = np.stack((1 - confidence, confidence), axis=1)
    assert calibration_test(ranks(probs, right.astype(np.int64)), resamples=500) < 0.05


def some_predictions(num_rows=400, classes=4, seed=0, sharpness=1.0):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(num_rows, classes))
    labels = rng.integers(0, classes, num_rows)
    logits[np.arange(num_rows), labels] += 1.5
    return Predictions.from_logits((logits * sharpness).astype(np.float32), labels)


FAST = [
    *("accuracy", "nll", "brier", "mean_entropy", "aurc", "e_aurc", "augrc", "failure_auroc"),
    *("risk_at_coverage", "coverage_at_risk", "ece", "mce", "adaptive_ece", "debiased_ece"),
    *("classwise_ece", "marginal_ece", "brier_calibration"),
]


@pytest.mark.parametrize("name", FAST)
def test_resampling_all_sets_at_once_equals_computing_each(name):
    """The counts of a resampled set give what the rows themselves would."""
    from calibrant.evaluation.bootstrap import make_row_states, resample_measures

    predictions = some_predictions(num_rows=150)
    measures = {name: metrics.measure(name)}
    kept = make_row_states(measures, classes=True)
    compute_all([], [(predictions.array, predictions.labels)], extra=list(kept.values()))
    counts = next(resample_counts(150, 7, seed=3))
    fast = resample_measures(measures, kept, counts)[name]
    slow = []
    for line in counts:
        rows = np.repeat(np.arange(150), line)
        function = getattr(metrics, name)
        slow.append(float(function(predictions.array[rows], predictions.labels[rows])))
    np.testing.assert_allclose(fast, slow, rtol=1e-6, atol=1e-9)


def test_resampled_counts_are_multinomial_and_follow_the_seed():
    counts = np.concatenate(list(resample_counts(50, 4000, seed=1)))
    assert (counts.sum(1) == 50).all()
    np.testing.assert_allclose(counts.mean(0), 1.0, atol=0.08)
    np.testing.assert_allclose(counts.var(), 49 / 50, atol=0.02)
    again = np.concatenate(list(resample_counts(50, 4000, seed=1)))
    assert (counts == again).all()
    assert (counts != np.concatenate(list(resample_counts(50, 4000, seed=2)))).any()


def test_intervals_of_means_match_the_central_limit():
    predictions = some_predictions(num_rows=3000)
    interval = bootstrap_interval(metrics.measure("nll"), predictions.array, predictions.labels)
    losses = torch.nn.functional.cross_entropy(
        torch.from_numpy(predictions.array), torch.from_numpy(predictions.labels), reduction="none"
    )
    half = 1.96 * losses.std().item() / 3000**0.5
    assert interval.low == pytest.approx(losses.mean().item() - half, rel=0.02)
    assert interval.high == pytest.approx(losses.mean().item() + half, rel=0.02)


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize(
    "name", ["miou", "classwise_nll_std", "brier_refinement", "kde_ece", "sweep_ece"]
)
def test_any_metric_has_an_interval(name):
    predictions = some_predictions()
    interval = bootstrap_interval(
        metrics.measure(name), predictions.array, predictions.labels, resamples=100
    )
    assert np.isfinite([interval.low, interval.high, interval.estimate]).all()
    assert interval.low < interval.estimate < interval.high


def test_halves_of_the_rows_give_the_standard_error_of_a_mean():
    from calibrant.evaluation.intervals import half_samples

    predictions = some_predictions(num_rows=1000)
    halves = half_samples(
        [metrics.measure("nll")],
        [lambda rows: (predictions.array[rows], predictions.labels[rows])],
        1000,
        draws=1000,
        seed=0,
        options=[{}],
    )
    interval = bootstrap_interval(metrics.measure("nll"), predictions.array, predictions.labels)
    assert 2 * 1.96 * halves.std() == pytest.approx(interval.high - interval.low, rel=0.1)


def test_a_model_as_sure_as_can_be_may_still_be_wrong():
    """100 of 100 right at confidence 1: the truth may be off by about 3.6/100."""
    probs, labels = np.eye(4)[np.arange(100) % 4], np.arange(100) % 4
    interval = bootstrap_interval(metrics.measure("ece"), probs, labels, from_logits=False)
    assert interval.low == 0 == interval.estimate
    assert 0.02 < interval.high < 0.06
    wrong = bootstrap_interval(metrics.measure("ece"), probs, (labels + 1) % 4, from_logits=False)
    assert wrong.low > 0.9
    sure = evaluate(Predictions.from_probs(probs, labels), metrics=["accuracy"])["accuracy"]
    assert sure.low == pytest.approx(0.963, abs=1e-3)


def test_out_of_distribution_metrics_have_intervals():
    predictions = some_predictions()
    inside = (np.arange(400) < 250).astype(np.int64)
    interval = bootstrap_interval(
        metrics.measure("ood_auroc"), predictions.array, inside, resamples=100
    )
    assert 0.4 < interval.low < interval.high < 0.6


def test_comparing_a_model_with_itself_finds_nothing():
    predictions = some_predictions()
    comparison = compare(predictions, predictions)
    for difference in comparison.differences.values():
        assert difference.difference == 0
        assert difference.low == 0 == difference.high
        assert difference.winner == "neither"
        assert difference.p_value == 1.0


def test_comparison_finds_the_sharper_model_worse_and_its_accuracy_the_same():
    plain, sharp = some_predictions(2000), some_predictions(2000, sharpness=3.0)
    comparison = compare(plain, sharp)
    assert comparison["accuracy"].winner == "neither"
    assert comparison["ece"].winner == "a"
    assert comparison["nll"].winner == "a"
    assert comparison["ece"].low > 0
    assert "better in nll" in comparison.headline


def test_what_has_no_better_way_has_no_winner():
    plain, sharp = some_predictions(2000), some_predictions(2000, sharpness=3.0)
    comparison = compare(plain, sharp, metrics=["ece", "mean_entropy", "chance_ece"])
    for name in ("mean_entropy", "chance_ece"):
        assert comparison[name].high < 0
        assert comparison[name].winner == "neither"


def test_chance_is_of_the_same_bins_as_the_error():
    predictions = some_predictions(500)
    few, many = (
        evaluate(predictions, metrics=["ece", "chance_ece"], num_bins=bins) for bins in (5, 50)
    )
    assert many["chance_ece"].value == pytest.approx(
        float(metrics.chance_ece(predictions.array, predictions.labels, num_bins=50))
    )
    assert many["chance_ece"].value > 2 * few["chance_ece"].value


def test_paired_intervals_are_narrower_than_unpaired_ones():
    a = some_predictions(2000)
    noise = np.random.default_rng(1).normal(scale=0.05, size=a.array.shape).astype(np.float32)
    b = Predictions.from_logits(a.array + noise, a.labels)
    paired = compare(a, b, metrics=["nll"])["nll"]
    single = bootstrap_interval(metrics.measure("nll"), a.array, a.labels)
    assert paired.high - paired.low < 0.3 * (single.high - single.low)


def test_comparison_refuses_different_rows():
    a = some_predictions()
    b = Predictions.from_logits(a.array, np.roll(a.labels, 1))
    with pytest.raises(InputError, match="same rows in the same order: labels"):
        compare(a, b)
    with pytest.raises(InputError, match="same rows"):
        compare(a, some_predictions(num_rows=300))


def test_comparison_covers_metrics_without_a_fast_form():
    a, b = some_predictions(), some_predictions(sharpness=2.0)
    a, b = (side.take(np.arange(250)) for side in (a, b))
    comparison = compare(a, b, metrics=["classwise_nll_std", "kde_ece", "ece"], resamples=100)
    spread = comparison["classwise_nll_std"]
    assert spread.low < spread.difference < spread.high
    assert spread.difference == pytest.approx(spread.b - spread.a)
    assert comparison["kde_ece"].winner == "a"
    assert comparison["ece"].winner == "a"


def test_a_smaller_confidence_level_gives_a_narrower_interval():
    predictions = some_predictions(2000, sharpness=2.0)
    wide = evaluate(predictions, metrics=["ece", "nll"], confidence_level=0.99)
    slim = evaluate(predictions, metrics=["ece", "nll"], confidence_level=0.5)
    for name in ("ece", "nll"):
        assert slim[name].high - slim[name].low < wide[name].high - wide[name].low


def test_few_rows_leave_as_much_open_as_their_accuracy_does():
    """One row right, 78% sure: the truth may be anything from 21% to 100%."""
    row = Predictions.from_logits(np.array([[1.276, 0.0]]), np.array([0]))
    few_metrics = {"metrics": ["ece"], "resamples": 200, "view": "top"}
    evaluation = evaluate(row, **few_metrics)
    confidence = float(torch.softmax(torch.tensor([1.276, 0.0]), 0)[0])
    low = 1 / (1 + 1.959964**2)  # Wilson's interval of 1 of 1
    assert evaluation.verdict.gap_low == pytest.approx(confidence - 1, abs=1e-4)
    assert evaluation.verdict.gap_high == pytest.approx(confidence - low, abs=1e-4)
    assert evaluation.figures["ece"].high == pytest.approx(confidence - low, abs=1e-4)
    assert f"and {100 * (confidence - low):.1f} points" in evaluation.verdict.sentences[0]
    rows = np.tile([[1.276, 0.0]], (29, 1))
    labels = np.zeros(30, dtype=int)
    few = evaluate(Predictions.from_logits(rows, labels[:29]), **few_metrics)
    many = evaluate(Predictions.from_logits(np.vstack((rows, rows[:1])), labels), **few_metrics)
    assert few.verdict.gap_low <= confidence - 1 + 1e-6  # of rows all alike no resample differs
    assert few.verdict.gap_high > many.verdict.gap_high


def noisy_twins(seed, num_rows=200, num_classes=5):
    """Two sets that are as good as each other: the same logits with noise of their own."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(num_rows, num_classes))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1) < rng.random(num_rows)[:, None]).sum(1).clip(max=num_classes - 1)
    return [
        Predictions.from_logits(logits + 0.7 * rng.normal(size=logits.shape), labels, name=name)
        for name in "ab"
    ]


@pytest.mark.slow
def test_neither_of_two_as_good_is_said_to_be_better_calibrated():
    """By the spread of resampled plug-in values alone a fifth of these would be."""
    names = ["ece", "adaptive_ece", "classwise_ece"]
    wins = np.zeros(len(names))
    repeats = 40
    for seed in range(repeats):
        comparison = compare(*noisy_twins(seed), metrics=names, resamples=100, seed=seed)
        wins += [comparison[name].winner != "neither" for name in names]
    assert (wins / repeats <= 0.125).all(), wins


def test_a_real_difference_in_calibration_is_shown_and_its_interval_agrees():
    a, b = noisy_twins(0, num_rows=2000)
    sharp = Predictions.from_logits(3 * np.asarray(b.array), b.labels, name="sharp")
    comparison = compare(a, sharp, metrics=["ece", "adaptive_ece", "classwise_ece"], resamples=200)
    for name in ("ece", "adaptive_ece", "classwise_ece"):
        difference = comparison[name]
        assert difference.winner == "a"
        assert difference.p_value < 0.001
        assert (difference.low > 0) == (difference.p_value < 0.05)
    assert "a is better in " in comparison.headline
    for seed in range(8):
        for difference in compare(
            *noisy_twins(seed), metrics=["ece", "classwise_ece"], resamples=200
        ).differences.values():
            assert (difference.low <= 0 <= difference.high) == (difference.p_value >= 0.05)


def test_among_many_metrics_a_small_p_is_a_hint():
    difference = Difference("ece", "ECE", 0.1, 0.08, -0.02, -0.03, -0.001, 0.03, "lower")
    same = Difference("nll", "NLL", 0.1, 0.1, 0.0, -0.1, 0.1, 0.9, "lower")
    named = {"ece": difference, "nll": same}
    comparison = Comparison("a", "b", 100, named, {"confidence_level": 0.95})
    hint = "hinted at, not shown among 2 metrics: ece; no difference is shown in nll."
    assert comparison.headline == hint
    sure = {"ece": replace(difference, p_value=0.01), "nll": same}
    assert Comparison("a", "b", 100, sure, {"confidence_level": 0.95}).headline == (
        "b is better in ece; no difference is shown in nll."
    )


@pytest.mark.parametrize("wrong", [0, 3])
def test_rows_that_are_nearly_all_right_do_not_prove_certainty(wrong):
    """Rows that are all right show no spread, and few errors hardly any."""
    logits = np.zeros((60, 3))
    logits[:, 0] = 15.0
    labels = np.zeros(60, dtype=int)
    labels[:wrong] = 1
    evaluation = evaluate(Predictions.from_logits(logits, labels), resamples=200)
    reach = 1 - evaluation["accuracy"].low
    assert reach - 1e-4 <= evaluation.verdict.gap_high <= 1.05 * reach
    assert evaluation["ece"].high >= reach - 1e-4


def test_a_risk_without_errors_has_no_interval():
    """It would be of no width, as if 60 rows had proved it."""
    logits = np.random.default_rng(0).normal(size=(60, 3))
    right = Predictions.from_logits(logits, logits.argmax(1))
    evaluation = evaluate(
        right, metrics=["aurc", "risk_at_coverage", "nll", "accuracy"], resamples=200
    )
    assert evaluation["aurc"].low is None
    assert evaluation["risk_at_coverage"].high is None
    assert evaluation["nll"].low < evaluation["nll"].high
    assert evaluation["accuracy"].low == pytest.approx(60 / (60 + 1.96**2), abs=1e-3)
    interval = bootstrap_interval(metrics.measure("aurc"), logits, logits.argmax(1), resamples=100)
    assert (interval.low, interval.high) == (-np.inf, np.inf)


def test_one_row_says_little_whatever_the_error():
    names = ["ece", "adaptive_ece", "ks_error", "smooth_ece"]
    row = Predictions.from_logits(np.array([[15.0, 0.0]]), np.array([0]))
    evaluation = evaluate(row, metrics=names, resamples=200)
    for name in names:
        assert evaluation[name].high > 0.5, name


def test_a_metric_that_is_undefined_hides_no_other():
    """Both NLLs are infinite: their difference is not a number, and no test."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(2000, 5))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1) < rng.random(2000)[:, None]).sum(1).clip(max=4)
    sharp = np.exp(3 * logits) / np.exp(3 * logits).sum(1, keepdims=True)
    for each in (probs, sharp):
        each[0] = np.eye(5)[(labels[0] + 1) % 5]
    a, b = (
        Predictions.from_probs(each, labels, name=name)
        for each, name in ((sharp, "a"), (probs, "b"))
    )
    comparison = compare(a, b, metrics=["brier", "nll", "ece", "classwise_ece"], resamples=200)
    assert comparison.headline.startswith("b is better in brier, ece, classwise_ece;")
    assert comparison.shown == {"brier", "ece", "classwise_ece"}


def test_one_metric_needs_no_correction_for_many():
    difference = Difference("nll", "NLL", 0.1, 0.2, 0.1, 0.01, 0.15, 0.077, "lower")
    comparison = Comparison("a", "b", 60, {"nll": difference}, {"confidence_level": 0.95})
    assert comparison.headline == "a is better in nll."


def test_intervals_of_differences_stay_within_reason():
    """Stretched to 0 and no further, also where the plug-in values are all but equal."""
    for seed in range(5):
        a, b = noisy_twins(seed)
        for difference in compare(
            a, b, metrics=["ece", "classwise_ece"], resamples=200
        ).differences.values():
            assert -0.5 < difference.low <= 0 <= difference.high < 0.5 or difference.p_value < 0.05
    row = Predictions.from_logits(np.array([[2.0, 1.0, 0.0]]), np.array([1]), name="a")
    twice = Predictions.from_logits(2 * np.asarray(row.array), row.labels, name="b")
    assert compare(row, twice, metrics=["ece", "classwise_ece"])["ece"].winner == "neither"


def test_swaps_are_of_the_same_rows_of_both_sets():
    """One swap after another, by hand: row i of one set against row i of the other."""
    a, b = noisy_twins(3, num_rows=120)
    labels = np.asarray(a.labels).copy()
    labels[::7] = -1  # rows that do not count
    sides = [
        Predictions.from_logits(np.asarray(side.array), labels, ignore_index=-1, name=side.name)
        for side in (a, b)
    ]
    named = ("ece", "adaptive_ece", "classwise_ece")
    measures = {name: metrics.measure(name) for name in named}
    options = {"from_logits": True, "ignore_index": -1}
    spreads = permutation_spread(
        [(side, options) for side in sides], measures, Plan(resamples=100, seed=5)
    )
    kept = labels != -1
    left, right = (np.asarray(side.array)[kept] for side in sides)
    stay = np.random.default_rng(5).integers(0, 2, size=(100, kept.sum()), dtype=np.int64)
    for name in named:
        function = getattr(metrics, name)
        differences = [
            float(function(np.where(line, right, left), labels[kept]))
            - float(function(np.where(line, left, right), labels[kept]))
            for line in stay.astype(bool)[:, :, None]
        ]
        assert spreads[name] == pytest.approx(np.std(differences), rel=1e-9), name


def test_two_sets_that_leave_out_other_rows_are_not_compared():
    a, b = noisy_twins(0)
    other = Predictions.from_logits(np.asarray(b.array), b.labels, ignore_index=2, name="b")
    with pytest.raises(InputError, match="ignore_index is None in a and 2 in b"):
        compare(a, other)
