"""Every metric once more, plainly, as the yardstick of the tests.

Notation: probabilities p (N,K), labels y (N,), prediction argmax p (the lowest index among
equals), confidence c = max p, correctness a = 1[argmax p = y]. Float64 throughout.

Equal-width bin j of M is (j/M, (j+1)/M], the first also holds 0, and each edge is the float64
quotient. Equal-mass bin j of M holds the sorted positions floor(jN/M) to floor((j+1)N/M) - 1.
Rows tied in confidence each take their group's mean correctness before anything splits them,
so no value depends on the order of the rows.
"""

import math
from bisect import bisect_left
from fractions import Fraction
from itertools import accumulate, groupby, pairwise

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp, ndtr

TINY = float(np.finfo(np.float64).tiny)

# ------------------------------------------------------------------ from scores to rows


def log_softmax(logits):
    """z - ln sum exp z, row by row."""
    z = np.asarray(logits, dtype=np.float64)
    return np.array([row - logsumexp(row) for row in z])


def softmax(logits):
    """exp of `log_softmax`."""
    return np.exp(log_softmax(logits))


def predictions(probs):
    """The class of the largest probability, the lowest index among equals."""
    return [int(np.argmax(row)) for row in np.asarray(probs, dtype=np.float64)]


def top(probs, labels):
    """Confidence and correctness of every row."""
    confidence = [float(max(row)) for row in np.asarray(probs, dtype=np.float64)]
    pairs = zip(predictions(probs), labels, strict=True)
    return confidence, [float(guess == int(label)) for guess, label in pairs]


def one_class(probs, labels, k):
    """p_k and 1[y = k] of every row."""
    column = np.asarray(probs, dtype=np.float64)[:, k].tolist()
    return column, [float(int(label) == k) for label in labels]


def share_ties(score, value):
    """Each row's value replaced by the mean over the rows of equal score, in row order."""
    order = sorted(range(len(score)), key=lambda i: score[i])
    shared = [0.0] * len(score)
    for _, group in groupby(order, key=lambda i: score[i]):
        rows = list(group)
        mean = math.fsum(value[i] for i in rows) / len(rows)
        for i in rows:
            shared[i] = mean
    return shared


# ------------------------------------------------------------------ proper scores


def accuracy(probs, labels):
    """Share of rows whose largest probability is the label's."""
    _, correct = top(probs, labels)
    return math.fsum(correct) / len(correct)


def row_nll(probs, labels):
    """-ln p_y of every row, infinite where p_y = 0."""
    p = np.asarray(probs, dtype=np.float64)
    of_label = [float(row[int(y)]) for row, y in zip(p, labels, strict=True)]
    return [-math.log(x) if x > 0 else math.inf for x in of_label]


def nll(probs, labels):
    """Mean of -ln p_y in nats; infinite as soon as one p_y is 0."""
    return sum_or_inf(row_nll(probs, labels)) / len(labels)


def nll_from_logits(logits, labels):
    """Mean of ln sum exp z - z_y, which stays finite where p_y underflows."""
    log_p = log_softmax(logits)
    return math.fsum(-float(row[int(y)]) for row, y in zip(log_p, labels, strict=True)) / len(
        labels
    )


def sum_or_inf(values):
    """Exact sum, and infinity where a value is infinite."""
    return math.inf if math.inf in values else math.fsum(values)


def brier(probs, labels):
    """Mean over rows of the sum over classes of (p_k - 1[y = k])^2."""
    p = np.asarray(probs, dtype=np.float64)
    total = 0.0
    for row, label in zip(p, labels, strict=True):
        target = np.zeros(len(row))
        target[int(label)] = 1.0
        total += float(((row - target) ** 2).sum())
    return total / len(p)


def brier_calibration(probs, labels, num_bins=15):
    """Sum over classes k and equal-width bins of p_k of n_b/N (mean p_k - frequency of k)^2."""
    num_classes = np.asarray(probs).shape[1]
    return math.fsum(
        mean_power_gap(width_bins(*one_class(probs, labels, k), num_bins), 2)
        for k in range(num_classes)
    )


