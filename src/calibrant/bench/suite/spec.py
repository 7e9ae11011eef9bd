"""One run of a suite: what decides its result, its key, and what is to be measured of it."""

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
MARK = "measured"  # the metric of the rows that say what has been measured
FAILED = "failed"  # that of those that could not be made, and say so
SEALED = "validation"  # the mark of a run of which validation rows alone were measured
SECONDS = "bench_seconds"  # the metric of what a run took, measuring and all


@dataclass(frozen=True)
class Spec:
    """A run: a training, or files of logits, and the measurements wanted of it.

    ``after`` holds (name, options as JSON) of measurements beyond the calibrators. ``logits``
    names a file of logits, below the data folder, that takes the place of a training, or two:
    of validation and of test rows. Of a ``sealed`` run, one that is to be chosen among others,
    validation rows alone are measured.
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
        # One run is spelled one way.
        object.__setattr__(self, "config", key_settings(self.config))
        if self.keep == KEEPS[0] and self.is_late:
            raise InputError(
                f"{', '.join(LATE)} reads predictions of other runs: say keep: {KEEPS[1]}"
            )

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits of SHA-256 over the settings that decide the result."""
        return key_of(self.config, logits=self.logits)

    @property
    def label(self) -> str:
        """The run in a few words, for progress and status."""
        config = self.config
        how = config.loss if config.recipe == "standard" else f"{config.recipe} {config.loss}"
        files = self.logits if isinstance(self.logits, str) else " ".join(self.logits or ())
        return f"{config.data} {config.model} {files or how} seed {config.seed}"

    @property
    def wanted(self) -> frozenset[tuple[str, str]]:
        """The (part, calibrator) marks the store holds once all is measured."""
        names = ["none", *self.calibrators, *(after_mark(*one) for one in self.after)]
        return frozenset(("run", name) for name in ([SEALED] if self.sealed else names))

    @property
    def trained(self) -> Config:
        """The settings it is trained with, former defaults among them: see `suite.former`."""
        return train_settings(self.config)

    @property
    def judged(self) -> list[str]:
        """What test rows are judged after: calibrators, second stages and those on top of them."""
        found = list(self.calibrators)
        for name, options in self.after:
            found += list_names(name, json.loads(options or "{}"))
        return found

    def is_measured(self, done: Collection[tuple[str, str]]) -> bool:
        """Whether such marks are all that is wanted; what was opened was measured sealed too."""
        return self.wanted <= set(done) or (self.sealed and ("run", "none") in done)

    @property
    def is_late(self) -> bool:
        """Whether something is wanted of it that needs other runs."""
        return any(name in LATE for name, _ in self.after)

    @property
    def early(self) -> Spec:
        """The same without that."""
        return replace(self, after=tuple(one for one in self.after if one[0] not in LATE))

    def on_machine(self, **settings: Any) -> Spec:
        """The same run with settings of the machine changed; its key stays."""
        for name in settings:
            if name not in OF_THE_MACHINE:
                raise InputError(
                    f"{name} is no setting of the machine: {', '.join(OF_THE_MACHINE)}"
                )
        given = {name: value for name, value in settings.items() if value is not None}
        return replace(self, config=self.config.changed(**given)) if given else self

    def joined(self, other: Spec) -> Spec:
        """One run with the measurements of both; they must have the same key."""
        return replace(
            self,
            calibrators=tuple(dict.fromkeys((*self.calibrators, *other.calibrators))),
            after=tuple(dict.fromkeys((*self.after, *other.after))),
            keep=KEEPS[max(KEEPS.index(self.keep), KEEPS.index(other.keep))],
            sealed=self.sealed and other.sealed,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `of` takes them."""
        return {
            "config": self.config.to_dict(),
            "calibrators": list(self.calibrators),
            "after": [list(one) for one in self.after],
            "keep": self.keep,
            "logits": list(self.logits) if isinstance(self.logits, tuple) else self.logits,
            "sealed": self.sealed,
        }

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Spec:
        """What `to_dict` gave."""
        logits = found["logits"]
        return cls(
            config=Config.of(found["config"]),
            calibrators=tuple(found["calibrators"]),
            after=tuple((name, options) for name, options in found["after"]),
            keep=found["keep"],
            logits=tuple(logits) if isinstance(logits, list) else logits,
            sealed=found["sealed"],
        )


def distinct(specs: Iterable[Spec]) -> list[Spec]:
    """Each key once, with the measurements all of them want, in the order of first mention."""
    found: dict[str, Spec] = {}
    for one in specs:
        found[one.key] = found[one.key].joined(one) if one.key in found else one
    return list(found.values())
