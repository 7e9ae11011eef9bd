"""Groups from files: rows matched by ids, and groups that reveal the label."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

from calibrant import InputError, Predictions, evaluate
from calibrant.evaluation import read_groups
from calibrant.evaluation.groups.files import check_groups
from calibrant.report import render
from tests.helpers.groups import FAST, draw_groups, run_command

UNCOMPARED = "ids could not be compared"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Predictions with and without ids, and tables of groups in their order and others."""
    path = tmp_path_factory.mktemp("ids")
    predictions, home = draw_groups(8, [300, 300, 40], [0, 0.15, 0])
    ids = np.arange(1000, 1640)
    Predictions.from_probs(predictions.array, predictions.labels, ids=ids).write(path / "p.npz")
    predictions.write(path / "bare.npz")
    table = pd.DataFrame({"id": ids, "light": np.array(["day", "night", "fog"])[home]})
    table.to_csv(path / "g.csv", index=False)
    mixed = table.sample(frac=1, random_state=0)
    mixed.to_csv(path / "mixed.csv", index=False)
    mixed.to_parquet(path / "mixed.parquet", index=False)
    mixed.rename(columns={"id": "image"}).to_csv(path / "image.csv", index=False)
    np.savez(path / "mixed.npz", light=mixed.light.to_numpy(str), ids=mixed.id.to_numpy())
    np.savez(path / "singular.npz", light=mixed.light.to_numpy(str), id=mixed.id.to_numpy())
    mixed.rename(columns={"id": "ids"}).to_csv(path / "plural.csv", index=False)
    mixed.assign(id=mixed.id.astype(float)).to_parquet(path / "floats.parquet", index=False)
    (path / "trailing.csv").write_text((path / "mixed.csv").read_text() + "\n\n")
    np.savez(path / "short.npz", light=table.light.to_numpy(str), ids=ids[1:])
    table.assign(id=[f"row{name}" for name in ids]).to_csv(path / "other.csv", index=False)
    table.assign(id=[ids[0], *ids[:-1]]).to_csv(path / "twice.csv", index=False)
    table.assign(id=[*ids[1:], 5]).to_csv(path / "apart.csv", index=False)
    table[["light"]].to_csv(path / "none.csv", index=False)
    return path


def evaluate_file(folder, file, *arguments, predictions="p.npz"):
    """Return the groups and the warnings of the command."""
    asked = ("evaluate", folder / predictions, "--groups", folder / file, *arguments)
    result = run_command(*asked, "--json", "--no-intervals", "-m", "ece")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    for message in report["warnings"]:
        assert f"warning: {message}" in result.stderr
    assert ("warning" in result.stderr) == bool(report["warnings"])
    return report["groups"]["groups"], report["warnings"]


@pytest.mark.parametrize(
    ("file", "arguments"),
    [
        ("mixed.csv", []),
        ("mixed.parquet", []),
        ("mixed.npz", []),
        ("singular.npz", []),
        ("plural.csv", []),
        ("floats.parquet", []),
        ("trailing.csv", []),
        ("image.csv", ["--id-column", "image"]),
    ],
)
def test_rows_in_another_order_are_found_by_their_ids(folder, file, arguments):
    assert evaluate_file(folder, file, *arguments) == (evaluate_file(folder, "g.csv")[0], [])


def test_ids_on_one_side_alone_are_told(folder):
    _, (message,) = evaluate_file(folder, "g.csv", predictions="bare.npz")
    assert message.startswith(f"{UNCOMPARED}: the predictions have none")
    _, (message,) = evaluate_file(folder, "none.csv")
    assert message.startswith(f"{UNCOMPARED}: the groups have none")
    assert evaluate_file(folder, "none.csv", predictions="bare.npz")[1] == []
    predictions = Predictions.read(folder / "p.npz")
    assert evaluate(predictions, groups=np.arange(640) % 2, intervals=False).warnings == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["other.csv"], r"\('row1000', 'row1001', ...\) .* \('1000', '1001', ...\): name another"),
        (["twice.csv"], "different ids: 1 of 640 rows have no group, first 1639"),
        (["apart.csv"], "1 of 640 rows have no group, first 1000$"),
        (["mixed.csv", "--id-column", "ident"], "no column is called 'ident'; found 'id', 'light'"),
        (["mixed.csv", "--id-column", "light"], "Name it with --group-column"),
        (
            ["g.csv", "--id-column", "light", "--group-column", "light"],
            "'light' cannot be both the groups and the ids",
        ),
        (
            ["g.csv", "--group-column", "light", "--group-column", "id"],
            "--group-column takes one column, found 'light', 'id': run once for each",
        ),
    ],
)
def test_ids_and_columns_that_cannot_be_used_are_told(folder, arguments, message):
    result = run_command(
        "evaluate", folder / "p.npz", "--groups", folder / arguments[0], *arguments[1:]
    )
    assert result.exit_code == 2
    assert re.search(message, result.stderr.strip()), result.stderr


