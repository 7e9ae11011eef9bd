"""MaC-Cal's head: the training by itself, its switches, and the calibrator around it."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import calibrant
from calibrant import Predictions, calibrators, metrics
from calibrant.calibrators import get
from calibrant.calibrators.heads.mac_cal_head import GAMMA, GAMMAS, train_head
from calibrant.calibrators.heads.mac_cal_mask import (
    MaskedHeads,
    Settings,
    eta_at,
    logits_of,
    next_sparsity,
)
from calibrant.cli import app
from calibrant.core.errors import InputError

# The paper's table 5 below its first row: each row adds one component to the row above.
TABLE_5 = {
    "masked_retraining": Settings(head="linear", restrict_gradient=False, schedule="fixed"),
    "gradient_restriction": Settings(head="linear", schedule="fixed"),
    "classifier_restructure": Settings(schedule="fixed"),
    "static_adaptive_sparsity": Settings(schedule="constant"),
    "decaying_adaptive_sparsity": Settings(),
}


def sparsity_trace(confidence, accuracy, *, gamma=GAMMA, settings=None):
    """Return s_0, s_1, ..., s_T that these Conf_t and Acc_t, t = 1..T, lead to."""
    how = settings or Settings()
    trace = [how.sparsity]
    for epoch, (conf, acc) in enumerate(zip(confidence, accuracy, strict=True), start=1):
        eta = eta_at(epoch, len(confidence), how.schedule)
        trace.append(next_sparsity(trace[-1], conf, acc, gamma=gamma, eta=eta, reading=how.reading))
    return trace


HEADS = ("bottleneck", "linear")
SMALL = {"epochs": 6, "batch_size": 32, "width": 16}


def clusters(rows=300, width=12, classes=4, seed=0, spread=1.5):
    """Classes that overlap, as features of a network might."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, width))
    labels = generator.integers(classes, size=rows)
    features = centres[labels] + spread * generator.normal(size=(rows, width))
    return torch.from_numpy(features).float(), torch.from_numpy(labels)


def heads_of(head, count=1, *, sizes=(7, 5, 3), **options):
    """Heads in float64 whose weights differ from one another."""
    how = Settings(head=head, width=sizes[1] if head == "bottleneck" else None, **options)
    made = MaskedHeads.fresh(how.sizes(sizes[0], sizes[2]), how, dtype=torch.float64)
    made = made.select([0] * count)
    made.values.add_(0.3 * torch.randn(made.values.shape, generator=seeded(3)))
    return made


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def batch(rows=11, width=7, classes=3):
    features = torch.randn(rows, width, generator=seeded(1), dtype=torch.float64)
    return features, torch.randint(classes, (rows,), generator=seeded(2))


# The gradient and the step.


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("count", [1, 3])
def test_the_gradient_is_that_of_autograd(head, count):
    made = heads_of(head, count)
    made.set_sparsity([0.2, 0.5, 0.8][:count])
    made.draw_masks(seeded(0))
    features, target = batch()
    made.compute_gradient(features, target)
    leaves = [
        (value * mask).requires_grad_()
        for value, mask in zip(made.parts(made.values), made.parts(made.mask), strict=True)
    ]
    loss = 0.0
    for place in range(count):
        out = features @ leaves[0][:, place] + leaves[1][place]
        if head == "bottleneck":
            out = torch.relu(out) @ leaves[2][place] + leaves[3][place]
        loss = loss + nn.functional.cross_entropy(out, target)
    expected = torch.autograd.grad(loss, leaves)
    for slope, wanted in zip(made.parts(made.slope), expected, strict=True):
        torch.testing.assert_close(slope, wanted, atol=1e-14, rtol=1e-12)


def naive_step(weights, biases, velocity, masks, features, target, *, rule, lr, mu, decay):
    """One step of a linear head, number by number: mac-cal eq. 9 to 11 with momentum.

    ``velocity`` is that of weights then of biases; rules: ``held``, ``gradient``, ``through``.
    """
    rows, width, classes = len(features), len(weights), len(biases)
    slope = [[0.0] * classes for _ in range(width)]
    bias_slope = [0.0] * classes
    for row, label in zip(features, target, strict=True):
        logits = [
            sum(row[d] * masks[d][k] * weights[d][k] for d in range(width)) + biases[k]
            for k in range(classes)
        ]
        top = max(logits)
        powers = [math.exp(z - top) for z in logits]
        for k in range(classes):
            error = (powers[k] / sum(powers) - (1.0 if k == label else 0.0)) / rows
            bias_slope[k] += error
            for d in range(width):
                slope[d][k] += row[d] * error
    for d in range(width):
        for k in range(classes):
            if rule == "held" and masks[d][k] == 0:
                continue
            g = slope[d][k] * (1.0 if rule == "through" else masks[d][k])
            velocity[0][d][k] = mu * velocity[0][d][k] + g + decay * weights[d][k]
            weights[d][k] -= lr * velocity[0][d][k]
    for k in range(classes):
        velocity[1][k] = mu * velocity[1][k] + bias_slope[k] + decay * biases[k]
        biases[k] -= lr * velocity[1][k]


