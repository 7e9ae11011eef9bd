"""KDE-XE's term: the kernel calibration error of whole probability vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import digamma
from torch.nn.functional import cross_entropy, one_hot
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant import losses, metrics
from calibrant.core.errors import InputError
from calibrant.functional import kernels
from calibrant.losses import KernelECE, kde_ece
from tests.helpers.digits_training import train
from tests.reference import losses_logits as reference


def batch(rows=8, classes=4, scale=1.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, dtype=torch.float64, generator=generator)
    return logits, torch.randint(classes, (rows,), generator=generator)


def gradient(value, logits):
    logits = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(logits), logits)
    return slope


def by_loops(logits, tables, bandwidth, order=1):
    return reference.kde_ece(logits.tolist(), tables.tolist(), bandwidth, order)


class Made(TorchDispatchMode):
    """The bytes of the largest tensor any operation makes, and all that are alive at once."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and 0 not in tensor.stride():
                self.largest = max(self.largest, tensor.numel() * tensor.element_size())
        return result


# ------------------------------------------------------------------ values


def test_the_reference_is_what_was_worked_by_hand():
    rows, tables = [[math.log(3), 0], [0, 0]], [[0, 1], [1, 0]]
    for bandwidth in (1e-3, 0.3):
        assert reference.kde_ece(rows, tables, bandwidth) == pytest.approx(0.75)
        assert reference.kde_ece(rows, tables, bandwidth, order=2) == pytest.approx(5 / 16)
    # Dirichlet(1/2/h + 1, ...) with h = 1/2 is Beta(2, 2): 6 f (1 - f), 1.5 in the middle.
    middle = [math.log(0.5)] * 2
    assert reference.log_kernel(middle, [0.5, 0.5], 0.5) == pytest.approx(math.log(1.5))


@pytest.mark.parametrize("order", [1, 1.5, 2])
@pytest.mark.parametrize("bandwidth", [1e-4, 0.05, 0.7])
@pytest.mark.parametrize("classes", [2, 4])
def test_kde_ece_is_the_reference(classes, bandwidth, order):
    logits, labels = batch(classes=classes)
    tables = one_hot(labels, classes).double()
    expected = by_loops(logits, tables, bandwidth, order)
    options = {"bandwidth": bandwidth, "order": order}
    assert kde_ece(logits, labels, **options).item() == pytest.approx(expected, rel=1e-9)
    assert kde_ece(logits, tables, **options).item() == pytest.approx(expected, rel=1e-9)
    total = kde_ece(logits, labels, **options, reduction="sum").item()
    assert total == pytest.approx(8 * expected, rel=1e-9)
    soft = torch.softmax(batch(classes=classes, seed=9)[0], 1)
    expected = by_loops(logits, soft, bandwidth, order)
    assert kde_ece(logits, soft, **options).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("scale", "classes"), [(0.01, 3), (0.3, 3), (1.0, 6), (2.0, 3), (9.0, 3)])
def test_the_bandwidth_is_that_of_largest_leave_one_out_likelihood(scale, classes):
    logits, labels = batch(10, classes, scale)
    chosen = reference.bandwidth_by_likelihood(logits.tolist())
    logs = torch.log_softmax(logits, 1)
    actual = kernels.best_bandwidth(logs.exp(), logs)
    assert actual.item() == pytest.approx(chosen, rel=1e-6)
    expected = by_loops(logits, one_hot(labels, classes), chosen)
    assert kde_ece(logits, labels).item() == pytest.approx(expected, rel=1e-6)


def test_scales_apart_choose_bandwidths_apart():
    near, far = (
        reference.bandwidth_by_likelihood(batch(10, 3, scale)[0].tolist()) for scale in (0.01, 2.0)
    )
    assert near < 0.01 * far


def test_ignored_rows_are_rows_left_out():
    logits, labels = batch(10)
    labels[[0, 3, 9]] = 255
    kept = labels != 255
    tables = one_hot(labels[kept], 4)
    for options in ({"bandwidth": 0.1}, {}):
        width = options.get("bandwidth") or reference.bandwidth_by_likelihood(logits[kept].tolist())
        expected = by_loops(logits[kept], tables, width)
        wild = logits.clone()
        wild[~kept] = torch.tensor([1e4, -1e4, 5.0, 0.0], dtype=torch.float64)
        for rows in (logits, wild):
            value = kde_ece(rows, labels, ignore_index=255, **options)
            assert value.item() == pytest.approx(expected, rel=1e-6)
        slope = gradient(lambda x, o=options: kde_ece(x, labels, ignore_index=255, **o), wild)
        alone = gradient(lambda x, o=options: kde_ece(x, labels[kept], **o), logits[kept])
        torch.testing.assert_close(slope[kept], alone)
        assert (slope[~kept] == 0).all()


