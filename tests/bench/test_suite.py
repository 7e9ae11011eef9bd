"""A suite file comes to the runs it says, and a run's key says what decides its result."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest

from calibrant.bench import Spec, Suite, available
from calibrant.bench.suite.key import OF_THE_MACHINE, key_of
from calibrant.bench.suite.spec import distinct
from calibrant.core.errors import InputError
from calibrant.training import Config
from tests.helpers.bench_frames import PUBLISHED

SUITE = """
name: example
about: a line
defaults: {model: mlp, epochs: 3, batch_size: 50}
grid: {data: [digits, cifar10], lr: [0.1, 0.2]}
seeds: [0, 1]
methods:
  cross_entropy: {}
  acls: {loss: acls(margin=6)}
  mac_cal: {recipe: mac_cal}
where:
  - if: {data: cifar10, method: acls}
    set: {loss: acls(margin=10)}
  - if: {data: cifar10, method: [acls, mac_cal], lr: 0.2}
    set: {epochs: 5}
  - if: {seed: 0, data: digits}
    set: {keep: predictions, calibrators: [temperature, "temperature( objective = sb_ece )"]}
  - if: {method: mac_cal, data: digits}
    set: {skip: true}
calibrators: [temperature]
after: [mac_cal_head, shift: {severities: [1, 3]}]
baseline: cross_entropy
metrics: [accuracy, ece]
"""


def read(text: str) -> Suite:
    return Suite.parse(text)


def with_line(line: str, *, without: str | None = None) -> str:
    kept = [one for one in SUITE.splitlines() if not without or not one.startswith(without)]
    return "\n".join([*kept, line])


def test_every_combination_is_a_run_and_later_lines_win():
    suite = read(SUITE)
    assert suite.methods == ("cross_entropy", "acls", "mac_cal")
    # 2 seeds x 2 rates x (3 methods of cifar10 and 2 of digits)
    assert len(suite.specs) == len(suite.runs) == 2 * 2 * 5
    assert [spec.config.seed for _, spec in suite.specs] == [0] * 10 + [1] * 10
    found = {
        (method, spec.config.data, spec.config.lr, spec.config.seed): spec
        for method, spec in suite.specs
    }
    assert found["acls", "digits", 0.1, 0].config.loss == "acls(margin=6)"
    assert found["acls", "cifar10", 0.1, 0].config.loss == "acls(margin=10)"
    assert found["acls", "cifar10", 0.2, 0].config.epochs == 5
    assert found["cross_entropy", "cifar10", 0.2, 0].config.epochs == 3
    assert ("mac_cal", "digits", 0.1, 0) not in found
    first = found["cross_entropy", "digits", 0.1, 0]
    assert first.keep == "predictions"
    soft = "temperature(max_likelihood_loss=None,objective=sb_ece)"
    assert first.calibrators == ("temperature", soft)
    other = found["cross_entropy", "digits", 0.1, 1]
    assert (other.keep, other.calibrators) == ("rows", ("temperature",))
    assert other.after == (("mac_cal_head", '{"race":false}'), ("shift", '{"severities":[1,3]}'))
    assert other.wanted == {
        ("run", "none"),
        ("run", "temperature"),
        ("run", 'after:mac_cal_head({"race":false})'),
        ("run", 'after:shift({"severities":[1,3]})'),
    }


def test_cases_are_alternatives_to_a_grid_and_combine_with_one():
    cases = "cases: [{data: digits}, {data: cifar10, model: resnet18}]"
    suite = read(with_line(cases, without="grid"))
    pairs = {(spec.config.data, spec.config.model) for _, spec in suite.specs}
    assert pairs == {("digits", "mlp"), ("cifar10", "resnet18")}
    inside = "grid: {lr: [0.1, 0.3], cases: [{data: digits}, {data: cifar10, model: resnet18}]}"
    suite = read(with_line(inside, without="grid"))
    assert {(spec.config.lr, spec.config.data) for _, spec in suite.specs} == {
        (rate, data) for rate in (0.1, 0.3) for data in ("digits", "cifar10")
    }


def test_files_of_logits_stand_in_place_of_methods():
    suite = read(
        "logits: [logits/cifar10-resnet20.npz, {file: a.npz, data: x, model: y}]\nseeds: [0, 1]\n"
        "calibrators: [temperature]"
    )
    specs = [spec for _, spec in suite.specs]
    assert [spec.logits for spec in specs] == ["logits/cifar10-resnet20.npz", "a.npz"] * 2
    assert (specs[0].config.data, specs[0].config.model) == ("cifar10", "resnet20")
    assert (specs[1].config.data, specs[1].config.model) == ("x", "y")
    assert len({spec.key for spec in specs}) == 4


def test_files_of_logits_may_be_apart_for_validation_and_test_rows():
    entry = "{validation: held.npz, test: made-net.npz, long_tail: 0.1}"
    ((method, spec),) = read(f"logits: [{entry}]\ncalibrators: [temperature]").specs
    assert method == "logits"
    assert spec.logits == ("held.npz", "made-net.npz")
    assert (spec.config.data, spec.config.model) == ("made", "net")  # as the test file is called
    assert spec.config.long_tail == 0.1
    assert Spec.of(json.loads(json.dumps(spec.to_dict()))) == spec
    swapped = read("logits: [{validation: made-net.npz, test: held.npz, data: made, model: net}]")
    assert swapped.specs[0][1].key != spec.key
    kept = read("logits: [{file: a.npz, validation: 0.2}]").specs[0][1]  # the training's setting
    assert (kept.logits, kept.config.validation) == ("a.npz", 0.2)
    for line, says in (
        ("logits: [{validation: held.npz}]", "validation: FILE, test: FILE"),
        ("logits: [{test: made-net.npz}]", "validation: FILE, test: FILE"),
        ("logits: [{file: a.npz, test: b.npz}]", "validation: FILE, test: FILE"),
        (f"logits: [{entry}]\nseeds: [0, 1]", r"give one seed, found \[0, 1\]"),
    ):
        with pytest.raises(InputError, match=says):
            read(line)


def test_argmax_preserving_is_written_out():
    spec = read(with_line("calibrators: [argmax_preserving]", without="calibrators")).specs[-1][1]
    assert {"temperature", "ensemble_temperature", "intra_order"} <= set(spec.calibrators)
    assert not {"vector", "argmax_preserving", "mac_cal_head"} & set(spec.calibrators)


@pytest.mark.parametrize(
    ("line", "without", "said"),
    [
        ("metods: {}", None, "did you mean methods"),
        ("defaults: {epoch: 3}", "defaults", "did you mean epochs"),
        ("defaults: {epochs: three}", "defaults", "epochs must be int, found 'three'"),
        ("grid: {dta: [digits]}", "grid", "did you mean data"),
        ("grid: {data: digits}", "grid", "data is a list of values"),
        ("grid: {data: [digit]}", "grid", "Did you mean digits"),
        ("grid: {data: [digits], loss: [focul]}", "grid", "Did you mean focal"),
        ("grid: {data: [digits], recipe: [mixop]}", "grid", "Did you mean mixup"),
        ("defaults: {model: resnet81}", "defaults", "no model is called 'resnet81'"),
        ("defaults: {seed: 4}", "defaults", "seeds are given as"),
        ("calibrators: [temperatur]", "calibrators", "Did you mean"),
        ('calibrators: ["temperature(objectiv=ece)"]', "calibrators", "objectiv"),
        ("after: [shfit]", "after", "shift"),
        ("after: [shift: {severitys: [1]}]", "after", "severities"),
        ("metrics: [acuracy]", "metrics", "accuracy"),
        ("baseline: ce", "baseline", "cross_entropy"),
        ("keep: all", None, "keep is one of rows, predictions, weights"),
        ("seeds: 3", "seeds", "seeds is a list of whole numbers"),
        ("logits: [a.npz]", None, "not both"),
    ],
)
def test_a_wrong_word_is_an_error_that_names_the_nearest(line, without, said):
    with pytest.raises(InputError, match=r"^suite: ") as error:
        read(with_line(line, without=without))
    assert said in str(error.value)


def test_unknown_suites_and_files_are_told():
    with pytest.raises(InputError, match="Did you mean digits"):
        Suite.read("digts")
    with pytest.raises(InputError, match="no such file"):
        Suite.read("nowhere/suite.yaml")
    with pytest.raises(InputError, match="not YAML"):
        read("a: [")
    for text, says in (
        ("grid: [1]", "grid is a mapping"),
        ("tune: 3", "tune is a mapping"),
        ("published: acls", "published is a mapping"),
        (f"published: {{file: {PUBLISHED}, paper: nopaper}}", "nopaper"),
        (f"published: {{file: {PUBLISHED}, paper: acls, tables: [Table 33]}}", "Table 33"),
        (f"published: {{file: {PUBLISHED}, paper: acls, model: resnet18}}", "resnet18"),
        (f"published: {{file: {PUBLISHED}, paper: acls, tabels: [Table 3]}}", "tabels"),
        ("published: [acls]", "published is a mapping"),
        ("published: {paper: acls}", "names no file"),
        ("published: {file: nowhere.csv, paper: acls}", "no such file"),
        ("tune: {metric: nonsense, settings: [{name: lr, values: [1]}]}", "nonsense"),
        ("metrics: ece", "metrics is a list"),
        ("metrics: [3]", "found 3 in it"),
        ("where: [{if: 3, set: {lr: 1.0}}]", "`if` is a mapping"),
        ("where: [{if: {method: cros_entropy}, set: {lr: 1.0}}]", "did you mean cross_entropy"),
        ("where: [{if: {method: [acls]}, set: {lr: 1.0}}]", "'acls' is no method of this suite"),
        ("tune: {settings: [{name: margin, of: [acls], values: [1]}]}", "needs the loss acls"),
        ("tune: {settings: [{name: recipe.alpha, values: [1]}]}", "no method has that"),
        ("tune: {settings: [{name: lr, values: [fast]}]}", "lr"),
        ("seeds: [0]\nseeds: [1]", "'seeds' stands twice, line 1"),
        ("claims: [a]", "is no key of a suite"),
        ("logits: [3]", "each names a file"),
        ("where: [{if: {lr: 0.1}}]", "'set' is missing; where: each line is"),
        ("where: [{if: {}, sett: {}, set: {}}]", "is no key of a `where` line; did you mean set"),
        ("tune: {setings: []}", "is no key of tune; did you mean settings"),
        ("tune: {settings: [{name: lr, values: []}]}", "`values` is a list, found"),
        ("tune: {accuracy_lost: 2, settings: [{name: lr, values: [1]}]}", "a share in"),
        ("seeds: [0.5]", "seeds is a list of whole numbers, found 0.5 in it"),
        ("defaults: {lr: 0.1, seed: 3}", "seeds are given as"),
        ("defaults: {epoch: 3}", "'epoch' is no setting; did you mean epochs"),
        ("defaults: 3", "defaults: expected settings as"),
    ):
        with pytest.raises(InputError, match=says):
            read("methods: {cross_entropy: {}}\n" * ("logits" not in text) + text)
    with pytest.raises(InputError, match="methods is a mapping of names to settings"):
        read("methods: [cross_entropy]")
    wrong = (
        "methods: {acls: {loss: acls}}\ntune: {settings: [{name: margn, of: [acls], values: [1]}]}"
    )
    with pytest.raises(InputError, match="margn"):
        read(wrong)
    read(wrong.replace("margn", "margin"))


def test_every_shipped_suite_can_be_read():
    names = available()
    assert set(names) == {"digits", "digits-short", "template"}
    assert all(names.values())
    for name in names:
        suite = Suite.read(name)
        assert suite.name == name
        assert suite.runs


def test_some_runs_can_be_chosen():
    suite = read(SUITE)
    assert len(suite.chosen(["acls"])) == 8
    assert len(suite.chosen(["acls/data=cifar10"], seeds=[1])) == 2
    assert len(suite.chosen(["a*/lr=0.1", "mac_cal"])) == 8
    with pytest.raises(InputError, match="Did you mean data"):
        suite.chosen(["dat=digits"])


def test_methods_named_like_a_setting_can_be_chosen():
    suite = read(
        "grid: {data: [cifar10, cifar100]}\nseeds: [0, 1, 2]\nmethods:\n"
        "  mixup_alpha=0.4: {recipe: mixup(alpha=0.4)}\n"
        "  mixup_alpha=1.0: {recipe: mixup(alpha=1.0)}\n"
        "  lambda1=0.1,lambda2=0.01: {loss: acls(margin=10)}\n"
    )
    found = suite.chosen(["mixup_alpha=0.4/data=cifar10"])
    assert {method for method, _ in found} == {"mixup_alpha=0.4"}
    assert len(found) == 3
    assert len(suite.chosen(["mixup_alpha=*/data=cifar10"])) == 6
    grid = suite.chosen(["lambda1=0.1,lambda2=0.01"], seeds=[0])
    assert [spec.config.loss for _, spec in grid] == ["acls(margin=10)"] * 2
    with pytest.raises(InputError, match="no setting is called 'mixup_beta'"):
        suite.chosen(["mixup_beta=0.4"])


# The keys of stores that exist: were these to change, every run made so far would be made again.
def test_keys_do_not_drift():
    assert key_of(Config()) == "9783ac1f4907af62"
    config = Config(
        data="cifar10",
        model="resnet18",
        loss="acls(margin=6)",
        recipe="mac_cal",
        recipe_options={"mask": 0.5, "alpha": 1},
        long_tail=0.1,
        milestones=(150, 250),
        seed=2,
    )
    assert key_of(config) == "4b2cb7f555662fb0"
    assert Spec(config, logits="logits/a.npz").key == "641705067fa69814"


def test_a_key_depends_on_nothing_but_what_decides_the_result():
    key = Spec(Config()).key
    assert Spec(Config(), ("temperature",), (("shift", "{}"),), "weights").key == key
    other = {
        "data_folder": "/somewhere",
        "download": True,
        "device": "cpu",
        "devices": 2,
        "eval_batch_size": 7,
        "checkpoint_every": 9,
        "compile": True,
    }
    assert set(other) == set(OF_THE_MACHINE)
    assert Spec(Config(**other)).key == key
    assert Spec(Config()).on_machine(data_folder="/x", device=None).config.data_folder == "/x"
    with pytest.raises(InputError, match="no setting of the machine"):
        Spec(Config()).on_machine(epochs=3)


def test_every_setting_that_decides_the_result_changes_the_key():
    changed = {
        "average": "ema",
        "optimizer": "adamw",
        "schedule": "constant",
        "precision": "bf16",
        "report_epoch": "best_validation",
        "milestones": (3,),
        "clip": 1.0,
        "long_tail": 0.5,
        "size": 9,
    }
    seen = {key_of(Config())}
    for one in dataclasses.fields(Config):
        if one.name in OF_THE_MACHINE:
            continue
        before = getattr(Config(), one.name)
        value = changed.get(one.name)
        if value is None and isinstance(before, bool):
            value = not before
        elif value is None and isinstance(before, (int, float)):
            value = before + 1
        elif value is None:
            value = {"a": 1} if isinstance(before, dict) else f"{before}2"
        seen.add(key_of(Config(**{one.name: value})))
    assert len(seen) == 1 + len(dataclasses.fields(Config)) - len(OF_THE_MACHINE)


def test_options_that_are_no_plain_values_have_no_key():
    with pytest.raises(InputError, match="plain JSON values"):
        key_of(Config(model_options={"a": float("nan")}))


def test_the_order_of_options_does_not_matter():
    one = Config(recipe_options={"a": {"c": 3, "d": 2}, "b": 1})
    assert key_of(one) == key_of(Config(recipe_options={"b": 1, "a": {"d": 2, "c": 3}}))


def test_runs_of_one_key_are_one_run_with_all_their_measurements():
    one = Spec(Config(), ("temperature",), (("shift", "{}"),), "predictions")
    two = Spec(Config(device="cpu"), ("vector", "temperature"), (), "rows")
    (both,) = distinct([one, two])
    assert both.calibrators == ("temperature", "vector")
    assert both.after == one.after
    assert both.keep == "predictions"
    assert Spec.of(json.loads(json.dumps(both.to_dict()))) == both


def test_anchors_and_merges_are_no_keys_that_stand_twice():
    text = """
