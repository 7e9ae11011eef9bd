"""The torchmetrics classes: thin shells that give what the functions give."""

from __future__ import annotations

import inspect
import pickle
import warnings

import numpy as np
import pytest
import torch
from torchmetrics import Metric, MetricCollection

from calibrant import InputError
from calibrant.metrics import modules
from calibrant.metrics.registry import METRICS
from tests.helpers.metric_cases import (
    DEVICES,
    OOD,
    every_case,
    labels_for,
    module,
    module_class,
    rows,
    value,
)


def close(actual, expected, tolerance=1e-11):
    return actual.item() == pytest.approx(expected, rel=tolerance, abs=tolerance)


def test_there_is_one_class_for_every_metric():
    assert sorted(getattr(modules, name).metric for name in modules.__all__) == sorted(METRICS)
    for name in modules.__all__:
        shell = getattr(modules, name)
        assert issubclass(shell, Metric)
        assert shell.__doc__
        assert f"`calibrant.metrics.{shell.metric}`" in shell.__doc__
        assert shell.is_differentiable is False
        assert shell.full_state_update is False
        own = inspect.signature(METRICS.load(shell.metric)).parameters
        assert {*own, "from_logits", "ignore_index"} <= set(inspect.signature(shell).parameters)
    assert modules.Accuracy.higher_is_better is True
    assert modules.OODAUROC.higher_is_better is True
    assert modules.ECE.higher_is_better is False
    assert modules.MeanEntropy.higher_is_better is None


@pytest.mark.sampled(by="name")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("from_logits", [True, False])
@every_case
def test_updates_forward_and_reset(name, options, from_logits, device):
    logits, labels = rows()
    preds = (logits if from_logits else logits.softmax(1)).to(device)
    target = labels_for(name, labels).to(device)
    metric = module(name, 4, from_logits=from_logits, **options).to(device)
    whole = value(name, preds, target, from_logits=from_logits, **options)
    for _ in range(2):  # once more after a reset
        for part, theirs in zip(preds.split([25, 3, 32]), target.split([25, 3, 32]), strict=True):
            metric.update(part, theirs)
        actual = metric.compute()
        assert actual.shape == ()
        assert actual.dtype == torch.float64
        assert actual.device.type == device
        assert close(actual, whole)
        metric.reset()
    for part, theirs in zip(preds.split(30), target.split(30), strict=True):
        batch = value(name, part, theirs, from_logits=from_logits, **options)
        assert close(metric(part, theirs), batch)
    assert close(metric.compute(), whole)


@every_case
def test_copies_and_saved_states(name, options):
    logits, labels = rows()
    target = labels_for(name, labels)
    whole = value(name, logits, target, **options)
    metric = module(name, 4, **options)
    metric.update(logits[:40], target[:40])
    for copied in (metric.clone(), pickle.loads(pickle.dumps(metric))):  # noqa: S301
        copied.update(logits[40:], target[40:])
        assert close(copied.compute(), whole)
    metric.persistent(True)
    saved = metric.state_dict()
    assert saved
    fresh = module(name, 4, **options)
    fresh.persistent(True)
    fresh.load_state_dict(saved)
    fresh.update(logits[40:], target[40:])
    assert close(fresh.compute(), whole)
    other = module(name, 4, **options)
    other.update(logits[40:], target[40:])
    metric.merge_state(other)
    assert close(metric.compute(), whole)


@every_case
def test_a_batch_may_be_overwritten_by_the_next(name, options):
    logits, labels = rows()
    target = labels_for(name, labels)
    metric = module(name, 4, **options)
    buffer, theirs = torch.empty(20, 4, dtype=logits.dtype), torch.empty(20, dtype=torch.int64)
    for begin in range(0, 60, 20):
        buffer.copy_(logits[begin : begin + 20])
        theirs.copy_(target[begin : begin + 20])
        metric.update(buffer, theirs)
    assert close(metric.compute(), value(name, logits, target, **options))


