"""The entrances: arrays, files, settings, archives, states and names, as an enemy gives them."""

from __future__ import annotations

import gzip
import inspect
import io
import json
import math
import os
import shutil
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from hypothesis import strategies as st

import calibrant
from calibrant import calibrators, losses, metrics
from calibrant.bench import Suite
from calibrant.bench.calibrator_text import make as make_calibrator
from calibrant.bench.run import folder as run_folder
from calibrant.bench.store.rows import make_row
from calibrant.bench.store.store import Store
from calibrant.bench.store.transport import merge
from calibrant.bench.suite.key import key_of
from calibrant.bench.suite.spec import Spec
from calibrant.calibrators import files as calibrator_files
from calibrant.core.errors import InputError
from calibrant.evaluation import read_groups
from calibrant.evaluation.value import make_plain
from calibrant.metrics import registry
from calibrant.monitor import Monitor
from calibrant.predictions import Predictions
from calibrant.training.config import Config
from tests.fuzz.harness import Wrong, find_folder, target
from tests.fuzz.values import (
    CHANGES,
    EDITS,
    LABELS,
    ODD_PLAIN,
    ODD_TEXTS,
    PLAIN_SCORES,
    SCORES,
    SEEDS,
    damage,
    edit,
    make_labels,
    make_scores,
    write_json,
)

TABLES = (".csv", ".csv.gz", ".jsonl", ".parquet", ".arrow", ".feather")
FORMATS = (*TABLES, ".npz", ".npy", ".safetensors", ".pt")
SHARES = ("accuracy", "ece", "mce", "adaptive_ece", "classwise_ece", "ks_error", "aurc")


def write_fresh(name: str, content: bytes) -> Path:
    """Write a file of a case; what lay beside the file of an earlier one is deleted."""
    folder = find_folder() / "files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / name
    path.write_bytes(content)
    return path


def refuse_unless(holds: Any, says: str) -> None:
    """Raise an error if an outcome is not what the documentation promises."""
    if not holds:
        raise Wrong(says)


def check_predictions(predictions: Predictions) -> None:
    """Check what a reader promises of the predictions it gives."""
    scores = np.asarray(predictions.in_memory().array, dtype=np.float64)
    refuse_unless(len(scores) == predictions.num_rows > 0, "rows without scores")
    if predictions.num_options is None:
        refuse_unless(np.isfinite(scores).all(), "scores are not finite")
    if not predictions.is_logits and predictions.task != "multilabel":
        refuse_unless(((scores >= -1e-6) & (scores <= 1 + 1e-2)).all(), "probabilities beyond 1")
    repr(predictions)


# Arrays.

OPTIONS = st.fixed_dictionaries(
    {
        "mismatch": st.sampled_from([False, False, False, True]),
        "ignore_index": st.sampled_from([None, None, None, 0, -1, -100, 255, 10**30, "a", 1.5]),
        "pick": st.integers(0, 10_000),
    }
)


def are_logits(case: dict[str, Any]) -> bool:
    """Return what the caller says of the scores: mostly the truth."""
    is_logits = case["scores"]["kind"] in ("logits", "ties")
    return is_logits is not case["options"]["mismatch"]


ARRAYS = st.fixed_dictionaries({"scores": SCORES, "labels": LABELS, "options": OPTIONS})


@target(ARRAYS, share=22)
def fuzz_metrics(case: dict[str, Any]) -> None:
    """A metric of arrays: no NaN, ranges kept, and the order of rows does not matter."""
    names = sorted(metrics.available())
    name = names[case["options"]["pick"] % len(names)]
    scores, labels = make_scores(case["scores"]), make_labels(case["labels"], case["scores"])
    options = {"from_logits": are_logits(case)}
    if case["options"]["ignore_index"] is not None:
        options["ignore_index"] = case["options"]["ignore_index"]
    function = getattr(metrics, name)
    value = function(scores, labels, **options)
    number = np.asarray(value, dtype=np.float64)
    refuse_unless(not np.isnan(number).any(), f"{name} gives NaN")
    if name in SHARES:
        refuse_unless((number >= -1e-9).all() and (number <= 1 + 1e-9).all(), f"{name}: {value}")
    if isinstance(scores, np.ndarray) and isinstance(labels, np.ndarray) and len(scores) > 1:
        again = np.asarray(function(scores[::-1], labels[::-1], **options), dtype=np.float64)
        refuse_unless(
            np.allclose(number, again, rtol=1e-6, atol=1e-9), f"{name}: {number}, then {again}"
        )


