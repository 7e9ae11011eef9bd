"""TensorBoard and MLflow receive figures, intervals, pictures and the report."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

import calibrant
from calibrant import Predictions
from calibrant.core.errors import InputError
from calibrant.integrations.recorder import draw_pictures, list_values, make_table

CURVES = {"classes": {"reliability", "risk_coverage", "classes"}}
CURVES["events"] = {"reliability", "distribution", "decision_curve"}
CURVES["groups"] = {*CURVES["classes"], "groups"}


def make_evaluation(kind="classes", **options):
    rng = np.random.default_rng(0)
    options = {"metrics": ["accuracy", "ece"], **options}
    if kind == "events":
        scores = rng.uniform(size=200)
        return calibrant.evaluate(Predictions.from_events(scores, rng.random(200) < scores))
    logits = rng.normal(size=(200, 3))
    groups = np.arange(200) % 2 if kind == "groups" else None
    predictions = Predictions.from_logits(logits, rng.integers(0, 3, 200), name="noise")
    return calibrant.evaluate(predictions, groups=groups, group_name="parity", **options)


@pytest.mark.parametrize("kind", CURVES)
def test_pictures_suit_what_is_judged(kind):
    pictures = draw_pictures(make_evaluation(kind))
    assert set(pictures) == CURVES[kind]
    assert all(len(figure.axes) == 1 for figure in pictures.values())


def test_values_have_intervals_and_plain_names():
    evaluation = make_evaluation(metrics=["ece", "risk_at_coverage(coverage=0.5)"])
    values = list_values(evaluation, prefix="val_")
    figure = evaluation["risk_at_coverage(coverage=0.5)"]
    name = "val_risk_at_coverage_coverage_0.5"
    assert values[name] == figure.value
    assert (values[f"{name}_low"], values[f"{name}_high"]) == (figure.low, figure.high)
    plain = list_values(make_evaluation(intervals=False))
    assert set(plain) == {"accuracy", "ece"}


def test_tables_show_before_and_after():
    before, after = make_evaluation(), make_evaluation(metrics=["ece"], intervals=False)
    head, _, accuracy, ece = make_table(before, after).split("\n")
    assert head == "| metric | before, 95% interval | after, 95% interval |"
    assert accuracy.endswith("| – |")
    assert ece.startswith("| Expected calibration error | 0.")
    assert " to " in ece.split("|")[2]
    assert " to " not in ece.split("|")[3]


def test_a_missing_library_or_run_says_what_to_do(monkeypatch):
    from calibrant.integrations import mlflow, tensorboard

    with pytest.raises(InputError, match="SummaryWriter, found str"):
        tensorboard.log_evaluation(make_evaluation(intervals=False), "folder")
    stand_in = SimpleNamespace(active_run=lambda: None)
    monkeypatch.setattr(mlflow, "require", lambda *_, **__: stand_in)
    with pytest.raises(InputError, match=r"call mlflow.start_run\(\), or give run_id="):
        mlflow.log_evaluation(make_evaluation(intervals=False))


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_receives_everything(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from calibrant.integrations import tensorboard

    evaluation = make_evaluation()
    with SummaryWriter(tmp_path) as writer:
        for step in (0, 7):
            path = tensorboard.log_evaluation(evaluation, writer, step=step, prefix="val")
    events = EventAccumulator(str(tmp_path)).Reload()
    values = list_values(evaluation)
    assert events.Tags()["scalars"] == [f"val/{name}" for name in values]
    for name, value in values.items():
        records = events.Scalars(f"val/{name}")
        assert [record.step for record in records] == [0, 7]
        assert records[1].value == pytest.approx(value, rel=1e-6)
    assert set(events.Tags()["images"]) == {f"val/{name}" for name in CURVES["classes"]}
    assert events.Images("val/reliability")[0].encoded_image_string.startswith(b"\x89PNG")
    text = events.Tensors("val/summary/text_summary")[1].tensor_proto.string_val[0].decode()
    assert evaluation.verdict.headline in text
    assert "| Accuracy | " in text
    assert path == tmp_path / "val-report-7.html"
    assert f"Report: `{path}`" in text
    assert "noise" in path.read_text(encoding="utf-8")


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
def test_mlflow_receives_everything(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    from calibrant.integrations.mlflow import log_evaluation

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    evaluation = make_evaluation()
    experiment = mlflow.create_experiment("a", artifact_location=(tmp_path / "files").as_uri())
    with mlflow.start_run(experiment_id=experiment) as run:
        for step in (0, 7):
            log_evaluation(evaluation, step=step, prefix="val")
    client = mlflow.MlflowClient()
    stored = client.get_run(run.info.run_id)
    assert stored.data.metrics == pytest.approx(list_values(evaluation, prefix="val_"))
    assert [each.step for each in client.get_metric_history(run.info.run_id, "val_ece")] == [0, 7]
    assert stored.data.tags["val_verdict"] == evaluation.verdict.headline
    names = {each.path for each in client.list_artifacts(run.info.run_id, "val/7")}
    pictures = {f"val/7/{name}.png" for name in CURVES["classes"]}
    assert names == {*pictures, "val/7/report.html", "val/7/evaluation.json"}
    file = client.download_artifacts(run.info.run_id, "val/7/evaluation.json", str(tmp_path))
    with open(file, encoding="utf-8") as opened:
        assert json.load(opened)["name"] == "noise"
    log_evaluation(evaluation, run_id=run.info.run_id, pictures=False, write_report=False)
    assert client.get_metric_history(run.info.run_id, "calibration_ece")


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", ["tensorboard", "mlflow"])
def test_the_lightning_callback_sends_pictures_and_files(tmp_path, library):
    pytest.importorskip("lightning")
    pytest.importorskip(library)
    from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger

    from calibrant.integrations.lightning import CalibrationCallback
    from tests.integrations.test_lightning import Classifier, loader, make_trainer

    if library == "tensorboard":
        logger = TensorBoardLogger(tmp_path)
    else:
        files = (tmp_path / "files").as_uri()
        logger = MLFlowLogger(tracking_uri=f"sqlite:///{tmp_path}/runs.db", artifact_location=files)
    callback = CalibrationCallback(tmp_path / "out", method="temperature")
    trainer = make_trainer(tmp_path, callback, logger=logger, max_epochs=1)
    module = Classifier()
    trainer.fit(module, loader(100, 1), loader())
    trainer.test(module, loader(200, 2), verbose=False)
    if library == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(logger.log_dir).Reload()
        assert "val_ece_low" in events.Tags()["scalars"]
        assert "calibration_val/reliability" in events.Tags()["images"]
        assert "calibration_test/reliability" in events.Tags()["images"]
    else:
        client, run_id = logger.experiment, logger.run_id
        assert "val_ece_low" in client.get_run(run_id).data.metrics
        names = {each.path for each in client.list_artifacts(run_id, "calibration")}
        assert names == {"calibration/calibrator.safetensors", "calibration/report.html"}
        pictures = {each.path for each in client.list_artifacts(run_id, "calibration_val/2")}
        assert "calibration_val/2/reliability.png" in pictures
