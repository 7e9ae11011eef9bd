"""The value: how it is made, what it keeps, how it is divided."""

import dataclasses
import pickle  # only to prove that a value survives being sent to a worker process

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.core.errors import InputError
from calibrant.predictions import Predictions


def logits(rows=6, classes=3, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=(rows, classes)).astype(dtype)


def labels(rows=6, classes=3):
    return np.arange(rows) % classes


def test_numpy_stays_numpy_and_is_not_copied():
    scores, truth = logits(), labels()
    predictions = Predictions.from_logits(scores, truth)
    assert predictions.scores is scores
    assert predictions.labels is truth
    assert predictions.is_logits
    assert (predictions.num_rows, len(predictions), predictions.num_classes) == (6, 6, 3)
    assert not predictions.is_binary
    assert not predictions.is_dense
    assert not predictions.is_lazy


def test_torch_stays_torch_and_shares_memory():
    scores = torch.from_numpy(logits()).requires_grad_()
    predictions = Predictions.from_logits(scores, torch.from_numpy(labels()))
    assert isinstance(predictions.scores, torch.Tensor)
    assert predictions.scores.data_ptr() == scores.data_ptr()
    assert not predictions.scores.requires_grad
    assert scores.requires_grad


def test_labels_follow_the_library_of_the_scores():
    mixed = Predictions.from_logits(torch.from_numpy(logits()), labels())
    assert isinstance(mixed.labels, torch.Tensor)
    other = Predictions.from_logits(logits(), torch.from_numpy(labels()))
    assert isinstance(other.labels, np.ndarray)
    listed = Predictions.from_probs([[0.5, 0.5], [0.1, 0.9]], [0, 1])
    assert isinstance(listed.scores, np.ndarray)


def test_read_only_and_reversed_arrays_are_accepted_without_a_warning(recwarn):
    scores, truth = logits(), labels()
    scores.flags.writeable = truth.flags.writeable = False
    predictions = Predictions.from_logits(scores[::-1], truth[::-1])
    assert np.array_equal(predictions.scores, scores[::-1])
    Predictions.from_logits(torch.from_numpy(logits()), truth)
    assert not recwarn.list


def test_arrays_of_the_other_byte_order_are_made_native():
    swapped = logits().astype(">f4")
    predictions = Predictions.from_logits(swapped, labels().astype(">i8"))
    assert np.array_equal(predictions.scores, logits())
    assert predictions.scores.dtype.isnative


def test_the_callers_arrays_are_never_changed():
    scores, truth = logits(), labels()
    before = scores.copy(), truth.copy()
    predictions = Predictions.from_logits(scores, truth, class_names=list("abc"))
    predictions.split(0.5)
    list(predictions.batches(2))
    predictions.take([0, 2])
    assert np.array_equal(scores, before[0])
    assert np.array_equal(truth, before[1])


def test_a_single_score_per_row_is_binary_with_two_classes():
    predictions = Predictions.from_probs(np.array([0.2, 0.9, 1.0, 0.0]), np.array([0, 1, 1, 0]))
    assert predictions.is_binary
    assert predictions.num_classes == 2
    assert Predictions.from_logits(torch.randn(4), torch.tensor([0, 1, 1, 0])).is_binary


def test_dense_scores_take_labels_with_an_ignored_value():
    truth = np.zeros((2, 4, 4), dtype=np.uint8)
    truth[0, 0] = 255
    scores = np.zeros((2, 3, 4, 4), dtype=np.float32)
    predictions = Predictions.from_logits(scores, truth, ignore_index=255)
    assert predictions.is_dense
    assert (predictions.num_rows, predictions.num_classes) == (2, 3)
    assert predictions.labels.dtype == np.uint8
    chunk, chunk_labels = next(predictions.batches(1))
    assert chunk.shape == (1, 3, 4, 4)
    assert chunk_labels.dtype == np.int64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_type_is_kept(dtype):
    scores = torch.randn(50, 7).to(dtype)
    predictions = Predictions.from_logits(scores, torch.arange(50) % 7)
    assert predictions.scores.dtype == dtype
    probs = torch.softmax(scores.float(), 1).to(dtype)
    assert Predictions.from_probs(probs, torch.arange(50) % 7).scores.dtype == dtype


