"""The page of a suite: complete in itself, and escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from calibrant.bench.suite.suite import Suite
from calibrant.bench.tables.page import Section, describe_coverage, render_page, write_page
from calibrant.bench.tables.results import collect_results
from calibrant.core.errors import InputError
from tests.helpers.bench_frames import PUBLISHED, frame_of, small

VALUES = {
    "cross_entropy": [0.033, 0.034, 0.032],
    "acls": [0.013, 0.0138, 0.0121],
    "mbls": [0.014, None, None],
    ("acls", "temperature"): [0.01, 0.01, 0.012],
    ("acls", "vector"): [0.01, 0.01, 0.012],
    ("acls", "none", "ece", "test:fog:3"): [0.1, 0.11, 0.12],
    ("acls", "none", "accuracy"): [0.93, 0.94, 0.95],
    ("acls", "none", "ood_auroc", "ood:cifar100"): [0.9, 0.91, 0.92],
}
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><style>a{}</style><script>x()</script></svg>'


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text, self.ids = [], [], "", set()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *each) for each in attrs]
        self.ids |= {value for name, value in attrs if name == "id"}

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def page():
    suite = small(
        name="acls",
        more=f"published: {{file: {PUBLISHED}, paper: acls, tables: [Table 3]}}\n"
        "after: [shift, ood: {calibrators: [vector]}]",
    )
    text = render_page(
        suite,
        frame_of(suite, VALUES, seconds=31.0),
        pictures={"A <b>picture": SVG},
        sections=[Section("more", "More & more", "What else there is.", "<p>as <i>it</i> is</p>")],
    )
    parsed = Page()
    parsed.feed(text)
    return text, parsed


def test_tables_sections_and_coverage_are_there(page):
    _, parsed = page
    for name in ("answer", "figures", "views", "tables", "more", "pictures", "coverage", "suite"):
        assert name in parsed.ids
    assert "7 of 12 runs are done." in parsed.text
    assert "cifar10, resnet50: mbls (1 of 3), focal" in parsed.text
    for title in ("Figures of the test rows", "ECE after every calibrator", "Under corruptions"):
        assert title in parsed.text
    assert "Rows of another data set" in parsed.text
    assert "More & more" in parsed.text
    assert "i" in parsed.tags
    assert "1.12" in parsed.text  # the published figure


def test_the_answer_comes_first_then_its_table_and_details_last(page):
    text, parsed = page
    places = [text.index(f'id="{name}"') for name in ("answer", "figures", "views", "details")]
    assert places == sorted(places)
    assert text.index('id="coverage"') > text.index('id="tables"')
    headline = parsed.text.index("acls, then temperature has the lowest mean ECE: 1.07 ± 0.07%")
    assert headline < parsed.text.index("Figures of the test rows")


def test_links_within_the_page_lead_somewhere(page):
    _, parsed = page
    links = [value for _, name, value in parsed.attributes if name == "href"]
    assert links
    assert all(link.startswith("#") and link[1:] in parsed.ids for link in links)


def test_nothing_is_fetched_and_only_its_own_script_runs(page):
    text, parsed = page
    assert parsed.tags.count("script") == 1
    sources = [value for _, name, value in parsed.attributes if name in ("src", "srcset")]
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    policy = next(
        value for _, name, value in parsed.attributes if name == "content" and "src" in value
    )
    assert "default-src 'none'" in policy
    assert "*" not in policy
    assert "http" not in policy
    for tag in ("style", "script"):
        inside = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not [
        each for each in parsed.attributes if each[1] == "style" or each[1].startswith("on")
    ]


def test_pictures_are_images(page):
    _, parsed = page
    sources = [value for tag, name, value in parsed.attributes if (tag, name) == ("img", "src")]
    assert base64.b64decode(sources[-1].partition(",")[2]).decode() == SVG
    assert "A <b>picture" in parsed.text


def test_hostile_names_stay_text():
    name = "<img src=x onerror=alert(1)>"
    suite = Suite.parse(
        f'name: "{name}"\nabout: "{name}"\ndefaults: {{model: resnet18, data: cifar10}}\n'
        f'seeds: [0]\nmethods: {{cross_entropy: {{}}, "{name}": {{loss: focal}}}}\n'
    )
    parsed = Page()
    parsed.feed(render_page(suite, frame_of(suite, {"cross_entropy": [0.1], name: [0.2]})))
    assert "img" not in parsed.tags
    assert name in parsed.text


def test_a_suite_without_runs_has_a_page():
    suite = small(name="acls")
    frame = frame_of(suite, VALUES).iloc[:0]
    text = render_page(suite, frame)
    assert "0 of 12 runs are done." in text


def test_coverage_counts_runs_once():
    suite = small()
    coverage = describe_coverage(collect_results(suite, frame_of(suite, VALUES)))
    assert coverage["line"] == "7 of 12 runs are done."
    assert coverage["percent"] == pytest.approx(58.3)


def test_written_whole_and_the_same_again(tmp_path):
    suite = small()
    frame = frame_of(suite, VALUES)
    path = write_page(suite, frame, tmp_path / "new" / "bench.html")
    first = path.read_bytes()
    assert write_page(suite, frame, path).read_bytes() == first
    assert [entry.name for entry in path.parent.iterdir()] == ["bench.html"]
    with pytest.raises(InputError, match="is a folder"):
        write_page(suite, frame, tmp_path)