@pytest.mark.parametrize("rows", [3, 17, 1 << 20])
def test_blocks_do_not_change_anything(monkeypatch, rows):
    logits, labels = batch(20)
    whole, slope = kde_ece(logits, labels), gradient(lambda x: kde_ece(x, labels), logits)
    monkeypatch.setattr(kernels, "_PAIRS", rows * 20)
    torch.testing.assert_close(kde_ece(logits, labels), whole)
    torch.testing.assert_close(gradient(lambda x: kde_ece(x, labels), logits), slope)


def test_it_is_the_metric_of_the_same_name():
    logits, labels = batch(60)
    for bandwidth in (None, 0.1):
        expected = float(metrics.kde_ece(logits, labels, bandwidth=bandwidth))
        assert kde_ece(logits, labels, bandwidth=bandwidth).item() == pytest.approx(expected)


def test_it_is_the_metric_on_real_logits(data_folder):
    with np.load(data_folder / "logits" / "cifar10-resnet20.npz") as file:
        logits = torch.from_numpy(file["logits"][:300]).double()
        labels = torch.from_numpy(file["labels"][:300])
    value = kde_ece(logits, labels, bandwidth=0.01)
    expected = float(metrics.kde_ece(logits, labels, bandwidth=0.01))
    assert value.item() == pytest.approx(expected, rel=1e-3)  # the metric floors ln p
    narrow = kde_ece(logits.float(), labels, bandwidth=0.01)
    assert narrow.dtype == torch.float32
    assert narrow.item() == pytest.approx(value.item(), rel=1e-4)


def test_defaults_and_options_of_the_class():
    logits, labels = batch()
    assert KernelECE()(logits, labels) == kde_ece(logits, labels, order=1, bandwidth=None)
    labels[2] = 9
    options = {"order": 2.0, "bandwidth": 0.3, "reduction": "sum", "ignore_index": 9}
    assert KernelECE(**options)(logits, labels) == kde_ece(logits, labels, **options)
    logits, labels = batch()
    expected = cross_entropy(logits, labels) + 0.5 * kde_ece(logits, labels)
    torch.testing.assert_close(losses.get("kde_ece")(logits, labels), expected)
    assert KernelECE.local_batch


# ------------------------------------------------------------------ gradients


# Let w_ji = softmax over i≠j of ⟨f_i, ln f_j⟩/h + c_i, m_j = Σ_i w_ji y_i, s = sign(m - f), and
# V = Σ_jk |m_jk - f_jk|/N. Then dV/dscore_ji = w_ji (g_ji - Σ_i' w_ji' g_ji'), g_ji = ⟨s_j, y_i⟩/N.
# A score moves with ln f_j by f_i/h, and with f_i by ln f_j/h - psi(f_i/h + 1)/h (what is the same
# for all classes goes away, as the f_i sum to 1). V itself moves with f by -s/N. To the logits:
# a slope g in f becomes f(g - ⟨f, g⟩), a slope G in ln f becomes G - f ΣG.
def test_the_gradient_is_the_one_derived_by_hand():
    logits, labels = batch(7)
    number, h = 7, 0.2
    logs = torch.log_softmax(logits, 1).numpy()
    f, y = np.exp(logs), np.eye(4)[labels.numpy()]
    scores = np.array(
        [[reference.log_kernel(logs[j], f[i], h) for i in range(number)] for j in range(number)]
    )
    np.fill_diagonal(scores, -np.inf)
    w = np.exp(scores - scores.max(1, keepdims=True))
    w /= w.sum(1, keepdims=True)
    s = np.sign(w @ y - f) / number
    g = s @ y.T
    by_score = w * (g - (w * g).sum(1, keepdims=True))
    by_log = by_score @ f / h
    by_point = by_score.T @ logs / h - by_score.sum(0)[:, None] * digamma(f / h + 1) / h - s
    expected = f * (by_point - (f * by_point).sum(1, keepdims=True))
    expected += by_log - f * by_log.sum(1, keepdims=True)
    slope = gradient(lambda x: kde_ece(x, labels, bandwidth=h), logits)
    np.testing.assert_allclose(slope.numpy(), expected, atol=1e-13)


