"""Groups: their figures, which are off, and how often that is a false alarm."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import ndtr

from calibrant import InputError, Predictions, evaluate, metrics
from calibrant.evaluation import Interval, read_groups
from calibrant.evaluation.groups import judge as grouping
from calibrant.evaluation.groups.files import MOST_GROUPS, check_groups
from calibrant.evaluation.groups.judge import judge_groups
from calibrant.evaluation.groups.value import Group, Groups
from calibrant.evaluation.intervals import Plan, Units
from calibrant.metrics.base import compute_all
from calibrant.metrics.means import RowState
from calibrant.metrics.rank_state import RankState
from calibrant.report import group_gaps, render
from calibrant.report.groups import make_group_section
from tests.helpers.groups import FAST, draw_groups, run_command


def judge(predictions, home):
    """Judge the groups alone, without the figures of all rows."""
    ranks, loss = RankState(), RowState("nll")
    compute_all([], predictions.batches(), from_logits=False, extra=[ranks, loss])
    values = check_groups(home, predictions, "group")
    return judge_groups(values, predictions, ranks, loss, num_bins=15, plan=Plan(resamples=100))


@pytest.fixture
def gaps_alone(monkeypatch):
    """The judgement is of the gap; the intervals of ECE take most of the time."""
    monkeypatch.setattr(grouping, "invert", lambda *_, **__: Interval(0.0, 0.0, None))
    monkeypatch.setattr(grouping, "chance_level", lambda *_, **__: 0.0)
    monkeypatch.setattr(grouping, "make_cell_noise", lambda *_, **__: None)


@pytest.mark.usefixtures("gaps_alone")
def test_calibrated_groups_are_rarely_called_off():
    """Of sets of ten calibrated groups at most one in twenty has any called off."""
    sets, gaps = 100, np.zeros(10)
    alarms = sum(bool(judge(*draw_groups(seed, [60] * 10, gaps)).off) for seed in range(sets))
    # 12 or more of 100 at a rate of 5% happen once in 200 times.
    assert alarms <= 11, alarms


@pytest.mark.usefixtures("gaps_alone")
def test_very_sure_calibrated_groups_are_rarely_called_off():
    """Where less than one row is wrong on average, a normal approximation would cry wolf."""
    alarms, sets = 0, 60
    rng = np.random.default_rng(7)
    for _ in range(sets):
        home = np.repeat(np.arange(10), 200)
        confidence = 1 - 0.004 * rng.random(len(home))
        labels = (rng.random(len(home)) < confidence).astype(np.int64)
        probs = np.stack((1 - confidence, confidence), axis=1)
        alarms += bool(judge(Predictions.from_probs(probs, labels), home).off)
    assert alarms <= 8, alarms  # 9 or more of 60 at 5%: once in 300 times


@pytest.mark.slow
@pytest.mark.usefixtures("gaps_alone")
def test_one_group_too_sure_by_ten_points_is_found():
    """The one of ten groups of 300 rows that is off is found nearly always, and alone."""
    sets = 60
    judged = [judge(*draw_groups(seed, [300] * 10, np.eye(10)[3] * 0.1)) for seed in range(sets)]
    # Found in 97.2% of 500 other sets; fewer than 54 of 60 happen once in 300 times.
    assert sum(groups["3"].finding == "overconfident" for groups in judged) >= 54
    assert sum(groups.worst.value == "3" for groups in judged) >= 54
    assert sum(len(groups.off) > 1 for groups in judged) <= 8  # the nine calibrated groups


def test_an_underconfident_group_is_found_and_told_apart():
    judged = judge(*draw_groups(0, [400] * 4, [0, -0.1, 0, 0.12]))
    assert [judged[value].finding for value in "13"] == ["underconfident", "overconfident"]
    assert judged.worst.value == "3"  # too sure is worse than too unsure
    assert "groups by group is overconfident" in judged.headline
    assert "groups by group is underconfident" in judged.headline


def test_figures_of_a_group_are_those_of_its_rows_alone():
    predictions, home = draw_groups(1, [500, 200, 90], [0.0, 0.1, 0.2])
    groups = evaluate(predictions, groups=home, **FAST).groups
    for value in range(3):
        mine = home == value
        probs, labels = predictions.array[mine], predictions.labels[mine]
        group = groups[value]
        assert group.num_rows == mine.sum()
        for name in ("accuracy", "ece", "nll", "aurc"):
            expected = float(getattr(metrics, name)(probs, labels, from_logits=False))
            assert getattr(group, name) == pytest.approx(expected, rel=1e-9), name
        assert group.confidence == pytest.approx(probs.max(1).mean())
        assert group.gap == pytest.approx(group.confidence - group.accuracy)
        assert group.gap_low < group.gap < group.gap_high
        assert group.ece_low <= group.ece_high
        alone = evaluate(predictions.take(mine), metrics=["accuracy"]).verdict
        assert group.gap_low == pytest.approx(alone.gap_low, abs=0.012)
        assert group.gap_high == pytest.approx(alone.gap_high, abs=0.012)
        assert group.chance_ece == pytest.approx(alone.chance_ece, rel=0.25)


@pytest.mark.usefixtures("gaps_alone")
def test_the_interval_of_a_gap_holds_the_truth():
    inside = 0
    for seed in range(60):
        judged = judge(*draw_groups(seed, [150] * 5, [0.08] * 5))
        inside += sum(group.gap_low <= 0.08 <= group.gap_high for group in judged.groups)
    assert 0.91 <= inside / 300 <= 0.99


def test_groups_do_not_depend_on_the_order_of_rows():
    predictions, home = draw_groups(2, [300, 300], [0.1, 0.0])
    order = np.random.default_rng(0).permutation(600)
    groups = evaluate(predictions, groups=home, **FAST).groups
    two = evaluate(predictions.take(order), groups=home[order], **FAST).groups
    pd.testing.assert_frame_equal(groups.to_frame(), two.to_frame())


def test_few_rows_are_said_to_be_few_and_do_not_count_among_the_groups():
    predictions, home = draw_groups(3, [300, 300, 7, 40], [0.12, 0, 0, 0])
    evaluation = evaluate(predictions, groups=home, group_name="site", **FAST)
    groups = evaluation.groups
    assert groups["2"].finding == "not tested: fewer than 20 rows"
    assert groups["2"].p_value is None
    assert groups["3"].finding == "too few rows to rule out 10 points"
    assert groups["3"].p_value is not None
    assert "1 group has too few rows to rule out 10 points: 3 (40 rows, up to " in groups.headline
    assert "1 group was not tested, with fewer than 20 rows: 2 (7 rows)." in groups.headline
    assert "1 of 4 groups by site is overconfident, corrected for 3 groups" in groups.headline
    assert evaluation.verdict.sentences[-1] == groups.headline


def test_where_no_group_is_off_the_widest_gap_is_told_as_chance():
    predictions, home = draw_groups(3, [400, 400, 7], [0, 0, 0])
    groups = evaluate(predictions, groups=home, group_name="site", **FAST).groups
    assert groups.off == []
    assert groups.headline.startswith(
        "None of the 2 groups by site tested is shown to be over- or underconfident, "
        f"corrected for 2 groups (Holm); the widest gap is that of {groups.worst.value}, "
    )
    assert "which chance could explain. 1 group was not tested, with fewer" in groups.headline
    few = evaluate(predictions.take(np.arange(30)), groups=home[:30] % 2, **FAST).groups
    assert few.worst is None
    assert few.headline.startswith("2 groups were not tested, with fewer than 20 rows: ")


def test_too_few_rows_are_told_by_the_widest_gap_and_what_looks_off_is_said():
    predictions, home = draw_groups(0, [600, 40, 40, 9, 15], [0, 0.02, -0.1, 0, 0.6])
    groups = evaluate(predictions, groups=home, group_name="site", **FAST).groups
    assert [group.finding for group in groups] == [
        "no gap shown",
        *["too few rows to rule out 10 points"] * 2,
        *["not tested: fewer than 20 rows"] * 2,
    ]
    gaps = [abs(group.gap) for group in groups.few]
    assert gaps == sorted(gaps, reverse=True)
    assert groups.few[0].value == "4"
    assert [group.value for group in groups if group.looks_off] == ["4"]
    assert groups["4"].gap_low > 0
    assert groups.headline.startswith("None of the 3 groups by site tested is shown to be over- ")
    assert "corrected for 3 groups" in groups.headline
    assert "2 groups have too few rows to rule out 10 points: " in groups.headline
    assert "2 groups were not tested, with fewer than 20 rows: 4 (15 rows), 3" in groups.headline
    assert groups.headline.endswith("Of these 4 looks off: more rows are needed.")
    assert groups["0"].widest == max(-groups["0"].gap_low, groups["0"].gap_high)


def test_groups_are_walked_through_and_found_by_name():
    predictions, home = draw_groups(6, [50, 60, 70], [0, 0, 0])
    names = np.array(["north", "south", "east"])[home]
    groups = evaluate(predictions, groups=names, intervals=False).groups
    assert [group.value for group in groups] == groups.keys() == ["east", "north", "south"]
    assert dict(groups)["east"] is groups["east"]
    assert ("north" in groups, "nroth" in groups) == (True, False)
    with pytest.raises(InputError, match=r"no group is called 'nroth'. Did you mean north"):
        groups["nroth"]


def test_images_are_counted_where_predictions_are_dense():
    labels = np.ones((30, 4, 4), dtype=int)
    probs = np.stack((np.full(labels.shape, 0.1), np.full(labels.shape, 0.9)), axis=1)
    home = (np.arange(30) >= 25).astype(int)
    groups = evaluate(Predictions.from_probs(probs, labels), groups=home, **FAST).groups
    assert groups["1"].finding == "not tested: fewer than 10 images"
    assert "with fewer than 10 images: 1 (5 images)" in groups.headline


def test_ignored_rows_are_in_no_group_and_an_empty_group_is_told():
    predictions, home = draw_groups(4, [200, 200, 10], [0, 0, 0])
    labels = np.where(home == 2, -1, predictions.labels)
    labels[np.flatnonzero(home == 0)[:50]] = -1
    ignoring = Predictions.from_probs(predictions.array, labels, ignore_index=-1)
    groups = evaluate(ignoring, groups=home, **FAST).groups
    assert [group.num_rows for group in groups.groups] == [150, 200, 0]
    assert groups["2"].finding == "not tested: fewer than 20 rows"
    assert math.isnan(groups["2"].gap)
    kept = home == 1
    assert groups["1"].accuracy == pytest.approx((labels[kept] == 1).mean(), abs=1e-12)
    assert "2 (0 rows)" in groups.headline


def test_a_calibrated_whole_can_hide_a_group_and_the_headline_says_so():
    predictions, home = draw_groups(5, [2000, 200], [-0.012, 0.12])
    names = np.where(home == 1, "night", "day")
    options = {"metrics": ["accuracy", "ece", "aurc"], "resamples": 200, "view": "top"}
    evaluation = evaluate(predictions, groups=names, group_name="light", **options)
    assert evaluation.verdict.direction == "neither"
    assert "But light night is overconfident: " in evaluation.verdict.headline
    plain = evaluate(predictions, **options)
    assert plain.groups is None
    rest = plain.verdict.headline
    assert evaluation.verdict.headline.startswith(f"Over all rows: {rest[0].lower()}{rest[1:]}")
    assert evaluation.figures == plain.figures


def test_without_intervals_groups_have_figures_and_no_judgement():
    predictions, home = draw_groups(6, [50, 60], [0, 0])
    groups = evaluate(predictions, groups=home, intervals=False).groups
    assert [group.finding for group in groups.groups] == [None, None]
    assert groups.worst is None
    assert "not judged" in groups.headline


@pytest.mark.usefixtures("gaps_alone")
def test_pixels_of_one_image_are_not_independent():
    """Whole images are right or wrong here: pixel by pixel every group would be off."""
    alarms = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        right = rng.random(60) < 0.8
        labels = np.repeat(np.where(right, 1, 0), 64).reshape(60, 8, 8)
        probs = np.empty((60, 2, 8, 8))
        probs[:, 0], probs[:, 1] = 0.2, 0.8
        groups = judge(Predictions.from_probs(probs, labels), np.arange(60) % 2)
        alarms += bool(groups.off)
        assert groups["0"].num_rows == 30 * 64
        assert groups["0"].num_units == 30
    assert alarms <= 8, alarms  # 9 or more of 60 at 5%: once in 300 times


def test_a_dense_group_that_is_off_is_found():
    rng = np.random.default_rng(0)
    home = np.arange(80) % 2
    labels = (rng.random((80, 6, 6)) < np.where(home == 1, 0.6, 0.8)[:, None, None]).astype(int)
    probs = np.stack((np.full(labels.shape, 0.2), np.full(labels.shape, 0.8)), axis=1)
    labels[:, 0, 0] = 255
    evaluation = evaluate(
        Predictions.from_probs(probs, labels, ignore_index=255), groups=home, **FAST
    )
    assert [group.finding for group in evaluation.groups.groups][1] == "too high"
    assert [group.num_rows for group in evaluation.groups.groups] == [40 * 35, 40 * 35]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (np.zeros(9), "^groups have 9 values, the predictions 10 rows: .*included$"),
        (np.zeros((10, 2)), r"groups have shape \(10, 2\)"),
        ([1.0] * 5 + [np.nan] * 5, r"5 missing values \(first rows: 5, 6, 7, 8, 9\)"),
        (["a"] * 9 + [""], "1 missing values"),
        (["a"] * 9 + [None], "1 missing values"),
        (np.array(["a"] * 9 + [np.nan]), "1 missing values"),
        (pd.Series(["a"] * 9 + [pd.NA]), "1 missing values"),
        (pd.Categorical(["a"] * 9 + [None]), "1 missing values"),
        (np.array(["2020-01-01"] * 9 + ["NaT"], dtype="datetime64[D]"), "1 missing values"),
        (["a"] * 10, "all rows are in one group, 'a'"),
    ],
)
def test_groups_that_cannot_be_used_are_told(groups, message):
    predictions, _ = draw_groups(0, [10], [0.0])
    with pytest.raises(InputError, match=message):
        evaluate(predictions, groups=groups)


def test_more_groups_than_can_be_judged_are_told():
    predictions, _ = draw_groups(0, [MOST_GROUPS + 1], [0.0])
    with pytest.raises(InputError, match="found 1,001 groups, at most 1,000"):
        evaluate(predictions, groups=np.arange(MOST_GROUPS + 1))
    evaluation = evaluate(predictions, groups=np.arange(MOST_GROUPS + 1) // 2, intervals=False)
    assert len(evaluation.groups) == 501


@pytest.mark.parametrize(
    "groups",
    [
        torch.tensor([0, 1] * 5),
        np.array([0.0, 1.0] * 5),
        ["0", "1"] * 5,
        np.array([b"0", b"1"] * 5),
        pd.Series([0, 1] * 5, dtype="category"),
        np.array([[0], [1]] * 5),
    ],
)
def test_groups_may_be_of_any_kind(groups):
    predictions, _ = draw_groups(0, [10], [0.0])
    values = check_groups(groups, predictions, "group")
    assert values.names == ("0", "1")
    assert values.codes.tolist() == [0, 1] * 5


def test_numbers_are_in_the_order_of_numbers():
    predictions, _ = draw_groups(0, [3], [0.0])
    assert check_groups(np.array([10, 9, 2]), predictions, "g").names == ("2", "9", "10")
    assert check_groups(np.array([0.5, -1.0, 2.0]), predictions, "g").names == ("-1", "0.5", "2")


# Events, weights and clusters.


def draw_patients(seed, patients=40, rows=50, correlation=0.2):
    """Draw calibrated events that are alike within patients (Gaussian copula)."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), rows)
    probability = rng.beta(1, 3, size=len(patient))
    latent = np.sqrt(correlation) * rng.normal(size=patients)[patient]
    latent += np.sqrt(1 - correlation) * rng.normal(size=len(patient))
    return probability, ndtr(latent) < probability, patient, rng


