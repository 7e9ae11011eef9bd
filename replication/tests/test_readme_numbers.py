"""README numbers come from the results and are caught when they drift."""

from __future__ import annotations

import json
import re

import pytest

from calibrant.bench import Store, make_row
from replication import make_results, table_2
from replication.claims.outcome import STATUSES
from replication.claims.writers import format_markdown
from replication.readme_numbers import PageNumbers, rewrite_pages
from replication.stored import RESULTS, StoredResults
from replication.take_results import take_results
from tests.helpers.bench_frames import frame_of, small

pytestmark = pytest.mark.slow  # claims are judged by `make test-all`

VALUES = {
    "cross_entropy": [0.033, 0.034, 0.032],
    "acls": [0.013, 0.0138, 0.0121],
    ("acls", "temperature"): [0.01, 0.01, 0.0103],
}


@pytest.fixture
def root(tmp_path):
    suite = small()
    store = Store(tmp_path / "replication" / "results" / "store")
    frame = frame_of(suite, VALUES)
    for key, rows in frame.groupby("key"):
        store.add(str(key), rows.to_dict("records"))
    for method, spec in suite.specs:
        if method in VALUES:  # as the runner marks what is measured
            marks = (
                make_row(spec, part=part, metric="measured", value=1.0, calibrator=calibrator)
                for part, calibrator in spec.wanted
            )
            store.add(spec.key, list(marks))
    (tmp_path / "replication" / "results" / "suites").mkdir()
    (tmp_path / "replication" / "results" / "suites" / "small.yaml").write_text(
        suite.text, encoding="utf-8"
    )
    return tmp_path


def page(root, text):
    (root / "README.md").write_text(text, encoding="utf-8")


def read(root):
    return (root / "README.md").read_text(encoding="utf-8")


def test_numbers_are_made_and_checked(root, capsys):
    marker = "<!-- results:value suite=small method=acls metric=ece data=cifar10 -->"
    page(root, f"ECE {marker}?<!-- /results -->% and text.\n")
    assert rewrite_pages(root, check=True) == 1
    assert "README.md: drifted" in capsys.readouterr().out
    assert "?" in read(root)
    assert rewrite_pages(root) == 0
    assert read(root) == f"ECE {marker}1.30 ± 0.05<!-- /results -->% and text.\n"
    assert rewrite_pages(root, check=True) == 0
    page(root, read(root).replace("1.30", "1.20"))
    assert rewrite_pages(root, check=True) == 1


def test_trainings_and_splits_of_files_are_told_apart(root):
    marks = [f"<!-- results:runs what={what} -->" for what in ("all", "trained", "split")]
    page(root, "|".join(f"{mark}<!-- /results -->" for mark in marks))
    rewrite_pages(root)
    texts = [part.split("-->", 1)[1] for part in read(root).split("<!-- /results -->")[:3]]
    assert texts == ["6", "6", "0"]


def test_the_kinds_of_numbers(root):
    page(
        root,
        "<!-- results:value suite=small method=acls metric=ece calibrator=temperature what=mean -->"
        "<!-- /results -->|<!-- results:runs suite=small --><!-- /results -->|"
        "<!-- results:table suite=small metrics=ece methods=cross_entropy;acls data=cifar10 -->"
        "<!-- /results -->",
    )
    rewrite_pages(root)
    value, runs, shown = (
        part.split("-->", 1)[1] for part in read(root).split("<!-- /results -->|")
    )
    assert value == "1.01"
    assert runs == "6 of 12"
    assert "| acls | **1.30 ± 0.05**+ | 1.01 ± 0.01 |" in shown  # alone in its column
    before = read(root)
    rewrite_pages(root)
    assert read(root) == before


def test_differences_and_single_seeds(root):
    """Means apart, without a sign; by a method, or by what comes after it."""
    of = "results:difference suite=small metric=ece"
    marks = [
        f"{of} method=acls against=cross_entropy",
        f"{of} method=cross_entropy against=acls",
        f"{of} method=acls against=acls to=temperature",
        "results:value suite=small method=acls metric=ece what=seeds",
    ]
    page(root, "|".join(f"<!-- {mark} --><!-- /results -->" for mark in marks))
    rewrite_pages(root)
    texts = [part.split("-->", 1)[1] for part in read(root).split("<!-- /results -->")[:4]]
    means = {name: sum(VALUES[name]) / 3 for name in ("acls", "cross_entropy")}
    calibrated = sum(VALUES["acls", "temperature"]) / 3
    apart = f"{100 * abs(means['acls'] - means['cross_entropy']):.2f}"
    assert texts[:2] == [apart, apart]
    assert texts[2] == f"{100 * abs(means['acls'] - calibrated):.2f}"
    first, two, three = (f"{100 * value:.2f}" for value in VALUES["acls"])
    assert texts[3] == f"{first}, {two} and {three}"


