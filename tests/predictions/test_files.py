"""Files: what is written is read back, and a bad file is refused with the reason."""

import json
import os
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from calibrant.core.errors import InputError
from calibrant.predictions import Predictions

TABLES = [".parquet", ".arrow", ".feather", ".csv"]
ARCHIVES = [".npz", ".npy", ".safetensors", ".pt"]
ENDINGS = ARCHIVES + TABLES
TYPED = [ending for ending in ENDINGS if ending != ".csv"]


def some(rows=20, classes=4, *, probs=False, dtype=np.float32, seed=0, **options):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(rows, classes)) * 5
    truth = rng.integers(0, classes, rows)
    if probs:
        scores = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        return Predictions.from_probs(scores.astype(dtype), truth, **options)
    return Predictions.from_logits(scores.astype(dtype), truth, **options)


def round_trip(predictions, path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what csv and npy cannot hold has its own test
        predictions.write(path)
    if path.suffix == ".npy":
        options.setdefault("kind", "logits" if predictions.is_logits else "probs")
    return Predictions.read(path, **options)


def read_error(path, **options):
    with pytest.raises(InputError) as caught:
        Predictions.read(path, **options)
    assert str(path) in str(caught.value)
    assert str(caught.value).count(str(path)) == 1
    return str(caught.value)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("probs", [False, True])
def test_round_trip_is_exact(ending, probs, tmp_path):
    predictions = some(probs=probs, dtype=np.float64)
    again = round_trip(predictions, tmp_path / f"net{ending}")
    assert np.array_equal(np.asarray(again.scores), predictions.scores)
    assert np.array_equal(np.asarray(again.labels), predictions.labels)
    assert again.is_logits is not probs
    assert again.name == "net"


@pytest.mark.parametrize("ending", TYPED)
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("label_type", ["u1", "i4", "i8"])
def test_types_are_kept_where_the_format_has_them(ending, dtype, label_type, tmp_path):
    predictions = some(dtype=dtype)
    predictions = Predictions.from_logits(predictions.scores, predictions.labels.astype(label_type))
    again = round_trip(predictions, tmp_path / f"net{ending}")
    assert np.asarray(again.scores).dtype == dtype
    assert np.asarray(again.labels).dtype == label_type


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("probs", [False, True])
def test_binary_scores_keep_their_one_column(ending, probs, tmp_path):
    scores = np.linspace(0.01, 0.99, 9)
    make = Predictions.from_probs if probs else Predictions.from_logits
    predictions = make(scores, np.arange(9) % 2)
    again = round_trip(predictions, tmp_path / f"net{ending}")
    assert again.is_binary
    assert np.array_equal(np.asarray(again.scores), scores)


@pytest.mark.parametrize("ending", ARCHIVES)
def test_dense_scores_fit_archives(ending, tmp_path):
    truth = np.zeros((3, 5), dtype=np.uint8)
    truth[0, 0] = 255
    scores = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)
    predictions = Predictions.from_logits(scores, truth, ignore_index=255)
    again = round_trip(predictions, tmp_path / f"net{ending}", ignore_index=255)
    assert np.array_equal(np.asarray(again.scores), scores)
    assert np.array_equal(np.asarray(again.labels), truth)
    if ending != ".npy":
        assert Predictions.read(tmp_path / f"net{ending}").ignore_index == 255


