"""Tuning and combining look at validation rows alone, and write down what they chose."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.bench.measure.crossfit import PART as CROSSFIT
from calibrant.bench.measure.crossfit import crossfit, fit_on_halves
from calibrant.bench.run.runner import run_specs, run_suite
from calibrant.bench.select import choices as choosing
from calibrant.bench.select import combine, combine_report
from calibrant.bench.select.choices import (
    ValidationRows,
    choice_path,
    open_test_rows,
    read_choice,
    write_choice,
)
from calibrant.bench.select.tune import Tuning, Unfinished, best, tune_suite, with_choices
from calibrant.bench.store.rows import make_row
from calibrant.bench.store.store import Store
from calibrant.bench.suite.spec import Spec
from calibrant.bench.suite.suite import Suite
from calibrant.bench.suite.tuning import _set_loss_option as with_option
from calibrant.core.errors import InputError
from calibrant.core.method_text import has_term
from calibrant.core.method_text import parse_terms as terms
from calibrant.predictions import Predictions
from calibrant.training.config import Config

SUITE = """
name: small
defaults: {data: digits, model: mlp, epochs: 3, batch_size: 128, device: cpu, validation: 300}
seeds: [0, 1]
methods:
  cross_entropy: {}
  s_avuc: {loss: cross_entropy+s_avuc}
baseline: cross_entropy
tune:
  seeds: [0]
  accuracy_lost: 0.01
  settings:
    - {name: threshold, of: [s_avuc], values: [0.1, 0.5]}
    - {name: beta, of: [s_avuc], values: [0.5, 2.0, 8.0]}
