"""A run's settings: typed, from YAML or flags, printed back in full; unknown keys are errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from calibrant.functional.errors import InputError

CHOICES = {
    "optimizer": ("sgd", "adamw"),
    "schedule": ("multi_step", "cosine", "one_cycle", "constant"),
    "average": ("none", "ema", "swa"),
    "precision": ("fp32", "bf16"),
    "device": ("auto", "cpu", "cuda"),
}


@dataclass(frozen=True)
class Config:
    """Everything that decides a run; two runs of equal settings are the same run."""

    data: str = "digits"  # a name of `calibrant.data`, or folder:PATH, or dense:PATH
    data_folder: str | None = None  # where the files are; else CALIBRANT_DATA says
    download: bool = False
    size: int | None = None  # of the images of a folder, where theirs differ
    validation: float = 0.1  # share of the training rows held out, or their number
    split_seed: int = 0
    long_tail: float | None = None  # ρ: the rarest class's share of the commonest

    model: str = "mlp"
    model_options: dict[str, Any] = field(default_factory=dict)
    loss: str = "cross_entropy"  # as `calibrant.losses.get` reads it
    recipe: str = "standard"  # or with options, mixup(alpha=0.4), which are put where they belong
    recipe_options: dict[str, Any] = field(default_factory=dict)
    head: str | None = None  # the name of the network's classifier, where it is not found by itself

    epochs: int = 30
    batch_size: int = 128
    seed: int = 0
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: str = "cosine"
    milestones: tuple[int, ...] = ()  # epochs at which multi_step multiplies the rate
    gamma: float = 0.1  # by this
    warmup: float = 0.3  # share of one_cycle's steps in which the rate rises
    clip: float | None = None  # the largest norm of a gradient
    average: str = "none"  # of weights: ema after every step, swa after every epoch
    ema_decay: float = 0.999
    swa_start: float = 0.75  # share of the epochs after which swa begins

    crop: int = 0  # pixels of padding for random crops
    flip: bool = False
    cutout: int = 0
    precision: str = "fp32"
    channels_last: bool = False
    compile: bool = False  # network and loss; on one card into CUDA graphs
    device: str = "auto"
    devices: int = 1  # processes

    report_epoch: str = "last"  # or best_validation, or lowest_ece_after:N
    evaluate_every: int = 1
    checkpoint_every: int = 1
    eval_batch_size: int = 1024

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for one in fields(self):
            object.__setattr__(
                self, one.name, _typed(one.name, getattr(self, one.name), hints[one.name])
            )
        if "(" in f"{self.recipe}{self.recipe_options.get('recipe')}":
            from calibrant.training.recipes.texts import whole

            recipe, options = whole(self.recipe, self.recipe_options)
            object.__setattr__(self, "recipe", recipe)
            object.__setattr__(self, "recipe_options", options)
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"{name} is one of {', '.join(allowed)}, found {getattr(self, name)!r}"
                )
        for name in ("epochs", "batch_size", "devices", "evaluate_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is at least 1, found {getattr(self, name)}")
        if not self.lr > 0:
            raise InputError(f"lr is above 0, found {self.lr}")
        after = reported_after(self.report_epoch)
        if after is not None and after >= self.epochs:
            raise InputError(
                f"report_epoch {self.report_epoch} looks after epoch {after}, but there are "
                f"{self.epochs} epochs: train longer, or choose another rule"
            )
        if self.schedule == "multi_step" and not self.milestones:
            raise InputError("multi_step changes the rate at milestones, and there are none")
        if self.average == "swa" and self.report_epoch != "last":
            raise InputError(
                f"swa averages the last epochs, and report_epoch {self.report_epoch} picks one: "
                "use report_epoch last, or average ema"
            )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Config:
        """From a mapping; unknown keys are errors."""
        known = [one.name for one in fields(cls)]
        for key in settings:
            if key not in known:
                near = get_close_matches(str(key), known, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
                raise InputError(f"unknown setting {key!r}{hint}")
        return cls(**settings)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Config:
        """From a YAML file."""
        import yaml

        try:
            found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise InputError(f"{path}: not YAML: {error}") from None
        if not isinstance(found, dict):
            raise InputError(f"{path}: expected settings as `name: value` lines")
        return cls.of(found)

    def changed(self, **settings: Any) -> Config:
        """The same with some settings changed; a recipe's text brings all its options along."""
        found = Config.of(settings)
        if "(" in settings.get("recipe", ""):
            settings |= {"recipe": found.recipe, "recipe_options": found.recipe_options}
        return replace(self, **settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, every setting."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }

    def to_yaml(self) -> str:
        """Every setting, as `read` takes it."""
        import yaml

        return yaml.safe_dump(self.to_dict(), sort_keys=False)


def reported_after(rule: str) -> int | None:
    """The epoch after which the lowest validation ECE is sought; None for other rules."""
    if rule in ("last", "best_validation"):
        return None
    kind, _, number = rule.partition(":")
    if kind != "lowest_ece_after" or not number.isdigit():
        raise InputError(
            f"report_epoch is last, best_validation or lowest_ece_after:N, found {rule!r}"
        )
    return int(number)


def _typed(name: str, value: Any, hint: Any) -> Any:
    """The value in the type its setting has, or an error that says which that is."""
    allowed = [one for one in get_args(hint) if one is not type(None)]
    if get_origin(hint) is tuple:
        if isinstance(value, (list, tuple)) and all(type(one) is int for one in value):
            return tuple(value)
        raise InputError(f"{name} is a list of whole numbers, found {value!r}")
    if get_origin(hint) is dict:
        if isinstance(value, dict):
            return dict(value)
        raise InputError(f"{name} is a mapping of options, found {value!r}")
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
    raise InputError(f"{name} is {kind.__name__}, found {value!r}")
