"""What the monitor counts, merges and says; kills at any moment; the command."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from calibrant import InputError, Monitor, Predictions
from calibrant.cli import app
from calibrant.monitor import bets


def draw(rows, seed, gap=0.0, **fields):
    rng = np.random.default_rng([3, seed])
    said = rng.beta(2, 2, rows)
    return Predictions.from_events(said, rng.random(rows) < said - gap, name=f"b{seed}", **fields)


def draw_classes(rows, seed, gap=0.0):
    rng = np.random.default_rng([4, seed])
    top = rng.uniform(0.5, 1, rows)
    right = rng.random(rows) < top - gap
    probs = np.stack([top, (1 - top) * 0.6, (1 - top) * 0.4], 1)
    return Predictions.from_probs(probs, np.where(right, 0, 1), name=f"c{seed}")


@pytest.fixture(scope="module")
def baseline():
    return draw(2000, 0)


def sums_of(monitor):
    found = {}
    for delivery in monitor.ledger.deliveries:
        for name, cell in [("", delivery.all), *delivery.groups.items()]:
            if cell is not None:
                values = [
                    cell.count,
                    *cell.sums.values(),
                    *np.concatenate(list(cell.logs.values())),
                ]
                found[name] = found.get(name, 0) + np.array(values)
    return found


def test_sums_are_those_of_the_rows(baseline):
    monitor = Monitor(baseline)
    batch = draw(300, 1)
    monitor.append(batch)
    cell, bounds = monitor.ledger.deliveries[0].all, monitor.ledger.baseline.bounds[""]
    gap = np.asarray(batch.array) - np.asarray(batch.labels)
    assert cell.sums["gap"] == pytest.approx(gap.sum())
    assert cell.squares["brier"] == pytest.approx((gap**4).sum())
    stake = bets.stakes_at(bounds["under"], -1.0)[2]
    plain = sum(np.log(1 + stake * (-gap - bounds["under"])))
    assert cell.logs["under"][2] == pytest.approx(plain)


def test_logits_of_classes_give_the_same_sums_as_probabilities():
    base, batch = draw_classes(500, 0), draw_classes(200, 1)
    plain, logits = Monitor(base), Monitor(base)
    plain.append(batch)
    scores = np.log(np.asarray(batch.array))
    logits.append(Predictions.from_logits(scores, np.asarray(batch.labels)))
    for mine, other in zip(sums_of(plain)[""], sums_of(logits)[""], strict=True):
        assert mine == pytest.approx(other, rel=1e-6)
    right = np.asarray(batch.array).argmax(1) == np.asarray(batch.labels)
    assert plain.ledger.deliveries[0].all.sums["error"] == pytest.approx((~right).sum())


def test_reading_a_batch_twice_counts_nothing_twice(baseline):
    monitor = Monitor(baseline)
    monitor.append(draw(300, 1))
    once = monitor.ledger.to_dict()
    again = monitor.append(draw(300, 1), name="another name")
    assert (again.is_new, again.num_labelled, again.num_known) == (False, 0, 300)
    assert monitor.ledger.to_dict() == once


def test_labels_may_arrive_in_parts_that_overlap(baseline):
    batch = draw(300, 1)
    labels = np.asarray(batch.labels)
    rows = Predictions.from_events(np.asarray(batch.array), None)
    whole, parts = Monitor(baseline), Monitor(baseline)
    whole.append(batch)
    assert parts.append(rows).num_labelled == 0
    assert parts.status().state == "no labels"
    assert parts.append(rows, labels=np.where(np.arange(300) < 120, labels, -1)).num_labelled == 120
    receipt = parts.append(rows, labels=[None if k < 60 else int(labels[k]) for k in range(300)])
    assert (receipt.num_labelled, receipt.num_known) == (180, 60)
    assert sums_of(parts)[""] == pytest.approx(sums_of(whole)[""])
    assert parts.append(batch).num_labelled == 0


def test_merging_counts_no_row_twice_and_gives_the_same_sums(baseline):
    names = np.array(["x", "y"])[np.arange(2000) % 2]

    def start():
        return Monitor(baseline, groups=names)

    one, first, second = start(), start(), start()
    for seed in range(1, 7):
        group = np.array(["x", "y"])[np.arange(100) % 2]
        one.append(draw(100, seed), groups=group)
        if seed <= 4:
            first.append(draw(100, seed), groups=group)
        if seed >= 3:
            second.append(draw(100, seed), groups=group)
    assert first.merge(second) == []
    assert first.merge(second, second) == []
    assert len(first.ledger.batches) == 6
    for name, sums in sums_of(one).items():
        assert sums_of(first)[name] == pytest.approx(sums)
    assert first.status().find("gap", "y").running[-1] == pytest.approx(
        one.status().find("gap", "y").running[-1]
    )


def test_merging_labels_that_overlap_leaves_them_out_and_says_so(baseline):
    batch = draw(100, 1)
    labels = np.asarray(batch.labels)
    first, second = Monitor(baseline), Monitor(baseline)
    first.append(batch, labels=np.where(np.arange(100) < 60, labels, -1))
    second.append(batch, labels=np.where(np.arange(100) >= 40, labels, -1))
    (note,) = first.merge(second)
    assert "40 labels were left out" in note
    assert first.status().num_labelled == 60
    assert first.append(batch).num_labelled == 40


def test_states_of_other_baselines_cannot_be_merged(baseline):
    with pytest.raises(InputError, match="same baseline"):
        Monitor(baseline).merge(Monitor(draw(500, 9)))
    with pytest.raises(InputError, match="same baseline"):
        Monitor(baseline).merge(Monitor(baseline, tolerance=0.02))


@pytest.mark.parametrize("make", [draw, draw_classes])
def test_a_change_raises_an_alarm_that_names_its_start(make):
    monitor = Monitor(make(3000, 0))
    for seed in range(1, 6):
        monitor.append(make(800, seed), name=f"week {seed}")
    assert monitor.status().state == "no alarm"
    for seed in range(6, 12):
        monitor.append(make(800, seed, gap=0.2), name=f"week {seed}")
    alarms = monitor.status().alarms
    assert {alarm.test for alarm in alarms} >= {"over"}
    assert alarms[0].since == "week 6"
    assert all(alarm.p_value <= 0.05 for alarm in alarms)
    assert "points above" in next(each.says for each in alarms if each.test == "over")


def test_probabilities_that_are_too_low_are_an_alarm_of_their_own(baseline):
    monitor = Monitor(baseline)
    for seed in range(1, 5):
        monitor.append(draw(1000, seed, gap=-0.2))
    assert "under" in {alarm.test for alarm in monitor.status().alarms}
    assert "over" not in {alarm.test for alarm in monitor.status().alarms}


def test_a_group_alone_raises_an_alarm():
    group = np.repeat(["a", "b"], 1500)
    monitor = Monitor(draw(3000, 0), groups=group)
    for seed in range(1, 8):
        good, bad = draw(600, seed), draw(300, 100 + seed, gap=0.3)
        joined = Predictions.from_events(
            np.concatenate([good.array, bad.array]), np.concatenate([good.labels, bad.labels])
        )
        monitor.append(joined, groups=np.repeat(["a", "b"], [600, 300]), name=str(seed))
    groups = {alarm.group for alarm in monitor.status().alarms}
    assert "b" in groups
    assert "a" not in groups


def test_alarms_stay(baseline):
    monitor = Monitor(baseline)
    for seed in range(1, 4):
        monitor.append(draw(1000, seed, gap=0.25), name=str(seed))
    before = [alarm.batch for alarm in monitor.status().alarms]
    for seed in range(4, 8):
        monitor.append(draw(1000, seed, gap=-0.25), name=str(seed))
    assert before
    assert {alarm.batch for alarm in monitor.status().alarms} >= set(before)


def test_shares_of_alpha_sum_to_alpha(baseline):
    names = np.array(["x", "y", "z"])[np.arange(2000) % 3]
    monitor = Monitor(baseline, groups=names)
    total = 3 * (monitor.share_of("") + sum(monitor.share_of(name) for name in "xyz"))
    assert total == pytest.approx(0.05)


def test_clusters_count_once_as_their_mean():
    clusters = np.repeat(np.arange(400), 5)
    monitor = Monitor(draw(2000, 0, clusters=clusters))
    assert monitor.ledger.baseline.counts[""] == 400
    batch = draw(500, 1, clusters=np.repeat(np.arange(1000, 1100), 5))
    assert monitor.append(batch).num_left_out == 0
    gap = np.asarray(batch.array) - np.asarray(batch.labels)
    cell = monitor.ledger.deliveries[0].all
    assert cell.count == 100
    assert cell.sums["gap"] == pytest.approx(gap.reshape(100, 5).mean(1).sum())
    # Half of the clusters were in the batch before, and one in the baseline.
    again = draw(500, 2, clusters=np.repeat([*range(1050, 1149), 7], 5))
    assert monitor.append(again).num_left_out == 255
    assert monitor.ledger.deliveries[1].all.count == 49
    assert any("a cluster counts once" in notice for notice in monitor.status().notices)


def test_a_cluster_that_returns_raises_no_false_alarm():
    """One unlucky patient in every batch: counted as rows it would be sure evidence."""
    clusters = np.arange(2000)
    monitor = Monitor(draw(2000, 0, clusters=clusters))
    for seed in range(1, 31):
        good = draw(20, seed)
        scores = np.concatenate([good.array, np.full(30, 0.9)])
        happened = np.concatenate([good.labels, np.zeros(30, dtype=int)])
        names = np.concatenate([5000 + 100 * seed + np.arange(20), np.full(30, 4999)])
        monitor.append(Predictions.from_events(scores, happened, clusters=names))
    assert monitor.status().state == "no alarm"


def test_other_scores_are_a_notice_and_no_alarm(baseline):
    monitor = Monitor(baseline)
    rng = np.random.default_rng(0)
    said = rng.beta(8, 2, 2000)
    monitor.append(Predictions.from_events(said, rng.random(2000) < said))
    status = monitor.status()
    assert any("scores differ from the baseline's" in notice for notice in status.notices)
    assert "over" not in {alarm.test for alarm in status.alarms}
    assert "under" not in {alarm.test for alarm in status.alarms}
    rows = Predictions.from_events(rng.beta(8, 2, 2000), None)
    alone = Monitor(baseline)
    alone.append(rows)
    assert alone.status().state == "no labels"
    assert any("scores differ" in notice for notice in alone.status().notices)


def test_labels_that_prefer_some_scores_are_a_notice(baseline):
    batch = draw(3000, 1)
    picked = np.where(np.asarray(batch.array) > 0.5, np.asarray(batch.labels), -1)
    chosen, fair = Monitor(baseline), Monitor(baseline)
    chosen.append(batch, labels=picked)
    random = np.random.default_rng(0).random(3000) < 0.5
    fair.append(batch, labels=np.where(random, np.asarray(batch.labels), -1))
    assert any("labelled rows have other scores" in each for each in chosen.status().notices)
    assert not any("labelled rows have other scores" in each for each in fair.status().notices)


def test_rows_that_the_monitor_does_not_take_are_refused(baseline):
    labels = np.zeros((30, 2), dtype=int)
    many = Predictions.from_multilabel(np.zeros((30, 2)), labels)
    with pytest.raises(InputError, match="one at a time"):
        Monitor(many)
    with pytest.raises(InputError, match="no weights"):
        Monitor(draw(100, 0, weights=np.ones(100)))
    with pytest.raises(InputError, match="at least 20"):
        Monitor(draw(10, 0))
    with pytest.raises(InputError, match="rows of the baseline"):
        Monitor(baseline).append(baseline)
    with pytest.raises(InputError, match="holds events, the batch classes"):
        Monitor(baseline).append(draw_classes(50, 0))
    with pytest.raises(InputError, match="tolerance"):
        Monitor(baseline, tolerance=2)


def test_a_state_file_gives_the_same_status(baseline, tmp_path):
    monitor = Monitor(baseline)
    monitor.append(draw(200, 1), when="2026-08-21")
    path = monitor.save(tmp_path / "state.json")
    assert Monitor.load(path).status().to_json() == monitor.status().to_json()
    assert Monitor.load(path).ledger == monitor.ledger


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: "[]",
        lambda found: "{",
        lambda found: json.dumps({**found, "calibrant_monitor": 99}),
        lambda found: json.dumps({**found, "batches": []}),
        lambda found: json.dumps({**found, "deliveries": [{"batch": 3}]}),
        lambda found: json.dumps({key: value for key, value in found.items() if key != "plan"}),
    ],
)
def test_a_damaged_state_is_refused(baseline, tmp_path, damage):
    monitor = Monitor(baseline)
    monitor.append(draw(50, 1))
    path = tmp_path / "state.json"
    path.write_text(damage(monitor.ledger.to_dict()))
    with pytest.raises(InputError, match=r"state"):
        Monitor.load(path)


def append_forever(path, start):
    for seed in range(1, 400):
        with Monitor.update(path) as monitor:
            start.set()
            monitor.append(draw(50, seed))


def test_a_kill_at_any_moment_counts_no_row_twice(baseline, tmp_path):
    path = tmp_path / "state.json"
    Monitor(baseline).save(path)
    context = multiprocessing.get_context("fork")
    for trial in range(6):
        start = context.Event()
        process = context.Process(target=append_forever, args=(path, start))
        process.start()
        assert start.wait(60)
        time.sleep(0.003 * (trial + 1) ** 2)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        found = Monitor.load(path).ledger
        keys = [delivery.batch for delivery in found.deliveries]
        assert len(set(keys)) == len(keys) == len(found.batches)
        assert sum(each.all.count for each in found.deliveries) == 50 * len(keys)


def append_some(path, seeds):
    for seed in seeds:
        with Monitor.update(path) as monitor:
            monitor.append(draw(50, seed))


def test_two_processes_lose_no_batch(baseline, tmp_path):
    path = tmp_path / "state.json"
    Monitor(baseline).save(path)
    context = multiprocessing.get_context("fork")
    seeds = (range(1, 11), range(6, 16))
    processes = [context.Process(target=append_some, args=(path, each)) for each in seeds]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(Monitor.load(path).ledger.deliveries) == 15


# The command.


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments, code=0):
        result = CliRunner().invoke(app, ["monitor", *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result.output

    return invoke


def write_table(path, predictions, start, *, labels=True, **columns):
    frame = pd.DataFrame({"id": start + np.arange(len(predictions)), **columns})
    frame["probability"] = np.asarray(predictions.array)
    if labels:
        frame["happened"] = np.asarray(predictions.labels)
    frame.to_csv(path, index=False)
    return frame


def test_the_command_watches_from_the_first_batch_to_an_alarm(run, tmp_path):
    write_table("base.csv", draw(2000, 0), 0)
    write_table("w1.csv", draw(500, 1), 10_000)
    output = run("state.json", "--baseline", "base.csv", "--append", "w1.csv")
    assert "No alarm" in output
    late = draw(1500, 2, gap=0.3)
    full = write_table("w2.csv", late, 20_000, labels=False)
    assert "no labels yet" in run("state.json", "--append", "w2.csv")
    full["happened"] = np.asarray(late.labels)
    full[["id", "happened"]].sample(frac=0.8, random_state=0).to_csv("l2.csv", index=False)
    options = ("--append", "w2.csv", "--labels", "l2.csv", "--report", "m.html")
    output = run("state.json", *options, code=3)
    assert "1,200 newly labelled" in output
    assert "alarm: the probability of the event" in output
    page = (tmp_path / "m.html").read_text()
    assert "points above its frequency" in page
    found = json.loads(run("state.json", "--json", code=3).partition("\nalarm:")[0])
    assert found["state"] == "alarm"
    assert found["num_labelled"] == 1700


def test_the_command_takes_tables_with_missing_labels(run):
    write_table("base.csv", draw(2000, 0), 0, site="a")
    batch = write_table("w1.csv", draw(400, 1), 10_000)
    batch["happened"] = batch["happened"].astype("Int64")
    batch.loc[::4, "happened"] = pd.NA
    batch.to_csv("w1.csv", index=False)
    output = run("state.json", "--baseline", "base.csv", "--append", "w1.csv")
    assert "400 rows, 300 newly labelled" in output
    write_table("w1.csv", draw(400, 1), 10_000)
    output = run("state.json", "--append", "w1.csv")
    assert "known batch, 100 newly labelled, 300 labels counted before" in output


def test_the_command_refuses_to_change_the_promise(run):
    write_table("base.csv", draw(2000, 0), 0)
    run("state.json", "--baseline", "base.csv")
    assert "break its promise" in run("state.json", "--alpha", "0.1", code=2)
    write_table("other.csv", draw(2000, 5), 0)
    assert "another baseline" in run("state.json", "--baseline", "other.csv", code=2)
    assert "--baseline" in run("new.json", code=2)


def test_the_command_merges_states(run):
    write_table("base.csv", draw(2000, 0), 0)
    for state, seeds in (("a.json", (1, 2)), ("b.json", (2, 3))):
        for seed in seeds:
            write_table(f"w{seed}.csv", draw(200, seed), 1000 * seed)
            run(state, "--baseline", "base.csv", "--append", f"w{seed}.csv")
    assert "3 batches, 600 rows, 600 labelled" in run("a.json", "--merge", "b.json")
