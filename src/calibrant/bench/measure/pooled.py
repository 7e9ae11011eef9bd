"""Fit calibrators on the held-out rows of several runs that hold out different rows.

A run holds out a tenth of its rows, and its calibrators learn from no more. Runs that differ
only in their seed and held-out rows act as a single network: together they predict every row by
a network that was not trained on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.bench import calibrator_text
from calibrant.bench.measure.crossfit import PART as CROSSFIT
from calibrant.bench.measure.crossfit import fit_on_halves, join_rows
from calibrant.bench.measure.measurement import SHORT, Measurement, measure_metrics
from calibrant.bench.measure.subject import (
    Parts,
    Subject,
    as_logits,
    fit,
    measure_calibrated,
    splits_of,
)
from calibrant.bench.store.half_precision import is_whole, needs_whole, read_whole
from calibrant.bench.suite.after_names import NAMED, name_pooled
from calibrant.bench.suite.key import key_of
from calibrant.core.errors import InputError
from calibrant.predictions import Predictions
from calibrant.training.config import Config
from calibrant.training.run import Run


def list_family(config: Config, seeds: Sequence[int]) -> list[Config]:
    """Return the settings of the runs with these seeds, each of which splits by its own seed."""
    family = [config.changed(seed=seed, split_seed=seed) for seed in seeds]
    if config not in family or len(set(seeds)) < 2:
        raise InputError(
            f"pooled takes runs of several seeds whose split_seed is their seed, this one among "
            f"them; found seeds {list(seeds)} for a run of seed {config.seed} with split_seed "
            f"{config.split_seed}"
        )
    return family


def held_out_path(folder: Path) -> Path:
    """Return the file of a run's held-out predictions."""
    return folder / "predictions" / "validation.safetensors"


def has_family(folder: Path, options: dict[str, Any]) -> bool:
    """Return whether the other runs that a run's pooling needs have been made."""
    return all(path.is_file() for _, path in _list_others(Run(folder), options["seeds"]))


def _list_others(run: Run, seeds: Sequence[int]) -> list[tuple[Config, Path]]:
    """Return the other runs of the family, with their held-out predictions."""
    own_key = key_of(run.config)
    family = [(config, key_of(config)) for config in list_family(run.config, seeds)]
    return [
        (config, held_out_path(run.folder.parent / key)) for config, key in family if key != own_key
    ]


def pooled(
    subject: Parts,
    *,
    seeds: Sequence[int],
    calibrators: Sequence[str] = ("temperature",),
    named: str = NAMED,
) -> Iterator[Measurement]:
    """Measure a run's rows after calibrators fitted on the held-out rows of all seeds.

    Also measure its held-out rows without overfitting, for choices: each half is judged after a
    calibrator fitted on the other half and on the rows of other runs, without the images that
    are judged, which other runs may have held out too.

    Args:
        subject: the run.
        seeds: seeds of the runs whose rows are pooled.
        calibrators: those that are fitted. Default: temperature.
        named: tells several poolings of a run apart. Default: pooled.
    """
    if not isinstance(subject, Subject):
        raise InputError("pooled needs runs: a file of logits has no held-out rows")
    validation = subject.predictions("validation")
    if validation.is_dense:
        raise InputError("pooled takes a label for each image, and these have one for each pixel")
    others = _list_others(subject.run, seeds)
    rest = join_rows([_read(path) for _, path in others])
    own_images = _digest_images(subject.config)
    rest_images = np.concatenate([_digest_images(config) for config, _ in others])

    def without(rows: npt.NDArray[np.int64]) -> Predictions:
        return rest.take(np.flatnonzero(~np.isin(rest_images, own_images[rows])))

    for text in calibrator_text.expand_calibrators(calibrators):
        name = name_pooled(text, named)
        subject.check_calibrator(text)
        if needs_whole(text) and not all(is_whole(path) for _, path in others):
            raise InputError(
                f"{name} needs the largest logits of other seeds' rows, which were not kept: "
                "make those runs again"
            )
        fitted = fit(text, join_rows([validation, rest]))
        yield from measure_calibrated(name, fitted, subject.judged_parts())
        held_out = fit_on_halves(text, validation, more=without)
        yield from measure_metrics(CROSSFIT, name, held_out, SHORT)


def _digest_images(config: Config) -> npt.NDArray[np.str_]:
    """Return a digest of each held-out image of a run, in order."""
    images = splits_of(config).validation.images
    return np.array([sha256(image.numpy().tobytes()).hexdigest() for image in images])


def _read(path: Path) -> Predictions:
    if not path.is_file():
        raise InputError(
            f"{path}: pooled needs the held-out predictions of the runs of all its seeds: make "
            "these first, with keep: predictions"
        )
    return as_logits(read_whole(path))
