"""Runs are made once, by one process, whatever is killed, damaged or fails meanwhile."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import warnings

import pytest

from calibrant.bench import Spec, Store, Suite, run_specs, run_suite
from calibrant.bench.run.locks import is_held, read_note
from calibrant.bench.run.status import status
from calibrant.bench.run.worker import DEATHS, Bench
from calibrant.core.errors import InputError
from calibrant.core.files import hold_lock
from calibrant.training import Config
from tests.helpers.bench_cases import child, ended_well, events, kill, tiny, until


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A suite that has been run, predictions kept."""
    out = tmp_path_factory.mktemp("bench") / "out"
    events = []
    summary = run_suite(tiny(keep="predictions"), out, progress=events.append)
    return out, summary, events


@pytest.fixture
def bench(made, tmp_path):
    """A copy of it, to damage."""
    shutil.copytree(made[0], tmp_path / "out")
    return Bench(tmp_path / "out")


def run_again(bench, suite=None, **options):
    events = []
    summary = run_suite(
        suite or tiny(keep="predictions"), bench.out, progress=events.append, **options
    )
    return summary, [(event["event"], event.get("key")) for event in events]


def test_a_suite_is_made_and_its_rows_are_in_the_store(made):
    out, summary, events = made
    keys = [spec.key for spec in tiny().runs]
    assert (summary.done, summary.before, summary.failed, summary.left) == (keys, [], [], [])
    kinds = [event["event"] for event in events if event.get("key") == keys[0]]
    assert kinds == ["begun", "epoch", "measured", "measured", "done"]
    frame = Store(out / "store").frame()
    assert set(frame["key"]) == set(keys)
    rows = frame[(frame["metric"] == "ece") & (frame["part"] == "test")]
    assert sorted(rows["calibrator"]) == ["none", "none", "temperature", "temperature"]
    assert set(frame[frame["metric"] == "measured"]["calibrator"]) == {"none", "temperature"}
    assert (frame["metric"] == "bench_seconds").sum() == 2
    folder = Bench(out).folder(keys[0])
    kept = {path.name for path in folder.rglob("*") if path.is_file()}
    assert {"test.safetensors", "validation.safetensors", "metrics.jsonl", "run.json"} <= kept
    assert "weights.safetensors" not in kept
    assert not (folder / "checkpoint").exists()


