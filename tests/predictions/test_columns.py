"""Columns by any name, labels of any form, several files and every task, in and out of files."""

import gzip
import json
import warnings

import numpy as np
import pandas as pd
import pytest

from calibrant import evaluate
from calibrant.core.errors import InputError
from calibrant.predictions import Predictions

ENDINGS = [".npz", ".npy", ".safetensors", ".pt", ".parquet", ".arrow", ".feather", ".csv"]
ENDINGS += [".csv.gz", ".jsonl"]
ROWS = 12


def make_task(task):
    rng = np.random.default_rng(0)
    scores, shared = rng.random((ROWS, 3)), {"weights": rng.random(ROWS) + 0.5}
    shared["clusters"] = [f"patient {k % 4}" for k in range(ROWS)]
    outcomes = rng.integers(0, 2, ROWS)
    return {
        "events": lambda: Predictions.from_events(scores[:, 0], outcomes, **shared),
        "correct": lambda: Predictions.from_events(
            scores[:, 0], np.r_[-1, outcomes[1:]], event="correct", clusters=np.arange(ROWS) // 2
        ),
        "event logits": lambda: Predictions.from_events(scores[:, 0], outcomes, is_logits=True),
        "multilabel": lambda: Predictions.from_multilabel(
            scores, rng.integers(-1, 2, (ROWS, 3)), is_logits=False, **shared
        ),
        "options": lambda: Predictions.from_options(
            [row[: 2 + k % 2] for k, row in enumerate(scores)], outcomes, **shared
        ),
        "weighted classes": lambda: Predictions.from_logits(scores, outcomes, **shared),
    }[task]()


def assert_equal(a, b):
    assert (a.task, a.event, a.is_logits, a.ignore_index) == (
        (b.task, b.event, b.is_logits, b.ignore_index)
    )
    for name in ("scores", "labels", "weights", "clusters", "num_options"):
        one, other = getattr(a, name), getattr(b, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert np.array_equal(np.asarray(one), np.asarray(other)), name


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "task", ["events", "correct", "event logits", "multilabel", "options", "weighted classes"]
)
def test_every_task_round_trips_in_every_format(task, ending, tmp_path):
    predictions = make_task(task)
    path = predictions.write(tmp_path / f"a{ending}")
    kind = "logits" if predictions.is_logits else "probs"
    assert_equal(Predictions.read(path, kind=kind if ending == ".npy" else None), predictions)
    if ending in (".npz", ".parquet", ".safetensors", ".pt", ".arrow"):
        bare = path.with_name(f"bare{ending}")
        predictions.write(bare, labels=False)
        again = Predictions.read(bare)
        assert (again.labels, again.task, again.event) == (None, predictions.task, again.event)


def test_a_named_event_stays_where_the_format_can_hold_it(tmp_path):
    fraud = Predictions.from_events(np.array([0.1, 0.9]), [0, 1], event="fraud")
    for ending in (".npz", ".pt", ".safetensors", ".parquet"):
        assert Predictions.read(fraud.write(tmp_path / f"a{ending}")).event == "fraud"
    with pytest.warns(UserWarning, match="cannot hold event"):
        path = fraud.write(tmp_path / "a.csv")
    assert Predictions.read(path).event == "event"
    assert Predictions.read(path, event="fraud").event == "fraud"


def test_what_lies_beside_an_npy_is_that_of_the_last_write(tmp_path):
    make_task("events").write(tmp_path / "a.npy")
    make_task("weighted classes").write(tmp_path / "a.npy")
    assert not (tmp_path / "a.happened.npy").exists()
    assert Predictions.read(tmp_path / "a.npy", kind="logits").task == "classes"


def test_events_that_another_program_wrote_are_read(tmp_path):
    path = tmp_path / "judge.csv"
    path.write_text('prompt,confidence,correct\n"a, b",0.9,True\n"two\nlines",0.25,False\n')
    judge = Predictions.read(path)
    assert (judge.task, judge.event, judge.labels.tolist()) == ("events", "correct", [1, 0])
    path.write_text("confidence,corect\n0.9,1\n")
    with pytest.raises(InputError, match="unknown columns 'corect'"):
        Predictions.read(path)
    np.savez(tmp_path / "a.npz", probability=[0.2, 0.7], happened=[False, True], weight=[1.0, 2])
    read = Predictions.read(tmp_path / "a.npz")
    assert (read.event, read.labels.tolist(), read.weights.tolist()) == ("event", [0, 1], [1, 2])
    path.write_text("confidence,correct\n90,1\n75,0\n")
    with pytest.raises(InputError, match="if these are percentages, divide them by 100"):
        Predictions.read(path)
    path.write_text("probability,happened,correct\n0.9,1,0\n")
    with pytest.raises(InputError, match="several columns may hold the outcomes"):
        Predictions.read(path)


