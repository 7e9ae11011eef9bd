"""Pictures of section 5: their numbers against formulas by hand, and drawing without a trace."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
import torch

from calibrant.bench import Store, Suite, collect_results, make_row, run_suite
from calibrant.bench.tables import series
from calibrant.bench.tables.pictures import heat, lines, svg
from calibrant.core.errors import InputError
from replication import formulas, gallery, measurements, pictures
from replication.class_scaling_fits import HardestClasses, fit_hardest_classes
from replication.measurements import infer_masked

pytestmark = pytest.mark.slow  # claims are judged by `make test-all`

# --- numbers ----------------------------------------------------------------------------


def test_weights_and_gradients_are_those_of_the_formulas():
    texts = ["cross_entropy", "focal(gamma=3)", "inverse_focal(gamma=1.5)", *formulas.RANKED]
    curves = formulas.compute_loss_curves(texts, points=199)
    p = [(place + 0.5) / 199 for place in range(199)]
    weights = {
        "cross_entropy": [1.0 for _ in p],
        "focal(gamma=3)": [(1 - x) ** 3 for x in p],
        "inverse_focal(gamma=1.5)": [(1 + x) ** 1.5 for x in p],
        # Rank k of n by p: -ln(1 - k/(n+1)).
        "r_aurc, hard rank": [-math.log(1 - (place + 1) / 200) for place in range(199)],
    }
    # Evenly spaced p/ε lies inside the permutahedron, so its projection only moves the mean to
    # that of the ranks: r = 100 + (p - 1/2)/ε, where ε is the batch of 128's.
    for epsilon in (0.05, 0.01):
        soft = [100 + (x - 0.5) / (epsilon * 129 / 200) for x in p]
        weights[f"r_aurc, soft rank (ε = {epsilon})"] = [-math.log(1 - r / 200) for r in soft]
    for text, values in weights.items():
        mean = sum(values) / len(values)
        expected = [value / mean for value in values]
        np.testing.assert_allclose(curves[text].weight, expected, rtol=1e-6, err_msg=text)
    gradients = {
        "cross_entropy": [-1 / x for x in p],
        "focal(gamma=3)": [3 * (1 - x) ** 2 * math.log(x) - (1 - x) ** 3 / x for x in p],
        "inverse_focal(gamma=1.5)": [
            -1.5 * (1 + x) ** 0.5 * math.log(x) - (1 + x) ** 1.5 / x for x in p
        ],
        "r_aurc, hard rank": [math.log(1 - (place + 1) / 200) / x for place, x in enumerate(p)],
    }
    for text, values in gradients.items():
        np.testing.assert_allclose(curves[text].gradient, values, rtol=1e-6, err_msg=text)


def test_smoothing_is_that_of_table_2_but_for_its_slips():
    curves = formulas.compute_smoothing(points=41)
    assert list(curves) == list(formulas.REGULARISERS)
    z = np.linspace(0, 20, 41)
    p = np.exp(z) / (np.exp(z) + 9)
    # What table 2 prints, where the losses' own derivatives agree.
    for name in ("label_smoothing", "crl"):
        # At equal logits the largest is no single one.
        own, printed = curves[name].predicted, curves[name].printed_predicted
        np.testing.assert_allclose(own[1:], printed[1:], atol=1e-9, err_msg=name)
    np.testing.assert_allclose(curves["crl"].predicted[1:], (p * (1 - p))[1:], atol=1e-9)
    # MDCA's has 1 − p in place of 1 − Σ a_k p_k = 2(1 − p), the supplement's (13).
    np.testing.assert_allclose(curves["mdca"].predicted[1:], (2 * p * (1 - p) / 10)[1:], atol=1e-9)
    np.testing.assert_allclose(curves["mdca"].printed_predicted, p * (1 - p) / 10, atol=1e-12)
    np.testing.assert_allclose(
        curves["confidence_penalty"].predicted,
        0.1 * p * (np.log(p) + (9 * (1 - p) / 9 * -np.log((1 - p) / 9)) + p * -np.log(p)),
        atol=1e-9,
    )
    # Focal loss with γ = 3, FLSD's from p = 0.2 on: pulls the target down where it is sure.
    sure = p >= 0.2
    focal = -((1 - p) ** 4) + 3 * p * (1 - p) ** 3 * np.log(p) + (1 - p)
    np.testing.assert_allclose(curves["flsd"].predicted[sure], focal[sure], atol=1e-9)
    # Slips and readings: acls differentiated whole, and mbls through the predicted logit.
    over = np.maximum(z - 10, 0)
    np.testing.assert_allclose(curves["acls"].predicted, 2 * 0.11 * over, atol=1e-12)
    np.testing.assert_allclose(curves["acls"].printed_predicted, 0.1 * over, atol=1e-12)
    np.testing.assert_allclose(curves["mbls"].predicted[z > 10], 0.1 * 9 / 10)
    assert (curves["mbls"].condition == 0).all()
    assert (curves["acls"].condition == (z >= 10)).all()
    # Another class is pulled up less the larger its logit, and cpc's first sign is a slip.
    low = np.maximum(20 - z - 10, 0)
    np.testing.assert_allclose(curves["acls"].other, 2 * 0.01 / 9 * low, atol=1e-12)
    gap = curves["cpc"].printed_other - curves["cpc"].other
    q = np.exp(z - 20) / (1 + np.exp(z - 20))
    np.testing.assert_allclose(gap, 2 * 0.1 / 9 * q, atol=1e-9)
    assert (curves["cpc"].predicted <= 0).all()  # it raises the target of the predicted class


def test_smoothing_has_a_panel_for_each_regulariser():
    curves, panels = formulas.REGULARISERS, pictures.draw_smoothing().figure.axes
    assert [panel.get_title(loc="left") or panel.get_title() for panel in panels] == list(
        formulas.REGULARISERS
    )
    # Two of each kind, and 0; table 2 does not give these two's constants.
    lines = {name: len(panel.get_lines()) for name, panel in zip(curves, panels, strict=True)}
    assert lines == {name: 3 if name in ("flsd", "confidence_penalty") else 5 for name in curves}


def test_soft_bins_are_the_softmax_of_squared_distances():
    (table,) = formulas.compute_membership([0.02], num_bins=4, points=11).values()
    for row in range(11):
        away = [math.exp(-((row / 10 - (bin_ + 0.5) / 4) ** 2) / 0.02) for bin_ in range(4)]
        np.testing.assert_allclose(table[row], np.array(away) / sum(away), rtol=1e-9)
    (hard,) = formulas.compute_membership([1e-6], num_bins=4, points=10).values()
    assert (hard.round().argmax(1) == (np.linspace(0, 1, 10) * 4).clip(0, 3.9).astype(int)).all()


def test_the_soft_threshold_is_the_identity_at_a_half_and_one():
    curves = formulas.compute_uncertainty([(0.5, 1.0), (0.2, 1e-3)], points=11)
    np.testing.assert_allclose(curves[0.5, 1.0], np.linspace(0, 1, 11), atol=1e-9)
    np.testing.assert_allclose(curves[0.2, 1e-3][[1, 3]], [0, 1], atol=1e-9)


def classifier(rows: int = 600, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Overconfident logits of five classes, the last two of which are confused."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 5
    logits = 2.0 * torch.randn(rows, 5, generator=generator)
    logits[torch.arange(rows), labels] += 8.0
    hard = labels >= 3
    logits[hard, 3] += 4.0
    logits[hard, 4] += 4.0
    logits[hard] += 3 * torch.randn(int(hard.sum()), 5, generator=generator)
    return logits, labels


def test_a_temperature_of_the_hardest_classes_is_hotter_and_told_step_by_step():
    logits, labels = classifier()
    trace = fit_hardest_classes(logits, labels, hardest=2, steps=40, rate=0.3)
    assert set(trace.chosen) == {3, 4}
    assert trace.temperature[0] == 1
    assert trace.temperature[-1] > 1.15
    for step in (0, 17, 40):
        p = torch.softmax(logits.double() / trace.temperature[step], 1)
        each = [-math.log(float(p[row, labels[row]])) for row in range(len(labels))]
        by_class = [
            sum(x for x, y in zip(each, labels.tolist(), strict=True) if y == k) / 120
            for k in range(5)
        ]
        np.testing.assert_allclose(trace.total[step], sum(each) / 600, rtol=1e-6)
        np.testing.assert_allclose(trace.by_class[step], by_class, rtol=1e-6)
        np.testing.assert_allclose(trace.spread[step], np.std(by_class, ddof=1), rtol=1e-6)
    # On its own classes it only falls, as a fit does.
    own = trace.by_class[:, [3, 4]].mean(1)
    assert (np.diff(own) <= 1e-12).all()
    assert own[-1] < 0.99 * own[0]


def test_a_and_b_have_one_loss_on_both_sides_of_the_lowest():
    fall = np.array([1.0, 0.8, 0.6, 0.5, 0.6, 0.7])
    trace = HardestClasses((0,), fall, fall, np.ones((6, 2)), np.array([9.0, 8, 7, 6, 2, 1]))
    assert trace.find_same_loss() == (2, 4)
    down = HardestClasses((0,), fall, fall[:4], np.ones((4, 2)), fall[:4])
    assert down.find_same_loss() is None


def test_masks_of_nothing_and_of_everything():
    generator = torch.Generator().manual_seed(1)
    features, weight = (torch.randn(*shape, generator=generator) for shape in ((500, 8), (8, 3)))
    bias = torch.tensor([0.0, 0.0, 1.0])
    labels = (features @ weight + bias).argmax(1)
    figures = infer_masked(features, labels, weight, bias, ratios=[0.0, 0.5, 1.0])
    assert figures[0.0][0] == 1.0
    assert figures[1.0][1] == pytest.approx(float(torch.softmax(bias, 0).max()))
    assert figures[0.0][0] > figures[0.5][0] > figures[1.0][0]
    again = infer_masked(features, labels, weight, bias, ratios=[0.0, 0.5, 1.0])
    assert again == figures
    with pytest.raises(InputError, match="masked share"):
        infer_masked(features, labels, weight, bias, ratios=[2.0])


def test_cohens_d_by_hand():
    # Means 4 and 2; variances 1 and 4, of 3 and 2 runs: pooled (2·1 + 1·8)/3.
    assert formulas.cohens_d([3, 4, 5], [0, 4]) == pytest.approx(2 / math.sqrt(10 / 3))
    assert math.isnan(formulas.cohens_d([1], [1, 2]))
    assert formulas.cohens_d([1, 1], [1, 1]) == 0
    assert formulas.cohens_d([2, 2], [1, 1]) == math.inf


def test_effects_take_the_methods_by_their_names_in_suites():
    errors = {
        "cross_entropy": [0.05, 0.06],
        "s_avuc": [0.05, 0.05],
        "interleaved_s_avuc": [0.02, 0.03],
        "mmce": [0.06, 0.07],
        "focal": [0.05, 0.06],
        "focal+s_avuc": [0.01, 0.02],
    }
    names = ("mmce", "avuc", "s_avuc")
    plain = formulas.compute_effect_sizes(errors, primary="cross_entropy", secondaries=names)
    assert plain.keys() == {"mmce", "s_avuc"}
    assert plain["s_avuc"] == formulas.cohens_d([0.05, 0.06], [0.02, 0.03])
    assert plain["mmce"] < 0 < plain["s_avuc"]
    focal = formulas.compute_effect_sizes(errors, primary="focal", secondaries=names)
    assert focal == {"s_avuc": formulas.cohens_d([0.05, 0.06], [0.01, 0.02])}


def test_effects_are_pooled_by_the_deviation_within_settings():
    draw = np.random.default_rng(0)
    pairs = [(list(draw.normal(5, 1, 6)), list(draw.normal(3, 1, 5))) for _ in range(3)]
    pairs.append(([40.0, 41.0], [38.0, 39.5]))
    gap = np.mean([np.mean(a) - np.mean(b) for a, b in pairs])
    squares = sum(np.var(side) * len(side) for pair in pairs for side in pair)
    free = sum(len(side) - 1 for pair in pairs for side in pair)
    assert formulas.pool_effects(pairs) == pytest.approx(gap / math.sqrt(squares / free))
    assert math.isnan(formulas.pool_effects([([1.0], [2.0])]))


# --- series -----------------------------------------------------------------------------

SUITE = """
name: everything
defaults: {data: digits, model: mlp, device: cpu, epochs: 10}
seeds: [0, 1]
methods:
  cross_entropy: {}
  focal: {loss: focal}
  s_avuc: {loss: s_avuc}
  lambda=0.5: {loss: r_aurc(lam=0.5)}
  lambda=1.0: {loss: r_aurc(lam=1.0)}
  "eps=0.01,lambda=0.5": {loss: "r_aurc(strength=0.01)"}
  "eps=0.05,lambda=0.5": {loss: "r_aurc(strength=0.06)"}
  mixup_alpha=0.2: {recipe: mixup, recipe_options: {alpha: 0.2}}
  mixup_alpha=1.0: {recipe: mixup, recipe_options: {alpha: 1.0}}
  mit_alpha=1.0: {recipe: mit}
