"""Corners of the losses that a change to their code showed no other test to look at."""

from __future__ import annotations

import importlib
import shutil
import warnings

import numpy as np
import pytest
import torch

from calibrant import losses
from calibrant.core.errors import InputError
from calibrant.losses import acls, common, compose, cross_entropy, focal, history
from tests.helpers.loss_names import PRIMARY, SECONDARY

K = 4


def batch(rows=6, classes=K, *, shape=(), seed=0, scale=1.0):
    draw = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, *shape, generator=draw, dtype=torch.float64)
    return logits, torch.randint(classes, (rows, *shape), generator=draw)


class TestComposed:
    @pytest.mark.parametrize(
        "names", [("mdca",), ("mdca", "confidence_penalty"), ("mdca", "mbls", "acls")]
    )
    def test_added_is_the_sum_without_the_primary(self, names):
        z, y = batch(scale=12.0)
        betas = (0.7, 2.0, 3.0)[: len(names)]
        whole = compose(
            losses.CrossEntropy(),
            *((beta, losses.make(name)) for beta, name in zip(betas, names, strict=True)),
        )
        by_hand = sum(
            beta * losses.make(name)(z, y) for beta, name in zip(betas, names, strict=True)
        )
        assert whole.added(z, y).item() == pytest.approx(by_hand.item(), rel=1e-12)
        assert whole(z, y).item() == pytest.approx((cross_entropy(z, y) + by_hand).item())

    def test_options_are_shown_and_buffers_are_not(self):
        text = repr(losses.get("focal", gamma=2.5, weight=torch.ones(K)))
        assert "gamma=2.5" in text
        assert "reduction='mean'" in text
        for word in ("weight", "training", "_parameters"):
            assert f"{word}=" not in text.replace("detach_weight=", "")


class TestText:
    def test_class_weights_reach_the_primary_of_a_text(self):
        z, y = batch()
        weight = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
        actual = losses.get("focal(gamma=2)+0.5*mdca", weight=weight)(z, y)
        expected = focal(z, y, gamma=2.0, weight=weight) + 0.5 * losses.mdca(z, y)
        assert actual.item() == pytest.approx(expected.item(), rel=1e-12)

    def test_signs_within_parentheses_part_nothing(self):
        assert losses.parse("focal(gamma=+2.0)+mdca").primary.gamma == 2.0

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("focal+brier", "brier is a primary loss and cannot be added"),
            ("focal(**{'gamma': 2.0})", "focal"),
            ("nothing", "nothing"),
            ("0.5*focal", "takes no weight"),
        ],
    )
    def test_each_mistake_has_its_own_message(self, text, message):
        with pytest.raises(InputError, match=message):
            losses.parse(text)


class TestWeights:
    @pytest.mark.parametrize(
        "name", [n for n in losses.available() if losses.make(n, num_samples=9).kind == "primary"]
    )
    def test_dense_logits_take_one_weight_a_class(self, name):
        z, y = batch(3, shape=(2, 5))
        weight = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
        flat = z.movedim(1, -1).reshape(-1, K), y.reshape(-1)
        kind = type(losses.make(name))
        actual, expected = kind(weight=weight)(z, y), kind(weight=weight)(*flat)
        assert actual.item() == pytest.approx(expected.item(), rel=1e-10)
        soft = torch.softmax(batch(3, shape=(2, 5), seed=1)[0], 1)
        actual = kind(weight=weight)(z, soft)
        expected = kind(weight=weight)(flat[0], soft.movedim(1, -1).reshape(-1, K))
        assert actual.item() == pytest.approx(expected.item(), rel=1e-10)

    def test_weights_that_sum_to_less_than_one_are_divided_by(self):
        z, y = batch()
        small = torch.full((K,), 1e-3, dtype=torch.float64)
        assert focal(z, y, weight=small).item() == pytest.approx(focal(z, y).item(), rel=1e-9)


class TestFocal:
    def test_the_weight_is_differentiated_unless_detached(self):
        z, y = batch()
        z.requires_grad_()
        p = torch.softmax(z, 1).gather(1, y[:, None]).squeeze(1)
        (expected,) = torch.autograd.grad(-((1 - p) ** 3 * p.log()).mean(), z)
        (actual,) = torch.autograd.grad(focal(z, y), z)
        torch.testing.assert_close(actual, expected)


