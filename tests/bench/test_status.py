"""The time that is left, where several runs shared a machine."""

from __future__ import annotations

import numpy as np
import pytest

from calibrant.bench import Store, make_row, status
from calibrant.bench.run.status import compute_epoch_seconds, share_time
from calibrant.bench.suite.spec import SECONDS
from tests.helpers.bench_frames import small


def by_hand(ends, seconds, machines):
    """Second by second: each run at work on a machine has an equal share of it."""
    shares = [0.0] * len(ends)
    for tick in range(int(min(np.subtract(ends, seconds))), int(max(ends))):
        for name in set(machines):
            now = [
                place
                for place, machine in enumerate(machines)
                if machine == name and ends[place] - seconds[place] <= tick < ends[place]
            ]
            for place in now:
                shares[place] += 1 / len(now)
    return shares


def test_runs_that_shared_a_machine_cost_their_share():
    # Two at once for 10 s: 5 s each; the second goes on alone for 10 more.
    assert share_time(np.array([10.0, 20.0]), np.array([10.0, 20.0]), ["a", "a"]).tolist() == [
        5,
        15,
    ]
    # On two machines nothing is shared.
    assert share_time(np.array([10.0, 20.0]), np.array([10.0, 20.0]), ["a", "b"]).tolist() == [
        10,
        20,
    ]
    # One after another, the second beginning as the first ends.
    assert share_time(np.array([10.0, 20.0]), np.array([10.0, 10.0]), ["a", "a"]).tolist() == [
        10,
        10,
    ]


def test_shares_are_those_counted_second_by_second():
    draw = np.random.default_rng(0)
    ends = draw.integers(50, 400, 40).astype(float)
    seconds = draw.integers(1, 50, 40).astype(float)
    machines = [str(number) for number in draw.integers(0, 3, 40)]
    assert share_time(ends, seconds, machines) == pytest.approx(by_hand(ends, seconds, machines))


def test_the_time_left_is_that_of_shares(tmp_path):
    specs = [spec for method, spec in small(seeds="0, 1, 2").specs if method == "cross_entropy"]
    store = Store(tmp_path / "store")
    for run in specs[:2]:  # both at work from 10:00:00 to 10:01:40
        row = make_row(run, part="run", metric=SECONDS, value=100.0)
        store.add(run.key, [row | {"written": "2026-01-01T10:01:40.000000Z"}])
    assert status(specs[2:], tmp_path).seconds_left == pytest.approx(50)
    alike = ("cifar10", "resnet50")
    one_epoch = 50 / specs[0].config.epochs
    assert compute_epoch_seconds(store)[alike] == pytest.approx(one_epoch)
    # Measured again later, and made light: when a run ended stays known.
    for place, run in enumerate(specs[:2]):
        row = make_row(run, part="test", metric="ece", value=0.1)
        store.add(run.key, [row | {"written": f"2026-01-01T1{2 + place}:00:00.000000Z"}])
    store.compact(light=True)
    assert compute_epoch_seconds(store)[alike] == pytest.approx(one_epoch)