def test_half_precision_rows_of_a_thousand_classes_count_as_summing_to_one():
    probs = torch.softmax(torch.randn(100, 1000), 1)
    for dtype in (torch.float16, torch.bfloat16):
        Predictions.from_probs(probs.to(dtype), torch.zeros(100, dtype=torch.long))


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_every_integer_type_of_labels_is_accepted(dtype):
    truth = labels().astype(dtype)
    assert Predictions.from_logits(logits(), truth).labels.dtype == truth.dtype
    as_torch = Predictions.from_logits(torch.from_numpy(logits()), truth)
    assert torch.equal(as_torch.labels.long(), torch.from_numpy(labels()))
    as_torch.take([1, 2])


def test_the_value_cannot_be_changed():
    predictions = Predictions.from_logits(logits(), labels())
    with pytest.raises(dataclasses.FrozenInstanceError):
        predictions.name = "other"
    assert not hasattr(predictions, "__dict__")
    renamed = dataclasses.replace(predictions, name="other")
    assert renamed.name == "other"
    assert renamed.scores is predictions.scores


def test_a_value_survives_being_sent_to_a_worker():
    predictions = Predictions.from_logits(logits(), labels(), class_names=list("abc"))
    again = pickle.loads(pickle.dumps(predictions))  # noqa: S301
    assert np.array_equal(again.scores, predictions.scores)
    assert again.class_names == ("a", "b", "c")


def test_repr_says_size_kind_and_type():
    assert repr(Predictions.from_logits(logits(), labels(), name="net")) == (
        "Predictions('net': 6 rows, 3 classes, logits, numpy float32)"
    )
    assert repr(Predictions.from_probs(torch.tensor([0.5]), torch.tensor([1]))) == (
        "Predictions('predictions': 1 row, binary, probabilities, torch.float32 on cpu)"
    )
    dense = Predictions.from_logits(np.zeros((2, 3, 4, 5)), np.zeros((2, 4, 5), int))
    assert "2 rows of 4 × 5, 3 classes" in repr(dense)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_batches_give_every_row_once_and_in_order(library):
    scores, truth = logits(11), labels(11)
    if library == "torch":
        scores, truth = torch.from_numpy(scores), torch.from_numpy(truth)
    predictions = Predictions.from_logits(scores, truth)
    for rows in (1, 4, 11, 100, None):
        parts = list(predictions.batches(rows))
        assert all(len(part) <= (rows or 11) for part, _ in parts)
        assert np.array_equal(np.concatenate([part for part, _ in parts]), np.asarray(scores))
        assert np.array_equal(np.concatenate([part for _, part in parts]), np.asarray(truth))


def test_batches_of_no_rows_are_an_error_at_once():
    with pytest.raises(InputError, match="at least 1"):
        Predictions.from_logits(logits(), labels()).batches(0)


def test_the_same_seed_splits_torch_and_numpy_alike():
    predictions = Predictions.from_logits(logits(100), labels(100), ids=np.arange(100))
    other = Predictions.from_logits(
        torch.from_numpy(logits(100)), torch.from_numpy(labels(100)), ids=np.arange(100)
    )
    for seed in (0, 1):
        assert np.array_equal(predictions.split(seed=seed)[0].ids, other.split(seed=seed)[0].ids)
    assert not np.array_equal(predictions.split(seed=0)[0].ids, predictions.split(seed=1)[0].ids)
    assert isinstance(other.split()[0].scores, torch.Tensor)


def test_split_parts_keep_what_is_known():
    predictions = Predictions.from_logits(
        logits(10), labels(10), class_names=list("abc"), ids=[f"r{i}" for i in range(10)], name="n"
    )
    first, second = predictions.split(0.3)
    assert (len(first), len(second)) == (3, 7)
    assert first.class_names == ("a", "b", "c")
    assert second.name == "n"
    for part in (first, second):
        rows = [int(name[1:]) for name in part.ids]
        assert np.array_equal(part.scores, predictions.scores[rows])
        assert np.array_equal(part.labels, predictions.labels[rows])


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    fraction=st.floats(0.05, 0.95),
    seed=st.integers(0, 5),
)
def test_split_is_disjoint_exhaustive_and_as_even_as_rounding_allows(sizes, fraction, seed):
    truth = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    total, classes = len(truth), max(2, len(sizes))
    predictions = Predictions.from_logits(np.zeros((total, classes)), truth, ids=np.arange(total))
    expected = int(np.floor(total * fraction + 0.5))
    if not 0 < expected < total:
        with pytest.raises(InputError, match="too few rows"):
            predictions.split(fraction, seed=seed)
        return
    first, second = predictions.split(fraction, seed=seed)
    assert len(first) == expected
    assert np.array_equal(np.sort(np.concatenate([first.ids, second.ids])), np.arange(total))
    for label, size in enumerate(sizes):
        share = (first.labels == label).sum()
        assert np.floor(size * fraction - 1e-6) <= share <= np.ceil(size * fraction + 1e-6)


