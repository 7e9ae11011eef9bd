"""AvUC, AvUC-GS and S-AvUC."""

import math

import numpy as np
import pytest
import torch

from calibrant import losses, metrics
from calibrant.core.errors import InputError
from calibrant.losses import avuc, avuc_gs, s_avuc
from calibrant.losses.avuc import soft_uncertainty
from tests.helpers.batch_losses import (
    BATCHES,
    agrees,
    gradient,
    holds_for_any_batch_loss,
    plain_run,
    probabilities,
    sample,
    through_confidence,
    through_entropy,
)
from tests.helpers.digits_training import train
from tests.reference import losses_batch as ref

LOSSES = {"avuc": (avuc, ref.avuc), "avuc_gs": (avuc_gs, ref.avuc), "s_avuc": (s_avuc, ref.s_avuc)}
# uniform over two classes, h = ln 2, tanh h = (4-1)/(4+1) = .6; and (p, 1-p), p = 3/4:
# h = 2 ln 2 - (3/4) ln 3
UNSURE, SURE = [0.0, 0.0], [math.log(3), 0.0]
SURE_ENTROPY = 2 * math.log(2) - 0.75 * math.log(3)
RIGHT, WRONG = [1.0, 0.0], [0.0, 1.0]


class TestReference:
    def test_entropy_by_hand(self):
        assert ref.entropy(UNSURE) == pytest.approx(math.log(2))
        assert ref.entropy(SURE) == pytest.approx(SURE_ENTROPY)

    def test_avuc_by_hand(self):
        # a row of each kind; κ = .6 lies between the entropies .562 and .693. With v = tanh .562:
        # AU = .5·.6, IU = .5·.6, AC = .75(1-v), IC = .25(1-v)
        rest = 1 - math.tanh(SURE_ENTROPY)
        actual = ref.avuc([UNSURE, UNSURE, SURE, SURE], [RIGHT, WRONG, RIGHT, WRONG], 0.6)
        assert actual == pytest.approx(math.log(1 + (0.3 + 0.25 * rest) / (0.75 * rest + 0.3)))
        # at κ = .5 all are uncertain: AU = .3 + .75v, IU = .3 + .25v
        v = 1 - rest
        actual = ref.avuc([UNSURE, UNSURE, SURE, SURE], [RIGHT, WRONG, RIGHT, WRONG])
        assert actual == pytest.approx(math.log(1 + (0.3 + 0.75 * v) / (0.3 + 0.25 * v)))

    def test_soft_uncertainty_by_hand(self):
        # odds of h* = .8 are 4 and of κ = .2 are 1/4: 16^(1/T), so 16/17 and 4/5
        assert ref.soft_uncertainty(0.8, 0.2, 1.0) == pytest.approx(16 / 17)
        assert ref.soft_uncertainty(0.8, 0.2, 2.0) == pytest.approx(4 / 5)

    def test_s_avuc_by_hand(self):
        # at κ = .5 and T = 1 t is h* = s. Right and wrong, both (.75,.25): the sums are
        # AU = IU = s·v and AC = IC = (1-s)(1-v), so the ratio is 1; right alone, it is AU/AC
        assert ref.s_avuc([SURE, SURE], [RIGHT, WRONG]) == pytest.approx(math.log(2))
        s, v = SURE_ENTROPY / math.log(2), math.tanh(SURE_ENTROPY)
        bad, good = s * v, (1 - s) * (1 - v)
        assert ref.s_avuc([SURE], [RIGHT]) == pytest.approx(math.log(1 + bad / good))
        assert ref.s_avuc([SURE], [WRONG]) == pytest.approx(math.log(1 + good / bad))


@pytest.mark.parametrize("name", LOSSES)
class TestAll:
    # one row of avuc's may have nothing in the denominator: see TestFloor
    @pytest.mark.parametrize("batch", [name for name in BATCHES if name != "one-row"])
    def test_value_is_the_reference(self, name, batch):
        loss, reference = LOSSES[name]
        agrees(loss, reference, batch)
        agrees(loss, reference, batch, threshold=0.3)

    def test_contract(self, name):
        # -ln(1-h*) of s_avuc steepens as all rows of a batch near the uniform, each of them right
        holds_for_any_batch_loss(LOSSES[name][0], steepest=1e5 if name == "s_avuc" else 100)

    def test_module_is_the_function(self, name):
        z, y = sample()
        y[3] = 9
        options = {"threshold": 0.3, "ignore_index": 9, "reduction": "sum"}
        assert torch.equal(losses.make(name, **options)(z, y), LOSSES[name][0](z, y, **options))
        assert losses.make(name).name == name
        assert losses.make(name).beta == 1.0

    def test_defaults(self, name):
        z, y = sample()
        loss = LOSSES[name][0]
        assert torch.equal(loss(z, y), loss(z, y, threshold=0.5))
        assert torch.equal(losses.make(name)(z, y), loss(z, y))
        assert not torch.equal(loss(z, y), loss(z, y, threshold=0.9))

    def test_real_logits(self, name, data_folder):
        loss, reference = LOSSES[name]
        with np.load(data_folder / "logits" / "cifar100-resnet20.npz") as file:
            z, y = torch.tensor(file["logits"][:500]), torch.tensor(file["labels"][:500])
        expected = reference(z.double().tolist(), [ref.onehot(k, z.shape[1]) for k in y.tolist()])
        assert loss(z, y).item() == pytest.approx(expected, rel=1e-4)


