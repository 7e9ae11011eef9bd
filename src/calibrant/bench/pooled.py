"""Calibrators fitted on the held-out rows of several runs, each of which held out its own.

A run holds out a tenth of its rows, and a calibrator learns from no more. Runs that differ in
their seed and in what they hold out are as good as one network to it: of every row, it is told
what a network said that was not trained on that row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibrant.bench import texts
from calibrant.bench.crossfit import PART as CROSSFIT
from calibrant.bench.crossfit import joined, out_of_half
from calibrant.bench.halving import is_whole, needs_whole, whole
from calibrant.bench.judging import SHORT, Figure, counted, figures, told
from calibrant.bench.loading import splits_of
from calibrant.bench.spec import key_of
from calibrant.bench.subject import Parts, Subject, as_logits, calibrated_figures, fit, judged
from calibrant.functional.errors import InputError
from calibrant.predictions import Predictions
from calibrant.training.config import Config
from calibrant.training.run import Run

NAMED = "pooled"  # as in temperature(on=pooled): the name of its figures


def family(config: Config, seeds: Sequence[int]) -> list[Config]:
    """The runs of these seeds, each of which splits the rows by its own seed."""
    found = [config.changed(seed=seed, split_seed=seed) for seed in seeds]
    if config not in found or len(set(seeds)) < 2:
        raise InputError(
            f"pooled takes runs of several seeds whose split_seed is their seed, this one among "
            f"them; found seeds {list(seeds)} for a run of seed {config.seed} with split_seed "
            f"{config.split_seed}"
        )
    return found


def others(run: Run, seeds: Sequence[int]) -> list[tuple[Config, Path]]:
    """The other runs of a run's family, with their held-out predictions in the folder beside it."""
    mine = key_of(run.config)
    found = [(one, key_of(one)) for one in family(run.config, seeds)]
    return [(one, held_out(run.folder.parent / key)) for one, key in found if key != mine]


def held_out(folder: Path) -> Path:
    """The predictions of a run's held-out rows."""
    return folder / "predictions" / "validation.safetensors"


def pooled(
    subject: Parts,
    *,
    seeds: Sequence[int],
    calibrators: Sequence[str] = ("temperature",),
    named: str = NAMED,
) -> Iterator[Figure]:
    """Figures of the run's rows after calibrators fitted on the held-out rows of all seeds.

    They are ``named`` apart where a run is pooled more than once, with few seeds and with many.

    Also those of its own held-out rows that the calibrator was not fitted on, each half of them
    by one fitted on the other half and on the other runs' rows, without the images that are
    judged, some of which others held out as well: what a choice needs.
    """
    if not isinstance(subject, Subject):
        raise InputError("pooled takes runs: a file of logits holds nothing out")
    own = subject.said("validation")
    if own.is_dense:
        raise InputError("pooled takes a label for each image, and these have one for each pixel")
    siblings = others(subject.run, seeds)
    beside = joined([_read(path) for _, path in siblings])
    mine = _images(subject.config)
    theirs = np.concatenate([_images(one) for one, _ in siblings])

    def unseen(rows: npt.NDArray[np.int64]) -> Predictions:
        return beside.take(np.flatnonzero(~np.isin(theirs, mine[rows])))

    for text in texts.expanded(calibrators):
        name = called(text, named)
        subject.allows(text)
        if needs_whole(text) and not all(is_whole(one) for _, one in siblings):
            raise InputError(
                f"{name} needs the largest logits of other seeds' rows, and they were kept "
                "without: make those runs again"
            )
        made = fit(text, joined([own, beside]))
        yield from calibrated_figures(name, made, judged(subject))
        said = out_of_half(text, own, beside=unseen)
        yield from told(CROSSFIT, name, figures(said, SHORT), rows=counted(said))


def _images(config: Config) -> npt.NDArray[np.str_]:
    """What tells a run's held-out images apart, in their order."""
    images = splits_of(config).validation.images
    return np.array([sha256(one.numpy().tobytes()).hexdigest() for one in images])


def called(text: str, named: str = NAMED) -> str:
    """What the figures of such a calibrator are named after.

    >>> called("temperature(objective=sb_ece)")
    'temperature(objective=sb_ece,on=pooled)'
    """
    name, options = texts.parse(text)
    if "on" in options:
        raise InputError(f"pooled says itself which rows calibrators are fitted on, found {text!r}")
    return texts.spell(name, {**options, "on": named})


def are_there(run: Path, options: dict[str, Any]) -> bool:
    """Whether all that a run's pooling needs has been made."""
    return all(path.is_file() for _, path in others(Run(run), options["seeds"]))


def _read(path: Path) -> Predictions:
    if not path.is_file():
        raise InputError(
            f"{path}: pooled needs what the runs of all its seeds said of their held-out rows: "
            "make these first, with keep: predictions"
        )
    return as_logits(whole(path))