"""


def figures_of(spec: Spec) -> dict[str, float]:
    """Made-up validation figures with a known best: threshold 0.1, then beta 2."""
    options = dict(terms(spec.config.loss)[-1][2])
    beta = terms(spec.config.loss)[-1][0]
    ece = 0.03 if options.get("threshold") == 0.1 else 0.05
    accuracy = 0.95
    if beta == 2.0:
        ece -= 0.01
    if beta == 8.0:
        ece, accuracy = 0.001, 0.93  # the lowest error, and too much accuracy lost
    return {"accuracy": accuracy, "nll": 10 * ece, "ece": ece}


def fake_run(store: Store, *, test_value: float = 0.5, skip: int = 0):
    """Adds made-up rows of each run once, test rows among them."""
    asked: list[str] = []

    def run(specs):
        for spec in specs[: len(specs) - skip]:
            if spec.key in asked:
                continue
            asked.append(spec.key)
            rows = [
                make_row(spec, part="validation", metric=name, value=value)
                for name, value in figures_of(spec).items()
            ]
            rows += [
                make_row(spec, part="test", metric=name, value=test_value)
                for name in ("accuracy", "nll", "ece")
            ]
            store.add(spec.key, rows)
        return []

    run.asked = asked
    return run


def test_one_setting_after_another_the_best_kept_for_the_next(tmp_path):
    suite = Suite.parse(SUITE)
    run = fake_run(Store(tmp_path / "store"))
    done = tune_suite(suite, tmp_path, run)
    losses = {
        method: {spec.config.loss for m, spec in done.specs if m == method}
        for method in ("cross_entropy", "s_avuc")
    }
    assert losses["s_avuc"] == {"cross_entropy+2.0*s_avuc(threshold=0.1)"}
    assert losses["cross_entropy"] == {"cross_entropy"}
    assert [spec.config.seed for _, spec in done.specs] == [s.config.seed for _, s in suite.specs]
    # Two thresholds, then three weights with the threshold found; no run twice.
    assert len(run.asked) == 5
    assert done.tune == {}


def test_the_choice_tells_candidates_figures_rule_and_result(tmp_path):
    suite = Suite.parse(SUITE)
    tune_suite(suite, tmp_path, fake_run(Store(tmp_path / "store")))
    (path,) = (tmp_path / "choices").glob("*.json")
    choice = json.loads(path.read_text())
    first, second = choice["candidates"]
    assert [candidate["value"] for candidate in first["candidates"]] == [0.1, 0.5]
    assert [candidate["ece"] for candidate in first["candidates"]] == pytest.approx([0.03, 0.05])
    assert (first["chosen"], second["chosen"]) == (0.1, 2.0)
    assert choice["chosen"]["loss"] == "cross_entropy+2.0*s_avuc(threshold=0.1)"
    assert "seed" not in choice["chosen"]
    assert len(choice["keys"]) == 2
    assert "test" not in path.read_text()


def test_a_written_choice_is_taken_and_nothing_is_run_again(tmp_path):
    suite = Suite.parse(SUITE)
    first = tune_suite(suite, tmp_path, fake_run(Store(tmp_path / "store")))

    def never(specs):
        raise AssertionError("nothing is left to be run")

    again = tune_suite(suite, tmp_path, never)
    assert again.specs == first.specs
    assert with_choices(suite, tmp_path).specs == first.specs


def test_before_the_choice_only_what_needs_none_is_known(tmp_path):
    suite = Suite.parse(SUITE)
    assert {method for method, _ in with_choices(suite, tmp_path).specs} == {"cross_entropy"}


def test_runs_cut_short_are_gone_on_with_and_not_chosen_from(tmp_path):
    suite = Suite.parse(SUITE)
    store = Store(tmp_path / "store")
    with pytest.raises(Unfinished, match="still to be run"):
        tune_suite(suite, tmp_path, fake_run(store, skip=1))
    assert not list(tmp_path.glob("choices/*"))
    assert tune_suite(suite, tmp_path, fake_run(store)).specs


def run_that_loses(store, lost):
    """As `fake_run`, but candidates with this in their loss fail."""
    honest = fake_run(store)

    def run(specs):
        failed = [spec for spec in specs if lost in spec.config.loss]
        honest([spec for spec in specs if spec not in failed])
        return [spec.key for spec in failed]

    return run


def test_a_candidate_that_failed_is_told_and_not_chosen(tmp_path):
    suite = Suite.parse(SUITE)
    store = Store(tmp_path / "store")
    done = tune_suite(suite, tmp_path, run_that_loses(store, "threshold=0.1"))
    assert "threshold=0.5" in done.specs[-1][1].config.loss
    (path,) = (tmp_path / "choices").glob("*.json")
    assert json.loads(path.read_text())["candidates"][0]["candidates"][0]["ece"] is None


def test_all_candidates_failed_is_an_error(tmp_path):
    with pytest.raises(InputError, match="every candidate failed"):
        tune_suite(Suite.parse(SUITE), tmp_path, lambda specs: [spec.key for spec in specs])


def test_tuning_without_validation_rows_says_so(tmp_path):
    suite = Suite.parse(SUITE.replace("validation: 300", "validation: 0"))
    assert suite.specs[0][1].config.validation == 0
    with pytest.raises(InputError, match=r"hold rows out, as in validation: 0\.1"):
        tune_suite(suite, tmp_path, lambda specs: [spec.key for spec in specs])


def test_an_unknown_option_to_tune_is_refused_beside_the_weight(tmp_path):
    with pytest.raises(InputError, match=r"has no option 'betta'.*beta is its weight"):
        Suite.parse(SUITE.replace("name: beta", "name: betta"))


@pytest.mark.parametrize("poison", [1.0, math.nan])
def test_test_figures_of_any_kind_leave_the_choice_as_it_is(tmp_path, poison):
    suite = Suite.parse(SUITE)
    for folder, value in (("clean", 0.5), ("poisoned", poison)):
        tune_suite(
            suite, tmp_path / folder, fake_run(Store(tmp_path / folder / "store"), test_value=value)
        )
    clean, poisoned = (
        next((tmp_path / name / "choices").glob("*")) for name in ("clean", "poisoned")
    )
    assert clean.name == poisoned.name
    assert clean.read_bytes() == poisoned.read_bytes()


def test_real_runs_with_sealed_test_files_give_the_same_choice(tmp_path, monkeypatch):
    """The whole line on digits: test predictions are gone, and reading them an error."""
    one_step = SUITE.replace("    - {name: threshold, of: [s_avuc], values: [0.1, 0.5]}\n", "")
    suite = Suite.parse(one_step.replace("[0.5, 2.0, 8.0]", "[0.5, 4.0]"))
    open_folder, sealed = tmp_path / "open", tmp_path / "sealed"

    def run(out):
        return lambda specs: run_specs(specs, out).failed

    first = tune_suite(suite, open_folder, run(open_folder))
    # Choosing a second time from the same runs, with everything of the test out of reach.
    (sealed / "store").mkdir(parents=True)
    kept = Store(open_folder / "store").frame()
    assert "test" not in set(kept["part"])  # there is nothing of it to be seen
    for key, rows in kept.groupby("key"):
        Store(sealed / "store").add(str(key), rows.to_dict("records"))
    monkeypatch.setattr(Predictions, "read", _refuse)

    again = tune_suite(suite, sealed, lambda specs: [])
    assert again.specs == first.specs
    (plain,), (sealed_choice,) = (
        list((folder / "choices").glob("*")) for folder in (open_folder, sealed)
    )
    assert plain.read_bytes() == sealed_choice.read_bytes()


@pytest.mark.slow
def test_the_test_file_is_opened_after_the_choice_is_written(tmp_path, monkeypatch):
    """Real runs: every file of predictions that is read, and the choice, in the order of time."""
    one_step = SUITE.replace("    - {name: threshold, of: [s_avuc], values: [0.1, 0.5]}\n", "")
    text = one_step.replace("[0.5, 2.0, 8.0]", "[0.5, 4.0]").replace("seeds: [0, 1]", "seeds: [0]")
    suite = Suite.parse(f"{text}calibrators: [temperature]\n")
    events: list[tuple[str, str, str]] = []
    read, write = Predictions.read, choosing._write_once

    def noted_read(path, *args, **kwargs):
        events.append(("read", Path(path).stem, Path(path).parents[1].name))
        return read(path, *args, **kwargs)

    def noted_write(path, choice):
        events.append(("choice", "", choice["keys"][0]))
        return write(path, choice)

    monkeypatch.setattr(Predictions, "read", noted_read)
    monkeypatch.setattr(choosing, "_write_once", noted_write)
    summary = run_suite(suite, tmp_path)
    assert len(summary.done) == 2
    at = [kind for kind, _, _ in events].index("choice")
    before, chosen, after = events[:at], events[at][2], events[at + 1 :]
    candidates = {key for _, _, key in before}
    assert len(candidates) == 2
    assert {part for _, part, _ in before} == {"validation"}
    opened = {key for _, part, key in after if part == "test"}
    assert chosen in opened & candidates
    # Of the candidate that lost no test row is read, then or later, nor in the store.
    (lost,) = candidates - {chosen}
    assert lost not in opened
    frame = Store(tmp_path / "store").frame()
    assert set(frame[frame["key"] == lost]["part"]) == {"validation", "run"}
    assert "test" in set(frame[frame["key"] == chosen]["part"])
    # What the chosen one took is its training, not the measuring alone.
    took = frame[(frame["key"] == chosen) & (frame["metric"] == "bench_seconds")]["value"]
    trained = frame[(frame["key"] == chosen) & (frame["metric"] == "train_seconds")]["value"]
    assert float(took.iloc[0]) >= float(trained.iloc[0])
    assert not (tmp_path / "runs" / lost / "weights.safetensors").exists()
    # It is resumed, not repeated.
    assert run_suite(suite, tmp_path).done == []


def one_step(*, seeds="[0]", more=""):
    text = SUITE.replace("    - {name: threshold, of: [s_avuc], values: [0.1, 0.5]}\n", "")
    text = text.replace("[0.5, 2.0, 8.0]", "[0.5, 4.0]").replace("seeds: [0, 1]", f"seeds: {seeds}")
    return Suite.parse(f"{text}{more}")


@pytest.mark.slow
def test_a_candidate_whose_predictions_are_gone_is_trained_again(tmp_path):
    suite = one_step()
    run_suite(suite, tmp_path / "first")
    frame = Store(tmp_path / "first" / "store").frame()
    # The folders of another place, without its figures and without predictions.
    (tmp_path / "second").mkdir()
    shutil.copytree(tmp_path / "first" / "runs", tmp_path / "second" / "runs")
    for path in (tmp_path / "second" / "runs").glob("*/predictions/*"):
        path.unlink()
    for path in (tmp_path / "second" / "runs").glob("*/files.json"):
        path.unlink()
    events = []
    summary = run_suite(suite, tmp_path / "second", progress=events.append)
    assert len(summary.done) == 2
    assert summary.failed == []
    assert [event["event"] for event in events].count("epoch") == 3 * 3
    again = Store(tmp_path / "second" / "store").frame()
    assert set(again["key"]) == set(frame["key"])


def test_what_cannot_be_chosen_from_is_an_error_and_not_silence(tmp_path):
    suite = Suite.parse(one_step().text.replace("validation: 300", "validation: 0"))
    with pytest.raises(InputError, match="no candidate has figures of them"):
        run_suite(suite, tmp_path)
    assert not list(tmp_path.glob("choices/*"))


@pytest.mark.slow
def test_losers_are_pruned_and_what_another_suite_keeps_is_not(tmp_path):
    suite = one_step()
    losing = "cross_entropy+0.5*s_avuc", "cross_entropy+4.0*s_avuc"
    kept = [Spec(replace(suite.specs[1][1].config, loss=loss), keep="weights") for loss in losing]
    run_specs(kept, tmp_path)  # somebody else's
    run_suite(suite, tmp_path)
    for kept_key in kept:
        assert (tmp_path / "runs" / kept_key.key / "weights.safetensors").is_file()
    other = tmp_path / "other"
    with pytest.raises(Unfinished):  # it is cut short after its candidates, and taken up
        tune_suite(suite, other, lambda specs: run_specs(specs[:1], other).failed)
    run_suite(suite, other)
    (path,) = (other / "choices").glob("*.json")
    keys = [
        key
        for candidate in json.loads(path.read_text())["candidates"]
        for key in candidate["candidates"]
    ]
    tried = {key for pruned in keys for key in pruned["keys"]}
    for key in tried:
        assert not (other / "runs" / key / "weights.safetensors").exists()


def test_nobody_chooses_a_combination_that_is_sealed(tmp_path):
    store = Store(tmp_path / "store")
    runs_of(store, FIGURES)
    (first,) = combine.choose_combinations(tmp_path)
    spec = Spec(Config(loss="mdca"), sealed=True)
    rows = [
        make_row(spec, part="validation", metric=name, value=value)
        for name, value in (("accuracy", 0.99), ("nll", 0.01), ("ece", 0.0001))
    ]
    rows.append(make_row(spec, part="run", calibrator="validation", metric="measured", value=1))
    store.add(spec.key, rows)
    assert combine.choose_combinations(tmp_path) == [first]


def _refuse(*args, **kwargs):
    raise AssertionError("selection opened a file of predictions")


def test_what_selection_is_given_has_no_test_rows(tmp_path):
    suite = Suite.parse(SUITE)
    fake_run(Store(tmp_path / "store"))([spec for _, spec in suite.specs])
    view = ValidationRows(Store(tmp_path / "store"))
    assert set(view.frame["part"]) == {"validation"}
    assert ValidationRows.__slots__ == ("_frame", "opened")
    assert not view._frame["part"].str.startswith("test").any()
    assert view.opened == {spec.key for _, spec in suite.specs}  # keys, and nothing of them


def test_test_rows_open_after_the_choice_and_for_its_runs_alone(tmp_path):
    suite = Suite.parse(SUITE)
    store = Store(tmp_path / "store")
    fake_run(store)([spec for _, spec in suite.specs])
    path = choice_path(tmp_path, "which", {"asked": 1})
    with pytest.raises(InputError, match="stay sealed until a choice"):
        open_test_rows(path, store)
    key = suite.specs[0][1].key
    write_choice(path, {"rule": "x", "candidates": [], "chosen": {}, "keys": [key]})
    opened = open_test_rows(path, store)
    assert set(opened["key"]) == {key}
    assert set(opened["part"]) == {"test"}


def test_a_choice_stands(tmp_path):
    path = choice_path(tmp_path, "a/b c", {"asked": 1})
    assert path.parent == tmp_path / "choices"
    choice = {"rule": "x", "candidates": [], "chosen": {"loss": "a"}, "keys": []}
    write_choice(path, choice)
    write_choice(path, choice)
    with pytest.raises(InputError, match="another choice"):
        write_choice(path, {**choice, "chosen": {"loss": "b"}})
    with pytest.raises(InputError, match="keys"):
        write_choice(path, {"rule": "x", "candidates": [], "chosen": {}})
    path.write_text("{half")
    with pytest.raises(InputError, match="no complete choice"):
        read_choice(path)


def candidate(accuracy, ece, nll=0.1):
    return {"accuracy": accuracy, "ece": ece, "nll": nll}


def test_the_rule_of_appendix_g():
    within = [candidate(0.950, 0.03), candidate(0.941, 0.02), candidate(0.9399, 0.01)]
    assert best(within, accuracy_lost=0.01) == 1
    assert best(within, accuracy_lost=0.02) == 2
    assert best(within, accuracy_lost=0.0) == 0
    # 0.94 is exactly 1% below 0.95, whatever the floats say.
    assert best([candidate(0.95, 0.03), candidate(0.94, 0.02)]) == 1
    # Equal errors: the lower NLL, then the earlier.
    assert best([candidate(0.9, 0.02, 0.3), candidate(0.9, 0.02, 0.2)]) == 1
    assert best([candidate(0.9, 0.02), candidate(0.9, 0.02)]) == 0
    # One that failed neither wins nor sets the mark.
    assert best([candidate(math.nan, math.nan), candidate(0.5, 0.2)]) == 1


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({}, "settings"),
        ({"settings": [{"name": "lr", "values": []}]}, "list"),
        ({"settings": [{"name": "learning", "values": [1]}]}, "learning"),
        ({"settings": [{"name": "lr", "values": [1], "off": 1}]}, "did you mean of"),
        ({"settings": [{"name": "lr", "values": [1]}], "rule": "best_test"}, "best_test"),
        ({"settings": [{"name": "lr", "values": [1]}], "ruel": "x"}, "did you mean rule"),
        ({"settings": [{"name": "lr", "values": [1]}], "metric": "ecee"}, "ecee"),
        ({"settings": [{"name": "lr", "values": [1]}], "metric": "kde_ece"}, "metric is one of"),
        ({"settings": [{"name": "lr", "values": [1]}], "metric": "accuracy"}, "metric is one of"),
        ({"settings": [{"name": "lr", "values": [1]}], "accuracy_lost": 2}, "accuracy_lost"),
    ],
)
def test_a_bad_block_says_what_is_wrong(block, message):
    with pytest.raises(InputError, match=message):
        Tuning.of(block)


def test_settings_of_runs_recipes_and_losses():
    tuning = Tuning.of(
        {
            "settings": [
                {"name": "weight_decay", "values": [1e-4]},
                {"name": "recipe.alpha", "values": [0.4]},
                {"name": "gamma", "of": ["focal"], "values": [2]},
            ]
        }
    )
    decay, alpha, gamma = tuning.settings
    config = Config(loss="focal+0.5*s_avuc", recipe="mixup")
    assert decay.put(config, 1e-4).weight_decay == 1e-4
    assert alpha.put(config, 0.4).recipe_options == {"alpha": 0.4}
    assert gamma.put(config, 2).loss == "focal(gamma=2)+0.5*s_avuc"
    assert not alpha.applies(Config())
    assert not gamma.applies(Config())


def test_losses_as_text_are_read_back_as_written():
    text = "focal(gamma=3)+0.5*s_avuc(threshold=0.1, temperature=1e-05)"
    assert with_option(text, ["s_avuc"], "temperature", 1e-5) == text
    assert terms(with_option("sb_ece", ["sb_ece"], "form", "bin"))[0][2] == {"form": "bin"}
    assert not has_term("focal", ["s_avuc"])
    with pytest.raises(InputError, match="primary"):
        with_option("focal", ["focal"], "beta", 1.0)
    with pytest.raises(InputError, match="no part"):
        with_option("focal", ["acls"], "margin", 1.0)


# --- rows no calibrator was fitted on ---------------------------------------------------


def overconfident(rows: int, classes: int = 10) -> Predictions:
    """Logits that are right about half of the time, and too sure of it."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(classes, (rows,), generator=generator)
    logits = 4 * torch.randn(rows, classes, generator=generator)
    logits[torch.arange(rows), labels] += 6
    return Predictions.from_logits(logits, labels)


