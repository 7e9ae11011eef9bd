"""Calibrators of events: never folded at 0.5, weighted, by label, and checked by naive fits."""

from __future__ import annotations

import json
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, log_expit, logit
from sklearn.isotonic import IsotonicRegression
from torch import nn

import calibrant
from calibrant import InputError, Predictions, calibrators
from calibrant.calibrators import get, load
from calibrant.calibrators.choose import EVENT_MENU, calibrate, choose
from calibrant.calibrators.methods import mixture
from calibrant.calibrators.methods.blend import EVENT_PARTS
from calibrant.calibrators.methods.venn_abers import compute_steps
from calibrant.calibrators.rank import apply, rank
from calibrant.calibrators.solvers.folds import assign_folds
from calibrant.calibrators.solvers.multinomial import cut_folds

EVENTS = (*EVENT_MENU, "histogram", "ensemble_temperature", "vector", "dirichlet", "mixture")
REFUSE = ("intra_order", "levels", "meta_cal", "class_temperature")


def draw(rows=400, seed=0, slope=0.6, shift=-1.2):
    """Logits, and whether it happened: with probability σ(slope·x + shift)."""
    rng = np.random.default_rng(seed)
    x = 2.0 * rng.normal(size=rows)
    return x, (rng.random(rows) < expit(slope * x + shift)).astype(np.int64)