calibrators: [temperature]
after:
  - mac_cal_head: {race: true}
  - mac_cal_head: {race: true, gamma: 0.9}
  - mac_cal_head: {race: true, gamma: 0.98}
  - mac_cal_head: {race: true, schedule: fixed, sparsity: 0.5, gamma: 1.0}
  - mac_cal_head: {race: true, schedule: fixed, sparsity: 0.9, gamma: 1.0}
"""
FIXED = "mac_cal_head(gamma=1.0,schedule=fixed,sparsity={})"


def value_of(method: str, seed: int) -> float:
    """A made-up ECE of a method and seed."""
    return 0.01 * (1 + Suite.parse(SUITE).methods.index(method)) + 0.002 * seed


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A suite and rows of all that can be drawn."""
    store = Store(tmp_path_factory.mktemp("store"))
    suite = Suite.parse(SUITE)
    for method, spec in suite.specs:
        ece = value_of(method, spec.config.seed)
        rows = []

        def add(part, metric, value, calibrator="none", rows=rows, spec=spec):
            rows.append(
                make_row(spec, part=part, metric=metric, value=value, calibrator=calibrator)
            )

        for metric, value in (("ece", ece), ("accuracy", 0.9), ("adaptive_ece(order=2)", ece)):
            add("test", metric, value)
            add("train", metric, value / 4)
        for calibrator in ("none", "temperature", "vector"):
            add("test", "classwise_nll_std", ece * 3 + len(calibrator), calibrator)
            add("test", "ece", ece * len(calibrator) / 4, calibrator)
        for name in (
            "mac_cal_head",
            "mac_cal_head(gamma=0.9)",
            "mac_cal_head(gamma=0.98)",
            FIXED.format(0.5),
            FIXED.format(0.9),
        ):
            add("test", "ece", ece / 2, name)
            add("test", "accuracy", 0.89, name)
        for epoch in range(10):
            add(f"validation@{epoch + 1}", "ece", ece + 0.001 * epoch)
            add(f"train@{epoch}", "sparsity", 0.5 + 0.01 * epoch, "mac_cal_head")
            add(f"train@{epoch}", "share", 0.1, "regulariser")
            add(f"test@{10 * epoch}", "accuracy", 0.9 - 0.01 * epoch, "masked")
            for metric in ("nll", "classwise_nll_std", "ece"):
                add(f"test@{epoch}", metric, 1.0 / (1 + epoch), "hardest_classes")
        for kind, more in (("fog", 0.01), ("snow", 0.03)):
            for severity in (1, 5):
                add(f"test:{kind}:{severity}", "ece", ece + more * severity)
                for calibrator in ("none", "temperature"):
                    for where in ("test", "official"):
                        part = f"{where}:{kind}:{severity}"
                        add(part, "adaptive_ece(order=2)", ece + more * severity, calibrator)
        add("test", "adaptive_ece(order=2)", ece / 3, "temperature")
        add("test", "mean_entropy", 0.3 + ece)
        store.add(spec.key, rows)
    return suite, store.frame()