def test_halves_are_judged_by_the_other_half_by_hand():
    predictions = overconfident(200)
    halves = fit_on_halves("temperature", predictions)
    assert len(halves) == 200
    assert torch.equal(torch.as_tensor(halves.labels), torch.as_tensor(predictions.labels))
    # A temperature divides: two of them, each for about half of the rows.
    ratio = torch.as_tensor(predictions.array) / torch.as_tensor(halves.array)
    by_row = ratio.mean(1)
    assert torch.allclose(ratio, by_row.unsqueeze(1).expand_as(ratio), rtol=1e-4)
    kinds, counts = torch.unique((by_row * 1e3).round(), return_counts=True)
    assert len(kinds) == 2
    assert counts.tolist() == [100, 100]


def test_what_learns_rows_by_heart_is_seen_through():
    """A histogram a class, of 30 rows each: its own rows flatter it."""
    from calibrant.bench.measure.subject import fit
    from calibrant.calibrators.rank import apply
    from calibrant.metrics import nll

    predictions = overconfident(300)
    own = apply(fit("histogram", predictions).calibrator, predictions)
    by_metric = {row.metric: row for row in crossfit("histogram", predictions)}
    assert by_metric["nll"].part == CROSSFIT
    assert by_metric["nll"].rows == 300
    assert (
        by_metric["nll"].value > float(nll(torch.as_tensor(own.array), predictions.labels)) + 0.05
    )