def fit(name, x, y, *, weights=None, clusters=None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get(name, **options).fit(x, y, weights=weights, clusters=clusters, task="events")


@cache
def fitted(name):
    return fit(name, *draw())


def log_loss(z, y):
    return -(y * log_expit(z) + (1 - y) * log_expit(-z)).sum()


# --- naive references ------------------------------------------------------------------------


def naive_platt(x, y):
    def loss(at):
        return log_loss(at[0] * x + at[1], y) + 0.005 * ((at[0] - 1) ** 2 + at[1] ** 2)

    a, b = minimize(loss, [1.0, 0.0], bounds=[(0, None), (None, None)], tol=1e-14).x
    return lambda z: a * z + b


def naive_quadratic(x, y):
    r = np.sqrt((x**2).mean())

    def loss(at):
        ridge = 0.005 * ((at[0] - 1) ** 2 + at[1] ** 2 + (at[2] * r) ** 2)
        return log_loss(at[0] * x + at[1] + at[2] * x**2, y) + ridge

    a, b, c = minimize(loss, [1.0, 0.0, 0.0], tol=1e-14).x

    def map(z):
        z = np.clip(z, x.min(), x.max())
        return a * z + b + c * z**2

    return map


def naive_beta(x, y):
    p, q = log_expit(x), log_expit(-x)

    def loss(at):
        ridge = 0.05 * ((at[0] - 1) ** 2 + (at[1] - 1) ** 2 + at[2] ** 2)
        return log_loss(at[0] * p - at[1] * q + at[2], y) + ridge

    a, b, c = minimize(loss, [1.0, 1.0, 0.0], bounds=[(0, None)] * 2 + [(None, None)], tol=1e-14).x
    return lambda z: a * log_expit(z) - b * log_expit(-z) + c


def naive_temperature(x, y):
    best = minimize_scalar(lambda t: log_loss(x / np.exp(t), y), bounds=(-4, 4), method="bounded")
    return lambda z: z / np.exp(best.x)


def naive_isotonic(x, y):
    """Pool neighbours that fall, smooth by half a row of each kind, pool again, join by lines."""
    order = np.argsort(x, kind="stable")
    blocks = [[y[i], 1.0, x[i]] for i in order]  # hits, rows, sum of scores

    def pool(blocks):
        done = []
        for block in blocks:
            done.append(list(block))
            while len(done) > 1 and done[-2][0] * done[-1][1] >= done[-1][0] * done[-2][1]:
                last = done.pop()
                done[-1] = [a + b for a, b in zip(done[-1], last, strict=True)]
        return done

    rows = [block[1] for block in pool(blocks)]
    smoothed = [[h + 0.5, n + 1.0, s, n] for h, n, s in pool(blocks)]
    assert len(rows) == len(smoothed)
    done = []
    for block in smoothed:
        done.append(block)
        while len(done) > 1 and done[-2][0] * done[-1][1] >= done[-1][0] * done[-2][1]:
            last = done.pop()
            done[-1] = [a + b for a, b in zip(done[-1], last, strict=True)]
    knots = [s / n for _, _, s, n in done]
    values = [logit(h / w) for h, w, _, _ in done]
    return lambda z: np.interp(z, knots, values) + 1e-3 * z


def naive_histogram(x, y):
    t = np.exp(minimize_scalar(lambda t: log_loss(x / np.exp(t), y), bounds=(-4, 4)).x)
    p = expit(x / t)
    place = np.clip(np.ceil(p * 15).astype(int) - 1, 0, 14)
    shift = np.zeros(15)
    for b in set(place.tolist()):
        rows = place == b
        mean = p[rows].mean()
        prior = (mean + 0.5) / 2
        shift[b] = logit((y[rows].sum() + prior) / (rows.sum() + 1)) - logit(mean)

    def map(z):
        at = np.clip(np.ceil(expit(z / t) * 15).astype(int) - 1, 0, 14)
        return z / t + shift[at]

    return map


NAIVE = {
    "platt": naive_platt,
    "quadratic": naive_quadratic,
    "beta": naive_beta,
    "temperature": naive_temperature,
    "isotonic": naive_isotonic,
    "histogram": naive_histogram,
}


@pytest.mark.parametrize("name", NAIVE)
def test_a_fit_is_what_a_naive_fit_gives(name):
    x, y = draw(500, seed=3)
    z = np.linspace(-9, 9, 41)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = NAIVE[name](x, y)(z)
    np.testing.assert_allclose(fit(name, x, y).calibrate(z), expected, atol=2e-4)


def test_the_spline_is_the_least_squares_fit_of_the_curve():
    x, y = draw(300, seed=4)
    made = fit("spline", x, y)
    order = np.argsort(x)
    ends = np.linspace(0, 1, 301)
    grid = (np.arange(120_000) + 0.5) / 120_000
    curve = np.interp(grid, ends, np.append(0, y[order].cumsum()) / 300)
    knots = np.linspace(0, 1, 6)

    def cubes(t, k):
        return (np.clip(t - knots[k], 0, None) ** 3 - np.clip(t - 1, 0, None) ** 3) / (1 - knots[k])

    def basis(t):
        return np.stack([t, *(cubes(t, k) - cubes(t, 4) for k in range(4))], 1)

    weights = np.linalg.lstsq(basis(grid), curve, rcond=None)[0]
    middle = (np.arange(300) + 0.5) / 300
    slope = (basis(middle + 1e-6) - basis(middle - 1e-6)) @ weights / 2e-6
    expected = np.clip(slope, 0.5 / 301, 1 - 0.5 / 301)
    np.testing.assert_allclose(expit(made.calibrate(x[order])), expected, atol=2e-4)


def refit(x, y, w, score, label):
    """The isotonic fit of all rows and (score, label), at the score."""
    model = IsotonicRegression(y_min=0, y_max=1)
    model.fit(np.append(x, score), np.append(y, label), sample_weight=np.append(w, 1.0))
    return float(model.predict([score])[0])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 60])
def test_venn_abers_is_two_refits_of_isotonic_regression(rows, weighted):
    rng = np.random.default_rng(rows + 7 * weighted)
    for _ in range(4):
        x = np.round(rng.normal(size=rows), 1)  # with ties
        y = (rng.random(rows) < expit(x)).astype(float)
        w = rng.integers(1, 4, rows).astype(float) if weighted else np.ones(rows)
        steps = compute_steps(x, y, w)
        asked = np.concatenate((np.unique(x), np.unique(x) + 0.03, [-9.0, 9.0]))
        for score in asked:
            low = steps.lower[np.searchsorted(steps.knots, score, side="right")]
            high = steps.upper[np.searchsorted(steps.knots, score, side="left")]
            assert low == pytest.approx(refit(x, y, w, score, 0.0), abs=1e-9)
            assert high == pytest.approx(refit(x, y, w, score, 1.0), abs=1e-9)


