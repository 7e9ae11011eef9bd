"""Files larger than memory: read in chunks, checked on the way, never whole."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.predictions import FileScores, Predictions
from calibrant.predictions import read as read_module

STREAMED = [".npy", ".parquet", ".arrow", ".feather", ".csv"]


@pytest.fixture(params=STREAMED)
def written_file(request, tmp_path):
    rng = np.random.default_rng(0)
    predictions = Predictions.from_logits(rng.normal(size=(1000, 5)), rng.integers(0, 5, 1000))
    return predictions, predictions.write(tmp_path / f"a{request.param}")


def test_a_lazy_file_knows_its_shape_and_streams_every_row_once(written_file):
    predictions, path = written_file
    lazy = Predictions.read(path, kind="logits", lazy=True)
    assert lazy.is_lazy
    assert isinstance(lazy.scores, FileScores)
    assert lazy.scores.shape == (1000, 5)
    assert lazy.scores.dtype == np.float64
    assert (lazy.num_rows, lazy.num_classes, lazy.is_dense) == (1000, 5, False)
    assert path.name in repr(lazy)
    for rows in (1, 64, 5000, None):
        parts = list(lazy.batches(rows))
        assert all(len(scores) == len(labels) <= (rows or 1000) for scores, labels in parts)
        assert np.array_equal(np.concatenate([scores for scores, _ in parts]), predictions.scores)
        assert np.array_equal(np.concatenate([labels for _, labels in parts]), predictions.labels)
    assert all(scores.flags.writeable for scores, _ in lazy.batches())
    again = list(lazy.batches(100))
    assert len(again) == 10


def test_a_stream_may_be_left_early(written_file):
    _, path = written_file
    stream = Predictions.read(path, kind="logits", lazy=True).batches(10)
    assert len(next(stream)[0]) == 10
    stream.close()


def test_in_memory_reads_it_all(written_file):
    predictions, path = written_file
    lazy = Predictions.read(path, kind="logits", lazy=True)
    with pytest.raises(InputError, match="in_memory"):
        _ = lazy.array
    whole = lazy.in_memory()
    assert not whole.is_lazy
    assert np.array_equal(whole.scores, predictions.scores)
    assert whole.in_memory() is whole


def test_splits_and_ascending_rows_of_a_lazy_file_stay_lazy(written_file):
    predictions, path = written_file
    lazy = Predictions.read(path, kind="logits", lazy=True)
    for part, expected in zip(lazy.split(0.3, seed=4), predictions.split(0.3, seed=4), strict=True):
        assert part.is_lazy
        assert len(part) == len(expected)
        streamed = list(part.batches(37))
        assert np.array_equal(np.concatenate([scores for scores, _ in streamed]), expected.scores)
        assert np.array_equal(np.concatenate([labels for _, labels in streamed]), expected.labels)
        nested = part.take(np.arange(0, len(part), 7))
        assert np.array_equal(nested.in_memory().scores, expected.scores[::7])


def test_rows_in_another_order_are_gathered(written_file):
    predictions, path = written_file
    taken = Predictions.read(path, kind="logits", lazy=True).take([900, 3, 3, 40])
    assert not taken.is_lazy
    assert np.array_equal(taken.scores, predictions.scores[[900, 3, 3, 40]])
    assert np.array_equal(taken.labels, predictions.labels[[900, 3, 3, 40]])


@pytest.mark.parametrize("ending", [*STREAMED, ".npz", ".pt", ".safetensors"])
def test_a_lazy_file_can_be_written_to_any_format(written_file, ending, tmp_path):
    predictions, path = written_file
    lazy = Predictions.read(path, kind="logits", lazy=True)
    lazy.take(np.arange(1, 1000)).write(tmp_path / f"copy{ending}")
    copy = Predictions.read(tmp_path / f"copy{ending}", kind="logits")
    assert np.array_equal(np.asarray(copy.scores), predictions.scores[1:])
    assert np.array_equal(np.asarray(copy.labels), predictions.labels[1:])


def test_values_are_checked_as_they_stream_and_rows_are_numbered_in_the_file(tmp_path):
    scores = np.zeros((1000, 3))
    scores[777, 1] = np.nan
    for ending in (".npy", ".parquet"):
        bad = Predictions.from_logits(scores, np.zeros(1000, int), validate=False)
        path = bad.write(tmp_path / f"bad{ending}")
        lazy = Predictions.read(path, kind="logits", lazy=True)
        stream = lazy.batches(100)
        for _ in range(7):
            next(stream)
        with pytest.raises(InputError, match=rf"bad\{ending}: .*row 777"):
            next(stream)
        with pytest.raises(InputError, match="row 777"):
            lazy.in_memory()
        with pytest.raises(InputError, match="row 777"):
            lazy.take([777]).in_memory()
        trusted = Predictions.read(path, kind="logits", lazy=True, validate=False)
        assert np.isnan(trusted.in_memory().scores).sum() == 1


def test_labels_of_a_lazy_file_are_checked_at_once(tmp_path):
    bad = Predictions.from_logits(np.zeros((10, 3)), np.full(10, 9), validate=False)
    for ending in STREAMED:
        bad.write(tmp_path / f"bad{ending}")
        with pytest.raises(InputError, match="labels out of range"):
            Predictions.read(tmp_path / f"bad{ending}", kind="logits", lazy=True)


def test_a_file_damaged_in_its_middle_is_refused_while_streaming(tmp_path):
    rng = np.random.default_rng(0)
    predictions = Predictions.from_logits(rng.normal(size=(50_000, 3)), np.zeros(50_000, int))
    path = predictions.write(tmp_path / "a.csv")
    lazy = Predictions.read(path, lazy=True)
    text = path.read_bytes()
    path.write_bytes(text[: len(text) // 2].rsplit(b"\n", 1)[0] + b"\n")
    with pytest.raises(InputError, match="announces 50000 rows"):
        list(lazy.batches())
    path.unlink()
    with pytest.raises(InputError, match=r"a\.csv"):
        list(lazy.batches())


def test_large_files_are_lazy_and_small_ones_are_not_unless_told(tmp_path, monkeypatch):
    predictions = Predictions.from_logits(np.zeros((1000, 5)), np.zeros(1000, int))
    for ending in STREAMED:
        path = predictions.write(tmp_path / f"a{ending}")
        assert not Predictions.read(path, kind="logits").is_lazy
        with monkeypatch.context() as patch:
            patch.setattr(read_module, "LAZY_BYTES", 1000)
            assert Predictions.read(path, kind="logits").is_lazy
            assert not Predictions.read(path, kind="logits", lazy=False).is_lazy


def test_an_npz_cannot_be_lazy(tmp_path):
    path = Predictions.from_logits(np.zeros((4, 2)), np.zeros(4, int)).write(tmp_path / "a.npz")
    with pytest.raises(InputError, match=r"read whole: write \.npy or \.parquet"):
        Predictions.read(path, lazy=True)


def test_binary_dense_and_column_major_files_stream(tmp_path):
    binary = Predictions.from_probs(np.linspace(0, 1, 100), np.arange(100) % 2)
    for ending in STREAMED:
        lazy = Predictions.read(binary.write(tmp_path / f"b{ending}"), kind="probs", lazy=True)
        assert lazy.is_binary
        assert np.array_equal(lazy.in_memory().scores, binary.scores)
    dense = np.random.default_rng(0).normal(size=(7, 3, 4))
    np.save(tmp_path / "d.npy", np.asfortranarray(dense))
    lazy = Predictions.read(
        tmp_path / "d.npy", kind="logits", labels=np.zeros((7, 4), int), lazy=True
    )
    assert lazy.is_dense
    assert np.array_equal(np.concatenate([scores for scores, _ in lazy.batches(2)]), dense)


MEASURE = """
import sys
import numpy as np
import torch
from calibrant.predictions import Predictions

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024