@pytest.mark.parametrize("options", [{"bandwidth": 0.1}, {"bandwidth": 0.1, "order": 2.0}, {}])
def test_gradcheck(options):
    logits, labels = batch(5)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kde_ece(x, labels, **options), logits)


# ------------------------------------------------------------------ limits and invariance


# As h grows every kernel becomes the uniform density: E[y|f] is the mean label of all others.
def test_a_wide_kernel_compares_with_the_mean_label():
    logits, labels = batch()
    y = one_hot(labels, 4).double()
    others = (y.sum(0) - y) / 7
    expected = (others - torch.softmax(logits, 1)).abs().sum(1).mean()
    torch.testing.assert_close(kde_ece(logits, labels, bandwidth=1e8), expected)


# As h shrinks only the nearest other row, in the kernel's sense, has a say.
def test_a_narrow_kernel_compares_with_the_nearest_row():
    logits = torch.tensor([[4.0, 0, 0], [3.9, 0, 0], [0, 4.0, 0], [0, 3.9, 0]]).double()
    labels = torch.tensor([0, 1, 2, 1])
    y = one_hot(labels[[1, 0, 3, 2]], 3)
    expected = (y - torch.softmax(logits, 1)).abs().sum(1).mean()
    torch.testing.assert_close(kde_ece(logits, labels, bandwidth=1e-4), expected)


def test_order_of_rows_and_a_shift_of_logits_do_not_matter():
    logits, labels = batch()
    whole = kde_ece(logits, labels)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(kde_ece(logits[order], labels[order]), whole)
    torch.testing.assert_close(kde_ece(logits + 31.0, labels), whole)


def test_fewer_than_two_rows_give_0():
    logits, labels = batch(3)
    for options in ({}, {"bandwidth": 0.1}):
        assert kde_ece(logits[:1], labels[:1], **options) == 0
        labels[:2] = -100
        slope = gradient(lambda x, o=options: kde_ece(x, labels, **o), logits)
        assert kde_ece(logits, labels, **options) == 0
        assert (slope == 0).all()
    labels[1:] = 0
    assert kde_ece(logits, labels) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_certain_rows_stay_finite(dtype):
    sure = torch.tensor([[1e4, -1e4, 0], [1e4, -1e4, 0], [-1e4, 1e4, 0], [0, 0, 1e4]], dtype=dtype)
    for labels in (torch.tensor([0, 0, 1, 2]), torch.tensor([1, 2, 0, 0])):
        for bandwidth in (None, 1e-5, 1.0):
            rows = sure.clone().requires_grad_()
            value = kde_ece(rows, labels, bandwidth=bandwidth)
            value.backward()
            assert value.isfinite()
            assert rows.grad.isfinite().all()


# Under float32 a weight's logarithm, a difference of numbers near 1/h, would keep one digit.
def test_float32_logits_lose_nothing_to_a_small_bandwidth():
    logits, labels = batch(12, 5, 0.05)
    wide = kde_ece(logits.float().double(), labels, bandwidth=1e-5)
    assert kde_ece(logits.float(), labels, bandwidth=1e-5).item() == pytest.approx(wide.item())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = kde_ece(logits.float(), labels, bandwidth=1e-5)
    assert value.item() == pytest.approx(wide.item())


@pytest.mark.slow
def test_a_thousand_classes_and_rows_never_make_a_large_tensor():
    logits = torch.randn(1024, 1000, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(1024) % 1000
    with Made() as made:
        value = kde_ece(logits.requires_grad_(), labels)
        value.backward()
    assert made.largest < 64 * 2**20
    assert 0 < value.item() < 2
    assert logits.grad.isfinite().all()


def test_it_compiles_to_one_graph():
    logits, labels = batch()
    compiled = torch.compile(KernelECE(), fullgraph=True, backend="aot_eager")
    slope = gradient(lambda x: compiled(x, labels), logits)
    torch.testing.assert_close(slope, gradient(lambda x: kde_ece(x, labels), logits))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bandwidth": 0.0}, "bandwidth"),
        ({"bandwidth": -1.0}, "bandwidth"),
        ({"bandwidth": float("inf")}, "bandwidth"),
        ({"order": 0.5}, "order"),
        ({"order": float("inf")}, "order"),
        ({"reduction": "none"}, "whole batch"),
    ],
)
def test_wrong_options_raise(options, message):
    logits, labels = batch()
    with pytest.raises(InputError, match=message):
        KernelECE(**options)
    with pytest.raises(InputError, match=message):
        kde_ece(logits, labels, **options)