def test_venn_abers_merges_its_pair_and_says_what_it_is():
    x, y = draw()
    made = fitted("venn_abers")
    low, high = made.predict_interval(x)
    assert (low < high).all()
    np.testing.assert_allclose(made.predict_proba(x), high / (1 - low + high))
    assert "not a confidence interval" in made.predict_interval.__doc__
    classes = get("venn_abers").fit(np.stack((x, -x, 0 * x), 1), y)
    assert classes.predict_interval(np.stack((x, -x, 0 * x), 1))[0].shape == (400, 3)


# --- what every calibrator of events promises -----------------------------------------------


@pytest.mark.parametrize("name", EVENTS)
def test_events_go_in_and_come_out(name, tmp_path):
    x, y = draw()
    made = fitted(name)
    probs = made.predict_proba(x)
    assert probs.shape == x.shape
    assert ((probs > 0) & (probs < 1)).all()
    assert "events" in repr(made)
    assert made.summary_["rate"] == pytest.approx(y.mean())
    assert made.summary_["mean_after"] == pytest.approx(probs.mean(), abs=1e-6)
    # Logits of two classes are the same score.
    pair = np.stack((x / 2, -x / 2), 1)[:, ::-1].copy()
    np.testing.assert_allclose(made.predict_proba(pair)[:, 1], probs, atol=1e-12)
    fresh = draw(50, seed=1)[0]  # a step at a fitted score may round to either side
    single = made.predict_proba(fresh.astype(np.float32))
    np.testing.assert_allclose(single, made.predict_proba(fresh), atol=1e-5)
    back = load(made.save(tmp_path / "c.safetensors"))
    np.testing.assert_array_equal(back.predict_proba(x), probs)
    fresh = get(name, **made.options())
    fresh.load_state_dict(made.state_dict())
    np.testing.assert_array_equal(fresh.predict_proba(x), probs)
    with pytest.raises(InputError, match="fitted on events"):
        made.calibrate(np.zeros((4, 3)))


@pytest.mark.parametrize("name", EVENTS)
def test_predictions_of_events_are_calibrated(name):
    x, y = draw()
    val = Predictions.from_events(expit(x), y, event="fraud")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = get(name, from_logits=False).fit(val)
    after = apply(made, val)
    assert (after.task, after.event, after.is_logits) == ("events", "fraud", True)
    assert made.class_names_ == ("fraud",)
    np.testing.assert_allclose(expit(after.array), fitted(name).predict_proba(x), atol=1e-6)


@pytest.mark.parametrize("name", ["platt", "beta", "isotonic", "quadratic", "venn_abers", "spline"])
def test_nothing_said_at_p_is_said_at_one_minus_p(name):
    """Below 0.5 the score is right, above it is far too high: a folded map averages the two."""
    rng = np.random.default_rng(5)
    p = np.where(rng.random(6000) < 0.5, rng.uniform(0.1, 0.3, 6000), rng.uniform(0.7, 0.9, 6000))
    y = rng.random(6000) < np.where(p < 0.5, p, p - 0.5)
    probs = fit(name, logit(p), y.astype(int)).predict_proba(logit([0.2, 0.8]))
    np.testing.assert_allclose(probs, [0.2, 0.3], atol=0.07)


@pytest.mark.parametrize("name", REFUSE)
def test_maps_of_the_predicted_class_refuse_events(name):
    with pytest.raises(InputError, match=r"does not take events.*platt"):
        fit(name, *draw(50))
    on_classes = get("temperature").fit(*draw(50))
    with pytest.raises(InputError, match="found events"):
        apply(on_classes, Predictions.from_events(np.array([0.3]), None, is_logits=True))


@pytest.mark.parametrize("name", ["platt", "spline", "venn_abers"])
def test_events_are_exported_and_attached(name):
    made, rows = fitted(name), torch.randn(7, 3)
    x = torch.from_numpy(draw(7, seed=9)[0]).float()
    exported = calibrators.export_program(made).module()
    torch.testing.assert_close(exported(x), made(x), atol=1e-5, rtol=1e-5)
    model = nn.Linear(3, 1)
    output = calibrant.attach(model, made)(rows)
    torch.testing.assert_close(output, made(model(rows).squeeze(1)).unsqueeze(1))


