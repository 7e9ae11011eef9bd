"""Tables: which figures, which marks, and four ways of writing them."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser

import pandas as pd
import pytest

from calibrant.bench import read_published
from calibrant.bench.suite.suite import Suite
from calibrant.bench.tables.chapters import make_chapters
from calibrant.bench.tables.formatting import (
    canonical_name,
    heading,
    higher_is_better,
    number,
    with_error,
)
from calibrant.bench.tables.results import collect_results
from calibrant.bench.tables.tabulate import table
from calibrant.core.errors import InputError
from tests.helpers.bench_frames import PUBLISHED, frame_of, small

CLEAR = {
    "cross_entropy": [0.0330, 0.0340, 0.0320],
    "acls": [0.0130, 0.0138, 0.0121],
    "mbls": [0.0140, 0.0131, 0.0136],
    "focal": [0.0431, 0.0439, 0.0420],
}


def entries(made, block=0):
    return dict(made.blocks[block].rows)


def test_means_best_tied_and_tests_against_the_baseline():
    suite = small()
    made = table(suite, frame_of(suite, CLEAR), "ece")
    rows = entries(made)
    assert rows["acls"][0].mean.mean == pytest.approx((0.0130 + 0.0138 + 0.0121) / 3)
    assert rows["acls"][0].best
    assert rows["mbls"][0].tied
    assert not rows["focal"][0].tied
    assert rows["acls"][0].verdict is True
    assert rows["focal"][0].verdict is False
    assert rows["cross_entropy"][0].verdict is None
    assert rows["cross_entropy"][0].p is None


def test_holm_is_over_the_methods_of_the_column():
    suite = small()
    rows = entries(table(suite, frame_of(suite, CLEAR), "ece"))
    raw = {name: rows[name][0].difference.p for name in ("acls", "mbls", "focal")}
    smallest = min(raw, key=raw.get)
    assert rows[smallest][0].p == pytest.approx(3 * raw[smallest])
    assert max(rows[name][0].p for name in raw) >= max(raw.values())


def test_markdown_shows_marks_and_what_lacks():
    suite = small()
    text = table(
        suite, frame_of(suite, {**CLEAR, "focal": [0.05, None, 0.06]}), "ece"
    ).to_markdown()
    assert "| acls | **1.30 ± 0.05**+ |" in text
    assert re.search(r"\| mbls \| \*1\.36 ± 0\.03\*\+ \|", text)
    assert "| focal | 5.50 ± 0.50 (2 of 3 runs) |" in text
    assert "Fewer than 3 seeds are not tested." in text
    assert "+ better, − worse than cross_entropy" in text
    assert "ECE, % ↓" in text


def test_a_method_without_runs_says_so():
    suite = small()
    text = table(suite, frame_of(suite, {**CLEAR, "focal": [None] * 3}), "ece").to_markdown()
    assert "| focal |" not in text
    assert "No figures (not run yet, or failed): focal" in text


def test_a_method_that_diverged_says_so():
    from calibrant.bench.tables.page import describe_coverage

    suite = small()
    lost = {("focal", "diverged", "diverged", "run"): [1.0, None, 1.0]}
    frame = frame_of(suite, {**CLEAR, "focal": [None] * 3, **lost})
    text = table(suite, frame, "ece").to_markdown()
    assert "Diverged: focal." in text
    assert "No figures" not in text
    (line,) = describe_coverage(collect_results(suite, frame))["lacking"]
    assert line.endswith("focal (2 diverged)")


def test_what_is_so_of_a_whole_row_is_said_once():
    suite = small()
    values = {
        (name, "none", metric): [0.5, 0.51, None] for name in CLEAR for metric in ("nll", "ece")
    }
    values["acls", "none", "ece"] = [0.1, None, None]
    text = table(suite, frame_of(suite, values), ["nll", "ece"]).to_markdown()
    (row,) = [line for line in text.splitlines() if line.startswith("| mbls")]
    assert row.count("(2 of 3 runs)") == 1
    (row,) = [line for line in text.splitlines() if line.startswith("| acls")]
    assert row.count("(2 of 3 runs)") == row.count("(1 of 3 runs)") == 1


def test_one_seed_says_so_and_is_not_tested():
    suite = small(seeds="4")
    made = table(
        suite, frame_of(suite, {name: [values[0]] for name, values in CLEAR.items()}), "ece"
    )
    text = made.to_markdown()
    assert "1.30** (1 seed)" in text
    assert "±" not in text.split("Mean ±")[0]
    assert all(row[0].p is None and not row[0].tied for row in entries(made).values())


def test_before_and_after_a_calibrator():
    suite = small()
    values = dict(CLEAR) | {(name, "temperature"): [0.011, 0.012, 0.013] for name in CLEAR}
    accuracy = {
        (name, after, "accuracy"): [0.93, 0.94, 0.95]
        for name in CLEAR
        for after in ("none", "temperature")
    }
    made = table(suite, frame_of(suite, values | accuracy))
    heads = [column.heading for column in made.columns]
    # Accuracy is not shown twice where the calibrator keeps it.
    assert heads == ["Accuracy, % ↑", "ECE, % ↓", "ECE, %, after temperature ↓"]
    assert entries(made)["acls"][2].mean.mean == pytest.approx(0.012)


@pytest.mark.parametrize("metric", ["chance_ece", "mean_entropy"])
def test_what_has_no_better_way_marks_none(metric):
    suite = small()
    values = {(name, "none", metric): [0.1 + k, 0.11 + k, 0.1 + k] for k, name in enumerate(CLEAR)}
    made = table(suite, frame_of(suite, values), metric)
    assert not any(row[0].best or row[0].verdict is not None for row in entries(made).values())
    assert "↓" not in made.to_markdown()
    assert higher_is_better("chance_ece(num_bins=15)") is None
    assert canonical_name("chance_ece(num_bins=15)") == "chance_ece"


def test_higher_is_better_for_accuracy():
    suite = small()
    values = {
        (name, "none", "accuracy"): [0.90 + k / 100, 0.91 + k / 100, 0.90 + k / 100]
        for k, name in enumerate(CLEAR)
    }
    rows = entries(table(suite, frame_of(suite, values), "accuracy"))
    assert rows["focal"][0].best
    assert rows["focal"][0].verdict is True


def test_published_figures_stand_beside_ours():
    suite = small(more=f"published: {{file: {PUBLISHED}, paper: acls, tables: [Table 3]}}")
    made = table(suite, frame_of(suite, CLEAR), "ece")
    assert entries(made)["acls"][0].published.value == pytest.approx(0.0112)
    text = made.to_markdown()
    assert "| method | ECE, % ↓ | published |" in text
    assert "| acls | **1.30 ± 0.05**+ | 1.12 |" in text
    assert (
        "published"
        not in table(
            small(model="resnet18"), frame_of(small(model="resnet18"), CLEAR), "ece"
        ).to_markdown()
    )


def test_published_figures_of_another_network_say_so():
    more = f"""