def judge_events(probability, happened, home, clusters=None, weights=None, resamples=500):
    predictions = Predictions.from_events(probability, happened, event="fraud")
    ranks, loss = RankState(), RowState("nll")
    batches = [(predictions.array, predictions.labels, weights)]
    compute_all([], batches, from_logits=False, extra=[ranks, loss], positive=1)
    return judge_groups(
        check_groups(home, predictions, "site"),
        predictions,
        ranks,
        loss,
        num_bins=15,
        plan=Plan(resamples=resamples),
        units=Units(weights, clusters),
        event="fraud",
    )


@pytest.mark.usefixtures("gaps_alone")
@pytest.mark.parametrize("nested", [True, False])
def test_sites_of_calibrated_patients_are_rarely_called_off(nested):
    """Row by row, 73% of such sets have a site called off (17% if patients visit all sites)."""
    sets, alarms, alone = 40, 0, 0
    for seed in range(sets):
        probability, happened, patient, rng = draw_patients(seed)
        home = patient % 4 if nested else rng.integers(0, 6, len(patient))
        alarms += bool(judge_events(probability, happened, home, patient).off)
        if seed < 16:
            alone += bool(judge_events(probability, happened, home).off)
    # 7 or more of 40 at 5%: once in 300 times. In 200 other sets: 2% nested, 3% not.
    assert alarms <= 6, alarms
    assert alone >= (6 if nested else 1), alone


