"""Soft-binned ECE."""

import math
import warnings

import numpy as np
import pytest
import torch

from calibrant import losses, metrics
from calibrant.core.errors import InputError
from calibrant.losses import sb_ece
from calibrant.losses.sb_ece import membership, soft_binned_error
from tests.helpers.batch_losses import (
    BATCHES,
    agrees,
    compiles,
    gradient,
    holds_for_any_batch_loss,
    probabilities,
    sample,
    through_confidence,
)
from tests.helpers.digits_training import train
from tests.reference import losses_batch as ref

FORMS = ["bin", "label"]
OVER = ["top", "classes"]


class TestReference:
    # confidences .6 right and .8 wrong
    logits = ([math.log(1.5), 0.0], [math.log(4), 0.0])
    labels = ([1.0, 0.0], [0.0, 1.0])

    def test_one_bin_by_hand(self):
        # A = .5, C = .7: .2 binned; of order 2 and label-binned sqrt((.1^2 + .3^2)/2)
        actual = ref.sb_ece(self.logits, self.labels, "bin", num_bins=1, order=1)
        assert actual == pytest.approx(0.2)
        actual = ref.sb_ece(self.logits, self.labels, "label", num_bins=1)
        assert actual == pytest.approx(math.sqrt(0.05))

    def test_soft_membership_by_hand(self):
        # centres 1/4 and 3/4, T = .1/ln 3: .6 is .35 and .15 away, squares .1225 and .0225 differ
        # by .1, so the memberships are as 1 to 3; .8 is .55 and .05 away, .3 apart: 1 to 27.
        # Bin 1: S = 1/4 + 1/28 = 2/7, A = (1/4)/(2/7) = 7/8; bin 2: S = 12/7, A = (3/4)/(12/7)
        # = 7/16. C_1 = (.15 + .8/28)/(2/7) = .625, C_2 = (.45 + .8·27/28)/(12/7) = .7125
        options = {"num_bins": 2, "temperature": 0.1 / math.log(3), "order": 1}
        actual = ref.sb_ece(self.logits, self.labels, "bin", **options)
        assert actual == pytest.approx((2 / 7 * 0.25 + 12 / 7 * (0.7125 - 0.4375)) / 2)
        actual = ref.sb_ece(self.logits, self.labels, "label", **options)
        first = 0.25 * (0.875 - 0.6) + 0.75 * (0.6 - 0.4375)
        second = 1 / 28 * (0.875 - 0.8) + 27 / 28 * (0.8 - 0.4375)
        assert actual == pytest.approx((first + second) / 2)

    def test_classes_by_hand(self):
        # one bin a class: class 0 has p = .6, .8 and A = .5, as above; class 1 has .4, .2 and .5
        for form, power in (("bin", 0.04), ("label", 0.05)):
            actual = ref.sb_ece(self.logits, self.labels, form, "classes", num_bins=1)
            assert actual == pytest.approx(math.sqrt(power))


