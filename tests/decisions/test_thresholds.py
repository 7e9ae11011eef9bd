"""`decide` and the rules it makes: targets, refusals, application, files."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import expit

import calibrant
from calibrant import InputError, Predictions
from calibrant.calibrators import files
from calibrant.decisions import NoThresholdError, Rule
from calibrant.decisions.fixed_sequence import find_cells, find_selective
from calibrant.decisions.risk_tests import PLAIN


def make_classes(num_rows=4_000, num_classes=4, seed=0, **fields):
    """Calibrated logits whose classes differ in how sure they are."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_rows, num_classes)) * np.linspace(1, 6, num_classes)
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    labels = (probs.cumsum(1) > rng.random((num_rows, 1))).argmax(1)
    return Predictions.from_logits(logits, labels, **fields)


def make_events(num_rows=4_000, seed=0, **fields):
    rng = np.random.default_rng(seed)
    odds = rng.normal(-1, 2, num_rows)
    return Predictions.from_events(
        odds, rng.random(num_rows) < expit(odds), is_logits=True, event="fraud", **fields
    )


@pytest.fixture(scope="module")
def fitted():
    """A calibrator, the rows that fitted it, and others."""
    held = make_classes(8_000, class_names=["a", "b", "c", "d"])
    fit_rows, others = held.split(0.5)
    return calibrant.calibrate(fit_rows, method="temperature"), fit_rows, others


def test_decide_is_a_function_whatever_modules_are_imported():
    importlib.import_module("calibrant.decisions.thresholds")
    assert callable(calibrant.decide)
    assert calibrant.decisions.decide is calibrant.decide


def test_the_error_among_accepted_rows_is_as_described(fitted):
    calibrator, _, others = fitted
    rule = calibrant.decide(others, max_error=0.05, calibrator=calibrator)
    (part,) = rule.parts
    accepted = rule.accept(others)
    calibrated = calibrator.predict_proba(others.array)
    assert np.array_equal(accepted, calibrated.max(1) >= part.threshold)
    wrong = calibrated.argmax(1) != others.labels
    assert part.num_errors == wrong[accepted].sum()
    assert part.risk == pytest.approx(wrong[accepted].mean())
    assert part.share == pytest.approx(accepted.mean())
    assert part.risk < part.bound <= 0.05
    assert rule.promise.startswith("With 95% confidence at most 5% of the accepted rows are wrong")
    assert rule.made_on.num_rows == len(others)


def test_numpy_torch_and_single_rows_agree(fitted):
    calibrator, _, others = fitted
    rule = calibrant.decide(others, max_error=0.05, calibrator=calibrator)
    accepted = rule.accept(others.array)
    as_torch = rule.accept(torch.from_numpy(others.array))
    assert isinstance(as_torch, torch.Tensor)
    assert np.array_equal(accepted, as_torch.numpy())
    assert np.array_equal(accepted[:1], rule.accept(others.array[:1]))
    assert np.array_equal(accepted, rule(torch.from_numpy(others.array)).numpy())


def test_confidence_near_one_keeps_its_digits():
    logits = np.array([[40.0, 0.0, 0.0], [50.0, 0.0, 0.0]])
    odds, predicted = calibrant.decisions.rule.measure_odds(
        torch.from_numpy(logits), "classes", None
    )
    assert odds.tolist() == pytest.approx([40 - np.log(2), 50 - np.log(2)])
    assert predicted.tolist() == [0, 0]


def test_rows_that_fitted_the_calibrator_are_refused(fitted):
    calibrator, fit_rows, others = fitted
    shuffled = fit_rows.take(np.random.default_rng(0).permutation(len(fit_rows)))
    for rows in (fit_rows, shuffled, fit_rows.take(np.arange(2_000))):
        with pytest.raises(InputError, match=r"fitted this temperature are among these rows"):
            calibrant.decide(rows, max_error=0.05, calibrator=calibrator)
    mixed = Predictions.from_logits(
        np.concatenate([others.array, fit_rows.array[:400]]),
        np.concatenate([others.labels, fit_rows.labels[:400]]),
        class_names=others.class_names,
    )
    with pytest.raises(InputError, match=r"about \d+ of the 4,000 rows that fitted"):
        calibrant.decide(mixed, max_error=0.05, calibrator=calibrator)


