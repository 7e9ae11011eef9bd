"""Formats and results stay as they were when ``tests/fixtures/frozen`` was written.

A failure here means that stored keys, files or figures would no longer fit. If the change is
meant, write the fixture anew with ``scripts/freeze_fixtures.py`` and say why in the commit. If
only a module moved, change the imports at the top of ``fixtures/frozen/frozen.py``.
"""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "fixtures" / "frozen"))

import frozen

TOLERANCE = 1e-12
SHOWN = 20  # differences that a failure names


def list_differences(expected, actual, place=""):
    """Name every place where two plain values differ, numbers by more than the tolerance."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            where = f"{place}/{key}"
            if key not in actual:
                yield f"{where}: missing"
            elif key not in expected:
                yield f"{where}: new"
            else:
                yield from list_differences(expected[key], actual[key], where)
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{place}: {len(expected)} entries before, {len(actual)} now"
        for number, pair in enumerate(zip(expected, actual, strict=False)):
            yield from list_differences(*pair, f"{place}/{number}")
    elif not are_equal(expected, actual):
        yield f"{place}: {expected!r} before, {actual!r} now"


def are_equal(expected, actual):
    if type(expected) is float and type(actual) is float:
        if math.isnan(expected) or math.isnan(actual):
            return math.isnan(expected) and math.isnan(actual)
        return math.isclose(expected, actual, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return type(expected) is type(actual) and expected == actual


def assert_same(expected, actual):
    differences = list(list_differences(expected, frozen.to_plain(actual)))
    more = f"\n... and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
    assert not differences, "\n".join(differences[:SHOWN]) + more


def assert_close(expected, actual):
    assert expected.keys() == actual.keys()
    for name, array in expected.items():
        assert array.dtype == actual[name].dtype, name
        np.testing.assert_allclose(
            actual[name], array, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name
        )


def keep_values(expected, actual):
    """Keep what both have, without verdicts, tests and ends of intervals: methods improve."""
    drop = {"low", "high", "verdict", "p_value", "p_adjusted", "winner"}
    if isinstance(expected, dict) and isinstance(actual, dict):
        both = [key for key in expected if key in actual and key not in drop]
        assert both or not expected.keys() - drop
        pairs = {key: keep_values(expected[key], actual[key]) for key in both}
        return {k: a for k, (a, _) in pairs.items()}, {k: b for k, (_, b) in pairs.items()}
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = [keep_values(*pair) for pair in zip(expected, actual, strict=True)]
        return [a for a, _ in pairs], [b for _, b in pairs]
    return expected, actual


def skip_elsewhere(fixture):
    """Skip what is the same to the last digit only with the same libraries and processor."""
    here = frozen.describe_environment()
    if fixture["environment"] != here:
        pytest.skip(f"written under {fixture['environment']}, this is {here}")


@pytest.fixture(scope="module")
def runs():
    return frozen.to_plain(frozen.list_runs())


@pytest.fixture(scope="module")
def stored():
    if not (frozen.RESULTS / "store").is_dir():
        pytest.skip("no results beside the package")
    return frozen.to_plain(frozen.describe_store())


def test_every_suite_has_the_same_runs_and_keys(runs):
    before = frozen.read_json("suites.json.gz")
    changed = []
    assert before["suites"].keys() == runs["suites"].keys()
    for name, suite in before["suites"].items():
        now = runs["suites"][name]
        if suite["digest"] != now["digest"]:
            pair = [frozen.expand_runs(v["suites"][name]["runs"], v) for v in (before, runs)]
            changed += list_differences(*pair, name)
        rest = [
            {k: v for k, v in runs.items() if k not in ("runs", "digest")} for runs in (suite, now)
        ]
        changed += list_differences(*rest, name)
    assert not changed, "\n".join(changed[:SHOWN])


@pytest.mark.parametrize("part", ["defaults", "types"])
def test_settings_keep_their_names_defaults_and_types(runs, part):
    assert_same(frozen.read_json("suites.json.gz")[part], runs[part])


@pytest.mark.slow
def test_store_is_read_as_before(stored):
    assert_same(frozen.read_json("store.json.gz"), stored)


@pytest.mark.slow
def test_stored_settings_give_the_stored_keys(stored):
    assert [pair for pair in stored["keys"] if pair[0] != pair[1]] == []


def test_every_calibrator_has_a_frozen_file():
    names = {name for name, _ in frozen.CASES.values()}
    assert names == set(frozen.calibrators.available())
    assert {path.stem for path in frozen.CALIBRATORS.iterdir()} == frozen.CASES.keys()


@pytest.mark.parametrize("case", frozen.CASES)
def test_calibrator_file_is_read_and_written_as_before(case, tmp_path):
    before = frozen.read_json("calibrators.json.gz")["files"][case]
    path = frozen.CALIBRATORS / f"{case}.safetensors"
    calibrator = frozen.calibrators.load(path)
    expected = {case: frozen.read_arrays("calibrators.npz")[case]}
    assert_close(expected, {case: frozen.predict_case(calibrator, case)})
    assert sorted(calibrator.state_dict()) == sorted(before["tensors"])
    again = frozen.calibrators.save(calibrator, tmp_path / path.name)
    assert_same(before, frozen.describe_file(again))


@pytest.mark.parametrize("case", frozen.CASES)
def test_calibrator_is_fitted_as_before(case):
    skip_elsewhere(frozen.read_json("calibrators.json.gz"))
    expected = {case: frozen.read_arrays("calibrators.npz")[case]}
    assert_close(expected, {case: frozen.predict_case(frozen.fit_case(case), case)})


def test_metrics_of_real_logits(data_folder):
    expected = frozen.read_json("metrics.json.gz")["values"]
    names = next(iter(expected.values()))
    assert_same(expected, frozen.measure_sets(data_folder, names))


def test_fits_on_real_logits(data_folder):
    skip_elsewhere(frozen.read_json("fits.json.gz"))
    assert_close(frozen.read_arrays("fits.npz"), frozen.fit_sets(data_folder))


@pytest.mark.slow
def test_evaluations_of_real_logits(data_folder):
    expected = frozen.read_json("evaluations.json.gz")["evaluate"]
    assert_same(*keep_values(expected, frozen.evaluate_sets(data_folder)))


@pytest.mark.slow
def test_comparisons_of_real_logits(data_folder):
    expected = frozen.read_json("evaluations.json.gz")["compare"]
    assert_same(*keep_values(expected, frozen.compare_sets(data_folder)))


def test_texts_are_parsed_and_printed_as_before():
    expected = frozen.read_json("texts.json.gz")
    inputs = {kind: list(expected[kind]) for kind in ("methods", "losses", "recipes")}
    assert_same(expected, frozen.print_texts(inputs))


def test_every_text_in_use_is_frozen():
    expected = frozen.read_json("texts.json.gz")
    for kind, inputs in frozen.list_texts().items():
        assert set(inputs) <= set(expected[kind])


@pytest.mark.parametrize("case", frozen.TRAININGS)
def test_training_gives_the_same_bits(case):
    fixture = frozen.read_json("trainings.json.gz")
    skip_elsewhere(fixture)
    assert_same(fixture["runs"][case], frozen.train_digits(case))


def test_begun_run_is_resumed(tmp_path):
    fixture = frozen.read_json("trainings.json.gz")
    skip_elsewhere(fixture)
    shutil.copytree(frozen.BEGUN, tmp_path / "run")
    assert_same(fixture["runs"][frozen.BEGUN_CASE], frozen.resume_run(tmp_path / "run"))