class TestBatch:
    z, y = sample(seed=9, scale=1.5)
    p = probabilities(z.numpy())
    c, right = p.max(1), p.argmax(1) == y.numpy()
    h = -(p * np.log(p)).sum(1)
    vague = np.tanh(h)

    def hard(self, through_c):
        # with B = n_AU + n_IC and G = n_AC + n_IU, L = ln(B + G) - ln G:
        # ∂L = ∂B/(B+G) + ∂G (1/(B+G) - 1/G), over the row's own term: ∂(c tanh h) =
        # tanh h ∂c + c(1 - tanh² h)∂h and so on, a minus for each of 1-c and 1-tanh h
        unsure = self.h > 0.9
        assert 5 < unsure.sum() < 35
        by_c = np.where(self.right, self.c, 1 - self.c)
        by_h = np.where(unsure, self.vague, 1 - self.vague)
        bad = self.right == unsure
        total_bad, total_good = (by_c * by_h)[bad].sum(), (by_c * by_h)[~bad].sum()
        both = total_bad + total_good
        outer = np.where(bad, 1 / both, 1 / both - 1 / total_good)
        expected = through_entropy(
            outer * by_c * np.where(unsure, 1, -1) * (1 - self.vague**2), self.p
        )
        if through_c:
            expected += through_confidence(outer * by_h * np.where(self.right, 1, -1), self.p)
        return expected

    @pytest.mark.parametrize(("loss", "through_c"), [(avuc, True), (avuc_gs, False)])
    def test_gradient_of_the_hard_ones_by_hand(self, loss, through_c):
        actual = gradient(loss, self.z, self.y, threshold=0.9).numpy()
        np.testing.assert_allclose(actual, self.hard(through_c), rtol=1e-8, atol=1e-14)

    @pytest.mark.parametrize(("kappa", "temperature"), [(0.5, 1.0), (0.2, 0.3), (0.7, 2.5)])
    def test_gradient_of_the_soft_one_by_hand(self, kappa, temperature):
        # t = σ(x/T), x the log odds of h* less those of κ: ∂t/∂h = t(1-t) / (T h*(1-h*) ln K).
        # Right or wrong, the uncertain term moves by (t' tanh + t(1-tanh²))∂h and the certain one
        # by -(t'(1-tanh) + (1-t)(1-tanh²))∂h
        share = self.h / math.log(5)
        odds = np.log(share / (1 - share)) - math.log(kappa / (1 - kappa))
        t = 1 / (1 + np.exp(-odds / temperature))
        slope = t * (1 - t) / (temperature * share * (1 - share) * math.log(5))
        bend = 1 - self.vague**2
        unsure, sure = t * self.vague, (1 - t) * (1 - self.vague)
        by_unsure = slope * self.vague + t * bend
        by_sure = -slope * (1 - self.vague) - (1 - t) * bend
        bad, good = np.where(self.right, unsure, sure), np.where(self.right, sure, unsure)
        by_bad = np.where(self.right, by_unsure, by_sure)
        by_good = np.where(self.right, by_sure, by_unsure)
        both = bad.sum() + good.sum()
        outer = by_bad / both + by_good * (1 / both - 1 / good.sum())
        options = {"threshold": kappa, "temperature": temperature}
        actual = gradient(s_avuc, self.z, self.y, **options).numpy()
        np.testing.assert_allclose(actual, through_entropy(outer, self.p), rtol=1e-8, atol=1e-14)

    @pytest.mark.parametrize("batch", ["hard", "soft", "dense"])
    def test_gradcheck(self, batch):
        z, target, extra = BATCHES[batch]
        z = z.clone().requires_grad_()
        for loss, options in (
            (avuc, {}),
            (s_avuc, {}),
            (s_avuc, {"threshold": 0.2, "temperature": 0.5}),
        ):
            assert torch.autograd.gradcheck(lambda z: loss(z, target, **options, **extra), z)  # noqa: B023

    def test_gs_is_avuc_with_its_confidence_held(self):
        # AvUC's value with c taken from other logits, which do not move
        def held(z, fixed):
            p, still = torch.softmax(z, 1), torch.softmax(fixed, 1).max(1).values
            h = -(p * p.log()).sum(1)
            right, unsure = p.argmax(1) == self.y, h > 0.5
            term = torch.where(right, still, 1 - still) * torch.where(
                unsure, h.tanh(), 1 - h.tanh()
            )
            bad = right == unsure
            return torch.log(1 + term[bad].sum() / term[~bad].sum())

        z = self.z.clone().requires_grad_()
        (expected,) = torch.autograd.grad(held(z, self.z), z)
        torch.testing.assert_close(gradient(avuc_gs, self.z, self.y), expected)
        assert torch.equal(avuc_gs(self.z, self.y), avuc(self.z, self.y))
        assert not torch.allclose(gradient(avuc, self.z, self.y), expected)

    def test_soft_options(self):
        for options in (
            {"temperature": 0.1},
            {"threshold": 0.8, "temperature": 4.0},
            {"threshold": 0.05},
        ):
            for batch in BATCHES:
                agrees(s_avuc, ref.s_avuc, batch, rel=1e-8, **options)
        assert torch.equal(s_avuc(self.z, self.y), s_avuc(self.z, self.y, temperature=1.0))
        assert losses.SoftAvUC().temperature == 1.0
        module = losses.SoftAvUC(threshold=0.2, temperature=0.3)
        expected = s_avuc(self.z, self.y, threshold=0.2, temperature=0.3)
        assert torch.equal(module(self.z, self.y), expected)

    def test_soft_threshold_becomes_hard_as_the_temperature_goes_to_0(self):
        # t → 1[h* > κ]: then only tanh h or 1 - tanh h is left of each term
        kappa = 0.55
        unsure = self.h / math.log(5) > kappa
        term = np.where(unsure, self.vague, 1 - self.vague)
        bad = self.right == unsure
        expected = math.log(1 + term[bad].sum() / term[~bad].sum())
        actual = [
            s_avuc(self.z, self.y, threshold=kappa, temperature=t).item() for t in (1.0, 0.1, 1e-6)
        ]
        assert actual[2] == pytest.approx(expected, rel=1e-9)
        assert abs(actual[1] - expected) < abs(actual[0] - expected)

    def test_at_the_ends_of_the_threshold_every_row_is_certain_or_none(self):
        # κ → 0: t = 1 and tanh h alone is left; κ → 1 (of h in nats, above ln K): 1 - tanh h alone
        for term, soft, hard in (
            (self.vague, 1e-15, 1e-15),
            (1 - self.vague, 1 - 1e-15, 9.0),
        ):
            bad = self.right if term is self.vague else ~self.right
            expected = math.log(1 + term[bad].sum() / term[~bad].sum())
            actual = s_avuc(self.z, self.y, threshold=soft).item()
            assert actual == pytest.approx(expected, rel=1e-9)
            part = term * np.where(self.right, self.c, 1 - self.c)
            expected = math.log(1 + part[bad].sum() / part[~bad].sum())
            for loss in (avuc, avuc_gs):
                actual = loss(self.z, self.y, threshold=hard).item()
                assert actual == pytest.approx(expected, rel=1e-9)

    def test_soft_threshold_does_not_matter_as_the_temperature_grows(self):
        # t → 1/2 in every term, which then cancels
        term = np.where(self.right, self.vague, 1 - self.vague)
        expected = math.log(1 + term.sum() / (1 - term).sum())
        actual = s_avuc(self.z, self.y, threshold=0.3, temperature=1e9).item()
        assert actual == pytest.approx(expected, rel=1e-7)


