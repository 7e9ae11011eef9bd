"""Group by group: the figures of each group, which are off, and how often that is a false alarm."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from calibrant import InputError, Predictions, evaluate, metrics
from calibrant.cli import app
from calibrant.evaluation import Interval, grouping, read_groups
from calibrant.evaluation.group_files import MOST_GROUPS, as_groups
from calibrant.evaluation.grouping import by_group
from calibrant.evaluation.groups import Group, Groups
from calibrant.evaluation.intervals import Plan
from calibrant.evaluation.tails import wrong_tails
from calibrant.metrics.base import compute_all
from calibrant.metrics.means import RowState
from calibrant.metrics.ranked import RankState
from calibrant.report import group_gaps, render
from calibrant.report.groups import group_section

FAST = {"metrics": ["accuracy"], "resamples": 100}


def drawn(seed, sizes, gaps):
    """Predictions of groups 0, 1, ... of these sizes, too sure by these gaps; and the groups."""
    rng = np.random.default_rng(seed)
    home = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    confidence = 0.55 + 0.45 * rng.beta(3, 1, size=len(home))
    right = rng.random(len(home)) < confidence - np.asarray(gaps)[home]
    probs = np.stack((1 - confidence, confidence), axis=1)
    return Predictions.from_probs(probs, right.astype(np.int64)), home


def judged(predictions, home):
    """The groups alone, without the figures of all rows."""
    ranks, loss = RankState(), RowState("nll")
    compute_all([], predictions.batches(), from_logits=False, extra=[ranks, loss])
    values = as_groups(home, predictions, "group")
    return by_group(values, predictions, ranks, loss, num_bins=15, plan=Plan(resamples=100))


@pytest.fixture
def gaps_alone(monkeypatch):
    """The judgement is of the gap; the intervals of ECE take most of the time."""
    monkeypatch.setattr(grouping, "invert", lambda *_, **__: Interval(0.0, 0.0, None))
    monkeypatch.setattr(grouping, "chance_level", lambda *_, **__: 0.0)


@pytest.mark.usefixtures("gaps_alone")
@pytest.mark.parametrize("size", [60, 300])
def test_calibrated_groups_are_rarely_called_off(size):
    """Of sets of ten calibrated groups at most one in twenty has any called off."""
    sets, gaps = 100, np.zeros(10)
    alarms = sum(bool(judged(*drawn(seed, [size] * 10, gaps)).off) for seed in range(sets))
    # 12 or more of 100 at a rate of 5% happen once in 200 times.
    assert alarms <= 11, alarms


@pytest.mark.usefixtures("gaps_alone")
def test_very_sure_calibrated_groups_are_rarely_called_off():
    """Where less than one row is wrong on average, a normal approximation would cry wolf."""
    alarms, sets = 0, 100
    rng = np.random.default_rng(7)
    for _ in range(sets):
        home = np.repeat(np.arange(10), 200)
        confidence = 1 - 0.004 * rng.random(len(home))
        labels = (rng.random(len(home)) < confidence).astype(np.int64)
        probs = np.stack((1 - confidence, confidence), axis=1)
        alarms += bool(judged(Predictions.from_probs(probs, labels), home).off)
    assert alarms <= 11, alarms


@pytest.mark.usefixtures("gaps_alone")
def test_one_group_too_sure_by_ten_points_is_found():
    """Of ten groups of 300 rows the one that is off is found nearly always, and alone."""
    sets = 100
    found = [judged(*drawn(seed, [300] * 10, np.eye(10)[3] * 0.1)) for seed in range(sets)]
    # Found in 97.2% of 500 other sets; fewer than 93 of 100 would be more than chance.
    assert sum(one["3"].finding == "overconfident" for one in found) >= 93
    assert sum(one.worst.value == "3" for one in found) >= 93
    assert sum(len(one.off) > 1 for one in found) <= 12


def test_an_underconfident_group_is_found_and_told_apart():
    found = judged(*drawn(0, [400] * 4, [0, -0.1, 0, 0.12]))
    assert [found[value].finding for value in "13"] == ["underconfident", "overconfident"]
    assert found.worst.value == "3"  # too sure is worse than too unsure
    assert "groups by group is overconfident" in found.headline
    assert "groups by group is underconfident" in found.headline


def test_figures_of_a_group_are_those_of_its_rows_alone():
    predictions, home = drawn(1, [500, 200, 90], [0.0, 0.1, 0.2])
    found = evaluate(predictions, groups=home, **FAST).groups
    for value in range(3):
        mine = home == value
        probs, labels = predictions.array[mine], predictions.labels[mine]
        group = found[value]
        assert group.num_rows == mine.sum()
        for name in ("accuracy", "ece", "nll", "aurc"):
            expected = float(getattr(metrics, name)(probs, labels, from_logits=False))
            assert getattr(group, name) == pytest.approx(expected, rel=1e-9), name
        assert group.confidence == pytest.approx(probs.max(1).mean())
        assert group.gap == pytest.approx(group.confidence - group.accuracy)
        assert group.gap_low < group.gap < group.gap_high
        assert group.ece_low <= group.ece_high
        alone = evaluate(predictions.take(mine), resamples=1000).verdict
        assert group.gap_low == pytest.approx(alone.gap_low, abs=0.012)
        assert group.gap_high == pytest.approx(alone.gap_high, abs=0.012)
        assert group.chance_ece == pytest.approx(alone.chance_ece, rel=0.25)


@pytest.mark.usefixtures("gaps_alone")
def test_the_interval_of_a_gap_holds_the_truth():
    inside = 0
    for seed in range(60):
        found = judged(*drawn(seed, [150] * 5, [0.08] * 5))
        inside += sum(group.gap_low <= 0.08 <= group.gap_high for group in found.groups)
    assert 0.91 <= inside / 300 <= 0.99


def test_groups_do_not_depend_on_the_order_of_rows():
    predictions, home = drawn(2, [300, 300], [0.1, 0.0])
    order = np.random.default_rng(0).permutation(600)
    one = evaluate(predictions, groups=home, **FAST).groups
    two = evaluate(predictions.take(order), groups=home[order], **FAST).groups
    pd.testing.assert_frame_equal(one.to_frame(), two.to_frame())


def test_few_rows_are_said_to_be_few_and_do_not_count_among_the_groups():
    predictions, home = drawn(3, [300, 300, 7, 40], [0.12, 0, 0, 0])
    found = evaluate(predictions, groups=home, group_name="site", **FAST)
    groups = found.groups
    assert groups["2"].finding == "not tested: fewer than 20 rows"
    assert groups["2"].p_value is None
    assert groups["3"].finding == "too few rows to rule out 10 points"
    assert groups["3"].p_value is not None
    assert "1 group has too few rows to rule out 10 points: 3 (40 rows, up to " in groups.headline
    assert "1 group was not tested, with fewer than 20 rows: 2 (7 rows)." in groups.headline
    assert "1 of 4 groups by site is overconfident, corrected for 3 groups" in groups.headline
    assert found.verdict.sentences[-1] == groups.headline


def test_where_no_group_is_off_the_widest_gap_is_told_as_chance():
    predictions, home = drawn(3, [400, 400, 7], [0, 0, 0])
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
    predictions, home = drawn(0, [600, 40, 40, 9, 15], [0, 0.02, -0.1, 0, 0.6])
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
    predictions, home = drawn(6, [50, 60, 70], [0, 0, 0])
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
    assert groups["1"].finding == "not tested: fewer than 20 images"
    assert "with fewer than 20 images: 1 (5 images)" in groups.headline


def test_ignored_rows_are_in_no_group_and_an_empty_group_is_told():
    predictions, home = drawn(4, [200, 200, 10], [0, 0, 0])
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
    predictions, home = drawn(5, [2000, 200], [-0.012, 0.12])
    names = np.where(home == 1, "night", "day")
    found = evaluate(predictions, groups=names, group_name="light", resamples=200)
    assert found.verdict.direction == "neither"
    assert "But light night is overconfident: " in found.verdict.headline
    plain = evaluate(predictions, resamples=200)
    assert plain.groups is None
    assert found.verdict.headline.startswith(plain.verdict.headline)
    assert found.figures == plain.figures


def test_without_intervals_groups_have_figures_and_no_judgement():
    predictions, home = drawn(6, [50, 60], [0, 0])
    groups = evaluate(predictions, groups=home, intervals=False).groups
    assert [group.finding for group in groups.groups] == [None, None]
    assert groups.worst is None
    assert "not judged" in groups.headline


def test_pixels_of_one_image_are_not_independent():
    """Whole images are right or wrong here: pixel by pixel every group would be off."""
    alarms = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        right = rng.random(60) < 0.8
        labels = np.repeat(np.where(right, 1, 0), 64).reshape(60, 8, 8)
        probs = np.empty((60, 2, 8, 8))
        probs[:, 0], probs[:, 1] = 0.2, 0.8
        found = evaluate(Predictions.from_probs(probs, labels), groups=np.arange(60) % 2, **FAST)
        alarms += bool(found.groups.off)
        assert found.groups["0"].num_rows == 30 * 64
        assert found.groups["0"].num_units == 30
    assert alarms <= 8, alarms  # 9 or more of 60 at 5%: once in 300 times


def test_a_dense_group_that_is_off_is_found():
    rng = np.random.default_rng(0)
    home = np.arange(80) % 2
    labels = (rng.random((80, 6, 6)) < np.where(home == 1, 0.6, 0.8)[:, None, None]).astype(int)
    probs = np.stack((np.full(labels.shape, 0.2), np.full(labels.shape, 0.8)), axis=1)
    labels[:, 0, 0] = 255
    found = evaluate(Predictions.from_probs(probs, labels, ignore_index=255), groups=home, **FAST)
    assert [group.finding for group in found.groups.groups][1] == "overconfident"
    assert [group.num_rows for group in found.groups.groups] == [40 * 35, 40 * 35]


@pytest.mark.parametrize(
    ("groups", "said"),
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
def test_groups_that_cannot_be_used_are_told(groups, said):
    predictions, _ = drawn(0, [10], [0.0])
    with pytest.raises(InputError, match=said):
        evaluate(predictions, groups=groups)


def test_more_groups_than_can_be_judged_are_told():
    predictions, _ = drawn(0, [MOST_GROUPS + 1], [0.0])
    with pytest.raises(InputError, match="found 1,001 groups, at most 1,000"):
        evaluate(predictions, groups=np.arange(MOST_GROUPS + 1))
    found = evaluate(predictions, groups=np.arange(MOST_GROUPS + 1) // 2, intervals=False)
    assert len(found.groups) == 501


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
    predictions, _ = drawn(0, [10], [0.0])
    values = as_groups(groups, predictions, "group")
    assert values.names == ("0", "1")
    assert values.codes.tolist() == [0, 1] * 5


def test_numbers_are_in_the_order_of_numbers():
    predictions, _ = drawn(0, [3], [0.0])
    assert as_groups(np.array([10, 9, 2]), predictions, "g").names == ("2", "9", "10")
    assert as_groups(np.array([0.5, -1.0, 2.0]), predictions, "g").names == ("-1", "0.5", "2")


def by_hand(chance):
    """The distribution of the number of wrong rows, outcome by outcome."""
    mass = np.zeros(len(chance) + 1)
    for outcome in itertools.product((0, 1), repeat=len(chance)):
        mass[sum(outcome)] += np.prod(
            [q if o else 1 - q for q, o in zip(chance, outcome, strict=True)]
        )
    return mass


def test_the_number_of_wrong_rows_has_its_exact_distribution():
    chance = np.array([0.5, 0.01, 0.3, 0.99, 0.5, 1.0, 0.0])
    mass = by_hand(chance)
    for seen in range(8):
        below, above = wrong_tails(chance, seen)
        assert below == pytest.approx(mass[: seen + 1].sum(), abs=1e-12)
        assert above == pytest.approx(mass[seen:].sum(), abs=1e-12)


@pytest.mark.parametrize(("rows", "chance"), [(300, 0.1), (5000, 0.001), (9000, 0.3), (30000, 0.4)])
def test_tails_of_equal_chances_are_binomial(rows, chance):
    from scipy.stats import binom

    spread = (rows * chance * (1 - chance)) ** 0.5
    for score in (-4, -2, 0, 2, 4):
        seen = max(0, round(rows * chance + score * spread))
        below, above = wrong_tails(np.full(rows, chance), seen)
        assert below == pytest.approx(binom.cdf(seen, rows, chance), rel=0.01)
        assert above == pytest.approx(binom.sf(seen - 1, rows, chance), rel=0.01)


# Files and the command line.


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("groups")
    predictions, home = drawn(8, [300, 300, 300, 12], [0, 0.12, 0, 0])
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


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


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
    result = run("evaluate", "p.npz", "--groups", *arguments, "--json", "--resamples", 100)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["groups"]["name"] == "light"
    assert found["groups"]["worst"] == "night"
    by_name = {group["value"]: group for group in found["groups"]["groups"]}
    assert {name: group["num_rows"] for name, group in by_name.items()} == {
        "day": 300,
        "night": 300,
        "<b>dusk</b>": 300,
        "fog": 12,
    }
    assert by_name["night"]["finding"] == "overconfident"
    assert by_name["night"]["gap_low"] > 0
    assert by_name["fog"]["finding"] == "not tested: fewer than 20 rows"
    assert found["groups"]["headline"] == found["verdict"]["sentences"][-1]
    assert "night, " in found["groups"]["headline"]


@pytest.mark.parametrize(
    ("arguments", "said"),
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
        (["p.npz", "--group-column", "probs"], "p.npz has shape (912, 2)"),
    ],
)
def test_files_of_groups_that_cannot_be_used_are_told(folder, monkeypatch, arguments, said):
    monkeypatch.chdir(folder)
    result = run("evaluate", "p.npz", "--groups", *arguments, "--no-intervals")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert said in result.stderr


def test_a_group_column_needs_a_file_of_groups(folder):
    result = run("evaluate", folder / "p.npz", "--group-column", "light")
    assert result.exit_code == 2
    assert "--group-column is of the file of --groups" in result.stderr


@pytest.mark.parametrize("columns", ["50", "80", "100"])
def test_the_terminal_names_the_worst_group_and_every_group(folder, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    result = run(
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
    said = " ".join(result.stdout.split())
    assert "1 of 4 groups by light is overconfident, corrected for 3 groups (Holm): night" in said
    assert "1 group was not tested, with fewer than 20 rows: fog (12 rows)." in said
    assert "no gap: none is shown; not tested: fewer than 20 rows" in said
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
    assert "–: no rows" not in said
    assert ("chance" in said.split("judged")[0].rsplit("light", 1)[-1]) == (columns == "100")
    whole = any(line[:1] == ["<b>dusk</b>"] for line in lines)  # a name is, where there is room
    assert whole or columns == "50"


def test_read_groups_gives_what_evaluate_takes(folder):
    predictions = Predictions.read(folder / "p.npz")
    found = evaluate(predictions, groups=read_groups(folder / "one.csv"), **FAST)
    assert found.groups.name == "light"


# The report.


def test_the_report_has_a_section_of_groups_where_there_are_some(folder):
    predictions = Predictions.read(folder / "p.npz")
    plain = evaluate(predictions, resamples=100)
    assert 'id="groups"' not in render(plain)
    found = evaluate(predictions, groups=read_groups(folder / "one.csv"), resamples=100)
    text = render(found)
    assert 'href="#groups"' in text
    assert found.groups.headline.replace("<", "&lt;").replace(">", "&gt;") in text
    assert "<b>dusk" not in text
    for value in ("night", "fog", "&lt;b&gt;dusk&lt;/b&gt;"):
        assert f'data-group="{value}"' in text
        assert f'data-drawn="{value}"' in text
    assert 'class="group-row over" data-drawn="night"' in text
    assert 'class="group-row inside" data-drawn="day"' in text


def test_the_line_reaches_every_gap_and_marks_intervals_that_go_on():
    predictions, home = drawn(8, [300, 300, 9], [0, 0.12, 0.45])
    found = evaluate(predictions, groups=home, **FAST).groups
    section = group_section(found)
    wide = found["2"]
    assert wide.gap > 0.3
    assert wide.gap <= section.limit < wide.gap_high
    places = {row.group.value: row.place for row in section.drawn}
    assert places["2"] == pytest.approx(50 + 50 * wide.gap / section.limit, abs=0.01)
    assert [row.group.value for row in section.drawn if row.cut_high] == ["2"]
    assert not any(row.cut_low for row in section.drawn)
    text = render(evaluate(predictions, groups=home, **FAST))
    assert text.count('data-cut="high"') == 1
    assert "it goes on beyond the line" in text
    few, home = drawn(8, [300, 300], [0, 0])
    calm = evaluate(few, groups=home, **FAST)
    assert "it goes on beyond the line" not in render(calm)


def test_a_page_of_many_groups_draws_some_and_lists_all():
    predictions, home = drawn(9, [30] * 60, np.where(np.arange(60) == 50, 0.4, 0.0))
    found = evaluate(predictions, groups=home, **FAST)
    text = render(found)
    assert text.count("data-group=") == 60
    assert text.count("data-drawn=") == 30
    assert 'data-drawn="50"' in text
    assert "30 of 60 groups" in text


def test_a_page_of_groups_without_intervals_has_no_judgement():
    predictions, home = drawn(6, [50, 60], [0, 0])
    text = render(evaluate(predictions, groups=home, intervals=False))
    assert 'data-group="1"' in text
    assert "Holm" not in text.split('id="groups"')[1].split("</section>")[0]


def test_a_page_whose_groups_alone_are_off_is_not_green():
    predictions, home = drawn(5, [2000, 200], [-0.012, 0.12])
    found = evaluate(predictions, groups=home, resamples=100)
    assert found.verdict.direction == "neither"
    assert 'class="verdict mixed"' in render(found)
    assert 'class="verdict neither"' in render(replace(found, groups=None))


def test_the_picture_draws_every_gap_and_fills_what_is_off():
    predictions, home = drawn(8, [300, 300, 300], [0, 0.12, 0])
    found = evaluate(predictions, groups=home, **FAST)
    ax = group_gaps(found)
    (scatter,) = [c for c in ax.collections if type(c).__name__ == "PathCollection"]
    gaps = [group.gap for group in found.groups.by_gap]
    np.testing.assert_allclose(np.asarray(scatter.get_offsets())[:, 0], gaps)
    filled = [not np.allclose(colour[:3], 1) for colour in scatter.get_facecolors()]
    assert filled == [group.is_off for group in found.groups.by_gap] == [True, False, False]
    assert ax.get_yticklabels()[0].get_text() == "1"
    with pytest.raises(InputError, match="no groups"):
        group_gaps(evaluate(predictions, **FAST))
    with pytest.raises(InputError, match="at least 1"):
        group_gaps(found, top=0)


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
