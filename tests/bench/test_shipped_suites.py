"""The suites of the package: every method once, and a short part of it that runs in minutes."""

from __future__ import annotations

import pytest

from calibrant import losses
from calibrant.bench import Store, Suite, choose_combinations, read_choice, run_specs
from calibrant.bench.tables.gallery import gallery
from calibrant.training import recipes

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_digits_has_every_loss_recipe_and_calibrator():
    from calibrant.calibrators import available as calibrators

    made = Suite.read("digits")
    text = " ".join(spec.config.loss for _, spec in made.specs)
    assert all(loss in text for loss in losses.available())
    assert {spec.config.recipe for _, spec in made.specs} == set(recipes.available())
    used = {
        calibrator.partition("(")[0] for _, spec in made.specs for calibrator in spec.calibrators
    }
    needs_more = {"identity", "local_temperature", "mac_cal_head", "tst_head", "vtst_head"}
    of_events = {"platt", "quadratic", "venn_abers"}  # digits judges ten classes
    newer = {"blend"}  # the suite's keys are frozen
    assert used == set(calibrators()) - needs_more - of_events - newer
    steps = {step for _, spec in made.specs for step, _ in spec.after}
    assert {"mac_cal_head", "tst", "vtst", "shift", "ood", "crossfit"} <= steps
    assert all(spec.config.data == "digits" for _, spec in made.specs)


def test_the_short_part_of_digits_is_a_part_of_it():
    whole = {spec.key for _, spec in Suite.read("digits").specs}
    assert {spec.key for _, spec in Suite.read("digits-short").specs} <= whole


@pytest.mark.slow
def test_the_short_part_of_digits_runs_in_two_minutes_with_nothing_left_out(tmp_path):
    """The whole line once: runs, calibrators, later steps, tables' rows, a choice, pictures."""
    made = Suite.read("digits-short")
    summary = run_specs(made.runs, tmp_path)
    assert (len(summary.done), summary.failed, summary.left) == (18, [], [])
    frame = Store(tmp_path / "store").frame()
    failed = frame[frame["metric"] == "failed"]
    assert failed.empty, failed[["loss", "recipe", "calibrator"]]
    test = frame[(frame["part"] == "test") & (frame["calibrator"] == "none")]
    accuracy = test[test["metric"] == "accuracy"]["value"]
    assert len(accuracy) == 18
    assert (accuracy > 0.9).all()
    for part in ("train", "validation", "test:gaussian_noise:3", "ood:photographs"):
        assert frame[frame["part"] == part]["key"].nunique() == 18, part
    # A second time there is nothing to do.
    assert len(run_specs(made.runs, tmp_path).before) == 18
    (path,) = choose_combinations(tmp_path)
    assert read_choice(path)["chosen"]["means"]["ece"] < 0.05
    # No method is swept, and four epochs a run are too few for a picture by epoch.
    assert list(gallery(made, frame)) == ["ECE under corruptions: digits, mlp"]
