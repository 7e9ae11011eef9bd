"""What holds for every loss: shapes, targets, extremes, reductions, precision, compilation."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch.nn import functional as F

from calibrant import losses
from calibrant.core.errors import InputError
from tests.helpers.loss_names import PRIMARY, SECONDARY

NAMES = [*PRIMARY, *SECONDARY]
FLAT_ONLY = {"crl", "kde_ece"}  # and they say so
DENSE = [name for name in NAMES if name not in FLAT_ONLY]
# A class index is part of what these are: the order of a sample's own class, or its history.
HARD_ONLY: set[str] = set()
STOPPED = {"avuc_gs"}  # gs: the gradient through the confidence is stopped
SAMPLE_MEANS = {"confidence_penalty", "mbls", "acls", "cpc"}  # secondary, yet no batch matters
# Neighbours in the batch matter to these.
ORDERED = {"crl"}
DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    ),
]


def usual_options(name):
    return {"margin": 1.0} if name in ("mbls", "acls") else {}


def make_loss(name, **options):
    """A loss that has something to say of these batches."""
    usual = usual_options(name)
    loss = losses.make(name, num_samples=64, **{**usual, **options})  # for those with memory
    if name == "crl":
        how = torch.Generator().manual_seed(6)
        for _ in range(3):
            loss.history.record(torch.arange(64), torch.rand(64, generator=how) < 0.6)
    return loss


def call(loss, logits, target):
    if loss.needs_index:
        return loss(logits, target, index=torch.arange(len(logits), device=logits.device))
    return loss(logits, target)


def batch(rows=24, classes=5, *, seed=0, dtype=torch.float64, scale=2.0):
    how = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, generator=how, dtype=torch.float64)
    return logits.to(dtype), torch.randint(classes, (rows,), generator=how)


def value_and_gradient(loss, logits, target):
    logits = logits.detach().clone().requires_grad_()
    value = call(loss, logits, target)
    value.sum().backward()
    return value.detach(), logits.grad


@pytest.mark.parametrize("name", NAMES)
class TestEveryLoss:
    def test_is_a_finite_scalar_with_a_gradient(self, name):
        value, gradient = value_and_gradient(make_loss(name), *batch())
        assert value.shape == ()
        assert value.dtype == torch.float64
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()
        assert gradient.abs().sum() > 0

    def test_gradcheck(self, name):
        if name in STOPPED:
            pytest.skip("its gradient is stopped: not that of its value")
        logits, target = batch(8, 4)

        def value(logits):
            # A fresh one each time: memory must not make the second call another function.
            return call(make_loss(name), logits, target)

        assert torch.autograd.gradcheck(value, (logits.requires_grad_(),), atol=1e-6, rtol=1e-4)

    def test_functional_twin_agrees(self, name):
        if name in ORDERED:
            pytest.skip("its memory is the class's")
        logits, target = batch()
        twin = getattr(losses, name)
        actual = twin(logits, target, **usual_options(name))
        assert torch.equal(actual, call(make_loss(name), logits, target))

    def test_sum_is_mean_times_rows(self, name):
        logits, target = batch()
        mean = call(make_loss(name), logits, target)
        total = call(make_loss(name, reduction="sum"), logits, target)
        assert total.item() == pytest.approx(24 * mean.item(), rel=1e-9)

    def test_bad_reduction_is_refused(self, name):
        with pytest.raises(InputError, match="median"):
            make_loss(name, reduction="median")

    def test_logits_may_be_shifted(self, name):
        logits, target = batch()
        shifted = value_and_gradient(make_loss(name), logits, target)
        here = value_and_gradient(make_loss(name), logits + torch.arange(24.0)[:, None] - 7, target)
        assert torch.allclose(here[0], shifted[0], rtol=1e-9, atol=1e-10)
        assert torch.allclose(here[1], shifted[1], rtol=1e-6, atol=1e-9)

    def test_order_of_rows_does_not_matter(self, name):
        if name in ORDERED:
            pytest.skip("pairs are neighbours")
        logits, target = batch()
        order = torch.randperm(24, generator=torch.Generator().manual_seed(3))
        permuted = value_and_gradient(make_loss(name), logits, target)
        here = value_and_gradient(make_loss(name), logits[order], target[order])
        assert torch.allclose(here[0], permuted[0], rtol=1e-9)
        assert torch.allclose(here[1], permuted[1][order], rtol=1e-6, atol=1e-10)

    def test_names_of_classes_do_not_matter(self, name):
        logits, target = batch()
        order = torch.randperm(5, generator=torch.Generator().manual_seed(4))
        renamed = call(make_loss(name), logits, target)
        here = call(make_loss(name), logits[:, order], torch.argsort(order)[target])
        assert torch.allclose(here, renamed, rtol=1e-9)

    def test_ignored_rows_change_nothing(self, name):
        logits, target = batch()
        kept = call(make_loss(name, ignore_index=9), logits, target)
        more = torch.cat((logits[:7], torch.full((2, 5), 1e3), torch.randn(3, 5), logits[7:]))
        more[7, 2], more[8, 0] = -1e4, 1e4
        labels = torch.cat((target[:7], torch.full((5,), 9), target[7:]))
        value, gradient = value_and_gradient(make_loss(name, ignore_index=9), more.double(), labels)
        if name in ORDERED:
            assert torch.isfinite(value)
        else:
            assert torch.allclose(value, kept, rtol=1e-8)
            _, clean = value_and_gradient(make_loss(name), logits, target)
            assert torch.allclose(gradient[labels != 9], clean, rtol=1e-6, atol=1e-9)
        assert (gradient[labels == 9] == 0).all()

    def test_all_ignored_is_zero(self, name):
        logits, _ = batch()
        value, gradient = value_and_gradient(make_loss(name), logits, torch.full((24,), -100))
        assert value == 0
        assert (gradient == 0).all()

    @pytest.mark.sampled(by="name")
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("device", DEVICES)
    def test_extremes_are_finite(self, name, dtype, device):
        certain = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, 1e4], [0.0, 0.0, 0.0]])
        for logits, labels in (
            (certain, [0, 1, 2]),  # p_y of exactly 1
            (certain, [1, 0, 0]),  # p_y of exactly 0
            (certain[:1], [0]),
            (certain[:1], [1]),
            (certain[[0, 0, 0]], [0, 0, 0]),
            (torch.zeros(1, 3), [2]),
            (torch.zeros(3, 3), [0, 1, 2]),
            (torch.tensor([[30.0, 0.0, 0.0], [0.0, 90.0, 0.0]]), [0, 1]),
        ):
            given = logits.to(device=device, dtype=dtype)
            value, gradient = value_and_gradient(
                make_loss(name).to(device), given, torch.tensor(labels, device=device)
            )
            assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert torch.isfinite(value), (logits, labels)
            assert torch.isfinite(gradient).all(), (logits, labels)

    def test_half_precision_is_computed_in_single(self, name):
        logits, target = batch(dtype=torch.bfloat16)
        exact = call(make_loss(name), logits.double(), target)
        assert torch.allclose(call(make_loss(name), logits, target).double(), exact, rtol=1e-4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = call(make_loss(name), logits.float(), target)
        assert inside.dtype == torch.float32
        assert torch.allclose(inside.double(), exact, rtol=1e-4)

    def test_single_precision_gradient(self, name):
        logits, target = batch(64, 10, seed=5)
        _, exact = value_and_gradient(make_loss(name), logits, target)
        _, single = value_and_gradient(make_loss(name), logits.float(), target)
        assert (single - exact).abs().max() < 2e-4 * exact.abs().max()

    def test_compiles_to_one_graph(self, name):
        logits, target = batch()
        loss = make_loss(name)
        torch._dynamo.reset()  # it counts compilations of one line of code, of all tests
        whole = torch.compile(
            lambda logits, target: call(loss, logits, target), fullgraph=True, backend="aot_eager"
        )
        here, measure = copy.deepcopy(loss), value_and_gradient
        value, gradient = measure(here, logits, target)
        logits = logits.clone().requires_grad_()
        actual = whole(logits, target)
        actual.backward()
        assert torch.allclose(actual, value)
        assert torch.allclose(logits.grad, gradient, rtol=1e-6, atol=1e-9)

    @pytest.mark.slow
    def test_compiles_whatever_the_shape(self, name):
        torch._dynamo.reset()
        loss = make_loss(name)
        whole = torch.compile(
            lambda logits, target: call(loss, logits, target),
            fullgraph=True,
            dynamic=True,
            backend="aot_eager",
        )
        for rows in (24, 17):
            logits, target = batch(rows)
            here = copy.deepcopy(loss)
            actual = whole(logits, target)
            assert torch.allclose(actual, call(here, logits, target))

    def test_bad_input_is_explained(self, name):
        logits, target = batch()
        with pytest.raises(InputError, match=r"labels must lie in 0\.\.4"):
            call(make_loss(name), logits, target + 1)
        with pytest.raises(InputError, match="found -5"):
            call(make_loss(name), logits, target.where(torch.arange(24) > 0, -5))
        with pytest.raises(InputError, match=r"class indices of shape \(24,\), found \(23,\)"):
            call(make_loss(name), logits, target[1:])
        with pytest.raises(InputError, match=r"\(N,K,...\) with at least 2 classes, found \(24,\)"):
            call(make_loss(name), logits[:, 0], target)
        with pytest.raises(InputError, match="floating point"):
            call(make_loss(name), logits.long(), target)
        with pytest.raises(InputError, match="no rows"):
            call(make_loss(name), logits[:0], target[:0])
        with pytest.raises(InputError, match="at least 2 classes"):
            call(make_loss(name), logits[:, :1], target)
        with pytest.raises(InputError, match="found 156"):  # a byte that reads -100
            call(make_loss(name), logits, torch.full((24,), 156, dtype=torch.uint8))

    def test_state_survives_a_checkpoint(self, name):
        logits, target = batch()
        loss = make_loss(name)
        call(loss, logits, target)
        again = make_loss(name)
        again.load_state_dict(loss.state_dict())
        assert torch.equal(call(again, logits, target), call(loss, logits, target))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in HARD_ONLY])
def test_soft_labels_that_are_certain(name):
    logits, target = batch()
    value, gradient = value_and_gradient(make_loss(name), logits, target)
    soft, slope = value_and_gradient(make_loss(name), logits, F.one_hot(target, 5).double())
    assert torch.allclose(soft, value, rtol=1e-9)
    assert torch.allclose(slope, gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in HARD_ONLY])
def test_soft_labels_gradcheck(name):
    if name in STOPPED:
        pytest.skip("its gradient is stopped: not that of its value")
    logits, target = batch(6, 4)
    soft = 0.8 * F.one_hot(target, 4) + 0.2 * torch.softmax(batch(6, 4, seed=9)[0], 1)
    logits = logits.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda logits: call(make_loss(name), logits, soft), (logits,), atol=1e-6, rtol=1e-4
    )


@pytest.mark.parametrize("name", DENSE)
def test_dense_is_flattened(name):
    logits, target = batch(2 * 3 * 4)
    target[3] = -100
    image = logits.reshape(2, 3, 4, 5).permute(0, 3, 1, 2)
    flat = value_and_gradient(make_loss(name), logits, target)
    dense = value_and_gradient(make_loss(name), image, target.reshape(2, 3, 4))
    assert torch.allclose(dense[0], flat[0], rtol=1e-9)
    back = dense[1].permute(0, 2, 3, 1).reshape(-1, 5)
    assert torch.allclose(back, flat[1], rtol=1e-6, atol=1e-10)


@pytest.mark.sampled(by="name")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ignored", [0, 4, 5, 255])  # classes, the number of them, VOC's
def test_any_label_may_be_the_ignored_one(name, ignored):
    logits, target = batch(12)
    target = torch.where(target == ignored, 2, target)
    kept = torch.arange(12) % 4 != 1
    marked = torch.where(kept, target, ignored)
    if name in ORDERED:
        loss = make_loss(name, ignore_index=ignored)
        assert torch.isfinite(call(loss, logits, marked))
        return
    value, gradient = value_and_gradient(make_loss(name, ignore_index=ignored), logits, marked)
    expected, slope = value_and_gradient(make_loss(name), logits[kept], target[kept])
    assert torch.allclose(value, expected, rtol=1e-9)
    assert torch.allclose(gradient[kept], slope, rtol=1e-6, atol=1e-10)
    assert not gradient[~kept].any()


@pytest.mark.parametrize("name", sorted(FLAT_ONLY & set(NAMES)))
def test_flat_ones_say_so(name):
    with pytest.raises(InputError, match=r"\(N,K\)"):
        call(make_loss(name), torch.randn(2, 5, 3), torch.zeros(2, 3, dtype=torch.long))


@pytest.mark.parametrize("name", list(PRIMARY))
class TestPrimary:
    def test_none_gives_a_value_a_sample(self, name):
        logits, target = batch(2 * 3 * 4)
        target[3] = -100
        each = call(make_loss(name, reduction="none"), logits, target)
        assert each.shape == (24,)
        assert each[3] == 0
        image = logits.reshape(2, 3, 4, 5).permute(0, 3, 1, 2)
        places = call(make_loss(name, reduction="none"), image, target.reshape(2, 3, 4))
        assert places.shape == (2, 3, 4)
        if name not in ORDERED:
            assert torch.allclose(places.reshape(-1), each)
        mean = call(make_loss(name), logits, target)
        assert each.sum().item() / 23 == pytest.approx(mean.item(), rel=1e-9)

    def test_another_reduction_is_refused(self, name):
        logits, target = batch()
        with pytest.raises(InputError, match="one of none, mean, sum, found 'avg'"):
            getattr(losses, name)(logits, target, reduction="avg")

    def test_weight_weighs_samples_by_class(self, name):
        logits, target = batch()
        weight = torch.tensor([0.5, 1.0, 2.0, 0.0, 3.0])
        each = call(make_loss(name, reduction="none"), logits, target)
        heavy = make_loss(name, weight=weight)
        assert "weight" in heavy.state_dict()
        by_hand = (each * weight[target]).sum() / weight[target].sum()
        assert torch.allclose(call(heavy, logits, target), by_hand, rtol=1e-6)
        with pytest.raises(InputError, match="5 classes"):
            call(make_loss(name, weight=weight[1:]), logits, target)

    def test_every_class_of_weight_zero_is_zero(self, name):
        logits, target = batch()
        value, gradient = value_and_gradient(make_loss(name, weight=torch.zeros(5)), logits, target)
        assert value == 0
        assert (gradient == 0).all()


@pytest.mark.parametrize("name", list(SECONDARY))
class TestSecondary:
    def test_reduction_none_raises(self, name):
        with pytest.raises(InputError, match="whole batch"):
            make_loss(name, reduction="none")

    def test_name_alone_trains_beside_cross_entropy(self, name):
        logits, target = batch()
        both = losses.get(name, num_samples=64)
        assert isinstance(both, losses.Composed)
        beta = SECONDARY[name].beta
        term = losses.make(name, num_samples=64)
        expected = losses.cross_entropy(logits, target) + beta * call(term, logits, target)
        assert torch.allclose(call(both, logits, target), expected)
        other = losses.get(name, beta=7.0, num_samples=64)
        assert other.betas == (7.0,)

    def test_says_whether_the_local_batch_matters(self, name):
        assert make_loss(name).local_batch == (name not in SAMPLE_MEANS)
        assert losses.get(name, num_samples=64).local_batch == (name not in SAMPLE_MEANS)
        if name in SAMPLE_MEANS:  # then halves of a batch, averaged, are the whole
            logits, target = batch()
            halves = [
                call(make_loss(name), logits[i], target[i]) for i in (slice(12), slice(12, 24))
            ]
            whole = call(make_loss(name), logits, target)
            assert torch.allclose(sum(halves) / 2, whole, rtol=1e-9)


class TestComposition:
    def test_sum_and_parts(self):
        logits, target = batch()
        loss = losses.compose(losses.Focal(gamma=2.0), (0.5, losses.SoftBinnedECE(num_bins=10)))
        parts = loss.parts(logits, target)
        assert parts["focal"] + 0.5 * parts["sb_ece"] == loss(logits, target)
        twice = losses.get("focal+sb_ece+.25*sb_ece(form='bin')").parts(logits, target)
        assert list(twice) == ["focal", "sb_ece", "sb_ece 2"]
        assert twice["sb_ece 2"] == losses.sb_ece(logits, target, form="bin")
        text = losses.get("focal(gamma=2.0)+0.5*sb_ece(num_bins=10)")
        assert torch.equal(text(logits, target), loss(logits, target))

    @pytest.mark.parametrize(
        ("text", "betas"),
        [
            ("cross_entropy + 0.5*sb_ece", (0.5,)),
            ("sb_ece", (0.1,)),
            ("2*sb_ece", (2.0,)),
            ("focal+1e-3*sb_ece", (1e-3,)),
            ("focal + 0.5 * s_avuc", (0.5,)),
            ("focal+1e+1*sb_ece(form='bin')", (10.0,)),
            ("focal + sb_ece + .25*sb_ece(form='bin')", (0.1, 0.25)),
        ],
    )
    def test_text(self, text, betas):
        assert losses.get(text).betas == betas

    def test_text_of_a_primary_alone(self):
        assert losses.get("focal(gamma=1.5, detach_weight=True)").gamma == 1.5

    def test_shared_options_reach_every_part(self):
        loss = losses.get("focal+0.5*sb_ece", ignore_index=7, reduction="sum")
        assert loss.primary.ignore_index == loss.secondaries[0].ignore_index == 7
        weighted = losses.get("sb_ece", weight=torch.ones(5), num_bins=3)
        assert weighted.primary.weight is not None
        assert weighted.secondaries[0].num_bins == 3

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("focl", "Did you mean focal"),
            ("focal+0.5*focal", "primary loss and cannot be added"),
            ("0.5*focal", "takes no weight"),
            ("focal+x*sb_ece", "must be a number"),
            ("focal+0.5*", "is not a loss"),
            ("focal(gamma=2)(detach_weight=True)", "each option once"),
            ("focal(**{'gamma': 2})", "each option once"),
            ("focal+0.5*sb_ec", "Did you mean sb_ece"),
            ("focal(gamma=2, gamma=3)", "each option once"),
            ("crl", "give num_samples="),
            ("sb_ece(num_bins=2.5)", "a whole num_bins"),
            ("cpc(lambda1='a')", "finite numbers, found 'a'"),
            ("focal+0.5*sb_ece(2)", "option=value"),
            ("focal+0.5*sb_ece(num_bins=__import__('os'))", "plain values"),
            ("focal+0.5*sb_ece(bins=3)", "bins"),
            ("", "no loss is called"),
        ],
    )
    def test_bad_text(self, text, message):
        with pytest.raises(InputError, match=message):
            losses.get(text)

    def test_options_beside_text_are_refused(self):
        with pytest.raises(InputError, match="inside"):
            losses.get("focal+0.5*sb_ece", gamma=2)

    def test_bad_parts(self):
        good, term = losses.CrossEntropy(), losses.SoftBinnedECE()
        for primary, terms, message in (
            (term, (), "primary"),
            (good, ((0.5, good),), "primary loss"),
            (good, (term,), "pairs"),
            (good, ((0.5, term, "more"),), "pairs"),
            (good, ((0.5, torch.nn.CrossEntropyLoss()),), "pairs"),
            (good, ((float("nan"), term),), "finite"),
            (good, ((float("inf"), term),), "finite"),
            (good, (("1", term),), "finite number, found '1'"),
            (losses.CrossEntropy(reduction="sum"), ((0.5, term),), "give both the same"),
            (losses.CrossEntropy(ignore_index=3), ((0.5, term),), "give both the same"),
        ):
            with pytest.raises(InputError, match=message):
                losses.compose(primary, *terms)


def test_every_pair_composes():
    logits, target = batch()
    for primary, secondary in itertools.product(PRIMARY, SECONDARY):
        loss = losses.compose(make_loss(primary), (0.1, make_loss(secondary)))
        logits = logits.detach().requires_grad_()
        value = call(loss, logits, target)
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(logits.grad).all()


def test_available_names_everything():
    assert list(losses.available()) == NAMES
    assert all(len(message) > 10 for message in losses.available().values())
    assert set(losses.__all__) >= set(NAMES)
    methods = """cross_entropy brier label_smoothing focal flsd inverse_focal dual_focal r_aurc
        sb_ece avuc avuc_gs s_avuc mmce mmce_weighted mdca confidence_penalty mbls acls cpc crl
        kde_ece"""
    assert set(NAMES) == set(methods.split())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_never_waits_for_a_cuda_device(name):
    logits, target = batch(64, 10, dtype=torch.float32)
    loss, logits, target = make_loss(name).cuda(), logits.cuda().requires_grad_(), target.cuda()
    call(loss, logits, target).backward()  # what is made once, is made
    index = torch.arange(64, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        value = loss(logits, target, index=index) if loss.needs_index else loss(logits, target)
        value.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    here = make_loss(name)
    assert torch.isfinite(value)
    if name not in ORDERED:
        on_cpu = call(here, logits.detach().cpu(), target.cpu())
        assert torch.allclose(value.cpu(), on_cpu, rtol=1e-4, atol=1e-6)
