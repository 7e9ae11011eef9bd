"""Files of logits as runs, predictions kept small, and test rows that open after the choice."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from calibrant import metrics
from calibrant.bench import Store, Suite, run_suite
from calibrant.bench.measure.logits import find_logits, read_part
from calibrant.bench.measure.steps import FilesGone, measure_run
from calibrant.bench.measure.subject import Validation
from calibrant.bench.run.folder import read_portable
from calibrant.bench.store.half_precision import (
    halve_files,
    is_whole,
    largest_path,
    needs_whole,
    read_whole,
    to_half,
)
from calibrant.bench.suite.spec import Spec
from calibrant.bench.tables.tabulate import table
from calibrant.calibrators import available, get
from calibrant.core.errors import InputError
from calibrant.predictions import Predictions
from calibrant.training import Config, Run, train

CONFIG = Config(data="made", model="none")


def made_logits(rows=400, classes=4, seed=0):
    draw = np.random.default_rng(seed)
    truth = draw.normal(size=(rows, classes)) * 2
    labels = (truth + draw.gumbel(size=truth.shape)).argmax(1)
    return (3 * truth).astype(np.float32), labels


def figures(rows):
    return {(row["part"], row["calibrator"], row["metric"]): row["value"] for row in rows}


def test_a_file_of_logits_is_measured_in_halves(tmp_path):
    logits, labels = made_logits()
    predictions = Predictions.from_logits(logits, labels)
    (tmp_path / "logits").mkdir()
    predictions.write(tmp_path / "logits" / "made-none.npz")
    config = CONFIG.changed(seed=3, data_folder=str(tmp_path))
    text = "temperature(normalisation=mm,objective=class_scaled)"
    spec = Spec(config, calibrators=("temperature", text), logits="logits/made-none.npz")
    values = figures(measure_run(spec, None))
    held, test = predictions.split(0.5, seed=3)
    assert values["test", "none", "ece"] == pytest.approx(metrics.ece(test.array, test.labels))
    made = get("temperature").fit(held.array, held.labels)
    assert values["validation", "temperature", "parameter:temperature"] == pytest.approx(
        float(made.temperature_), rel=1e-6
    )
    assert 2 < float(made.temperature_) < 4  # the logits are three times too large
    direct = metrics.nll(made.calibrate(test.array), test.labels)
    assert values["test", "temperature", "nll"] == pytest.approx(direct, rel=1e-5)
    assert ("test", text, "ece") in values
    assert {(row["part"], row["calibrator"]) for row in measure_run(spec, None)} >= spec.wanted
    other = Spec(config.changed(seed=4), calibrators=(), logits="logits/made-none.npz")
    assert other.key != spec.key
    assert figures(measure_run(other, None))["test", "none", "ece"] != values["test", "none", "ece"]


@pytest.mark.parametrize("together", [False, True])
def test_separate_files_are_fitted_on_and_judged_as_they_are(tmp_path, together):
    parts = {"validation": made_logits(rows=300, seed=1), "test": made_logits(rows=500, seed=2)}
    files = {part: f"{part}.npz" for part in parts}
    if together:  # one archive of both parts
        arrays = {f"{part}_logits": logits for part, (logits, _) in parts.items()}
        arrays |= {f"{part}_labels": labels for part, (_, labels) in parts.items()}
        np.savez(tmp_path / "both.npz", **arrays)
        files = dict.fromkeys(parts, "both.npz")
    else:
        for part, arrays in parts.items():
            Predictions.from_logits(*arrays).write(tmp_path / files[part])
    suite = Suite.parse(
        f"name: apart\ndefaults: {{data_folder: {json.dumps(str(tmp_path))}}}\n"
        f"logits: [{{validation: {files['validation']}, test: {files['test']}, data: made, "
        "model: net}]\ncalibrators: [temperature]\nkeep: rows\n"
    )
    assert not run_suite(suite, tmp_path / "bench").failed
    rows = Store(tmp_path / "bench" / "store").frame()
    found = {(r.part, r.calibrator, r.metric): r for r in rows.itertuples()}
    assert found["validation", "none", "ece"].rows == 300
    assert found["test", "none", "ece"].rows == 500
    made = get("temperature").fit(*parts["validation"])
    logits, labels = parts["test"]
    assert found["test", "none", "ece"].value == pytest.approx(metrics.ece(logits, labels))
    expected = metrics.nll(made.calibrate(logits), labels)
    assert found["test", "temperature", "nll"].value == pytest.approx(expected, rel=1e-5)


def test_a_file_without_the_part_that_is_asked_for_is_an_error(tmp_path):
    logits, labels = made_logits()
    np.savez(tmp_path / "half.npz", validation_logits=logits, validation_labels=labels)
    assert len(read_part(tmp_path / "half.npz", "validation").labels) == len(labels)
    with pytest.raises(InputError, match="test_logits and test_labels; found validation_logits"):
        read_part(tmp_path / "half.npz", "test")


def test_a_suite_of_files_is_run_once_and_has_tables(tmp_path):
    folder = tmp_path / "logits"
    folder.mkdir()
    for place, name in enumerate(("made-one", "made-two")):
        Predictions.from_logits(*made_logits(seed=place)).write(folder / f"{name}.npz")
    suite = Suite.parse(
        "name: files\nabout: two files\nlogits: [logits/made-one.npz, logits/made-two.npz]\n"
        "seeds: [0, 1]\ncalibrators: [temperature]\nkeep: rows\nmetrics: [ece]\n"
    )
    events = []
    how = {"machine": {"data_folder": str(tmp_path)}, "progress": events.append}
    summary = run_suite(suite, tmp_path / "out", **how)
    assert (len(summary.done), summary.failed) == (4, [])
    assert [event["event"] for event in events].count("done") == 4
    assert not any((tmp_path / "out").glob("failed/*"))
    again = run_suite(suite, tmp_path / "out", **how)
    assert (again.done, len(again.before)) == ([], 4)
    made = table(suite, Store(tmp_path / "out" / "store").frame())
    assert len(made.blocks) == 2
    for block in made.blocks:
        means = {name: entries[0].mean.mean for name, entries in block.shown}
        assert means["temperature"] < means["none"]  # the logits are three times too large


def test_probabilities_of_zero_are_counted_and_calibrated_all_the_same(tmp_path):
    logits, labels = made_logits()
    probs = torch.softmax(torch.from_numpy(logits).double(), 1).numpy()
    wrong = (labels[:10] + 1) % 4
    probs[:10] = np.eye(4)[wrong]
    path = tmp_path / "made-probs.npz"
    Predictions.from_probs(probs, labels).write(path)
    spec = Spec(CONFIG, calibrators=("temperature",), logits=str(path))
    values = figures(measure_run(spec, None))
    assert values["validation", "none", "impossible"] + values["test", "none", "impossible"] == 10
    assert np.isinf([values[part, "none", "nll"] for part in ("validation", "test")]).any()
    assert np.isfinite(values["test", "temperature", "nll"])


def test_real_logits_by_name(data_folder):
    path = find_logits("cifar10-resnet20", str(data_folder))
    assert path == data_folder / "logits" / "cifar10-resnet20.npz"
    assert find_logits("logits/cifar10-resnet20.npz", str(data_folder)) == path
    config = Config(data="cifar10", model="resnet20", data_folder=str(data_folder))
    spec = Spec(config, calibrators=("temperature",), logits="logits/cifar10-resnet20.npz")
    values = figures(measure_run(spec, None))
    assert values["test", "none", "accuracy"] > 0.9
    assert values["test", "temperature", "ece"] < 0.5 * values["test", "none", "ece"]


def test_a_network_is_not_to_be_had_from_logits(tmp_path):
    logits, labels = made_logits(100)
    Predictions.from_logits(logits, labels).write(tmp_path / "x.npz")
    spec = Spec(CONFIG, after=(("shift", "{}"),), logits=str(tmp_path / "x.npz"))
    with pytest.raises(InputError, match="shift needs a network"):
        measure_run(spec, None, {("run", "none")})
    with pytest.raises(InputError, match="no file of logits 'nowhere'"):
        find_logits("nowhere", str(tmp_path))


def test_half_precision_changes_no_prediction():
    draw = torch.Generator().manual_seed(0)
    logits = 300 + 5 * torch.randn(5000, 20, generator=draw)
    logits[:, 1] = torch.nextafter(logits[:, 0], torch.tensor(-torch.inf))  # as near as can be
    logits[:500, 2] = -1e6
    predictions = Predictions.from_logits(logits, torch.zeros(5000, dtype=torch.int64))
    small = to_half(predictions).array
    assert small.dtype == torch.float16
    assert torch.equal(small.argmax(1), logits.argmax(1))
    assert torch.isfinite(small).all()
    plain = torch.softmax(logits.double(), 1)
    assert float((torch.softmax(small.double(), 1) - plain).abs().max()) < 1e-3
    # Rounded as they are, some of them would change.
    assert not torch.equal(logits.half().argmax(1), logits.argmax(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = Config(data="digits", model="mlp", epochs=1, device="cpu", validation=400)
    path = tmp_path_factory.mktemp("files") / "run"
    train(config, path)
    return path


def test_a_run_kept_small_has_the_same_figures(folder):
    run = Run(folder)
    # The last two are other maps of logits less their largest.
    names = ("temperature", "class_temperature", "parameterized_temperature")
    spec = Spec(run.config, calibrators=names)
    before = figures(measure_run(spec, run))
    plain = torch.as_tensor(run.predictions("test").array).double()
    size = (folder / "predictions" / "test.safetensors").stat().st_size
    halve_files(folder)
    assert (folder / "predictions" / "test.safetensors").stat().st_size < 0.75 * size
    content = (folder / "predictions" / "test.safetensors").read_bytes()
    halve_files(folder)  # once is enough
    assert (folder / "predictions" / "test.safetensors").read_bytes() == content
    held = torch.as_tensor(Validation(run).predictions.array).amax(1)
    kept = np.load(folder / "predictions" / "validation-largest.npy")[:, 0]
    assert held.numpy() == pytest.approx(kept)
    assert abs(kept).min() > 0
    back = torch.as_tensor(read_whole(folder / "predictions" / "test.safetensors").array)
    assert torch.equal(back.argmax(1), plain.argmax(1))
    assert float((back - plain).abs().max()) < 0.02
    portable_names = set(read_portable(folder, predictions=True))
    assert {"predictions/test-largest.npy", "predictions/validation-largest.npy"} <= portable_names
    after = figures(measure_run(spec, run))
    assert after["test", "none", "accuracy"] == before["test", "none", "accuracy"]
    for name in ("none", *names):
        # A row that moves to another bin changes ECE at once.
        for metric, error in (("nll", 2e-3), ("ece", 6e-3), ("brier", 2e-3)):
            place = ("test", name, metric)
            assert after[place] == pytest.approx(before[place], abs=error)


def test_predictions_kept_small_without_their_largest_are_read(tmp_path):
    logits, labels = made_logits(50)
    path = tmp_path / "test.safetensors"
    to_half(Predictions.from_logits(logits, labels)).write(path)
    assert torch.as_tensor(read_whole(path).array).dtype == torch.float16
    assert not largest_path(path).exists()
    assert not is_whole(path)


@pytest.mark.sampled(count=5)
@pytest.mark.parametrize("name", available())
def test_which_calibrators_need_the_largest_logits(name):
    if get(name).takes_features:
        return
    logits, labels = (torch.from_numpy(logits) for logits in made_logits(1536, 10))
    # How sure a network should be may show in the size of its logits.
    sure = torch.rand(1536, 1, generator=torch.Generator().manual_seed(0))
    logits = logits * sure + 4 * sure
    if get(name).dense_only:
        logits = logits.reshape(6, 16, 16, 10).movedim(3, 1).contiguous()
        labels = labels.reshape(6, 16, 16)
    # Judged on other rows: a step function may jump at the rows that it was fitted on.
    fitted = get(name).fit(logits[::2], labels[::2])
    logits = logits[1::2]
    probs, less = (
        torch.softmax(fitted(z).double(), 1)
        for z in (logits, logits - logits.amax(1, keepdim=True))
    )
    assert (float((probs - less).abs().max()) > 1e-4) == needs_whole(name)


def test_calibrators_of_whole_logits_are_not_fitted_on_less(tmp_path):
    config = Config(data="digits", model="mlp", epochs=1, device="cpu", validation=400)
    run = train(config, tmp_path / "run")
    folder = run.folder / "predictions"
    halve_files(run.folder)
    for part in ("train", "validation", "test"):
        assert is_whole(folder / f"{part}.safetensors")
        largest_path(folder / f"{part}.safetensors").unlink()
    plain = figures(measure_run(Spec(config, calibrators=("temperature",)), run))
    assert ("test", "temperature", "ece") in plain
    for name in ("class_temperature", "parameterized_temperature(objective=focal)"):
        with pytest.raises(FilesGone, match="without the largest logits"):
            measure_run(Spec(config, calibrators=(name,)), run)
    options = '{"calibrators": ["class_temperature"]}'
    with pytest.raises(FilesGone, match="without the largest logits"):
        measure_run(Spec(config, after=(("crossfit", options),)), run)


def test_selection_sees_validation_rows_only(folder):
    run, path = Run(folder), folder / "predictions" / "test.safetensors"
    content = path.read_bytes()
    seen = Validation(run)
    before = (seen.figures, seen.epochs, seen.config, seen.predictions.array.sum())
    outcome = json.loads((folder / "run.json").read_text())
    try:
        path.unlink()  # it is not needed
        assert (seen.figures, seen.epochs, seen.config, seen.predictions.array.sum()) == before
    finally:
        path.write_bytes(content)
    assert seen.figures["ece"] == outcome["figures"]["validation_ece"]
    assert set(seen.figures) == {"accuracy", "nll", "ece"}
    assert not any("test" in name for line in seen.epochs for name in line)
    # Nothing it offers leads to the run or to its test rows.
    offered = [name for name in dir(seen) if not name.startswith("_")]
    assert sorted(offered) == ["config", "epochs", "figures", "predictions"]
    with pytest.raises(AttributeError):
        seen.run = run