FRAME = pd.DataFrame(
    {
        "p_cat": [0.7, 0.2, 0.1],
        "p_dog": [0.2, 0.5, 0.1],
        "p_cow": [0.1, 0.3, 0.8],
        "animal": ["cat", "cow", "cow"],
        "weight": [4.0, 600.0, 550.0],
        "farm": ["north", "south", "south"],
    }
)
NAMED = {"label_column": "animal", "kind": "probs"}


@pytest.mark.parametrize("columns", ["p_", "p_cat,p_dog,p_cow", ["p_cat", "p_dog", "p_cow"]])
def test_columns_and_labels_by_name(columns, tmp_path):
    read = Predictions.from_frame(FRAME, score_columns=columns, cluster_column="farm", **NAMED)
    assert read.class_names == ("cat", "dog", "cow")
    assert read.labels.tolist() == [0, 2, 2]
    assert read.weights is None  # in kilograms, and nobody named it
    assert read.clusters.tolist() == ["north", "south", "south"]
    for ending in ("csv", "parquet"):
        path = tmp_path / f"a.{ending}"
        getattr(FRAME, f"to_{ending}")(path, index=False)
        again = Predictions.read(path, score_columns=columns, weight_column="weight", **NAMED)
        assert again.labels.tolist() == [0, 2, 2]
        assert again.weights.tolist() == [4, 600, 550]


def test_a_label_that_is_no_class_is_named_with_the_classes():
    frame = FRAME.assign(animal=["cat", "horse", "cow"])
    with pytest.raises(InputError, match=r"'animal': 'horse' is no class.*rows: 1.*'cat', 'dog'"):
        Predictions.from_frame(frame, score_columns="p_", **NAMED)
    with pytest.raises(InputError, match=r"no column is called 'p_dogs'.*Did you mean"):
        Predictions.from_frame(frame, score_columns="p_cat,p_dogs", **NAMED)
    with pytest.raises(InputError, match="say kind='logits' or kind='probs'"):
        Predictions.from_frame(FRAME, score_columns="p_", label_column="animal")


def test_columns_named_by_numbers_are_classes_of_these_numbers():
    frame = pd.DataFrame({1: [0.7, 0.3], 2: [0.3, 0.7], "y": [1, 2]})
    read = Predictions.from_frame(frame, score_columns="1,2", label_column="y", kind="probs")
    assert (read.labels.tolist(), read.class_names) == ([0, 1], ("1", "2"))
    frame = pd.DataFrame({"s_10": [0.0] * 2, "s_2": [1.0, 1], "s_1": [2.0, 2], "y": [2, 10]})
    read = Predictions.from_frame(frame, score_columns="s_", label_column="y", kind="logits")
    assert (read.labels.tolist(), read.class_names) == ([1, 2], ("1", "2", "10"))


def test_text_labels_are_matched_with_class_names_of_arrays(tmp_path):
    probs = np.array([[0.7, 0.3], [0.4, 0.6]])
    read = Predictions.from_probs(probs, ["dog", "cat"], class_names=["cat", "dog"])
    assert read.labels.tolist() == [1, 0]
    np.savez(tmp_path / "a.npz", probs=probs, labels=["dog", "cat"], class_names=["cat", "dog"])
    assert Predictions.read(tmp_path / "a.npz").labels.tolist() == [1, 0]


def test_one_score_column_is_an_event():
    frame = pd.DataFrame({"score": [0.9, 0.2, 0.4], "fraud": ["yes", "no", "no"]})
    options = {"score_columns": "score", "label_column": "fraud", "kind": "probs"}
    with pytest.raises(InputError, match=r"holds text \('yes', 'no'\).*pos_label="):
        Predictions.from_frame(frame, **options)
    read = Predictions.from_frame(frame, pos_label="yes", **options)
    assert (read.task, read.event, read.labels.tolist()) == ("events", "fraud", [1, 0, 0])
    with pytest.raises(InputError, match=r"never has the value pos_label='ja'; found 'yes', 'no'"):
        Predictions.from_frame(frame, pos_label="ja", **options)
    numbers = frame.assign(fraud=[2, 1, 1])
    assert Predictions.from_frame(numbers, pos_label=2, **options).labels.tolist() == [1, 0, 0]
    plain = pd.DataFrame({"prob": [0.9, 0.2], "label": [1, 0]})
    assert Predictions.from_frame(plain).task == "classes"  # as before
    assert Predictions.from_frame(plain, event="fraud").task == "events"


