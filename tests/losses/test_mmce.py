"""MMCE and its weighted form."""

import math
import time

import numpy as np
import pytest
import torch

from calibrant import losses, metrics
from calibrant.core.errors import InputError
from calibrant.losses import mmce, mmce_weighted
from calibrant.losses.mmce import _form_of_pairs, laplacian_form
from tests.helpers.batch_losses import (
    BATCHES,
    agrees,
    gradient,
    holds_for_any_batch_loss,
    plain_run,
    probabilities,
    sample,
    through_confidence,
)
from tests.helpers.digits_training import train
from tests.reference import losses_batch as ref

LOSSES = {"mmce": (mmce, ref.mmce), "mmce_weighted": (mmce_weighted, ref.mmce_weighted)}


class TestReference:
    # confidences .6 right, .8 wrong and .8 right; k(.6,.8) = exp(-.5) = e
    logits = ([math.log(1.5), 0.0], [math.log(4), 0.0], [math.log(4), 0.0])
    labels = ([1.0, 0.0], [0.0, 1.0], [1.0, 0.0])
    e = math.exp(-0.5)

    def test_mmce_by_hand(self):
        # residuals .4, -.8 and .2: squares .16 + .64 + .04 and twice .4·(-.8)e + .4·.2e - .8·.2
        expected = (0.84 + 2 * (-0.32 * self.e + 0.08 * self.e - 0.16)) / 9
        assert ref.mmce(self.logits, self.labels) == pytest.approx(expected)

    def test_mmce_weighted_by_hand(self):
        # two right: (.16 + .04 + 2·.08e)/4; one wrong: .64; mixed: 2(.32e + .16)/2
        expected = (0.2 + 0.16 * self.e) / 4 + 0.64 - (0.32 * self.e + 0.16)
        assert ref.mmce_weighted(self.logits, self.labels) == pytest.approx(expected)

    def test_mmce_weighted_without_wrong_rows_by_hand(self):
        assert ref.mmce_weighted(self.logits[:1], self.labels[:1]) == pytest.approx(0.16)
        assert ref.mmce_weighted(self.logits[1:2], self.labels[1:2]) == pytest.approx(0.64)