@target(ARRAYS, share=8)
def fuzz_predictions(case: dict[str, Any]) -> None:
    """Predictions made of arrays."""
    scores, labels = make_scores(case["scores"]), make_labels(case["labels"], case["scores"])
    pick = case["options"]["pick"]
    if pick % 5 == 0:
        made = Predictions.from_events(scores, labels, is_logits=are_logits(case))
    elif pick % 5 == 1:
        made = Predictions.from_multilabel(scores, labels, is_logits=bool(pick % 2))
    elif pick % 5 == 2:
        made = Predictions.from_options(scores, labels)
    else:
        make = Predictions.from_logits if are_logits(case) else Predictions.from_probs
        made = make(scores, labels, ignore_index=case["options"]["ignore_index"])
    check_predictions(made)


EXTRAS = st.fixed_dictionaries(
    {
        "scores": SCORES,
        "labels": LABELS,
        "mismatch": st.sampled_from([False, False, False, True]),
        "events": st.sampled_from([False, False, True]),
        "weights": st.sampled_from([None, None, None, 1.0, 1e-300, 1e300, 0.0, "nan"]),
        "clusters": st.sampled_from([0, 0, 0, 1, 2, 5, 30]),
        "metric": st.integers(0, 10_000),
        "level": st.sampled_from([0.95, 0.95, 0.95, 0.5, 0.999, 0.0, 1.0, "nan"]),
        "view": st.sampled_from([None, None, None, "top", "events", "zzz"]),
    }
)


MANY_PLAIN = st.one_of(PLAIN_SCORES, PLAIN_SCORES, PLAIN_SCORES, SCORES)


def make_predictions(case: dict[str, Any], seed: int = 0) -> Predictions:
    """Return predictions of the arrays of a case, with its weights and clusters."""
    given = {**case["scores"], "seed": case["scores"]["seed"] + seed}
    scores, labels = make_scores(given), make_labels(case["labels"], case["scores"])
    rows = np.arange(case["scores"]["rows"])
    is_logits = are_logits({"scores": case["scores"], "options": case})
    design: dict[str, Any] = {}
    if case["weights"] is not None:
        design["weights"] = np.where(rows % 2, float(case["weights"]), 1.0)
    if case["clusters"]:
        design["clusters"] = rows % case["clusters"]
    if case["events"]:
        return Predictions.from_events(scores, labels, is_logits=is_logits, **design)
    make = Predictions.from_logits if is_logits else Predictions.from_probs
    return make(scores, labels, **design)


def check_interval(name: str, low: float | None, high: float | None) -> None:
    if low is None or high is None:
        return
    refuse_unless(not (math.isnan(low) or math.isnan(high)), f"{name}: an interval of NaN")
    refuse_unless(low <= high, f"{name}: the interval {low} to {high}")


@target(EXTRAS, share=2)
def fuzz_evaluate(case: dict[str, Any]) -> None:
    """An evaluation with intervals and verdict, as text and JSON."""
    predictions = make_predictions(case)
    names = sorted(metrics.available())
    chosen = [names[(case["metric"] + step) % len(names)] for step in range(2)]
    made = calibrant.evaluate(
        predictions,
        metrics=None if case["metric"] % 4 == 0 else chosen,
        confidence_level=float(case["level"]),
        resamples=100,
        view=case["view"],
    )
    for figure in made.figures.values():
        # A figure that these rows do not define is NaN, and its note says why.
        refuse_unless(not math.isnan(figure.value) or figure.note, f"{figure.name} is NaN")
        check_interval(figure.name, figure.low, figure.high)
    json.dumps(make_plain(made.to_dict()), allow_nan=False)
    str(made)


@target(EXTRAS, share=1)
def fuzz_compare(case: dict[str, Any]) -> None:
    """A comparison of two sets of the same rows."""
    a, b = make_predictions(case), make_predictions(case, seed=case["metric"] % 2)
    names = sorted(metrics.available())
    made = calibrant.compare(
        a,
        b,
        metrics=None if case["metric"] % 4 == 0 else [names[case["metric"] % len(names)]],
        confidence_level=float(case["level"]),
        resamples=100,
        view=case["view"],
    )
    for name, each in made.differences.items():
        # A figure that the rows of a side do not define is NaN, and the difference is not tested.
        undefined = math.isnan(each.a) or math.isnan(each.b)
        refuse_unless(not undefined or math.isnan(each.p_value), f"{name} is NaN, yet tested")
        check_interval(name, each.low, each.high)
    json.dumps(make_plain(made.to_dict()), allow_nan=False)
    refuse_unless(made.headline, "no headline")


QUICK = [
    *("identity", "temperature", "vector", "isotonic", "histogram", "beta", "platt", "quadratic"),
    *("venn_abers", "spline", "matrix", "dirichlet", "class_temperature", "meta_cal", "levels"),
    *("blend", "ensemble_temperature"),
]