def test_ids_that_are_there_twice_do_not_find_rows(folder):
    predictions = Predictions.read(folder / "p.npz")
    groups = read_groups(folder / "g.csv")
    twice = np.array([*groups.ids[::-1][:-1], "1639"], dtype=object)
    with pytest.raises(InputError, match="have no group, first 1000"):
        evaluate(predictions, groups=groups._replace(ids=twice))
    doubled = Predictions.from_probs(
        predictions.array, predictions.labels, ids=[1000, *range(1000, 1639)]
    )
    with pytest.raises(InputError, match=r"more than once \(1000\).*the same order"):
        evaluate(doubled, groups=groups)
    same = groups._replace(ids=np.array(doubled.ids.astype(str), dtype=object))
    assert evaluate(doubled, groups=same, intervals=False).warnings == ()


def test_an_id_column_must_be_there(folder, tmp_path):
    result = run_command("evaluate", folder / "p.npz", "--id-column", "image")
    assert (result.exit_code, "no array is called 'image'" in result.stderr) == (2, True)
    np.save(tmp_path / "g.npy", np.arange(640) % 2)
    with pytest.raises(InputError, match=r"an \.npy has no columns: leave --id-column"):
        read_groups(tmp_path / "g.npy", id_column="id")


def test_a_series_gives_its_name_unless_another_is_given(folder):
    predictions, home = draw_groups(0, [50, 50], [0, 0])
    series = pd.Series(home, name="camera")
    assert evaluate(predictions, groups=series, intervals=False).groups.name == "camera"
    named = evaluate(predictions, groups=series, group_name="lens", intervals=False)
    assert named.groups.name == "lens"
    for plain in (home, series.rename(None)):
        assert evaluate(predictions, groups=plain, intervals=False).groups.name == "group"
    read = read_groups(folder / "g.csv")
    evaluation = evaluate(Predictions.read(folder / "p.npz"), groups=read, group_name="sky", **FAST)
    assert evaluation.groups.name == "sky"


def test_lines_of_missing_values_are_those_of_the_file(tmp_path):
    file = tmp_path / "g.csv"
    file.write_text('note,light\n"two\nlines",day\nx,\n' + "x,night\n" * 8)
    predictions, _ = draw_groups(0, [10], [0.0])
    with pytest.raises(InputError, match=r"g.csv: 1 missing values \(first lines: 4\)"):
        evaluate(predictions, groups=read_groups(file, "light"))


# Groups that reveal the label, or what is right.


