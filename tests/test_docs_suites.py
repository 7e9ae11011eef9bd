"""What docs/suites.md says of suites is so."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from calibrant import losses
from calibrant.bench import plugins
from calibrant.bench.measure import AFTER
from calibrant.bench.suite import Suite
from calibrant.bench.suite_file import KEYS
from calibrant.cli import app
from calibrant.functional.errors import InputError

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


def own(folder):
    """The reader's two files."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.M | re.S)
    (folder / "my_methods.py").write_text(code)
    (folder / "own.yaml").write_text(FILES[2])
    return folder / "own.yaml"


@pytest.fixture
def _no_plugins_after():
    yield
    plugins.forget()


@pytest.mark.usefixtures("_no_plugins_after")
def test_its_methods_of_ones_own_run_and_are_shown(tmp_path):
    pytest.importorskip("lightning")
    path, out = own(tmp_path), tmp_path / "bench"
    shown = re.findall(r"^\$ calibrant (.*(?:own\.yaml|shrink).*)$", TEXT, flags=re.M)
    commands = [line.split() for line in shown]
    assert [words[1] for words in commands] == ["run", "table"]
    given = {"own.yaml": str(path), "bench": str(out)}
    for words in commands:
        words = ["bench", *(given.get(word, word) for word in words[1:])]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    heads = "Errors where sure ↓ | Errors where sure, after shrink ↓"
    assert heads in result.stdout
    for name in ("cross_entropy", "mean_gap", "mixed"):
        assert re.search(rf"^\| {name} \| .*\d", result.stdout, flags=re.M), name
    plain = CliRunner().invoke(app, ["bench", "table", str(out)]).stdout
    assert "Also measured: after shrink, after shrink(steps=10) (" in plain
    rows = CliRunner().invoke(app, ["bench", "table", str(out), "--method", "mean_gap"]).stdout
    assert "| shrink(steps=10) |" in rows
    assert "diverged" not in CliRunner().invoke(app, ["bench", "status", str(out)]).stdout


@pytest.mark.usefixtures("_no_plugins_after")
def test_registering_takes_effect_in_suites_alone(tmp_path, monkeypatch):
    path = own(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = importlib.import_module("my_methods")
    try:
        with pytest.raises(InputError, match="no loss is called 'mean_gap'"):
            losses.get("mean_gap")
        loss = losses.compose(losses.get("focal"), (0.5, made.MeanGap()))
        logits, labels = torch.randn(8, 3), torch.randint(0, 3, (8,))
        hot = torch.nn.functional.one_hot(labels, 3).float()
        assert loss(logits, labels) == pytest.approx(float(loss(logits, hot)))
        assert Suite.read(path).methods == ("cross_entropy", "mean_gap", "mixed")
        losses.get("mean_gap")
    finally:
        del sys.modules["my_methods"]


def test_its_commands_and_options_are_there():
    commands = re.findall(r"calibrant bench (\w+)", TEXT)
    assert set(commands) >= {"run", "status", "table", "report", "pack", "merge", "combine"}
    for name in set(commands):
        assert CliRunner().invoke(app, ["bench", name, "--help"]).exit_code == 0, name
    said = "".join(
        CliRunner().invoke(app, ["bench", name, "--help"], env={"COLUMNS": "200"}).output
        for name in ("run", "table")
    )
    for option in re.findall(r"`(--[\w-]+)", TEXT):
        assert option in said, option
