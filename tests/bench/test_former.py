"""Defaults that changed: stored runs keep their keys and meaning, suites get the current ones."""

from __future__ import annotations

import inspect

import pytest

from calibrant.bench.calibrator_text import ALL, expand_calibrators, make
from calibrant.bench.run.runner import run_suite
from calibrant.bench.run.worker import Bench
from calibrant.bench.suite import former
from calibrant.bench.suite.key import key_of
from calibrant.bench.suite.spec import Spec
from calibrant.bench.suite.suite import Suite
from calibrant.bench.tables.results import collect_results
from calibrant.bench.tables.tabulate import table
from calibrant.calibrators.registry import kind_of
from calibrant.core.errors import InputError
from calibrant.core.method_text import edit_options, edit_terms
from calibrant.losses.base import SecondaryLoss
from calibrant.losses.registry import LOSSES
from calibrant.training.config import Config
from calibrant.training.run import Run

DIGITS = "defaults: {data: digits, model: mlp, epochs: 1, batch_size: 400, device: cpu}"


@pytest.mark.parametrize(
    ("text", "drop", "add", "expected"),
    [
        ("r_aurc", (), {"a": None}, "r_aurc(a=None)"),
        ("r_aurc()", (), {"a": 1}, "r_aurc(a=1)"),
        ("r(b=.5,c='x')", (), {"a": "word"}, "r(b=.5,c='x', a=word)"),
        ("r(b=.5,c='x')", ("b",), {}, "r(c='x')"),
        ("r(b=.5,c='x')", ("c",), {}, "r(b=.5)"),
        ("r( b=.5 , c='é)', d=1 )", ("c",), {}, "r( b=.5, d=1 )"),
        ("r(b=[1,\n 2],c=3)", ("c",), {}, "r(b=[1,\n 2])"),
        (" r(b=1)", ("b",), {}, "r"),
        ("r(b=1)", ("other",), {}, "r(b=1)"),
    ],
)
def test_options_are_edited_and_the_rest_stays_as_written(text, drop, add, expected):
    assert edit_options(text, drop=drop, add=add) == expected


def test_weights_of_parts_are_edited():
    text = "focal(gamma = 3) + 1.0 * sb_ece(num_bins=9)"
    assert edit_terms(text, lambda term: ((), {})) == text
    bare = edit_terms(text, lambda term: (("beta",), {}))
    assert bare == "focal(gamma = 3) + sb_ece(num_bins=9)"
    weigh = {"sb_ece": {"beta": 0.1, "order": 1}}
    weighed = edit_terms(bare, lambda term: ((), weigh.get(term.name, {})))
    assert weighed == "focal(gamma = 3) + 0.1*sb_ece(num_bins=9, order=1)"


def test_current_defaults_are_those_of_the_library():
    for name, changes in former.OF_LOSSES.items():
        loss = LOSSES.load(name)
        for one in changes:
            if one.option == "beta":
                assert issubclass(loss, SecondaryLoss)
                assert loss.beta == one.current
            else:
                assert inspect.signature(loss).parameters[one.option].default == one.current
    parameters = inspect.signature(kind_of("mac_cal_head")).parameters
    for one in (*former.OF_RECIPES["mac_cal"], *former.OF_CALIBRATORS["mac_cal_head"]):
        assert parameters[one.option].default == one.current


def test_a_suite_that_omits_an_option_has_the_current_default_and_a_new_key(tmp_path):
    suite = Suite.parse(
        f"""
        name: raced
        {DIGITS}
        methods:
          usual: {{recipe: mac_cal, recipe_options: {{epochs: 4}}}}
          raced: {{recipe: mac_cal, recipe_options: {{epochs: 4, race: true}}}}
          whole: {{recipe: mac_cal, recipe_options: {{epochs: 4, race: false}}}}
        """
    )
    usual, raced, whole = (spec for _, spec in suite.specs)
    assert usual.key == whole.key != raced.key
    stored = Spec(usual.config.changed(recipe_options={"epochs": 4}))
    assert raced.key == stored.key == key_of(raced.trained)
    run_suite(suite, tmp_path)
    options = [Run(Bench(tmp_path).folder(one.key)).config for one in (usual, raced)]
    assert [one.recipe_options["race"] for one in options] == [False, True]
    assert [key_of(one) for one in options] == [usual.key, raced.key]
    frame = Bench(tmp_path).store.frame()
    text = table(suite, frame, ["ece"]).to_markdown()
    assert "| raced (former: race=True) |" in text
    assert "| usual |" in text
    assert "| whole |" in text


