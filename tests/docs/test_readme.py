"""The README and the files beside it are right: examples run, numbers and links agree."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from typer.testing import CliRunner

import calibrant
from calibrant import calibrators, losses, metrics
from calibrant.training import recipes

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXT = re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S)  # without blocks of code
FAILS = ("--fail-above", "--fail-verdict")


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, flags=re.M | re.S)


def make_names():
    """Return the variables that the examples expect the reader to have."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(400, 4))
    images, target = torch.randn(20, 8), torch.randint(0, 3, (20,))
    return {
        "logits": logits,
        "labels": rng.integers(0, 4, 400),
        "sensor": np.arange(400) % 2,
        "model": nn.Linear(8, 3),
        "loader": [(images, target)] * 2,
    }


def test_python_examples_run_in_the_order_they_are_read(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = make_names()
    assert len(blocks("python")) >= 3
    for number, code in enumerate(blocks("python")):
        exec(compile(code, f"README.md, example {number + 1}", "exec"), names)  # noqa: S102
    assert "overconfident" in capsys.readouterr().out
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_commands_run(tmp_path, monkeypatch):
    from calibrant.cli import app

    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^\$ calibrant (.*)$", "".join(blocks("console")), flags=re.M)
    assert len(commands) >= 3
    for words in map(shlex.split, commands):
        options = [] if words[0] == "monitor" else ["-m", "ece", "-m", "nll"]
        result = CliRunner().invoke(app, [*words, *options])
        assert result.exit_code == (3 if set(words) & set(FAILS) else 0), result.output


def test_readme_is_read_in_two_minutes():
    assert len(README.splitlines()) <= 150
    assert all(
        len(code.strip().splitlines()) <= 10
        for kind in ("python", "console", "sh")
        for code in blocks(kind)
    )
    for paragraph in re.split(r"\n\s*\n", TEXT):
        lines = [line for line in paragraph.splitlines() if not line.startswith(("|", "-", "#"))]
        assert len(lines) <= 3, paragraph


def test_no_comment_begins_a_line():
    assert not re.search(r"^<!--", README, flags=re.M)


@pytest.mark.parametrize(
    ("number", "noun"),
    [
        (len(metrics.available()), "metrics"),
        (len(calibrators.available()) - 1, "calibrators"),  # identity is none
        (len(losses.available()), "losses"),
        (len(recipes.available()), "recipes"),
    ],
)
def test_counts_agree_with_the_registries(number, noun):
    counts = re.findall(rf"\[(\d+) {noun}\]", README)
    assert set(counts) == {str(number)}


def test_the_number_of_commands_is_right():
    import typer

    from calibrant.cli import app

    words = {12: "twelve", 13: "thirteen", 14: "fourteen", 15: "fifteen"}
    assert f"{words[len(typer.main.get_command(app).commands)]} commands" in README


def test_every_measured_number_is_in_the_file_that_its_row_links_to():
    compared = README[README.index("## How it compares") :]
    rows = re.findall(r"^\| ([^|]*) \| ([^|]*) \| \[\w+\]\(([^)]*)\) \|$", compared, flags=re.M)
    assert len(rows) >= 4
    for _, result, target in rows:
        text = (ROOT / target).read_text(encoding="utf-8")
        if "<!-- results" in result:  # `python -m replication readme --check` compares those
            continue
        for figure in re.findall(r"\d+ of \d+|\d[\d.]*x\b", result):
            assert figure in text, (figure, target)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_resolve(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r'(?:\]\(|src=")([^)"#]+)', text)
    missing = [t for t in targets if "://" not in t and not (ROOT / t).exists()]
    assert missing == []


def test_picture_is_small_enough_to_clone():
    assert (ROOT / "docs" / "report.png").stat().st_size < 300_000


def test_citation_agrees_with_the_package_and_the_report():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == calibrant.__version__
    assert citation["license"] == "Apache-2.0"
    section = Path(calibrant.__file__).parent / "report/assets/sections/citing.html"
    bibtex = " ".join(section.read_text(encoding="utf-8").split())
    assert f"{{{citation['title']}}}" in bibtex
    assert citation["authors"] == [{"name": "The calibrant developers"}]
    assert citation["authors"][0]["name"] in bibtex


def test_the_bibtex_entry_agrees_with_the_citation_file():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    (entry,) = blocks("bibtex")
    commented = "".join(f"# {line}".rstrip() + "\n" for line in entry.splitlines())
    assert commented in text
    citation = yaml.safe_load(text)
    for key, value in (
        ("title", citation["title"]),
        ("version", citation["version"]),
        ("year", str(citation["date-released"])[:4]),
    ):
        assert f"{key:<7} = {{{value}}}," in entry


def test_a_release_sets_every_version_and_moves_the_changes(tmp_path):
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    names = ("CITATION.cff", "CHANGELOG.md", "README.md", "src/calibrant/_version.py")
    (tmp_path / "src/calibrant").mkdir(parents=True)
    for name in names:
        shutil.copy(ROOT / name, tmp_path / name)
    script.release(tmp_path, "9.8.7", "2031-02-03")
    for name in names:
        assert "9.8.7" in (tmp_path / name).read_text(encoding="utf-8")
    changes = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]\n\n## [9.8.7] - 2031-02-03\n" in changes
    citation = yaml.safe_load((tmp_path / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["date-released"]) == "2031-02-03"
    with pytest.raises(SystemExit, match="already"):
        script.release(tmp_path, "9.8.7", "2031-02-03")


def test_changelog_has_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in text
    assert f"## [{calibrant.__version__}]" in text
