"""Other models in the report: the table beside this one, and what it says in words."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest

from calibrant import Predictions, compare, evaluate
from calibrant.core.errors import InputError
from calibrant.report import Alternatives, formatting, render, write
from calibrant.report.comparison_tables import compare_alternatives
from tests.helpers.browser import CONTRAST, find_elements
from tests.report.test_page import HOSTILE
from tests.report.test_repair import AFTER, BEFORE, JUDGED, PAIRED, REPAIRED, overconfident

SHOWN = ("accuracy", "ece", "nll")
SURER = Predictions.from_logits(2 * BEFORE.array, BEFORE.labels, name="surer")
BLIND = Predictions.from_logits(0.5 * AFTER.array[:, ::-1].copy(), AFTER.labels, name="blind")


def against(other, **changed):
    """Another model's evaluation under a name, and how it compares with this one."""
    evaluation = evaluate(other, metrics=SHOWN, resamples=100)
    comparison = compare(BEFORE, other, metrics=SHOWN, resamples=100)
    return replace(evaluation, **changed), comparison


CALM, WORSE, SAME = against(AFTER, name="calm"), against(SURER), against(BEFORE, name="same")
USELESS = against(BLIND)


def page(*models, explanation="", **options):
    return render(JUDGED, others=Alternatives(models, explanation), **options)


def rows_of(text):
    return {
        html.unescape(name): [
            html.unescape(re.sub(r"<.*?>", "", cell)).strip()
            for cell in re.findall(r"<td.*?</td>", row, re.S)
        ]
        for name, row in re.findall(r'<tr data-model="(.*?)">(.*?)</tr>', text, re.S)
    }


def headline(*models):
    return re.search(r'"outcome-headline">(.*?)</p>', page(*models))[1]


def test_section_is_there_only_with_other_models_and_follows_the_repair():
    assert 'id="alternatives"' not in render(JUDGED)
    text = page(CALM, after=REPAIRED, comparison=PAIRED)
    order = re.findall(r'<section id="(\w+)"', text)
    assert order[:4] == ["verdict", "repair", "alternatives", "figures"]
    assert 'href="#alternatives">Other models' in text
    assert "Everything else on this page, other models aside, is about" in text
    alone = render(JUDGED, after=REPAIRED, comparison=PAIRED)
    assert "Everything else on this page is about the model before repair" in alone


def test_table_tells_accuracy_calibration_error_and_likelihood_of_each():
    rows = rows_of(page(CALM, WORSE))
    assert list(rows) == ["this model", "calm", "surer"]
    for name, judged in (("this model", JUDGED), ("calm", CALM[0]), ("surer", WORSE[0])):
        accuracy, ece, interval, nll, _ = rows[name]
        assert accuracy == formatting.figure_text("accuracy", judged["accuracy"].value)
        assert ece == formatting.page_text("ece", judged["ece"].value)
        assert ece.endswith(" points")
        assert interval == formatting.page_interval("ece", judged["ece"].low, judged["ece"].high)
        assert nll == formatting.number(judged["nll"].value)


def test_outcome_says_what_is_better_and_what_is_worse():
    rows = rows_of(page(CALM, WORSE, SAME, USELESS))
    assert [row[-1] for row in rows.values()] == [
        "–",
        "better calibrated, lower NLL",
        "worse calibrated, higher NLL",
        "no difference shown",
        "less accurate, worse calibrated, higher NLL",
    ]
    text = page(CALM, WORSE, SAME)
    assert text.count('"winner after">better calibrated') == 1
    assert text.count('"winner before">worse calibrated') == 1


