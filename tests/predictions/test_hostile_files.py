"""Damaged and hostile files are refused; none kills the process or takes its memory."""

import os
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
import torch

from calibrant import calibrators, metrics
from calibrant.core.errors import InputError
from calibrant.predictions import Predictions

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
    import tracemalloc

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