@target(
    st.fixed_dictionaries(
        {
            "method": st.sampled_from(QUICK),
            "fit": ARRAYS,
            "other": SCORES,
            "task": st.sampled_from(["classes", "classes", "classes", "events"]),
            "save": st.booleans(),
        }
    ),
    share=5,
)
def fuzz_calibrators(case: dict[str, Any]) -> None:
    """A fit, its file, and the probabilities it gives to rows of any kind."""
    from_logits = are_logits(case["fit"])
    calibrator = calibrators.get(case["method"], from_logits=from_logits)
    scores = make_scores(case["fit"]["scores"])
    labels = make_labels(case["fit"]["labels"], case["fit"]["scores"])
    calibrator.fit(
        scores, labels, task=case["task"], ignore_index=case["fit"]["options"]["ignore_index"]
    )
    if case["save"]:
        path = write_fresh("c.safetensors", b"")
        calibrator.save(path)
        calibrator = calibrant.load(path)
    for given in (scores, make_scores(case["other"])):
        probs = np.asarray(calibrator.predict_proba(given), dtype=np.float64)
        refuse_unless(np.isfinite(probs).all(), "probabilities are not finite")
        refuse_unless(((probs >= 0) & (probs <= 1 + 1e-6)).all(), "probabilities beyond 1")
        if probs.ndim > 1 and probs.size:
            refuse_unless(np.allclose(probs.sum(1), 1, atol=1e-3), "rows do not sum to one")


@target(
    st.fixed_dictionaries(
        {
            "loss": st.integers(0, 10_000),
            "scores": SCORES,
            "labels": LABELS,
            "reduction": st.sampled_from(["mean", "mean", "sum", "none", "zzz"]),
            "ignore_index": st.sampled_from([-100, 0, None]),
            "soft": st.booleans(),
        }
    ),
    share=12,
)
def fuzz_losses(case: dict[str, Any]) -> None:
    """A loss: finite logits of a usual size give a finite value and finite gradients."""
    names = [name for name in sorted(losses.available()) if name != "crl"]
    options = {} if case["ignore_index"] is None else {"ignore_index": case["ignore_index"]}
    loss = losses.get(names[case["loss"] % len(names)], reduction=case["reduction"], **options)
    logits = make_scores({**case["scores"], "holder": "torch"})
    labels = make_labels({**case["labels"], "holder": "torch"}, case["scores"])
    if isinstance(logits, torch.Tensor) and logits.is_floating_point():
        logits.requires_grad_()
        if case["soft"] and logits.ndim > 1:
            labels = torch.softmax(logits.detach().float(), 1)
    value = loss(logits, labels)
    refuse_unless(isinstance(value, torch.Tensor), "no tensor")
    if case["reduction"] != "none":
        refuse_unless(value.ndim == 0, f"a value of shape {tuple(value.shape)}")
    usual = bool((logits.detach().abs() < 1e3).all())
    dtype_is_wide = logits.dtype in (torch.float32, torch.float64)
    ignored = labels is not None and not labels.is_floating_point()
    ignored = ignored and bool((labels == options.get("ignore_index", -100)).all())
    if usual and dtype_is_wide and not ignored and logits.numel():
        refuse_unless(bool(torch.isfinite(value).all()), f"{names[case['loss'] % len(names)]}")
        if value.requires_grad:
            value.sum().backward()
            if logits.grad is not None:
                refuse_unless(bool(torch.isfinite(logits.grad).all()), "a gradient is not finite")


# Files.


@cache
def good_files() -> dict[str, bytes]:
    """Return whole files of every format, by name."""
    rng = np.random.default_rng(0)
    folder = find_folder() / "good"
    folder.mkdir(exist_ok=True)
    scores, labels = rng.normal(size=(12, 3)).astype(np.float32), rng.integers(0, 3, 12)
    few = {"ids": [f"r{k}" for k in range(12)], "clusters": [f"g{k % 4}" for k in range(12)]}
    sets = {
        "classes": Predictions.from_logits(scores, labels, class_names=["a", "b", "ä"], **few),
        "events": Predictions.from_events(
            rng.random(12), labels > 0, event="rain", weights=1.0 + labels
        ),
        "labels": Predictions.from_multilabel(scores, labels[:, None] == np.arange(3)),
        "options": Predictions.from_options(
            [rng.normal(size=2 + k % 3) for k in range(12)], [0] * 12
        ),
    }
    made: dict[str, bytes] = {}
    for name, predictions in sets.items():
        for ending in FORMATS:
            path = folder / f"{name}{ending}"
            try:
                predictions.write(path)
            except InputError:  # a format that cannot hold this task
                continue
            made[path.name] = path.read_bytes()
    log = Path(__file__).parents[1] / "fixtures" / "lm_eval"
    for number, path in enumerate(sorted(log.glob("*.jsonl"))):
        made[f"samples_{number}.jsonl"] = path.read_bytes()
    return made


def read_file(path: Path, kind: str | None) -> None:
    check_predictions(Predictions.read(path, kind=kind))


