"""The class-scaling benchmark's statistics and sentences, on figures made up for the purpose."""

from __future__ import annotations

import importlib
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a script of the benchmarks folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def fits(benchmark):
    """Every cell of three sets by four splits, from a rule for its figures."""
    module = benchmark("class_scaling_fits")
    runner = benchmark("class_scaling")

    def make(rule):
        rows = []
        for cell in runner.cells(SETS, 4, runner.CALIBRATORS):
            row = dict.fromkeys(module.COLUMNS, math.nan) | cell._asdict()
            rows.append(row | {"note": "", "failure": ""} | rule(cell))
        return module.Fits(rows)

    return make


SETS = ("cifar10-a", "cifar100-b", "imagenet5k-efficientnet-c")


def figures(cell, gains=None, slope=1.0):
    """ECE falls by the gain of the cell's objective; the spread follows ECE with a slope."""
    noise = random.Random(f"{cell.set} {cell.seed}").gauss(0, 0.01)  # one a split, so paired
    own = random.Random(str(cell)).gauss(0, 1e-4)
    ece = 0.05 + noise + own - (gains or {}).get(cell.objective, 0.0)
    values = {
        "ece": ece,
        "ece_mass_l2": ece,
        "nll": 1.0 + own,
        "classwise_ece": 0.01,
        "accuracy": 0.9,
        "spread": 0.5 + slope * ece,
        "fit_nll": 1.0,
        "fit_spread": 0.5 + slope * ece,
        "temperature": 1.5 + 0.01 * cell.seed * (cell.objective == "HB-ECE"),
        "alpha": 0.1,
        "beta": 2.0,
    }
    if cell.calibrator == "path":
        parts = [f"{part}_{name}" for part in ("toward", "beyond") for name in ("spread", "nll")]
        values |= dict.fromkeys(parts, slope + own) | {"path_spread": -0.9}
    if "printed" in cell.objective:
        classes = {"cifar10": 10, "cifar100": 100, "imagenet5k": 1000}[cell.set.split("-")[0]]
        values |= {"alpha": math.log(classes) / 2, "beta": 1.5}
    return values


def claim(text, words):
    """The one line of the report that makes a claim."""
    (line,) = [line for line in text.splitlines() if line.startswith("- **") and words in line]
    return line