def test_a_calibrator_of_training_rows_has_no_such_part():
    assert not list(crossfit("temperature(objective=ece,on=train)", overconfident(50)))


# --- combinations -----------------------------------------------------------------------


def runs_of(store: Store, figures, *, seeds=(0, 1, 2)) -> None:
    """{(loss, recipe): {calibrator: (accuracy, nll, ece)}}, a little apart over seeds."""
    for (loss, recipe), by_calibrator in figures.items():
        for seed in seeds:
            spec = Spec(Config(loss=loss, recipe=recipe, seed=seed, device="cpu"))
            rows = []
            for calibrator, values in by_calibrator.items():
                part = "validation" if calibrator in ("none", "mac_cal_head") else CROSSFIT
                for name, value in zip(("accuracy", "nll", "ece"), values, strict=True):
                    shaken = value * (1 + 0.001 * seed)
                    rows.append(
                        make_row(spec, part=part, calibrator=calibrator, metric=name, value=shaken)
                    )
                    rows.append(
                        make_row(
                            spec, part="test", calibrator=calibrator, metric=name, value=2 * shaken
                        )
                    )
                    if part == CROSSFIT:  # figures on its own rows: too good, not to be used
                        rows.append(
                            make_row(
                                spec,
                                part="validation",
                                calibrator=calibrator,
                                metric=name,
                                value=0.0 if name == "ece" else value,
                            )
                        )
            store.add(spec.key, rows)