published:
  - {{file: {PUBLISHED}, paper: mac-cal, tables: [Table 1], model: resnet50}}
  - {{file: {PUBLISHED}, paper: acls, tables: [Table 3], model: {{resnet18: resnet101}}}}
"""
    suite = small(model="resnet18", more=more)
    made = table(suite, frame_of(suite, CLEAR), ["ece", "accuracy"])
    rows = entries(made)
    first, second = (row.published.figure for row in rows["acls"])
    assert (first.paper, first.table, first.model, first.metric) == (
        "mac-cal",
        "Table 1",
        "resnet50",
        "ece",
    )
    assert (second.paper, second.model, second.metric) == ("acls", "resnet101", "accuracy")
    assert {first, second} <= set(read_published(PUBLISHED))
    assert list(made.sources.values()) == ["a", "b"]
    text = made.to_markdown()
    assert f"{100 * first.value:.2f} [a]" in text
    assert "([a] mac-cal, Table 1, of resnet50; [b] acls, Table 3, of resnet101)" in text
    line = next(row for row in csv.DictReader(made.to_csv().splitlines()) if row["paper"])
    assert line["paper_model"] == "resnet50"


def test_published_errors_are_shown():
    text = """
name: soft
defaults: {model: wrn_28_10, data: cifar100}
seeds: [0]
methods: {cross_entropy: {}, focal: {loss: focal}}
published: {file: FILE, paper: soft-calibration, tables: [Table 2]}
"""
    suite = Suite.parse(text.replace("FILE", str(PUBLISHED)))
    frame = frame_of(
        suite, {(m, "none", "ece(binning=mass,order=2)"): [0.05] for m in suite.methods}
    )
    shown = table(suite, frame, "adaptive_ece(order=2)").to_markdown()
    assert "9.10 ± 0.14" in shown
    assert "4.66 ± 0.13" in shown


def test_a_block_for_each_data_set():
    suite = small(data="cifar10, cifar100")
    made = table(suite, frame_of(suite, CLEAR), "ece")
    assert [block.name for block in made.blocks] == ["cifar10, resnet50", "cifar100, resnet50"]


def test_settings_that_vary_make_cells():
    text = """
