"""`calibrant bench combine`: a choice on validation rows, written down, then test figures."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from calibrant.cli import app

pytest.importorskip("lightning")
runner = CliRunner()


@pytest.mark.slow
def test_a_combination_is_chosen_written_down_and_judged(tmp_path):
    out = tmp_path / "bench"
    asked = ["--only", "cross_entropy", "--only", "focal", "--seeds", "0", "-o", str(out), "-q"]
    done = runner.invoke(app, ["bench", "run", "digits-short", *asked])
    assert done.exit_code == 0, done.output
    done = runner.invoke(app, ["bench", "combine", str(out), "--json"])
    assert done.exit_code == 0, done.output
    ((name, rows),) = json.loads(done.output).items()
    assert name.startswith("combination-digits-mlp")
    assert [row["who"] for row in rows[:3]] == ["chosen", "chosen by NLL", "cross_entropy"]
    (choice,) = out.rglob(f"{name}.json")
    chosen = json.loads(choice.read_text())["chosen"]
    assert (chosen["settings"]["loss"], chosen["calibrator"]) == (
        rows[0]["loss"],
        rows[0]["calibrator"],
    )
    done = runner.invoke(app, ["bench", "combine", str(out)])
    assert "cross_entropy" in done.output
    assert "The ECE of the choice" in done.output
    assert "that of plain cross-entropy" in done.output


def test_without_rivals_the_choice_is_held_against_cross_entropy():
    import pandas as pd

    from calibrant.bench import describe_choice

    same = {"recipe": "standard", "average": "none", "calibrator": "none", "ece_error": 0.0002}
    rows = [("chosen", "mmce", 0.004), ("cross_entropy", "cross_entropy", 0.03)]
    frame = pd.DataFrame({"who": who, "loss": loss, "ece": ece, **same} for who, loss, ece in rows)
    assert describe_choice(frame) == (
        "Chosen: mmce. The ECE of the choice, 0.40%, is below that of plain cross-entropy, 3.00%; "
        "the seeds tell the two apart."
    )


def test_settings_that_came_later_do_not_part_older_runs_from_newer():
    from calibrant.bench.select.combine import _split_settings
    from calibrant.training.config import Config

    now = Config().to_dict()
    before = {name: value for name, value in now.items() if name != "head"}
    assert _split_settings(json.dumps(now)) == _split_settings(json.dumps(before))
    assert _split_settings(json.dumps(now | {"head": "3"})) != _split_settings(json.dumps(before))


def test_a_bench_without_crossfitted_figures_says_what_to_run(tmp_path):
    (tmp_path / "store").mkdir()
    done = runner.invoke(app, ["bench", "combine", str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert "digits" in done.output
