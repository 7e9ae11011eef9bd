"""A suite's plugins: methods of one's own beside the built-in ones, known by their source."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calibrant import losses
from calibrant.bench import Store, Suite, run_suite, table
from calibrant.bench.calibrator_text import expand_calibrators, list_preserving, make
from calibrant.bench.run.status import status
from calibrant.bench.select.choices import choice_path
from calibrant.bench.select.tune import tune_suite
from calibrant.bench.store.transport import merge, pack
from calibrant.bench.suite import sources
from calibrant.bench.suite.key import key_of
from calibrant.bench.suite.lookup import SHIPPED
from calibrant.core.errors import InputError
from calibrant.core.plugins import forget_plugins, list_loaded, receive_plugins
from calibrant.training import Config, recipes

METHODS = '''
"""Methods of a researcher's own."""

import torch

from calibrant import calibrators, losses, metrics, models
from calibrant.calibrators.base import Calibrator
from calibrant.metrics.base import Measure
from calibrant.metrics.means import accuracy_measure
from calibrant.models.small import MLP
from calibrant.training import recipes
from calibrant.training.recipes import Recipe


@losses.register
class MeanGap(losses.SecondaryLoss):
    """The gap of mean confidence and accuracy."""

    name = "mean_gap"

    def __init__(self, *, power=1.0, **options):
        super().__init__(**options)
        self.power = power

    def forward(self, input, target):
        confidence, predicted = input.softmax(1).max(1)
        return (confidence.mean() - (predicted == target).float().mean()).abs() ** self.power


@recipes.register
class Twice(Recipe):
    """Every row twice an epoch."""

    name = "twice"

    def passes(self, job):
        return [*super().passes(job), *super().passes(job)]


@calibrators.register
class Half(Calibrator):
    """Half of every logit."""

    name = "half"
    preserves_predictions = True

    def __init__(self, *, factor=0.5, from_logits=True):
        super().__init__(from_logits=from_logits)
        self.factor = factor

    def _fit(self, logits, target):
        pass

    def _map(self, logits):
        return logits * self.factor


@metrics.register(name="my_error", label="My error")
def error_measure():
    right = accuracy_measure()
    return Measure("my_error", right.states, lambda *states: 1 - right.compute(*states))


@models.register
def tiny_net(num_classes, *, channels):
    return MLP(num_classes, inputs=64 * channels, hidden=(8,))