def test_claims_and_calibrators_are_counted(root, monkeypatch):
    page(
        root,
        "<!-- results:best suite=small metric=ece calibrator=temperature --><!-- /results -->|"
        "<!-- results:claim id=one --><!-- /results -->|"
        "<!-- results:claim id=one what=share --><!-- /results -->|"
        "<!-- results:claim id=one what=gain --><!-- /results -->",
    )

    class Outcome:
        metric = "ece"

        def __init__(self, name, status, reason, effect):
            self.claim = type("Claim", (), {"id": name})
            self.status, self.reason, self.effect = status, reason, effect

    held = Outcome("one", "seen here", "ahead in 7 of 9 (and 2 of 3)", 0.0263)
    outcomes = [held, Outcome("two", "not seen here", "", None)]
    monkeypatch.setattr(PageNumbers, "outcomes", outcomes)
    rewrite_pages(root)
    texts = [part.split("-->", 1)[1] for part in read(root).split("<!-- /results -->")[:4]]
    # acls alone has figures after a temperature
    assert texts == ["1 of 1", "seen here", "7 of 9", "2.63"]
    for wrong, says in (
        ("claim id=two what=share", "id=two what=share"),
        ("claim id=two what=gain", "id=two what=gain"),
        ("claim id=one what=mean", "none of status, share, gain"),
        ("claim id=three", "found none"),
        ("best suite=small metric=ece calibrator=vector", "no ece of vector in small"),
    ):
        page(root, f"<!-- results:{wrong} --><!-- /results -->")
        with pytest.raises(SystemExit, match=says):
            rewrite_pages(root)


def test_mistakes_are_told(root):
    page(root, "<!-- results:value suite=small method=none metric=ece --><!-- /results -->")
    with pytest.raises(SystemExit, match="0 figures match none"):
        rewrite_pages(root)
    page(root, "<!-- results:valeu suite=small --><!-- /results -->")
    with pytest.raises(SystemExit, match="is none of value"):
        rewrite_pages(root)
    page(root, "<!-- results:value suite=small -->3")
    with pytest.raises(SystemExit, match="not closed"):
        rewrite_pages(root)


def test_our_own_numbers_have_not_drifted():
    assert rewrite_pages(check=True) == 0


@pytest.mark.filterwarnings("ignore:inverse_focal")
def test_the_page_of_table_2_has_not_drifted():
    results = StoredResults()
    page = (RESULTS / table_2.PAGE).read_text(encoding="utf-8")
    assert table_2.Table2(results.get_results(table_2.SUITE)).write() == page


def test_every_claim_has_all_five_counts_and_its_differences():
    text = (RESULTS / "claims.md").read_text(encoding="utf-8")
    assert format_markdown(StoredResults().outcomes) in text
    for status in STATUSES:
        assert f" {status}" in text.splitlines()[2]


