"""What docs/suites.md says of suites is so."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from typer.testing import CliRunner

from calibrant.bench.measure.steps import MEASUREMENTS
from calibrant.bench.suite.schema import SuiteFile
from calibrant.bench.suite.suite import Suite
from calibrant.cli import app

TEXT = (Path(__file__).parents[2] / "docs" / "suites.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```yaml\n(.*?)^```$", TEXT, flags=re.M | re.S)


def table(heading):
    part = re.search(rf"^## {heading}\n(.*?)(?=^## )", TEXT, flags=re.M | re.S)[1]
    return re.findall(r"^\| `(\w+)` \|", part, flags=re.M)


def test_every_key_and_measurement_is_explained():
    assert table("Keys") == list(SuiteFile.model_fields)
    built_in = {name for name in MEASUREMENTS if MEASUREMENTS.module_of(name) is None}
    assert set(table("Measurements")) == built_in


def test_its_suite_and_its_tuning_are_read():
    suite = Suite.parse(FILES[0])
    assert len(suite.runs) == 9
    of_logits, tuning = FILES[1:]
    tuned = Suite.parse(FILES[0].replace("acls(margin=6)", "focal+sb_ece") + tuning)
    assert len(tuned.tune["settings"]) == 3
    assert set(yaml.safe_load(tuning)) == {"tune"}
    assert set(yaml.safe_load(of_logits)) == {"logits", "seeds"}


def test_its_commands_and_options_are_there():
    commands = re.findall(r"calibrant bench (\w+)", TEXT)
    assert set(commands) >= {"run", "status", "table", "report", "pack", "merge", "combine"}
    for name in set(commands):
        assert CliRunner().invoke(app, ["bench", name, "--help"]).exit_code == 0, name
    help_text = "".join(
        CliRunner().invoke(app, ["bench", name, "--help"], env={"COLUMNS": "200"}).output
        for name in ("run", "table", "report")
    )
    for option in re.findall(r"`(--[\w-]+)", TEXT):
        assert option in help_text, option
