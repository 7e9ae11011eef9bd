"""Second stages on the features of any trained network: MaC-Cal's head, TST and VTST.

They are the recipes' own second stages, on the same features with the same seed: on a network
trained without a recipe the figures are those of a run with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from calibrant.bench import texts
from calibrant.bench.crossfit import crossfit
from calibrant.bench.judging import Figure, changed, counted, figures, told
from calibrant.bench.network import through
from calibrant.bench.spec import with_former
from calibrant.bench.subject import Fit, Head, Subject, calibrated_figures, fit
from calibrant.calibrators.mac_cal_head import MacCalHead
from calibrant.calibrators.rank import apply
from calibrant.data.value import Images
from calibrant.functional.errors import InputError
from calibrant.predictions import Predictions
from calibrant.training.recipes import get as get_recipe

TOLD = ("gamma", "stage_two_loss")  # of what a second stage tells; the rest are figures
OPTIONS = ("then", "crossfit", "precision")  # of the measurement, and not of the recipe
BY_NAME = ("shift", "ood")  # measurements that are told which calibrators to judge
RECIPES = {"mac_cal_head": "mac_cal", "tst": "tst", "vtst": "vtst"}


def stage_two(name: str, subject: Subject, options: dict[str, Any]) -> Iterator[Figure]:
    """Figures of every part under a new head, named ``mac_cal_head``, ``tst`` or ``vtst``.

    Options are the recipe's own, and: ``then``, calibrators fitted on what the head says of
    validation rows (named ``mac_cal_head+temperature``), judged also on the halves they were
    not fitted on where ``crossfit`` says so; ``precision`` of the extractor.
    """
    own = {key: one for key, one in options.items() if key not in OPTIONS}
    then = texts.expanded(options.get("then", ()))
    precision = options.get("precision", "fp32")
    called = texts.spell(name, own)
    made = head_of(subject, called, precision)
    said = {part: head_says(subject, made, part) for part in subject.parts}
    for part, after in said.items():
        values = figures(after)
        values["changed"] = float(changed(subject.said(part), after))
        if part == "validation":
            values |= {f"parameter:{key}": one for key, one in made.told.items() if key in TOLD}
        yield from told(part, called, values, seconds=made.seconds, rows=counted(after))
    yield from _trace(called, made.module)
    rest = {part: one for part, one in said.items() if part != "train"}
    for text in then:
        top = fit(text, said[texts.fitted_on(text)])
        yield from calibrated_figures(f"{called}+{text}", top, rest)
        if options.get("crossfit", False):
            for one in crossfit(text, said["validation"]):
                yield one._replace(calibrator=f"{called}+{text}")


def names_of(name: str, options: dict[str, Any]) -> list[str]:
    """What a measurement's figures of test rows are named after.

    >>> names_of("mac_cal_head", {"gamma": 0.9, "then": ["temperature"]})
    ['mac_cal_head(gamma=0.9)', 'mac_cal_head(gamma=0.9)+temperature']
    """
    if name == "pooled":
        from calibrant.bench.pooled import NAMED
        from calibrant.bench.pooled import called as pooled

        named = options.get("named", NAMED)
        every = texts.expanded(options.get("calibrators", ("temperature",)))
        return [pooled(text, named) for text in every]
    if name not in RECIPES:  # such as shift: by those it is told to look at
        return list(texts.expanded(options.get("calibrators", ()))) if name in BY_NAME else []
    called = texts.spell(name, {key: one for key, one in options.items() if key not in OPTIONS})
    return [called, *(f"{called}+{text}" for text in texts.expanded(options.get("then", ())))]


def is_head(text: str) -> bool:
    """Whether a text names a second stage, perhaps with a calibrator on top of it."""
    return texts.parse(text.partition("+")[0])[0] in RECIPES


def spelled(text: str) -> str:
    """The same second stage, with what is on top of it, written the one way."""
    return "+".join(texts.spelled(part) for part in text.split("+", 1))


def head_of(subject: Subject, called: str, precision: str) -> Head:
    """A second stage's head on the run's features, made once."""
    if called not in subject.heads:
        name, options = texts.parse(called)
        if subject.is_dense:
            raise InputError(f"{name} takes features of whole images: these are dense predictions")
        network = subject.network(precision)
        for part in subject.parts:
            network.features(getattr(network, part))  # no part of the time the stage takes
        begun = time.perf_counter()
        recipe = RECIPES[name]
        facts = get_recipe(recipe, **with_former(recipe, options)).finish(network)
        seconds = time.perf_counter() - begun
        assert network.taken is not None
        subject.heads[called] = Head(network.taken, network, seconds, facts)
    return subject.heads[called]


def head_says(subject: Subject, head: Head, part: str) -> Predictions:
    """The head's logits of a part's rows."""
    features, labels = head.network.features(getattr(head.network, part))
    return Predictions.from_logits(
        through(head.module, features),
        labels.cpu(),
        class_names=subject.said(part).class_names,
        name=part,
    )


def answers(
    subject: Subject, images: Images, names: Sequence[str], precision: str
) -> Iterator[tuple[str, Predictions]]:
    """What the run says of any images: as it is, after calibrators, and by second stages."""
    said = subject.answers(images, precision)
    features = None
    for name in names:
        if name == "none" or not is_head(name):
            yield name, subject.calibrated(name, said)
            continue
        base, _, top = name.partition("+")
        head = head_of(subject, base, precision)
        if features is None:
            features, _ = subject.network(precision).features(images)
        found = replace(said, scores=through(head.module, features))
        yield name, apply(_on_top(subject, head, top).calibrator, found) if top else found


def _on_top(subject: Subject, head: Head, text: str) -> Fit:
    if text not in head.fits:
        head.fits[text] = fit(text, head_says(subject, head, texts.fitted_on(text)))
    return head.fits[text]


def _trace(called: str, head: nn.Module) -> Iterator[Figure]:
    """Sparsity, confidence and accuracy on training rows by epoch of the second stage."""
    if not isinstance(head, MacCalHead) or head.schedule == "fixed":
        return
    for metric in ("sparsity", "confidence", "accuracy"):
        for epoch, value in enumerate(head.summary_[metric], start=metric != "sparsity"):
            yield Figure(f"train@{epoch}", called, metric, float(value))
    for one in head.summary_["gammas"]:
        if one["epochs"] < head.epochs or one["validation_ece"] is None:
            continue  # left behind in the race, or there was none
        for metric in ("ece", "accuracy"):
            name = f"{metric} at gamma={one['gamma']:g}"
            yield Figure("validation", called, name, float(one[f"validation_{metric}"]))
