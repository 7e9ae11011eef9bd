"""The soft rank from its definition, in Python loops over scalars; imports nothing of ours.

Worked by hand: values (0.9, 0.1, 0.3), strength 1. Ascending, 0.1, 0.3, 0.9 less 1, 2, 3 is
−0.9, −1.7, −2.1: falling throughout, so one block of mean −4.7/3. Ranks are the values less
that mean: 0.1 + 1.5667 = 1.6667, 0.3 + 1.5667 = 1.8667, 0.9 + 1.5667 = 2.4667, of sum 6.
At strength 0.4: 0.25, 0.75, 2.25 less 1, 2, 3 is −0.75, −1.25, −0.75: the first two pool to
−1, the third stays: ranks 1.25, 1.75, 3.
"""

from __future__ import annotations


def blocks(values: list[float], strength: float) -> list[list[int]]:
    """Which values pool together, lowest first, by pooling one value after another."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    pooled: list[tuple[float, list[int]]] = []  # sum of what is fitted, members
    for rank, i in enumerate(order, start=1):
        total, members = values[i] / strength - rank, [i]
        while pooled and pooled[-1][0] * len(members) >= total * len(pooled[-1][1]):
            before, earlier = pooled.pop()
            total, members = before + total, earlier + members
        pooled.append((total, members))
    return [members for _, members in pooled]


def soft_rank(values: list[float], strength: float) -> list[float]:
    """Each value over the strength, less the mean by which its block exceeds its ranks."""
    ranks, place = [0.0] * len(values), 0
    for block in blocks(values, strength):
        scaled = sum(values[i] / strength for i in block) / len(block)
        mean_rank = sum(range(place + 1, place + len(block) + 1)) / len(block)
        for i in block:
            ranks[i] = values[i] / strength - scaled + mean_rank
        place += len(block)
    return ranks


def jacobian(values: list[float], strength: float) -> list[list[float]]:
    """d rank_i / d value_j: (1[i=j] − 1/|B|) / strength within a block B, else 0."""
    n = len(values)
    table = [[0.0] * n for _ in range(n)]
    for block in blocks(values, strength):
        for i in block:
            for j in block:
                table[i][j] = ((i == j) - 1 / len(block)) / strength
    return table


def hard_rank(values: list[float]) -> list[float]:
    """How many are smaller, and half of the ties."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]


def subsets(n: int) -> list[list[int]]:
    """Every subset of 0..n−1 but the empty and the full one: the permutahedron's faces."""
    return [[i for i in range(n) if mask >> i & 1] for mask in range(1, (1 << n) - 1)]