def brier_refinement(probs, labels, num_bins=15):
    """What the calibration term leaves of the Brier score."""
    return brier(probs, labels) - brier_calibration(probs, labels, num_bins)


def classwise_nll_std(probs, labels):
    """Unbiased deviation, over the classes present, of the class's mean -ln p_y.

    0 with fewer than two classes present; infinite where a class mean is infinite.
    """
    losses = row_nll(probs, labels)
    means = []
    for k in sorted({int(y) for y in labels}):
        mine = [loss for loss, y in zip(losses, labels, strict=True) if int(y) == k]
        means.append(sum_or_inf(mine) / len(mine))
    if len(means) < 2:
        return 0.0
    if math.inf in means:
        return math.inf
    centre = math.fsum(means) / len(means)
    return math.sqrt(math.fsum((m - centre) ** 2 for m in means) / (len(means) - 1))


def row_entropy(probs):
    """-sum p ln p of every row in nats, with 0 ln 0 = 0."""
    p = np.asarray(probs, dtype=np.float64)
    return [float(-sum(x * math.log(x) for x in row.tolist() if x > 0)) for row in p]


def mean_entropy(probs):
    """Mean entropy of the rows, in nats."""
    return math.fsum(row_entropy(probs)) / len(probs)


def miou(predicted, labels, num_classes):
    """Mean of TP/(TP+FP+FN) over the classes found among labels or predictions."""
    pairs = [(int(g), int(y)) for g, y in zip(np.ravel(predicted), np.ravel(labels), strict=True)]
    scores = []
    for k in range(num_classes):
        hit = sum(1 for g, y in pairs if g == k and y == k)
        either = sum(1 for g, y in pairs if k in (g, y))
        if either:
            scores.append(hit / either)
    return math.fsum(scores) / len(scores)


# ------------------------------------------------------------------ binned calibration errors
# A binning is a list of bins, a bin is a non-empty list of (confidence, correctness).


def width_bins(confidence, correct, num_bins):
    """Equal-width right-closed bins; empty ones are left out."""
    upper = [(j + 1) / num_bins for j in range(num_bins)]
    bins = [[] for _ in range(num_bins)]
    for c, a in zip(confidence, correct, strict=True):
        # bisect_left finds the first upper edge >= c; rounding may put c a hair above 1
        bins[min(bisect_left(upper, c), num_bins - 1)].append((c, a))
    return [members for members in bins if members]


