"""The command line: output, exit codes and errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from calibrant import Predictions, __version__, metrics
from calibrant.cli import app
from calibrant.cli.evaluate import Threshold

# Other tests cover intervals; here they only take time.
FAST = ["--resamples", "100"]
FASTEST = ["--no-intervals"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Overconfident predictions of three classes, in several files."""
    path = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(600, 3)) * 4
    chances = np.exp(logits / 2) / np.exp(logits / 2).sum(1, keepdims=True)
    labels = np.array([rng.choice(3, p=p) for p in chances])
    names = ("cat", "[bold]dog[/bold]", "Ünïcode")
    Predictions.from_logits(logits, labels, class_names=names).write(path / "named.npz")
    Predictions.from_logits(logits / 2, labels).write(path / "cooler.npz")
    np.save(path / "bare.npy", logits)
    np.save(path / "truth.npy", labels)
    np.savez(path / "probs.npz", probs=chances, labels=labels)
    ignoring = np.where(np.arange(600) < 100, -100, labels)
    np.savez(path / "ignoring.npz", logits=logits, labels=ignoring)
    (path / "damaged.npz").write_bytes((path / "named.npz").read_bytes()[:500])
    np.savez(path / "nan.npz", logits=np.full((5, 3), np.nan), labels=np.zeros(5, dtype=int))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_evaluate_prints_verdict_table_and_notes_within_80_columns(folder):
    result = run("evaluate", folder / "named.npz", *FAST)
    assert result.exit_code == 0
    assert "named: 600 rows, 3 classes, logits" in result.stdout
    assert "overconfident" in result.stdout
    assert "95% interval" in result.stdout
    assert "Expected calibration error" in result.stdout
    assert "corrected:" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "\x1b" not in result.stdout
    assert result.stderr == ""


def test_json_is_the_evaluation_and_nothing_else(folder):
    result = run("evaluate", folder / "named.npz", "--json", *FAST)
    outcome = json.loads(result.stdout_bytes)
    held = np.load(folder / "named.npz")
    for name in ("accuracy", "nll", "brier", "ece", "classwise_ece", "aurc"):
        expected = float(getattr(metrics, name)(held["logits"], held["labels"]))
        assert outcome["figures"][name]["value"] == pytest.approx(expected, rel=1e-12)
        assert outcome["figures"][name]["low"] <= outcome["figures"][name]["high"]
    assert outcome["verdict"]["direction"] == "overconfident"
    assert outcome["class_names"] == ["cat", "[bold]dog[/bold]", "Ünïcode"]
    assert result.stderr == ""


def test_options_reach_the_evaluation(folder):
    arguments = ("evaluate", folder / "ignoring.npz", "--ignore-index", "-100", "--num-bins", "7")
    result = run(*arguments, "-m", "ece", "--metric", "nll,brier", "--json", *FASTEST)
    outcome = json.loads(result.stdout)
    assert list(outcome["figures"]) == ["ece", "nll", "brier"]
    assert (outcome["num_rows"], outcome["num_ignored"]) == (500, 100)
    assert outcome["settings"]["num_bins"] == len(outcome["bins"]) == 7
    assert outcome["verdict"] is None
    held = np.load(folder / "ignoring.npz")
    value = metrics.ece(held["logits"], held["labels"], ignore_index=-100, num_bins=7)
    assert outcome["figures"]["ece"]["value"] == pytest.approx(float(value), rel=1e-12)


def test_without_intervals_the_table_has_none(folder):
    result = run("evaluate", folder / "ignoring.npz", "--ignore-index", -100, *FASTEST)
    assert "500 rows (100 ignored)" in result.stdout
    assert "No verdict" in result.stdout
    assert "95% interval" not in result.stdout


