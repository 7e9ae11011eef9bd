"""The record at the head of a report: files, versions, command, date; and the command line's."""

from __future__ import annotations

import hashlib
import html
import re

import numpy as np
import pytest

from calibrant import Predictions, calibrate, decide
from calibrant.core.errors import InputError
from calibrant.predictions.read import count_rows
from calibrant.report import DataFile, describe_file, make_record, render
from tests.helpers.evaluations import simulated

TEN = simulated()


def draw(rows: int, seed: int) -> Predictions:
    rng = np.random.default_rng(seed)
    said = rng.random(rows)
    return Predictions.from_events(said, rng.random(rows) < said**1.3, event="fraud")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Return a function that runs `calibrant evaluate` in the temporary folder."""
    from typer.testing import CliRunner

    from calibrant.cli import app

    monkeypatch.chdir(tmp_path)

    def invoke(*arguments):
        monkeypatch.setattr("sys.argv", ["calibrant", "evaluate", *arguments])
        return CliRunner().invoke(app, ["evaluate", *arguments])

    return invoke


def test_a_report_without_a_record_has_none():
    assert 'class="record"' not in render(TEN)


def test_record_shows_what_it_was_given_and_a_place_to_sign():
    files = [DataFile("predictions", "<b>.npz", "ab" * 32, 12_345), DataFile("rule", "r", "", None)]
    record = make_record(
        files=files, date="2026-08-21", model_version="net & co 3.1", command="calibrant x '<i>'"
    )
    text = render(TEN, record=record)
    head = html.unescape(re.search(r'<details class="record".*?</details>', text, re.S)[0])
    for part in ("2026-08-21", "net & co 3.1", "calibrant x '<i>'", "ab" * 32, "12,345 rows"):
        assert part in head
    assert "<b>.npz" not in text
    fields = re.search(r'record-sign">(.*?)</dl>', head, re.S)[1]
    assert re.findall(r"<dt>(.*?)</dt>", fields) == ["Name", "Role", "Date", "Signature"]
    assert np.__version__ in head
    assert text.index('class="record"') < text.index('id="verdict"')


def test_date_must_be_a_day():
    with pytest.raises(InputError, match="2026-08-21"):
        make_record(date="yesterday")


@pytest.mark.filterwarnings("ignore:.*cannot hold event")
def test_files_are_described_by_their_bytes_and_rows(tmp_path):
    predictions = draw(50, 0)
    for ending in (".npz", ".csv", ".parquet", ".jsonl", ".safetensors", ".arrow", ".csv.gz"):
        if ending in (".parquet", ".arrow"):
            pytest.importorskip("pyarrow")
        path = predictions.write(tmp_path / f"rows{ending}")
        found = describe_file(path)
        assert (found.name, found.rows) == (path.name, 50)
        assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    labels = tmp_path / "labels.txt"
    labels.write_text("1\n0\n1\n")
    assert count_rows(labels) == 3


def test_the_same_command_and_date_give_the_same_bytes_and_name_every_file(run, tmp_path):
    draw(300, 1).write(tmp_path / "a.npz")
    groups = "\n".join(["month", *(f"2026-0{1 + row % 3}" for row in range(300))])
    (tmp_path / "months.csv").write_text(groups + "\n")
    calibrate(draw(300, 2), method="temperature").save(tmp_path / "t.safetensors")
    command = (
        *("a.npz", "--groups", "months.csv", "--report", "r.html", "--quiet", "-m", "ece"),
        *("--resamples", "100", "--title", "Release 3", "--model-version", "fraud-net 3.0"),
        *("--in-use", "t.safetensors", "--date", "2026-08-21"),
    )
    pages = []
    for _ in range(2):
        outcome = run(*command)
        assert outcome.exit_code == 0, outcome.output
        pages.append((tmp_path / "r.html").read_bytes())
    assert pages[0] == pages[1]
    text = html.unescape(pages[0].decode())
    head = re.search(r'<details class="record".*?</details>', text, re.S)[0]
    assert " open>" in head
    for name in ("a.npz", "months.csv", "t.safetensors"):
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() in head
    assert head.count("300 rows") == 3
    assert "temperature, fitted on 300 rows" in head
    assert "calibrant evaluate a.npz --groups months.csv" in head
    assert "<h1" in text
    assert "Release 3" in text
    # Months come in their order, not by their gaps.
    assert re.findall(r'data-drawn="(.*?)"', text) == ["2026-01", "2026-02", "2026-03"]


def test_options_of_the_record_require_a_report(run, tmp_path):
    draw(100, 1).write(tmp_path / "a.npz")
    outcome = run("a.npz", "--model-version", "3", "--no-intervals", "-m", "ece")
    assert outcome.exit_code == 2
    assert "--report" in outcome.output


def test_a_rule_in_use_is_in_the_record(run, tmp_path):
    rng = np.random.default_rng(1)
    said = rng.beta(2, 2, 800)
    rows = Predictions.from_events(said, rng.random(800) < said)
    decide(rows, min_recall=0.9).save(tmp_path / "rule.safetensors")
    rows.write(tmp_path / "rows.npz")
    options = ("--report", "r.html", "--in-use", "rule.safetensors", "--resamples", "100")
    outcome = run("rows.npz", *options, "-m", "nll")
    assert outcome.exit_code == 0, outcome.output
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "rule.safetensors" in text
    assert "at least 90% of the rows with the event are accepted" in text
