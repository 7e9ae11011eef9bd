"""The papers' propositions about metrics, for the package and for the reference alike."""

import math

import numpy as np
import pytest

from tests.reference import metrics as ref
from tests.reference import propositions


class Reference:
    """The naive metrics under the signatures `propositions` asks for."""

    @staticmethod
    def ece(probs, labels, *, num_bins, order, binning, form):
        return ref.ece(*ref.top(probs, labels), num_bins, order, binning, form)

    @staticmethod
    def classwise_ece(probs, labels, *, num_bins, order, binning):
        return ref.classwise_ece(probs, labels, num_bins, order, binning)

    brier = staticmethod(ref.brier)

    @staticmethod
    def aurc(score, loss, *, weights):
        return ref.aurc(score.tolist(), loss.tolist(), weights)


class Package:
    """The package's metrics under the same signatures."""

    @staticmethod
    def ece(probs, labels, **options):
        from calibrant import metrics

        return metrics.ece(probs, labels, from_logits=False, view="top", **options)

    @staticmethod
    def classwise_ece(probs, labels, **options):
        from calibrant import metrics

        return metrics.classwise_ece(probs, labels, from_logits=False, **options)

    @staticmethod
    def brier(probs, labels):
        from calibrant import metrics

        return metrics.brier(probs, labels, from_logits=False, view="top")

    @staticmethod
    def aurc(score, loss, *, weights):
        from calibrant import metrics

        return metrics.aurc_from_scores(score, loss, weights=weights)


@pytest.fixture(params=[Package, Reference], ids=["package", "reference"])
def tested(request):
    return request.param


