"""Bad input is refused with a message that says what was found and what to do."""

import warnings

import numpy as np
import pytest
import torch

from calibrant.core.errors import InputError
from calibrant.predictions import Predictions

GOOD = np.array([[0.2, 0.8], [0.5, 0.5], [1.0, 0.0]])
TRUTH = np.array([1, 0, 0])


def change_value(row, column, value, *, rows=10, classes=3, fill=None):
    scores = np.full((rows, classes), 1 / classes if fill is None else fill)
    for r in np.atleast_1d(row):
        scores[r, column] = value
    return scores


def build_error(scores, truth=None, *, kind="logits", **options):
    make = Predictions.from_logits if kind == "logits" else Predictions.from_probs
    if truth is None:
        truth = np.zeros(len(scores), dtype=int)
    with pytest.raises(InputError) as caught:
        make(scores, truth, **options)
    message = str(caught.value)
    if type(scores) is np.ndarray and scores.dtype.kind == "f":
        # Both libraries must say the same.
        with pytest.raises(InputError) as again:
            make(torch.from_numpy(scores.copy()), truth, **options)
        assert str(again.value) == message
    return message


def test_nan_is_counted_and_its_first_rows_are_named():
    message = build_error(change_value([2, 5], 1, np.nan))
    assert "logits have NaN" in message
    assert "2 rows (first rows: 2, 5)" in message
    assert "1 row: row 4" in build_error(change_value(4, 1, np.nan), kind="probs")


def test_faults_are_counted_across_blocks():
    scores = np.zeros((300_000, 4), dtype=np.float32)
    scores[[7, 150_000, 299_999], 2] = np.nan
    assert "3 rows (first rows: 7, 150000, 299999)" in build_error(scores)
    scores[:100, 0] = np.nan
    assert "102 rows (first rows: 0, 1, 2, 3, 4, ...)" in build_error(scores)


def test_infinite_logits_are_named():
    assert "infinite in 1 row: row 3" in build_error(change_value(3, 0, np.inf))


def test_minus_infinity_is_explained_as_probability_zero():
    message = build_error(change_value(3, 0, -np.inf))
    assert "logarithm of probability 0" in message
    assert "from_probs" in message
    assert "from_options" in message


def test_probabilities_outside_zero_to_one_hint_at_logits():
    message = build_error(change_value(4, 1, 3.5), kind="probs")
    assert "outside [0, 1] in 1 row: row 4 (3.5)" in message
    assert "from_logits" in message
    assert "row 4 (-0.1)" in build_error(change_value(4, 1, -0.1), kind="probs")
    log_probs = np.log(np.array([[0.2, 0.8], [0.6, 0.4]]))
    assert "log-probabilities" in build_error(log_probs, kind="probs")


def test_logits_that_look_like_probabilities_are_asked_about():
    with pytest.warns(UserWarning, match="if they are probabilities, give them as such"):
        Predictions.from_logits(GOOD, TRUTH)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Predictions.from_logits(GOOD - 0.01, TRUTH)
        Predictions.from_logits(np.vstack((GOOD, [[0.2, 0.1]])), [*TRUTH, 0])
        Predictions.from_logits(GOOD[:1], TRUTH[:1])  # one row may do so by chance
        Predictions.from_probs(GOOD, TRUTH)


def test_binary_probabilities_are_bounded_exactly():
    assert "outside" in build_error(np.array([0.5, 1.0000001]), kind="probs")
    assert "row 1 (-1)" in build_error(np.array([0.5, -1.0]), kind="probs")


def test_rows_that_do_not_sum_to_one_name_the_worst():
    scores = change_value([2, 6], 1, 0.4)
    scores[6, 0] = 0.9
    message = build_error(scores, kind="probs")
    assert "2 rows (first rows: 2, 6)" in message
    assert "worst is row 6 with sum 1.63333" in message
    assert "multilabel" in message


def test_dense_probabilities_are_summed_over_classes():
    scores = np.full((3, 2, 4), 0.5)
    scores[1, 0, 3] = 0.1
    message = build_error(scores, np.zeros((3, 4), int), kind="probs")
    assert "worst is row 1 with sum 0.6" in message


