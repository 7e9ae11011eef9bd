"""Objectives agree with loops written from the papers' formulas, and fits with searches."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize_scalar

from calibrant.calibrators import get
from calibrant.calibrators.methods.temperature import temperature_problem
from calibrant.calibrators.solvers import objectives
from calibrant.calibrators.solvers import problem as problems
from calibrant.calibrators.solvers.descent import search_grid
from calibrant.calibrators.solvers.objectives import OBJECTIVES, get_objective
from calibrant.core.errors import InputError
from calibrant.losses import cross_entropy, focal, label_smoothing, sb_ece
from calibrant.metrics import ece


def sample(rows=600, classes=4, seed=0, scale=3.0, dtype=torch.float64):
    """Overconfident logits: labels drawn from the softmax of z/2, shifted a little by class."""
    random = np.random.default_rng(seed)
    z = random.normal(0, scale, (rows, classes)) + np.linspace(0, 1, classes)
    p = np.exp(z / 2 - (z / 2).max(1, keepdims=True))
    y = (p.cumsum(1) / p.sum(1, keepdims=True) < random.random((rows, 1))).sum(1)
    return torch.tensor(z, dtype=dtype), torch.tensor(y.clip(0, classes - 1))


def softmax(row):
    big = [math.exp(value - max(row)) for value in row]
    return [value / sum(big) for value in big]


def rows_of(z, y, temperature=1.0):
    for row, label in zip(z.tolist(), y.tolist(), strict=True):
        yield softmax([value / temperature for value in row]), label


def naive_focal(z, y, temperature=1.0, gamma=3.0):
    values = [-((1 - p[k]) ** gamma) * math.log(p[k]) for p, k in rows_of(z, y, temperature)]
    return sum(values) / len(values)


def naive_smoothing(z, y, temperature=1.0, eps=0.05):
    values = []
    for p, k in rows_of(z, y, temperature):
        q = [eps / len(p) + (1 - eps) * (j == k) for j in range(len(p))]
        values.append(-sum(a * math.log(b) for a, b in zip(q, p, strict=True)))
    return sum(values) / len(values)


def naive_balanced(z, y, temperature=1.0):
    losses = {}
    for p, k in rows_of(z, y, temperature):
        losses.setdefault(k, []).append(-math.log(p[k]))
    return sum(sum(each) / len(each) for each in losses.values()) / len(losses)


def naive_soft(z, y, temperature=1.0, *, form="bin", bins=15, soft=0.001, order=2.0):
    """Soft-calibration eq. 8 to 12 in loops."""
    centres = [(j + 0.5) / bins for j in range(bins)]
    c, a, u = [], [], []
    for p, k in rows_of(z, y, temperature):
        c.append(max(p))
        a.append(float(p.index(max(p)) == k))
        u.append(softmax([-((c[-1] - centre) ** 2) / soft for centre in centres]))
    n, total = len(c), 0.0
    for j in range(bins):
        size = sum(member[j] for member in u)
        if size < 1e-9:
            continue
        accuracy = sum(member[j] * right for member, right in zip(u, a, strict=True)) / size
        mean = sum(member[j] * sure for member, sure in zip(u, c, strict=True)) / size
        if form == "bin":
            total += size / n * abs(accuracy - mean) ** order
        else:
            each = zip(u, c, strict=True)
            total += sum(member[j] * abs(accuracy - sure) ** order for member, sure in each) / n
    return total ** (1 / order)


class TestLosses:
    def test_values_agree_with_loops(self):
        z, y = sample(60)
        plain = sum(-math.log(p[k]) for p, k in rows_of(z, y)) / 60
        assert cross_entropy(z, y).item() == pytest.approx(plain, rel=1e-12)
        assert focal(z, y).item() == pytest.approx(naive_focal(z, y), rel=1e-12)
        assert focal(z, y, gamma=1).item() == pytest.approx(naive_focal(z, y, gamma=1), rel=1e-12)
        assert label_smoothing(z, y).item() == pytest.approx(naive_smoothing(z, y), rel=1e-12)
        for form in ("bin", "label"):
            for order in (1.0, 2.0):
                found = sb_ece(z, y, form=form, temperature=0.01, order=order).item()
                wanted = naive_soft(z, y, form=form, soft=0.01, order=order)
                assert found == pytest.approx(wanted, rel=1e-9)

    @pytest.mark.parametrize("loss", [cross_entropy, focal, label_smoothing])
    def test_dense_and_ignored_are_the_flat_ones(self, loss):
        z, y = sample(24)
        dense = z.view(2, 3, 4, 4).movedim(3, 1)
        labels = y.view(2, 3, 4)
        assert torch.equal(
            loss(dense, labels, reduction="none").view(-1), loss(z, y, reduction="none")
        )
        some = y.clone()
        some[::3] = -100
        kept = some != -100
        torch.testing.assert_close(loss(z, some), loss(z[kept], y[kept]))
        assert loss(z, some, reduction="sum") < loss(z, y, reduction="sum")
        with pytest.raises(InputError, match="reduction"):
            loss(z, y, reduction="median")
        with pytest.raises(InputError, match="shape"):
            loss(z, y[:5])

    @pytest.mark.parametrize("form", ["bin", "label"])
    @pytest.mark.parametrize("order", [1.0, 2.0])
    def test_soft_bins_become_hard_ones(self, form, order):
        z, y = sample(500)
        soft = sb_ece(z, y, form=form, temperature=1e-9, order=order)
        assert soft.item() == pytest.approx(ece(z, y, form=form, order=order).item(), abs=1e-6)

    @pytest.mark.parametrize("loss", [cross_entropy, focal, label_smoothing, sb_ece])
    def test_gradients_are_right_and_finite_when_certain(self, loss):
        z, y = sample(12)
        z.requires_grad_()
        assert torch.autograd.gradcheck(lambda x: loss(x, y), z)
        sure = torch.tensor([[500.0, 0.0], [0.0, 500.0]], requires_grad=True)
        for labels in ([0, 1], [1, 0]):
            (slope,) = torch.autograd.grad(loss(sure, torch.tensor(labels)), sure)
            assert slope.isfinite().all()

    def test_a_detached_weight_changes_the_gradient_and_not_the_value(self):
        z, y = sample(50)
        z.requires_grad_()
        held = focal(z, y, detach_weight=True)
        assert held.item() == focal(z, y).item()
        (slope,) = torch.autograd.grad(held, z)
        p = torch.softmax(z.detach(), 1)
        true = p.gather(1, y[:, None])
        wanted = (1 - true) ** 3 * (p - torch.nn.functional.one_hot(y, 4)) / 50
        torch.testing.assert_close(slope, wanted)


class TestTemperature:
    @pytest.mark.parametrize(
        ("name", "naive"),
        [
            ("focal", naive_focal),
            ("label_smoothing", naive_smoothing),
            ("balanced", naive_balanced),
        ],
    )
    def test_is_the_minimum_of_the_loops(self, name, naive):
        z, y = sample(200)
        found = get("temperature", objective=name).fit(z, y)
        wanted = minimize_scalar(
            lambda at: naive(z, y, math.exp(at)), bounds=(-1, 3), method="bounded"
        )
        assert math.log(found.temperature_) == pytest.approx(wanted.x, abs=1e-5)

    def test_balanced_rows_weigh_by_their_class(self):
        z, y = sample(400)
        even = get("temperature", objective="balanced")
        z, y = z[y != 2], y[y != 2]  # a class without rows has no weight
        again = torch.cat([torch.arange(len(y)), torch.nonzero(y == 1).flatten().repeat(4)])
        first, second = even.fit(z, y).temperature_, even.fit(z[again], y[again]).temperature_
        assert float(second) == pytest.approx(float(first), rel=1e-6)
        plain = get("temperature")
        assert float(plain.fit(z[again], y[again]).temperature_) != pytest.approx(
            float(plain.fit(z, y).temperature_), rel=1e-3
        )

    def test_balanced_is_class_scaled_without_its_weights(self):
        z, y = sample(300)
        scaled = get(
            "temperature",
            objective="class_scaled",
            objective_options={"alpha": 1.0, "beta": 0.0},
        )
        even = get("temperature", objective="balanced").fit(z, y)
        assert float(scaled.fit(z, y).temperature_) == pytest.approx(
            float(even.temperature_), rel=1e-6
        )

    def test_detached_focal_is_the_root_of_its_gradient(self):
        z, y = sample(300)

        def slope(at):
            total = 0.0
            for row, (p, k) in zip(z.tolist(), rows_of(z, y, math.exp(at)), strict=True):
                mean = sum(a * b for a, b in zip(p, row, strict=True))
                total += (1 - p[k]) ** 3 * (row[k] - mean)
            return total

        found = get("temperature", objective="focal", objective_options={"detach_weight": True})
        found.fit(z, y)
        assert math.log(found.temperature_) == pytest.approx(brentq(slope, -1, 3), abs=1e-7)

    def test_the_objective_nll_is_the_exact_newton(self):
        z, y = sample()
        plain = get("temperature").fit(z, y)
        problem = temperature_problem(z, y)
        at = np.array([math.log(plain.temperature_)])
        slope = problem.gradient(at, get_objective("nll").loss)[1]
        assert abs(slope[0]) < 1e-6
        assert plain.passes_ > 0

    @pytest.mark.parametrize(
        "options", [{}, {"temperature": 0.01}, {"form": "label", "order": 1.0}]
    )
    def test_soft_binned_is_as_low_as_a_dense_grid(self, options):
        z, y = sample(300, seed=3)
        objective = get_objective("sb_ece", options)
        problem = temperature_problem(z, y)
        found = get("temperature", objective="sb_ece", objective_options=options).fit(z, y)
        value = problem.loss(np.log([float(found.temperature_)]), objective.loss)
        grid = np.linspace(*problems.LOG_BOUNDS, 701)
        least = min(problem.loss(np.array([at]), objective.loss) for at in grid)
        assert value <= least + 1e-7

    def test_soft_binned_loss_is_that_of_the_loops(self):
        z, y = sample(80)
        problem = temperature_problem(z, y)
        value = problem.loss(np.log([1.7]), get_objective("sb_ece").loss)
        assert value == pytest.approx(naive_soft(z, y, 1.7), rel=1e-9)

    @pytest.mark.parametrize("options", [{}, {"num_bins": 10, "binning": "mass", "order": 2}])
    def test_hard_binned_is_as_low_as_a_dense_grid(self, options):
        z, y = sample(400, seed=5)
        found = get("temperature", objective="ece", objective_options=options).fit(z, y)
        value = float(ece(z / found.temperature_, y, **options))
        grid = np.exp(np.linspace(-1, 2.5, 500))
        least = min(float(ece(z / t, y, **options)) for t in grid)
        # Its value jumps by up to 1/N where a row changes its bin: no search is finer.
        assert value <= least + 1 / 400

    def test_search_finds_the_lowest_of_many_dips(self):
        found = search_grid(lambda at: 0.3 * math.cos(9 * at) + (at - 0.7) ** 2)
        grid = np.linspace(-4.6, 4.6, 200001)
        assert found == pytest.approx(
            grid[np.argmin(0.3 * np.cos(9 * grid) + (grid - 0.7) ** 2)], abs=1e-3
        )

    @pytest.mark.filterwarnings("ignore:the best temperature lies")
    @pytest.mark.parametrize("name", OBJECTIVES)
    def test_separable_data_are_held_at_a_bound_or_inside(self, name):
        z = torch.eye(4).repeat(5, 1) * 3
        y = torch.arange(4).repeat(5)
        found = get("temperature", objective=name)
        if name == "label_smoothing":  # smooth labels are never certain
            found.fit(z, y)
        else:
            with pytest.warns(UserWarning, match="beyond"):
                found.fit(z, y)
        assert 1e-2 <= float(found.temperature_) <= 1e2

    @pytest.mark.filterwarnings("ignore:the best temperature")
    @pytest.mark.parametrize("name", OBJECTIVES)
    def test_constant_logits_and_one_row_are_finite(self, name):
        flat = get("temperature", objective=name).fit(torch.zeros(6, 3), torch.arange(6) % 3)
        assert flat.predict_proba(torch.zeros(2, 3)) == pytest.approx(1 / 3)
        one = get("temperature", objective=name).fit(torch.tensor([[1.0, 2.0]]), torch.tensor([1]))
        assert 1e-2 <= float(one.temperature_) <= 1e2

    def test_bad_names_and_options_are_refused_at_once(self):
        for options in (
            {"objective": "nlll"},
            {"objective": "focal", "objective_options": {"gama": 2}},
            {"objective": "ece", "objective_options": {"binning": "mess"}},
            {"objective": "sb_ece", "objective_options": {"form": "both"}},
            {"objective": "nll", "objective_options": {"detach_weight": True}},
            {"objective": "class_scaled", "objective_options": {"estimate": "best"}},
            {"objective": "class_scaled", "objective_options": {"alpha": 1.0}},
        ):
            with pytest.raises(InputError):
                get("temperature", **options)


def naive_class_losses(z, y, temperature):
    by_class = {}
    for p, k in rows_of(z, y, temperature):
        by_class.setdefault(k, []).append(-math.log(p[k]))
    return {k: sum(v) / len(v) for k, v in sorted(by_class.items())}


def naive_weights(losses, alpha, beta, how):
    values = list(losses.values())
    mean = sum(values) / len(values)
    span = max(values) - min(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    scaled = {
        "nd": {k: (v - mean) / deviation for k, v in losses.items()},
        "mm": {k: (v - min(values)) / span for k, v in losses.items()},
        "cm": {k: (v - mean) / span for k, v in losses.items()},
    }[how]
    return {k: beta / (1 + math.exp(-v / alpha)) - beta / 2 for k, v in scaled.items()}


class TestClassScaled:
    @pytest.mark.parametrize("estimate", ["printed", "corrected"])
    @pytest.mark.parametrize("how", ["nd", "mm", "cm"])
    @pytest.mark.parametrize("absent", [False, True])
    def test_the_fit_is_a_fixed_point(self, estimate, how, absent):
        """Σ (1 + w_i) L_i′ = 0, w_i at the same T, by loops and a difference quotient."""
        z, y = sample(240, 5, seed=1)
        if absent:
            z, y = z[y != 2], y[y != 2]
        options = {"estimate": estimate, "normalisation": how}
        found = get("temperature", objective="class_scaled", objective_options=options).fit(z, y)
        at, step = float(found.temperature_), 1e-5
        weights = naive_weights(naive_class_losses(z, y, at), how=how, **found.facts_)
        above, below = (naive_class_losses(z, y, at + sign * step) for sign in (1, -1))
        slopes = {k: (above[k] - below[k]) / (2 * step) for k in above}
        assert sum((1 + weights[k]) * slopes[k] for k in slopes) == pytest.approx(0, abs=1e-6)
        assert max(abs(slope) for slope in slopes.values()) > 1e-3

    @pytest.mark.parametrize("estimate", ["printed", "corrected"])
    def test_alpha_and_beta_are_the_best_of_a_grid(self, estimate):
        """Eq. 6 by loops, from the losses before and after the first step."""
        z, y = sample(400, 6, seed=2)
        options = {"estimate": estimate}
        found = get("temperature", objective="class_scaled", objective_options=options).fit(z, y)
        before = naive_class_losses(z, y, 1.0)
        (low, high), betas = objectives.bounds_of(6)
        start = naive_weights(before, min(1.0, high), 1.5, "nd")
        step = 1e-6
        up, down = naive_class_losses(z, y, 1 + step), naive_class_losses(z, y, 1 - step)
        slope = sum((1 + start[k]) * (up[k] - down[k]) / (2 * step) for k in before)
        moved = 1 - 0.02 * min(1, 1 / abs(slope)) * slope
        after = naive_class_losses(z, y, moved)
        mean = sum(after.values()) / len(after)

        def spread(alpha, beta):
            w = naive_weights(after, alpha, beta, "nd")
            if estimate == "printed":
                guess = {k: before[k] - w[k] * (after[k] - before[k]) for k in after}
            else:
                guess = {k: before[k] + (1 + w[k]) * (after[k] - before[k]) for k in after}
            return math.sqrt(sum((value - mean) ** 2 for value in guess.values()))

        least = min(
            spread(a, b) for a in np.linspace(low, high, 60) for b in np.linspace(*betas, 30)
        )
        assert spread(found.facts_["alpha"], found.facts_["beta"]) <= least + 1e-9
        assert low <= found.facts_["alpha"] <= high
        assert betas[0] <= found.facts_["beta"] <= betas[1]

    def test_printed_and_corrected_go_to_opposite_corners(self, data_folder):
        with np.load(data_folder / "logits" / "cifar10-resnet20.npz") as file:
            z, y = torch.tensor(file["logits"]), torch.tensor(file["labels"])
        facts = {}
        for estimate in ("printed", "corrected"):
            options = {"estimate": estimate}
            found = get("temperature", objective="class_scaled", objective_options=options)
            facts[estimate] = found.fit(z, y).facts_
        assert facts["printed"] == pytest.approx({"alpha": math.log(10) / 2, "beta": 1.5}, abs=1e-6)
        assert facts["corrected"] == pytest.approx({"alpha": 0.1, "beta": 2.0}, abs=1e-6)

    def test_bounds_meet_for_two_classes_and_one_class_has_weight_one(self):
        assert objectives.bounds_of(2)[0] == (0.1, math.log(2) / 2)
        z, y = sample(200, 3)
        z, y = z[y == 1], y[y == 1]
        wrong = z.argmax(1) != 1
        assert wrong.any()
        scaled = get("temperature", objective="class_scaled").fit(z, y)
        plain = get("temperature").fit(z, y)
        assert float(scaled.temperature_) == pytest.approx(float(plain.temperature_), rel=1e-5)

    def test_given_alpha_and_beta_are_used(self):
        z, y = sample(200)
        options = {"alpha": 0.7, "beta": 1.6}
        found = get("temperature", objective="class_scaled", objective_options=options).fit(z, y)
        assert found.facts_ == options


def test_focal_on_a_real_set(data_folder):
    """Detached, T is the larger one: rows already certain count for less."""
    with np.load(data_folder / "logits" / "cifar10-resnet20.npz") as file:
        z, y = torch.tensor(file["logits"]), torch.tensor(file["labels"])
    whole = get("temperature", objective="focal").fit(z, y)
    held = get("temperature", objective="focal", objective_options={"detach_weight": True})
    assert float(whole.temperature_) == pytest.approx(2.7700, abs=1e-3)
    assert float(held.fit(z, y).temperature_) == pytest.approx(3.1114, abs=1e-3)


@pytest.mark.parametrize("name", ["nll", "focal", "label_smoothing", "sb_ece"])
def test_streamed_gradients_are_the_whole_ones(name, monkeypatch):
    z, y = sample(300)
    loss = get_objective(name).loss

    def at(elements):
        monkeypatch.setattr(problems, "_GRAPH_BLOCK", elements)
        problem = problems.Problem(lambda x, t: x * (-t).exp(), z, y, 4, lambda t: t.square().sum())
        return problem, problem.gradient(np.array([0.1, 0.2, 0.0, -0.3]), loss)

    (_, (value, slope)), (problem, (again, streamed)) = at(1 << 20), at(64)
    assert len(problem._blocks) > 1
    assert again == pytest.approx(value, rel=1e-12)
    assert streamed == pytest.approx(slope, rel=1e-9, abs=1e-12)


def nearly_certain(rows=400, classes=10, right=0.965, seed=0):
    """A network that is nearly always right and rather sure, as after training on digits."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (rows,), generator=draw)
    shown = torch.where(
        torch.rand(rows, generator=draw) < right,
        labels,
        torch.randint(classes, (rows,), generator=draw),
    )
    logits = torch.randn(rows, classes, generator=draw)
    logits[torch.arange(rows), shown] += 4.0 + 4.0 * torch.rand(rows, generator=draw)
    return logits, labels


