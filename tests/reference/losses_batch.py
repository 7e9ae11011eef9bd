"""Losses of a whole batch in float64 loops, from the papers' formulas.

Logits are rows of numbers, labels rows of class probabilities (a class index is a row with a
single 1): right is then the share that the label gives the predicted class.
"""

import math


def onehot(label, num_classes):
    """The row of a class index."""
    return [1.0 if k == label else 0.0 for k in range(num_classes)]


def softmax(row):
    """exp z_k / sum exp z."""
    biggest = max(row)
    each = [math.exp(value - biggest) for value in row]
    return [value / sum(each) for value in each]


def top(row, label):
    """Confidence c = max p and correctness a."""
    probs = softmax(row)
    predicted = probs.index(max(probs))
    return probs[predicted], label[predicted]


def entropy(row):
    """In nats."""
    return -sum(p * math.log(p) for p in softmax(row) if p > 0)


def memberships(confidence, num_bins, temperature, low=0.0):
    """Soft-calibration, below eq. 10: softmax over bins of -(c - xi_j)^2 / T; bins on [low, 1]."""
    centres = [low + (1 - low) * (2 * j + 1) / (2 * num_bins) for j in range(num_bins)]
    return softmax([-((confidence - centre) ** 2) / temperature for centre in centres])


def soft_binned_power(confidences, rights, form, num_bins, temperature, order, low=0.0):
    """What stands under the root of eq. 11 (bin) or 12 (label)."""
    number = len(confidences)
    members = [memberships(c, num_bins, temperature, low) for c in confidences]
    power = 0.0
    for j in range(num_bins):
        size = sum(members[i][j] for i in range(number))
        if size < 1e-200:
            continue
        accuracy = sum(members[i][j] * rights[i] for i in range(number)) / size
        if form == "bin":
            mean = sum(members[i][j] * confidences[i] for i in range(number)) / size
            power += size / number * abs(accuracy - mean) ** order
        else:
            for i in range(number):
                power += members[i][j] * abs(accuracy - confidences[i]) ** order / number
    return power


def sb_ece(
    logits,
    labels,
    form="label",
    over="top",
    num_bins=15,
    temperature=0.01,
    order=2.0,
    squared=False,
    bins_from="zero",
):
    """Eq. 11 and 12; over classes, the mean of their powers under one root (appendix J)."""
    low = 1 / len(logits[0]) if bins_from == "chance" else 0.0
    options = (form, num_bins, temperature, order, low)
    root = 1 if squared else 1 / order
    if over == "top":
        rows = [top(row, label) for row, label in zip(logits, labels, strict=True)]
        power = soft_binned_power([c for c, _ in rows], [a for _, a in rows], *options)
        return power**root
    probs = [softmax(row) for row in logits]
    num_classes = len(probs[0])
    powers = [
        soft_binned_power([p[k] for p in probs], [label[k] for label in labels], *options)
        for k in range(num_classes)
    ]
    return (sum(powers) / num_classes) ** root


def avuc(logits, labels, threshold=0.5):
    """Eq. 13, 14; the entropy in nats against the threshold."""
    au = ic = ac = iu = 0.0
    for row, label in zip(logits, labels, strict=True):
        c, a = top(row, label)
        h = entropy(row)
        if h > threshold:
            au += a * c * math.tanh(h)
            iu += (1 - a) * (1 - c) * math.tanh(h)
        else:
            ac += a * c * (1 - math.tanh(h))
            ic += (1 - a) * (1 - c) * (1 - math.tanh(h))
    return math.log(1 + (au + ic) / (ac + iu))


def soft_uncertainty(share, threshold, temperature):
    """t of h*, above eq. 15."""
    odds = share * (1 - threshold) / ((1 - share) * threshold)
    return 1 / (1 + math.exp(-math.log(odds) / temperature))


def s_avuc(logits, labels, threshold=0.5, temperature=1.0):
    """Eq. 15, 16."""
    au = ic = ac = iu = 0.0
    for row, label in zip(logits, labels, strict=True):
        _, a = top(row, label)
        h = entropy(row)
        t = soft_uncertainty(h / math.log(len(row)), threshold, temperature)
        au += a * t * math.tanh(h)
        ac += a * (1 - t) * (1 - math.tanh(h))
        iu += (1 - a) * t * math.tanh(h)
        ic += (1 - a) * (1 - t) * (1 - math.tanh(h))
    return math.log(1 + (au + ic) / (ac + iu))


def mmce(logits, labels, width=0.4):
    """(1/N^2) sum over all pairs (a_i - c_i)(a_j - c_j) exp(-|c_i - c_j| / width)."""
    rows = [top(row, label) for row, label in zip(logits, labels, strict=True)]
    total = 0.0
    for c, a in rows:
        for other_c, other_a in rows:
            total += (a - c) * (other_a - other_c) * math.exp(-abs(c - other_c) / width)
    return total / len(rows) ** 2


def mmce_weighted(logits, labels, width=0.4):
    """Three sums over pairs: of right rows, of wrong rows, and of one of each."""
    rows = [top(row, label) for row, label in zip(logits, labels, strict=True)]
    right = sum(a for _, a in rows)
    wrong = sum(1 - a for _, a in rows)
    both_right = both_wrong = mixed = 0.0
    for c, a in rows:
        for other_c, other_a in rows:
            kernel = math.exp(-abs(c - other_c) / width)
            both_right += a * other_a * (1 - c) * (1 - other_c) * kernel
            both_wrong += (1 - a) * (1 - other_a) * c * other_c * kernel
            mixed += a * (1 - other_a) * (1 - c) * other_c * kernel
    value = 0.0
    if right > 0:
        value += both_right / right**2
    if wrong > 0:
        value += both_wrong / wrong**2
    if right > 0 and wrong > 0:
        value -= 2 * mixed / (right * wrong)
    return value


def mdca(logits, labels):
    """(1/K) sum over classes of |mean p_k - mean of the labels' k|."""
    probs = [softmax(row) for row in logits]
    number, num_classes = len(probs), len(probs[0])
    total = 0.0
    for k in range(num_classes):
        mean = sum(p[k] for p in probs) / number
        share = sum(label[k] for label in labels) / number
        total += abs(mean - share)
    return total / num_classes


def confidence_penalty(logits, labels):
    """-h, its mean over the rows."""
    assert len(logits) == len(labels)
    return -sum(entropy(row) for row in logits) / len(logits)