@pytest.mark.parametrize("page", sorted(RESULTS.rglob("*.md")), ids=lambda page: page.stem)
def test_links_and_figures_of_the_pages_exist(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", text)
    assert [link for link in links if link and not (page.parent / link).exists()] == []


def test_tables_claims_and_pages_are_made_of_the_store(root, monkeypatch):
    monkeypatch.setattr(make_results, "list_suites", list)
    make_results.make_results(root / "replication" / "results")
    names = {
        str(path.relative_to(root / "replication" / "results"))
        for path in (root / "replication" / "results").rglob("*.*")
    }
    assert {"tables/small.md", "tables/small.csv", "tables/small.tex", "small.html"} <= names
    assert "**1.30 ± 0.05**+" in (root / "replication/results/tables/small.md").read_text(
        encoding="utf-8"
    )
    claims = json.loads((root / "replication/results/claims.json").read_text(encoding="utf-8"))
    assert len(claims["outcomes"]) >= 90
    assert {outcome["status"] for outcome in claims["outcomes"]} == {"not decided"}
    assert "no figures yet" in (root / "replication/results/claims.md").read_text(encoding="utf-8")


def test_results_of_a_bench_are_taken_in_once(root, tmp_path):
    suite = small(name="more", data="cifar100")
    bench = Store(tmp_path / "bench" / "store")
    for key, rows in frame_of(suite, VALUES).groupby("key"):
        bench.add(str(key), rows.to_dict("records"))
    store = Store(root / "replication" / "results" / "store")
    before, count = store.frame(), len(store.files())
    take_results(tmp_path / "bench", root / "replication" / "results")
    after = Store(root / "replication" / "results" / "store")
    assert len(after.files()) == count + 1
    assert len(after.frame()) == len(before) + len(bench.frame())
    with pytest.raises(SystemExit, match="has no new results"):
        take_results(root / "replication" / "results", root / "replication" / "results")


def test_a_combination_is_told_beside_each_paper(tmp_path):
    suite = small()
    figures = {
        "cross_entropy": (0.93, 0.23, 0.033),
        "acls": (0.931, 0.22, 0.02),
        "mbls": (0.929, 0.19, 0.004),
        "focal": (0.8, 0.1, 0.001),  # loses too much accuracy
    }
    parts = ("validation", "test")
    runs = {
        (name, "none", metric, part): [value] * 3
        for name, values in figures.items()
        for metric, value in zip(("accuracy", "nll", "ece"), values, strict=True)
        for part in parts
    }
    runs["mbls", "none", "chance_ece", "test"] = [0.0046] * 3
    store = Store(tmp_path / "store")
    for key, rows in frame_of(suite, runs).groupby("key"):
        store.add(str(key), rows.to_dict("records"))
    text = PageNumbers(tmp_path).write_combination(data="cifar10", model="resnet50")
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert lines[0] == (
        "| chosen | `mbls(margin=6)` | – | 92.90 ± 0.00 | 0.1900 ± 0.0000 | 0.40 ± 0.00 | 0.46 |"
    )
    assert lines[1].startswith("| chosen by NLL | ")
    assert lines[2].startswith("| cross_entropy | `cross_entropy` | – | 93.00")
    assert lines[3].startswith("| acls | `acls(margin=6)` | – |")
    assert lines[3].endswith("| – |")
    assert len(lines) == 4
    assert "0.40%, is below that of every method of the five papers" in text
    assert "it would show 0.46% on average, by chance" in text
    with pytest.raises(SystemExit, match="0 protocols match, not one"):
        PageNumbers(tmp_path).write_combination(data="cifar100")
    numbers = PageNumbers(tmp_path)
    assert numbers.write_combination(data="cifar10", what="candidates") == "3"  # focal is none
    assert numbers.write_combination(data="cifar10", what="lowest") == "0.40"
    assert numbers.write_combination(data="cifar10", what="verdict") in text
    with pytest.raises(SystemExit, match="none of candidates, lowest"):
        numbers.write_combination(data="cifar10", what="chosen")


def test_how_far_test_rows_lie_from_held_out_ones(tmp_path):
    suite = small(data="cifar10, cifar100")
    higher = {"cross_entropy": 0.01, "acls": 0.03}
    runs = {(name, "none", "accuracy", "test"): [0.9, 0.8, 0.7] for name in higher}
    runs |= {
        (name, "none", "accuracy", "validation"): [0.9 - more, None, 0.7 - more]
        for name, more in higher.items()
    }
    store = Store(tmp_path / "store")
    for key, rows in frame_of(suite, runs).groupby("key"):
        store.add(str(key), rows.to_dict("records"))
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "small.yaml").write_text(suite.text, encoding="utf-8")
    numbers = PageNumbers(tmp_path)
    asked = {"suite": "small", "metric": "accuracy", "data": "cifar10"}
    assert numbers.write_gap(**asked) == "+2.00"  # the seed without validation rows is left out
    assert numbers.write_gap(**asked, part="validation", less="test") == "−2.00"
    assert numbers.write_gap(**asked, method="cross_entropy") == "+1.00"
    assert numbers.write_gap(**asked, method="acls") == "+3.00"
    with pytest.raises(SystemExit, match="no accuracy of ood and validation in small"):
        numbers.write_gap(**asked, part="ood")
