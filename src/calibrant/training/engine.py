"""The loop: every recipe, every loss, one process or several, and no run lost to a kill."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant import metrics
from calibrant.data.batches import derived_seed
from calibrant.data.value import Images, Splits
from calibrant.functional.errors import InputError
from calibrant.losses.history import CorrectnessHistory
from calibrant.predictions import Predictions
from calibrant.training import checkpoint
from calibrant.training.config import Config, reported_after
from calibrant.training.family import train_family
from calibrant.training.job import Job
from calibrant.training.making import NEEDS_LIGHTNING, Loaders, make_fabric, make_job
from calibrant.training.optimise import Average, rate, renew_batch_norm
from calibrant.training.recipes import get as get_recipe
from calibrant.training.run import PARTS, Run, begin, write_metrics

GLANCE = 5000  # training rows looked at after each epoch; all of them at the end


class Diverged(RuntimeError):
    """The loss stopped being a number."""


def train(
    config: Config,
    folder: str | os.PathLike[str],
    *,
    data: Splits | Loaders | None = None,
    network: nn.Module | None = None,
    on_epoch: Callable[[dict[str, Any]], None] | None = None,
) -> Run:
    """Train by the settings into a folder, or go on with what is there.

    ``data`` (`Splits`, or loaders of training, validation and test rows) and ``network`` take
    the place of those the settings name; they must be the same again when a run is taken up.
    ``on_epoch`` is given each epoch's line of metrics.
    """
    if importlib.util.find_spec("lightning") is None:  # before a folder is begun
        raise InputError(NEEDS_LIGHTNING)
    several = make_fabric(config) if config.devices > 1 else None
    run = begin(Path(folder), config, several)
    if run.is_done:
        return run
    recipe = get_recipe(config.recipe, **config.recipe_options)
    members = recipe.members(config)
    if members:

        def one(member: Config, where: Path) -> Run:
            fresh = None if network is None else copy.deepcopy(network)
            return train(member, where, data=data, network=fresh, on_epoch=on_epoch)

        return train_family(run, members, recipe.together, one, several)
    job = make_job(config, data, network, several)
    with _fast(job):
        return Training(job, run, on_epoch).finish()


class Training:
    """One run from its last whole checkpoint to its end."""

    def __init__(
        self, job: Job, run: Run, on_epoch: Callable[[dict[str, Any]], None] | None
    ) -> None:
        self.job, self.run, self._on_epoch = job, run, on_epoch
        config = job.config
        decay = config.ema_decay if config.average == "ema" else None
        self.average = None if config.average == "none" else Average(job.network, decay)
        self.lines: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] = {}  # weights of the epoch to be reported
        self.best_epoch, self.best_value = 0, math.inf
        dense = isinstance(job.train, Images) and job.train.is_dense
        self._glance = job.some_rows(GLANCE // 50 if dense else GLANCE)
        self._seconds = 0.0  # of earlier sessions of the run
        if config.report_epoch != "last" and not (job.validation and len(job.validation)):  # type: ignore[arg-type]
            raise InputError(
                f"report_epoch {config.report_epoch} goes by validation rows, and there are none: "
                "hold some out (validation), or use last"
            )
        self._resume()

    def finish(self) -> Run:
        """The epochs left, the second stage, the predictions, the figures."""
        job, config = self.job, self.job.config
        begun = self._begun = time.perf_counter()
        while job.epoch < config.epochs:
            self._epoch()
            if job.epoch % config.checkpoint_every == 0 or job.epoch == config.epochs:
                self._save()
        if job.fabric.is_global_zero:  # a kill may have come between the last one and the tidying
            checkpoint.tidy(self.run.folder / "checkpoint")
        self._choose()
        extra = job.recipe.finish(job)
        job.fabric.barrier()
        if job.fabric.is_global_zero:
            self._report(extra, self._seconds + time.perf_counter() - begun)
        job.fabric.barrier()
        return self.run

    def _epoch(self) -> None:
        job = self.job
        config, recipe = job.config, job.recipe
        # Whatever draws by itself (dropout, stochastic depth) draws the same again after a stop.
        torch.manual_seed(derived_seed(config.seed, job.epoch, 7 + job.fabric.global_rank))
        job.generator.manual_seed(derived_seed(config.seed, job.epoch, 77))
        job.draws.manual_seed(derived_seed(config.seed, job.epoch, 777))
        job.network.train()
        recipe.before_epoch(job)
        total, steps = torch.zeros((), device=job.device), 0
        begun = time.perf_counter()
        passes = recipe.passes(job)
        # Of this epoch: a recipe may change its passes, and a rate goes by the epochs.
        planned = sum(len(job.batches(one.rows)) for one in passes)
        for offset, one in enumerate(passes):
            for batch in job.batches(one.rows, offset=offset):
                now = rate(config, job.epoch * planned + steps, planned)
                for group in job.optimizer.param_groups:
                    group["lr"] = now
                if config.compile:  # what CUDA graphs made in the last step may be overwritten
                    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                value = one.loss(job, batch)
                job.backward_step(value)
                total, steps = total + value.detach(), steps + 1
                if self.average is not None and config.average == "ema":
                    self.average.update(job.network)
        job.epoch += 1
        for part in job.loss.modules():
            if isinstance(part, CorrectnessHistory):
                part.synchronize()  # each process has counted its own rows
        mean = float(total) / max(steps, 1)
        if not math.isfinite(mean):
            raise Diverged(
                f"the loss became {mean} in epoch {job.epoch} at a learning rate of {now:.3g}: "
                "lower lr, set clip, or look for logits or inputs that are not finite"
            )
        if self.average is not None and self._swa_now():
            self.average.update(job.network)
        line = {"epoch": job.epoch, "lr": now, "train_loss": mean, **recipe.after_epoch(job)}
        if job.epoch % config.evaluate_every == 0 or job.epoch == config.epochs:
            line |= self._look()
        self._keep_best(line)
        self.lines.append(line)
        if job.fabric.is_global_zero:
            write_metrics(self.run, self.lines)
            if self._on_epoch is not None:
                self._on_epoch({**line, "seconds": time.perf_counter() - begun})

    def _look(self) -> dict[str, float]:
        """Figures of some training rows, unaugmented, and of the validation rows."""
        job = self.job
        with self._averaged():
            found = _figures("train", *job.predict(job.train, self._glance), job)
            if job.validation is not None and len(job.validation):  # type: ignore[arg-type]
                found |= _figures("validation", *job.predict(job.validation), job)
        return found

    def _keep_best(self, line: dict[str, float]) -> None:
        rule = self.job.config.report_epoch
        if rule == "last" or "validation_nll" not in line:
            return
        after = reported_after(rule)
        if after is None:
            value = -line["validation_accuracy"]
        elif line["epoch"] > after:
            value = line["validation_ece"]
        else:
            return
        if value < self.best_value:
            self.best_value, self.best_epoch = value, int(line["epoch"])
            with self._averaged():
                self.best = {name: one.clone() for name, one in self._weights().items()}

    def _choose(self) -> None:
        """Put the weights that are reported into the network, and say which they are."""
        job = self.job
        if self.best:
            _load_prefixed(job.network, self.best, "network.")
            _load_prefixed(job.recipe, self.best, "recipe.")
        elif self.average is not None and int(self.average.count):
            self.average.copy_to(job.network)
            if job.config.average == "swa":
                renew_batch_norm(job.network, (one.inputs for one in job.batches(train=False)))
        self.chosen = self.best_epoch or job.epoch
        if job.fabric.is_global_zero:
            told = {"epoch": self.chosen, "rule": job.config.report_epoch}
            checkpoint.write_whole(self.run.folder / "chosen.json", json.dumps(told).encode())

    def _report(self, extra: dict[str, float], seconds: float) -> None:
        """Predictions of every part; the test rows are read now and not before."""
        from safetensors.torch import save

        job, folder = self.job, self.run.folder
        found = self._weights() | {f"loss.{key}": one for key, one in job.loss.state_dict().items()}
        weights = {name: one.cpu().contiguous() for name, one in found.items()}
        checkpoint.write_whole(folder / "weights.safetensors", save(weights))
        (folder / "predictions").mkdir(exist_ok=True)
        for half in (folder / "predictions").glob(".*.tmp"):  # of a run that was killed here
            half.unlink()
        figures: dict[str, float] = {}
        for part in PARTS:
            data = getattr(job, part)
            dense = isinstance(data, Images) and data.is_dense
            if data is None or not len(data) or (dense and part == "train"):
                continue  # a dense training set's logits would fill the disk
            data = data.to(job.device) if isinstance(data, Images) else data
            logits, labels = job.predict(data)
            figures |= _figures(part, logits, labels, job)
            names = data.class_names if isinstance(data, Images) else None
            said = Predictions.from_logits(
                logits.cpu(),
                labels.cpu(),
                class_names=names,
                ignore_index=data.ignore_index if dense else None,
                name=part,
            )
            said.write(folder / "predictions" / f"{part}.safetensors")
        outcome = {
            "epoch": self.chosen,
            "rule": job.config.report_epoch,
            "figures": figures,
            "recipe": extra,
            "seconds": seconds,
        }
        checkpoint.write_whole(folder / "run.json", json.dumps(outcome, indent=1).encode())

    def _weights(self) -> dict[str, Tensor]:
        parts = {"network": self.job.network, "recipe": self.job.recipe}
        return {
            f"{name}.{key}": value
            for name, part in parts.items()
            for key, value in part.state_dict().items()
        }

    def _save(self) -> None:
        job = self.job
        if not job.fabric.is_global_zero:
            return
        tensors = self._weights()
        for name, part in (("loss", job.loss), ("average", self.average)):
            if part is not None:
                tensors |= {f"{name}.{key}": value for key, value in part.state_dict().items()}
        tensors |= {f"best.{key}": value for key, value in self.best.items()}
        state = checkpoint.optimizer_state(job.optimizer)
        tensors |= {f"optimizer.{key}": value for key, value in state.items()}
        tensors["random.cpu"] = torch.get_rng_state()
        if job.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(job.device)
        facts = {
            "step": job.step,
            "best_epoch": self.best_epoch,
            "best_value": self.best_value if self.best_epoch else None,
            "metrics": self.lines,
            "seconds": self._seconds + time.perf_counter() - self._begun,
        }
        checkpoint.save(self.run.folder / "checkpoint", job.epoch, tensors, facts)

    def _resume(self) -> None:
        found = checkpoint.load(self.run.folder / "checkpoint")
        if found is None:
            return
        tensors, facts = found
        job = self.job
        _load_prefixed(job.network, tensors, "network.")
        _load_prefixed(job.recipe, tensors, "recipe.")
        _load_prefixed(job.loss, tensors, "loss.")
        if self.average is not None:
            _load_prefixed(self.average, tensors, "average.")
        checkpoint.load_optimizer_state(job.optimizer, checkpoint.under(tensors, "optimizer."))
        self.best = {
            key: value.to(job.device) for key, value in checkpoint.under(tensors, "best.").items()
        }
        self.best_epoch = facts["best_epoch"]
        self.best_value = math.inf if facts["best_value"] is None else facts["best_value"]
        job.epoch, job.step, self.lines = facts["epoch"], facts["step"], facts["metrics"]
        self._seconds = facts["seconds"]
        torch.set_rng_state(tensors["random.cpu"])
        if job.device.type == "cuda" and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], job.device)
        if job.fabric.is_global_zero:
            write_metrics(self.run, self.lines)

    def _swa_now(self) -> bool:
        config = self.job.config
        return config.average == "swa" and self.job.epoch > config.swa_start * config.epochs

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The network with the exponential average of its weights, for a look at it."""
        if self.average is None or self.job.config.average != "ema":
            yield
            return
        held = {key: value.clone() for key, value in self.job.network.state_dict().items()}
        self.average.copy_to(self.job.network)
        try:
            yield
        finally:
            self.job.network.load_state_dict(held)


def _figures(part: str, logits: Tensor, labels: Tensor, job: Job) -> dict[str, float]:
    ignored = job.train.ignore_index if isinstance(job.train, Images) else -100
    if not bool(torch.isfinite(logits).all()):
        raise Diverged(
            f"the network's logits of {part} rows are not finite after epoch {job.epoch}: lower lr "
            "or set clip"
        )
    return {
        f"{part}_{name}": float(getattr(metrics, name)(logits, labels, ignore_index=ignored))
        for name in ("accuracy", "nll", "ece")
    }


def _load_prefixed(module: nn.Module, tensors: dict[str, Tensor], prefix: str) -> None:
    module.load_state_dict(checkpoint.under(tensors, prefix))


@contextmanager
def _fast(job: Job) -> Iterator[None]:
    """Let cuDNN choose its kernels by trial while the run lasts."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = job.device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