def test_same_seed_same_output(folder):
    first, again, other = (
        run("evaluate", folder / "named.npz", "-m", "ece,nll", "--seed", seed, *FAST).stdout
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_bare_array_requires_logits_or_probs(folder):
    unspecified = run("evaluate", folder / "bare.npy", "--labels", folder / "truth.npy", *FASTEST)
    assert unspecified.exit_code == 2
    assert "add --logits or --probs" in unspecified.stderr
    assert "kind=" not in unspecified.stderr
    unlabelled = run("evaluate", folder / "bare.npy", "--logits", *FASTEST)
    assert unlabelled.exit_code == 2
    assert "--labels" in unlabelled.stderr
    specified = run(
        "evaluate", folder / "bare.npy", "--logits", "--labels", folder / "truth.npy", *FASTEST
    )
    assert specified.exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["probs.npz", "--logits"], "--logits was given, but the names in the file say 'probs'"),
        (["named.npz", "--labels", "truth.npy"], "--labels gives others"),
        (["missing.npz"], "no such file"),
        (["."], "is a directory"),
        (["damaged.npz"], "damaged"),
        (["nan.npz"], "NaN"),
        (["ignoring.npz"], "-100"),
        (["named.npz", "--metric", "eec"], "Did you mean ece"),
        (["named.npz", "--metric", ""], "no metric is called ''"),
        (["named.npz", "--fail-above", "eec=0.1"], "Did you mean ece"),
        (["named.npz", "--fail-above", "ece"], "takes NAME=NUMBER, such as ece=0.05"),
        (["named.npz", "--fail-above", "ece=5%"], "takes NAME=NUMBER"),
        (["named.npz", "--fail-above", "ece=nan"], "takes NAME=NUMBER"),
        (["named.npz", "--fail-below", "=0.9"], "such as accuracy=0.9"),
        (["named.npz", "--fail-above", "accuracy=0.9"], "use --fail-below accuracy=0.9"),
        (["named.npz", "--fail-below", "ece=0.9"], "use --fail-above ece=0.9"),
        (["named.npz", "--report", "."], "is a folder"),
        (["named.npz", "--report", "truth.npy/r.html"], "is not a folder"),
        (["named.npz", "--report", "report.pdf"], "end its name with .html or .htm, found .pdf"),
        (["named.npz", "--report", "report"], "end its name with .html or .htm, found no ending"),
    ],
)
def test_bad_input_is_one_line_and_code_2(folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    result = run("evaluate", *arguments, *FASTEST)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) <= 2
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate"],
        ["evaluate", "named.npz", "--num-bins", "0"],
        ["evaluate", "named.npz", "--resamples", "5"],
        ["evaluate", "named.npz", "--unknown"],
        ["unknown"],
    ],
)
def test_bad_usage_is_code_2(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_exceeded_limit_is_named_and_exits_with_3(folder):
    result = run(
        *("evaluate", folder / "named.npz", *FASTEST, "-m", "nll"),
        *("--fail-above", "ece=0.01", "--fail-above", "nll=100", "--fail-below", "accuracy=0.99"),
    )
    assert result.exit_code == 3
    failed = [line for line in result.stderr.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 2
    assert "ece is 0." in failed[0]
    assert "above the limit of 0.01" in failed[0]
    assert "accuracy is 0." in failed[1]
    assert "below the limit of 0.99" in failed[1]
    assert "Accuracy" in result.stdout  # a threshold adds its metric


def test_fail_on_bound_compares_limits_with_the_worse_end(folder):
    """A limit between the value and the worse end of its interval."""
    file = folder / "named.npz"
    arguments = ("evaluate", file, "-m", "ece", "-m", "accuracy", "--resamples", "100")
    figures = json.loads(run(*arguments, "--json").stdout)["figures"]
    between = (figures["ece"]["value"] + figures["ece"]["high"]) / 2
    if figures["ece"]["value"] > figures["ece"]["high"]:  # chance adds to the value
        between = figures["ece"]["value"] + 1e-6
    lower = (figures["accuracy"]["value"] + figures["accuracy"]["low"]) / 2
    limits = ("--fail-above", f"ece={between}", "--fail-below", f"accuracy={lower}")
    assert run(*arguments, *limits).exit_code == 0
    on_bound = run(*arguments, *limits, "--fail-on", "bound")
    assert on_bound.exit_code == 3
    assert "accuracy is at worst 0." in on_bound.stderr
    assert run(*arguments, *limits, "--fail-on", "luck").exit_code == 2
    without = run(*arguments, *limits, "--fail-on", "bound", "--no-intervals")
    assert (without.exit_code, "drop --no-intervals" in without.stderr) == (2, True)


def test_value_at_the_limit_is_within_it(folder):
    held = np.load(folder / "named.npz")
    accuracy = float(metrics.accuracy(held["logits"], held["labels"]))
    arguments = ("evaluate", folder / "named.npz", *FASTEST, "--fail-below")
    result = run(*arguments, f"accuracy={accuracy!r}")
    assert result.exit_code == 0
    assert "within limits: accuracy" in result.stdout
    quiet = run(*arguments, f"accuracy={accuracy!r}", "--quiet")
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "")


def test_an_undefined_figure_fails_its_threshold():
    assert Threshold("ece", 0.1, above=True).check_value(float("nan")) is not None
    assert Threshold("accuracy", 0.1, above=False).check_value(float("nan")) is not None


def test_report_is_written_into_a_new_folder(folder, tmp_path):
    path = tmp_path / "new" / "folder" / "report.HTM"
    result = run("evaluate", folder / "named.npz", "-m", "ece", "--report", path, *FAST)
    assert result.exit_code == 0
    assert f"report: {path}" in result.stdout
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_json_prints_the_report_path_on_stderr(folder, tmp_path):
    path = tmp_path / "report.html"
    result = run("evaluate", folder / "named.npz", "-m", "ece", "--json", "--report", path, *FAST)
    assert json.loads(result.stdout)["figures"].keys() == {"ece"}
    assert f"report: {path}" in result.stderr


def test_full_disk_is_a_line_and_code_2(folder, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "somewhere.partial")

    monkeypatch.setattr("calibrant.report.write", full)
    result = run("evaluate", folder / "named.npz", "--report", tmp_path / "r.html", *FASTEST)
    assert result.exit_code == 2
    assert "r.html: the report cannot be written: No space left on device" in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, ""),
        (MemoryError(), 1, "error: out of memory"),
        (PermissionError(13, "Permission denied", "x.npz"), 2, "error: x.npz: Permission denied"),
        (ZeroDivisionError("oh\nno"), 1, "error: ZeroDivisionError: oh no"),
    ],
)
def test_every_error_has_an_exit_code(folder, monkeypatch, error, code, message):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.delenv("CALIBRANT_DEBUG", raising=False)
    monkeypatch.setattr("calibrant.evaluation.evaluate", fail)
    result = run("evaluate", folder / "named.npz")
    assert result.exit_code == code
    assert result.stderr.startswith(message)
    assert "Traceback" not in result.stderr


