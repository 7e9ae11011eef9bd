"""The results store: only added to, whole or set aside, merged by copying files."""

from __future__ import annotations

import math
import os
import shutil
import warnings

import numpy as np
import pytest

from calibrant.bench import SCHEMA, Spec, Store, make_row
from calibrant.core.errors import InputError
from calibrant.training import Config

ONE, TWO = Spec(Config(seed=1)), Spec(Config(seed=2))


def row(spec=ONE, value=0.5, written="2026-01-01T00:00:00.000000Z", **other):
    given = {"part": "test", "metric": "ece", **other}
    return {**make_row(spec, value=value, **given), "written": written}


def test_rows_come_back_as_they_went_in(tmp_path):
    store = Store(tmp_path / "store")
    assert store.frame().empty
    rows = [
        row(value=math.nan),
        row(calibrator="temperature", seconds=0.25, rows=7, value=1e-300),
        row(part="run", metric="train_seconds", value=3),
        row(part="run", calibrator="temperature", metric="measured", value=1),
    ]
    path = store.add(ONE.key, rows)
    assert path.name.startswith(f"{ONE.key}-")
    frame = Store(tmp_path / "store").frame()
    assert list(frame.columns) == list(SCHEMA)
    found = frame.set_index(["part", "calibrator"]).to_dict("index")
    assert found["test", "temperature"]["value"] == 1e-300
    assert found["test", "temperature"]["seconds"] == 0.25
    assert found["test", "temperature"]["rows"] == 7
    assert math.isnan(found["test", "none"]["value"])
    assert math.isnan(found["test", "none"]["long_tail"])
    assert found["run", "none"]["epochs"] == Config().epochs
    # A figure is no mark: what was begun is not all measured.
    assert store.done(ONE.key) == {("run", "temperature")}
    assert store.done(TWO.key) == set()


def test_a_frame_is_its_caller_s_own_and_knows_what_was_added_since(tmp_path):
    store = Store(tmp_path)
    store.add(ONE.key, [row(value=0.5)])
    store.frame()["value"] = 7.0
    assert store.frame()["value"].tolist() == [0.5]
    Store(tmp_path).add(TWO.key, [row(TWO, value=0.25)])  # by another process, say
    assert sorted(store.frame()["value"]) == [0.25, 0.5]


def test_the_latest_of_a_figure_wins_whatever_the_order_of_files(tmp_path):
    new = row(value=2.0, written="2026-01-02T00:00:00.000000Z")
    for number, order in enumerate(([new, row(value=1.0)], [row(value=1.0), new])):
        store = Store(tmp_path / str(number))
        for one in order:
            store.add(ONE.key, [one, row(metric="nll")])
        assert len(store.files()) == 2
        assert store.frame().set_index("metric")["value"].to_dict() == {"ece": 2.0, "nll": 0.5}


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "renamed"])
def test_a_damaged_file_is_set_aside_and_the_others_are_read(tmp_path, damage):
    store = Store(tmp_path)
    path = store.add(ONE.key, [row(value=value, part=f"p{value}") for value in range(50)])
    store.add(TWO.key, [row(TWO)])
    content = path.read_bytes()
    if damage == "renamed":  # whole, but another file than its name says
        other = path.with_name(f"{TWO.key}-{'0' * 16}.parquet")
        os.replace(path, other)
        path = other
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes({"cut": content[:-9], "flipped": flipped, "emptied": b""}[damage])
    again = Store(tmp_path)
    with pytest.warns(UserWarning, match="damaged and set aside"):
        frame = again.frame()
    assert set(frame["key"]) == {TWO.key}
    assert again.done(ONE.key) == set()
    assert not path.exists()
    assert path.with_name(f"{path.name}.damaged").exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Store(tmp_path).frame()) == 1


def test_stores_are_merged_by_copying_files(tmp_path):
    one, two, both = (Store(tmp_path / name) for name in ("one", "two", "both"))
    one.add(ONE.key, [row(value=1.0)])
    two.add(TWO.key, [row(TWO)])
    two.add(ONE.key, [row(value=2.0, written="2026-01-02T00:00:00.000000Z")])
    assert both.take(one) == 1
    assert both.take(two) == 2
    assert both.take(two) == 0
    copied = tmp_path / "copied"
    shutil.copytree(one.folder, copied)
    shutil.copytree(two.folder, copied, dirs_exist_ok=True)
    for merged in (both, Store(copied)):
        assert merged.frame().set_index("key")["value"].to_dict() == {ONE.key: 2.0, TWO.key: 0.5}


