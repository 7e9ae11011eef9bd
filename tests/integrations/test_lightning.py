"""The Lightning callback judges, repairs and reports, with the real library."""

from __future__ import annotations

import csv
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant import Predictions
from calibrant.core.errors import InputError

pl = pytest.importorskip("lightning.pytorch")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from calibrant.integrations.lightning import CalibrationCallback  # noqa: E402

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
CENTRES = torch.eye(4, 6) * 2


class Classifier(pl.LightningModule):
    """A linear network of four classes that never learns, unless given a rate."""

    def __init__(self, *, returns="nothing", rate=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Linear(6, 4)
        self.network.weight.data.copy_(4 * CENTRES)
        self.returns, self.rate, self.calls = returns, rate, 0

    def forward(self, values):
        self.calls += 1
        return self.network(values)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        logits = self(batch[0])
        if self.returns == "logits":
            return {"logits": logits, "labels": batch[1]}
        return None

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


def rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    return TensorDataset(CENTRES[labels] + torch.randn(count, 6, generator=generator), labels)


def loader(count=300, seed=0):
    return DataLoader(rows(count, seed), batch_size=64)


def make_trainer(folder, *callbacks, **options):
    settings = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": any(isinstance(each, ModelCheckpoint) for each in callbacks),
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }
    return pl.Trainer(callbacks=list(callbacks), **{**settings, **options})


def predict(module, data):
    values, labels = data.tensors
    with torch.no_grad():
        return Predictions.from_logits(module(values), labels)


@pytest.mark.parametrize("returns", ["nothing", "logits"])
def test_validations_log_the_figures_of_all_rows(tmp_path, returns):
    module, callback = Classifier(returns=returns), CalibrationCallback(method=None)
    trainer = make_trainer(tmp_path, callback, max_epochs=1)
    trainer.fit(module, loader(100, 1), loader())
    calls = module.calls
    expected = calibrant.evaluate(predict(module, rows(300, 0)), metrics=("accuracy", "nll", "ece"))
    logged = trainer.callback_metrics
    for name, figure in expected.figures.items():
        assert float(logged[f"val_{name}"]) == pytest.approx(figure.value, rel=1e-5)
        assert float(logged[f"val_{name}_low"]) == pytest.approx(figure.low, rel=1e-5)
        assert float(logged[f"val_{name}_high"]) == pytest.approx(figure.high, rel=1e-5)
    assert calls == 2 + (7 if returns == "logits" else 12)  # 2 of training, 2 of the sanity check
    assert callback.evaluation_.name == "Classifier"
    assert callback.calibrator_ is None
    pictures = sorted(path.name for path in (tmp_path / "calibration").iterdir())
    assert pictures == ["reliability-epoch=0-step=2.png"]


