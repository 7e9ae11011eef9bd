"""The groups on the page, in a real browser."""

from __future__ import annotations

import pytest

from calibrant import evaluate
from calibrant.report import write
from test_groups import drawn
from test_report_browser import CONTRAST, browser, every, one, visit  # noqa: F401

pytestmark = pytest.mark.browser
HOSTILE = "</section><script>window.hacked = 1</script>" + "long " * 30


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    predictions, home = drawn(8, [300, 300, 300, 12], [0, 0.12, -0.15, 0])
    names = [["day", "night", HOSTILE, "fog"][place] for place in home]
    found = evaluate(predictions, groups=names, group_name="light", resamples=100)
    return {"groups": write(found, folder / "groups.html").as_uri()}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_groups_are_drawn_and_stand_out(visit, theme):  # noqa: F811
    driver = visit("groups", theme=theme)
    assert driver.get_log("browser") == []
    assert driver.execute_script("return window.hacked") is None
    assert len(every(driver, "[data-drawn] circle")) == 4
    middle = one(driver, "[data-drawn=night] .gauge-zero").rect["x"]
    assert one(driver, "[data-drawn=night] circle").rect["x"] > middle
    assert driver.execute_script(CONTRAST) == []


def test_phone_width_never_scrolls_sideways(visit):  # noqa: F811
    driver = visit("groups", width=390)
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390
    assert one(driver, "[data-drawn=night] svg").rect["width"] > 100
