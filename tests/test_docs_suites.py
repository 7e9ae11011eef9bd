"""What docs/suites.md says of suites is so."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from typer.testing import CliRunner

from calibrant.bench import plugins
from calibrant.bench.measure import AFTER
from calibrant.bench.suite import Suite
from calibrant.bench.suite_file import KEYS
from calibrant.cli import app

TEXT = (Path(__file__).parents[1] / "docs" / "suites.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```yaml\n(.*?)^```$", TEXT, flags=re.M | re.S)


def table(heading):
    part = re.search(rf"^## {heading}\n(.*?)(?=^## )", TEXT, flags=re.M | re.S)[1]
    return re.findall(r"^\| `(\w+)` \|", part, flags=re.M)


def test_every_key_and_measurement_is_explained():
    assert table("Keys") == list(KEYS)
    assert set(table("Measurements")) == set(AFTER)


def test_its_suite_and_its_tuning_are_read():
    suite = Suite.parse(FILES[0])
    assert len(suite.runs) == 9
    tuned = Suite.parse(FILES[0].replace("acls(margin=6)", "focal+sb_ece") + FILES[1])
    assert len(tuned.tune["settings"]) == 3
    assert set(yaml.safe_load(FILES[1])) == {"tune"}


def test_its_method_of_ones_own_is_registered(tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.M | re.S)
    (tmp_path / "my_methods.py").write_text(code)
    (tmp_path / "mine.yaml").write_text(FILES[2])
    try:
        suite = Suite.read(tmp_path / "mine.yaml")
        assert suite.methods == ("cross_entropy", "mean_gap")
        assert [one.name for one in suite.plugins] == ["my_methods.py"]
    finally:
        plugins.forget()


def test_its_commands_and_options_are_there():
    commands = re.findall(r"calibrant bench (\w+)", TEXT)
    assert set(commands) >= {"run", "status", "table", "report", "pack", "merge", "combine"}
    for name in set(commands):
        assert CliRunner().invoke(app, ["bench", name, "--help"]).exit_code == 0, name
    said = CliRunner().invoke(app, ["bench", "run", "--help"], env={"COLUMNS": "200"}).output
    for option in re.findall(r"`(--[\w-]+)", TEXT):
        assert option in said, option