@pytest.mark.parametrize("ending", TABLES)
def test_dense_scores_do_not_fit_tables(ending, tmp_path):
    predictions = Predictions.from_logits(np.zeros((3, 2, 5)), np.zeros((3, 5), int))
    with pytest.raises(InputError, match=r"do not fit the columns.*\.npz"):
        predictions.write(tmp_path / f"net{ending}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".pt", ".parquet", ".arrow"])
@pytest.mark.parametrize("ids", [np.arange(20) * 3, [f"né {i}" for i in range(20)]])
def test_names_ids_and_ignore_index_travel_with_the_file(ending, ids, tmp_path):
    names = ("chat", "chien", "vache, grande", 'a "b"')
    predictions = some(class_names=names, ids=ids, ignore_index=-1)
    again = round_trip(predictions, tmp_path / f"net{ending}")
    assert again.class_names == names
    assert again.ids.tolist() == list(ids)
    assert again.ignore_index == -1


def test_csv_ids_are_numbers_only_when_all_are_written_as_such(tmp_path):
    for ids in ([5, 0, -3], ["007", "1", "2"], ["a,b", 'say "x"', "line\nbreak"]):
        predictions = some(rows=3, ids=ids)
        assert round_trip(predictions, tmp_path / "a.csv").ids.tolist() == ids


@pytest.mark.parametrize(("ending", "lost"), [(".csv", "class_names"), (".npy", "ids")])
def test_what_a_format_cannot_hold_is_said(ending, lost, tmp_path):
    predictions = some(class_names=list("abcd"), ids=np.arange(20))
    with pytest.warns(UserWarning, match=lost):
        predictions.write(tmp_path / f"net{ending}")
    kind = "logits"
    again = Predictions.read(tmp_path / f"net{ending}", kind=kind, class_names=list("abcd"))
    assert again.class_names == tuple("abcd")


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), ending=st.sampled_from(ENDINGS))
def test_any_logits_round_trip(data, ending, tmp_path):
    shape = data.draw(st.tuples(st.integers(1, 8), st.integers(2, 5)))
    width = data.draw(st.sampled_from([32, 64]))
    numbers = st.floats(allow_nan=False, allow_infinity=False, width=width)
    scores = data.draw(hnp.arrays(f"f{width // 8}", shape, elements=numbers))
    truth = data.draw(hnp.arrays(np.int64, shape[0], elements=st.integers(0, shape[1] - 1)))
    again = round_trip(Predictions.from_logits(scores, truth), tmp_path / f"any{ending}")
    assert np.array_equal(np.asarray(again.scores, dtype=scores.dtype), scores)
    assert np.array_equal(np.signbit(np.asarray(again.scores)), np.signbit(scores))
    assert np.array_equal(np.asarray(again.labels), truth)


def test_torch_tensors_are_written_even_as_views(tmp_path):
    scores = torch.randn(10, 8)[:, ::2]
    predictions = Predictions.from_logits(scores, torch.arange(10) % 4)
    for ending in ENDINGS:
        again = round_trip(predictions, tmp_path / f"net{ending}")
        assert np.array_equal(np.asarray(again.scores), scores.numpy())
    part = Predictions.from_logits(torch.randn(10_000, 4)[:5], torch.zeros(5, dtype=torch.long))
    part.write(tmp_path / "part.pt")
    assert (tmp_path / "part.pt").stat().st_size < 5_000


def test_bfloat16_is_kept_by_torch_formats_and_widened_by_the_others(tmp_path):
    scores = torch.randn(6, 3).bfloat16()
    predictions = Predictions.from_logits(scores, torch.arange(6) % 3)
    for ending in (".pt", ".safetensors"):
        assert round_trip(predictions, tmp_path / f"net{ending}").scores.dtype == torch.bfloat16
    for ending in (".npz", ".parquet", ".npy"):
        again = round_trip(predictions, tmp_path / f"net{ending}")
        assert again.scores.dtype == np.float32
        assert np.array_equal(again.scores, scores.float().numpy())


def test_torch_formats_read_as_torch_and_the_others_as_numpy(tmp_path):
    for ending in ENDINGS:
        again = round_trip(some(), tmp_path / f"net{ending}")
        expected = torch.Tensor if ending in (".pt", ".safetensors") else np.ndarray
        assert isinstance(again.scores, expected)
        assert isinstance(again.labels, expected)