defaults: {epochs: 2}
methods:
  one:
    loss: focal
    recipe_options: &inner {<<: &base {alpha: 1.0}, alpha: 2.0}
    recipe: mixup
  two: {recipe: mixup, recipe_options: {<<: *inner}}
  three: {recipe: mixup, recipe_options: *base}
"""
    found = {method: spec.config.recipe_options for method, spec in read(text).specs}
    assert found == {"one": {"alpha": 2.0}, "two": {"alpha": 2.0}, "three": {"alpha": 1.0}}
    with pytest.raises(InputError, match="'alpha' stands twice, line 3"):
        read("methods:\n  one: {recipe: mixup,\n    recipe_options: {alpha: 1.0, alpha: 2.0}}")


def test_suites_are_found_by_name_in_folders(tmp_path, monkeypatch):
    folders = [tmp_path / "one", tmp_path / "two"]
    for place, folder in enumerate(folders):
        folder.mkdir()
        for name in ("mine", f"only-{place}"):
            text = f"name: {name}\nabout: of {folder.name}\nmethods: {{cross_entropy: {{}}}}\n"
            (folder / f"{name}.yaml").write_text(text)
    assert available(folders[1]) == {"mine": "of two", "only-1": "of two"}
    monkeypatch.setenv("CALIBRANT_SUITES", str(folders[1]))
    with pytest.raises(InputError, match="Did you mean only-1"):
        Suite.read("only-2")
    monkeypatch.setenv("CALIBRANT_SUITES", os.pathsep.join(map(str, folders)))
    assert Suite.read("mine").about == "of one"  # the first folder that has it
    assert Suite.read("only-1").about == "of two"
    assert set(available()) == {"mine", "only-0", "only-1", "digits", "digits-short", "template"}
    with pytest.raises(InputError, match="no such folder"):
        available(tmp_path / "three")


def test_a_suite_that_was_run_is_read_with_its_published_figures(tmp_path):
    folder, out = tmp_path / "mine", tmp_path / "out"
    folder.mkdir()
    (folder / "figures.csv").write_bytes(PUBLISHED.read_bytes())
    text = "name: mine\nmethods: {acls: {loss: acls}}\ndefaults: {data: cifar10, model: resnet50}\n"
    text += "published: {file: figures.csv, paper: acls}\n"
    (folder / "mine.yaml").write_text(text)
    out.mkdir()
    Suite.read(folder / "mine.yaml").copy_to(out)
    (folder / "figures.csv").unlink()
    with pytest.raises(InputError, match="no such file"):
        Suite.read(folder / "mine.yaml")
    (copied,) = Suite.read("mine", out).published
    asked = {"data": "cifar10", "model": "resnet50", "method": "acls", "metric": "ece"}
    rest = {"calibrator": "none", "part": "test", "long_tail": None}
    assert copied.figure(**asked, **rest).value == 0.0112
    for path in (out / "published").iterdir():
        path.unlink()
    (out / "suite.yaml").write_text(text.replace("file: figures.csv, ", ""))  # of earlier versions
    with pytest.warns(UserWarning, match="names no file"):
        assert Suite.read(out / "suite.yaml").published == ()
    with pytest.warns(UserWarning, match="published figures are not shown"):
        assert Suite.read("mine", out).published == ()
