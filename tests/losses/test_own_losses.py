"""Losses of users' own: `compute` gives the formula, the base class does all the rest."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from calibrant import losses
from calibrant.core.errors import InputError


class Gap(losses.SecondaryLoss):
    name = "gap"

    def compute(self, rows):
        return rows.mean(rows.confidence - rows.correct).abs()


class Squared(losses.PrimaryLoss):
    name = "squared"

    def compute(self, rows):
        return (rows.log_probs.exp() - rows.truth).square().sum(1)


class PerBatch(losses.PrimaryLoss):
    name = "per_batch"

    def compute(self, rows):
        return rows.log_probs.mean()


class PerRow(losses.SecondaryLoss):
    name = "per_row"

    def compute(self, rows):
        return rows.confidence


def batch(seed=0, rows=40, classes=5):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, classes, generator=generator)
    return logits, torch.randint(0, classes, (rows,), generator=generator)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_primary_loss_equals_the_built_in_one_of_its_formula(reduction, weighted):
    logits, labels = batch()
    labels[::4] = -100
    options = {"reduction": reduction, "weight": torch.arange(1.0, 6.0) if weighted else None}
    own = Squared(**options)(logits, labels)
    assert torch.allclose(own, losses.Brier(**options)(logits, labels))
    dense = logits.reshape(2, 4, 5, 5).permute(0, 3, 1, 2), labels.reshape(2, 4, 5)
    theirs = losses.Brier(**options)(*dense)
    assert torch.allclose(Squared(**options)(*dense), theirs)


def test_ignored_rows_do_not_count_whatever_they_hold():
    logits, labels = batch()
    kept = torch.arange(40) % 4 != 0
    expected = (
        logits[kept].softmax(1).amax(1).mean()
        - (logits[kept].argmax(1) == labels[kept]).float().mean()
    ).abs()
    spoilt = labels.where(kept, -100)
    for loss in (Gap(), losses.compose(losses.Focal(), (1.0, Gap()))):
        value = loss(logits, spoilt)
        other = loss(logits.where(kept[:, None], 100.0 * torch.randn(40, 5)), spoilt)
        assert torch.allclose(value, other)
    assert torch.allclose(Gap()(logits, spoilt), expected)
    assert torch.allclose(Gap(reduction="sum")(logits, spoilt), 30 * expected)


def test_class_probabilities_of_one_class_are_labels():
    logits, labels = batch()
    hot = F.one_hot(labels, 5).float()
    for loss in (Gap(), Squared()):
        assert torch.allclose(loss(logits, hot), loss(logits, labels))


def test_gradients_reach_the_logits():
    logits, labels = batch()
    labels[0] = -100
    logits.requires_grad_()
    losses.compose(Squared(), (0.5, Gap()))(logits, labels).backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[0] == 0).all()
    assert (logits.grad[1:].abs().sum(1) > 0).all()


def test_values_of_the_wrong_shape_are_refused():
    logits, labels = batch()
    with pytest.raises(InputError, match=r"PerBatch\.compute must return one value per row"):
        PerBatch()(logits, labels)
    with pytest.raises(InputError, match=r"PerRow\.compute must return one value of the batch"):
        PerRow()(logits, labels)


def test_a_composed_loss_shows_the_history_of_its_parts():
    ranking = losses.get("crl", num_samples=40)
    logits, labels = batch()
    ranking(logits.requires_grad_(), labels, index=torch.arange(40))
    assert ranking.history.counts[1].tolist() == [1] * 40
    assert losses.get("cross_entropy+mdca").history is None


def test_labels_near_two_to_the_64_are_not_ignored():
    logits, _ = batch(rows=2)
    labels = torch.tensor([0, 2**64 - 100], dtype=torch.uint64)
    with pytest.raises(InputError, match=r"below 2\^63, found 18446744073709551516"):
        losses.get("focal")(logits, labels)
    fine = torch.tensor([0, 1], dtype=torch.uint64)
    assert torch.isfinite(losses.get("focal")(logits, fine))