def test_a_damaged_file_is_not_taken(tmp_path):
    one = Store(tmp_path / "one")
    path = one.add(ONE.key, [row()])
    with pytest.warns(UserWarning, match="was not copied"):
        assert not Store(tmp_path / "two").take_file(path.name, path.read_bytes()[:-1])
    assert Store(tmp_path / "two").frame().empty


def test_compacting_keeps_every_figure_and_survives_a_kill_amid_it(tmp_path, monkeypatch):
    store = Store(tmp_path)
    for number in range(4):
        written = f"2026-01-0{number + 1}T00:00:00.000000Z"
        store.add(ONE.key, [row(value=number, written=written), row(part=f"p{number}")])
    store.add(TWO.key, [row(TWO)])
    before = store.frame()
    monkeypatch.setattr("pathlib.Path.unlink", _dies)
    with pytest.raises(KeyboardInterrupt):
        store.compact()
    monkeypatch.undo()
    assert len(store.files()) == 6
    assert Store(tmp_path).frame().equals(before)
    store.add(TWO.key, [row(TWO, part="run", metric="measured", calibrator="vector")])
    Store(tmp_path).compact()
    (path,) = Store(tmp_path).files()
    assert path.name.startswith("all-")
    after = Store(tmp_path)
    assert len(after.frame()) == len(before) + 1
    assert after.done(TWO.key) == {("run", "vector")}
    assert after.compact() is None
    after.add(ONE.key, [row(part="run", metric="measured")])
    assert after.done(ONE.key) == {("run", "none")}


def test_a_light_store_has_single_precision_and_a_run_s_last_time(tmp_path):
    store = Store(tmp_path)
    times = [f"2026-01-0{day}T00:00:00.000000Z" for day in (1, 2)]
    store.add(ONE.key, [row(value=1 / 3, written=times[0]), row(part="p", value=0.1)])
    store.add(ONE.key, [row(part="q", metric="ece", value=2.5, written=times[1])])
    before = store.frame().set_index(["part", "metric"])
    heavy = sum(path.stat().st_size for path in store.files())
    path = Store(tmp_path).compact(light=True)
    after = Store(tmp_path).frame().set_index(["part", "metric"])
    assert path.stat().st_size < heavy
    assert list(after.index) == list(before.index)
    assert list(after["value"]) == pytest.approx(list(before["value"]), rel=1e-7)
    assert list(after["value"]) == [float(np.float32(one)) for one in before["value"]]
    assert set(after["written"]) == {before["written"].max()}
    rest = [name for name in before.columns if name not in ("value", "seconds", "written")]
    assert after[rest].equals(before[rest])
    again = Store(tmp_path).compact(light=True)
    assert again.read_bytes() == path.read_bytes()


def _dies(*_, **__):
    raise KeyboardInterrupt


def test_a_file_compacted_by_another_process_meanwhile_is_no_damage(tmp_path):
    store = Store(tmp_path)
    store.add(ONE.key, [row()])
    store.add(TWO.key, [row(TWO)])
    listed = store.files()
    Store(tmp_path).compact()
    store.files = lambda: listed  # what this process saw before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.frame().empty
    del store.files
    assert len(store.frame()) == 2


def test_halves_of_files_are_not_read(tmp_path):
    store = Store(tmp_path)
    path = store.add(ONE.key, [row()])
    (tmp_path / f".{path.name}.tmp").write_bytes(b"half")
    (tmp_path / f".{ONE.key}-hidden.parquet").write_bytes(b"half")
    assert len(store.frame()) == 1


def test_rows_that_are_none_are_refused(tmp_path):
    store = Store(tmp_path)
    with pytest.raises(InputError, match="rows of run"):
        store.add(ONE.key, [row(TWO)])
    with pytest.raises(InputError, match="rows of run"):
        store.add(ONE.key, [])
    with pytest.raises(InputError, match="valu"):
        store.add(ONE.key, [{**row(), "valu": 1.0}])
    assert not store.files()


def test_a_row_says_nothing_of_where_it_was_made():
    made = make_row(Spec(Config(data_folder="/home/someone")), part="test", metric="a", value=1)
    assert not [value for value in made.values() if "someone" in str(value)]
