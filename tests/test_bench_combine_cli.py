"""`calibrant bench combine`: a choice on validation rows, written down, then test figures."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from calibrant.cli import app

pytest.importorskip("lightning")
runner = CliRunner()


def test_a_combination_is_chosen_written_down_and_judged(tmp_path):
    out = tmp_path / "bench"
    asked = ["--only", "cross_entropy", "--only", "focal", "--seeds", "0", "-o", str(out), "-q"]
    done = runner.invoke(app, ["bench", "run", "digits-short", *asked])
    assert done.exit_code == 0, done.output
    done = runner.invoke(app, ["bench", "combine", str(out), "--json"])
    assert done.exit_code == 0, done.output
    ((name, rows),) = json.loads(done.output).items()
    assert name.startswith("combination-digits-mlp")
    assert [one["who"] for one in rows[:2]] == ["chosen", "cross_entropy"]
    (choice,) = out.rglob(f"{name}.json")
    chosen = json.loads(choice.read_text())["chosen"]
    assert (chosen["settings"]["loss"], chosen["calibrator"]) == (
        rows[0]["loss"],
        rows[0]["calibrator"],
    )
    done = runner.invoke(app, ["bench", "combine", str(out)])
    assert "cross_entropy" in done.output


def test_a_bench_without_crossfitted_figures_says_what_to_run(tmp_path):
    (tmp_path / "store").mkdir()
    done = runner.invoke(app, ["bench", "combine", str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert "combinations" in done.output