def test_gains_and_losses_are_told_of_the_same_model():
    (better, comparison), (blind, lost) = CALM, USELESS
    figures = {**better.figures, "accuracy": blind["accuracy"]}
    differences = {**comparison.differences, "accuracy": lost["accuracy"]}
    mixed = (replace(better, figures=figures), replace(comparison, differences=differences))
    table = compare_alternatives(JUDGED, Alternatives([mixed]))
    assert table.rows[-1].outcome == "better calibrated, lower NLL but less accurate"
    assert table.rows[-1].tone == "neither"
    assert table.tone == "mixed"


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (
            (CALM,),
            "It is better calibrated than this model; it is not shown to be less accurate.",
        ),
        (
            (SAME,),
            "It is not shown to be better calibrated than this model; "
            "it is not shown to be less accurate.",
        ),
        (
            (CALM, CALM),
            "All 2 are better calibrated than this model; none is shown to be less accurate.",
        ),
        (
            (CALM, SAME, USELESS),
            "1 of 3 is better calibrated than this model; 1 of 3 is less accurate.",
        ),
        (
            (CALM, CALM, USELESS),
            "2 of 3 are better calibrated than this model; 1 of 3 is less accurate.",
        ),
        (
            (USELESS, USELESS),
            "None is shown to be better calibrated than this model; all 2 are less accurate.",
        ),
    ],
)
def test_headline_counts(models, expected):
    assert headline(*models) == expected


@pytest.mark.parametrize(
    ("models", "tone"),
    [((CALM, SAME), "helps"), ((USELESS, SAME), "harms"), ((SAME,), "mixed")],
)
def test_tone_follows_the_headline(models, tone):
    assert f'class="outcome {tone}"' in page(*models)


def test_repaired_model_stands_in_the_table_and_lowest_likelihood_is_named():
    text = page(WORSE, after=REPAIRED, comparison=PAIRED)
    assert list(rows_of(text)) == ["this model", "this model, repaired", "surer"]
    assert rows_of(text)["this model, repaired"][-1] == "better calibrated, lower NLL"
    assert "The lowest NLL of the table is that of this model, repaired." in text
    assert "The lowest NLL of the table is that of calm." in page(CALM, WORSE)
    assert "The lowest NLL of the table is that of this model." in page(WORSE)
    # Without intervals of the difference nothing can be said of the repair.
    assert "this model, repaired" not in rows_of(page(WORSE, after=REPAIRED))


def test_explanation_and_names_are_text(tmp_path):
    hostile = (replace(CALM[0], name=HOSTILE[0]), CALM[1])
    text = page(hostile, explanation="One.\n\n<b>Two</b>.")
    assert "<script>window.hacked" not in text
    assert '<p dir="auto">One.</p>' in text
    assert "&lt;b&gt;Two&lt;/b&gt;." in text
    assert list(rows_of(text))[1] == HOSTILE[0]
    path = write(JUDGED, tmp_path / "page.html", others=Alternatives([CALM]))
    assert path.read_text(encoding="utf-8") == page(CALM)


def test_what_does_not_belong_together_is_refused():
    small, _ = overconfident(10, 50)
    few = evaluate(small, metrics=SHOWN, resamples=100)
    with pytest.raises(InputError, match="this model and an alternative must hold the same rows"):
        page((few, CALM[1]))
    with pytest.raises(InputError, match="the comparison is not of these two"):
        page((CALM[0], WORSE[1]))
    with pytest.raises(InputError, match="no alternatives"):
        page()
    with pytest.raises(InputError, match="comparison with calm lacks ece"):
        page((CALM[0], compare(BEFORE, AFTER, metrics=("accuracy", "nll"), resamples=100)))
    with pytest.raises(InputError, match="'ece' was not computed"):
        page((evaluate(AFTER, metrics=("accuracy", "nll"), resamples=100), CALM[1]))


# In a browser.


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "others.html"
    others = Alternatives([CALM, WORSE, USELESS, (replace(CALM[0], name=HOSTILE[1]), CALM[1])], "x")
    options = {"after": REPAIRED, "comparison": PAIRED, "predictions": BEFORE}
    return {"others": write(JUDGED, path, others=others, **options).as_uri()}


@pytest.mark.sampled(count=1)
@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_and_the_console_is_quiet(visit, theme):
    page = visit("others", theme=theme)
    assert page.get_log("browser") == []
    assert page.execute_script(CONTRAST) == []
    assert len(find_elements(page, "#alternatives tbody tr")) == 6


@pytest.mark.browser
def test_phone_width_never_scrolls_sideways(visit):
    page = visit("others", width=360)
    widths = page.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert widths[0] <= widths[1]
