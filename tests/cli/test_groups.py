"""Groups on the command line: --fail-groups, the table of groups, and comparisons."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from calibrant import Predictions, compare
from calibrant.cli.compare import show_comparison
from tests.helpers.groups import draw_groups, run_command

FAST = ("--resamples", "100", "-m", "ece")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("limits")
    sizes = [900, 300, 300, 12]
    for name, gaps in (("off", [0, 0.15, -0.1, 0]), ("fine", [0, 0, 0, 0])):
        predictions, home = draw_groups(8, sizes, gaps)
        predictions.write(path / f"{name}.npz")
        names = np.array(["day", "night", "dusk", "fog"])[home]
        pd.DataFrame({"light": names}).to_csv(path / "g.csv", index=False)
        kept = names != "fog"
        predictions.take(kept).write(path / f"{name}3.npz")
        pd.DataFrame({"light": names[kept]}).to_csv(path / "g3.csv", index=False)
    return path


def limited(folder, name, *arguments):
    groups = folder / ("g3.csv" if name.endswith("3") else "g.csv")
    return run_command("evaluate", folder / f"{name}.npz", "--groups", groups, *FAST, *arguments)


def failed(result):
    return [line for line in result.stderr.splitlines() if line.startswith("failed: ")]


@pytest.mark.parametrize("how", [[], ["--quiet"], ["--json"]])
def test_groups_that_are_off_are_code_3_and_named(folder, how):
    assert limited(folder, "off", *how).exit_code == 0
    result = limited(folder, "off", "--fail-groups", *how)
    assert result.exit_code == 3
    night, dusk = failed(result)
    assert night.startswith("failed: light night is overconfident: gap +")
    assert dusk.startswith("failed: light dusk is underconfident: gap −")
    assert night.endswith("300 rows (--fail-groups)")


def test_groups_that_are_not_off_are_within_limits(folder):
    result = limited(folder, "fine", "--fail-groups", "--fail-above", "ece=0.9")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "within limits: ece, groups" in result.stdout


def test_groups_with_too_few_rows_fail_on_the_bound(folder):
    result = limited(folder, "fine", "--fail-groups", "--fail-on", "bound")
    assert result.exit_code == 3
    (fog,) = failed(result)
    assert fog.startswith("failed: light fog: not tested: fewer than 20 rows (gap ")
    assert limited(folder, "fine3", "--fail-groups", "--fail-on", "bound").exit_code == 0
    few = limited(folder, "off", "--fail-groups", "--fail-on", "bound")
    assert len(failed(few)) == 3


def test_json_lists_the_limits_that_failed(folder):
    def read_failed(*arguments):
        return json.loads(limited(folder, *arguments, "--json").stdout)["failed"]

    assert read_failed("off") == []
    assert read_failed("fine", "--fail-groups", "--fail-above", "ece=0.9") == []
    failures = read_failed("off", "--fail-groups", "--fail-above", "ece=0.001")
    assert [(failure["option"], failure["name"]) for failure in failures] == [
        ("--fail-above", "ece"),
        ("--fail-groups", "night"),
        ("--fail-groups", "dusk"),
    ]
    assert "above the limit of 0.001" in failures[0]["says"]


def test_fail_groups_requires_groups_and_intervals(folder):
    alone = run_command("evaluate", folder / "off.npz", "--fail-groups")
    assert (alone.exit_code, "--fail-groups requires --groups" in alone.stderr) == (2, True)
    without = limited(folder, "off", "--fail-groups", "--no-intervals")
    assert (without.exit_code, "drop --no-intervals" in without.stderr) == (2, True)


def test_warnings_are_printed_once(folder, tmp_path):
    predictions = Predictions.read(folder / "off.npz")
    pd.DataFrame({"truth": predictions.labels}).to_csv(tmp_path / "t.csv", index=False)
    arguments = ("evaluate", folder / "off.npz", "--groups", tmp_path / "t.csv", "--no-intervals")
    for how in ([], ["--json"], ["--quiet"]):
        result = run_command(*arguments, *how)
        (message,) = result.stderr.splitlines()
        assert message.startswith("warning: label and group determine each other")
    np.savez(tmp_path / "m.npz", logits=predictions.array, labels=predictions.labels)
    with pytest.warns(UserWarning, match="sums to one") as seen:
        result = run_command("evaluate", tmp_path / "m.npz", "--no-intervals")
    assert len(seen) == 1  # by the reader only
    assert "sum to one" not in result.stderr


def test_a_dash_in_the_table_is_explained(folder, tmp_path):
    predictions = Predictions.read(folder / "fine.npz")
    fog = pd.read_csv(folder / "g.csv").light == "fog"
    labels = np.where(fog, -1, predictions.labels)
    Predictions.from_probs(predictions.array, labels, ignore_index=-1).write(tmp_path / "p.npz")
    result = run_command("evaluate", tmp_path / "p.npz", "--groups", folder / "g.csv", *FAST)
    assert "–: no rows to compute it from" in result.stdout
    assert "–: no rows" not in limited(folder, "fine").stdout


def test_a_small_group_that_looks_off_is_marked(tmp_path):
    predictions, home = draw_groups(0, [300, 300, 15], [0, 0, 0.6])
    predictions.write(tmp_path / "p.npz")
    np.save(tmp_path / "g.npy", home)
    result = run_command("evaluate", tmp_path / "p.npz", "--groups", tmp_path / "g.npy", *FAST)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[-2:] for line in lines if line[:2] == ["2", "15"]] == [["looks", "off"]]
    assert "looks off: the interval excludes 0" in " ".join(result.stdout.split())


def test_an_insignificant_winner_is_in_brackets():
    predictions, _ = draw_groups(0, [300], [0])
    same = compare(predictions, predictions, metrics=["ece", "nll"], resamples=100)

    def shown(p_value):
        difference = replace(same["ece"], difference=-0.01, low=-0.02, high=-0.001, p_value=p_value)
        console = Console(width=80, record=True, file=io.StringIO())
        show_comparison(replace(same, differences={**same.differences, "ece": difference}), console)
        text = console.export_text()
        (line,) = [line.split() for line in text.splitlines() if line.startswith("ece ")]
        return line[-1], "(A), (B): not significant after Holm's correction for 2 metrics" in text

    assert shown(0.04) == ("(B)", True)
    assert shown(0.001) == ("B", False)
