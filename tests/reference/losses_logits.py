"""Losses on logits, histories and kernels once more, plainly: scalars, loops and ``math``.

Rows are lists of logits, labels are class numbers; rows to be ignored are left out beforehand.
"""

import math

BANDWIDTHS = [10 ** (-5 + 4 * step / 14) for step in range(15)] + [0.2, 0.4, 0.6, 0.8, 1.0]


def softplus(x):
    """ln(1 + e^x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def log_softmax(row):
    """z - ln sum exp z."""
    top = max(row)
    total = top + math.log(sum(math.exp(z - top) for z in row))
    return [z - total for z in row]


def confidence(row):
    """The largest probability."""
    return math.exp(max(log_softmax(row)))


def argmax(row):
    """The class of the largest logit, the lowest among equals."""
    return row.index(max(row))


def mean(values):
    """The mean; of nothing 0."""
    return sum(values) / len(values) if values else 0.0


# MbLS by hand, M = 2: logits (5, 1, 4) give max(0, 0-2), max(0, 4-2), max(0, 1-2) = 0, 2, 0, whose
# mean is 2/3; logits (0, 0, 7) give 5, 5, 0, whose mean is 10/3; both rows: 2.
def mbls(rows, margin=10.0):
    """Mean over rows and classes of max(0, z_top - z_k - M)."""
    return mean([mean([max(0.0, max(row) - z - margin) for z in row]) for row in rows])


# ACLS by hand, M = 2, lambdas 0.1 and 0.01, logits (5, 1, 4): the first term is
# 0.1 * (5-1-2)^2 = 0.4; the second 0.01 * (max(0, 4-2)^2 + max(0, 1-2)^2)/2 = 0.02. Sum 0.42; with
# the printed sum 0.44. Authors: 0.1 * (5-2)^2 + 0.02 = 0.92. No indicator: 0.4 + 0.01*(4+1)/2 =
# 0.425. Constant f: 0.1*2 + 0.01*2/2 = 0.21.
def acls(
    rows,
    margin=10.0,
    lambda1=0.1,
    lambda2=0.01,
    form="paper",
    class_sum=False,
    adaptive=True,
    condition="margin",
    right=None,
    seen=None,
):
    """Eq. 13, its normalisation, the authors' form and the ablations of tables 5 and 6."""
    values = []
    for n, row in enumerate(rows):
        top = argmax(row)
        on = 1.0
        if condition == "ranking":
            m = (n + 1) % len(rows)
            known = seen[n] > 0 and seen[m] > 0
            gap = right[n] / seen[n] - right[m] / seen[m] if known else 0.0
            on = 1.0 if gap * (confidence(row) - confidence(rows[m])) < 0 else 0.0

        def penalty(gap):
            if condition == "margin" and gap < 0:
                return 0.0
            return gap * gap if adaptive else gap

        base = min(row) if form == "paper" else 0.0
        own = penalty(row[top] - base - margin)
        others = sum(penalty(row[top] - z - margin) for k, z in enumerate(row) if k != top)
        if not class_sum:
            others /= len(row) - 1
        values.append(on * (lambda1 * own + lambda2 * others))
    return mean(values)


# CPC by hand, logits (0, 0, 0), any label: every pair gives ln 2, so 0.1*ln2 + ln2 = 1.1*ln2.
# Logits (ln 3, 0, 0), label 0: -ln(3/4) = ln(4/3) for both pairs of the true class, ln 2 for the
# two ordered pairs of the others: 0.1*ln(4/3) + ln 2.
def cpc(rows, labels, lambda1=0.1, lambda2=1.0):
    """Mean over pairs with the true class, and over ordered pairs of the others."""
    values = []
    for row, y in zip(rows, labels, strict=True):
        others = [k for k in range(len(row)) if k != y]
        first = [softplus(row[k] - row[y]) for k in others]
        second = [softplus(row[b] - row[a]) for a in others for b in others if a != b]
        values.append(lambda1 * mean(first) + lambda2 * mean(second))
    return mean(values)


def cpc_soft(rows, tables, lambda1=0.1, lambda2=1.0):
    """The expectation of `cpc` over the label."""
    return mean(
        [
            sum(q * cpc([row], [y], lambda1, lambda2) for y, q in enumerate(table))
            for row, table in zip(rows, tables, strict=True)
        ]
    )


# CRL by hand: two rows of two classes with confidences 3/4 (logits ln 3, 0) and 1/2 (0, 0), right
# 1 of 4 and 3 of 4 times. Pair (1,2): h gap -1/2, sign -1, 0.25 + 0.5 = 0.75; pair (2,1): gap
# 1/2, 0.25 + 0.5 = 0.75. Mean 0.75. With right 4 of 4 and 3 of 4: max(0, -0.25 + 0.25) = 0.
def crl(rows, right, seen):
    """Mean over cyclic pairs of max(0, -sign(h_i - h_j)(c_i - c_j) + |h_i - h_j|)."""
    values = []
    for i, row in enumerate(rows):
        j = (i + 1) % len(rows)
        if seen[i] == 0 or seen[j] == 0:
            values.append(0.0)
            continue
        gap = right[i] / seen[i] - right[j] / seen[j]
        sign = (gap > 0) - (gap < 0)
        values.append(max(0.0, -sign * (confidence(row) - confidence(rows[j])) + abs(gap)))
    return mean(values)


def log_kernel(at, centre, bandwidth):
    """The log density at ln f = ``at`` of Dirichlet(centre / h + 1)."""
    alpha = [c / bandwidth + 1 for c in centre]
    return (
        math.lgamma(sum(alpha))
        - sum(math.lgamma(a) for a in alpha)
        + sum((a - 1) * log for a, log in zip(alpha, at, strict=True))
    )


def log_sum_exp(values):
    """ln sum exp."""
    top = max(values)
    return top + math.log(sum(math.exp(v - top) for v in values))


def bandwidth_by_likelihood(rows):
    """Of `BANDWIDTHS` the one under which each row is likeliest given all others."""
    logs = [log_softmax(row) for row in rows]
    points = [[math.exp(v) for v in log] for log in logs]

    def likelihood(h):
        return sum(
            log_sum_exp([log_kernel(at, points[i], h) for i in range(len(rows)) if i != j])
            for j, at in enumerate(logs)
        )

    return max(BANDWIDTHS, key=likelihood)


# ECE^KDE by hand: two rows, each judged by the other alone, whatever the bandwidth. f = (3/4, 1/4)
# with label 1 and f = (1/2, 1/2) with label 0: |1 - 3/4| + |0 - 1/4| = 1/2 (the other's label is
# 0) and |0 - 1/2| + |1 - 1/2| = 1; the mean is 3/4. Of order 2: 1/8 and 1/2, mean 5/16.
def kde_ece(rows, tables, bandwidth, order=1):
    """Mean over rows of the p-th power of the distance of E[y|f], by all other rows, to f."""
    logs = [log_softmax(row) for row in rows]
    points = [[math.exp(v) for v in log] for log in logs]
    values = []
    for j, at in enumerate(logs):
        rest = [i for i in range(len(rows)) if i != j]
        scores = [log_kernel(at, points[i], bandwidth) for i in rest]
        total = log_sum_exp(scores)
        error = 0.0
        for k in range(len(at)):
            expected = sum(
                math.exp(s - total) * tables[i][k] for s, i in zip(scores, rest, strict=True)
            )
            error += abs(expected - points[j][k]) ** order
        values.append(error)
    return mean(values)