RULES = {
    "held": {},
    "gradient": {"reading": "printed"},
    "through": {"restrict_gradient": False},
}


@pytest.mark.parametrize("rule", RULES)
def test_steps_are_those_worked_out_number_by_number(rule):
    made = heads_of("linear", **RULES[rule], weight_decay=0.01)
    made.set_sparsity([0.5])
    features, target = batch()
    weight, bias = (
        part.squeeze(i).tolist()
        for i, part in ((1, made.parts(made.values)[0]), (0, made.parts(made.values)[1]))
    )
    velocity = [[[0.0] * 3 for _ in range(7)], [0.0] * 3]
    generator = seeded(0)
    for _ in range(4):
        made.draw_masks(generator)
        masks = made.parts(made.mask)[0].squeeze(1).tolist()
        made.compute_gradient(features, target)
        made.update()
        naive_step(
            weight, bias, velocity, masks, features.tolist(), target.tolist(),
            rule=rule, lr=0.1, mu=0.9, decay=0.01,
        )  # fmt: skip
    values = made.parts(made.values)
    torch.testing.assert_close(values[0].squeeze(1), torch.tensor(weight, dtype=torch.float64))
    torch.testing.assert_close(values[1].squeeze(0), torch.tensor(bias, dtype=torch.float64))
    held = torch.tensor(velocity[0], dtype=torch.float64)
    torch.testing.assert_close(made.parts(made.velocity)[0].squeeze(1), held)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rule", RULES)
def test_masked_weights_rest_only_where_they_are_held(head, rule):
    made = heads_of(head, 2, **RULES[rule])
    made.velocity.add_(0.1)
    made.set_sparsity([0.3, 0.7])
    made.draw_masks(seeded(0))
    values, velocity = made.values.clone(), made.velocity.clone()
    made.compute_gradient(*batch())
    made.update()
    masked = made.mask == 0
    assert masked.any()
    assert (made.values != values)[~masked].all()
    if rule == "held":
        assert torch.equal(made.values[masked], values[masked])
        assert torch.equal(made.velocity[masked], velocity[masked])
    else:
        assert (made.values != values)[masked].all()
    if rule == "gradient":  # by momentum and decay, not by the gradient
        coasting = 0.9 * velocity[masked] + 5e-4 * values[masked]
        torch.testing.assert_close(made.velocity[masked], coasting)


def test_biases_are_never_masked_and_weights_at_the_given_rate():
    how = Settings()
    made = MaskedHeads.fresh((400, 50, 10), how).select([0, 0, 0])
    shares = [0.0, 0.3, 0.98]
    made.set_sparsity(shares)
    generator = seeded(0)
    made.draw_masks(generator)
    first, first_bias, second, second_bias = (part.clone() for part in made.parts(made.mask))
    assert bool((first_bias == 1).all() and (second_bias == 1).all())
    assert set(first.unique().tolist()) == {0.0, 1.0}
    for head, share in enumerate(shares):
        for weights in (first[:, head], second[head]):
            error = math.sqrt(share * (1 - share) / weights.numel())
            assert abs(float((weights == 0).double().mean()) - share) <= 5 * error
    # The same bits for all: what a dense head masks, a sparser one masks too.
    assert bool((first[:, 2] <= first[:, 1]).all())
    made.draw_masks(generator)
    assert float((made.parts(made.mask)[0][:, 1] != first[:, 1]).double().mean()) > 0.3


# The sparsity.


def test_the_sparsity_follows_equations_12_and_13():
    confidence, accuracy = [0.99, 0.97, 0.93, 0.96], [1.0, 0.99, 0.98, 1.0]
    expected, s = [0.5], 0.5
    for t in (1, 2, 3, 4):
        eta = 0.1 * (0.001 / 0.1) ** (t / 4)
        gap = confidence[t - 1] - 0.95 * accuracy[t - 1]
        s += max(-eta, min(eta, gap))
        expected.append(s)
    trace = sparsity_trace(confidence, accuracy, gamma=0.95)
    assert trace == pytest.approx(expected, abs=1e-15)
    # In numbers: +0.0316 (clipped at η_1), +0.01 (η_2), −0.001, +0.001 (η_4).
    assert trace[1] == pytest.approx(0.5 + 0.1 / math.sqrt(10))
    assert trace[2] - trace[1] == pytest.approx(0.01)
    assert trace[3] - trace[2] == pytest.approx(0.93 - 0.95 * 0.98)
    assert trace[4] - trace[3] == pytest.approx(0.001)


def test_eta_decays_from_a_tenth_to_a_thousandth():
    assert eta_at(40, 40) == pytest.approx(0.001)
    assert eta_at(20, 40) == pytest.approx(0.01)
    assert eta_at(1, 40) == pytest.approx(0.1 * 0.01 ** (1 / 40))
    assert eta_at(7, 40, "constant") == 0.05
    assert eta_at(7, 40, "fixed") == 0.0


