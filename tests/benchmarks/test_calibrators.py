"""The benchmark of calibrators counts rightly; how good or fast anything is, is not asserted."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def line(name, seed, contestant, nll, *, ece=0.05, failure=""):
    library = contestant.split()[0]
    record = {"set": name, "seed": seed, "contestant": contestant, "library": library}
    record |= {"version": "1", "torch": "2", "source": "", "failure": failure}
    record |= {"rows_fit": 50, "rows_test": 50, "classes": 3}
    if not failure:
        record |= {"nll": nll, "ece": ece, "accuracy": 0.8, "brier": 0.3, "zeros": 0}
        record |= {"fit_seconds": 0.1, "predict_seconds": 0.1, "not_numbers": 0}
        if library == "calibrant":
            record |= {"nll_change": -0.1, "nll_change_error": 0.01, "says": "vector"}
            record |= {"ece_change": 0.0, "ece_change_error": 0.01}
    return record


def as_lines(*lines):
    return {(x["set"], x["seed"], x["contestant"]): x for x in lines}


def made_up():
    """Three sets, three splits: auto below its rival, in a tie with it, and above it."""
    auto = {"a": (1.0, 1.1, 1.2), "b": (0.51, 0.49, 0.51), "c": (2.0, 2.1, 2.2)}
    rival = {"a": (1.2, 1.3, 1.5), "b": (0.50, 0.50, 0.50), "c": (1.5, 1.6, 1.6)}
    lines = []
    for name in auto:
        for seed in range(3):
            worse = 0.02 if name == "c" else 0.10
            lines += [
                line(name, seed, "calibrant auto", auto[name][seed], ece=0.05 + 0.001 * seed),
                line(name, seed, "probmetrics logistic-mix", rival[name][seed]),
                line(name, seed, "netcal beta", 1.05),
                line(name, seed, "calibrant uncalibrated", 1.9, ece=worse),
            ]
    lines.append(line("a", 2, "netcal beta", math.nan, failure="ValueError: no"))
    return as_lines(*lines)


def test_paired_difference_by_hand():
    from calibrator_statistics import paired

    difference = paired([1.0, 2.0, 4.0], [0.5, 1.0, 1.0])  # differences 0.5, 1, 3
    assert difference.mean == pytest.approx(1.5)
    assert difference.error == pytest.approx(math.sqrt((1.0 + 0.25 + 2.25) / 2 / 3))
    assert math.isnan(paired([1.0], [0.0]).error)
    with pytest.raises(ValueError, match="zip"):
        paired([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("mean", "error", "at_or_below", "significant"),
    [
        (-0.3, 0.1, True, False),
        (0.1, 0.1, True, False),
        (0.15, 0.1, False, False),
        (0.21, 0.1, False, True),
        (0.0, 0.0, True, False),
        (0.1, math.nan, False, False),
        (math.nan, math.nan, False, False),
    ],
)
def test_ties_and_significance(mean, error, at_or_below, significant):
    from calibrator_statistics import Difference

    difference = Difference(mean, error)
    assert difference.at_or_below is at_or_below
    assert difference.significantly_above is significant


def test_counts_of_made_up_lines():
    from calibrator_statistics import Results, count

    results = Results(made_up())
    counts = count(results, results.real)
    assert counts.sets == 3
    assert counts.at_or_below_rival == 2  # a below, b a tie, c above
    assert counts.mean_auto == pytest.approx((1.1 + 1.51 / 3 + 2.1) / 3)
    assert counts.mean_rival == pytest.approx((4.0 / 3 + 0.5 + 4.7 / 3) / 3)
    # On c netcal beta (1.05) is best; on a it failed one split, and does not count.
    assert results.best_peer("a") == "probmetrics logistic-mix"
    assert results.best_peer("c") == "netcal beta"
    assert counts.near_best_peer == 2
    assert counts.worse_nll == ("c",)  # 2.1 against 1.9, error 0.0577
    assert counts.worse_ece == ("c",)


def test_report_names_what_failed_and_refuses_a_verdict_on_part(tmp_path):
    from calibrator_report import quality_report, write_csv

    text = quality_report(made_up())
    targets = text.split("## Targets")[1].split("##")[0]
    assert targets.count("incomplete") == 5
    assert "ValueError: no" in text.split("## What failed")[1]
    assert "vector 3" in text
    write_csv(made_up(), tmp_path / "all.csv")
    rows = (tmp_path / "all.csv").read_text().splitlines()
    assert len(rows) == 1 + 3 * 4
    failed = next(row for row in rows if row.startswith("a,3,50,netcal beta"))
    assert failed.split(",")[6] == "2"
    assert failed.endswith("ValueError: no")


def test_figures_match_their_definitions():
    from calibrator_quality import figures

    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(4), size=200)
    probs[0] = [0.2, 0.4, 0.2, 0.2]  # confidence on an edge: 0.4 = 6/15 belongs to (5/15, 6/15]
    labels = generator.integers(4, size=200)
    bins = [[0.0, 0.0] for _ in range(15)]
    nll = brier = right = 0.0
    for row, label in zip(probs.tolist(), labels.tolist(), strict=True):
        confidence = max(row)
        hit = row.index(confidence) == label
        index = next(i for i in range(15) if confidence <= (i + 1) / 15 or i == 14)
        bins[index][0] += confidence
        bins[index][1] += hit
        nll -= math.log(row[label]) / 200
        brier += sum((p - (k == label)) ** 2 for k, p in enumerate(row)) / 200
        right += hit / 200
    values = figures(probs, labels)
    assert values["nll"] == pytest.approx(nll)
    assert values["brier"] == pytest.approx(brier)
    assert values["accuracy"] == pytest.approx(right)
    assert values["ece"] == pytest.approx(sum(abs(c - h) for c, h in bins) / 200)


def test_change_against_itself_is_nothing_and_against_worse_is_seen():
    from calibrator_quality import against

    generator = np.random.default_rng(1)
    probs = generator.dirichlet([8, 1, 1], size=300)
    labels = np.array([generator.choice(3, p=row) for row in probs])
    same = against(probs, probs, labels, seed=0)
    assert set(same.values()) == {0.0}
    sharp = probs**6 / (probs**6).sum(1, keepdims=True)
    change = against(sharp, probs, labels, seed=0)
    assert change["nll_change"] > 2 * change["nll_change_error"] > 0
    assert change["ece_change"] > 2 * change["ece_change_error"] > 0


def test_floor_gives_every_class_a_chance():
    from calibrator_contestants import floored

    probs_floored = floored(np.array([[0.0, 1.0], [np.nan, 0.5], [0.0, 0.0]]))
    assert (probs_floored > 0).all()
    assert probs_floored.sum(1) == pytest.approx(1.0)
    assert probs_floored[0, 0] == pytest.approx(1e-12)
    assert probs_floored[2] == pytest.approx(0.5)


def test_halves_share_no_row_and_follow_the_seed():
    from calibrator_quality import halves

    fit, test = halves(101, 3)
    assert len(fit) == 50
    assert sorted([*fit, *test]) == list(range(101))
    assert (halves(101, 3)[0] == fit).all()
    assert (halves(101, 4)[0] != fit).any()


def test_every_calibrator_of_ours_is_measured():
    from calibrant.calibrators import available
    from calibrator_contestants import ours
    from calibrator_quality import measure

    # The first is the uncalibrated; the others want images of logits, or features.
    wanted = set(available()) - {
        "identity",
        "local_temperature",
        "mac_cal_head",
        "tst_head",
        "vtst_head",
    }
    names = {entry.method for entry in ours()}
    assert names == wanted | {"auto", "uncalibrated"}
    key = ("mixture-2", 0, "calibrant temperature")
    line = measure(key, None)
    assert line["failure"] == ""
    before = measure(("mixture-2", 0, "calibrant uncalibrated"), None)
    assert before["nll_change"] == 0
    assert line["nll"] - before["nll"] == pytest.approx(line["nll_change"])
    assert json.loads(json.dumps(line)) == line


def test_what_is_not_installed_is_recorded(monkeypatch):
    from calibrator_quality import measure

    for module in ("probmetrics", "netcal", "calibration"):
        monkeypatch.setitem(sys.modules, module, None)
    for contestant in (
        "probmetrics logistic-mix",
        "netcal beta",
        "uncertainty-calibration histogram",
    ):
        line = measure(("mistakes-2", 0, contestant), None)
        assert "Error" in line["failure"]
        assert "nll" not in line


def test_a_machine_without_a_peer_overwrites_no_result(tmp_path):
    from calibrator_quality import read_lines

    first, second = tmp_path / "first", tmp_path / "second"
    early = [line("a", 0, "netcal beta", 0.5), line("a", 0, "calibrant auto", 0.5)]
    late = [
        line("a", 0, "netcal beta", 0, failure="ImportError: none"),
        line("a", 0, "calibrant auto", 0, failure="InputError: now broken"),
    ]
    first.write_text("".join(json.dumps(x) + "\n" for x in early))
    second.write_text("".join(json.dumps(x) + "\n" for x in late))
    lines = read_lines([first, second, tmp_path / "missing"])
    assert lines["a", 0, "netcal beta"]["nll"] == 0.5
    assert lines["a", 0, "calibrant auto"]["failure"]
    assert read_lines([second, first])["a", 0, "netcal beta"]["nll"] == 0.5


def test_names_select_contestants():
    from calibrator_contestants import everyone
    from calibrator_quality import wanted

    entries = everyone().values()
    assert all(not e.is_peer for e in entries if wanted(e, ["ours"]))
    assert [e.name for e in entries if wanted(e, ["netcal b*", "auto"])] == [
        "calibrant auto",
        "netcal beta",
        "netcal bbq",
    ]
    assert {e.library for e in entries if wanted(e, ["peers"])} == {
        "probmetrics",
        "netcal",
        "scikit-learn",
        "uncertainty-calibration",
    }


def test_synthetic_sets_are_what_they_say():
    import synthetic

    for name in synthetic.NAMES:
        logits, labels = synthetic.make(name)
        classes = int(name.split("-")[1])
        assert logits.shape == (synthetic.ROWS, classes)
        assert (synthetic.make(name)[0] == logits).all()
        assert 0.5 < (logits.argmax(1) == labels).mean() < 0.95
        assert len(np.unique(labels)) == classes
    logits, labels = synthetic.make("mistakes-10")
    certain = logits.max(1) - np.sort(logits, axis=1)[:, -2] > 10
    wrong = (logits.argmax(1) != labels)[certain].mean()
    assert 0.02 < wrong < 0.06  # nearly all of them by the 4% of changed labels


def race_line(contestant, seconds, nll, **more):
    record = {"size": "5,000x10", "kind": "temperature", "contestant": contestant}
    record |= {"peer": not contestant.startswith("calibrant"), "seconds": seconds, "nll": nll}
    record |= {"nll_error": 0.0, "failure": "", "busy": 0.0, "passes": 5, "zeros": 0}
    return record | {"memory": 1e6, "machine": ["a machine"]} | more


def test_only_a_peer_of_equal_likelihood_is_a_rival():
    from calibrator_speed_report import speed_report

    lines = [
        race_line("calibrant temperature", [0.010, 0.012], 0.5),
        race_line("quick but worse", [0.001], 0.6),
        race_line("noisy", [0.055], 0.502, nll_error=0.003),
        race_line("exact", [0.030], 0.5009, nll_error=0.0005),
        race_line("never", [], math.nan, failure="cut off after 120 s"),
    ]
    row = speed_report(lines).split("at least 4x faster")[1].splitlines()[0]
    cells = [cell.strip() for cell in row.strip("| ").split("|")]
    assert cells == ["5.5x (noisy)", "met", "0.1x (quick but worse)", "**missed**"]
    lines[0]["busy"] = 0.5
    assert "undecided" in speed_report(lines)
    lines[0] |= {"busy": 0.0, "passes": 9, "seconds": [0.02]}
    assert speed_report(lines).count("**missed**") == 3


@pytest.mark.slow
def test_speed_of_ours_alone_prints_its_tables(tmp_path):
    command = [sys.executable, BENCHMARKS / "calibrators.py", "speed", "--quick", "--no-peers"]
    command += [
        "--lines",
        tmp_path / "lines",
        "--threads",
        "1",
        "--kinds",
        "temperature",
        "isotonic",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "temperature at 300x4: at most 8 passes" in done.stdout
    assert "calibrant isotonic" in done.stdout
    assert "missed" not in done.stdout.split("isotonic and histogram")[1].splitlines()[0]


@pytest.mark.slow
def test_runs_are_resumed_cut_off_and_recorded(tmp_path):
    lines = tmp_path / "lines"
    command = [sys.executable, BENCHMARKS / "calibrators.py", "quality", "--sets", "mistakes-2"]
    command += ["--data", tmp_path, "--lines", lines, "--seeds", "0", "1", "--jobs", "2"]
    some = [*command, "--only", "calibrant temperature", "calibrant uncalibrated"]
    done = subprocess.run(some, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(lines.read_text().splitlines()) == 4
    assert "2 splits, 2 methods" in done.stdout
    again = subprocess.run(some, capture_output=True, text=True)
    assert "0 fits to do" in again.stderr
    assert again.stdout == done.stdout
    slow = [*command, "--only", "calibrant auto", "--limit", "0.01", "--jobs", "1"]
    done = subprocess.run(slow, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    failures = [json.loads(text)["failure"] for text in lines.read_text().splitlines()[4:]]
    assert failures == ["cut off after 0 s", "not tried: cut off on split 0"]


def test_a_peer_that_would_end_the_process_is_named_and_not_run(monkeypatch):
    import calibrator_speed as speed
    from calibrator_contestants import OURS, Entry
    from calibrator_speed_report import targets

    def never(logits, labels):
        raise AssertionError("it was run")

    def ours(logits, labels):
        return lambda rows: np.full(rows.shape, 1 / rows.shape[1])

    entries = [Entry(OURS, "dirichlet", ours), Entry("probmetrics", "dircal", never)]
    monkeypatch.setattr(speed, "line_up", lambda kind, only: entries)
    monkeypatch.setitem(speed.MOST_CLASSES, "probmetrics dircal", 3)
    made = speed.make_input(40, 4)
    plan = speed.Plan(rounds=1)
    mine, theirs = speed.race_kind("dirichlet", made, made, plan, None)
    assert mine["seconds"]
    assert not mine["failure"]
    assert theirs["failure"] == "not tried above 3 classes: it ends the process"
    report = targets([line | {"size": "40x4"} for line in (mine, theirs)])
    assert report.count("met: no peer finishes") == 2
