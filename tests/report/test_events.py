"""The page of events says what is judged, in its words, and is never green without grounds."""

from __future__ import annotations

import functools
import html
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from calibrant import Predictions, evaluate
from calibrant.core.errors import InputError
from calibrant.evaluation import curves
from calibrant.report import plot_decision_curve, plot_distribution, plot_reliability, render
from tests.helpers.browser import CONTRAST, find_element, find_elements, press
from tests.report.test_page import HOSTILE, embedded


def simulate(kind):
    rng = np.random.default_rng(0)
    if kind == "ten":
        logits = rng.normal(size=(600, 10)) * 2
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
        return Predictions.from_logits(1.5 * logits, labels)
    if kind == "labels":
        p = rng.beta(0.6, 3, (400, 4))
        happened = rng.random((400, 4)) < p * [1, 1, 0.4, 1]
        names = ["sunset", HOSTILE[0], "dog", "car"]
        return Predictions.from_multilabel(
            p, happened.astype(int), is_logits=False, class_names=names
        )
    z = rng.normal(-5.6 if kind == "rare" else 0, 1.6, 6000 if kind == "rare" else 900)
    happened = (rng.random(len(z)) < 1 / (1 + np.exp(-z))).astype(int)
    if kind == "two":
        logits = np.stack((np.zeros_like(z), 1.7 * z), axis=1)
        return Predictions.from_logits(logits, happened, class_names=["healthy", "ill"])
    said = 1 / (1 + np.exp(-(z + 1)))
    if kind == "rare":
        return Predictions.from_events(said, happened, event="fraud", name="score")
    units = {"clusters": np.arange(900) // 15, "weights": 1 + said}
    return Predictions.from_events(said, happened, event="relapse", **units)


KINDS = ["rare", "two", "labels", "clustered"]
SHOWN = ("oe_ratio", "calibration_slope", "ece", "auroc", "brier")


@functools.cache
def judge(kind):
    """Return the predictions of a kind and their evaluation, with few figures to save time."""
    predictions = simulate(kind)
    metrics = None if kind == "ten" else SHOWN
    return predictions, evaluate(predictions, metrics=metrics, resamples=100)


@functools.cache
def show(kind):
    predictions, evaluation = judge(kind)
    return render(evaluation, predictions=predictions)


def read(text):
    """Return the words of a page, without scripts and styles."""
    bare = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", bare)))


@pytest.mark.parametrize("kind", KINDS)
def test_page_of_events_speaks_of_probability_and_frequency(kind):
    _, evaluation = judge(kind)
    text = show(kind)
    words = read(text)
    assert not re.search(r"\b(NaN|None|nan|null|undefined)\b", words)
    assert not re.search(r"(?i)overconfident|underconfident|mean confidence|accuracy", words)
    assert evaluation.verdict.headline in words
    assert "Mean probability" in words
    assert "Frequency" in words
    event = {"rare": "fraud", "two": "ill", "labels": "a label", "clustered": "relapse"}[kind]
    assert f"frequency of {event}" in json.dumps(embedded(text)["words"])
    assert ("event: " + event in words) == (kind != "labels")
    sections = re.findall(r'<section id="(\w+)"', text)
    assert {"probability", "decision"} <= set(sections)
    # A slider of the predicted class, classes and their table would be about something else.
    assert not {"temperature", "classes", "table", "reliability", "selective"} & set(sections)
    assert ("labels" in sections) == (kind == "labels")


def test_correctness_as_the_event_keeps_the_selective_curve():
    predictions, _ = judge("rare")
    correct = evaluate(replace(predictions, event="correct"), metrics="ece", intervals=False)
    assert 'id="selective"' in render(correct)


@pytest.mark.parametrize(
    ("state", "tone", "word"),
    [
        ("off", "off", "Off: too high"),
        ("holds", "holds", "Holds"),
        ("cannot tell", "unsure", "Cannot"),
    ],
)
def test_state_decides_colour_and_word(state, tone, word):
    _, evaluation = judge("rare")
    verdict = replace(evaluation.verdict, state=state, direction="too high", rows_needed=7000)
    text = render(replace(evaluation, verdict=verdict))
    assert f'<section id="verdict" class="verdict {tone}"' in text
    assert f'<p class="badge">{word}' in text
    assert "7,000" in read(text)


def test_fraud_score_that_says_too_much_is_off_on_a_log_scale():
    _, evaluation = judge("rare")
    assert evaluation.verdict.state == "off"
    data = embedded(show("rare"))["curves"]
    assert data["scale"] == "log"
    np.testing.assert_allclose(
        data["means"], [evaluation.verdict.mean, evaluation.verdict.rate], rtol=1e-3
    )


def test_what_depends_on_units_stands_once():
    independent = read(show("two"))
    assert independent.count("assumes independent rows") == 1
    clustered = read(show("clustered"))
    assert "60 clusters · weighted" in clustered
    assert "assumes independent rows" not in clustered


def test_every_label_has_a_row_the_worst_first():
    _, evaluation = judge("labels")
    text = show("labels")
    table = re.search(r'class="plain label-table">(.*?)</table>', text, re.S)[1]
    names = [html.unescape(name) for name in re.findall(r'data-label="(.*?)"', table)]
    assert sorted(names) == sorted(evaluation.class_names)
    assert names[0] == "dog"
    assert "Off: too high" in table
    assert "<script>window.hacked" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_embedded_curves_are_the_prepared_ones(kind):
    _, evaluation = judge(kind)
    cells = evaluation.tallies.cells
    data = embedded(show(kind))["curves"]
    corp = curves.prepare_corp(cells)
    drawn = np.array(data["corp"], dtype=float)
    place = np.abs(corp.probability - drawn[:, :1]).argmin(1)
    expected = np.stack((corp.frequency, corp.low, corp.high), axis=1)
    near = [
        np.abs(expected[max(i - 3, 0) : i + 4] - row[1:]).sum(1).min()
        for i, row in zip(place, drawn, strict=True)
    ]
    assert max(near) < 1e-3
    table = curves.prepare_decision(cells)
    columns = ["threshold", "net_benefit", "treat_all", "treated"]
    np.testing.assert_allclose(data["decision"], table[columns], rtol=1e-4, atol=1e-9)
    bins = curves.prepare_bins(cells, scale="log")
    np.testing.assert_allclose(
        np.array(data["bins"]["log"], dtype=float), bins, rtol=1e-4, atol=1e-9
    )
    assert bins["count"].sum() == evaluation.num_rows


def test_classes_are_offered_the_isotonic_curve_too():
    text = show("ten")
    assert 'name="binning" value="corp"' in text
    assert "decision" not in embedded(text)["curves"]


# Pictures.


def line(ax, label="_curve"):
    (found,) = [each for each in ax.lines if each.get_label() == label]
    return np.asarray(found.get_xydata())


@pytest.mark.parametrize("kind", [*KINDS, "ten"])
def test_reliability_pictures_draw_the_prepared_curves(kind, tmp_path):
    predictions, evaluation = judge(kind)
    cells = evaluation.tallies.cells
    scale = curves.choose_scale(cells)
    floor = curves.find_floor(cells) if scale == "log" else 0
    ax = plot_reliability(evaluation)
    corp = curves.prepare_corp(cells)
    np.testing.assert_allclose(line(ax)[:, 1], np.clip(corp.frequency, floor, 1))
    assert ax.get_xscale() == scale
    assert ax.get_ylabel().startswith("accuracy" if kind == "ten" else "frequency of ")
    ax.figure.savefig(tmp_path / "corp.png")
    kernel = curves.prepare_kernel(cells)
    drawn = line(plot_reliability(predictions, "kernel", scale="linear"))
    expected = np.interp(drawn[:, 0], kernel.probability, np.clip(kernel.frequency, 0, 1))
    np.testing.assert_allclose(drawn[:, 1], expected, atol=1e-6)
    assert len(drawn) > 100
    plot_reliability(evaluation, "bins").figure.savefig(tmp_path / "bins.png")


def test_pictures_of_events_are_drawn_where_told_and_refuse_classes(tmp_path):
    from matplotlib.figure import Figure

    figure = Figure()
    left, right = figure.subplots(1, 2)
    _, evaluation = judge("rare")
    assert plot_decision_curve(evaluation, ax=left) is left
    assert plot_distribution(evaluation, ax=right) is right
    table = curves.prepare_decision(evaluation.tallies.cells)
    np.testing.assert_allclose(left.lines[0].get_ydata(), table["net_benefit"])
    found = curves.prepare_distribution(evaluation.tallies.cells)
    np.testing.assert_allclose([bar.get_height() for bar in right.containers[0]], found.events)
    figure.savefig(tmp_path / "events.png")
    ten = evaluate(simulate("ten"), intervals=False)
    for draw in (plot_decision_curve, plot_distribution):
        with pytest.raises(InputError, match="from_events"):
            draw(ten)
    with pytest.raises(InputError, match="'loess'"):
        plot_reliability(ten, "loess")


# The page in a browser.


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    written = {kind: folder / f"{kind}.html" for kind in [*KINDS, "ten"]}
    for kind, path in written.items():
        path.write_text(show(kind), encoding="utf-8")
    return {kind: path.as_uri() for kind, path in written.items()}


@pytest.mark.browser
@pytest.mark.sampled(count=2)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_page_of_events_draws_fits_and_stands_out(visit, kind, theme):
    browser = visit(kind, width=390, theme=theme)
    drawn = {each.get_attribute("data-chart") for each in find_elements(browser, ".chart:has(svg)")}
    assert drawn == {"probability", "distribution", "decision"}
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    assert browser.execute_script(CONTRAST) == []
    for value in ["kernel", "bins", "corp"]:
        press(browser, find_element(browser, f"[name=curve][value={value}]"))
        for scale in ["log", "linear"]:
            press(browser, find_element(browser, f"[name=scale][value={scale}]"))
            picture = find_element(browser, "[data-chart=probability] svg")
            assert "NaN" not in picture.get_attribute("innerHTML")
            assert picture.get_attribute("aria-label")
            assert find_element(browser, "[data-readout=probability] .big").text
    assert browser.execute_script("return window.hacked") is None
    assert browser.get_log("browser") == []
    unnamed = browser.execute_script(
        """return [...document.querySelectorAll("button, select, input")].filter((e) =>
        !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length)).length"""
    )
    assert unnamed == 0


@pytest.mark.browser
def test_sliders_tell_what_the_curves_hold(visit):
    browser = visit("rare")
    data = embedded(show("rare"))["curves"]
    for name, key in (("claimed", "corp"), ("threshold", "decision")):
        slider = find_element(browser, f"#{name}")
        assert int(slider.get_attribute("max")) == len(data[key]) - 1
        browser.execute_script(
            "arguments[0].value = 3; arguments[0].dispatchEvent(new Event('input'))", slider
        )
    from calibrant.report.formatting import number, percent

    said, happened, *_ = data["corp"][3]
    readout = find_element(browser, "[data-readout=probability]").text
    assert f"It says {percent(said)}" in readout
    assert percent(happened) in readout
    readout = find_element(browser, "[data-readout=decision]").text
    assert number(data["decision"][3][1]) in readout


@pytest.mark.browser
def test_isotonic_curve_of_classes_is_stepped_through(visit):
    browser = visit("ten")
    press(browser, find_element(browser, "[name=binning][value=corp]"))
    assert len(find_elements(browser, "[data-chart=reliability] .curve.ink")) == 1
    before = find_element(browser, "[data-readout=reliability]").text
    press(browser, find_element(browser, "[data-readout=reliability] [aria-label='Next bin']"))
    assert find_element(browser, "[data-readout=reliability]").text != before
    press(browser, find_element(browser, "[name=binning][value=width]"))
    assert find_elements(browser, "[data-chart=reliability] .mark")
    assert browser.get_log("browser") == []


def test_repair_of_events_is_shown_on_their_scale_and_in_their_words():
    predictions, evaluation = judge("rare")
    mended = replace(predictions, scores=0.4 * predictions.array, name="mended")
    after = evaluate(mended, metrics=SHOWN, resamples=100)
    text = render(evaluation, after=after)
    data = embedded(text)
    bins = np.array(data["curvesAfter"]["bins"]["log"], dtype=float)
    assert data["curvesAfter"]["floor"] == data["curves"]["floor"]
    assert bins[:, 2].sum() == after.num_rows
    assert "neither is better" not in read(text)
    assert "1 is calibrated" in read(text)
