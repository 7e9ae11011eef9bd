"""What runs cost when several shared a machine."""

from __future__ import annotations

import numpy as np
import pytest

from bench_frames import frame_of, small
from calibrant.bench.cells import results
from calibrant.bench.costs import alone, minutes_for, seconds_of_runs
from calibrant.bench.rows import make_row


def by_hand(ends, seconds, machines):
    """Second by second: each run at work on a machine has an equal share of it."""
    found = [0.0] * len(ends)
    for tick in range(int(min(np.subtract(ends, seconds))), int(max(ends))):
        for name in set(machines):
            now = [
                place
                for place, machine in enumerate(machines)
                if machine == name and ends[place] - seconds[place] <= tick < ends[place]
            ]
            for place in now:
                found[place] += 1 / len(now)
    return found


def test_runs_that_shared_a_machine_cost_their_share():
    # Two at once for 10 s: 5 s each; the second goes on alone for 10 more.
    assert alone(np.array([10.0, 20.0]), np.array([10.0, 20.0]), ["a", "a"]).tolist() == [5, 15]
    # On two machines nothing is shared.
    assert alone(np.array([10.0, 20.0]), np.array([10.0, 20.0]), ["a", "b"]).tolist() == [10, 20]
    # One after another, the second beginning as the first ends.
    assert alone(np.array([10.0, 20.0]), np.array([10.0, 10.0]), ["a", "a"]).tolist() == [10, 10]


def test_shares_are_those_counted_second_by_second():
    draw = np.random.default_rng(0)
    ends = draw.integers(50, 400, 40).astype(float)
    seconds = draw.integers(1, 50, 40).astype(float)
    machines = [str(one) for one in draw.integers(0, 3, 40)]
    assert alone(ends, seconds, machines) == pytest.approx(by_hand(ends, seconds, machines))


def test_the_seconds_of_a_whole_run_come_before_those_of_its_training():
    suite = small(seeds="0, 1")
    frame = frame_of(suite, {"cross_entropy": [0.1, 0.2]}, seconds=60)
    for _, spec in suite.specs[:1]:
        more = make_row(spec, part="run", metric="bench_seconds", value=90.0)
        frame.loc[len(frame)] = more | {"written": "2025-01-01T00:00:00.000000Z"}
    found = results(suite, frame)
    (cell,) = found.cells
    assert seconds_of_runs(found)[cell, "cross_entropy"] == pytest.approx((90 + 60) / 2)
    assert minutes_for(found, [(cell, "cross_entropy")], 4) == pytest.approx(4 * 75 / 60)
