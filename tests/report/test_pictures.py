"""The pictures draw what the evaluation holds, where they are told, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import matplotlib
import numpy as np
import pytest

from calibrant.core.errors import InputError
from calibrant.report import class_calibration, reliability_diagram, risk_coverage_curve
from tests.helpers.evaluations import infinite_loss, simulated, single_row

PICTURES = [reliability_diagram, class_calibration, risk_coverage_curve]
TEN = simulated()


def marks(ax):
    """The places of the reliability marks, which are the one scatter of the picture."""
    (scatter,) = [c for c in ax.collections if type(c).__name__ == "PathCollection"]
    return np.asarray(scatter.get_offsets())


@pytest.mark.parametrize("draw", PICTURES)
def test_without_axes_a_figure_is_made_that_pyplot_does_not_know(draw, tmp_path):
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    ax = draw(TEN)
    ax.figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000
    assert plt.get_fignums() == before


@pytest.mark.parametrize("draw", PICTURES)
def test_given_axes_are_used_and_returned_and_no_state_changes(draw):
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    style = dict(matplotlib.rcParams)
    fignums = plt.get_fignums()
    figure = Figure()
    left, right = figure.subplots(1, 2)
    figure.sca(right)
    assert draw(TEN, ax=left) is left
    assert figure.axes == [left, right]
    assert figure.gca() is right
    assert dict(matplotlib.rcParams) == style
    assert plt.get_fignums() == fignums


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_reliability_marks_are_the_bins_with_rows(binning):
    table = TEN.bins if binning == "width" else TEN.mass_bins
    table = table[table["count"] > 0]
    drawn = marks(reliability_diagram(TEN, binning=binning))
    np.testing.assert_allclose(drawn, table[["confidence", "accuracy"]])


def test_filled_marks_are_those_outside_the_band():
    ax = reliability_diagram(TEN)
    (scatter,) = [c for c in ax.collections if type(c).__name__ == "PathCollection"]
    filled = ~np.all(scatter.get_facecolor()[:, :3] == 1, axis=1)
    table = TEN.bins[TEN.bins["count"] > 0]
    outside = (table["accuracy"] < table["band_low"]) | (table["accuracy"] > table["band_high"])
    assert filled.tolist() == outside.tolist()
    assert 0 < filled.sum() < len(filled)


def test_unknown_binning_is_refused():
    with pytest.raises(InputError, match="'depth'"):
        reliability_diagram(TEN, binning="depth")


def test_class_calibration_shows_the_worst_classes_first():
    many = simulated(40, 1000)
    ax = class_calibration(many, top=7)
    worst = many.classes.sort_values("ece", ascending=False).head(7)
    assert [label.get_text() for label in ax.get_yticklabels()] == worst["name"].tolist()
    assert "worst 7 of 40" in ax.get_title(loc="left")
    widths = [abs(bar.get_width()) for bar in ax.containers[0]]
    np.testing.assert_allclose(widths, worst["ece"])


def test_class_calibration_needs_a_class_to_show():
    with pytest.raises(InputError, match="at least 1"):
        class_calibration(TEN, top=0)


def test_risk_coverage_curve_is_the_table():
    ax = risk_coverage_curve(TEN)
    table = TEN.risk_coverage
    np.testing.assert_allclose(
        np.asarray(ax.lines[0].get_xydata()), table[["coverage", "risk"]].to_numpy()
    )


@pytest.mark.sampled(count=3)
@pytest.mark.parametrize("draw", PICTURES)
@pytest.mark.parametrize("make", [single_row, infinite_loss, lambda: simulated(2, 300)])
def test_corners_are_drawn(draw, make, tmp_path):
    draw(make()).figure.savefig(tmp_path / "corner.png")


def test_names_with_mathtext_signs_are_drawn_as_they_are(tmp_path):
    odd = simulated(3, 200, names=["$x", "a_b^c", r"\frac{$}"], name="100% $a_{ $")
    for draw in PICTURES:
        draw(odd).figure.savefig(tmp_path / "odd.png")


def test_importing_the_report_loads_neither_matplotlib_nor_jinja():
    code = (
        "import sys, calibrant.report;"
        "print([m for m in ('matplotlib', 'jinja2', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
