"""MDCA and the confidence penalty."""

import math

import numpy as np
import pytest
import torch

from calibrant import losses
from calibrant.losses import confidence_penalty, mdca
from tests.helpers.batch_losses import (
    BATCHES,
    agrees,
    gradient,
    holds_for_any_batch_loss,
    plain_run,
    probabilities,
    sample,
)
from tests.helpers.digits_training import train
from tests.reference import losses_batch as ref

LOSSES = {"mdca": mdca, "confidence_penalty": confidence_penalty}


class TestReference:
    def test_mdca_by_hand(self):
        # (.75,.25) and (.25,.75), both labelled 0: mean p is (.5,.5) and the shares are (1,0),
        # (.5 + .5)/2 = .5; labelled 0 and 1 the means are the shares
        logits = [[math.log(3), 0.0], [0.0, math.log(3)]]
        assert ref.mdca(logits, [[1.0, 0.0], [1.0, 0.0]]) == pytest.approx(0.5)
        assert ref.mdca(logits, [[1.0, 0.0], [0.0, 1.0]]) == pytest.approx(0)
        # the label (.5,.5) for the first: shares (.25,.75), |.25|·2/2
        assert ref.mdca(logits, [[0.5, 0.5], [0.0, 1.0]]) == pytest.approx(0.25)

    def test_confidence_penalty_by_hand(self):
        # uniform over 2 and certain: -(ln 2 + 0)/2
        actual = ref.confidence_penalty([[0.0, 0.0], [800.0, 0.0]], [[1.0, 0.0]] * 2)
        assert actual == pytest.approx(-math.log(2) / 2)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("batch", BATCHES)
def test_value_is_the_reference(name, batch):
    agrees(LOSSES[name], getattr(ref, name), batch)


@pytest.mark.parametrize("name", LOSSES)
def test_contract(name):
    holds_for_any_batch_loss(LOSSES[name])


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("batch", ["hard", "soft", "dense"])
def test_gradcheck(name, batch):
    z, target, extra = BATCHES[batch]
    z = z.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: LOSSES[name](z, target, **extra), z)


@pytest.mark.parametrize("name", LOSSES)
def test_module_is_the_function(name):
    z, y = sample()
    y[3] = 7
    z[3] = 50.0
    module = losses.make(name, ignore_index=7)
    assert torch.equal(module(z, y), LOSSES[name](z, y, ignore_index=7))
    summed = losses.make(name, ignore_index=7, reduction="sum")
    assert torch.equal(summed(z, y), LOSSES[name](z, y, ignore_index=7, reduction="sum"))


def test_default_weights():
    z, y = sample()
    for name, beta in (("mdca", 1.0), ("confidence_penalty", 0.1)):
        expected = losses.cross_entropy(z, y) + beta * LOSSES[name](z, y)
        torch.testing.assert_close(losses.get(name)(z, y), expected)


