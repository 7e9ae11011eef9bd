"""MbLS and ACLS: logits held within a margin of the largest."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from calibrant import losses
from calibrant.core.errors import InputError
from calibrant.losses import ACLS, MarginLabelSmoothing, acls, mbls
from tests.helpers.digits_training import train
from tests.reference import losses_logits as reference


def batch(rows=9, classes=5, scale=6.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    return logits, torch.randint(classes, (rows,), generator=generator)


def history(rows=9, seed=3):
    generator = torch.Generator().manual_seed(seed)
    seen = torch.randint(0, 5, (rows,), generator=generator)
    return (torch.rand(rows, generator=generator) * (seen + 1)).long().clamp_max(seen), seen


def gradient(value, logits):
    logits = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(logits), logits)
    return slope


SWITCHES = [
    {"form": form, "class_sum": summed, "adaptive": adaptive, "condition": condition}
    for form, summed, adaptive, condition in itertools.product(
        ("paper", "authors"), (False, True), (True, False), ("margin", "none", "ranking")
    )
    if adaptive or condition != "none"
]


def names(switches):
    return "-".join(str(value) for value in switches.values())


# ------------------------------------------------------------------ the reference itself


def test_the_reference_is_what_was_worked_by_hand():
    assert reference.mbls([[5, 1, 4], [0, 0, 7]], 2) == pytest.approx(2)
    row = [[5, 1, 4]]
    assert reference.acls(row, 2) == pytest.approx(0.42)
    assert reference.acls(row, 2, class_sum=True) == pytest.approx(0.44)
    assert reference.acls(row, 2, form="authors") == pytest.approx(0.92)
    assert reference.acls(row, 2, condition="none") == pytest.approx(0.425)
    assert reference.acls(row, 2, adaptive=False) == pytest.approx(0.21)


# ------------------------------------------------------------------ values


@pytest.mark.parametrize("margin", [0.0, 2.5, 10.0])
def test_mbls_is_the_reference(margin):
    logits, labels = batch()
    expected = reference.mbls(logits.tolist(), margin)
    assert mbls(logits, labels, margin=margin).item() == pytest.approx(expected, rel=1e-12)
    soft = one_hot(labels, 5).double()
    assert mbls(logits, soft, margin=margin).item() == pytest.approx(expected, rel=1e-12)
    total = mbls(logits, labels, margin=margin, reduction="sum").item()
    assert total == pytest.approx(9 * expected, rel=1e-12)


@pytest.mark.parametrize("switches", SWITCHES, ids=names)
def test_acls_is_the_reference(switches):
    logits, labels = batch()
    right, seen = history()
    options = {"margin": 3.0, "lambda1": 0.3, "lambda2": 0.07, **switches}
    record = {"right": right, "seen": seen}
    expected = reference.acls(logits.tolist(), **options, right=right.tolist(), seen=seen.tolist())
    value = acls(logits, labels, **options, **record)
    assert expected > 0
    assert value.item() == pytest.approx(expected, rel=1e-12)
    soft = one_hot(labels, 5).double()
    assert acls(logits, soft, **options, **record).item() == pytest.approx(expected, rel=1e-12)
    total = acls(logits, labels, **options, **record, reduction="sum")
    assert total.item() == pytest.approx(9 * expected, rel=1e-12)


def test_dense_rows_and_ignored_ones_are_rows_left_out():
    generator = torch.Generator().manual_seed(1)
    logits = 9 * torch.randn(2, 4, 3, 2, dtype=torch.float64, generator=generator)
    labels = torch.randint(4, (2, 3, 2), generator=generator)
    labels[0, 1, 1] = labels[1, 2, 0] = 255
    kept = logits.movedim(1, -1)[labels != 255].tolist()
    value = mbls(logits, labels, margin=4.0, ignore_index=255)
    assert value.item() == pytest.approx(reference.mbls(kept, 4.0), rel=1e-12)
    for switches in ({}, {"form": "authors"}, {"condition": "none"}, {"adaptive": False}):
        value = acls(logits, labels, margin=4.0, ignore_index=255, **switches)
        expected = reference.acls(kept, 4.0, **switches)
        assert value.item() == pytest.approx(expected, rel=1e-12)


def test_ranking_pairs_skip_ignored_rows():
    logits, labels = batch(12, seed=5)
    right, seen = history(12, seed=1)
    labels[[0, 4, 5, 11]] = -100
    kept = labels != -100
    value = acls(logits, labels, margin=1.0, condition="ranking", right=right, seen=seen)
    expected = reference.acls(
        logits[kept].tolist(),
        1.0,
        condition="ranking",
        right=right[kept].tolist(),
        seen=seen[kept].tolist(),
    )
    assert expected > 0
    assert value.item() == pytest.approx(expected, rel=1e-12)


def test_defaults_are_those_decided():
    logits, labels = batch(scale=12.0)
    assert mbls(logits, labels).item() == pytest.approx(reference.mbls(logits.tolist()), rel=1e-12)
    assert acls(logits, labels).item() == pytest.approx(reference.acls(logits.tolist()), rel=1e-12)
    assert MarginLabelSmoothing()(logits, labels) == mbls(logits, labels, margin=10.0)
    assert ACLS()(logits, labels) == acls(logits, labels, margin=10.0, lambda1=0.1, lambda2=0.01)
    ce = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(losses.get("mbls")(logits, labels), ce + 0.1 * mbls(logits, labels))
    torch.testing.assert_close(losses.get("acls")(logits, labels), ce + acls(logits, labels))
    assert not ACLS().needs_index


def test_classes_pass_their_options_on():
    logits, labels = batch()
    labels[2] = 7
    common = {"reduction": "sum", "ignore_index": 7}
    assert MarginLabelSmoothing(margin=1.5, **common)(logits, labels) == mbls(
        logits, labels, margin=1.5, **common
    )
    for switches in SWITCHES:
        if switches["condition"] == "ranking":
            continue
        options = {"margin": 1.5, "lambda1": 0.7, "lambda2": 0.4, **switches, **common}
        assert ACLS(**options)(logits, labels) == acls(logits, labels, **options)


# ------------------------------------------------------------------ gradients


# Of max(0, z_top - z_k - M)/(N K): each class further than M below the top one is pushed up by
# 1/(N K), and the top one down by as much for each of them (supplement (15) has 0 there).
def test_the_gradient_of_mbls_is_the_one_derived_by_hand():
    logits, labels = batch()
    z = logits.numpy()
    expected = np.zeros_like(z)
    for n, row in enumerate(z):
        far = row.max() - row > 2.0
        expected[n] -= far / z.size
        expected[n, row.argmax()] += far.sum() / z.size
    slope = gradient(lambda x: mbls(x, labels, margin=2.0), logits)
    np.testing.assert_allclose(slope.numpy(), expected, atol=1e-14)


# Paper: with a = relu(z_top - z_min - M) and b_j = relu(z_top - z_j - M), the first term gives
# 2 l1 a to the top and -2 l1 a to the lowest, the second -2 l2 b_j/(K-1) to each other class and
# their sum, positive, to the top. Authors: 2 l1 relu(z_top - M) to the top, and of the second
# term only what the other classes get.
@pytest.mark.parametrize("form", ["paper", "authors"])
@pytest.mark.parametrize("class_sum", [False, True])
def test_the_gradient_of_acls_is_the_one_derived_by_hand(form, class_sum):
    logits, labels = batch()
    z, margin, l1, l2 = logits.numpy(), 3.0, 0.3, 0.07
    expected = np.zeros_like(z)
    for n, row in enumerate(z):
        top, low = row.argmax(), row.argmin()
        share = l2 if class_sum else l2 / (len(row) - 1)
        far = np.maximum(row.max() - row - margin, 0)
        expected[n] -= 2 * share * far
        if form == "paper":
            span = max(row.max() - row.min() - margin, 0)
            expected[n, top] += 2 * share * far.sum() + 2 * l1 * span
            expected[n, low] -= 2 * l1 * span
        else:
            expected[n, top] += 2 * l1 * max(row.max() - margin, 0)
    options = {"margin": margin, "lambda1": l1, "lambda2": l2, "form": form}
    slope = gradient(lambda x: acls(x, labels, class_sum=class_sum, **options), logits)
    np.testing.assert_allclose(slope.numpy(), expected / len(z), atol=1e-13)


# Without an indicator the gaps may be negative: the same with no relu. The top class's own gap,
# -M, is no part of the second sum and must not move it in the authors' form either.
def test_the_gradient_without_an_indicator_leaves_the_top_class_out():
    logits, labels = batch(scale=1.0)
    z = logits.numpy()
    expected = np.zeros_like(z)
    for n, row in enumerate(z):
        gaps = row.max() - row - 3.0
        gaps[row.argmax()] = 0
        expected[n] -= 2 * 0.01 / 4 * gaps
        expected[n, row.argmax()] += 2 * 0.1 * (row.max() - 3.0)
    options = {"margin": 3.0, "form": "authors", "condition": "none"}
    slope = gradient(lambda x: acls(x, labels, **options), logits)
    np.testing.assert_allclose(slope.numpy(), expected / len(z), atol=1e-14)


@pytest.mark.parametrize("switches", [s for s in SWITCHES if s["form"] == "paper"], ids=names)
def test_gradcheck(switches):
    logits, labels = batch(4)
    right, seen = torch.tensor([1, 4, 0, 3]), torch.full((4,), 4)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: acls(x, labels[:4], margin=3.0, right=right, seen=seen, **switches), logits
    )
    assert torch.autograd.gradcheck(lambda x: mbls(x, labels[:4], margin=3.0), logits)


def test_the_authors_form_is_not_the_gradient_of_its_value():
    logits, labels = batch(4)
    whole = gradient(lambda x: acls(x, labels, margin=2.0, lambda1=0.0), logits)
    held = gradient(lambda x: acls(x, labels, margin=2.0, lambda1=0.0, form="authors"), logits)
    top = logits.argmax(1, keepdim=True)
    assert (whole.gather(1, top) > 0).any()
    assert (held.gather(1, top) == 0).all()
    torch.testing.assert_close(held.scatter(1, top, 0.0), whole.scatter(1, top, 0.0))


# Eq. 8 reads a regulariser's gradient as label smoothing: +f at the predicted class, -f elsewhere.
# ACLS's f grows with the predicted logit, and with how far another lies below, from 0 at M on.
def test_smoothing_by_acls_is_monotone_in_the_logit():
    steps = torch.linspace(0.5, 40.0, 80, dtype=torch.float64)
    rest = torch.tensor([0.2, -0.1, 0.0], dtype=torch.float64)
    labels = torch.zeros(len(steps), dtype=torch.int64)
    rows = torch.cat((steps.unsqueeze(1), rest.expand(80, 3)), 1)
    f = gradient(lambda x: acls(x, labels, reduction="sum"), rows)[:, 0]
    assert (f[steps - rest.min() < 10] == 0).all()
    assert (f.diff() >= 0).all()
    assert (f[steps > 10.5].diff() > 0).all()
    # The second class from 20 below the first to level with it, a third always lowest.
    rows = torch.stack((steps * 0 + 20, 20 - steps / 2, steps * 0 - 1), 1)
    f = -gradient(lambda x: acls(x, labels, reduction="sum"), rows)[:, 1]
    assert (f[steps / 2 < 10] == 0).all()
    assert (f.diff() >= 0).all()
    assert f[-1] > f[-2] > 0


def test_the_constant_f_of_the_ablation_does_not_grow():
    rows = torch.tensor([[12.0, 0.0, 1.0], [30.0, 0.0, 1.0]], dtype=torch.float64)
    labels = torch.zeros(2, dtype=torch.int64)
    near, far = gradient(lambda x: acls(x, labels, adaptive=False, reduction="sum"), rows)
    torch.testing.assert_close(near, far)
    near, far = gradient(lambda x: acls(x, labels, reduction="sum"), rows)
    assert far[0] > 5 * near[0]


# ------------------------------------------------------------------ limits and invariance


def test_inside_the_margin_nothing_is_paid():
    logits, labels = batch(scale=1.0)
    for value in (mbls, acls):
        assert value(logits, labels, margin=50.0) == 0
        assert (gradient(lambda x, f=value: f(x, labels, margin=50.0), logits) == 0).all()


def test_without_a_margin_mbls_is_the_mean_gap_to_the_largest():
    logits, labels = batch()
    gap = (logits.max(1, keepdim=True).values - logits).mean()
    torch.testing.assert_close(mbls(logits, labels, margin=0.0), gap)


def test_order_of_rows_and_a_shift_of_logits_do_not_matter():
    logits, labels = batch()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(2))
    for value in (mbls, acls):
        whole = value(logits, labels, margin=2.0)
        torch.testing.assert_close(value(logits[order], labels[order], margin=2.0), whole)
        torch.testing.assert_close(value(logits + 31.0, labels, margin=2.0), whole)
    authors = {"margin": 2.0, "form": "authors"}  # which sees z_top itself
    assert acls(logits + 31.0, labels, **authors) > acls(logits, labels, **authors)


def test_the_label_does_not_matter():
    logits, labels = batch()
    assert acls(logits, labels, margin=2.0) == acls(logits, (labels + 1) % 5, margin=2.0)
    assert mbls(logits, labels, margin=2.0) == mbls(logits, (labels + 1) % 5, margin=2.0)


# ------------------------------------------------------------------ the ranking condition


def test_the_ranking_condition_keeps_a_history():
    logits, labels = batch()
    loss = ACLS(condition="ranking", num_samples=20, margin=2.0)
    assert loss.needs_index
    index = torch.arange(9) + 5
    assert loss(logits.requires_grad_(), labels, index=index) == 0  # nobody was seen yet
    seen = loss.history.counts[1]
    assert seen[5:14].tolist() == [1] * 9
    assert seen.sum() == 9
    before = loss.history.counts[:, index].clone()
    assert before[0].tolist() == (logits.argmax(1) == labels).long().tolist()
    again = loss(logits, labels, index=index)
    expected = acls(
        logits, labels, margin=2.0, condition="ranking", right=before[0], seen=before[1]
    )
    assert again == expected
    loss.eval()
    loss(logits, labels, index=index)
    with torch.no_grad():
        loss.train()(logits, labels, index=index)
    assert loss.history.counts[1].max() == 2
    assert "history.counts" in loss.state_dict()
    composed = losses.parse("focal+acls(condition='ranking', num_samples=20)")
    assert composed.needs_index
    with pytest.raises(InputError, match="index="):
        composed(logits, labels)
    assert ACLS().state_dict() == {}


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": -1.0}, "margin"),
        ({"margin": float("nan")}, "margin"),
        ({"margin": float("inf")}, "margin"),
        ({"form": "code"}, "form must be paper or authors"),
        ({"condition": "rank"}, "condition must be one of margin, none, ranking"),
        ({"adaptive": False, "condition": "none"}, "label_smoothing"),
        ({"condition": "ranking"}, "num_samples"),
        ({"reduction": "none"}, "whole batch"),
    ],
)
def test_wrong_options_raise(options, message):
    logits, labels = batch()
    with pytest.raises(InputError, match=message):
        ACLS(**options)
    with pytest.raises(InputError, match=message if "reduction" not in options else "each sample"):
        acls(logits, labels, **options)


def test_mbls_refuses_a_negative_margin():
    logits, labels = batch()
    with pytest.raises(InputError, match=r"-1\.0"):
        MarginLabelSmoothing(margin=-1.0)
    with pytest.raises(InputError, match=r"-1\.0"):
        mbls(logits, labels, margin=-1.0)


def test_ranking_refuses_dense_rows():
    logits, labels = torch.randn(2, 3, 4), torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(InputError, match=r"\(N,K\)"):
        acls(logits, labels, condition="ranking", right=labels, seen=labels)


# ------------------------------------------------------------------ training


def span(run):
    return float((run.test_logits.max(1).values - run.test_logits.min(1).values).mean())


def overconfidence(run):
    confidence, predicted = run.test_logits.softmax(1).max(1)
    return float(confidence.mean() - (predicted == run.test_labels).double().mean())


def test_training_holds_logits_within_the_margin():
    plain = train(losses.get("cross_entropy"))
    smoothed = train(losses.get("mbls", margin=6.0))
    adaptive = train(losses.get("acls", margin=6.0))
    assert span(plain) > 14
    assert span(smoothed) < 9
    assert span(adaptive) < 7
    for run in (smoothed, adaptive):
        assert overconfidence(run) < 0.6 * overconfidence(plain)
