"""The primary losses as their papers write them: Python loops over scalars, float64.

``z`` is one row of logits, ``y`` its label, ``q`` its class probabilities; a batch is a list of
rows. Nothing of the package is used, and no array library.
"""

import math


def log_softmax(z):
    """ln p of a row, measured from its largest logit."""
    top = max(z)
    total = math.log(sum(math.exp(logit - top) for logit in z))
    return [logit - top - total for logit in z]


def softmax(z):
    """p of a row."""
    return [math.exp(logit) for logit in log_softmax(z)]


def onehot(y, num_classes):
    """1[k = y]."""
    return [1.0 if k == y else 0.0 for k in range(num_classes)]


def cross_entropy(z, y):
    """-ln p_y."""
    return -log_softmax(z)[y]


def brier_soft(z, q):
    """sum_k (p_k - q_k)^2: r-aurc eq. 24."""
    total = 0.0
    for p_k, q_k in zip(softmax(z), q, strict=True):
        total += (p_k - q_k) ** 2
    return total


def brier(z, y):
    """sum_k (p_k - 1[k=y])^2."""
    return brier_soft(z, onehot(y, len(z)))


def label_smoothing_soft(z, q, smoothing=0.05):
    """Cross-entropy against (1-e) q + e/K: acls eq. 4."""
    total = 0.0
    for log_p, q_k in zip(log_softmax(z), q, strict=True):
        total -= ((1 - smoothing) * q_k + smoothing / len(z)) * log_p
    return total


def label_smoothing(z, y, smoothing=0.05):
    """Cross-entropy against (1-e) onehot + e/K."""
    return label_smoothing_soft(z, onehot(y, len(z)), smoothing)


def focal(z, y, gamma=3.0):
    """-(1-p_y)^g ln p_y: r-aurc eq. 2."""
    log_p = log_softmax(z)[y]
    return -((1 - math.exp(log_p)) ** gamma) * log_p


def flsd(z, y, gamma_below=5.0, gamma_above=3.0, threshold=0.2):
    """Focal loss, g = 5 where p_y < 0.2 and 3 elsewhere: FL-53 of r-aurc."""
    return focal(z, y, gamma_below if softmax(z)[y] < threshold else gamma_above)


def inverse_focal(z, y, gamma=1.5):
    """-(1+p_y)^g ln p_y: r-aurc eq. 3."""
    log_p = log_softmax(z)[y]
    return -((1 + math.exp(log_p)) ** gamma) * log_p


def next_below(z, y):
    """The class of the largest logit strictly below the label's; None where there is none."""
    below = None
    for k, logit in enumerate(z):
        if logit < z[y] and (below is None or logit > z[below]):
            below = k
    return below


def dual_focal(z, y, gamma=5.0):
    """-(1 - p_y + p_j)^g ln p_y, p_j the largest p strictly below p_y or 0."""
    p, j = softmax(z), next_below(z, y)
    p_j = 0.0 if j is None else p[j]
    return -((1 - p[y] + p_j) ** gamma) * log_softmax(z)[y]


def expected(loss, z, q, **options):
    """sum_k q_k (loss of class k)."""
    return sum(q_k * loss(z, k, **options) for k, q_k in enumerate(q))


def blocks(values, strength):
    """Places pooled together by the soft rank: lists of row numbers, ascending.

    The projection of values/e on the permutahedron of (1..n) leaves, by isotonic regression of
    the sorted values/e less (1..n), blocks whose means rise: neighbours whose means do not are
    joined until all do.
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    actual = []
    for place, row in enumerate(order, start=1):
        actual.append(([row], values[row] / strength - place))
        while len(actual) > 1 and actual[-2][1] >= actual[-1][1]:
            (left, a), (right, b) = actual[-2:]
            joined = (a * len(left) + b * len(right)) / (len(left) + len(right))
            actual[-2:] = [(left + right, joined)]
    return [rows for rows, _ in actual]


def soft_rank(values, strength):
    """The soft ranks 1..n, ascending: value/e less its block's mean, plus the mean place."""
    ranks, place = [0.0] * len(values), 0
    for rows in blocks(values, strength):
        mean = sum(values[row] for row in rows) / len(rows)
        middle = place + (len(rows) + 1) / 2
        for row in rows:
            ranks[row] = middle + (values[row] - mean) / strength
        place += len(rows)
    return ranks


def mean_rank(values):
    """The hard ranks 1..n, ascending; ties share their mean rank."""
    ranks = []
    for value in values:
        below = sum(other < value for other in values)
        ties = sum(other == value for other in values)
        ranks.append(below + (ties + 1) / 2)
    return ranks


def msp(z):
    """max p."""
    return max(softmax(z))


def margin(z):
    """The largest p less the second."""
    first, second = sorted(softmax(z), reverse=True)[:2]
    return first - second


def neg_entropy(z):
    """sum_k p_k ln p_k, over the probabilities."""
    return sum(p * math.log(p) for p in softmax(z) if p > 0)


CSFS = {"msp": msp, "margin": margin, "neg_entropy": neg_entropy}


def r_aurc(batch, losses, lam=0.5, strength=0.05, csf="msp", hard_rank=False, reference_batch=128):
    """Of each row, (1-l) L + l (-ln(1 - r/(n+1))) L: r-aurc eq. 7, 20 and 23.

    ``losses`` is L of each row; with ``reference_batch`` the strength e becomes
    e (B+1)/(n+1).
    """
    if reference_batch is not None:
        strength = strength * (reference_batch + 1) / (len(batch) + 1)
    values = [CSFS[csf](z) for z in batch]
    ranks = mean_rank(values) if hard_rank else soft_rank(values, strength)
    actual = []
    for rank, loss in zip(ranks, losses, strict=True):
        weight = -math.log(1 - rank / (len(batch) + 1))
        actual.append((1 - lam) * loss + lam * weight * loss)
    return actual