@pytest.mark.parametrize("change", ["half", "float", "to half", "parent", "set_dtype"])
@pytest.mark.parametrize("name", ["nll", "ece", "classwise_ece", "aurc", "kde_ece"])
def test_sums_stay_float64(name, change):
    logits, labels = rows()
    metric = module(name, 4)
    metric.update(logits[:30], labels[:30])
    if change == "half":
        metric.half()
    elif change == "float":
        metric.float()
    elif change == "to half":
        metric.to(torch.float16)
    elif change == "set_dtype":
        metric.set_dtype(torch.float16)
    else:
        torch.nn.ModuleList([torch.nn.Linear(2, 2), metric]).to(torch.bfloat16)
    metric.update(logits[30:], labels[30:])
    assert close(metric.compute(), value(name, logits, labels))


@pytest.mark.parametrize("device", DEVICES)
def test_a_collection_shares_states_between_metrics(device):
    logits, labels = rows()
    names = [name for name in METRICS if name not in OOD]
    shells = {name: module_class(name)(num_classes=4) for name in names}
    collection = MetricCollection(shells).to(device)
    for part, theirs in zip(logits.split(20), labels.split(20), strict=True):
        collection.update(part.to(device), theirs.to(device))
    for name, actual in collection.compute().items():
        assert close(actual, value(name, logits, labels)), name
    groups = [set(group) for group in collection.compute_groups.values()]
    assert {"ece", "mce", "chance_ece"} in groups
    assert {"classwise_ece", "marginal_ece", "brier_calibration"} in groups
    assert any({"adaptive_ece", "ks_error", "aurc", "failure_auroc"} <= group for group in groups)
    forward = collection(logits.to(device), labels.to(device))
    assert close(forward["ece"], value("ece", logits, labels))


def test_a_collection_never_shares_what_only_looks_alike():
    """On constant logits NLL is the entropy, and no row is ignored yet."""
    flat, labels = torch.zeros(8, 4), torch.arange(8) % 4
    collection = MetricCollection(
        {
            "nll": modules.NLL(),
            "entropy": modules.MeanEntropy(),
            "ece": modules.ECE(),
            "kept": modules.ECE(ignore_index=0),
            "less": modules.ECE(ignore_index=-1),
            "msp": modules.AURC(),
            "margin": modules.AURC(score="margin"),
        }
    )
    collection.update(flat, torch.where(labels == 0, 1, labels))
    logits, labels = rows(40, 4)
    labels[0] = -1
    collection["less"].update(logits, labels)
    collection.update(logits[1:], labels[1:])
    everything = torch.cat((flat.double(), logits[1:]))
    target = torch.cat((torch.tensor([1, 1, 2, 3] * 2), labels[1:]))
    actual = collection.compute()
    assert close(actual["nll"], value("nll", everything, target), 1e-6)
    assert close(actual["entropy"], value("mean_entropy", everything, target), 1e-6)
    assert close(actual["ece"], value("ece", everything, target), 1e-6)
    assert close(actual["kept"], value("ece", everything, target, ignore_index=0), 1e-6)
    assert close(actual["msp"], value("aurc", everything, target), 1e-6)
    assert close(actual["margin"], value("aurc", everything, target, score="margin"), 1e-6)


@every_case
def test_dense_and_binary_batches(name, options):
    logits, labels = rows(48, 5)
    target = labels_for(name, labels).clone()
    target[::5] = 255
    metric = module(name, 5, ignore_index=255, **options)
    for begin in range(0, 48, 24):
        image = logits[begin : begin + 24].reshape(2, 12, 5).permute(0, 2, 1)
        metric.update(image, target[begin : begin + 24].reshape(2, 12))
    assert close(metric.compute(), value(name, logits, target, ignore_index=255, **options))
    score, truth = logits[:, 0], labels % 2
    binary = module(name, 2, **options)
    binary.update(score, truth)
    assert close(binary.compute(), value(name, score, truth, **options))


@every_case
def test_no_rows_is_an_error_and_an_ignored_batch_is_not(name, options):
    logits, labels = rows()
    target = labels_for(name, labels)
    metric = module(name, 4, ignore_index=255, **options)
    metric.update(logits, torch.full_like(target, 255))
    with pytest.raises(InputError, match="no rows were seen"):
        metric.compute()
    metric.update(logits, target)
    assert close(metric.compute(), value(name, logits, target, **options))