@pytest.mark.parametrize("seed", range(4))
def test_a_bound_on_the_likelihood_lost_is_kept_and_told(seed):
    # Its least value lies where every row is certain, right or wrong.
    logits, labels = nearly_certain(seed=seed)
    objective = get_objective("sb_ece")
    problem = temperature_problem(logits.double(), labels)
    grid = np.linspace(np.log(0.01), np.log(100.0), 400)
    values = [problem.loss(np.array([at]), objective.loss) for at in grid]
    exact = get("temperature", objective="sb_ece").fit(logits, labels)
    least = problem.loss(np.log([float(exact.temperature_)]), objective.loss)
    assert least <= min(values) + 1e-9  # the exact minimum, whatever it costs
    assert "bound_by_likelihood" not in exact.facts_
    bound = {"max_likelihood_loss": 0.01}
    with pytest.warns(
        UserWarning, match="costs more likelihood than max_likelihood_loss=0.01 allows"
    ):
        found = get("temperature", objective="sb_ece", objective_options=bound).fit(logits, labels)
    assert found.facts_ == {"bound_by_likelihood": 1.0}
    here = problem.loss(np.log([float(found.temperature_)]), objective.loss)
    fair = [
        value
        for at, value in zip(grid, values, strict=True)
        if cross_entropy(logits.double() / np.exp(at), labels)
        <= 1.01 * cross_entropy(logits.double(), labels)
    ]
    assert min(values) < min(fair) - 1e-3
    assert found.summary_["nll_after"] <= 1.01 * found.summary_["nll_before"] + 1e-6
    assert here <= min(fair) + 1e-4


