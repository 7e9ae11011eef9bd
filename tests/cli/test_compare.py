"""The command `calibrant compare`: joining by ids, and failing where B is worse."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calibrant import Predictions
from tests.helpers.groups import run_command

FAST = ("--resamples", "100", "-m", "nll,ece")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("compare")
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(900, 3))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (probs.cumsum(1) < rng.random(900)[:, None]).sum(1).clip(max=2)
    ids = np.arange(900)
    for name, scale in (("good", 1.0), ("sharp", 3.0)):
        Predictions.from_logits(scale * logits, labels, ids=ids).write(path / f"{name}.npz")
    some = rng.permutation(900)[:880]
    sharp = Predictions.from_logits(3 * logits, labels, ids=ids)
    sharp.take(some).write(path / "shuffled.npz")
    binary = Predictions.from_logits(logits[:, :2], (labels == 1) * 1)
    binary.write(path / "binary.npz")
    return path


def compare(folder, a, b, *arguments):
    return run_command("compare", folder / f"{a}.npz", folder / f"{b}.npz", *FAST, *arguments)


def test_a_worse_model_is_code_3_and_named(folder):
    result = compare(folder, "good", "sharp", "--fail-worse", "nll", "--fail-worse", "brier")
    assert result.exit_code == 3
    first, second = [line for line in result.stderr.splitlines() if line.startswith("failed: ")]
    assert first.startswith("failed: B is worse: nll of B − A is +")
    assert "brier" in second  # which --fail-worse adds
    better = compare(folder, "sharp", "good", "--fail-worse", "nll")
    assert (better.exit_code, better.stderr) == (0, "")
    assert "passed: nll is not shown to be worse" in better.stdout
    assert "This assumes independent rows" in better.stdout
    same = compare(folder, "good", "good", "--fail-worse", "nll")
    assert same.exit_code == 0


def test_gates_take_metrics_with_options(folder):
    result = compare(folder, "good", "sharp", "--fail-worse", "ece(num_bins=5)")
    assert result.exit_code == 3
    assert "failed: B is worse: ece(num_bins=5)" in result.stderr
    bound = ("--fail-on", "bound", "--fail-worse")
    assert compare(folder, "good", "sharp", *bound, "ece(num_bins=5)=0.9").exit_code == 0
    assert compare(folder, "good", "sharp", *bound, "ece(num_bins=5)").exit_code == 2


def test_a_margin_fails_unless_it_is_ruled_out(folder):
    bound = ("--fail-on", "bound", "--fail-worse")
    assert compare(folder, "good", "good", *bound, "nll=0").exit_code == 0
    result = compare(folder, "good", "sharp", *bound, "nll=0.01", "--json")
    assert result.exit_code == 3
    outcome = json.loads(result.stdout)
    assert [(each["option"], each["name"]) for each in outcome["failed"]] == [
        ("--fail-worse", "nll")
    ]
    assert "may be worse by more than 0.01" in outcome["failed"][0]["says"]
    assert compare(folder, "good", "sharp", *bound, "nll=100").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fail-worse", "nll=0.1"], "takes a name alone, or add --fail-on bound"),
        (["--fail-worse", "nll", "--fail-on", "bound"], "takes NAME=MARGIN with --fail-on bound"),
        (["--fail-worse", "nll=-1", "--fail-on", "bound"], "a margin of at least 0"),
        (["--fail-worse", "mean_entropy"], "has no better direction"),
        (["--fail-worse", "nlll"], "nlll"),
        (["--fail-on", "value"], "--fail-on takes shown or bound"),
        (["--fail-on", "bound"], "requires --fail-worse"),
    ],
)
def test_gates_that_make_no_sense_are_told(folder, arguments, message):
    result = compare(folder, "good", "sharp", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_rows_are_joined_by_ids(folder):
    refused = compare(folder, "good", "shuffled")
    assert refused.exit_code == 2
    assert "20 of 900 rows of good are not in shuffled" in refused.stderr
    assert "--join inner" in refused.stderr
    joined = compare(folder, "good", "shuffled", "--join", "inner")
    assert joined.exit_code == 0
    assert "880 rows, paired" in joined.stdout
    assert "note: left out: 20 of 900 rows of good" in joined.stdout


def test_the_table_says_what_is_compared(folder):
    result = compare(folder, "good", "sharp")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("ece ")]
    assert line.split()[1].endswith("*")
    assert "*: compared are bias-corrected values" in result.stdout
    events = compare(folder, "binary", "binary")
    assert "events of class 1" in events.stdout
    top = compare(folder, "binary", "binary", "--view", "top")
    assert "events" not in top.stdout


def test_too_few_clusters_are_said(folder, tmp_path):
    images = [Predictions.read(folder / f"{name}.npz") for name in ("good", "sharp")]
    for name, each in zip("ab", images, strict=True):
        scores = each.array.reshape(9, 100, 3).swapaxes(1, 2)[..., None]
        labels = each.labels.reshape(9, 100, 1)
        Predictions.from_logits(scores, labels).write(tmp_path / f"{name}.npz")
    shown = compare(tmp_path, "a", "b", "--fail-worse", "nll")
    assert shown.exit_code == 0
    assert "nothing was tested, so --fail-worse cannot fail" in shown.stderr
    bound = compare(tmp_path, "a", "b", "--fail-worse", "nll=9", "--fail-on", "bound")
    assert bound.exit_code == 3
    assert "nll was not tested: the rows lie in 9 images" in bound.stderr


@pytest.fixture(scope="module")
def sites(folder):
    """A new model that is worse at one site of four, and a table of sites for more rows."""
    good = Predictions.read(folder / "good.npz")
    codes = np.random.default_rng(8).integers(0, 4, 900)
    logits = np.array(good.array)
    logits[codes == 2] *= 4.0
    Predictions.from_logits(logits, good.labels, ids=good.ids).write(folder / "released.npz")
    names = [f"site {code}" for code in codes]
    rows = [f"{row},{name}" for row, name in zip([*range(900), 5000], [*names, "x"], strict=True)]
    (folder / "sites.csv").write_text("\n".join(["id,site", *rows]) + "\n")
    return folder


def test_a_group_that_is_worse_is_code_3_and_on_the_page(sites):
    groups = ("--groups", sites / "sites.csv")
    page = sites / "page.html"
    options = ("--fail-worse", "nll", "--fail-groups", "--report", page, "--date", "2026-08-21")
    result = compare(sites, "good", "released", *groups, *options, "--model-version", "net 2")
    assert result.exit_code == 3
    assert "failed: site site 2: B is worse: nll of B − A is +" in result.stderr
    assert "By site, released is worse in 1 of 4 (nll)." in result.stdout
    text = page.read_text(encoding="utf-8")
    assert "site site 2: B is worse" in text
    assert "net 2" in text
    assert "2026-08-21" in text
    again = sites / "again.html"
    second = [again if each == page else each for each in options]
    compare(sites, "good", "released", *groups, *second, "--model-version", "net 2")
    assert again.read_text(encoding="utf-8").replace("again.html", "page.html") == text
    fine = compare(sites, "good", "good", *groups, "--fail-groups")
    assert fine.exit_code == 0
    assert "passed: nll is not shown to be worse in any of" in fine.stdout


def test_a_margin_holds_in_every_group(sites):
    groups = ("--groups", sites / "sites.csv", "--fail-on", "bound", "--fail-groups")
    wide = compare(sites, "good", "released", *groups, "--fail-worse", "nll=9")
    assert wide.exit_code == 0
    narrow = compare(sites, "good", "released", *groups, "--fail-worse", "nll=0.3", "--json")
    failed = json.loads(narrow.stdout)["failed"]
    assert narrow.exit_code == 3
    assert {"--fail-groups"} <= {each["option"] for each in failed}
    assert json.loads(narrow.stdout)["groups"]["name"] == "site"


def test_options_of_groups_and_reports_that_lack_theirs_are_refused(folder):
    for arguments, message in (
        (["--fail-groups"], "--fail-groups requires --groups or --group-column"),
        (["--title", "x"], "--title is for the report: add --report OUT.html"),
        (["--report", folder / "page.txt"], "end its name with .html"),
    ):
        result = compare(folder, "good", "good", *arguments)
        assert result.exit_code == 2
        assert message in result.stderr