def test_fitted_rows_are_refused_after_saving_and_in_half_the_precision(fitted, tmp_path):
    calibrator, fit_rows, _ = fitted
    loaded = calibrant.load(calibrator.save(tmp_path / "calibrator.safetensors"))
    single = replace(fit_rows, scores=fit_rows.array.astype(np.float32))
    with pytest.raises(InputError, match="that fitted this temperature"):
        calibrant.decide(single, max_error=0.05, calibrator=loaded)


def test_scores_of_few_values_are_not_taken_for_fitted_rows():
    def draw(seed):
        rng = np.random.default_rng(seed)
        probs = np.round(rng.beta(2, 2, 3_000), 2)
        return Predictions.from_events(probs, rng.random(3_000) < probs)

    calibrator = calibrant.calibrate(draw(0), method="platt")
    assert calibrant.decide(draw(1), min_precision=0.6, calibrator=calibrator).parts[0].share > 0


def test_each_class_has_its_threshold_and_its_share_of_delta(fitted):
    calibrator, _, others = fitted
    rule = calibrant.decide(others, max_error=0.1, calibrator=calibrator, by="class")
    calibrated = calibrator.predict_proba(others.array)
    predicted, accepted = calibrated.argmax(1), rule.accept(others)
    assert [part.name for part in rule.parts] == ["a", "b", "c", "d"]
    for k, part in enumerate(rule.parts):
        own = predicted == k
        if part.threshold is None:
            assert not accepted[own].any()
            continue
        alone = calibrant.decide(
            others.take(own), max_error=0.1, calibrator=calibrator, confidence_level=1 - 0.05 / 4
        )
        assert part.threshold == alone.parts[0].threshold
        assert np.array_equal(accepted[own], calibrated[own].max(1) >= part.threshold)
    assert sum(part.threshold is not None for part in rule.parts) > 1


def test_groups_have_thresholds_and_unknown_ones_are_refused(tmp_path):
    rows = make_classes()
    sites = np.where(np.arange(len(rows)) % 3 == 0, "north", "south")
    rule = calibrant.decide(rows, max_error=0.1, groups=sites)
    assert [part.name for part in rule.parts] == ["north", "south"]
    accepted = rule.accept(rows, groups=sites)
    loaded = calibrant.load(rule.save(tmp_path / "rule.safetensors"))
    assert np.array_equal(accepted, loaded.accept(rows, groups=sites))
    odds = calibrant.decisions.rule.measure_odds(torch.from_numpy(rows.array), "classes", None)[0]
    limits = rule.thresholds[torch.from_numpy((sites == "south").astype(int))]
    assert np.array_equal(accepted, (odds >= limits).numpy())
    with pytest.raises(InputError, match="promises nothing for the groups west"):
        rule.accept(rows, groups=np.full(len(rows), "west"))
    with pytest.raises(InputError, match="give the group of each row"):
        rule.accept(rows)


def test_precision_of_events_is_one_minus_the_error():
    rows = make_events()
    rule = calibrant.decide(rows, min_precision=0.8)
    same = calibrant.decide(rows, max_error=0.2)
    assert torch.equal(rule.thresholds, same.thresholds)
    accepted = rule.accept(rows)
    assert np.array_equal(accepted, expit(rows.array) >= rule.parts[0].threshold)
    assert rows.labels[accepted].mean() == pytest.approx(1 - rule.parts[0].risk)
    assert "at least 80% of the accepted rows have fraud" in rule.promise


def test_recall_misses_few_enough_events():
    rows = make_events()
    rule = calibrant.decide(rows, min_recall=0.9)
    (part,) = rule.parts
    happened = rows.labels == 1
    missed = ~rule.accept(rows)[happened]
    assert part.num_errors == missed.sum()
    assert missed.mean() <= part.bound <= 0.1
    higher = calibrant.decide(rows, min_recall=0.8)
    assert higher.parts[0].threshold > part.threshold