def test_methods_named_by_a_number_are_a_line_against_it(everything):
    results = collect_results(*everything)
    ((cell, line),) = series.by_method(results, "lambda", "ece").items()
    assert results.name_of(cell) == "digits, mlp"
    assert line.places == [0.5, 1.0]
    expected = [np.mean([value_of(f"lambda={x}", seed) for seed in (0, 1)]) for x in ("0.5", "1.0")]
    np.testing.assert_allclose(line.means, expected)
    np.testing.assert_allclose(line.errors, 0.001)  # ±0.001 over two seeds
    assert not series.by_method(results, "gamma", "ece")


def test_calibrators_with_an_option_are_a_line_against_it(everything):
    results = collect_results(*everything)
    places = {
        option: line.places
        for option, (_, only, but) in gallery.OPTIONS.items()
        for line in series.by_option(
            results, option, "ece", method="cross_entropy", only=only, but=but
        ).values()
    }
    assert places == {"gamma": [0.9, 0.98], "sparsity": [0.5, 0.9]}
    assert not series.by_option(results, "gamma", "ece", method="cross_entropy", only="other")
    assert not series.by_option(results, "gamma", "ece", method="cross_entropy", but="gamma")


def test_two_settings_are_a_table(everything):
    ((_, table),) = series.grid(collect_results(*everything), ("eps", "lambda"), "ece").items()
    assert list(table) == [(0.01, 0.5), (0.05, 0.5)]
    assert table[0.05, 0.5].mean == pytest.approx(0.071)


