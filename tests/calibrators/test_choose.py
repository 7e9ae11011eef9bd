"""The calibrator that chooses, the ranking of all, and applying one to predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant import InputError, Predictions, metrics
from calibrant.calibrators import get, load
from calibrant.calibrators.choose import MENU, assign_folds, calibrate, choose
from calibrant.calibrators.rank import FIGURES, apply, rank


def draw(num_rows, classes=4, temperature=1.0, seed=0, scale=2.0):
    """Logits whose labels are drawn from softmax(z / temperature): that temperature is right."""
    rng = np.random.default_rng(seed)
    logits = scale * rng.normal(size=(num_rows, classes))
    probs = np.exp(logits / temperature)
    probs /= probs.sum(1, keepdims=True)
    labels = (probs.cumsum(1) < rng.random((num_rows, 1))).sum(1).clip(0, classes - 1)
    return Predictions.from_logits(logits.astype(np.float32), labels)


CHEAP = ("identity", "temperature", "vector")


def test_a_calibrated_model_is_left_alone():
    chosen = [choose(draw(2000, seed=s), menu=CHEAP, seed=s).method for s in range(5)]
    assert chosen.count("identity") >= 4


def test_an_overconfident_model_gets_the_temperature_it_needs():
    made = calibrate(draw(3000, temperature=2.5), menu=CHEAP)
    assert made.name == "temperature"
    assert float(made.temperature_) == pytest.approx(2.5, rel=0.1)
    assert "temperature is chosen" in made.choice_.explanation


def test_a_bias_between_classes_needs_more_than_a_temperature():
    val = draw(3000, seed=3)
    shifted = Predictions.from_logits(val.array + np.float32([2, 0, 0, -2]), val.labels)
    made = calibrate(shifted, menu=CHEAP)
    assert made.name == "vector"
    after = apply(made, shifted)
    assert metrics.nll(after.array, after.labels) < metrics.nll(shifted.array, shifted.labels)


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("num_rows", [50, 300])
def test_small_sets_are_not_overfitted(num_rows):
    """On fresh rows the choice costs next to nothing beyond the truth, on average."""
    test = draw(4000, classes=10, temperature=1.6, seed=99)
    truth = metrics.nll(test.array / np.float32(1.6), test.labels)
    cost = []
    for seed in range(2):
        made = calibrate(draw(num_rows, classes=10, temperature=1.6, seed=seed), seed=seed)
        after = apply(made, test)
        cost.append(metrics.nll(after.array, after.labels) - truth)
    raw = metrics.nll(test.array, test.labels) - truth
    assert np.mean(cost) < 0.5 * raw


def test_preserving_predictions_restricts_the_menu():
    val = draw(800, temperature=2.0)
    made = calibrate(val, preserve_predictions=True)
    assert made.preserves_predictions
    assert "matrix" not in made.choice_.shares
    after = apply(made, val)
    assert (after.array.argmax(1) == val.array.argmax(1)).all()


def test_identity_is_always_on_the_menu():
    assert MENU[0] == "identity"
    made = calibrate(draw(300), menu=["temperature"])
    assert {c.method for c in made.choice_.candidates} == {"identity", "temperature"}


def test_methods_beyond_the_time_budget_are_left_out_with_a_note():
    choice = choose(draw(400), menu=CHEAP, time_budget=0.0)
    skipped = [c for c in choice.candidates if "time budget" in c.note]
    assert [c.method for c in skipped] == ["temperature", "vector"]
    assert choice.method == "identity"


def test_the_table_of_candidates_has_one_row_each_and_one_choice():
    frame = choose(draw(500), menu=CHEAP).to_frame()
    assert sorted(frame.index) == sorted(CHEAP)
    assert frame["chosen"].sum() == 1
    assert (frame["nll_error"] >= 0).all()


def test_the_choice_follows_the_seed():
    val = draw(400, temperature=1.3)
    first, second = (choose(val, menu=CHEAP, seed=4) for _ in range(2))
    assert [c.nll for c in first.candidates] == [c.nll for c in second.candidates]


TWO_FAULTS = ("identity", "temperature", "vector", "mixture")


def of_two_kinds(num_rows, seed=0):
    """Labels of which some follow the logits and others never look at them: no one map is right."""
    rng = np.random.default_rng(seed)
    logits = 3.0 * rng.normal(size=(num_rows, 4))
    follow = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    probs = 0.6 * follow + 0.4 * np.array([0.66, 0.15, 0.15, 0.04])
    labels = (probs.cumsum(1) < rng.random((num_rows, 1))).sum(1).clip(0, 3)
    return Predictions.from_logits(logits.astype(np.float32), labels)


def test_a_mixture_is_taken_only_where_it_beats_each_by_more_than_chance(tmp_path):
    val, test = of_two_kinds(3000), of_two_kinds(5000, seed=1)
    made = calibrate(val, menu=TWO_FAULTS)
    by_method = {c.method: c for c in made.choice_.candidates}
    assert made.name == "mixture"
    assert "A mixture is chosen (" in made.choice_.explanation
    assert sum(made.choice_.shares.values()) == pytest.approx(1.0)
    assert list(made.members) == list(made.choice_.shares)
    assert np.isfinite(by_method["mixture"].ece)
    singles = [c for name, c in by_method.items() if name != "mixture"]
    assert all(c.nll - by_method["mixture"].nll > c.nll_error for c in singles)
    after = apply(made, test)
    mixed = metrics.nll(after.array, after.labels)
    for name in TWO_FAULTS[:-1]:
        alone = apply(get(name).fit(val.array, val.labels), test)
        assert mixed < metrics.nll(alone.array, alone.labels)
    again = load(made.save(tmp_path / "made.safetensors"))
    np.testing.assert_array_equal(again.calibrate(test.array), made.calibrate(test.array))
    assert calibrate(draw(2000, temperature=2.5), menu=TWO_FAULTS).name == "temperature"


def test_the_mixture_comes_last_and_needs_two():
    with pytest.raises(InputError, match="put it last"):
        calibrate(draw(200), menu=["identity", "mixture", "temperature"])
    choice = calibrate(draw(200), menu=["identity", "mixture"]).choice_
    assert choice.method == "identity"
    assert "alone is the best mixture" in choice.candidates[1].note


def test_folds_share_out_every_class():
    target = np.repeat([0, 1, 2], [50, 30, 7])
    fold = assign_folds(target, 5, seed=0)
    for label in range(3):
        sizes = np.bincount(fold[target == label], minlength=5)
        assert sizes.max() - sizes.min() <= 1


def test_one_row_cannot_choose():
    with pytest.raises(InputError, match="at least 2 rows"):
        calibrate(Predictions.from_logits(np.zeros((1, 3)), np.array([0])))


def test_a_method_by_name_takes_its_options_and_auto_takes_none():
    assert calibrate(draw(200), method="temperature").name == "temperature"
    with pytest.raises(InputError, match="need a method"):
        calibrate(draw(200), strength=3)
    with pytest.raises(InputError, match="Did you mean temperature"):
        calibrate(draw(200), method="temprature")


def test_applying_needs_the_same_kind_and_number_of_classes():
    made = calibrate(draw(200), method="temperature")
    probs = torch.softmax(torch.from_numpy(draw(50).array), 1).numpy()
    with pytest.raises(InputError, match="fitted on logits, found probabilities"):
        apply(made, Predictions.from_probs(probs, draw(50).labels))
    with pytest.raises(InputError, match="fitted on 4 classes, found 3"):
        apply(made, draw(50, classes=3))


def test_ranking_puts_the_right_method_first():
    ranking = rank(draw(3000, temperature=2.5), methods=CHEAP, splits=3).to_frame()
    assert ranking.index[-1] == "identity"
    assert set(FIGURES) <= set(ranking.columns)
    assert ranking.loc["temperature", "nll"] < ranking.loc["identity", "nll"]
    assert (ranking["nll_error"] > 0).all()


def test_ranking_on_a_given_test_set_has_no_spread():
    ranking = rank(draw(500), draw(400, seed=1), methods=CHEAP)
    assert ranking.values.shape == (3, 1, 7)
    assert "nll_error" not in ranking.to_frame().columns
    expected = metrics.nll(draw(400, seed=1).array, draw(400, seed=1).labels)
    assert ranking.to_frame().loc["identity", "nll"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("name", ["cifar10-resnet20", "sst2-gpt2"])
def test_the_choice_helps_on_real_networks(data_folder, name):
    val, test = Predictions.read(data_folder / "logits" / f"{name}.npz").split(0.5, seed=0)
    after = apply(calibrate(val, menu=[*CHEAP, "matrix"]), test)
    assert metrics.nll(after.array, after.labels) < metrics.nll(test.array, test.labels)
    assert metrics.ece(after.array, after.labels) < metrics.ece(test.array, test.labels)


@pytest.mark.parametrize("labels", [np.zeros(200, int), np.ones(200, int)])
@pytest.mark.parametrize("method", ["auto", "platt"])
def test_rows_of_one_outcome_fit_no_calibrator(labels, method):
    """A column without positives made a calibrator that says "never" of every row."""
    score = np.random.default_rng(0).random(200)
    with pytest.raises(InputError, match=r"the event happens in (all|none of) 200 rows: a"):
        calibrate(Predictions.from_events(score, labels == 1), method=method)
    with pytest.raises(InputError, match=f"all 200 labels are {labels[0]}: a"):
        calibrate(Predictions.from_probs(score, labels), method=method)


def test_the_choice_of_many_labels_is_explained_label_by_label():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2, (400, 2))
    labels = (rng.random((400, 2)) < 1 / (1 + np.exp(-logits / 2))).astype(int)
    many = Predictions.from_multilabel(logits, labels, class_names=["cat", "dog"])
    fitted = calibrate(many)
    assert "2 labels" in repr(fitted)
    assert "members" not in repr(fitted)
    lines = str(fitted.choice_).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["cat", "dog"]
    assert all("On rows it was not fitted on" in line for line in lines)


def test_questions_are_no_ragged_array():
    fitted = get("temperature").fit(np.eye(3), np.arange(3))
    with pytest.raises(InputError, match="from_options"):
        fitted.predict_proba([np.zeros(2), np.zeros(3)])