name: lengths
defaults: {model: resnet18, data: cifar10}
grid: {epochs: [10, 20]}
seeds: [0, 1]
methods: {cross_entropy: {}}
"""
    suite = Suite.parse(text)
    frame = frame_of(suite, {"cross_entropy": lambda spec: spec.config.epochs / 1000})
    made = table(suite, frame, "ece", down="method")
    assert made.by == ("data", "model", "epochs")
    assert [entries(made, block)["cross_entropy"][0].mean.mean for block in (0, 1)] == [0.01, 0.02]


def test_rows_may_be_calibrators():
    suite = small()
    values = {
        ("acls", after): [0.03 / k, 0.031 / k, 0.032 / k]
        for k, after in enumerate(("none", "temperature", "isotonic"), 1)
    }
    frame = frame_of(suite, values)
    assert list(entries(table(suite, frame, "ece", methods=["acls"]))) == ["none", "temperature"]
    every = ["none", "temperature", "isotonic"]
    made = table(suite, frame, "ece", methods=["acls"], calibrators=every)
    assert made.down == "calibrator"
    assert list(entries(made)) == every
    # Marks compare the suite's calibrators, and isotonic is not among them.
    assert entries(made)["temperature"][0].best
    assert not entries(made)["isotonic"][0].best
    assert entries(made)["isotonic"][0].verdict is True
    assert entries(made)["isotonic"][0].verdict is True
    (row,) = [
        row for row in csv.DictReader(io.StringIO(made.to_csv())) if row["calibrator"] == "isotonic"
    ]
    assert row["method"] == "acls"


def test_calibrators_of_another_suite_of_the_same_runs_are_told_there():
    """Second stages, and what is on top of them, are named as the results name them."""
    more = """after:
  - mac_cal_head: {gamma: 0.9, precision: bf16, then: [temperature], crossfit: true}
  - ood: {calibrators: [vector]}"""
    suite = small(more=more)
    head = "mac_cal_head(gamma=0.9)"
    own = ["none", "temperature", head, f"{head}+temperature", "vector"]
    others = ["isotonic", "mac_cal_head", "mac_cal_head(gamma=0.8)", "hard_classes:even"]
    names = enumerate([*others, *own[::-1]], 1)
    frame = frame_of(suite, {("acls", name): [0.03 / k, 0.04 / k, 0.05 / k] for k, name in names})
    results = collect_results(suite, frame)
    assert list(results.own_calibrators) == own
    assert set(results.calibrators) == {*own, *others[:3]}  # the last is a look into a network
    assert list(entries(table(suite, frame, "ece", methods=["acls"]))) == own
    (every,) = [chapter for chapter in make_chapters(suite, frame) if "every" in chapter.title]
    assert {column.calibrator for column in every.table.columns} == set(own)


def test_figures_come_in_the_order_of_the_suite():
    suite = small(data="cifar100, cifar10")
    frame = frame_of(suite, CLEAR).sample(frac=1.0, random_state=0)
    results = collect_results(suite, frame)
    order = [(cell, name) for cell in results.cells for name in suite.methods]
    assert list(results.values("ece")) == order
    assert [cell[0] for cell, _ in order[::4]] == ["cifar100", "cifar10"]


def test_parts_by_pattern_are_averaged():
    suite = small()
    values = {("acls", "none", "ece", f"test:fog:{k}"): [0.01 * k] * 3 for k in (1, 3)}
    values |= {("acls", "none", "ece", "test"): [0.9] * 3}
    made = table(
        suite, frame_of(suite, values), "ece", methods=["acls"], part="test:*", down="method"
    )
    assert entries(made)["acls"][0].mean.mean == pytest.approx(0.02)


def test_a_seed_without_all_parts_is_left_out():
    suite = small()
    values = {
        ("acls", "none", "ece", "test:fog:1"): [0.01, 0.01, 0.01],
        ("acls", "none", "ece", "test:fog:3"): [0.03, 0.03, None],
    }
    made = table(
        suite, frame_of(suite, values), "ece", methods=["acls"], part="test:*", down="method"
    )
    assert entries(made)["acls"][0].mean.count == 2


def test_csv_holds_plain_numbers():
    suite = small(more=f"published: {{file: {PUBLISHED}, paper: acls, tables: [Table 3]}}")
    rows = list(csv.DictReader(io.StringIO(table(suite, frame_of(suite, CLEAR), "ece").to_csv())))
    by_method = {row["method"]: row for row in rows}
    assert float(by_method["acls"]["mean"]) == pytest.approx(sum(CLEAR["acls"]) / 3)
    assert by_method["acls"]["best"] == "1"
    assert by_method["acls"]["seeds"] == by_method["acls"]["planned"] == "3"
    assert float(by_method["acls"]["published"]) == 0.0112
    assert by_method["cross_entropy"]["p"] == ""
    assert 0 < float(by_method["focal"]["p"]) <= float(by_method["focal"]["p_holm"])


def test_latex_is_escaped_and_square():
    suite = small()
    text = table(suite, frame_of(suite, CLEAR), "ece").to_latex()
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0]
    assert r"cross\_entropy" in body
    assert r"\textbf{1.30 $\pm$ 0.05}$^{+}$" in body
    assert not re.search(r"(?<!\\)[_%#]", body)
    assert not re.search("[±−↑↓]", body)
    rows = [line for line in body.splitlines() if "&" in line]
    assert {line.count(" & ") for line in rows} == {1}
    assert all(line.endswith(r"\\") for line in rows)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1


class Seen(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag != "wbr":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_html_is_whole_and_escaped():
    suite = Suite.parse(
        "name: odd\ndefaults: {model: resnet18, data: cifar10}\nseeds: [0]\n"
        'methods: {cross_entropy: {}, "<script>x</script>|*": {loss: focal}}\n'
    )
    frame = frame_of(suite, {name: [0.01] for name in suite.methods})
    seen = Seen()
    seen.feed(table(suite, frame, "ece").to_html())
    assert not seen.open
    assert "script" not in seen.tags
    assert "<script>x</script>" in seen.text
    assert "\\|\\*" in table(suite, frame, "ece").to_markdown()


def test_names_that_do_not_exist_are_errors():
    suite = small()
    frame = frame_of(suite, CLEAR)
    with pytest.raises(InputError, match="no metric is called 'eec'"):
        table(suite, frame, "eec")
    with pytest.raises(InputError, match="no method 'alcs'"):
        table(suite, frame, "ece", methods=["alcs"])
    with pytest.raises(InputError, match="needs a single method"):
        table(suite, frame, "ece", down="calibrator")


def test_runs_of_other_suites_are_not_counted():
    suite, other = small(), small(seeds="7, 8, 9")
    import pandas as pd

    frame = pd.concat([frame_of(suite, CLEAR), frame_of(other, {"acls": [0.9] * 3})])
    assert entries(table(suite, frame, "ece"))["acls"][0].mean.mean < 0.02


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("ece", 0.0331, "3.31"),
        ("accuracy", 0.93456, "93.46"),
        ("classwise_ece(binning=mass)", 0.00091, "0.091"),
        ("nll", 0.17512, "0.1751"),
        ("train_seconds", 31.04, "31.0"),
        ("aurc", 0.00101, "0.00101"),
        ("changed", 12.0, "12"),
        ("ece", None, "–"),
        ("nll", float("inf"), "∞"),
    ],
)
def test_one_way_of_writing_a_figure(metric, value, text):
    assert number(metric, value) == text


def test_signs_errors_and_headings():
    assert number("ece", -0.004, signed=True) == "−0.40"
    assert with_error("ece", 0.0331, 0.0008) == "3.31 ± 0.08"
    assert with_error("ece", 0.0331, None) == "3.31"
    assert heading("accuracy") == "Accuracy, % ↑"
    assert heading("adaptive_ece(order=2)") == "Adaptive ECE (order=2), % ↓"
    assert higher_is_better("parameter:temperature") is None


def test_one_spelling_of_metrics_and_calibrators():
    assert canonical_name("ece(order=1, num_bins=15)") == "ece"
    assert canonical_name("classwise_ece(binning='mass')") == "classwise_ece(binning=mass)"
    assert (
        canonical_name("temperature(on=train,objective=ece)")
        == "temperature(objective=ece,on=train)"
    )
    assert canonical_name("ece at gamma=0.9") == "ece at gamma=0.9"


SHIFTED = {
    "cross_entropy": [0.03, 0.04, 0.05],
    **{
        ("cross_entropy", "none", "ece", f"test:{kind}:{severity}"): [add + 0.1 * severity] * 3
        for kind, add in (("fog", 0.0), ("snow", 0.02))
        for severity in (1, 5)
    },
    ("cross_entropy", "none", "ood_auroc", "ood:cifar100"): [0.9, 0.91, 0.92],
}


def test_several_parts_stand_side_by_side_each_under_its_name():
    suite = small()
    made = table(suite, frame_of(suite, SHIFTED), "ece", part=["test", "test:*:1", "test:*:5"])
    heads = [column.heading for column in made.columns]
    assert heads == ["ECE, %, clean ↓", "ECE, %, severity 1 ↓", "ECE, %, severity 5 ↓"]
    (block,) = made.blocks
    ((name, entries),) = block.shown
    assert name == "cross_entropy"
    means = [entry.mean.mean for entry in entries]
    assert means == pytest.approx([0.04, 0.11, 0.51])  # of the two kinds
    rows = list(csv.DictReader(io.StringIO(made.to_csv())))
    assert {row["part"] for row in rows} == {"test", "test:*:1", "test:*:5"}


def test_figures_of_two_data_sets_are_found_where_test_rows_are_asked_for():
    suite = small()
    made = table(suite, frame_of(suite, SHIFTED), ["ece", "ood_auroc"])
    ((_, entries),) = made.blocks[0].shown
    assert entries[1].mean.mean == pytest.approx(0.91)
    assert [column.part for column in made.columns] == ["test", "ood:*"]
    assert "clean" not in made.to_markdown()


def test_chapters_are_the_tables_there_is_something_for():
    suite = small(more="after: [shift, ood]")
    titles = [chapter.title for chapter in make_chapters(suite, frame_of(suite, SHIFTED))]
    assert titles == [
        "Figures of the test rows",
        "Under corruptions",
        "ECE by severity",
        "Rows of another data set",
    ]
    plain = {"cross_entropy": SHIFTED["cross_entropy"]}
    assert [chapter.title for chapter in make_chapters(suite, frame_of(suite, plain))] == titles[:1]
    assert make_chapters(suite, frame_of(suite, {})) == []
    other = small()  # the same runs, of which it asks less
    assert [chapter.title for chapter in make_chapters(other, frame_of(suite, SHIFTED))] == titles[
        :1
    ]


def test_time_is_of_runs_and_stands_beside_the_papers():
    text = """
