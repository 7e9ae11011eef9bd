"""Lightning: a callback that judges every validation and repairs the network at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.calibrators import Calibrator, attach
from calibrant.calibrators.attach import Calibrated
from calibrant.core.errors import InputError
from calibrant.core.extras import require
from calibrant.evaluation import Evaluation
from calibrant.integrations import mlflow, tensorboard
from calibrant.integrations.recorder import (
    CALIBRATOR,
    METRICS,
    REPORT,
    MakePredictions,
    Recorder,
    gather_rows,
    list_values,
    save_picture,
)
from calibrant.predictions import Predictions
from calibrant.predictions.model import (
    TARGET_KEYS,
    RowBuffer,
    call_model,
    find_scores,
    set_evaluation_mode,
    split_batch,
)

require("lightning", extra="lightning", purpose="a Lightning callback")
from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger  # noqa: E402

__all__ = ["CalibrationCallback"]

ReadBatch = Callable[[LightningModule, Any], tuple[Tensor, Tensor]]


class CalibrationCallback(Callback):
    """Judges each validation, fits a calibrator at the end, and judges both on test rows.

    Each validation logs ``val_NAME``, ``val_NAME_low`` and ``val_NAME_high`` for every metric, for
    checkpoints and early stopping to monitor, and writes a reliability picture, which goes to
    TensorBoard and MLflow loggers too. At the end of the fit ``calibrator_`` is fitted on the
    validation rows and saved, and ``calibrated_`` is the network with the calibrator attached.
    ``trainer.test`` then writes the report, before and after the repair, on rows that the
    calibrator has not seen. Logits are kept on the CPU, one float for each row and class.

    A batch is an (input, target) pair or a dict with a label, and the module's ``forward`` gives
    logits. If ``validation_step`` returns a dict with ``logits``, and with the labels if the batch
    has them elsewhere, the network is not run a second time.

    With several processes the rows of all are gathered; Lightning's sampler may repeat a few of
    them so that each process has as many.

    Args:
        folder: Output folder. Default: None (``calibration`` in the logger's folder, or in the
            trainer's root).
        metrics: The names of the metrics to log. Default: ('accuracy', 'nll', 'ece').
        intervals: Whether to log intervals. Default: True (0.2 s for 10,000 rows of 100 classes).
        method: The calibrator to fit; ``"auto"`` chooses, None fits none. Default: 'auto' (as in
            `calibrate`).
        options: Options of `calibrate`. Default: None (its defaults).
        weights: The weights to fit the calibrator to: the ``"last"``, or the ``"best"`` by
            ``ModelCheckpoint``, which are then loaded into the module. Default: 'last' (what the
            module holds after the fit).
        make_predictions: A function of logits and labels. Default: None
            (`Predictions.from_logits`; ``Predictions.from_multilabel`` for many labels a row,
            ``functools.partial`` for class names or an ignored label).
        read_batch: A function of the module and a batch that returns logits and labels. Default:
            None (as above).
        picture_every: Write a picture every so many validations; 0 for none. Default: 1.
        dataloader_idx: Which of several loaders is judged. Default: 0 (the first).
        seed: Random seed. Default: 0.
    """

    calibrator_: Calibrator | None = None
    calibrated_: Calibrated | None = None
    evaluation_: Evaluation | None = None  # of the last validation

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        metrics: Sequence[str] = METRICS,
        intervals: bool = True,
        method: str | None = "auto",
        options: Mapping[str, Any] | None = None,
        weights: Literal["last", "best"] = "last",
        make_predictions: MakePredictions | None = None,
        read_batch: ReadBatch | None = None,
        picture_every: int = 1,
        dataloader_idx: int = 0,
        seed: int = 0,
    ) -> None:
        if weights not in ("last", "best"):
            raise InputError(f"weights must be 'last' or 'best', found {weights!r}")
        self.folder = None if folder is None else Path(folder)
        self.weights, self.make_predictions = weights, make_predictions or Predictions.from_logits
        self.read_batch, self.picture_every = read_batch, picture_every
        self.dataloader_idx = dataloader_idx
        self._recorder = Recorder(
            metrics=metrics, intervals=intervals, method=method, options=options, seed=seed
        )
        self._buffers: tuple[RowBuffer, RowBuffer] | None = None
        self._held_out: tuple[int, Predictions] | None = None  # the step, and the rows
        self._weights_sum: Tensor | None = None  # of the network that the calibrator belongs to
        self._validations = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a fit without validation rows, before it starts."""
        if not trainer.enable_validation:
            raise InputError(
                "CalibrationCallback needs validation rows: give trainer.fit a validation loader, "
                "and the module a validation_step"
            )
        if self.weights == "best" and not self._find_checkpoint(trainer):
            raise InputError("weights='best' needs a ModelCheckpoint with monitor= and mode=")

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget the rows of the validation before."""
        self._buffers = None

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the logits and labels of a batch."""
        if dataloader_idx != self.dataloader_idx or trainer.sanity_checking:
            return
        if self.read_batch is None and isinstance(outputs, Mapping) and "logits" in outputs:
            labels = [outputs[key] for key in TARGET_KEYS if key in outputs]
            self._keep(outputs["logits"], labels[0] if labels else _split(batch)[1])
        else:
            self._keep(*self._run(trainer, pl_module, batch))

    on_test_batch_end = on_validation_batch_end

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge the rows, log the figures and write the picture."""
        if trainer.sanity_checking or self._buffers is None:
            return
        predictions = self._take_rows(pl_module)
        self._held_out = (trainer.global_step, predictions)
        self.evaluation_ = self._recorder.judge(predictions)
        # Every process has all rows, so that each finds the same value to monitor.
        pl_module.log_dict(list_values(self.evaluation_, prefix="val_"), rank_zero_only=True)
        folder = self._find_folder(trainer)
        drawn = self.picture_every and self._validations % self.picture_every == 0
        self._validations += 1
        if drawn and trainer.is_global_zero:
            name = f"reliability-epoch={trainer.current_epoch}-step={trainer.global_step}.png"
            save_picture(self.evaluation_, folder / name)
            self._log_evaluation(trainer, self.evaluation_, "val", write_report=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit the calibrator on the validation rows, and save it."""
        if self._recorder.method is None:
            return
        folder = self._find_folder(trainer)
        last = None
        if self.weights == "best":  # other callbacks may save the last weights after this
            last = {name: value.clone() for name, value in pl_module.state_dict().items()}
            self._load_best(trainer, pl_module)
        predictions = self._find_held_out(trainer, pl_module)
        self._weights_sum = _sum_weights(pl_module)
        if last is not None:
            pl_module.load_state_dict(last)
        self.calibrator_ = self._recorder.fit(predictions)
        if trainer.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            self._log_file(trainer, self.calibrator_.save(folder / CALIBRATOR))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the calibrator to the network whose weights it was fitted to."""
        if self.calibrator_ is None:
            return
        if self.weights == "best":
            self._load_best(trainer, pl_module)
        self.calibrated_ = attach(pl_module, self.calibrator_)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge the test rows before and after the repair, and write the report."""
        if self._buffers is None:
            return
        predictions, folder = self._take_rows(pl_module), self._find_folder(trainer)
        if self._weights_sum is not None:
            total = _sum_weights(pl_module)
            if not torch.allclose(total, self._weights_sum, rtol=1e-9, atol=1e-9):
                raise InputError(
                    "the calibrator was fitted to other weights than those under test: test the "
                    "module as the fit left it (not ckpt_path='best'), or give the callback "
                    "weights='best'"
                )
        calibrator, path = self.calibrator_, folder / REPORT
        values = list_values(self._recorder.judge(predictions), prefix="test_")
        if calibrator is not None:
            repaired = self._recorder.repair(calibrator, predictions)
            values |= list_values(self._recorder.judge(repaired), prefix="test_calibrated_")
        pl_module.log_dict(values, rank_zero_only=True)
        if trainer.is_global_zero:
            before, _ = self._recorder.write_report(predictions, path, calibrator=calibrator)
            self._log_evaluation(trainer, before, "test", write_report=False)
            self._log_file(trainer, path)

    def _run(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any
    ) -> tuple[Tensor, Tensor]:
        """Run the network on a batch."""
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            if self.read_batch is not None:
                return self.read_batch(pl_module, batch)
            inputs, labels = _split(batch)
            return find_scores(call_model(pl_module, inputs), "logits"), torch.as_tensor(labels)

    def _keep(self, logits: Any, labels: Any) -> None:
        logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)
        if logits.ndim == 2 and logits.shape[1] == 1:
            logits = logits.squeeze(1)
        if len(logits) != len(labels):
            raise InputError(
                f"found logits of shape {tuple(logits.shape)} for labels of shape "
                f"{tuple(labels.shape)}: expected a row for each label"
            )
        if self._buffers is None:
            self._buffers = (RowBuffer("outputs", None), RowBuffer("labels", None))
        for buffer, rows in zip(self._buffers, (logits.detach(), labels), strict=True):
            buffer.add(rows)

    def _take_rows(self, pl_module: LightningModule) -> Predictions:
        """Return the rows kept, of every process, as predictions."""
        assert self._buffers is not None
        logits, labels = (gather_rows(buffer.result()) for buffer in self._buffers)
        self._buffers = None
        predictions = self.make_predictions(logits, labels)
        if predictions.name == "predictions":
            return replace(predictions, name=type(pl_module).__name__)
        return predictions

    def _find_held_out(self, trainer: Trainer, pl_module: LightningModule) -> Predictions:
        """Return predictions of the validation rows by the weights to calibrate."""
        fresh = self._held_out is not None and self._held_out[0] == trainer.global_step
        if self._held_out is not None and fresh and self.weights == "last":
            return self._held_out[1]
        loader = _find_loader(trainer.val_dataloaders, self.dataloader_idx)
        self._buffers = None
        with set_evaluation_mode(pl_module):
            for batch in loader:
                placed = trainer.precision_plugin.convert_input(batch)
                placed = trainer.strategy.batch_to_device(placed)
                self._keep(*self._run(trainer, pl_module, placed))
        return self._take_rows(pl_module)

    def _find_folder(self, trainer: Trainer) -> Path:
        """Return the output folder; every process must ask."""
        default = trainer.log_dir or trainer.default_root_dir
        return self.folder or Path(default) / "calibration"

    def _load_best(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Load the best weights of the fit into the module."""
        path = getattr(self._find_checkpoint(trainer), "best_model_path", "")
        if not path:
            raise InputError("weights='best', but ModelCheckpoint has saved no checkpoint")
        # Weights alone: a checkpoint's other objects could run code.
        state = torch.load(path, map_location="cpu", weights_only=True)
        pl_module.load_state_dict(state["state_dict"])

    @staticmethod
    def _find_checkpoint(trainer: Trainer) -> ModelCheckpoint | None:
        chosen = [
            callback
            for callback in trainer.checkpoint_callbacks
            if isinstance(callback, ModelCheckpoint)
        ]
        return next((callback for callback in chosen if callback.monitor is not None), None)

    @staticmethod
    def _log_evaluation(
        trainer: Trainer, evaluation: Evaluation, stage: str, *, write_report: bool
    ) -> None:
        """Send an evaluation to the loggers that take more than figures."""
        options: dict[str, Any] = {"step": trainer.global_step, "write_report": write_report}
        prefix = f"calibration_{stage}"
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                tensorboard.log_evaluation(evaluation, logger.experiment, prefix=prefix, **options)
            elif isinstance(logger, MLFlowLogger) and logger.run_id is not None:
                options |= {"client": logger.experiment, "run_id": logger.run_id}
                mlflow.log_evaluation(evaluation, prefix=prefix, **options)

    @staticmethod
    def _log_file(trainer: Trainer, path: Path) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, MLFlowLogger):
                logger.experiment.log_artifact(logger.run_id, str(path), "calibration")


def _split(batch: Any) -> tuple[Any, Any]:
    try:
        return split_batch(batch)
    except InputError as error:
        raise InputError(
            f"{error}; or return {{'logits': ..., 'labels': ...}} from validation_step, or give "
            "CalibrationCallback read_batch="
        ) from None


def _find_loader(loaders: Any, index: int) -> Any:
    if isinstance(loaders, Mapping):
        return list(loaders.values())[index]
    return loaders[index] if isinstance(loaders, (list, tuple)) else loaders


def _sum_weights(module: LightningModule) -> Tensor:
    """Return a sum of each tensor, by which weights are recognised."""
    tensors = [value for value in module.state_dict().values() if value.is_floating_point()]
    return torch.stack([tensor.detach().double().sum().cpu() for tensor in tensors])