def test_events_run_in_onnx_runtime(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = tmp_path / "c.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrators.export_onnx(
            fitted("venn_abers"), path, probabilities=True
        )  # compares with torch
    assert path.stat().st_size > 0


# --- weights and clusters --------------------------------------------------------------------

# By name, options whose size depends on the mean weight: those of rows counted once.
SCALED = {
    "platt": lambda mean: {"ridge": 0.01 / mean},
    "quadratic": lambda mean: {"ridge": 0.01 / mean},
    "beta": lambda mean: {"ridge": 0.1 / mean},
    "isotonic": lambda mean: {"smoothing": 1.0 / mean},
    "histogram": lambda mean: {"smoothing": 1.0 / mean},
    "temperature": lambda mean: {},
    "ensemble_temperature": lambda mean: {},
    "vector": lambda mean: {"strength": 2.0 / mean},
}


@pytest.mark.parametrize("name", SCALED)
def test_whole_weights_are_repeated_rows(name):
    x, y = draw(250, seed=6)
    w = np.random.default_rng(1).integers(1, 5, 250)
    whole = {"strength": 2.0} if name == "vector" else {}
    repeated = fit(name, x.repeat(w), y.repeat(w), **whole)
    weighted = fit(name, x, y, weights=w, **SCALED[name](w.mean()))
    scaled = fit(name, x, y, weights=0.37 * w, **SCALED[name](w.mean()))
    z = np.linspace(-6, 6, 99)
    np.testing.assert_allclose(weighted.calibrate(z), repeated.calibrate(z), atol=1e-8)
    np.testing.assert_allclose(scaled.calibrate(z), weighted.calibrate(z), atol=1e-8)
    assert weighted.summary_["nll_after"] == pytest.approx(repeated.summary_["nll_after"])


@pytest.mark.parametrize("name", ["temperature", "ensemble_temperature", "isotonic", "vector"])
def test_whole_weights_are_repeated_rows_of_several_classes(name):
    rng = np.random.default_rng(2)
    z = 3 * rng.normal(size=(300, 3))
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    w = rng.integers(1, 4, 300)
    options = {
        "isotonic": [{"smoothing": s, "sharing": 100 * s} for s in (1.0, 1 / w.mean())],
        "vector": [{"strength": 2.0}, {"strength": 2.0 / w.mean()}],
    }.get(name, [{}, {}])
    ones = np.ones(w.sum())
    repeated = get(name, **options[0]).fit(z.repeat(w, 0), y.repeat(w), weights=ones)
    weighted = get(name, **options[1]).fit(z, y, weights=w)
    np.testing.assert_allclose(weighted.calibrate(z), repeated.calibrate(z), atol=1e-8)


def test_the_spline_counts_weights_as_rows():
    x, y = draw(250, seed=6)
    w = np.random.default_rng(1).integers(1, 5, 250)
    whole, weighted = fit("spline", x.repeat(w), y.repeat(w)), fit("spline", x, y, weights=w)
    z = np.linspace(-4, 4, 99)  # only the floor of a slope knows the number of rows
    np.testing.assert_allclose(weighted.predict_proba(z), whole.predict_proba(z), atol=2e-3)


@pytest.mark.parametrize("name", ["levels", "meta_cal"])
def test_guarantees_by_counting_refuse_weights(name):
    x, y = draw(60)
    with pytest.raises(InputError, match="cannot weigh rows: use temperature"):
        get(name).fit(np.stack((x, -x, x / 2), 1), y, weights=np.ones(60))
    with pytest.raises(InputError, match="'sb_ece' cannot weigh rows"):
        get("temperature", objective="sb_ece").fit(x, y, weights=np.ones(60))


