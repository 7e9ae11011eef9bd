"""What the bench measures of a run: figures, calibrators, marks, and what is not looked at."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import pytest
import torch

from calibrant import metrics
from calibrant.bench import calibrator_text
from calibrant.bench.measure import measurement
from calibrant.bench.measure.steps import FilesGone, check_after, measure_run, run_steps
from calibrant.bench.suite.sources import source_of
from calibrant.bench.suite.spec import MARK, Spec
from calibrant.calibrators import get, registry
from calibrant.core.errors import InputError
from calibrant.predictions import Predictions
from calibrant.training import Config, Run, train

CONFIG = Config(
    data="digits", model="mlp", epochs=2, device="cpu", validation=400, batch_size=64, lr=0.2
)
CALIBRATORS = ("temperature", "temperature(objective=sb_ece)", "class_temperature", "vector")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(CONFIG, tmp_path_factory.mktemp("bench") / "run")


@pytest.fixture(scope="module")
def rows(run):
    return measure_run(Spec(CONFIG, calibrators=CALIBRATORS), run)


def table(rows):
    found = {(row["part"], row["calibrator"], row["metric"]): row for row in rows}
    assert len(found) == len(rows)  # no figure twice
    return found


def copied(run, folder):
    """The same run in another folder, to be changed."""
    return Run(shutil.copytree(run.folder, folder))


def test_figures_are_those_of_the_metrics_called_one_by_one(run, rows):
    found = table(rows)
    for part in ("train", "validation", "test"):
        said = run.predictions(part)
        for text in measurement.USUAL:
            name, options = calibrator_text.parse(text)
            direct = float(getattr(metrics, name)(said.array, said.labels, **options))
            assert found[part, "none", text]["value"] == pytest.approx(direct, rel=1e-6), text
            assert found[part, "none", text]["rows"] == len(said)


def test_calibrators_are_fitted_on_validation_and_judged_on_both(run, rows):
    found = table(rows)
    held, test = run.predictions("validation"), run.predictions("test")
    for text, options in (
        ("temperature", {}),
        ("temperature(objective=sb_ece)", {"objective": "sb_ece"}),
    ):
        made = get("temperature", **options).fit(held.array, held.labels)
        value = found["validation", text, "parameter:temperature"]["value"]
        assert value == float(made.temperature_)
        for part, said in (("validation", held), ("test", test)):
            direct = float(metrics.ece(made.calibrate(said.array), said.labels))
            assert found[part, text, "ece"]["value"] == pytest.approx(direct, abs=1e-12)
            assert found[part, text, "changed"]["value"] == 0
            assert found[part, text, "ece"]["seconds"] > 0
    changes = get("vector").fit(held.array, held.labels).calibrate(test.array).argmax(1)
    moved = int((changes != test.array.argmax(1)).sum())
    assert found["test", "vector", "changed"]["value"] == moved > 0
    assert not any(part == "train" and name != "none" for part, name, _ in found)


def test_test_labels_change_no_fit(run, rows, tmp_path):
    other = copied(run, tmp_path / "run")
    said = other.predictions("test")
    mixed = said.labels[torch.randperm(len(said), generator=torch.Generator().manual_seed(0))]
    Predictions.from_logits(said.array.clone(), mixed, class_names=said.class_names).write(
        other.folder / "predictions" / "test.safetensors"
    )
    before, after = table(rows), table(measure_run(Spec(CONFIG, calibrators=CALIBRATORS), other))
    assert before.keys() == after.keys()
    for place, row in before.items():
        if place[0] in ("train", "validation"):
            assert after[place]["value"] == row["value"], place
    assert (
        after["test", "temperature", "nll"]["value"] > before["test", "temperature", "nll"]["value"]
    )


def test_epochs_cost_and_marks(run, rows):
    found = table(rows)
    for line in run.metrics:
        part = f"validation@{line['epoch']}"
        assert found[part, "none", "ece"]["value"] == line["validation_ece"]
        assert found[f"train@{line['epoch']}", "none", "loss"]["value"] == line["train_loss"]
    assert found["run", "none", "train_seconds"]["value"] == run.outcome["seconds"]
    assert found["run", "none", "epoch"]["value"] == 2
    network = 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10
    assert found["run", "none", "parameters"]["value"] == network
    marked = {(part, name) for part, name, metric in found if metric == MARK}
    assert marked == Spec(CONFIG, calibrators=CALIBRATORS).wanted


def test_what_is_done_is_not_measured_again(run, monkeypatch):
    spec = Spec(CONFIG, calibrators=CALIBRATORS)
    assert measure_run(spec, run, spec.wanted) == []
    monkeypatch.setattr(Run, "predictions", lambda self, part: pytest.fail("was read"))
    assert list(run_steps(spec, run, spec.wanted)) == []
    monkeypatch.undo()
    left = measure_run(spec, run, spec.wanted - {("run", "vector")})
    assert {row["calibrator"] for row in left} == {"vector"}


def test_a_calibrator_that_does_not_fit_leaves_a_row_and_no_gap(run):
    spec = Spec(CONFIG, calibrators=("local_temperature", "temperature"))
    done = {("run", "none")}
    with pytest.warns(UserWarning, match="local_temperature was not measured.*dense"):
        found = table(measure_run(spec, run, done))
    assert found["run", "local_temperature", "failed"]["value"] == 1
    assert ("run", "local_temperature", MARK) in found
    assert ("test", "temperature", "ece") in found


def test_files_that_were_not_kept_are_asked_for(run, tmp_path):
    other = copied(run, tmp_path / "run")
    (other.folder / "weights.safetensors").unlink()
    spec = Spec(CONFIG, after=(("mac_cal_head", "{}"),))
    with pytest.raises(FilesGone, match="weights"):
        measure_run(spec, other, {("run", "none")})
    (other.folder / "predictions" / "validation.safetensors").unlink()
    with pytest.raises(FilesGone, match="validation rows were not kept"):
        measure_run(Spec(CONFIG, calibrators=("temperature",)), other, {("run", "none")})


def test_fitted_on_train_where_asked(run):
    text = "temperature(objective=ece,on=train)"
    found = table(measure_run(Spec(CONFIG, calibrators=(text,)), run, {("run", "none")}))
    said = run.predictions("train")
    made = get("temperature", objective="ece").fit(said.array, said.labels)
    value = found["validation", text, "parameter:temperature"]["value"]
    assert value == float(made.temperature_)


def test_more_metrics_where_asked(run):
    options = (
        '{"names": ["kde_ece(bandwidth=0.1)"], "parts": ["test"], "calibrators": ["temperature"]}'
    )
    found = table(measure_run(Spec(CONFIG, after=(("metrics", options),)), run, {("run", "none")}))
    test = run.predictions("test")
    direct = float(metrics.kde_ece(test.array, test.labels, bandwidth=0.1))
    assert found["test", "none", "kde_ece(bandwidth=0.1)"]["value"] == pytest.approx(direct)
    assert found["test", "temperature", "kde_ece(bandwidth=0.1)"]["value"] != direct


def test_crossfit_rows_are_not_fitted_on(run):
    options = '{"calibrators": ["temperature"]}'
    found = table(measure_run(Spec(CONFIG, after=(("crossfit", options),)), run, {("run", "none")}))
    row = found["validation:crossfit", "temperature", "nll"]
    held = run.predictions("validation")
    made = get("temperature").fit(held.array, held.labels)
    fitted = float(metrics.nll(made.calibrate(held.array), held.labels))
    assert fitted < row["value"] < fitted + 0.05  # the fit's own rows are the best it can do


def test_rows_that_are_all_right_have_every_figure():
    logits = torch.eye(4) * 5
    found = measurement.compute_metrics(Predictions.from_logits(logits, torch.arange(4)))
    assert set(found) == set(measurement.USUAL)
    assert all(math.isfinite(value) for value in found.values())
    assert found["accuracy"] == 1.0


def test_dense_predictions_have_their_figures():
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 3, (2, 5, 6), generator=draw)
    said = Predictions.from_logits(
        torch.randn(2, 3, 5, 6, generator=draw), labels, ignore_index=-1, name="dense"
    )
    found = measurement.compute_metrics(said)
    assert set(found) == set(measurement.DENSE)
    direct = float(metrics.miou(said.array, labels, ignore_index=-1))
    assert found["miou"] == pytest.approx(direct)
    assert measurement.count_rows(said) == int((labels >= 0).sum())
    turned = replace(said, scores=-said.array)
    counts = said.array.argmax(1) != turned.array.argmax(1)
    assert measurement.count_changed(said, turned) == int((counts & (labels >= 0)).sum())


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("temperature", "temperature"),
        (" temperature( objective = 'sb_ece' ) ", "temperature(objective=sb_ece)"),
        ("isotonic(smoothing=2.0, form=m2b)", "isotonic(form=m2b,smoothing=2.0)"),
        ("class_temperature(spread=None)", "class_temperature(spread=None)"),
        ("x(a='b c', d=[1, 2])", "x(a='b c',d=[1,2])"),
    ],
)
def test_methods_are_normalised(text, normalised):
    assert calibrator_text.normalise_text(text) == normalised
    assert calibrator_text.parse(normalised) == calibrator_text.parse(text)


@pytest.mark.parametrize(
    "text", ["", "temperature(", "temperature(1)", "a+b", "f(**x)", "f(a=g())", "1.5"]
)
def test_what_is_no_method_is_refused(text):
    with pytest.raises(InputError, match=r"written name\(option=value"):
        calibrator_text.parse(text)


def test_options_that_are_not_a_calibrators_own_are_its_objectives():
    made = calibrator_text.make("temperature(objective=ece,num_bins=10)")
    assert made.objective_options == {"num_bins": 10}
    with pytest.raises(InputError, match="intra_order has no option colour"):
        calibrator_text.make("intra_order(colour=red)")
    with pytest.raises(InputError, match="fitted on train or validation"):
        calibrator_text.expand_calibrators(["temperature(on=test)"])


def test_argmax_preserving_are_all_that_keep_predictions_and_only_those():
    found = calibrator_text.expand_calibrators(["argmax_preserving", "temperature", "vector"])
    assert found[-1] == "vector"
    assert len(set(found)) == len(found)
    assert {"temperature", "temperature(objective=ece)", "isotonic(form=m2b)"} < set(found)
    draw = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(300, 4, generator=draw)
    labels = torch.distributions.Categorical(logits=logits / 2).sample()
    for text in found[:-1]:
        made = calibrator_text.make(text).fit(logits, labels)
        assert torch.equal(made.calibrate(logits).argmax(1), logits.argmax(1)), text
    later = {"identity", "levels"}  # a new calibrator that keeps predictions belongs here
    for name in set(registry.CALIBRATORS) - later:
        kind = registry.kind_of(name)
        if source_of(name) is None and not (kind.takes_features or kind.dense_only):
            assert get(name).preserves_predictions == (name in found[:-1]), name
    assert "local_temperature" in calibrator_text.expand_calibrators(
        ["argmax_preserving"], dense=True
    )


def test_further_measurements_are_checked_before_any_run():
    check_after("shift", {"severities": [1]})
    check_after("mac_cal_head", {"gamma": 0.95, "then": ["temperature"]})
    with pytest.raises(InputError, match="Did you mean shift"):
        check_after("shif", {})
    with pytest.raises(InputError, match="no option of shift is called 'severity'"):
        check_after("shift", {"severity": 1})
    with pytest.raises(InputError, match="gama"):
        check_after("mac_cal_head", {"gama": 0.95})