def test_rows_that_do_not_count_have_no_say_in_the_bandwidth():
    """The likelihood of a bandwidth is that of the other rows alone."""
    draw = torch.Generator().manual_seed(0)
    own = torch.softmax(4 * torch.randn(12, 4, generator=draw, dtype=torch.float64), 1)
    flat = torch.softmax(0.1 * torch.randn(30, 4, generator=draw, dtype=torch.float64), 1)
    points, counts = torch.cat((flat, own)), torch.arange(42) >= 30
    widths = torch.tensor([0.001, 0.05, 0.5], dtype=torch.float64)
    actual = kernels.loo_log_likelihood(points, kernels.log_points(points), widths, counts)
    alone = kernels.loo_log_likelihood(own, kernels.log_points(own), widths)
    assert torch.allclose(actual, alone, rtol=1e-10)
    assert not torch.allclose(
        kernels.loo_log_likelihood(points, kernels.log_points(points), widths), alone
    )


def test_dense_rows_are_refused():
    labels = torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(InputError, match=r"\(N,K\), found \(2, 3, 4\)"):
        kde_ece(torch.randn(2, 3, 4), labels)
    with pytest.raises(InputError, match="every row with every other"):
        KernelECE()(torch.randn(2, 3, 4), labels)


# ------------------------------------------------------------------ training


@pytest.mark.slow
def test_training_lowers_the_error_of_whole_vectors():
    # In whole batches, because steps of small batches amplify the processor's rounding.
    plain, kernel = (
        train(loss, batch=300, epochs=150)
        for loss in (
            losses.get("cross_entropy"),
            losses.get("kde_ece", beta=1.0, bandwidth=0.2),
        )
    )
    for bandwidth, less in ((0.02, 0.02), (0.2, 0.02)):
        before, after = (
            float(kde_ece(run.test_logits[:600], run.test_labels[:600], bandwidth=bandwidth))
            for run in (plain, kernel)
        )
        assert after < before - less
    right = [(r.test_logits.argmax(1) == r.test_labels).double().mean() for r in (plain, kernel)]
    assert right[1] > right[0] - 0.02


def test_the_likelihood_is_that_of_leaving_each_out():
    points = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [1.0, 0.0, 0.0], [0.3, 0.3, 0.4]])
    points = points.double()
    widths = torch.tensor([0.05, 0.5], dtype=torch.float64)
    actual = kernels.loo_log_likelihood(points, kernels.log_points(points), widths)
    for width, value in zip(widths.tolist(), actual.tolist(), strict=True):
        expected = 0.0
        for j in range(4):
            density = 0.0
            for i in range(4):
                if i != j:
                    alpha = [parameter / width + 1 for parameter in points[i].tolist()]
                    log = math.lgamma(sum(alpha)) - sum(map(math.lgamma, alpha))
                    for parameter, at in zip(alpha, points[j].tolist(), strict=True):
                        log += (parameter - 1) * math.log(max(at, 1e-12))
                    density += math.exp(log)
            expected += math.log(density / 3)
        assert value == pytest.approx(expected)


def test_a_bandwidth_is_chosen_on_some_of_many_rows(monkeypatch):
    points = torch.softmax(torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), 1)
    some = points[::3]
    actual = kernels.choose_bandwidth(points, rows=3)
    assert isinstance(actual, float)
    assert actual == float(kernels.best_bandwidth(some, some.log()))
    monkeypatch.setattr(kernels, "best_bandwidth", lambda points, logs: len(points))
    for rows, read in ((2000, 2000), (2001, 1001), (4001, 1334)):
        assert kernels.choose_bandwidth(torch.ones(rows, 2)) == read