def test_folds_never_split_a_cluster(monkeypatch):
    x, y = draw(600, seed=8)
    clusters = np.random.default_rng(3).integers(0, 30, 600)

    def check(assigned, codes, folds):
        owners = [set(assigned[codes == c]) for c in np.unique(codes)]
        assert all(len(owner) == 1 for owner in owners)
        assert set(assigned) == set(range(folds))
        assert np.bincount(assigned).min() > 0.5 * len(assigned) / folds

    check(assign_folds(y, 5, 0, clusters), clusters, 5)
    seen = []

    def spy(target, folds, seed, codes=None):
        assigned = assign_folds(target, folds, seed, codes)
        seen.append((assigned, codes))
        return assigned

    monkeypatch.setattr("calibrant.calibrators.choose.assign_folds", spy)
    monkeypatch.setattr(mixture, "assign_folds", spy)
    val = Predictions.from_events(x, y, is_logits=True, clusters=clusters)
    choice = calibrate(val, menu=["temperature", "platt"]).choice_
    assert choice.num_clusters == 30
    assert "in 30 clusters" in choice.explanation or "simpler" in choice.explanation
    fit("mixture", x, y, clusters=clusters, members=("temperature", "beta"))
    assert len(seen) == 2
    for assigned, codes in seen:
        check(assigned, codes, 5)
    logits = torch.from_numpy(np.stack((x, -x), 1))
    parts = cut_folds(logits, torch.from_numpy(y), 1.0, 5, None, torch.from_numpy(clusters))
    held = [set(torch.cat([block.clusters for block in part]).tolist()) for part in parts]
    assert len(set.union(*held)) == sum(map(len, held)) == 30
    few = Predictions.from_events(x, y, is_logits=True, clusters=np.zeros(600, int))
    with pytest.raises(InputError, match="one cluster"):
        calibrate(few)


# --- the choice -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["right", "rare", "too high", "too sure", "bent", "few"])
def test_the_choice_harms_nobody(case):
    slope, shift, base, rows = {
        "right": (1.0, 0.0, 0.0, 2000),
        "rare": (1.0, 0.0, -4.5, 4000),
        "too high": (1.0, -3.0, 0.0, 2000),
        "too sure": (0.4, 0.0, 0.0, 2000),
        "bent": (0.8, -0.5, 0.5, 2000),
        "few": (1.0, 0.0, 0.0, 80),
    }[case]
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x = base + 1.5 * rng.normal(size=rows + 20_000)
        bend = 0.15 * x**2 if case == "bent" else 0.0
        y = (rng.random(len(x)) < expit(slope * x + shift + bend)).astype(int)
        made = calibrate(Predictions.from_events(x[:rows], y[:rows], is_logits=True))
        before = log_loss(x[rows:], y[rows:]) / 20_000
        after = log_loss(made.calibrate(x[rows:]), y[rows:]) / 20_000
        assert after < before * (1.01 if case == "few" else 1.001)
        if case in ("too high", "too sure"):
            assert after < 0.95 * before


def test_two_classes_are_chosen_for_as_events():
    x, y = draw(800, seed=2, slope=0.5, shift=-2.0)
    pair = np.stack((-x / 2, x / 2), 1)
    made = calibrate(Predictions.from_logits(pair, y, class_names=["ok", "fraud"]))
    events = calibrate(Predictions.from_events(x, y, is_logits=True))
    assert {c.method for c in made.choice_.candidates} == {*EVENT_PARTS, "blend"}
    assert made.name == events.name
    np.testing.assert_allclose(made.predict_proba(pair)[:, 1], events.predict_proba(x), atol=1e-12)
    after = apply(made, Predictions.from_logits(pair, y))
    assert after.array.shape == pair.shape
    assert made.class_names_ == ("ok", "fraud")


def test_weights_change_the_choice_as_repeated_rows_do():
    x, y = draw(500, seed=5, slope=1.0, shift=0.0)
    moved = np.where(np.arange(500) % 2, x, x + 3)  # half the rows are far too high
    light = np.where(np.arange(500) % 2, 1.0, 1e-6)
    plain = choose(Predictions.from_events(moved, y, is_logits=True), menu=("identity", "platt"))
    weighed = choose(
        Predictions.from_events(moved, y, is_logits=True, weights=light), menu=("identity", "platt")
    )
    assert (plain.method, weighed.method) == ("platt", "identity")


