"""A disk that is full is said with the name of the file, and what was there stays."""

import contextlib
import errno
import os
import subprocess
import sys
import time

import pytest

from calibrant.core.files import replace_file, write_file

FILL = """
import resource, signal, sys, warnings
from pathlib import Path
import numpy as np
from calibrant import Predictions, calibrators

warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
scores, labels = rng.normal(size=(3000, 3)), rng.integers(0, 3, 3000)
predictions = Predictions.from_logits(scores, labels)
fitted = calibrators.get("histogram", num_bins=200).fit(predictions)
whole = Path(sys.argv[1]) / "whole"  # imports everything
whole.mkdir()
for name in sys.argv[2:]:
    predictions.write(whole / name)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder, says = Path(sys.argv[1]), []
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
for name in sys.argv[2:]:
    try:
        write = fitted.save if name == "map.safetensors" else predictions.write
        write(folder / name)
    except OSError as error:
        says.append(f"{name} {error.filename == str(folder / name)}")
    else:
        says.append(f"{name} was written")
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
print(*says, sep="\\n")
"""
NAMES = [
    *("map.safetensors", "a.safetensors", "a.pt", "a.npz", "a.npy", "a.csv", "a.csv.gz"),
    *("a.parquet", "a.arrow", "a.feather", "a.jsonl"),
]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a limit on the size of files")
def test_a_full_disk_names_the_file_in_every_format(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_bytes(b"old")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-B", "-c", FILL, str(tmp_path), *NAMES],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # The labels of an .npy lie in a file of their own, which is named.
    wanted = [f"{name} {name != 'a.npy'}" for name in NAMES]
    assert done.stdout.splitlines() == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*NAMES, "whole"])
    assert {path.read_bytes() for path in tmp_path.glob("*.*")} == {b"old"}


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), errno.ENOSPC),
        (OSError("3000 requested and 109 written"), 0),
        (RuntimeError("I/O error: No space left on device (os error 28)"), errno.ENOSPC),
    ],
)
def test_an_error_of_the_disk_names_the_file(error, number, tmp_path):
    with pytest.raises(OSError, match=r"a\.txt") as caught, replace_file(tmp_path / "a.txt"):
        raise error
    assert caught.value.errno == number
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_another_kind_is_left_as_it_is(tmp_path):
    with pytest.raises(KeyError), replace_file(tmp_path / "a.txt"):
        raise KeyError("no error of the disk")


def test_a_failed_flush_names_the_file(tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"a\.txt"):
        write_file(tmp_path / "a.txt", b"new")
    with contextlib.suppress(OSError):
        write_file(tmp_path / "b.txt", b"new")
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_network_is_left_as_it_is(tmp_path):
    from urllib.error import URLError

    with pytest.raises(URLError), replace_file(tmp_path / "a.txt"):
        raise URLError("no such host")
    with (
        pytest.raises(ConnectionRefusedError, match="refused") as caught,
        replace_file(tmp_path / "a.txt"),
    ):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    assert caught.value.filename is None


@pytest.mark.skipif(os.name != "posix", reason="asks a process by a signal of 0")
def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path):
    target = tmp_path / "map.safetensors"

    def leave(process, age):
        with replace_file(target) as temporary:
            temporary.write_bytes(b"half")
            mine = temporary.name
        left = tmp_path / mine.replace(f"-{os.getpid()}-", f"-{process}-")
        left.write_bytes(b"half")
        os.utime(left, (time.time() - age,) * 2)
        return left

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {
        "killed": leave(ended.pid, 3600),
        "just killed": leave(ended.pid, 5),
        "alive": leave(os.getppid(), 3600),
    }
    other = tmp_path / names["killed"].name.replace("map", "another")
    other.write_bytes(b"half")
    os.utime(other, (0, 0))
    names["killed"].write_bytes(b"half")  # the writes above removed it
    os.utime(names["killed"], (0, 0))
    with replace_file(target) as temporary:
        temporary.write_bytes(b"whole")
    assert target.read_bytes() == b"whole"
    assert not names["killed"].exists()
    assert names["just killed"].exists()
    assert names["alive"].exists()
    assert other.exists()