def test_epochs_and_severities_are_read_from_the_parts(everything):
    results = collect_results(*everything)
    ((_, traced),) = series.by_epoch(results, "ece").items()
    assert [line.name for line in traced] == list(results.suite.methods)
    assert traced[0].places == list(range(1, 11))
    assert traced[0].means[3] == pytest.approx(0.011 + 0.003)
    ((_, shifted),) = series.by_severity(results, "ece").items()
    assert shifted[0].places == [0, 1, 5]
    # Clean, then the mean of fog and snow: 0.02 a step of severity.
    assert shifted[0].means == pytest.approx([0.011, 0.031, 0.111])
    assert shifted[0].errors == pytest.approx([0.001, 0.001, 0.001])


def test_pairs_and_ratios(everything):
    results = collect_results(*everything)
    ((_, points),) = series.pairs(results, "classwise_nll_std", "ece").items()
    assert {(method, calibrator) for method, calibrator, *_ in points} == {
        (method, calibrator)
        for method in results.suite.methods
        for calibrator in ("none", "temperature", "vector")
    }


# --- drawing ----------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_trace():
    """No figure of pyplot's, and no change of style, is left by any picture."""
    import matplotlib
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    yield
    assert pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_lines_draw_the_means_in_percent_on_the_axes_given():
    from matplotlib.figure import Figure

    given = Figure().add_subplot()
    line = series.series_of("acls", {0.5: [0.01, 0.03], 1.0: [0.02]})
    axes = lines([line], "ece", given, title="Test", against="λ")
    assert axes is given
    (drawn,) = axes.get_lines()
    np.testing.assert_allclose(drawn.get_xydata(), [[0.5, 2.0], [1.0, 2.0]])
    assert "%" in axes.get_ylabel()
    assert axes.get_xlabel() == "λ"
    with pytest.raises(InputError, match="nothing to draw"):
        lines([], "ece")