def test_a_refused_batch_leaves_no_trace():
    logits, labels = rows(150_000, 3)
    for name in ("ece", "aurc"):
        metric = module(name, 3)
        metric.update(logits, labels)
        bad = logits.clone()
        bad[-1] = float("nan")  # in the last block: the ones before it were fine
        with pytest.raises(InputError, match="first in rows 149999"):
            metric.update(bad, labels)
        assert close(metric.compute(), value(name, logits, labels))


def test_classes_are_counted_where_sums_depend_on_them():
    with pytest.raises(InputError, match=r"for example ClasswiseECE\(num_classes=10\)"):
        modules.ClasswiseECE()
    logits, labels = rows()
    with pytest.raises(InputError, match="made for 10 classes, found scores of 4"):
        modules.MIoU(num_classes=10).update(logits, labels)
    with pytest.raises(InputError, match="made for 3 classes"):
        modules.ECE(num_classes=3).update(logits, labels)
    modules.ECE(num_classes=4).update(logits, labels)


def test_unknown_and_bad_options_are_named():
    with pytest.raises(InputError, match=r"ECE: .*`bins`; its own options: num_bins, order"):
        modules.ECE(bins=3)
    with pytest.raises(InputError, match="order must be"):
        modules.ECE(order=0)
    assert "num_bins=7" in repr(modules.ECE(num_bins=7))


def test_arguments_may_go_unchecked():
    logits, labels = rows()
    logits[3] = float("inf")
    with pytest.raises(InputError, match="NaN or infinity"):
        modules.Accuracy().update(logits, labels)
    modules.Accuracy(validate_args=False).update(logits, labels)


def test_options_of_torchmetrics_pass_through():
    logits, labels = rows()
    metric = modules.AURC(compute_on_cpu=True, sync_on_compute=False)
    metric.update(logits, labels)
    assert metric.compute_on_cpu
    assert close(metric.compute(), value("aurc", logits, labels))


def test_numpy_entropy_and_functions_work_too():
    logits, labels = rows()
    metric = modules.ECE()
    metric.update(logits.numpy(), np.asarray(labels))
    assert close(metric.compute(), value("ece", logits, labels))
    entropy = modules.MeanEntropy()
    entropy.update(logits)
    assert close(entropy.compute(), value("mean_entropy", logits, labels))
    ranked = modules.AURC(score=lambda block: block.margin)
    ranked.update(logits, labels)
    assert close(ranked.clone().compute(), value("aurc", logits, labels, score="margin"))


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float16, torch.float32)])
@pytest.mark.parametrize("name", ["aurc", "kde_ece", "ece"])
def test_batches_may_differ_in_precision(name, dtypes):
    logits, labels = rows()
    logits = logits.half().double()
    options = {"bandwidth": 0.1} if name == "kde_ece" else {}
    metric = module(name, 4, **options)
    metric.update(logits[:30].to(dtypes[0]), labels[:30])
    metric.update(logits[30:].to(dtypes[1]), labels[30:])
    assert close(metric.compute(), value(name, logits, labels, **options), 1e-4)


def test_no_warnings():
    logits, labels = rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in METRICS:
            metric = module(name, 4)
            metric(logits, labels_for(name, labels))
            metric.compute()
    assert module_class("ece") is modules.ECE


@pytest.mark.parametrize("dense", [False, True])
def test_probabilities_given_as_logits_are_warned_of_once(dense):
    probs, labels = torch.softmax(torch.randn(32, 4), 1), torch.randint(0, 4, (32,))
    if dense:
        probs, labels = probs.reshape(2, 4, 4, 4).permute(0, 3, 1, 2), labels.reshape(2, 4, 4)
    metric = modules.ECE()
    with pytest.warns(UserWarning, match="if they are probabilities, set from_logits=False"):
        metric.update(probs, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.update(probs, labels)
        modules.ECE(from_logits=False).update(probs, labels)
        modules.ECE().update(probs.log(), labels)