class TestLabelSmoothing:
    def test_all_of_it_is_the_uniform_label(self):
        z, y = batch()
        expected = -torch.log_softmax(z, 1).mean()
        assert losses.LabelSmoothing(smoothing=1.0)(z, y).item() == pytest.approx(expected.item())


class TestInverseFocal:
    def test_no_word_while_it_is_compiled(self, monkeypatch):
        z, y = batch()
        with pytest.warns(UserWarning, match="rises"):
            losses.inverse_focal(z, y, gamma=6.0)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            losses.inverse_focal(z, y, gamma=6.0)


def acls_by_hand(z, margin, lambda1, lambda2, form, condition):
    """(acls eq. 13 and its ablations) of every row, in loops."""

    def penalty(gap):
        kept = max(gap - margin, 0.0) if condition == "margin" else gap - margin
        return kept**2

    values = []
    for row in z.tolist():
        top = max(row)
        others = [penalty(top - logit) for k, logit in enumerate(row) if k != row.index(top)]
        far = top - min(row) if form == "paper" else top
        far = max(far, 0.0) if form != "paper" and condition == "margin" else far
        values.append(lambda1 * penalty(far) + lambda2 * sum(others) / len(others))
    return sum(values) / len(values)


class TestAcls:
    @pytest.mark.parametrize("form", ["paper", "authors"])
    @pytest.mark.parametrize("condition", ["margin", "none"])
    @pytest.mark.parametrize("shift", [0.0, -9.0])
    def test_gaps_below_the_margin_and_logits_below_zero(self, form, condition, shift):
        # Without the margin's condition a gap below it counts, and the largest penalty
        # need not be that of the largest gap.
        z, y = batch()
        actual = acls(z + shift, y, margin=4.0, form=form, condition=condition)
        expected = acls_by_hand(z + shift, 4.0, 0.1, 0.01, form, condition)
        assert actual.item() == pytest.approx(expected, rel=1e-10)

    def test_ranking_sees_its_own_batch(self):
        assert losses.make("acls", condition="ranking", num_samples=9).local_batch
        assert not losses.make("acls").local_batch

    @pytest.mark.parametrize("given", ["right", "seen"])
    def test_ranking_needs_both_counts(self, given):
        z, y = batch()
        with pytest.raises(InputError, match="needs right= and seen="):
            acls(z, y, condition="ranking", **{given: torch.ones(len(y))})

    def test_rows_of_one_confidence_are_not_misranked(self):
        z, y = batch(2)
        z[1] = z[0].flip(0)  # as confident
        seen = torch.tensor([4.0, 4.0], dtype=torch.float64)
        for right in ([1.0, 3.0], [3.0, 1.0]):
            counts = torch.tensor(right, dtype=torch.float64)
            actual = acls(z, y, margin=0.0, condition="ranking", right=counts, seen=seen)
            assert actual.item() == 0.0


class TestHistory:
    def test_a_training_set_of_one_sample_has_one(self):
        loss = losses.make("crl", num_samples=1)
        z, y = batch(1)
        assert torch.isfinite(loss(z.float(), y, index=torch.zeros(1, dtype=torch.int64)))

    def test_dense_logits_have_no_history(self):
        loss = losses.make("crl", num_samples=6)
        z, y = batch(shape=(2, 3))
        with pytest.raises(InputError, match=r"one prediction per sample.*\(6, 4, 2, 3\)"):
            loss.history.places(z, torch.arange(6))
        with pytest.raises(InputError):
            loss(z, y, index=torch.arange(6))


def test_the_margin_of_two_classes_is_that_of_both():
    z, y = batch(8, 2)
    actual = losses.r_aurc(z, y, csf="margin")
    by_hand = losses.r_aurc(z, y, csf=lambda logs: (logs[:, 0].exp() - logs[:, 1].exp()).abs())
    assert actual.item() == pytest.approx(by_hand.item(), rel=1e-12)


def test_rows_that_are_ignored_may_say_anything():
    z, y = batch(8)
    y[3] = -100
    kept = torch.arange(8) != 3
    for name in ("kde_ece", "mmce", "mdca", "sb_ece", "acls", "cpc"):
        loss = losses.make(name, **({"bandwidth": 0.1} if name == "kde_ece" else {}))
        expected = loss(z[kept], y[kept])
        for odd in (1e4, float("nan")):
            other = z.clone()
            other[3, 1] = odd
            other.requires_grad_()
            actual = loss(other, y)
            assert actual.item() == pytest.approx(expected.item(), rel=1e-9), (name, odd)
            actual.backward()
            assert torch.isfinite(other.grad[kept]).all(), (name, odd)