def test_the_sparsity_is_held_between_0_and_98_percent():
    constant = Settings(schedule="constant")
    high = sparsity_trace([1.0] * 20, [0.5] * 20, gamma=0.9, settings=constant)
    low = sparsity_trace([0.2] * 20, [1.0] * 20, gamma=0.9, settings=constant)
    assert max(high) == high[-1] == 0.98
    assert min(low) == low[-1] == 0.0
    assert high[:3] == pytest.approx([0.5, 0.55, 0.6])
    fixed = dataclasses.replace(constant, schedule="fixed")
    assert sparsity_trace([1.0] * 5, [0.5] * 5, settings=fixed) == [0.5] * 6


def test_as_printed_overconfidence_keeps_more():
    printed = Settings(reading="printed", schedule="constant")
    trace = sparsity_trace([1.0] * 20, [0.5] * 20, gamma=0.9, settings=printed)
    assert trace[1] == pytest.approx(0.45)
    assert trace[-1] == 0.0  # q runs to 1
    assert next_sparsity(0.97, 0.0, 1.0, gamma=1, eta=0.1, reading="printed") == 1.0


@pytest.mark.parametrize("options", [{}, {"schedule": "constant"}, {"reading": "printed"}])
def test_training_obeys_its_own_trace(options):
    features, target = clusters()
    how = Settings(**SMALL, **options)
    head = train_head(features, target, 4, settings=how, gammas=(0.93,)).chosen
    assert len(head.confidence) == len(head.accuracy) == 6
    expected = sparsity_trace(head.confidence, head.accuracy, gamma=0.93, settings=how)
    assert head.sparsity == expected
    assert len(set(expected)) > 3


# Inference.


@pytest.mark.parametrize("head", HEADS)
def test_inference_uses_expected_weights(head):
    sparsity = 0.25
    made = heads_of(head, 2)
    made.set_sparsity([sparsity, 0.5])
    weights = made.parts(made.values)
    features, target = batch()
    out = features @ (weights[0][:, 0] * 0.75) + weights[1][0]
    if head == "bottleneck":
        out = torch.relu(out) @ (weights[2][0] * 0.75) + weights[3][0]
    torch.testing.assert_close(logits_of(features, made.layers(0)), out)
    confidence, accuracy = made.measure(features, target)[0].tolist()
    assert confidence == pytest.approx(float(out.softmax(1).amax(1).mean()), abs=1e-12)
    assert accuracy == pytest.approx(float((out.argmax(1) == target).double().mean()))


def test_as_printed_inference_is_unmasked():
    made = heads_of("linear", reading="printed")
    made.set_sparsity([0.6])
    assert torch.equal(made.layers(0)[0][0], made.parts(made.values)[0][:, 0])


def test_what_was_measured_last_is_what_is_deployed():
    features, target = clusters()
    for scale in (1.0, 100.0, 1e-4):  # the scale is folded into the first layer
        made = get("mac_cal_head", **SMALL).fit(scale * features, target)
        probs = made.predict_proba(scale * features)
        confidence = float(probs.amax(1).double().mean())
        assert made.summary_["confidence"][-1] == pytest.approx(confidence, abs=1e-5)
        right = float((probs.argmax(1) == target).double().mean())
        assert made.summary_["accuracy"][-1] == pytest.approx(right)
        assert made.summary_["ece_after"] == pytest.approx(
            float(metrics.ece(made.calibrate(scale * features), target))
        )


def test_features_of_any_scale_can_be_learned_from():
    features, target = clusters(spread=0.5)
    for scale in (1e-6, 1e-2, 1.0, 1e2, 1e4):
        made = get("mac_cal_head", epochs=15).fit(scale * features, target)
        assert made.summary_["accuracy_after"] > 0.9, scale


# Several γ.


@pytest.mark.parametrize("best", [0.86, 0.9, 0.95, 0.7, 0.4, 1.0])
def test_grid_widens_while_the_choice_is_at_its_edge(best, monkeypatch):
    """With a validation error that is least at ``best``, the γ nearest to it is found."""

    def validate(heads, runs, head_of, validation):
        for run in runs:
            run.validation_ece, run.validation_accuracy = abs(run.gamma - best), 0.9

    monkeypatch.setattr("calibrant.calibrators.heads.mac_cal_head._validate", validate)
    features, target = clusters()
    held = clusters(seed=1)
    made = get("mac_cal_head", **{**SMALL, "epochs": 2}).fit(features, target, validation=held)
    nearest = max(best, 0.5)
    assert made.summary_["gamma"] == pytest.approx(nearest, abs=0.0051)
    tried = [row["gamma"] for row in made.summary_["gammas"]]
    assert tried[:9] == list(GAMMAS)
    assert min(tried) >= 0.5
    assert len(tried) == len(set(tried))
    if best == 0.95:
        assert len(tried) == 9
    kept = get("mac_cal_head", **{**SMALL, "epochs": 2}, gammas=[made.summary_["gamma"]])
    kept.fit(features, target, validation=held)
    torch.testing.assert_close(made.weight_, kept.weight_, atol=1e-5, rtol=1e-5)
    for fixed in ({"race": True}, {"gammas": GAMMAS}):
        held_to = get("mac_cal_head", **{**SMALL, "epochs": 2}, **fixed)
        held_to.fit(features, target, validation=held)
        assert len(held_to.summary_["gammas"]) == 9