def hard_power(scores, hits, form, order, num_bins=15):
    """Eq. 6 and 7 under the root, with equal-width bins."""
    total = 0.0
    bins = (scores * num_bins).ceil()
    for j in range(1, num_bins + 1):
        held = bins == j
        if held.any():
            accuracy, mean = hits[held].mean(), scores[held].mean()
            gaps = (accuracy - scores[held]) if form == "label" else (accuracy - mean).expand(1)
            total += (gaps.abs() ** order).mean() * held.double().mean()
    return float(total)


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("form", FORMS)
class TestEveryForm:
    @pytest.mark.parametrize("batch", BATCHES)
    def test_value_is_the_reference(self, form, over, batch):
        agrees(sb_ece, ref.sb_ece, batch, form=form, over=over)

    @pytest.mark.parametrize("order", [1, 1.5, 3])
    @pytest.mark.parametrize(("num_bins", "temperature"), [(4, 0.2), (10, 0.001), (1, 1.0)])
    def test_value_with_other_options(self, form, over, order, num_bins, temperature):
        options = {"num_bins": num_bins, "temperature": temperature, "order": order}
        for batch in ("hard", "dense"):
            agrees(sb_ece, ref.sb_ece, batch, form=form, over=over, **options)

    def test_contract(self, form, over):
        holds_for_any_batch_loss(sb_ece, form=form, over=over)

    @pytest.mark.parametrize("order", [1, 2, 3.5])
    @pytest.mark.parametrize("batch", ["hard", "soft", "dense"])
    def test_gradcheck(self, form, over, order, batch):
        z, target, extra = BATCHES[batch]
        part = z[:6].clone().requires_grad_()

        def loss(z):
            return sb_ece(z, target[:6], form=form, over=over, order=order, **extra)

        assert torch.autograd.gradcheck(loss, part)

    def test_module_is_the_function(self, form, over):
        z, y = sample()
        y[3] = 9
        options = {"form": form, "over": over, "num_bins": 7, "temperature": 0.05, "order": 3.0}
        options |= {"ignore_index": 9, "reduction": "sum"}
        assert torch.equal(losses.SoftBinnedECE(**options)(z, y), sb_ece(z, y, **options))

    @pytest.mark.parametrize("order", [1.0, 2.0])
    def test_bins_become_hard_as_the_temperature_goes_to_0(self, form, over, order):
        # no score lies within 1e-4 of an edge, where the two nearest centres are equally far
        z, y = sample(300, 4, seed=8)
        p = torch.softmax(z, 1)
        from_edge = (p * 15 - (p * 15).round()).abs().min(1).values
        z, y = z[from_edge > 1e-4], y[from_edge > 1e-4]
        assert len(z) > 250
        options = {"num_bins": 15, "order": order}
        if over == "top":
            expected = metrics.ece(z, y, form=form, **options)
        else:
            p = torch.softmax(z, 1)
            powers = [hard_power(p[:, k], (y == k).double(), form, order) for k in range(4)]
            expected = (sum(powers) / 4) ** (1 / order)
        errors = [
            abs(float(sb_ece(z, y, form=form, over=over, temperature=t, **options) - expected))
            for t in (1e-2, 1e-4, 1e-9)
        ]
        assert errors[2] < 1e-9 < 1e-4 < errors[0]
        assert errors[1] < errors[0]

    def test_bins_become_one_as_the_temperature_grows(self, form, over):
        z, y = sample()
        single = sb_ece(z, y, form=form, over=over, num_bins=1)
        many = sb_ece(z, y, form=form, over=over, temperature=1e9)
        torch.testing.assert_close(many, single, rtol=1e-6, atol=0)


FROM_CHANCE = {"bins_from": "chance", "num_bins": 6}


@pytest.mark.parametrize("options", [{"squared": True}, FROM_CHANCE, {**FROM_CHANCE, "order": 3}])
@pytest.mark.parametrize("form", FORMS)
class TestAuthorsCode:
    @pytest.mark.parametrize("batch", BATCHES)
    def test_value_is_the_reference(self, form, options, batch):
        agrees(sb_ece, ref.sb_ece, batch, form=form, **options)

    def test_module_is_the_function(self, form, options):
        z, y = sample()
        actual = losses.SoftBinnedECE(form=form, **options)(z, y)
        assert torch.equal(actual, sb_ece(z, y, form=form, **options))

    def test_gradcheck(self, form, options):
        z, target, extra = BATCHES["hard"]
        part = z[:6].clone().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda z: sb_ece(z, target[:6], form=form, **options, **extra), part
        )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("over", OVER)
def test_squared_is_the_square_and_its_gradient_fades(form, over):
    z, y = sample()
    root, square = (sb_ece(z, y, form=form, over=over, squared=one) for one in (False, True))
    torch.testing.assert_close(square, root**2, rtol=1e-6, atol=0)
    z.requires_grad_()
    slopes = [
        torch.autograd.grad(sb_ece(z, y, form=form, over=over, squared=one), z)[0].norm()
        for one in (False, True)
    ]
    torch.testing.assert_close(slopes[1], 2 * root * slopes[0], rtol=1e-5, atol=0)


