"""Tables and the page say what `tune` chose, by which figures, and of how many."""

from __future__ import annotations

import csv
import io

import pytest
from typer.testing import CliRunner

from calibrant.bench import Store, Suite, table
from calibrant.bench.select.tune import tune_suite, with_choices
from calibrant.bench.store.rows import make_row
from calibrant.bench.tables.page import render_page
from tests.bench.test_tune import SUITE, fake_run, figures_of, run_that_loses

TWO = SUITE.replace("seeds: [0, 1]", "grid: {validation: [300, 200]}\nseeds: [0, 1]")
RULE = "the lowest ECE of those at most 1 point of accuracy below the most accurate, by 1 seed"


@pytest.fixture
def bench(tmp_path):
    """A suite whose settings are chosen, and whose runs are made, in their made-up figures."""
    return made(Suite.parse(TWO), tmp_path / "out")


def made(suite, out):
    store = Store(out / "store")
    run = fake_run(store)
    done = tune_suite(suite, out, run)
    run([spec for _, spec in done.specs])
    (out / "suite.yaml").write_text(suite.text)
    return suite, out, store.frame()


def test_a_table_says_which_value_each_setting_got(bench):
    suite, out, frame = bench
    text = table(with_choices(suite, out), frame, ["ece"]).to_markdown()
    assert f"Settings chosen on validation rows: {RULE}" in text
    head = "| runs | method | setting | value | tried | ECE, % ↓ | Accuracy, % ↑ | NLL ↓ |"
    lines = text[text.index(head) :].splitlines()
    cell = "digits, mlp, validation"
    assert lines[2:] == [
        f"| {cell} 300.0 | s_avuc | threshold of s_avuc | 0.1 | 2 | 3.00 | 95.00 | 0.3000 |",
        f"| {cell} 300.0 | s_avuc | beta of s_avuc | 2.0 | 3 | 2.00 | 95.00 | 0.2000 |",
        f"| {cell} 200.0 | s_avuc | threshold of s_avuc | 0.1 | 2 | 3.00 | 95.00 | 0.3000 |",
        f"| {cell} 200.0 | s_avuc | beta of s_avuc | 2.0 | 3 | 2.00 | 95.00 | 0.2000 |",
    ]


def test_figures_are_those_of_validation_rows(tmp_path):
    """Whatever the test says, which is 0.5 in all of them."""
    suite, out, frame = made(Suite.parse(SUITE), tmp_path / "out")
    (choice,) = with_choices(suite, out).choices
    spec = next(spec for method, spec in with_choices(suite, out).specs if method == "s_avuc")
    assert dict(choice.steps[-1].figures) == pytest.approx(figures_of(spec))
    assert (frame[frame["part"] == "test"]["value"] == 0.5).all()


def test_html_and_latex_say_it_too(bench):
    suite, out, frame = bench
    shown = table(with_choices(suite, out), frame, ["ece"])
    html = shown.to_html()
    assert '<table class="bench chosen">' in html
    assert "<td>beta of s_avuc</td><td>2.0</td><td>3</td><td>2.00</td>" in html
    latex = shown.to_latex()
    after = latex[latex.index(r"\end{tabular}") :].splitlines()[1:]
    assert all(line.startswith("% ") for line in after)
    assert (
        "% digits, mlp, validation 300.0, s_avuc: beta of s_avuc = 2.0, of 3 tried "
        "(ECE 2.00%, Accuracy 95.00%, NLL 0.2000)" in after
    )


def test_csv_has_columns_of_it_only_where_something_was_tuned(bench):
    suite, out, frame = bench
    shown = table(with_choices(suite, out), frame, ["ece"])
    rows = list(csv.DictReader(io.StringIO(shown.to_csv())))
    (row, _) = [row for row in rows if row["method"] == "s_avuc"]
    assert row["tuned"] == "threshold of s_avuc = 0.1; beta of s_avuc = 2.0"
    assert (row["tried"], row["tuned_by"]) == ("5", "ece")
    assert float(row["tuned_value"]) == pytest.approx(0.02)
    assert float(row["tuned_accuracy"]) == pytest.approx(0.95)
    assert float(row["tuned_nll"]) == pytest.approx(0.2)
    assert {row["tuned"] for row in rows if row["method"] == "cross_entropy"} == {""}
    plain = table(with_choices(suite, out), frame, ["ece"], methods=["cross_entropy"])
    assert "tuned" not in plain.to_csv()
    assert "chosen" not in plain.to_markdown() + plain.to_html() + plain.to_latex()


def test_a_candidate_that_failed_is_counted(tmp_path):
    suite, store = Suite.parse(SUITE), Store(tmp_path / "store")
    done = tune_suite(suite, tmp_path, run_that_loses(store, "threshold=0.1"))
    text = table(done, store.frame(), ["ece"]).to_markdown()
    assert "| threshold of s_avuc | 0.5 | 2 (1 failed) |" in text
    assert "| beta of s_avuc | 2.0 | 3 |" in text


def test_settings_of_a_recipe_and_of_the_run(tmp_path):
    text = SUITE[: SUITE.index("tune:")].replace("cross_entropy+s_avuc", "brier, recipe: mixup")
    suite = Suite.parse(
        text
        + "tune:\n  settings:\n    - {name: recipe.alpha, values: [0.2, 0.4]}\n"
        + "    - {name: nesterov, values: [true, false]}\n"
    )
    store = Store(tmp_path / "store")

    def run(specs):
        for spec in specs:
            value = 0.1 if spec.config.recipe_options.get("alpha") == 0.4 else 0.2
            value -= 0.05 * spec.config.nesterov
            values = {"accuracy": 0.9, "nll": value, "ece": value}
            rows = [make_row(spec, part="validation", metric=n, value=v) for n, v in values.items()]
            store.add(spec.key, rows)
        return []

    shown = table(tune_suite(suite, tmp_path, run), store.frame(), ["ece"]).to_markdown()
    assert "| s_avuc | recipe.alpha | 0.4 | 2 |" in shown
    assert "| cross_entropy | nesterov | True | 2 |" in shown
    assert "| cross_entropy | recipe.alpha" not in shown


def test_the_page_says_it_once(bench):
    suite, out, frame = bench
    page = render_page(with_choices(suite, out), frame)
    assert page.count('<table class="bench chosen">') == 1
    assert page.count('<h2 id="chosen-heading">Chosen settings</h2>') == 1
    assert "<td>threshold of s_avuc</td><td>0.1</td><td>2</td>" in page
    plain = Suite.parse(SUITE[: SUITE.index("tune:")])
    without = render_page(plain, frame)
    assert 'id="chosen"' not in without
    assert "Chosen settings" not in without


def test_what_is_not_chosen_yet_is_not_told(tmp_path):
    suite, store = Suite.parse(SUITE), Store(tmp_path / "store")
    assert with_choices(suite, tmp_path).choices == ()
    text = table(with_choices(suite, tmp_path), store.frame(), ["ece"]).to_markdown()
    assert "chosen" not in text


def test_the_commands_say_it(bench):
    from calibrant.cli import app

    _, out, _ = bench
    result = CliRunner().invoke(app, ["bench", "table", str(out), "-m", "ece"])
    assert "| s_avuc | beta of s_avuc | 2.0 | 3 | 2.00 |" in result.output
    result = CliRunner().invoke(app, ["bench", "report", str(out)])
    assert result.exit_code == 0, result.output
    assert "<td>beta of s_avuc</td>" in (out / "report.html").read_text(encoding="utf-8")