def make_predictions(rows, accuracy, classes=6, seed=0):
    """Make predictions of this accuracy; return them, the labels and the predicted classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=rows)
    other = (labels + rng.integers(1, classes, size=rows)) % classes
    predicted = np.where(rng.random(rows) < accuracy, labels, other)
    probs = np.full((rows, classes), (1 - accuracy) / (classes - 1))
    probs[np.arange(rows), predicted] = accuracy
    return Predictions.from_probs(probs, labels), labels, predicted


def get_warnings(predictions, groups):
    return evaluate(predictions, groups=groups, intervals=False, metrics=["ece"]).warnings


@pytest.mark.parametrize("accuracy", [0.6, 0.9, 0.995])
def test_groups_made_from_the_label_are_doubted(accuracy):
    predictions, labels, _ = make_predictions(4000, accuracy)
    rng = np.random.default_rng(1)
    noisy = np.where(rng.random(4000) < 0.004, rng.integers(6, size=4000), labels)
    site = rng.integers(3, size=4000)
    warned = {
        "true class": get_warnings(predictions, labels),
        "coarser": get_warnings(predictions, labels // 2),
        "two of them": get_warnings(predictions, labels < 1),
        "finer": get_warnings(predictions, [f"{y} {s}" for y, s in zip(labels, site, strict=True)]),
    }
    if accuracy < 0.99:  # noise as rare as mistakes may be another network's
        warned["nearly"] = get_warnings(predictions, noisy)
    for what, message in warned.items():
        assert len(message) == 1, what
        assert "made from the true class; take the predicted class instead" in message[0], what
    (message,) = warned["true class"]
    assert message in render(evaluate(predictions, groups=labels, intervals=False))


@pytest.mark.parametrize("accuracy", [0.6, 0.9, 0.995, 1.0])
def test_groups_known_beforehand_are_not_doubted(accuracy):
    predictions, labels, predicted = make_predictions(4000, accuracy)
    rng = np.random.default_rng(1)
    rare = np.zeros(4000, dtype=int)
    rare[:12] = 1
    assert get_warnings(predictions, predicted) == ()
    assert get_warnings(predictions, predicted // 2) == ()
    assert get_warnings(predictions, predicted * 3 + rng.integers(3, size=4000)) == ()
    assert get_warnings(predictions, rng.integers(5, size=4000)) == ()
    assert get_warnings(predictions, rare) == ()
    wrong = np.flatnonzero(labels != predicted)
    if len(wrong) > 2:
        rare[:] = 0
        rare[wrong[:2]] = 1  # two rows that are wrong, of many
        assert get_warnings(predictions, rare) == ()


@pytest.mark.parametrize("accuracy", [0.6, 0.9, 0.99])
def test_groups_made_from_what_is_right_are_doubted(accuracy):
    predictions, labels, predicted = make_predictions(4000, accuracy)
    right = labels == predicted
    site = np.arange(4000) % 2
    for groups in (right, np.where(right, site, 2)):
        (message,) = get_warnings(predictions, groups)
        assert message.startswith("the groups separate right rows from wrong ones")


def test_few_rows_of_many_classes_are_not_doubted():
    predictions, _, _ = make_predictions(500, 0.7, classes=480)
    assert get_warnings(predictions, np.random.default_rng(9).integers(2, size=500)) == ()
    predictions, labels, _ = make_predictions(10, 0.7, classes=3)
    assert get_warnings(predictions, labels) == ()
    once = Predictions.from_probs(np.full((500, 495), 1 / 495), np.arange(500) % 495)
    assert get_warnings(once, np.random.default_rng(9).integers(2, size=500)) == ()


def test_a_small_group_of_the_only_wrong_rows_is_not_doubted():
    predictions, labels, _ = make_predictions(2000, 1.0)
    labels = np.where(np.arange(2000) < 4, (labels + 1) % 6, labels)
    warned = get_warnings(Predictions.from_probs(predictions.array, labels), np.arange(2000) < 4)
    assert warned == ()


def test_rows_to_be_ignored_and_one_label_take_no_part():
    predictions, labels, _ = make_predictions(1000, 0.8)
    ignored = np.where(np.arange(1000) < 300, -1, labels)
    ignoring = Predictions.from_probs(predictions.array, ignored, ignore_index=-1)
    mixed = np.where(ignored < 0, np.arange(1000) % 6, labels)
    assert len(get_warnings(ignoring, mixed)) == 1
    constant = Predictions.from_probs(predictions.array, np.zeros(1000, dtype=int))
    assert not any("group" in text for text in get_warnings(constant, np.arange(1000) % 4))


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_predicted_class_of_a_binary_score_is_a_group(kind):
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=2000)
    predicted = np.where(rng.random(2000) < 0.995, labels, 1 - labels)
    score = np.where(predicted == 1, 0.99, 0.01)
    score = np.log(score / (1 - score)) if kind == "logits" else score
    make = Predictions.from_logits if kind == "logits" else Predictions.from_probs
    assert get_warnings(make(score, labels), predicted) == ()
    assert len(get_warnings(make(score, labels), labels)) == 1


def test_ids_that_are_too_few_are_told_as_such(folder):
    with pytest.raises(InputError, match=r"ids of shape \(639,\) for 640 rows"):
        evaluate(Predictions.read(folder / "p.npz"), groups=read_groups(folder / "short.npz"))


def test_an_empty_line_amid_two_columns_is_an_error_with_its_number(folder, tmp_path):
    lines = (folder / "g.csv").read_text().splitlines()
    (tmp_path / "g.csv").write_text("\n".join([*lines[:5], "", *lines[5:]]))
    with pytest.raises(InputError, match="line 6 has 0 values, the first line names 2 columns"):
        read_groups(tmp_path / "g.csv")


def test_one_long_name_does_not_make_every_name_as_long():
    predictions, home = draw_groups(8, [300, 300], [0, 0])
    names = ["day", "n" * 100_000]
    groups = evaluate(predictions, groups=[names[place] for place in home], intervals=False).groups
    assert [len(group.value) for group in groups] == [3, 100_000]


def test_groups_that_all_have_too_few_rows_are_no_good_news():
    from calibrant.report.groups import make_group_section

    predictions, home = draw_groups(8, [10, 10], [0, 0])
    few = evaluate(predictions, groups=home, **FAST).groups
    assert make_group_section(few).tone == "mixed"
    predictions, home = draw_groups(8, [2_000, 2_000], [0, 0])
    assert make_group_section(evaluate(predictions, groups=home, **FAST).groups).tone == "helps"


def test_a_table_of_more_rows_is_matched_by_ids(folder, tmp_path):
    predictions = Predictions.read(folder / "p.npz")
    table = pd.read_csv(folder / "mixed.csv")
    more = pd.concat([table, pd.DataFrame({"id": [7, 8], "light": ["", "dusk"]})])
    more.sample(frac=1, random_state=1).to_csv(tmp_path / "more.csv", index=False)
    found = check_groups(read_groups(tmp_path / "more.csv", "light"), predictions)
    wanted = check_groups(read_groups(folder / "mixed.csv", "light"), predictions)
    assert found.names == wanted.names
    assert (found.codes == wanted.codes).all()
    pd.concat([more, table.iloc[:1]]).to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(InputError, match="some ids occur more than once"):
        check_groups(read_groups(tmp_path / "twice.csv", "light"), predictions)
    more[more.id != table.id[0]].to_csv(tmp_path / "less.csv", index=False)
    with pytest.raises(InputError, match="1 of 640 rows have no group"):
        check_groups(read_groups(tmp_path / "less.csv", "light"), predictions)