def test_a_table_is_drawn_with_its_numbers(everything):
    ((_, table),) = series.grid(collect_results(*everything), ("eps", "lambda"), "ece").items()
    axes = heat(table, "ece", names=("eps", "lambda"))
    assert [text.get_text() for text in axes.texts] == ["6.10", "7.10"]


def test_lines_as_shares_begin_at_one():
    line = series.series_of("ECE", {0.0: [0.04], 10.0: [0.02], 20.0: [0.03]})
    (drawn,) = pictures.draw_shares([line], against="step").get_lines()
    np.testing.assert_allclose(drawn.get_xydata(), [[0, 1], [10, 0.5], [20, 0.75]])


def test_svg_is_whole_and_the_same_each_time():
    first, second = (svg(pictures.draw_soft_threshold()) for _ in range(2))
    assert first == second
    assert ElementTree.fromstring(first).tag.endswith("svg")
    assert "<dc:date>" not in first


def test_formulas_are_drawn():
    drawn = gallery.draw_formulas()
    assert len(drawn) == 6
    for text in drawn.values():
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert len(text) < 100_000


def test_all_that_results_allow_is_drawn_and_nothing_else(everything):
    suite, frame = everything
    titles = [title for title, _ in gallery.list_drawings(collect_results(suite, frame))]
    for word in (
        "λ of r_aurc",
        "γ of mac_cal",
        "mixing",
        "eps and lambda",
        "by epoch",
        "under corruptions",
        "corruptions, calibrated",
        "Sparsity",
        "spread",
        "Cohen",
        "pooled over settings",
        "L2 ECE under corruptions",
        "L2 ECE under official corruptions",
        "under official corruptions, calibrated",
        "mean uncertainty",
        "masked",
        "regulariser",
        "hardest classes",
    ):
        assert any(word in title for title in titles), word
    assert len(titles) == len(set(titles))
    for _, draw in gallery.list_drawings(collect_results(suite, frame)):
        assert draw().has_data()
    nothing = frame[frame["part"] == "validation"]
    assert gallery.draw_gallery(suite, nothing) == {}