def test_two_classes_and_their_event_get_the_same_threshold():
    events = make_events()
    pair = np.stack([np.zeros(len(events)), events.array], axis=1)
    classes = Predictions.from_logits(pair, events.labels)
    binary = Predictions.from_logits(events.array, events.labels)
    expected = calibrant.decide(events, min_recall=0.9)
    for rows in (classes, binary):
        rule = calibrant.decide(rows, min_recall=0.9)
        assert torch.equal(rule.thresholds, expected.thresholds)
        assert np.array_equal(rule.accept(rows), expected.accept(events))
    opposite = calibrant.decide(classes, min_recall=0.9, positive=0)
    assert opposite.accept(np.array([[5.0, -5.0], [-5.0, 5.0]])).tolist() == [True, False]


def test_costs_set_the_threshold_and_are_measured():
    rows = make_events()
    rule = calibrant.decide(rows, costs={"false_alarm": 1, "miss": 9})
    assert rule.parts[0].threshold == pytest.approx(0.1, rel=1e-6)
    act = rule.accept(rows)
    cost = np.where(act, 1 * (rows.labels == 0), 9 * (rows.labels == 1))
    assert rule.terms.mean_cost[0] == pytest.approx(cost.mean())
    assert rule.terms.mean_cost[1] < cost.mean() < rule.terms.mean_cost[2]
    assert rule.terms.other_costs == pytest.approx(
        ((rows.labels == 0).mean(), 9 * (rows.labels == 1).mean())
    )
    classes = make_classes()
    rule = calibrant.decide(classes, costs={"error": 20, "review": 1})
    assert rule.parts[0].threshold == pytest.approx(0.95, rel=1e-6)


def test_no_threshold_says_how_many_more_rows_would_do():
    rows = make_classes(200)
    with pytest.raises(NoThresholdError, match=r"with these 200 rows; about [\d,]+ more would"):
        calibrant.decide(rows, max_error=0.01)
    logits = np.array([[5.0, 0.0, 0.0]]).repeat(3_000, 0)
    hopeless = Predictions.from_logits(logits, np.arange(3_000) % 3)
    with pytest.raises(NoThresholdError, match="more would hardly help"):
        calibrant.decide(hopeless, max_error=0.05)
    nearly = Predictions.from_logits(logits.repeat(10, 0), (np.arange(30_000) < 1_499).astype(int))
    with pytest.raises(NoThresholdError, match="more would hardly help"):  # not 100,000,000 rows
        calibrant.decide(nearly, max_error=0.05)
    few = make_events(60)
    with pytest.raises(NoThresholdError, match="rows with the event; about"):
        calibrant.decide(few, min_recall=0.99)


