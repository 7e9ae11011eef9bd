"""The verdict on events, on labels and on options: off, holds, or cannot tell."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.special import expit, logit, ndtri

from calibrant import Predictions, compare, evaluate
from calibrant.core.errors import InputError
from calibrant.evaluation import Tolerance
from calibrant.report import render

FEW = {"metrics": ["oe_ratio"], "resamples": 200}


def draw_events(seed, rows, mean, truth=lambda p: p):
    rng = np.random.default_rng(seed)
    p = expit(logit(mean) + rng.normal(0, 1.2, rows))
    return p, rng.random(rows) < truth(p)


def judge(p, y, **options):
    return evaluate(Predictions.from_events(p, y, event="fraud", **options), **FEW).verdict


def test_a_score_that_over_scores_rare_events_is_off_and_too_high():
    """The failure that a predicted class hides: it says 25%, and fraud happens in 0.9%."""
    rng = np.random.default_rng(0)
    p, y = rng.beta(2, 6, 9000), rng.random(9000) < 0.009
    verdict = judge(p, y)
    assert (verdict.state, verdict.direction) == ("off", "too high")
    assert verdict.headline.startswith("The probabilities are too high: it says 25.0% on average")
    assert verdict.ratio.high < 0.05
    two = evaluate(Predictions.from_probs(np.stack((1 - p, p), 1), y.astype(int)), **FEW)
    assert (two.view, two.event, two.verdict.direction) == ("events", "class 1", "too high")


@pytest.mark.parametrize("units", ["clusters", "weights", "both"])
@pytest.mark.parametrize("happens", [0.0, 0.009])
def test_a_score_that_says_far_too_much_is_off_whatever_the_units(units, happens):
    """Flipped signs, scaled to the spread of the hypothesis, hid any fault as large as this."""
    rng = np.random.default_rng(0)
    p, y = rng.beta(2, 6, 3000), rng.random(3000) < happens
    given = {"weights": rng.uniform(0.5, 2, 3000), "clusters": np.arange(3000) % 30}
    if units != "both":
        given = {units: given[units]}
    verdict = judge(p, y, **given)
    assert (verdict.state, verdict.direction) == ("off", "too high")
    assert happens > 0 or "fraud happens in 0.0% of rows" in verdict.headline


@pytest.mark.parametrize("clusters", [None, np.arange(1000) % 50])
def test_events_in_all_rows_but_one_are_judged(clusters):
    """The upper end of the offset was not found; the slope, of one row, was named in its place."""
    rng = np.random.default_rng(3)
    happened = np.arange(1000) > 0
    rows = Predictions.from_events(rng.beta(2, 3, 1000), happened, clusters=clusters)
    evaluation = evaluate(rows, metrics=["calibration_in_the_large"], resamples=200)
    assert (evaluation.verdict.state, evaluation.verdict.direction) == ("off", "too low")
    figure = evaluation["calibration_in_the_large"]
    assert 0 < figure.low < figure.value < figure.high


def test_a_calibrated_model_may_be_unlucky_in_all_clusters_at_once():
    """All 50 rows of a cluster share its luck: far fewer events than said prove nothing."""
    rng = np.random.default_rng(4)
    alarms = 0
    for seed in range(60):
        clusters = np.repeat(np.arange(12), 50)
        p = np.clip(rng.beta(2, 3, 12)[clusters] + rng.uniform(-0.02, 0.02, 600), 0.01, 0.99)
        y = rng.random(12)[clusters] < p
        verdict = evaluate(
            Predictions.from_events(p, y, clusters=clusters),
            metrics=["accuracy"],
            seed=seed,
            resamples=200,
        ).verdict
        alarms += verdict.state == "off"
    assert alarms <= 7  # of 60 at 5%: more has a chance of 1.6%


def test_pairs_of_confidence_and_correctness_are_not_folded():
    """A judge that says 30% where it is right in half: folded at 50% the gap would shrink."""
    rng = np.random.default_rng(1)
    p = rng.uniform(0.05, 0.75, 4000)
    y = rng.random(4000) < p + 0.198
    verdict = evaluate(Predictions.from_events(p, y, event="correct"), **FEW).verdict
    assert verdict.gap == pytest.approx(-0.198, abs=0.02)
    assert verdict.direction == "too low"


def test_probabilities_of_an_event_may_be_too_extreme_or_too_timid():
    p, y = draw_events(2, 4000, 0.3)
    steep = judge(expit(1.7 * logit(p)), y)
    assert (steep.state, steep.direction) == ("off", "too extreme")
    assert steep.slope.high < 1
    flat = judge(expit(0.5 * (logit(p) - logit(0.3)) + logit(0.3)), y)
    assert (flat.state, flat.direction) == ("off", "too timid")


def test_it_holds_only_where_both_intervals_lie_in_the_tolerance():
    p, y = draw_events(3, 20_000, 0.2)
    held = judge(p, y)
    assert held.state == "holds"
    assert held.ratio.within(1.25)
    assert held.slope.within(1.25)
    tight = evaluate(Predictions.from_events(p, y), **FEW, tolerance=Tolerance(ratio=1.01)).verdict
    assert tight.state == "cannot tell"
    assert tight.rows_needed > 20_000


def test_equal_probabilities_need_no_slope():
    """The rate alone, given to all rows, is calibrated; a slope is not missing for want of rows."""
    rng = np.random.default_rng(8)
    p, y = np.full(4000, 0.3), rng.random(4000) < 0.3
    verdict = judge(p, y)
    assert (verdict.state, verdict.slope) == ("holds", None)
    assert "All probabilities are equal, so that they have no slope." in verdict.sentences
    assert any("the interval of the first lies inside it" in line for line in verdict.sentences)
    assert judge(p[:100], y[:100]).state == "cannot tell"
    assert judge(np.full(4000, 0.35), y).state == "off"


def test_under_ten_expected_events_cannot_tell_and_more_rows_are_named():
    p, y = draw_events(4, 800, 0.005)
    verdict = judge(p, y)
    assert verdict.state == "cannot tell"
    assert verdict.rows_needed > 10_000
    assert "rows like these would show whether it holds" in verdict.sentences[-2]


def test_under_ten_expected_events_nothing_is_off_unless_thirty_happen():
    """Three times as many as expected, of five: chance hardly explains it, but it is too little."""
    p, y = np.full(500, 0.01), np.arange(500) < 16
    verdict = judge(p, y)
    assert (verdict.state, verdict.direction) == ("cannot tell", "neither")
    assert verdict.p_value < 0.001
    assert "too few to rely on" in " ".join(verdict.sentences)
    assert judge(1 - p, ~y).state == "cannot tell"  # the outcome that is rare
    assert judge(p, np.arange(500) < 30).direction == "too low"
    labels = Predictions.from_multilabel(np.stack((p, p), 1), np.stack((y, y), 1), is_logits=False)
    pooled = evaluate(labels, **FEW)
    assert pooled.verdict.classes == ()  # ten are expected of both, five of each


@pytest.mark.parametrize("happened", [False, True])
def test_one_outcome_alone_has_a_verdict_without_a_slope(happened):
    p = np.full(300, 0.001 if not happened else 0.999)
    verdict = judge(p, np.full(300, happened))
    assert verdict.state == "cannot tell"
    assert verdict.slope is None
    wrong = judge(1 - p, np.full(300, happened))
    assert wrong.state == "off"


def test_clusters_widen_and_under_ten_of_them_test_nothing():
    """Forty patients with fifty rows each: calibrated, and alike within a patient."""
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(20):
        patient = np.repeat(np.arange(40), 50)
        p = rng.uniform(0.2, 0.8, 2000)
        shared = rng.normal(size=40)[patient] * np.sqrt(0.3)
        noise = shared + rng.normal(size=2000) * np.sqrt(0.7)
        y = noise < ndtri(p)
        alarms += judge(p, y, clusters=patient).state == "off"
    assert alarms <= 5
    few = judge(p, y, clusters=patient // 8)
    assert few.state == "cannot tell"
    assert math.isnan(few.p_value)
    assert "fewer than ten clusters" in " ".join(few.sentences)


def test_the_caveat_on_independence_stands_where_no_clusters_are_given():
    p, y = draw_events(6, 300, 0.3)
    assert "assumes independent rows" in judge(p, y).sentences[-1]
    told = judge(p, y, clusters=np.arange(300) // 10).sentences
    assert "Rows are grouped in 30 clusters" in told[-1]


def test_labels_of_a_row_are_grouped_and_their_rows_assumed_independent():
    rng = np.random.default_rng(3)
    p = rng.uniform(0.1, 0.9, (200, 2))
    labels = (rng.random((200, 2)) < p).astype(int)
    alone = evaluate(Predictions.from_multilabel(p, labels, is_logits=False), **FEW).verdict
    assert alone.sentences[-2].startswith("The labels of a row form a cluster")
    assert "assumes independent rows" in alone.sentences[-1]
    patients = np.arange(200) // 5
    grouped = Predictions.from_multilabel(p, labels, is_logits=False, clusters=patients)
    text = " ".join(evaluate(grouped, **FEW).verdict.sentences)
    assert "Rows are grouped in 40 clusters" in text
    assert "independent rows" not in text


def test_a_label_that_is_off_is_named_among_many():
    rng = np.random.default_rng(7)
    p = rng.uniform(0.05, 0.6, (3000, 4))
    y = (rng.random((3000, 4)) < p).astype(int)
    p[:, 2] = p[:, 2] * 1.6
    names = ["cat", "dog", "fox", "owl"]
    labels = Predictions.from_multilabel(p, y, is_logits=False, class_names=names)
    evaluation = evaluate(labels, **FEW)
    verdict = evaluation.verdict
    assert (verdict.state, verdict.classes[0].name) == ("off", "fox")
    assert "label fox is given" in verdict.headline
    assert [each.name for each in evaluation.labels] == names
    missing = y.copy()
    missing[:2000, 1] = -1
    fewer = evaluate(Predictions.from_multilabel(p, missing, is_logits=False), **FEW)
    assert fewer.labels[1].num_rows == 1000
    with pytest.raises(InputError, match="many labels"):
        evaluate(labels, view="top")
    written = json.loads(evaluation.to_json())
    assert (written["task"], written["classes"]) == ("multilabel", [])
    assert written["labels"]["fox"]["verdict"]["state"] == "off"


def test_questions_with_options_are_judged_by_the_chosen_one():
    rng = np.random.default_rng(8)
    questions, answers = [], []
    for _ in range(1500):
        scores = rng.normal(size=rng.integers(2, 6)) * 1.5
        chance = np.exp(scores) / np.exp(scores).sum()
        answers.append(rng.choice(len(scores), p=chance))
        questions.append(2.5 * scores)
    evaluation = evaluate(Predictions.from_options(questions, answers), resamples=100)
    verdict = evaluation.verdict
    assert (verdict.state, verdict.direction) == ("off", "overconfident")
    assert not any("Class by class" in sentence for sentence in verdict.sentences)
    assert "classwise_ece" not in evaluation.figures
    assert (evaluation.num_options, len(evaluation.classes)) == ((2, 5), 0)
    page = render(evaluation)
    assert "2 to 5 options" in page
    assert 'id="classes"' not in page


def test_a_class_that_hides_behind_the_predicted_one_is_named():
    """Class 2 is never predicted; its probability is ten times what occurs."""
    rng = np.random.default_rng(9)
    rows = 5000
    z = rng.normal(size=(rows, 2)) * 3
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    rare = rng.beta(2, 60, rows)
    probs = np.column_stack((p * (1 - rare[:, None]), rare))
    y = (rng.random(rows) > p[:, 0]).astype(int)
    y[rng.random(rows) < rare / 10] = 2
    names = ["left", "right", "fraud"]
    verdict = evaluate(Predictions.from_probs(probs, y, class_names=names), metrics=["ece"]).verdict
    assert verdict.state == "off"
    assert verdict.classes[0].name == "fraud"
    assert "class fraud is given 3." in " ".join((verdict.headline, *verdict.sentences))


def test_tolerances_are_checked():
    for options in ({"error": 0}, {"ratio": 0.8}, {"slope": float("nan")}):
        with pytest.raises(InputError, match="tolerated"):
            Tolerance(**options)


def test_events_without_a_name_are_called_the_event():
    p, y = draw_events(3, 2000, 0.3)
    group = np.repeat(["a", "b"], 1000)
    evaluation = evaluate(Predictions.from_events(p, y), groups=group, group_name="site", **FEW)
    verdict = evaluation.verdict
    assert "and the event happens in" in verdict.headline
    assert "are events: frequency" in verdict.sentences[0]
    text = render(evaluation)
    assert "probabilities of the event" in text
    for awkward in ("events of event", "of event ", "event: event", "event: <span"):
        assert awkward not in text


def test_figures_are_asked_for_by_name_as_in_a_dictionary():
    p, y = draw_events(3, 500, 0.3)
    evaluation = evaluate(Predictions.from_events(p, y), metrics=["brier"], intervals=False)
    assert "brier" in evaluation
    assert "ece" not in evaluation
    assert list(evaluation) == ["brier"]


def draw_boosted_scores():
    """Return scores of 0.1% and 99.9%, of which one in sixteen is wrong."""
    p = np.r_[np.full(200, 0.001), np.full(120, 0.999)]
    y = np.r_[np.arange(200) < 8, np.arange(120) >= 10]
    return p, y


def test_probabilities_of_nearly_0_and_1_are_called_too_extreme():
    """Their slope has too little variance for a test: the total, which is right, was named."""
    p, y = draw_boosted_scores()
    verdict = judge(p, y)
    assert (verdict.state, verdict.direction) == ("off", "too extreme")
    assert verdict.slope.high < 1
    assert verdict.ratio.low < 1 < verdict.ratio.high
    assert verdict.headline.startswith("The probabilities are too extreme (high ones too high")


def test_a_place_whose_ends_print_alike_is_said_once():
    places = [text for text in judge(*draw_boosted_scores()).sentences if "furthest" in text]
    assert len(places) == 1
    assert places[0].startswith("It is furthest off near ")


def test_an_event_without_a_name_reads_as_english():
    p, y = draw_boosted_scores()
    verdict = evaluate(Predictions.from_events(p, y), **FEW).verdict
    assert "the event happens in" in verdict.headline
    assert "are events: frequency" in verdict.sentences[0]


@pytest.mark.parametrize(("happened", "says"), [(False, "not happen in any"), (True, "in all")])
def test_labels_that_are_all_the_same_are_doubted(happened, says):
    p = np.random.default_rng(0).random(60)
    evaluation = evaluate(Predictions.from_events(p, np.full(60, happened)), **FEW)
    assert any(says in warning for warning in evaluation.warnings)
    classes = Predictions.from_probs(np.stack((p, (1 - p) / 2, (1 - p) / 2), 1), [2] * 60)
    warnings = evaluate(classes, metrics=["nll"], resamples=200).warnings
    assert warnings == ("every label of 60 is 2: are these the right labels?",)


def test_results_print_as_text():
    """A print of an evaluation filled a screen with the insides of a dataclass."""
    p, y = draw_boosted_scores()
    rows = Predictions.from_events(p, y, event="fraud", name="scores")
    evaluation = evaluate(rows, metrics=["nll"], groups=["a", "b"] * 160, resamples=200)
    lines = str(evaluation).splitlines()
    assert lines[0] == "scores: 320 rows"
    assert lines[1] == evaluation.verdict.headline
    assert lines[2].startswith("nll: 0.")
    assert "95% interval" in lines[2]
    assert str(evaluation.verdict).splitlines()[1:] == list(evaluation.verdict.sentences)
    assert [line.partition(":")[0] for line in str(evaluation.groups).splitlines()[1:]] == [
        "a",
        "b",
    ]
    compared = str(compare(rows, rows, metrics=["nll"], resamples=100)).splitlines()
    assert compared[0] == "no difference is shown in nll."
    assert "difference +0" in compared[1]


def test_a_class_whose_name_is_a_number_is_called_a_class():
    """ "1 happens in 63% of rows" was no English; scikit-learn's classes are numbers."""
    p, y = draw_boosted_scores()
    two = Predictions.from_probs(np.stack((1 - p, p), 1), y.astype(int), class_names=["0", "1"])
    evaluation = evaluate(two, **FEW)
    assert evaluation.event == "class 1"
    assert "class 1 happens in" in evaluation.verdict.headline


def test_a_printed_value_outside_its_interval_has_the_corrected_one_beside_it():
    p, y = draw_events(1, 400, 0.4)
    rows = Predictions.from_events(p, y)
    evaluation = evaluate(rows, metrics=["ece", "brier"], resamples=200)
    ece, brier = str(evaluation).splitlines()[-2:]
    assert f"({evaluation['ece'].corrected:.4g} corrected)" in ece
    assert "corrected" not in brier