def test_columns_may_come_in_any_order(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("label,prob_1,id,prob_2,prob_0\n2,0.5,x,0.25,0.25\n0,0,y,0,1\n")
    read = Predictions.read(path)
    assert read.scores.tolist() == [[0.25, 0.5, 0.25], [1, 0, 0]]
    assert read.ids.tolist() == ["x", "y"]
    assert not read.is_logits


def test_csv_with_byte_order_mark_quotes_and_windows_lines_is_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbf"logit_0","logit_1","label"\r\n1,2,0\r\n3,-4e-1,1\r\n')
    assert Predictions.read(path).scores.tolist() == [[1, 2], [3, -0.4]]


def test_arrow_stream_files_are_read(tmp_path):
    import pyarrow as pa

    table = pa.table({"logit_0": [0.5, 1.0], "logit_1": [0.0, 2.0], "label": [1, 0]})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    assert Predictions.read(tmp_path / "a.arrow").scores.tolist() == [[0.5, 0.0], [1.0, 2.0]]


def test_a_bare_array_must_be_told_what_it_is(tmp_path):
    np.save(tmp_path / "a.npy", some().scores)
    np.save(tmp_path / "y.npy", some().labels)
    assert "kind='logits'" in read_error(tmp_path / "a.npy", labels=tmp_path / "y.npy")
    read = Predictions.read(tmp_path / "a.npy", labels=str(tmp_path / "y.npy"), kind="logits")
    assert read.is_logits
    torch.save(torch.zeros(20, 4), tmp_path / "a.pt")
    assert "kind='logits'" in read_error(tmp_path / "a.pt", labels=tmp_path / "y.npy")


def test_kind_may_confirm_but_never_contradict(tmp_path):
    for ending in (".npz", ".parquet", ".csv", ".pt", ".safetensors"):
        path = tmp_path / f"net{ending}"
        some().write(path)
        assert Predictions.read(path, kind="logits").is_logits
        assert "names in the file say 'logits'" in read_error(path, kind="probs")
        assert "kind must be" in read_error(path, kind="scores")


@pytest.mark.parametrize("ending", [".npy", ".npz", ".csv", ".txt", ".parquet", ".pt", ".arrow"])
def test_labels_may_lie_in_a_file_of_their_own(ending, tmp_path):
    import pandas as pd

    predictions = some()
    truth, path = predictions.labels, tmp_path / f"truth{ending}"
    frame = pd.DataFrame({"label": truth})
    {
        ".npy": lambda: np.save(path, truth),
        ".npz": lambda: np.savez(path, labels=truth),
        ".csv": lambda: frame.to_csv(path, index=False),
        ".txt": lambda: path.write_text("\n".join(map(str, truth)) + "\n"),
        ".parquet": lambda: frame.to_parquet(path),
        ".arrow": lambda: frame.to_feather(path),
        ".pt": lambda: torch.save(torch.from_numpy(truth), path),
    }[ending]()
    np.savez(tmp_path / "scores.npz", logits=predictions.scores)
    read = Predictions.read(tmp_path / "scores.npz", labels=path)
    assert np.array_equal(read.labels, truth)


def test_label_files_without_a_header_or_with_another_name_are_read(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 3)))
    for text in ("0\n1\n2\n", "y\n0\n1\n2\n", "labels\n0\n1\n2\n", "name,label\n7,0\n8,1\n9,2\n"):
        (tmp_path / "y.csv").write_text(text)
        read = Predictions.read(tmp_path / "a.npy", labels=tmp_path / "y.csv", kind="logits")
        assert read.labels.tolist() == [0, 1, 2]
    read = Predictions.read(tmp_path / "a.npy", labels=[2, 1, 0], kind="logits")
    assert read.labels.tolist() == [2, 1, 0]


def test_bad_label_files_are_named(tmp_path):
    scores, truth = tmp_path / "a.npy", tmp_path / "y.txt"
    np.save(scores, np.zeros((3, 3)))
    truth.write_text("0\n1\ncat\n")
    message = read_error(scores, labels=truth, kind="logits")
    assert str(truth) in message
    assert "line 3 is 'cat'" in message
    truth.write_text("\n")
    assert "no labels" in read_error(scores, labels=truth, kind="logits")
    truth.write_text("0\n1\n")
    assert "3 rows of scores but 2 of labels" in read_error(scores, labels=truth, kind="logits")
    (tmp_path / "y.csv").write_text("a,b\n1,2\n")
    assert "expected a column 'label'" in read_error(
        scores, labels=tmp_path / "y.csv", kind="logits"
    )
    np.savez(tmp_path / "y.npz", a=[1], b=[2])
    assert "'labels'" in read_error(scores, labels=tmp_path / "y.npz", kind="logits")
    assert "no such file" in read_error(scores, labels=tmp_path / "z.npy", kind="logits")
    (tmp_path / "y.xlsx").touch()
    assert "unsupported ending" in read_error(scores, labels=tmp_path / "y.xlsx", kind="logits")


