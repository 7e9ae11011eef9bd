"""A recipe with its options in its text is the recipe with its options beside it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from calibrant.bench import Suite
from calibrant.bench.suite.key import key_of
from calibrant.core.errors import InputError
from calibrant.training import Config

SUITE = """
defaults: {data: digits, model: mlp, epochs: 2}
methods:
  one: {SETTINGS}
"""
SAME = [
    ("mixup(alpha=0.4)", {"recipe": "mixup", "recipe_options": {"alpha": 0.4}}),
    ("mixup()", {"recipe": "mixup"}),
    ("mac_cal(race=False)", {"recipe": "mac_cal", "recipe_options": {"race": False}}),
    ("mac_cal(race=false)", {"recipe": "mac_cal", "recipe_options": {"race": False}}),
    ("mac_cal(race=False)", {"recipe": "mac_cal"}),  # what a suite means anyway
    (
        "interleaved(interleave=auto, held_out=0.2)",
        {"recipe": "interleaved", "recipe_options": {"interleave": "auto", "held_out": 0.2}},
    ),
    (
        "deep_ensemble(members=3, recipe=plp)",
        {"recipe": "deep_ensemble", "recipe_options": {"members": 3, "recipe": "plp"}},
    ),
    (
        "deep_ensemble(members=3, recipe=mac_cal(race=False))",
        {"recipe": "deep_ensemble", "recipe_options": {"members": 3, "recipe": "mac_cal"}},
    ),
    (
        "deep_ensemble(members=3, recipe=mixup(alpha=0.4))",
        {
            "recipe": "deep_ensemble",
            "recipe_options": {
                "members": 3,
                "recipe": "mixup",
                "recipe_options": {"alpha": 0.4},
            },
        },
    ),
]


def suite(**settings):
    return Suite.parse(SUITE.replace("{SETTINGS}", json.dumps(settings)))


@pytest.mark.parametrize(("text", "long"), SAME)
def test_the_same_run_either_way(text, long):
    loss = {"loss": "cross_entropy+s_avuc"}
    short, spelled_out = suite(recipe=text, **loss), suite(**long, **loss)
    assert short.runs[0].key == spelled_out.runs[0].key
    assert short.specs == spelled_out.specs
    config = short.runs[0].config
    assert "(" not in config.recipe + str(config.recipe_options.get("recipe"))


@pytest.mark.parametrize(
    ("text", "long"),
    [one for one in SAME if ("race" in one[0]) == ("race" in str(one[1]))],
    ids=lambda one: str(one)[:20],
)
def test_settings_of_a_training_are_the_same_either_way(text, long, tmp_path):
    assert Config(recipe=text) == Config(**long)
    assert key_of(Config(recipe=text)) == key_of(Config(**long))
    path = tmp_path / "settings.yaml"
    path.write_text(json.dumps({"recipe": text}))
    assert Config.read(path) == Config(**long)
    path.write_text(Config(recipe=text).to_yaml())
    assert Config.read(path) == Config(**long)


def test_options_of_both_come_together():
    config = Config(recipe="deep_ensemble(members=3)", recipe_options={"recipe": "plp"})
    assert config.recipe_options == {"members": 3, "recipe": "plp"}


@pytest.mark.parametrize("alpha", [0.4, 0.2])
def test_one_option_in_both_is_an_error_whatever_it_says(alpha):
    message = r"alpha is given twice, in 'mixup\(alpha=0.4\)' and in recipe_options \(0"
    with pytest.raises(InputError, match=message):
        Config(recipe="mixup(alpha=0.4)", recipe_options={"alpha": alpha})
    with pytest.raises(InputError, match=message):
        suite(recipe="mixup(alpha=0.4)", recipe_options={"alpha": alpha})
    options = {"recipe": "mixup(alpha=0.4)", "recipe_options": {"alpha": alpha}}
    with pytest.raises(InputError, match=message):
        Config(recipe="deep_ensemble", recipe_options=options)


@pytest.mark.parametrize(
    "text",
    [
        "mixup(0.4)",
        "mixup(alpha=0.4",
        "mixup(alpha=0.4, alpha=0.2)",
        "mixup(**{'alpha': 0.4})",
        "mixup(alpha=open('x'))",
        "mixup(alpha=0.4)(1)",
        "recipes.mixup(alpha=0.4)",
        "deep_ensemble(recipe=mixup(0.4))",
    ],
)
def test_what_is_no_recipes_text_is_an_error(text):
    with pytest.raises(InputError, match=r"a recipe is written name\(option=value, ...\)"):
        Config(recipe=text)


def test_an_option_it_does_not_have_is_an_error_before_the_first_run():
    with pytest.raises(InputError, match="has no option 'beta'"):
        suite(recipe="mixup(beta=0.4)")
    with pytest.raises(InputError, match="no recipe is called 'mixin'"):
        suite(recipe="mixin(alpha=0.4)")


def test_a_text_in_the_place_of_another_recipe_brings_all_its_options():
    before = Config(recipe="mixup", recipe_options={"alpha": 0.4})
    after = before.changed(recipe="mixup(alpha=0.2)")
    assert after.recipe_options == {"alpha": 0.2}
    assert before.changed(recipe="deep_ensemble(members=3)").recipe_options == {"members": 3}
    assert before.changed(recipe_options={"alpha": 0.1}).recipe_options == {"alpha": 0.1}
    with pytest.raises(InputError, match="given twice"):
        before.changed(recipe="mixup(alpha=0.2)", recipe_options={"alpha": 0.2})


def test_a_methods_recipe_takes_the_place_of_the_defaults_options_and_all():
    parsed = Suite.parse(
        "defaults: {recipe: mixup(alpha=0.4)}\nmethods: {mixed: {}, peeled: {recipe: plp}}\n"
    )
    configs = {method: spec.config for method, spec in parsed.specs}
    assert configs["mixed"].recipe_options == {"alpha": 0.4}
    assert configs["peeled"] == Config(recipe="plp")


def test_texts_are_values_of_a_grid_and_of_a_search():
    parsed = Suite.parse(
        "grid: {recipe: [mixup(alpha=0.2), mixup(alpha=0.4), plp]}\nmethods: {one: {}}\n"
        "tune: {settings: [{name: recipe, values: [mixup(alpha=0.1), standard()]}]}\n"
    )
    options = [spec.config.recipe_options for spec in parsed.runs]
    assert options == [{"alpha": 0.2}, {"alpha": 0.4}, {}]
    assert len({spec.key for spec in parsed.runs}) == 3
    with pytest.raises(InputError, match="has no option 'beta'"):
        Suite.parse(parsed.text.replace("mixup(alpha=0.1)", "mixup(beta=0.1)"))


@pytest.mark.parametrize(
    ("condition", "held"),
    [
        ("recipe: mixup", ["short", "long"]),
        ("recipe: [plp, mixup]", ["short", "long", "other"]),
        ("recipe: mixup(alpha=0.4)", ["short", "long"]),
        ("recipe: mixup(alpha=0.2)", []),
        ("recipe_options: {alpha: 0.4}", ["short", "long"]),
        ("recipe: standard", ["plain"]),
        ("recipe: mixup, recipe_options: {alpha: 0.2}", []),
    ],
)
def test_exceptions_go_by_the_recipe_however_it_is_written(condition, held):
    parsed = Suite.parse(
        "methods:\n  short: {recipe: mixup(alpha=0.4)}\n"
        "  long: {recipe: mixup, recipe_options: {alpha: 0.4}}\n"
        "  other: {recipe: plp}\n  plain: {}\n"
        f"where: [{{if: {{{condition}}}, set: {{epochs: 7}}}}]\n"
    )
    assert [method for method, spec in parsed.specs if spec.config.epochs == 7] == held


def test_the_command_takes_the_text(tmp_path):
    from calibrant.cli import app

    arguments = ["--recipe", "mixup(alpha=0.4)", "--epochs", "1", "--device", "cpu", "--no-report"]
    result = CliRunner().invoke(app, ["train", *arguments, "-o", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    config = Config.read(tmp_path / "run" / "config.yaml")
    assert (config.recipe, config.recipe_options) == ("mixup", {"alpha": 0.4})
    arguments = ["--recipe", "mixup(alpha=0.4)", "--set", "recipe_options={alpha: 0.2}"]
    result = CliRunner().invoke(app, ["train", *arguments, "-o", str(tmp_path / "other")])
    assert result.exit_code != 0
    assert "alpha is given twice" in result.output