def test_first_bin_from_chance_by_hand():
    # K = 4 and M = 3: bins (1/4, 1/2), (1/2, 3/4), (3/4, 1) with centres 3/8, 5/8, 7/8
    actual = membership(torch.tensor([0.375, 0.625, 0.875]), 3, 1e-4, low=0.25)
    torch.testing.assert_close(actual, torch.eye(3))
    with pytest.raises(InputError, match="bins_from='chance' is for over='top'"):
        sb_ece(*sample(), over="classes", bins_from="chance")
    with pytest.raises(InputError, match="bins_from must be zero or chance, found 'one'"):
        losses.SoftBinnedECE(bins_from="one")


@pytest.mark.parametrize(
    ("text", "fragile"),
    [
        ("brier+sb_ece", False),
        ("brier+0.3*sb_ece", True),
        ("focal+sb_ece", False),
        ("focal+avuc", True),
        ("cross_entropy+avuc", False),
    ],
)
def test_pairs_that_failed_a_pilot_warn(text, fragile):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        losses.get(text)
    assert bool([one for one in told if "is fragile" in str(one.message)]) == fragile


def test_compiles_over_classes():
    compiles(sb_ece, over="classes")


class TestDefaults:
    def test_are_the_label_form_of_the_top_class(self):
        z, y = sample()
        options = {"form": "label", "over": "top", "num_bins": 15, "temperature": 0.01, "order": 2}
        assert torch.equal(sb_ece(z, y), sb_ece(z, y, **options))
        assert torch.equal(losses.SoftBinnedECE()(z, y), sb_ece(z, y))
        assert losses.SoftBinnedECE.beta == 0.1
        assert losses.get("focal+sb_ece").betas == (0.1,)

    def test_of_the_error_of_confidences(self):
        c, a = torch.tensor([0.6, 0.8, 0.9]).double(), torch.tensor([True, False, True])
        options = {"form": "label", "num_bins": 15, "temperature": 0.01, "order": 2.0}
        actual = soft_binned_error(c, a)
        assert torch.equal(actual, soft_binned_error(c, a, **options))
        more = soft_binned_error(
            torch.cat([c, torch.tensor([0.1])]),
            torch.cat([a, torch.tensor([True])]),
            counts=torch.tensor([True, True, True, False]),
        )
        torch.testing.assert_close(actual, more)

    def test_of_classes_without_counts(self):
        z, y = sample()
        actual = soft_binned_error(torch.softmax(z, 1), torch.nn.functional.one_hot(y, 5))
        torch.testing.assert_close(actual, sb_ece(z, y, over="classes"))


class TestMembership:
    def test_is_a_distribution_over_bins_that_peaks_at_the_nearest_centre(self):
        c = torch.linspace(0, 1, 101, dtype=torch.float64)
        actual = membership(c, 10, 0.01)
        assert actual.shape == (10, 101)
        torch.testing.assert_close(actual.sum(0), torch.ones(101, dtype=torch.float64))
        inside = (c * 10 - (c * 10).round()).abs() > 1e-9
        assert (actual.argmax(0) == (c * 10).floor().long())[inside].all()
        expected = [ref.memberships(value, 10, 0.01) for value in c.tolist()]
        np.testing.assert_allclose(actual.T.numpy(), expected, rtol=1e-10)

    def test_keeps_the_shape_of_what_it_is_given(self):
        assert membership(torch.rand(2, 3, 4), 5, 0.1).shape == (5, 2, 3, 4)


