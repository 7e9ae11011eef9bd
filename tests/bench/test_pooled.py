"""Calibrators fitted on the held-out rows of several runs."""

from __future__ import annotations

import math
import shutil
import time

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from calibrant.bench import Suite
from calibrant.bench.measure import pooled
from calibrant.bench.measure.crossfit import PART as CROSSFIT
from calibrant.bench.measure.crossfit import SEED
from calibrant.bench.measure.pooled import list_family, name_pooled
from calibrant.bench.run.runner import run_suite
from calibrant.bench.run.status import status
from calibrant.bench.store.store import Store
from calibrant.core.errors import InputError
from calibrant.predictions import Predictions
from calibrant.predictions.split import split_rows
from calibrant.training.config import Config

TEXT = """
name: pool
defaults: {data: digits, model: mlp, epochs: 2, batch_size: 400, device: cpu}
seeds: [0, 1, 2]
methods: {cross_entropy: {}}
where:
  - {if: {seed: 1}, set: {split_seed: 1}}
  - {if: {seed: 2}, set: {split_seed: 2}}
after: [{pooled: {seeds: [0, 1, 2], calibrators: [temperature]}}]
keep: predictions
metrics: [ece]
"""
NAME = "temperature(on=pooled)"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two seeds first, the third later; what was left of the two in between."""
    out = tmp_path_factory.mktemp("pool")
    suite = Suite.parse(TEXT)
    first = run_suite(suite, out, seeds=[0, 1])
    between = Store(out / "store").frame()
    trained = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/run.json")}
    second = run_suite(suite, out)
    same = {path: path.stat().st_mtime_ns for path in trained}
    return suite, out, first, between, second, trained == same


def logits_of(out, spec, part):
    predictions = Predictions.read(out / "runs" / spec.key / "predictions" / f"{part}.safetensors")
    return np.asarray(predictions.array, dtype=np.float64), np.asarray(predictions.labels)


def images_of(spec):
    from calibrant.training.setup import load_data

    return load_data(spec.config).validation.images.numpy()


def naive_nll(logits, labels, temperature):
    scaled = logits / temperature
    top = scaled.max(1)
    return float(
        np.mean(
            [
                math.log(sum(math.exp(v - t) for v in row)) + t - row[label]
                for row, t, label in zip(scaled, top, labels, strict=True)
            ]
        )
    )


def naive_temperature(parts):
    logits = np.concatenate([logits for logits, _ in parts])
    labels = np.concatenate([labels for _, labels in parts])

    def loss(at):
        scaled = logits / math.exp(at)
        top = scaled.max(1, keepdims=True)
        rows = np.log(np.exp(scaled - top).sum(1)) + top[:, 0]
        return float(np.mean(rows - scaled[np.arange(len(labels)), labels]))

    return math.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded").x)


def value(out, spec, part, metric):
    frame = Store(out / "store").frame()
    rows = frame[
        (frame["key"] == spec.key)
        & (frame["part"] == part)
        & (frame["calibrator"] == NAME)
        & (frame["metric"] == metric)
    ]
    (figure,) = rows["value"]
    return float(figure), int(rows["rows"].iloc[0])


def test_what_needs_other_runs_waits_for_them_and_trains_nothing_again(made):
    suite, _, first, between, second, untouched = made
    assert sorted(first.waiting) == sorted(spec.key for _, spec in suite.specs[:2])
    assert not first.failed
    assert not between["calibrator"].eq(NAME).any()
    assert not between["metric"].eq("failed").any()
    assert sorted(second.done) == sorted(spec.key for _, spec in suite.specs)
    assert untouched
    again = run_suite(suite, made[1])
    assert len(again.before) == 3
    assert not again.done


def test_every_run_is_judged_by_one_temperature_of_all_held_out_rows(made):
    suite, out, *_ = made
    specs = [spec for _, spec in suite.specs]
    held = [logits_of(out, spec, "validation") for spec in specs]
    assert len({labels.tobytes() for _, labels in held}) == 3  # each held out rows of its own
    best = naive_temperature(held)
    for spec in specs:
        logits, labels = logits_of(out, spec, "test")
        assert value(out, spec, "validation", "parameter:temperature")[0] == pytest.approx(
            best, rel=1e-4
        )
        nll, rows = value(out, spec, "test", "nll")
        assert rows == len(labels)
        assert nll == pytest.approx(naive_nll(logits, labels, best), rel=1e-5)


def test_what_others_said_is_read_with_its_largest_logits(made):
    suite, out, *_ = made
    for _, spec in suite.specs:
        path = out / "runs" / spec.key / "predictions" / "validation.safetensors"
        largest = torch.from_numpy(np.load(path.with_name("validation-largest.npy")))
        assert float(largest.abs().min()) > 0
        logits = torch.as_tensor(pooled._read(path).array)
        assert logits.amax(1, keepdim=True).numpy() == pytest.approx(largest.double().numpy())


def test_held_out_rows_are_judged_by_those_of_others_and_the_other_half_of_their_own(made):
    suite, out, *_ = made
    specs = [spec for _, spec in suite.specs]
    held = [logits_of(out, spec, "validation") for spec in specs]
    logits, labels = held[1]
    halves = split_rows(len(labels), 0.5, seed=SEED, strata=labels)
    total, shared = 0.0, 0
    pictures = [[image.tobytes() for image in images_of(spec)] for spec in specs]
    for fitted, judged in (halves, halves[::-1]):
        seen = {pictures[1][row] for row in judged}
        beside = []
        for place in (0, 2):
            others = [row for row, image in enumerate(pictures[place]) if image not in seen]
            shared += len(pictures[place]) - len(others)
            beside.append((held[place][0][others], held[place][1][others]))
        best = naive_temperature([*beside, (logits[fitted], labels[fitted])])
        total += len(judged) * naive_nll(logits[judged], labels[judged], best)
    assert shared > 0  # images that several held out
    nll, rows = value(out, specs[1], CROSSFIT, "nll")
    assert rows == len(labels)
    assert nll == pytest.approx(total / len(labels), rel=1e-5)


def two(keep="predictions", after="pooled: {seeds: [0, 1]}", epochs=1):
    text = TEXT.replace("[0, 1, 2]", "[0, 1]").replace("epochs: 2", f"epochs: {epochs}")
    text = text.replace("  - {if: {seed: 2}, set: {split_seed: 2}}\n", "")
    text = text.replace("pooled: {seeds: [0, 1], calibrators: [temperature]}", after)
    return Suite.parse(text.replace("keep: predictions", f"keep: {keep}"))


@pytest.mark.slow
def test_where_predictions_were_not_kept_the_runs_are_made_again(tmp_path):
    run_suite(two(keep="rows", after="crossfit: {calibrators: [temperature]}"), tmp_path)
    made = run_suite(two(), tmp_path)
    assert len(made.done) == 2
    assert not made.waiting


@pytest.mark.slow
def test_what_was_pooled_with_an_earlier_training_is_pooled_again(tmp_path):
    suite = two()
    run_suite(suite, tmp_path)

    def written():
        frame = Store(tmp_path / "store").frame()
        rows = frame[(frame["calibrator"] == NAME) & (frame["metric"] == "ece")]
        return rows.groupby("key")["written"].max().to_dict()

    first = written()
    time.sleep(1.1)  # times are kept in seconds
    key = suite.specs[0][1].key
    (tmp_path / "runs" / key / "predictions" / "test.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="damaged"):
        run_suite(suite, tmp_path)
    second = written()
    assert all(second[row] > first[row] for row in first), (first, second)


@pytest.mark.slow
def test_a_late_measurement_that_fails_or_had_no_time_is_told_as_that(tmp_path, monkeypatch):

    def broken(subject, **options):
        raise RuntimeError("no luck")

    suite = two()
    run_suite(suite, tmp_path, seeds=[0])
    first = status([suite.specs[0][1]], tmp_path)
    assert (len(first.waiting), first.seconds_left) == (1, 0.0)
    late = run_suite(suite, tmp_path, limit_minutes=0)
    assert (len(late.left), len(late.waiting)) == (1, 1)
    monkeypatch.setattr("calibrant.bench.measure.pooled.pooled", broken)
    assert len(run_suite(suite, tmp_path).failed) == 2
    monkeypatch.undo()
    assert len(run_suite(suite, tmp_path, retry=True).done) == 2


@pytest.mark.slow
def test_a_pool_of_processes_measures_what_waits_too(tmp_path):
    made = run_suite(two(), tmp_path, on="pool", workers=2, threads=1)
    assert len(made.done) == 2
    assert Store(tmp_path / "store").frame()["calibrator"].eq(NAME).any()


def test_tables_show_what_was_fitted_on_all(made):
    from calibrant.bench.tables.results import collect_results

    suite, out, *_ = made
    results = collect_results(suite, Store(out / "store").frame())
    assert results.own_calibrators == ("none", NAME)


@pytest.mark.slow
def test_a_run_is_pooled_with_few_seeds_and_with_many_under_two_names(made, tmp_path):
    """The same runs: what three gave stays, and two give what they would alone."""
    suite, out, *_ = made
    copied = tmp_path / "copy"
    shutil.copytree(out, copied)
    text = TEXT.replace("seeds: [0, 1, 2]\n", "seeds: [0, 1]\n").replace(
        "{pooled: {seeds: [0, 1, 2]", "{pooled: {named: two, seeds: [0, 1]"
    )
    before = [value(copied, spec, "test", "nll") for _, spec in suite.specs]
    pair = Suite.parse(text)
    assert not run_suite(pair, copied).failed
    assert [value(copied, spec, "test", "nll") for _, spec in suite.specs] == before
    (_, first), (_, second) = pair.specs
    parts = [logits_of(copied, spec, "validation") for spec in (first, second)]
    logits, labels = logits_of(copied, first, "test")
    frame = Store(copied / "store").frame()
    mine = frame[frame["calibrator"].eq("temperature(on=two)") & frame["key"].eq(first.key)]
    (figure,) = mine.loc[mine["part"].eq("test") & mine["metric"].eq("nll"), "value"]
    assert figure == pytest.approx(naive_nll(logits, labels, naive_temperature(parts)), abs=1e-4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("keep: predictions", "keep: rows"), "keep: predictions"),
        (("{split_seed: 2}", "{split_seed: 5}"), "seed 2 with split_seed 5"),
        (("{pooled: {seeds: [0, 1, 2]", "{pooled: {seeds: [0, 1]"), "this one among"),
        (("{pooled: {seeds: [0, 1, 2], ", "{pooled: {"), "several seeds"),
        (("calibrators: [temperature]", "calibrators: [temprature]"), "temperature"),
        (("{pooled: {seeds", "{pooled: {sedes"), "sedes"),
        (("{pooled: {seeds", "{pooled: {named: a b, seeds"), "named must be a word"),
        (("{pooled: {seeds", "{pooled: {named: train, seeds"), "named must be a word"),
    ],
)
def test_what_cannot_be_pooled_is_told_before_the_first_run(change, words):
    with pytest.raises(InputError, match=words):
        Suite.parse(TEXT.replace(*change))


def test_one_run_alone_and_rows_named_twice_are_refused():
    with pytest.raises(InputError, match="several seeds"):
        list_family(Config(seed=3, split_seed=3), [3])
    with pytest.raises(InputError, match="says itself"):
        name_pooled("temperature(on=train)")


def test_files_of_logits_hold_nothing_out(tmp_path):
    from calibrant.bench.measure.pooled import pooled
    from calibrant.bench.measure.subject import Parts

    with pytest.raises(InputError, match="has no held-out rows"):
        next(pooled(Parts(), seeds=[0, 1]))


def test_rows_joined_are_all_the_rows_in_order():
    from calibrant.bench.measure.crossfit import join_rows

    parts = [
        Predictions.from_logits(torch.randn(n, 3), torch.arange(n) % 3, ids=np.arange(n))
        for n in (4, 7)
    ]
    both = join_rows(parts)
    assert torch.equal(torch.as_tensor(both.array), torch.cat([part.scores for part in parts]))
    assert np.asarray(both.labels).tolist() == [0, 1, 2, 0, 0, 1, 2, 0, 1, 2, 0]
    assert both.ids is None