made = Predictions.from_logits(np.zeros((3, 2), np.float32), np.array([0, 1, 1]))
path = sys.argv[1]
made.write(path + ".warm" + path[path.rindex("."):])   # the imports are not what is measured
list(Predictions.read(path + ".warm" + path[path.rindex("."):], kind="logits", lazy=True).batches())
before = peak()
lazy = Predictions.read(path, kind="logits", lazy=True)
total = sum(len(scores) for scores, _ in lazy.batches())
assert total == lazy.num_rows == int(sys.argv[2])
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_streaming_takes_a_fraction_of_the_memory_of_the_file(tmp_path):
    rows, classes = 2_000_000, 40
    size = rows * classes * 4
    some = np.random.default_rng(0).random((100_000, classes), dtype=np.float32)
    source = np.lib.format.open_memmap(
        tmp_path / "big.npy", mode="w+", dtype=np.float32, shape=(rows, classes)
    )
    for start in range(0, rows, len(some)):
        source[start : start + len(some)] = some
    del source
    np.save(tmp_path / "big.labels.npy", np.zeros(rows, np.uint8))
    npy = Predictions.read(tmp_path / "big.npy", kind="logits", lazy=True)
    for path in (tmp_path / "big.npy", npy.write(tmp_path / "big.parquet")):
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(path), str(rows)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == 0, done.stderr
        share = int(done.stdout) / size
        assert share < 0.5, f"{path.suffix}: {share:.2f} of the file"