def test_labels_given_twice_or_not_at_all(tmp_path):
    some().write(tmp_path / "a.npz")
    assert "leave one out" in read_error(tmp_path / "a.npz", labels=some().labels)
    np.savez(tmp_path / "b.npz", logits=some().scores)
    (tmp_path / "c.csv").write_text("logit_0,logit_1\n1,2\n")
    for name in ("b.npz", "c.csv"):
        unlabelled = Predictions.read(tmp_path / name)
        assert unlabelled.labels is None
        with pytest.raises(InputError, match=r"no labels found.*column 'label'.*labels="):
            _ = unlabelled.known_labels
    assert len(Predictions.read(tmp_path / "c.csv", labels=[1])) == 1


def test_labels_beside_an_npy_are_found_and_may_be_replaced(tmp_path):
    predictions = some()
    predictions.write(tmp_path / "a.npy")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.labels.npy", "a.npy"]
    assert np.array_equal(
        Predictions.read(tmp_path / "a.npy", kind="logits").labels, predictions.labels
    )
    other = Predictions.read(tmp_path / "a.npy", kind="logits", labels=np.zeros(20, int))
    assert other.labels.sum() == 0


def test_missing_files_folders_and_unknown_endings(tmp_path):
    assert "no such file" in read_error(tmp_path / "none.npz")
    (tmp_path / "folder.npz").mkdir()
    assert "directory" in read_error(tmp_path / "folder.npz")
    (tmp_path / "a.xlsx").write_text("x")
    assert "unsupported ending '.xlsx'" in read_error(tmp_path / "a.xlsx")
    assert ".parquet" in read_error(tmp_path / "a.xlsx")
    with pytest.raises(InputError, match="unsupported ending"):
        some().write(tmp_path / "a.json")
    with pytest.raises(InputError, match="does not exist"):
        some().write(tmp_path / "deep" / "a.npz")
    with pytest.raises(InputError, match="is a directory"):
        some().write(tmp_path / "folder.npz")


def test_endings_may_be_upper_case(tmp_path):
    for ending in (".NPZ", ".CSV", ".Parquet"):
        assert len(round_trip(some(), tmp_path / f"a{ending}")) == 20


@pytest.mark.parametrize("ending", ENDINGS)
def test_empty_files_are_refused(ending, tmp_path):
    path = tmp_path / f"a{ending}"
    path.touch()
    read_error(path, kind="logits", labels=[1])


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kept", [0.05, 0.5, 0.97])
def test_files_cut_short_are_refused(ending, kept, tmp_path):
    path = tmp_path / f"a{ending}"
    some(rows=300).write(path)
    whole = path.read_bytes()
    # A csv cut at the end of a number cannot be told from a shorter one.
    cut = whole[: int(len(whole) * kept)]
    path.write_bytes(cut.rsplit(b",", 2)[0] if ending == ".csv" else cut)
    read_error(path, kind="logits")


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_of_something_else_are_refused(ending, tmp_path):
    path = tmp_path / f"a{ending}"
    path.write_bytes(bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)))
    read_error(path, kind="logits", labels=[1])


