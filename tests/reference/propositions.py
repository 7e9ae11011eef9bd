"""What the papers prove about the metrics, as numeric checks on given data.

Each function returns the inequalities that the claim makes about the data it is given; a test
asserts that each of them holds. The metric under test is an argument:

    ece(probs, labels, *, num_bins, order, binning, form) -> float
    classwise_ece(probs, labels, *, num_bins, order, binning) -> float
    brier(probs, labels) -> float
    aurc(score, loss, *, weights) -> float

"Bins of single samples" stands for the papers' supremum over all binnings: by the triangle
inequality no binning exceeds the one that gives every row a bin of its own. Where no two
confidences are equal that binning is N equal-mass bins.
"""

import math
from typing import NamedTuple

import numpy as np


class Inequality(NamedTuple):
    """larger >= smaller, or larger > smaller where strict."""

    claim: str
    larger: float
    smaller: float
    strict: bool = False

    def holds(self, tolerance=1e-12):
        """Whether it holds; rounding may cost `tolerance` unless the claim is strict."""
        if self.strict:
            return self.larger > self.smaller
        return self.larger >= self.smaller - tolerance


SEVERAL_BINNINGS = [
    (num_bins, binning) for binning in ("width", "mass") for num_bins in (1, 2, 5, 15, 100)
]


def top_rows(probs, labels):
    """Prediction, confidence and correctness of every row."""
    p = np.asarray(probs, dtype=np.float64)
    predicted = p.argmax(axis=1)
    return predicted, p.max(axis=1), predicted == np.asarray(labels)


def onehot(labels, num_classes):
    """Rows of the identity."""
    return np.eye(num_classes)[np.asarray(labels, dtype=int)]


def error_rate(probs, labels):
    """Share of wrong rows."""
    return float(np.mean(~top_rows(probs, labels)[2]))


def single_sample_ece(probs, labels):
    """ECE with a bin for every row: 1/n sum |a_i - c_i|."""
    _, confidence, correct = top_rows(probs, labels)
    return math.fsum(np.abs(correct - confidence).tolist()) / len(confidence)


def single_sample_classwise_ece(probs, labels):
    """Class-wise ECE with a bin for every row and class: 1/(nK) sum_i sum_c |1[y_i=c] - p_ic|."""
    p = np.asarray(probs, dtype=np.float64)
    return math.fsum(np.abs(onehot(labels, p.shape[1]) - p).ravel().tolist()) / p.size


def label_binned_error_is_larger(ece, probs, labels):
    """Soft-calibration section 3.2 (Jensen): ECE_lb,p >= ECE_bin,p for every binning and p >= 1.

    Checked: for equal-width and equal-mass bins, 1 to 100 of them, and p = 1, 1.5, 2, 3.
    """
    inequalities = []
    for num_bins, binning in SEVERAL_BINNINGS:
        for order in (1, 1.5, 2, 3):
            options = {"num_bins": num_bins, "binning": binning, "order": order}
            label = float(ece(probs, labels, form="label", **options))
            plain = float(ece(probs, labels, form="bin", **options))
            inequalities.append(Inequality(f"ECE_lb >= ECE_bin, {options}", label, plain))
    return inequalities


def lemma_4_1(ece, probs, labels):
    """r-aurc lemma 4.1: ECE(f) >= sup_B ECE_B(f) >= err/K.

    Checked: 1/n sum |a - c| >= err/K (a wrong row's confidence is at least 1/K); 1/n sum |a - c|
    is at least the ECE of every binning; and, where no two confidences are equal, N equal-mass
    bins attain it, so that the supremum over interval bins is it.
    Not claimed, since untrue: the left inequality (a calibrated model has ECE 0, and a supremum
    of at least err/K), and the right one for interval bins with tied confidences.
    """
    _, confidence, _ = top_rows(probs, labels)
    n, num_classes = np.asarray(probs).shape
    single = single_sample_ece(probs, labels)
    inequalities = [
        Inequality("single-sample ECE >= err/K", single, error_rate(probs, labels) / num_classes)
    ]
    options = {"order": 1, "form": "bin"}
    for num_bins, binning in SEVERAL_BINNINGS:
        value = float(ece(probs, labels, num_bins=num_bins, binning=binning, **options))
        inequalities.append(Inequality(f"single-sample ECE >= {num_bins} {binning}", single, value))
    if len(set(confidence.tolist())) == n:
        attained = float(ece(probs, labels, num_bins=n, binning="mass", **options))
        inequalities.append(Inequality("N equal-mass bins >= single-sample ECE", attained, single))
    return inequalities


def require_separation(score, threshold, correct):
    """Both maps need a CSF with g >= tau exactly on the correct rows."""
    if not np.array_equal(np.asarray(score) >= threshold, correct):
        raise ValueError("the score does not separate correct from wrong rows at the threshold")