FIGURES = {
    ("cross_entropy", "standard"): {"none": (0.93, 0.30, 0.04), "temperature": (0.93, 0.24, 0.012)},
    ("acls(margin=6)", "standard"): {"none": (0.93, 0.25, 0.02), "isotonic": (0.93, 0.26, 0.011)},
    ("cross_entropy", "mixup"): {"none": (0.928, 0.2, 0.05), "temperature": (0.928, 0.19, 0.008)},
    ("focal", "standard"): {"none": (0.92, 0.2, 0.001)},  # 1% of accuracy lost
    ("mmce", "standard"): {"mac_cal_head": (0.93, 0.22, 0.03)},
}


def test_the_best_combination_keeps_accuracy_and_is_judged_on_other_rows(tmp_path):
    runs_of(Store(tmp_path / "store"), FIGURES)
    (path,) = combine.choose_combinations(tmp_path)
    choice = read_choice(path)
    assert choice is not None
    chosen = choice["chosen"]
    assert (chosen["settings"]["recipe"], chosen["calibrator"]) == ("mixup", "temperature")
    assert chosen["means"]["ece"] == pytest.approx(0.008 * 1.001)
    assert len(choice["candidates"]) == 8
    assert "test" not in json.dumps(choice["candidates"])


def test_runs_that_hold_out_their_own_rows_are_candidates_beside_those_that_share_them(tmp_path):
    """Seed 0 is of both, and neither takes a seed of the other."""
    store = Store(tmp_path / "store")
    runs_of(store, FIGURES)
    runs_of(store, {("cross_entropy", "plp"): {"temperature": (0.93, 0.2, 0.004)}}, seeds=(0,))
    for seed in (1, 2):
        spec = Spec(
            Config(loss="cross_entropy", recipe="plp", seed=seed, split_seed=seed, device="cpu")
        )
        values = {"accuracy": 0.93, "nll": 0.2, "ece": 0.004}
        row = {"part": CROSSFIT, "calibrator": "temperature"}
        store.add(spec.key, [make_row(spec, **row, metric=k, value=v) for k, v in values.items()])
    (path,) = combine.choose_combinations(tmp_path)
    choice = read_choice(path)
    assert choice is not None
    assert (choice["chosen"]["settings"]["recipe"], len(choice["chosen"]["keys"])) == ("plp", 3)
    assert len(choice["candidates"]) == 8 + 1