class TestSoftUncertainty:
    shares = torch.linspace(0, 1, 101, dtype=torch.float64)

    def test_is_the_identity_at_one_half_and_one(self):
        torch.testing.assert_close(soft_uncertainty(self.shares, 0.5, 1.0), self.shares)

    @pytest.mark.parametrize("kappa", [0.1, 0.5, 0.8])
    @pytest.mark.parametrize("temperature", [0.05, 1.0, 3.0])
    def test_rises_from_0_to_1_through_one_half_at_kappa(self, kappa, temperature):
        actual = soft_uncertainty(self.shares, kappa, temperature)
        assert (actual.diff() >= 0).all()
        assert (actual.diff() > 0)[20:70].all() or temperature < 1
        assert actual[0] < 1e-4 or temperature > 1
        assert actual[-1] > 1 - 1e-4 or temperature > 1
        middle = soft_uncertainty(torch.tensor([kappa], dtype=torch.float64), kappa, temperature)
        assert middle.item() == pytest.approx(0.5)
        inner = self.shares[1:-1].tolist()
        expected = [ref.soft_uncertainty(share, kappa, temperature) for share in inner]
        np.testing.assert_allclose(actual[1:-1].numpy(), expected, rtol=1e-9, atol=1e-300)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_ends_are_finite(self, dtype):
        # rounding takes h* a little past 1
        ends = torch.tensor([0.0, 1.0, 1.0 + 1e-6], dtype=dtype, requires_grad=True)
        actual = soft_uncertainty(ends, 0.5, 1.0)
        assert actual[0] <= 2 * torch.finfo(dtype).eps
        assert actual[1:].min() >= 1 - 2 * torch.finfo(dtype).eps
        (slope,) = torch.autograd.grad(actual.sum(), ends)
        assert slope.isfinite().all()