def test_the_end_fits_saves_and_attaches_and_a_test_reports(tmp_path):
    module = Classifier(rate=0.01)
    callback = CalibrationCallback(tmp_path / "out", method="temperature", picture_every=0)
    trainer = make_trainer(tmp_path, callback)
    trainer.fit(module, loader(100, 1), loader())
    held_out, test = predict(module, rows(300, 0)), predict(module, rows(400, 2))
    expected = calibrant.calibrate(held_out, method="temperature")
    loaded = calibrant.load(tmp_path / "out" / "calibrator.safetensors")
    wanted = expected.calibrate(test.array)
    np.testing.assert_allclose(loaded.calibrate(test.array), wanted, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        scores = callback.calibrated_(rows(400, 2).tensors[0])
    np.testing.assert_allclose(scores, wanted, rtol=1e-4, atol=1e-4)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["calibrator.safetensors"]
    [logged] = trainer.test(module, loader(400, 2), verbose=False)
    before = calibrant.evaluate(test, intervals=False)
    after = calibrant.evaluate(Predictions.from_logits(wanted, test.labels), intervals=False)
    assert logged["test_nll"] == pytest.approx(before["nll"].value, rel=1e-4)
    assert logged["test_calibrated_nll"] == pytest.approx(after["nll"].value, rel=1e-4)
    assert logged["test_calibrated_nll"] < logged["test_nll"]
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert 'id="repair"' in text
    assert "400" in text


def test_the_last_validation_is_repeated_if_training_went_on(tmp_path):
    module = Classifier(rate=1.0)
    callback = CalibrationCallback(method="temperature", picture_every=0)
    trainer = make_trainer(tmp_path, callback, check_val_every_n_epoch=2, max_epochs=3)
    trainer.fit(module, loader(100, 1), loader())
    expected = calibrant.calibrate(predict(module, rows(300, 0)), method="temperature")
    scores = predict(module, rows(400, 2)).array
    np.testing.assert_allclose(
        callback.calibrator_.calibrate(scores), expected.calibrate(scores), rtol=1e-4, atol=1e-4
    )


class Keeper(pl.Callback):
    """Keeps the weights that later callbacks see when training ends."""

    def on_train_end(self, trainer, pl_module):
        self.weights = pl_module.network.weight.detach().clone()


def test_the_best_weights_are_calibrated_where_they_are_to_be_used(tmp_path):
    module = Classifier(rate=1.0)
    # The first epoch has the largest NLL: the best by this measure, and not the last.
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_nll", mode="max")
    callback = CalibrationCallback(method="temperature", weights="best", picture_every=0)
    keeper = Keeper()
    trainer = make_trainer(tmp_path, callback, keeper, checkpoint, max_epochs=4)
    trainer.fit(module, loader(100, 1), loader())
    best = torch.load(checkpoint.best_model_path, weights_only=True)["state_dict"]
    assert torch.equal(module.network.weight, best["network.weight"])
    assert not torch.equal(keeper.weights, best["network.weight"])
    expected = calibrant.calibrate(predict(module, rows(300, 0)), method="temperature")
    scores = predict(module, rows(400, 2)).array
    np.testing.assert_allclose(
        callback.calibrator_.calibrate(scores), expected.calibrate(scores), rtol=1e-4, atol=1e-4
    )
    [logged] = trainer.test(module, loader(400, 2), ckpt_path="best", verbose=False)
    assert logged["test_calibrated_nll"] < logged["test_nll"]


def test_a_calibrator_of_other_weights_is_refused(tmp_path):
    module, callback = Classifier(), CalibrationCallback(method="temperature", picture_every=0)
    trainer = make_trainer(tmp_path, callback, max_epochs=1)
    trainer.fit(module, loader(100, 1), loader())
    module.network.weight.data *= 1.01
    with pytest.raises(InputError, match=r"fitted to other weights.*weights='best'"):
        trainer.test(module, loader(), verbose=False)


def test_figures_can_be_monitored_and_reach_loggers(tmp_path):
    module = Classifier(rate=0.1)
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_ece", mode="min")
    callback = CalibrationCallback(metrics=["ece", "smooth_ece"], intervals=False, method=None)
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    trainer = make_trainer(tmp_path, callback, checkpoint, logger=logger)
    trainer.fit(module, loader(100, 1), loader())
    with open(tmp_path / "lightning_logs" / "version_0" / "metrics.csv", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    assert [float(record["val_ece"]) for record in records]
    assert set(records[0]) == {"epoch", "step", "val_ece", "val_smooth_ece"}
    assert float(checkpoint.best_model_score) == pytest.approx(
        min(float(record["val_ece"]) for record in records), rel=1e-5
    )
    pictures = list((tmp_path / "lightning_logs" / "version_0" / "calibration").iterdir())
    assert len(pictures) == 2


def test_rows_of_other_shapes_are_read_as_they_are_told_to(tmp_path):
    """Binary logits of one column, dicts, class names, and a function of one's own."""

    class Binary(Classifier):
        def forward(self, values):
            return super().forward(values)[:, :1]

        def training_step(self, batch, batch_idx):
            return super().forward(batch["values"]).square().mean()

        def validation_step(self, batch, batch_idx):
            return None

    values, labels = rows(200, 0).tensors
    batches = DataLoader([{"values": values, "label": (labels == 0).long()}], batch_size=None)
    callback = CalibrationCallback(method=None, picture_every=0)
    make_trainer(tmp_path, callback, max_epochs=1).fit(Binary(), batches, batches)
    assert callback.evaluation_.view == "events"

    class Triples(Classifier):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch[:2], batch_idx)

    triples = DataLoader([(values, labels, torch.arange(200))], batch_size=None)
    plain = CalibrationCallback(method=None, picture_every=0)
    with pytest.raises(InputError, match=r"return .*'logits'.* from validation_step"):
        make_trainer(tmp_path, plain, max_epochs=1).fit(Triples(), triples, triples)
    named = CalibrationCallback(
        method=None,
        picture_every=0,
        read_batch=lambda module, batch: (module(batch[0]), batch[1]),
        make_predictions=partial(Predictions.from_logits, class_names=list("abcd"), name="birds"),
    )
    make_trainer(tmp_path, named, max_epochs=1).fit(Triples(), triples, triples)
    assert named.evaluation_.class_names == tuple("abcd")
    assert named.evaluation_.name == "birds"


def test_a_fit_that_cannot_be_calibrated_is_refused_before_it_starts(tmp_path):
    with pytest.raises(InputError, match="needs validation rows"):
        make_trainer(tmp_path, CalibrationCallback()).fit(Classifier(), loader())
    trainer = make_trainer(tmp_path, CalibrationCallback(weights="best"))
    with pytest.raises(InputError, match="needs a ModelCheckpoint"):
        trainer.fit(Classifier(), loader(), loader())
    with pytest.raises(InputError, match="found 'first'"):
        CalibrationCallback(weights="first")


@pytest.mark.slow
def test_two_processes_judge_the_rows_of_both(tmp_path):
    module = Classifier()
    callback = CalibrationCallback(tmp_path / "out", method="temperature", picture_every=0)
    trainer = make_trainer(tmp_path, callback, max_epochs=1, devices=2, strategy="ddp_spawn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(module, loader(100, 1), loader())
    single = CalibrationCallback(tmp_path / "one", method="temperature", picture_every=0)
    alone = make_trainer(tmp_path, single, max_epochs=1)
    alone.fit(Classifier(), loader(100, 1), loader())
    for name in ("val_nll", "val_ece", "val_accuracy"):
        assert float(trainer.callback_metrics[name]) == pytest.approx(
            float(alone.callback_metrics[name]), rel=1e-5
        )
    both, one = (
        calibrant.load(tmp_path / part / "calibrator.safetensors") for part in ("out", "one")
    )
    scores = predict(Classifier(), rows(50, 2)).array
    np.testing.assert_allclose(both.calibrate(scores), one.calibrate(scores), rtol=1e-4)