def test_losses_of_suites_have_the_current_default_and_stored_ones_the_former():
    suite = Suite.parse(
        """
        methods:
          omitted: {loss: "r_aurc(csf='msp', lam=.5)"}
          current: {loss: "r_aurc(csf='msp', lam=.5, reference_batch=128)"}
          former: {loss: "r_aurc(csf='msp', lam=.5, reference_batch=None)"}
          hard: {loss: r_aurc(hard_rank=True)}
        """
    )
    omitted, current, before, hard = (spec for _, spec in suite.specs)
    assert omitted.key == current.key != before.key
    assert before.config.loss == "r_aurc(csf='msp', lam=.5)"  # as stored, to the letter
    assert before.key == key_of(Config(loss="r_aurc(csf='msp', lam=.5)")) == key_of(before.trained)
    assert before.trained.loss == "r_aurc(csf='msp', lam=.5, reference_batch=None)"
    assert former.describe_former(before.config) == "reference_batch=None"
    assert hard.config.loss == hard.trained.loss == "r_aurc(hard_rank=True)"


@pytest.mark.parametrize("before", ["", "focal(gamma=3)+", "brier + "])
def test_default_weights_of_suites_are_current_and_stored_ones_former(before):
    text = "methods: {{omitted: {{loss: {0}sb_ece}}, former: {{loss: {0}1*sb_ece}}}}"
    (_, omitted), (_, named) = Suite.parse(text.format(before)).specs
    assert omitted.config.loss == omitted.trained.loss == f"{before}0.1*sb_ece"
    assert named.config.loss == f"{before}sb_ece"
    assert named.key == key_of(Config(loss=f"{before}sb_ece"))
    assert named.trained.loss == f"{before}1.0*sb_ece"
    assert former.describe_former(named.config) == "1.0*sb_ece"


def test_an_option_without_effect_leaves_the_key_alone():
    text = "methods: {{one: {{recipe: mac_cal, recipe_options: {{{}}}}}}}"
    for options in ("gamma: 0.9", "schedule: fixed"):
        ((_, spec),) = Suite.parse(text.format(options)).specs
        assert "race" not in spec.config.recipe_options


def test_a_run_begun_before_a_default_changed_goes_on(tmp_path):
    from calibrant.training import train

    suite = Suite.parse(
        """
        name: raced
        defaults: {data: digits, model: mlp, epochs: 3, batch_size: 400, device: cpu}
        methods: {mac_cal: {recipe: mac_cal, recipe_options: {epochs: 3, race: true}}}
        """
    )
    ((_, spec),) = suite.specs
    folder = Bench(tmp_path).folder(spec.key)

    class Stop(Exception):
        pass

    def stop(line):
        if line["epoch"] == 2:
            raise Stop

    with pytest.raises(Stop):
        train(spec.config, folder, on_epoch=stop)
    assert "race" not in Run(folder).config.recipe_options
    made = run_suite(suite, tmp_path)
    assert made.done == [spec.key]
    assert Run(folder).config.recipe_options["race"] is True


def test_members_of_an_ensemble_mean_what_a_run_of_theirs_does():
    def config(options):
        return Config(recipe="deep_ensemble", recipe_options=options)

    bare = {"members": 2, "recipe": "mac_cal"}
    told = {"members": 2, "recipe": "mac_cal", "recipe_options": {"race": True}}
    assert former.train_settings(config(bare)).recipe_options == told
    assert former.key_settings(config(told)).recipe_options == bare
    current = {**told, "recipe_options": {"race": False}}
    assert former.store_settings(config(bare)).recipe_options == current
    assert former.describe_former(config(bare)) == "race=True"
    assert former.describe_former(config(current)) == ""
    other = config({"members": 2, "recipe": "plp", "recipe_options": {}})
    assert former.train_settings(other) == former.store_settings(other) == other


