"""Metrics of events once more, plainly: a probability p, an outcome y of 0 or 1, a weight w.

Float64 throughout. Where a well-known library computes the same, it does so here.
"""

import math

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, roc_auc_score

EPS = 1e-9


class Undefined(Exception):
    """No finite value exists."""


def weights_of(p, w):
    """The weights, 1 each if None."""
    return np.ones(len(p)) if w is None else np.asarray(w, dtype=np.float64)


def mean(x, w):
    """Weighted mean, exactly rounded sums."""
    return math.fsum(np.asarray(x) * w) / math.fsum(w)


def logit(p):
    """ln p/(1 - p) of p moved to [eps, 1 - eps]."""
    return np.array([math.log(q / (1 - q)) for q in (min(max(x, EPS), 1 - EPS) for x in p)])


def calibration_in_the_large(p, y, w=None):
    """The root a of sum w (sigmoid(a + logit p) - y), infinite for one outcome."""
    y, w = np.asarray(y, dtype=np.float64), weights_of(p, w)
    if y.min() == y.max():
        return -math.inf if y[0] == 0 else math.inf
    x = logit(p)
    excess = lambda a: math.fsum(w * (1 / (1 + np.exp(-(a + x))) - y))  # noqa: E731
    return brentq(excess, -60, 60, xtol=1e-13, rtol=1e-14)


def recalibration(p, y, w=None):
    """Intercept and slope of scikit-learn's logistic regression without a penalty."""
    x, y, w = logit(p), np.asarray(y, dtype=int), weights_of(p, w)
    if y.min() == y.max() or x.min() == x.max():
        raise Undefined
    if x[y == 0].max() <= x[y == 1].min():
        return math.nan, math.inf
    if x[y == 1].max() <= x[y == 0].min():
        return math.nan, -math.inf
    centre, scale = x.mean(), x.std()
    # Newton from several scales of the same problem: the fit itself does not depend on it.
    model = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000, solver="newton-cholesky")
    model.fit(((x - centre) / scale)[:, None], y, sample_weight=w / w.mean())
    slope = float(model.coef_[0, 0]) / scale
    return float(model.intercept_[0]) - slope * centre, slope


def calibration_slope(p, y, w=None):
    """The slope of `recalibration`."""
    return recalibration(p, y, w)[1]


def calibration_intercept(p, y, w=None):
    """The intercept of `recalibration`."""
    intercept, slope = recalibration(p, y, w)
    if math.isinf(slope):
        raise Undefined
    return intercept


def oe_ratio(p, y, w=None):
    """Sum w y over sum w p."""
    w = weights_of(p, w)
    observed, expected = math.fsum(w * y), math.fsum(w * p)
    return observed / expected if expected > 0 else (math.inf if observed > 0 else 1.0)


def mean_gap(p, y, w=None):
    """Mean of p - y."""
    return mean(np.asarray(p) - y, weights_of(p, w))


def brier(p, y, w=None):
    """Mean of (p - y)^2."""
    return mean((np.asarray(p) - y) ** 2, weights_of(p, w))


def brier_skill(p, y, w=None):
    """1 - Brier score of p over that of the base rate."""
    y, w = np.asarray(y, dtype=np.float64), weights_of(p, w)
    score, base = brier(p, y, w), mean((y - mean(y, w)) ** 2, w)
    if y.min() == y.max():
        return -math.inf if score > 0 else 0.0
    return 1 - score / base


def loess(p, y, w=None, span=0.75, degree=2):
    """The curve at every row: weighted least squares of a polynomial, by the QR of `lstsq`."""
    p, y, w = np.asarray(p, dtype=np.float64), np.asarray(y, dtype=np.float64), weights_of(p, w)
    curve = []
    for place in p:
        away = np.abs(p - place)
        order = np.argsort(away, kind="stable")
        within = np.cumsum(w[order])
        reach = away[order][np.flatnonzero(within >= span * within[-1] * (1 - 1e-12))[0]]
        if reach <= 1e-15:
            curve.append(mean(y[away <= 1e-15], w[away <= 1e-15]))
            continue
        u = (p - place) / reach
        kernel = w * np.clip(1 - np.abs(u) ** 3, 0, None) ** 3
        root = np.sqrt(kernel)
        design = np.stack([u**k for k in range(degree + 1)], axis=1)
        fit = np.linalg.lstsq(design * root[:, None], y * root, rcond=None)[0]
        curve.append(fit[0])
    return np.clip(curve, 0, 1)


def curve_summary(summary, p, y, w=None, span=0.75, degree=2):
    """Mean, quantile or maximum over rows of |loess - p|."""
    error, w = np.abs(loess(p, y, w, span, degree) - p), weights_of(p, w)
    if summary == "ici":
        return mean(error, w)
    share = {"e50": 0.5, "e90": 0.9, "emax": 1.0}[summary]
    total = 0.0
    for index in np.argsort(error):
        total += w[index]
        if total >= share * w.sum() * (1 - 1e-9):
            return error[index]
    raise AssertionError