@target(
    st.fixed_dictionaries(
        {
            "file": st.integers(0, 10_000),
            "changes": CHANGES,
            "other": st.integers(0, 10_000),
            "kind": st.sampled_from([None, None, "logits", "probs"]),
            "same_ending": st.sampled_from([True, True, True, False]),
            "unpacked": st.booleans(),
        }
    ),
    share=22,
)
def fuzz_readers(case: dict[str, Any]) -> None:
    """A damaged file of any format."""
    files = good_files()
    names = sorted(files)
    name, other = names[case["file"] % len(names)], names[case["other"] % len(names)]
    content = files[name]
    if name.endswith(".gz") and case["unpacked"]:  # damage below the checksum
        content = gzip.compress(damage(gzip.decompress(content), case["changes"]), 1)
    else:
        content = damage(content, case["changes"], files[other])
    path = write_fresh(name if case["same_ending"] else other, content)
    read_file(path, case["kind"])


HEADS = [
    *("label", "labels", "id", "weight", "cluster", "prob", "logit", "probability", "happened"),
    *("confidence", "correct", "logit_0", "logit_1", "logit_2", "prob_0", "prob_1", "prob_a"),
    *("prob_b", "logit_200000000", "label_0", "label_1", "num_options", "logits", "probs", "", "x"),
]
CELLS = [
    *("0", "1", "2", "0.5", "0.25", "0.75", "1.0", "-1", "nan", "inf", "-inf", "1e400", "1e-320"),
    *("", " ", "a", "b", "true", "yes", "0x1", "1_0", "١", "9" * 25, "[1,2]", '"', "\x00", "ä"),
]
TEXT_TABLES = st.fixed_dictionaries(
    {
        "heads": st.lists(st.sampled_from(HEADS), min_size=0, max_size=5),
        "cells": st.lists(st.sampled_from(CELLS), min_size=0, max_size=20),
        "ending": st.sampled_from([".csv", ".csv", ".jsonl", ".csv.gz", ".txt"]),
        "end": st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
        "mark": st.booleans(),
        "kind": st.sampled_from([None, "logits", "probs"]),
        "labels_too": st.booleans(),
    }
)


@target(TEXT_TABLES, share=14)
def fuzz_texts(case: dict[str, Any]) -> None:
    """A table of text with odd columns and cells, or labels in such a file."""
    heads, cells = case["heads"], case["cells"]
    width = max(1, len(heads))
    rows = [cells[start : start + width] for start in range(0, len(cells), width)]
    if case["ending"] == ".jsonl":

        def plain(cell: str) -> Any:
            try:
                return json.loads(cell)
            except ValueError:
                return cell

        lines = [
            json.dumps({h: plain(c) for h, c in zip(heads, row, strict=False)}) for row in rows
        ]
    else:
        lines = [",".join(heads), *(",".join(row) for row in rows)]
    content = ("\ufeff" * case["mark"] + case["end"].join(lines)).encode()
    if case["ending"] == ".csv.gz":
        content = gzip.compress(content, 1)
    if case["ending"] == ".txt" or case["labels_too"]:
        path = write_fresh("a.npz", good_files()["classes.npz"])
        labels = path.with_name(f"b{case['ending']}")
        labels.write_bytes(content)
        if case["ending"] != ".txt":
            read_groups(labels, column=heads[0] if heads else None)
        else:
            check_predictions(Predictions.read(path, labels=labels))
        return
    read_file(write_fresh(f"a{case['ending']}", content), case["kind"])


HARNESS = st.fixed_dictionaries(
    {"file": st.integers(0, 100), "line": st.integers(0, 100), "edits": EDITS}
)


@target(HARNESS, share=3)
def fuzz_harness_logs(case: dict[str, Any]) -> None:
    """A log of samples whose values were edited."""
    logs = [content for name, content in sorted(good_files().items()) if name.startswith("samples")]
    samples = [json.loads(line) for line in logs[case["file"] % len(logs)].splitlines() if line]
    at = case["line"] % len(samples)
    samples[at] = edit(samples[at], case["edits"])
    content = b"\n".join(map(write_json, samples))
    read_file(write_fresh("samples_a_2026-01-01T00-00-00.jsonl", content), None)


# Saved calibrators, rules and states.


@cache
def saved() -> list[tuple[dict[str, Any], dict[str, torch.Tensor]]]:
    """Return the headers and tensors of calibrators and rules."""
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(200, 3)), rng.integers(0, 3, 200)
    predictions = Predictions.from_logits(scores, labels, class_names=["a", "b", "c"])
    path = write_fresh("saved.safetensors", b"")
    made = []
    for name in ("temperature", "vector", "isotonic", "histogram", "spline", "beta", "matrix"):
        calibrators.get(name).fit(predictions).save(path)
        made.append(calibrator_files.read_tensors(path))
    sure = Predictions.from_logits(4 * np.eye(3)[labels] + scores, labels)
    for rule in (
        calibrant.decide(sure, max_error=0.3),
        calibrant.prediction_sets(sure, coverage=0.8),
        calibrant.prediction_sets(sure, coverage=0.8, method="aps"),
    ):
        rule.save(path)
        made.append(calibrator_files.read_tensors(path))
    return made