def test_second_stages_of_suites_and_stores_differ_in_what_they_omit():
    suite = Suite.parse(
        """
        methods: {one: {}}
        after:
          - mac_cal_head: {then: [temperature]}
          - mac_cal_head: {race: true, gamma: 0.9}
          - shift: {calibrators: [mac_cal_head, mac_cal_head(race=true)+temperature]}
        """
    )
    ((_, spec),) = suite.specs
    assert spec.after == (
        ("mac_cal_head", '{"race":false,"then":["temperature"]}'),
        ("mac_cal_head", '{"gamma":0.9}'),
        ("shift", '{"calibrators":["mac_cal_head(race=False)","mac_cal_head+temperature"]}'),
    )
    assert make("mac_cal_head").race
    assert not make("mac_cal_head(race=False)").race


def test_soft_binned_temperatures_are_exact_in_suites_and_bounded_where_stored():
    suite = Suite.parse(
        """
        methods: {one: {}}
        calibrators:
          - temperature
          - temperature(objective=sb_ece)
          - temperature(objective=sb_ece, max_likelihood_loss=0.01)
          - temperature(objective=ece)
        after: [crossfit, {shift: {calibrators: [argmax_preserving(former=true)]}}]
        """
    )
    ((_, spec),) = suite.specs
    assert spec.calibrators == (
        "temperature",
        "temperature(max_likelihood_loss=None,objective=sb_ece)",
        "temperature(objective=sb_ece)",
        "temperature(objective=ece)",
    )
    assert spec.after == (
        ("crossfit", '{"calibrators":["argmax_preserving(former=False)"]}'),
        ("shift", '{"calibrators":["argmax_preserving"]}'),
    )
    options = [make(text).objective_options for text in spec.calibrators]
    bounds = [one and one["max_likelihood_loss"] for one in options]
    assert bounds == [None, None, 0.01, None]
    ((_, bare),) = Suite.parse(
        "methods: {one: {}}\nafter: [crossfit: {calibrators: [argmax_preserving(former=true)]}]"
    ).specs
    assert bare.after == (("crossfit", "{}"),)  # as stored
    former_set, current_set = (
        expand_calibrators([ALL]),
        expand_calibrators([f"{ALL}(former=False)"]),
    )
    assert [one for one in former_set if one not in current_set] == [
        "temperature(objective=sb_ece)"
    ]
    assert len(former_set) == len(current_set)
    with pytest.raises(InputError, match="former=true or former=false alone"):
        expand_calibrators([f"{ALL}(colour=red)"])


def test_stored_calibrators_are_found_by_either_name_and_shown_as_suites_write_them():
    import pandas as pd

    suite = Suite.parse(f"{DIGITS}\nmethods: {{one: {{}}}}\nafter: [mac_cal_head]\n")
    ((_, spec),) = suite.specs
    base = {"key": spec.key, "part": "test", "metric": "ece", "seconds": 0.0, "machine": ""}
    base |= {"model": "mlp"}
    names = {"none": 0.3, "mac_cal_head": 0.2, "mac_cal_head(race=False)": 0.1}
    frame = pd.DataFrame([{**base, "calibrator": name, "value": v} for name, v in names.items()])
    found = collect_results(suite, frame)
    (place,) = found.planned
    assert found.values("ece", calibrator="mac_cal_head")[place] == {0: 0.1}  # what it asks for
    assert found.values("ece", calibrator="mac_cal_head", exact=True)[place] == {0: 0.2}
    names = ["none", "mac_cal_head", "mac_cal_head(race=true)"]
    text = table(suite, frame, ["ece"], calibrators=names, down="calibrator")
    assert [name for name, _ in text.blocks[0].shown] == [
        "none",
        "mac_cal_head",
        "mac_cal_head(race=True)",
    ]