class TestGradientByHand:
    # u_ij = softmax_j(-(c_i-ξ_j)²/T) has u'_ij = (2/T) u_ij (ξ_j - Σ_l u_il ξ_l) in c_i, and
    # A_j = Σ_i u_ij a_i / S_j has ∂A_j/∂c_i = u'_ij (a_i - A_j)/S_j. The value is L = P^(1/2), so
    # ∂L = ∂P/(2L), and c moves with the logits as in `through_confidence`.
    z, y = sample(seed=9)
    p = probabilities(z.numpy())
    c, a = p.max(1), (p.argmax(1) == y.numpy()).astype(float)
    centres = (np.arange(15) + 0.5) / 15
    temperature = 0.02
    u = np.exp(-((c[:, None] - centres) ** 2) / temperature)
    u /= u.sum(1, keepdims=True)
    slope = 2 / temperature * u * (centres - (u * centres).sum(1, keepdims=True))
    size = u.sum(0)
    accuracy = (u * a[:, None]).sum(0) / size
    mean = (u * c[:, None]).sum(0) / size

    def check(self, form, power, by_confidence):
        value = math.sqrt(power)
        options = {"form": form, "temperature": self.temperature}
        assert sb_ece(self.z, self.y, **options).item() == pytest.approx(value, rel=1e-10)
        expected = through_confidence(by_confidence / (2 * value), self.p)
        actual = gradient(sb_ece, self.z, self.y, **options).numpy()
        np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-14)

    def test_bin(self):
        # P = (1/N) Σ_j D_j²/S_j with D_j = Σ_i u_ij (a_i - c_i):
        # ∂P/∂c_i = (1/N) Σ_j [2 (D_j/S_j)(u'_ij (a_i - c_i) - u_ij) - (D_j/S_j)² u'_ij]
        gap = self.accuracy - self.mean
        moved = self.slope * (self.a - self.c)[:, None] - self.u
        by_confidence = (2 * gap * moved - gap**2 * self.slope).sum(1) / len(self.c)
        self.check("bin", (self.size * gap**2).sum() / len(self.c), by_confidence)

    def test_label(self):
        # P = (1/N) Σ_ij u_ij (A_j - c_i)²: ∂P/∂c_i = (1/N) Σ_j [u'_ij (A_j - c_i)²
        # - 2 u_ij (A_j - c_i) + 2 ∂A_j/∂c_i Σ_m u_mj (A_j - c_m)], and that sum is S_j(A_j - C_j)
        gap = self.accuracy - self.c[:, None]
        through = 2 * self.slope * (self.a[:, None] - self.accuracy) * (self.accuracy - self.mean)
        by_confidence = (self.slope * gap**2 - 2 * self.u * gap + through).sum(1) / len(self.c)
        self.check("label", (self.u * gap**2).sum() / len(self.c), by_confidence)


class TestPropositions:
    @staticmethod
    def calibrated(number, seed=0):
        """E[a|c] = c: confidences in (1/2, 1) and labels drawn from them."""
        random = np.random.default_rng(seed)
        c = random.uniform(0.5, 1, number)
        right = random.random(number) < c
        z = torch.tensor(np.stack([np.log(c), np.log1p(-c)], 1))
        return z, torch.tensor(np.where(right, 0, 1))

    def test_bin_form_vanishes_for_calibrated_data_and_the_label_form_does_not(self):
        sizes = (1_000, 20_000, 400_000)
        actual = {
            form: [sb_ece(*self.calibrated(n), form=form).item() for n in sizes] for form in FORMS
        }
        assert actual["bin"][0] > actual["bin"][1] > actual["bin"][2]
        assert actual["bin"][2] < 3e-3
        # as N → ∞ the label form is what it is of a grid of confidences with a = c
        grid = [0.5 + (i + 0.5) / 2000 for i in range(1000)]
        limit = math.sqrt(ref.soft_binned_power(grid, grid, "label", 15, 0.01, 2))
        assert limit > 0.05
        assert actual["label"][2] == pytest.approx(limit, abs=1e-3)

    def test_label_form_is_never_below_the_bin_form(self):
        # Jensen, with soft bins as with hard ones: A_j - C_j is the u-weighted mean of A_j - c_i
        for seed in range(20):
            z, y = sample(30, 4, seed)
            for over in OVER:
                for order in (1, 2, 3):
                    options = {"over": over, "order": order, "temperature": 0.02}
                    label = sb_ece(z, y, form="label", **options)
                    assert label >= sb_ece(z, y, form="bin", **options) - 1e-12


