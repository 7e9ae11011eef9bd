"""The wheel holds the package alone, is small, and runs the demonstration by itself, offline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).parents[1]
LARGEST = 3_000_000  # bytes
EXTRAS = (  # what only an extra brings; others come with torch, typer, ...
    *("lightning", "mlflow", "onnx", "onnxruntime", "onnxscript", "polars", "pyarrow", "ray"),
    *("tensorboard", "torchmetrics", "transformers", "yaml"),
)
GUARD = f"""
import socket, sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {EXTRAS!r}:
            return self.finder.find_spec(name, path, target)
if {{borrowed}}:
    sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
def refuse(*args, **options):
    raise OSError("this test allows no connection")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""


@pytest.fixture(scope="module")
def hatchling():
    return pytest.importorskip("hatchling", reason="the extra dev brings hatchling")


def list_wheel(root=ROOT):
    """Return the names of the files that the wheel gets, without building it."""
    from hatchling.builders.wheel import WheelBuilder

    return sorted(
        Path(file.distribution_path).as_posix()
        for file in WheelBuilder(str(root)).recurse_included_files()
    )


def test_the_wheel_holds_the_package_alone(hatchling):
    names = list_wheel()
    assert {name.split("/")[0] for name in names} == {"calibrant"}
    tracked = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "calibrant").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert set(names) == tracked
    assert "calibrant/py.typed" in names
    assert "calibrant/predictions/embedded/cifar10-resnet18.npz" in names


def test_the_wheel_stays_small(hatchling):
    # Compressed the limit is three million bytes: text shrinks to a third, arrays do not.
    sizes = {name: (ROOT / "src" / name).stat().st_size for name in list_wheel()}
    packed = sum(size for name, size in sizes.items() if name.endswith((".npz", ".npy", ".gz")))
    assert packed + (sum(sizes.values()) - packed) / 2 < LARGEST


def test_the_metadata_names_a_licence_and_tested_pythons():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license"] == "Apache-2.0"
    versions = [
        line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line
    ]
    assert project["requires-python"] == f">={versions[0]}"


@pytest.fixture(scope="module")
def dist(hatchling, tmp_path_factory):
    """Build the sdist from the tree, and the wheel from the sdist, as `pip install` would."""
    folder = tmp_path_factory.mktemp("dist")
    run_hatchling(ROOT, folder, "sdist")
    (sdist,) = folder.glob("*.tar.gz")
    source = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter="data")
    run_hatchling(next(source.iterdir()), folder, "wheel")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def run_hatchling(root, folder, target):
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t", target]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


@pytest.mark.slow
def test_sdist_and_wheel_hold_no_replication_and_are_small(dist):
    sdist, wheel = dist
    assert max(sdist.stat().st_size, wheel.stat().st_size) < LARGEST
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
        (metadata,) = (name for name in inside if name.endswith(".dist-info/METADATA"))
        assert b"License-Expression: Apache-2.0" in archive.read(metadata)
    with tarfile.open(sdist) as archive:
        inside += [name.partition("/")[2] for name in archive.getnames()]
    for folder in ("replication", "tests", "docs", "benchmarks"):
        assert not [name for name in inside if name.startswith(folder)]


@pytest.fixture(scope="module")
def installed(dist, tmp_path_factory):
    """Install the wheel alone, and guard the environment's Python against connections.

    CALIBRANT_DIST_PYTHON names the Python of an environment with the wheel and what it requires
    (`make test-dist`). Otherwise the environment borrows libraries of this one, but for extras.
    """
    folder = tmp_path_factory.mktemp("fresh")
    named = os.environ.get("CALIBRANT_DIST_PYTHON")
    python = Path(named) if named else folder / "venv" / "bin" / "python"
    if not named:
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*pip, str(dist[1])], check=True)
        places = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
        site = Path(sysconfig.get_path("purelib", vars=places))
        # A path in a .pth file is searched, but .pth files there, an editable install's, are not.
        libraries = [path for path in sys.path if path.endswith("site-packages")]
        (site / "borrowed.pth").write_text("\n".join(libraries) + "\n")
    guard = folder / "guard"
    guard.mkdir()
    (guard / "sitecustomize.py").write_text(GUARD.replace("{borrowed}", str(not named)))
    kept = {"PATH", "HOME", "LANG", "TMPDIR"}
    environment = {name: value for name, value in os.environ.items() if name in kept}
    environment |= {"PYTHONPATH": str(guard), "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": str(folder)}
    return python, environment


def cut_network():
    """Return a command that runs another without a network, where the system allows that."""
    command = ["unshare", "--map-root-user", "--net"]
    allowed = shutil.which("unshare") and not subprocess.run([*command, "true"]).returncode
    return command if allowed else []


@pytest.mark.slow
def test_the_wheel_alone_runs_the_demo_offline(installed, tmp_path):
    python, environment = installed

    def run(*words):
        command = [*cut_network(), str(python), *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1000
        )

    where = run("-c", "import calibrant; print(calibrant.__file__)")
    assert where.returncode == 0, where.stderr
    assert Path(python).parents[1] in Path(where.stdout.strip()).parents
    guarded = run("-c", "import socket; socket.create_connection(('127.0.0.1', 9))")
    assert "allows no connection" in guarded.stderr
    result = run("-m", "calibrant", "demo", "-o", "out")
    assert result.returncode == 0, result.stderr
    assert "After calibration" in result.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"report.html", "cifar10.html", "predictions.npz", "calibrator.safetensors"}
    assert (tmp_path / "out" / "report.html").stat().st_size > 100_000