class TestStatistics:
    def test_correlation_and_ranks_agree_with_scipy(self, benchmark):
        from scipy.stats import pearsonr, rankdata, spearmanr

        module = benchmark("class_scaling_fits")
        draw = np.random.default_rng(0)
        x, y = draw.normal(size=30).round(1).tolist(), draw.normal(size=30).tolist()
        assert module.correlation(x, y) == pytest.approx(pearsonr(x, y)[0], abs=1e-12)
        assert module.ranks(x) == rankdata(x).tolist()
        ranked = module.correlation(module.ranks(x), module.ranks(y))
        assert ranked == pytest.approx(spearmanr(x, y)[0], abs=1e-12)
        assert math.isnan(module.correlation([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))

    def test_standard_error_and_what_is_clear(self, benchmark):
        mean_of = benchmark("class_scaling_fits").mean_of
        mean = mean_of([1.0, 2.0, 3.0, math.nan])
        assert (mean.value, mean.count) == (2.0, 3)
        assert mean.error == pytest.approx(1 / math.sqrt(3))
        assert mean.clear == 1
        assert mean_of([-1.0, -2.0, -3.0]).clear == -1
        assert mean_of([-1.0, 2.0, 3.0]).clear == 0
        assert mean_of([5.0]).clear == 0  # one value tells nothing of its error
        assert mean.show(".1f", 10) == "20.0 ± 5.8"
        assert mean_of([]).show() == "-"

    def test_differences_are_paired_by_split(self, fits):
        gap = fits(lambda cell: figures(cell, {"LS": 0.001})).difference(
            ("TS", "LS"), ("TS", "NLL"), "ece"
        )
        # Splits differ by 0.01, cells by 1e-4: only pairing shows a gain of 0.001.
        assert set(gap.sets) == set(SETS)
        assert gap.over_sets.value == pytest.approx(-0.001, abs=2e-4)
        assert gap.over_sets.clear == -1
        assert gap.count(-1) == 3
        assert gap.show("+.1f", 100).endswith("[3/3]")

    def test_only_splits_both_have_are_compared(self, benchmark):
        module = benchmark("class_scaling_fits")
        blank = dict.fromkeys(module.COLUMNS, math.nan) | {"failure": "", "note": ""}
        values = {("NLL", 0): 0.1, ("NLL", 1): 0.9, ("LS", 0): 0.3, ("LS", 2): 5.0}
        rows = [
            blank | {"set": "s", "calibrator": "TS", "objective": name, "seed": seed, "ece": value}
            for (name, seed), value in values.items()
        ]
        rows.append(rows[0] | {"seed": 2, "failure": "cut off"})
        results = module.Fits(rows)
        gap = results.difference(("TS", "LS"), ("TS", "NLL"), "ece")
        assert gap.sets["s"].value == pytest.approx(0.2)
        assert gap.sets["s"].count == 1
        assert len(results.failed) == 1

    def test_correlation_over_cells_is_within_a_split(self, fits, benchmark):
        # Splits move ECE and spread oppositely to cells: within a split r is −1 all the same.
        def rule(cell):
            own = 0.001 * ["NLL", "LS", "FL", "CS nd printed"].index(cell.objective)
            shift = 0.1 * cell.seed
            return {"ece": own + shift, "spread": 1 - own + shift}

        claims = benchmark("class_scaling_claims")
        four = ("NLL", "LS", "FL", "CS nd printed")
        results = fits(lambda cell: rule(cell) if cell.objective in four else {})
        for mean in results.correlations(claims.SIXTEEN, "spread").values():
            assert mean.value == pytest.approx(-1)
        for value in results.across_splits(claims.SIXTEEN, "spread").values():
            assert value == pytest.approx(1)


class TestSentences:
    def test_verdicts_follow_the_figures(self, fits, benchmark):
        report = benchmark("class_scaling_report").report
        better = {"CS nd printed": 0.02, "SB-ECE": 0.01, "LS": -0.05, "FL": -0.05}
        better["FL whole"] = -0.05
        text = report(fits(lambda cell: figures(cell, better)))
        assert "*Holds.*" in claim(text, "lowers the ECE of every calibrator")
        assert "*Holds.*" in claim(text, "lowers the spread")
        assert "*Holds.*" in claim(text, "highly correlated")
        assert "from -0.90 to -0.90 on all 3 sets" in claim(text, "highly correlated")
        assert "3 sets whose network is too sure" in claim(text, "highly correlated")
        assert "*Holds.*" in claim(text, "Label smoothing and focal loss raise ECE")
        assert "*Holds.*" in claim(text, "lowest ECE of all")
        assert "*Holds.*" in claim(text, "Standardising (nd) is better")
        assert "*Holds.*" in claim(text, "opposite corners")
        assert "*Holds.*" in claim(text, "TS-SB-ECE beats TS")
        assert "On 3 of 3 sets" in claim(text, "varies more")
        worse = {name: -gain for name, gain in better.items()}
        text = report(fits(lambda cell: figures(cell, worse, slope=-1.0)))
        assert "*Opposite.*" in claim(text, "lowers the ECE of every calibrator")
        assert "*Opposite.*" in claim(text, "highly correlated")
        assert "*Opposite.*" in claim(text, "Label smoothing and focal loss raise ECE")
        assert "*Does not hold.*" in claim(text, "lowest ECE of all")
        assert "*Opposite.*" in claim(text, "TS-SB-ECE beats TS")

    def test_no_difference_is_not_shown(self, fits, benchmark):
        report = benchmark("class_scaling_report").report
        even = {"cifar10": 0.01, "cifar100": -0.01, "imagenet5k": 0.0}

        def rule(cell):
            gain = even[cell.set.split("-")[0]]
            return figures(cell, dict.fromkeys(("CS nd printed", "SB-ECE", "FL", "LS"), gain))

        text = report(fits(rule))
        assert "*Not shown.*" in claim(text, "lowers the ECE of every calibrator")
        assert "*Not shown.*" in claim(text, "TS-SB-ECE beats TS")

    def test_several_verdicts_make_one(self, benchmark):
        combined = benchmark("class_scaling_claims").combined
        assert combined([-1, -1], -1) == "Holds"
        assert combined([1, 1], -1) == "Opposite"
        assert combined([0, 0], -1) == "Not shown"
        assert combined([-1, 0, 1], -1) == "Holds in part (1 of 3, opposite in 1)"
        assert combined([0, 1], -1) == "Not shown, opposite in 1 of 2"
        assert combined([], -1) == "Not measured"

    def test_corners_of_the_bounds(self, benchmark):
        corner = benchmark("class_scaling_claims").corner
        assert corner(0.1, 2.0, 10) == "α low, β high"
        assert corner(math.log(100) / 2, 1.5, 100) == "α high, β low"
        assert corner(1.0, 1.7, 100) == "α inside, β inside"

    def test_failures_and_gaps_are_told(self, fits, benchmark):
        report = benchmark("class_scaling_report").report

        def rule(cell):
            failed = cell.calibrator == "CTS" and cell.objective == "CS nd corrected"
            return figures(cell) | {"failure": "cut off after 9 s" if failed else ""}

        text = report(fits(rule))
        remarks = text.split("## Fits that need a remark")[1]
        assert "CTS + CS nd corrected, 4 of 4 splits failed: cut off after 9 s" in remarks
        assert "Incomplete: 12 fits" in text
        complete = report(fits(figures))
        assert "Incomplete" not in complete
        assert complete.split("## Fits that need a remark")[1].strip() == "None."


def write_set(folder, rows=300, classes=10):
    """Overconfident logits under a name of the benchmark's."""
    random = np.random.default_rng(1)
    labels = random.integers(0, classes, rows)
    logits = random.normal(size=(rows, classes)) + 2 * np.eye(classes)[labels]
    (folder / "logits").mkdir()
    np.savez(folder / "logits" / "cifar10-tiny.npz", logits=np.float32(4 * logits), labels=labels)


def test_a_tiny_run_is_resumed_and_reported(benchmark, tmp_path, capsys):
    runner = benchmark("class_scaling")
    write_set(tmp_path)
    cache = tmp_path / "cache" / "fits.jsonl"
    options = ["--data", str(tmp_path), "--sets", "cifar10-tiny", "--seeds", "1"]
    options += ["--calibrators", "TS", "ETS", "--cache", str(cache)]
    runner.main(options)
    lines = cache.read_text().splitlines()
    assert "26 fits, 0 of them" in capsys.readouterr().out
    assert len(lines) == 26
    assert not any("failure" in json.loads(line) for line in lines)
    cache.write_text("\n".join(lines[:24]) + "\n")
    runner.main(options)
    assert "26 fits, 24 of them" in capsys.readouterr().out
    assert len(cache.read_text().splitlines()) == 26
    runner.main([*options, "--report", "--write", str(tmp_path)])
    text = (tmp_path / "CLASS_SCALING.md").read_text()
    assert capsys.readouterr().out.strip() == text.strip()
    assert "*Holds.*" in claim(text, "TS and ETS of eq. 13 must agree")
    assert "nan" not in claim(text, "TS and ETS of eq. 13 must agree")
    fits = benchmark("class_scaling_fits").read(tmp_path / "class_scaling.csv")
    by_cell = {(row["calibrator"], row["objective"], row["seed"]): row for row in fits}
    assert by_cell["TS", "NLL", 0]["nll"] < by_cell["none", "none", 0]["nll"]
    assert by_cell["TS", "NLL", 0]["fit_nll"] <= by_cell["TS", "CS nd printed", 0]["fit_nll"]
    assert by_cell["TS", "FL", 0]["temperature"] > by_cell["TS", "NLL", 0]["temperature"]


def test_a_fit_that_takes_too_long_is_cut_off_and_not_tried_again(benchmark, tmp_path, capsys):
    runner = benchmark("class_scaling")
    write_set(tmp_path)
    cache = tmp_path / "fits.jsonl"
    options = ["--data", str(tmp_path), "--sets", "cifar10-tiny", "--seeds", "1"]
    options += ["--calibrators", "CTS", "--cache", str(cache), "--limit", "0.001"]
    with pytest.raises(SystemExit, match="10 fits failed"):
        runner.main(options)
    assert "cut off after 0 s" in cache.read_text()
    runner.main(options)
    assert "10 fits, 10 of them" in capsys.readouterr().out


def test_published_report_is_what_the_published_figures_say(benchmark):
    path = BENCHMARKS / "class_scaling.csv"
    if not path.exists():
        pytest.skip("not measured yet")
    module = benchmark("class_scaling_fits")
    text = benchmark("class_scaling_report").report(module.Fits(module.read(path)))
    assert text == (BENCHMARKS / "CLASS_SCALING.md").read_text()
