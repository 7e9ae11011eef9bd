"""What a designer checks: accessibility, widths, print, units, repetition; every kind of report.

axe-core is looked for in the folder that CALIBRANT_AXE names, or beside node's global modules;
without it, or without Chromium, the checks of accessibility skip.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from calibrant import Monitor, Predictions, compare, evaluate
from calibrant.report import Check, make_record, write, write_comparison
from calibrant.report.monitor_page import write_monitor
from tests.helpers.browser import CONTRAST, find_element, find_elements

pytestmark = pytest.mark.browser
KINDS = ["classes", "events", "labels", "groups", "monitor", "comparison", "released"]
RUN_AXE = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ["violations"]}).then((result) => done(result.violations
  .filter((each) => each.impact !== "minor")
  .map((each) => `${each.id} (${each.impact}): ${each.nodes[0].html.slice(0, 120)}`)));
"""
SENTENCES = """
document.querySelectorAll("details").forEach((each) => { each.open = true; });
return [...document.querySelectorAll("main p, main li, main dd, main figcaption")]
  .filter((each) => !each.closest("svg") && each.offsetParent && !each.querySelector("p, li, dd"))
  .map((each) => each.innerText);
"""


def draw_events(rng, rows, gap=0.0):
    said = rng.beta(2, 3, rows)
    return Predictions.from_events(said, rng.random(rows) < said - gap, event="fraud")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("pages"), np.random.default_rng(3)
    record = make_record(date="2026-08-21", model_version="net 3", command="calibrant evaluate")
    logits = rng.normal(size=(900, 4)) * 2
    labels = np.array(
        [rng.choice(4, p=row) for row in np.exp(logits) / np.exp(logits).sum(1)[:, None]]
    )
    classes = Predictions.from_logits(1.6 * logits, labels)
    events = draw_events(rng, 1200, 0.06)
    scores = rng.beta(2, 5, (500, 5))
    labelled = Predictions.from_multilabel(
        scores, rng.random(scores.shape) < scores**1.4, is_logits=False
    )
    sites = rng.integers(0, 45, 1200)
    months = [f"2026-{1 + month:02d}" for month in rng.integers(0, 9, 1200)]
    made = {
        "classes": evaluate(classes, resamples=100),
        "events": evaluate(events, groups=months, group_name="month", resamples=100),
        "labels": evaluate(labelled, resamples=100),
        "groups": evaluate(events, groups=[f"site {site}" for site in sites], resamples=100),
    }
    files = {
        name: write(each, folder / f"{name}.html", record=record) for name, each in made.items()
    }
    old = Predictions.from_events(
        np.clip(1.25 * events.array, 0, 0.99), events.labels, event="fraud", name="net 2"
    )
    new = Predictions.from_logits(1.1 * logits, labels, name="net 2")
    places = rng.choice(["Athens", "Berlin", "Cork"], 900)
    for name, pair, groups in (
        ("comparison", (old, events), months),
        ("released", (classes, new), places),
    ):
        compared = compare(*pair, groups=groups, resamples=100)
        before, after = (evaluate(each, resamples=100) for each in pair)
        checks = [Check("nll is not shown to be worse"), Check("brier", "B is worse in brier")]
        files[name] = write_comparison(
            compared,
            folder / f"{name}.html",
            before=before,
            after=after,
            checks=checks,
            record=record,
        )
    group = lambda rows: rng.choice(["north", "south"], rows)  # noqa: E731
    monitor = Monitor(draw_events(rng, 2000), groups=group(2000))
    for week in range(9):
        batch = draw_events(rng, 400, 0.2 * (week > 4))
        monitor.append(
            batch, groups=group(400), name=f"week {week:02d}", when=f"2026-01-{10 + week}"
        )
    files["monitor"] = write_monitor(monitor.status(), folder / "monitor.html")
    return {name: path.as_uri() for name, path in files.items()}