def test_more_seeds_of_cross_entropy_alone_leave_nothing_else_out(tmp_path):
    store = Store(tmp_path / "store")
    runs_of(store, FIGURES)
    good = (0.99, 0.1, 0.0)  # which would rule all others out
    after = ("temperature", "vector", "isotonic", "beta", "histogram", "spline")
    more = {("cross_entropy", "standard"): dict.fromkeys(("none", *after), good)}
    runs_of(store, more, seeds=(3, 4))
    runs_of(store, {("focal", "standard"): {"none": (0.92, 0.2, 0.001)}}, seeds=(3, 4))
    (path,) = combine.choose_combinations(tmp_path)
    choice = read_choice(path)
    assert choice is not None
    assert choice["chosen"]["settings"]["recipe"] == "mixup"
    assert sorted(choice["plain"]["keys"]) == ["0", "1", "2"]
    assert choice["plain"]["means"]["accuracy"] == pytest.approx(0.93 * 1.001)
    assert set(combine_report.report_choice(path, store, rival)["seeds"]) == {3}


@pytest.mark.parametrize("split", [lambda seed: 7, lambda seed: seed])
def test_every_seed_counts_whichever_rows_are_held_out(tmp_path, split):
    store = Store(tmp_path / "store")
    by_calibrator = {
        "none": [0.05, 0.05, 0.05],
        "temperature": [0.001, 0.03, 0.03],
        "vector": [0.01] * 3,
    }
    for calibrator, errors in by_calibrator.items():
        for seed, error in enumerate(errors):
            spec = Spec(Config(seed=seed, split_seed=split(seed), device="cpu"))
            part = "validation" if calibrator == "none" else CROSSFIT
            values = {"accuracy": 0.9, "nll": 0.2, "ece": error}
            rows = [
                make_row(spec, part=part, calibrator=calibrator, metric=k, value=v)
                for k, v in values.items()
            ]
            store.add(spec.key, rows)
    (path,) = combine.choose_combinations(tmp_path)
    choice = read_choice(path)
    assert choice is not None
    assert (choice["chosen"]["calibrator"], len(choice["chosen"]["keys"])) == ("vector", 3)
    assert len(choice["candidates"]) == 3