def spiegelhalter(p, y, w=None, returns="p_value"):
    """Spiegelhalter's z."""
    p, y, w = np.asarray(p), np.asarray(y), weights_of(p, w)
    above = math.fsum(w * (y - p) * (1 - 2 * p))
    below = math.fsum(w**2 * (1 - 2 * p) ** 2 * p * (1 - p))
    z = above / math.sqrt(below) if below > 0 else math.inf if above > 1e-12 else 0.0
    return z if returns == "statistic" else 2 * stats.norm.sf(abs(z))


def hosmer_lemeshow(p, y, w=None, num_bins=10, returns="p_value"):
    """The chi-squared statistic; a tie goes to the bin of its middle row."""
    p, y, w = np.asarray(p), np.asarray(y), weights_of(p, w)
    bins = {}
    for i, probability in enumerate(p):
        first, last = int((p < probability).sum()), int((p <= probability).sum()) - 1
        bins.setdefault((first + last) * num_bins // (2 * len(p)), []).append(i)
    statistic, degrees = 0.0, 0
    for rows in bins.values():
        chance = mean(p[rows], w[rows])
        excess = math.fsum(w[rows] * (y[rows] - p[rows]))
        if 1e-15 < chance < 1 - 1e-15:
            statistic += excess**2 / (math.fsum(w[rows] ** 2) * chance * (1 - chance))
            degrees += 1
        elif abs(excess) > 1e-12 * w.sum():
            statistic = math.inf
    if returns == "statistic":
        return statistic
    return 0.0 if math.isinf(statistic) else stats.chi2.sf(statistic, degrees) if degrees else 1.0


def log_ece(p, y, w=None, num_bins=15, order=1, low=1e-4):
    """ECE of bins that end at 10^(log10(low) (1 - j/M))."""
    w = weights_of(p, w)
    ends = [10 ** (math.log10(low) * (1 - j / num_bins)) for j in range(1, num_bins)] + [math.inf]
    bins = {}
    for i, probability in enumerate(p):
        bins.setdefault(next(j for j, end in enumerate(ends) if probability <= end), []).append(i)
    total = 0.0
    for rows in bins.values():
        gap = abs(mean(np.asarray(p)[rows], w[rows]) - mean(np.asarray(y)[rows], w[rows]))
        total += w[rows].sum() / w.sum() * gap**order
    return total ** (1 / order)


def auroc(p, y, w=None):
    """scikit-learn's, 0.5 for one outcome."""
    one = min(y) == max(y)
    return 0.5 if one else float(roc_auc_score(y, p, sample_weight=weights_of(p, w)))


def average_precision(p, y, w=None):
    """scikit-learn's, 0 without events."""
    none = max(y) == 0
    return 0.0 if none else float(average_precision_score(y, p, sample_weight=weights_of(p, w)))


def net_benefit(p, y, w=None, threshold=0.5):
    """(TP - FP t/(1 - t)) / N of the rows with p >= t."""
    y, w = np.asarray(y), weights_of(p, w)
    treat = np.asarray(p) >= threshold
    hits, alarms = math.fsum(w[treat & (y == 1)]), math.fsum(w[treat & (y == 0)])
    return (hits - alarms * threshold / (1 - threshold)) / w.sum()


def corp(p, y, w=None):
    """Miscalibration, discrimination and uncertainty with scikit-learn's isotonic regression."""
    y, w = np.asarray(y, dtype=np.float64), weights_of(p, w)
    # fit_transform rounds to the precision of p: the ends may lie outside by a digit.
    curve = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    fitted = curve.fit_transform(p, y, sample_weight=w)
    rate = mean(y, w)
    of_rate, of_fit = mean((y - rate) ** 2, w), mean((y - fitted) ** 2, w)
    return brier(p, y, w) - of_fit, of_rate - of_fit, of_rate


METRICS = {
    "calibration_in_the_large": calibration_in_the_large,
    "calibration_slope": calibration_slope,
    "calibration_intercept": calibration_intercept,
    "oe_ratio": oe_ratio,
    "mean_gap": mean_gap,
    "brier_skill": brier_skill,
    "spiegelhalter": spiegelhalter,
    "hosmer_lemeshow": hosmer_lemeshow,
    "log_ece": log_ece,
    "auroc": auroc,
    "average_precision": average_precision,
    "net_benefit": net_benefit,
    **{
        name: lambda p, y, w=None, name=name, **how: curve_summary(name, p, y, w, **how)
        for name in ("ici", "e50", "e90", "emax")
    },
    **{
        f"brier_{part}": lambda p, y, w=None, index=index: corp(p, y, w)[index]
        for index, part in enumerate(("mcb", "dsc", "unc"))
    },
}