@target(
    st.fixed_dictionaries(
        {
            "file": st.integers(0, 100),
            "edits": EDITS,
            "tensors": st.lists(
                st.tuples(
                    st.sampled_from(["drop", "cut", "odd", "type", "shape", "none", "none"]),
                    st.integers(0, 50),
                    st.sampled_from([0.0, -1.0, 1e30, -1e30, "inf", "-inf", "nan", 3.0]),
                ).map(list),
                max_size=2,
            ),
            "header": st.booleans(),
            "rows": SCORES,
        }
    ),
    share=6,
)
def fuzz_saved(case: dict[str, Any]) -> None:
    """A saved calibrator or rule, edited, with a digest that fits, applied to rows."""
    header, tensors = saved()[case["file"] % len(saved())]
    header = {key: value for key, value in header.items() if key != "digest"}
    tensors = dict(tensors)
    if case["header"]:
        header = edit(header, case["edits"])
    for kind, place, value in case["tensors"]:
        if not tensors:
            break
        name = sorted(tensors)[place % len(tensors)]
        tensor = tensors[name].clone()
        if kind == "drop":
            del tensors[name]
        elif kind == "cut" and tensor.ndim:
            tensors[name] = tensor[:-1].contiguous()
        elif kind == "odd" and tensor.numel() and tensor.is_floating_point():
            tensor.view(-1)[place % tensor.numel()] = float(value)
            tensors[name] = tensor
        elif kind == "odd" and tensor.numel():
            tensor.view(-1)[place % tensor.numel()] = [0, 1, -1, 2**40, 2**62][place % 5]
            tensors[name] = tensor
        elif kind == "type":
            tensors[name] = tensor.half() if tensor.is_floating_point() else tensor.int()
        elif kind == "shape":
            tensors[name] = tensor[None].contiguous()
    path = write_fresh("edited.safetensors", b"")
    try:
        if not isinstance(header, dict):
            return
        calibrator_files.write_tensors(path, header, tensors)
    except (ValueError, TypeError, OverflowError, UnicodeError):  # what no file can hold
        return
    loaded = calibrant.load(path)
    rows = make_scores({**case["rows"], "shape": "table", "classes": 3, "holder": "numpy"})
    if isinstance(loaded, calibrators.Calibrator):
        probs = np.asarray(loaded.predict_proba(rows), dtype=np.float64)
        refuse_unless(np.isfinite(probs).all(), "probabilities are not finite")
        return
    refuse_unless(isinstance(loaded.promise, str), "no promise")
    if hasattr(loaded, "accept"):
        loaded.accept(rows)
    else:
        loaded.sets(rows)


@cache
def states() -> list[dict[str, Any]]:
    """Return states of monitors: of classes with groups, and of events with clusters."""
    made = []
    for kind in ("classes", "events"):
        monitor, _ = make_monitor(kind)
        made.append(json.loads(json.dumps(monitor.ledger.to_dict())))
    return made


def make_batch(kind: str, seed: int, rows: int = 60) -> tuple[Predictions, Any]:
    rng = np.random.default_rng(seed)
    if kind == "events":
        said = rng.random(rows)
        clusters = rng.integers(0, 50, rows) + 1000 * seed
        return Predictions.from_events(said, rng.random(rows) < said, clusters=clusters), None
    labels = rng.integers(0, 3, rows)
    made = Predictions.from_logits(rng.normal(size=(rows, 3)), labels, ids=np.arange(rows))
    return made, [f"g{k % 2}" for k in range(rows)]


def make_monitor(kind: str) -> tuple[Monitor, None]:
    baseline, groups = make_batch(kind, 0, 100)
    monitor = Monitor(baseline, groups=groups)
    batch, groups = make_batch(kind, 1)
    monitor.append(batch, groups=groups, when="2026-01-01")
    part, groups = make_batch(kind, 2)
    labels = np.where(np.arange(60) % 3, part.known_labels, -1)
    monitor.append(part, labels=labels, groups=groups, when="2026-01-02")
    return monitor, None


@target(
    st.fixed_dictionaries(
        {
            "state": st.integers(0, 1),
            "edits": EDITS,
            "changes": st.one_of(st.just([]), CHANGES),
            "append": st.booleans(),
        }
    ),
    share=4,
)
def fuzz_monitor(case: dict[str, Any]) -> None:
    """The state of a monitor, edited or damaged; then its status and another batch."""
    state = states()[case["state"]]
    if case["changes"]:
        content = damage(write_json(state), case["changes"])
    else:
        content = write_json(edit(state, case["edits"]))
    path = write_fresh("state.json", content)
    with Monitor.update(path) as monitor:
        status = monitor.status()
        json.dumps(make_plain(status.to_dict()), allow_nan=False)
        str(status)
        if case["append"]:
            batch, groups = make_batch(("classes", "events")[case["state"]], 2)
            monitor.append(batch, groups=groups, when="2026-01-03")
            monitor.status()