def test_a_trained_classifier_is_where_it_begins():
    features, target = clusters()
    layer = nn.Linear(features.shape[1], 4).to(features.dtype)
    options = {"head": "linear", "start": "trained", "schedule": "fixed", "sparsity": 0.0}
    options |= {"gamma": 1.0, "epochs": 1, "batch_size": 32}
    for factor in (1.0, 50.0):  # features that are scaled in training, too
        made = get("mac_cal_head", **options, learning_rate=1e-9, weight_decay=0.0)
        made.begin_from(layer)
        made.fit(factor * features, target)
        torch.testing.assert_close(made.weight_, layer.weight.t(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(made.bias_, layer.bias, atol=1e-5, rtol=1e-4)
    with pytest.raises(InputError, match=r"call begin_from\(classifier\) before fit"):
        get("mac_cal_head", **options).fit(features, target)
    with pytest.raises(InputError, match="give head='linear'"):
        get("mac_cal_head", start="trained")
    with pytest.raises(InputError, match="start must be fresh or trained"):
        get("mac_cal_head", start="cold")
    wrong = get("mac_cal_head", **options)
    with pytest.raises(InputError, match="needs a linear classifier, found ReLU"):
        wrong.begin_from(nn.ReLU())
    wrong.begin_from(nn.Linear(3, 4))
    with pytest.raises(InputError, match="begins from a linear layer of"):
        wrong.fit(features, target)


def test_masks_of_an_epoch_are_the_same_in_all_its_batches(monkeypatch):
    drawn = []
    draw = MaskedHeads.draw_masks

    def note(self, generator):
        draw(self, generator)
        drawn.append(self.mask.clone())

    monkeypatch.setattr(MaskedHeads, "draw_masks", note)
    features, target = clusters()
    how = {**SMALL, "epochs": 3, "batch_size": 16}
    get("mac_cal_head", gamma=0.96, mask_every="epoch", **how).fit(features, target)
    assert len(drawn) == 3
    assert not torch.equal(drawn[0], drawn[1])
    drawn.clear()
    get("mac_cal_head", gamma=0.96, **how).fit(features, target)
    assert len(drawn) == 3 * math.ceil(len(target) / 16)


def test_heads_side_by_side_are_the_same_as_one_by_one():
    features, target = clusters()
    held = clusters(seed=1)
    gammas = (0.8, 0.9, 0.97)
    options = {"settings": Settings(**SMALL), "dtype": torch.float64}
    features, held = features.double(), (held[0].double(), held[1])
    together = train_head(
        features, target, 4, gammas=gammas, validation=held, race=False, **options
    )
    for gamma, run in zip(gammas, together.runs, strict=True):
        alone = train_head(features, target, 4, gammas=(gamma,), validation=held, **options)
        np.testing.assert_allclose(run.sparsity, alone.chosen.sparsity, atol=1e-9)
        np.testing.assert_allclose(run.confidence, alone.chosen.confidence, atol=1e-9)
        assert run.validation_ece == pytest.approx(alone.chosen.validation_ece, abs=1e-9)
        if run is together.chosen:
            for layer, wanted in zip(together.layers, alone.layers, strict=True):
                torch.testing.assert_close(layer[0], wanted[0], atol=1e-9, rtol=1e-9)


def test_gammas_share_a_head_until_they_part(monkeypatch):
    seen = []
    train = MaskedHeads.train_epoch

    def counted(self, *args):
        seen.append(self.count)
        return train(self, *args)

    monkeypatch.setattr(MaskedHeads, "train_epoch", counted)
    features, target = clusters()
    how = Settings(**{**SMALL, "epochs": 8})
    options = {"settings": how, "gammas": GAMMAS, "validation": clusters(seed=1)}
    raced = train_head(features, target, 4, race=True, **options)
    assert seen[0] == 1  # s_0 is the same for all
    assert max(seen) <= len(GAMMAS)
    assert all(count <= 4 for count in seen[2:4])  # after a quarter
    assert all(count <= 2 for count in seen[4:])  # after half
    assert sum(run.epochs == 8 for run in raced.runs) == 2
    assert all(run.epochs == 8 for run in train_head(features, target, 4, **options).runs)


def test_the_lowest_validation_ece_wins_where_accuracy_is_kept():
    features, target = clusters()
    held = clusters(rows=500, seed=1)
    options = {**SMALL, "gammas": GAMMAS}
    made = get("mac_cal_head", race=False, **options).fit(features, target, validation=held)
    table = made.summary_["gammas"]
    assert [row["gamma"] for row in table] == list(GAMMAS)
    best = max(row["validation_accuracy"] for row in table)
    allowed = best - max(0.01, 2 * math.sqrt(best * (1 - best) / 500))
    kept = [row for row in table if row["validation_accuracy"] >= allowed]
    chosen = min(kept, key=lambda row: row["validation_ece"])
    assert [row["gamma"] for row in table if row["chosen"]] == [chosen["gamma"]]
    assert made.summary_["gamma"] == chosen["gamma"]
    assert made.summary_["ece_validation"] == pytest.approx(chosen["validation_ece"], abs=1e-6)
    # The head is the chosen one's: its trace leads to what it gives.
    confidence = float(made.predict_proba(features).amax(1).double().mean())
    assert chosen["confidence"] == pytest.approx(confidence, abs=1e-5)


def test_without_validation_gamma_is_the_given_or_the_default():
    features, target = clusters()
    assert get("mac_cal_head", **SMALL).fit(features, target).summary_["gamma"] == 0.96
    made = get("mac_cal_head", gamma=0.9, **SMALL)
    assert made.fit(features, target, validation=clusters(seed=1)).summary_["gamma"] == 0.9
    assert len(made.summary_["gammas"]) == 1
    with pytest.raises(InputError, match="choosing gamma needs validation"):
        train_head(features, target, 4, gammas=(0.9, 0.95))


def test_rows_can_be_held_out_to_choose_on():
    features, target = clusters(rows=400)
    made = get("mac_cal_head", validation_fraction=0.25, **SMALL).fit(features, target)
    assert made.summary_["rows"] == 300
    assert made.summary_["gamma"] in GAMMAS
    assert 0 <= made.summary_["ece_validation"] <= 1


# Switches.


def test_a_smaller_gamma_asks_for_more_sparsity_and_less_confidence():
    features, target = clusters(rows=600, spread=0.5)
    low, high = (
        get("mac_cal_head", gamma=gamma, epochs=20, batch_size=32).fit(features, target).summary_
        for gamma in (0.8, 0.99)
    )
    assert low["sparsity"][-1] > high["sparsity"][-1] + 0.05
    assert low["confidence"][-1] < high["confidence"][-1] - 0.01


def test_table_5_goes_step_by_step():
    rows = list(TABLE_5.values())
    changed = []
    for before, after in pairwise(rows):
        pairs = zip(dataclasses.astuple(before), dataclasses.astuple(after), strict=True)
        changed.append(sum(step != other for step, other in pairs))
    assert changed == [1, 1, 1, 1]
    assert rows[0].head == "linear"
    assert not rows[0].restrict_gradient
    assert rows[-1] == Settings()


@pytest.mark.parametrize("row", TABLE_5)
def test_every_row_of_table_5_trains(row):
    features, target = clusters()
    options = dataclasses.asdict(dataclasses.replace(TABLE_5[row], **SMALL))
    made = get("mac_cal_head", **options).fit(features, target)
    assert made.summary_["accuracy_after"] > 0.7
    fixed = TABLE_5[row].schedule == "fixed"
    assert (len(set(made.summary_["sparsity"])) == 1) == fixed
    assert made.weight_.shape[0] == (12 if TABLE_5[row].head == "linear" else 16)
    assert (made.hidden_weight_.numel() == 0) == (TABLE_5[row].head == "linear")


def test_the_bottleneck_is_wider_for_many_classes():
    assert Settings().sizes(512, 32) == (512, 128, 32)
    assert Settings().sizes(512, 33) == (512, 256, 33)
    assert Settings(width=7).sizes(512, 10) == (512, 7, 10)
    assert Settings(head="linear").sizes(512, 10) == (512, 10)


def test_nothing_masked_is_plain_retraining():
    features, target = clusters()
    options = {"schedule": "fixed", "sparsity": 0.0, "epochs": 3, "batch_size": 300}
    made = get("mac_cal_head", head="linear", **options).fit(features, target)
    how = Settings(head="linear", **options)
    scale = made.summary_["scale"]
    start = MaskedHeads.fresh((12, 4), how).parts(MaskedHeads.fresh((12, 4), how).values)
    layer = nn.Linear(12, 4)
    with torch.no_grad():
        layer.weight.copy_(start[0].squeeze(1).t())
        layer.bias.copy_(start[1].squeeze(0))
    steps = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(3):
        steps.zero_grad()
        nn.functional.cross_entropy(layer(features / scale), target).backward()
        steps.step()
    torch.testing.assert_close(made(features), layer(features / scale), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"head": "deep"}, "head must be one of"),
        ({"reading": "mine"}, "reading must be one of"),
        ({"schedule": "cosine"}, "schedule must be one of"),
        ({"sparsity": 0.99}, r"sparsity must lie in \[0, 0.98\]"),
        ({"gamma": 0.0}, r"gamma must lie in \(0, 1\]"),
        ({"gammas": ()}, "gammas must be numbers"),
        ({"mask_every": "row"}, "mask_every must be one of"),
        ({"gammas": (0.9, 1.2)}, "gammas must be numbers"),
        ({"width": 0}, "width must be at least 1"),
        ({"epochs": 0}, "epochs and batch_size"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"momentum": 1.0}, "momentum"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"num_classes": 1}, "num_classes must be at least 2"),
    ],
)
def test_options_that_cannot_be_are_refused(options, says):
    with pytest.raises(InputError, match=says):
        get("mac_cal_head", **options)


