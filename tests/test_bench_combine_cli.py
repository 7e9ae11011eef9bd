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
    assert [one["who"] for one in rows[:3]] == ["chosen", "chosen by NLL", "cross_entropy"]
    (choice,) = out.rglob(f"{name}.json")
    chosen = json.loads(choice.read_text())["chosen"]
    assert (chosen["settings"]["loss"], chosen["calibrator"]) == (
        rows[0]["loss"],
        rows[0]["calibrator"],
    )
    done = runner.invoke(app, ["bench", "combine", str(out)])
    assert "cross_entropy" in done.output
    assert "The ECE of the choice" in done.output or "No method of the five" in done.output


def test_the_verdict_is_against_every_paper():
    import pandas as pd

    from calibrant.bench.combine_report import verdict

    def frame(*eces):
        rows = [("chosen", "mmce", "none"), ("cross_entropy", "cross_entropy", "none")]
        rows += [("acls", "acls", "none"), ("soft-calibration", "focal+s_avuc", "temperature")]
        same = {"recipe": "standard", "average": "none", "ece_error": 0.0002}
        return pd.DataFrame(
            {"who": who, "loss": loss, "calibrator": after, "ece": ece, **same}
            for (who, loss, after), ece in zip(rows, eces, strict=False)
        )

    told = verdict(frame(0.004, 0.03, 0.02, 0.005))
    assert "0.40%, is below that of every method" in told
    assert "soft-calibration's focal+s_avuc, then temperature has the lowest, 0.50%" in told
    assert told.startswith("Chosen: mmce. ")
    assert "0.50%; the seeds tell the two apart." in told
    near = frame(0.0045, 0.03, 0.02, 0.005).assign(recipe="deep_ensemble", average="ema")
    assert verdict(near).startswith("Chosen: mmce, deep_ensemble, ema. ")
    assert "; the seeds do not tell them apart." in verdict(near)
    one = frame(0.004, 0.03, 0.02, 0.005).assign(ece_error=float("nan"))  # of one seed
    assert "seeds" not in verdict(one)
    assert "is not below" in verdict(frame(0.006, 0.03, 0.02, 0.005))
    assert "No method of the five papers" in verdict(frame(0.006, 0.03))
    assert "by chance" not in told
    floor = frame(0.004, 0.03, 0.02, 0.005).assign(chance_ece=0.0048)
    assert verdict(floor).endswith("it would show 0.48% on average, by chance.")


def test_settings_that_came_later_do_not_part_older_runs_from_newer():
    from calibrant.bench.combine import _split
    from calibrant.training.config import Config

    now = Config().to_dict()
    before = {name: value for name, value in now.items() if name != "head"}
    assert _split(json.dumps(now)) == _split(json.dumps(before))
    assert _split(json.dumps(now | {"head": "3"})) != _split(json.dumps(before))


def test_a_bench_without_crossfitted_figures_says_what_to_run(tmp_path):
    (tmp_path / "store").mkdir()
    done = runner.invoke(app, ["bench", "combine", str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert "combinations" in done.output