@pytest.mark.parametrize("objective", ["sb_ece", "ece"])
def test_a_bound_that_does_not_bind_changes_nothing_and_says_so(objective):
    z, y = sample(400, seed=5)
    exact = get("temperature", objective=objective).fit(z, y)
    bound = {"max_likelihood_loss": 10.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = get("temperature", objective=objective, objective_options=bound).fit(z, y)
    assert found.facts_ == {"bound_by_likelihood": 0.0}
    error = ece if objective == "ece" else None
    values = [
        float(error(z / one.temperature_, y))
        if error
        else naive_soft(z, y, float(one.temperature_))
        for one in (exact, found)
    ]
    assert values[0] == pytest.approx(values[1], abs=2e-3)
    tight = {"max_likelihood_loss": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = get("temperature", objective=objective, objective_options=tight).fit(z, y)
    assert held.summary_["nll_after"] <= held.summary_["nll_before"] + 1e-6


def test_the_bound_is_of_temperature_alone_and_a_share():
    for name in ("vector", "ensemble_temperature", "class_temperature"):
        with pytest.raises(InputError, match="bounds temperature alone"):
            get(name, objective="sb_ece", objective_options={"max_likelihood_loss": 0.01})
    with pytest.raises(InputError, match="a share of at least 0, or None, found -1"):
        get("temperature", objective="sb_ece", objective_options={"max_likelihood_loss": -1})
    with pytest.raises(InputError, match="max_likelihood_loss"):
        get("temperature", objective="focal", objective_options={"max_likelihood_loss": 0.1})


def test_a_fit_that_costs_likelihood_warns():
    logits, labels = nearly_certain()
    with pytest.warns(UserWarning, match="raised the negative log-likelihood of the rows"):
        get("temperature", objective="label_smoothing", objective_options={"smoothing": 0.9}).fit(
            logits, labels
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get("temperature").fit(logits, labels)