def test_debugging_shows_the_traceback_and_keeps_the_code(folder, monkeypatch):
    monkeypatch.setenv("CALIBRANT_DEBUG", "1")
    result = run("evaluate", folder / "damaged.npz")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


def test_metrics_lists_every_metric_within_80_columns():
    result = run("metrics")
    assert result.exit_code == 0
    listed = {line.split()[0].rstrip("*") for line in result.stdout.splitlines() if line.strip()}
    assert set(metrics.available()) <= listed
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("columns", ["50", "71"])
def test_narrow_terminals_lose_no_digit(folder, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    result = run("evaluate", folder / "named.npz", "-m", "ece,nll,classwise_ece", *FAST)
    assert max(map(len, result.stdout.splitlines())) <= int(columns)
    assert "…" not in result.stdout


def test_compare_shows_paired_differences(folder):
    arguments = ("compare", folder / "named.npz", folder / "cooler.npz", "-m", "nll,ece", *FAST)
    shown = run(*arguments)
    assert shown.exit_code == 0
    assert "cooler is better in nll, ece" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    outcome = json.loads(run(*arguments, "--json").stdout)
    held = np.load(folder / "named.npz")
    expected = float(metrics.nll(held["logits"], held["labels"]))
    assert outcome["differences"]["nll"]["a"] == pytest.approx(expected, rel=1e-12)
    assert outcome["differences"]["nll"]["winner"] == "b"


def test_shards_give_the_same_figures_with_and_without_on(folder, tmp_path):
    rows = Predictions.read(folder / "named.npz")
    for part in range(3):
        (tmp_path / f"day={part}").mkdir()
        some = rows.take(np.arange(200 * part, 200 * part + 200))
        some.write(tmp_path / f"day={part}" / "a.parquet")
    options = ["-m", "nll", "-m", "ece", "--json", *FAST]
    whole = json.loads(run("evaluate", tmp_path, *options).stdout)
    for path in (tmp_path / "**" / "*.parquet", f"file://{tmp_path}"):
        result = run("evaluate", path, "--on", "local", "--fail-above", "nll=0.1", *options)
        assert result.exit_code == 3
        found = json.loads(result.stdout)
        assert found["settings"]["shards"] == {"files": 3, "pieces": 3, "ranks": "exact"}
        for name, end in (("ece", "high"), ("nll", "value")):
            assert found["figures"][name][end] == pytest.approx(whole["figures"][name][end])
        assert [each["name"] for each in found["failed"]] == ["nll"]


def test_the_report_of_shards_has_no_slider_and_names_their_files(folder, tmp_path):
    rows = Predictions.read(folder / "named.npz")
    rows.write(tmp_path / "a.parquet")
    report = tmp_path / "report.html"
    result = run("evaluate", tmp_path / "a.parquet", "--on", "local", "--report", report, *FAST)
    assert result.exit_code == 0, result.stderr
    text = report.read_text(encoding="utf-8")
    assert "a.parquet" in text
    assert "Try a temperature" not in text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--on", "moon"], "--on takes local or ray"),
        (["--on", "local", "--group-column", "camera"], "--group-column does not go with --on"),
        (["--on", "local", "--labels", "truth.npy"], "--labels does not go with --on"),
        (["--workers", "2"], "--workers is for a Ray cluster"),
    ],
)
def test_options_that_need_all_rows_are_refused_with_on(folder, given, message):
    result = run("evaluate", folder / "named.npz", *given)
    assert result.exit_code == 2
    assert message in result.stderr