def test_split_by_number_of_rows_and_its_refusals():
    predictions = Predictions.from_logits(logits(10), labels(10))
    assert [len(part) for part in predictions.split(4)] == [4, 6]
    with pytest.raises(InputError, match=r"too few rows.*found 10"):
        predictions.split(10)
    for bad in (0.0, 1.0, -0.2, 1.5, 0, True, "half"):
        with pytest.raises(InputError, match="fraction"):
            predictions.split(bad)


def test_unstratified_and_dense_splits_are_along_the_rows():
    predictions = Predictions.from_logits(logits(10), np.array([0] * 9 + [1]))
    assert [len(part) for part in predictions.split(0.5, stratify=False)] == [5, 5]
    dense = Predictions.from_logits(np.zeros((6, 2, 3)), np.zeros((6, 3), int))
    first, second = dense.split(0.5)
    assert first.scores.shape == (3, 2, 3)
    assert second.labels.shape == (3, 3)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_take_gives_rows_in_the_order_asked_for(library):
    scores, truth = logits(), labels()
    predictions = Predictions.from_logits(scores, truth, ids=list("uvwxyz"))
    if library == "torch":
        predictions = Predictions.from_logits(
            torch.from_numpy(scores), torch.from_numpy(truth), ids=list("uvwxyz")
        )
    for indices in ([4, 0, 0], np.array([4, 0, 0]), torch.tensor([4, 0, 0])):
        taken = predictions.take(indices)
        assert np.array_equal(np.asarray(taken.scores), scores[[4, 0, 0]])
        assert np.array_equal(np.asarray(taken.labels), truth[[4, 0, 0]])
        assert taken.ids.tolist() == ["y", "u", "u"]
    assert predictions.take(truth == 1).ids.tolist() == ["v", "y"]


def test_take_refuses_rows_that_are_not_there():
    predictions = Predictions.from_logits(logits(), labels())
    with pytest.raises(InputError, match=r"row numbers must lie in 0 to 5, found 6, 9"):
        predictions.take([0, 6, 9])
    with pytest.raises(InputError, match="found -1"):
        predictions.take([-1])
    with pytest.raises(InputError, match="empty"):
        predictions.take([])
    with pytest.raises(InputError, match="whole numbers"):
        predictions.take([0.5])
    with pytest.raises(InputError, match="whole numbers"):
        predictions.take([True, False])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_predictions_on_a_device_stay_there():
    scores = torch.randn(100, 5, device="cuda")
    predictions = Predictions.from_logits(scores, torch.arange(100) % 5)
    assert predictions.labels.device.type == "cuda"
    first, second = predictions.split()
    assert first.scores.device.type == second.labels.device.type == "cuda"


def test_clusters_may_be_whole_floats_but_not_missing():
    """A column of pandas with whole numbers is often float64; None was a cluster called "None"."""
    p, y = np.array([0.2, 0.4, 0.9]), np.array([0, 1, 1])
    held = Predictions.from_events(p, y, clusters=np.array([2.0, 2.0, 7.0]))
    assert held.clusters.tolist() == [2, 2, 7]
    for clusters in ([1.0, np.nan, 2.0], np.array(["a", None, "b"], dtype=object)):
        with pytest.raises(InputError, match=r"clusters are missing in 1 rows \(first rows: 1\)"):
            Predictions.from_events(p, y, clusters=np.asarray(clusters))
    with pytest.raises(InputError, match="whole numbers or text"):
        Predictions.from_events(p, y, clusters=np.array([1.5, 2.0, 3.0]))


def test_minus_one_is_not_taken_for_missing_where_nothing_is_zero():
    """Labels of −1 and 1 left every row that did not happen out: all events happened."""
    p = np.array([0.2, 0.4, 0.9])
    with pytest.raises(InputError, match="if -1 means that the event did not happen, give 0"):
        Predictions.from_events(p, np.array([-1, 1, 1]))
    known = Predictions.from_events(p, np.array([-1, 0, 1]))
    assert known.take([0, 2]).labels.tolist() == [-1, 1]  # a part of rows that were checked