def test_events_are_ranked_by_figures_of_events():
    val = Predictions.from_events(*draw(600), is_logits=True)
    ranking = rank(val, methods=["identity", "platt", "levels"], splits=2)
    assert "auroc" in ranking.to_frame().columns
    assert ranking.to_frame().index[0] == "platt"
    assert "does not take events" in ranking.notes["levels"]


def test_questions_are_ranked_without_figures_of_classes():
    val = Predictions.from_options([[0.0, 1.0], [0.5, 2.0, 1.0]] * 50, [1, 2] * 50)
    figures = rank(val, methods=["identity"], splits=2).figures
    assert "accuracy" in figures
    assert "classwise_ece" not in figures


# --- many labels a row, and options -----------------------------------------------------------


def labelled(rows=500, seed=0):
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(rows, 3))
    y = (rng.random(z.shape) < expit(0.5 * z + np.array([-2.0, 0.0, 1.0]))).astype(float)
    y[:, 2] = np.where(np.arange(rows) < 10, y[:, 2], np.nan)  # ten rows alone are known
    return z, y


def test_each_label_has_its_own_fit_and_rare_ones_share(tmp_path):
    z, y = labelled()
    val = Predictions.from_multilabel(z, y, class_names=["a", "b", "c"])
    with pytest.warns(UserWarning, match="1 of 3 labels have fewer than 20"):
        made = calibrate(val, method="platt")
    alone = get("platt").fit(val.to_events(0))
    np.testing.assert_allclose(made.predict_proba(z)[:, 0], alone.predict_proba(z[:, 0]))
    pooled = get("platt").fit(val.to_events())
    np.testing.assert_allclose(made.predict_proba(z)[:, 2], pooled.predict_proba(z[:, 2]))
    one = calibrate(val, method="platt", pool=True)
    np.testing.assert_allclose(one.predict_proba(z), pooled.predict_proba(z.ravel()).reshape(-1, 3))
    assert made.summary_["nll_after"] < made.summary_["nll_before"]
    back = load(made.save(tmp_path / "c.safetensors"))
    assert back.class_names_ == ("a", "b", "c")
    np.testing.assert_array_equal(back.calibrate(z), made.calibrate(z))
    after = apply(back, val)
    assert after.task == "multilabel"
    assert after.array.shape == z.shape
    exported = calibrators.export_program(made).module()
    rows = torch.from_numpy(z[:9]).float()
    torch.testing.assert_close(exported(rows), made(rows))
    with pytest.raises(InputError, match=r"many labels: use calibrate\(predictions"):
        get("platt").fit(val)
    with pytest.raises(InputError, match="found task 'multilabel'"):
        apply(alone, val)


def test_a_file_of_labels_holds_calibrators_of_events_alone(tmp_path):
    z, y = labelled()
    made = calibrate(Predictions.from_multilabel(z, y), method="platt", pool=True)
    path = made.save(tmp_path / "c.safetensors")
    for part, says in (
        ({"method": "os.system"}, "no member of by_label"),
        ({"method": "levels"}, "does not take events"),
        ({"method": "platt", "ridge": "big"}, "option ridge of platt cannot be 'big'"),
        (["platt"], "members of by_label cannot be"),
    ):
        rewrite_options(path, members=[part])
        with pytest.raises(InputError, match=says):
            load(path)


def rewrite_options(path, **changed):
    with safe_open(path, framework="pt") as opened:
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        header = json.loads(opened.metadata()["calibrant.calibrator"])
    header.pop("digest", None)
    header["options"] |= changed
    save_file(tensors, path, metadata={"calibrant.calibrator": json.dumps(header)})