@target(
    st.fixed_dictionaries(
        {
            "case": st.builds(lambda case, scores: {**case, "scores": scores}, EXTRAS, MANY_PLAIN),
            "what": st.sampled_from(["error", "precision", "recall", "costs", "sets", "class"]),
            "value": st.sampled_from([0.3, 0.1, 0.5, 0.0, 1.0, -1.0, "nan", 1e-9]),
        }
    ),
    share=4,
)
def fuzz_decisions(case: dict[str, Any]) -> None:
    """A rule that is chosen on hostile rows, and applied to them."""
    # Few rows grant no threshold.
    given = {**case["case"], "scores": {**case["case"]["scores"]}}
    given["scores"]["rows"] *= 20
    predictions, value = make_predictions(given), float(case["value"])
    level = float(case["case"]["level"])
    if case["what"] == "sets":
        rule: Any = calibrant.prediction_sets(predictions, coverage=value, confidence_level=level)
        rule.sets(predictions)
        return
    first, second = ("false_alarm", "miss") if given["events"] else ("review", "error")
    options: dict[str, Any] = {
        "error": {"max_error": value},
        "class": {"max_error": value, "by": "class"},
        "precision": {"min_precision": value},
        "recall": {"min_recall": value},
        "costs": {"costs": {first: value, second: 1.0}},
    }[case["what"]]
    if case["what"] != "costs":
        options["confidence_level"] = level
    rule = calibrant.decide(predictions, **options)
    accepted = np.asarray(rule.accept(predictions))
    refuse_unless(accepted.dtype == bool, f"acceptance of type {accepted.dtype}")


# Suites, settings and names.

SUITE = """
name: example
defaults: {model: mlp, epochs: 3, batch_size: 50}
grid: {data: [digits, cifar10], lr: [0.1, 0.2]}
seeds: [0, 1]
methods:
  cross_entropy: {}
  acls: {loss: acls(margin=6)}
where:
  - if: {data: cifar10, method: acls}
    set: {loss: acls(margin=10)}
calibrators: [temperature, "temperature(objective=sb_ece)"]
after: [mac_cal_head, shift: {severities: [1, 3]}]
baseline: cross_entropy
metrics: [accuracy, ece]
"""


@target(
    st.fixed_dictionaries(
        {"edits": EDITS, "changes": st.one_of(st.just([]), CHANGES), "text": st.booleans()}
    ),
    share=5,
)
def fuzz_suites(case: dict[str, Any]) -> None:
    """A suite's file, edited or damaged; no code of it runs."""
    if case["changes"]:
        content = damage(SUITE.encode(), case["changes"])
    else:
        try:
            content = yaml.safe_dump(edit(yaml.safe_load(SUITE), case["edits"])).encode()
        except (yaml.YAMLError, ValueError, RecursionError):
            return
    path = write_fresh("suite.yaml", content)

    def refuse(plugins: Any) -> None:
        raise InputError("plugins are code")

    suite = Suite.read(path, approve=refuse)
    for _, spec in suite.specs:
        refuse_unless(len(spec.key) == 16, f"a key {spec.key!r}")


@target(
    st.fixed_dictionaries({"edits": EDITS, "changes": st.one_of(st.just([]), CHANGES)}), share=4
)
def fuzz_settings(case: dict[str, Any]) -> None:
    """A file of training settings."""
    text = Config(epochs=3, model_options={"hidden": [4]}).to_yaml()
    if case["changes"]:
        content = damage(text.encode(), case["changes"])
    else:
        try:
            content = yaml.safe_dump(edit(yaml.safe_load(text), case["edits"])).encode()
        except (yaml.YAMLError, ValueError, RecursionError):
            return
    config = Config.read(write_fresh("config.yaml", content))
    refuse_unless(Config.read(write_fresh("again.yaml", config.to_yaml().encode())) == config, text)


METHODS = [
    *("focal", "focal(gamma=3)", "focal+0.5*s_avuc", "r_aurc(csf=margin)", "acls(margin=6)"),
    *("ece(num_bins=5)", "coverage_at_risk(risk=0.01)", "temperature(objective=sb_ece)"),
    *("mixup(alpha=0.4)", "blend", "sb_ece(order=inf)", "cross_entropy+0.1*sb_ece(num_bins=15)"),
]
PIECES = [
    *("(", ")", "=", ",", "+", "*", "0.5*", "gamma=", "'", '"', "[", "]", "{", "}", "__class__"),
    *("lambda:0", "1e999", "-1", "None", "nan", ".", " ", "\n", "\x00", "ä", "\ud83d", "9" * 40),
    *("((((((((((" * 30, "-" * 300, "[" * 300, "num_bins=10**9", "num_bins=0", "order=-1"),
]