@pytest.mark.parametrize(
    "term",
    [
        (float("inf"), losses.MDCA()),
        (float("nan"), losses.MDCA()),
        ("1", losses.MDCA()),
        (1.0, losses.MDCA(), 2.0),
        (1.0, torch.nn.Identity()),
        [1.0, losses.MDCA()],
    ],
)
def test_terms_must_be_finite_numbers_and_losses(term):
    with pytest.raises(InputError):
        compose(losses.CrossEntropy(), term)


def test_the_default_reduction_is_the_mean():
    z, y = batch()
    for name in losses.available():
        loss = losses.make(name, **({"num_samples": 6} if name == "crl" else {}))
        assert loss.reduction == "mean", name
    with pytest.raises(InputError, match="reduction must be mean or sum"):
        losses.mdca(z, y, reduction="product")


def test_probabilities_of_another_shape_are_called_probabilities():
    logits = torch.zeros(3, 4)
    with pytest.raises(
        InputError, match=r"need class probabilities of shape \(3, 4\), found \(3, 5\)"
    ):
        losses.get("brier")(logits, torch.full((3, 5), 0.2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda z, y: losses.label_smoothing(z, y, smoothing=2.0),
            r"smoothing must lie in \[0, 1\]",
        ),
        (lambda z, y: losses.flsd(z, y, threshold=-1.0), "must be a probability"),
        (lambda z, y: losses.flsd(z, y, threshold=1.1), "must be a probability"),
        (
            lambda z, y: losses.get("flsd", threshold=float("nan")),
            "must be a probability",
        ),
        (lambda z, y: losses.get("acls", lambda1=float("nan")), "finite, found nan"),
        (lambda z, y: acls(z, y, lambda2=float("inf")), "finite, found 0.1 and inf"),
        (lambda z, y: acls(z, y, lambda1=float("inf")), "finite, found inf and 0.01"),
        (lambda z, y: losses.get(None), "found None"),
        (
            lambda z, y: losses.get("focal(gama=2)"),
            "no option 'gama'; its options: gamma, detach_weight, reduction, ignore_index, weight",
        ),
        (lambda z, y: losses.get("mdca", weigth=1), "no option 'weigth'; its options: reduction"),
        (lambda z, y: losses.Focal(ignore_index=1.5), "an integer, found 1.5"),
        (lambda z, y: losses.focal(z, y.tolist()), "labels must be a tensor, found list"),
        (lambda z, y: losses.focal(z.tolist(), y), "logits must be a tensor, found list"),
        (
            lambda z, y: losses.get("crl", num_samples=9)(z, y, index=[0] * len(z)),
            "index must be a tensor, found list",
        ),
    ],
)
def test_options_are_checked_wherever_they_are_given(call, message):
    with pytest.raises(InputError, match=message):
        call(*batch())


def values_and_slopes(call, table):
    table = table.clone().requires_grad_()
    actual = call(table)
    actual = actual if isinstance(actual, tuple) else (actual,)
    weights = torch.linspace(0.5, 2.0, actual[0].numel(), dtype=table.dtype)
    slope = torch.zeros_like(table)
    if actual[0].requires_grad:
        (slope,) = torch.autograd.grad((weights * actual[0].flatten()).sum(), table)
    return *actual, slope


@pytest.mark.parametrize("shape", [(7, 5), (3, 5, 4)])
def test_compiled_steps_compute_the_same(shape, monkeypatch):
    """Each step that is written otherwise for a compiler, called as a compiler would."""
    draw = torch.Generator().manual_seed(2)
    table = torch.randn(shape, generator=draw, dtype=torch.float64)
    index = torch.randint(5, (shape[0], *shape[2:]), generator=draw)
    labels = index.clone()
    labels[0] = -100
    steps = (
        lambda x: common.pick(x, index),
        lambda x: common.largest(x),
        lambda x: common.largest(x.exp()),
        lambda x: common.label_table(common.rows_of(x, labels)),
        lambda x: common.less_labels(2 * x, common.rows_of(x, labels)),
    )
    expected = [values_and_slopes(step, table) for step in steps]
    called = []
    step_of = common.is_place
    monkeypatch.setattr(common, "is_place", lambda *given: called.append(1) or step_of(*given))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for step, reference_values in zip(steps, expected, strict=True):
        before = len(called)
        for left, right in zip(values_and_slopes(step, table), reference_values, strict=True):
            assert left.dtype == right.dtype
            torch.testing.assert_close(left, right)
        assert len(called) > before