def test_rounding_of_a_softmax_is_tolerated():
    probs = torch.softmax(torch.randn(1000, 200) * 30, 1)
    probs[0] = 0
    probs[0, 0] = 1.0000001
    Predictions.from_probs(probs, torch.zeros(1000, dtype=torch.long))
    Predictions.from_probs(GOOD + 4e-4 * (GOOD < 1), TRUTH)


def test_labels_out_of_range_name_values_rows_and_classes():
    message = build_error(change_value(0, 0, 0), np.array([0, 1, 7, 2, 0, -3, 0, 0, 0, 0]))
    assert "must lie in 0 to 2 (K = 3 classes), found -3, 7 in 2 rows" in message
    assert "first rows: 2, 5" in message


@pytest.mark.parametrize("value", [255, -1, -100])
def test_the_usual_marks_for_unlabelled_hint_at_ignore_index(value):
    truth = np.zeros(10, int)
    truth[3] = value
    assert f"ignore_index={value}" in build_error(change_value(0, 0, 0), truth)
    predictions = Predictions.from_logits(change_value(0, 0, 0), truth, ignore_index=value)
    assert predictions.ignore_index == value


def test_labels_counted_from_one_and_minus_one_plus_one_are_recognised():
    assert "start at 1" in build_error(change_value(0, 0, 0), np.array([1, 2, 3] * 3 + [1]))
    assert "(labels + 1) // 2" in build_error(np.zeros(4), np.array([-1, 1, 1, -1]))


def test_all_rows_ignored_is_an_error():
    message = build_error(change_value(0, 0, 0), np.full(10, -1), ignore_index=-1)
    assert "all equal ignore_index (-1)" in message


def test_ignore_index_inside_the_classes_is_allowed():
    predictions = Predictions.from_logits(GOOD, TRUTH, ignore_index=0)
    assert predictions.ignore_index == 0
    assert "ignore_index must be" in build_error(GOOD, TRUTH, ignore_index=1.5)


def test_float_labels_are_refused_with_the_conversion():
    message = build_error(GOOD, TRUTH.astype(float))
    assert "whole numbers: convert with labels.astype('int64')" in message
    with pytest.raises(InputError, match=r"labels\.long\(\)"):
        Predictions.from_logits(torch.from_numpy(GOOD), torch.tensor([1.0, 0.0, 0.0]))
    assert "values such as 0.5" in build_error(GOOD, np.array([0.5, 1, 0]))
    assert "values such as nan" in build_error(GOOD, np.array([np.nan, 1, 0]))


def test_other_types_of_labels_are_refused():
    assert "if True means class 1" in build_error(GOOD, np.array([True, False, True]))
    assert "labels are text ('cat'" in build_error(GOOD, np.array(["cat", "dog", "cat"]))
    assert "class_names" in build_error(GOOD, np.array(["cat", "dog", "cat"], dtype=object))
    assert "dtype object" in build_error(GOOD, np.array([1, None, 2], dtype=object))
    assert "complex" in build_error(GOOD, np.array([1j, 0, 0]))


def test_types_of_scores_that_cannot_be_judged_are_refused():
    assert "found dtype int64" in build_error(np.array([[1, 2], [3, 4]]))
    assert "predicted classes" in build_error(np.array([1, 0, 1]))
    assert "complex128" in build_error(GOOD.astype(complex), TRUTH)
    assert "dtype object" in build_error(np.array([[1, None], [0, 1]], dtype=object))
    assert "cannot be made an array" in build_error([[1.0, 2.0], [3.0]], [0, 1])
    assert "found str" in build_error("logits.npz", [0])
    assert "masked" in build_error(np.ma.masked_array(GOOD, GOOD > 0.9), TRUTH)
    with pytest.raises(InputError, match="dense tensor"):
        Predictions.from_logits(torch.eye(3).to_sparse(), torch.arange(3))


def test_one_hot_labels_hint_at_argmax():
    assert "argmax(1)" in build_error(GOOD, np.eye(2)[TRUTH])
    assert "argmax(1)" in build_error(GOOD, np.eye(2, dtype=int)[TRUTH])
    assert "argmax(1)" in build_error(np.zeros(3), np.eye(2, dtype=int)[TRUTH])
    assert "multilabel" in build_error(GOOD, np.ones((3, 2), int))


