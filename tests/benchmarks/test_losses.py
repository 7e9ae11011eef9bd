"""The benchmark of losses measures, adds up files and judges rightly; never how fast is fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run(*options):
    command = [sys.executable, BENCHMARKS / "losses.py", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_parts_of_two_runs_make_one_report(tmp_path):
    written, page = tmp_path / "here.json", tmp_path / "page.md"
    usual = ("--devices", "cpu", "--only", "focal", "crl", "--minutes", 0, "--json", written)
    run(*usual, "--parts", "alone", "--sizes", "8x3", "--rounds", 3)
    step = ("--step", "lenet5", "--settings", "eager", "--batch", 4, "--steps", 1)
    run(*usual, "--parts", "step", *step)
    (report,) = json.loads(written.read_text())
    assert set(report["alone"]["8x3"]) == {"focal", "crl"}
    part = report["steps"]["lenet5/eager"]
    assert part["rounds"] == 3
    assert [len(part["losses"][name]["overhead"]) for name in ("focal", "crl")] == [3, 3]
    assert len(part["plain_ms"]) == 6
    printed = run("--report", written, "--write", page)
    assert page.read_text().endswith(printed)
    for text in ("network and loss eager", "| `crl` |", "3 rounds of 1 steps", "times cross-ent"):
        assert text in printed


def test_a_step_as_a_graph():
    import losses_steps

    if not torch.cuda.is_available():
        for setting in losses_steps.CUDA_ONLY:
            with pytest.raises(ValueError, match=f"'{setting}' needs a CUDA device, not cpu"):
                losses_steps.Stepper("lenet5", setting, torch.device("cpu"), 4)
        return
    cuda = torch.device("cuda")
    stepper = losses_steps.Stepper("lenet5", "graph", cuda, 4)
    loss = torch.nn.functional.cross_entropy
    stepper.step(loss)
    before = [parameter.clone() for parameter in stepper.net.parameters()]
    stepper.step(loss)  # a replay trains too
    after = list(stepper.net.parameters())
    assert any(not torch.equal(first, second) for first, second in zip(before, after, strict=True))


def test_a_loss_that_fails_stops_no_other(monkeypatch):
    import losses_steps

    def trainable(name, rows):
        return torch.nn.CrossEntropyLoss() if name == "good" else torch.nn.Bilinear(1, 1, 1)

    monkeypatch.setattr(losses_steps, "trainable", trainable)
    cpu, saved = torch.device("cpu"), []
    how = {"minutes": 0, "steps": 1, "batch": 2, "save": lambda steps: saved.append(dict(steps))}
    steps = losses_steps.whole_steps("lenet5", "eager", ["bad", "good"], cpu, **how)
    assert "failure" in steps["losses"]["bad"]
    assert len(steps["losses"]["good"]["overhead"]) == 3
    assert [report["rounds"] for report in saved] == [1, 2, 3]


def test_overhead_is_over_the_neighbours(monkeypatch):
    import losses_steps

    # Cross-entropy (one to warm up), and then a machine that slows down throughout a round.
    times = iter([9.0, *(1.0, 2.2, 1.2, 2.6, 1.4) * 3])
    monkeypatch.setattr(losses_steps.Stepper, "block", lambda *_: next(times))
    cpu = torch.device("cpu")
    steps = losses_steps.whole_steps(
        "lenet5", "eager", ["focal", "brier"], cpu, minutes=0, steps=1, batch=2
    )
    for name in ("focal", "brier"):
        assert steps["losses"][name]["overhead"] == pytest.approx([100.0] * 3)


def test_the_host_s_own_time_is_told_as_a_share_of_a_step(monkeypatch):
    import losses_host
    from losses_report import report

    clock = iter(range(100_000))
    monkeypatch.setattr(losses_host.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(losses_host, "as_set", lambda name, *_: called.append(name) or plain)
    called, plain = [], torch.nn.functional.cross_entropy
    timing = losses_host.host_time("focal", torch.device("cpu"), rows=4, classes=3, rounds=2)
    assert called == ["focal"]  # nothing is a CUDA graph on a CPU
    assert timing == {"eager": {"us": 2e5, "more": 0.0}}  # a second of the clock for five calls
    host = {"focal": {"eager": {"us": 300.0, "more": 200.0}, "graphed": {"us": 90, "more": -10}}}
    steps = {"resnet18/eager": {"plain_ms": [9.0, 10.0, 30.0], "losses": {}}}
    text = report([{"device": "D", "torch": "2", "host": host}])
    assert "| `focal` | 300 (+200) | 90 (-10) |" in text
    whole = {**steps["resnet18/eager"], "batch": 512, "steps": 1, "setting": "eager", "rounds": 1}
    entry = {"device": "D", "torch": "2", "host": host, "steps": {"resnet18/eager": whole}}
    assert "| `focal` | 300 (+200, +2.0%) | 90 (-10, -0.1%) |" in report([entry])


def test_verdicts():
    from losses_report import verdict

    assert verdict("focal", [1.0, 2.0, 2.5]) == "met"
    assert verdict("focal", [1.0, 2.0, 9.0]) == "met, closely"
    assert verdict("focal", [1.0, 4.0, 9.0]) == "missed, closely"
    assert verdict("focal", [4.0, 4.5, 9.0]) == "missed"
    assert verdict("r_aurc", [4.0, 4.5, 4.9]) == verdict("cpc", [9.0]) == "met"


def test_later_files_replace_what_they_measured_again():
    from losses_report import merged

    base = {"device": "D", "torch": "2"}
    old = {**base, "steps": {"a/eager": {"rounds": 3}, "b/eager": {"rounds": 4}}}
    new = {**base, "steps": {"a/eager": {"rounds": 9}}, "waits": {"focal": False}}
    (merged_report,) = merged([[old], [new]])
    assert merged_report["steps"] == {"a/eager": {"rounds": 9}, "b/eager": {"rounds": 4}}
    assert merged_report["waits"] == {"focal": False}
    assert len(merged([[old], [{**new, "device": "E"}]])) == 2


def test_what_the_profiler_saw_is_told():
    from losses_report import report

    seen = {
        "focal": {"labels": [], "dense": []},
        "crl": {"labels": ["cudaStreamSynchronize"], "probabilities": []},
    }
    text = report([{"device": "D", "torch": "2", "profiled": seen, "waits": {"focal": True}}])
    assert "of 2 in 4 kinds of batch" in text
    assert "saw: crl of labels (cudaStreamSynchronize) (target: none)" in text
    seen["crl"]["labels"] = []
    assert "saw: none" in report([{"device": "D", "torch": "2", "profiled": seen}])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_profiler_sees_a_wait():
    from losses_waits import synchronisations

    values = torch.randn(10, device="cuda")
    assert synchronisations(lambda: values.sum().item())
    assert not synchronisations(lambda: values.sum())


def test_memory_and_waits_are_told():
    from losses_report import report

    entry = {"device": "D", "torch": "2", "waits": {"focal": False, "cpc": True}}
    entry["memory"] = {"cpc": {"shape": "256x1000", "mib": 2000.0}}
    text = report([entry])
    assert "wait for the device: cpc (target: none)" in text
    assert "`cpc` 2,000 MiB at 256x1000 (target: under 1,024 MiB, missed)" in text


def test_the_page_is_made_of_the_file():
    from losses_report import report

    entries = json.loads((BENCHMARKS / "losses.json").read_text())
    page = (BENCHMARKS / "LOSSES.md").read_text()
    assert page.endswith(report(entries) + "\n")


def test_compiled_losses_keep_their_own_graphs():
    import losses_steps

    first = losses_steps.compiled("one", lambda logits, labels: logits.sum(), 2, "loss")
    second = losses_steps.compiled("two", lambda logits, labels: logits.sum(), 2, "loss")
    assert losses_steps.compiled("one", None, 2, "loss") is first is not second
    # As CUDA graphs it is another thing.
    assert (
        losses_steps.compiled("one", lambda logits, labels: logits.sum(), 2, "engine") is not first
    )
