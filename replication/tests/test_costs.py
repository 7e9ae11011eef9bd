"""What runs cost: when several shared a machine, and where none of their network is timed."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch
from torch import nn

from calibrant.bench import collect_results, make_row
from calibrant.data import load
from calibrant.models import build
from replication.claims.costs import Cost, estimate_costs, estimate_plan_cost, estimate_seeds_cost
from replication.claims.workload import SHAPES, count_images, estimate_work
from tests.helpers.bench_frames import frame_of, small

pytestmark = pytest.mark.slow  # claims are judged by `make test-all`


def test_the_seconds_of_a_whole_run_come_before_those_of_its_training():
    suite = small(seeds="0, 1")
    frame = frame_of(suite, {"cross_entropy": [0.1, 0.2]}, seconds=60)
    for _, spec in suite.specs[:1]:
        more = make_row(spec, part="run", metric="bench_seconds", value=90.0)
        frame.loc[len(frame)] = more | {"written": "2025-01-01T00:00:00.000000Z"}
    results = collect_results(suite, frame)
    (cell,) = results.cells
    assert estimate_costs(results)[cell, "cross_entropy"] == Cost(pytest.approx((90 + 60) / 2))
    assert estimate_seeds_cost(results, [(cell, "cross_entropy")], 4).minutes == pytest.approx(
        4 * 75 / 60
    )


def multiply_adds(model, classes, size):
    """Of one image, by hand: what every convolution and linear layer does of it."""
    network = build(model, classes).eval()
    counts = []

    def count(layer, inputs, output):
        places = output[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1
        counts.append(layer.weight.numel() * places)

    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(count)
    with torch.no_grad():
        network(torch.zeros(1, *size))
    return sum(counts)


def settings(**changed):
    usual = {"data": "cifar10", "long_tail": None, "validation": 0.1, "model": "resnet18"}
    return usual | {"model_options": {}} | changed


@pytest.mark.parametrize("model", ["resnet18", "densenet40", "resnet110_sd"])
def test_the_work_of_an_epoch_is_that_of_its_layers_over_its_images(model):
    expected = 45_000 * multiply_adds(model, 10, (3, 32, 32))
    assert estimate_work(settings(model=model)) == expected


def test_work_nobody_knows_is_none():
    assert estimate_work(settings(model="efficientnet-lite0")) is None
    assert estimate_work(settings(data="folder:somewhere")) is None


def test_the_images_of_a_run_are_those_it_trains_on():
    for held_out in (0.1, 100):
        rows = load("digits", validation=held_out).train
        config = settings(data="digits", validation=held_out)
        assert count_images(config) == len(rows)
        assert (len(rows.class_names), tuple(rows.images.shape[1:])) == SHAPES["digits"][1:3]
    assert count_images(settings(validation=5000.0)) == 45_000
    # 20,431 rows in the tail, 10,216 of them held out, whatever the share is.
    assert count_images(settings(long_tail=0.1, validation=5000.0)) == 10_215
    assert count_images(settings(data="camvid", validation=5000.0)) == 367


def timed(seconds=30.0, **suite):
    return frame_of(small(name="timed", seeds="9", **suite), {"acls": [0.1]}, seconds)


def first(suite, frame):
    """The cost of the first run of a suite."""
    return next(iter(estimate_costs(collect_results(suite, frame)).values()))


def test_a_network_timed_elsewhere_costs_by_its_images():
    frame = timed(model="resnet18")
    alike = small(model="resnet18", data="cifar100")
    assert first(alike, frame) == Cost(30.0)
    tail = small(model="resnet18", more="where: [{if: {}, set: {long_tail: 0.1}}]")
    assert first(tail, frame) == Cost(pytest.approx(30 * 10_215 / 45_000), estimated=True)


def test_a_network_that_is_not_timed_costs_by_the_work_of_others():
    frame = timed(model="resnet18")
    cost = first(small(model="resnet50"), frame)
    adds = [multiply_adds(model, 10, (3, 32, 32)) for model in ("resnet50", "resnet18")]
    assert cost == Cost(pytest.approx(30 * adds[0] / adds[1]), estimated=True)
    suite = small(model="resnet50")
    results = collect_results(suite, frame)
    whole = estimate_plan_cost(results, results.planned)
    assert whole == Cost(pytest.approx(12 * cost.seconds), estimated=True)
    # Both kinds together are an estimate.
    assert (Cost(1.0) + cost).estimated
    assert first(small(model="resnet50"), frame.head(0)) is None


def test_others_on_the_same_data_come_first():
    near = timed(model="resnet18")
    away = timed(300.0, model="deeplabv3_resnet50", data="camvid")
    away["written"] = away["written"].str.replace("2026-01-01", "2026-01-02")  # nothing shared
    suite = small(model="resnet50")
    both = pd.concat([near, away], ignore_index=True)
    assert first(suite, both) == first(suite, near)
    assert first(suite, away).estimated


def test_files_of_logits_tell_nothing_of_a_training():
    frame = timed(model="resnet18")
    frame["config"] = [
        json.dumps({**json.loads(text), "logits": "some.npz"}) for text in frame["config"]
    ]
    assert first(small(model="resnet18"), frame) is None
    assert first(small(model="resnet50"), frame) is None


def test_a_network_that_does_not_take_such_images_has_no_known_work():
    from calibrant.training.config import Config
    from replication.claims.workload import estimate_work

    assert estimate_work(Config(data="digits", model="lenet5").to_dict()) is None
    assert estimate_work(Config(data="cifar10", model="lenet5").to_dict()) > 0
