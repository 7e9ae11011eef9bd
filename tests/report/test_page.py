"""The text of the report: complete, self-contained, safe and small."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from calibrant import evaluate
from calibrant.core.errors import InputError
from calibrant.report import formatting, page, render, write
from calibrant.report.page import MOST_CLASS_DIAGRAMS, make_payload, make_script_json
from tests.helpers.evaluations import infinite_loss, simulated, single_row
from tests.helpers.groups import FAST, draw_groups

TEN = simulated()
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    '"><svg onload=window.hacked=1>',
    "{{ 7 * 7 }} {% raw %}",
    "<!-- <script> ]]>",
    "line\u2028break\u2029 & &lt;",
    "",
    "ünïcödé 猫",
]


def embedded(text):
    matches = re.findall(
        r'<script type="application/json" id="report-data">(.*?)</script>', text, re.S
    )
    assert len(matches) == 1
    return json.loads(matches[0])


def test_sections_come_in_the_promised_order_with_the_verdict_first():
    text = render(TEN)
    always = [section.name for section in page.SECTIONS if section.needs is None]
    assert re.findall(r'<section id="(\w+)"', text) == always
    places = [text.index(f'href="#{name}">') for name in always]
    assert places == sorted(places)
    assert page.SECTIONS[0].name == "verdict"


def test_verdict_and_every_figure_are_in_the_markup_itself():
    text = html.unescape(re.sub(r"<script.*?</script>", "", render(TEN), flags=re.S))
    assert TEN.verdict.headline in text
    assert all(sentence in text for sentence in TEN.verdict.sentences)
    for figure in TEN.figures.values():
        assert figure.label in text
        assert formatting.page_text(figure.name, figure.value) in text


def test_nothing_is_fetched():
    text = render(TEN)
    assert not re.search(r'(?:src|href)\s*=\s*["\']?\s*(?:https?:)?//', text)
    assert "@import" not in text
    assert not re.search(r"url\(", text)
    assert "default-src 'none'" in text


def test_the_policy_allows_exactly_the_scripts_and_styles_of_the_page():
    text = render(TEN)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    inline = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", text, re.S)
    assert len(inline) == 3
    assert {page.hash_source(part) for part in inline} == set(re.findall(r"'sha256-[^']*'", policy))
    assert "unsafe" not in policy


def test_hostile_names_stay_text():
    hostile = simulated(len(HOSTILE), 300, names=HOSTILE, name=HOSTILE[0])
    text = render(hostile, title=HOSTILE[1])
    assert "<script>window.hacked" not in text
    assert "<img src=x" not in text
    assert "<svg onload" not in text
    assert html.escape(HOSTILE[1], quote=False).split("'")[0] in text
    names = [row[1] for row in embedded(text)["classes"]]
    assert names == HOSTILE
    assert "{{ 7 * 7 }}" in names[3]


def test_embedded_json_holds_the_bins():
    data = embedded(render(TEN))
    for key, table in [("width", TEN.bins), ("mass", TEN.mass_bins)]:
        drawn = np.array(data["bins"][key], dtype=float)
        np.testing.assert_allclose(drawn, table[list(data["binColumns"])], rtol=1e-4)
    index = int(np.argmax(TEN.classes["ece"]))
    for place, count, mean, frequency in data["classBins"][str(index)]:
        np.testing.assert_allclose(
            [count, mean, frequency], TEN.class_bins[index, place], rtol=1e-4, atol=1e-12
        )


def test_empty_bins_are_null_and_infinity_survives():
    infinite = infinite_loss()
    text = render(infinite)
    data = embedded(text)
    assert data["bins"]["width"][0][2:4] == [0, None]
    assert "inf" in [row[data["classColumns"].index("nll")] for row in data["classes"]]
    assert re.search(r'data-figure="nll">.*?∞.*?no interval.*?probability 0', text, re.S)


def test_json_refuses_what_json_lacks():
    with pytest.raises(ValueError, match="JSON"):
        make_script_json({"x": float("nan")})


def test_a_thousand_classes_stay_small():
    many = simulated(1000, 3000, sharpness=0.7)
    assert len(render(many).encode()) < 1_500_000


def test_more_classes_than_diagrams_keeps_the_worst():
    num_classes = MOST_CLASS_DIAGRAMS + 5
    many = simulated(num_classes, 50)
    kept = set(map(int, make_payload(many)["classBins"]))
    assert len(kept) == MOST_CLASS_DIAGRAMS
    left_out = sorted(set(range(num_classes)) - kept)
    assert many.classes["ece"][left_out].max() <= many.classes["ece"][sorted(kept)].min()


def test_filter_appears_only_with_many_classes():
    assert 'id="class-filter"' not in render(simulated(20, 200))
    assert 'id="class-filter"' in render(simulated(21, 200))


def test_title_that_utf8_cannot_hold_is_still_written(tmp_path):
    path = write(TEN, tmp_path / "odd.html", title="lone \ud800 surrogate")
    assert "lone ? surrogate" in path.read_text(encoding="utf-8")


def test_same_evaluation_gives_the_same_bytes():
    assert render(TEN) == render(TEN)


def test_title_defaults_to_the_name_of_the_predictions():
    assert f'<h1 dir="auto">{TEN.name}</h1>' in render(TEN)
    assert '<h1 dir="auto">Tuesday&#39;s run</h1>' in render(TEN, title="Tuesday's run")


@pytest.mark.parametrize("make", [single_row, infinite_loss, lambda: simulated(2, 300)])
def test_corners_are_rendered(make):
    assert embedded(render(make()))["rows"] > 0


@pytest.mark.parametrize(
    ("state", "direction", "tone", "badge"),
    [
        ("off", "overconfident", "off", "Off: overconfident"),
        ("off", "neither", "off", "Off"),
        ("holds", "neither", "holds", "Holds within the tolerance"),
        ("cannot tell", "neither", "unsure", "Cannot tell"),
    ],
)
def test_colour_and_word_of_the_verdict_are_its_state(state, direction, tone, badge):
    verdict = SimpleNamespace(**{**vars(TEN.verdict), "direction": direction, "state": state})
    text = render(SimpleNamespace(**{**vars(TEN), "verdict": verdict}))
    assert f'class="verdict {tone}"' in text
    assert f'<p class="badge">{badge}</p>' in text


def test_evaluation_without_intervals_has_a_page_without_a_verdict():
    figures = {
        name: SimpleNamespace(**{**vars(figure), "low": None, "high": None, "corrected": None})
        for name, figure in TEN.figures.items()
    }
    text = render(SimpleNamespace(**{**vars(TEN), "verdict": None, "figures": figures}))
    assert "made without intervals" in text
    assert 'class="gauge"' not in text


def test_settings_needed_to_repeat_are_listed():
    text = render(TEN)
    tail = text[text.index('<section id="settings"') :]
    for word in ["4,000", "1,000", "seed", "resamples", "0.1.0"]:
        assert word in tail


def test_write_returns_the_path_and_makes_folders(tmp_path):
    path = write(TEN, tmp_path / "new" / "report.html", title="hello")
    assert path == tmp_path / "new" / "report.html"
    assert path.read_text(encoding="utf-8") == render(TEN, title="hello")
    assert list(path.parent.iterdir()) == [path]


def test_write_that_fails_leaves_the_old_report_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def refuse(source, target):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        write(TEN, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_to_a_folder_says_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"report\.html"):
        write(TEN, tmp_path)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.03124, "0.0312"),
        (1.23456, "1.235"),
        (0.00041, "0.00041"),
        (-0.5, "−0.5000"),
        (float("inf"), "∞"),
        (float("nan"), "–"),
        (None, "–"),
        (0.0, "0.0000"),
        (12345.6, "12,346"),
    ],
)
def test_scores_have_about_four_digits(value, text):
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "50%"),
        (0.1234, "12.3%"),
        (0.0012, "0.12%"),
        (0.9997, "99.97%"),
        (1.0, "100%"),
        (0, "0%"),
    ],
)
def test_percentages_keep_digits_at_both_ends(value, text):
    assert formatting.percent(value) == text


def test_a_real_evaluation_renders(tmp_path):
    from calibrant import Predictions, evaluate

    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(500, 4))
    labels = (logits / 3 + rng.gumbel(size=(500, 4))).argmax(1)
    names = ["ant", "bee", "<b>cat</b>", "dog"]
    predictions = Predictions.from_logits(logits, labels, class_names=names)
    data = embedded(
        write(evaluate(predictions), tmp_path / "real.html").read_text(encoding="utf-8")
    )
    assert [row[1] for row in data["classes"]] == names
    assert sum(row[2] for row in data["bins"]["width"]) == 500


def test_stand_in_has_the_fields_of_the_real_evaluation():
    from calibrant import evaluation

    for real, stand_in in [
        (evaluation.Evaluation, TEN),
        (evaluation.Verdict, TEN.verdict),
        (evaluation.Figure, TEN.figures["ece"]),
    ]:
        fields = {field.name for field in dataclasses.fields(real)}
        assert set(vars(stand_in)) <= fields | set(dir(real))


@pytest.mark.parametrize(
    ("share", "shown"), [(1.5e-16, "0.00"), (0.0, "0.00"), (5e-6, "0.0005"), (0.021, "2.1")]
)
def test_errors_that_are_0_but_for_rounding_are_shown_as_0(share, shown):
    assert formatting.error_points(share) == shown


def test_a_page_says_that_it_is_a_group_that_is_off():
    predictions, home = draw_groups(8, [6000, 200], [-0.003, 0.15])
    text = render(evaluate(predictions, groups=home, group_name="site", **FAST))
    assert "Over all rows: no miscalibration was found" in text
    assert "But site 1 is overconfident" in text
    assert "Off in some groups" in text
    everywhere, home = draw_groups(8, [300, 300], [0.15, 0.15])
    text = render(evaluate(everywhere, groups=home, group_name="site", **FAST))
    assert "Off: overconfident" in text
