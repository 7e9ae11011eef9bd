"""Levels: scaling and then binning, against a plain version row by row, and by counting."""

from __future__ import annotations

import math
import warnings
from collections import Counter

import numpy as np
import pytest
import torch

import calibrant
from calibrant.bench import calibrator_text
from calibrant.calibrators import get
from calibrant.calibrators.choose import MENU
from calibrant.calibrators.solvers.one_vs_rest import log_sigmoid
from calibrant.core.errors import InputError
from calibrant.predictions import example

BINNINGS = ("deviation", "mass")
SCALINGS = (
    "temperature",
    "ensemble_temperature",
    "parameterized_temperature",
    "intra_order",
    "isotonic",
    "identity",
    "meta_cal",
)
NETWORK = "cifar10-resnet18"
both = pytest.mark.parametrize("binning", BINNINGS)


def drawn(rows=600, classes=5, seed=0, size=3.0):
    rng = np.random.default_rng(seed)
    logits = size * rng.normal(size=(rows, classes))
    return logits, (logits / 2 + rng.gumbel(size=logits.shape)).argmax(1)


def fit(logits, labels, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get("levels", **options).fit(logits, labels)


def real(part):
    predictions = example(NETWORK, part)
    return predictions.array.astype(np.float64), predictions.labels


def scaled(scaling, logits, labels):
    """The calibrator that scales, fitted by itself."""
    form = {"form": "m2b"} if scaling == "isotonic" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get(scaling, **form).fit(logits, labels)


# A plain version: one row at a time, in Python's floats.


def plain_odds(row):
    top = int(np.argmax(row))
    second = max(z for k, z in enumerate(row) if k != top)
    others = sum(math.exp(z - second) for k, z in enumerate(row) if k != top)
    return row[top] - second - math.log(others)


def plain_confidence(odds):
    return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0


def plain_edges(odds, num_levels, binning):
    def weight(x):
        c = plain_confidence(x)
        return math.sqrt(c * (1 - c)) if binning == "deviation" else 1.0

    times = Counter(odds)
    total = math.fsum(weight(x) for x in odds)
    edges, sofar, level, before = [], 0.0, 0, None
    for x in sorted(times):
        share = times[x] * weight(x)
        middle = (sofar + share / 2) / total
        own = sum(middle > j / num_levels for j in range(1, num_levels))
        if before is not None and own > level:
            edges.append((before + x) / 2)
        sofar, level, before = sofar + share, own, x
    return edges


def plain_fit(rows, num_levels, binning):
    odds = [plain_odds(row) for row in rows]
    edges = plain_edges(odds, num_levels, binning)
    levels = [[] for _ in range(len(edges) + 1)]
    for x in odds:
        levels[sum(edge < x for edge in edges)].append(plain_confidence(x))
    return edges, [math.fsum(level) / len(level) for level in levels]


def plain_map(row, edges, values):
    """Probabilities, and whether the row was left alone."""
    top, best = int(np.argmax(row)), max(row)
    p = [math.exp(z - best) for z in row]
    p = [x / math.fsum(p) for x in p]
    others = math.fsum(x for k, x in enumerate(p) if k != top)
    level = values[sum(edge < plain_odds(row) for edge in edges)]
    q = [level if k == top else (1 - level) * x / others for k, x in enumerate(p)]
    left = any(x >= level for k, x in enumerate(q) if k != top)
    return (p if left else q), left


def plain(rows, new, num_levels, binning):
    edges, values = plain_fit(rows, num_levels, binning)
    probs = [plain_map(row, edges, values) for row in new]
    return np.array([q for q, _ in probs]), np.array([left for _, left in probs]), values


@both
@pytest.mark.parametrize("num_levels", [1, 2, 7, 10, 40])
@pytest.mark.parametrize("classes", [2, 5])
def test_a_plain_version_agrees_on_random_logits(binning, num_levels, classes):
    logits, labels = drawn(classes=classes)
    new = drawn(300, classes, seed=1)[0]
    made = fit(logits, labels, num_levels=num_levels, binning=binning)
    g = scaled("temperature", logits, labels)
    expected, left, values = plain(g.calibrate(logits), g.calibrate(new), num_levels, binning)
    np.testing.assert_allclose(made.predict_proba(new), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(made.levels_.numpy(), values, rtol=0, atol=1e-12)
    assert left.mean() < 0.5


@pytest.mark.sampled(count=5)
@both
@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_plain_version_agrees_whatever_scales(scaling, binning):
    logits, labels = drawn()
    new = drawn(200, seed=2)[0]
    made = fit(logits, labels, scaling=scaling, binning=binning, num_levels=6)
    g = scaled(scaling, logits, labels)
    expected = plain(g.calibrate(logits), g.calibrate(new), 6, binning)[0]
    np.testing.assert_allclose(made.predict_proba(new), expected, rtol=0, atol=1e-12)
    assert len(made.levels_) == 6


@pytest.mark.sampled(count=1)
@both
def test_a_plain_version_agrees_on_a_real_network(binning):
    (logits, labels), (new, _) = real("validation"), real("test")
    made = fit(logits, labels, binning=binning)
    g = scaled("temperature", logits, labels)
    expected, left, _ = plain(g.calibrate(logits), g.calibrate(new), 10, binning)
    np.testing.assert_allclose(made.predict_proba(new), expected, rtol=0, atol=1e-12)
    # 0.4% of the test rows by deviation, none by mass.
    assert left.mean() <= {"deviation": 0.01, "mass": 0.0}[binning]


@pytest.mark.sampled(count=1)
@both
@pytest.mark.parametrize("scaling", ["temperature", "intra_order"])
def test_few_rows_of_a_real_network_are_left_as_they_were_scaled(scaling, binning):
    (logits, labels), (new, _) = real("validation"), real("test")
    made = fit(logits, labels, scaling=scaling, binning=binning)
    logs = made.calibrate(new).max(1)
    left = ~np.isin(logs, log_sigmoid(made.odds_).numpy())
    # By deviation 0.4% of the test rows (temperature) and 0.6% (intra_order), none by mass; the
    # others say one of ten confidences.
    assert left.mean() <= {"deviation": 0.01, "mass": 0.0}[binning]
    assert len(np.unique(logs[~left])) == 10
    alone = scaled(scaling, logits, labels).predict_proba(new)
    np.testing.assert_allclose(made.predict_proba(new)[left], alone[left], rtol=0, atol=1e-12)


@both
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_confidences_are_at_most_num_levels(binning, dtype):
    logits, labels = drawn()
    new = drawn(5000, seed=3)[0].astype(dtype)
    made = fit(logits.astype(dtype), labels, num_levels=4, binning=binning)
    alone = torch.from_numpy(made.scaler.calibrate(new)).log_softmax(1).numpy()
    calibrated = made.calibrate(new)
    levels = calibrated.max(1)[(calibrated != alone).any(1)]
    assert len(levels) > 4000
    assert len(np.unique(levels)) == 4


@pytest.mark.sampled(count=3)
@pytest.mark.parametrize("scaling", SCALINGS)
@both
def test_near_ties_keep_every_prediction(scaling, binning):
    rng = np.random.default_rng(4)
    logits, labels = drawn()
    made = fit(logits, labels, scaling=scaling, binning=binning, num_levels=12)
    near = 3 * rng.normal(size=(4000, 5))
    top, other = near.argmax(1), (near.argmax(1) + 1) % 5
    rows = np.arange(4000)
    near[rows, other] = near[rows, top] - rng.choice([1e-3, 1e-2, 0.1, 0.5], 4000)
    mapped = made.calibrate(near)
    np.testing.assert_array_equal(mapped.argmax(1), top)
    alone = scaled(scaling, logits, labels).predict_proba(near)
    left = np.abs(made.predict_proba(near) - alone).max(1) < 1e-9
    assert 0 < left.sum() < 4000  # both ways are taken


@both
def test_a_level_is_the_mean_of_its_rows_scaled_confidences(binning):
    logits, labels = drawn()
    made = fit(logits, labels, binning=binning)
    c = scaled("temperature", logits, labels).predict_proba(logits).max(1)
    level = np.searchsorted(1 / (1 + np.exp(-made.edges_.numpy())), c)
    assert set(level) == set(range(10))
    means = [c[level == i].mean() for i in range(10)]
    np.testing.assert_allclose(made.levels_.numpy(), means, rtol=0, atol=1e-12)
    assert (np.diff(made.levels_.numpy()) > 0).all()
    assert math.isclose((made.levels_ * made.counts_).sum() / 600, c.mean(), rel_tol=1e-12)


@both
def test_rows_and_hits_are_counted(binning):
    logits, labels = drawn()
    made = fit(logits, labels, binning=binning)
    c = made.scaler.predict_proba(logits).max(1)
    level = np.searchsorted(1 / (1 + np.exp(-made.edges_.numpy())), c)
    right = logits.argmax(1) == labels
    assert made.counts_.tolist() == [int((level == i).sum()) for i in range(10)]
    assert made.hits_.tolist() == [int(right[level == i].sum()) for i in range(10)]
    assert not made.counts_.is_floating_point()


@pytest.mark.parametrize(("rows", "num_levels"), [(600, 10), (601, 7), (50, 50), (13, 5)])
def test_levels_of_equal_mass_have_equal_counts_within_one(rows, num_levels):
    made = fit(*drawn(rows), binning="mass", num_levels=num_levels)
    assert len(made.counts_) == num_levels
    assert int(made.counts_.max() - made.counts_.min()) <= 1
    assert int(made.counts_.sum()) == rows


def test_levels_of_equal_deviation_share_it_and_spend_few_rows_on_doubt():
    logits, labels = real("validation")
    made = fit(logits, labels)
    c = made.scaler.predict_proba(logits).max(1)
    level = np.searchsorted(1 / (1 + np.exp(-made.edges_.numpy())), c)
    shares = np.bincount(level, np.sqrt(c * (1 - c))) / np.sqrt(c * (1 - c)).sum()
    np.testing.assert_allclose(shares, 0.1, atol=0.01)
    by_mass = fit(logits, labels, binning="mass")
    assert int((made.levels_ < 0.9).sum()) > 2 * int((by_mass.levels_ < 0.9).sum())
    assert made.counts_[-1] > 4 * by_mass.counts_[-1]


@both
def test_equal_confidences_share_a_level(binning):
    rng = np.random.default_rng(5)
    kinds = np.array([[1.0, 0, 0], [2, 0, 0], [3, 0, 0], [4, 0, 0]])
    which = rng.choice(4, 500, p=[0.05, 0.05, 0.8, 0.1])
    labels = np.where(rng.random(500) < 0.7, 0, 1)
    for num_levels in (2, 3, 4, 10):
        made = fit(kinds[which], labels, binning=binning, num_levels=num_levels)
        assert len(made.counts_) <= min(4, num_levels)
        # Whole kinds add up to the rows of every level.
        ends = np.cumsum(np.bincount(which))
        assert set(np.cumsum(made.counts_.numpy())) <= set(ends)
        assert int(made.counts_.min()) > 0
        given = made.scaler.calibrate(kinds[which])
        edges, values = plain_fit(given, num_levels, binning)
        np.testing.assert_allclose(made.edges_.numpy(), edges, rtol=0, atol=1e-12)
        np.testing.assert_allclose(made.levels_.numpy(), values, rtol=0, atol=1e-12)


def test_edges_part_rows_that_single_precision_hardly_tells_apart():
    # The middle of these two would round to the upper one.
    first = np.nextafter(np.float32(2), np.float32(3))
    second = np.nextafter(first, np.float32(3))
    scores = np.repeat(np.array([1, first, second, 3], dtype=np.float32), [19, 1, 1, 19])
    labels = np.tile([1, 1, 1, 0], 10)
    made = fit(scores, labels, scaling="identity", num_levels=2, binning="mass")
    assert made.counts_.tolist() == [20, 20]
    assert float(first) < float(made.edges_) < float(second)
    low, high = made.predict_proba(np.array([first, second]))
    assert [low, high] == pytest.approx(made.levels_.tolist(), abs=1e-6)
    assert high - low > 0.1


def test_edges_between_neighbours_with_nothing_between_part_them():
    scores = np.array([2.0, np.nextafter(2.0, 3), np.nextafter(np.nextafter(2.0, 3), 3)])
    made = fit(np.repeat(scores, 20), np.tile([1, 1, 1, 0], 15), scaling="identity", num_levels=3)
    assert made.counts_.tolist() == [20, 20, 20]


@both
@pytest.mark.parametrize("classes", [2, 5])
def test_one_row_is_one_level(binning, classes):
    logits, labels = drawn(1, classes)
    made = fit(logits, labels, binning=binning)
    assert (made.counts_.tolist(), made.hits_.tolist()) == (
        [1],
        [int(logits.argmax() == labels[0])],
    )
    new = drawn(50, classes, seed=1)[0]
    assert np.isfinite(made.calibrate(new)).all()
    np.testing.assert_array_equal(made.calibrate(new).argmax(1), new.argmax(1))


@both
def test_rows_all_alike_are_one_level_with_their_confidence(binning):
    logits = np.tile([2.0, 0.5, -1.0], (40, 1))
    labels = np.array([0] * 28 + [1] * 8 + [2] * 4)
    made = fit(logits, labels, binning=binning)
    assert (made.counts_.tolist(), made.hits_.tolist()) == ([40], [28])
    expected = scaled("temperature", logits, labels).predict_proba(logits[:1])
    np.testing.assert_allclose(made.predict_proba(logits[:1]), expected, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 4])
def test_uniform_rows_stay_uniform(classes):
    made = fit(np.zeros((40, classes)), np.arange(40) % classes)
    assert made.levels_.tolist() == pytest.approx([1 / classes], abs=1e-12)
    assert made.levels_[0] > 1 / classes
    probs = made.predict_proba(np.zeros((2, classes)))
    np.testing.assert_allclose(probs, 1 / classes, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_certain_rows_stay_short_of_certainty(dtype):
    logits = 1e4 * drawn(100)[0]
    made = fit(logits.astype(dtype), logits.argmax(1), scaling="identity")
    assert 1 - 2e-12 < float(made.levels_.max()) < 1
    logs = made.calibrate(logits.astype(dtype))
    assert np.isfinite(logs).all()
    sure = logs.max(1)
    assert (sure < 0).all()
    # A module cast to single precision has no place for 1 − 1e-12, but for its log-odds.
    assert np.isfinite(made.float().calibrate(logits.astype(np.float32))).all()


@pytest.mark.parametrize(("dtype", "close"), [(np.float32, 1e-5), (np.float64, 4e-9)])
def test_what_is_left_of_a_level_near_one_keeps_its_digits(dtype, close):
    """1 − q is the mean of 1 − c, though every c rounds to 1 in single precision."""
    gaps = np.array([24.0, 25.0, 26.0, 27.0] * 10)
    logits = np.stack((gaps, 0 * gaps, 0 * gaps - 1), axis=1).astype(dtype)
    made = fit(logits, np.zeros(40, dtype=np.int64), scaling="identity", num_levels=1)
    others = 1 + math.exp(-1)
    missing = np.mean([others / (others + math.exp(gap)) for gap in gaps])
    calibrated = made.calibrate(logits[:4])
    np.testing.assert_allclose(np.exp(calibrated[:, 1:]).sum(1), missing, rtol=close)
    np.testing.assert_allclose(calibrated[:, 1] - calibrated[:, 2], 1.0, rtol=close)


@both
def test_binary_scores_are_pairs_of_logits(binning):
    logits, labels = drawn(classes=2)
    score = logits[:, 1] - logits[:, 0]
    pair = np.stack((np.zeros_like(score), score), axis=1)
    made, other = fit(score, labels, binning=binning), fit(pair, labels, binning=binning)
    probs = made.predict_proba(score)
    np.testing.assert_allclose(probs, other.predict_proba(pair)[:, 1], atol=1e-12)
    np.testing.assert_array_equal(probs > 0.5, score > 0)
    confidences = np.unique(np.maximum(probs, 1 - probs).round(12))
    np.testing.assert_allclose(confidences, made.levels_.numpy(), atol=1e-11)
    assert len(confidences) == 10


@both
def test_the_order_of_rows_does_not_matter(binning):
    logits, labels = drawn()
    order = np.random.default_rng(6).permutation(600)
    made, other = (
        fit(logits, labels, binning=binning),
        fit(logits[order], labels[order], binning=binning),
    )
    assert made.counts_.tolist() == other.counts_.tolist()
    assert made.hits_.tolist() == other.hits_.tolist()
    np.testing.assert_allclose(made.levels_.numpy(), other.levels_.numpy(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        made.predict_proba(logits), other.predict_proba(logits), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("name", ["vector", "mac_cal_head", "local_temperature", "levels"])
def test_only_calibrators_of_logits_that_keep_predictions_scale(name):
    with pytest.raises(InputError, match=f"cannot be scaled by {name}, .* keeps every prediction"):
        get("levels", scaling=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scaling": "mixture"}, "cannot be scaled by mixture"),
        ({"scaling": "tempratur"}, "Did you mean temperature"),
        ({"num_levels": 0}, "num_levels must be a whole number of at least 1, found 0"),
        ({"num_levels": 2.5}, "num_levels must be a whole number of at least 1, found 2.5"),
        ({"binning": "width"}, "must be 'deviation' or 'mass', found 'width'"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        get("levels", **options)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_loaded_levels_give_the_same_probabilities_and_table(scaling, tmp_path):
    logits, labels = drawn()
    made = fit(logits, labels, scaling=scaling, num_levels=6, binning="mass")
    back = calibrant.load(made.save(tmp_path / "levels.safetensors"))
    assert back.options() == made.options()
    np.testing.assert_array_equal(back.calibrate(logits), made.calibrate(logits))
    assert back.table().equals(made.table())


def test_table_equals_counting():
    # Log-odds of 1 and 3: 20 rows with 12 hits, and 10 with 10.
    score = np.repeat([1.0, 3.0], [20, 10])
    labels = np.array([1] * 12 + [0] * 8 + [1] * 10)
    table = fit(score, labels, scaling="identity", num_levels=2, binning="mass").table()
    names = ["level", "confidence", "rows", "accuracy", "low", "high", "holds"]
    assert list(table.columns) == names
    assert table["holds"].tolist() == [
        low <= confidence <= high
        for confidence, low, high in zip(
            table["confidence"], table["low"], table["high"], strict=True
        )
    ]
    assert table["level"].tolist() == [1, 2]
    assert table["confidence"].tolist() == pytest.approx(
        [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-3))], abs=1e-12
    )
    assert table["rows"].tolist() == [20, 10]
    assert table["accuracy"].tolist() == [0.6, 1.0]
    z2 = 1.959963984540054**2
    half = math.sqrt(z2) * math.sqrt(0.6 * 0.4 / 20 + z2 / 1600)
    first = [(0.6 + z2 / 40 + sign * half) / (1 + z2 / 20) for sign in (-1, 1)]
    assert table["low"].tolist() == pytest.approx([first[0], 10 / (10 + z2)], abs=1e-9)
    assert table["high"].tolist() == pytest.approx([first[1], 1.0], abs=1e-9)
    with pytest.raises(InputError, match="not fitted"):
        get("levels").table()


def test_it_comes_only_where_it_is_named():
    assert "levels" not in MENU
    assert "levels" not in calibrator_text.expand_calibrators(["argmax_preserving"])
    assert calibrator_text.expand_calibrators(["levels(num_levels=5,scaling=intra_order)"]) == (
        "levels(num_levels=5,scaling=intra_order)",
    )
    assert calibrator_text.make("levels(num_levels=5,scaling=intra_order)").scaling == "intra_order"
    assert get("levels").preserves_predictions


def test_the_table_of_other_rows_counts_those():
    rng = np.random.default_rng(3)
    fit, other = (
        (logits, (2 * logits + rng.gumbel(size=logits.shape) * 4).argmax(1))
        for logits in (rng.normal(size=(n, 4)) * 3 for n in (400, 150))
    )
    made = get("levels", num_levels=4).fit(*fit)
    table = made.table(*other)
    probs = made.predict_proba(other[0])
    top, right = probs.max(1), probs.argmax(1) == other[1]
    temperature = float(made.scaler.temperature_)
    scaled = np.exp(other[0] / temperature)
    confidence = (scaled / scaled.sum(1, keepdims=True)).max(1)
    edges = 1 / (1 + np.exp(-made.edges_.numpy()))
    place = np.searchsorted(edges, confidence)
    for level in range(4):
        here = place == level
        assert table["rows"][level] == here.sum()
        assert table["accuracy"][level] == pytest.approx(right[here].mean())
        assert table["low"][level] < table["accuracy"][level] < table["high"][level]
        kept = np.isclose(top[here], table["confidence"][level])
        assert kept.mean() > 0.8  # near ties aside
    assert table["rows"].sum() == 150
    assert made.table()["rows"].sum() == 400
    alone = made.table(other[0][:1], other[1][:1])
    assert alone["rows"].sum() == 1
    assert alone["accuracy"].isna().sum() == 3
    with pytest.raises(InputError, match="label"):
        made.table(other[0], np.full(150, 9))
    with pytest.raises(InputError, match="one of them was not given"):
        made.table(other[0])
    assert made.float().table(*other)["rows"].tolist() == table["rows"].tolist()


@pytest.mark.parametrize("num_levels", [math.nan, math.inf, 2.5, 0])
def test_levels_are_a_whole_number(num_levels):
    with pytest.raises(InputError, match="num_levels"):
        get("levels", num_levels=num_levels)


def test_levels_refuted_by_their_own_rows_warn():
    """The identity leaves the network's overconfidence as it is."""
    score = np.repeat([1.0, 3.0], [400, 400])  # 73% and 95% sure
    labels = np.r_[np.arange(400) % 4 < 2, np.arange(400) % 20 < 19].astype(int)  # 50%, 95% right
    how = {"scaling": "identity", "num_levels": 2, "binning": "mass"}
    with pytest.warns(UserWarning, match="1 of 2 levels are refuted by the rows"):
        made = get("levels", **how).fit(score, labels)
    assert made.table()["holds"].tolist() == [False, True]
    right = np.r_[np.arange(400) % 100 < 73, np.arange(400) % 20 < 19].astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get("levels", **how).fit(score, right)


def test_levels_that_are_right_are_hardly_ever_doubted():
    """Near 1 a single wrong row is no proof: the tail is that of the binomial itself."""
    doubted = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        logits = 10 * rng.normal(size=(1000, 10))
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            get("levels", scaling="identity", binning="mass").fit(logits, labels)
        doubted += any("refute" in str(warning.message) for warning in caught)
    assert doubted <= 1


def test_a_level_without_rows_neither_holds_nor_fails():
    logits, labels = real("validation")
    made = fit(logits, labels, num_levels=5)
    table = made.table(logits[:3], labels[:3])
    assert table.loc[table["rows"] == 0, "holds"].isna().all()
    assert table.loc[table["rows"] > 0, "holds"].notna().all()