class TestMDCA:
    def test_gradient_by_hand(self):
        # L = (1/K) Σ_k |g_k|, g_k = mean p_nk - share_k: ∂L/∂p_nk = s_k/(KN) with s_k the sign of
        # g_k, and ∂p_k/∂z_j = p_k(1[k=j] - p_j), so (1/KN) p_j (s_j - Σ_k s_k p_k)
        z, y = sample()
        p = probabilities(z.numpy())
        signs = np.sign(p.mean(0) - np.eye(5)[y.numpy()].mean(0))
        assert set(signs) == {-1.0, 1.0}
        expected = p * (signs - (p * signs).sum(1, keepdims=True)) / (5 * len(p))
        np.testing.assert_allclose(gradient(mdca, z, y).numpy(), expected, rtol=1e-10, atol=1e-15)

    def test_no_gradient_where_the_means_agree(self):
        # exact in floating point: p is 1/2 and both classes occur once
        z, y = torch.zeros(2, 2, dtype=torch.float64), torch.tensor([0, 1])
        assert mdca(z, y).item() == 0
        assert gradient(mdca, z, y).abs().max() == 0

    def test_a_calibrated_marginal_has_no_error_whatever_the_rows(self):
        # each row certain and wrong, yet every class is predicted as often as it occurs
        z = torch.eye(4, dtype=torch.float64) * 50
        assert mdca(z, torch.tensor([1, 2, 3, 0])).item() == pytest.approx(0, abs=1e-15)

    def test_as_label_smoothing_it_is_not_monotone_in_the_logit(self):
        # acls eq. 8 reads ∂(CE + MDCA)/∂z_ŷ as p_ŷ - (q_ŷ - f), so f is MDCA's own gradient,
        # p_ŷ(1 - Σ_k s_k p_k)/K for a batch of one row. With z_ŷ the only logit not 0 and a wrong
        # prediction of 10 classes, s is -1 for the label and 1 for the rest, and f = 2p_ŷ p_y/K
        # with p_y = (1 - p_ŷ)/9: as supplement (13)'s λp(1-p), it rises until p_ŷ = 1/2 and falls
        def smoothing(logit):
            z = torch.zeros(1, 10, dtype=torch.float64)
            z[0, 3] = logit
            return gradient(mdca, z, torch.tensor([7]))[0, 3].item()

        def by_hand(logit):
            p = math.exp(logit) / (math.exp(logit) + 9)
            return 2 * p * (1 - p) / 9 / 10

        grid = np.linspace(0.5, 8, 31)
        actual = [smoothing(logit) for logit in grid]
        np.testing.assert_allclose(actual, [by_hand(logit) for logit in grid], rtol=1e-9)
        steps = np.diff(actual)
        assert (steps[:5] > 0).all()
        assert (steps[-5:] < 0).all()

    def test_training_brings_batch_means_to_the_class_shares(self):
        def batch_error(run):
            order = torch.randperm(
                len(run.train_labels), generator=torch.Generator().manual_seed(3)
            )
            parts = order.split(60)
            each = [mdca(run.train_logits[rows], run.train_labels[rows]) for rows in parts]
            return float(sum(each)) / len(each)

        plain = plain_run()
        run = train(losses.get("mdca", beta=10.0), seed=0)
        assert batch_error(run) < 0.9 * batch_error(plain)


class TestConfidencePenalty:
    def test_gradient_by_hand(self):
        # -h = Σ p ln p: ∂/∂z_j = Σ_k (ln p_k + 1) p_k (1[k=j] - p_j) = p_j (ln p_j + h)
        z, y = sample()
        p = probabilities(z.numpy())
        h = -(p * np.log(p)).sum(1, keepdims=True)
        expected = p * (np.log(p) + h) / len(p)
        actual = gradient(confidence_penalty, z, y).numpy()
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-15)

    @pytest.mark.parametrize("classes", [2, 10, 1000])
    def test_lies_between_minus_ln_k_and_zero(self, classes):
        y = torch.tensor([0])
        uniform = torch.zeros(1, classes, dtype=torch.float64)
        certain = torch.zeros(1, classes, dtype=torch.float64)
        certain[0, 0] = 1e4
        assert confidence_penalty(uniform, y).item() == pytest.approx(-math.log(classes))
        assert confidence_penalty(certain, y).item() == 0

    def test_labels_do_not_matter(self):
        z, y = sample()
        assert torch.equal(confidence_penalty(z, y), confidence_penalty(z, (y + 1) % 5))

    def test_training_leaves_more_entropy_and_less_overconfidence(self):
        from calibrant.metrics import ece

        plain = plain_run()
        run = train(losses.get("confidence_penalty"), seed=0)

        def entropy(actual):
            return -float(confidence_penalty(actual.test_logits, actual.test_labels))

        assert entropy(run) > 1.1 * entropy(plain)
        assert ece(run.test_logits, run.test_labels) < ece(plain.test_logits, plain.test_labels)
