"""Losses of one value a sample: values, gradients, limits, and what training with them does."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from calibrant import losses
from calibrant.core.errors import InputError
from calibrant.losses.inverse_focal import LARGEST_FALLING_GAMMA
from tests.helpers.digits_training import Run, train
from tests.reference import losses_primary as ref

# name, options, reference of class indices, reference of class probabilities (None: expectation)
CASES = [
    ("cross_entropy", {}, ref.cross_entropy, None),
    ("brier", {}, ref.brier, ref.brier_soft),
    ("label_smoothing", {}, ref.label_smoothing, ref.label_smoothing_soft),
    ("label_smoothing", {"smoothing": 0.3}, ref.label_smoothing, ref.label_smoothing_soft),
    ("focal", {}, ref.focal, None),
    ("focal", {"gamma": 0.5}, ref.focal, None),
    ("flsd", {}, ref.flsd, None),
    ("flsd", {"gamma_below": 2.0, "gamma_above": 0.7, "threshold": 0.6}, ref.flsd, None),
    ("inverse_focal", {}, ref.inverse_focal, None),
    ("inverse_focal", {"gamma": 3.0}, ref.inverse_focal, None),
    ("dual_focal", {}, ref.dual_focal, None),
    ("dual_focal", {"gamma": 0.8}, ref.dual_focal, None),
]
NAMES = sorted({case[0] for case in CASES})
each_case = pytest.mark.parametrize(
    ("name", "options", "hard", "soft"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES]
)
WEIGHT = torch.tensor([0.3, 2.0, 1.1, 0.0, 0.7], dtype=torch.float64)


def draw(rows=24, classes=5, scale=2.0, seed=0):
    """Logits, labels and class probabilities, some of them 0."""
    source = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=source, dtype=torch.float64)
    labels = torch.randint(0, classes, (rows,), generator=source)
    soft = torch.rand(rows, classes, generator=source, dtype=torch.float64)
    soft = torch.where(soft < 0.3, 0.0, soft) + torch.eye(classes, dtype=torch.float64)[labels]
    return logits, labels, soft / soft.sum(1, keepdim=True)


def close(actual, expected, tolerance=1e-12):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.detach().double(), expected, rtol=tolerance, atol=tolerance)


def hard_values(hard, logits, labels, options):
    pairs = zip(logits.tolist(), labels.tolist(), strict=True)
    return [hard(z, y, **options) for z, y in pairs]


def soft_values(hard, soft, logits, targets, options):
    pairs = zip(logits.tolist(), targets.tolist(), strict=True)
    if soft is not None:
        return [soft(z, q, **options) for z, q in pairs]
    return [ref.expected(hard, z, q, **options) for z, q in pairs]


def value_of(name, options, logits, target, **common):
    """The function and the class must say the same."""
    value = getattr(losses, name)(logits, target, **options, **common)
    assert torch.equal(value, losses.make(name, **options, **common)(logits, target))
    return value


# The reference, by hand. p = (1/2, 1/4, 1/4) and (1/10, 2/10, 3/10, 4/10).
HALVES = [math.log(2), 0.0, 0.0]
TENTHS = [math.log(k) for k in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (ref.cross_entropy(HALVES, 0), math.log(2)),
        # .5² + .25² + .25², and (.5-.5)² + (.25-.5)² + .25²
        (ref.brier(HALVES, 0), 0.375),
        (ref.brier_soft(HALVES, [0.5, 0.5, 0.0]), 0.125),
        # q = (.8, .1, .1) at ε = .3: .8 ln 2 + .2 ln 4
        (ref.label_smoothing(HALVES, 0, smoothing=0.3), 1.2 * math.log(2)),
        # q = .7·(0, .5, .5) + .1 = (.1, .45, .45): .1 ln 2 + .9 ln 4
        (ref.label_smoothing_soft(HALVES, [0.0, 0.5, 0.5], smoothing=0.3), 1.9 * math.log(2)),
        # (3/4)³ ln 4
        (ref.focal(HALVES, 1), 27 / 64 * math.log(4)),
        # .9⁵ ln 10; p = .2 is not below .2: .8³ ln 5
        (ref.flsd(TENTHS, 0), 0.59049 * math.log(10)),
        (ref.flsd(TENTHS, 1, threshold=0.2 - 1e-9), 0.512 * math.log(5)),
        # (5/4)^2 ln 4
        (ref.inverse_focal(HALVES, 1, gamma=2.0), 25 / 16 * math.log(4)),
        # p_y = .3, p_j = .2: .9⁵ ln(10/3); the least class has none below: .9⁵ ln 10
        (ref.dual_focal(TENTHS, 2), 0.59049 * math.log(10 / 3)),
        (ref.dual_focal(TENTHS, 0), 0.59049 * math.log(10)),
        # a tie is not below: p_y = p_2 = 1/4, and nothing else is smaller
        (ref.dual_focal(HALVES, 1, gamma=2.0), 9 / 16 * math.log(4)),
        # q = (0, 1/2, 1/2, 0): the mean of .8³ ln 5 and .7³ ln(10/3)
        (
            ref.expected(ref.focal, TENTHS, [0, 0.5, 0.5, 0]),
            0.256 * math.log(5) + 0.1715 * math.log(10 / 3),
        ),
    ],
)
def test_reference_by_hand(actual, expected):
    assert actual == pytest.approx(expected, rel=1e-12)


@each_case
def test_values_of_class_indices(name, options, hard, soft):
    logits, labels, _ = draw()
    expected = hard_values(hard, logits, labels, options)
    close(value_of(name, options, logits, labels, reduction="none"), expected)
    close(value_of(name, options, logits, labels, reduction="sum"), sum(expected))
    close(value_of(name, options, logits, labels, reduction="mean"), sum(expected) / len(expected))
    assert torch.equal(
        value_of(name, options, logits, labels),
        value_of(name, options, logits, labels, reduction="mean"),
    )


@each_case
def test_values_of_class_probabilities(name, options, hard, soft):
    logits, labels, targets = draw()
    expected = soft_values(hard, soft, logits, targets, options)
    close(value_of(name, options, logits, targets, reduction="none"), expected)
    close(value_of(name, options, logits, targets), sum(expected) / len(expected))
    exact = torch.eye(5, dtype=torch.float64)[labels]
    close(
        value_of(name, options, logits, exact, reduction="none"),
        value_of(name, options, logits, labels, reduction="none"),
    )


@each_case
def test_class_weights_are_those_of_torch(name, options, hard, soft):
    logits, labels, targets = draw()
    plain = hard_values(hard, logits, labels, options)
    weights = WEIGHT[labels].tolist()
    expected = [value * w for value, w in zip(plain, weights, strict=True)]
    close(value_of(name, options, logits, labels, weight=WEIGHT, reduction="none"), expected)
    close(value_of(name, options, logits, labels, weight=WEIGHT), sum(expected) / sum(weights))
    rows = zip(logits.tolist(), targets.tolist(), strict=True)
    if name in ("brier", "label_smoothing"):  # a sample is weighed by its classes' mean weight
        values = soft_values(hard, soft, logits, targets, options)
        shares = (targets * WEIGHT).sum(1).tolist()
        expected = [value * w for value, w in zip(values, shares, strict=True)]
    else:
        heavy = ((z, [a * b for a, b in zip(q, WEIGHT.tolist(), strict=True)]) for z, q in rows)
        expected = [ref.expected(hard, z, q, **options) for z, q in heavy]
    close(value_of(name, options, logits, targets, weight=WEIGHT, reduction="none"), expected)
    close(value_of(name, options, logits, targets, weight=WEIGHT), sum(expected) / len(expected))


@pytest.mark.parametrize("kind", ["indices", "probabilities"])
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_that_of_torch(kind, weight, smoothing):
    logits, labels, targets = draw()
    target = labels if kind == "indices" else targets
    for reduction in ("none", "mean", "sum"):
        expected = nn.functional.cross_entropy(logits, target, weight=weight, reduction=reduction)
        close(losses.cross_entropy(logits, target, weight=weight, reduction=reduction), expected)
        if weight is None:  # torch weighs the classes of the smoothed label instead
            expected = nn.functional.cross_entropy(
                logits, target, label_smoothing=smoothing, reduction=reduction
            )
            actual = losses.label_smoothing(
                logits, target, smoothing=smoothing, reduction=reduction
            )
            close(actual, expected)


@each_case
def test_dense_rows_with_some_ignored(name, options, hard, soft):
    logits, labels, targets = draw(rows=24)
    ignored = torch.arange(24) % 5 == 2
    dense = logits.reshape(2, 3, 4, 5).movedim(-1, 1)
    marked = torch.where(ignored, 7, labels).reshape(2, 3, 4)
    values = torch.tensor(hard_values(hard, logits, labels, options), dtype=torch.float64)
    values = values.where(~ignored, 0)
    actual = value_of(name, options, dense, marked, ignore_index=7, reduction="none")
    close(actual, values.reshape(2, 3, 4))
    close(value_of(name, options, dense, marked, ignore_index=7), values.sum() / (~ignored).sum())
    moved = torch.where(ignored.unsqueeze(1), -1e4 * logits, logits)
    moved = moved.reshape(2, 3, 4, 5).movedim(-1, 1)
    gradients = [
        torch.func.grad(lambda z: losses.make(name, ignore_index=7, **options)(z, marked))(z)
        for z in (dense, moved)
    ]
    assert torch.equal(*gradients)
    many = targets.reshape(2, 3, 4, 5).movedim(-1, 1)
    expected = soft_values(hard, soft, logits, targets, options)
    actual = value_of(name, options, dense, many, reduction="none")
    assert actual.shape == (2, 3, 4)  # as cross_entropy of torch
    close(actual.reshape(-1), expected)


def closed_form(name, z, y, options):
    """dloss/dz of one row, by hand. With t = 1[k=y], dp_k/dz_j = p_k (1[k=j] − p_j), so

    * a loss f(p_y) has df/dz_j = f'(p_y)·p_y (t_j − p_j);
      cross_entropy: f' = −1/p; focal: f' = γ(1−p)^(γ−1) ln p − (1−p)^γ/p;
      inverse_focal: f' = −γ(1+p)^(γ−1) ln p − (1+p)^γ/p (r-aurc's eq. 40 with its sign right);
    * label_smoothing: cross-entropy against q = (1−ε)t + ε/K, so p − q;
    * brier: Σ_k 2(p_k−t_k)·p_k(1[k=j]−p_j) = 2p_j[(p_j−t_j) − Σ_k p_k(p_k−t_k)];
    * dual_focal, with b = 1 − p_y + p_i: df = b^γ·(−1/p_y)dp_y − γb^(γ−1) ln p_y·(dp_i − dp_y).
    """
    p = np.exp(z - z.max())
    p /= p.sum()
    t = np.eye(len(z))[y]
    own, along = p[y], p[y] * (t - p)
    if name == "cross_entropy":
        return -along / own
    if name == "label_smoothing":
        smoothing = options.get("smoothing", 0.05)
        return p - (1 - smoothing) * t - smoothing / len(z)
    if name == "brier":
        return 2 * p * ((p - t) - np.sum(p * (p - t)))
    if name == "inverse_focal":
        g = options.get("gamma", 1.5)
        return (-g * (1 + own) ** (g - 1) * np.log(own) - (1 + own) ** g / own) * along
    if name == "dual_focal":
        g, i = options.get("gamma", 5.0), ref.next_below(z.tolist(), y)
        next_p = 0.0 if i is None else p[i]
        step = 0.0 if i is None else next_p * (np.eye(len(z))[i] - p)
        base = 1 - own + next_p
        return -(base**g) / own * along - g * base ** (g - 1) * np.log(own) * (step - along)
    g = options.get("gamma", 3.0)
    if name == "flsd":
        below, above = options.get("gamma_below", 5.0), options.get("gamma_above", 3.0)
        g = below if own < options.get("threshold", 0.2) else above
    return (g * (1 - own) ** (g - 1) * np.log(own) - (1 - own) ** g / own) * along


@each_case
def test_gradient_is_the_one_derived_by_hand(name, options, hard, soft):
    logits, labels, targets = draw(rows=60)
    table = logits.numpy()
    expected = np.stack(
        [closed_form(name, z, y, options) for z, y in zip(table, labels.tolist(), strict=True)]
    )
    loss = losses.make(name, reduction="sum", **options)
    close(torch.func.grad(loss)(logits, labels), expected)
    # of class probabilities every one of these gradients is the expectation
    expected = np.stack(
        [
            sum(share * closed_form(name, z, y, options) for y, share in enumerate(q))
            for z, q in zip(table, targets.tolist(), strict=True)
        ]
    )
    close(torch.func.grad(loss)(logits, targets), expected)


@each_case
def test_gradcheck(name, options, hard, soft):
    logits, labels, targets = draw(rows=6, seed=3)
    logits.requires_grad_()
    loss = losses.make(name, reduction="none", **options)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), logits)
    assert torch.autograd.gradcheck(lambda z: loss(z, targets), logits)


def test_focal_with_the_weight_held_constant():
    # d[−w ln p_y] with w constant is w (p − t)
    logits, labels, _ = draw()
    p = logits.softmax(1)
    own = p.gather(1, labels.unsqueeze(1))
    expected = (1 - own) ** 2.5 * (p - torch.eye(5, dtype=torch.float64)[labels])
    loss = losses.Focal(gamma=2.5, detach_weight=True, reduction="sum")
    close(torch.func.grad(loss)(logits, labels), expected)
    close(loss(logits, labels), losses.focal(logits, labels, gamma=2.5, reduction="sum"))
    assert losses.Focal().detach_weight is False


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("label_smoothing", {"smoothing": 0.0}),
        ("focal", {"gamma": 0.0}),
        ("flsd", {"gamma_below": 0.0, "gamma_above": 0.0}),
        ("inverse_focal", {"gamma": 0.0}),
        ("dual_focal", {"gamma": 0.0}),
    ],
)
def test_limits_are_cross_entropy(name, options):
    logits, labels, targets = draw()
    for target in (labels, targets):
        expected = losses.cross_entropy(logits, target, reduction="none")
        close(value_of(name, options, logits, target, reduction="none"), expected)


def test_other_limits():
    logits, labels, _ = draw()
    uniform = torch.full_like(logits, 0.2)
    close(
        losses.label_smoothing(logits, labels, smoothing=1.0),
        losses.cross_entropy(logits, uniform),
    )
    # no row is below a threshold of 0, every row is below 1
    for threshold, gamma in ((0.0, 2.0), (1.0, 4.0)):
        actual = losses.flsd(logits, labels, gamma_below=4.0, gamma_above=2.0, threshold=threshold)
        close(actual, losses.focal(logits, labels, gamma=gamma))
    # two classes: the one behind the winner is all the rest, and b = 2(1 − p_y)
    two, right = logits[:, :2], logits[:, :2].argmax(1)
    actual = losses.dual_focal(two, right, gamma=2.0, reduction="none")
    close(actual, 4 * losses.focal(two, right, gamma=2.0, reduction="none"))


def test_flsd_looks_at_the_true_class_and_not_the_predicted():
    # p = (.1, .9): the label 0 has .1 and γ = 5, though the predicted class has .9
    logits = torch.tensor([[0.1, 0.9]], dtype=torch.float64).log()
    close(losses.flsd(logits, torch.tensor([0])), 0.9**5 * math.log(10))


def test_flsd_threshold_itself_is_above():
    # p_y = 1/4 exactly
    logits = torch.zeros(1, 4, dtype=torch.float64)
    actual = losses.flsd(logits, torch.tensor([0]), threshold=torch.softmax(logits, 1)[0, 0].item())
    close(actual, 0.75**3 * math.log(4))


@pytest.mark.parametrize("soft", [False, True])
def test_dual_focal_skips_ties_to_what_is_strictly_below(soft):
    # p = (1, 3, 3, 3)/10 and (1, 1, 2, 4)/8
    logits = torch.tensor([[1, 3, 3, 3], [1, 1, 2, 4]], dtype=torch.float64).log()
    labels = torch.tensor([2, 1])
    target = torch.eye(4, dtype=torch.float64)[labels] if soft else labels
    actual = losses.dual_focal(logits, target, gamma=2.0, reduction="none")
    # 1 − .3 + .1 = .8; nothing is below 1/8: 7/8
    close(actual, [0.64 * math.log(10 / 3), 49 / 64 * math.log(8)])
    flat = losses.dual_focal(torch.zeros(1, 4, dtype=torch.float64), target[:1], gamma=2.0)
    close(flat, 9 / 16 * math.log(4))


def test_dual_focal_of_soft_labels_with_ties_in_every_place():
    source = torch.Generator().manual_seed(5)
    logits = torch.randint(0, 4, (50, 6), generator=source).double()
    targets = torch.rand(50, 6, generator=source, dtype=torch.float64)
    expected = soft_values(ref.dual_focal, None, logits, targets, {})
    close(losses.dual_focal(logits, targets, reduction="none"), expected)


def test_inverse_focal_bound_is_where_the_loss_stops_falling():
    p = np.linspace(1e-4, 1 - 1e-4, 200_001)
    assert np.min((1 + p) / (-p * np.log(p))) == pytest.approx(LARGEST_FALLING_GAMMA, rel=1e-8)

    def steepest(gamma):
        logits = torch.stack([torch.from_numpy(p).log(), torch.from_numpy(1 - p).log()], 1)
        labels = torch.zeros(len(p), dtype=torch.int64)
        loss = losses.InverseFocal(gamma=gamma, reduction="sum")
        return float(torch.func.grad(loss)(logits, labels)[:, 0].max())

    assert steepest(LARGEST_FALLING_GAMMA - 1e-3) < 0
    with pytest.warns(UserWarning, match="rises"):
        assert steepest(LARGEST_FALLING_GAMMA + 1e-3) > 0


def test_inverse_focal_warns_above_the_bound_only():
    logits, labels, _ = draw()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses.InverseFocal(gamma=3.59)(logits, labels)
        losses.inverse_focal(logits, labels, gamma=3.59)
        losses.inverse_focal(logits, labels, gamma=LARGEST_FALLING_GAMMA)
    with pytest.warns(UserWarning, match=r"gamma=3.6 .*gamma <= 3.59") as caught:
        losses.inverse_focal(logits, labels, gamma=3.6)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="inverse_focal with gamma=4 rises"):
        loss = losses.InverseFocal(gamma=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(logits, labels)


@pytest.mark.parametrize("name", NAMES)
def test_invariances(name):
    logits, labels, _ = draw()
    loss = losses.make(name, reduction="none")
    values = loss(logits, labels)
    close(loss(logits + 37.5, labels), values)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    assert torch.equal(loss(logits[order], labels[order]), values[order])
    columns = torch.tensor([3, 1, 4, 0, 2])
    close(loss(logits[:, columns], columns.argsort()[labels]), values)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_certain_rows(name, dtype):
    """p_y is exactly 1, then exactly 0: the loss is 0, then what −ln p_y makes of it."""
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]]).to(dtype).requires_grad_()
    values = losses.make(name, reduction="none")(logits, torch.tensor([0, 0]))
    assert values.dtype == torch.float32
    far = 2 * float(logits[0, 0].detach())
    smoothing = {"label_smoothing": (0.025 * far, 0.975 * far), "brier": (0.0, 2.0)}
    close(values, smoothing.get(name, (0.0, far)), 1e-6)
    (gradient,) = torch.autograd.grad(values.sum(), logits)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["focal", "flsd", "dual_focal"])
@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_small_gamma_has_a_finite_gradient_at_certainty(name, gamma):
    key = {"flsd": ("gamma_below", "gamma_above")}.get(name, ("gamma",))
    loss = losses.make(name, **dict.fromkeys(key, gamma))
    for far in (50.0, 88.0, 104.0, 1e4):
        gradient = torch.func.grad(loss)(torch.tensor([[far, 0.0, 0.0]]), torch.tensor([0]))
        assert gradient.abs().max() < 1e-6
        assert gradient.isfinite().all()


def test_brier_near_its_best_value():
    # 2(1−p)² at 1 − p = 1/(1+e²⁰): never below 0, and right to the last digits
    logits = torch.tensor([[20.0, 0.0]])
    assert float(losses.brier(logits, torch.tensor([0]))) >= 0
    expected = 2 / (1 + math.exp(20.0)) ** 2
    close(losses.brier(logits.double(), torch.tensor([0])), expected, 1e-15)
    assert float(losses.brier(logits.double(), torch.tensor([0]))) == pytest.approx(expected, 1e-6)


def test_defaults():
    kept = {
        name: {key: value for key, value in vars(losses.make(name)).items() if key[0] != "_"}
        for name in NAMES
    }
    common = {"training": True, "reduction": "mean", "ignore_index": -100}
    own = {
        "label_smoothing": {"smoothing": 0.05},
        "focal": {"gamma": 3.0, "detach_weight": False},
        "flsd": {"gamma_below": 5.0, "gamma_above": 3.0, "threshold": 0.2},
        "inverse_focal": {"gamma": 1.5},
        "dual_focal": {"gamma": 5.0},
    }
    assert kept == {name: common | own.get(name, {}) for name in NAMES}
    for name in NAMES:
        loss = losses.make(name)
        assert (loss.name, loss.kind, loss.local_batch) == (name, "primary", False)


def test_errors():
    logits, labels, _ = draw()
    for smoothing in (-0.1, 1.1):
        with pytest.raises(InputError, match=r"smoothing must lie in \[0, 1\]"):
            losses.LabelSmoothing(smoothing=smoothing)
    for name in NAMES:
        with pytest.raises(InputError, match="one number for each of the 5 classes"):
            losses.make(name, weight=torch.ones(4))(logits, labels)
        with pytest.raises(InputError, match="reduction must be one of"):
            getattr(losses, name)(logits, labels, reduction="median")


def test_real_logits(data_folder):
    with np.load(data_folder / "logits" / "cifar100-resnet20.npz") as file:
        logits, labels = (torch.from_numpy(file[key][:300]) for key in ("logits", "labels"))
    logits = logits.double()
    for name, options, hard, _ in CASES:
        expected = sum(hard_values(hard, logits, labels, options)) / 300
        close(value_of(name, options, logits, labels), expected)
        close(value_of(name, options, logits.float(), labels), expected, 1e-5)


# What training does, on digits with an eighth of the labels wrong. Cross-entropy learns the
# wrong labels by heart and is overconfident on test rows.


def probabilities(run: Run):
    return run.test_logits.softmax(1), run.test_labels


def top_gap(run: Run):
    """Mean confidence less accuracy on test rows: overconfidence."""
    p, labels = probabilities(run)
    confidence, predicted = p.max(1)
    return float(confidence.mean() - (predicted == labels).double().mean())


def mean_entropy(logits):
    return float(-(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean())


@pytest.fixture(scope="module")
def usual() -> Run:
    return train(losses.CrossEntropy())


def test_training_with_cross_entropy_is_that_of_torch(usual):
    close(usual.test_logits, train(nn.CrossEntropyLoss()).test_logits, 1e-3)


def test_training_with_brier_lowers_the_squared_error(usual):
    def score(run):
        p, labels = probabilities(run)
        return float((p - torch.eye(10, dtype=p.dtype)[labels]).square().sum(1).mean())

    assert score(train(losses.Brier())) < score(usual) - 0.05


def test_training_with_label_smoothing_keeps_logits_together(usual):
    """The best p of a row is q itself: .955 of the label, and never more for long."""
    run = train(losses.LabelSmoothing())
    assert top_gap(run) < top_gap(usual) - 0.05
    own = run.train_logits.softmax(1).gather(1, run.train_labels.unsqueeze(1))
    assert float(own.mean()) < 0.955


@pytest.mark.parametrize("name", ["focal", "flsd", "dual_focal"])
def test_training_with_focal_losses_raises_entropy_and_curbs_overconfidence(usual, name):
    run = train(losses.make(name))
    assert mean_entropy(run.test_logits) > mean_entropy(usual.test_logits) + 0.2
    assert abs(top_gap(run)) < top_gap(usual) - 0.05


def test_training_with_dual_focal_keeps_a_wider_gap_than_focal():
    def gap(run):
        best = run.train_logits.softmax(1).topk(2, 1).values
        return float((best[:, 0] - best[:, 1]).mean())

    assert gap(train(losses.DualFocal())) > gap(train(losses.Focal(gamma=5.0))) + 0.05


def test_training_with_inverse_focal_presses_on_where_rows_are_certain(usual):
    def own(run):
        return run.train_logits.softmax(1).gather(1, run.train_labels.unsqueeze(1))

    run = train(losses.InverseFocal())
    assert float(own(run).mean()) > float(own(usual).mean()) + 0.01
    assert mean_entropy(run.test_logits) < mean_entropy(usual.test_logits) - 0.03


@pytest.mark.parametrize("gamma", [-0.5, math.nan, math.inf])
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("focal", "gamma"),
        ("flsd", "gamma_below"),
        ("flsd", "gamma_above"),
        ("inverse_focal", "gamma"),
        ("dual_focal", "gamma"),
    ],
)
def test_a_gamma_below_zero_is_refused(name, option, gamma):
    with pytest.raises(InputError, match=r"gamma must be finite and 0 .* or more, found"):
        losses.make(name, **{option: gamma})
    with pytest.raises(InputError, match=f"found {gamma}"):
        getattr(losses, name)(torch.zeros(1, 2), torch.tensor([0]), **{option: gamma})