'''
SUITE = """
name: own
plugins: [my_methods.py]
defaults: {data: digits, model: mlp, epochs: 1, batch_size: 400, device: cpu}
seeds: [0]
methods:
  cross_entropy: {}
  mean_gap: {loss: 0.5*mean_gap(power=2.0)}
baseline: cross_entropy
metrics: [accuracy, ece]
"""
PLAIN = SUITE.replace("plugins: [my_methods.py]\n", "").replace(
    "  mean_gap: {loss: 0.5*mean_gap(power=2.0)}\n", ""
)


@pytest.fixture(autouse=True)
def _no_plugins_before_and_after():
    forget_plugins()
    yield
    forget_plugins()


@pytest.fixture
def folder(tmp_path):
    return put(tmp_path / "mine")


def put(folder, suite=SUITE, methods=METHODS, name="my_methods.py"):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text(methods)
    (folder / "own.yaml").write_text(suite)
    return folder


def keys(suite):
    return {method: spec.key for method, spec in suite.specs}


def edited(folder, methods=METHODS):
    """The same suite, with a plugin of the same length that does something else."""
    other = methods.replace("input.softmax(1).max(1)", "input.softmax(1).min(1)")
    assert len(other) == len(methods)
    (folder / "my_methods.py").write_text(other)
    return Suite.read(folder / "own.yaml")


def test_a_loss_of_ones_own_runs_beside_a_built_in_one(folder, tmp_path):
    suite, out = Suite.read(folder / "own.yaml"), tmp_path / "out"
    summary = run_suite(suite, out)
    assert summary.done == [spec.key for spec in suite.runs]
    frame = Store(out / "store").frame()
    assert set(frame["loss"]) == {"cross_entropy", "0.5*mean_gap(power=2.0)"}
    assert "| mean_gap |" in table(suite, frame).to_markdown()
    assert run_suite(suite, out).before == summary.done


def test_every_kind_can_be_ones_own(folder, tmp_path):
    text = SUITE.replace("loss: 0.5*mean_gap(power=2.0)", "recipe: twice, model: tiny_net")
    text = text.replace("[accuracy, ece]", "[my_error, accuracy]")
    text += "calibrators: [half, half(factor=0.25)]\n"
    text += "after: [{metrics: {names: [my_error], calibrators: [half]}}]\n"
    put(folder, text)
    suite, out = Suite.read(folder / "own.yaml"), tmp_path / "out"
    run_suite(suite, out)
    frame = Store(out / "store").frame()
    own = frame[(frame["key"] == keys(suite)["mean_gap"]) & (frame["part"] == "test")]
    source = sources.source_of("half")
    assert {f"half(source={source})", f"half(factor=0.25,source={source})"} <= set(
        own["calibrator"]
    )
    value = own.set_index(["calibrator", "metric"])["value"]
    assert value["none", f"my_error(source={source})"] == pytest.approx(
        1 - value["none", "accuracy"]
    )
    assert value[f"half(source={source})", "ece"] != value["none", "ece"]
    assert (frame[frame["key"] == keys(suite)["mean_gap"]]["model"] == "tiny_net").all()
    told = table(suite, frame, ["my_error", "nll"], calibrators=["none", "half"])
    assert "| My error ↓ | NLL ↓ | NLL, after half ↓ |" in told.to_markdown()
    assert f",my_error(source={source}),none,test," in told.to_csv()
    assert f",nll,half(source={source}),test," in told.to_csv()
    rows = table(suite, frame, ["nll"], methods=["mean_gap"]).to_markdown()
    assert "| half(factor=0.25) |" in rows


@pytest.mark.parametrize("recipe", ["mixup", "cutmix", "cape"])
def test_a_loss_that_takes_labels_alone_is_refused_where_targets_are_mixed(folder, recipe):
    methods = METHODS.replace(
        '    name = "mean_gap"', '    name = "mean_gap"\n    soft_targets = False'
    )
    mixed = SUITE.replace(
        "{loss: 0.5*mean_gap(power=2.0)}", f"{{loss: mean_gap, recipe: {recipe}}}"
    )
    put(folder, mixed, methods)
    with pytest.raises(
        InputError, match=rf"{recipe} gives class prob.*mean_gap takes labels alone"
    ):
        Suite.read(folder / "own.yaml")
    put(folder, SUITE, methods)
    Suite.read(folder / "own.yaml")


def test_a_loss_that_fails_with_mixed_targets_is_told_why(folder, tmp_path):
    put(folder, SUITE.replace("{loss: 0.5*mean_gap(power=2.0)}", "{loss: mean_gap, recipe: mixup}"))
    suite, out = Suite.read(folder / "own.yaml"), tmp_path / "out"
    (key,) = run_suite(suite, out, only=["mean_gap"]).failed
    told = json.loads((out / "failed" / f"{key}.json").read_text())
    assert told["error"] == "InputError"
    assert told["message"].startswith("mean_gap: the target was class probabilities (N, K)")
    assert "RuntimeError: The size of tensor" in told["message"]
    assert "target.argmax(1)" in told["message"]


def test_what_is_suggested_can_be_typed(folder, tmp_path):
    put(folder, SUITE + "calibrators: [half, half(factor=0.25)]\n")
    suite, out = Suite.read(folder / "own.yaml"), tmp_path / "out"
    run_suite(suite, out)
    frame = Store(out / "store").frame()
    with pytest.raises(
        InputError, match=r"Did you mean half\? All: none, half, half\(factor=0.25\)"
    ):
        table(suite, frame, calibrators=["hafl"])
    more = table(suite, frame, ["nll"], tell_more=True).more
    assert more == ("half", "half(factor=0.25)")
    edited(folder)  # the figures of the earlier source have no name that could be asked for
    assert table(Suite.read(folder / "own.yaml"), frame, ["nll"], tell_more=True).more == ()


OF_ROWS = """
import numpy as np
import torch

from calibrant import metrics


@metrics.register(label="Sure rows", better="higher")
def sure(probs, target, *, above=0.5):
    assert isinstance(probs, np.ndarray) and probs.dtype == np.float64
    assert target.shape == probs.shape[:1] and target.dtype == np.int64
    assert np.allclose(probs.sum(1), 1, atol=1e-12)
    probs[:] *= 1 + 0 * target[:, None]  # what is done to them is nobody else's business
    target[:] = target[::-1]
    return (probs.max(1) > above).mean()


@metrics.register
def wrong(probs, target):
    return torch.tensor((probs.argmax(1) != target).mean())
"""


METRIC = """
from calibrant import metrics
def metric(name, function, **options):
    metrics.register(name=name, **options)(function)
"""
NAMES = ("sure", "wrong", "kde_ece(bandwidth=0.1)", "sure(above=0.9)")


def of_rows(folder, methods=OF_ROWS, names=NAMES):
    text = PLAIN.replace("name: own\n", "name: own\nplugins: [my_methods.py]\n")
    text = text.replace("epochs: 1, batch_size: 400", "epochs: 3, batch_size: 50")
    text += f"after: [{{metrics: {{names: {json.dumps(names)}, calibrators: [vector]}}}}]\n"
    put(folder, text, methods)
    return Suite.read(folder / "own.yaml")


def test_a_metric_may_be_a_function_of_all_rows(folder, tmp_path):
    suite, out = of_rows(folder), tmp_path / "out"
    run_suite(suite, out)
    frame = Store(out / "store").frame()
    rows = frame[frame["part"] == "test"]
    value = rows.set_index(["calibrator", "metric"])["value"]
    source = sources.source_of("sure")
    wrong = value["none", f"wrong(source={source})"]
    assert wrong == pytest.approx(1 - value["none", "accuracy"])
    assert value["vector", f"wrong(source={source})"] != wrong
    few = value["none", f"sure(above=0.9,source={source})"]
    assert 0 < few < value["none", f"sure(source={source})"] < 1
    asked = {"calibrators": ["none", "vector"], "down": "method"}
    told = table(suite, frame, ["sure", "wrong"], **asked).to_markdown()
    assert "| Sure rows ↑ | Sure rows, after vector ↑ | wrong ↓ | wrong, after vector ↓ |" in told


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return 1 / 0", "the metric sure, line 4: ZeroDivisionError: division by zero"),
        ("return probs", r"gave ndarray of shape \(\d+, 10\): return one number"),
        ("return float('nan')", "the metric sure gave NaN"),
    ],
)
def test_a_metric_that_fails_costs_no_other_figure(folder, tmp_path, body, says):
    methods = (
        f"from calibrant import metrics\n@metrics.register\ndef sure(probs, target):\n    {body}\n"
    )
    suite, out = of_rows(folder, methods, ["sure"]), tmp_path / "out"
    with pytest.warns(UserWarning, match=says):
        assert run_suite(suite, out).done == [suite.runs[0].key]
    assert "ece" in set(Store(out / "store").frame()["metric"])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("'m', lambda probs: 1.0", "a function of .probs, target.*found one that needs probs"),
        ("'m', lambda a, b, c: 1.0", "that needs a, b, c"),
        ("'m', lambda probs, *, target: 1.0", "that needs probs, target"),
        ("'m', 3.0", "the metric 'm' is a function, found 3.0"),
        ("'m', lambda p, y: 1.0, better='more'", "better is one of lower, higher, neither, found"),
        ("'m', lambda: None, better='lower'", "says which way is better: drop better="),
        ("'m', lambda p, y, source=1: 1.0", "the option 'source' of the metric 'm' is reserved"),
    ],
)
def test_what_is_no_metric_is_said(folder, given, match):
    put(folder, methods=METRIC + f"metric({given})\n")
    with pytest.raises(InputError, match=match):
        Suite.read(folder / "own.yaml")


def test_options_a_metric_of_rows_does_not_have_are_said(folder):
    with pytest.raises(InputError, match="metric 'sure' has no option 'below'"):
        of_rows(folder, names=["sure(below=1)"])


def test_a_run_of_built_in_methods_has_the_key_it_always_had(folder, tmp_path):
    """Plugins in the suite or in the process, whatever they register, are no matter to it."""
    plain = keys(Suite.parse(PLAIN))
    with_own = keys(Suite.read(folder / "own.yaml"))
    assert with_own["cross_entropy"] == plain["cross_entropy"]
    assert keys(Suite.parse(PLAIN)) == plain
    # An option, a method of the suite or another kind that is called as the plugin's loss.
    more = PLAIN.replace("cross_entropy: {}", "mean_gap: {}").replace(
        ": cross_entropy", ": mean_gap"
    )
    assert keys(Suite.parse(more))["mean_gap"] == plain["cross_entropy"]


@pytest.mark.slow
def test_every_published_run_keeps_its_key(folder):
    import pyarrow.parquet as parquet

    Suite.read(folder / "own.yaml")
    files = sorted(
        (Path(__file__).parents[2] / "replication" / "results" / "store").glob("*.parquet")
    )
    found = set()
    for path in files:
        rows = parquet.read_table(path, columns=["key", "config"]).group_by(["key", "config"])
        found |= {(one["key"], one["config"]) for one in rows.aggregate([]).to_pylist()}
    assert len(found) > 300
    for key, config in found:
        settings = json.loads(config)
        logits = settings.pop("logits", None)
        assert key_of(Config.of(settings), logits=logits) == key


def test_another_source_is_another_run_and_only_of_what_uses_it(folder):
    before = keys(Suite.read(folder / "own.yaml"))
    after = keys(edited(folder))
    assert after["cross_entropy"] == before["cross_entropy"]
    assert after["mean_gap"] != before["mean_gap"]
    put(folder)
    assert keys(Suite.read(folder / "own.yaml")) == before


@pytest.mark.parametrize(
    "settings",
    [
        "loss: focal+mean_gap",
        "recipe: twice",
        "recipe: deep_ensemble, recipe_options: {members: 2, recipe: twice}",
        "model: tiny_net",
    ],
)
def test_whatever_a_training_takes_of_a_plugin_is_in_its_key(folder, settings):
    put(folder, SUITE.replace("loss: 0.5*mean_gap(power=2.0)", settings))
    before = keys(Suite.read(folder / "own.yaml"))
    after = keys(edited(folder))
    assert after["mean_gap"] != before["mean_gap"]
    assert after["cross_entropy"] == before["cross_entropy"]


def test_the_edited_source_is_what_runs(folder, tmp_path):
    Suite.read(folder / "own.yaml")
    before = losses.get("mean_gap")
    edited(folder)
    after = losses.get("mean_gap")
    import torch

    logits, target = torch.tensor([[4.0, 0.0, 1.0]]), torch.tensor([0])
    assert before(logits, target) != after(logits, target)
    assert not list(folder.glob("__pycache__"))  # bytecode goes by time and length: both are equal


def test_figures_of_a_calibrators_earlier_source_are_not_taken_for_its_own(folder, tmp_path):
    """It is measured again; nothing is trained again."""
    text = PLAIN.replace("name: own\n", "name: own\nplugins: [my_methods.py]\n")
    text += "calibrators: [half]\nkeep: predictions\nafter: [{crossfit: {calibrators: [half]}}]\n"
    put(folder, text)
    first, out = Suite.read(folder / "own.yaml"), tmp_path / "out"
    run_suite(first, out)
    put(folder, text, METHODS.replace("factor=0.5", "factor=0.8"))
    second = Suite.read(folder / "own.yaml")
    assert keys(second) == keys(first)
    assert [spec.wanted for spec in second.runs] != [spec.wanted for spec in first.runs]
    told = []
    assert run_suite(second, out, progress=told.append).done == [second.runs[0].key]
    assert "epoch" not in [one["event"] for one in told]
    frame = Store(out / "store").frame()
    rows = frame[(frame["part"] == "test") & (frame["metric"] == "nll")]
    values = dict(zip(rows["calibrator"], rows["value"], strict=True))
    assert len(values) == 3  # none, and half of either source
    assert len(set(values.values())) == 3
    crossfits = frame[(frame["part"] == "validation:crossfit") & (frame["metric"] == "nll")]
    assert set(crossfits["calibrator"]) == set(values) - {"none"}


def test_what_stands_for_every_calibrator_is_not_changed(folder):
    before = list_preserving()
    Suite.read(folder / "own.yaml")
    assert list_preserving() == before
    assert expand_calibrators(["half"]) == (f"half(source={sources.source_of('half')})",)


def test_a_calibrator_of_a_source_that_is_gone_is_not_made(folder):
    Suite.read(folder / "own.yaml")
    with pytest.raises(InputError, match="but the plugin's source is s"):
        make("half(source=s00000000)")
    assert make("half(factor=0.1)").factor == 0.1


def test_the_folder_of_the_runs_can_be_read_by_itself(folder, tmp_path):
    """Table, status and another run go by its copy, the file moved, edited or gone."""
    out = tmp_path / "out"
    suite = Suite.read(folder / "own.yaml")
    run_suite(suite, out)
    edited(folder)
    (folder / "my_methods.py").unlink()
    again = Suite.read(out / "suite.yaml")
    assert keys(again) == keys(suite)
    assert run_suite(again, out).before == [spec.key for spec in suite.runs]
    assert keys(Suite.read(out / "suite.yaml")) == keys(suite)
    state = status([spec for _, spec in again.specs], out)
    assert (state.done, state.total) == (2, 2)


@pytest.mark.slow
def test_the_commands_go_on_where_they_were_in_other_processes(folder, tmp_path):
    out = tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def command(*words):
        ran = subprocess.run(
            [sys.executable, "-m", "calibrant", "bench", *words],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    allowed = ("--allow-plugins", "--quiet", "--on", "pool")
    command("run", str(folder / "own.yaml"), "-o", str(out), *allowed)
    assert json.loads(command("status", str(out), "--json"))["done"] == 2
    assert "mean_gap" in command("table", str(out))


def test_suites_of_one_folder_keep_their_plugins_apart(tmp_path):
    """Each file is called my_methods.py; both are found by the suite's name once they are gone."""
    out, found = tmp_path / "out", {}
    for name, factor in (("first", "0.5"), ("second", "0.8")):
        text = SUITE.replace("name: own", f"name: {name}") + "calibrators: [half]\n"
        put(tmp_path / name, text, METHODS.replace("factor=0.5", f"factor={factor}"))
        suite = Suite.read(tmp_path / name / "own.yaml")
        run_suite(suite, out, only=["mean_gap"], limit_minutes=0)
        found[name] = keys(suite)
        (tmp_path / name / "my_methods.py").unlink()
    assert found["first"]["mean_gap"] != found["second"]["mean_gap"]
    for name in ("first", "second", "first"):
        assert keys(Suite.read(name, out)) == found[name]
        assert make("half").factor == {"first": 0.5, "second": 0.8}[name]
    assert keys(Suite.read(out / "suite.yaml")) == found["second"]
    # The kept file can be run again, and is the folder's suite then, by its own copy.
    run_suite(Suite.read(out / "suites" / "first.yaml"), out, limit_minutes=0)
    assert keys(Suite.read(out / "suite.yaml")) == keys(Suite.read("first", out)) == found["first"]
    assert keys(Suite.read("second", out)) == found["second"]


def test_a_kept_suite_of_the_folder_itself_goes_by_the_file_beside_it(folder):
    suite = Suite.read(folder / "own.yaml")
    run_suite(suite, folder, only=["mean_gap"], limit_minutes=0)
    assert keys(Suite.read("own", folder)) == keys(suite)
    put(folder, methods=METHODS + "\n# edited\n")
    assert keys(Suite.read("own", folder)) == keys(Suite.read(folder / "own.yaml")) != keys(suite)
    assert not list((folder / "plugins").glob("*.py"))


@pytest.mark.parametrize("ours", [True, False])
def test_a_suite_in_the_folder_of_suites_goes_by_the_file_beside_it(tmp_path, ours):
    out = tmp_path / "out"
    if ours:
        run_suite(Suite.parse(PLAIN.replace("name: own", "name: plain")), out, limit_minutes=0)
    folder = put(out / "suites")
    suite = Suite.read(folder / "own.yaml")
    run_suite(suite, out, only=["mean_gap"], limit_minutes=0)
    put(folder, methods=METHODS + "\n# edited\n")
    assert keys(Suite.read("own", out))["mean_gap"] != keys(suite)["mean_gap"]
    assert keys(Suite.read(out / "suite.yaml")) == keys(suite)  # the one last run, by its copy


def test_paths_above_and_absolute_ones_are_copied_too(tmp_path):
    for name in ("../lib/x.py", str(tmp_path / "lib" / "x.py")):
        put(tmp_path / "lib", name="x.py")
        put(tmp_path / "mine", SUITE.replace("my_methods.py", name))
        suite = Suite.read(tmp_path / "mine" / "own.yaml")
        out = tmp_path / f"out{len(name)}"
        run_suite(suite, out, only=["mean_gap"], limit_minutes=0)
        (tmp_path / "lib" / "x.py").unlink()
        assert keys(Suite.read(out / "suite.yaml")) == keys(suite)


def test_a_suite_in_the_folder_of_its_runs_goes_by_the_file_beside_it(folder):
    """There a copy would hide what is edited."""
    (folder / "own.yaml").rename(folder / "suite.yaml")
    suite = Suite.read(folder / "suite.yaml")
    run_suite(suite, folder, only=["mean_gap"], limit_minutes=0)
    put(folder, methods=METHODS + "\n# edited\n")
    assert keys(Suite.read(folder / "suite.yaml"))["mean_gap"] != keys(suite)["mean_gap"]


def test_a_module_by_name(tmp_path, monkeypatch):
    package = tmp_path / "site" / "my_package_of_methods"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from my_package_of_methods import inner\n")
    (package / "inner.py").write_text(METHODS)
    (package / "other.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    text = SUITE.replace("my_methods.py", "my_package_of_methods")
    before = keys(Suite.parse(text))
    assert keys(Suite.parse(text)) == before
    receive_plugins(list_loaded())
    (package / "inner.py").write_text(METHODS + "\n# edited\n")
    with pytest.raises(InputError, match="has changed since it was imported: start a new process"):
        Suite.parse(text)
    with pytest.raises(InputError, match="differs from the one that the suite was read with"):
        receive_plugins(list_loaded())
    forget_plugins()  # what was imported is still the former code
    with pytest.raises(InputError, match=r"inner\.py has changed since it was imported"):
        Suite.parse(text)


def test_a_module_imported_and_edited_before_the_suite_is_read_is_refused(tmp_path, monkeypatch):
    (tmp_path / "my_early_methods.py").write_text(METHODS)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("my_early_methods")
    text = SUITE.replace("my_methods.py", "my_early_methods")
    assert "mean_gap" in keys(Suite.parse(text))
    forget_plugins()
    (tmp_path / "my_early_methods.py").write_text(METHODS + "\n# edited\n")
    with pytest.raises(InputError, match=r"my_early_methods\.py has changed since it was imported"):
        Suite.parse(text)
    importlib.reload(sys.modules["my_early_methods"])
    assert "mean_gap" in keys(Suite.parse(text))


def test_another_suite_in_the_folder_of_runs_goes_by_the_file_beside_it(folder, tmp_path):
    """The copies are those of the suite that was run there."""
    out = tmp_path / "out"
    suite = Suite.read(folder / "own.yaml")
    run_suite(suite, out, only=["mean_gap"], limit_minutes=0)
    put(out, methods=METHODS + "\n# edited\n")
    assert keys(Suite.read(out / "own.yaml"))["mean_gap"] != keys(suite)["mean_gap"]
    assert keys(Suite.read(out / "suite.yaml")) == keys(suite)


def test_a_table_of_a_suite_whose_plugin_was_replaced_is_not_made(folder, tmp_path):
    """Its keys would be those of the other source."""
    suite = Suite.read(folder / "own.yaml")
    frame = Store(tmp_path / "store").frame()
    edited(folder)
    with pytest.raises(InputError, match=r"has been replaced .* read the suite again"):
        table(suite, frame)


def test_a_suite_whose_plugin_was_replaced_meanwhile_is_not_run(folder, tmp_path):
    suite = Suite.read(folder / "own.yaml")
    edited(folder)
    with pytest.raises(InputError, match=r"has been replaced .* read the suite again"):
        run_suite(suite, tmp_path / "out")


def test_a_choice_is_of_the_source_it_was_made_with(folder, tmp_path):
    text = SUITE + "tune: {settings: [{name: power, of: [mean_gap], values: [1.0, 2.0]}]}\n"
    put(folder, text)

    class Stop(Exception):
        pass

    def stop(specs):
        raise Stop

    found = []

    def noted(out, name, question):
        found.append((name, question.get("plugins")))
        return choice_path(out, name, question)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calibrant.bench.select.tune.choice_path", noted)
        for read in (lambda: Suite.read(folder / "own.yaml"), lambda: edited(folder)):
            with pytest.raises(Stop):
                tune_suite(read(), tmp_path / "out", stop)
    own = [sources for name, sources in found if name == "own-mean_gap"]
    assert len(own) == 2
    assert own[0] != own[1]
    # Choices of built-in methods that were written before are found where they are.
    assert {sources for name, sources in found if name == "own-cross_entropy"} == {None}


@pytest.mark.parametrize(
    ("methods", "match"),
    [
        (
            "import no_such_library",
            "line 1: ModuleNotFoundError: No module named 'no_su",
        ),
        ("x = 1\ny = x + z\n", "line 2: NameError: name 'z' is not defined"),
        ("x = 1\ndef (:\n", "line 2: SyntaxError"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("x = 1\n", "registers nothing: write @calibrant.losses.register"),
        (METHODS.replace('"mean_gap"', '"focal"'), "a loss called 'focal' is built in"),
        (METHODS.replace('"mean_gap"', '"acls"'), "a loss called 'acls' is built in"),
        (METHODS.replace('"twice"', '"mixup"'), "a recipe called 'mixup' is built in"),
        (
            METHODS.replace('"half"', '"temperature"'),
            "calibrator called 'temperature' is built in",
        ),
        (METHODS.replace('"half"', '"ece"'), "a metric called 'ece' is built in"),
        (METHODS.replace('"my_error"', '"vector"'), "a calibrator called 'vector' is built in"),
        (METHODS.replace("tiny_net", "resnet18"), "a network called 'resnet18' is built in"),
        (METHODS.replace('"half"', '"none"'), "'none' is reserved in results"),
        (METHODS.replace('"mean_gap"', '"mean gap"'), "must be a word"),
        (METHODS.replace('"mean_gap"', '"lambda"'), "must be a word"),
        (
            METHODS.replace("factor", "source"),
            "the option 'source' of the calibrator 'half' is reserved",
        ),
        (
            METHODS.replace("losses.SecondaryLoss", "torch.nn.Module"),
            "must be a subclass of calibrant",
        ),
        (METHODS.replace('    name = "mean_gap"\n', ""), "MeanGap has no name"),
        (
            METHODS.replace('"twice"', '"again"')
            + "\n@recipes.register\nclass Other(Twice):\n    name = 'again'\n",
            "the recipe 'again' is registered twice",
        ),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said(folder, methods, match):
    put(folder, methods=methods)
    with pytest.raises(InputError, match=rf"own.yaml: plugin my_methods.py.*{match}"):
        Suite.read(folder / "own.yaml")
    assert losses.get("focal").__class__ is losses.Focal  # nothing is left of it
    assert not list_loaded()
    assert "mean_gap" not in losses.available()
    put(folder)
    assert Suite.read(folder / "own.yaml").plugins  # put right, it is read


@pytest.mark.parametrize(
    ("named", "match"),
    [
        ("[gone.py]", r"plugin gone.py: .*gone.py: there is no such file; relative paths start"),
        ("[no_such_module_at_all]", "a file is written with its ending, as in no_such_module_at_a"),
        ("[sys]", "sys has no Python files"),
        ("['a b']", "neither a .py file nor the name of a module"),
        ("my_methods.py", "plugins is a list of files or modules"),
        ("[3]", "plugins are files or modules, by name, found 3"),
    ],
)
def test_what_cannot_be_found_is_said(folder, named, match):
    put(folder, SUITE.replace("[my_methods.py]", named))
    with pytest.raises(InputError, match=match):
        Suite.read(folder / "own.yaml")


def test_two_plugins_of_one_suite_do_not_share_a_name(folder):
    (folder / "second.py").write_text(METHODS + "\n# another\n")
    put(folder, SUITE.replace("[my_methods.py]", "[my_methods.py, second.py]"))
    with pytest.raises(InputError, match=r"my_methods\.py and second\.py both register a"):
        Suite.read(folder / "own.yaml")


def test_a_name_that_no_plugin_has_any_more_is_unknown(folder):
    Suite.read(folder / "own.yaml")
    (folder / "my_methods.py").write_text(METHODS.replace('"mean_gap"', '"gap"'))
    with pytest.raises(InputError, match="no loss is called 'mean_gap'"):
        Suite.read(folder / "own.yaml")
    with pytest.raises(InputError, match="no recipe is called 'once'"):
        recipes.get("once")


def test_shipped_suites_run_no_code():
    for path in SHIPPED.glob("*.yaml"):
        assert "plugins" not in path.read_text(encoding="utf-8"), path


def test_combinations_of_a_loss_of_ones_own(folder, tmp_path):
    """The command reads results alone, in which names of the suite's plugins stand."""
    from calibrant.cli import app

    put(folder, SUITE + "after: [{crossfit: {calibrators: [temperature, half]}}]\n")
    out = tmp_path / "out"
    run_suite(Suite.read(folder / "own.yaml"), out)
    run_suite(Suite.parse(PLAIN.replace("name: own", "name: plain")), out)  # the last has none
    forget_plugins()
    said = CliRunner().invoke(app, ["bench", "combine", str(out), "--allow-plugins"])
    assert said.exit_code == 0, said.output
    assert "mean_gap" in said.output or "cross_entropy" in said.output


def test_results_of_others_bring_no_code_along(folder, tmp_path):
    out, archive, into = tmp_path / "out", tmp_path / "a.tar", tmp_path / "into"
    run_suite(Suite.read(folder / "own.yaml"), out)
    pack(out, archive)
    for source in (archive, out):
        with pytest.warns(UserWarning, match="which are code, and is not copied"):
            merge([source], into)
    assert not (into / "suite.yaml").exists()
    assert not (into / "suites").exists()
    assert not list(into.rglob("*.py"))
    from calibrant.cli import app

    said = CliRunner().invoke(
        app, ["bench", "table", str(into), "--suite", str(folder / "own.yaml"), "--allow-plugins"]
    )
    assert "mean_gap" in said.output
    run_suite(Suite.parse(PLAIN), tmp_path / "plain")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge([tmp_path / "plain"], tmp_path / "other")
    assert (tmp_path / "other" / "suite.yaml").is_file()


def test_plugins_of_a_suite_run_once_they_are_allowed(folder, tmp_path, monkeypatch):
    from calibrant.cli import app

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    sign = tmp_path / "ran"
    path, code = folder / "own.yaml", folder / "my_methods.py"
    code.write_text(f"open({str(sign)!r}, 'a').write('x')\n{code.read_text()}")

    def ask_status(*options):
        out = tmp_path / "out"
        out.mkdir(exist_ok=True)
        return CliRunner().invoke(
            app, ["bench", "status", str(out), "--suite", str(path), *options]
        )

    refused = ask_status()
    assert refused.exit_code == 2
    assert "which are code" in refused.output
    assert "--allow-plugins" in refused.output
    assert not sign.exists()
    assert ask_status("--allow-plugins").exit_code == 0
    assert sign.exists()
    forget_plugins()
    assert ask_status().exit_code == 0  # remembered
    code.write_text(f"# edited\n{code.read_text()}")
    forget_plugins()
    assert ask_status().exit_code == 2  # another source is another plugin
