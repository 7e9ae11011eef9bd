"""The regularised AURC loss: its rank weights, their gradient, and what it does in training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from calibrant import losses
from calibrant.core.errors import InputError
from calibrant.losses.r_aurc import _rank_weight
from tests.helpers.digits_training import Run, train
from tests.reference import losses_primary as ref

CSFS = ["msp", "margin", "neg_entropy"]
OPTIONS = [
    {},
    {"csf": "margin"},
    {"csf": "neg_entropy"},
    {"lam": 0.8, "strength": 0.01},
    {"lam": 1.0, "strength": 0.003, "csf": "margin"},
    {"strength": 2.0},
    {"hard_rank": True},
    {"hard_rank": True, "csf": "neg_entropy", "lam": 0.3},
    {"reference_batch": None},
    {"reference_batch": 12, "strength": 0.01, "csf": "margin"},
]
each_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


def draw(rows=30, classes=5, scale=2.0, seed=0):
    source = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=source, dtype=torch.float64)
    labels = torch.randint(0, classes, (rows,), generator=source)
    soft = torch.rand(rows, classes, generator=source, dtype=torch.float64)
    return logits, labels, soft / soft.sum(1, keepdim=True)


def close(actual, expected, tolerance=1e-11):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.detach().double(), expected, rtol=tolerance, atol=tolerance)


def cross_entropies(logits, labels):
    return [ref.cross_entropy(z, y) for z, y in zip(logits.tolist(), labels.tolist(), strict=True)]


def wanted_values(logits, labels, options):
    return ref.r_aurc(logits.tolist(), cross_entropies(logits, labels), **options)


def value_of(options, logits, target, **common):
    """The function and the class must say the same."""
    value = losses.r_aurc(logits, target, **options, **common)
    assert torch.equal(value, losses.RegularizedAURC(**options, **common)(logits, target))
    return value


def ranks_of(logits, labels, **options):
    """The soft ranks, read back from the values at λ = 1: r = (n+1)(1 − e^−w)."""
    values = losses.r_aurc(logits, labels, lam=1.0, reduction="none", **options)
    weights = values / losses.cross_entropy(logits, labels, reduction="none")
    return -(len(logits) + 1) * torch.expm1(-weights)


def test_reference_by_hand():
    # Sorted values/ε less (1, 2, 3) at ε = 1: −.9, −1.7, −2.1 fall, so all three are one block
    # with the mean value 1.3/3 and the mean place 2: 2 + (.9 − .4333), 2 + (.1 − .4333), ...
    assert ref.soft_rank([0.9, 0.1, 0.3], 1.0) == pytest.approx([37 / 15, 5 / 3, 28 / 15])
    assert ref.blocks([0.9, 0.1, 0.3], 1.0) == [[1, 2, 0]]
    # at ε = .3: 1/3 − 1, 1 − 2, 3 − 3: the first two fall (−2/3, −1) and are pooled, the third
    # rises above their mean: 1.5 ± 1/3, and 3
    assert ref.soft_rank([0.9, 0.1, 0.3], 0.3) == pytest.approx([3.0, 7 / 6, 11 / 6])
    assert ref.blocks([0.9, 0.1, 0.3], 0.3) == [[1, 2], [0]]
    assert ref.soft_rank([0.9, 0.1, 0.3], 0.01) == pytest.approx([3.0, 1.0, 2.0])
    assert ref.mean_rank([0.5, 0.1, 0.5, 0.9]) == [2.5, 1.0, 2.5, 4.0]
    # p = (.5, .25, .25)
    row = [math.log(2), 0.0, 0.0]
    assert ref.msp(row) == pytest.approx(0.5)
    assert ref.margin(row) == pytest.approx(0.25)
    assert ref.neg_entropy(row) == pytest.approx(-1.5 * math.log(2))
    # two rows of confidence 1/2 and 3/4 whose CE is 1 and 2, exactly ranked: 1 and 2 of n+1 = 3
    batch = [[0.0, 0.0], [math.log(3), 0.0]]
    actual = ref.r_aurc(batch, [1.0, 2.0], lam=0.25, hard_rank=True)
    assert actual == pytest.approx([0.75 + 0.25 * math.log(1.5), 1.5 + 0.5 * math.log(3)])
    # at ε = 1 both are one block: 1.5 ± 1/8, and the weights are −ln(1 − 1.375/3), ...
    actual = ref.r_aurc(batch, [1.0, 2.0], lam=1.0, strength=1.0, reference_batch=None)
    assert actual == pytest.approx([-math.log(1.625 / 3), -2 * math.log(1.375 / 3)])


@each_option
def test_values_of_class_indices(options):
    logits, labels, _ = draw()
    expected = wanted_values(logits, labels, options)
    close(value_of(options, logits, labels, reduction="none"), expected)
    close(value_of(options, logits, labels, reduction="sum"), sum(expected))
    close(value_of(options, logits, labels), sum(expected) / 30)


@each_option
def test_values_of_class_probabilities(options):
    logits, labels, soft = draw()
    pairs = zip(logits.tolist(), soft.tolist(), strict=True)
    plain = [ref.expected(ref.cross_entropy, z, q) for z, q in pairs]
    expected = ref.r_aurc(logits.tolist(), plain, **options)
    close(value_of(options, logits, soft, reduction="none"), expected)
    close(value_of(options, logits, soft), sum(expected) / 30)
    exact = torch.eye(5, dtype=torch.float64)[labels]
    close(value_of(options, logits, exact), value_of(options, logits, labels))


def test_class_weights():
    logits, labels, soft = draw()
    weight = torch.tensor([0.5, 2.0, 1.0, 0.0, 3.0], dtype=torch.float64)
    heavy = weight[labels]
    expected = torch.tensor(wanted_values(logits, labels, {}), dtype=torch.float64) * heavy
    close(value_of({}, logits, labels, weight=weight, reduction="none"), expected)
    close(value_of({}, logits, labels, weight=weight), expected.sum() / heavy.sum())
    pairs = zip(logits.tolist(), (soft * weight).tolist(), strict=True)
    plain = [ref.expected(ref.cross_entropy, z, q) for z, q in pairs]
    expected = ref.r_aurc(logits.tolist(), plain)
    close(value_of({}, logits, soft, weight=weight), sum(expected) / 30)


def wanted_gradient(logits, labels, options):
    """Of the sum of the values, by hand: r-aurc eq. 41–45, put together.

    A row's value is CE·(1 − λ + λw), w = −ln(1 − r/(n+1)). By the product rule its gradient is
    (1 − λ + λw)(p − t) and the rank term λ·CE·dw, with dw = dr/(n+1−r). A rank moves with every
    confidence of its block B, dr_k/dg_i = (1[k=i] − 1/|B|)/ε, so that
    dL/dg_i = λ/ε·(s_i − mean of s over B), s_k = CE_k/(n+1−r_k), and by the softmax
    dmsp/dz = p_a(e_a − p), dmargin/dz = p_a(e_a − p) − p_b(e_b − p) with a, b the two largest
    classes, and d(Σ p ln p)/dz = p(ln p − Σ p ln p).
    """
    lam, strength = options.get("lam", 0.5), options.get("strength", 0.05)
    csf = options.get("csf", "msp")
    z = logits.numpy()
    n, classes = z.shape
    reference = options.get("reference_batch", 128)
    if reference is not None:
        strength *= (reference + 1) / (n + 1)
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = -np.log(p[np.arange(n), labels.numpy()])
    confidence = [ref.CSFS[csf](row) for row in z.tolist()]
    rank = np.array(
        ref.mean_rank(confidence)
        if options.get("hard_rank")
        else ref.soft_rank(confidence, strength)
    )
    factor = 1 - lam - lam * np.log(1 - rank / (n + 1))
    gradient = factor[:, None] * (p - np.eye(classes)[labels.numpy()])
    if options.get("hard_rank"):
        return gradient
    slope = loss / (n + 1 - rank)
    by_confidence = np.zeros(n)
    for rows in ref.blocks(confidence, strength):
        by_confidence[rows] = lam / strength * (slope[rows] - slope[rows].mean())
    for i in range(n):
        second, first = np.argsort(p[i])[-2:]
        steps = {
            "msp": p[i, first] * (np.eye(classes)[first] - p[i]),
            "neg_entropy": p[i] * (np.log(p[i]) - np.sum(p[i] * np.log(p[i]))),
        }
        steps["margin"] = steps["msp"] - p[i, second] * (np.eye(classes)[second] - p[i])
        gradient[i] += by_confidence[i] * steps[csf]
    return gradient


@each_option
def test_gradient_with_its_rank_term_is_the_one_derived_by_hand(options):
    logits, labels, _ = draw(rows=60)
    loss = losses.RegularizedAURC(reduction="sum", **options)
    actual = torch.autograd.grad(loss(logits.requires_grad_(), labels), logits)[0]
    logits.requires_grad_(False)
    close(actual, wanted_gradient(logits, labels, options))


def test_rank_term_is_large_enough_to_matter():
    logits, labels, _ = draw(rows=60)
    full, bare = (wanted_gradient(logits, labels, {"hard_rank": hard}) for hard in (False, True))
    assert np.abs(full - bare).max() > 0.1
    # several blocks at a small strength, so that both the pooled and the single are seen
    confidence = [ref.msp(row) for row in logits.tolist()]
    sizes = [len(rows) for rows in ref.blocks(confidence, 0.01)]
    assert min(sizes) == 1
    assert max(sizes) > 3


@pytest.mark.parametrize("csf", CSFS)
@pytest.mark.parametrize("strength", [0.05, 0.02])
def test_gradcheck(csf, strength):
    logits, labels, soft = draw(rows=8, classes=4, seed=2)
    logits.requires_grad_()
    loss = losses.RegularizedAURC(csf=csf, strength=strength, reduction="none")
    for target in (labels % 4, soft):
        assert torch.autograd.gradcheck(lambda z, t=target: loss(z, t), logits)


INNER = {
    "focal": ref.focal,
    "focal(gamma=2.0)": lambda z, y: ref.focal(z, y, 2.0),
    "inverse_focal": ref.inverse_focal,
    "brier": ref.brier,
    "flsd": ref.flsd,
}
each_inner = pytest.mark.parametrize("text", INNER)


@each_inner
def test_values_around_another_primary_loss(text):
    logits, labels, _ = draw()
    pairs = zip(logits.tolist(), labels.tolist(), strict=True)
    plain = [INNER[text](z, y) for z, y in pairs]
    options = {"csf": "margin", "lam": 0.7}
    expected = ref.r_aurc(logits.tolist(), plain, **options)
    close(value_of({**options, "loss": text}, logits, labels, reduction="none"), expected)
    close(value_of({**options, "loss": text}, logits, labels), sum(expected) / 30)
    dense = logits.reshape(10, 3, 5).movedim(2, 1)
    value = value_of({**options, "loss": text}, dense, labels.reshape(10, 3), reduction="none")
    close(value, torch.tensor(expected, dtype=torch.float64).reshape(10, 3))
    weight = torch.tensor([0.5, 2.0, 1.0, 0.0, 3.0], dtype=torch.float64)
    heavy = torch.tensor(expected, dtype=torch.float64) * weight[labels]
    weighed = value_of({**options, "loss": text}, logits, labels, weight=weight)
    close(weighed, heavy.sum() / weight[labels].sum())


@each_inner
def test_gradcheck_around_another_primary_loss(text):
    logits, labels, soft = draw(rows=8, classes=4, seed=2)
    logits.requires_grad_()
    loss = losses.RegularizedAURC(loss=text, reference_batch=8, reduction="none")
    marked = torch.where(torch.arange(8) == 5, -100, labels % 4)
    for target in (marked, soft):
        assert torch.autograd.gradcheck(lambda z, t=target: loss(z, t), logits)


def test_a_primary_loss_of_ones_own_inside():
    from calibrant.losses.registry import LOSSES

    class Doubled(losses.PrimaryLoss):
        name = "doubled"

        def forward(self, input, target):
            assert isinstance(input, torch.Tensor)
            return 2 * torch.nn.functional.cross_entropy(input, target, reduction="none")

    LOSSES.register(Doubled)
    try:
        logits, labels, _ = draw()
        dense = logits.reshape(10, 3, 5).movedim(2, 1), labels.reshape(10, 3)
        for batch in ((logits, labels), dense):
            close(losses.r_aurc(*batch, loss="doubled"), 2 * losses.r_aurc(*batch))
    finally:
        LOSSES.unregister("doubled")


@pytest.mark.parametrize("csf", CSFS)
@pytest.mark.parametrize("reference_batch", [3, 8, 20])
def test_gradcheck_with_a_reference_batch(csf, reference_batch):
    logits, labels, soft = draw(rows=8, classes=4, seed=2)
    logits.requires_grad_()
    options = {"csf": csf, "reference_batch": reference_batch, "reduction": "none"}
    loss = losses.RegularizedAURC(**options)
    marked = torch.where(torch.arange(8) == 5, -100, labels % 4)
    for target in (labels % 4, marked, soft):
        assert torch.autograd.gradcheck(lambda z, t=target: loss(z, t), logits)


@pytest.mark.parametrize("csf", CSFS)
@pytest.mark.parametrize("strength", [0.05, 0.01])
def test_at_its_reference_batch_the_strength_is_the_one_given(csf, strength):
    logits, labels, _ = draw(rows=128, classes=10)
    plain = {"csf": csf, "strength": strength, "reference_batch": None}
    found, wanted = [], []
    for options, into in (({**plain, "reference_batch": 128}, found), (plain, wanted)):
        rows = logits.clone().requires_grad_()
        value = value_of(options, rows, labels)
        into += [value, *torch.autograd.grad(value, rows)]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("csf", CSFS)
@pytest.mark.parametrize("rows", [1, 16, 64, 512])
def test_at_another_batch_size_the_strength_is_scaled(csf, rows):
    logits, labels, _ = draw(rows=rows, classes=10)
    scaled = 0.05 * 129 / (rows + 1)
    options = {"csf": csf, "strength": 0.05, "reference_batch": 128, "reduction": "none"}
    found = value_of(options, logits, labels)
    close(found, value_of({**options, "strength": scaled, "reference_batch": None}, logits, labels))
    plain = {"csf": csf, "strength": scaled, "reference_batch": None}
    close(found, wanted_values(logits, labels, plain))
    assert torch.equal(found, value_of({"csf": csf, "reduction": "none"}, logits, labels))


@pytest.mark.parametrize("csf", CSFS)
def test_a_reference_batch_keeps_the_weights_of_a_larger_batch(csf):
    """Weights follow a row's place in its batch, not the number of rows.

    Each of 128 rows four times makes a batch of 512. With a reference batch, equal rows keep
    their weight, but for places counted from 1 to n: (r − ½)/n stays, and r/(n+1) moves by at
    most 1/(2n). With ε as it is, the weights of the larger batch shrink towards ln 2.
    """
    logits, labels, _ = draw(rows=128, classes=10)
    many, again = logits.repeat(4, 1), labels.repeat(4)

    def weights(logits, labels, **more):
        options = {"lam": 1.0, "strength": 0.05, "csf": csf, "reduction": "none", **more}
        plain = losses.cross_entropy(logits, labels, reduction="none")
        naive = wanted_values(
            logits, labels, {k: v for k, v in options.items() if k != "reduction"}
        )
        found = value_of(options, logits, labels)
        close(found, naive, 1e-9)
        return found / plain

    small = weights(logits, labels, reference_batch=128)
    kept = weights(many, again, reference_batch=128)[:128]
    shrunk = weights(many, again, reference_batch=None)[:128]
    assert (kept - small).abs().max() < 0.02
    assert small.std() > 0.05
    assert shrunk.std() < 0.5 * small.std()
    close(kept, weights(many, again, strength=0.05 * 129 / 513, reference_batch=None)[:128])


def test_rows_that_are_ignored_do_not_count_for_the_reference_batch():
    logits, labels, _ = draw(rows=60)
    marked = torch.where(torch.arange(60) < 20, -100, labels)
    found = losses.r_aurc(logits, marked, reference_batch=128, reduction="none")[20:]
    plain = {"reference_batch": None, "strength": 0.05 * 129 / 41}
    close(found, wanted_values(logits[20:], labels[20:], plain))
    plain["strength"] = 0.05 * 129 / 61
    other = losses.r_aurc(logits, marked, **plain, reduction="none")[20:]
    assert (found - other).abs().max() > 1e-3
    forty = losses.r_aurc(logits, marked, reference_batch=40, reduction="none")
    plain = losses.r_aurc(logits, marked, reference_batch=None, reduction="none")
    assert torch.equal(forty, plain)


def test_limits():
    logits, labels, _ = draw()
    plain = losses.cross_entropy(logits, labels, reduction="none")
    close(value_of({"lam": 0.0}, logits, labels, reduction="none"), plain)
    # ε → 0: the exact rank
    for csf in CSFS:
        exact = value_of({"hard_rank": True, "csf": csf}, logits, labels, reduction="none")
        actual = value_of({"strength": 1e-7, "csf": csf}, logits, labels, reduction="none")
        close(actual, exact)
    # ε → ∞: every rank is (n+1)/2, and every weight −ln(1/2)
    for lam in (0.5, 1.0):
        actual = value_of({"strength": 1e9, "lam": lam}, logits, labels, reduction="none")
        close(actual, (1 - lam + lam * math.log(2)) * plain, 1e-7)


def test_exact_ranks_at_lambda_one_are_the_aurc_estimator():
    # eq. 20, the weights by numpy: rows in ascending confidence weigh −ln(1 − 1/(n+1)), ...
    logits, labels, _ = draw(rows=100)
    order = np.argsort(logits.softmax(1).max(1).values.numpy())
    weights = -np.log(1 - np.arange(1, 101) / 101)
    plain = np.array(cross_entropies(logits, labels))[order]
    actual = losses.r_aurc(logits, labels, lam=1.0, hard_rank=True)
    close(actual, np.mean(weights * plain))


@pytest.mark.parametrize("strength", [0.05, 0.01])
def test_ranks_span_no_more_places_than_documented(strength):
    logits, labels, _ = draw(rows=127, classes=10)
    ranks = ranks_of(logits, labels, strength=strength)
    confidence = logits.softmax(1).max(1).values
    span = float(ranks.max() - ranks.min())
    assert span <= float(confidence.max() - confidence.min()) / strength + 1e-9
    assert 10 < span < 20 if strength == 0.05 else 40 < span < 90
    assert torch.equal(ranks.argsort(), confidence.argsort())


@each_option
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_ignored_rows_take_no_part_in_the_ranking(options, share):
    """The same values and gradient as of the other rows alone, whatever ignored rows hold."""
    logits, labels, _ = draw(rows=80)
    ignored = torch.rand(80, generator=torch.Generator().manual_seed(3)) < share
    assert 0 < ignored.sum() < 80
    marked = torch.where(ignored, -100, labels)
    kept = logits[~ignored].requires_grad_()
    expected = losses.r_aurc(kept, labels[~ignored], reduction="none", **options)
    (slope,) = torch.autograd.grad(expected.mean(), kept)
    close(expected, wanted_values(kept.detach(), labels[~ignored], options))
    for factor in (1.0, 0.0, 1e4, -1e4):
        rows = torch.where(ignored.unsqueeze(1), factor * logits, logits).requires_grad_()
        actual = value_of(options, rows, marked, reduction="none")
        close(actual[~ignored], expected.detach())
        assert torch.equal(actual[ignored], torch.zeros_like(actual[ignored]))
        mean = value_of(options, rows, marked)
        close(mean, expected.mean().detach())
        (gradient,) = torch.autograd.grad(mean, rows)
        close(gradient[~ignored], slope)
        assert torch.equal(gradient[ignored], torch.zeros_like(gradient[ignored]))


def test_ignored_rows_of_a_strength_that_would_pool_everything():
    # At ε = 10⁶ any two finite confidences are pooled; ignored rows still are not.
    logits, labels, _ = draw(rows=40)
    marked = torch.where(torch.arange(40) < 30, -100, labels)
    actual = losses.r_aurc(logits, marked, lam=1.0, strength=1e6, reduction="none")[30:]
    close(actual, losses.r_aurc(logits[30:], labels[30:], lam=1.0, strength=1e6, reduction="none"))
    close(actual, math.log(2) * torch.tensor(cross_entropies(logits[30:], labels[30:])), 1e-6)


@pytest.mark.parametrize("options", [{}, {"hard_rank": True}, {"reference_batch": 128}], ids=str)
def test_all_rows_ignored(options):
    logits = draw()[0].requires_grad_()
    value = losses.r_aurc(logits, torch.full((30,), -100), **options)
    assert float(value.detach()) == 0
    assert torch.equal(torch.autograd.grad(value, logits)[0], torch.zeros_like(logits))


@each_option
def test_dense_rows(options):
    logits, labels, _ = draw(rows=24)
    dense, places = logits.reshape(2, 3, 4, 5).movedim(-1, 1), labels.reshape(2, 3, 4)
    places = torch.where(places == 1, 9, places)
    actual = value_of(options, dense, places, ignore_index=9, reduction="none")
    flat = torch.where(labels == 1, -100, labels)
    close(actual, value_of(options, logits, flat, reduction="none").reshape(2, 3, 4))


def test_a_whole_dense_batch():
    source = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 12, 180, 240, generator=source).requires_grad_()
    labels = torch.randint(0, 12, (8, 180, 240), generator=source)
    labels[:, :30] = -100
    plain = losses.cross_entropy(logits, labels)
    value = losses.r_aurc(logits, labels)
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient.isfinite().all()
    assert torch.equal(gradient[:, :, :30], torch.zeros_like(gradient[:, :, :30]))
    # 20 places of 288,000: every weight is near ln 2
    close(value, (0.5 + 0.5 * math.log(2)) * plain.detach(), 1e-3)
    exact = losses.r_aurc(logits.detach(), labels, lam=1.0, hard_rank=True)
    flat = logits.detach().movedim(1, -1).reshape(-1, 12)[labels.reshape(-1) >= 0].double()
    loss = -flat.log_softmax(1).gather(1, labels[labels >= 0].unsqueeze(1)).squeeze(1).numpy()
    order = np.argsort(flat.softmax(1).max(1).values.numpy())
    n = len(loss)
    assert n == 8 * 150 * 240
    close(exact, np.mean(-np.log1p(-np.arange(1, n + 1) / (n + 1)) * loss[order]), 1e-4)


def test_the_logarithm_stays_finite_where_float32_cannot_tell_n_from_n_plus_1():
    n = 2**24
    counts = torch.ones(1, dtype=torch.bool).expand(n)
    weight = _rank_weight(torch.tensor([float(n)]).expand(n), counts)
    assert float(weight[0]) == pytest.approx(-math.log(torch.finfo(torch.float32).eps), rel=1e-6)


def test_one_row():
    # its rank is 1 of n + 1 = 2
    logits = torch.tensor([[1.0, 3.0, 0.0]], dtype=torch.float64)
    for options in ({}, {"hard_rank": True}):
        actual = value_of(options, logits, torch.tensor([0]))
        loss = ref.cross_entropy([1.0, 3.0, 0.0], 0)
        close(actual, 0.5 * loss + 0.5 * math.log(2) * loss)


def test_rows_of_the_same_confidence_weigh_the_same():
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [9.0, 0.0]], dtype=torch.float64)
    for options in ({}, {"strength": 1e-4}, {"hard_rank": True}):
        ranks = ranks_of(logits, torch.tensor([1, 0, 1, 1]), **options)
        close(ranks[:3], ranks[0].expand(3))
        close(ranks.sum(), 10.0)
    close(ranks, [2.0, 2.0, 2.0, 4.0])


@pytest.mark.parametrize("csf", CSFS)
def test_invariances(csf):
    logits, labels, _ = draw()
    loss = losses.RegularizedAURC(csf=csf, reduction="none")
    values = loss(logits, labels)
    close(loss(logits - 12.0, labels), values)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    close(loss(logits[order], labels[order]), values[order])
    columns = torch.tensor([3, 1, 4, 0, 2])
    close(loss(logits[:, columns], columns.argsort()[labels]), values)


@pytest.mark.parametrize("csf", CSFS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_certain_rows(csf, dtype):
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 0.0], [0.0, 0.0, 0.0]]).to(dtype)
    loss = losses.RegularizedAURC(csf=csf)
    for labels in (torch.tensor([0, 1, 2]), torch.tensor([1, 0, 2])):
        value = loss(logits.requires_grad_(), labels)
        assert value.dtype == torch.float32
        assert value.isfinite()
        assert torch.autograd.grad(value, logits)[0].isfinite().all()


def test_a_confidence_of_ones_own():
    logits, labels, _ = draw(rows=24)
    seen = []

    def largest(log_probs):
        seen.append(log_probs)
        return log_probs.max(1).values.exp()

    actual = value_of({"csf": largest}, logits, labels)
    close(seen[0], logits.log_softmax(1))
    close(actual, value_of({}, logits, labels))
    dense, places = logits.reshape(2, 12, 5).movedim(-1, 1), labels.reshape(2, 12)
    close(value_of({"csf": largest}, dense, places), actual)
    assert seen[-1].shape == (2, 5, 12)
    with pytest.raises(InputError, match=r"one number per row, of shape \(24,\).*found \(24, 5\)"):
        losses.r_aurc(logits, labels, csf=torch.exp)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lam": -0.01}, r"lam must lie in \[0, 1\], found -0.01"),
        ({"lam": 1.01}, r"lam must lie in \[0, 1\]"),
        ({"strength": 0.0}, "strength must be positive, found 0.0"),
        ({"strength": -1.0}, "strength must be positive"),
        ({"strength": math.nan}, "strength must be positive"),
        (
            {"reference_batch": 0},
            "reference_batch is a whole number of at least 1, or None, found 0",
        ),
        ({"reference_batch": -128}, "reference_batch is a whole number"),
        ({"loss": "r_aurc"}, "another primary loss, such as focal, found 'r_aurc'"),
        ({"loss": "sb_ece"}, "reduction must be mean or sum"),
        ({"loss": "focal+sb_ece"}, "reduction must be mean or sum"),
        ({"loss": "fokal"}, "Did you mean focal"),
        ({"reference_batch": True}, "reference_batch is a whole number.*found True"),
        ({"reference_batch": 128.0}, "reference_batch is a whole number.*found 128.0"),
        ({"reference_batch": "128"}, "reference_batch is a whole number"),
        ({"csf": "entropy"}, "csf must be msp, margin, neg_entropy or a function, found 'entropy'"),
    ],
)
def test_errors(options, message):
    logits, labels, _ = draw()
    with pytest.raises(InputError, match=message):
        losses.RegularizedAURC(**options)
    with pytest.raises(InputError, match=message):
        losses.r_aurc(logits, labels, **options)


def test_defaults_and_options_from_text():
    loss = losses.get("r_aurc")
    assert (loss.lam, loss.strength, loss.csf, loss.hard_rank) == (0.5, 0.05, "msp", False)
    assert (loss.name, loss.kind, loss.local_batch) == ("r_aurc", "primary", True)
    assert (loss.reference_batch, loss.loss) == (128, "cross_entropy")
    assert losses.get("r_aurc(reference_batch=None)").reference_batch is None
    for text in ("r_aurc(loss='focal(gamma=2)')", "r_aurc(loss=focal(gamma=2))"):
        assert losses.get(text).loss == "focal(gamma=2)"
    loss = losses.get("r_aurc(lam=1.0, strength=0.01, csf='margin', hard_rank=True)")
    assert (loss.lam, loss.strength, loss.csf, loss.hard_rank) == (1.0, 0.01, "margin", True)


@pytest.mark.parametrize("options", [{}, {"csf": "neg_entropy", "strength": 0.01}], ids=str)
def test_real_logits(data_folder, options):
    with np.load(data_folder / "logits" / "cifar10-resnet20.npz") as file:
        logits, labels = (torch.from_numpy(file[key][:256]) for key in ("logits", "labels"))
    logits = logits.double()
    expected = wanted_values(logits, labels, options)
    close(value_of(options, logits, labels, reduction="none"), expected)
    close(value_of(options, logits.float(), labels), sum(expected) / 256, 1e-4)


def aurc(run: Run):
    """Eq. 20 on test rows, with cross-entropy and exact ranks of the largest probability."""
    log_probs = run.test_logits.log_softmax(1)
    loss = -log_probs.gather(1, run.test_labels.unsqueeze(1)).squeeze(1)
    ordered = loss[log_probs.max(1).values.argsort()]
    n = len(ordered)
    return float((-torch.log1p(-torch.arange(1, n + 1) / (n + 1)) * ordered).mean())


@pytest.mark.slow
def test_training_lowers_the_aurc_more_the_larger_lambda():
    usual, half, whole = (aurc(train(losses.RegularizedAURC(lam=lam))) for lam in (0.0, 0.5, 1.0))
    assert half < usual - 0.1
    assert whole < half - 0.1


@pytest.mark.slow
def test_training_with_exact_ranks_differs_from_soft_ones():
    soft, exact = (train(losses.RegularizedAURC(hard_rank=hard)) for hard in (False, True))
    assert float((soft.test_logits - exact.test_logits).abs().mean()) > 0.1
    assert aurc(exact) < aurc(train(losses.CrossEntropy())) - 0.1
