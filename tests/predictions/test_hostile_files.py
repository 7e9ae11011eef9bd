"""Damaged and hostile files are refused; none kills the process or takes its memory."""

import gzip
import os
import subprocess
import sys
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch

from calibrant import calibrators, metrics
from calibrant.core.errors import InputError
from calibrant.predictions import Predictions, limits

FLIP = """
import sys, warnings
from pathlib import Path
import numpy as np
from calibrant.core.errors import InputError
from calibrant.predictions import Predictions

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
refused = 0
for name in sys.argv[1:]:
    good = Path(name).read_bytes()
    for _ in range(80):
        data = bytearray(good)
        for place in rng.integers(len(data), size=2):
            data[place] ^= 1 << int(rng.integers(8))
        Path(name).write_bytes(data)
        try:
            Predictions.read(name)
        except InputError:
            refused += 1
print(refused)
"""


def run_python(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_bits_that_flip_in_arrow_files_do_not_kill_the_process(tmp_path):
    import pyarrow as pa

    rng = np.random.default_rng(0)
    predictions = Predictions.from_logits(
        rng.normal(size=(40, 3)),
        rng.integers(0, 3, 40),
        ids=[f"row {k}" for k in range(40)],
        clusters=[f"group {k % 7}" for k in range(40)],
    )
    paths = [predictions.write(tmp_path / name) for name in ("a.arrow", "b.feather")]
    clusters = pa.array([f"g{k % 5}" for k in range(40)]).dictionary_encode()
    table = pa.table({"prob": rng.random(40), "label": [0, 1] * 20, "cluster": clusters})
    with pa.ipc.new_stream(str(tmp_path / "stream.arrow"), table.schema) as writer:
        writer.write_table(table)
    done = run_python(FLIP, *paths, tmp_path / "stream.arrow")
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    assert int(done.stdout) > 50


def test_columns_without_values_take_no_memory(tmp_path):
    import pyarrow as pa

    table = pa.table({"prob": [0.5, 0.5], "label": pa.nulls(2), "id": [1, 2]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match="holds no value at all"):
        Predictions.read(tmp_path / "a.arrow")


def test_a_class_number_of_a_short_csv_takes_no_memory(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("logit_200000000,logit_0,label\n1,2,0\n")
    tracemalloc.start()
    with pytest.raises(InputError, match="missing between logit_0 and logit_200000000: logit_1, "):
        Predictions.read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300e6  # the first read imports pyarrow


@pytest.mark.parametrize("ending", [".csv", ".arrow"])
def test_time_grows_with_the_columns_not_with_their_square(ending, tmp_path):
    seconds = {}
    for classes in (4_000, 32_000):
        path = tmp_path / f"{classes}{ending}"
        scores = np.random.default_rng(0).normal(size=(2, classes))
        Predictions.from_logits(scores, [0, 1]).write(path)
        Predictions.read(path)
        start = time.perf_counter()
        assert Predictions.read(path).num_classes == classes
        seconds[classes] = time.perf_counter() - start
    assert seconds[32_000] < 40 * seconds[4_000]  # 8 times the columns, 64 times their square


def test_labels_near_two_to_the_64_are_not_ignored():
    labels = np.array([0, 2**64 - 100, 1], dtype=np.uint64)
    for given in (labels, torch.from_numpy(labels)):
        with pytest.raises(InputError, match=r"below 2\^63, found 18446744073709551516"):
            Predictions.from_logits(np.zeros((3, 2)), given, ignore_index=-100)
        with pytest.raises(InputError, match=r"below 2\^63, found 18446744073709551516"):
            metrics.nll(np.zeros((3, 2)), given, ignore_index=-100)
        with pytest.raises(InputError, match=r"below 2\^63, found 18446744073709551516"):
            calibrators.get("vector").fit(np.zeros((3, 2)), given, ignore_index=-100)
    fine = Predictions.from_logits(np.zeros((2, 2)), labels[::2])
    assert fine.labels.tolist() == [0, 1]


def test_values_under_a_mask_are_refused():
    masked = np.ma.masked_array(np.array([0.2, 0.9]), mask=[False, True])
    rows = [masked, np.ma.masked_array(np.array([0.8, 0.1]), mask=[False, False])]
    with pytest.raises(InputError, match="masked"):
        Predictions.from_probs(masked, [0, 1])
    with pytest.raises(InputError, match="masked"):
        Predictions.from_probs(rows, [0, 1])
    with pytest.raises(InputError, match="masked"):
        Predictions.from_probs(np.array([0.2, 0.9]), np.ma.masked_array([0, 1], mask=[0, 1]))
    with pytest.raises(InputError, match="masked"):
        metrics.ece(masked, np.array([0, 1]), from_logits=False)


@pytest.mark.parametrize("shape", [(10**13,), (3, 2**40), (2**62, 2**62), (4, 3)])
def test_headers_that_lie_are_refused(shape, tmp_path):
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(48))
    for lazy in (False, True):
        with pytest.raises(InputError, match="the header announces shape"):
            Predictions.read(path, kind="logits", lazy=lazy)
    np.savez(tmp_path / "b.npz", labels=np.array([0, 1]))
    with zipfile.ZipFile(tmp_path / "b.npz", "a") as packed:
        packed.write(path, "logits.npy")
    with pytest.raises(InputError, match="the header announces shape"):
        Predictions.read(tmp_path / "b.npz")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_named_for_events_and_labels(value):
    scores = np.array([0.5, value, 0.5])
    for make in (
        lambda: Predictions.from_events(scores, [0, 1, 1]),
        lambda: Predictions.from_events(scores, [0, 1, 1], is_logits=True),
        lambda: Predictions.from_multilabel(scores[:, None], [[0], [1], [1]]),
        lambda: Predictions.from_probs(scores, [0, 1, 1]),
    ):
        with pytest.raises(InputError, match="1 row: row 1"):
            make()


@pytest.mark.parametrize("what", ["class_names", "ids", "clusters", "event"])
def test_half_a_character_is_refused(what):
    texts = ["a", "b", "\ud83d"]

    def make():
        if what == "event":
            return Predictions.from_events([0.5, 0.5], [0, 1], event="\ud83d")
        return Predictions.from_logits(np.zeros((3, 3)), [0, 1, 2], **{what: texts})

    with pytest.raises(InputError, match=r"half a character \(a surrogate\) in '\\ud83d'"):
        make()
    whole = {"ids": ["a", "b", "\U0001f600"], "clusters": ["ä", "b", "c"]}
    assert Predictions.from_logits(np.zeros((3, 3)), [0, 1, 2], **whole).ids[2] == "\U0001f600"


def test_a_file_whose_name_is_no_text_is_read_and_reported(tmp_path):
    from calibrant import evaluate, report

    path = tmp_path / os.fsdecode(b"a\xff.npz")
    np.savez(path, logits=np.random.default_rng(0).normal(size=(40, 3)), labels=[0, 1] * 20)
    predictions = Predictions.read(path)
    assert predictions.name == "a?"
    target = report.write(evaluate(predictions, metrics=["ece"]), tmp_path / "r.html")
    assert "a?" in target.read_text(encoding="utf-8")


def test_errors_stay_short_whatever_a_file_holds(tmp_path):
    name = "x" * 1_000_000
    path = tmp_path / "a.csv"
    path.write_text(f"{name},logit_0,logit_1\n1,2,3\n")
    with pytest.raises(InputError, match="unknown columns 'xxx") as caught:
        Predictions.read(path)
    assert len(str(caught.value)) < 5_000
    path.write_text(f"prob_0,prob_1,label\n0.5,0.5,{name}\n")
    with pytest.raises(InputError) as caught:
        Predictions.read(path, class_names=["a", "b"])
    assert len(str(caught.value)) < 5_000
    assert "is no class" in str(caught.value)


@pytest.fixture
def low_limit(monkeypatch):
    """Let files announce a megabyte for nothing, so that these tests need not take 256."""
    monkeypatch.setattr(limits, "FREE_BYTES", 1 << 20)


@pytest.mark.parametrize("ending", [".arrow", ".feather", ".parquet", ".stream.arrow"])
def test_columns_that_unpack_beyond_all_measure_are_refused(ending, tmp_path, low_limit):
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"prob": np.zeros(1 << 20), "label": np.zeros(1 << 20, dtype=np.int8)})
    path = tmp_path / f"a{ending}"
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    if ending == ".parquet":
        parquet.write_table(table, path, compression="zstd")
    else:
        make = pa.ipc.new_stream if "stream" in ending else pa.ipc.new_file
        with make(str(path), table.schema, options=options) as writer:
            writer.write_table(table)
    assert path.stat().st_size < 40_000
    with pytest.raises(InputError, match="more than 200 times its size"):
        Predictions.read(path)


