"""Before and after a repair in the report, and the slider that applies a temperature."""

from __future__ import annotations

import base64
import html
import re

import numpy as np
import pytest
import torch

from calibrant import Predictions, compare, evaluate, metrics
from calibrant.core.errors import InputError
from calibrant.report import formatting, render, write
from calibrant.report.temperature_slider import KNOTS, MOST_ROWS, make_slider_data, sample_rows
from tests.helpers.browser import CONTRAST, find_element, find_elements, press
from tests.report.test_page import HOSTILE, embedded

EXPLANATION = "One temperature divides all logits.\n\nNo <b>prediction</b> changes."


def overconfident(num_classes, num_rows, *, names=None, seed=0, kind=np.float32):
    """Predictions whose logits are twice as large as is warranted, and the same repaired."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_rows, num_classes))
    logits[np.arange(num_rows), rng.integers(num_classes, size=num_rows)] += 2 + np.log(num_classes)
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    return tuple(
        Predictions.from_logits(
            (factor * logits).astype(kind), labels, class_names=names, name=name
        )
        for factor, name in ((2.0, "before"), (1.0, "after"))
    )


BEFORE, AFTER = overconfident(10, 3000)
JUDGED, REPAIRED = evaluate(BEFORE, resamples=100), evaluate(AFTER, resamples=100)
PAIRED = compare(BEFORE, AFTER, resamples=100)
# Confidences that lie on edges of the bins, and a true class of probability 0.
EDGES = Predictions.from_probs(
    np.array([[0.6, 0.4], [0.2, 0.8], [1.0, 0.0]] * 20), np.arange(60) // 3 % 5 // 3
)


def full(**changed):
    options = {
        "after": REPAIRED,
        "comparison": PAIRED,
        "explanation": EXPLANATION,
        "predictions": BEFORE,
    }
    return render(JUDGED, **{**options, **changed})


def unpacked(text, kind):
    return np.frombuffer(base64.b64decode(text), dtype=kind)


def row_of(text, name):
    row = re.search(rf'data-change="{name}">(.*?)</tr>', text, re.S)[1]
    return [
        html.unescape(re.sub(r"<.*?>", "", cell)).strip()
        for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row, re.S)
    ]


# The page's text.


def test_sections_appear_only_with_what_they_show():
    plain = render(JUDGED)
    assert 'id="repair"' not in plain
    assert 'id="temperature"' not in plain
    assert "#repair" not in plain
    text = full()
    order = re.findall(r'<section id="(\w+)"', text)
    assert order[:2] == ["verdict", "repair"]
    assert order.index("temperature") == order.index("reliability") + 1
    assert 'id="temperature"' not in full(predictions=None)


def test_table_says_before_after_difference_and_which_is_better():
    text = full()
    for name, one_figure in PAIRED.differences.items():
        label, before, after, difference, interval, outcome = row_of(text, name)
        corrected = JUDGED.figures[name].corrected is not None
        assert label == one_figure.label + " (corrected)" * corrected
        for text_of, figure in ((before, JUDGED.figures[name]), (after, REPAIRED.figures[name])):
            if not corrected:
                assert text_of == formatting.page_text(name, figure.value)
        shown = [formatting.page_text(name, value) for value in one_figure.compared]
        assert [before, after] == shown  # whose difference is the one in the next column
        assert difference == formatting.page_difference(name, one_figure.difference)
        assert interval == formatting.page_range(name, one_figure.low, one_figure.high)
        expected = {"a": "worse after", "b": "better after", "neither": "no difference shown"}
        assert outcome == expected[one_figure.winner]
    assert row_of(text, "nll")[-1] == "better after"
    assert row_of(text, "accuracy")[-1] == "no difference shown"
    assert "The repair helps: better in" in text


def test_repair_that_harms_is_said_to_harm():
    text = render(REPAIRED, after=JUDGED, comparison=compare(AFTER, BEFORE, resamples=100))
    assert "The repair harms: worse in" in text
    assert row_of(text, "ece")[-1] == "worse after"


def test_repair_that_does_nothing_is_said_to_do_nothing():
    text = render(JUDGED, after=JUDGED, comparison=compare(BEFORE, BEFORE, resamples=100))
    assert "no difference between before and after" in text


def test_without_a_comparison_no_winner_is_named():
    text = full(comparison=None)
    assert row_of(text, "nll")[-1] == "lower is better"
    assert "could be chance is not known" in text
    assert "better after" not in text


def test_explanation_is_text_in_paragraphs():
    text = full()
    assert '<p dir="auto">One temperature divides all logits.</p>' in text
    assert "No &lt;b&gt;prediction&lt;/b&gt; changes." in text


def test_same_arguments_give_the_same_bytes():
    assert full() == full()


def test_what_does_not_belong_together_is_refused(tmp_path):
    small, _ = overconfident(10, 50)
    with pytest.raises(InputError, match=r"same rows: before has 3,000 rows.*has 50"):
        render(JUDGED, after=evaluate(small, resamples=100))
    with pytest.raises(InputError, match=r"compare\(before, after\)"):
        full(comparison=compare(AFTER, BEFORE, resamples=100))
    with pytest.raises(InputError, match="after the repair"):
        render(JUDGED, explanation="none")
    with pytest.raises(InputError, match="give the predictions of the evaluation"):
        write(JUDGED, tmp_path / "report.html", predictions=small)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("nll", -0.2428, "−0.2428"),
        ("nll", 0.000085, "+0.000085"),
        ("nll", 0.0, "0.0000"),
        ("nll", float("inf"), "+∞"),
        ("nll", float("nan"), "–"),
        ("accuracy", 0.012, "+1.2 points"),
        ("accuracy", 0.0, "0.00 points"),
        ("accuracy", float("-inf"), "−∞"),
    ],
)
def test_differences_have_a_sign_and_a_unit(name, value, text):
    assert formatting.difference_text(name, value) == text


# The sample.


def test_sample_holds_what_a_temperature_needs():
    data = make_slider_data(BEFORE)
    logits, labels, total = sample_rows(BEFORE)
    assert (data["rows"], data["of"], total) == (MOST_ROWS, 3000, 3000)
    table = unpacked(data["normaliser"], "<f4").reshape(len(KNOTS), -1)
    gaps = unpacked(data["gaps"], "<f4")
    for knot, temperature in ((16, 1.0), (24, 2.0), (0, 0.25), (32, 4.0)):
        tempered = logits / temperature
        probs = np.exp(tempered - tempered.max(1, keepdims=True))
        probs /= probs.sum(1, keepdims=True)
        np.testing.assert_allclose(np.exp(-table[knot]), probs.max(1), rtol=1e-5)
        nll = (gaps / temperature + table[knot]).mean()
        assert nll == pytest.approx(metrics.nll(tempered, labels), abs=1e-5)
    correct = unpacked(data["correct"], "u1")
    assert correct.mean() == pytest.approx(metrics.accuracy(logits, labels))


def test_sample_is_of_rows_in_order_and_follows_the_seed():
    few = BEFORE.take(np.arange(100))
    logits, labels, total = sample_rows(few)
    np.testing.assert_array_equal(logits, few.scores)
    np.testing.assert_array_equal(labels, few.labels)
    assert total == 100
    assert make_slider_data(BEFORE) == make_slider_data(BEFORE)
    assert make_slider_data(BEFORE) != make_slider_data(BEFORE, seed=1)


def test_torch_and_numpy_give_the_same_sample():
    torched = Predictions.from_logits(torch.tensor(BEFORE.scores), torch.tensor(BEFORE.labels))
    assert make_slider_data(torched) == make_slider_data(BEFORE)
    half = Predictions.from_logits(torch.tensor(BEFORE.scores).bfloat16(), BEFORE.labels)
    assert make_slider_data(half)["rows"] == MOST_ROWS


def test_probabilities_become_logits_and_keep_their_zeros_finite():
    probs = np.array([[1.0, 0.0], [0.3, 0.7]])
    logits, _, _ = sample_rows(Predictions.from_probs(probs, np.array([1, 1])))
    assert np.isfinite(logits).all()
    np.testing.assert_allclose(np.exp(logits[1]), probs[1])
    logits, _, _ = sample_rows(Predictions.from_probs(probs[:, 1], np.array([1, 1])))
    np.testing.assert_allclose(np.exp(logits[1]), probs[1])


def test_binary_scores_dense_ones_and_ignored_rows():
    rng = np.random.default_rng(0)
    score = rng.normal(size=40)
    logits, _, _ = sample_rows(Predictions.from_logits(score, (score > 0).astype(int)))
    np.testing.assert_array_equal(logits, np.stack((np.zeros(40), score), 1))
    dense = rng.normal(size=(3, 4, 5, 6))
    labels = rng.integers(4, size=(3, 5, 6))
    labels[0, 0] = 9
    rows, truth, total = sample_rows(Predictions.from_logits(dense, labels, ignore_index=9))
    kept = labels.reshape(-1) != 9
    assert total == kept.sum()
    np.testing.assert_array_equal(rows, np.moveaxis(dense, 1, -1).reshape(-1, 4)[kept])
    np.testing.assert_array_equal(truth, labels.reshape(-1)[kept])
    with pytest.raises(InputError, match="every row here is ignored"):
        make_slider_data(
            Predictions.from_logits(score[:2], np.array([9, 9]), ignore_index=9, validate=False)
        )


def test_file_that_stays_on_disk_gives_the_same_sample(tmp_path):
    BEFORE.write(tmp_path / "some.npy")
    lazy = Predictions.read(tmp_path / "some.npy", kind="logits", lazy=True)
    assert lazy.is_lazy
    assert make_slider_data(lazy) == make_slider_data(BEFORE)


@pytest.fixture(scope="module")
def thousand():
    """The text of a page on a thousand classes, with a slider; few metrics, which take longest."""
    before, after = overconfident(1000, 2500)
    judged, repaired = (
        evaluate(p, metrics=("accuracy", "ece", "nll"), resamples=100) for p in (before, after)
    )
    return render(judged, after=repaired, predictions=before, explanation=EXPLANATION)


def test_many_classes_stay_small(thousand):
    text = thousand
    assert len(text.encode()) < 1_500_000
    assert embedded(text)["temperature"]["rows"] == MOST_ROWS


# The page in a browser.


@pytest.fixture(scope="module")
def pages(tmp_path_factory, thousand):
    folder = tmp_path_factory.mktemp("pages")
    options = {"metrics": ("accuracy", "ece", "nll"), "resamples": 100}

    def page(name, before, after, **shown):
        # Two classes are judged as events unless told otherwise, and have no slider then.
        judged, repaired = (evaluate(p, view="top", **options) for p in (before, after))
        written = write(
            judged,
            folder / f"{name}.html",
            after=repaired,
            comparison=compare(before, after, **options),
            predictions=before,
            explanation=EXPLANATION,
            **shown,
        )
        return written.as_uri()

    (folder / "ten.html").write_text(full(), encoding="utf-8")
    (folder / "thousand.html").write_text(thousand, encoding="utf-8")
    hostile = overconfident(len(HOSTILE), 300, names=HOSTILE)
    return {
        "ten": (folder / "ten.html").as_uri(),
        "two": page("two", *overconfident(2, 400)),
        "thousand": (folder / "thousand.html").as_uri(),
        "hostile": page("hostile", *hostile, title=HOSTILE[0]),
        "one": page("one", *(p.take([0]) for p in overconfident(3, 5))),
        "edges": page("edges", EDGES, EDGES),
    }


def set_slider(driver, exponent):
    driver.execute_script(
        "const s = document.getElementById('kelvin'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('input'))",
        exponent,
    )


def figures(driver):
    shown = find_element(driver, "[data-readout=temperature]")
    return {
        name: float(shown.get_attribute(f"data-{name}"))
        for name in ("nll", "ece", "confidence", "accuracy")
    }


@pytest.mark.sampled(count=3)
@pytest.mark.browser
@pytest.mark.parametrize("name", ["ten", "two", "thousand", "hostile", "one", "edges"])
def test_every_page_draws_and_slides_without_a_word_in_the_console(visit, name):
    driver = visit(name)
    drawn = {
        chart.get_attribute("data-chart") for chart in find_elements(driver, ".chart:has(svg)")
    }
    assert {"before", "after", "tuning", "tempered"} <= drawn
    for exponent in (-2, -1.37, 0.5, 2):
        set_slider(driver, exponent)
        assert np.isfinite(list(figures(driver).values())).all()
        assert "NaN" not in find_element(driver, "#temperature").get_attribute("innerHTML")
    assert driver.execute_script("return window.hacked") is None
    assert driver.get_log("browser") == []


@pytest.mark.sampled(count=5)
@pytest.mark.browser
@pytest.mark.parametrize("name", ["ten", "two", "thousand"])
@pytest.mark.parametrize("exponent", [-2, -0.57, 0, 1, 1.33])
def test_page_agrees_with_the_metrics(visit, name, exponent):
    sizes = {"ten": (10, 3000), "two": (2, 400), "thousand": (1000, 2500)}
    logits, labels, _ = sample_rows(overconfident(*sizes[name])[0])
    tempered = logits / 2**exponent
    driver = visit(name)
    set_slider(driver, exponent)
    shown = figures(driver)
    probs = np.exp(tempered - np.logaddexp.reduce(tempered, axis=1)[:, None])
    expected = {
        "nll": metrics.nll(tempered, labels),
        "ece": metrics.ece(tempered, labels, view="top"),
        "confidence": probs.max(1).mean(),
        "accuracy": metrics.accuracy(tempered, labels),
    }
    for key, value in expected.items():
        assert shown[key] == pytest.approx(float(value), abs=5e-4), key
    readout = find_element(driver, "[data-readout=temperature]").text
    assert formatting.number(shown["nll"]) in readout
    assert formatting.page_text("ece", shown["ece"]) in readout


@pytest.mark.browser
@pytest.mark.parametrize("name", ["ten", "edges"])
def test_live_diagram_has_the_bins_of_an_evaluation(visit, name):
    if name == "ten":
        logits, labels, _ = sample_rows(BEFORE)
        judged, exponent = evaluate(Predictions.from_logits(logits / 2, labels), resamples=100), 1
    else:
        judged, exponent = evaluate(EDGES, view="top", resamples=100), 0
    bins = judged.bins[judged.bins["count"] > 0]
    driver = visit(name)
    set_slider(driver, exponent)
    labels = [
        mark.get_attribute("aria-label")
        for mark in find_elements(driver, "[data-chart=tempered] .mark")
    ]
    assert len(labels) == len(bins)
    for label, (_, row) in zip(labels, bins.iterrows(), strict=True):
        inside = row["band_low"] <= row["accuracy"] <= row["band_high"]
        for expected in [
            f"Confidence {formatting.percent(row['low'])} to {formatting.percent(row['high'])}: ",
            f" {int(row['count']):,} row",
            f"accuracy {formatting.percent(row['accuracy'])}",
            " to ".join(formatting.percent(row[f"accuracy_{end}"]) for end in ("low", "high")),
            "inside" if inside else "outside",
        ]:
            assert expected in label


@pytest.mark.browser
def test_best_is_the_temperature_of_least_loss_and_reset_goes_back(visit):
    logits, labels, _ = sample_rows(BEFORE)
    grid = 2 ** np.linspace(-2, 2, 401)
    best = grid[np.argmin([float(metrics.nll(logits / t, labels)) for t in grid])]
    driver = visit("ten")
    least = float(find_element(driver, "[data-readout=temperature]").get_attribute("data-best"))
    assert least == pytest.approx(best, rel=0.015)
    assert 1.7 < least < 2.3
    before = figures(driver)
    press(driver, find_element(driver, "[data-action=best]"))
    assert find_element(driver, "output").text == f"{least:.2f}"
    assert f"best {least:.2f}" in find_element(driver, "[data-chart=tuning]").text
    after = figures(driver)
    assert after["nll"] < before["nll"]
    assert after["ece"] < before["ece"]
    assert after["accuracy"] == before["accuracy"]
    press(driver, find_element(driver, "[data-action=reset]"))
    assert figures(driver) == before
    assert find_element(driver, "output").text == "1.00"


@pytest.mark.browser
def test_slider_is_moved_by_keyboard_and_by_the_curve(visit):
    from selenium.webdriver.common.keys import Keys

    driver = visit("ten")
    slider = find_element(driver, "#kelvin")
    slider.send_keys(Keys.ARROW_RIGHT)
    assert find_element(driver, "output").text == "1.01"
    assert slider.get_attribute("aria-valuetext").startswith("T = 1.01")
    slider.send_keys(Keys.END)
    assert find_element(driver, "output").text == "4.00"
    press(driver, find_element(driver, "[data-chart=tuning] svg"))
    assert 0.95 < float(find_element(driver, "output").text) < 1.05


@pytest.mark.browser
def test_both_diagrams_show_the_same_range(visit):
    driver = visit("ten")
    for side in ("before", "after"):
        mark = find_elements(driver, f"[data-chart={side}] .mark")[-2]
        press(driver, find_element(mark, ".dot"))
        texts = [find_element(driver, f"[data-text={each}]").text for each in ("before", "after")]
        assert all(text.startswith("Confidence 86.7% to 93.3%: right") for text in texts)


@pytest.mark.browser
def test_moving_the_slider_is_quick(visit):
    driver = visit("thousand")
    taken = driver.execute_script(
        """const slider = document.getElementById("kelvin");
        const begun = performance.now();
        for (let i = 0; i < 20; i += 1) {
          slider.value = i / 20;
          slider.dispatchEvent(new Event("input"));
        }
        return (performance.now() - begun) / 20;"""
    )
    assert taken < 100


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_stands_out_from_its_ground(visit, theme):
    assert visit("ten", theme=theme).execute_script(CONTRAST) == []


@pytest.mark.sampled(count=1)
@pytest.mark.browser
@pytest.mark.parametrize("name", ["ten", "thousand", "hostile"])
def test_phone_width_never_scrolls_sideways(visit, name):
    driver = visit(name, width=390)
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390
    assert find_element(driver, ".outcome").is_displayed()
    table = find_element(driver, ".changes")
    assert table.rect["width"] <= 390
    assert all(cell.is_displayed() for cell in find_elements(driver, ".changes td"))
    set_slider(driver, 1)
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390


@pytest.mark.browser
def test_print_hides_the_slider_and_keeps_the_numbers(visit):
    driver = visit("ten", media="print")
    assert not find_element(driver, "#kelvin").is_displayed()
    assert not find_element(driver, "[data-action=best]").is_displayed()
    assert find_element(driver, "[data-readout=temperature]").is_displayed()
    assert find_element(driver, ".changes").is_displayed()


@pytest.mark.browser
def test_every_control_has_a_name_and_headings_step_by_one(visit):
    driver = visit("ten")
    nameless = driver.execute_script(
        """return [...document.querySelectorAll("button, select, input")].filter((e) =>
        !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length)).length"""
    )
    assert nameless == 0
    headings = [int(h.tag_name[1]) for h in find_elements(driver, "h1, h2, h3")]
    assert np.diff(headings).max() <= 1