def test_clusters_that_cannot_keep_a_promise_are_told_what_may_help():
    logits = np.array([[5.0, 0.0, 0.0]]).repeat(3_000, 0)
    clusters = np.arange(3_000) // 10
    hopeless = Predictions.from_logits(logits, np.arange(3_000) % 3, clusters=clusters)
    with pytest.raises(NoThresholdError, match="more would hardly help"):
        calibrant.decide(hopeless, max_error=0.05)
    few = make_classes(200, clusters=np.arange(200) // 4)
    with pytest.raises(NoThresholdError, match="independent ones; more of them may do"):
        calibrant.decide(few, max_error=0.01)
    with pytest.raises(NoThresholdError, match="or a smaller bound on weight or cluster size, may"):
        calibrant.decide(few, max_error=0.01, max_cluster_size=20)


def test_ignored_and_unknown_rows_do_not_count():
    rows = make_classes()
    labels = np.array(rows.labels)
    labels[::4] = -100
    some = Predictions.from_logits(rows.array, labels, ignore_index=-100)
    rest = rows.take(np.arange(len(rows)) % 4 != 0)
    rule, same = calibrant.decide(some, max_error=0.1), calibrant.decide(rest, max_error=0.1)
    assert torch.equal(rule.thresholds, same.thresholds)
    assert rule.made_on.digest == same.made_on.digest


def test_clusters_and_weights_choose_their_test():
    clusters = np.arange(4_000) // 4
    rows = make_classes(clusters=clusters)
    plain = calibrant.decide(make_classes(), max_error=0.1).parts[0].share
    exact = calibrant.decide(rows, max_error=0.1, max_cluster_size=4)
    rough = calibrant.decide(rows, max_error=0.1)
    assert (exact.terms.test, rough.terms.test) == ("betting", "approximate")
    assert 0.5 * plain < exact.parts[0].share < plain + 0.01
    assert "approximate" in rough.promise
    assert "approximate" not in exact.promise
    weighted = make_classes(weights=np.random.default_rng(0).uniform(1, 2, 4_000))
    assert calibrant.decide(weighted, max_error=0.1, max_weight=2).terms.test == "betting"
    with pytest.raises(InputError, match="below the largest found, 4"):
        calibrant.decide(rows, max_error=0.1, max_cluster_size=3)
    with pytest.raises(InputError, match="max_weight needs rows with weights"):
        calibrant.decide(rows, max_error=0.1, max_weight=2)
    few = make_classes(clusters=np.arange(4_000) % 9)
    with pytest.raises(InputError, match="found 9 clusters"):
        calibrant.decide(few, max_error=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name one target"),
        ({"max_error": 0.1, "min_recall": 0.9}, "found max_error and min_recall"),
        ({"max_error": 1}, "between 0 and 1"),
        ({"max_error": 0.1, "confidence_level": 95}, "confidence_level must lie"),
        ({"min_precision": 0.9}, "found 4 classes: use max_error"),
        ({"max_error": 0.1, "by": "site"}, "by must be 'class'"),
        ({"max_error": 0.1, "positive": 1}, "positive must be 0 or 1, of two classes"),
        ({"costs": {"error": 1}}, "have the costs error and review, found error"),
        ({"costs": {"error": 1, "review": 2}}, "never pays"),
        ({"costs": {"error": 1, "review": -2}}, "must be a positive number"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        calibrant.decide(make_classes(500), **options)


def test_rows_that_are_not_meant_are_refused_with_advice():
    labels = np.random.default_rng(0).integers(0, 2, (50, 3))
    many = Predictions.from_multilabel(np.zeros((50, 3)), labels)
    with pytest.raises(InputError, match=r"make one for each label"):
        calibrant.decide(many, max_error=0.1)
    dense = Predictions.from_logits(np.zeros((2, 3, 4, 4)), np.zeros((2, 4, 4), dtype=int))
    with pytest.raises(InputError, match="pixels as rows"):
        calibrant.decide(dense, max_error=0.1)
    rule = calibrant.decide(make_classes(), max_error=0.1)
    with pytest.raises(InputError, match=r"scores of shape \(N, 4\), found \(5, 3\)"):
        rule.accept(np.zeros((5, 3)))
    with pytest.raises(InputError, match="NaN"):
        rule.accept(np.full((5, 4), np.nan))


@pytest.mark.parametrize("kind", ["classes", "events", "probabilities"])
def test_a_rule_is_saved_with_its_calibrator(kind, tmp_path):
    if kind == "events":
        fit_rows, rows = make_events(seed=1), make_events()
        calibrator = calibrant.calibrate(fit_rows, method="platt")
        rule = calibrant.decide(rows, min_precision=0.8, calibrator=calibrator)
    elif kind == "classes":
        rows = make_classes()
        calibrator = calibrant.calibrate(make_classes(seed=1), method="vector")
        rule = calibrant.decide(rows, max_error=0.1, calibrator=calibrator, by="class")
    else:
        rows = make_classes()
        probs = torch.softmax(torch.from_numpy(rows.array), 1).numpy()
        rows = Predictions.from_probs(probs, rows.labels)
        rule = calibrant.decide(rows, max_error=0.1)
    loaded = calibrant.load(rule.save(tmp_path / "rule.safetensors"))
    assert isinstance(loaded, Rule)
    assert np.array_equal(rule.accept(rows), loaded.accept(rows))
    assert rule.describe() == loaded.describe()
    assert loaded.calibrator.name == rule.calibrator.name
    assert rule.to_frame(rows).equals(loaded.to_frame(rows))
    with pytest.raises(InputError, match="holds a rule"):
        files.load(tmp_path / "rule.safetensors")


def rewrite(path, change):
    """Write a rule's file again with a changed header and tensors, and a digest that fits."""
    header, tensors = files.read_tensors(path)
    header.pop("digest")
    change(header, tensors)
    files.write_tensors(path, header, tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, t: h["rule"].update(kind="magic"), "cannot be of kind 'magic'"),
        (lambda h, t: h["rule"]["terms"].update(value="x"), "value cannot be 'x'"),
        (lambda h, t: h["rule"]["terms"].pop("target"), "Terms has no target"),
        (lambda h, t: h["rule"]["made_on"].update(more=1), "MadeOn cannot be"),
        (lambda h, t: h["rule"].update(parts=[]), "thresholds of shape"),
        (lambda h, t: h.update(calibrator=None), "a rule and a calibrator"),
        (lambda h, t: h["calibrator"].update(method="magic"), "its method is 'magic'"),
        (lambda h, t: t.update(thresholds=torch.tensor([np.nan])), "hold NaN"),
        (lambda h, t: t.update(thresholds=torch.zeros(2)), "thresholds of shape"),
        (lambda h, t: t.update(extra=torch.zeros(1)), "one tensor, thresholds"),
        (lambda h, t: h.update(format=4), "written in format 4"),
    ],
)
def test_a_file_that_cannot_be_is_refused(change, message, tmp_path):
    path = calibrant.decide(make_classes(), max_error=0.1).save(tmp_path / "rule.safetensors")
    rewrite(path, change)
    with pytest.raises(InputError, match=message):
        calibrant.load(path)


def test_a_damaged_file_is_refused(tmp_path):
    path = calibrant.decide(make_classes(), max_error=0.1).save(tmp_path / "rule.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="save the rule again"):
        calibrant.load(path)


def test_older_versions_are_told_to_upgrade(tmp_path):
    """They read the same key and refuse formats above 2."""
    from safetensors import safe_open

    path = calibrant.decide(make_classes(), max_error=0.1).save(tmp_path / "rule.safetensors")
    with safe_open(path, framework="pt") as opened:
        header = json.loads(opened.metadata()["calibrant.calibrator"])
    assert header["format"] == 3 > files.FORMAT


def test_a_table_says_which_rows_are_accepted():
    rows = make_classes(class_names=["a", "b", "c", "d"], ids=np.arange(4_000) + 7)
    rule = calibrant.decide(rows, max_error=0.1)
    frame = rule.to_frame(replace(rows, labels=None))
    assert frame.columns.tolist() == ["id", "prediction", "confidence", "accepted"]
    assert frame["id"].tolist()[:2] == [7, 8]
    assert np.array_equal(frame["accepted"], rule.accept(rows))
    assert (frame["confidence"] >= rule.parts[0].threshold).equals(frame["accepted"])
    events = make_events()
    frame = calibrant.decide(events, min_recall=0.9).to_frame(events)
    assert frame.columns.tolist() == ["id", "probability", "accepted"]


def test_three_quarters_of_the_oracle_are_accepted_of_a_few_hundred_rows(data_folder):
    with np.load(data_folder / "logits" / "pneumoniamnist-resnet50.npz") as file:
        rows = Predictions.from_logits(file["logits"], file["labels"].astype(int))
    odds = rows.array[:, 1] - rows.array[:, 0]
    wrong = ((odds > 0) != (rows.labels == 1)).astype(float)
    cells = find_cells(np.abs(odds).astype(float))
    order = np.argsort(-cells, kind="stable")
    fit = np.cumsum(wrong[order]) <= 0.05 * np.arange(1, len(cells) + 1)
    oracle = np.flatnonzero(fit)[-1] + 1
    accepted, broken, rng = [], 0, np.random.default_rng(4)
    for _ in range(200):
        drawn = rng.integers(0, len(cells), len(cells))
        cell = find_selective(cells[drawn], wrong[drawn], 0.05, 0.05, PLAIN)
        above = np.zeros(len(cells), dtype=bool) if cell is None else cells >= cell
        accepted.append(above.sum())
        broken += wrong[above].sum() > 0.05 * above.sum()
    assert np.mean(accepted) > 0.75 * oracle
    assert broken <= 0.065 * 200