def abstain_map(probs, score, threshold, margin=0.0):
    """r-aurc eq. 15 as a distribution: onehot of the prediction where g >= tau, else uniform.

    Uniform rows have no single argmax; `margin` moves that much probability to the prediction,
    to keep it where predictions are taken from the row.
    """
    p = np.asarray(probs, dtype=np.float64)
    predicted = onehot(p.argmax(axis=1), p.shape[1])
    uniform = np.full_like(p, 1.0 / p.shape[1])
    hesitant = (1 - margin) * uniform + margin * predicted
    return np.where((np.asarray(score) >= threshold)[:, None], predicted, hesitant)


def proposition_4_2(ece, probs, labels, score, threshold, margin=1e-12):
    """r-aurc 4.2: the map of eq. 15 does not raise sup_B ECE_B, given a separating CSF.

    Checked: the mapped model keeps every prediction; its single-sample ECE is err/K (the bound
    of lemma 4.1, so no model of this accuracy has less); that is at most the original's; and
    every binning of the mapped model stays below the original's single-sample ECE.
    Fails loudly where the score does not separate: the claim is then not made.
    """
    predicted, _, correct = top_rows(probs, labels)
    require_separation(score, threshold, correct)
    mapped = abstain_map(probs, score, threshold, margin)
    bound = error_rate(probs, labels) / mapped.shape[1]
    before = single_sample_ece(probs, labels)
    after = single_sample_ece(mapped, labels)
    kept = float(np.mean(top_rows(mapped, labels)[0] == predicted))
    inequalities = [
        Inequality("predictions kept", kept, 1.0),
        Inequality("before >= after", before, after - margin),
        Inequality("after >= err/K", after, bound),
        Inequality("err/K >= after", bound, after - margin),
    ]
    for num_bins, binning in SEVERAL_BINNINGS:
        options = {"num_bins": num_bins, "binning": binning, "order": 1, "form": "bin"}
        value = float(ece(mapped, labels, **options))
        inequalities.append(Inequality(f"before >= mapped, {options}", before, value - margin))
    return inequalities


def proposition_4_3(classwise_ece, probs, labels):
    """r-aurc 4.3: cwECE(f) >= sup_B cwECE_B(f) > err/K.

    Checked: the single-sample class-wise ECE 1/(nK) sum_i 2(1 - p_y) exceeds err/K where
    err > 0, strictly, since a wrong row has p_y < 1/2; it is at least every binning's; and where
    no column has two equal entries N equal-mass bins attain it. A wrong row that ties at
    p_y = 1/2 = max p adds exactly 1, and where all wrong rows do and all correct ones are sure
    there is equality: then, and where err = 0, the claim is not strict.
    Not claimed, as for lemma 4.1: the left inequality.
    """
    p = np.asarray(probs, dtype=np.float64)
    n, num_classes = p.shape
    _, _, correct = top_rows(probs, labels)
    of_label = p[np.arange(n), np.asarray(labels, dtype=int)]
    strict = bool(np.any(~correct & (of_label < 0.5)))
    single = single_sample_classwise_ece(probs, labels)
    bound = error_rate(probs, labels) / num_classes
    inequalities = [Inequality("single-sample cwECE > err/K", single, bound, strict)]
    for num_bins, binning in SEVERAL_BINNINGS:
        options = {"num_bins": num_bins, "binning": binning, "order": 1}
        value = float(classwise_ece(probs, labels, **options))
        inequalities.append(Inequality(f"single-sample cwECE >= {options}", single, value))
    if all(len(set(column)) == n for column in p.T.tolist()):
        attained = float(classwise_ece(probs, labels, num_bins=n, binning="mass", order=1))
        inequalities.append(
            Inequality("N equal-mass bins >= single-sample cwECE", attained, single)
        )
    return inequalities


def halving_map(probs, score, threshold, renormalise):
    """r-aurc eq. 18: the largest probability becomes 1 where g >= tau, else min(1/2, itself).

    As printed the other entries stay, and rows no longer sum to one. With `renormalise` the
    others share what the largest leaves, in proportion (equally where they are all 0).
    """
    p = np.asarray(probs, dtype=np.float64)
    mapped = p.copy()
    for row, sure in zip(mapped, np.asarray(score) >= threshold, strict=True):
        k = int(row.argmax())
        row[k] = 1.0 if sure else min(0.5, row[k])
        if renormalise:
            others = np.arange(len(row)) != k
            total = row[others].sum()
            share = row[others] / total if total > 0 else 1.0 / (len(row) - 1)
            row[others] = (1.0 - row[k]) * share
    return mapped