def continuous(seed, num_rows=60, num_classes=4):
    """Rows no two of which are equal, labels drawn from a blunter version of them."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_rows, num_classes)) * 2
    labels = [rng.choice(num_classes, p=row) for row in ref.softmax(logits / 2)]
    return ref.softmax(logits), np.array(labels)


def repeated(seed, num_rows=60, num_classes=3):
    """Rows from a handful of distinct ones: many equal confidences."""
    rng = np.random.default_rng(seed)
    distinct = rng.dirichlet(np.ones(num_classes), 5)
    return distinct[rng.integers(0, 5, num_rows)], rng.integers(0, num_classes, num_rows)


DATA = [
    pytest.param(make(seed, **size), id=f"{make.__name__}-{seed}")
    for seed, size in enumerate([{}, {"num_rows": 7}, {"num_classes": 2}, {"num_classes": 12}])
    for make in (continuous, repeated)
]


def assert_all(inequalities):
    assert [actual for actual in inequalities if not actual.holds()] == []


@pytest.mark.parametrize("data", DATA)
def test_label_binned_error_is_never_below_the_binned_one(tested, data):
    assert_all(propositions.label_binned_error_is_larger(tested.ece, *data))


def test_label_binned_error_by_hand(tested):
    # one bin, confidences .6 right and .8 wrong: A = .5, C = .7, so .2 binned and
    # (|.5-.6| + |.5-.8|)/2 = .2 label-binned; of order 2 it is .2 against sqrt((.01+.09)/2)
    probs, labels = np.array([[0.6, 0.4], [0.8, 0.2]]), np.array([0, 1])
    options = {"num_bins": 1, "binning": "width"}
    for order, form, expected in [
        (1, "bin", 0.2),
        (1, "label", 0.2),
        (2, "bin", 0.2),
        (2, "label", math.sqrt(0.05)),
    ]:
        value = float(tested.ece(probs, labels, order=order, form=form, **options))
        assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("data", DATA)
def test_ece_of_single_samples_is_at_least_the_error_over_the_classes(tested, data):
    assert_all(propositions.lemma_4_1(tested.ece, *data))


def test_tied_confidences_break_lemma_4_1_for_interval_bins(tested):
    # two rows at (1/2, 1/2) labelled 0 and 1: one is wrong, err/K = 1/4. Both lie in one bin of
    # any interval binning, A = C = 1/2 and its ECE is 0; apart they have (1/2 + 1/2)/2 = 1/2.
    # The same two rows are a calibrated model, of ECE 0: the lemma's left inequality fails too
    probs, labels = np.full((2, 2), 0.5), np.array([0, 1])
    for num_bins, binning in propositions.SEVERAL_BINNINGS:
        options = {"num_bins": num_bins, "binning": binning, "order": 1, "form": "bin"}
        assert float(tested.ece(probs, labels, **options)) == pytest.approx(0, abs=1e-12)
    assert propositions.single_sample_ece(probs, labels) == 0.5
    assert propositions.error_rate(probs, labels) / 2 == 0.25


@pytest.mark.parametrize("data", DATA)
def test_abstaining_on_the_wrong_rows_does_not_raise_ece(tested, data):
    probs, labels = data
    separating = (probs.argmax(axis=1) == labels).astype(float)
    assert_all(propositions.proposition_4_2(tested.ece, probs, labels, separating, 0.5))


def test_abstaining_by_hand(tested):
    # (.8,.2) right and (.6,.4) wrong: (.2 + .6)/2 = .4 before; after, 1 right and 1/2 wrong:
    # (0 + 1/2)/2 = 1/4 = err/K
    probs, labels = np.array([[0.8, 0.2], [0.6, 0.4]]), np.array([0, 1])
    assert propositions.single_sample_ece(probs, labels) == pytest.approx(0.4)
    mapped = propositions.abstain_map(probs, [1, 0], 0.5)
    assert mapped.tolist() == [[1.0, 0.0], [0.5, 0.5]]
    assert propositions.single_sample_ece(mapped, labels) == 0.25
    options = {"num_bins": 2, "binning": "mass", "order": 1, "form": "bin"}
    assert float(tested.ece(mapped, labels, **options)) == pytest.approx(0.25)


def test_the_maps_need_a_separating_score():
    # with the roles exchanged the map says 1 on the wrong row and 1/2 on the right one:
    # (1/2 + 1)/2 = .75, which is worse than the .4 before
    probs, labels = np.array([[0.8, 0.2], [0.6, 0.4]]), np.array([0, 1])
    mapped = propositions.abstain_map(probs, [0, 1], 0.5)
    assert propositions.single_sample_ece(mapped, labels) == 0.75
    with pytest.raises(ValueError, match="separate"):
        propositions.proposition_4_2(Reference.ece, probs, labels, [0, 1], 0.5)
    with pytest.raises(ValueError, match="separate"):
        propositions.proposition_4_4(Reference.classwise_ece, probs, labels, [0, 1], 0.5)


@pytest.mark.parametrize("data", DATA)
def test_classwise_ece_of_single_samples_exceeds_the_error_over_the_classes(tested, data):
    actual = propositions.proposition_4_3(tested.classwise_ece, *data)
    assert actual[0].strict
    assert_all(actual)


def test_classwise_bound_is_strict_but_for_ties_at_one_half(tested):
    # (.5,.5) labelled 1 is wrong (the lowest index is predicted): (.5 + .5)/2 = 1/2 = err/K
    tie = np.array([[0.5, 0.5]]), np.array([1])
    assert propositions.single_sample_classwise_ece(*tie) == 0.5
    actual = propositions.proposition_4_3(tested.classwise_ece, *tie)
    assert not actual[0].strict
    assert_all(actual)
    # without an error nothing is claimed but >= 0: a certain, right row has 0
    assert_all(propositions.proposition_4_3(tested.classwise_ece, np.eye(2), np.array([0, 1])))
    # (.75,.25) labelled 1: (.75 + .75)/2 > 1/2
    actual = propositions.proposition_4_3(
        tested.classwise_ece, np.array([[0.75, 0.25]]), np.array([1])
    )
    assert actual[0].strict
    assert_all(actual)


@pytest.mark.parametrize("data", DATA)
def test_halving_the_wrong_rows_does_not_raise_classwise_ece(tested, data):
    probs, labels = data
    separating = (probs.argmax(axis=1) == labels).astype(float)
    assert_all(propositions.proposition_4_4(tested.classwise_ece, probs, labels, separating, 0.5))


def test_halving_by_hand():
    # (.8,.1,.1) labelled 1 is wrong. Before: (.8 + .9 + .1)/3 = .6. Printed: (.5,.1,.1), which
    # has (.5 + .9 + .1)/3 = .5; as a distribution (.5,.25,.25): (.5 + .75 + .25)/3 = .5
    probs, labels = np.array([[0.8, 0.1, 0.1]]), np.array([1])
    assert propositions.single_sample_classwise_ece(probs, labels) == pytest.approx(0.6)
    for renormalise in (False, True):
        mapped = propositions.halving_map(probs, [0], 0.5, renormalise)
        assert propositions.single_sample_classwise_ece(mapped, labels) == pytest.approx(0.5)
    # a right row becomes certain
    assert propositions.halving_map(probs, [1], 0.5, True).tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("order", [1, 1.5, 2])
@pytest.mark.parametrize("data", DATA)
def test_brier_score_bounds_the_canonical_error_and_that_the_others(tested, data, order):
    actual = propositions.proposition_4_5(
        tested.ece, tested.classwise_ece, tested.brier, *data, order
    )
    assert_all(actual)


def test_hierarchy_by_hand(tested):
    # one row (1/4,1/4,1/4,1/4) labelled 0, off by (3/4,1/4,1/4,1/4): BS = 9/16 + 3/16 = 3/4
    probs, labels = np.full((1, 4), 0.25), np.array([0])
    brier = float(tested.brier(probs, labels))
    assert brier == pytest.approx(0.75)
    # rho = 1: CE = 3/2 <= 4^(1/2) sqrt(3/4) = 1.73, but not <= n^(1/2) sqrt(3/4) = .87
    first = propositions.canonical_error(probs, labels, 1)
    assert first == pytest.approx(1.5)
    assert 1 ** (1 / 2) * math.sqrt(brier) < first < 4 ** (1 / 2) * math.sqrt(brier)
    # rho = 2: CE = sqrt(3/4), and cwECE_2 = sqrt(3/4 / 4) by definition 3.7, so that
    # 4^(1/2) cwECE_2 = CE and the printed 4 cwECE_2 = 1.73 exceeds it
    second = propositions.canonical_error(probs, labels, 2)
    assert second == pytest.approx(math.sqrt(0.75))
    by_class = math.sqrt(0.75 / 4)
    assert 2 * by_class == pytest.approx(second)
    assert 4 * by_class > second


def test_canonical_error_takes_equal_rows_together():
    # (.5,.5) twice, labelled 0 and 1, is calibrated; (1,0) labelled 1 is off by (1,1)
    probs, labels = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]]), np.array([0, 1, 1])
    assert propositions.canonical_error(probs, labels, 1) == pytest.approx(2 / 3)
    assert propositions.canonical_error(probs, labels, 2) == pytest.approx(math.sqrt(2 / 3))


def test_alignment():
    assert propositions.is_aligned([0.1, 0.2, 0.3], [3.0, 2.0, 2.0])
    assert not propositions.is_aligned([0.1, 0.2, 0.3], [3.0, 2.0, 2.5])
    # equal scores with unequal losses are not aligned
    assert not propositions.is_aligned([0.1, 0.1], [3.0, 2.0])


@pytest.mark.parametrize("data", DATA)
def test_the_aligned_score_minimises_aurc_and_no_score_passes_the_bound(tested, data):
    probs, labels = data
    loss = -np.log(probs[np.arange(len(probs)), labels])
    assert propositions.is_aligned(-loss, loss)
    rng = np.random.default_rng(0)
    top_two = np.sort(probs, axis=1)[:, -2:]
    scores = {
        "max probability": probs.max(axis=1),
        "margin": top_two[:, 1] - top_two[:, 0],
        "negative entropy": (probs * np.log(probs)).sum(axis=1),
        "random": rng.normal(size=len(probs)),
        "tied": rng.integers(0, 3, len(probs)).astype(float),
        "constant": np.zeros(len(probs)),
        "worst": loss,
    }
    for score in scores.values():
        assert_all(propositions.proposition_4_7(tested.aurc, probs, labels, score))


def test_aurc_bound_by_hand(tested):
    # n = 2, p_y = 3/4 and 1/4, the second wrong: err = 1/2 and the bound is
    # 2 ln2/6 * 1/4 + ln2/6 * 1/2 = ln2/6 = .1155. Aligned: ranks 2 and 1 with weights ln 3 and
    # ln(3/2): (ln 3 ln(4/3) + ln(3/2) ln 4)/2 = .4391; misaligned (ln(3/2) ln(4/3) + ln 3 ln 4)/2
    loss = np.array([math.log(4 / 3), math.log(4)])
    best = float(tested.aurc(-loss, loss, weights="log"))
    worst = float(tested.aurc(loss, loss, weights="log"))
    assert best == pytest.approx((math.log(3) * loss[0] + math.log(1.5) * loss[1]) / 2)
    assert worst == pytest.approx((math.log(1.5) * loss[0] + math.log(3) * loss[1]) / 2)
    assert worst > best > math.log(2) / 6
    probs = np.array([[0.75, 0.25], [0.75, 0.25]])
    actual = propositions.proposition_4_7(tested.aurc, probs, np.array([0, 1]), loss)
    assert actual[1].smaller == pytest.approx(math.log(2) / 6)
    assert_all(actual)


@pytest.mark.parametrize("weights", ["empirical", "log"])
def test_aurc_of_predictions_is_that_of_its_scores_and_losses(weights):
    from calibrant import metrics

    probs, labels = continuous(0)
    rows = np.arange(len(probs))
    losses = {
        "cross_entropy": -np.log(probs[rows, labels]),
        "zero_one": (probs.argmax(axis=1) != labels).astype(float),
    }
    for name, loss in losses.items():
        value = metrics.aurc(probs, labels, loss=name, weights=weights, from_logits=False)
        expected = ref.aurc(probs.max(axis=1).tolist(), loss.tolist(), weights)
        assert float(value) == pytest.approx(expected, rel=1e-10)