# --- from runs to pictures --------------------------------------------------------------

RUN = """
name: looks
plugins: [measurements.py]
defaults: {data: digits, model: mlp, device: cpu, epochs: 3, validation: 0.3, batch_size: 64}
methods:
  cross_entropy: {}
  focal: {loss: focal(gamma=3)}
  focal+sb_ece: {loss: focal(gamma=3)+sb_ece}
  mmce: {loss: mmce}
  margin=4: {loss: acls(margin=4)}
  margin=20: {loss: acls(margin=20)}
  "lambda1=0.1,lambda2=0.01": {loss: acls(margin=10)}
where:
  - if: {method: cross_entropy}
    set:
      after:
        - confidences: {ratios: [0.5], heads: [{epochs: 2, gamma: 0.9}]}
        - geometry: {rows: 60, heads: [{epochs: 2, gamma: 0.9}]}
        - shift: {kinds: [gaussian_noise], severities: [1, 5], calibrators: [temperature]}
after:
  - shift: {kinds: [gaussian_noise], severities: [1, 5], calibrators: [temperature]}
calibrators: [temperature]
"""


@pytest.fixture(scope="module")
def looks(tmp_path_factory):
    """Results of a small suite that was run, and its pictures by title."""
    folder = tmp_path_factory.mktemp("looks")
    path = folder / "looks.yaml"
    path.write_text(RUN.replace("measurements.py", measurements.__file__))
    suite = Suite.read(path)
    run_suite(suite, folder / "out")
    results = collect_results(suite, Store(folder / "out" / "store").frame())
    return results, {title: draw() for title, draw in gallery.list_drawings(results)}