# The calibrator.


def test_a_seed_gives_the_same_bits_and_another_others():
    features, target = clusters()
    held = clusters(seed=1)
    first, again, other = (
        get("mac_cal_head", seed=seed, **SMALL).fit(features, target, validation=held)
        for seed in (0, 0, 1)
    )
    assert torch.equal(first(features), again(features))
    assert first.summary_ == again.summary_
    assert not torch.equal(first(features), other(features))


def test_a_class_without_rows():
    features, target = clusters()
    kept = target != 1
    made = get("mac_cal_head", **SMALL).fit(features[kept], target[kept])
    assert made(features).shape == (300, 4)
    assert float(made.predict_proba(features[kept])[:, 1].mean()) < 0.05
    # The last class must be given, by number or by name.
    kept = target != 3
    assert get("mac_cal_head", **SMALL).fit(features[kept], target[kept])(features).shape[1] == 3
    made = get("mac_cal_head", num_classes=4, **SMALL).fit(features[kept], target[kept])
    assert made(features).shape[1] == 4
    with pytest.raises(InputError, match="all labels are 0"):
        get("mac_cal_head").fit(features, torch.zeros(300, dtype=torch.int64))
    with pytest.raises(InputError, match="out of range"):
        get("mac_cal_head", num_classes=3).fit(features, target)