@target(
    st.fixed_dictionaries(
        {
            "text": st.sampled_from(METHODS),
            "edits": st.lists(
                st.tuples(
                    st.integers(0, 60), st.integers(0, 5), st.integers(0, len(PIECES) - 1)
                ).map(list),
                max_size=3,
            ),
            "kind": st.sampled_from(["loss", "metric", "calibrator", "recipe"]),
        }
    ),
    share=8,
)
def fuzz_names(case: dict[str, Any]) -> None:
    """The text of a method, with pieces replaced."""
    text = case["text"]
    for place, length, piece in case["edits"]:
        place %= len(text) + 1
        text = text[:place] + PIECES[piece] + text[place + length :]
    if case["kind"] == "loss":
        losses.parse(text)
    elif case["kind"] == "metric":
        metrics.measure(text)
        registry.label_of(text)
    elif case["kind"] == "calibrator":
        make_calibrator(text)
    else:
        Config(recipe=text)


OPTION_VALUES = [plain for plain in ODD_PLAIN if not isinstance(plain, dict)]


@target(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["loss", "metric", "calibrator"]),
            "name": st.integers(0, 10_000),
            "option": st.integers(0, 100),
            "value": st.integers(0, len(OPTION_VALUES) - 1),
            "seed": SEEDS,
        }
    ),
    share=6,
)
def fuzz_options(case: dict[str, Any]) -> None:
    """An odd value for an option of a method, which is then used."""
    value = OPTION_VALUES[case["value"]]
    try:
        use_option(case, value)
    except TypeError:
        # Python's own error, where the type is wrong and not the value.
        refuse_unless(type(value) not in (int, float), f"a TypeError for {value!r:.80}")


def use_option(case: dict[str, Any], value: Any) -> None:
    """Make a method with an odd value of one of its options, and use it."""
    rng = np.random.default_rng(case["seed"])
    logits, labels = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    if case["kind"] == "metric":
        names = sorted(metrics.available())
        function = getattr(metrics, names[case["name"] % len(names)])
        own = [n for n in inspect.signature(function).parameters if n not in ("preds", "target")]
        number = function(logits, labels, **{own[case["option"] % len(own)]: value})
        refuse_unless(not np.isnan(np.asarray(number, dtype=float)).any(), "NaN")
        return
    if case["kind"] == "loss":
        names = [name for name in sorted(losses.available()) if name != "crl"]
        name = names[case["name"] % len(names)]
        loss_options = list(inspect.signature(type(losses.get(name)).__init__).parameters)[1:]
        loss_options = [each for each in loss_options if each not in ("args", "kwargs")]
        if not loss_options:
            return
        loss = losses.get(name, **{loss_options[case["option"] % len(loss_options)]: value})
        loss(torch.from_numpy(logits), torch.from_numpy(labels))
        return
    name = QUICK[case["name"] % len(QUICK)]
    own = list(inspect.signature(type(calibrators.get(name)).__init__).parameters)[1:]
    made = calibrators.get(name, **{own[case["option"] % len(own)]: value})
    probs = made.fit(logits, labels).predict_proba(logits)
    refuse_unless(np.isfinite(probs).all(), "probabilities are not finite")


# Archives.


@cache
def archive_members() -> dict[str, bytes]:
    """Return the members of an archive of one finished run, and the key of the run."""
    base = find_folder() / "bench"
    spec = Spec(config=Config(epochs=1, data="digits", model="mlp"))
    key = key_of(spec.config, logits=None)
    folder = base / "runs" / key
    (folder / "predictions").mkdir(parents=True)
    (folder / "config.yaml").write_bytes(spec.config.to_yaml().encode())
    (folder / "run.json").write_bytes(b'{"epoch": 1, "figures": {"test_ece": 0.1}, "rule": "last"}')
    (folder / "metrics.jsonl").write_bytes(b'{"epoch": 1}\n')
    members = {
        f"runs/{key}/{name}": content for name, content in run_folder.read_portable(folder).items()
    }
    path = Store(base).add(key, [make_row(spec, value=0.5, part="test", metric="ece")])
    members[f"store/{path.name}"] = path.read_bytes()
    members["failed/0123456789abcdef.json"] = b'{"error": "a", "when": "b"}'
    members["choices/a.json"] = b'{"chosen": {}}'
    members["suite.yaml"] = SUITE.encode()
    return members


NAMES = [
    *(
        "../evil",
        "/tmp/evil",
        "runs/../../evil",
        "store/../../x.parquet",
        "runs",
        ".",
        "",
        "a" * 300,
    ),
    *("store/x.parquet", "failed/x.json", "suite.yaml", "runs/0123456789abcdef/run.json", "\ud83d"),
]