@pytest.mark.parametrize("name", LOSSES)
class TestBoth:
    @pytest.mark.parametrize("batch", BATCHES)
    @pytest.mark.parametrize("options", [{}, {"width": 0.05}, {"width": 3.0}])
    def test_value_is_the_sum_over_pairs(self, name, batch, options):
        agrees(*LOSSES[name], batch, rel=1e-9, **options)

    def test_contract(self, name):
        holds_for_any_batch_loss(LOSSES[name][0])

    @pytest.mark.parametrize("batch", ["hard", "soft", "dense"])
    @pytest.mark.parametrize("width", [0.4, 0.1])
    def test_gradcheck(self, name, batch, width):
        z, target, extra = BATCHES[batch]
        z = z.clone().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda z: LOSSES[name][0](z, target, width=width, **extra), z
        )

    def test_gradient_by_hand(self, name):
        # S = Σ_ij v_i v_j k_ij with v_i = ω_i(a_i - c_i), ω = 1/N, or 1/m for right and 1/(N-m) for
        # wrong rows, and k_ij = exp(-|c_i-c_j|/w): each i stands in two sums, so
        # ∂S/∂c_i = -2ω_i Σ_j v_j k_ij - (2/w) v_i Σ_j v_j sign(c_i-c_j) k_ij
        z, y = sample(seed=9)
        p = probabilities(z.numpy())
        c, a = p.max(1), (p.argmax(1) == y.numpy()).astype(float)
        omega = np.full(len(c), 1 / len(c))
        if name == "mmce_weighted":
            omega = np.where(a == 1, 1 / a.sum(), 1 / (1 - a).sum())
        v = omega * (a - c)
        apart = c[:, None] - c
        for width in (0.4, 0.1):
            kernel = np.exp(-np.abs(apart) / width)
            slope = -2 * omega * (kernel @ v) - 2 / width * v * ((np.sign(apart) * kernel) @ v)
            actual = gradient(LOSSES[name][0], z, y, width=width).numpy()
            np.testing.assert_allclose(actual, through_confidence(slope, p), rtol=1e-8, atol=1e-14)

    def test_equal_rows_have_equal_gradients(self, name):
        # ties, in any order: |c_i - c_j| has no slope where they are equal, and takes none
        z, y = sample(12, 4, seed=3)
        z, y = z.repeat(3, 1), y.repeat(3)
        z[5] = z[29] = torch.tensor([2.0, 1.0, 0.0, -1.0])
        loss, reference = LOSSES[name]
        actual = gradient(loss, z, y)
        same = [row for row in range(12) if row != 5]
        torch.testing.assert_close(actual[:12][same], actual[12:24][same], rtol=1e-12, atol=0)
        expected = reference(z.tolist(), [ref.onehot(k, 4) for k in y.tolist()])
        assert loss(z, y).item() == pytest.approx(expected, rel=1e-12)
        # all alike: the kernel is 1 and does not move
        z, y = torch.zeros(6, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 2, 3, 1])
        z[:, 0] = 1.0
        actual = gradient(loss, z, y)
        torch.testing.assert_close(actual[0], actual[1], rtol=1e-12, atol=0)
        torch.testing.assert_close(actual[2], actual[5], rtol=1e-12, atol=0)

    def test_is_never_negative(self, name):
        # the kernel is positive definite
        for seed in range(30):
            z, y = sample(20, 3, seed)
            assert LOSSES[name][0](z, y).item() >= -1e-15

    def test_module_is_the_function(self, name):
        z, y = sample()
        y[3] = 9
        options = {"width": 0.2, "ignore_index": 9, "reduction": "sum"}
        assert torch.equal(losses.make(name, **options)(z, y), LOSSES[name][0](z, y, **options))
        assert losses.make(name).name == name

    def test_defaults(self, name):
        z, y = sample()
        loss = LOSSES[name][0]
        assert torch.equal(loss(z, y), loss(z, y, width=0.4))
        assert torch.equal(losses.make(name)(z, y), loss(z, y))
        assert losses.make(name).beta == 1.0

    @pytest.mark.parametrize("width", [0.0, -1.0, 0.009, math.nan])
    def test_bad_width(self, name, width):
        with pytest.raises(InputError, match="width must be at least"):
            LOSSES[name][0](*sample(), width=width)
        with pytest.raises(InputError, match="width must be at least"):
            losses.make(name, width=width)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_narrowest_width(self, name, dtype):
        z, y = sample(60)
        agrees(*LOSSES[name], "hard", rel=1e-9, width=0.01)
        assert gradient(LOSSES[name][0], z.to(dtype), y, width=0.01).isfinite().all()

    def test_wide_kernel_is_a_square(self, name):
        # k → 1: the square of the mean residual, or of the difference of the two mean residuals
        z, y = sample()
        p = probabilities(z.numpy())
        c, a = p.max(1), p.argmax(1) == y.numpy()
        expected = (a - c).mean() ** 2
        if name == "mmce_weighted":
            expected = ((1 - c[a]).mean() - c[~a].mean()) ** 2
        actual = LOSSES[name][0](z, y, width=1e9).item()
        assert actual == pytest.approx(expected, rel=1e-6)

    def test_narrow_kernel_keeps_the_diagonal_only(self, name):
        # confidences .5, .7 and .9 are 20 widths apart: Σ v_i²
        c = torch.tensor([0.5, 0.7, 0.9], dtype=torch.float64)
        z, y = torch.stack([c.log(), torch.log1p(-c)], 1), torch.tensor([0, 1, 0])
        expected = (0.5**2 + 0.7**2 + 0.1**2) / 9
        if name == "mmce_weighted":
            expected = 0.5**2 / 4 + 0.7**2 + 0.1**2 / 4
        assert LOSSES[name][0](z, y, width=0.01).item() == pytest.approx(expected, rel=1e-6)

    def test_dense_rows_in_moderate_time_and_memory(self, name):
        # 345,600 rows: pairs of them would be 900 GB
        source = torch.Generator().manual_seed(0)
        z = torch.randn(8, 12, 180, 240, generator=source).requires_grad_()
        y = torch.randint(0, 12, (8, 180, 240), generator=source)
        began = time.perf_counter()
        LOSSES[name][0](z, y).backward()
        assert time.perf_counter() - began < 30
        assert z.grad.isfinite().all()

    def test_real_logits(self, name, data_folder):
        loss, reference = LOSSES[name]
        with np.load(data_folder / "logits" / "cifar10-resnet20.npz") as file:
            z, y = torch.tensor(file["logits"][:500]), torch.tensor(file["labels"][:500])
        expected = reference(z.double().tolist(), [ref.onehot(k, z.shape[1]) for k in y.tolist()])
        assert loss(z, y).item() == pytest.approx(expected, rel=1e-4)
        assert loss(z.double(), y).item() == pytest.approx(expected, rel=1e-9)


