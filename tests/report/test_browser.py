"""The report in a real browser: it draws, reacts, fits and stays quiet."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest

from calibrant.report import formatting, write
from tests.helpers.browser import CONTRAST, find_element, find_elements, hover, press
from tests.helpers.evaluations import simulated, single_row
from tests.report.test_page import HOSTILE

pytestmark = pytest.mark.browser

CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
TEN = simulated(10, 4000, names=CIFAR, name="ten")
EVALUATIONS = {
    "ten": lambda: TEN,
    "two": lambda: simulated(2, 300, name="two"),
    "thousand": lambda: simulated(1000, 3000, sharpness=0.7, name="thousand"),
    "hostile": lambda: simulated(len(HOSTILE), 400, names=HOSTILE, name=HOSTILE[0]),
    "one": single_row,
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    return {
        name: write(make(), folder / f"{name}.html").as_uri() for name, make in EVALUATIONS.items()
    }


def column(browser, key):
    keys = [
        head.get_attribute("data-key") for head in find_elements(browser, "#class-table thead th")
    ]
    cells = find_elements(browser, f"#class-table tbody tr > :nth-child({keys.index(key) + 1})")
    return [cell.text for cell in cells]


def share(value):
    return formatting.figure_text("accuracy", value)


@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("name", list(EVALUATIONS))
def test_every_page_draws_without_a_word_in_the_console(visit, name):
    browser = visit(name)
    drawn = {
        chart.get_attribute("data-chart") for chart in find_elements(browser, ".chart:has(svg)")
    }
    assert drawn == {"reliability", "histogram", "overview", "class", "selective"}
    assert browser.get_log("browser") == []


def test_nothing_is_asked_of_the_network(visit):
    browser = visit("ten")
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert asked
    assert [url for url in asked if not re.match(r"(file|data|about):", url)] == []


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_hovering_a_bin_shows_its_numbers(visit, binning):
    browser = visit("ten")
    press(browser, find_element(browser, f"[name=binning][value={binning}]"))
    table = TEN.bins if binning == "width" else TEN.mass_bins
    table = table[table["count"] > 0].reset_index(drop=True)
    marks = find_elements(browser, "[data-chart=reliability] .mark")
    assert len(marks) == len(table)
    for i in [1, len(table) // 2]:
        hover(browser, find_element(marks[i], ".dot"))
        readout = find_element(browser, "[data-readout=reliability]").text
        row = table.loc[i]
        inside = row["band_low"] <= row["accuracy"] <= row["band_high"]
        for expected in [
            f"{int(row['count']):,}",
            share(row["confidence"]),
            share(row["accuracy"]),
            f"{share(row['accuracy_low'])} to {share(row['accuracy_high'])}",
            f"{share(row['band_low'])} to {share(row['band_high'])}",
            "Inside" if inside else "Outside",
        ]:
            assert expected in readout
        assert "chosen" in marks[i].get_attribute("class")


def test_bins_are_reached_by_keyboard(visit):
    from selenium.webdriver.common.keys import Keys

    browser = visit("ten")
    marks = find_elements(browser, "[data-chart=reliability] .mark")
    chosen = find_element(browser, "[data-chart=reliability] .mark[tabindex='0']")
    chosen.send_keys(Keys.HOME)
    assert marks[0].get_attribute("aria-selected") == "true"
    assert "Bin 1 of" in find_element(browser, "[data-readout=reliability]").text
    marks[0].send_keys(Keys.ARROW_RIGHT)
    assert marks[1].get_attribute("aria-selected") == "true"
    assert "accuracy" in marks[1].get_attribute("aria-label")


def test_stepping_buttons_keep_the_focus(visit):
    browser = visit("ten")
    for place in ["reliability", "class"]:
        readout = f"[data-readout={place}]"
        before = find_element(browser, readout).text
        press(browser, find_element(browser, f"{readout} [aria-label='Previous bin']"))
        assert find_element(browser, readout).text != before
        assert browser.switch_to.active_element.get_attribute("aria-label") == "Previous bin"


def test_choosing_a_class_draws_that_class(visit):
    from selenium.webdriver.support.select import Select

    browser = visit("ten")
    Select(find_element(browser, "#class-choice")).select_by_visible_text("frog")
    row = TEN.classes.set_index("name").loc["frog"]
    assert (
        f"{int(row['count']):,} rows of this class"
        in find_element(browser, "[data-text=class]").text
    )
    filled = int((TEN.class_bins[int(row["index"]), :, 0] > 0).sum())
    marks = find_elements(browser, "[data-chart=class] .mark")
    assert len(marks) == filled
    hover(browser, find_element(marks[filled // 2], ".dot"))
    bins = TEN.class_bins[int(row["index"])]
    count, mean, frequency = bins[bins[:, 0] > 0][filled // 2]
    readout = find_element(browser, "[data-readout=class]").text
    assert all(text in readout for text in [f"{int(count):,}", share(mean), share(frequency)])


def test_class_is_chosen_from_bars_and_from_the_table(visit):
    browser = visit("ten")
    bar = find_elements(browser, "[data-chart=overview] .class-row")[3]
    press(browser, find_element(bar, ".pale"))
    choice = find_element(browser, "#class-choice")
    assert choice.get_property("value") == bar.get_attribute("data-class")
    link = next(
        link for link in find_elements(browser, "#class-table .link") if link.text == "ship"
    )
    press(browser, link)
    assert choice.get_property("value") == str(CIFAR.index("ship"))


def test_pointing_at_the_curve_tells_error_and_threshold(visit):
    browser = visit("ten")
    curve = TEN.risk_coverage
    slider = find_element(browser, "#coverage")
    browser.execute_script(
        "arguments[0].value = 60; arguments[0].dispatchEvent(new Event('input'))", slider
    )
    readout = find_element(browser, "[data-readout=selective]").text
    row = curve.loc[60]
    assert (
        f"Keep {formatting.percent(row['coverage'])}, error {formatting.percent(row['risk'])}"
        in readout
    )
    assert formatting.percent(row["threshold"]) in readout
    hover(browser, find_element(browser, "[data-chart=selective] svg"))
    assert abs(int(slider.get_property("value")) / (len(curve) - 1) - 0.47) < 0.06
    assert find_element(browser, "[data-readout=selective]").text != readout


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("key", ["count", "gap", "nll", "ece"])
def test_table_sorts_on_a_click_both_ways(visit, key):
    browser = visit("ten")
    head = find_element(browser, f"#class-table [data-key={key}]")
    for _ in range(2):
        press(browser, find_element(head, "button"))
        down = head.get_attribute("aria-sort") == "descending"
        order = TEN.classes.sort_values(key, ascending=not down, kind="stable")
        assert column(browser, "name") == order["name"].tolist()
    assert (
        len(find_elements(browser, "#class-table [aria-sort=ascending], [aria-sort=descending]"))
        == 1
    )


def test_table_sorts_by_keyboard(visit):
    from selenium.webdriver.common.keys import Keys

    browser = visit("ten")
    find_element(browser, "#class-table [data-key=name] button").send_keys(Keys.ENTER)
    assert column(browser, "name") == sorted(CIFAR)


@pytest.mark.slow
def test_a_thousand_classes_filter_quickly(visit):
    browser = visit("thousand")
    assert len(find_elements(browser, "#class-table tbody tr")) == 100
    find_element(browser, "#class-filter").send_keys("99")
    expected = {str(i) for i in range(1000) if "99" in str(i)}
    assert set(column(browser, "name")) == expected
    assert f"Showing {len(expected)} of 1,000" in find_element(browser, "#table [role=status]").text
    taken = browser.execute_script(
        """const filter = document.getElementById("class-filter");
        const begun = performance.now();
        filter.value = "";
        filter.dispatchEvent(new Event("input"));
        document.querySelector("[data-action=all]").click();
        document.querySelector("[data-key=nll] button").click();
        return performance.now() - begun;"""
    )
    assert len(find_elements(browser, "#class-table tbody tr")) == 1000
    assert taken < 2000


@pytest.mark.parametrize("system", ["light", "dark"])
def test_theme_follows_the_system_until_it_is_chosen(visit, system):
    from selenium.webdriver.support.wait import WebDriverWait

    browser = visit("ten", theme=system)
    ground = "return getComputedStyle(document.body).backgroundColor"

    def is_dark():
        return sum(map(int, re.findall(r"\d+", browser.execute_script(ground))[:3])) < 300

    def is_remembered(browser):
        assert is_dark() == (system == "dark")
        press(browser, find_element(browser, "#theme"))
        assert is_dark() == (system == "light")
        time.sleep(0.3)
        browser.refresh()
        return is_dark() == (system == "light")

    # The browser saves what it remembers a moment later: a reload that comes sooner has lost it
    # for good, and the reader chooses again.
    WebDriverWait(browser, 30).until(is_remembered)


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["ten", "thousand"])
def test_all_text_stands_out_from_its_ground(visit, name, theme):
    assert visit(name, theme=theme).execute_script(CONTRAST) == []


@pytest.mark.parametrize("name", ["ten", "thousand", "hostile"])
def test_phone_width_never_scrolls_sideways(visit, name):
    browser = visit(name, width=390)
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide == 390
    names = find_elements(browser, "[data-chart=reliability] svg, .verdict h2, .readout")
    assert all(element.rect["x"] + element.rect["width"] <= 390 for element in names)


def test_a_tap_on_a_phone_chooses_a_bin(visit):
    browser = visit("ten", width=390)
    marks = find_elements(browser, "[data-chart=reliability] .mark")
    press(browser, find_element(marks[2], ".dot"))
    assert "Bin 3 of" in find_element(browser, "[data-readout=reliability]").text


def test_charts_follow_the_width_of_the_window(visit):
    browser = visit("ten")

    def drawn_width():
        svg = find_element(browser, "[data-chart=reliability] svg")
        return float(svg.get_dom_attribute("viewBox").split()[2])

    before = drawn_width()
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 700, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    browser.execute_async_script("setTimeout(arguments[0], 250)")
    assert drawn_width() != before
    assert browser.get_log("browser") == []


def test_print_is_light_complete_and_without_controls(visit):
    browser = visit("ten", theme="dark", media="print")
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    ink = browser.execute_script("return getComputedStyle(document.body).color")
    assert sum(map(int, re.findall(r"\d+", ink)[:3])) < 200
    assert all(section.is_displayed() for section in find_elements(browser, "main > section"))
    controls = ".controls, .contents, #theme, .steps"
    assert not any(element.is_displayed() for element in find_elements(browser, controls))
    assert len(find_elements(browser, "#class-table tbody tr")) == 10


def test_hostile_names_are_shown_and_never_run(visit):
    browser = visit("hostile")
    assert browser.execute_script("return window.hacked") is None
    assert find_element(browser, "h1").text == HOSTILE[0]
    shown = set(column(browser, "name"))
    assert HOSTILE[0] in shown
    assert HOSTILE[1] in shown
    assert "(no name)" in shown
    for row in find_elements(browser, "[data-chart=overview] .class-row"):
        press(browser, find_element(row, "text"))
    assert browser.execute_script("return window.hacked") is None
    assert find_elements(browser, "main img, main script") == []
    assert browser.get_log("browser") == []


def test_copy_button_answers(visit):
    browser = visit("ten")
    assert "@software{calibrant" in find_element(browser, "#bibtex").text
    press(browser, find_element(browser, "#copy-bibtex"))
    browser.execute_async_script("setTimeout(arguments[0], 100)")
    assert re.match("Copied|Selected", find_element(browser, "#copy-status").text)


def test_movement_stops_where_the_reader_asks_for_it(visit):
    browser = visit("ten")
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]},
    )
    scrolling = "return getComputedStyle(document.documentElement).scrollBehavior"
    assert browser.execute_script(scrolling) == "auto"


def test_every_control_has_a_name(visit):
    browser = visit("thousand")
    nameless = browser.execute_script(
        """return [...document.querySelectorAll("button, select, input")].filter((e) =>
        !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length)).length"""
    )
    assert nameless == 0
    headings = [int(h.tag_name[1]) for h in find_elements(browser, "h1, h2, h3")]
    assert headings[0] == 1
    assert np.diff(headings).max() <= 1
