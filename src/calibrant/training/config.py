"""The settings of a run: typed, read from YAML or flags, written back in full."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from calibrant.core.errors import InputError, show
from calibrant.core.extras import require
from calibrant.core.method_text import merge_options
from calibrant.core.yaml_text import decode_text, parse_yaml

CHOICES = {
    "optimizer": ("sgd", "adamw"),
    "schedule": ("multi_step", "cosine", "one_cycle", "constant"),
    "average": ("none", "ema", "swa"),
    "precision": ("fp32", "bf16"),
    "device": ("auto", "cpu", "cuda"),
}


@dataclass(frozen=True)
class Config:
    """The settings that decide a run; equal settings are the same run.

    Args:
        data: A data set: a name of `calibrant.data.available`, or ``folder:PATH``, or
            ``dense:PATH``. Default: 'digits' (ours: embedded, trains in seconds on a CPU).
        data_folder: The folder of the data files; None takes the one that CALIBRANT_DATA names.
            Default: None (ours: one variable serves all runs of a machine).
        download: Whether to download data that is missing. Default: False (ours: no network
            traffic without leave).
        size: The side of the images of ``folder:PATH`` and ``dense:PATH``; None keeps their own.
            Default: None (ours: named data sets have their own size).
        validation: Training rows to hold out: a share if below 1, else a number. Default: 0.1
            (mac-cal, section 5.1: 5,000 of CIFAR's 50,000).
        split_seed: The seed of the draw of validation rows and of the long tail, apart from
            ``seed`` so that all seeds share one split. Default: 0 (ours: an arbitrary seed).
        long_tail: ρ, the rows of the rarest class divided by those of the commonest; None keeps
            all rows (class-scaling eq. 16). Default: None (ours: balanced data sets stay so).
        model: A network of `calibrant.models.available`. Default: 'mlp' (ours: fits the digits).
        model_options: Options of the network; ``weights: PATH`` starts from pretrained weights
            (`calibrant.models.load_weights`). Default: {} (ours: the network's own defaults).
        loss: A loss, as `calibrant.losses.get` reads it, such as ``focal+0.5*s_avuc``. Default:
            'cross_entropy' (the baseline of all five papers).
        recipe: A recipe of `calibrant.training.recipes.available`; ``mixup(alpha=0.4)`` moves
            its options to ``recipe_options``. Default: 'standard' (the usual way).
        recipe_options: Options of the recipe. Default: {} (ours: the recipe's own defaults).
        head: The name of the network's classifier; None finds it (`calibrant.models.split`).
            Default: None (ours: the networks here and the usual libraries' are found).
        epochs: Passes over the training rows. Default: 30 (ours: enough for the digits and for a
            first look at CIFAR).
        batch_size: Rows a step and process. Default: 128 (r-aurc, section 7.4; acls, section 4.1).
        seed: The seed of weights, shuffles, augmentation and dropout. Default: 0 (ours: an
            arbitrary seed).
        optimizer: ``sgd`` or ``adamw``. Default: 'sgd' (acls, section 4.1).
        lr: The largest learning rate. Default: 0.1 (acls, section 4.1).
        momentum: The momentum of SGD. Default: 0.9 (acls, section 4.1).
        nesterov: Whether SGD uses Nesterov's momentum. Default: False (torch.optim.SGD).
        weight_decay: The weight decay. Default: 0.0005 (acls, section 4.1).
        schedule: How the rate changes: ``multi_step``, ``cosine``, ``one_cycle`` or
            ``constant``; see `calibrant.training.optimizer.learning_rate`. Default: 'cosine'
            (ours: needs no milestones for a number of epochs).
        milestones: The epochs at which multi_step multiplies the rate by ``gamma``. Default: ()
            (ours: they depend on the epochs; required by multi_step).
        gamma: The factor of multi_step. Default: 0.1 (acls, section 4.1).
        warmup: The share of the steps in which one_cycle's rate rises. Default: 0.3
            (torch.optim.lr_scheduler.OneCycleLR).
        clip: The largest norm of the gradient; None does not clip. Default: None (no paper here
            clips).
        average: The average of weights to report: ``none``, ``ema`` (updated every step) or
            ``swa`` (every epoch). Default: 'none' (the papers report plain weights).
        ema_decay: The decay of ema. Default: 0.999 (ours: averages about three epochs of CIFAR).
        swa_start: The share of the epochs after which swa starts. Default: 0.75 (Izmailov et al.
            2018: plain SGD for about 75% of the budget).
        crop: Pixels of padding for random crops; 0 does not crop. Default: 0 (ours: augmentation
            depends on the data).
        flip: Whether to mirror images at random. Default: False (ours: digits must not be
            mirrored).
        cutout: The side of a square to cut out, in pixels; 0 cuts nothing. Default: 0 (ours: no
            paper here uses it).
        precision: ``fp32`` or ``bf16`` (mixed). Default: 'fp32' (ours: the same on every device).
        channels_last: Whether to use the channels-last memory format. Default: False (torch's
            own format).
        compile: Whether to compile network and loss; on a single GPU into CUDA graphs. Default:
            False (ours: compiling takes longer than a short run).
        device: ``auto``, ``cpu`` or ``cuda``. Default: 'auto' (ours: CUDA if there is one).
        devices: The number of processes. Default: 1 (ours: one process).
        report_epoch: The epoch to report: ``last``, ``best_validation`` (accuracy) or
            ``lowest_ece_after:N`` (on validation rows). Default: 'last' (ours: chooses nothing;
            r-aurc uses lowest_ece_after:120).
        evaluate_every: Epochs between evaluations. Default: 1 (ours: every epoch).
        checkpoint_every: Epochs between checkpoints. Default: 1 (ours: a kill costs one epoch).
        eval_batch_size: Rows of a batch without gradients. Default: 1024 (ours: does not change
            results).
    """

    data: str = "digits"
    data_folder: str | None = None
    download: bool = False
    size: int | None = None
    validation: float = 0.1
    split_seed: int = 0
    long_tail: float | None = None

    model: str = "mlp"
    model_options: dict[str, Any] = field(default_factory=dict)
    loss: str = "cross_entropy"
    recipe: str = "standard"
    recipe_options: dict[str, Any] = field(default_factory=dict)
    head: str | None = None

    epochs: int = 30
    batch_size: int = 128
    seed: int = 0
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: str = "cosine"
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    warmup: float = 0.3
    clip: float | None = None
    average: str = "none"
    ema_decay: float = 0.999
    swa_start: float = 0.75

    crop: int = 0
    flip: bool = False
    cutout: int = 0
    precision: str = "fp32"
    channels_last: bool = False
    compile: bool = False
    device: str = "auto"
    devices: int = 1

    report_epoch: str = "last"
    evaluate_every: int = 1
    checkpoint_every: int = 1
    eval_batch_size: int = 1024

    def __post_init__(self) -> None:
        hints = _read_hints()
        for name in (setting.name for setting in fields(self)):
            object.__setattr__(self, name, _convert(name, getattr(self, name), hints[name]))
        if "(" in f"{self.recipe}{self.recipe_options.get('recipe')}":
            recipe, options = merge_options(self.recipe, self.recipe_options, kind="recipe")
            object.__setattr__(self, "recipe", recipe)
            object.__setattr__(self, "recipe_options", options)
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name} must be one of {', '.join(allowed)}, found {getattr(self, name)!r}"
                )
        for name in ("epochs", "batch_size", "devices", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, found {getattr(self, name)}")
        if not self.lr > 0:
            raise InputError(f"lr must be above 0, found {self.lr}")
        after = parse_report_epoch(self.report_epoch)
        if after is not None and after >= self.epochs:
            raise InputError(
                f"report_epoch {self.report_epoch} starts after epoch {after}, but there are "
                f"{self.epochs} epochs: train longer, or choose another rule"
            )
        if self.schedule == "multi_step" and not self.milestones:
            raise InputError("schedule multi_step needs milestones, and there are none")
        if self.average == "swa" and self.report_epoch != "last":
            raise InputError(
                f"swa averages the last epochs, but report_epoch {self.report_epoch} selects one: "
                "use report_epoch last, or average ema"
            )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Config:
        """Create a config from a mapping; refuse unknown keys."""
        known = [setting.name for setting in fields(cls)]
        for key in settings:
            if key not in known:
                near = get_close_matches(str(key), known, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
                raise InputError(f"unknown setting {key!r}{hint}")
        return cls(**settings)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Config:
        """Read a config from a YAML file."""
        text = decode_text(Path(path).read_bytes(), str(path))
        settings = parse_yaml(text, str(path), extra="train")
        if not isinstance(settings, dict):
            raise InputError(f"{path}: expected settings as `name: value` lines")
        return cls.of(settings)

    def changed(self, **settings: Any) -> Config:
        """Return a copy with some settings changed; a recipe's text brings its options along."""
        checked = Config.of(settings)
        if "(" in settings.get("recipe", ""):
            settings |= {"recipe": checked.recipe, "recipe_options": checked.recipe_options}
        return replace(self, **settings)

    def to_dict(self) -> dict[str, Any]:
        """Return every setting as a plain value."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }

    def to_yaml(self) -> str:
        """Write every setting as YAML, which `read` reads."""
        yaml = require("yaml", extra="train", purpose="a settings file")
        return yaml.safe_dump(self.to_dict(), sort_keys=False)


@lru_cache
def _read_hints() -> dict[str, Any]:
    """Evaluate the types of the settings, once: a suite makes thousands of configs."""
    return get_type_hints(Config)


def parse_report_epoch(rule: str) -> int | None:
    """Return N of ``lowest_ece_after:N``; None for the other rules."""
    if rule in ("last", "best_validation"):
        return None
    kind, _, number = rule.partition(":")
    if kind != "lowest_ece_after" or not number.isdigit():
        raise InputError(
            f"report_epoch must be last, best_validation or lowest_ece_after:N, found {rule!r}"
        )
    return int(number)


def _convert(name: str, value: Any, hint: Any) -> Any:
    """Convert a value to the type of its setting, or raise an error that names the type."""
    allowed = [kind for kind in get_args(hint) if kind is not type(None)]
    if get_origin(hint) is tuple:
        if isinstance(value, (list, tuple)) and all(type(entry) is int for entry in value):
            return tuple(value)
        raise InputError(f"{name} must be a list of whole numbers, found {show(value)}")
    if get_origin(hint) is dict:
        if isinstance(value, dict):
            return dict(value)
        raise InputError(f"{name} must be a mapping of options, found {show(value)}")
    if allowed and value is None:
        return None
    kind = allowed[0] if allowed else hint
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    # YAML 1.1 reads 1e-3 as text.
    if kind is float and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            pass
    if type(value) is kind:
        return value
    raise InputError(f"{name} must be {kind.__name__}, found {show(value)}")