HARD = {
    "one row": lambda x, y: (x[:1], torch.tensor([1])),
    "two rows": lambda x, y: (x[:2], torch.tensor([0, 1])),
    "a batch of one left over": lambda x, y: (x[:129], y[:129]),
    "one feature": lambda x, y: (x[:, :1], y),
    "huge": lambda x, y: (1e6 * x, y),
    "tiny": lambda x, y: (1e-9 * x, y),
    "far from zero": lambda x, y: (x + 1e3, y),
    "all zero": lambda x, y: (torch.zeros_like(x), y),
    "one column huge": lambda x, y: (torch.cat((1e5 * x[:, :1], x[:, 1:]), 1), y),
    "a class a row": lambda x, y: (x[:40], torch.arange(40)),
}


@pytest.mark.parametrize("case", HARD)
def test_hard_features_give_a_finite_head(case):
    features, target = HARD[case](*clusters())
    made = get("mac_cal_head", epochs=5).fit(features, target)
    assert torch.isfinite(made(features)).all()
    assert math.isfinite(made.summary_["nll_after"])
    json.dumps(made.summary_, allow_nan=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_features_of_every_precision(dtype):
    features, target = clusters(spread=0.5)
    features = features.to(dtype)
    made = get("mac_cal_head", **SMALL).fit(features, target)
    assert made.weight_.dtype == torch.float32
    assert made.summary_["accuracy_after"] > 0.9
    assert torch.isfinite(made(features)).all()


def test_bad_features_are_refused():
    features, target = clusters(rows=20)
    made = get("mac_cal_head", **SMALL)
    broken = features.clone()
    broken[3, 1] = torch.nan
    for given, labels, says in (
        (broken, target, "NaN or infinity, first in rows 3"),
        (features.reshape(20, 3, 4), target, r"shape \(N, D\), found \(20, 3, 4\)"),
        (features[:, 0], target, r"shape \(N, D\)"),
        (features[:0], target[:0], "empty"),
        (target.reshape(20, 1), target, "floating point"),
        (features, target[:-1], "lengths differ"),
        (features, target - 5, "out of range"),
        (features, target.float(), "integers"),
    ):
        with pytest.raises(InputError, match=says):
            made.fit(given, labels)
    with pytest.raises(InputError, match="validation features have width 3"):
        made.fit(features, target, validation=(features[:, :3], target))
    with pytest.raises(InputError, match="no label is left"):
        made.fit(features, torch.full((20,), -1), ignore_index=-1)
    with pytest.raises(InputError, match=r"diverged in epoch 1; give a smaller learning_rate"):
        get("mac_cal_head", learning_rate=1e30).fit(features, target)
    assert not made.is_fitted


def test_ignored_rows_do_not_count():
    features, target = clusters()
    more = torch.cat((features, -features[:30]))
    marked = torch.cat((target, torch.full((30,), -100)))
    made = get("mac_cal_head", **SMALL).fit(more, marked, ignore_index=-100)
    assert torch.equal(made(features), get("mac_cal_head", **SMALL).fit(features, target)(features))


def test_the_head_takes_the_place_of_the_last_layer(tmp_path):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Dropout(0.5))
    rows, target = clusters(spread=0.5)
    loader = DataLoader(TensorDataset(rows, target), batch_size=64)
    made = get("mac_cal_head", epochs=20, batch_size=32)
    made.fit_loader(body, loader, progress=False, class_names=["a", "b", "c", "d"])
    assert body[2].training  # it was run in evaluation mode, and restored
    loaded = calibrant.load(made.save(tmp_path / "head.safetensors"))
    assert loaded.class_names_ == ("a", "b", "c", "d")
    whole = calibrant.attach(body, loaded).eval()
    output = whole(rows)
    assert output.shape == (300, 4)
    assert torch.equal(output, made(body(rows)))
    assert float((output.argmax(1) == target).double().mean()) > 0.7

    class Giving(nn.Module):
        def forward(self, x):
            return body(x), x

    logits, kept = calibrant.attach(Giving(), loaded)(rows)
    assert torch.equal(logits, output)
    assert torch.equal(kept, rows)

    class Naming(nn.Module):
        def forward(self, x):
            return {"features": body(x)}

    with pytest.raises(InputError, match="expected a tensor, or a tuple that starts with one"):
        calibrant.attach(Naming(), loaded)(rows)