def test_shapes_that_differ_say_both_and_a_way_out():
    assert "lengths differ: 3 rows of scores but 2 of labels" in build_error(GOOD, TRUTH[:2])
    assert "labels.squeeze(-1)" in build_error(GOOD, TRUTH[:, None])
    assert "transposed" in build_error(np.zeros((3, 10)), np.zeros(10, int))
    assert "movedim(-1, 1)" in build_error(np.zeros((2, 4, 5, 3)), np.zeros((2, 4, 5), int))
    assert "expected (2, 4, 5)" in build_error(np.zeros((2, 3, 4, 5)), np.zeros((2, 5, 4), int))
    assert "squeeze(1)" in build_error(np.zeros((2, 3, 4, 5)), np.zeros((2, 1, 4, 5), int))
    assert "single number" in build_error(GOOD, np.array(1))


def test_too_few_classes_rows_or_axes():
    message = build_error(np.zeros((5, 1)))
    assert "shape (5, 1)" in message
    assert "squeeze(1)" in message
    assert "0 rows" in build_error(np.zeros((0, 3)))
    assert "empty" in build_error(np.zeros((2, 3, 0)), np.zeros((2, 0), int))
    assert "single number" in build_error(np.array(1.0), np.array([1]))


def test_class_names_must_be_as_many_as_classes_and_differ():
    assert "3 names (a, b, c), but there are 2 classes" in build_error(
        GOOD, TRUTH, class_names=["a", "b", "c"]
    )
    assert "more than once: a" in build_error(GOOD, TRUTH, class_names=["a", "a"])
    assert "must be text, found 1" in build_error(GOOD, TRUTH, class_names=[1, "a"])
    assert "list of 2 names" in build_error(GOOD, TRUTH, class_names="ab")


def test_ids_must_be_one_per_row():
    assert "ids have shape (2,), expected (3,)" in build_error(GOOD, TRUTH, ids=[1, 2])
    assert "whole numbers or text" in build_error(GOOD, TRUTH, ids=[0.5, 1, 2])


def test_values_are_not_looked_at_when_told_so():
    predictions = Predictions.from_probs(
        change_value(1, 1, np.nan), np.full(10, 99), validate=False
    )
    assert len(predictions) == 10
    with pytest.raises(InputError, match="lengths differ"):
        Predictions.from_probs(GOOD, TRUTH[:2], validate=False)


def test_validation_makes_no_second_array():
    import tracemalloc

    scores = np.random.default_rng(0).random((200_000, 50), dtype=np.float32)
    scores /= scores.sum(1, keepdims=True)
    scores.flags.writeable = False
    tracemalloc.start()
    Predictions.from_probs(scores, np.zeros(200_000, int))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < scores.nbytes / 5


UNIT = np.random.default_rng(3).random((40, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Predictions.from_logits(UNIT[:, 0], (UNIT[:, 1] > 0.5).astype(int)),
        lambda: Predictions.from_multilabel(UNIT, (UNIT > 0.5).astype(int)),
        lambda: Predictions.from_options([[0.2, 0.8], [0.1, 0.2, 0.7]], [0, 1]),
    ],
)
def test_logits_that_look_like_probabilities_are_warned_of_in_every_shape(make):
    with pytest.warns(UserWarning, match="if they are probabilities"):
        make()


@pytest.mark.filterwarnings("error")
def test_logits_beyond_0_and_1_are_no_probabilities():
    Predictions.from_logits(4 * UNIT[:, 0] - 2, (UNIT[:, 1] > 0.5).astype(int))
    Predictions.from_multilabel(4 * UNIT - 2, (UNIT > 0.5).astype(int))
    Predictions.from_logits(UNIT[:5, 0], [0, 1, 1, 0, 1])  # too few to tell


def test_labels_of_text_are_told_about_class_names():
    with pytest.raises(InputError, match="give class_names"):
        Predictions.from_probs(np.full((2, 2), 0.5), ["cat", "dog"])


def test_scores_above_1_but_not_below_0_are_told_to_be_normalised():
    with pytest.raises(InputError, match="divide each row by its sum"):
        Predictions.from_probs(np.array([[1.2, 0.3], [0.4, 0.9]]), [0, 1])
