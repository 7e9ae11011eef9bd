"""What calibrant.bench exports."""

from __future__ import annotations

import pytest

from calibrant import bench


@pytest.mark.parametrize("name", bench.__all__)
def test_every_exported_name_is_there(name):
    assert getattr(bench, name).__doc__ or name in ("SCHEMA", "Cell", "Runs")


def test_every_home_is_exported():
    assert {*bench._HOME, "register"} == set(bench.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bench.nothing