def test_packed_arrow_files_are_read(tmp_path, low_limit):
    import pyarrow as pa

    rng = np.random.default_rng(0)
    clusters = pa.array([f"g{k % 5}" for k in range(200)]).dictionary_encode()
    scores = rng.random(200)
    table = pa.table({"prob": scores, "label": [0, 1] * 100, "cluster": clusters})
    for number, make in enumerate((pa.ipc.new_file, pa.ipc.new_stream)):
        for compression in ("zstd", "lz4", None):
            path = tmp_path / f"{number}{compression}.arrow"
            options = pa.ipc.IpcWriteOptions(compression=compression)
            with make(str(path), table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=70)
            predictions = Predictions.read(path)
            assert np.array_equal(predictions.scores, scores)
            assert predictions.clusters.tolist()[:6] == ["g0", "g1", "g2", "g3", "g4", "g0"]


def test_archives_that_unpack_beyond_all_measure_are_refused(tmp_path, low_limit):
    zeros = np.zeros((1 << 18, 2))
    np.savez_compressed(tmp_path / "a.npz", logits=zeros, labels=np.zeros(1 << 18, dtype=int))
    np.savez_compressed(tmp_path / "l.npz", labels=np.zeros(1 << 18, dtype=int))
    with pytest.raises(InputError, match=r"the archive announces .* more than 200 times"):
        Predictions.read(tmp_path / "a.npz")
    np.save(tmp_path / "b.npy", zeros)
    with pytest.raises(InputError, match=r"the archive announces .* more than 200 times"):
        Predictions.read(tmp_path / "b.npy", kind="logits", labels=tmp_path / "l.npz")
    torch.save({"logits": torch.from_numpy(zeros)}, tmp_path / "c.pt")
    with (
        zipfile.ZipFile(tmp_path / "c.pt") as source,
        zipfile.ZipFile(tmp_path / "d.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for entry in source.infolist():
            packed.writestr(entry.filename, source.read(entry))
    with pytest.raises(InputError, match=r"the archive announces .* more than 200 times"):
        Predictions.read(tmp_path / "d.pt")


def test_packed_text_that_grows_beyond_all_measure_is_refused(tmp_path, low_limit):
    path = tmp_path / "a.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"prob_0,prob_1,label\n" + b"0.5,0.5,1\n" * 300_000)
    with pytest.raises(InputError, match=r"the packed content announces .* more than 200 times"):
        Predictions.read(path)


def test_tensors_that_repeat_one_value_are_refused(tmp_path, low_limit):
    scores = torch.zeros(1).expand(10**9, 10)
    torch.save({"logits": scores, "labels": torch.zeros(3, dtype=torch.int64)}, tmp_path / "a.pt")
    with pytest.raises(InputError, match="a tensor announces 40,000,000,000 bytes, but has 4"):
        Predictions.read(tmp_path / "a.pt")
    torch.save(torch.zeros(4, 2, device="meta"), tmp_path / "b.pt")
    with pytest.raises(InputError, match="device 'meta' holds no values"):
        Predictions.read(tmp_path / "b.pt", kind="logits")


def test_arrays_of_values_without_size_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        header = {"descr": "<U0", "fortran_order": False, "shape": (10**15,)}
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(InputError, match="values of no size"):
        Predictions.read(path, kind="logits")


def test_one_long_text_takes_its_room_once(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    places = pa.array(np.zeros(3_000, dtype=np.int8))
    shared = pa.DictionaryArray.from_arrays(places, pa.array(["x" * 1_000_000]))
    table = pa.table({"prob": np.full(3_000, 0.5), "label": [0, 1] * 1_500, "cluster": shared})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        with pytest.raises(InputError, match="a text of 1,000,000 characters"):
            Predictions.read(tmp_path / name)


def test_keys_that_stand_in_one_line_of_json_each_take_no_time(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = [f'{{"logits":[1,2],"label":0,"k{number}":1}}\n' for number in range(5_000)]
    path.write_text("".join(lines))
    tracemalloc.start()
    with pytest.raises(InputError, match="unknown columns"):
        Predictions.read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6  # 5,000 rows of 5,000 keys take 200e6


@pytest.mark.parametrize("version", ["2.4.0", "2.5.1+cu121", "2.9.1"])
def test_pickles_of_torch_need_a_torch_that_runs_no_code(version, monkeypatch, tmp_path):
    torch.save(
        {"logits": torch.zeros(2, 2), "labels": torch.zeros(2, dtype=int)}, tmp_path / "a.pt"
    )
    Predictions.read(tmp_path / "a.pt")
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(InputError, match=r"CVE-2025-32434.*install torch 2.10 or newer, or write"):
        Predictions.read(tmp_path / "a.pt")