def test_labels_of_probabilities_are_chosen_for():
    z, y = labelled()
    val = Predictions.from_multilabel(expit(z), y, is_logits=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = calibrate(val, menu=["temperature", "platt"])
    assert [part.choice_.task for part in made.parts] == ["events"] * 3
    assert made.predict_proba(expit(z)).shape == z.shape


def questions(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 6, rows)
    scores = [3 * rng.normal(size=n) for n in sizes]
    return scores, [int((s / 2 + rng.gumbel(size=len(s))).argmax()) for s in scores]


def test_options_that_are_absent_stay_absent():
    scores, answers = questions()
    val = Predictions.from_options(scores, answers)

    def naive(t):
        logs = [s / t - np.log(np.exp(s / t).sum()) for s in scores]
        return -sum(row[k] for row, k in zip(logs, answers, strict=True))

    best = minimize_scalar(naive, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-9}).x
    made = get("temperature").fit(val)
    assert float(made.temperature_) == pytest.approx(best, rel=1e-5)
    made = get("ensemble_temperature").fit(val)
    probs = made.predict_proba(val.array)
    assert (probs[np.isinf(val.array)] == 0).all()
    np.testing.assert_allclose(probs.sum(1), 1.0)
    t, (w1, w2, w3) = float(made.temperature_), made.weights_.tolist()
    for row in (0, 1, 2):
        p = [np.exp(scores[row] / u) / np.exp(scores[row] / u).sum() for u in (t, 1.0)]
        mixed = w1 * p[0] + w2 * p[1] + w3 / len(scores[row])
        np.testing.assert_allclose(probs[row, : len(mixed)], mixed)
    chosen = calibrate(val)
    assert chosen.name in ("temperature", "ensemble_temperature")
    assert (np.isinf(apply(chosen, val).array) == np.isinf(val.array)).all()


@pytest.mark.parametrize("name", ["vector", "beta", "isotonic", "platt", "intra_order", "spline"])
def test_maps_of_classes_refuse_options(name):
    with pytest.raises(InputError, match="positions are not classes: use temperature"):
        get(name).fit(Predictions.from_options(*questions(50)))


# --- faults that were silent ------------------------------------------------------------------


def test_values_that_no_calibrator_can_map_are_refused():
    x, y = draw(60)
    logits = np.stack((x, -x, x / 2), 1)
    made = get("vector").fit(logits, y)
    for value in (np.nan, np.inf, -np.inf):
        broken = logits.copy()
        broken[7, 1] = value
        with pytest.raises(InputError, match="NaN or infinity, first in rows 7"):
            made.predict_proba(broken)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    made = get("identity", from_logits=False).fit(probs, y)
    with pytest.raises(InputError, match=r"must lie in \[0, 1\], found 5 to 5"):
        made.predict_proba(np.full((4, 3), 5.0))
    with pytest.raises(InputError, match=r"must sum to one.*0.9, first in rows 0"):
        made.predict_proba(np.full((4, 3), 0.3))


@pytest.mark.parametrize("form", ["network", "line"])
def test_the_least_number_is_a_logit_like_any_other(form, tmp_path):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(80, 4)).astype(np.float32)
    labels = logits.argmax(1)
    labels[::5] = (labels[::5] + 1) % 4
    absent = np.arange(4) == ((labels + 2) % 4)[:, None]
    logits[absent] = np.finfo(np.float32).min
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = get("intra_order", form=form).fit(logits, labels)
    assert np.isfinite(made.calibrate(logits)).all()
    back = load(made.save(tmp_path / "c.safetensors"))
    np.testing.assert_array_equal(back.calibrate(logits), made.calibrate(logits))


def test_an_unknown_name_on_a_menu_is_an_error():
    val = Predictions.from_events(*draw(60), is_logits=True)
    with pytest.raises(InputError, match=r"'temprature'. Did you mean temperature"):
        calibrate(val, menu=["temperature", "temprature"])
    with pytest.raises(InputError, match="'zzz'"):
        calibrate(val, menu=["temperature", "zzz"])


def test_a_flipped_bit_breaks_the_digest(tmp_path):
    path = fitted("platt").save(tmp_path / "c.safetensors")
    content = bytearray(path.read_bytes())
    content[-3] ^= 1  # in a coefficient, which stays finite
    path.write_bytes(content)
    with pytest.raises(InputError, match="digest"):
        load(path)
