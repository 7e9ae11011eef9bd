"""The groups on the page, in a real browser."""

from __future__ import annotations

import pytest

from calibrant import compare, evaluate
from calibrant.predictions import example
from calibrant.report import write, write_comparison
from tests.helpers.browser import CONTRAST, find_element, find_elements
from tests.helpers.groups import draw_groups

pytestmark = pytest.mark.browser
HOSTILE = "</section><script>window.hacked = 1</script>" + "long " * 30


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    predictions, home = draw_groups(8, [300, 300, 300, 12, 9], [0, 0.12, -0.15, 0, 0.45])
    names = [["day", "night", HOSTILE, "fog", "rain"][place] for place in home]
    evaluation = evaluate(predictions, groups=names, group_name="light", resamples=100)
    old, new = example("cifar10-resnet18"), example("cifar10-resnet18-acls")
    comparison = compare(old, new, resamples=100)
    return {
        "groups": write(evaluation, folder / "groups.html").as_uri(),
        "comparison": write_comparison(comparison, folder / "comparison.html").as_uri(),
    }


@pytest.mark.sampled(count=1)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_groups_are_drawn_and_stand_out(visit, theme):
    driver = visit("groups", theme=theme)
    assert driver.get_log("browser") == []
    assert driver.execute_script("return window.hacked") is None
    assert len(find_elements(driver, "[data-drawn] circle")) == 5
    middle = find_element(driver, "[data-drawn=night] .gauge-zero").rect["x"]
    assert find_element(driver, "[data-drawn=night] circle").rect["x"] > middle
    assert driver.execute_script(CONTRAST) == []


def test_phone_width_never_scrolls_sideways(visit):
    driver = visit("groups", width=390)
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390
    assert find_element(driver, "[data-drawn=night] svg").rect["width"] > 100


@pytest.mark.parametrize("width", [1000, 1200])
def test_the_table_of_groups_fits_and_says_first_what_each_was_judged_to_be(visit, width):
    driver = visit("groups", width=width)
    table = find_element(driver, "#groups .scroll")
    room = driver.execute_script(
        "return [arguments[0].scrollWidth, arguments[0].clientWidth]", table
    )
    assert room[0] <= room[1]
    assert find_element(driver, "[data-group=night] > :nth-child(2)").text.startswith(
        "overconfident"
    )
    gap = find_element(driver, "[data-group=night] > :nth-child(6)").text
    assert [line[0] for line in gap.splitlines()] == ["+", "+"]
    assert "by chance " in find_element(driver, "[data-group=night] > :nth-child(7)").text


def test_the_table_of_groups_keeps_clear_of_the_picture(visit):
    driver = visit("groups", width=1200)
    panel, table = (find_element(driver, f"#groups {part}").rect for part in (".panel", ".scroll"))
    assert table["y"] - (panel["y"] + panel["height"]) >= 8


def test_differences_of_two_models_fit_a_phone(visit):
    driver = visit("comparison", width=390)
    table = find_element(driver, "#figures .scroll")
    assert "no difference" in table.text
    room = driver.execute_script(
        "return [arguments[0].scrollWidth, arguments[0].clientWidth]", table
    )
    assert room[0] <= room[1]


def test_an_interval_that_goes_on_has_an_arrow_head(visit):
    driver = visit("groups")
    line = find_element(driver, "[data-drawn=rain] svg").rect
    dot = find_element(driver, "[data-drawn=rain] circle").rect
    assert dot["x"] + dot["width"] < line["x"] + line["width"]
    arrow = find_element(driver, "[data-drawn=rain] [data-cut=high] path").rect
    assert arrow["x"] >= line["x"] + line["width"]
    assert find_elements(driver, "[data-drawn=night] [data-cut]") == []