def test_ties_within_the_error_go_to_the_lower_nll(tmp_path):
    def make_combination(calibrator, ece, nll):
        seeds = range(3)
        return combine.Combination(
            {**dict.fromkeys(combine.VARIED), **combine.PLAIN},
            calibrator,
            {seed: f"{calibrator}{seed}" for seed in seeds},
            dict.fromkeys(seeds, 0.9),
            dict.fromkeys(seeds, nll),
            dict(zip(seeds, ece, strict=True)),
        )

    plain = make_combination("none", (0.05, 0.05, 0.05), 0.5)
    lowest = make_combination("a", (0.010, 0.010, 0.010), 0.3)
    tied = make_combination("b", (0.008, 0.012, 0.011), 0.2)  # 0.0003 more, with an error of 0.0012
    apart = make_combination("c", (0.012, 0.012, 0.012), 0.1)  # more for certain
    assert combine.choose_best([plain, lowest, tied, apart])[0] is tied
    few = combine.Combination(
        **{
            **lowest.__dict__,
            "calibrator": "d",
            "keys": {0: "k"},
            "ece": {0: 0.0},
            "nll": {0: 0.0},
            "accuracy": {0: 1.0},
        }
    )
    assert combine.choose_best([plain, lowest, few])[0] is lowest
    with pytest.raises(InputError, match="cross_entropy"):
        combine.choose_best([lowest])


def rival(settings, calibrator):
    """Name what acls and sb_ece say of themselves as rivals."""
    named = [name for name in ("acls", "sb_ece") if name in settings["loss"]]
    return named[0] if named and calibrator == "none" else None


def test_the_report_reads_the_test_of_what_was_chosen_and_of_rivals(tmp_path):
    store = Store(tmp_path / "store")
    runs_of(store, FIGURES)
    (path,) = combine.choose_combinations(tmp_path)
    table = combine_report.report_choice(path, store, rival).set_index("who")
    assert table.loc["chosen", "ece"] == pytest.approx(2 * 0.008 * 1.001)
    assert table.loc["chosen", "seeds"] == 3
    assert table.loc["cross_entropy", "calibrator"] == "none"
    assert table.loc["acls", "ece"] == pytest.approx(2 * 0.02 * 1.001)
    assert table.loc["acls", "ece_error"] == pytest.approx(
        float(np.std([0.04, 0.04 * 1.001, 0.04 * 1.002], ddof=1) / 3**0.5)
    )
    assert "focal" not in set(table["loss"])


