"""Second stages on the features of a trained network: MaC-Cal's head, TST and VTST.

Features and seed are those of the recipes: on a network trained without a recipe, the figures
equal those of a run with the recipe.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from calibrant.bench import calibrator_text
from calibrant.bench.measure.crossfit import crossfit
from calibrant.bench.measure.measurement import (
    Measurement,
    compute_metrics,
    count_changed,
    count_rows,
    make_measurements,
)
from calibrant.bench.measure.network import apply_head
from calibrant.bench.measure.subject import Fit, Head, Subject, fit, measure_calibrated
from calibrant.bench.suite.after_names import OPTIONS, RECIPES, is_head, spell_stages
from calibrant.bench.suite.former import edit_recipe
from calibrant.calibrators.heads.mac_cal_head import MacCalHead
from calibrant.calibrators.rank import apply
from calibrant.core.errors import InputError
from calibrant.data.images import Images
from calibrant.predictions import Predictions
from calibrant.training.recipes import get as get_recipe

STORED = ("gamma", "stage_two_loss")  # facts of a second stage that are not metrics


def stage_two(name: str, subject: Subject, **options: Any) -> Iterator[Measurement]:
    """Measure every part under a new head.

    Args:
        name: ``mac_cal_head``, ``tst`` or ``vtst``.
        subject: the run.
        **options: those of the recipe, and: ``then``, calibrators fitted on the head's
            predictions of validation rows (named ``mac_cal_head+temperature``); ``crossfit``,
            whether these are also judged on rows that they were not fitted on;
            ``precision`` of the extractor, fp32 or bf16.
    """
    head_options = {key: value for key, value in options.items() if key not in OPTIONS}
    called = calibrator_text.spell(name, head_options)
    head = make_head(subject, called, options.get("precision", "fp32"))
    predictions = {part: predict_part(subject, head, part) for part in subject.parts}
    for part, after in predictions.items():
        values = compute_metrics(after)
        values["changed"] = float(count_changed(subject.predictions(part), after))
        if part == "validation":
            stored = {key: value for key, value in head.facts.items() if key in STORED}
            values |= {f"parameter:{key}": value for key, value in stored.items()}
        rows = count_rows(after)
        yield from make_measurements(part, called, values, seconds=head.seconds, rows=rows)
    yield from _trace(called, head.module)
    parts_after = {part: after for part, after in predictions.items() if part != "train"}
    for text in calibrator_text.expand_calibrators(options.get("then", ())):
        top = fit(text, predictions[calibrator_text.fitting_part(text)])
        yield from measure_calibrated(f"{called}+{text}", top, parts_after)
        if options.get("crossfit", False):
            for measurement in crossfit(text, predictions["validation"]):
                yield measurement._replace(calibrator=f"{called}+{text}")


mac_cal_head = partial(stage_two, "mac_cal_head")
tst = partial(stage_two, "tst")
vtst = partial(stage_two, "vtst")


def make_head(subject: Subject, called: str, precision: str) -> Head:
    """Make a second stage's head on the run's features, once."""
    if called not in subject.heads:
        name, options = calibrator_text.parse(called)
        if subject.is_dense:
            raise InputError(f"{name} takes features of whole images: these are dense predictions")
        network = subject.network(precision)
        for part in subject.parts:
            network.features(getattr(network, part))  # not part of the time that the stage takes
        begun = time.perf_counter()
        recipe = RECIPES[name]
        facts = get_recipe(recipe, **edit_recipe(recipe, options)).finish(network)
        seconds = time.perf_counter() - begun
        assert network.taken is not None
        subject.heads[called] = Head(network.taken, network, seconds, facts)
    return subject.heads[called]


def predict_part(subject: Subject, head: Head, part: str) -> Predictions:
    """Predict the rows of a part with a head."""
    features, labels = head.network.features(getattr(head.network, part))
    return Predictions.from_logits(
        apply_head(head.module, features),
        labels.cpu(),
        class_names=subject.predictions(part).class_names,
        name=part,
    )


def list_calibrators(subject: Subject, calibrators: Sequence[str]) -> tuple[str, ...]:
    """Return ``none``, calibrators and second stages, normalised."""
    heads = [text for text in calibrators if is_head(text)]
    rest = calibrator_text.expand_calibrators([text for text in calibrators if text not in heads])
    for text in rest:
        subject.fit(text)  # raises errors before other work
    return ("none", *rest, *map(spell_stages, heads))


def predict_after(
    subject: Subject, images: Images, names: Sequence[str], precision: str
) -> Iterator[tuple[str, Predictions]]:
    """Predict images with a run's network, after each calibrator, and by second stages."""
    plain = subject.predict(images, precision)
    features = None
    for name in names:
        if name == "none" or not is_head(name):
            yield name, subject.calibrate(name, plain)
            continue
        base, _, top = name.partition("+")
        head = make_head(subject, base, precision)
        if features is None:
            features, _ = subject.network(precision).features(images)
        after = replace(plain, scores=apply_head(head.module, features))
        yield name, apply(_fit_on_top(subject, head, top).calibrator, after) if top else after


def _fit_on_top(subject: Subject, head: Head, text: str) -> Fit:
    if text not in head.fits:
        head.fits[text] = fit(text, predict_part(subject, head, calibrator_text.fitting_part(text)))
    return head.fits[text]


def _trace(called: str, head: nn.Module) -> Iterator[Measurement]:
    """Give sparsity, confidence and accuracy on training rows by epoch of the second stage."""
    if not isinstance(head, MacCalHead) or head.schedule == "fixed":
        return
    for metric in ("sparsity", "confidence", "accuracy"):
        for epoch, value in enumerate(head.summary_[metric], start=metric != "sparsity"):
            yield Measurement(f"train@{epoch}", called, metric, float(value))
    for tried in head.summary_["gammas"]:
        if tried["epochs"] < head.epochs or tried["validation_ece"] is None:
            continue  # it lost the race, or there was none
        for metric in ("ece", "accuracy"):
            name = f"{metric} at gamma={tried['gamma']:g}"
            yield Measurement("validation", called, name, float(tried[f"validation_{metric}"]))
