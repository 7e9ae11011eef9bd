"""Isotonic, histogram, beta, spline, order-preserving and meta calibrators, and the local one."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from sklearn.isotonic import IsotonicRegression
from torch.nn.functional import cross_entropy

from calibrant.calibrators import get
from calibrant.calibrators.methods import local_temperature
from calibrant.calibrators.methods.beta import fit_beta
from calibrant.calibrators.methods.intra_order import likelihood
from calibrant.calibrators.methods.isotonic import common_runs, make_runs, pool_and_smooth
from calibrant.calibrators.methods.spline import fit_slope, natural_basis
from calibrant.calibrators.solvers.one_vs_rest import (
    bisect,
    interpolate,
    log_odds,
    minimise,
    search_sorted,
)
from calibrant.core.errors import InputError
from calibrant.metrics import ece

METHODS = [
    ("isotonic", {}),
    ("isotonic", {"form": "m2b"}),
    ("histogram", {}),
    ("histogram", {"binning": "mass"}),
    ("histogram", {"binning": "mass", "inside": "constant"}),
    ("histogram", {"inside": "constant"}),
    ("beta", {}),
    ("spline", {}),
    ("spline", {"top": 2}),
    ("intra_order", {}),
    ("intra_order", {"form": "line"}),
    ("meta_cal", {}),
    ("meta_cal", {"form": "coverage_accuracy", "accuracy": 0.6}),
    ("meta_cal", {"keep_predictions": False}),
]
IDS = ["-".join([name, *map(str, options.values())]) for name, options in METHODS]
every = pytest.mark.parametrize(("name", "options"), METHODS, ids=IDS)
KEEPING = [("isotonic", {"form": "m2b"}), ("intra_order", {}), ("meta_cal", {})]
KEEPING += [("intra_order", {"form": "line"})]


def rows(count=400, classes=4, *, heat=2.5, seed=0, dtype=torch.float64):
    """Overconfident logits: labels drawn from softmax(z / heat)."""
    seeded = torch.Generator().manual_seed(seed)
    z = 4 * torch.randn(count, classes, generator=seeded, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z / heat, 1), 1, generator=seeded).squeeze(1)
    return z.to(dtype), y


def fitted(name, options, z, y, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get(name, **options).fit(z, y, **how)


def pool(values, weights):
    """Pool-adjacent-violators, written out."""
    blocks = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            right, left = blocks.pop(), blocks.pop()
            weight = left[1] + right[1]
            mean = (left[0] * left[1] + right[0] * right[1]) / weight
            blocks.append([mean, weight, left[2] + right[2]])
    return np.concatenate([np.full(size, value) for value, _, size in blocks])


# What all of them promise


@every
def test_better_than_leaving_overconfident_logits_alone(name, options):
    z, y = rows(3000)
    test, labels = rows(3000, seed=1)
    calibrator = fitted(name, options, z, y)
    with torch.no_grad():
        after = float(cross_entropy(calibrator(test), labels))
    assert after < float(cross_entropy(test, labels))


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loaded_state_gives_the_same(name, options, dtype):
    z, y = rows(dtype=dtype)
    old = fitted(name, options, z, y)
    fresh = get(name, **options)
    fresh.load_state_dict(old.state_dict())
    assert old.options() == {**fresh.options()}
    assert torch.equal(old(z), fresh(z))
    assert old(z).dtype == dtype


@pytest.mark.sampled(count=60)
@every
@pytest.mark.parametrize("classes", [2, 3, 30])
@pytest.mark.parametrize("kind", ["one row", "constant", "separable", "absent", "huge", "tiny"])
def test_hard_sets_have_a_finite_answer(name, options, classes, kind):
    z, y = rows(60, classes, dtype=torch.float32)
    options = {**options, "accuracy": 0.01} if "accuracy" in options else options
    if kind == "one row":
        z, y = z[:1], z[:1].argmax(1)
    elif kind == "constant":
        z, y = torch.zeros_like(z), torch.arange(60) % classes * (torch.arange(60) % 3 > 0)
    elif kind == "separable":
        y = z.argmax(1)
    elif kind == "absent":
        y = y.clamp(min=1) if classes > 2 else torch.ones_like(y)
    elif kind == "huge":
        z = 1e4 * z
    else:
        z = 1e-6 * z
    calibrator = fitted(name, options, z, y)
    wild = torch.cat(
        (z, torch.zeros(1, classes), 50 * torch.eye(classes), -1e4 * torch.eye(classes))
    )
    out = calibrator(wild)
    assert torch.isfinite(out).all()
    assert torch.isfinite(torch.log_softmax(out, 1)).all()
    assert math.isfinite(calibrator.summary_["nll_after"])
    again = fitted(name, options, z, y)
    assert torch.equal(again(wild), out)


@every
def test_probabilities_with_zeros_are_taken(name, options):
    z, y = rows(300)
    probs = torch.softmax(z, 1).where(torch.softmax(z, 1) > 1e-4, 0.0)
    probs = probs / probs.sum(1, keepdim=True)
    calibrator = fitted(name, {**options, "from_logits": False}, probs, y)
    given = calibrator.predict_proba(probs)
    assert torch.allclose(given.sum(1), torch.ones(300, dtype=torch.float64))
    if name != "meta_cal":
        assert bool((given > 0).all())


@every
def test_binary_scores_and_dense_logits_are_taken(name, options):
    z, y = rows(400, 2)
    margin = z[:, 1] - z[:, 0]
    binary, paired = fitted(name, options, margin, y), fitted(name, options, z, y)
    both = paired(z)
    assert torch.allclose(binary(margin), both[:, 1] - both[:, 0], atol=1e-6)
    dense = z.reshape(4, 10, 10, 2).movedim(-1, 1)
    image = fitted(name, options, dense, y.reshape(4, 10, 10))
    assert torch.allclose(image(dense).movedim(1, -1).reshape(-1, 2), both, atol=1e-6)


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize(("name", "options"), [METHODS[i] for i in (0, 1, 4, 6, 8, 9, 10)])
def test_exported_programs_give_the_same(name, options):
    z, y = rows(300, 5, dtype=torch.float32)
    calibrator = fitted(name, options, z, y).eval()
    size = torch.export.Dim("rows", min=2)
    program = torch.export.export(calibrator, (z[:7],), dynamic_shapes=({0: size},))
    assert torch.allclose(program.module()(z), calibrator(z), atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12), st.floats(0.05, 30), st.sampled_from(KEEPING))
def test_predictions_are_kept(seed, classes, scale, method):
    z, y = rows(80, classes, seed=seed, dtype=torch.float32)
    name, options = method
    calibrator = fitted(name, options, scale * z, y)
    test = scale * rows(500, classes, seed=seed + 1, dtype=torch.float32)[0]
    before, out = test.argmax(1), calibrator(test)
    assert torch.equal(out.argmax(1), before)
    tied = test.round()
    assert torch.equal(calibrator(tied).argmax(1), tied.argmax(1))


@pytest.mark.sampled(by="name")
@every
@pytest.mark.parametrize("data", ["cifar100-vgg19bn", "20news", "sst2-gpt2", "cifar10-resnet20"])
def test_real_held_out_rows_are_not_made_worse(name, options, data, data_folder):
    with np.load(data_folder / "logits" / f"{data}.npz") as file:
        given, labels = file["logits" if "logits" in file else "probs"], file["labels"]
        if "logits" not in file:
            given = np.log(given.astype(np.float64).clip(1e-12))
    z, y = torch.from_numpy(given).float(), torch.from_numpy(labels)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
    half = len(y) // 2
    calibrator = fitted(name, options, z[order[:half]], y[order[:half]])
    test, truth = z[order[half:]], y[order[half:]]
    after = cross_entropy(
        torch.from_numpy(calibrator.calibrate(test.numpy())), truth, reduction="none"
    )
    assert torch.isfinite(after).all()
    gain = cross_entropy(test, truth, reduction="none") - after
    error = float(gain.std()) / math.sqrt(len(gain))
    # One pays ln K for each row turned away, the other forgets small probabilities: both say so.
    if name != "meta_cal" and options.get("inside") != "constant":
        assert float(gain.mean()) > -2 * error


@pytest.mark.slow
def test_a_thousand_classes_fit():
    z, y = rows(600, 1000, dtype=torch.float32)
    test, labels = rows(300, 1000, seed=3, dtype=torch.float32)
    before = float(cross_entropy(test, labels))
    for name in ("isotonic", "beta", "spline", "intra_order"):
        with torch.no_grad():
            assert float(cross_entropy(fitted(name, {}, z, y)(test), labels)) < before


# Shared pieces


def test_log_odds_against_exact_arithmetic():
    from fractions import Fraction

    z = torch.tensor([[0.0, 0.0], [90.0, 0.0], [3.0, 1.0], [700.0, -700.0]], dtype=torch.float64)
    assert torch.allclose(log_odds(z)[:, 0], z[:, 0] - z[:, 1])
    assert torch.allclose(log_odds(z)[:, 1], z[:, 1] - z[:, 0])
    assert torch.isfinite(log_odds(1e4 * torch.randn(50, 7))).all()
    thirds = log_odds(torch.zeros(1, 3, dtype=torch.float64))
    assert torch.allclose(thirds, torch.full((1, 3), math.log(Fraction(1, 2)), dtype=torch.float64))
    wide = torch.tensor([[40.0, 1.0, 0.0]], dtype=torch.float64)
    assert float(log_odds(wide)[0, 0]) == pytest.approx(40 - math.log(math.e + 1), rel=1e-14)


def test_bisection_finds_what_sorted_search_finds():
    seeded = torch.Generator().manual_seed(0)
    for count in (1, 2, 3, 7, 8, 300):
        table = torch.randint(0, 50, (3, count), generator=seeded).sort(1).values.double()
        x = torch.randint(-5, 55, (3, 200), generator=seeded).double()
        for right in (False, True):
            assert torch.equal(bisect(table, x, right=right), search_sorted(table, x, right=right))


def test_interpolation_against_numpy():
    knots = torch.tensor([[0.0, 1.0, 1.5, 4.0], [2.0, 3.0, 3.0, 3.0]], dtype=torch.float64)
    values = torch.tensor([[0.0, 5.0, 6.0, 9.0], [1.0, 2.0, 2.0, 2.0]], dtype=torch.float64)
    x = torch.linspace(-2, 6, 81, dtype=torch.float64).expand(2, -1).contiguous()
    got = interpolate(x, knots, values)
    assert np.allclose(got[0], np.interp(x[0], knots[0], values[0]))
    assert np.allclose(got[1], np.interp(x[1], knots[1, :2], values[1, :2]))


def test_the_solver_finds_bounded_minima_or_raises():
    target = torch.tensor([[2.0, -1.0], [-3.0, 0.5]], dtype=torch.float64)
    steep = torch.tensor([[3.0, 1.0], [1.0, 2.0]], dtype=torch.float64).expand(2, 2, 2)

    def quadratic(theta):
        away = theta - target
        pull = torch.einsum("bij,bj->bi", steep, away)
        return 0.5 * (away * pull).sum(1), pull, steep

    zero = torch.zeros_like(target)
    got = minimise(quadratic, zero, zero, name="test")
    for row, wanted in zip(got, target, strict=True):
        reference = minimize(
            lambda t, w=wanted: 0.5 * (t - w.numpy()) @ steep[0].numpy() @ (t - w.numpy()),
            np.ones(2),
            bounds=[(0, None)] * 2,
        )
        assert np.allclose(row, reference.x, atol=1e-5)

    def slide(theta):  # no minimum: exp(−θ)
        return torch.exp(-theta).sum(1), -torch.exp(-theta), torch.exp(-theta).unsqueeze(2)

    with pytest.raises(InputError, match="did not converge"):
        minimise(slide, zero[:1, :1], zero[:1, :1], name="test", most=5)


# Isotonic


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 30))
def test_runs_lose_nothing_of_isotonic_regression(seed, count, levels):
    random = np.random.default_rng(seed)
    scores = random.integers(0, levels, count).astype(float)
    hit = random.random(count) < random.random()
    whole = IsotonicRegression().fit(scores, hit.astype(float))
    runs = make_runs(scores, np.unique(scores[hit], return_counts=True))
    assert runs.size.sum() == count
    assert runs.hits.sum() == hit.sum()
    filled = runs.size > 0
    hits, size, total = runs.hits[filled], runs.size[filled], runs.total[filled]
    means = pool(hits / size, size)
    order = np.argsort(scores, kind="stable")
    assert np.allclose(np.repeat(means, size.astype(int)), whole.predict(scores[order]))
    knots, values, _ = pool_and_smooth(runs, 1e-9, 0.5)
    assert np.all(np.diff(knots) > 0)
    assert np.allclose(1 / (1 + np.exp(-values)), np.unique(means.round(12)), atol=1e-6)
    assert np.isclose(total.sum(), scores.sum())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.1, 10))
def test_smoothed_blocks_rise_and_stay_inside(seed, smoothing):
    random = np.random.default_rng(seed)
    scores = random.normal(size=200)
    hit = random.random(200) < 1 / (1 + np.exp(-scores))
    runs = make_runs(scores, np.unique(scores[hit], return_counts=True))
    knots, values, _ = pool_and_smooth(runs, smoothing, 0.5)
    assert np.isfinite(values).all()
    assert np.all(np.diff(knots) > 0)
    assert np.all(np.diff(values) >= 0)
    share = 1 / (1 + np.exp(-values))
    least = 0.5 * smoothing / (200 + smoothing)
    assert share.min() >= least - 1e-12
    assert share.max() <= 1 - least + 1e-12


def test_the_common_map_is_that_of_all_pairs():
    z, y = rows(150, 5)
    runs = common_runs(z, y)
    odds = log_odds(z).numpy().ravel()
    hit = (y.unsqueeze(1) == torch.arange(5)).numpy().ravel()
    whole = make_runs(odds, np.unique(odds[hit], return_counts=True))
    for a, b in zip(runs, whole, strict=True):
        assert np.allclose(a, b)


def test_classes_fitted_in_one_call_are_fitted_apart():
    z, y = rows(200, 4)
    odds = log_odds(z).numpy()
    runs = [
        make_runs(odds[:, k], np.unique(odds[y.numpy() == k, k], return_counts=True))
        for k in range(4)
    ]
    sizes = [len(part.size) for part in runs]
    joined = type(runs[0])(*map(np.concatenate, zip(*runs, strict=True)))
    knots, values, owner = pool_and_smooth(joined, 1.0, 0.5, np.repeat(np.arange(4), sizes))
    for k in range(4):
        alone = pool_and_smooth(runs[k], 1.0, 0.5)
        assert np.allclose(knots[owner == k], alone[0])
        assert np.allclose(values[owner == k], alone[1])


def test_a_class_without_rows_has_the_common_curve():
    z, y = rows(500, 4)
    y = y.clamp(min=1)
    own = get("isotonic").fit(z, y)
    assert float(own.weights_[0]) == 1.0
    assert float(own.weights_[1]) < 1.0


# Histogram


@pytest.mark.parametrize("inside", ["constant", "shifted"])
@pytest.mark.parametrize("binning", ["width", "mass"])
def test_histogram_against_loops(binning, inside):
    z, y = rows(300, 3)
    options = {"num_bins": 5, "binning": binning, "inside": inside, "sharing": 1e-12}
    calibrator = get("histogram", **options).fit(z, y)
    best = float(get("temperature").fit(z, y).temperature_) if inside == "shifted" else 1.0
    probs = torch.softmax(z / best, 1).numpy()
    want = np.zeros_like(probs)
    for k in range(3):
        order = np.sort(probs[:, k])
        edges = [i / 5 for i in range(1, 5)]
        if binning == "mass":
            edges = [order[60 * i - 1] for i in range(1, 5)]
        which = np.array([sum(p > edge for edge in edges) for p in probs[:, k]])
        for b in range(5):
            within = which == b
            if within.any():
                prior = (probs[within, k].mean() + 1 / 3) / 2
                hits = int((y.numpy()[within] == k).sum())
                share = (hits + prior) / (within.sum() + 1)
                odds = share / (1 - share)
                if inside == "shifted":
                    p, mean = probs[within, k], probs[within, k].mean()
                    odds = odds * p / (1 - p) * (1 - mean) / mean
                want[within, k] = odds / (1 + odds)
    want /= want.sum(1, keepdims=True)
    assert np.allclose(calibrator.predict_proba(z.numpy()), want, atol=1e-9)


def test_shifted_bins_keep_the_order_inside():
    z, y = rows(500, 2)
    calibrator = get("histogram").fit(z, y)
    near = torch.tensor([[0.0, 0.01], [0.0, 0.02]], dtype=torch.float64)
    constant = get("histogram", inside="constant").fit(z, y)
    assert float(calibrator(near)[1, 1]) > float(calibrator(near)[0, 1])
    assert float(constant(near)[1, 1]) == float(constant(near)[0, 1])


# Beta


@pytest.mark.parametrize("flip", [False, True])
def test_beta_against_scipy(flip):
    z, y = rows(400, 2)
    z = -z if flip else z  # a score that says the contrary: both bounds hold
    odds = log_odds(z)[:, 1]
    hits = (y == 1).double()
    centre = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    got = fit_beta(odds.unsqueeze(0), hits.unsqueeze(0), centre, ridge=0.5, sharing=0.0)[0]
    p = 1 / (1 + np.exp(-odds.numpy()))

    def loss(theta):
        score = theta[0] * np.log(p) - theta[1] * np.log1p(-p) + theta[2]
        log_likelihood = -np.logaddexp(0, score) + hits.numpy() * score
        return -log_likelihood.sum() + 0.25 * ((theta - centre.numpy()) ** 2).sum()

    reference = minimize(
        loss, centre.numpy(), bounds=[(0, None), (0, None), (None, None)], options={"ftol": 1e-14}
    )
    assert loss(got.numpy()) <= reference.fun + 1e-7
    assert np.allclose(got, reference.x, atol=2e-3)
    assert float(got[:2].min()) >= 0


def test_beta_finds_the_map_that_made_the_labels():
    seeded = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(40_000, generator=seeded, dtype=torch.float64)
    p = x.sigmoid()
    truth = 0.5 * p.log() - 2.0 * (1 - p).log() + 0.7
    y = (torch.rand(len(x), generator=seeded, dtype=torch.float64) < truth.sigmoid()).long()
    calibrator = get("beta", sharing=0.0).fit(x, y)
    assert np.allclose(calibrator.coefficients_[1], [0.5, 2.0, 0.7], atol=0.1)
    # The other class's map is its mirror image.
    assert np.allclose(
        calibrator.coefficients_[0],
        calibrator.coefficients_[1][[1, 0, 2]] * torch.tensor([1, 1, -1]),
        atol=1e-5,
    )


def test_beta_beats_temperature_where_one_class_is_favoured():
    z, y = rows(800, 2, heat=1.0)
    z = z + torch.tensor([2.0, 0.0], dtype=torch.float64)
    beta, temperature = (get(name).fit(z, y) for name in ("beta", "temperature"))
    assert beta.summary_["nll_after"] < temperature.summary_["nll_after"] - 0.02


# Spline


def test_spline_slopes_are_derivatives_of_natural_curves():
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64, requires_grad=True)
    curves, slopes = natural_basis(t, 6)
    for j in range(curves.shape[1]):
        (gradient,) = torch.autograd.grad(curves[:, j].sum(), t, retain_graph=True)
        assert torch.allclose(gradient, slopes[:, j])
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert torch.allclose(natural_basis(ends, 6)[0][0], torch.zeros(5, dtype=torch.float64))
    step = 1e-5  # no curvature at the ends
    for place in (2 * step, 1 - 2 * step):
        near = torch.tensor([place - step, place, place + step], dtype=torch.float64)
        slope = natural_basis(near, 6)[1]
        assert float((slope[2] - slope[0]).abs().max()) / (2 * step) < 1e-2


def test_spline_finds_the_hit_rate():
    seeded = torch.Generator().manual_seed(0)
    score = torch.rand(50_000, generator=seeded, dtype=torch.float64)
    rate = 0.2 + 0.6 * score**2
    hits = (torch.rand(50_000, generator=seeded, dtype=torch.float64) < rate).double()
    knots, slopes = fit_slope(score, hits, 6)
    off = (slopes - (0.2 + 0.6 * knots**2)).abs()
    assert float(off[20:-40].max()) < 0.03
    assert float(off.max()) < 0.1  # a natural spline's slope is level at its ends


def test_equal_scores_have_one_hit_rate_whatever_their_order():
    score = torch.tensor([0.0] * 30 + [1.0] * 30, dtype=torch.float64)
    hits = torch.tensor([1.0, 0.0, 0.0] * 10 + [1.0, 1.0, 0.0] * 10, dtype=torch.float64)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    first, second = fit_slope(score, hits, 6), fit_slope(score[order], hits[order], 6)
    assert torch.allclose(first[1], second[1])
    assert len(torch.unique(first[1])) == 2


# Order-preserving


def test_intra_order_meets_its_optimality_condition_and_scipy():
    z, y = rows(300, 4)
    calibrator = get("intra_order", form="line", num_pieces=4, sharing=0.0).fit(z, y)
    knots, slopes = calibrator.knots_, calibrator.slopes_
    _, gradient, curvature = likelihood(z, y, knots, slopes.unsqueeze(0))
    beta = 1 / float(get("temperature").fit(z, y).temperature_)
    assert torch.allclose(gradient[0] + 1e-3 * (slopes - beta), torch.zeros(4).double(), atol=1e-4)
    gaps = (z.amax(1, keepdim=True) - z).numpy()
    ends = [*knots.numpy()[1:], np.inf]

    def loss(s):
        m = sum(
            a * np.clip(gaps - low, 0, high - low)
            for a, low, high in zip(s, knots.numpy(), ends, strict=True)
        )
        logs = -m - np.log(np.exp(-m).sum(1, keepdims=True))
        return -logs[np.arange(300), y.numpy()].sum() + 5e-4 * ((s - beta) ** 2).sum()

    reference = minimize(loss, np.full(4, beta), bounds=[(0.01, None)] * 4, options={"ftol": 1e-14})
    assert np.allclose(slopes, reference.x, atol=1e-3)
    assert loss(slopes.numpy()) <= reference.fun + 1e-8
    e = torch.eye(4, dtype=torch.float64)
    for j in range(4):
        up = likelihood(z, y, knots, slopes.unsqueeze(0) + 1e-5 * e[j])[1]
        down = likelihood(z, y, knots, slopes.unsqueeze(0) - 1e-5 * e[j])[1]
        assert torch.allclose((up - down)[0] / 2e-5, curvature[0, j], rtol=1e-4, atol=1e-4)


def test_intra_order_with_one_piece_is_temperature():
    z, y = rows(300, 4)
    single, temperature = (
        get("intra_order", form="line", num_pieces=1).fit(z, y),
        get("temperature").fit(z, y),
    )
    assert torch.allclose(single.predict_proba(z), temperature.predict_proba(z), atol=1e-6)


def test_intra_order_network_by_hand():
    from calibrant.calibrators.methods.intra_order import map_sorted, multipliers, network_inputs

    row = torch.tensor([[2.0, 1.5, 0.0, -1.0, -4.0]], dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    layers = [
        (torch.randn(3, 3, generator=draw).double(), torch.randn(3, generator=draw).double()),
        (torch.randn(2, 3, generator=draw).double(), torch.randn(2, generator=draw).double()),
    ]
    inputs = network_inputs(row, 2)
    logs = [z - math.log(sum(math.exp(v) for v in row[0].tolist())) for z in row[0].tolist()]
    assert inputs[0].tolist() == pytest.approx(logs[:3])
    first = [
        max(0.0, sum(w * x for w, x in zip(line, logs[:3], strict=True)) + b)
        for line, b in zip(layers[0][0].tolist(), layers[0][1].tolist(), strict=True)
    ]
    m = []
    for line, b in zip(layers[1][0].tolist(), layers[1][1].tolist(), strict=True):
        total = sum(w * x for w, x in zip(line, first, strict=True)) + b
        m.append(math.log1p(math.exp(total) * (math.e - 1)) + 0.01)
    assert multipliers(inputs, layers)[0].tolist() == pytest.approx(m)
    # Gaps .5, 1.5, 1, 3; beyond the second the last multiplier goes on.
    wanted = [0, 0.5 * m[0], 0.5 * m[0] + 1.5 * m[1]]
    wanted += [wanted[-1] + 1.0 * m[1], wanted[-1] + 4.0 * m[1]]
    mapped = map_sorted(row, inputs, layers, torch.tensor(0.7, dtype=torch.float64))
    assert mapped[0].tolist() == pytest.approx([-0.7 * value for value in wanted])


def test_intra_order_network_learns_from_the_tail():
    """Rows whose tail lies close are right half the time, whatever their first two logits."""
    draw = torch.Generator().manual_seed(3)
    count = 3000
    close = torch.rand(count, generator=draw) < 0.5
    z = torch.randn(count, 8, generator=draw) * 0.1
    z[:, 0] = 6.0
    z[~close, 2:] -= 8.0
    right = torch.rand(count, generator=draw) < torch.where(close, 0.5, 0.98)
    y = torch.where(right, 0, 1)
    losses = {}
    for name in ("temperature", "intra_order"):
        output = get(name).fit(z[:1500], y[:1500])(z[1500:])
        losses[name] = float(torch.nn.functional.cross_entropy(output, y[1500:]))
    assert losses["intra_order"] < losses["temperature"] - 0.02


def test_intra_order_network_starts_from_temperature():
    z, y = rows(400, 6)
    ours, temperature = get("intra_order").fit(z, y), get("temperature").fit(z, y)
    assert ours.summary_["nll_after"] <= temperature.summary_["nll_after"] + 1e-6
    for name in ours._layer_names()[-2:]:
        getattr(ours, name).zero_()
    shifted = ours(z) - ours(z).amax(1, keepdim=True)
    wanted = temperature(z) - temperature(z).amax(1, keepdim=True)
    assert torch.allclose(shifted, 1.01 * wanted, atol=1e-4)  # softplus(…) + 1/100


def test_intra_order_keeps_the_whole_order():
    z, y = rows(300, 8)
    test = rows(300, 8, seed=5)[0]
    out = get("intra_order").fit(z, y)(test)
    assert torch.equal(out.argsort(1), test.argsort(1))


@pytest.mark.parametrize("name", ["intra_order", "meta_cal"])
def test_a_temperature_at_its_bound_warns(name):
    z, _ = rows(100, 4)
    with pytest.warns(UserWarning, match="best temperature"):
        get(name).fit(z, z.argmax(1))


# Meta-calibration


def test_miscoverage_is_kept_on_new_rows():
    share = []
    for seed in range(20):
        z, y = rows(400, 4, seed=seed)
        test, labels = rows(4000, 4, seed=100 + seed)
        calibrator = fitted("meta_cal", {"miscoverage": 0.1}, z, y)
        right = test.argmax(1) == labels
        away = calibrator(test).amin(1) > -2e-3
        share.append(float(away[right].double().mean()))
    assert 0.08 < np.mean(share) < 0.105


def test_accuracy_asked_for_is_reached_by_the_rows_kept():
    z, y = rows(2000, 4)
    options = {"form": "coverage_accuracy", "accuracy": 0.9}
    calibrator = fitted("meta_cal", options, z, y)
    kept = calibrator(z).amin(1) < -2e-3
    right = z.argmax(1) == y
    assert float(right.double().mean()) < 0.9 <= float(right[kept].double().mean())
    test, labels = rows(2000, 4, seed=1)
    kept = calibrator(test).amin(1) < -2e-3
    assert float((test.argmax(1) == labels)[kept].double().mean()) > 0.87
    easy = fitted("meta_cal", {**options, "accuracy": 0.1}, z, y)
    plain = fitted("temperature", {}, z, y)
    assert torch.allclose(easy.predict_proba(z), plain.predict_proba(z))


@pytest.mark.parametrize("form", ["miscoverage", "coverage_accuracy"])
def test_the_authors_form_by_loops_over_scalars(form):
    z, y = rows(300, 3)
    options = {"form": form, "miscoverage": 0.2, "accuracy": 0.75, "keep_predictions": False}
    probs = fitted("meta_cal", options, z, y).predict_proba(z).tolist()

    def softmax(row, heat=1.0):
        top = max(row)
        weights = [math.exp((value - top) / heat) for value in row]
        return [weight / sum(weights) for weight in weights]

    logits, labels = z.tolist(), y.tolist()
    spread = [-sum(p * math.log(p) for p in softmax(row)) for row in logits]
    right = [row.index(max(row)) == label for row, label in zip(logits, labels, strict=True)]
    if form == "miscoverage":  # a fifth of the rows predicted right, and one more, are turned away
        of_right = sorted(h for h, is_right in zip(spread, right, strict=True) if is_right)
        bound = of_right[math.ceil(0.8 * (len(of_right) + 1)) - 1]
    else:
        bound = max(
            h
            for h in spread
            if np.mean([ok for ok, other in zip(right, spread, strict=True) if other <= h]) >= 0.75
        )
    kept = [i for i, h in enumerate(spread) if h <= bound]
    assert 30 < len(kept) < 295

    def cost(heat):
        return -sum(math.log(softmax(logits[i], heat)[labels[i]]) for i in kept)

    heat = minimize_scalar(cost, bounds=(0.05, 20), method="bounded").x
    for i, row in enumerate(probs):
        wanted = softmax(logits[i], heat) if i in kept else [1 / 3] * 3
        assert row == pytest.approx(wanted, abs=1e-5 if i in kept else 0)


def test_rows_turned_away_are_calibrated():
    z, y = rows(4000, 4)
    test, labels = rows(20_000, 4, seed=1)
    options = {"form": "coverage_accuracy", "accuracy": 0.9}
    plain = fitted("temperature", {}, z, y)
    kept, lost = (
        fitted("meta_cal", {**options, "keep_predictions": kept_rows}, z, y)
        for kept_rows in (True, False)
    )
    assert kept.preserves_predictions
    assert not lost.preserves_predictions

    def accuracy(made):
        return float((made(test).argmax(1) == labels).double().mean())

    assert accuracy(kept) == accuracy(plain) > accuracy(lost) + 0.05
    errors = {made: float(ece(made(test), labels)) for made in (plain, kept, lost)}
    assert errors[lost] < 0.02
    assert errors[kept] > errors[lost] + 0.05


@pytest.mark.parametrize("name", ["repvgg-a2", "resnet20", "vgg19bn"])
@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_on_real_networks_calibration_is_paid_for_with_accuracy(data_folder, data, name):
    """The figures that results/README.md tells of six networks."""
    with np.load(data_folder / "logits" / f"{data}-{name}.npz") as warned:
        z, y = torch.from_numpy(warned["logits"]).float(), torch.from_numpy(warned["labels"]).long()
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    fit, test = order[: len(z) // 2], order[len(z) // 2 :]
    options = {"form": "coverage_accuracy", "accuracy": 0.98, "keep_predictions": False}
    after = fitted("meta_cal", options, z[fit], y[fit])(z[test])
    lost = ((z[test].argmax(1) == y[test]).double() - (after.argmax(1) == y[test]).double()).mean()
    assert 0.045 <= lost < 0.635
    assert 0.001 < ece(after, y[test]) < 0.0065
    assert ece(z[test], y[test]) > 0.025


def test_an_accuracy_out_of_reach_is_an_error():
    z = torch.zeros(10, 2)
    with pytest.raises(InputError, match=r"at most 0\.000"):
        get("meta_cal", form="coverage_accuracy").fit(z, torch.ones(10, dtype=torch.int64))


# Local temperature


def pictures(count=6, classes=3, side=20, seed=0):
    """Logits too sure on the right half of each picture, and right on the left one."""
    seeded = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(count, classes, side, side, generator=seeded)
    y = torch.multinomial(
        torch.softmax(z, 1).movedim(1, -1).reshape(-1, classes), 1, generator=seeded
    )
    z[..., side // 2 :] *= 5
    return z, y.reshape(count, side, side)


def test_local_temperature_beats_one_temperature_where_it_varies():
    z, y = pictures()
    y[0, :3] = 255
    local = get("local_temperature", iterations=20).fit(z, y, ignore_index=255)
    temperature = get("temperature").fit(z, y, ignore_index=255)
    test, labels = pictures(seed=1)
    assert (
        float(cross_entropy(local(test), labels))
        < float(cross_entropy(temperature(test), labels)) - 0.02
    )
    assert local.summary_["nll_after"] < temperature.summary_["nll_after"]
    assert torch.equal(local(test).argmax(1), test.argmax(1))
    assert local.summary_["rows"] == 6 * 400 - 60
    fresh = get("local_temperature", iterations=20)
    fresh.load_state_dict(local.state_dict())
    assert torch.equal(fresh(test), local(test))
    again = get("local_temperature", iterations=20).fit(z, y, ignore_index=255)
    assert torch.equal(again(test), local(test))
    assert local.predict_proba(test.numpy()).shape == test.shape


def test_local_temperature_is_one_where_a_network_does_not_carry_over():
    """Sure logits are too sure in the first half of the pictures, the others in the second."""
    seeded = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(8, 3, 32, 32, generator=seeded)
    sure = z.softmax(1).amax(1, keepdim=True) > 0.8
    first = (torch.arange(8) < 4).reshape(-1, 1, 1, 1)
    p = torch.softmax(torch.where(sure == first, z / 3, 3 * z), 1)
    y = torch.multinomial(p.movedim(1, -1).reshape(-1, 3), 1, generator=seeded).reshape(8, 32, 32)
    temperature = get("temperature").fit(z, y)
    local = get("local_temperature", iterations=20).fit(z, y)
    assert local.facts_ == {}
    torch.testing.assert_close(local(z), temperature(z).float(), rtol=1e-5, atol=1e-5)
    fixed = get("local_temperature", iterations=20, decay=0.01).fit(z, y)
    assert fixed.facts_ == {"decay": 0.01}
    assert fixed.summary_["nll_after"] < temperature.summary_["nll_after"]
    half = get("local_temperature", iterations=20, decay=0.01).fit(z[:4], y[:4])
    worse = float(cross_entropy(half(z[4:]), y[4:])) - float(
        cross_entropy(temperature(z[4:]), y[4:])
    )
    assert worse > 0.05  # which is what the choice is for


def test_local_temperature_by_hand():
    """ln T(x) = ln T + 3·tanh(g(x)/3), g two convolutions pixel by pixel, edges continued."""
    seeded = np.random.default_rng(0)
    classes, hidden, high, wide = 3, 2, 4, 5
    z, y = pictures(4, classes=classes, side=6)
    fitted = get("local_temperature", hidden=hidden, iterations=5, decay=0.1).fit(z, y)
    for name in ("first_bias_", "second_weight_", "second_bias_"):  # no symmetry to hide behind
        values = torch.from_numpy(seeded.normal(size=getattr(fitted, name).shape)).float()
        setattr(fitted, name, values)
    image = seeded.normal(size=(classes, high, wide))
    logp = image - np.log(np.exp(image).sum(0))
    seen = (logp - fitted.centre_.numpy()[0]) / fitted.scale_.numpy()[0]

    def convolved(maps, weight, bias):
        out = np.zeros((len(weight), high, wide))
        for k, i, j in np.ndindex(out.shape):
            out[k, i, j] = bias[k] + sum(
                weight[k, c, a, b]
                * maps[c, min(max(i + a - 1, 0), high - 1), min(max(j + b - 1, 0), wide - 1)]
                for c, a, b in np.ndindex(weight.shape[1:])
            )
        return out

    names = ("first_weight_", "first_bias_", "second_weight_", "second_bias_")
    first, first_bias, second, second_bias = (
        getattr(fitted, name).double().numpy() for name in names
    )
    g = convolved(np.tanh(convolved(seen, first, first_bias)), second, second_bias)[0]
    by_hand = image / (float(fitted.base_) * np.exp(3 * np.tanh(g / 3)))
    output = fitted(torch.from_numpy(image)[None])[0].numpy()
    np.testing.assert_allclose(output, by_hand, rtol=1e-6)
    assert np.ptp(output / image) > 0.1  # temperatures do differ


def test_local_temperature_takes_the_decay_that_carries_over():
    z, y = pictures()
    local = get("local_temperature", iterations=20).fit(z, y)
    assert local.facts_["decay"] in local_temperature.DECAYS
    again = get("local_temperature", iterations=20, decay=local.facts_["decay"]).fit(z, y)
    assert torch.equal(local(z), again(z))


@pytest.mark.parametrize(("high", "wide"), [(180, 240), (32, 33), (7, 100), (64, 64)])
def test_patches_cover_images_to_their_edges(high, wide):
    z = torch.arange(high * wide, dtype=torch.float32).reshape(1, 1, high, wide)
    scores, labels, whose = local_temperature.cut_patches(z, z[:, 0].long())
    assert torch.equal(scores.unique(), z.flatten())
    assert torch.equal(scores[:, 0].long(), labels)
    assert whose == [0] * len(scores)
    assert scores.shape[2] == min(high, 32)
    assert scores.shape[3] == min(wide, 32)


def test_of_many_patches_some_are_drawn_from_all_over():
    z = torch.zeros(101, 2, 96, 128)
    labels = torch.arange(101).reshape(-1, 1, 1).repeat(1, 96, 128)
    labels[50] = local_temperature._NOWHERE
    scores, cut, whose = local_temperature.cut_patches(z, labels)
    assert scores.numel() == 2 * 2**18
    assert 50 not in whose
    assert whose == sorted(whose)
    assert whose == cut[:, 0, 0].tolist()
    assert len(set(whose)) > 85  # of 100


@pytest.mark.parametrize(
    ("pictures", "sizes"),
    [([0, 0, 1], [2, 1]), ([3, 4, 4, 9], [3, 1]), ([5] * 5, [2, 3]), ([2], []), ([], [])],
)
def test_halves_are_of_pictures_where_there_are_two(pictures, sizes):
    halves = [pictures[half] for half in local_temperature.split_halves(pictures)]
    assert [len(half) for half in halves] == sizes
    assert [picture for half in halves for picture in half] == (pictures if sizes else [])


@pytest.mark.parametrize("kind", ["constant", "separable", "one pixel", "zeros"])
def test_local_temperature_of_hard_sets_is_finite(kind):
    z, y = pictures(2, side=6)
    options = {"iterations": 5}
    if kind == "constant":
        z = torch.zeros_like(z)
    elif kind == "separable":
        y = z.argmax(1)
    elif kind == "one pixel":
        z, y = z[:1, :, :1, :1], y[:1, :1, :1]
    else:
        z, options = torch.softmax(1e3 * z, 1), {**options, "from_logits": False}
    assert torch.isfinite(fitted("local_temperature", options, z, y)(z)).all()


def test_local_temperature_wants_pictures():
    z, y = rows(50)
    with pytest.raises(InputError, match=r"\(N, K, H, W\), found \(50, 4\)"):
        get("local_temperature").fit(z, y)
    images, labels = pictures(2, side=6)
    calibrator = get("local_temperature", iterations=2).fit(images, labels)
    with pytest.raises(InputError, match="dense"):
        calibrator(z)


# Bad options


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("isotonic", {"form": "other"}),
        ("isotonic", {"smoothing": 0.0}),
        ("histogram", {"binning": "other"}),
        ("histogram", {"inside": "other"}),
        ("histogram", {"num_bins": 0}),
        ("histogram", {"smoothing": -1.0}),
        ("beta", {"ridge": 0.0}),
        ("spline", {"num_knots": 1}),
        ("intra_order", {"num_pieces": 0}),
        ("intra_order", {"form": "curve"}),
        ("intra_order", {"depth": 0}),
        ("intra_order", {"hidden": [0]}),
        ("meta_cal", {"form": "other"}),
        ("meta_cal", {"miscoverage": 1.5}),
        ("local_temperature", {"hidden": 0}),
        ("local_temperature", {"decay": -1.0}),
    ],
)
def test_bad_options_are_errors(name, options):
    with pytest.raises(InputError):
        get(name, **options)
