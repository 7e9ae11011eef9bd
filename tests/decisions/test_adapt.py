"""Calibrators adapted to other shares: right, honest, and calibrators like any other."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import calibrant
from calibrant import InputError, Predictions
from calibrant.calibrators import apply, export_onnx
from calibrant.calibrators.methods.prior_shift import ASSUMPTION, PriorShift
from calibrant.decisions import ShiftError
from tests.reference import label_shift as plain

from .test_label_shift import EVENT, FOUR, draw

RARE = np.array([0.95, 0.05])
FEW = {"resamples": 100}


def make_events(number=2000, shares=EVENT, seed=0, labelled=True, **options):
    logits, labels = draw(number, shares, seed, prior=EVENT)
    odds = logits[:, 1] - logits[:, 0]
    happened = labels if labelled else None
    return Predictions.from_events(odds, happened, is_logits=True, event="fraud", **options)


def make_classes(number=2000, shares=FOUR, seed=0, labelled=True, **options):
    logits, labels = draw(number, shares, seed, prior=FOUR)
    names = ["a", "b", "c", "d"]
    given = labels if labelled else None
    return Predictions.from_logits(logits, given, class_names=names, **options)


SOURCE, NEW = make_events(), make_events(1500, RARE, seed=1)
CLASSES, NEW_CLASSES = make_classes(), make_classes(1500, FOUR[::-1], seed=1)


@pytest.fixture(scope="module")
def adapted():
    return calibrant.adapt(None, source=SOURCE, target=NEW, **FEW)


@pytest.fixture(scope="module")
def adapted_classes():
    fitted = calibrant.calibrate(make_classes(seed=7), method="temperature")
    return calibrant.adapt(fitted, source=CLASSES, target=NEW_CLASSES, **FEW)


def measure(predictions, name):
    return calibrant.evaluate(predictions, metrics=[name], intervals=False)[name].value


# Known shares


def test_known_shares_follow_bayes_rule():
    fitted = calibrant.calibrators.get("temperature").fit(CLASSES)
    made = calibrant.adapt(fitted, source=FOUR, prevalence=FOUR[::-1])
    given = fitted.predict_proba(CLASSES.array)[:50]
    np.testing.assert_allclose(
        made.predict_proba(CLASSES.array[:50]),
        plain.closed_form(given, FOUR, FOUR[::-1]),
        atol=1e-6,
    )


def test_known_share_of_an_event_follows_bayes_rule():
    fitted = calibrant.calibrators.get("platt").fit(SOURCE)
    made = calibrant.adapt(fitted, source=0.3, prevalence=0.05)
    said = fitted.predict_proba(SOURCE.array)[:50]
    pair = plain.closed_form(np.stack((1 - said, said), 1), EVENT, RARE)
    np.testing.assert_allclose(made.predict_proba(SOURCE.array[:50]), pair[:, 1], atol=1e-6)


def test_two_classes_whose_calibrator_is_of_events():
    logits, labels = draw(2000, EVENT)
    rows = Predictions.from_logits(logits, labels, class_names=["ham", "spam"])
    fitted = calibrant.calibrate(rows, method="platt")
    events = calibrant.calibrators.get("platt").fit(rows, task="events")
    for part in (fitted, events):
        alone = calibrant.adapt(part, source={"spam": 0.3}, prevalence={"ham": 0.9})
        assert alone.shift_.names == ("ham", "spam")
        np.testing.assert_allclose(alone.shift_.target, [0.9, 0.1])
        with_rows = calibrant.adapt(part, source=rows, prevalence={"spam": 0.1})
        after = calibrant.calibrators.apply(with_rows, rows)
        assert after.array.shape == (2000, 2)
        said = with_rows.predict_proba(rows.array)[:, 1].mean()
        assert said < part.predict_proba(rows.array)[:, 1].mean() - 0.03


def test_labelled_source_rows_correct_the_calibrator_first():
    made = calibrant.adapt(None, source=SOURCE, prevalence=0.05)
    truth = make_events(20_000, RARE, seed=3)
    assert measure(truth, "ece") > 0.05
    assert measure(apply(made, truth), "ece") < 0.01
    assert made.shift_.corrected
    assert made.shift_.how == "stated"


@pytest.mark.parametrize(
    ("prevalence", "message"),
    [
        ({"a": 0.5, "b": 0.5}, "no share for c, d"),
        ({"a": 0.25, "b": 0.25, "c": 0.25, "x": 0.25}, "x, which is no class"),
        ([0.5, 0.5], "a share for each of 4 classes, found 2"),
        ([0.5, 0.5, 0.1, 0.1], "must sum to 1, found 1.2"),
        ([1.0, 0.0, 0.0, 0.0], "above 0, found 0 for b"),
        ([40, 30, 20, 10], "percentages"),
        (0.3, "one number, and there are 4 classes"),
        ([0.5, 0.5, "x", 0.0], "takes numbers"),
        (float("nan"), "one number"),
    ],
)
def test_shares_that_cannot_be_are_refused(prevalence, message):
    with pytest.raises(InputError, match=message):
        calibrant.adapt(None, source=CLASSES, prevalence=prevalence)


@pytest.mark.parametrize(
    ("prevalence", "message"),
    [(5, "percentages"), (0, "above 0"), ({"theft": 0.1}, "event 'fraud', found theft")],
)
def test_shares_of_events_that_cannot_be_are_refused(prevalence, message):
    with pytest.raises(InputError, match=message):
        calibrant.adapt(None, source=SOURCE, prevalence=prevalence)


# Estimated shares


def test_estimated_shares_are_near_the_truth(adapted, adapted_classes):
    assert adapted.shift_.target[1] == pytest.approx(np.mean(NEW.labels), abs=0.02)
    assert adapted.shift_.low[1] <= 0.05 <= adapted.shift_.high[1]
    counted = np.bincount(NEW_CLASSES.labels, minlength=4) / len(NEW_CLASSES)
    np.testing.assert_allclose(adapted_classes.shift_.target, counted, atol=0.04)
    np.testing.assert_allclose(adapted_classes.shift_.bbse, counted, atol=0.06)


@pytest.mark.parametrize("kind", ["events", "classes"])
def test_adapting_improves_likelihood_and_calibration(kind, adapted, adapted_classes):
    made, rows = (adapted, NEW) if kind == "events" else (adapted_classes, NEW_CLASSES)
    for name in ("nll", "ece"):
        assert measure(apply(made, rows), name) < measure(apply(made.part, rows), name)


def test_labels_of_new_rows_are_not_used():
    blind = make_events(1500, RARE, seed=1, labelled=False)
    made = calibrant.adapt(None, source=SOURCE, target=blind, **FEW)
    again = calibrant.adapt(None, source=SOURCE, target=NEW, **FEW)
    assert made.shift_ == again.shift_


def test_tensors_and_probabilities_give_the_same_shares(adapted):
    def convert(rows):
        probs = torch.sigmoid(torch.as_tensor(rows.array))
        return Predictions.from_events(probs, rows.labels, event="fraud")

    made = calibrant.adapt(None, source=convert(SOURCE), target=convert(NEW), **FEW)
    np.testing.assert_allclose(made.shift_.target, adapted.shift_.target, atol=1e-5)
    assert isinstance(made.predict_proba(torch.tensor([0.2, 0.8])), torch.Tensor)


def test_a_weight_is_as_good_as_a_repeated_row():
    times = np.random.default_rng(0).integers(1, 3, len(SOURCE))
    weighted = make_events(weights=times.astype(float))
    repeated = SOURCE.take(np.repeat(np.arange(len(SOURCE)), times))
    new = make_events(1500, RARE, seed=1, weights=np.full(1500, 2.0))
    with_weights = calibrant.adapt(None, source=weighted, target=new, **FEW).shift_
    # The ridge is worth as much as in fewer rows.
    np.testing.assert_allclose(
        with_weights.target,
        calibrant.adapt(None, source=repeated, target=NEW, **FEW).shift_.target,
        atol=2e-3,
    )


def test_clusters_widen_the_intervals(adapted):
    def copy(rows):
        clusters = np.repeat(np.arange(len(rows)), 4)
        array, labels = np.repeat(rows.array, 4), np.repeat(rows.labels, 4)
        return [
            Predictions.from_events(array, labels, is_logits=True, event="fraud", clusters=each)
            for each in (clusters, None)
        ]

    (source, source_rows), (new, new_rows) = copy(SOURCE), copy(NEW)
    whole = calibrant.adapt(None, source=source, target=new, **FEW).shift_
    rows = calibrant.adapt(None, source=source_rows, target=new_rows, **FEW).shift_
    width = adapted.shift_.high[1] - adapted.shift_.low[1]
    assert whole.high[1] - whole.low[1] == pytest.approx(width, rel=0.3)
    assert rows.high[1] - rows.low[1] < 0.7 * width


def test_an_adapted_calibrator_is_adapted_afresh(adapted):
    again = calibrant.adapt(adapted, source=SOURCE, prevalence=0.3)
    assert not isinstance(again.part, PriorShift)
    said = again.predict_proba(SOURCE.array)
    assert said.mean() == pytest.approx(0.3, abs=0.01)


# What is refused


def test_classes_that_scores_do_not_tell_apart_are_refused():
    logits, labels = draw(2000, FOUR[:3] / 0.6)
    new, _ = draw(1000, FOUR[2::-1] / 0.6, 1, prior=FOUR[:3] / 0.6)
    # Half of class c is called d, and both have the same score.
    labels = np.where((labels == 2) & (np.arange(2000) % 2 == 0), 3, labels)
    logits, new = (each[:, [0, 1, 2, 2]] for each in (logits, new))
    names = list("abcd")
    source = Predictions.from_logits(logits, labels, class_names=names)
    target = Predictions.from_logits(new, None, class_names=names)
    with pytest.raises(ShiftError, match=r"\((c and d|d and c) above all\).*singular value"):
        calibrant.adapt(None, source=source, target=target)
    with pytest.warns(UserWarning, match="adapted all the same"):
        made = calibrant.adapt(None, source=source, target=target, force=True, **FEW)
    assert made.shift_.forced
    assert "guesses" in made.explanation


def test_another_change_than_of_shares_is_refused():
    logits, _ = draw(2000, RARE, 1, distance=1.0, prior=EVENT)
    harder = Predictions.from_events(
        logits[:, 1] - logits[:, 0], None, is_logits=True, event="fraud"
    )
    with pytest.raises(ShiftError, match="label shift does not explain the new scores"):
        calibrant.adapt(None, source=SOURCE, target=harder)
    with pytest.warns(UserWarning, match="adapted all the same"):
        made = calibrant.adapt(None, source=SOURCE, target=harder, force=True, **FEW)
    assert "something else changed too" in made.explanation
    assert made.shift_.misfit > 0.05


def make_labels():
    return Predictions.from_multilabel(np.zeros((20, 3)), np.zeros((20, 3), int))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": SOURCE}, "found neither"),
        ({"source": SOURCE, "target": NEW, "prevalence": 0.1}, "not both"),
        ({"source": 0.3, "target": NEW}, "source must be rows with labels"),
        ({"source": 0.3, "prevalence": 0.1}, "give a calibrator, or source rows"),
        ({"source": NEW.take(np.arange(5)), "prevalence": 0.1}, "fewer than 10"),
        ({"source": make_events(labelled=False), "prevalence": 0.1}, "source has no labels"),
        ({"source": make_labels(), "prevalence": 0.1}, "to_events"),
        ({"source": SOURCE, "target": CLASSES}, "logits of events and logits of classes"),
        ({"source": SOURCE, "target": NEW.array}, "target must be Predictions"),
        ({"source": SOURCE, "prevalence": 0.1, "resamples": 10}, "at least 100"),
        ({"source": SOURCE, "prevalence": 0.1, "confidence_level": 95}, "confidence_level"),
        (
            {
                "source": CLASSES.take(np.flatnonzero(np.asarray(CLASSES.labels) != 2)),
                "prevalence": FOUR,
            },
            "no row of c",
        ),
    ],
)
def test_input_that_cannot_be_adapted_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        calibrant.adapt(None, **options)


def test_calibrators_of_many_labels_or_features_are_refused():
    many = calibrant.calibrate(
        Predictions.from_multilabel(
            np.random.default_rng(0).normal(size=(200, 2)),
            np.random.default_rng(1).integers(0, 2, (200, 2)),
        ),
        method="temperature",
    )
    with pytest.raises(InputError, match="many labels"):
        calibrant.adapt(many, source=SOURCE, prevalence=0.1)
    head = calibrant.calibrators.get("tst_head")
    with pytest.raises(InputError, match="takes features: apply it first"):
        calibrant.adapt(head, source=SOURCE, prevalence=0.1)
    with pytest.raises(InputError, match="not fitted"):
        calibrant.adapt(calibrant.calibrators.get("platt"), source=SOURCE, prevalence=0.1)
    with pytest.raises(InputError, match=r"made by calibrant\.adapt"):
        PriorShift().fit(CLASSES)


def test_source_rows_that_fitted_the_calibrator_are_named():
    fitted = calibrant.calibrators.get("isotonic").fit(SOURCE)
    with pytest.warns(UserWarning, match="this isotonic was fitted on about"):
        calibrant.adapt(fitted, source=SOURCE, target=NEW, **FEW)


# A calibrator like any other


@pytest.mark.parametrize("kind", ["events", "classes"])
def test_saved_and_loaded_it_says_and_does_the_same(kind, adapted, adapted_classes, tmp_path):
    made, rows = (adapted, NEW) if kind == "events" else (adapted_classes, NEW_CLASSES)
    path = made.save(tmp_path / "made.safetensors")
    loaded = calibrant.load(path)
    assert isinstance(loaded, PriorShift)
    assert loaded.shift_ == made.shift_
    assert loaded.explanation == made.explanation
    assert loaded.class_names_ == made.class_names_
    np.testing.assert_array_equal(loaded.predict_proba(rows.array), made.predict_proba(rows.array))


def test_a_tampered_member_is_refused(adapted, tmp_path):
    from calibrant.calibrators import files

    header = files.make_header(adapted)
    for member in (None, {"method": "os.system"}, {"method": "temperature", "strange": 1}):
        with pytest.raises(InputError):
            files.restore(
                {**header, "options": {**header["options"], "member": member}},
                files.gather_tensors(adapted),
            )


@pytest.mark.parametrize("kind", ["events", "classes"])
def test_onnx_agrees_with_torch(kind, adapted, adapted_classes, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    made, rows = (adapted, NEW) if kind == "events" else (adapted_classes, NEW_CLASSES)
    path = export_onnx(made, tmp_path / "made.onnx", probabilities=True)
    given = np.asarray(rows.array, dtype=np.float32)
    (found,) = runtime.InferenceSession(path).run(None, {"logits": given})
    np.testing.assert_allclose(found, made.predict_proba(given), atol=1e-5)


def test_everything_fitted_is_a_buffer(adapted_classes):
    assert set(adapted_classes.state_dict()) >= {"slope_", "intercept_", "log_ratio_"}
    moved = adapted_classes.double()
    assert moved(torch.zeros(2, 4, dtype=torch.float64)).dtype == torch.float64


def test_decide_refuses_the_rows_that_corrected_it(adapted):
    with pytest.raises(InputError, match="rows that fitted"):
        calibrant.decide(SOURCE, max_error=0.1, calibrator=adapted)


# Without labels


def test_accuracy_without_labels_is_near_the_truth():
    judged = calibrant.evaluate_unlabelled(
        None, source=CLASSES, target=NEW_CLASSES, confidence_level=0.99, **FEW
    )
    truth = make_classes(50_000, FOUR[::-1], seed=9)
    for spans, rows in (
        (judged.before, truth),
        (judged.after, apply(judged.calibrator, truth)),
    ):
        for name in ("accuracy", "nll", "brier"):
            assert spans[name].low <= measure(rows, name) <= spans[name].high
        assert spans["gap"].value == pytest.approx(
            spans["confidence"].value - spans["accuracy"].value
        )


def test_calibration_of_events_without_labels_is_near_the_truth():
    source = make_events(10_000)
    judged = calibrant.evaluate_unlabelled(
        None, source=source, prevalence=0.05, confidence_level=0.99, **FEW
    )
    truth = make_events(50_000, RARE, seed=9)
    for name in ("brier", "nll", "ece"):
        span = judged.before[name]
        assert span.low <= measure(truth, name) <= span.high
    assert judged.before["gap"].value == pytest.approx(
        np.mean(1 / (1 + np.exp(-truth.array))) - 0.05, abs=0.02
    )
    assert judged.after["ece"].value < 0.02 < judged.before["ece"].value


def test_the_assumption_comes_first():
    judged = calibrant.evaluate_unlabelled(None, source=SOURCE, target=NEW, **FEW)
    assert str(judged).splitlines()[0] == ASSUMPTION
    assert judged.sentences[0] == ASSUMPTION
    plain_values = judged.to_dict()
    assert next(iter(plain_values.items())) == ("assumption", ASSUMPTION)
    assert json.loads(json.dumps(plain_values))["shift"]["how"] == "em"
    assert judged.calibrator.explanation.startswith(ASSUMPTION)


def test_results_repeat_exactly():
    first, again = (
        calibrant.evaluate_unlabelled(None, source=SOURCE, target=NEW, seed=3, **FEW)
        for _ in range(2)
    )
    assert first.to_dict() == again.to_dict()