def test_history_is_the_same_to_a_compiler(monkeypatch):
    draw = torch.Generator().manual_seed(3)
    confidence = torch.rand(9, generator=draw, dtype=torch.float64)
    right = torch.tensor([0, 1, 2, 1, 0, 2, 1, 0, 2])
    seen = torch.tensor([2, 2, 2, 3, 0, 3, 1, 1, 2])
    counts = torch.tensor([True] * 6 + [False, True, True])
    slopes = torch.linspace(-1, 2, 9, dtype=torch.float64)

    def actual():
        mine = confidence.clone().requires_grad_()
        past, rise = history.gaps(mine, right, seen, counts)
        (slope,) = torch.autograd.grad((slopes * rise).sum(), mine)
        table = history.CorrectnessHistory(5)
        table.record(torch.tensor([3, 1, 3]), torch.tensor([True, False, True]))
        return past, rise.detach(), slope, table.counts

    expected = actual()
    # It looks up what is replaced next, when it is first loaded.
    importlib.import_module("torch._dynamo")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for left, right in zip(actual(), expected, strict=True):
        assert torch.equal(left, right)
    assert expected[3].tolist() == [[0, 0, 0, 2, 0], [0, 1, 0, 2, 0]]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("acls", (16, 5)),
        ("acls", (2, 5, 4, 3)),
        ("acls(condition='none')", (512, 6)),
        ("flsd+0.3*acls", (24, 6)),
        ("flsd+0.3*cpc", (24, 6)),
        ("crl", (24, 6)),
    ],
)
@pytest.mark.slow
def test_gradients_survive_the_compiler(text, shape):
    """With few classes torch's own compiler lost what `max` and `gather` send back."""
    survives(text, shape, "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("classes", [5, 10, 100])
@pytest.mark.parametrize("text", [*PRIMARY, *SECONDARY, "flsd+0.3*acls", "flsd+0.3*cpc"])
def test_gradients_survive_the_compiler_of_a_gpu(text, classes):
    survives(text, (512, classes), "cuda", mode="reduce-overhead")


def survives(text, shape, device, **how):
    """A compiled loss has the values, gradients and memory of the loss, batch after batch."""
    plain, other = (losses.get(text, num_samples=shape[0]).to(device) for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(other, fullgraph=True, dynamic=False, **how)
    draw = torch.Generator().manual_seed(1)
    extra = {"index": torch.arange(shape[0], device=device)} if plain.needs_index else {}
    for _ in range(4):
        logits = (6 * torch.randn(shape, generator=draw)).to(device)
        labels = torch.randint(shape[1], (shape[0], *shape[2:]), generator=draw).to(device)
        some = torch.rand(labels.shape, generator=draw).to(device) < 0.5
        labels = torch.where(some, logits.argmax(1), labels)  # half are right
        mine, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
        expected = plain(mine, labels, **extra)
        expected.backward()
        torch.compiler.cudagraph_mark_step_begin()
        value = compiled(theirs, labels, **extra)
        value.backward()
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
        assert (mine.grad - theirs.grad).abs().max() < 1e-5 * mine.grad.abs().max()
        for left, right in zip(plain.buffers(), other.buffers(), strict=True):
            assert torch.equal(left, right)


def test_other_inputs_that_are_accepted():
    z, y = batch()
    weight = [0.5 + k for k in range(z.shape[1])]
    assert focal(z, y, weight=weight) == losses.Focal(weight=weight)(z, y)
    y[0] = 3
    assert losses.Focal(ignore_index=np.int64(3))(z, y) == focal(z, y, ignore_index=3)
    alone = compose(losses.Focal())
    assert alone(z, y) == focal(z, y)
    assert alone.added(z, y) == 0


def test_second_derivatives_of_what_a_compiler_sees():
    counts = torch.tensor([True, True, False, True, True])
    values = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: history._rise_opaque(x, counts) ** 2, values)
