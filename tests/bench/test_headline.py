"""The headline: which method is best, by how much, how sure; and the pictures beside it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calibrant.bench.measure import measurement
from calibrant.bench.suite.suite import Suite
from calibrant.bench.tables import headline, pictures, series
from calibrant.bench.tables.gallery import choose_highlighted, draw_answer
from calibrant.bench.tables.results import collect_results
from calibrant.bench.tables.tabulate import choose_error, table
from calibrant.core.errors import InputError
from calibrant.predictions import Predictions
from tests.helpers.bench_frames import frame_of, small

CLEAR = {
    "cross_entropy": [0.0330, 0.0340, 0.0320],
    "acls": [0.0130, 0.0138, 0.0121],
    "mbls": [0.0140, 0.0131, 0.0136],
    "focal": [0.0431, 0.0439, 0.0420],
    ("acls", "none", "accuracy"): [0.93, 0.94, 0.95],
    ("cross_entropy", "none", "accuracy"): [0.92, 0.93, 0.94],
}


def answer(values, error=None, **settings):
    suite = small(**settings)
    return headline.make_headlines(collect_results(suite, frame_of(suite, values)), error)


def test_it_names_the_best_the_margin_and_the_evidence():
    (made,) = answer(CLEAR)
    differences = np.subtract(CLEAR["acls"], CLEAR["cross_entropy"])
    p = 3 * stats.ttest_1samp(differences, 0).pvalue  # chosen from three others
    reach = stats.t.ppf(1 - 0.05 / 3 / 2, 2) * differences.std(ddof=1) / np.sqrt(3)
    low, high = (100 * (-differences.mean() + side * reach) for side in (-1, 1))
    assert made.best == ("acls", "none")
    assert made.shown is True
    assert made.answer == (
        "acls has the lowest mean ECE: 1.30 ± 0.05%, 2.00 points below cross_entropy."
    )
    assert made.certainty.startswith("Accuracy 94.00% against 93.00%. Sure: p = ")
    assert f"p = {p:.2g}, 95% interval {low:.2f} to {high:.2f} points" in made.certainty
    assert made.certainty.endswith("A test does not tell it from: mbls.")


def test_a_calibrator_may_be_part_of_the_best():
    better = {**CLEAR, ("focal", "temperature"): [0.0050, 0.0053, 0.0049]}
    (made,) = answer(better)
    assert made.best == ("focal", "temperature")
    assert made.answer.startswith("focal, then temperature has the lowest mean ECE: 0.51")


def test_what_may_be_chance_is_called_so():
    noisy = {**CLEAR, "acls": [0.001, 0.030, 0.004], "mbls": [0.02, 0.03, 0.04]}
    (made,) = answer(noisy)
    assert made.shown is False
    assert "which may be chance" in made.answer
    assert "Not sure: p = " in made.certainty


def test_two_seeds_are_not_tested():
    (made,) = answer({name: runs[:2] for name, runs in CLEAR.items()}, seeds="0, 1")
    assert made.shown is None
    assert "which is not tested" in made.answer
    assert "there are 2 common seeds, and a test needs 3" in made.certainty


def test_the_baseline_may_be_the_best():
    (made,) = answer({**CLEAR, "cross_entropy": [0.001, 0.0012, 0.0011]})
    assert made.best == ("cross_entropy", "none")
    assert "no other of 4 is lower" in made.answer


def test_each_setting_has_a_headline_and_they_are_counted():
    made = answer(CLEAR, data="cifar10, cifar100")
    assert [each.name for each in made] == ["cifar10, resnet50", "cifar100, resnet50"]
    text = headline.summarize(made, "ece")
    assert text.startswith("Lowest ECE: acls in 2 of 2 settings.")
    assert "In 2 of 2 the test shows the best to beat the baseline." in text


def test_another_error_may_decide_but_not_accuracy():
    names = ("cross_entropy", "acls", "mbls", "focal")
    losses = {(name, "none", "nll"): [k, k + 0.1, k] for k, name in enumerate(names)}
    values = {**CLEAR, **losses}
    (made,) = answer(values, "nll")
    assert made.best == ("cross_entropy", "none")
    with pytest.raises(InputError, match="accuracy is no error"):
        answer(CLEAR, "accuracy")
    assert choose_error(small(more="")) == "ece"


def test_marks_do_not_depend_on_the_rows_shown():
    suite = small()
    frame = frame_of(suite, CLEAR)
    whole = dict(table(suite, frame, "ece").blocks[0].rows)
    for shown in (["focal", "mbls"], ["acls", "focal"], ["mbls", "cross_entropy"]):
        part = dict(table(suite, frame, "ece", methods=shown).blocks[0].rows)
        assert list(part) == shown
        assert all(part[name] == whole[name] for name in shown)


def test_marks_of_calibrators_do_not_depend_on_the_rows_shown():
    suite = Suite.parse(
        "name: one\ndefaults: {model: resnet18, data: cifar10}\nseeds: [0, 1, 2]\n"
        "methods: {acls: {loss: acls}}\ncalibrators: [temperature, isotonic, vector]\n"
    )
    values = {
        ("acls", "none"): [0.030, 0.031, 0.032],
        ("acls", "temperature"): [0.020, 0.023, 0.021],
        ("acls", "isotonic"): [0.010, 0.013, 0.011],
        ("acls", "vector"): [0.029, 0.030, 0.030],
    }
    frame = frame_of(suite, values)
    whole = dict(table(suite, frame, "ece").blocks[0].rows)
    part = dict(table(suite, frame, "ece", calibrators=["temperature"]).blocks[0].rows)
    assert part["temperature"] == whole["temperature"]
    assert whole["temperature"][0].p > whole["temperature"][0].difference.p  # Holm over three


def test_stored_bins_are_those_of_the_rows():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(300, 4)) * 2, rng.integers(0, 4, 300)
    predictions = Predictions.from_logits(logits, labels)
    bins = {}
    for row in measurement.measure_part("test", "none", predictions):
        if row.part.startswith("reliability@"):
            bins.setdefault(int(row.part.partition("@")[2]), {})[row.metric] = row.value
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    confidence, right = probs.max(1), probs.argmax(1) == labels
    place = np.ceil(confidence * measurement.BINS).astype(int) - 1
    assert set(bins) == set(place)
    for number, figures in bins.items():
        here = place == number
        assert figures["rows"] == here.sum()
        assert figures["confidence"] == pytest.approx(confidence[here].mean())
        assert figures["accuracy"] == pytest.approx(right[here].mean())
    assert not [
        row
        for part, after in (("validation", "none"), ("test", "vector"))
        for row in measurement.measure_part(part, after, predictions)
        if "@" in row.part
    ]


def bins_of(method, rows, confidence, accuracy):
    part = "reliability@7"
    return {
        (method, "none", "rows", part): rows,
        (method, "none", "confidence", part): confidence,
        (method, "none", "accuracy", part): accuracy,
    }


def test_a_diagram_pools_the_rows_of_all_seeds():
    suite = small()
    values = {**CLEAR, **bins_of("acls", [10, 30, 0.5], [0.5, 0.52, 0.5], [0.4, 0.6, 0.0])}
    results = collect_results(suite, frame_of(suite, values))
    ((diagram,),) = series.diagrams(results).values()
    assert diagram.method == "acls"
    assert diagram.rows == [40.5]
    assert diagram.accuracies == [pytest.approx((10 * 0.4 + 30 * 0.6) / 40.5)]


def test_pictures_of_the_answer_are_drawn_again_alike():
    suite = small()
    bins = bins_of("acls", [10, 30, 20], [0.5, 0.52, 0.5], [0.4, 0.6, 0.5])
    results = collect_results(suite, frame_of(suite, {**CLEAR, **bins}))
    (drawn,) = draw_answer(results, "ece").values()
    assert list(drawn) == ["Accuracy against ECE", "Reliability as trained"]
    assert draw_answer(results, "ece") == {results.cells[0]: drawn}


def test_a_mark_far_below_the_others_is_named_and_left_out():
    mean = series.mean_of
    points = [
        series.Point(name, "none", mean([0.02, 0.03]), mean([accuracy, accuracy + 0.001]))
        for name, accuracy in (("a", 0.95), ("b", 0.951), ("c", 0.949), ("lost", 0.3))
    ]
    axes = pictures.scatter(points, "ece", highlighted=["a"])
    assert "below the picture: lost (30.05%)" in axes.get_xlabel()
    assert axes.get_ylim()[0] > 90
    names = {text.get_text() for text in axes.texts}
    assert names == {"a", "b", "c"}


def test_of_many_methods_the_baseline_and_the_best_have_colours():
    mean = series.mean_of
    points = [
        series.Point(f"m{place}", "none", mean([0.1 - place / 200]), mean([0.9]))
        for place in range(12)
    ]
    assert choose_highlighted(points, "m0") == ["m0", "m7", "m8", "m9", "m10", "m11"]
    assert len(choose_highlighted(points[:8], "m0")) == 8
