"""The command as a process of its own: streams, exit codes, imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from calibrant.cli.console import make_console


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("process") / "small.npz"
    rng = np.random.default_rng(0)
    np.savez(path, logits=rng.normal(size=(200, 3)), labels=rng.integers(0, 3, 200))
    return path


def calibrant(*arguments: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "calibrant", *map(str, arguments)],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=180,
        check=False,
    )


@pytest.mark.slow
def test_json_is_utf8_on_a_stream_that_is_not_and_the_threshold_sets_the_code(file):
    done = calibrant(
        *("evaluate", file, "--json", "--no-intervals", "--fail-above", "ece=0.001"),
        PYTHONIOENCODING="ascii",
    )
    assert done.returncode == 3
    assert json.loads(done.stdout)["num_rows"] == 200
    assert done.stderr.startswith(b"failed: ece is ")


@pytest.mark.slow
def test_words_are_plain_where_signs_cannot_be_shown(file):
    done = calibrant("evaluate", file, "--resamples", "100", "-m", "ece", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode("ascii")
    assert "?" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_damaged_file_has_no_traceback(tmp_path):
    path = tmp_path / "damaged.npz"
    path.write_bytes(b"PK\x03\x04 not really")
    done = calibrant("evaluate", path)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"error: ")
    assert b"Traceback" not in done.stderr


def test_closed_pipe_is_silent(file):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "calibrant", "evaluate", file, "--json", "--no-intervals"],
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=180,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == b""


def close_streams(numbers):
    return lambda: [os.close(number) for number in numbers]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs streams that can be closed")
@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("closed", [(1,), (1, 2)])
@pytest.mark.parametrize(
    ("limit", "code"), [((), 0), (("--json",), 0), (("--fail-above", "ece=0.001"), 3)]
)
def test_closed_streams_change_no_exit_code(closed, limit, code, file):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "calibrant", "evaluate", file, "-m", "ece"),
            *("--no-intervals", "--quiet", *limit),
        ],
        preexec_fn=close_streams(closed),
        stderr=None if 2 in closed else subprocess.PIPE,
        timeout=180,
        check=False,
    )
    assert done.returncode == code
    assert not done.stderr or b"Error" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [("evaluate", "--help"), ("metrics", "--json")])
def test_a_full_disk_behind_the_output_is_one_line(arguments):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "calibrant", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=180,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == b"error: No space left on device\n"


@pytest.mark.parametrize("width", ["0", "1", "-5", "many"])
def test_odd_widths_of_the_terminal_print_all_the_same(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    assert make_console().width == 80


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(argument):
    code = (
        "import sys\n"
        "from calibrant.cli import main\n"
        f"sys.argv = ['calibrant', {argument!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = {'torch', 'numpy', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180, capture_output=True)