@pytest.mark.usefixtures("gaps_alone")
def test_a_site_that_is_off_is_found_among_clusters():
    """Patients of site 3 have half the events that their probabilities say."""
    found = []
    for seed in range(20):
        probability, happened, patient, rng = draw_patients(seed, patients=120, correlation=0.1)
        home = patient % 4
        happened = happened & ((home != 3) | (rng.random(len(home)) < 0.5))
        groups = judge_events(probability, happened, home, patient)
        found.append([group.value for group in groups.off])
    assert sum(each == ["3"] for each in found) >= 17, found


def test_a_group_with_under_ten_clusters_is_not_tested_and_says_why():
    probability, happened, patient, _ = draw_patients(0, patients=49)
    home = np.where(patient < 40, patient % 2, 2)
    groups = judge_events(probability, happened, home, patient, resamples=100)
    assert groups["2"].finding == "not tested: fewer than 10 clusters"
    assert groups["2"].p_value is None
    assert groups["0"].p_value is not None
    assert "with fewer than 10 clusters: 2 (450 rows in 9 clusters)" in groups.headline
    assert "corrected for 2 groups (maxT)" in groups.headline


def test_a_group_of_events_is_judged_by_its_total():
    """O/E by hand, and the test of the total by a simulation of its Poisson-binomial law."""
    rng = np.random.default_rng(0)
    home = rng.integers(0, 3, 3000)
    probability = rng.beta(1, 20, size=3000)
    happened = rng.random(3000) < probability * np.where(home == 1, 0.3, 1.0)
    predictions = Predictions.from_events(probability, happened, event="fraud")
    evaluation = evaluate(
        predictions, groups=home, group_name="site", metrics=["nll"], resamples=100
    )
    groups = evaluation.groups
    assert [group.finding for group in groups][1] == "too high"
    for value in range(3):
        chance, events = probability[home == value], happened[home == value].sum()
        assert groups[value].ratio == pytest.approx(events / chance.sum(), rel=1e-6)
        assert groups[value].ratio_low < groups[value].ratio < groups[value].ratio_high
        drawn = (rng.random((4000, len(chance))) < chance).sum(1)
        tails = (drawn <= events).mean(), (drawn >= events).mean()
        assert groups[value].p_value == pytest.approx(min(1, 2 * min(tails)), abs=0.05)
    worst = groups.worst
    assert worst.value == "1"
    assert "Probabilities of fraud are too high in 1 of 3 groups by site" in groups.headline
    assert f"observed/expected {worst.ratio:.2f}, 95% interval" in groups.headline
    assert "confiden" not in groups.headline
    assert math.isnan(worst.aurc)


