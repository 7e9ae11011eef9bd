"""The reference metrics themselves, on examples worked by hand in the comments."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import dirichlet

from tests.reference import metrics as ref

# predictions 0, 1, 2, 1: right, wrong, right, right; confidences .7, .5, .6, .45
PROBS = np.array([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.2, 0.2, 0.6], [0.3, 0.45, 0.25]])
LABELS = np.array([0, 0, 2, 1])
CONFIDENCE, CORRECT = ref.top(PROBS, LABELS)

# three rows tied at .6 of which one is right
TIED_CONFIDENCE, TIED_CORRECT = [0.6, 0.6, 0.6, 0.9], [1.0, 0.0, 0.0, 1.0]


def close(value):
    return pytest.approx(value, rel=1e-12, abs=1e-12)


def test_softmax_of_logs_is_the_normalised_row():
    # exp(ln 2, ln 1, ln 1) = (2, 1, 1), which sums to 4
    assert ref.softmax([[math.log(2), 0.0, 0.0]])[0] == close([0.5, 0.25, 0.25])


def test_rows_of_the_example():
    assert CONFIDENCE == [0.7, 0.5, 0.6, 0.45]
    assert CORRECT == [1.0, 0.0, 1.0, 1.0]
    # the lowest index wins a tie
    assert ref.predictions([[0.5, 0.5]]) == [0]


def test_proper_scores():
    assert ref.accuracy(PROBS, LABELS) == 0.75
    # p_y = .7, .4, .6, .45, and their product is .0756
    assert ref.nll(PROBS, LABELS) == close(-math.log(0.0756) / 4)
    assert ref.nll_from_logits(np.log(PROBS), LABELS) == close(-math.log(0.0756) / 4)
    # rows: .09+.04+.01 = .14; .36+.25+.01 = .62; .04+.04+.16 = .24; .09+.3025+.0625 = .455
    assert ref.brier(PROBS, LABELS) == close(1.455 / 4)


def test_nll_is_infinite_where_the_label_has_no_probability():
    assert ref.nll([[1.0, 0.0], [0.5, 0.5]], [1, 0]) == math.inf
    # the logits still know: ln(1 + e^-800) + 800
    assert ref.nll_from_logits([[800.0, 0.0]], [1]) == close(800.0)


def test_brier_split():
    # five bins of width .2, (bin: mean p, frequency, share):
    # class 0: .7 is 1 (gap .3, 1/4); .4, .3 are 1, 0 (.15, 2/4); .2 is 0 (.2, 1/4): .04375
    # class 1: .2, .2 are 0 (.2, 2/4); .5, .45 are 0, 1 (.025, 2/4): .0203125
    # class 2: .1, .1 are 0 (.1, 2/4); .25 is 0 (.25, 1/4); .6 is 1 (.4, 1/4): .060625
    assert ref.brier_calibration(PROBS, LABELS, 5) == close(0.1246875)
    assert ref.brier_refinement(PROBS, LABELS, 5) == close(0.36375 - 0.1246875)


def test_equal_width_ece():
    # bins (.4,.6]: .45, .5, .6 with 2 of 3 right, gap .45/3 = .15; (.6,.8]: .7 right, gap .3
    assert ref.ece(CONFIDENCE, CORRECT, 5) == close(0.75 * 0.15 + 0.25 * 0.3)
    assert ref.ece(CONFIDENCE, CORRECT, 5, order=2) == close(math.sqrt(0.75 * 0.0225 + 0.0225))
    assert ref.mce(CONFIDENCE, CORRECT, 5) == close(0.3)


def test_label_binned_ece():
    # |2/3 - c| for .5, .6, .45 is 1/6, 1/15, 13/60, and the last row's is .3
    assert ref.ece(CONFIDENCE, CORRECT, 5, form="label") == close((10 + 4 + 13 + 18) / 60 / 4)
    squares = (10**2 + 4**2 + 13**2 + 18**2) / 60**2
    value = ref.ece(CONFIDENCE, CORRECT, 5, order=2, form="label")
    assert value == close(math.sqrt(squares / 4))


def test_equal_mass_ece():
    # sorted .45 right, .5 wrong | .6 right, .7 right: gaps .5-.475 = .025 and 1-.65 = .35
    assert ref.ece(CONFIDENCE, CORRECT, 2, binning="mass") == close(0.1875)
    assert ref.adaptive_ece(CONFIDENCE, CORRECT, 2) == close(0.1875)
    value = ref.ece(CONFIDENCE, CORRECT, 2, order=2, binning="mass")
    assert value == close(math.sqrt(0.5 * 0.025**2 + 0.5 * 0.35**2))
    # three bins begin at floor(0), floor(4/3), floor(8/3): .45 | .5 | .6, .7
    assert ref.ece(CONFIDENCE, CORRECT, 3, binning="mass") == close((0.55 + 0.5 + 2 * 0.35) / 4)
    # more bins than rows: a bin for each, the rest empty
    assert ref.adaptive_ece(CONFIDENCE, CORRECT, 15) == close((0.55 + 0.5 + 0.4 + 0.3) / 4)
    assert ref.mce(CONFIDENCE, CORRECT, 15, "mass") == close(0.55)


def test_tied_rows_share_their_correctness_between_equal_mass_bins():
    # each of the three counts as 1/3: .6, .6 | .6, .9 have A = 1/3 and 2/3, C = .6 and .75
    expected = 0.5 * (0.6 - 1 / 3) + 0.5 * (0.75 - 2 / 3)
    assert ref.adaptive_ece(TIED_CONFIDENCE, TIED_CORRECT, 2) == close(expected)


def test_bin_edges_belong_to_the_bin_below():
    # 0 and .2 lie in the first of five, .2 + an ulp in the second, 1 in the last
    bins = ref.width_bins([0.0, 0.2, np.nextafter(0.2, 1), 1.0], [0, 0, 0, 0], 5)
    assert [len(members) for members in bins] == [2, 1, 1]
    for num_bins in (10, 15, 20, 100):
        for j in range(1, num_bins + 1):
            edge = j / num_bins
            above = [edge] if edge == 1 else [edge, float(np.nextafter(edge, 1))]
            actual = ref.width_bins(above, [0.0] * len(above), num_bins)
            assert len(actual) == len(above)


def test_classwise_and_marginal_ece():
    # the bins of the Brier split; class 0: .3/4 + .15/2 + .2/4 = .2; class 1: .2/2 + .025/2;
    # class 2: .1/2 + .25/4 + .4/4
    values = [0.2, 0.1125, 0.2125]
    assert ref.classwise_ece(PROBS, LABELS, 5) == close(sum(values) / 3)
    squares = [0.04375, 0.0203125, 0.060625]
    roots = [math.sqrt(x) for x in squares]
    assert ref.classwise_ece(PROBS, LABELS, 5, order=2) == close(sum(roots) / 3)
    assert ref.marginal_ece(PROBS, LABELS, 5) == close(math.sqrt(sum(squares) / 3))
    value = ref.marginal_ece(PROBS, LABELS, 5, class_reduction="sum")
    assert value == close(math.sqrt(sum(squares)))


def test_classwise_ece_with_equal_mass():
    # two bins of two rows. class 0: .2, .3 are 0, 0 (gap .25); .4, .7 are 1, 1 (.45): .35
    # class 1: .2, .2 are 0 (.2); .45, .5 are 1, 0 (.025): .1125
    # class 2: .1, .1 are 0 (.1); .25, .6 are 0, 1 (.075): .0875
    value = ref.classwise_ece(PROBS, LABELS, 2, binning="mass")
    assert value == close((0.35 + 0.1125 + 0.0875) / 3)
    squares = 0.5 * (0.25**2 + 0.45**2 + 0.2**2 + 0.025**2 + 0.1**2 + 0.075**2)
    assert ref.marginal_ece(PROBS, LABELS, 2, "mass") == close(math.sqrt(squares / 3))


def test_ks_error():
    # sorted .45, .5, .6, .7 with a - c = .55, -.5, .4, .3: running .55, .05, .45, .75
    assert ref.ks_error(CONFIDENCE, CORRECT) == close(0.75 / 4)
    # the tied group ends at 1 - 1.8 = -.8, then -.7; the +.4 after its first row does not count
    assert ref.ks_error(TIED_CONFIDENCE, TIED_CORRECT) == close(0.8 / 4)


def test_sweep_stops_before_the_accuracies_fall():
    confidence, correct = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0, 0, 1, 0, 1, 1]
    # 2 bins: 1/3, 2/3. 3 bins: 0, 1/2, 1. 4 bins begin at 0, 1, 3, 4: 0, 1/2, 0 falls
    assert ref.sweep_num_bins(confidence, correct) == 3
    # three bins of mean confidence .15, .35, .55: gaps .15, .15, .45
    assert ref.sweep_ece(confidence, correct, order=1) == close(0.25)
    assert ref.sweep_ece(confidence, correct) == close(math.sqrt(0.2475 / 3))


def test_sweep_at_its_ends():
    # falling at once: one bin, |.5 - .3|; never falling: a bin for every row; one row
    assert ref.sweep_num_bins([0.2, 0.4], [1, 0]) == 1
    assert ref.sweep_ece([0.2, 0.4], [1, 0]) == close(0.2)
    assert ref.sweep_num_bins([0.1, 0.2, 0.3], [1, 1, 1]) == 3
    assert ref.sweep_num_bins([0.3], [0]) == 1
    # tied rows share 1/3 each, and equal accuracies do not fall
    assert ref.sweep_num_bins(TIED_CONFIDENCE, TIED_CORRECT) == 4


def test_folded_normal_mean():
    # E|Z| = sqrt(2/pi); far from zero it is the mean itself
    assert ref.folded_normal_mean(0.0, 1.0) == close(math.sqrt(2 / math.pi))
    assert ref.folded_normal_mean(-50.0, 1.0) == close(50.0)
    # it is symmetric in the mean, and by quadrature
    x = np.linspace(-10, 10, 200_001)
    density = np.exp(-0.5 * ((x - 0.4) / 0.5) ** 2) / (0.5 * math.sqrt(2 * math.pi))
    by_sum = float((np.abs(x) * density).sum() * (x[1] - x[0]))
    assert ref.folded_normal_mean(-0.4, 0.25) == pytest.approx(by_sum, abs=1e-8)


def test_chance_ece():
    # one coin of chance p misses it by 2p(1-p): p if wrong, 1-p if right
    assert ref.binomial_deviation(1, 0.8) == close(2 * 0.8 * 0.2)
    # two fair coins: 0 or 2 heads, each a quarter, miss 1 by 1
    assert ref.binomial_deviation(2, 0.5) == close(0.5)
    assert ref.binomial_deviation(3, 1.0) == 0.0
    # bins {.2, .4} of mean .3 and {.8, 1} of mean .9; labels have no say
    expected = ref.binomial_deviation(2, 0.3) + ref.binomial_deviation(2, 0.9)
    assert ref.chance_ece([0.2, 0.4, 0.8, 1.0], [0, 1, 0, 0], 2) == close(expected / 4)
    # 2 coins of .3: .49 * .6 + .42 * .4 + .09 * 1.4
    assert ref.binomial_deviation(2, 0.3) == close(0.588)


def test_debiased_ece():
    confidence, correct = [0.2, 0.4, 0.8, 1.0], [0, 1, 0, 0]
    # bins: A = .5, C = .3, s^2 = .25/1; A = 0, C = .9, s^2 = 0
    assert ref.debiased_ece(confidence, correct, 2) == close(
        math.sqrt(0.5 * (0.04 - 0.25) + 0.5 * 0.81)
    )
    folded = 0.5 * math.sqrt(2 / math.pi) * math.exp(-0.08) + 0.2 * math.erf(0.2 / math.sqrt(0.5))
    value = ref.debiased_ece(confidence, correct, 2, order=1)
    assert value == close(0.5 * (0.4 - folded) + 0.5 * 0.9)
    # bins of one row are not corrected: gaps .2, .6, .8, 1
    assert ref.debiased_ece(confidence, correct, 4) == close(math.sqrt(2.04 / 4))
    assert ref.debiased_ece(confidence, correct, 4, order=1) == close(2.6 / 4)
    # a correction larger than the error leaves 0: (.04 - .25) < 0
    assert ref.debiased_ece([0.2, 0.4], [0, 1], 1) == 0.0
    assert ref.debiased_ece([0.2, 0.4], [0, 1], 1, order=1) == 0.0


# With h = 1/4 the Beta kernels of .25, .5, .75 are 20x(1-x)^3, 30x^2(1-x)^2, 20x^3(1-x).
# At .25: 270/256 from .5 and 60/256 from .75. At .5: 5/4 from each side. At .75: mirrored.
# Correctness 0, 1, 1: the estimates are 1, 1/2, 270/330, off by 3/4, 0, 9/11 - 3/4 = 3/44.
KDE_PROBS = np.array([[0.25, 0.75], [0.5, 0.5], [0.75, 0.25]])
KDE_LABELS = np.array([1, 0, 0])


def test_beta_kernel_error():
    value = ref.binary_kde_ece([0.25, 0.5, 0.75], [0, 1, 1], 0.25)
    assert value == close((3 / 4 + 3 / 44) / 3)
    value = ref.binary_kde_ece([0.25, 0.5, 0.75], [0, 1, 1], 0.25, order=2)
    assert value == close((9 / 16 + 9 / 1936) / 3)


def test_kde_forms_for_two_classes():
    # both classes are off by the same: the norm of the canonical form has it twice
    expected = (3 / 4 + 3 / 44) / 3
    assert ref.kde_ece(KDE_PROBS, KDE_LABELS, 0.25) == close(2 * expected)
    assert ref.kde_ece(KDE_PROBS, KDE_LABELS, 0.25, "marginal") == close(expected)
    value = ref.kde_ece(KDE_PROBS, KDE_LABELS, 0.25, "marginal", class_reduction="sum")
    assert value == close(2 * expected)
    # top label: .75, .5, .75, all right, so that every estimate is 1
    assert ref.kde_ece(KDE_PROBS, KDE_LABELS, 0.25, "top") == close((0.25 + 0.5 + 0.25) / 3)


def test_dirichlet_kernel_error():
    # h = 1/4: the kernel of (1/2,1/4,1/4) is 6!/2! x1^2 x2 x3, and the others mirror it. At each
    # row the two others weigh the same, 360/(2*16*4) = 2.8125, so its estimate is 0 for its own
    # class and 1/2 for the others: off by 1/2, 1/4, 1/4
    probs = np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]])
    assert ref.kde_ece(probs, [0, 1, 2], 0.25) == close(1.0)
    assert ref.kde_ece(probs, [0, 1, 2], 0.25, order=2) == close(0.375)
    assert ref.loo_log_likelihood(probs, 0.25) == close(3 * math.log(2.8125))


def test_leave_one_out_likelihood():
    # half of 330/256, of 5/2, of 330/256
    expected = 2 * math.log(165 / 256) + math.log(5 / 4)
    assert ref.loo_log_likelihood([0.25, 0.5, 0.75], 0.25) == close(expected)
    assert ref.loo_log_likelihood(KDE_PROBS, 0.25) == close(expected)
    rows = np.random.default_rng(0).dirichlet(np.ones(4), 6)
    by_scipy = 0.0
    for j in range(6):
        kernels = [dirichlet.pdf(rows[j], rows[i] / 0.1 + 1) for i in range(6) if i != j]
        by_scipy += math.log(sum(kernels) / 5)
    assert ref.loo_log_likelihood(rows, 0.1) == pytest.approx(by_scipy, rel=1e-10)


def test_kde_is_defined_for_certain_rows_and_not_for_one():
    # certain rows of one class see each other only: right ones are off by 0
    probs = np.eye(2)[[0, 0, 1, 1]]
    assert ref.kde_ece(probs, [0, 0, 1, 1], 0.1) == close(0.0)
    assert math.isnan(ref.kde_ece(PROBS[:1], LABELS[:1], 0.1))


def heat_kernel(t, c, sigma):
    # the reflected Gaussian once more, as its cosine series
    n = np.arange(1, 400)
    return 1 + 2 * float(
        (np.exp(-((n * math.pi * sigma) ** 2) / 2) * np.cos(n * math.pi * t))
        @ np.cos(n * math.pi * c)
    )


def test_smooth_ece_of_one_place():
    # the kernel integrates to one, so smECE_s is |c - a| at every s, and so is its fixed point
    for confidence, correct, expected in [(0.5, 0, 0.5), (1.0, 0, 1.0), (0.9, 1, 0.1)]:
        assert ref.smooth_ece_at([confidence], [correct], 0.2) == close(expected)
        assert ref.smooth_ece([confidence], [correct]) == pytest.approx(expected, abs=1e-9)
    assert ref.smooth_ece([0.5, 0.5, 1.0], [0, 1, 1]) == 0.0


def test_smooth_ece_of_two_places():
    # .25 wrong and .75 right: residuals +1/8 and -1/8, zero at t = 1/2, and by the cosine series
    # the integral is 1/pi sum over odd n of cos(n pi/4) sin(n pi/2)/n exp(-(n pi s)^2/2)
    n = np.arange(1, 400, 2)
    for sigma in (0.05, 0.1, 0.3, 1.0):
        decay = np.exp(-((n * math.pi * sigma) ** 2) / 2)
        series = (np.cos(n * math.pi / 4) * np.sin(n * math.pi / 2) / n * decay).sum() / math.pi
        assert ref.smooth_ece_at([0.25, 0.75], [0, 1], sigma) == pytest.approx(series, rel=1e-9)
    value = ref.smooth_ece([0.25, 0.75], [0, 1])
    assert ref.smooth_ece_at([0.25, 0.75], [0, 1], value) == pytest.approx(value, abs=1e-8)


def test_smooth_ece_agrees_with_plain_quadrature():
    rng = np.random.default_rng(1)
    confidence = rng.uniform(0.3, 1.0, 40)
    correct = (rng.uniform(size=40) < confidence).astype(float)
    grid = (np.arange(2000) + 0.5) / 2000
    values = [
        sum(heat_kernel(t, c, 0.08) * (c - a) for c, a in zip(confidence, correct, strict=True))
        for t in grid
    ]
    by_sum = float(np.abs(values).mean() / 40)
    assert ref.smooth_ece_at(confidence, correct, 0.08) == pytest.approx(by_sum, rel=1e-5)


SCORE, LOSS = [0.9, 0.8, 0.7, 0.6], [0.0, 1.0, 0.0, 1.0]
TIED_SCORE = [0.9, 0.8, 0.8, 0.6]


def test_aurc():
    # mean losses of the first k: 0, 1/2, 1/3, 1/2
    assert ref.aurc(SCORE, LOSS) == close(1 / 3)
    # the losing rows rank 3rd and 1st from below: -ln(1 - 3/5) - ln(1 - 1/5)
    assert ref.aurc(SCORE, LOSS, "log") == close(-math.log(0.4 * 0.8) / 4)
    # the oracle has 0, 0, 1/3, 1/2
    assert ref.e_aurc(SCORE, LOSS) == close(1 / 3 - 5 / 24)
    # running sums 0, 1, 1, 2, each a quarter, averaged
    assert ref.augrc(SCORE, LOSS) == close(4 / 16)


def test_aurc_with_ties():
    # losses count as 0, 1/2, 1/2, 1: means 0, 1/4, 1/3, 1/2; sums 0, 1/2, 1, 2
    assert ref.aurc(TIED_SCORE, LOSS) == close((1 / 4 + 1 / 3 + 1 / 2) / 4)
    assert ref.augrc(TIED_SCORE, LOSS) == close(3.5 / 16)
    # ranks 2 and 3 share (-ln .6 - ln .4)/2, rank 1 has -ln .8
    assert ref.aurc(TIED_SCORE, LOSS, "log") == close((-math.log(0.24) / 2 - math.log(0.8)) / 4)
    # all equal: the mean loss at every coverage
    assert ref.aurc([1.0] * 4, LOSS) == close(0.5)
    assert ref.augrc([1.0] * 4, LOSS) == close(0.5 * (1 + 2 + 3 + 4) / 16)


def test_risk_at_coverage():
    assert ref.risk_at_coverage(SCORE, LOSS, 0.5) == close(0.5)
    # ceil(2.4) = 3 rows
    assert ref.risk_at_coverage(SCORE, LOSS, 0.6) == close(1 / 3)
    # the boundary cuts the tied pair, which counts 1/2 each: (0 + 1/2)/2
    assert ref.risk_at_coverage(TIED_SCORE, LOSS, 0.5) == close(0.25)
    # .07 of 100 is 7 rows, not 8: only the eighth loses
    score = [-float(i) for i in range(100)]
    assert ref.risk_at_coverage(score, [float(i == 7) for i in range(100)], 0.07) == 0.0


def test_coverage_at_risk():
    # risks 0, 1/2, 1/3, 1/2
    assert ref.coverage_at_risk(SCORE, LOSS, 0.35) == 0.75
    assert ref.coverage_at_risk(SCORE, LOSS, 0.0) == 0.25
    assert ref.coverage_at_risk(SCORE, LOSS, 0.5) == 1.0
    # group ends only: 0 at one row, 1/3 at three, 1/2 at four
    assert ref.coverage_at_risk(TIED_SCORE, LOSS, 0.3) == 0.25
    assert ref.coverage_at_risk(SCORE, [1.0, 0.0, 0.0, 0.0], 0.2) == 0.0


def test_auroc():
    # right .9, .7; wrong .8, .7: of four pairs two are won, one lost, one tied
    assert ref.failure_auroc([0.9, 0.8, 0.7, 0.7], [1, 0, 1, 0]) == close(2.5 / 4)
    assert math.isnan(ref.failure_auroc([0.9, 0.8], [1, 1]))
    assert ref.ood_auroc([3, 2], [1, 2]) == close(3.5 / 4)


def test_fpr95():
    # 19 of 20 reach 2, all reach 1: t = 2, and 2 and 5 of the four others reach it
    assert ref.fpr95(list(range(1, 21)), [1.5, 2, 5, 0]) == 0.5
    # of 10 rows 9 are fewer than 95%: t is the lowest
    assert ref.fpr95(list(range(1, 11)), [1.5, 0.5]) == 0.5


def test_scores():
    assert ref.max_probability_score([[0.2, 0.8]]) == [0.8]
    assert ref.max_logit_score([[3.0, -1.0]]) == [3.0]
    assert ref.negative_entropy_score([[0.5, 0.5, 0.0]]) == close([-math.log(2)])


def test_mean_entropy():
    # ln 2 and 0
    assert ref.mean_entropy([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]) == close(math.log(2) / 2)


def test_classwise_nll_std():
    # class 0: (1 + 2)/2 ln 2; class 2: ln 2; class 1 is absent. Deviation of 1.5, 1: .5/sqrt(2)
    probs = [[0.5, 0.5, 0.0], [0.25, 0.75, 0.0], [0.25, 0.25, 0.5]]
    assert ref.classwise_nll_std(probs, [0, 0, 2]) == close(0.5 * math.log(2) / math.sqrt(2))
    assert ref.classwise_nll_std(probs, [0, 0, 0]) == 0.0
    assert ref.classwise_nll_std(probs, [0, 2, 1]) == math.inf


def test_miou():
    # class 0: 1 of 2; class 1: 1 of 3; class 3, never predicted: 0 of 1; 2 and 4 are absent
    assert ref.miou([0, 0, 1, 1], [0, 1, 1, 3], 5) == close((1 / 2 + 1 / 3) / 3)


BINNINGS, FORMS = ("width", "mass"), ("bin", "label")


@pytest.mark.parametrize("seed", range(5))
def test_no_value_depends_on_the_order_of_tied_rows(seed):
    rng = np.random.default_rng(seed)
    confidence = rng.integers(1, 5, 30) / 4
    correct = rng.integers(0, 2, 30).astype(float)
    order = rng.permutation(30)

    def values(c, a):
        c, a = c.tolist(), a.tolist()
        loss = [1 - x for x in a]
        return [
            *(ref.ece(c, a, 7, *options) for options in product((1, 2), BINNINGS, FORMS)),
            ref.mce(c, a, 7, "mass"),
            ref.ks_error(c, a),
            ref.sweep_num_bins(c, a),
            ref.sweep_ece(c, a),
            ref.debiased_ece(c, a, 7),
            ref.debiased_ece(c, a, 7, order=1),
            ref.smooth_ece(c, a),
            ref.binary_kde_ece(c, a, 0.1),
            ref.aurc(c, loss),
            ref.aurc(c, loss, "log"),
            ref.augrc(c, loss),
            ref.risk_at_coverage(c, loss, 0.4),
            ref.coverage_at_risk(c, loss, 0.5),
            ref.failure_auroc(c, a),
        ]

    shuffled = values(confidence[order], correct[order])
    assert values(confidence, correct) == pytest.approx(shuffled, rel=1e-9, abs=1e-9)