def find_picture(drawn, words):
    (axes,) = (axes for title, axes in drawn.items() if words in title)
    return axes


def list_labels(axes):
    return axes.get_legend_handles_labels()[1]


def test_confidences_are_drawn_masked_and_after_a_head(looks):
    axes = find_picture(looks[1], "Confidences of cross_entropy")
    assert list_labels(axes) == ["as trained", "50% masked", "head"]
    for step in axes.patches:
        values, edges, _ = step.get_data()
        assert sum(values) == pytest.approx(100)
        np.testing.assert_allclose(edges, np.linspace(0, 1, 21), atol=1e-9)


def test_angles_and_embeddings_are_drawn_before_and_after(looks):
    results, drawn = looks
    (cell,) = results.cells
    for after in ("as trained", "after head"):
        angles = find_picture(drawn, f"Angles of class weights, cross_entropy {after}")
        away = angles.images[0].get_array()
        assert away.shape == (10, 10)
        name = "none" if after == "as trained" else "head"
        mean = results.values("angle:weights", calibrator=name)[cell, "cross_entropy"][0]
        angle = results.values("angle:weights", calibrator=name, part="test@3")
        assert away[0, 3] == pytest.approx(abs(angle[cell, "cross_entropy"][0] - mean), abs=1e-3)
        embedded = find_picture(drawn, f"t-SNE of logits, cross_entropy {after}")
        assert len(embedded.collections[0].get_offsets()) == 60


def test_reliability_is_overlaid_by_the_papers_methods(looks):
    axes = find_picture(looks[1], "Reliability as in soft-calibration")
    assert [name for name in list_labels(axes) if not name.startswith("_")] == [
        "cross_entropy",
        "focal",
        "focal+sb_ece",
        "mmce",
    ]
    assert not any("Reliability as in acls" in title for title in looks[1])  # one method of it


def test_margins_have_the_usual_one_among_them_on_both_parts(looks):
    axes = find_picture(looks[1], "ECE against M of acls")
    assert list_labels(axes) == ["validation rows", "test rows"]
    results = looks[0]
    ((_, runs),) = (
        item for item in results.values("ece").items() if item[0][1].startswith("lambda1")
    )
    x, y = axes.get_lines()[1].get_xydata().T
    assert x.tolist() == [4, 10, 20]
    assert y[1] == pytest.approx(100 * runs[0])


def test_severities_have_cross_entropy_after_a_temperature_beside_it(looks):
    axes = find_picture(looks[1], "Equal-mass L2 ECE under corruptions")
    assert list_labels(axes)[:3] == ["cross_entropy", "cross_entropy after temperature", "focal"]
    beside = find_picture(looks[1], "Secondary losses beside focal under")
    assert list_labels(beside) == ["focal", "focal+sb_ece"]
    plain = find_picture(looks[1], "Secondary losses beside cross_entropy under")
    assert list_labels(plain) == ["cross_entropy", "mmce"]
    uncertain = find_picture(looks[1], "ECE against mean uncertainty")
    assert set(list_labels(uncertain)) == {"cross_entropy", "focal", "focal+sb_ece", "mmce"}


def test_networks_that_did_not_learn_have_no_effect(everything):
    suite, frame = everything
    results = collect_results(suite, frame)
    assert {method for _, method in gallery.find_learned(results)} == set(suite.methods)
    before = gallery.pool_results(results)
    s_avuc = {spec.key for method, spec in suite.specs if method == "s_avuc"}
    guesses = frame["key"].isin(s_avuc) & (frame["metric"] == "accuracy")
    blind = frame.assign(value=frame["value"].where(~guesses, 0.1))
    after = gallery.pool_results(collect_results(suite, blind))
    assert "s_avuc" in before["as trained"]
    assert "as trained" not in after
