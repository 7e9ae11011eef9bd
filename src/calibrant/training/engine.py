"""Train: one loop for every recipe and loss, in one process or several, that survives kills."""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant import metrics
from calibrant.core.errors import InputError
from calibrant.core.extras import require
from calibrant.core.files import write_file
from calibrant.data.batches import derive_seed
from calibrant.data.images import IGNORE_INDEX, Images, Splits
from calibrant.losses.history import CorrectnessHistory
from calibrant.predictions import Predictions
from calibrant.training import checkpoint
from calibrant.training.config import Config, parse_report_epoch
from calibrant.training.members import train_members
from calibrant.training.optimizer import Average, learning_rate, renew_batch_norm
from calibrant.training.recipes import get as get_recipe
from calibrant.training.recipes.base import Job
from calibrant.training.run import FIGURES, PARTS, Run, open_run, write_metrics
from calibrant.training.setup import Loaders, make_fabric, make_job

SAMPLE = 5000  # training rows evaluated after each epoch; all of them are at the end


class Diverged(RuntimeError):
    """The loss or the logits are not finite."""


def train(
    config: Config,
    folder: str | os.PathLike[str],
    *,
    data: Splits | Loaders | None = None,
    network: nn.Module | None = None,
    in_place: bool = False,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Train a network by the settings into a folder; resume the run if the folder exists.

    Args:
        config: The settings.
        folder: The folder of the run. A finished run is returned as it is.
        data: `Splits`, or loaders of training, validation and test rows, in place of the data
            that the settings name. Give the same data again when a run is resumed.
        network: A network in place of the one that the settings name. Give the same initial
            weights again when a run is resumed. A copy is trained; `Run.weights` reads what it
            learned.
        in_place: Train the network itself, and leave it as the run reports it: with the weights of
            the reported epoch, and with the head that a recipe put in place of its own. Default:
            False (ours: a second run would start from the first one's weights).
        on_epoch: Called with the metrics of each epoch.
    """
    require("lightning.fabric", extra="train", purpose="training")  # before a folder is created
    fabric = make_fabric(config) if config.devices > 1 else None
    with open_run(Path(folder), config, fabric) as run:
        if run.is_done:
            return run
        return _train(run, config, data, network, in_place, on_epoch, fabric)


def _train(
    run: Run,
    config: Config,
    data: Splits | Loaders | None,
    network: nn.Module | None,
    in_place: bool,
    on_epoch: Callable[[dict[str, Any]], None] | None,
    fabric: Any,
) -> Run:
    """Train in the folder of a run that is not finished."""
    recipe = get_recipe(config.recipe, **config.recipe_options)
    members = recipe.members(config)
    if members and in_place:
        raise InputError(f"{recipe.name} trains several networks: leave in_place out")
    if network is not None and not in_place:
        network = _copy(network)
    if members:

        def train_member(member: Config, where: Path) -> Run:
            return train(member, where, data=data, network=network, on_epoch=on_epoch)

        return train_members(run, members, recipe.together, train_member, fabric)
    job = make_job(config, data, network, fabric)
    with _cudnn_benchmark(job):
        return Training(job, run, on_epoch).finish()


def _copy(network: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(network)
    except Exception as error:
        raise InputError(
            f"the network cannot be copied ({type(error).__name__}: {error}): set in_place=True to "
            "train it itself"
        ) from error


class Training:
    """Train one run from its last whole checkpoint to its end.

    Args:
        job: The job.
        run: The folder of the run.
        on_epoch: Called with the metrics of each epoch.
    """

    def __init__(
        self, job: Job, run: Run, on_epoch: Callable[[dict[str, Any]], None] | None
    ) -> None:
        self.job, self.run, self._on_epoch = job, run, on_epoch
        config = job.config
        decay = config.ema_decay if config.average == "ema" else None
        self.average = None if config.average == "none" else Average(job.network, decay)
        self.lines: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] = {}  # weights of the best epoch so far
        self.best_epoch, self.best_value = 0, math.inf
        dense = isinstance(job.train, Images) and job.train.is_dense
        self._sample = job.some_rows(SAMPLE // 50 if dense else SAMPLE)
        self._seconds = 0.0  # of earlier sessions of the run
        if config.report_epoch != "last" and not job.has_validation:
            raise InputError(
                f"report_epoch {config.report_epoch} needs validation rows, and there are none: "
                "hold some out (validation), or use last"
            )
        self._resume()

    def finish(self) -> Run:
        """Train the remaining epochs, run the second stage, write predictions and figures."""
        job, config = self.job, self.job.config
        start = self._start = time.perf_counter()
        while job.epoch < config.epochs:
            self._train_epoch()
            if job.epoch % config.checkpoint_every == 0 or job.epoch == config.epochs:
                self._save()
        if job.fabric.is_global_zero:  # a kill may have come between the last save and its tidying
            checkpoint.tidy(self.run.folder / "checkpoint")
        self._load_reported()
        extra = job.recipe.finish(job)
        job.fabric.barrier()
        if job.fabric.is_global_zero:
            self._report(extra, self._seconds + time.perf_counter() - start)
        job.fabric.barrier()
        return self.run

    def _train_epoch(self) -> None:
        job = self.job
        config, recipe = job.config, job.recipe
        # Dropout and stochastic depth use torch's generator: after a stop they draw the same.
        torch.manual_seed(derive_seed(config.seed, job.epoch, 7 + job.fabric.global_rank))
        job.generator.manual_seed(derive_seed(config.seed, job.epoch, 77))
        job.draws.manual_seed(derive_seed(config.seed, job.epoch, 777))
        job.network.train()
        recipe.before_epoch(job)
        total, steps = torch.zeros((), device=job.device), 0
        start = time.perf_counter()
        passes = recipe.passes(job)
        # Count the steps of this epoch: a recipe may change its passes, and rates follow epochs.
        planned = sum(len(job.batches(sweep.rows)) for sweep in passes)
        for offset, sweep in enumerate(passes):
            for batch in job.batches(sweep.rows, offset=offset):
                rate = learning_rate(config, job.epoch * planned + steps, planned)
                for group in job.optimizer.param_groups:
                    group["lr"] = rate
                if config.compile:  # CUDA graphs may overwrite the tensors of the last step
                    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                value = sweep.loss(job, batch)
                job.backward_step(value)
                total, steps = total + value.detach(), steps + 1
                if self.average is not None and config.average == "ema":
                    self.average.update(job.network)
        job.epoch += 1
        for part in job.loss.modules():
            if isinstance(part, CorrectnessHistory):
                part.synchronize()  # each process counted its own rows
        mean = float(total) / max(steps, 1)
        if not math.isfinite(mean):
            raise Diverged(
                f"the loss became {mean} in epoch {job.epoch} at a learning rate of {rate:.3g}: "
                "lower lr, set clip, or look for inputs that are not finite"
            )
        if self.average is not None and self._swa_is_on():
            self.average.update(job.network)
        line = {"epoch": job.epoch, "lr": rate, "train_loss": mean, **recipe.after_epoch(job)}
        if job.epoch % config.evaluate_every == 0 or job.epoch == config.epochs:
            line |= self._evaluate()
        self._keep_best(line)
        self.lines.append(line)
        if job.fabric.is_global_zero:
            write_metrics(self.run, self.lines)
            if self._on_epoch is not None:
                self._on_epoch({**line, "seconds": time.perf_counter() - start})

    def _evaluate(self) -> dict[str, float]:
        """Compute figures of a sample of training rows, unaugmented, and of the validation rows."""
        job = self.job
        with self._use_ema():
            figures = _compute_figures("train", *job.predict(job.train, self._sample), job)
            if job.validation is not None and job.has_validation:
                figures |= _compute_figures("validation", *job.predict(job.validation), job)
        return figures

    def _keep_best(self, line: dict[str, float]) -> None:
        rule = self.job.config.report_epoch
        if rule == "last" or "validation_nll" not in line:
            return
        after = parse_report_epoch(rule)
        if after is None:
            value = -line["validation_accuracy"]
        elif line["epoch"] > after:
            value = line["validation_ece"]
        else:
            return
        if value < self.best_value:
            self.best_value, self.best_epoch = value, int(line["epoch"])
            with self._use_ema():
                self.best = {name: value.clone() for name, value in self._weights().items()}

    def _load_reported(self) -> None:
        """Load the reported weights into the network, and record their epoch."""
        job = self.job
        if self.best:
            _load_prefixed(job.network, self.best, "network.")
            _load_prefixed(job.recipe, self.best, "recipe.")
        elif self.average is not None and int(self.average.count):
            self.average.copy_to(job.network)
            if job.config.average == "swa":
                renew_batch_norm(job.network, (batch.inputs for batch in job.batches(train=False)))
        self.chosen = self.best_epoch or job.epoch
        if job.fabric.is_global_zero:
            record = {"epoch": self.chosen, "rule": job.config.report_epoch}
            write_file(self.run.folder / "chosen.json", json.dumps(record).encode())

    def _report(self, extra: dict[str, float], seconds: float) -> None:
        """Write weights, predictions and figures; the test rows are first read here."""
        from safetensors.torch import save

        job, folder = self.job, self.run.folder
        state = self._weights() | _add_prefix("loss", job.loss.state_dict())
        weights = {name: value.cpu().contiguous() for name, value in state.items()}
        write_file(folder / "weights.safetensors", save(weights))
        (folder / "predictions").mkdir(exist_ok=True)
        for remains in (folder / "predictions").glob(".*.tmp"):  # of a run that was killed here
            remains.unlink()
        figures: dict[str, float] = {}
        for part in PARTS:
            data = getattr(job, part)
            dense = isinstance(data, Images) and data.is_dense
            if data is None or not len(data) or (dense and part == "train"):
                continue  # a dense training set's logits would fill the disk
            data = data.to(job.device) if isinstance(data, Images) else data
            logits, labels = job.predict(data)
            figures |= _compute_figures(part, logits, labels, job)
            names = data.class_names if isinstance(data, Images) else None
            predictions = Predictions.from_logits(
                logits.cpu(),
                labels.cpu(),
                class_names=names,
                ignore_index=data.ignore_index if dense else None,
                name=part,
            )
            predictions.write(folder / "predictions" / f"{part}.safetensors")
        outcome = {
            "epoch": self.chosen,
            "rule": job.config.report_epoch,
            "figures": figures,
            "recipe": extra,
            "seconds": seconds,
        }
        write_file(folder / "run.json", json.dumps(outcome, indent=1).encode())

    def _weights(self) -> dict[str, Tensor]:
        job = self.job
        return _add_prefix("network", job.network.state_dict()) | _add_prefix(
            "recipe", job.recipe.state_dict()
        )

    def _save(self) -> None:
        job = self.job
        if not job.fabric.is_global_zero:
            return
        tensors = self._weights()
        for name, part in (("loss", job.loss), ("average", self.average)):
            if part is not None:
                tensors |= _add_prefix(name, part.state_dict())
        tensors |= _add_prefix("best", self.best)
        tensors |= _add_prefix("optimizer", checkpoint.optimizer_state(job.optimizer))
        tensors["random.cpu"] = torch.get_rng_state()
        if job.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(job.device)
        facts = {
            "step": job.step,
            "best_epoch": self.best_epoch,
            "best_value": self.best_value if self.best_epoch else None,
            "metrics": self.lines,
            "seconds": self._seconds + time.perf_counter() - self._start,
        }
        checkpoint.save(self.run.folder / "checkpoint", job.epoch, tensors, facts)

    def _resume(self) -> None:
        saved = checkpoint.load(self.run.folder / "checkpoint")
        if saved is None:
            return
        tensors, facts = saved
        job = self.job
        _load_prefixed(job.network, tensors, "network.")
        _load_prefixed(job.recipe, tensors, "recipe.")
        _load_prefixed(job.loss, tensors, "loss.")
        if self.average is not None:
            _load_prefixed(self.average, tensors, "average.")
        state = checkpoint.strip_prefix(tensors, "optimizer.")
        checkpoint.load_optimizer_state(job.optimizer, state)
        best = checkpoint.strip_prefix(tensors, "best.")
        self.best = {key: value.to(job.device) for key, value in best.items()}
        self.best_epoch = facts["best_epoch"]
        self.best_value = math.inf if facts["best_value"] is None else facts["best_value"]
        job.epoch, job.step, self.lines = facts["epoch"], facts["step"], facts["metrics"]
        self._seconds = facts["seconds"]
        torch.set_rng_state(tensors["random.cpu"])
        if job.device.type == "cuda" and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], job.device)
        if job.fabric.is_global_zero:
            write_metrics(self.run, self.lines)

    def _swa_is_on(self) -> bool:
        config = self.job.config
        return config.average == "swa" and self.job.epoch > config.swa_start * config.epochs

    @contextmanager
    def _use_ema(self) -> Iterator[None]:
        """Give the network the exponential average of its weights while the block runs."""
        if self.average is None or self.job.config.average != "ema":
            yield
            return
        weights = {key: value.clone() for key, value in self.job.network.state_dict().items()}
        self.average.copy_to(self.job.network)
        try:
            yield
        finally:
            self.job.network.load_state_dict(weights)


def _compute_figures(part: str, logits: Tensor, labels: Tensor, job: Job) -> dict[str, float]:
    ignored = job.train.ignore_index if isinstance(job.train, Images) else IGNORE_INDEX
    if not bool(torch.isfinite(logits).all()):
        raise Diverged(
            f"the logits of {part} rows are not finite after epoch {job.epoch}: lower lr or set "
            "clip"
        )
    return {
        f"{part}_{name}": float(getattr(metrics, name)(logits, labels, ignore_index=ignored))
        for name in FIGURES
    }


def _load_prefixed(module: nn.Module, tensors: dict[str, Tensor], prefix: str) -> None:
    module.load_state_dict(checkpoint.strip_prefix(tensors, prefix))


def _add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


@contextmanager
def _cudnn_benchmark(job: Job) -> Iterator[None]:
    """Let cuDNN choose its kernels by trial while the block runs."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = job.device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