def test_compare_names_equal_file_names_by_path(folder, tmp_path):
    other = tmp_path / "named.npz"
    other.write_bytes((folder / "cooler.npz").read_bytes())
    result = run("compare", folder / "named.npz", other, "-m", "nll", "--json", *FAST)
    outcome = json.loads(result.stdout)
    assert (outcome["a"], outcome["b"]) == (str(folder / "named.npz"), str(other))


def test_compare_of_different_rows_is_an_error(folder):
    result = run("compare", folder / "named.npz", folder / "ignoring.npz", "--ignore-index", -100)
    assert result.exit_code == 2
    assert "same rows" in result.stderr


def test_demo_prints_the_path_of_its_report_last(monkeypatch, tmp_path):
    demo = pytest.importorskip("calibrant.demo")
    calls: list[object] = []

    def run_demo(folder: Path, *, seed: int = 0, quiet: bool = False) -> Path:
        calls.append((folder, seed, quiet))
        return folder / "report.html"

    monkeypatch.setattr(demo, "run_demo", run_demo)
    result = run("demo", "--output", tmp_path, "--seed", 3)
    assert calls == [(tmp_path, 3, False)]
    assert result.stdout.splitlines()[-1] == f"report: {tmp_path / 'report.html'}"


def test_version():
    assert run("--version").stdout == f"calibrant {__version__}\n"