@pytest.fixture(scope="module")
def axe():
    places = [os.environ.get("CALIBRANT_AXE", "")]
    try:
        npm = ["npm", "root", "--global"]
        found = subprocess.run(npm, capture_output=True, text=True, timeout=20, check=False)
        places.append(found.stdout.strip())
    except (OSError, subprocess.TimeoutExpired):
        pass
    for place in filter(None, places):
        for file in (Path(place) / "axe.min.js", Path(place) / "axe-core" / "axe.min.js"):
            if file.is_file():
                return file.read_text(encoding="utf-8")
    return pytest.skip("axe-core is not installed: npm install --global axe-core")


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", KINDS)
def test_axe_has_no_findings(visit, axe, kind, width, theme):
    driver = visit(kind, width=width, theme=theme)
    driver.execute_script(axe)
    assert driver.execute_async_script(RUN_AXE) == []


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize("kind", KINDS)
def test_no_width_scrolls_the_page_sideways_and_all_text_stands_out(visit, kind, width):
    driver = visit(kind, width=width, theme="dark")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert driver.execute_script(CONTRAST) == []


@pytest.mark.parametrize("kind", ["events", "monitor", "comparison"])
def test_tables_that_scroll_say_so_and_hide_no_column(visit, kind):
    driver = visit(kind, width=390)
    hidden = "return [...document.querySelectorAll('th, td')].filter((e) => !e.offsetWidth).length"
    assert driver.execute_script(hidden) == 0
    for box in find_elements(driver, ".scroll"):
        wide = driver.execute_script(
            "return arguments[0].scrollWidth > arguments[0].clientWidth + 2", box
        )
        hint = driver.execute_script("return arguments[0].previousElementSibling.innerText", box)
        assert ("columns" in hint) == wide
        assert ("right" in box.get_attribute("data-more")) == wide
        if wide:
            driver.execute_async_script(
                "arguments[0].scrollLeft = 9999; setTimeout(arguments[1], 150)", box
            )
            assert "right" not in box.get_attribute("data-more")
            assert "left" in box.get_attribute("data-more")


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("kind", KINDS)
def test_no_sentence_is_said_twice(visit, kind):
    texts = visit(kind).execute_script(SENTENCES)
    sentences = [
        each.strip().lower()
        for text in texts
        for each in re.split(r"(?<=[.!?])\s+|\n", text)
        if len(each.split()) >= 6
    ]
    assert len(sentences) > 10
    assert sorted({each for each in sentences if sentences.count(each) > 1}) == []


def test_every_group_is_drawn_however_many(visit):
    driver = visit("groups")
    assert len(find_elements(driver, "[data-drawn]")) == 45
    assert "45 groups" in find_element(driver, ".group-scroll").get_attribute("aria-label")


def test_dates_come_in_their_order(visit):
    driver = visit("events")
    shown = [each.get_attribute("data-drawn") for each in find_elements(driver, "[data-drawn]")]
    assert shown == [f"2026-{month:02d}" for month in range(1, 10)]
    rows = [each.get_attribute("data-group") for each in find_elements(driver, "[data-group]")]
    assert rows == shown


@pytest.mark.parametrize("kind", ["classes", "events"])
def test_calibration_errors_are_points_everywhere(visit, kind):
    driver = visit(kind)
    card = find_element(driver, "[data-figure=ece] .card-value").text
    assert re.fullmatch(r"\d+\.\d+ points", card)
    facts = find_element(driver, ".facts").text
    assert re.search(r"ECE by chance alone\s+up to [\d.]+ points", facts)
    said = find_element(driver, ".sentences").text
    assert re.search(r"calibration error lies between [\d.]+ and [\d.]+ points", said)


def test_months_of_a_comparison_come_in_their_order_and_a_failed_check_is_said(visit):
    driver = visit("comparison")
    shown = [each.get_attribute("data-drawn") for each in find_elements(driver, "[data-drawn]")]
    assert shown == [f"2026-{month:02d}" for month in range(1, 10)]
    assert find_element(driver, ".badge").text == "1 of 2 conditions failed"
    ece = find_element(driver, "[data-change=ece]").text
    assert re.search(r"[\d.]+ points [\d.]+ points −[\d.]+ points", ece)


def test_print_unfolds_the_record_and_repeats_the_heads_of_tables(visit):
    driver = visit("events", media="print")
    assert find_element(driver, ".record-sign").is_displayed()
    heads = "return [...document.querySelectorAll('thead')].map((e) => getComputedStyle(e).display)"
    assert set(driver.execute_script(heads)) == {"table-header-group"}
    assert not any(each.is_displayed() for each in find_elements(driver, ".scroll-hint"))