def test_of_events_the_worst_group_is_off_by_the_largest_factor():
    """Two points of 3% are worse than three points of 60%."""
    rng = np.random.default_rng(0)
    home = np.repeat([0, 1], 8000)
    probability = np.where(home == 0, 0.03, 0.6)
    happened = rng.random(16000) < np.where(home == 0, 0.01, 0.57)
    groups = judge_events(probability, happened, home, resamples=100)
    assert len(groups.off) == 2
    assert abs(groups["1"].gap) > abs(groups["0"].gap)
    assert groups.worst.value == "0"


def test_weights_of_groups_count_and_their_scale_does_not():
    rng = np.random.default_rng(0)
    probability = rng.beta(2, 3, size=1200)
    happened, home = rng.random(1200) < probability, rng.integers(0, 2, 1200)
    weights = rng.gamma(2, size=1200)
    groups = judge_events(probability, happened, home, weights=weights, resamples=100)
    scaled = judge_events(probability, happened, home, weights=5 * weights, resamples=100)
    for value in range(2):
        mine = home == value
        rate, mean = (
            np.average(each[mine], weights=weights[mine]) for each in (happened, probability)
        )
        assert groups[value].accuracy == pytest.approx(rate)
        assert groups[value].ratio == pytest.approx(rate / mean)
        for name in ("gap_low", "gap_high", "ratio_high", "p_value", "ece", "ece_high"):
            other = getattr(scaled[value], name)
            assert getattr(groups[value], name) == pytest.approx(other, rel=1e-6), name
    equal = judge_events(probability, happened, home, weights=np.full(1200, 3.0), resamples=100)
    plain = judge_events(probability, happened, home, resamples=100)
    for value in range(2):
        for name in ("gap_low", "gap_high", "ratio_low", "ratio_high", "ece", "nll"):
            other = getattr(plain[value], name)
            assert getattr(equal[value], name) == pytest.approx(other, rel=1e-6), name


