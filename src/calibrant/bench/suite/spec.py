"""One run of a suite: its settings, its key, and the measurements it needs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from calibrant.bench.suite.after_names import LATE, after_mark, list_names
from calibrant.bench.suite.former import key_settings, train_settings
from calibrant.bench.suite.key import OF_THE_MACHINE, key_of
from calibrant.core.errors import InputError
from calibrant.training.config import Config

KEEPS = ("rows", "predictions", "weights")  # each keeps what those before it keep
MARK = "measured"  # metric of rows that record a finished measurement
FAILED = "failed"  # metric of rows that record a measurement that could not be made
SEALED = "validation"  # mark of a run whose validation rows alone were measured
SECONDS = "bench_seconds"  # metric of a run's seconds, measurements included


@dataclass(frozen=True)
class Spec:
    """A run: a training, or files of logits, and the measurements it needs.

    ``after`` holds (name, options as JSON) of measurements beyond the calibrators. ``logits``
    names a file of logits, below the data folder, that replaces a training, or two files: of
    validation and of test rows. A ``sealed`` run is a candidate in a choice: its validation rows
    alone are measured.
    """

    config: Config
    calibrators: tuple[str, ...] = ()
    after: tuple[tuple[str, str], ...] = ()
    keep: str = "rows"
    logits: str | tuple[str, str] | None = None
    sealed: bool = False

    def __post_init__(self) -> None:
        if self.keep not in KEEPS:
            raise InputError(f"keep is one of {', '.join(KEEPS)}, found {self.keep!r}")
        # Equal runs compare equal.
        object.__setattr__(self, "config", key_settings(self.config))
        if self.keep == KEEPS[0] and self.is_late:
            raise InputError(
                f"{', '.join(LATE)} reads predictions of other runs: set keep: {KEEPS[1]}"
            )

    @cached_property
    def key(self) -> str:
        """The first 16 hexadecimal digits of a SHA-256 over the settings that decide the result."""
        return key_of(self.config, logits=self.logits)

    @property
    def label(self) -> str:
        """A short description of the run, for progress and status."""
        config = self.config
        how = config.loss if config.recipe == "standard" else f"{config.recipe} {config.loss}"
        files = self.logits if isinstance(self.logits, str) else " ".join(self.logits or ())
        return f"{config.data} {config.model} {files or how} seed {config.seed}"

    @property
    def wanted(self) -> frozenset[tuple[str, str]]:
        """The (part, calibrator) marks that the store has once everything is measured."""
        names = ["none", *self.calibrators, *(after_mark(*entry) for entry in self.after)]
        return frozenset(("run", name) for name in ([SEALED] if self.sealed else names))

    @property
    def trained(self) -> Config:
        """The settings to train with, including former defaults: see `suite.former`."""
        return train_settings(self.config)

    @property
    def judged(self) -> list[str]:
        """Names under which test figures are stored: calibrators, second stages, and both."""
        names = list(self.calibrators)
        for name, options in self.after:
            names += list_names(name, json.loads(options or "{}"))
        return names

    def is_measured(self, done: Collection[tuple[str, str]]) -> bool:
        """Return whether these marks cover all measurements; opened runs count as sealed too."""
        return self.wanted <= set(done) or (self.sealed and ("run", "none") in done)

    @property
    def is_late(self) -> bool:
        """Whether a measurement needs other runs."""
        return any(name in LATE for name, _ in self.after)

    @property
    def early(self) -> Spec:
        """The same run without measurements that need other runs."""
        return replace(self, after=tuple(entry for entry in self.after if entry[0] not in LATE))

    def on_machine(self, **settings: Any) -> Spec:
        """Return the run with other settings of the machine; its key stays."""
        for name in settings:
            if name not in OF_THE_MACHINE:
                raise InputError(
                    f"{name} is no setting of the machine; choose from {', '.join(OF_THE_MACHINE)}"
                )
        overrides = {name: value for name, value in settings.items() if value is not None}
        return replace(self, config=self.config.changed(**overrides)) if overrides else self

    def join(self, other: Spec) -> Spec:
        """Return the run with the measurements of both; keys must be equal."""
        return replace(
            self,
            calibrators=tuple(dict.fromkeys((*self.calibrators, *other.calibrators))),
            after=tuple(dict.fromkeys((*self.after, *other.after))),
            keep=KEEPS[max(KEEPS.index(self.keep), KEEPS.index(other.keep))],
            sealed=self.sealed and other.sealed,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as `of` takes them."""
        return {
            "config": self.config.to_dict(),
            "calibrators": list(self.calibrators),
            "after": [list(entry) for entry in self.after],
            "keep": self.keep,
            "logits": list(self.logits) if isinstance(self.logits, tuple) else self.logits,
            "sealed": self.sealed,
        }

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Spec:
        """Make a run from what `to_dict` returned."""
        logits = values["logits"]
        return cls(
            config=Config.of(values["config"]),
            calibrators=tuple(values["calibrators"]),
            after=tuple((name, options) for name, options in values["after"]),
            keep=values["keep"],
            logits=tuple(logits) if isinstance(logits, list) else logits,
            sealed=values["sealed"],
        )


def distinct(specs: Iterable[Spec]) -> list[Spec]:
    """Merge runs with equal keys, with the measurements of all, in order of first mention."""
    by_key: dict[str, Spec] = {}
    for spec in specs:
        by_key[spec.key] = by_key[spec.key].join(spec) if spec.key in by_key else spec
    return list(by_key.values())