def test_few_confidences_are_a_choice_apart(tmp_path):
    """Chance leaves less of an ECE to fewer confidences: they would always be the lowest."""
    store = Store(tmp_path / "store")
    levels = {"levels": (0.93, 0.21, 0.004), "levels(num_levels=3)": (0.93, 0.25, 0.002)}
    runs_of(store, {**FIGURES, ("cross_entropy", "plp"): levels})
    (path,) = combine.choose_combinations(tmp_path)
    choice = read_choice(path)
    assert (choice["chosen"]["calibrator"], choice["few"]["calibrator"]) == (
        "temperature",
        "levels(num_levels=3)",
    )
    table = combine_report.report_choice(path, store, rival)
    rows = ["chosen", "chosen by NLL", "chosen, few confidences", "cross_entropy"]
    assert table["who"].tolist()[:4] == rows
    choice = combine_report.describe_choice(table)
    assert "The ECE of the choice, 1.60%" in choice  # not of the few
    named = "With few confidences, cross_entropy, plp, then levels(num_levels=3): 0.40%"
    assert choice.endswith(f"{named}.")
    head = replace(combine.list_combinations(ValidationRows(store)).popitem()[1][0], calibrator="x")
    assert replace(head, calibrator="mac_cal_head+levels(num_levels=3)").says_few
    assert not replace(head, calibrator="mac_cal_head+temperature").says_few
    table["chance_ece"] = 0.0026
    assert combine_report.describe_choice(table).endswith(f"{named}, by chance 0.26%.")


def test_the_choice_by_nll_keeps_accuracy_and_is_told_beside(tmp_path):
    store = Store(tmp_path / "store")
    more = {
        ("mdca", "standard"): {"none": (0.93, 0.1, 0.02), "levels": (0.93, 0.05, 0.001)},
        ("mmce", "mixup"): {"none": (0.9, 0.01, 0.02)},  # accuracy lost
    }
    runs_of(store, {**FIGURES, **more})
    (path,) = combine.choose_combinations(tmp_path)
    choice = read_choice(path)
    assert (choice["by_nll"]["settings"]["loss"], choice["by_nll"]["calibrator"]) == (
        "mdca",
        "none",
    )
    assert choice["chosen"]["calibrator"] == "temperature"
    assert "Chosen by NLL, mdca: 4.00%." in combine_report.describe_choice(
        combine_report.report_choice(path, store, rival)
    )


def test_a_rival_that_has_not_learned_is_left_out(tmp_path):
    store = Store(tmp_path / "store")
    guess = {("brier+sb_ece", "standard"): {"none": (0.46, 4.6, 0.0001)}}
    runs_of(store, {**FIGURES, **guess})
    (path,) = combine.choose_combinations(tmp_path)
    assert "brier+sb_ece" not in set(combine_report.report_choice(path, store, rival)["loss"])
    able = {("focal+sb_ece", "standard"): {"none": (0.47, 4.6, 0.0001)}}
    runs_of(store, able)
    (path,) = combine.choose_combinations(tmp_path)
    assert "focal+sb_ece" in set(combine_report.report_choice(path, store, rival)["loss"])


def test_poisoned_test_rows_leave_the_combination_as_it_is(tmp_path):
    runs_of(Store(tmp_path / "a" / "store"), FIGURES)
    kept = Store(tmp_path / "a" / "store").frame()
    kept.loc[kept["part"] == "test", "value"] = math.nan
    for key, rows in kept.groupby("key"):
        Store(tmp_path / "b" / "store").add(str(key), rows.to_dict("records"))
    (first,), (second,) = (
        combine.choose_combinations(tmp_path / "a"),
        combine.choose_combinations(tmp_path / "b"),
    )
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_more_runs_are_another_question(tmp_path):
    store = Store(tmp_path / "store")
    runs_of(store, FIGURES)
    (first,) = combine.choose_combinations(tmp_path)
    assert combine.choose_combinations(tmp_path) == [first]
    runs_of(store, {("mdca", "standard"): {"none": (0.93, 0.1, 0.002)}})
    (second,) = combine.choose_combinations(tmp_path)
    assert second != first
    assert read_choice(second)["chosen"]["settings"]["loss"] == "mdca"


def test_path_of_a_choice_depends_on_the_question_alone(tmp_path):
    path = choice_path(tmp_path, "x", {"a": 1, "b": 2})
    assert path == choice_path(tmp_path, "x", {"b": 2, "a": 1})
    assert path != choice_path(tmp_path, "x", {"a": 1, "b": 3})
    assert isinstance(path, Path)
