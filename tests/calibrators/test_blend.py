"""The blend that `calibrate` fits: its formulas, its weights, and what keeps it from harm."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logsumexp

import calibrant
from calibrant import InputError, Predictions
from calibrant.calibrators import get, load
from calibrant.calibrators.methods import blend
from calibrant.calibrators.rank import apply
from calibrant.calibrators.solvers import nested_maps as maps

FOLDER = Path(__file__).parents[1] / "fixtures" / "calibrators"


def draw(rows, classes=4, temperature=2.0, seed=0, shift=0.0):
    rng = np.random.default_rng(seed)
    logits = 2.0 * rng.normal(size=(rows, classes))
    truth = logits / temperature + shift * np.arange(classes)
    return logits, (truth + rng.gumbel(size=logits.shape)).argmax(1)


def nll(logits, labels):
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean()


def test_the_base_is_the_penalised_optimum():
    logits, labels = draw(300, temperature=3.0)

    def loss(place):
        share = expit(place[1])
        p = np.exp(log_softmax(logits * np.exp(place[0]), axis=1))
        q = (1 - share) * p[np.arange(300), labels] + share / 4
        return -np.log(q).sum() - np.log(share)

    best = minimize(
        loss, [-1.0, -5.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-11}
    )
    found = maps.fit_base(torch.from_numpy(logits), torch.from_numpy(labels))
    place = [np.log(float(found[0])), np.log(float(found[1]) / (1 - float(found[1])))]
    assert loss(place) == pytest.approx(best.fun, abs=1e-5)


def test_sure_and_right_rows_leave_one_row_of_doubt():
    logits = np.eye(3)[np.arange(99) % 3] * 30.0
    share = maps.fit_base(torch.from_numpy(logits), torch.arange(99) % 3)[1]
    assert float(share) == pytest.approx(1.5 / 100, rel=0.05)  # a mistaken row has K/(K − 1)


def test_weights_are_the_penalised_optimum_and_follow_the_rows():
    rng = np.random.default_rng(0)
    losses = rng.exponential(size=(3, 80))
    rows = rng.uniform(0.5, 1.5, 80)

    def loss(free):
        w = np.exp(free - logsumexp(free))
        return -rows @ np.log(w @ np.exp(-losses)) - blend.PRIOR / 3 * np.log(w).sum()

    best = minimize(loss, np.zeros(3)).x
    np.testing.assert_allclose(
        blend._stack(losses, rows), np.exp(best - logsumexp(best)), atol=1e-4
    )
    twice = blend._stack(np.repeat(losses, 2, 1), None)
    np.testing.assert_allclose(blend._stack(losses, np.full(80, 2.0)), twice, atol=1e-9)


@pytest.mark.parametrize("kind", ["shape", "curve"])
def test_newton_fits_end_where_the_gradient_is_zero(kind):
    logits, labels = draw(400, classes=2 if kind == "curve" else 4, shift=0.4)
    u = torch.log_softmax(torch.from_numpy(logits), 1)
    y = torch.from_numpy(labels)
    fit, logs = {
        "shape": (maps.fit_shape, lambda u, theta: maps.shape_logits(u, theta).log_softmax(1)),
        "curve": (maps.fit_curve, maps.curve_logs),
    }[kind]
    theta = fit(u, y)
    free = 3 if kind == "shape" else 5
    if kind == "shape":
        size = (u - u.mean(1, keepdim=True)).square().mean()
        strengths = torch.full((3,), float(maps.STRENGTH * size), dtype=torch.float64)
    else:
        strengths = maps.STRENGTH * maps.event_functions(u[:, 1] - u[:, 0]).square().mean(0)
    at = theta.clone().requires_grad_()
    picked = logs(u, at).gather(1, y.unsqueeze(1))
    loss = -picked.sum() + 0.5 * (strengths * at[:free].square()).sum()
    (gradient,) = torch.autograd.grad(loss, at)
    assert float((gradient[:free] / strengths.sqrt()).abs().max()) < 0.02


def penalised_gradient(logs, labels, values, penalty):
    """The gradient of the loss that a fit should have brought to zero."""
    at = values.clone().requires_grad_()
    loss = -logs(at).gather(1, labels.unsqueeze(1)).sum() + penalty(at)
    return torch.autograd.grad(loss, at)[0]


def test_the_order_map_is_the_penalised_optimum_and_keeps_the_order():
    logits, labels = draw(500, classes=5, shift=0.4)
    u, y = torch.log_softmax(torch.from_numpy(logits), 1), torch.from_numpy(labels)
    order = maps.fit_order(u, y)
    behind = u.amax(1, keepdim=True) - u
    second = behind.topk(4, dim=1).values[:, -1:]
    near = torch.minimum(behind, second)
    sizes = torch.stack([part.square().mean() for part in (near, behind - near)])

    def penalty(at):
        return 0.5 * maps.STRENGTH * (sizes.unsqueeze(1) * at[:2].square()).sum()

    gradient = penalised_gradient(lambda at: maps.order_logs(u, at), y, order, penalty)[:2]
    assert float((gradient / (maps.STRENGTH * sizes).sqrt().unsqueeze(1)).abs().max()) < 0.02
    assert torch.equal(maps.order_logs(u, order).argsort(1), u.argsort(1))
    few = maps.fit_order(u[:40], y[:40])
    assert torch.equal(maps.order_logs(10 * u, few).argsort(1), u.argsort(1))


def test_the_curves_are_the_penalised_optimum():
    logits, labels = draw(400, classes=4, shift=0.4)
    s, y = torch.log_softmax(torch.from_numpy(logits), 1), torch.from_numpy(labels)
    curves = maps.fit_curves(s, y, tolerance=maps.TIGHT)
    p = s.exp()
    functions = (s - s.mean(1, keepdim=True), torch.log1p(-p), p)
    sizes = torch.stack([part.square().mean() for part in functions]).sqrt().unsqueeze(1)

    def penalty(at):  # what classes share is the mean of its least penalty
        c = at[:-1] * sizes
        shared = c.sum(1, keepdim=True) / (c.shape[1] + maps.SHARED / maps.STRENGTH)
        own = (c - shared).square().sum() + at[-1].square().sum()
        return 0.5 * (maps.STRENGTH * own + maps.SHARED * shared.square().sum())

    gradient = penalised_gradient(lambda at: maps.curves_logs(s, at), y, curves, penalty)
    assert float((gradient[:-1] / sizes).abs().max()) < 0.05
    assert float(gradient[-1].abs().max()) < 0.05
    moved = penalised_gradient(lambda at: maps.curves_logs(s, at), y, 0 * curves, penalty)
    assert float(moved.abs().max()) > 5.0
    again = maps.fit_curves(s, y, start=curves, tolerance=maps.TIGHT)
    np.testing.assert_allclose(again, curves, atol=2e-3)


def test_weights_of_whole_numbers_are_rows_that_stand_so_often():
    logits, labels = draw(150, classes=4, shift=0.5)
    often = np.random.default_rng(3).integers(1, 9, 150)
    often[labels == 0] *= 4
    s, w = torch.log_softmax(torch.from_numpy(logits), 1), torch.from_numpy(often).double()
    y, repeated = torch.from_numpy(labels), torch.from_numpy(np.repeat(np.arange(150), often))
    order = maps.fit_order(s, y, w)
    scale = torch.cat((0 * order[:2], order[2:]))  # of its features: rows count once there
    for fit, logs in (
        (lambda *rows: maps.fit_order(*rows, start=scale), maps.order_logs),
        (maps.fit_curves, maps.curves_logs),
    ):
        weighted = logs(s, fit(s, y, w))
        many = logs(s, fit(s[repeated], y[repeated], None))
        apart = (logs(s, fit(s, y, None)) - weighted).abs().mean()
        assert float((many - weighted).abs().mean()) < 0.1 * float(apart)


def test_the_line_is_the_penalised_optimum_and_never_falls():
    logits, labels = draw(200, classes=2, shift=-1.0)
    x = logits[:, 1] - logits[:, 0]
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 200)

    def loss(line):
        odds = line[0] * x + line[1]
        value = weights @ (np.logaddexp(0.0, odds) - labels * odds)
        return value + 0.5 * maps.LINE * ((line[0] - 1) ** 2 * (x**2).mean() + line[1] ** 2)

    best = minimize(loss, [1.0, 0.0], tol=1e-12).x
    given = (torch.from_numpy(logits), torch.from_numpy(labels), torch.from_numpy(weights))
    np.testing.assert_allclose(maps.fit_line(*given).numpy(), best, atol=1e-4)
    slope, shift = maps.fit_line(-given[0], *given[1:]).tolist()
    assert slope == 0.0
    assert expit(shift) == pytest.approx(np.average(labels, weights=weights), abs=0.01)


def draw_rare_events(rows, seed):
    rng = np.random.default_rng(seed)
    chance = rng.beta(0.5, 55, rows)
    happened = rng.random(rows) < chance
    return 56 * chance / (1 + 55 * chance), happened  # 56 times the odds


@pytest.mark.parametrize("rows", [2500, 20_000])
def test_rare_events_that_are_scored_far_too_high_are_put_right(rows):
    score, happened = draw_rare_events(rows, seed=0)
    fresh, outcome = draw_rare_events(100_000, seed=1)
    val = Predictions.from_events(score, happened)
    made = calibrant.calibrate(val).predict_proba(fresh)
    line = get("platt", from_logits=False).fit(score, happened).predict_proba(fresh)
    assert score.mean() > 20 * happened.mean()
    assert made.mean() == pytest.approx(happened.mean(), rel=0.15)

    def loss(p):
        return -np.log(np.where(outcome, p, 1 - p)).mean()

    assert loss(made) < 1.02 * loss(line)


def test_the_map_of_events_is_the_weighted_mean_of_its_parts():
    score, happened = draw_rare_events(4000, seed=3)
    made = get("blend", from_logits=False).fit(score, happened)
    assert set(made.shares_) == set(blend.EVENT_PARTS)
    x = np.log(score[:30] / (1 - score[:30]))
    slope, share = made.base_.numpy()
    base = (1 - share) * expit(slope * x) + share / 2
    theta = made.shape_.numpy()
    a = (-np.log1p(-np.maximum(base, 1 - base)) - theta[3]) / theta[4]
    s = np.log(base / (1 - base)) * np.maximum(1 + theta[0] + theta[1] * a + theta[2] * a**2, 0.05)
    line = made.line_[0].item() * x + made.line_[1].item()

    def bend(x, theta):
        return x + np.stack((x, np.ones_like(x), abs(x), np.tanh(x / 2), x**2), 1) @ theta

    odds = [x, np.log(base / (1 - base)), s, bend(s, made.curve_.numpy())]
    odds += [line, bend(line, made.line_curve_.numpy())]
    expected = made.weights_.numpy() @ expit(np.stack(odds))
    np.testing.assert_allclose(made.predict_proba(score[:30]), expected, atol=1e-9)


def keep_order(u, order):
    """The gaps of each row, stretched by a line in what the row looks like: row by row."""
    out = np.empty_like(u)
    for n, row in enumerate(u):
        ranked = np.sort(row)[::-1]
        p = np.exp(row)
        a, gap = -np.log(1 - p.max()), ranked[0] - ranked[1]
        seen = [a, a**2, gap, -(p * row).sum(), p.max(), ranked[1] - ranked[2], a * gap]
        phi = np.clip((np.array(seen) - order[2, 1:]) / order[3, 1:], -4, 4)
        first, second = np.maximum(1 + order[:2, 0] + order[:2, 1:] @ phi, 0.05)
        behind = ranked[0] - row
        out[n] = -first * np.minimum(behind, gap) - second * np.maximum(behind - gap, 0)
    return out


def test_the_map_is_the_weighted_mean_of_its_parts():
    logits, labels = draw(500, shift=0.5)
    made = get("blend").fit(logits, labels)
    assert set(made.shares_) == set(blend.CLASS_PARTS)
    z = logits[:20]
    slope, share = made.base_.numpy()
    base = np.log((1 - share) * np.exp(log_softmax(z * slope, axis=1)) + share / 4)
    theta = made.shape_.numpy()
    a = (-np.log1p(-np.exp(base.max(1))) - theta[3]) / theta[4]
    shaped = log_softmax(base * (1 + theta[0] + theta[1] * a + theta[2] * a**2)[:, None], axis=1)
    s = shaped - shaped.mean(1, keepdims=True)
    matrix, loose = made.matrix_.numpy(), made.loose_matrix_.numpy()
    d, b = made.diagonal_.numpy()
    straight = [s + s @ part[:-1] + part[-1] for part in (matrix, loose)]
    curved = []
    for out, c in zip(straight, (made.curves_.numpy(), made.loose_curves_.numpy()), strict=True):
        logs = log_softmax(out, axis=1)
        p = np.exp(logs)
        bent = logs + c[0] * (logs - logs.mean(1, keepdims=True)) - c[1] * np.log(1 - p)
        curved.append(bent + c[2] * p + c[3])
    ordered = keep_order(base, made.order_.numpy())
    parts = [z, base, shaped, ordered, s + d * s + b]
    parts += [straight[0], curved[0], straight[1], curved[1]]
    probs = np.tensordot(
        made.weights_.numpy(), [np.exp(log_softmax(part, axis=1)) for part in parts], 1
    )
    np.testing.assert_allclose(made.predict_proba(z), probs, atol=1e-10)


def test_few_rows_gain_and_right_scores_are_left_alone():
    test = draw(2000, seed=9, temperature=1.6)
    plain = draw(2000, seed=9, temperature=1.0)
    worst = 0.0
    for seed in range(3):
        made = calibrant.calibrate(
            Predictions.from_logits(*draw(150, temperature=1.6, seed=seed)), seed=seed
        )
        assert nll(made.calibrate(test[0]), test[1]) < nll(*test)
        right = calibrant.calibrate(Predictions.from_logits(*draw(150, temperature=1.0, seed=seed)))
        worst = max(worst, nll(right.calibrate(plain[0]), plain[1]) / nll(*plain) - 1)
    assert worst < 0.01


def test_scores_of_exactly_zero_do_not_dominate():
    rng = np.random.default_rng(0)
    truth = rng.beta(0.5, 0.5, 3000)
    votes = rng.binomial(10, truth) / 10  # a forest of ten trees: many zeros and ones
    labels = (rng.random(3000) < truth).astype(int)
    probs = np.stack((1 - votes, votes), 1)
    made = calibrant.calibrate(Predictions.from_probs(probs[:300], labels[:300]))
    after = apply(made, Predictions.from_probs(probs[300:], labels[300:]))
    ideal = [labels[300:][votes[300:] == v].mean() for v in np.unique(votes)]
    q = np.array(ideal)[np.searchsorted(np.unique(votes), votes[300:])]
    best = -np.log(np.where(labels[300:] == 1, q, 1 - q)).mean()
    assert nll(after.array, labels[300:]) < best + 0.02


def test_the_evidence_decides():
    logits, labels = draw(400, temperature=1.5)
    made = get("blend").fit(logits, labels)
    assert made.evidence_ > blend.EVIDENCE
    gap = made.measured_["identity"].nll - made.measured_["blend"].nll
    assert made.evidence_ == pytest.approx(400 * gap)
    # The same rows ten times over, said to be clusters of ten, are no more evidence.
    many = get("blend").fit(
        np.repeat(logits, 10, 0), np.repeat(labels, 10), clusters=np.repeat(np.arange(400), 10)
    )
    assert 0.5 * made.evidence_ < many.evidence_ < 2.0 * made.evidence_


def test_clusters_are_never_split(monkeypatch):
    seen = []
    assign = blend.assign_folds

    def spy(*args):
        seen.append((assign(*args), args[3]))
        return seen[-1][0]

    monkeypatch.setattr(blend, "assign_folds", spy)
    logits, labels = draw(600)
    val = Predictions.from_logits(logits, labels, clusters=np.arange(600) // 20)
    choice = calibrant.calibrate(val).choice_
    ((folds, codes),) = seen
    assert all(len(set(folds[codes == code])) == 1 for code in np.unique(codes))
    assert choice.num_clusters == 30
    assert "in 30 clusters" in choice.explanation


def test_keeping_predictions_leaves_out_what_may_change_them():
    logits, labels = draw(600, shift=1.5)
    made = calibrant.calibrate(Predictions.from_logits(logits, labels), preserve_predictions=True)
    fresh = draw(5000, seed=3)[0]
    assert (made.calibrate(fresh).argmax(1) == fresh.argmax(1)).all()
    free = calibrant.calibrate(Predictions.from_logits(logits, labels))
    assert (free.calibrate(fresh).argmax(1) != fresh.argmax(1)).any()


def test_a_budget_of_nothing_measures_nothing_and_leaves_scores_alone():
    made = calibrant.calibrate(Predictions.from_logits(*draw(400)), time_budget=1e-9)
    assert made.name == "identity"
    assert made.choice_.explanation
    assert made.choice_.to_frame() is not None


def test_the_blend_explains_itself_and_is_read_again(tmp_path):
    val = Predictions.from_logits(*draw(300, shift=0.3), class_names=list("abcd"))
    made = calibrant.calibrate(val)
    assert made.choice_.explanation.startswith("A blend is chosen (")
    assert sum(made.choice_.shares.values()) == pytest.approx(1.0)
    frame = made.choice_.to_frame()
    assert set(frame.index) == {*blend.CLASS_PARTS, "blend"}
    assert list(frame.index[frame["chosen"]]) == ["blend"]
    again = load(made.save(tmp_path / "made.safetensors"))
    np.testing.assert_array_equal(again.calibrate(val.array), made.calibrate(val.array))
    torch.save(made, io.BytesIO())


def test_files_of_earlier_versions_are_read_and_say_the_same():
    old = load(FOLDER / "blend-0.2.0.safetensors")
    assert list(old.shares_) == ["identity", "temperature", "shape", "diagonal", "matrix"]
    given = np.load(FOLDER / "blend-0.2.0.npz")
    np.testing.assert_allclose(old.predict_proba(given["logits"]), given["probs"], atol=1e-12)


def test_bad_options_are_refused():
    with pytest.raises(InputError, match="folds must be a whole number of at least 2"):
        get("blend", folds=1)
    one = Predictions.from_logits(*draw(60), clusters=np.zeros(60, int))
    with pytest.raises(InputError, match="one cluster"):
        calibrant.calibrate(one)


def test_many_classes_have_no_matrix(monkeypatch):
    monkeypatch.setattr(blend, "_MOST_WORK", 1.0)
    assert "matrix" not in get("blend").fit(*draw(300, shift=0.5)).shares_
