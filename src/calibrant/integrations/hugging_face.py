"""Hugging Face: a callback and loss of a ``Trainer``, and a block of a model card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from calibrant import losses
from calibrant.calibrators import Calibrator, attach
from calibrant.calibrators.attach import Calibrated
from calibrant.core.errors import InputError
from calibrant.core.extras import require
from calibrant.core.files import replace_file
from calibrant.evaluation import Evaluation
from calibrant.functional.arrays import as_numpy
from calibrant.integrations.recorder import (
    CALIBRATOR,
    METRICS,
    REPORT,
    MakePredictions,
    Recorder,
    gather_rows,
    list_values,
    make_table,
    save_picture,
)
from calibrant.predictions import Predictions
from calibrant.predictions.model import find_scores, set_evaluation_mode

require("transformers", extra="huggingface", purpose="a callback of a Trainer")
from transformers import TrainerCallback  # noqa: E402

__all__ = [
    "CalibrationCallback",
    "TrainerLoss",
    "compute_metrics",
    "make_model_card_block",
    "read_output",
    "write_model_card_block",
]

Array = npt.NDArray[Any]
IGNORED = -100  # the label of tokens that do not count
_BEGIN, _END = "<!-- calibrant: begin -->", "<!-- calibrant: end -->"


def read_output(
    output: Any, *, make_predictions: MakePredictions | None = None, name: str = "predictions"
) -> Predictions:
    """Return predictions from what ``trainer.predict`` returns, or ``compute_metrics`` is given.

    Where each token has a label, a row is a token; tokens labelled -100 are left out, and the
    tokens of a text are one cluster, because they are alike.

    Args:
        output: An object with ``predictions``, the logits, and ``label_ids``.
        make_predictions: A function of logits and labels. Default: None
            (`Predictions.from_logits`; ``Predictions.from_multilabel`` for many labels a row,
            ``functools.partial`` for class names).
        name: The name shown in reports. Default: 'predictions'.
    """
    logits, labels = (
        value[0] if isinstance(value, (tuple, list)) else value
        for value in (output.predictions, output.label_ids)
    )
    if labels is None:
        raise InputError("the rows have no labels: give the Trainer a data set with labels")
    logits, labels, texts = as_numpy(logits), as_numpy(labels), None
    if _is_of_tokens(logits, labels):
        logits, labels, texts = _flatten_tokens(logits, labels)
    predictions = _make_predictions(logits, labels, make_predictions, texts)
    return replace(predictions, name=name) if predictions.name == "predictions" else predictions


def _is_of_tokens(logits: Array, labels: Array) -> bool:
    return logits.ndim == 3 and labels.ndim == 2


def _flatten_tokens(logits: Array, labels: Array) -> tuple[Array, Array, Array]:
    """Return the tokens that count, and the text of each."""
    kept = labels != IGNORED
    return logits[kept], labels[kept], kept.nonzero()[0]


def _make_predictions(
    logits: Array, labels: Array, make_predictions: MakePredictions | None, texts: Array | None
) -> Predictions:
    if logits.ndim == 2 and logits.shape[1] == 1 and labels.ndim == 1:
        logits = logits[:, 0]
    predictions = (make_predictions or Predictions.from_logits)(logits, labels)
    return predictions if texts is None else replace(predictions, clusters=texts)


def compute_metrics(
    output: Any,
    *,
    metrics: Sequence[str] = METRICS,
    intervals: bool = True,
    make_predictions: MakePredictions | None = None,
) -> dict[str, float]:
    """Return figures and their intervals, for ``Trainer(compute_metrics=compute_metrics)``.

    The keys are ``ece``, ``ece_low`` and ``ece_high``, which the Trainer shows as ``eval_ece`` and
    so on. ``functools.partial`` sets options.

    Args:
        output: What the Trainer gives: logits and labels.
        metrics: The names of the metrics. Default: ('accuracy', 'nll', 'ece').
        intervals: Whether to add intervals. Default: True.
        make_predictions: As in `read_output`. Default: None.
    """
    recorder = Recorder(metrics=metrics, intervals=intervals, method=None, options=None, seed=0)
    predictions = read_output(output, make_predictions=make_predictions)
    return list_values(recorder.judge(predictions))


class CalibrationCallback(TrainerCallback):  # type: ignore[misc]
    """Judges each evaluation of a ``Trainer``, and fits a calibrator at the end of training.

    Each evaluation writes a reliability picture, and logs figures with their intervals if the
    Trainer is given this object's `compute_metrics`; else the model is run a second time. At the
    end of training ``calibrator_`` is fitted on the evaluation rows and saved, and ``calibrated_``
    is the model with the calibrator attached (None where each token has a label). With
    ``load_best_model_at_end`` both belong to the best model. `report` judges it on rows that the
    calibrator has not seen. The rows are those of the last evaluation set, if there are several.

    Args:
        folder: Output folder. Default: None (``calibration`` in the Trainer's ``output_dir``).
        metrics: The names of the metrics to log. Default: ('accuracy', 'nll', 'ece').
        intervals: Whether to log intervals. Default: True.
        method: The calibrator to fit; ``"auto"`` chooses, None fits none. Default: 'auto' (as in
            `calibrate`).
        options: Options of `calibrate`. Default: None (its defaults).
        make_predictions: As in `read_output`. Default: None.
        on_evaluation: A function of each `Evaluation` and its step, such as one that calls
            ``log_evaluation`` of `calibrant.integrations.tensorboard`. Default: None.
        picture_every: Write a picture every so many evaluations; 0 for none. Default: 1.
        seed: Random seed. Default: 0.
    """

    calibrator_: Calibrator | None = None
    calibrated_: Calibrated | None = None
    evaluation_: Evaluation | None = None  # the last

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        metrics: Sequence[str] = METRICS,
        intervals: bool = True,
        method: str | None = "auto",
        options: Mapping[str, Any] | None = None,
        make_predictions: MakePredictions | None = None,
        on_evaluation: Callable[[Evaluation, int], object] | None = None,
        picture_every: int = 1,
        seed: int = 0,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        self.make_predictions, self.on_evaluation = make_predictions, on_evaluation
        self.picture_every = picture_every
        self._recorder = Recorder(
            metrics=metrics, intervals=intervals, method=method, options=options, seed=seed
        )
        self._pending: tuple[Predictions, Evaluation] | None = None  # until on_evaluate
        self._held_out: tuple[int, Predictions] | None = None  # the step, and the rows
        self._evaluations = 0

    def compute_metrics(self, output: Any) -> dict[str, float]:
        """Return the figures, for ``Trainer(compute_metrics=...)``, and keep the rows."""
        predictions = read_output(output, make_predictions=self.make_predictions)
        self._pending = (predictions, self._recorder.judge(predictions))
        return list_values(self._pending[1])

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Judge the rows and write the picture."""
        if self._pending is None:
            predictions = self._run(kwargs["model"], kwargs["eval_dataloader"])
            self._pending = (predictions, self._recorder.judge(predictions))
        (predictions, evaluation), self._pending = self._pending, None
        name = type(kwargs["model"]).__name__
        if predictions.name == "predictions":
            predictions, evaluation = replace(predictions, name=name), evaluation.renamed(name)
        self._held_out, self.evaluation_ = (state.global_step, predictions), evaluation
        drawn = self.picture_every and self._evaluations % self.picture_every == 0
        self._evaluations += 1
        if not state.is_world_process_zero:
            return
        if drawn:
            folder = self._find_folder(args)
            save_picture(evaluation, folder / f"reliability-step={state.global_step}.png")
        if self.on_evaluation is not None:
            self.on_evaluation(evaluation, state.global_step)

    def on_predict(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget rows that were predicted and not evaluated."""
        self._pending = None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Fit the calibrator on the evaluation rows of the final model, attach it and save it."""
        if self._recorder.method is None:
            return
        model, loader = kwargs["model"], kwargs.get("eval_dataloader")
        fresh = self._held_out is not None and self._held_out[0] == state.global_step
        if self._held_out is not None and fresh and not args.load_best_model_at_end:
            predictions = self._held_out[1]
        elif loader is not None:
            predictions = self._run(model, loader)
        else:
            raise InputError(
                "there was no evaluation to fit a calibrator on: set eval_strategy='epoch' and "
                "eval_dataset, or method=None"
            )
        self.calibrator_ = self._recorder.fit(predictions)
        if predictions.clusters is None:  # tokens have their classes last
            self.calibrated_ = attach(model, self.calibrator_)
        if state.is_world_process_zero:
            folder = self._find_folder(args)
            folder.mkdir(parents=True, exist_ok=True)
            self.calibrator_.save(folder / CALIBRATOR)

    def report(self, output: Any, path: str | Path | None = None) -> str:
        """Write the report before and after the repair, and return a block for the model card.

        Args:
            output: What ``trainer.predict`` returned on rows that the calibrator has not seen.
            path: The file to write. Default: None (``report.html`` in the output folder).
        """
        if path is None and self.folder is None:
            raise InputError("say where to write the report: report(output, PATH)")
        target = Path(path) if path is not None else (self.folder or Path()) / REPORT
        name = "predictions" if self.evaluation_ is None else self.evaluation_.name
        predictions = read_output(output, make_predictions=self.make_predictions, name=name)
        before, after = self._recorder.write_report(
            predictions, target, calibrator=self.calibrator_
        )
        return make_model_card_block(before, after=after, calibrator=self.calibrator_)

    def _find_folder(self, args: Any) -> Path:
        self.folder = self.folder or Path(args.output_dir) / "calibration"
        return self.folder

    def _run(self, model: nn.Module, loader: Any) -> Predictions:
        """Run the model over the rows of an evaluation, in every process."""
        device = next(model.parameters()).device
        parts: list[tuple[Array, Array, Array]] = []
        texts = 0
        tokens = False
        with set_evaluation_mode(model), torch.no_grad():
            for batch in loader:
                inputs = {key: value.to(device) for key, value in batch.items()}
                if "labels" not in inputs:
                    raise InputError(f"a batch has no labels; found {', '.join(inputs)}")
                labels = inputs.pop("labels").cpu().numpy()
                logits = find_scores(model(**inputs), "logits").float().cpu().numpy()
                tokens = tokens or _is_of_tokens(logits, labels)
                text = np.arange(len(labels))
                if tokens:
                    logits, labels, text = _flatten_tokens(logits, labels)
                parts.append((logits, labels, text + texts))
                texts += len(batch["labels"])
        joined = (np.concatenate(part) for part in zip(*parts, strict=True))
        logits, labels, text = (gather_rows(torch.from_numpy(part)).numpy() for part in joined)
        return _make_predictions(logits, labels, self.make_predictions, text if tokens else None)


class TrainerLoss:
    """A loss of calibrant as ``Trainer(compute_loss_func=TrainerLoss("focal+0.5*s_avuc"))``.

    Gradients that the Trainer adds up over several batches are those of the mean over all their
    labels, if they have as many labels each. Evaluations are scored by cross-entropy, so that
    losses can be compared by them. Labels of -100 are ignored; those of a causal language model
    must be shifted by one place first, which this does not do.

    Args:
        objective: A text that `losses.get` reads, or a loss.
    """

    def __init__(self, objective: str | nn.Module) -> None:
        self.loss = losses.get(objective) if isinstance(objective, str) else objective

    def __call__(
        self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the loss of one batch's outputs, scaled to its part of a step."""
        logits = find_scores(outputs, "logits").movedim(-1, 1)  # classes second, for tokens too
        if not torch.is_grad_enabled():
            return nn.functional.cross_entropy(logits, labels)
        value: Tensor = self.loss.to(logits.device)(logits, labels)
        if num_items_in_batch is None:
            return value
        return value * ((labels != IGNORED).sum() / num_items_in_batch)


def make_model_card_block(
    evaluation: Evaluation,
    *,
    after: Evaluation | None = None,
    calibrator: Calibrator | None = None,
    file: str = CALIBRATOR,
) -> str:
    """Return a section of a model card: the verdict, the figures, how to load the calibrator.

    Args:
        evaluation: The result of `calibrant.evaluate` on test rows.
        after: The same rows after the repair. Default: None (there was none).
        calibrator: The calibrator. Default: None (there is none).
        file: The name of its file beside the model. Default: 'calibrator.safetensors'.
    """
    parts = ["## Calibration"]
    final = evaluation if after is None else after
    if evaluation.verdict is not None and final.verdict is not None:
        parts.append(evaluation.verdict.headline)
        if after is not None:
            parts.append(f"After calibration: {final.verdict.headline}")
    if calibrator is not None:
        parts.append(
            f"`{file}` holds a `{calibrator.name}` calibrator, fitted on other rows than these:\n\n"
            "```python\n"
            "import calibrant\n\n"
            f'calibrator = calibrant.load("{file}")\n'
            "probs = calibrator.predict_proba(logits)\n"
            "```"
        )
    parts.append(make_table(evaluation, after))
    parts.append(
        f"Measured on {evaluation.num_rows:,} rows with calibrant {evaluation.settings['version']}."
    )
    return "\n\n".join(parts) + "\n"


def write_model_card_block(path: str | Path, block: str) -> Path:
    """Put the block into a model card, in place of the one before, and return its path.

    Args:
        path: The card, such as ``output/README.md``; made if it does not exist.
        block: What `make_model_card_block` returned.
    """
    card = Path(path)
    text = card.read_text(encoding="utf-8") if card.exists() else ""
    marked = f"{_BEGIN}\n{block.rstrip()}\n{_END}\n"
    if _BEGIN in text and _END in text:
        head, _, rest = text.partition(_BEGIN)
        text = head + marked + rest.partition(_END)[2].removeprefix("\n")
    else:
        text = f"{text.rstrip()}\n\n{marked}" if text.strip() else marked
    card.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(card) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
    return card