def test_a_damaged_head_is_refused(tmp_path):
    made = get("mac_cal_head", **SMALL).fit(*clusters())
    path = made.save(tmp_path / "head.safetensors")
    from safetensors import safe_open

    with safe_open(path, framework="pt") as opened:
        metadata = opened.metadata()
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    for key, value in (("weight_", torch.ones(16, 3)), ("hidden_weight_", torch.ones(12, 5))):
        save_file({**tensors, key: value}, path, metadata=metadata)
        with pytest.raises(InputError, match="damaged"):
            calibrant.load(path)


def test_heads_are_never_chosen_and_ask_for_features(monkeypatch):
    logits, labels = clusters(rows=120, width=4)
    scores = Predictions.from_logits(logits, labels)
    for call in (
        lambda: calibrant.calibrate(scores, method="mac_cal_head"),
        lambda: calibrators.rank(scores, methods=["mac_cal_head"]),
        lambda: calibrators.CalibrantClassifier(method="mac_cal_head").fit(
            logits.numpy(), labels.numpy()
        ),
    ):
        with pytest.raises(InputError, match=r"is fitted on features.*'features' \(N, D\)"):
            call()
    with pytest.raises(InputError, match="takes features, not predictions"):
        calibrators.apply(get("mac_cal_head", **SMALL).fit(logits, labels), scores)
    chosen = calibrant.calibrate(scores, menu=["temperature", "mac_cal_head"]).choice_
    (note,) = [
        candidate.note for candidate in chosen.candidates if candidate.method == "mac_cal_head"
    ]
    assert "is fitted on features" in note
    monkeypatch.setattr(sys.modules["calibrant.calibrators.rank"], "_measure", lambda *_: [0.0] * 7)
    ranked = calibrators.rank(scores, scores)
    assert "temperature" in ranked.methods
    assert "mac_cal_head" not in (*ranked.methods, *ranked.notes)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_gives_a_head_as_good():
    features, target = clusters(rows=2000)
    here = get("mac_cal_head").fit(features, target)
    on_device = get("mac_cal_head").fit(features.cuda(), target.cuda())
    assert on_device.weight_.is_cuda
    for key in ("nll_after", "accuracy_after"):
        assert on_device.summary_[key] == pytest.approx(here.summary_[key], abs=0.03)


# The command line.

runner = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    for name, seed in (("train", 0), ("val", 1), ("test", 2)):
        features, labels = clusters(seed=seed)
        save_file({"features": features, "labels": labels}, folder / f"{name}.safetensors")
        names = np.array(["a", "b", "c", "d"])
        np.savez(
            folder / f"{name}.npz",
            features=features.numpy(),
            labels=labels.numpy(),
            class_names=names,
        )
    features, labels = clusters(width=4)
    Predictions.from_logits(features, labels).write(folder / "logits.npz")
    return folder


def run(*arguments):
    return runner.invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_fit_then_apply_on_files_of_features(folder, ending):
    head, out = folder / "head.safetensors", folder / "out.npz"
    named = ["--validation", folder / f"val.{ending}"] if ending == "npz" else []
    done = run("fit", folder / f"train.{ending}", "--method", "mac_cal_head", "-o", head, *named)
    assert done.exit_code == 0, done.output
    assert "mac_cal_head: gamma" in done.output
    assert ("validation rows" in done.output) == bool(named)
    done = run("apply", head, folder / f"test.{ending}", "-o", out)
    assert done.exit_code == 0, done.output
    after = Predictions.read(out)
    assert after.is_logits
    assert after.num_classes == 4
    assert after.class_names == (("a", "b", "c", "d") if ending == "npz" else None)
    assert float(metrics.accuracy(after.array, after.labels)) > 0.7
    quiet = run("fit", folder / "train.npz", "--method", "mac_cal_head", "-o", head, "-q")
    assert quiet.output == ""


@pytest.mark.parametrize("method", ["tst_head", "vtst_head"])
def test_the_other_heads_on_files_of_features(folder, method):
    head, out = folder / f"{method}.safetensors", folder / f"{method}.npz"
    named = ["--validation", folder / "val.npz", "--option", "epochs=20"]
    done = run("fit", folder / "train.npz", "--method", method, "-o", head, *named)
    assert done.exit_code == 0, done.output
    assert f"{method}: " in done.output
    assert "gamma" not in done.output
    assert "validation rows" in done.output
    done = run("apply", head, folder / "test.npz", "-o", out)
    assert done.exit_code == 0, done.output
    after = Predictions.read(out)
    assert after.class_names == ("a", "b", "c", "d")
    assert float(metrics.accuracy(after.array, after.labels)) > 0.7


