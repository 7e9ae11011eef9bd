"""Own column names, several files, groups of the same file and harness logs on the command line."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibrant import Predictions
from tests.helpers.groups import run_command

LOGS = Path(__file__).parents[1] / "fixtures" / "lm_eval"
FAST = ("--no-intervals", "-m", "brier", "--json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("input"), np.random.default_rng(0)
    score = rng.random(400)
    frame = pd.DataFrame({"score": score, "fraud": np.where(rng.random(400) < score, "yes", "no")})
    frame["branch"], frame["customer"] = np.arange(400) % 3, np.arange(400) % 50
    frame.to_csv(path / "own.csv", index=False)
    frame[:150].to_csv(path / "part1.csv", index=False)
    frame[150:].to_csv(path / "part2.csv", index=False)
    classes = pd.DataFrame(rng.dirichlet(np.ones(3), 300), columns=["p_a", "p_b", "p_c"])
    classes["truth"] = ["abc"[k % 3] for k in range(300)]
    classes.to_csv(path / "classes.csv", index=False)
    return path


OWN = ("--score-columns", "score", "--label-column", "fraud", "--probs", "--pos-label", "yes")


def read_json(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_own_columns_are_an_event_with_groups_and_clusters(folder):
    given = ("--cluster-column", "customer", "--group-column", "branch")
    whole = read_json(run_command("evaluate", folder / "own.csv", *OWN, *given, *FAST))
    frame = pd.read_csv(folder / "own.csv")
    expected = ((frame["score"] - (frame["fraud"] == "yes")) ** 2).mean()
    assert whole["figures"]["brier"]["value"] == pytest.approx(expected, abs=1e-9)
    assert [group["value"] for group in whole["groups"]["groups"]] == ["0", "1", "2"]
    parts = [folder / "part1.csv", folder / "part2.csv"]
    again = read_json(run_command("evaluate", *parts, *OWN, *given, *FAST))
    assert again["figures"] == whole["figures"]


def test_own_columns_of_classes_fit_and_apply(folder, tmp_path):
    own = ("--score-columns", "p_", "--label-column", "truth", "--probs")
    calibrator, out = tmp_path / "c.safetensors", tmp_path / "out.npz"
    fit = ("fit", folder / "classes.csv", *own, "--method", "temperature", "-o", calibrator, "-q")
    assert run_command(*fit).exit_code == 0
    done = run_command("apply", calibrator, folder / "classes.csv", *own, "-o", out)
    assert done.exit_code == 0, done.output
    applied = Predictions.read(out)
    assert applied.class_names == ("a", "b", "c")
    assert applied.labels.tolist() == [k % 3 for k in range(300)]


def test_harness_logs_are_evaluated_with_the_task_as_group():
    logs = [*sorted(LOGS.glob("samples_tiny_[sf]*.jsonl"))]
    result = run_command("evaluate", *logs, "-m", "accuracy", *FAST)  # the task is the group
    groups = read_json(result)["groups"]["groups"]
    accuracies = {group["value"]: (group["num_rows"], group["accuracy"]) for group in groups}
    # What lm-eval printed.
    assert accuracies == {
        "tiny_facts": (4, pytest.approx(0.5)),
        "tiny_science": (6, pytest.approx(1 / 6)),
    }
    answers = ("--group-column", "target", "-m", "accuracy", *FAST)
    assert read_json(run_command("evaluate", *logs, *answers))["groups"]["name"] == "target"
    assert read_json(run_command("evaluate", logs[0], *FAST))["groups"] is None
    normalised = run_command(
        "evaluate", logs[1], "--normalise", "length", "--no-intervals", "-m", "accuracy", "--json"
    )
    assert read_json(normalised)["figures"]["accuracy"]["value"] == pytest.approx(1 / 3)


def test_a_tolerance_that_nothing_uses_is_refused(folder):
    result = run_command("evaluate", folder / "own.csv", *OWN, "--tolerance", "error=0.1")
    assert (result.exit_code, "give --tolerance ratio=" in result.stderr) == (2, True)
    own = ("--score-columns", "p_a,p_b,p_c", "--label-column", "truth", "--probs")
    result = run_command("evaluate", folder / "classes.csv", *own, "--tolerance", "slope=2")
    assert result.exit_code == 2


def test_errors_say_which_of_the_columns_lacks_what(folder, tmp_path):
    result = run_command("evaluate", folder / "own.csv", *OWN[:4], "--pos-label", "yes")
    assert result.exit_code == 2
    assert "whether the scores are logits or probabilities: add --logits" in result.stderr
    Predictions.from_events(np.array([0.2, 0.9]), None).write(tmp_path / "new.npz")
    result = run_command("evaluate", tmp_path / "new.npz")
    assert "'happened' (or 'correct'), name their column with --label-column, or" in result.stderr
    assert result.stderr.rstrip().endswith("with --labels")


def test_errors_name_the_options_of_the_command_line(folder, tmp_path):
    result = run_command("evaluate", folder / "own.csv", *OWN[:5])
    assert result.exit_code == 2
    assert "--pos-label" in result.stderr
    (tmp_path / "a.csv").write_text("prob,label\n0.5,\n0.6,1\n")
    result = run_command("evaluate", tmp_path / "a.csv")
    assert (result.exit_code, "with --drop-unlabelled" in result.stderr) == (2, True)
    with pytest.warns(UserWarning, match="left out 1 of 2"):
        result = run_command("evaluate", tmp_path / "a.csv", "--drop-unlabelled", *FAST)
    assert read_json(result)["num_rows"] == 1
    result = run_command("evaluate", folder / "classes.csv", "--pos-label", "horse")
    assert result.exit_code == 2


def test_groups_of_many_labels_keep_the_order_of_numbers(folder, tmp_path):
    rng = np.random.default_rng(0)
    probs = rng.random((220, 2))
    many = Predictions.from_multilabel(probs, rng.random((220, 2)) < probs, is_logits=False)
    many.write(tmp_path / "many.npz")
    np.save(tmp_path / "site.npy", np.arange(220) % 11)
    given = ("--groups", tmp_path / "site.npy", *FAST)
    groups = read_json(run_command("evaluate", tmp_path / "many.npz", *given))["groups"]["groups"]
    assert [group["value"] for group in groups] == [str(k) for k in range(11)]
    assert {group["num_rows"] for group in groups} == {40}


@pytest.mark.parametrize("command", ["evaluate", "fit", "rank"])
def test_missing_labels_are_named_with_options(command, tmp_path):
    Predictions.from_logits(np.random.default_rng(0).normal(size=(60, 3)), None).write(
        tmp_path / "bare.npz"
    )
    result = run_command(command, tmp_path / "bare.npz")
    assert result.exit_code == 2
    assert "no labels found" in result.stderr
    assert "with --label-column, or give a file of labels with --labels" in result.stderr


@pytest.fixture(scope="module", params=["npz", "csv", "parquet"])
def applied(folder, request, tmp_path_factory):
    """Return what `apply` writes of own columns: scores and labels with the usual names."""
    out = tmp_path_factory.mktemp("applied")
    own = ("--score-columns", "p_", "--label-column", "truth", "--probs")
    calibrator = out / "c.safetensors"
    fit = ("fit", folder / "classes.csv", *own, "--method", "temperature", "-o", calibrator, "-q")
    assert run_command(*fit).exit_code == 0
    file = out / f"after.{request.param}"
    done = run_command("apply", calibrator, folder / "classes.csv", *own, "-o", file)
    assert done.exit_code == 0, done.output
    return file


def test_own_columns_are_compared_with_what_apply_wrote_of_them(folder, applied):
    own = ("--score-columns", "p_", "--label-column", "truth", "--probs", "-m", "nll", "--json")
    for pair in ((folder / "classes.csv", applied), (applied, folder / "classes.csv")):
        differences = read_json(run_command("compare", *pair, *own))["differences"]
        sign = 1 if pair[0] == applied else -1
        assert sign * differences["nll"]["difference"] > 0  # uniform scores over random labels
    both = run_command("compare", applied, applied, *own)
    assert both.exit_code == 2  # no file has the columns: they are mistyped


def test_ids_with_a_name_of_their_own_need_be_in_one_file_only(folder, tmp_path):
    rng = np.random.default_rng(1)
    rows = Predictions.from_probs(
        rng.dirichlet(np.ones(3), 200), np.arange(200) % 3, ids=np.arange(200)
    )
    rows.write(tmp_path / "rows.npz")
    sites = pd.DataFrame({"case": np.arange(200), "site": np.where(np.arange(200) < 120, "e", "w")})
    sites.sample(frac=1, random_state=0).to_csv(tmp_path / "sites.csv", index=False)
    given = ("--groups", tmp_path / "sites.csv", "--id-column", "case", "--group-column", "site")
    groups = read_json(run_command("evaluate", tmp_path / "rows.npz", *given, *FAST))["groups"]
    assert [(each["value"], each["num_rows"]) for each in groups["groups"]] == [
        ("e", 120),
        ("w", 80),
    ]
    rule = ("--max-error", "0.9", "-o", tmp_path / "r.safetensors")
    done = run_command("decide", tmp_path / "rows.npz", *given, *rule)
    assert done.exit_code == 0, done.output


def test_a_table_of_semicolons_and_one_without_labels_are_told_what_they_are(folder, tmp_path):
    frame = pd.read_csv(folder / "classes.csv")
    frame.to_csv(tmp_path / "semi.csv", index=False, sep=";")
    frame.drop(columns="truth").to_csv(tmp_path / "new.csv", index=False)
    own = ("--score-columns", "p_", "--label-column", "truth", "--probs")
    semi = run_command("evaluate", tmp_path / "semi.csv", *own)
    assert "separated by commas, not by ';'" in " ".join(semi.stderr.split())
    new = run_command("evaluate", tmp_path / "new.csv", *own)
    assert "leave --label-column out" in " ".join(new.stderr.split())


def test_fail_on_bound_without_a_limit_is_refused(folder):
    own = ("--score-columns", "p_", "--label-column", "truth", "--probs")
    result = run_command("evaluate", folder / "classes.csv", *own, "--fail-on", "bound")
    assert result.exit_code == 2
    assert "--fail-on bound requires a limit" in result.stderr