def test_pickled_objects_are_refused_and_never_run(tmp_path):
    import pickle

    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "sprung"),))

    for ending in (".npy", ".npz", ".pt"):
        path = tmp_path / f"raw{ending}"
        path.write_bytes(pickle.dumps(Trap(), protocol=2))
        assert "pickled Python objects" in read_error(path, kind="logits", labels=[1])
    np.save(tmp_path / "o.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    assert "never loaded" in read_error(tmp_path / "o.npy", kind="logits", labels=[1])
    np.savez(tmp_path / "o.npz", logits=np.array([Trap()], dtype=object), labels=[1])
    assert "never loaded" in read_error(tmp_path / "o.npz")
    torch.save({"logits": Trap(), "labels": 1}, tmp_path / "o.pt")
    assert "never loaded" in read_error(tmp_path / "o.pt")
    assert not (tmp_path / "sprung").exists()


def test_unknown_keys_and_columns_list_what_was_found_and_expected(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.zeros((2, 2)), lables=[0, 1])
    message = read_error(tmp_path / "a.npz")
    assert "unknown keys 'lables'" in message
    assert "'labels'" in message
    np.savez(tmp_path / "b.npz", outputs=np.zeros((2, 2)))
    assert "found 'outputs'; expected 'logits' or 'probs'" in read_error(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz")
    assert "empty" in read_error(tmp_path / "c.npz")
    (tmp_path / "a.csv").write_text("logit_0,logit_1,label,split\n1,2,0,test\n")
    assert "unknown columns 'split'" in read_error(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("a;b\n1;2\n")
    assert "found columns 'a;b'; expected logit_0" in read_error(tmp_path / "b.csv")
    torch.save({"logits": torch.zeros(2, 2), 3: torch.zeros(2)}, tmp_path / "a.pt")
    assert "unknown keys '3'" in read_error(tmp_path / "a.pt")
    torch.save([torch.zeros(2, 2)], tmp_path / "b.pt")
    assert "found list" in read_error(tmp_path / "b.pt")


def test_both_logits_and_probs_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.zeros((2, 2)), probs=np.zeros((2, 2)), labels=[0, 1])
    assert "both logits and probs" in read_error(tmp_path / "a.npz")
    assert "both logits and probs" in read_error(tmp_path / "a.npz", kind="logits")
    (tmp_path / "a.csv").write_text("logit_0,logit_1,prob_0,prob_1,label\n1,2,.3,.7,0\n")
    assert "both logits and probs" in read_error(tmp_path / "a.csv")


def test_gaps_repeats_and_mixed_forms_of_columns_are_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("logit_0,logit_3,label\n1,2,0\n")
    assert "missing between logit_0 and logit_3: logit_1, logit_2" in read_error(path)
    path.write_text("logit_1,logit_2,label\n1,2,0\n")
    assert "logit_0" in read_error(path)
    path.write_text("logit,logit_0,label\n1,2,0\n")
    assert "keep one form" in read_error(path)
    path.write_text("logit_0,logit_1,logit_1,label\n1,2,2,0\n")
    assert "more than once: logit_1" in read_error(path)
    path.write_text("logit_0,label\n1,0\n")
    assert "1 class" in read_error(path)
    path.write_text("logit_0,logit_01,label\n1,0,0\n")
    assert "unknown columns 'logit_01'" in read_error(path)


def test_tables_without_rows_are_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.csv").write_text("logit_0,logit_1,label\n")
    assert "0 rows" in read_error(tmp_path / "a.csv")
    empty = pa.table({"logit_0": [1.0], "logit_1": [1.0], "label": [0]}).slice(0, 0)
    pq.write_table(empty, tmp_path / "a.parquet")
    assert "0 rows" in read_error(tmp_path / "a.parquet")


def test_bad_values_in_a_csv_are_shown(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("logit_0,logit_1,label\n1,2,0\n1,cat,0\n")
    assert "invalid value 'cat'" in read_error(path)
    path.write_text("logit_0,logit_1,label\n1,2,0\n1,2,1.0\n")
    assert Predictions.read(path).labels.tolist() == [0, 1]
    path.write_text("logit_0,logit_1,label\n1,2,0\n1,2,1.5\n")
    assert "labels must be integers" in read_error(path)
    path.write_text("logit_0,logit_1,label\n1,2,0\n1,,0\n")
    assert "NaN or missing values in 1 row: row 1" in read_error(path)
    path.write_text("logit_0,logit_1,label\n1,2,0\n1,2,\n")
    assert "column 'label' has missing values (first rows: 1)" in read_error(path)
    path.write_text("logit_0,logit_1,label\n1,2,0\n1,2\n")
    read_error(path)


def test_bad_types_in_a_parquet_are_shown(tmp_path):
    import pandas as pd

    path = tmp_path / "a.parquet"
    pd.DataFrame({"logit_0": ["a"], "logit_1": [1.0], "label": [0]}).to_parquet(path)
    assert "must be numbers, found logit_0" in read_error(path)
    pd.DataFrame({"logit_0": [2.0], "logit_1": [1.0], "label": ["cat"]}).to_parquet(path)
    assert "labels are text ('cat')" in read_error(path)
    pd.DataFrame({"logit_0": [2.0], "logit_1": [1.0], "label": [1.0]}).to_parquet(path)
    assert Predictions.read(path).labels.tolist() == [1]
    pd.DataFrame({"logit_0": [2.0], "logit_1": [1.0], "label": [0.5]}).to_parquet(path)
    assert "values such as 0.5" in read_error(path)
    pd.DataFrame({"logit_0": [2], "logit_1": [1], "label": [1]}).to_parquet(path)
    assert Predictions.read(path).scores.dtype == np.float64


def test_validation_errors_name_the_file(tmp_path):
    np.savez(tmp_path / "a.npz", probs=np.full((4, 2), 0.4), labels=[0, 1, 0, 1])
    assert "sum 0.8" in read_error(tmp_path / "a.npz")
    assert len(Predictions.read(tmp_path / "a.npz", validate=False)) == 4


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(ending, tmp_path, monkeypatch):
    path = tmp_path / f"a{ending}"
    some().write(path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="No space"):
        some(seed=1).write(path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_write_that_breaks_halfway_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.parquet"
    some().write(path)
    before = path.read_bytes()
    scores = np.zeros((1000, 3))
    scores[900, 0] = np.nan
    np.save(tmp_path / "bad.npy", scores)
    bad = Predictions.read(
        tmp_path / "bad.npy", kind="logits", labels=np.zeros(1000, int), lazy=True
    )
    with pytest.raises(InputError, match="row 900"):
        bad.write(path)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet", "bad.npy"]


def test_a_written_file_has_the_usual_permissions_and_keeps_links(tmp_path):
    (tmp_path / "plain").touch()
    some().write(tmp_path / "a.npz")
    assert (tmp_path / "a.npz").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "link.npz").symlink_to(tmp_path / "a.npz")
    some(rows=5).write(tmp_path / "link.npz")
    assert (tmp_path / "link.npz").is_symlink()
    assert len(Predictions.read(tmp_path / "a.npz")) == 5


def test_damaged_notes_are_refused(tmp_path):
    from safetensors.torch import save_file

    tensors = {"logits": torch.zeros(2, 2), "labels": torch.tensor([0, 1])}
    path = tmp_path / "a.safetensors"
    for text in ("{", json.dumps([1]), json.dumps({"class_names": ["a"]})):
        save_file(tensors, path, metadata={"calibrant": text})
        read_error(path)
    save_file(tensors, path, metadata={"format": "pt"})
    assert len(Predictions.read(path)) == 2


def test_the_real_sets_are_read_and_round_trip(data_folder, tmp_path):
    files = sorted((data_folder / "logits").glob("*.npz"))
    if not files:
        pytest.skip("no real logits here")
    for file in files:
        predictions = Predictions.read(file)
        assert predictions.is_logits is (file.stem != "20news")
        assert predictions.name == file.stem
        if predictions.num_classes <= 20:
            for ending in (".parquet", ".csv", ".safetensors"):
                again = round_trip(predictions, tmp_path / f"a{ending}")
                assert np.array_equal(np.asarray(again.scores), predictions.scores)
                assert np.array_equal(np.asarray(again.labels), predictions.labels)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_row_numbers_that_pandas_writes_are_left_alone(tmp_path, ending):
    import pandas as pd

    table = pd.DataFrame({"logit_0": [0.5, 1.0, 2.0], "logit_1": [1.5, 0.0, 1.0]})
    table["label"] = [1, 0, 1]
    table = table.iloc[[2, 0, 1]]  # so that the numbers are no plain count, and are written
    path = tmp_path / f"table.{ending}"
    table.to_csv(path) if ending == "csv" else table.to_parquet(path)
    actual = Predictions.read(path)
    assert np.asarray(actual.array).tolist() == table[["logit_0", "logit_1"]].to_numpy().tolist()
    assert actual.ids is None
