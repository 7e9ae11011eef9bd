"""Data frames of pandas and polars go in, and come out of evaluate, groups and compare."""

from __future__ import annotations

import numpy as np
import pytest

import calibrant
from calibrant import Predictions
from calibrant.core.errors import InputError

CLASSES = ["ant", "bee", "cat"]


def make_frame(library):
    module = pytest.importorskip(library)
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), 200)
    columns = {f"prob_{name}": probs[:, k] for k, name in enumerate(CLASSES)}
    return module.DataFrame(
        {
            **columns,
            "label": np.array(CLASSES)[rng.integers(0, 3, 200)],
            "site": np.array(["a", "b"])[rng.integers(0, 2, 200)],
            "weight": rng.uniform(0.5, 1.0, 200),
        }
    )


def read_frame(frame):
    return Predictions.from_frame(
        frame,
        kind="probs",
        score_columns="prob_",
        label_column="label",
        weight_column="weight",
    )


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_go_in_and_out(library):
    module = pytest.importorskip(library)
    frame = make_frame(library)
    predictions = read_frame(frame)
    assert predictions.class_names == tuple(CLASSES)
    evaluation = calibrant.evaluate(predictions, metrics=["ece", "nll"], groups=frame[["site"]])
    assert evaluation.groups.name == "site"
    figures = evaluation.to_frame(library=library)
    groups = evaluation.groups.to_frame(library=library)
    comparison = calibrant.compare(predictions, predictions, metrics=["ece"])
    for table in (figures, groups, comparison.to_frame(library=library)):
        assert isinstance(table, module.DataFrame)
    assert list(figures["value"]) == [evaluation["ece"].value, evaluation["nll"].value]
    assert list(groups["gap"]) == [group.gap for group in evaluation.groups]


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("task", ["classes", "events", "multilabel"])
def test_predictions_return_from_their_own_frame(library, task):
    pytest.importorskip(library)
    rng = np.random.default_rng(1)
    scores, truth = rng.uniform(size=(50, 3)), rng.integers(0, 2, (50, 3))
    more = {"ids": np.arange(50), "weights": rng.uniform(1, 2, 50), "clusters": np.arange(50) // 5}
    predictions = {
        "classes": lambda: Predictions.from_logits(scores, truth.sum(1) % 3, **more),
        "events": lambda: Predictions.from_events(scores[:, 0], truth[:, 0], **more),
        "multilabel": lambda: Predictions.from_multilabel(scores, truth, **more),
    }[task]()
    back = Predictions.from_frame(predictions.to_frame(library=library))
    assert back.task == task
    for name in ("array", "labels", "ids", "weights", "clusters"):
        np.testing.assert_array_equal(getattr(back, name), getattr(predictions, name))
    assert "label" not in predictions.to_frame(library=library, labels=False).columns


def test_both_libraries_give_the_same_rows():
    pytest.importorskip("polars")
    first, second = (read_frame(make_frame(library)) for library in ("pandas", "polars"))
    np.testing.assert_array_equal(first.array, second.array)
    np.testing.assert_array_equal(first.labels, second.labels)


def test_wrong_input_says_what_to_do():
    frame = make_frame("pandas")
    with pytest.raises(InputError, match="from_frame"):
        calibrant.evaluate(frame)
    evaluation = calibrant.evaluate(read_frame(frame), metrics=["ece"], intervals=False)
    with pytest.raises(InputError, match="pandas, polars, found 'arrow'"):
        evaluation.to_frame(library="arrow")
    dense = Predictions.from_logits(np.zeros((2, 3, 4, 4)), np.zeros((2, 4, 4), dtype=int))
    with pytest.raises(InputError, match="dense predictions"):
        dense.to_frame()