def proposition_4_4(classwise_ece, probs, labels, score, threshold):
    """r-aurc 4.4: the map of eq. 18 does not raise sup_B cwECE_B, given a separating CSF.

    Checked: the single-sample class-wise ECE of the mapped model is at most the original's, with
    the other entries left alone (as printed) and with rows that sum to one; and, for the second,
    every binning of the mapped model stays below the original's single-sample value.
    """
    _, _, correct = top_rows(probs, labels)
    require_separation(score, threshold, correct)
    before = single_sample_classwise_ece(probs, labels)
    printed = halving_map(probs, score, threshold, renormalise=False)
    mapped = halving_map(probs, score, threshold, renormalise=True)
    inequalities = [
        Inequality("before >= printed", before, single_sample_classwise_ece(printed, labels)),
        Inequality("before >= mapped", before, single_sample_classwise_ece(mapped, labels)),
    ]
    for num_bins, binning in SEVERAL_BINNINGS:
        options = {"num_bins": num_bins, "binning": binning, "order": 1}
        value = float(classwise_ece(mapped, labels, **options))
        inequalities.append(Inequality(f"before >= mapped, {options}", before, value))
    return inequalities


def canonical_error(probs, labels, order):
    """CE_rho of eq. 8 for the empirical distribution.

    (1/N sum_i ||f_i - E[y|f_i]||_rho^rho)^(1/rho), E[y|f] the mean label of the rows equal to f.
    """
    p = np.asarray(probs, dtype=np.float64)
    _, group = np.unique(p, axis=0, return_inverse=True)
    group = group.ravel()
    target = onehot(labels, p.shape[1])
    counts = np.bincount(group)
    expected = np.stack([np.bincount(group, weights=column) / counts for column in target.T], 1)
    total = math.fsum((np.abs(p - expected[group]) ** order).ravel().tolist())
    return (total / len(p)) ** (1 / order)


def proposition_4_5(ece, classwise_ece, brier, probs, labels, order):
    """r-aurc 4.5 with K for n and K^(1/rho) for k, 1 <= rho <= 2:

    K^(1/rho - 1/2) sqrt(BS) >= CE_rho >= K^(1/rho) cwECE_rho, and CE_rho >= ECE.
    Checked on the empirical distribution, where E[y|f] is a mean over equal rows: the left
    inequality; and the right ones for the binned cwECE and ECE, which are at most their exact
    counterparts. Binned cwECE of order rho is a mean over classes of roots, which is at most the
    root of the mean in definition 3.7. The printed n and k are untrue: n = 1 breaks the one, and
    rho > 1 the other.
    """
    num_classes = np.asarray(probs).shape[1]
    middle = canonical_error(probs, labels, order)
    upper = num_classes ** (1 / order - 1 / 2) * math.sqrt(float(brier(probs, labels)))
    inequalities = [Inequality("K^(1/rho-1/2) sqrt(BS) >= CE_rho", upper, middle)]
    for num_bins, binning in SEVERAL_BINNINGS:
        options = {"num_bins": num_bins, "binning": binning, "order": order}
        by_class = num_classes ** (1 / order) * float(classwise_ece(probs, labels, **options))
        inequalities.append(
            Inequality(f"CE_rho >= K^(1/rho) cwECE_rho, {options}", middle, by_class)
        )
        options["order"] = 1
        value = float(ece(probs, labels, form="bin", **options))
        inequalities.append(Inequality(f"CE_rho >= ECE, {options}", middle, value))
    return inequalities


def is_aligned(score, loss):
    """r-aurc definition 4.6: g_i <= g_j implies loss_i >= loss_j, for every pair.

    Equal scores thus need equal losses.
    """
    g, values = np.asarray(score), np.asarray(loss)
    return all(bool(np.all(values[j] <= values[g <= g[j]])) for j in range(len(g)))


def proposition_4_7(aurc, probs, labels, score):
    """r-aurc 4.7: a CSF aligned with the loss minimises the empirical AURC, which for
    cross-entropy is at least n ln2/(2(n+1)) err^2 + ln2/(2(n+1)) err.

    Checked, for `score` against the aligned score -loss: AURC(score) >= AURC(-loss) >= bound,
    with the weights -ln(1 - r/(n+1)) of eq. 20 and with those of the empirical curve (never
    smaller: H_n - H_(n-r) >= -ln(1 - r/(n+1))). The paper's step that the aligned CSF ranks the
    wrong rows first need not be so (a correct row can lose more), but the ranks of err n rows
    sum to at least that in any case, so the bound holds for every CSF.
    """
    p = np.asarray(probs, dtype=np.float64)
    n = len(p)
    loss = -np.log(p[np.arange(n), np.asarray(labels, dtype=int)])
    err = error_rate(probs, labels)
    bound = n * math.log(2) / (2 * (n + 1)) * err**2 + math.log(2) / (2 * (n + 1)) * err
    inequalities = []
    value = {}
    for weights in ("log", "empirical"):
        value[weights] = float(aurc(np.asarray(score), loss, weights=weights))
        best = float(aurc(-loss, loss, weights=weights))
        inequalities.append(Inequality(f"AURC >= aligned AURC, {weights}", value[weights], best))
        inequalities.append(Inequality(f"aligned AURC >= bound, {weights}", best, bound))
    inequalities.append(Inequality("empirical >= log weights", value["empirical"], value["log"]))
    return inequalities