def test_many_label_columns_are_many_labels_with_missing_ones(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("prob_0,prob_1,label_0,label_1\n0.9,0.8,1,\n0.2,0.7,0,1\n")
    read = Predictions.read(path)
    assert (read.task, read.labels.tolist()) == ("multilabel", [[1, -1], [0, 1]])
    frame = pd.DataFrame({"a": [0.9], "b": [0.8], "is_a": [True], "is_b": [False]})
    options = {"score_columns": ["a", "b"], "label_column": ["is_a", "is_b"], "kind": "probs"}
    read = Predictions.from_frame(frame, **options)
    assert (read.class_names, read.labels.tolist()) == (("a", "b"), [[1, 0]])


class OtherFrame:
    """A data frame of a library that is not pandas."""

    columns = ("confidence", "correct")

    def __getitem__(self, name):
        values = {"confidence": [0.5, 0.9], "correct": [True, False]}[name]
        return pd.Index(values)


def test_frames_of_other_libraries_are_read_by_their_methods():
    read = Predictions.from_frame(OtherFrame())
    assert (read.scores.tolist(), read.labels.tolist()) == ([0.5, 0.9], [1, 0])
    with pytest.raises(InputError, match="takes a data frame of pandas or polars, found list"):
        Predictions.from_frame([1, 2])


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_missing_labels_are_left_out_only_when_asked(missing):
    labels = pd.Series([1, missing, 0], dtype=object)
    if missing is pd.NA:
        labels = labels.astype("Int64")
    frame = pd.DataFrame({"prob": [0.9, 0.2, 0.3], "label": labels, "id": [7, 8, 9]})
    with pytest.raises(InputError, match=r"missing values \(first rows: 1\).*drop_unlabelled"):
        Predictions.from_frame(frame)
    with pytest.warns(UserWarning, match="left out 1 of 3 rows without a label"):
        read = Predictions.from_frame(frame, drop_unlabelled=True)
    assert (read.labels.tolist(), read.ids.tolist()) == ([1, 0], [7, 9])
    assert read.scores.tolist() == [0.9, 0.3]


def test_missing_labels_in_text_leave_their_rows_and_groups(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("logit_0,logit_1,label,site\n1,2,0.0,a\n1,2,,b\n1,3,1.0,c\n")
    for lazy in (False, True):
        with pytest.warns(UserWarning, match="left out 1 of 3"):
            read, columns = Predictions.read_with_columns(
                path, ["site"], drop_unlabelled=True, lazy=lazy
            )
        assert read.labels.tolist() == [0, 1]
        assert read.in_memory().array.tolist() == [[1, 2], [1, 3]]
        assert columns["site"].tolist() == ["a", "c"]


@pytest.mark.parametrize(("classes", "digits"), [(3, 3), (10, 3), (100, 3), (3, 2)])
def test_probabilities_rounded_in_text_are_divided_by_their_sums(classes, digits, tmp_path):
    rng = np.random.default_rng(0)
    exact = rng.dirichlet(np.ones(classes), size=400)
    rounded = exact.round(digits)
    frame = pd.DataFrame(rounded, columns=[f"prob_{k}" for k in range(classes)])
    frame["label"] = 0
    for ending in ("csv", "jsonl"):
        path = tmp_path / f"a.{ending}"
        if ending == "csv":
            frame.to_csv(path, index=False, float_format=f"%.{digits}f")
        else:
            frame.to_json(path, orient="records", lines=True)
        for lazy in (False, True):
            with pytest.warns(UserWarning, match=f"rounding to {digits} digits explains"):
                read = Predictions.read(path, lazy=lazy).in_memory()
            expected = rounded / rounded.sum(1, keepdims=True)
            assert np.allclose(read.array, expected, rtol=1e-9, atol=0)
    frame.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match="do not sum to one"):
        Predictions.read(tmp_path / "a.parquet")


def test_sums_that_rounding_does_not_explain_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    limit = 4 * np.sqrt(2 / 12) * 1e-2
    assert 0.016 < limit < 0.017
    path.write_text("prob_0,prob_1,label\n0.51,0.506,0\n0.25,0.75,1\n")
    with pytest.raises(InputError, match="do not sum to one"):  # three digits
        Predictions.read(path)
    path.write_text("prob_0,prob_1,label\n0.51,0.50,0\n0.25,0.75,1\n")
    with pytest.warns(UserWarning, match="1 of 2 rows"):
        assert np.allclose(Predictions.read(path).array.sum(1), 1)
    path.write_text("prob_0,prob_1,label\n0.51,0.51,0\n0.25,0.75,1\n")
    with pytest.raises(InputError, match="do not sum to one"):
        Predictions.read(path)


def test_sums_that_were_accepted_before_stay_as_they_are(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("prob_0,prob_1,label\n0.5004,0.5,0\n0.25,0.75,1\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Predictions.read(path).array.tolist() == [[0.5004, 0.5], [0.25, 0.75]]


def test_minus_infinity_points_to_options():
    with pytest.raises(InputError, match="from_options") as caught:
        Predictions.from_logits(np.array([[0.5, -np.inf], [0.1, 0.2]]), [0, 1])
    assert "floor" not in str(caught.value)


def test_padding_of_minus_infinity_is_no_option():
    """An array padded with −inf, as many tools write it, gives each row its own options."""
    padded = np.array([[0.5, 0.1, -np.inf, -np.inf], [0.1, -np.inf, 0.3, 0.2], [1, 0, 2, -np.inf]])
    quiz = Predictions.from_options(padded, [0, 2, 1])
    assert quiz.num_options.tolist() == [2, 4, 3]
    assert np.array_equal(quiz.array, padded)
    alone = Predictions.from_options([[0.5, 0.1], [1, 0, 2]], [0, 1])
    flat = Predictions.from_options([[0.0, 0.0, -np.inf], [0.0, 0.0, 0.0]], [0, 1])
    figures = evaluate(flat, metrics=["mean_entropy"], intervals=False)
    assert figures["mean_entropy"].value == pytest.approx(np.log([2.0, 3.0]).mean())  # own K
    assert np.array_equal(quiz.take([0, 2]).array[:, :3], alone.array)
    with pytest.raises(InputError, match="the answer is option 2"):
        Predictions.from_options(padded, [2, 2, 1])
    impossible = Predictions.from_options([[0.0, -np.inf], [0.0, 0.0]], [1, 0])  # not padding
    assert impossible.num_options.tolist() == [2, 2]
    with pytest.raises(InputError, match="each question needs one score"):
        Predictions.from_options(np.zeros(3), [0, 0, 0])


def test_json_lines_may_hold_lists_of_different_length(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"logits": [1, 2.5], "label": 1}, {"logits": [0, 1, 2], "label": 2, "id": "x"}]
    path.write_text("\n".join(json.dumps(row) for row in rows[:1] * 2))
    assert Predictions.read(path).array.tolist() == [[1, 2.5], [1, 2.5]]
    rows[0]["id"] = "w"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    read = Predictions.read(path)
    assert read.array.tolist() == [[1, 2.5, -np.inf], [0, 1, 2]]
    assert (read.num_options.tolist(), read.ids.tolist()) == ([2, 3], ["w", "x"])
    path.write_text('{"prob": 0.5}\n{"prob": \n')
    with pytest.raises(InputError, match="line 2 is no JSON"):
        Predictions.read(path)
    path.write_text("[1, 2]\n")
    with pytest.raises(InputError, match="line 1 is no JSON object"):
        Predictions.read(path)


def test_options_beyond_the_last_must_be_absent():
    scores = np.array([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]])
    with pytest.raises(InputError, match=r"beyond num_options must have a logit of -inf.*rows 1"):
        Predictions._build(
            scores, [0, 1], validate=True, is_logits=True, num_options=np.array([3, 2])
        )
    with pytest.raises(InputError, match="num_options must lie in 1 to 3, found 9"):
        Predictions(scores, np.array([0, 1]), is_logits=True, num_options=np.array([3, 9]))


def write_parts(folder):
    """Write 30 rows as partitioned Parquet; return them whole."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"confidence": rng.random(30), "correct": rng.integers(0, 2, 30)})
    frame["year"], frame["site"] = np.repeat([2023, 2024, 2025], 10), ["a b", "c"] * 15
    frame = frame.sort_values(["year", "site"], ignore_index=True)
    frame.to_parquet(folder, partition_cols=["year", "site"])
    return frame


def test_a_folder_of_partitioned_parquet_is_one_set(tmp_path):
    frame = write_parts(tmp_path / "parts")
    (tmp_path / "parts" / "_metadata.parquet").write_text("not data")
    for lazy in (False, True):
        read, columns = Predictions.read_with_columns(
            tmp_path / "parts", ["site", "year"], cluster_column="year", lazy=lazy
        )
        assert np.array_equal(read.in_memory().array, frame["confidence"])
        assert read.labels.tolist() == frame["correct"].tolist()
        assert read.clusters.tolist() == frame["year"].tolist()
        assert columns["site"].tolist() == frame["site"].tolist()
        assert read.name == "parts"


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet", "npz", "pt", "npy", "jsonl"])
def test_a_glob_or_list_of_files_is_one_set(ending, tmp_path):
    whole = make_task("correct")
    kind = "probs" if ending == "npy" else None
    for part, rows in enumerate(np.array_split(np.arange(ROWS), 3)):
        whole.take(rows).write(tmp_path / f"part{part}.{ending}")
    files = [tmp_path / f"part{part}.{ending}" for part in range(3)]
    assert_equal(Predictions.read(files, kind=kind), whole)
    if ending != "npy":
        assert_equal(Predictions.read(str(tmp_path / f"part*.{ending}")), whole)
    with pytest.raises(InputError, match="no file matches"):
        Predictions.read(str(tmp_path / f"none*.{ending}"))
    with pytest.raises(InputError, match="given twice"):
        Predictions.read([files[0], files[0]])


def test_files_that_do_not_fit_together_are_named(tmp_path):
    make_task("correct").write(tmp_path / "a.parquet")
    make_task("events").write(tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"different class names, tasks or events"):
        Predictions.read([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    (tmp_path / "c.csv").write_text("prob,label\n0.5,1\n")
    (tmp_path / "d.csv").write_text("prob,truth\n0.5,1\n")
    with pytest.raises(InputError, match=r"d\.csv has no column 'label', c\.csv does"):
        Predictions.read([tmp_path / "c.csv", tmp_path / "d.csv"])
    make_task("events").write(tmp_path / "e.npz")
    with pytest.raises(InputError, match="arrays and tables cannot be one set"):
        Predictions.read([tmp_path / "c.csv", tmp_path / "e.npz"])


def test_a_compressed_csv_is_read_and_written_as_text(tmp_path):
    predictions = make_task("weighted classes")
    predictions.write(tmp_path / "a.csv.gz")
    predictions.write(tmp_path / "a.csv")
    packed = (tmp_path / "a.csv.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "a.csv").read_bytes()
    assert Predictions.read(tmp_path / "a.csv.gz").name == "a"
    (tmp_path / "b.csv.gz").write_bytes(packed[:80])
    with pytest.raises(InputError, match=r"b\.csv\.gz"):
        Predictions.read(tmp_path / "b.csv.gz")


@pytest.mark.slow
def test_a_million_events_are_read_in_seconds(tmp_path):
    import time

    rng = np.random.default_rng(0)
    events = Predictions.from_events(
        rng.random(1_000_000), rng.integers(0, 2, 1_000_000), clusters=rng.integers(0, 9, 1_000_000)
    )
    path = events.write(tmp_path / "a.parquet")
    start = time.perf_counter()
    Predictions.read(path)
    assert time.perf_counter() - start < 4


@pytest.mark.parametrize(
    ("column", "values", "pos_label", "event"),
    [
        ("diagnosis", ["malignant", "benign"], "malignant", "malignant"),
        ("label", ["spam", "ham"], "spam", "spam"),
        ("is_fraud", ["yes", "no"], "yes", "is_fraud"),
        ("churn", ["1", "0"], "1", "churn"),
        ("label", ["Yes", "No"], "Yes", "event"),
    ],
)
def test_the_event_is_named_by_the_value_that_means_it(column, values, pos_label, event):
    """ "diagnosis happens in 37% of rows" was no English."""
    frame = pd.DataFrame({"score": [0.9, 0.2], column: values})
    options = {"kind": "probs", "score_columns": "score", "label_column": column}
    made = Predictions.from_frame(frame, **options, pos_label=pos_label)
    assert (made.event, made.labels.tolist()) == (event, [1, 0])
    named = Predictions.from_frame(frame, **options, pos_label=pos_label, event="relapse")
    assert named.event == "relapse"


def test_a_set_of_several_files_is_called_after_their_folder(tmp_path):
    (tmp_path / "weeks").mkdir()
    for week in (1, 2):
        frame = pd.DataFrame({"probability": [0.9, 0.2], "happened": [1, 0]})
        frame.to_csv(tmp_path / "weeks" / f"{week}.csv", index=False)
    assert Predictions.read(str(tmp_path / "weeks" / "*.csv")).name == "weeks"


@pytest.mark.parametrize(("ending", "advice"), [(".json", ".jsonl"), (".tsv", "commas for tabs")])
def test_endings_that_are_nearly_read_say_what_to_write(tmp_path, ending, advice):
    file = tmp_path / f"scores{ending}"
    file.write_text("[]")
    with pytest.raises(InputError, match=advice):
        Predictions.read(file)
