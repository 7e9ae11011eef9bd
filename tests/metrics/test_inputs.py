"""Arrays of every layout are read as they are and left alone; bad ones are named."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from calibrant import InputError, calibrators, metrics
from calibrant.metrics import measure
from tests.helpers.metric_cases import every_case, labels_for, rows, value


def layouts(array):
    """The same numbers in other layouts of memory."""
    wide = np.zeros((array.shape[0], 2 * array.shape[1]), array.dtype)
    wide[:, ::2] = array
    record = np.zeros(len(array), [("tag", "i1"), ("scores", array.dtype, array.shape[1:])])
    record["scores"] = array
    frozen = array.copy()
    frozen.flags.writeable = False
    return {
        "fortran": np.asfortranarray(array),
        "strided": wide[:, ::2],
        "backwards": array[::-1].copy()[::-1],
        "classes backwards": array[:, ::-1].copy()[:, ::-1],
        "big-endian": array.astype(array.dtype.newbyteorder(">")),
        "read-only": frozen,
        "unaligned field": record["scores"],
        "long double": array.astype(np.longdouble),
        "nested lists": array.tolist(),
    }


@pytest.mark.parametrize("num_classes", [4, 64])
@pytest.mark.parametrize("layout", layouts(np.zeros((2, 2))))
def test_the_layout_of_an_array_does_not_matter(layout, num_classes):
    logits, labels = (t.numpy() for t in rows(50, num_classes))
    laid = layouts(logits)[layout]
    before = np.array(laid)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("ece", "classwise_ece", "nll", "aurc"):
            assert value(name, laid, labels) == pytest.approx(
                value(name, logits, labels), rel=1e-12
            )
        actual = value("classwise_ece", laid, labels, binning="mass")
    assert actual == pytest.approx(value("classwise_ece", logits, labels, binning="mass"))
    assert np.array_equal(np.array(laid), before)


@pytest.mark.parametrize("from_logits", [True, False])
@every_case
def test_inputs_are_never_written_to(name, options, from_logits, tmp_path):
    logits, labels = rows()
    preds = logits if from_logits else logits.softmax(1)
    np.save(tmp_path / "preds.npy", preds.numpy())
    np.save(tmp_path / "labels.npy", labels_for(name, labels).numpy())
    mapped = np.load(tmp_path / "preds.npy", mmap_mode="r")
    target = np.load(tmp_path / "labels.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = value(name, mapped, target, from_logits=from_logits, **options)
    assert np.array_equal(mapped, preds.numpy())
    assert np.array_equal(target, labels_for(name, labels).numpy())
    # A tensor shares its memory with the caller, who may also be training with it.
    mine, theirs = preds.clone().requires_grad_(), labels_for(name, labels).clone()
    again = getattr(metrics, name)(mine, theirs, from_logits=from_logits, **options)
    assert not again.requires_grad
    assert torch.equal(mine, preds)
    assert torch.equal(theirs, labels_for(name, labels))
    assert actual == pytest.approx(again.item(), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("num_classes", [3, 64])
def test_tensors_of_any_stride(num_classes):
    logits, labels = rows(50, num_classes)
    expected = value("ece", logits, labels)
    for laid in (logits.t().contiguous().t(), logits.repeat_interleave(2, 1)[:, ::2]):
        assert not laid.is_contiguous()
        assert value("ece", laid, labels) == pytest.approx(expected, rel=1e-12)
    row = logits[:1].expand(50, num_classes)
    assert value("nll", row, labels) == pytest.approx(value("nll", row.clone(), labels), rel=1e-12)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", ">i4"]
)
def test_labels_of_any_whole_type(dtype):
    logits, labels = rows()
    expected = value("nll", logits, labels)
    assert value("nll", logits, labels.numpy().astype(dtype)) == expected
    assert value("nll", logits.numpy(), labels.numpy().astype(dtype)[::-1][::-1]) == expected


def test_truth_may_be_boolean():
    logits, labels = rows(60, 2)
    assert value("ece", logits, labels.bool()) == value("ece", logits, labels)
    assert value("ood_auroc", logits, labels.bool()) == value("ood_auroc", logits, labels)


LOGITS, LABELS = rows(12, 3)


def spoilt(row, number, source=LOGITS):
    changed = source.clone()
    changed[row] = number
    return changed


ERRORS = {
    "predicted classes": ((LABELS, LABELS), {}, "scores must be floating point, found torch.int64"),
    "text": ((np.array([["a"]]), [0]), {}, "expected an array of numbers, found dtype <U1"),
    "objects": ((np.array([[{}]]), [0]), {}, "expected an array of numbers, found dtype object"),
    "one number": ((torch.tensor(0.5), torch.tensor(1)), {}, "at least one dimension"),
    "no rows": ((LOGITS[:0], LABELS[:0]), {}, r"no rows: scores have shape \(0, 3\)"),
    "one column": ((LOGITS[:, :1], LABELS), {}, r"for a binary score give shape \(N,\)"),
    "fewer labels": ((LOGITS, LABELS[:5]), {}, r"need labels of shape \(12,\), found \(5,\)"),
    "dense labels": (
        (LOGITS.reshape(2, 3, 6), LABELS),
        {},
        r"scores of shape \(2, 3, 6\) need labels of shape \(2, 6\), found \(12,\)",
    ),
    "one-hot": ((LOGITS, torch.eye(3).long()[LABELS]), {}, r"one-hot labels: give labels.argmax"),
    "float labels": ((LOGITS, LABELS.float()), {}, "labels must be integers, found torch.float32"),
    "no labels": ((LOGITS, None), {}, "this metric needs labels"),
    "NaN": ((spoilt(7, np.nan), LABELS), {}, "logits hold NaN or infinity, first in rows 7"),
    "infinity": ((spoilt(3, np.inf), LABELS), {}, "logits hold NaN or infinity, first in rows 3"),
    "log of zero": (
        (spoilt(3, -np.inf), LABELS),
        {},
        "give probabilities instead, or, if it marks options",
    ),
    "logits for probabilities": (
        (LOGITS, LABELS),
        {"from_logits": False},
        r"probabilities must lie in \[0, 1\], found .* are these logits\?",
    ),
    "sum": (
        (spoilt(4, 0.5, LOGITS.softmax(1)), LABELS),
        {"from_logits": False},
        "row 4 sums to 1.5. Divide each row by its sum",
    ),
    "label too large": (
        (LOGITS, spoilt(2, 9, LABELS)),
        {},
        r"labels must lie in 0..2, found 9, first in rows 2; .*ignore_index",
    ),
    "label negative": ((LOGITS, spoilt(5, -1, LABELS)), {}, "found -1, first in rows 5"),
    "all ignored": (
        (LOGITS, torch.full_like(LABELS, -100)),
        {"ignore_index": -100},
        "no rows were seen",
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_bad_input_is_named(kind):
    (preds, target), options, message = ERRORS[kind]
    for name in ("ece", "classwise_ece", "aurc"):
        with pytest.raises(InputError, match=message):
            getattr(metrics, name)(preds, target, **options)


@every_case
def test_every_metric_refuses_nan_and_rows_all_ignored(name, options):
    with pytest.raises(InputError, match="first in rows 7"):
        value(name, spoilt(7, np.nan), labels_for(name, LABELS), **options)
    with pytest.raises(InputError, match="no rows were seen"):
        value(name, LOGITS, torch.full_like(LABELS, 255), ignore_index=255, **options)


@pytest.mark.parametrize("num_classes", [3, 64])
def test_bad_rows_are_counted_over_blocks_and_ignored_rows(num_classes):
    logits, labels = torch.zeros(200_000, num_classes), torch.zeros(200_000, dtype=torch.int64)
    labels[:1000] = 255
    logits[5] = np.nan  # ignored, so it does not matter
    assert value("ece", logits, labels, ignore_index=255) < 1
    logits[150_001] = np.nan
    with pytest.raises(InputError, match="first in rows 150001"):
        value("ece", logits, labels, ignore_index=255)
    logits[150_001] = 0
    labels[160_007] = 77
    with pytest.raises(InputError, match=r"found 77, first in rows 160007"):
        value("ece", logits, labels, ignore_index=255)


OPTION_ERRORS = [
    ("ece", {"num_bins": 0}, "num_bins must be a whole number of at least 1"),
    ("ece", {"order": 0.5}, "order must be a finite number of at least 1, found 0.5"),
    ("ece", {"order": float("inf")}, "mce is the largest gap"),
    ("ece", {"binning": "equal"}, "binning must be one of width, mass; found 'equal'"),
    ("ece", {"form": "x"}, "form must be one of bin, label"),
    ("mce", {"binning": "x"}, "binning must be one of"),
    ("debiased_ece", {"order": 3}, "order 1 or 2"),
    ("sweep_ece", {"order": float("nan")}, "order must be"),
    ("marginal_ece", {"class_reduction": "max"}, "class_reduction must be one of mean, sum"),
    ("kde_ece", {"form": "x"}, "form must be one of canonical, marginal, top"),
    ("kde_ece", {"bandwidth": 0.0}, "bandwidth must be positive"),
    ("aurc", {"score": "x"}, "expected one of msp, margin, neg_entropy, max_logit or a function"),
    ("aurc", {"loss": "x"}, "expected one of zero_one, cross_entropy, brier or a function"),
    ("aurc", {"weights": "x"}, "weights must be one of empirical, log"),
    ("risk_at_coverage", {"coverage": 0.0}, r"coverage must lie in \(0, 1\]"),
    ("coverage_at_risk", {"risk": -0.1}, "risk must not be negative"),
]


@pytest.mark.parametrize(("name", "options", "message"), OPTION_ERRORS)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(InputError, match=message):
        value(name, LOGITS, LABELS, **options)


def test_in_and_out_of_distribution_labels_are_one_and_zero():
    with pytest.raises(InputError, match=r"labels must lie in 0..1, found 2"):
        value("ood_auroc", LOGITS, spoilt(0, 2, LABELS % 2))
    with pytest.raises(InputError, match="both kinds are needed"):
        value("fpr95", LOGITS, torch.ones(12, dtype=torch.int64))


def test_the_registry_suggests_names_and_names_options():
    with pytest.raises(InputError, match=r"(?i)did you mean adaptive_ece"):
        measure("adaptive_ecee")
    with pytest.raises(InputError, match="metric 'ece' has no option 'bins'; its options:"):
        measure("ece", bins=3)
    with pytest.raises(InputError, match="vectors of one length"):
        metrics.aurc_from_scores(np.zeros(3), np.zeros(4))


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_probabilities_given_as_logits_cause_a_warning(make):
    probs = np.random.default_rng(0).dirichlet(np.ones(4), size=50)
    labels = np.arange(50) % 4
    for wrong in (
        lambda: metrics.ece(make(probs), make(labels)),
        lambda: calibrators.get("temperature").fit(make(probs), make(labels)),
    ):
        with pytest.warns(UserWarning, match="set from_logits=False") as messages:
            wrong()
        assert {warning.filename for warning in messages} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics.ece(make(probs), make(labels), from_logits=False)
        metrics.ece(make(np.log(probs)), make(labels))
        metrics.ece(make(probs[:1]), make(labels[:1]))  # one row may sum to one by chance
        calibrators.get("temperature", from_logits=False).fit(make(probs), make(labels))
