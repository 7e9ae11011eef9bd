"""The documentation hangs together: links, titles, navigation, reference pages."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

import calibrant
from calibrant import calibrators, losses, metrics
from calibrant.training import recipes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ROOMS = {"losses": losses, "metrics": metrics, "calibrators": calibrators, "recipes": recipes}


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = load_script("build_docs")
reference = load_script("make_reference")


def list_navigation(entries):
    for entry in entries:
        if isinstance(entry, dict):
            for value in entry.values():
                yield from list_navigation(value) if isinstance(value, list) else [value]
        else:
            yield entry


def test_every_link_leads_to_a_file():
    missing = {
        page.relative_to(DOCS).as_posix(): targets
        for page in PAGES
        if (targets := build.list_missing_targets(page))
    }
    assert missing == {}


@pytest.mark.parametrize(
    "text", ["[gone](gone.md)", "[up](../gone/x.py#L3)", "[here](page.md#gone) [i](page.md#title)"]
)
def test_a_broken_link_is_found(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{text} and `[not](a.link)`\n")
    assert len(build.list_missing_targets(page)) == 1


def test_every_page_has_a_title():
    untitled = [
        page.relative_to(DOCS).as_posix()
        for page in PAGES
        if not re.search(r"\A(?:<!--.*?-->\n)?# \S", page.read_text(encoding="utf-8"))
    ]
    assert untitled == []


def test_navigation_names_every_page_but_those_of_methods():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = set(list_navigation(nav))
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES}
    methods = {name for name in pages if re.match(r"reference/\w+/(?!index)", name)}
    assert named == pages - methods


@pytest.mark.parametrize("kind", ROOMS)
def test_every_method_has_a_page(kind):
    stored = {page.stem for page in (DOCS / "reference" / kind).glob("*.md")} - {"index"}
    built_in = set(ROOMS[kind].available())
    assert stored == built_in, "run `make docs-run` to write the reference anew"


@pytest.mark.parametrize(
    "name", ["mac_cal", "mac_cal_head", "mmce", "tst", "vtst_head", "temperature"]
)
def test_a_page_repeats_what_decisions_say_of_its_method(name):
    (page,) = (DOCS / "reference").rglob(f"{name}.md")
    said = reference.find_decisions(name)
    assert said
    assert all(text in page.read_text(encoding="utf-8") for text in said)


@pytest.mark.parametrize("kind", ROOMS)
def test_the_help_that_a_page_names_is_there(kind):
    for name in ROOMS[kind].available():
        call = re.fullmatch(
            r"help\((calibrant\.)?(\w+)\.(?:get\(\"(\w+)\"\)|(\w+))\)",
            reference.show_help(kind, name),
        )
        owner = calibrant if call[1] else importlib.import_module("calibrant.training")
        room = getattr(owner, call[2])
        shown = room.get(call[3]) if call[3] else getattr(room, call[4])
        assert shown.__doc__, name


def test_guides_are_short():
    # Two screens are about 110 lines.
    for page in (DOCS / "guides").glob("*.md"):
        assert len(page.read_text(encoding="utf-8").splitlines()) <= 110, page.name


def test_the_site_checker_finds_faults(tmp_path):
    (tmp_path / "index.html").write_text(
        '<html><head><title>t</title></head><body><a href="gone/">x</a>'
        '<a href="#here">y</a><a href="other.html#there">z</a></body></html>'
    )
    (tmp_path / "other.html").write_text("<html><head><title></title></head></html>")
    assert build.check_site(tmp_path) == [
        "index.html: broken link gone/",
        "index.html: no such place #here",
        "index.html: no such place other.html#there",
        "other.html: no title",
    ]