def test_what_is_done_is_never_repeated(bench):
    files = {
        path: path.stat().st_mtime_ns
        for path in bench.out.rglob("*")
        if path.is_file() and path.suffix != ".lock"  # which some versions of filelock touch
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary, events = run_again(bench)
    assert len(summary.before) == 2
    assert not summary.done
    assert [kind for kind, _ in events] == ["plan"]
    del files[bench.out / "suite.yaml"]
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_another_calibrator_is_measured_without_another_training(bench):
    more = [Spec(spec.config, ("temperature", "vector")) for spec in tiny().runs]
    events = []
    summary = run_specs(more, bench.out, progress=events.append)
    assert len(summary.done) == 2
    assert [event["what"] for event in events if event["event"] == "measured"] == ["vector"] * 2
    assert not [event for event in events if event["event"] == "epoch"]
    frame = bench.store.frame()
    assert set(frame[frame["metric"] == "measured"]["calibrator"]) == {
        "none",
        "temperature",
        "vector",
    }


def test_what_another_suite_wants_of_the_same_runs_is_measured_with_them(tmp_path):
    text = (
        tiny().text.replace("[temperature]", "[vector]").replace("{loss: brier}", "{loss: focal}")
    )
    other, events = Suite.parse(text), []
    summary = run_suite(tiny(), tmp_path / "out", beside=[other], progress=events.append)
    assert len(summary.done) == 2  # its own runs alone
    shared = [key for key in summary.done if key in {spec.key for spec in other.runs}]
    assert len(shared) == 1
    measured = [(event["key"], event["what"]) for event in events if event["event"] == "measured"]
    assert [key for key, what in measured if what == "vector"] == shared
    again = run_suite(other, tmp_path / "out", only=["cross_entropy"])
    assert again.before == shared


def test_where_the_files_are_gone_the_run_is_made_again_and_measured_whole(bench):
    (first, *_) = tiny().runs
    run_specs([first], bench.out)  # measured already: nothing happens
    shutil.rmtree(bench.folder(first.key) / "predictions")
    (bench.folder(first.key) / "files.json").unlink()
    events = []
    run_specs([Spec(first.config, ("vector",))], bench.out, progress=events.append)
    assert [event["what"] for event in events if event["event"] == "measured"] == ["none", "vector"]
    assert [event for event in events if event["event"] == "epoch"]
    assert not (bench.folder(first.key) / "predictions").exists()  # keep: rows


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("damage", ["config", "outcome", "predictions", "missing", "other run"])
def test_a_damaged_run_is_set_aside_and_made_again(bench, damage):
    first, second = tiny().runs
    folder = bench.folder(first.key)
    before = bench.store.frame()
    if damage == "config":
        (folder / "config.yaml").write_bytes(b"data: [dig")
    elif damage == "outcome":
        (folder / "run.json").write_bytes((folder / "run.json").read_bytes()[:40])
    elif damage == "predictions":
        path = folder / "predictions" / "test.safetensors"
        content = bytearray(path.read_bytes())
        content[-100] ^= 1
        path.write_bytes(content)
    elif damage == "missing":
        (folder / "predictions" / "test.safetensors").unlink()
    else:
        shutil.rmtree(folder)
        shutil.copytree(bench.folder(second.key), folder)
    with pytest.warns(UserWarning, match="damaged"):
        summary, events = run_again(bench)
    assert (summary.done, summary.before) == ([first.key], [second.key])
    assert ("epoch", first.key) in events
    assert bench.folder(f"{first.key}.damaged-1").is_dir()
    after = bench.store.frame()
    figures = [
        frame[frame["part"] == "test"].set_index(["key", "calibrator", "metric"])["value"]
        for frame in (before, after)
    ]
    assert figures[0].equals(figures[1])  # the same run again


def test_a_damaged_store_file_is_set_aside_and_its_run_measured_again(bench):
    first, _ = tiny().runs
    for path in bench.store.files():
        if path.name.startswith(first.key):
            path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(UserWarning, match="set aside"):
        summary, events = run_again(bench)
    assert summary.done == [first.key]
    assert ("epoch", first.key) not in events  # its predictions were kept
    assert list((bench.out / "store").glob(f"{first.key}*.damaged"))


def test_a_run_of_another_machine_goes_on_with_this_machines_settings(bench, tmp_path):
    first, *_ = tiny().runs
    elsewhere = Spec(first.config.changed(data_folder="/elsewhere"), ("temperature", "vector"))
    assert elsewhere.key == first.key
    assert run_specs([elsewhere], bench.out).done == [first.key]
    assert "/elsewhere" in (bench.folder(first.key) / "config.yaml").read_text()
    # The changed file is in its manifest too: the run is whole.
    assert run_specs([elsewhere], bench.out).before == [first.key]


def test_a_run_that_fails_is_recorded_and_the_others_are_made(tmp_path):
    good = tiny().runs[0]
    bad = Spec(Config(data=f"folder:{tmp_path / 'nowhere'}", device="cpu"))
    wild = Spec(Config(lr=1e18, epochs=2, batch_size=300, device="cpu", schedule="constant"))
    events = []
    summary = run_specs([bad, wild, good], tmp_path / "out", progress=events.append)
    assert (summary.done, summary.failed) == ([good.key], [bad.key, wild.key])
    bench = Bench(tmp_path / "out")
    recorded = [json.loads(bench.failure_path(spec.key).read_bytes()) for spec in (bad, wild)]
    assert [record["kind"] for record in recorded] == ["error", "diverged"]
    assert "nowhere" in recorded[0]["message"]
    assert "Traceback" in recorded[0]["traceback"]
    frame = bench.store.frame()
    assert set(frame[frame["metric"] == "diverged"]["key"]) == {wild.key}
    assert [event["key"] for event in events if event["event"] == "failed"] == [bad.key, wild.key]
    again = []
    summary = run_specs([bad, wild, good], tmp_path / "out", progress=again.append)
    assert (summary.before, summary.failed) == ([good.key], [bad.key, wild.key])
    assert [event["event"] for event in again] == ["plan"]
    run_specs([bad], tmp_path / "out", retry=True, progress=again.append)
    assert [event["event"] for event in again[1:]] == ["plan", "begun", "failed"]
    state = status([bad, wild, good], tmp_path / "out")
    assert (state.done, [record["kind"] for record in state.failed]) == (1, ["error", "diverged"])


@pytest.mark.slow
def test_a_measurement_that_failed_is_told_and_made_again_on_retry(bench, monkeypatch):
    from calibrant.bench.measure import steps as measure

    whole, refused = measure._measure_after, []

    def refuses(subject, text):
        if text == "vector" and refused:
            raise InputError("not today")
        return whole(subject, text)

    monkeypatch.setattr(measure, "_measure_after", refuses)
    suite = Suite.parse(tiny(keep="predictions").text.replace("[temperature]", "[vector]"))
    refused.append("vector")
    with pytest.warns(UserWarning, match="vector was not measured: not today"):
        run_again(bench, suite)
    assert [record["what"] for record in status(suite.runs, bench.out).unmeasured] == ["vector"] * 2
    # It stands until it is asked for again, and stays failed while it fails.
    assert len(run_again(bench, suite)[0].before) == 2
    with pytest.warns(UserWarning, match="vector was not measured"):
        run_again(bench, suite, retry=True)
    assert len(status(suite.runs, bench.out).unmeasured) == 2
    refused.clear()
    summary, events = run_again(bench, suite, retry=True)
    assert len(summary.done) == 2
    assert "epoch" not in [kind for kind, _ in events]  # measured again, not trained again
    assert status(suite.runs, bench.out).unmeasured == []
    frame = bench.store.frame()
    rows = frame[(frame["calibrator"] == "vector") & (frame["part"] == "test")]
    assert len(set(rows["key"])) == 2
    assert len(run_again(bench, suite, retry=True)[0].before) == 2


def test_a_measurement_whose_files_are_gone_costs_no_training_on_retry(tmp_path):
    suite = Suite.parse(tiny().text.replace("[temperature]", "[local_temperature]"))
    with pytest.warns(UserWarning, match="local_temperature was not measured"):
        run_suite(suite, tmp_path)
    events = []
    with pytest.warns(UserWarning, match="2 failed measurements are not repeated"):
        summary = run_suite(suite, tmp_path, retry=True, progress=events.append)
    assert len(summary.before) == 2
    assert [event["event"] for event in events] == ["plan"]


@pytest.mark.slow
def test_what_succeeds_in_another_training_is_failed_no_more(bench, monkeypatch):
    measure = importlib.import_module("calibrant.bench.measure.steps")
    whole, refused = measure._measure_after, ["vector"]

    def refuses(subject, text):
        if text in refused:
            raise InputError("not today")
        return whole(subject, text)

    monkeypatch.setattr(measure, "_measure_after", refuses)
    suite = Suite.parse(tiny(keep="predictions").text.replace("[temperature]", "[vector]"))
    with pytest.warns(UserWarning, match="vector was not measured"):
        run_again(bench, suite)
    refused.clear()
    for spec in suite.runs:
        shutil.rmtree(bench.folder(spec.key))
    more = [Spec(spec.config, ("vector", "isotonic")) for spec in suite.runs]
    run_specs(more, bench.out)  # trained again for another's sake
    assert status(suite.runs, bench.out).unmeasured == []


def test_no_run_begins_after_the_limit(tmp_path):
    summary = run_suite(tiny(), tmp_path / "out", limit_minutes=0)
    assert len(summary.left) == 2
    assert status(tiny().runs, tmp_path / "out").seconds_left is None


def test_wrong_places_and_empty_choices_are_told(tmp_path):
    with pytest.raises(InputError, match="Did you mean pool"):
        run_suite(tiny(), tmp_path, on="pol")
    with pytest.raises(InputError, match="no run of suite tiny"):
        run_suite(tiny(), tmp_path, only=["nothing"])


def test_a_lock_is_one_processs_and_free_when_it_dies(tmp_path):
    path = tmp_path / "a.lock"
    with hold_lock(path) as first, hold_lock(path) as second:
        assert first
        assert not second
        assert is_held(path)
    assert not is_held(path)
    assert not is_held(tmp_path / "none.lock")
    assert not (tmp_path / "none.lock").exists()


def test_a_killed_suite_goes_on_where_it_stopped(made, tmp_path):
    suite, out = tiny(epochs=6), tmp_path / "out"
    first, second = suite.runs
    log = tmp_path / "log"
    process = child(out, suite.runs, log, slow=0.05)
    until(lambda: len(events(log, "epoch")) >= 3)
    state = status(suite.runs, out)
    assert [record["label"] for record in state.running] == [first.label]
    assert state.waiting == [second.label]
    kill(process)
    assert not is_held(Bench(out).lock_path(first.key))
    heard = []
    summary = run_suite(suite, out, progress=heard.append)
    assert summary.done == [first.key, second.key]
    epochs = [(event["key"], event["epoch"]) for event in heard if event["event"] == "epoch"]
    resumed = [epoch for key, epoch in epochs if key == first.key]
    assert resumed[0] > 1
    assert resumed == list(range(resumed[0], 7))
    assert [epoch for key, epoch in epochs if key == second.key] == [1, 2, 3, 4, 5, 6]
    frame = Store(out / "store").frame()
    own = frame[(frame["key"] == first.key) & (frame["metric"] == "train_seconds")]
    assert own["value"].item() > 0.05 * resumed[0]  # what was killed is counted
    alone = run_specs(suite.runs[:1], tmp_path / "alone")
    assert alone.done == [first.key]
    frames = [Store(folder / "store").frame() for folder in (out, tmp_path / "alone")]
    values = [
        frame[(frame["key"] == first.key) & frame["part"].isin(["train", "validation", "test"])]
        .set_index(["part", "calibrator", "metric"])["value"]
        .drop(labels="changed", level="metric", errors="ignore")
        for frame in frames
    ]
    assert values[0].equals(values[1])


@pytest.mark.slow
def test_two_processes_never_take_the_same_run(made, tmp_path):
    runs = tiny(seeds=(0, 1, 2)).runs
    logs = [tmp_path / "a", tmp_path / "b"]
    processes = [child(tmp_path / "out", runs, log, slow=0.02) for log in logs]
    ended = [ended_well(process) for process in processes]
    assert ended == [True, True]
    begun = [[event["key"] for event in events(log, "begun")] for log in logs]
    assert sorted(begun[0] + begun[1]) == sorted(spec.key for spec in runs)
    assert begun[0]
    assert begun[1]
    assert len(events(logs[0], "done") + events(logs[1], "done")) == 6


def test_the_run_of_a_killed_process_goes_to_the_one_that_waits(made, tmp_path):
    runs = tiny(epochs=2).runs
    logs = [tmp_path / "a", tmp_path / "b"]
    stuck = child(tmp_path / "out", runs, logs[0], stop_at="epoch")
    until(lambda: events(logs[0], "epoch"))
    other = child(tmp_path / "out", runs, logs[1])
    until(lambda: events(logs[1], "done"))
    assert [event["key"] for event in events(logs[1], "begun")] == [runs[1].key]
    assert read_note(Bench(tmp_path / "out").lock_path(runs[0].key))["pid"] == stuck
    kill(stuck)
    assert ended_well(other)
    assert [event["key"] for event in events(logs[1], "done")] == [runs[1].key, runs[0].key]


def test_a_run_that_keeps_killing_its_process_is_given_up(made, tmp_path):
    spec = tiny().runs[0]
    bench = Bench(tmp_path / "out")
    for number in range(DEATHS):
        log = tmp_path / str(number)
        process = child(bench.out, [spec], log, stop_at="begun")
        until(lambda log=log: events(log, "begun"))
        kill(process)
    assert run_specs([spec], bench.out).failed == [spec.key]
    assert "processes ended" in json.loads(bench.failure_path(spec.key).read_bytes())["message"]


@pytest.mark.slow
def test_a_pool_puts_another_process_in_place_of_one_that_dies(tmp_path):
    suite, out = tiny(epochs=20), tmp_path / "out"
    events, killed = [], []

    def tell(event):
        events.append(event)
        if event["event"] == "epoch" and not killed:
            killed.append(read_note(Bench(out).lock_path(event["key"]))["pid"])
            os.kill(killed[0], signal.SIGKILL)

    # One process, so that nobody is left who could take the run over.
    summary = run_suite(suite, out, on="pool", workers=1, threads=1, progress=tell)
    assert killed[0] != os.getpid()
    assert summary.done == [spec.key for spec in suite.runs]
    for key in summary.done:
        epochs = {
            event["epoch"] for event in events if event["event"] == "epoch" and event["key"] == key
        }
        assert epochs == set(range(1, 21))
    assert len([event for event in events if event["event"] == "lost"]) == 1
    assert len([event for event in events if event["event"] == "done"]) == 2
    assert set(Store(out / "store").frame()["key"]) == set(summary.done)