# Files and the command line.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("groups")
    predictions, home = draw_groups(8, [300, 300, 300, 12], [0, 0.12, 0, 0])
    ids = np.arange(912)
    Predictions.from_probs(predictions.array, predictions.labels, ids=ids).write(path / "p.npz")
    names = np.array(["day", "night", "<b>dusk</b>", "fog"])[home]
    pd.DataFrame({"light": names}).to_csv(path / "one.csv", index=False)
    table = pd.DataFrame({"id": ids, "light": names, "site": home % 2})
    table.to_csv(path / "several.csv")
    table.assign(light=table.light.astype("category")).to_parquet(path / "several.parquet")
    table.iloc[::-1].to_csv(path / "reversed.csv", index=False)
    table.iloc[1:].to_csv(path / "short.csv", index=False)
    table.assign(light=[None, *names[1:]]).to_parquet(path / "missing.parquet")
    table.assign(light=["", *names[1:]]).to_csv(path / "missing.csv", index=False)
    (path / "gap.csv").write_text("light\n" + "\n".join(["", *names[1:]]) + "\n")
    (path / "bare.csv").write_text("\n".join(names) + "\n")
    (path / "ragged.csv").write_text("light,site\n" + "day\n" * 912)
    np.save(path / "light.npy", names)
    np.savez(path / "arrays.npz", light=names, site=home % 2)
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["one.csv"],
        ["several.csv", "--group-column", "light"],
        ["several.parquet", "--group-column", "light"],
        ["light.npy"],
        ["arrays.npz", "--group-column", "light"],
    ],
)
def test_groups_come_from_files(folder, monkeypatch, arguments):
    monkeypatch.chdir(folder)
    result = run_command("evaluate", "p.npz", "--groups", *arguments, "--json", "--resamples", 100)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["groups"]["name"] == "light"
    assert report["groups"]["worst"] == "night"
    by_name = {group["value"]: group for group in report["groups"]["groups"]}
    assert {name: group["num_rows"] for name, group in by_name.items()} == {
        "day": 300,
        "night": 300,
        "<b>dusk</b>": 300,
        "fog": 12,
    }
    assert by_name["night"]["finding"] == "overconfident"
    assert by_name["night"]["gap_low"] > 0
    assert by_name["fog"]["finding"] == "not tested: fewer than 20 rows"
    assert report["groups"]["headline"] == report["verdict"]["sentences"][-1]
    assert "night, " in report["groups"]["headline"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["several.csv"], "which column holds the groups? Name it with --group-column"),
        (["several.csv", "--group-column", "lihgt"], "no column is called 'lihgt'"),
        (["short.csv", "--group-column", "light"], "short.csv has 911 values, the predictions 912"),
        (["bare.csv"], "the first line of a .csv is taken as the names of its columns"),
        (["missing.parquet", "--group-column", "light"], "missing values (first rows: 0)"),
        (
            ["missing.csv", "--group-column", "light"],
            "missing.csv: 1 missing values (first lines: 2)",
        ),
        (["gap.csv"], "gap.csv: 1 missing values (first lines: 2)"),
        (["ragged.csv", "--group-column", "light"], "line 2 has 1 values"),
        (["light.npy", "--group-column", "light"], "an .npy has no columns"),
        (["nowhere.csv"], "no such file"),
        (["p.npz", "--group-column", "probs"], "p.npz has shape (912, 3)"),
    ],
)
def test_files_of_groups_that_cannot_be_used_are_told(folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    result = run_command("evaluate", "p.npz", "--groups", *arguments, "--no-intervals")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr


def test_a_group_column_without_a_file_of_groups_is_one_of_the_predictions(folder):
    result = run_command("evaluate", folder / "p.npz", "--group-column", "light")
    assert result.exit_code == 2
    assert "no array is called 'light'; found" in result.stderr


@pytest.mark.parametrize("columns", ["50", "80", "100"])
def test_the_terminal_names_the_worst_group_and_every_group(folder, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    result = run_command(
        "evaluate",
        folder / "p.npz",
        "--groups",
        folder / "one.csv",
        "--resamples",
        100,
        "-m",
        "ece",
    )
    assert result.exit_code == 0
    message = " ".join(result.stdout.split())
    assert (
        "1 of 4 groups by light is overconfident, corrected for 3 groups (Holm): night" in message
    )
    assert "1 group was not tested, with fewer than 20 rows: fog (12 rows)." in message
    assert "no gap: no significant gap; not tested: fewer than 20 rows" in message
    assert max(map(len, result.stdout.splitlines())) <= int(columns)
    lines = [line.split() for line in result.stdout.splitlines()]
    (night,) = [line for line in lines if line[:2] == ["night", "300"]]
    (fog,) = [line for line in lines if line[:2] == ["fog", "12"]]
    (day,) = [line for line in lines if line[:2] == ["day", "300"]]
    assert fog[-2:] == ["not", "tested"]
    assert night[-2:] == ["too", "sure"]
    # How far off the day could at most be: the wider end of its interval.
    if columns != "50":
        to = day.index("–")
        widest = max(abs(float(day[place].replace("−", "-"))) for place in (to - 1, to + 1))
        assert day[-4:] == ["no", "gap", "≤", f"{widest:.1f}"]
    else:
        assert day[-2:] == ["no", "gap"]
    assert "–: no rows" not in message
    assert ("chance" in message.split("finding")[0].rsplit("light", 1)[-1]) == (columns == "100")
    whole = any(line[:1] == ["<b>dusk</b>"] for line in lines)  # a name is, where there is room
    assert whole or columns == "50"


def test_read_groups_gives_what_evaluate_takes(folder):
    predictions = Predictions.read(folder / "p.npz")
    evaluation = evaluate(predictions, groups=read_groups(folder / "one.csv"), **FAST)
    assert evaluation.groups.name == "light"


# The report.


def test_the_report_has_a_section_of_groups_where_there_are_some(folder):
    predictions = Predictions.read(folder / "p.npz")
    plain = evaluate(predictions, resamples=100)
    assert 'id="groups"' not in render(plain)
    evaluation = evaluate(predictions, groups=read_groups(folder / "one.csv"), resamples=100)
    text = render(evaluation)
    assert 'href="#groups"' in text
    assert evaluation.groups.headline.replace("<", "&lt;").replace(">", "&gt;") in text
    assert "<b>dusk" not in text
    for value in ("night", "fog", "&lt;b&gt;dusk&lt;/b&gt;"):
        assert f'data-group="{value}"' in text
        assert f'data-drawn="{value}"' in text
    assert 'class="group-row over" data-drawn="night"' in text
    assert 'class="group-row inside" data-drawn="day"' in text


def test_the_line_reaches_every_gap_and_marks_intervals_that_go_on():
    predictions, home = draw_groups(8, [300, 300, 9], [0, 0.12, 0.45])
    groups = evaluate(predictions, groups=home, **FAST).groups
    section = make_group_section(groups)
    wide = groups["2"]
    assert wide.gap > 0.3
    assert wide.gap <= section.limit < wide.gap_high
    places = {row.group.value: row.place for row in section.drawn}
    assert places["2"] == pytest.approx(50 + 50 * wide.gap / section.limit, abs=0.01)
    assert [row.group.value for row in section.drawn if row.cut_high] == ["2"]
    assert not any(row.cut_low for row in section.drawn)
    text = render(evaluate(predictions, groups=home, **FAST))
    assert text.count('data-cut="high"') == 1
    assert "it extends beyond the line" in text
    few, home = draw_groups(8, [300, 300], [0, 0])
    calm = evaluate(few, groups=home, **FAST)
    assert "it extends beyond the line" not in render(calm)


def test_a_page_of_many_groups_draws_and_lists_all():
    predictions, home = draw_groups(9, [30] * 60, np.where(np.arange(60) == 50, 0.4, 0.0))
    evaluation = evaluate(predictions, groups=home, **FAST)
    text = render(evaluation)
    assert text.count("data-group=") == 60
    assert text.count("data-drawn=") == 60
    assert 'aria-label="Gaps of 60 groups"' in text
    assert "1 of the 60 groups by group is shown to be off." in text


def test_groups_that_are_dates_come_in_order_of_time():
    predictions, home = draw_groups(9, [60] * 3, [0.3, 0.0, 0.2])
    for names in (
        ["2026-02", "2026-10", "2026-03"],
        ["2025", "2026", "1999"],
        ["2026W07", "2025W9"],
    ):
        values = [names[place % len(names)] for place in home]
        groups = evaluate(predictions, groups=values, intervals=False).groups
        assert groups.are_dates == ("2025W9" not in names)
        if groups.are_dates:
            assert [group.value for group in groups.in_order] == sorted(names)
    mixed = ["2026-02", "2026", "2026-03"]
    groups = evaluate(predictions, groups=[mixed[place] for place in home], intervals=False).groups
    assert groups.in_order == groups.by_gap


def test_a_page_of_groups_without_intervals_has_no_judgement():
    predictions, home = draw_groups(6, [50, 60], [0, 0])
    text = render(evaluate(predictions, groups=home, intervals=False))
    assert 'data-group="1"' in text
    assert "Holm" not in text.split('id="groups"')[1].split("</section>")[0]


def test_a_page_whose_groups_alone_are_off_is_not_green():
    predictions, home = draw_groups(5, [2000, 200], [-0.012, 0.12])
    evaluation = evaluate(predictions, groups=home, resamples=100)
    assert evaluation.verdict.direction == "neither"
    assert evaluation.verdict.state == "off"
    assert 'class="verdict off"' in render(evaluation)
    assert 'class="verdict holds"' in render(evaluate(predictions, resamples=100))


def test_the_picture_draws_every_gap_and_fills_what_is_off():
    predictions, home = draw_groups(8, [300, 300, 300], [0, 0.12, 0])
    evaluation = evaluate(predictions, groups=home, **FAST)
    ax = group_gaps(evaluation)
    (scatter,) = [c for c in ax.collections if type(c).__name__ == "PathCollection"]
    gaps = [group.gap for group in evaluation.groups.by_gap]
    np.testing.assert_allclose(np.asarray(scatter.get_offsets())[:, 0], gaps)
    filled = [not np.allclose(colour[:3], 1) for colour in scatter.get_facecolors()]
    assert filled == [group.is_off for group in evaluation.groups.by_gap] == [True, False, False]
    assert ax.get_yticklabels()[0].get_text() == "1"
    with pytest.raises(InputError, match="no groups"):
        group_gaps(evaluate(predictions, **FAST))
    with pytest.raises(InputError, match="at least 1"):
        group_gaps(evaluation, top=0)


def test_sentences_name_few_of_many():
    off = [
        Group(
            value=f"g{place}",
            num_rows=100,
            num_units=100,
            accuracy=0.7,
            confidence=0.8 + place / 100,
            gap=0.1 + place / 100,
            ece=0.1,
            nll=1.0,
            aurc=0.1,
            gap_low=0.05,
            gap_high=0.2,
            p_value=0.0001,
            p_adjusted=0.001,
            finding="overconfident",
        )
        for place in range(9)
    ]
    text = Groups("site", tuple(off), 0.95).headline
    assert text.startswith("9 of 9 groups by site are overconfident, corrected for 9 groups (Holm)")
    assert "the worst is g8, 88.0% sure and right 70.0% of the time" in text
    assert text.endswith("; also g7, g6, g5, g4, g3, ....")


def test_a_page_names_the_correction_that_was_used():
    predictions, home = draw_groups(9, [600, 600], [0, 0])
    clusters = np.arange(1200) // 20
    clustered = replace(predictions, clusters=clusters)
    assert "number of groups (Holm)" in render(evaluate(predictions, groups=home, **FAST))
    text = render(evaluate(clustered, groups=home, **FAST))
    assert "number of groups (maxT)" in text
    assert "Holm" not in text.split('id="groups"')[1].split("</section>")[0]


def test_a_group_that_the_test_rejects_but_its_interval_does_not_is_no_chance():
    """Of very sure probabilities: "p < 0.001, which chance could explain" contradicted itself."""
    p = np.r_[np.full(200, 0.001), np.full(120, 0.999)]
    y = np.r_[np.arange(200) < 8, np.arange(120) >= 4]
    rows = Predictions.from_events(np.r_[p, p], np.r_[y, y], event="fraud")
    groups = evaluate(rows, groups=["a", "b"] * 320, metrics=["ece"], resamples=200).groups
    worst = groups.worst
    assert (worst.finding, worst.p_adjusted < 0.05) == ("no gap shown", True)
    assert "does not rule out that there is no gap" in groups.headline
    assert "chance could explain" not in groups.headline
