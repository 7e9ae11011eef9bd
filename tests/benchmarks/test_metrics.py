"""The benchmark runs and prints its tables; how fast anything is, is never asserted here."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.slow
def test_quick_benchmark_prints_and_writes_the_same_tables(tmp_path):
    written = tmp_path / "results.md"
    command = [
        sys.executable,
        BENCHMARKS / "metrics.py",
        "--quick",
        "--no-peers",
        "--write",
        written,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = written.read_text()
    assert text.strip() == done.stdout.strip()
    for heading in ("## Targets", "## Memory", "## Bootstrap", "## Import"):
        assert heading in text
    targets = text.split("## Targets")[1].split("##")[0]
    assert "class-wise ECE: at most 3x the pass" in targets
    # Without peers only what is compared with them goes unmeasured.
    unmeasured = [line for line in targets.splitlines() if "not measured" in line]
    assert [line for line in unmeasured if "ECE interval" not in line] == []
    assert "Error" not in text


def test_benchmark_figures_match_the_library(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import contestants

    logits, labels = contestants.make_input(500, 7)
    wanted = contestants.reference(logits, labels)
    accuracy = (logits.argmax(1) == labels).float().mean()
    assert 0.6 < accuracy < 0.95
    for task, call in contestants.ours(logits, labels).items():
        value = float(call())
        assert value == pytest.approx(wanted.get(task, wanted["ece"]), abs=1e-6), task


def test_a_busy_machine_decides_no_target(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from metrics_report import BUSY, verdict

    assert verdict(True, [1.0], 0.0) == "met"
    assert "missed" in verdict(False, [9.0], 0.0)
    assert "undecided" in verdict(True, [1.0], 2 * BUSY)
    assert verdict(True, [float("nan")], 0.0) == "not measured"


def test_slow_contestants_are_cut_off_and_failures_recorded(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import time

    from harness import Contestant, race

    def broken() -> float:
        raise RuntimeError("no such thing")

    entries = [
        Contestant("quick", lambda: 1.0),
        Contestant("endless", lambda: time.sleep(30) or 0.0),
        Contestant("broken", broken),
    ]
    race(entries, rounds=2, limit=0.2, patience=1.0)
    assert entries[0].seconds
    assert not entries[0].failure
    assert "cut off" in entries[1].failure
    assert entries[2].failure == "RuntimeError: no such thing"


def test_calibrators_of_dense_predictions_are_judged(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import dense

    made = np.random.default_rng(0)
    arrays = {"classes": np.array(["a", "b", "c"]), "void": np.array(3)}
    for part, count in (("train", 8), ("validation", 4), ("test", 4)):
        arrays[f"x_{part}"] = made.integers(0, 256, (count, 32, 48, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = arrays[f"x_{part}"][..., 0] // 64  # 3 does not count
    np.savez(tmp_path / "camvid.npz", **arrays)
    page = tmp_path / "page.md"
    dense.main(
        [str(tmp_path / "camvid.npz"), "--epochs", "2", "--seeds", "2", "--write", str(page)]
    )
    rows = [line.split("|")[1:-1] for line in page.read_text("utf-8").splitlines() if "|" in line]
    assert [row[0].strip() for row in rows[2:]] == list(dense.CALIBRATORS)
    accuracies = {row[1] for row in rows[2:]}
    assert len(accuracies) == 1  # every one keeps predictions
    held_out = [float(row[4].split("±")[0]) for row in rows[2:]]
    assert held_out[1] <= held_out[0]
    assert held_out[3] <= held_out[1] + 1e-4


def test_one_part_of_the_coverage_file_is_made_again_and_the_others_stay(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import interval_coverage

    written = (BENCHMARKS / "COVERAGE.md").read_text(encoding="utf-8")
    one_set = interval_coverage.Plan(1)
    headings = [make(one_set)[0] for make in interval_coverage.PARTS.values()]
    assert list(interval_coverage.sections(written)) == headings

    def part(plan):
        return headings[1], f"{plan.trials} sets.", iter([["model", "covers"], ["one", "95%"]])

    page = tmp_path / "COVERAGE.md"
    page.write_text(written, encoding="utf-8")
    monkeypatch.setitem(interval_coverage.PARTS, "coverage_at_risk", part)
    arguments = ["--part", "coverage_at_risk", "--trials", "7", "--write", str(page)]
    monkeypatch.setattr(sys, "argv", ["interval_coverage.py", *arguments])
    interval_coverage.main()
    before = interval_coverage.sections(written)
    after = interval_coverage.sections(page.read_text(encoding="utf-8"))
    before[headings[1]] = "7 sets.\n\n| model | covers |\n|---|---|\n| one | 95% |"
    assert after == before


def test_one_line_of_a_part_is_made_again_and_the_others_stay(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import interval_coverage

    section = "Words.\n\n| model | rows | off |\n|---|---|---|\n| a | 1 | 5% |\n| a | 2 | 6% |"
    made = [["model", "rows", "off"], ["a", "2", "7%"], ["b", "1", "8%"]]
    assert interval_coverage.merge_lines(made, section, 2) == [
        ["model", "rows", "off"],
        ["a", "1", "5%"],
        ["a", "2", "7%"],
        ["b", "1", "8%"],
    ]