@target(
    st.fixed_dictionaries(
        {
            "member": st.integers(0, 50),
            "name": st.one_of(st.none(), st.sampled_from(NAMES)),
            "type": st.sampled_from(["0"] * 6 + ["1", "2", "3", "5", "6", "S", "x", "L"]),
            "size": st.sampled_from([None] * 6 + [0, 1, 2**33, 2**40]),
            "edits": st.one_of(st.none(), EDITS),
            "content": st.one_of(st.just([]), CHANGES),
            "changes": st.one_of(st.just([]), st.just([]), CHANGES),
            "packed": st.booleans(),
            "begun": st.booleans(),
        }
    ),
    share=4,
)
def fuzz_archives(case: dict[str, Any]) -> None:
    """An archive of results, with a member renamed, retyped, edited or damaged."""
    members = archive_members()
    names = sorted(members)
    chosen = names[case["member"] % len(names)]
    sink = io.BytesIO()
    for name in names:
        content = members[name]
        if name == chosen:
            if case["edits"] is not None and name.endswith(".json"):
                content = write_json(edit(json.loads(content), case["edits"]))
            content = damage(content, case["content"])
        info = tarfile.TarInfo(name)
        info.size = len(content)
        if name == chosen:
            info.type = case["type"].encode()
            info.linkname = "/etc/passwd"
            info.name = name if case["name"] is None else case["name"]
            info.size = len(content) if case["size"] is None else case["size"]
        try:
            header = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        except (ValueError, UnicodeError):
            return
        sink.write(header + content + bytes(-len(content) % 512))
    data = damage(sink.getvalue() + bytes(1024), case["changes"])
    path = write_fresh("a.tar", gzip.compress(data, 1) if case["packed"] else data)
    into = path.parent / "into"
    key = next(name.split("/")[1] for name in names if name.startswith("runs/"))
    mine = into / "runs" / key
    if case["begun"]:
        (mine / "checkpoint").mkdir(parents=True)
        (mine / "config.yaml").write_bytes(members[f"runs/{key}/config.yaml"])
        (mine / "checkpoint" / "epoch-000001.json").write_bytes(b"{}")
    try:
        merge([path], into)
    finally:
        outside = {each.name for each in path.parent.iterdir()} - {"a.tar", "into"}
        refuse_unless(not outside, f"files outside: {outside}")
        refuse_unless(not os.path.exists("/tmp/evil"), "a file outside")
        links = [each for each in into.rglob("*") if each.is_symlink()]
        refuse_unless(not links, f"links: {links}")
        if case["begun"] and not (mine / "checkpoint").is_dir():
            fault = run_folder.find_fault_of_copy(mine, mine)
            refuse_unless(fault is None, f"an unfinished run was lost to one that {fault}")


TEXTS = ODD_TEXTS


@target(
    st.fixed_dictionaries(
        {
            "command": st.sampled_from(["evaluate", "compare", "fit", "apply", "decide", "sets"]),
            "file": st.integers(0, 10_000),
            "options": st.lists(
                st.tuples(
                    st.sampled_from(
                        [
                            *("--kind", "-m", "--num-bins", "--seed", "--resamples", "--method"),
                            *("--pos-label", "--confidence-level", "--max-error", "--coverage"),
                            *("--fail-above", "--label-column", "--id-column", "--tolerance"),
                            *("--logits", "--probs", "--json", "--event", "--ignore-index"),
                        ]
                    ),
                    st.sampled_from([*TEXTS, "0.1", "1", "ece", "ece=0.1", "temperature", "label"]),
                ).map(list),
                max_size=3,
            ),
        }
    ),
    share=1,
)
def fuzz_commands(case: dict[str, Any]) -> None:
    """A command with odd options: its exit code is that of a result or of bad input."""
    from typer.testing import CliRunner

    from calibrant.cli import app

    files = good_files()
    names = sorted(files)
    name = names[case["file"] % len(names)]
    path = write_fresh(name, files[name])
    flags = ("--logits", "--probs", "--json")
    given = [part for pair in case["options"] for part in (pair[:1] if pair[0] in flags else pair)]
    if any("\x00" in part for part in given):  # no process can be started so
        return
    arguments = {
        "evaluate": [str(path), "--quiet", "--no-intervals"],
        "compare": [str(path), str(path), "--resamples", "100"],
        "fit": [str(path), "-o", str(path.with_name("c.safetensors"))],
        "apply": [str(path.with_name("c.safetensors")), str(path)],
        "decide": [str(path), "-o", str(path.with_name("d.safetensors"))],
        "sets": [str(path), "-o", str(path.with_name("s.safetensors"))],
    }[case["command"]]
    done = CliRunner().invoke(app, [case["command"], *arguments, *given])
    refuse_unless(done.exit_code in (0, 2, 3), f"exit code {done.exit_code}: {done.output[-500:]}")
    refuse_unless("unexpected" not in done.output, done.output[-500:])
    if done.exit_code == 2:
        raise InputError("refused by the command line")