class TestEdges:
    @pytest.mark.parametrize("order", [1.0, 2.0, 4.0])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_no_error_is_a_flat_zero(self, dtype, order):
        # two rows at 1/2, one of them right: A = C = c
        z, y = torch.zeros(2, 2, dtype=dtype), torch.tensor([0, 1])
        for form in FORMS:
            for over in OVER:
                value = sb_ece(z, y, form=form, over=over, order=order, num_bins=1)
                assert value.item() == 0
                slope = gradient(sb_ece, z, y, form=form, over=over, order=order, num_bins=1)
                assert slope.abs().max() == 0

    def test_small_errors_are_kept(self):
        # one row at c = 1 - 1e-9 that is right: the error is 1 - c, not rounded to 0
        gap = 1e-9
        z = torch.tensor([[math.log((1 - gap) / gap), 0.0]], dtype=torch.float64)
        for order in (1.0, 2.0):
            actual = sb_ece(z, torch.tensor([0]), order=order)
            assert actual.item() == pytest.approx(gap, rel=1e-5)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"form": "both"}, "bin or label, found 'both'"),
            ({"over": "all"}, "top or classes, found 'all'"),
            ({"temperature": 0.0}, "temperature > 0"),
            ({"temperature": math.nan}, "temperature > 0"),
            ({"num_bins": 0}, "num_bins >= 1"),
            ({"order": 0.5}, "order >= 1"),
            ({"order": math.inf}, "finite order"),
        ],
    )
    def test_bad_options(self, options, message):
        with pytest.raises(InputError, match=message):
            sb_ece(*sample(), **options)
        with pytest.raises(InputError, match=message):
            losses.SoftBinnedECE(**options)
        if "over" not in options:
            with pytest.raises(InputError, match=message):
                soft_binned_error(torch.rand(3), torch.ones(3), **options)

    def test_one_bin_and_order_one_are_allowed(self):
        assert sb_ece(*sample(), num_bins=1, order=1).isfinite()


@pytest.mark.slow
class TestTraining:
    def test_lowers_ece_on_rows_it_has_not_seen(self):
        # Over seeds: a single run depends on the rounding of the processor.
        def list_errors(name, **options):
            runs = [train(losses.get(name, **options), seed=seed) for seed in range(5)]
            return [float(metrics.ece(run.test_logits, run.test_labels)) for run in runs]

        trained, plain = list_errors("sb_ece", beta=3.0), list_errors("cross_entropy")
        assert np.median(trained) < np.median(plain) - 0.02

    def test_over_classes_lowers_what_it_trains(self):
        # On the rows trained on, in one batch: in small batches, with few rows for a class and
        # bin, the error of the batches falls and that of all rows does not.
        def compute_error(name, **options):
            run = train(losses.get(name, **options), batch=300)
            return float(sb_ece(run.train_logits, run.train_labels, over="classes"))

        trained = compute_error("sb_ece", beta=2.0, over="classes")
        assert trained < compute_error("cross_entropy") - 0.005


def test_real_logits(data_folder):
    with np.load(data_folder / "logits" / "cifar10-resnet20.npz") as file:
        z, y = torch.tensor(file["logits"][:400]), torch.tensor(file["labels"][:400])
    for form in FORMS:
        for over in OVER:
            expected = ref.sb_ece(
                z.double().tolist(), [ref.onehot(k, 10) for k in y.tolist()], form, over
            )
            assert sb_ece(z, y, form=form, over=over).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("form", ["bin", "label"])
def test_where_every_row_is_ignored_it_is_0(form, order):
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = losses.sb_ece(logits, torch.full((6,), -100), form=form, order=order)
    value.backward()
    assert value.item() == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))
