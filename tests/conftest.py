"""Fixtures every test may use."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

# Test processes share the cores; more threads each would only wait for one another. Libraries
# read this as they are loaded, and processes that tests start have it from here.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# The tests start a hundred processes. Without bytecode each compiles torch again, which doubles
# their time; where none may lie beside its source, the environment keeps it in a folder of its own.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(sys.prefix, "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest  # noqa: E402
import torch  # noqa: E402

torch.set_num_threads(1)


def find_data() -> Path | None:
    """The folder of real data, where there is one: it is never part of the package."""
    named = os.environ.get("CALIBRANT_TEST_DATA")
    folder = Path(named) if named else Path(__file__).parents[2] / "shared" / "data"
    return folder if (folder / "logits").is_dir() else None


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real data beside the checkout, or a skip."""
    folder = find_data()
    if folder is None:
        pytest.skip("no real data here (set CALIBRANT_TEST_DATA to a folder that has some)")
    return folder


@pytest.fixture(autouse=True)
def own_settings(tmp_path_factory, monkeypatch):
    """Keep what commands remember out of the user's own folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "settings"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """A test that leaves gradients switched off is named, and others do not fail for it."""
    try:
        return (yield)
    finally:
        if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
            torch.set_grad_enabled(True)
            warnings.warn(f"{item.nodeid} left gradients switched off", stacklevel=1)


def sample_cases(items: list[pytest.Item], count: int | None, by: str | None) -> list[pytest.Item]:
    """Choose `count` cases at even steps, or one for each value of the parameter `by`."""
    if by is None:
        return [items[index * len(items) // count] for index in range(min(count, len(items)))]
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(repr(item.callspec.params[by]), []).append(item)
    return [group[index % len(group)] for index, group in enumerate(groups.values())]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the cases of a `sampled` test that are not in its sample as slow."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in tests.values():
        marker = cases[0].get_closest_marker("sampled")
        sample = sample_cases(cases, **{"count": None, "by": None, **marker.kwargs})
        for item in cases:
            if item not in sample:
                item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """Skip what calibrant refuses with an old PyTorch: .pt files, some exports to ONNX."""
    try:
        return (yield)
    except Exception as error:
        version = tuple(int(part) for part in torch.__version__.split(".")[:2])
        refusals = ("install torch 2.10 or newer", "could not export this to ONNX")
        if version < (2, 10) and any(refusal in str(error) for refusal in refusals):
            pytest.skip(f"PyTorch {torch.__version__} is too old: {error!s:.100}")
        raise