def test_without_a_name_it_is_written_where_nothing_is(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ("fit", folder / "train.safetensors", "--method", "mac_cal_head", "-q")
    done = run(*asked, "--option", "epochs=2", "--option", "gamma=0.9")
    assert done.exit_code == 0, done.output
    made = (tmp_path / "calibrator.safetensors").read_bytes()
    done = run(*asked)
    assert done.exit_code == 2
    assert "calibrator.safetensors exists" in " ".join(done.stderr.split())
    assert (tmp_path / "calibrator.safetensors").read_bytes() == made


@pytest.mark.parametrize("method", ["mac_cal_head", "tst_head", "vtst_head"])
def test_validation_rows_of_another_width_are_refused(method):
    features, labels = clusters(seed=0)
    with pytest.raises(InputError, match="validation features have width"):
        get(method, epochs=1).fit(features, labels, validation=(features[:, 1:], labels))


def test_tst_is_the_head_without_masks(folder):
    features, labels = clusters(seed=0)
    plain = get("tst_head", epochs=3).fit(features, labels)
    options = {"schedule": "fixed", "sparsity": 0.0, "gamma": 1.0, "epochs": 3}
    masked = get("mac_cal_head", **options).fit(features, labels)
    assert torch.equal(plain.calibrate(features), masked.calibrate(features))


def test_files_of_features_and_of_logits_are_distinguished(folder):
    head, made = folder / "h.safetensors", folder / "t.safetensors"
    out = folder / "o.npz"
    assert run("fit", folder / "logits.npz", "--method", "temperature", "-o", made).exit_code == 0
    assert run("fit", folder / "train.npz", "--method", "mac_cal_head", "-o", head).exit_code == 0
    for arguments, says in (
        (("fit", folder / "train.npz", "-o", out), "holds features, and the method auto takes"),
        (("fit", folder / "train.npz", "--method", "vector", "-o", out), "the method vector"),
        (("rank", folder / "train.safetensors"), "holds features, and rank takes"),
        (("apply", made, folder / "train.npz", "-o", out), "this temperature calibrator takes"),
        (("apply", head, folder / "logits.npz", "-o", out), "no features: expected 'features'"),
        (
            ("fit", folder / "logits.npz", "--method", "mac_cal_head", "-o", head),
            "no features: expected 'features'",
        ),
        (
            ("fit", folder / "logits.npz", "--validation", folder / "val.npz", "-o", made),
            "--validation requires a method that takes features",
        ),
        (("fit", folder / "none.npz", "--method", "mac_cal_head", "-o", head), "no such file"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, done.output
        assert says in " ".join(done.output.split())


# A real network.


@cache
def overfitted_digits(seed):
    """Features, logits and labels of an MLP that knows its 800 noisy digits by heart."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    generator = np.random.default_rng(seed)
    images = (images + 5.0 * generator.normal(size=images.shape)) / 16.0
    order = generator.permutation(len(labels))
    rows = torch.from_numpy(images[order]).float()
    target = torch.from_numpy(labels[order])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
        last = nn.Linear(128, 10)
        steps = torch.optim.SGD([*body.parameters(), *last.parameters()], lr=0.1, momentum=0.9)
        for _ in range(60):
            for batch in torch.randperm(800).split(64):
                loss = nn.functional.cross_entropy(last(body(rows[batch])), target[batch])
                steps.zero_grad()
                loss.backward()
                steps.step()
    with torch.no_grad():
        features = body(rows)
        return features, last(features), target


@pytest.mark.slow
def test_an_overfitted_network_on_digits_is_repaired():
    train, val, test = slice(0, 800), slice(800, 1200), slice(1200, None)
    ratios, lost = {"plain": [], "usual": [], "chosen": []}, []
    for seed in (0, 1):
        features, logits, target = overfitted_digits(seed)
        assert float(metrics.accuracy(logits[train], target[train])) > 0.999
        before = float(metrics.ece(logits[test], target[test]))
        assert before > 0.08

        def trained(held=None, *, rows=(features[train], target[train]), **options):
            return get("mac_cal_head", batch_size=32, **options).fit(*rows, validation=held)

        made = {
            "plain": trained(schedule="fixed", sparsity=0.0),
            "usual": trained(),
            "chosen": trained((features[val], target[val]), gammas=(0.9, 0.94, 0.97)),
        }
        for name, head in made.items():
            ratios[name].append(float(metrics.ece(head(features[test]), target[test])) / before)
        right = float(metrics.accuracy(made["usual"](features[test]), target[test]))
        lost.append(float(metrics.accuracy(logits[test], target[test])) - right)
    means = {name: sum(ratio) / len(ratio) for name, ratio in ratios.items()}
    assert means["plain"] > 0.9, ratios  # the masks do it, not the retraining
    assert means["usual"] < 0.75, ratios
    assert means["chosen"] < 0.65, ratios
    assert max(*ratios["usual"], *ratios["chosen"]) < 0.9
    assert max(lost) < 0.05