def test_weighted_is_the_plain_one_where_as_many_are_right_as_wrong():
    # ω = 2/N for all, so four times the value
    c = torch.tensor([0.5, 0.7, 0.9, 0.6], dtype=torch.float64)
    z, y = torch.stack([c.log(), torch.log1p(-c)], 1), torch.tensor([0, 1, 0, 1])
    assert mmce_weighted(z, y).item() == pytest.approx(4 * mmce(z, y).item(), rel=1e-12)


def test_calibrated_data_have_a_small_plain_value():
    random = np.random.default_rng(0)
    c = random.uniform(0.5, 1, 20_000)
    y = torch.tensor(np.where(random.random(20_000) < c, 0, 1))
    z = torch.tensor(np.stack([np.log(c), np.log1p(-c)], 1))
    assert mmce(z, y).item() < 1e-4
    assert mmce(3 * z, y).item() > 1e-3
    # the weighted one is far from 0: among right rows and wrong ones, confidence is off by design
    assert mmce_weighted(z, y).item() > 0.1


class TestForm:
    def test_single_precision_is_added_up_in_double(self):
        # neighbours nearly cancel: what is left is small beside the float32 rounding of each term
        source = torch.Generator().manual_seed(1)
        places = torch.rand(100_000, generator=source).sort().values
        weights = torch.ones(100_000)
        weights[::2] = -1
        exact = laplacian_form(weights.double(), places.double(), 0.4)
        single = laplacian_form(weights, places, 0.4)
        assert exact.item() < 100
        assert single.dtype == torch.float32
        assert single.item() == pytest.approx(exact.item(), rel=1e-6)

    def test_second_derivative_is_that_of_the_sum_over_pairs(self):
        source = torch.Generator().manual_seed(2)
        places, weights = torch.rand(2, 6, generator=source, dtype=torch.float64)

        def pairs(weights, places):
            kernel = torch.exp(-(places[:, None] - places).abs() / 0.4)
            return (weights[:, None] * weights * kernel).sum()

        actual = torch.autograd.functional.hessian(
            lambda w, x: laplacian_form(w, x, 0.4), (weights, places)
        )
        expected = torch.autograd.functional.hessian(pairs, (weights, places))
        for row, other in zip(actual, expected, strict=True):
            for left, right in zip(row, other, strict=True):
                torch.testing.assert_close(left, right)


@pytest.mark.slow
class TestTraining:
    def test_mmce_lowers_itself_and_the_error_on_its_rows(self):
        run, plain = train(losses.get("mmce", beta=5.0), seed=0), plain_run()
        actual = [mmce(fit.train_logits, fit.train_labels).item() for fit in (run, plain)]
        assert actual[0] < 0.75 * actual[1]
        actual = [metrics.ece(fit.train_logits, fit.train_labels) for fit in (run, plain)]
        assert actual[0] < actual[1]

    def test_weighted_lowers_ece_on_rows_it_has_not_seen(self):
        # Over seeds: a single run depends on the rounding of the processor.
        def average(name):
            runs = [train(losses.get(name), seed=seed) for seed in range(4)]
            values = [
                (
                    mmce_weighted(fit.test_logits, fit.test_labels).item(),
                    float(metrics.ece(fit.test_logits, fit.test_labels)),
                )
                for fit in runs
            ]
            return np.mean(values, axis=0)

        (error, ece), (plain_error, plain_ece) = average("mmce_weighted"), average("cross_entropy")
        assert error < 0.6 * plain_error
        assert ece < plain_ece - 0.03


@pytest.mark.parametrize("width", [0.05, 0.4, 3.0])
def test_pairs_on_a_device_are_the_sorted_form(width):
    # With ties, among them rows that a network is all sure of.
    how = torch.Generator().manual_seed(2)
    places = torch.rand(40, generator=how, dtype=torch.float64).round(decimals=1)
    weights = torch.randn(40, generator=how, dtype=torch.float64)
    actual = []
    for form in (laplacian_form, _form_of_pairs):
        given = [weights.clone().requires_grad_(), places.clone().requires_grad_()]
        value = form(*given, width)
        actual.append((value, *torch.autograd.grad(value, given)))
    for sorted_, paired in zip(*actual, strict=True):
        torch.testing.assert_close(paired, sorted_)