class TestFloor:
    """ln(1 + B/0): nobody is right and certain, or wrong and uncertain."""

    @pytest.mark.parametrize("loss", [avuc, avuc_gs])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_an_empty_denominator(self, loss, dtype):
        # right and uncertain: B = c tanh h = .5·.6
        z = torch.zeros(1, 2, dtype=dtype)
        value = loss(z, torch.tensor([0])).item()
        assert value == pytest.approx(math.log(1 + 0.3 / torch.finfo(dtype).eps), rel=1e-6)

    def test_threshold_itself_is_certain(self):
        # right at h = κ: with nothing bad the value is 0
        z = torch.zeros(1, 2, dtype=torch.float64)
        h = -(torch.log_softmax(z, 1).exp() * torch.log_softmax(z, 1)).sum().item()
        assert avuc(z, torch.tensor([0]), threshold=h).item() == 0
        assert avuc(z, torch.tensor([0]), threshold=h - 1e-9).item() > 1

    def test_many_classes_keep_their_precision(self):
        # h = 6.4 of 1,000 classes: 1 - tanh h = 5e-6, of which float32's own 1 - x keeps two digits
        z = torch.zeros(1, 1000)
        z[0, 0] = 5.0
        y = torch.tensor([0])
        expected = ref.s_avuc(z.tolist(), [ref.onehot(0, 1000)])
        assert s_avuc(z, y).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("avuc", {"threshold": 0.0}, "above 0, found 0.0"),
        ("avuc_gs", {"threshold": -1.0}, "above 0"),
        ("avuc", {"threshold": math.nan}, "above 0"),
        ("s_avuc", {"threshold": 0.0}, "0 < threshold < 1"),
        ("s_avuc", {"threshold": 1.0}, "0 < threshold < 1"),
        ("s_avuc", {"temperature": 0.0}, "temperature > 0"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(InputError, match=message):
        LOSSES[name][0](*sample(), **options)
    with pytest.raises(InputError, match=message):
        losses.make(name, **options)


def test_reward_certainty_where_right_and_doubt_where_wrong():
    sure, blunt = torch.tensor([[6.0, 0.0, 0.0]]), torch.tensor([[0.6, 0.0, 0.0]])
    y = torch.tensor([0, 1])
    for name, (loss, _) in LOSSES.items():
        good = loss(torch.cat([sure, blunt]), y)
        bad = loss(torch.cat([blunt, sure]), y)
        assert good < bad, name


@pytest.mark.slow
class TestTraining:
    def test_s_avuc_is_certain_where_right_and_uncertain_where_wrong(self):
        run, plain = train(losses.get("s_avuc"), seed=0), plain_run()
        actual = [s_avuc(fit.train_logits, fit.train_labels).item() for fit in (run, plain)]
        assert actual[0] < 0.5 * actual[1]

    def test_stopping_the_gradient_through_the_confidence_repairs_avuc(self):
        # appendix F: AvUC asks for less confidence in right, uncertain rows, and does harm; with
        # c held constant its own value falls and the training rows stay calibrated
        harmed = train(losses.get("avuc", beta=3.0), seed=0)
        repaired = train(losses.get("avuc_gs", beta=3.0), seed=0)
        plain = plain_run()

        def error(run):
            return float(metrics.ece(run.train_logits, run.train_labels))

        def value(run):
            return avuc(run.train_logits, run.train_labels).item()

        assert error(harmed) > 5 * error(plain) > 5 * error(repaired)
        assert value(repaired) < 0.5 * value(plain)