name: timed
defaults: {model: resnet50, data: cifar10}
seeds: [0, 1, 2]
methods: {cross_entropy: {}, mac_cal: {recipe: mac_cal}}
published: {file: FILE, paper: mac-cal, tables: [Table 4]}
"""
    suite = Suite.parse(text.replace("FILE", str(PUBLISHED)))
    frame = frame_of(suite, {(m, "none", "ece"): [0.05, 0.04, 0.06] for m in suite.methods})
    rows = frame.assign(part="run", metric="train_seconds", value=100.0)
    made = table(suite, pd.concat([frame, rows]), "train_seconds")
    entry = entries(made)["mac_cal"][0]
    assert entry.mean.mean == 100
    assert entry.published.figure.table == "Table 4"


def test_a_calibrator_that_was_measured_under_shift_alone_can_be_asked_for():
    suite = small()
    frame = frame_of(suite, CLEAR)
    shifted = frame.assign(part="test:fog:3", calibrator="vector")
    made = table(suite, pd.concat([frame, shifted]), "ece", calibrators=["vector"], part="test:*")
    assert entries(made)["acls"][0].mean is not None
    with pytest.raises(InputError, match="no calibrator that was measured is called 'isotonic'"):
        table(suite, frame, "ece", calibrators=["isotonic"])
    with pytest.raises(InputError, match="no part that was measured is called 'test:snow:1'"):
        table(suite, frame, "ece", part="test:snow:1")
    with pytest.raises(InputError, match="no setting is called 'modle'"):
        table(suite, frame, "ece", by=["modle"])


def with_vector(suite, accuracy=0.93):
    after = {name: [value - 0.002 for value in values] for name, values in CLEAR.items()}
    values = {**CLEAR, **{(name, "temperature"): each for name, each in after.items()}}
    values |= {(name, "vector"): each for name, each in after.items()}
    values |= {(name, "levels", "nll"): each for name, each in after.items()}
    values |= {(name, "none", "accuracy"): [0.93] * 3 for name in CLEAR}
    values |= {(name, "vector", "accuracy"): [accuracy] * 3 for name in CLEAR}
    return frame_of(suite, values)


def test_calibrators_that_have_no_column_are_named_where_they_are_asked_for():
    suite = small()
    frame = with_vector(suite)
    line = "Also measured: after vector ("
    made = table(suite, frame, "ece", tell_more=True)
    assert f"{line}`--calibrator NAME` shows it)." in made.to_markdown()
    assert f'<p class="legend-line">{line}--calibrator NAME shows it).</p>' in made.to_html()
    assert "Also measured" not in made.to_latex() + made.to_csv()
    several = table(suite, frame, ["ece", "nll"], tell_more=True).to_markdown()
    assert "after vector, after levels (`--calibrator NAME` shows them)" in several
    # Results are published without it, and a table that shows all there is, is as it was.
    plain = table(suite, frame, "ece").to_markdown()
    assert "Also measured" not in plain
    for asked in (
        {"calibrators": ["none", "temperature", "vector"]},
        {"calibrators": ["none"]},
        {"metrics": "accuracy"},  # vector's is the one before
        {"down": "calibrator", "methods": ["acls"]},
    ):
        how = {"metrics": "ece", **asked}
        assert table(suite, frame, **how, tell_more=True) == table(suite, frame, **how)
    assert table(suite, with_vector(suite, 0.9), "accuracy", tell_more=True).more == ("vector",)


def test_accuracy_after_a_calibrator_alone_has_its_column():
    """Though it is the one before, which is not beside it."""
    suite = small()
    made = table(suite, with_vector(suite), "accuracy", calibrators=["vector"])
    assert [column.calibrator for column in made.columns] == ["vector"]