def mass_bins(confidence, correct, num_bins):
    """Equal-mass bins by sorted position, tied rows sharing their mean correctness."""
    rows = sorted(zip(confidence, share_ties(confidence, correct), strict=True))
    n = len(rows)
    bins = [rows[j * n // num_bins : (j + 1) * n // num_bins] for j in range(num_bins)]
    return [members for members in bins if members]


def make_bins(confidence, correct, num_bins, binning):
    """`width_bins` or `mass_bins`, on plain floats."""
    c = [float(x) for x in confidence]
    a = [float(x) for x in correct]
    return {"width": width_bins, "mass": mass_bins}[binning](c, a, num_bins)


def bin_means(members):
    """Mean confidence C_b and accuracy A_b of one bin."""
    n = len(members)
    return math.fsum(c for c, _ in members) / n, math.fsum(a for _, a in members) / n


def mean_power_gap(bins, order):
    """Sum over bins of n_b/N |A_b - C_b|^p."""
    n = sum(len(members) for members in bins)
    total = []
    for members in bins:
        mean_confidence, mean_correct = bin_means(members)
        total.append(len(members) / n * abs(mean_correct - mean_confidence) ** order)
    return math.fsum(total)


def ece(confidence, correct, num_bins=15, order=1, binning="width", form="bin"):
    """Calibration error of order p, soft-calibration eq. 6 (`bin`) and 7 (`label`).

    bin: (sum_b n_b/N |A_b - C_b|^p)^(1/p); label: (1/N sum_i |A_b(i) - c_i|^p)^(1/p).
    """
    bins = make_bins(confidence, correct, num_bins, binning)
    if form == "bin":
        return mean_power_gap(bins, order) ** (1 / order)
    total = []
    for members in bins:
        _, mean_correct = bin_means(members)
        total.extend(abs(mean_correct - c) ** order for c, _ in members)
    return (math.fsum(total) / len(total)) ** (1 / order)


def mce(confidence, correct, num_bins=15, binning="width"):
    """Largest |A_b - C_b| over the non-empty bins."""
    means = [bin_means(members) for members in make_bins(confidence, correct, num_bins, binning)]
    return max(abs(a - c) for c, a in means)


def adaptive_ece(confidence, correct, num_bins=15):
    """Order 1, equal mass."""
    return ece(confidence, correct, num_bins, 1, "mass")


def classwise_ece(probs, labels, num_bins=15, order=1, binning="width", form="bin"):
    """Mean over classes k of the ece of p_k against 1[y = k] (r-aurc eq. 12 for order 1)."""
    num_classes = np.asarray(probs).shape[1]
    values = [
        ece(*one_class(probs, labels, k), num_bins, order, binning, form)
        for k in range(num_classes)
    ]
    return math.fsum(values) / num_classes


def marginal_ece(probs, labels, num_bins=15, binning="width", class_reduction="mean", order=2):
    """Root of the mean (or sum) over classes of sum_b n_b/N gap^2 (Kumar et al. 2019)."""
    num_classes = np.asarray(probs).shape[1]
    total = math.fsum(
        mean_power_gap(make_bins(*one_class(probs, labels, k), num_bins, binning), order)
        for k in range(num_classes)
    )
    return (total / {"mean": num_classes, "sum": 1}[class_reduction]) ** (1 / order)


def ks_error(confidence, correct):
    """Largest |1/N sum over c_i <= t of (a_i - c_i)| over t (Gupta et al. 2020)."""
    rows = sorted(zip(confidence, correct, strict=True))
    total, largest = 0.0, 0.0
    for c, group in groupby(rows, key=lambda row: row[0]):
        total += math.fsum(a - c for _, a in group)
        largest = max(largest, abs(total))
    return float(largest / len(rows))


def sweep_num_bins(confidence, correct):
    """The bin count of the monotonic sweep of Roelofs et al. 2020.

    For b = 2, 3, ..., N equal-mass bins; the first b whose accuracies fall somewhere ends the
    sweep and b - 1 is taken. In exact rational arithmetic: equal accuracies do not fall.
    """
    rows = sorted(zip(confidence, correct, strict=True))
    n = len(rows)
    running = [0]  # running[r]: exact sum of the first r rows' shared correctness
    for _, group in groupby(rows, key=lambda row: row[0]):
        hits = [int(a) for _, a in group]
        share = Fraction(sum(hits), len(hits))
        start = running[-1]
        for r in range(1, len(hits) + 1):
            running.append(start + r * share)
    for b in range(2, n + 1):
        edges = [j * n // b for j in range(b + 1)]
        for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
            first = (running[middle] - running[low]) * (high - middle)
            second = (running[high] - running[middle]) * (middle - low)
            if first > second:
                return b - 1
    return n


def sweep_ece(confidence, correct, order=2):
    """Equal-mass ece at the bin count of `sweep_num_bins`."""
    return ece(confidence, correct, sweep_num_bins(confidence, correct), order, "mass")


def folded_normal_mean(mean, variance):
    """E|X| for X ~ Normal(mean, variance)."""
    if variance == 0:
        return abs(mean)
    s = math.sqrt(variance)
    density = s * math.sqrt(2 / math.pi) * math.exp(-mean * mean / (2 * variance))
    return density + mean * math.erf(mean / (s * math.sqrt(2)))


def debiased_ece(confidence, correct, num_bins=15, order=2, binning="mass"):
    """Plug-in error less its estimated bias (Kumar et al. 2019).

    With g = A - C and s^2 = A(1-A)/(n_b - 1), 0 where n_b < 2:
    order 2: sqrt(max(0, sum_b n_b/N (g^2 - s^2)));
    order 1: max(0, sum_b n_b/N (2|g| - E|Normal(g, s^2)|)).
    """
    total = []
    for members in make_bins(confidence, correct, num_bins, binning):
        n = len(members)
        mean_confidence, mean_correct = bin_means(members)
        gap = mean_correct - mean_confidence
        variance = mean_correct * (1 - mean_correct) / (n - 1) if n > 1 else 0.0
        variance = max(variance, 0.0)  # rounding of a shared mean may pass 1 by an ulp
        if order == 2:
            total.append(n / len(confidence) * (gap**2 - variance))
        else:
            total.append(n / len(confidence) * (2 * abs(gap) - folded_normal_mean(gap, variance)))
    floored = max(0.0, math.fsum(total))
    return math.sqrt(floored) if order == 2 else floored


def binomial_deviation(n, p):
    """E|X - np| for X ~ Binomial(n, p), summed over every outcome."""
    if p in (0.0, 1.0):
        return 0.0
    terms = []
    for k in range(n + 1):
        ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        log_chance = ways + k * math.log(p) + (n - k) * math.log1p(-p)
        terms.append(abs(k - n * p) * math.exp(log_chance))
    return math.fsum(terms)


def chance_ece(confidence, correct, num_bins=15):
    """The mean ECE of labels drawn with the mean confidence of each bin as their chance."""
    total = []
    for members in make_bins(confidence, correct, num_bins, "width"):
        mean_confidence, _ = bin_means(members)
        total.append(binomial_deviation(len(members), min(mean_confidence, 1.0)))
    return math.fsum(total) / len(confidence)


# ------------------------------------------------------------------ kernel calibration errors


def loo_log_kernels(points, bandwidth, floor=TINY):
    """For every row j: ln k(f_j; f_i) for all i, -inf at i = j.

    k(f; f_i) is the Dirichlet density at f with alpha = f_i/h + 1; for (c, 1 - c) it is the
    Beta density. The coordinates of f_j are floored before the logarithm, so that a zero
    counts as the limit from above and not as 0/0.
    """
    exponent = points / bandwidth  # alpha - 1
    alpha = exponent + 1.0
    log_normaliser = gammaln(alpha).sum(axis=1) - gammaln(alpha.sum(axis=1))
    for j, point in enumerate(points):
        log_kernel = exponent @ np.log(np.maximum(point, floor)) - log_normaliser
        log_kernel[j] = -math.inf
        yield j, log_kernel


def two_columns(confidence):
    """(c, 1 - c): the Beta kernel is the Dirichlet kernel of these."""
    c = np.asarray(confidence, dtype=np.float64)
    return np.stack([c, 1.0 - c], axis=1)


def loo_regression(points, values, bandwidth, floor=TINY):
    """Leave-one-out kernel estimate of E[value | f_j], for every j; values (N,d)."""
    estimate = np.empty((len(points), values.shape[1]))
    for j, log_kernel in loo_log_kernels(points, bandwidth, floor):
        weight = np.exp(log_kernel - log_kernel.max())
        estimate[j] = (weight @ values) / weight.sum()
    return estimate


def kde_ece(
    probs, labels, bandwidth, form="canonical", order=1, class_reduction="mean", floor=TINY
):
    """1/N sum_j ||E[y|f_j] - f_j||_p^p, leave-one-out, without a root (Popordanoska 2022).

    `canonical`: Dirichlet kernel on the whole row, sum over classes inside the norm.
    `marginal`: Beta kernel on each p_k, mean (or sum) over classes. `top`: Beta kernel on c.
    A single row has no others: nan.
    """
    p = np.asarray(probs, dtype=np.float64)
    n, num_classes = p.shape
    if n < 2:
        return math.nan
    if form == "canonical":
        onehot = np.eye(num_classes)[np.asarray(labels, dtype=int)]
        estimate = loo_regression(p, onehot, bandwidth, floor)
        return float((np.abs(estimate - p) ** order).sum() / n)
    if form == "top":
        return binary_kde_ece(*top(probs, labels), bandwidth, order, floor)
    values = [
        binary_kde_ece(*one_class(probs, labels, k), bandwidth, order, floor)
        for k in range(num_classes)
    ]
    return math.fsum(values) / {"mean": num_classes, "sum": 1}[class_reduction]


def binary_kde_ece(confidence, correct, bandwidth, order=1, floor=TINY):
    """1/N sum_j |E[a|c_j] - c_j|^p with the Beta kernel, leave-one-out."""
    target = np.asarray(correct, dtype=np.float64)[:, None]
    estimate = loo_regression(two_columns(confidence), target, bandwidth, floor)[:, 0]
    return float((np.abs(estimate - np.asarray(confidence)) ** order).mean())


def loo_log_likelihood(points, bandwidth, floor=TINY):
    """sum_j ln(1/(N-1) sum_{i != j} k(f_j; f_i)); points (N,K), or (N,) for the Beta kernel."""
    f = np.asarray(points, dtype=np.float64)
    f = two_columns(f) if f.ndim == 1 else f
    total = []
    for _, log_kernel in loo_log_kernels(f, bandwidth, floor):
        total.append(float(logsumexp(log_kernel)) - math.log(len(f) - 1))
    return math.fsum(total)


# ------------------------------------------------------------------ smooth calibration error


def smooth_ece_at(confidence, correct, sigma):
    """smECE_s = int_0^1 |1/N sum_i K_s(t, c_i) (c_i - a_i)| dt (Blasiok and Nakkiran 2023).

    K_s is the Gaussian reflected at 0 and 1: the sum over the images c + 2m and -c + 2m.
    Between two zeros of the integrand its integral is a difference of normal distribution
    functions, so that only the zeros (found from a grid of spacing s/20, then by Brent's
    method) are approximate, and an error there counts only squared.
    """
    c = np.asarray(confidence, dtype=np.float64)
    residual = (c - np.asarray(correct, dtype=np.float64)) / len(c)
    c, index = np.unique(c, return_inverse=True)
    residual = np.bincount(index.ravel(), weights=residual)
    reach = 1 + math.ceil(5 * sigma)  # images further than 10 sigma weigh nothing
    images = [sign * c + 2 * m for m in range(-reach, reach + 1) for sign in (1, -1)]
    # an image is kept where it lies within 10 sigma of [0,1]
    near = [(y > -10 * sigma) & (y < 1 + 10 * sigma) for y in images]
    position = np.concatenate([y[keep] for y, keep in zip(images, near, strict=True)])
    weight = np.concatenate([residual[keep] for keep in near])

    def smoothed(t):
        density = np.exp(-0.5 * ((t - position) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
        return float(weight @ density)

    def antiderivative(t):
        return float(weight @ ndtr((t - position) / sigma))

    grid = np.linspace(0.0, 1.0, max(64, math.ceil(20 / sigma)) + 1).tolist()
    values = [smoothed(t) for t in grid]
    cuts = [0.0, *(t for t, value in zip(grid, values, strict=True) if value == 0), 1.0]
    for left, right, low, high in zip(grid, grid[1:], values, values[1:], strict=False):
        if low * high < 0:
            cuts.append(brentq(smoothed, left, right, xtol=1e-12))
    heights = [antiderivative(t) for t in sorted(cuts)]
    return math.fsum(abs(b - a) for a, b in pairwise(heights))


def smooth_ece(confidence, correct):
    """smECE_s at the fixed point s = smECE_s.

    smECE_s never rises with s, so there is one crossing and it is bracketed by halving.
    """
    rows = sorted(zip(confidence, correct, strict=True))
    sums = [math.fsum(c - a for _, a in g) for c, g in groupby(rows, key=lambda row: row[0])]
    if math.fsum(map(abs, sums)) <= 1e-12 * len(rows):
        return 0.0  # calibrated at every confidence: smECE_s is 0 for every s
    low, high = 0.5, 1.0
    while smooth_ece_at(confidence, correct, low) <= low:
        low, high = low / 2, low
    return float(brentq(lambda s: smooth_ece_at(confidence, correct, s) - s, low, high, xtol=1e-10))


# ------------------------------------------------------------------ selective classification


def most_confident_first(score, loss):
    """Losses by falling score, rows of equal score each with their group's mean loss."""
    shared = share_ties(score, loss)
    return [shared[i] for i in sorted(range(len(score)), key=lambda i: -score[i])]


def aurc(score, loss, weights="empirical"):
    """Area under the risk-coverage curve.

    empirical: 1/n sum_k (mean loss of the k most confident rows);
    log: 1/n sum_i -ln(1 - r_i/(n+1)) loss_i, r the ascending rank 1..n (r-aurc eq. 20).
    A mean weight for tied rows is the same as a mean loss for them.
    """
    ordered = most_confident_first(score, loss)
    n = len(ordered)
    if weights == "empirical":
        return math.fsum(total / (k + 1) for k, total in enumerate(accumulate(ordered))) / n
    ranks = [n - k for k in range(n)]
    pairs = zip(ranks, ordered, strict=True)
    return math.fsum(-math.log(1 - r / (n + 1)) * value for r, value in pairs) / n


def e_aurc(score, loss, weights="empirical"):
    """AURC less that of the oracle, which accepts rows by rising loss."""
    return aurc(score, loss, weights) - aurc([-x for x in loss], loss, weights)


def augrc(score, loss):
    """1/n sum_k 1/n sum_{i <= k} loss_(i), most confident first (Traub et al. 2024)."""
    ordered = most_confident_first(score, loss)
    return math.fsum(accumulate(ordered)) / len(ordered) ** 2


def risk_at_coverage(score, loss, coverage):
    """Mean loss of the ceil(coverage n) most confident rows, at least one.

    A share such as 0.07 of 100 rows is 7.000000000000001 in floating point and means 7.
    """
    ordered = most_confident_first(score, loss)
    k = max(1, math.ceil(coverage * len(ordered) - 1e-9))
    return math.fsum(ordered[:k]) / k


def coverage_at_risk(score, loss, risk):
    """Largest k/n, at the end of a tie group, whose k most confident rows lose <= risk."""
    rows = sorted(zip(score, loss, strict=True), key=lambda row: -row[0])
    best, count, total = 0, 0, 0.0
    for _, group in groupby(rows, key=lambda row: row[0]):
        values = [value for _, value in group]
        count += len(values)
        total += math.fsum(values)
        if total / count <= risk:
            best = count
    return best / len(rows)


def auroc(positive, negative):
    """P(positive > negative) + P(equal)/2 over all pairs; nan where a side is empty."""
    if not len(positive) or not len(negative):
        return math.nan
    marked = sorted([(float(x), 1) for x in positive] + [(float(x), 0) for x in negative])
    below, wins = 0, 0.0
    for _, group in groupby(marked, key=lambda row: row[0]):
        flags = [flag for _, flag in group]
        ups = sum(flags)
        downs = len(flags) - ups
        wins += ups * (below + downs / 2)
        below += downs
    return wins / (len(positive) * len(negative))


def failure_auroc(confidence, correct):
    """How well confidence separates correct rows (positive) from wrong ones."""
    pairs = list(zip(confidence, correct, strict=True))
    return auroc([c for c, a in pairs if a], [c for c, a in pairs if not a])


def ood_auroc(in_scores, out_scores):
    """How well the score separates in-distribution rows (positive) from the others."""
    return auroc(in_scores, out_scores)


def fpr95(in_scores, out_scores):
    """Share of out-of-distribution rows with score >= t, at the largest t that at least 95%
    of the in-distribution rows reach.
    """
    if not len(in_scores) or not len(out_scores):
        return math.nan
    n = len(in_scores)
    threshold = sorted(map(float, in_scores), reverse=True)[-(-95 * n // 100) - 1]
    return sum(1 for x in out_scores if x >= threshold) / len(out_scores)


def max_probability_score(probs):
    """max p of every row."""
    return [float(max(row)) for row in np.asarray(probs, dtype=np.float64)]


def negative_entropy_score(probs):
    """Minus the entropy of every row: higher is surer."""
    return [-h for h in row_entropy(probs)]


def max_logit_score(logits):
    """max z of every row."""
    return [float(max(row)) for row in np.asarray(logits, dtype=np.float64)]
