"""Claims: the shipped file, and judgements on results whose truth is known."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import numpy as np
import pandas as pd
import pytest
import yaml

from calibrant.bench import Suite
from calibrant.bench.tables.statistics import paired
from calibrant.core.errors import InputError
from replication.claims import power_analysis
from replication.claims.claim import parse_claim, read_claims
from replication.claims.judge import judge
from replication.claims.spreads import estimate_spreads
from replication.claims.writers import (
    describe_differences,
    explain,
    format_gain,
    format_html,
    format_markdown,
    summarise,
    to_values,
)
from replication.published import PAPERS
from replication.stored import RESULTS, SUITES, StoredResults, find_suite
from tests.helpers.bench_frames import frame_of, small

pytestmark = pytest.mark.slow  # claims are judged by `make test-all`


def make_claim(test, suites=("small",), **more):
    entry = {"id": "it", "paper": "acls", "where": "Table 3", "says": "Left is better."}
    return parse_claim({**entry, "suites": list(suites), "test": test, **more})


def judge_claim(test, frame, suite, **more):
    (outcome,) = judge([make_claim(test, suites=(suite.name,), **more)], frame, [suite])
    return outcome


BETTER = {"metric": "ece", "left": {"method": "acls"}, "right": {"method": "cross_entropy"}}
AHEAD = {"cross_entropy": [0.033, 0.034, 0.032], "acls": [0.013, 0.0138, 0.0121]}


def test_a_clear_gain_holds_and_its_reverse_fails():
    suite = small()
    frame = frame_of(suite, AHEAD)
    outcome = judge_claim(BETTER, frame, suite)
    assert outcome.finding == "holds"
    assert outcome.effect == pytest.approx(np.mean(AHEAD["cross_entropy"]) - np.mean(AHEAD["acls"]))
    assert outcome.low > 0
    assert outcome.pairs == 3
    turned = {**BETTER, "left": BETTER["right"], "right": BETTER["left"]}
    assert judge_claim(turned, frame, suite).finding == "fails"


def test_the_better_way_is_the_metrics_own_or_as_said():
    suite = small()
    frame = frame_of(suite, {(name, "none", "accuracy"): values for name, values in AHEAD.items()})
    assert judge_claim({**BETTER, "metric": "accuracy"}, frame, suite).finding == "fails"
    lower = {**BETTER, "metric": "accuracy", "better": "lower"}
    assert judge_claim(lower, frame, suite).finding == "holds"


def test_what_is_not_decided_says_what_would_decide_it():
    suite = small()
    runs = {"cross_entropy": [0.033, 0.030, 0.036], "acls": [0.0300, 0.0312, 0.0318]}
    outcome = judge_claim(BETTER, frame_of(suite, runs, seconds=120.0), suite)
    gains = [a - b for a, b in zip(runs["cross_entropy"], runs["acls"], strict=True)]
    assert outcome.status == "not decided"
    assert outcome.detectable == pytest.approx(
        power_analysis.compute_detectable(np.std(gains, ddof=1), 3)
    )
    needed = power_analysis.count_seeds_needed(np.mean(gains), np.std(gains, ddof=1))
    assert outcome.seeds == needed
    # Two methods, one data set, two minutes a run.
    assert outcome.minutes == pytest.approx((needed - 3) * 2 * 2)
    assert "could detect" in explain(outcome)
    assert f"{needed} seeds would decide it" in explain(outcome)
    assert "GPU minutes" in explain(outcome)


def test_a_gain_of_nothing_is_out_of_reach():
    suite = small()
    runs = {"cross_entropy": [0.03, 0.04, 0.05], "acls": [0.04, 0.03, 0.05000001]}
    outcome = judge_claim(BETTER, frame_of(suite, runs, seconds=60.0), suite)
    assert outcome.status == "not decided"
    assert outcome.seeds is None
    assert "more than 1,000 seeds would be needed" in explain(outcome)
    # What 1,000 would take is less than it takes: 997 more of two methods, a minute each.
    assert outcome.minutes == pytest.approx(997 * 2)
    assert explain(outcome).endswith("; more than 1,994 GPU minutes")
    (plain,) = to_values([outcome])["outcomes"]
    assert (plain["seeds_out_of_reach"], plain["gpu_minutes_estimated"]) == (True, False)


def test_one_seed_decides_nothing():
    suite = small(seeds="1")
    outcome = judge_claim(
        BETTER, frame_of(suite, {"cross_entropy": [0.3], "acls": [0.1]}, 60.0), suite
    )
    assert outcome.status == "not decided"
    assert outcome.detectable is None
    assert outcome.effect == pytest.approx(0.2)
    assert outcome.minutes == pytest.approx(2 * 2 * 1)
    assert "at least 3 seeds are needed" in explain(outcome)


def test_every_comparison_must_be_clear():
    suite = small()
    test = {**BETTER, "right": {"method": ["cross_entropy", "mbls"]}}
    clear = {**AHEAD, "mbls": [0.023, 0.024, 0.022]}
    assert judge_claim(test, frame_of(suite, clear), suite).finding == "holds"
    unclear = {**AHEAD, "mbls": [0.012, 0.0145, 0.0125]}
    outcome = judge_claim(test, frame_of(suite, unclear), suite)
    assert outcome.status == "not decided"
    assert outcome.tally() == (1, 0, 1)
    worse = {**AHEAD, "mbls": [0.003, 0.0041, 0.0020]}
    outcome = judge_claim(test, frame_of(suite, worse), suite)
    assert outcome.finding == "fails"
    assert "acls against mbls" in outcome.reason


def test_methods_planned_and_not_run_leave_it_open():
    suite = small()
    test = {**BETTER, "right": {"method": ["cross_entropy", "mbls", "crl"]}}
    outcome = judge_claim(test, frame_of(suite, AHEAD, seconds=60.0), suite)
    assert outcome.status == "not decided"
    assert outcome.missing == ("mbls",)
    wide = small(data="cifar10, cifar100")
    half = frame_of(
        wide,
        {
            name: lambda spec, runs=runs: (
                runs[spec.config.seed] if spec.config.data == "cifar10" else None
            )
            for name, runs in AHEAD.items()
        },
    )
    assert judge_claim(BETTER, half, wide).missing == (
        "cross_entropy (cifar100, resnet50)",
        "acls (cifar100, resnet50)",
    )
    assert outcome.absent == ("crl",)
    assert outcome.minutes == pytest.approx(3.0)
    assert "does not have crl" in explain(outcome)


def test_what_is_there_is_not_called_missing():
    wide = small(data="cifar10, cifar100")

    def but(name, runs, lacks):
        return lambda spec: None if lacks(spec.config) else runs[spec.config.seed]

    lacks = {"acls": lambda config: False, "cross_entropy": lambda config: config.data != "cifar10"}
    frame = frame_of(wide, {name: but(name, AHEAD[name], lacks[name]) for name in lacks})
    outcome = judge_claim(BETTER, frame, wide)
    assert outcome.missing == ("cross_entropy (cifar100, resnet50)",)
    assert outcome.status == "not decided"
    # Runs of both that share no seed compare nothing, which is not to pass for a comparison.
    lacks = {
        "acls": lambda config: config.data != "cifar10" and config.seed != 0,
        "cross_entropy": lambda config: config.data != "cifar10" and config.seed == 0,
    }
    frame = frame_of(wide, {name: but(name, AHEAD[name], lacks[name]) for name in lacks})
    outcome = judge_claim(BETTER, frame, wide)
    assert outcome.missing == ("a seed of both acls and cross_entropy (cifar100, resnet50)",)
    assert outcome.status == "not decided"


def test_fails_wants_holms_correction():
    # One of ten comparisons at p = 0.03 against left is what chance does.
    generator = np.random.default_rng(3)
    suite = small(data="cifar10, cifar100", seeds="0, 1, 2, 3, 4")
    runs = {"cross_entropy": list(generator.normal(0.03, 0.001, 5))}
    gap = np.array([1.0, 2.0, 0.4, 1.6, 0.2]) / 1000
    runs["acls"] = [float(value) for value in np.array(runs["cross_entropy"]) + gap]
    single = paired(list(-gap))
    assert 0.025 < single.p < 0.05
    outcome = judge_claim(BETTER, frame_of(suite, runs), suite)
    assert outcome.status == "not decided"


def test_a_margin_may_be_lost():
    suite = small()
    runs = {
        ("cross_entropy", "none", "accuracy"): [0.94, 0.93, 0.935],
        ("acls", "none", "accuracy"): [0.937, 0.928, 0.932],
    }
    test = {**BETTER, "metric": "accuracy"}
    frame = frame_of(suite, runs)
    assert judge_claim({**test, "margin": 0.01}, frame, suite).finding == "holds"
    assert judge_claim({**test, "margin": 0.0}, frame, suite).finding != "holds"
    assert judge_claim({**test, "margin": 0.01}, frame, suite).effect == pytest.approx(
        -0.0026667, abs=1e-6
    )


def test_same_figures_keep_within_any_margin():
    suite = small()
    runs = {(name, "none", "accuracy"): [0.94, 0.93, 0.935] for name in AHEAD}
    test = {**BETTER, "metric": "accuracy", "margin": 0.005}
    assert judge_claim(test, frame_of(suite, runs), suite).finding == "holds"


def test_a_ratio():
    suite = small()
    frame = frame_of(suite, AHEAD)
    assert judge_claim({**BETTER, "ratio": 0.5}, frame, suite).finding == "holds"
    assert judge_claim({**BETTER, "ratio": 0.3}, frame, suite).finding == "fails"


def test_the_mean_of_comparisons():
    suite = small(data="cifar10, cifar100")
    shift = {"cifar10": 0.02, "cifar100": -0.005}
    noise = [0.0, 0.001, -0.001]
    runs = {
        "cross_entropy": lambda spec: 0.05,
        "acls": lambda spec: 0.05 - shift[spec.config.data] + noise[spec.config.seed],
    }
    frame = frame_of(suite, runs)
    assert judge_claim({**BETTER, "decide": "mean"}, frame, suite).finding == "holds"
    assert judge_claim(BETTER, frame, suite).finding == "fails"
    only = {**BETTER, "only": {"data": "cifar10"}}
    assert judge_claim(only, frame, suite).finding == "holds"


def test_a_lost_run_costs_a_comparison_and_not_a_seed_of_all():
    suite = small()
    test = {**BETTER, "right": {"method": ["cross_entropy", "mbls", "focal"]}, "decide": "mean"}
    runs = {**AHEAD, "mbls": [0.03, 0.031, 0.032], "focal": [0.001, 0.002, None]}
    outcome = judge_claim(test, frame_of(suite, runs), suite)
    assert outcome.pairs == 3
    assert outcome.finding == "holds"
    assert "mean of 2 comparisons (1 with fewer seeds left out)" in outcome.reason


def test_a_mean_over_one_data_set_says_nothing_of_another():
    suite = small(data="cifar10, cifar100")
    test = {**BETTER, "right": {"method": ["cross_entropy", "mbls"]}, "decide": "mean"}
    whole = {**AHEAD, "mbls": [0.03, 0.031, 0.032]}
    assert judge_claim(test, frame_of(suite, whole), suite).finding == "holds"
    frame = frame_of(suite, whole)
    frame = frame[(frame["data"] == "cifar10") | (frame["seed"] < 2)]
    outcome = judge_claim(test, frame, suite)
    assert outcome.status == "not decided"
    assert "mean of 2 comparisons (2 with fewer seeds left out), none of them in" in outcome.reason
    assert "cifar100" in outcome.reason


def test_a_gain_in_several_metrics_names_them_all():
    suite = small()
    runs = {(name, "none", of): values for name, values in AHEAD.items() for of in ("ece", "mce")}
    outcome = judge_claim({**BETTER, "metric": ["ece", "mce"]}, frame_of(suite, runs), suite)
    assert format_gain(outcome).startswith("ECE, MCE +2.00%")


def test_notes_are_about_other_suites_than_the_papers_own():
    both = ("acls", "small")
    noted = make_claim(BETTER, both, here="no\n warm-up")
    assert noted.here == {"small": "no warm-up"}
    suite = small()
    outcome, *_ = judge([noted], frame_of(suite, AHEAD), [suite])
    assert describe_differences(outcome) == "10 epochs in place of 350; no warm-up"
    assert to_values([outcome])["outcomes"][0]["differences"] == [
        "10 epochs in place of 350",
        "no warm-up",
    ]
    empty, *_ = judge([noted], frame_of(suite, AHEAD).head(0), [suite])
    assert describe_differences(empty) == "no runs"
    assert make_claim(BETTER, both, here={"small": "longer"}).here == {"small": "longer"}
    with pytest.raises(InputError, match="other"):
        make_claim(BETTER, both, here={"other": "longer"})


def paper_like(
    epochs=350, seeds="0, 1, 2", batch_size=128, acls="acls(margin=6)", model="resnet50"
):
    """A suite made as acls's paper made its runs on CIFAR-10."""
    suite = small(seeds=seeds, model=model)
    text = suite.text.replace("epochs: 10", f"epochs: {epochs}, batch_size: {batch_size}")
    return Suite.parse(
        text.replace("{loss: acls(margin=6)}", acls if "{" in acls else f'{{loss: "{acls}"}}')
    )


@pytest.mark.parametrize(
    ("changes", "statuses", "difference"),
    [
        ({}, ("reproduced", "not reproduced"), "as in the paper"),
        ({"epochs": 30}, ("seen here", "not seen here"), "30 epochs in place of 350"),
        ({"batch_size": 512}, ("seen here", "not seen here"), "batches of 512 in place of 128"),
        (
            {"model": "resnet18"},
            ("seen here", "not seen here"),
            "resnet18 in place of resnet50 or resnet101",
        ),
        (
            {"acls": "{loss: acls(margin=6), clip: 1.0}"},
            ("seen here", "not seen here"),
            "gradients clipped for acls",
        ),
    ],
)
def test_an_outcome_is_one_of_five_by_how_runs_were_made(changes, statuses, difference):
    suite = paper_like(**changes)
    turned = {**BETTER, "left": BETTER["right"], "right": BETTER["left"]}
    for test, status in zip((BETTER, turned), statuses, strict=True):
        judged = judge_claim(test, frame_of(suite, AHEAD), suite)
        assert (judged.status, describe_differences(judged)) == (status, difference)


def test_fewer_than_three_seeds_are_a_difference():
    suite = paper_like(seeds="0, 1")
    runs = {name: figures[:2] for name, figures in AHEAD.items()}
    many = {**BETTER, "right": {"method": ["cross_entropy", "mbls", "focal"]}, "decide": "count"}
    many["metric"] = ["ece", "mce"]
    runs |= dict.fromkeys(("mbls", "focal"), runs["cross_entropy"])
    runs |= {(name, "none", "mce"): figures for name, figures in runs.items()}
    judged = judge_claim(many, frame_of(suite, runs), suite)
    assert judged.finding == "holds"
    assert judged.status == "seen here"
    assert describe_differences(judged) == "only 2 seeds; a verdict needs 3"


def test_untuned_runs_decide_nothing_where_the_paper_tunes():
    suite = small()
    judged = judge_claim(BETTER, frame_of(suite, AHEAD), suite, paper="soft-calibration")
    assert (judged.finding, judged.status) == ("holds", "not decided")
    assert explain(judged).startswith("no evidence: the paper tunes every method")


@pytest.mark.parametrize(
    ("loss", "batch", "matched"),
    [
        ("r_aurc(csf='msp')", 128, True),
        ("r_aurc(csf='msp', reference_batch=128)", 512, True),
        ("r_aurc(csf='msp', reference_batch=None)", 512, False),
        ("mbls(margin=5)", 512, True),
    ],
)
def test_a_strength_for_other_batches_is_another_method(loss, batch, matched):
    suite = paper_like(acls=loss, batch_size=batch, epochs=200)
    judged = judge_claim(BETTER, frame_of(suite, AHEAD), suite, paper="r-aurc")
    assert bool(judged.conditions.disqualified) is not matched
    assert judged.status == (
        "not decided" if not matched else "reproduced" if batch == 128 else "seen here"
    )


def test_runs_of_another_method_are_shown_only_where_there_are_no_others():
    former = paper_like(acls="r_aurc(reference_batch=None)", batch_size=512)
    former = Suite.parse(former.text.replace("name: small", "name: former"))
    suite = paper_like(acls="r_aurc", epochs=200)
    frame = pd.concat([frame_of(former, AHEAD), frame_of(suite, AHEAD)])
    asked = make_claim(BETTER, ("former", "small"), paper="r-aurc")
    assert [outcome.suite for outcome in judge([asked], frame, [former, suite])] == ["small"]
    assert [outcome.suite for outcome in judge([asked], frame_of(former, AHEAD), [former])] == [
        "former"
    ]


def test_some_comparison_is_enough():
    suite = small(data="cifar10, cifar100")
    shift = {"cifar10": 0.02, "cifar100": -0.02}
    noise = [0.0, 0.001, -0.001]
    runs = {
        "cross_entropy": lambda spec: 0.05,
        "acls": lambda spec: 0.05 - shift[spec.config.data] + noise[spec.config.seed],
    }
    assert (
        judge_claim({**BETTER, "decide": "some"}, frame_of(suite, runs), suite).finding == "holds"
    )
    shift["cifar10"] = -0.01
    outcome = judge_claim({**BETTER, "decide": "some"}, frame_of(suite, runs), suite)
    assert outcome.finding == "fails"
    assert outcome.reason == "all of 2 comparisons are against it"


def test_the_count_of_comparisons():
    suite = small(data="cifar10, cifar100")
    test = {
        "metric": ["ece", "nll", "brier", "mce"],
        "method": "*",
        "left": {"calibrator": "temperature"},
        "right": {"calibrator": "none"},
        "decide": "count",
    }
    runs = {}
    for place, metric in enumerate(("ece", "nll", "brier", "mce")):
        for number, name in enumerate(suite.methods):
            gain_ = -0.01 if place == 3 and number == 0 else 0.01
            runs[name, "none", metric] = [0.5] * 3
            runs[name, "temperature", metric] = [0.5 - gain_] * 3
    outcome = judge_claim(test, frame_of(suite, runs), suite)
    assert outcome.finding == "holds"
    assert "ahead in 30 of 32" in outcome.reason
    # With one method of four, the other three could turn it; with three, the last could not.
    for kept, status in ((1, "not decided"), (3, "holds")):
        some = {key: values for key, values in runs.items() if key[0] in suite.methods[-kept:]}
        outcome = judge_claim(test, frame_of(suite, some), suite)
        assert outcome.finding == status
        assert f"ahead in {8 * kept} of {8 * kept}" in outcome.reason
        assert ("could overturn it" in outcome.reason) == (kept == 1)
        if kept == 1:  # 7 of 8 would show it: 4 times of 5 with this share
            assert outcome.detectable == pytest.approx(0.8956, abs=1e-3)
            assert "could detect a share of 90%" in explain(outcome)
    # Against it is judged the same way.
    turned = {**test, "left": test["right"], "right": test["left"]}
    assert judge_claim(turned, frame_of(suite, runs), suite).finding == "fails"
    some = {key: values for key, values in runs.items() if key[0] == suite.methods[-1]}
    assert judge_claim(turned, frame_of(suite, some), suite).status == "not decided"


def test_pairs_of_settings():
    suite = small(data="cifar10, cifar100", seeds="0")
    test = {
        **BETTER,
        "method": "*",
        "left": {"calibrator": "temperature"},
        "right": {"calibrator": "none"},
        "decide": "mean",
        "pairs": "settings",
    }
    gains = iter([0.011, 0.012, 0.010, 0.013, 0.009, 0.011, 0.012, 0.010])
    runs = {}
    for name in suite.methods:
        runs[name] = lambda spec: 0.05
        runs[name, "temperature"] = lambda spec: 0.05 - next(gains)
    outcome = judge_claim(test, frame_of(suite, runs), suite)
    assert outcome.finding == "holds"
    assert outcome.pairs == 8
    assert format_gain(outcome).endswith("8 settings")


def test_several_calibrators_of_one_network_are_one_setting():
    suite = small(data="cifar10, cifar100", seeds="0")
    after = ["temperature", "isotonic", "histogram"]
    test = {
        **BETTER,
        "method": ["cross_entropy", "acls"],
        "left": {"calibrator": after},
        "right": {"calibrator": "none"},
        "decide": "mean",
        "pairs": "settings",
    }
    # Four networks, of which two gain and two lose by what they are: three copies tell no more.
    gains = {("cross_entropy", "cifar10"): 0.02, ("acls", "cifar10"): 0.018}
    runs = {}
    for name in test["method"]:
        runs[name] = lambda spec: 0.05
        for place, value in enumerate(after):
            runs[name, value] = lambda spec, name=name, place=place: (
                0.05 - gains.get((name, spec.config.data), -0.001) - 1e-4 * place
            )
    outcome = judge_claim(test, frame_of(suite, runs), suite)
    assert outcome.pairs == 4
    assert outcome.status == "not decided"
    assert "mean of 12 comparisons in 4 settings" in outcome.reason
    assert outcome.effect == pytest.approx((0.02 + 0.018 - 0.002) / 4 + 1e-4)


def test_sides_matched_by_position():
    suite = small()
    test = {
        "metric": "ece",
        "left": {"method": ["acls", "mbls"]},
        "right": {"method": ["cross_entropy", "focal"]},
        "zip": True,
    }
    runs = {**AHEAD, "mbls": [0.05, 0.051, 0.049], "focal": [0.07, 0.072, 0.069]}
    outcome = judge_claim(test, frame_of(suite, runs), suite)
    assert [(comparison.left, comparison.right) for comparison in outcome.comparisons] == [
        ("acls", "cross_entropy"),
        ("mbls", "focal"),
    ]
    assert outcome.finding == "holds"


def test_a_name_may_be_matched_with_several():
    suite = small()
    test = {
        "metric": "ece",
        "method": "acls",
        "left": {"calibrator": ["temperature", "temperature", "vector"]},
        "right": {"calibrator": ["vector", "isotonic", "isotonic"]},
        "zip": True,
    }
    runs = {("acls", name): [0.1, 0.2, 0.3] for name in ("temperature", "vector", "isotonic")}
    outcome = judge_claim(test, frame_of(suite, runs), suite)
    assert {
        (comparison.left.split()[-1], comparison.right.split()[-1])
        for comparison in outcome.comparisons
    } == {
        ("temperature", "vector"),
        ("temperature", "isotonic"),
        ("vector", "isotonic"),
    }


def test_shipped_zips_come_to_as_many_comparisons_as_they_name():
    suite = Suite.read(find_suite("class-scaling"))
    zipped = [
        claim for claim in read_claims() if claim.test.zipped and "class-scaling" in claim.suites
    ]
    names = {
        (calibrator, metric)
        for claim in zipped
        for side in (claim.test.left, claim.test.right)
        for calibrator in side.calibrators
        for metric in claim.test.metrics
    }
    frame = frame_of(suite, {("logits", *name): lambda spec: 0.1 for name in names})
    for outcome in judge(zipped, frame, [suite]):
        assert len(outcome.comparisons) == 8 * len(outcome.claim.test.left.calibrators), (
            outcome.claim.id
        )


def test_the_best_is_picked_on_validation_rows_alone():
    suite = small()
    test = {**BETTER, "left": {"method": ["acls", "mbls"], "pick": "best"}}
    runs = {
        "cross_entropy": [0.033, 0.034, 0.032],
        "acls": [0.043, 0.044, 0.0425],
        "mbls": [0.003, 0.004, 0.0025],  # better on test rows, which have no say
        ("acls", "none", "ece", "validation"): [0.01, 0.01, 0.01],
        ("mbls", "none", "ece", "validation"): [0.02, 0.02, 0.02],
    }
    outcome = judge_claim(test, frame_of(suite, runs), suite)
    assert [comparison.left for comparison in outcome.comparisons] == ["acls"]
    assert outcome.finding == "fails"


WORSE = {"cross_entropy": [0.033, 0.034, 0.032], "acls": [0.043, 0.044, 0.0425]}
BEATS = {**WORSE, "acls": [0.013, 0.014, 0.0125]}


@pytest.mark.parametrize(("accuracy", "picked"), [(0.46, "acls"), (0.47, "mbls"), (None, "mbls")])
def test_what_has_not_learned_is_not_the_best(accuracy, picked):
    """A network that guesses may have the lowest ECE of all."""
    test = {**BETTER, "left": {"method": ["acls", "mbls"], "pick": "best"}}
    runs = {
        ("acls", "none", "ece", "validation"): [0.02] * 3,
        ("mbls", "none", "ece", "validation"): [0.001] * 3,
        ("acls", "none", "ece", "test"): [0.02, 0.021, 0.022],
        ("mbls", "none", "ece", "test"): [0.001, 0.0011, 0.0012],
        ("cross_entropy", "none", "ece", "test"): [0.05, 0.051, 0.052],
        ("acls", "none", "accuracy", "validation"): [0.93] * 3,
        ("mbls", "none", "accuracy", "validation"): [accuracy] * 3,
    }
    suite = small()
    assert judge_claim(test, frame_of(suite, runs), suite).comparisons[0].left == picked


PICKS = {"method": ["acls", "mbls"], "pick": "best"}


def chosen_by(runs):
    """The same figures on validation rows, where the best is picked."""
    return runs | {(name, "none", "ece", "validation"): values for name, values in runs.items()}


def test_the_best_may_be_one_without_runs():
    """A side that picks and lost has not lost yet, while it could pick something else."""
    suite = small()
    frame = frame_of(suite, chosen_by(WORSE), seconds=60.0)
    outcome = judge_claim({**BETTER, "left": PICKS}, frame, suite)
    assert outcome.status == "not decided"
    assert "but mbls (cifar10, resnet50) may be better and has no runs" in outcome.reason
    assert outcome.minutes == pytest.approx(3)  # three seeds of mbls, a minute each
    assert "about 3 GPU minutes" in explain(outcome)
    # What wins without one that the suite does not have wins.
    ahead = frame_of(suite, chosen_by(BEATS))
    left = {"method": ["acls", "brier"], "pick": "best"}
    assert judge_claim({**BETTER, "left": left}, ahead, suite).finding == "holds"
    picking = {"method": ["cross_entropy", "brier"], "pick": "best"}
    right = {**BETTER, "left": {"method": ["acls"]}, "right": picking}
    assert judge_claim(right, ahead, suite).status == "not decided"
    assert judge_claim(right, frame, suite).finding == "fails"


def test_a_loss_where_all_could_be_picked_is_final():
    suite = small(data="cifar10, cifar100")

    errors = [0.053, 0.054, 0.0525]
    mbls = {
        "mbls": lambda spec: errors[spec.config.seed] if spec.config.data == "cifar10" else None
    }
    frame = frame_of(suite, chosen_by(WORSE | mbls))
    assert judge_claim({**BETTER, "left": PICKS}, frame, suite).finding == "fails"
    # Their mean is another matter: mbls may be better on the other.
    outcome = judge_claim({**BETTER, "left": PICKS, "decide": "mean"}, frame, suite)
    assert outcome.status == "not decided"
    assert "mbls (cifar100, resnet50)" in outcome.reason


def test_a_suite_without_what_could_be_picked_cannot_decide():
    suite = small()
    left = {"method": ["acls", "brier"], "pick": "best"}
    frame = frame_of(suite, chosen_by(WORSE), seconds=60.0)
    outcome = judge_claim({**BETTER, "left": left}, frame, suite)
    assert (outcome.finding, outcome.elsewhere, outcome.minutes) == ("not decided", True, None)
    assert outcome.reason.endswith("has no runs, and this suite cannot make them")
    assert "GPU" not in explain(outcome)


def test_comparisons_to_come_are_counted_one_by_one():
    """One method that lacks in a cell is in all its comparisons there."""
    suite = small(data="cifar10, cifar100")
    others = ["cross_entropy", "mbls", "focal"]
    metrics = ["ece", "nll", "brier", "mce"]
    test = {"metric": metrics, "left": {"method": "acls"}, "right": {"method": others}}
    runs = {(name, "none", metric): [0.5] * 3 for name in others for metric in metrics}
    for metric in metrics:
        runs["acls", "none", metric] = lambda spec: 0.4 if spec.config.data == "cifar100" else None
    outcome = judge_claim({**test, "decide": "count"}, frame_of(suite, runs, seconds=60.0), suite)
    assert len(outcome.comparisons) == 12
    assert outcome.status == "not decided"
    assert "12 planned comparisons could overturn it" in outcome.reason
    assert (outcome.seeds, outcome.minutes) == (None, pytest.approx(3))


def test_few_seeds_of_a_share_are_told():
    suite = small(data="cifar10, cifar100")
    runs = {}
    for name in suite.methods:
        runs[name, "none"] = [0.5] * 3
        runs[name, "temperature"] = [0.4, 0.4, 0.4] if name == "acls" else [0.4, None, None]
    test = {
        "metric": "ece",
        "method": "*",
        "left": {"calibrator": "temperature"},
        "right": {"calibrator": "none"},
        "decide": "count",
    }
    outcome = judge_claim(test, frame_of(suite, runs), suite)
    assert outcome.finding == "holds"
    assert "ahead in 8 of 8" in outcome.reason
    assert "6 with fewer than 3 seeds" in outcome.reason


def test_parts_and_figures_of_their_own_for_each_side():
    suite = small()
    runs = {
        ("cross_entropy", "none", "ece", "train"): [0.001, 0.0012, 0.0009],
        ("cross_entropy", "none", "ece", "test"): [0.03, 0.031, 0.029],
    }
    test = {
        "metric": "ece",
        "method": "cross_entropy",
        "left": {"part": "train"},
        "right": {"part": "test"},
        "ratio": 0.1,
    }
    outcome = judge_claim(test, frame_of(suite, runs), suite)
    assert outcome.finding == "holds"
    assert "on train" in outcome.comparisons[0].name


def test_fitting_seconds_against_training_seconds():
    suite = small()
    runs = {
        ("cross_entropy", "mac_cal_head", "accuracy"): [0.9, 0.9, 0.9],
        "cross_entropy": [0.1] * 3,
    }
    frame = frame_of(suite, runs, seconds=100.0)
    frame.loc[frame["calibrator"] == "mac_cal_head", "seconds"] = [4.0, 5.0, 4.5]
    test = {
        "method": "cross_entropy",
        "left": {"calibrator": "mac_cal_head", "metric": "seconds"},
        "right": {"metric": "train_seconds", "part": "run"},
        "ratio": 0.1,
    }
    outcome = judge_claim(test, frame, suite)
    assert outcome.finding == "holds"
    assert outcome.effect == pytest.approx(5.5)


def correlated_frame(suite, second, third):
    names = ("none", "temperature", "vector", "isotonic")
    runs = {}
    for number, method in enumerate(suite.methods):
        for place, calibrator in enumerate(names):
            spot = number * len(names) + place
            runs[method, calibrator, "classwise_nll_std"] = [float(spot)] * 3
            runs[method, calibrator, "ece"] = [second(spot)] * 3
            runs[method, calibrator, "nll"] = [third(spot)] * 3
    return frame_of(suite, runs)


def test_correlations():
    suite = small(data="cifar10, cifar100")
    test = {"correlation": ["classwise_nll_std", "ece"], "calibrator": "*"}

    def noisy(spot):
        return spot + 3.0 * (-1) ** spot

    frame = correlated_frame(suite, noisy, lambda spot: float(spot * 7 % 16))
    outcome = judge_claim(test, frame, suite)
    x = [float(spot) for spot in range(16)]
    assert outcome.effect == pytest.approx(
        np.corrcoef(x, [noisy(spot) for spot in range(16)])[0, 1]
    )
    assert outcome.finding == "holds"
    assert outcome.pairs == 8  # networks, of which each gives four points
    assert "32 points of 8 networks in 2 settings" in outcome.reason
    assert judge_claim({**test, "against": "nll"}, frame, suite).finding == "holds"
    frame = correlated_frame(suite, lambda spot: -noisy(spot), noisy)
    assert judge_claim(test, frame, suite).finding == "fails"
    frame = correlated_frame(suite, lambda spot: float(spot * 7 % 16), noisy)
    outcome = judge_claim(test, frame, suite)
    assert outcome.status == "not decided"
    assert 0 < outcome.detectable < 1


def test_points_of_one_network_do_not_count_as_many():
    suite = small()
    test = {"correlation": ["classwise_nll_std", "ece"], "calibrator": "*"}
    level = {"cross_entropy": (0.0, 0.0), "acls": (1.0, 2.0), "mbls": (2.0, 1.0), "focal": (3, 3)}
    runs, points = {}, {}
    for method, (first, second) in level.items():
        for place, calibrator in enumerate(("none", "temperature", "vector", "isotonic")):
            x, y = first + 0.05 * place, second + 0.04 * (-1) ** place
            runs[method, calibrator, "classwise_nll_std"], runs[method, calibrator, "ece"] = (
                [x] * 3,
                [y] * 3,
            )
            points.setdefault(method, []).append((x, y))
    outcome = judge_claim(test, frame_of(suite, runs), suite)
    flat = np.array([point for each in points.values() for point in each])
    z = np.arctanh(np.corrcoef(flat.T)[0, 1])
    assert z > 1.96 / math.sqrt(16 - 3)  # as if 16 networks had been trained
    left = [
        np.arctanh(np.corrcoef(np.array([p for m in level if m != out for p in points[m]]).T)[0, 1])
        for out in level
    ]
    spread = math.sqrt(3 / 4 * sum((z - sum(left) / 4) ** 2 for z in left))
    reach = 3.182446 * spread  # Student's t of 3 degrees of freedom
    assert (outcome.low, outcome.high) == pytest.approx(
        (math.tanh(z - reach), math.tanh(z + reach))
    )
    assert outcome.status == "not decided"


def test_without_figures_the_cheapest_suite_is_named():
    slow = small(name="slow", model="resnet101")
    quick = small(name="quick", model="resnet18")
    timed = frame_of(small(name="other", model="resnet18", seeds="9"), {"acls": [0.1]}, 30.0)
    (outcome,) = judge([make_claim(BETTER, suites=("slow", "quick"))], timed, [slow, quick])
    assert outcome.suite == "quick"
    assert outcome.status == "not decided"
    assert outcome.minutes == pytest.approx(6 * 30 / 60)
    assert "no figures yet; spread unknown without runs; about 3 GPU minutes" in explain(outcome)


def test_the_same_runs_in_two_suites_are_told_once():
    first, second = small(name="first"), small(name="second", data="cifar10, cifar100")
    frame = frame_of(second, AHEAD)
    both = judge([make_claim(BETTER, suites=("second", "first"))], frame, [first, second])
    assert [outcome.suite for outcome in both] == ["second"]
    both = judge([make_claim(BETTER, suites=("first", "second"))], frame, [first, second])
    assert [outcome.suite for outcome in both] == ["first", "second"]


def test_a_suite_with_some_of_the_seeds_of_another_has_no_outcome_of_its_own():
    three, more = small(name="three"), small(name="more", seeds="0, 1, 2, 3, 4")
    frame = frame_of(more, {name: [*values, *values[:2]] for name, values in AHEAD.items()})
    both = judge([make_claim(BETTER, suites=("more", "three"))], frame, [three, more])
    assert [(outcome.suite, outcome.pairs) for outcome in both] == [("more", 5)]


def test_suites_of_one_protocol_are_judged_as_one():
    whole = small()
    pieces = [
        dataclasses.replace(
            whole, name=name, specs=tuple(spec for spec in whole.specs if spec[0] == method)
        )
        for name, method in (("a", "acls"), ("b", "cross_entropy"))
    ]
    (outcome,) = judge([make_claim(BETTER, suites=("a+b",))], frame_of(whole, AHEAD), pieces)
    assert outcome.suite == "a+b"
    assert outcome.finding == "holds"


def test_two_runs_of_one_method_and_seed_are_not_averaged():
    other = small(name="b", more="where: [{if: {method: acls}, set: {loss: acls(margin=9)}}]")
    suite = small(name="a")
    with pytest.raises(InputError, match="two runs of acls"):
        judge([make_claim(BETTER, suites=("a+b",))], frame_of(suite, AHEAD), [suite, other])


def test_a_suite_that_lacks_one_side_says_so():
    suite = small()
    test = {**BETTER, "right": {"method": "crl"}}
    outcome = judge_claim(test, frame_of(suite, AHEAD), suite)
    assert outcome.status == "not decided"
    assert outcome.reason == "small does not have crl"
    assert outcome.minutes is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "eec"}, "no metric is called 'eec'"),
        ({"metrik": "ece"}, "no key in a claim is called 'metrik'"),
        ({"decide": "evry"}, "no way to decide is called 'evry'"),
        ({"left": {"methods": "acls"}}, "no key in a claim is called 'methods'"),
        ({"method": "acls"}, "not both"),
        ({"metric": "mean_entropy"}, "has no direction"),
        ({"zip": True, "right": {"method": ["mbls", "focal"]}}, "as many"),
    ],
)
def test_words_nobody_knows_are_errors(change, message):
    with pytest.raises(InputError, match=message):
        make_claim({**BETTER, **change})


def test_no_paper_and_no_suite_of_that_name():
    with pytest.raises(InputError, match="no paper is called 'alcs'"):
        make_claim(BETTER, paper="alcs")


def test_writers_agree():
    suite = small()
    outcomes = judge([make_claim(BETTER)], frame_of(suite, AHEAD), [suite])
    counts = "0 reproduced, 0 not reproduced, 1 seen here, 0 not seen here, 0 not decided"
    assert summarise(outcomes) == f"{counts}, of 1 claims"
    text = format_markdown(outcomes)
    assert "| **it**: Left is better. (Table 3) | small | **seen here** |" in text
    assert "| 10 epochs in place of 350 |" in text
    assert text.index("The gain is how much better") < text.index("| claim |")
    assert "ECE +2.00% (" in text
    assert '<tr class="seen-here">' in format_html(outcomes)
    assert "<td>10 epochs in place of 350</td>" in format_html(outcomes)
    assert to_values(outcomes)["counts"]["seen here"] == 1
    (plain,) = to_values(outcomes)["outcomes"]
    assert plain["status"] == "seen here"
    assert plain["for"] == 1


# ------------------------------------------------------------ the shipped claims


def read_methods(names):
    """Methods by suite, as the files name them; "logits" for suites of files."""
    methods = {}
    for name in names:
        entry = yaml.safe_load((SUITES / f"{name}.yaml").read_text(encoding="utf-8"))
        methods[name] = set(entry.get("methods") or {"logits": {}})
    return methods


def test_every_paper_has_claims():
    claims = read_claims()
    assert {claim.paper for claim in claims} == set(PAPERS)
    assert all(sum(claim.paper == paper for claim in claims) >= 10 for paper in PAPERS)
    assert all(claim.says.endswith(".") for claim in claims)


@pytest.mark.parametrize("claim", read_claims(), ids=lambda claim: claim.id)
def test_every_claim_can_be_tested_in_each_of_its_suites(claim):
    for name in claim.suites:
        available = read_methods(name.split("+"))
        methods = set().union(*available.values())
        for side in (claim.test.left, claim.test.right):
            wanted = side.methods or claim.test.methods
            assert wanted == ("*",) or methods & set(wanted), (claim.id, name, wanted)


@pytest.mark.parametrize("name", ["quick-cifar", "class-scaling"])
def test_shipped_claims_are_judged_whatever_the_figures(name):
    suite = Suite.read(find_suite(name))
    generator = np.random.default_rng(0)
    calibrators = ("none", "temperature", "temperature(objective=class_scaled)", "mac_cal_head")
    wanted = ("accuracy", "ece", "ece(binning=mass,order=2)", "classwise_nll_std", "nll", "aurc")
    runs = {
        (method, calibrator, metric): lambda spec: float(generator.uniform(0.01, 0.1))
        for method in suite.methods
        for calibrator in calibrators
        for metric in wanted
    }
    frame = frame_of(suite, runs, seconds=31.0)
    claims = [claim for claim in read_claims() if name in claim.suites]
    outcomes = judge(claims, frame, [suite])
    assert {outcome.claim.id for outcome in outcomes} == {claim.id for claim in claims}
    assert {outcome.finding for outcome in outcomes} <= {"holds", "fails", "not decided"}
    assert not {outcome.status for outcome in outcomes} & {"reproduced", "not reproduced"}
    begun = [outcome for outcome in outcomes if outcome.begun]
    assert len(begun) > 3
    for outcome in outcomes:
        assert explain(outcome)
        if (
            outcome.finding == "not decided"
            and outcome.begun
            and outcome.claim.test.decide != "count"
        ):
            assert outcome.detectable is not None
    assert isinstance(pd.DataFrame(to_values(outcomes)["outcomes"]), pd.DataFrame)


def test_the_spread_of_seeds_is_that_of_one_setting_on_any_machine():
    suite = small()
    values = [0.030, 0.034, 0.032]
    frame = frame_of(suite, {"acls": values, "cross_entropy": values, "mbls": [0.1, 0.2, 0.3]})
    # One of the seeds was trained compiled, and on another machine.
    config = frame["config"].map(json.loads)
    first = frame["seed"] == 0
    frame.loc[first, "config"] = [
        json.dumps({**text, "compile": True, "device": "cuda"}) for text in config[first]
    ]
    spreads = estimate_spreads(frame)["ece"]
    # Two of three settings spread so; the median of a variance of three is ln 2 of it.
    assert spreads == {"cifar10": pytest.approx(np.std(values, ddof=1) / math.sqrt(math.log(2)))}


def test_an_open_claim_without_runs_says_what_a_test_would_show():
    suite = small(seeds="0")  # too few to test: three are needed
    others = small()
    values = [0.030, 0.034, 0.032]
    frame = frame_of(others, {"cross_entropy": values})
    test = {"metric": "ece", "left": {"method": "acls"}, "right": {"method": "mbls"}}
    outcome = judge_claim(test, frame, suite)
    assert (outcome.finding, outcome.expected) == ("not decided", 3)
    spread = estimate_spreads(frame)["ece"]["cifar10"]
    assert outcome.detectable == pytest.approx(
        power_analysis.compute_detectable(spread * math.sqrt(2), 3)
    )
    assert "3 seeds would detect" in explain(outcome)
    counted = judge_claim({**test, "decide": "count"}, frame, suite)
    assert counted.detectable is None
    assert "too few comparisons to test a share" in explain(counted)


def test_a_share_without_runs_is_that_of_the_comparisons_planned():
    suite = small(data="cifar10, cifar100")
    test = {"metric": "ece", "left": {"method": "acls"}, "decide": "count"}
    test["right"] = {"method": ["cross_entropy", "mbls", "focal"]}
    outcome = judge_claim(test, frame_of(suite, {}), suite)
    assert outcome.detectable == pytest.approx(power_analysis.compute_detectable_share(6))
    assert "no figures yet; 3 seeds would detect a share of 96%" in explain(outcome)


def test_a_spread_that_no_run_tells_is_said_so():
    suite = small()
    test = {**BETTER, "metric": "train_seconds", "part": "run", "better": "lower"}
    outcome = judge_claim(test, frame_of(suite, {"mbls": [0.1, 0.2, 0.3]}, seconds=None), suite)
    assert (outcome.detectable, outcome.expected) == (None, None)
    assert "no figures yet; spread unknown without runs; GPU minutes unknown" in explain(outcome)


def test_minutes_by_the_work_of_other_networks_say_so():
    other = small(name="other", model="resnet18", seeds="9")
    suite = small(model="resnet101")
    outcome = judge_claim(BETTER, frame_of(other, {"acls": [0.1]}, 30.0), suite)
    # A ResNet-101 has 4.5 times the multiply-adds; six runs of half a minute times that.
    assert outcome.minutes == pytest.approx(3 * 4.519, rel=1e-3)
    assert explain(outcome).endswith("; about 14 GPU minutes, estimated from other runs")
    assert to_values([outcome])["outcomes"][0]["gpu_minutes_estimated"]


PER_SETTING = {
    "metric": "ece",
    "method": "cross_entropy",
    "left": {"calibrator": ["temperature", "vector"]},
    "right": {"calibrator": "none"},
    "decide": "mean",
    "pairs": "settings",
}


def of_settings(suite, gains):
    """Figures of a suite's methods on two data sets; the mean of two calibrators gains so."""
    runs = {}
    for name in suite.methods:
        by_data = gains[name]
        runs[name] = lambda spec: 0.05
        for calibrator, more in (("temperature", 0.001), ("vector", -0.001)):
            runs[name, calibrator] = lambda spec, by_data=by_data, more=more: (
                0.05 - more - by_data[spec.config.data == "cifar100"]
            )
    return runs


def test_the_spread_over_settings_is_that_of_another_suite():
    suite = small(name="bare", data="cifar10, cifar100", model="resnet18", seeds="0")
    other = small(name="other", data="cifar10, cifar100", seeds="0")
    gains = {
        "cross_entropy": (0.01, 0.03),
        "acls": (0.02, 0.05),
        "mbls": (0.0, 0.01),
        "focal": (0.02, 0.04),
    }
    runs = of_settings(other, gains)
    # Settings with one of the two calibrators are no such settings, though there are more.
    lone = small(name="lone", data="cifar10, cifar100, digits", model="resnet34")
    alone = {
        (name, calibrator): [0.1, 0.2, 0.9]
        for name in lone.methods
        for calibrator in ("none", "vector")
    }
    frame = pd.concat([frame_of(other, runs, 60.0), frame_of(lone, alone)], ignore_index=True)
    claims = [
        make_claim(PER_SETTING, suites=("bare",)),
        *(make_claim(BETTER, suites=(name,), id=name) for name in ("other", "lone")),
    ]
    outcome, *_ = judge(claims, frame, [suite, other, lone])
    spread = np.std([outcome for pair in gains.values() for outcome in pair], ddof=1)
    # Two settings are planned, of one seed each, and a test wants three.
    assert (outcome.expected, outcome.seeds) == (3, 3)
    assert outcome.detectable == pytest.approx(power_analysis.compute_detectable(spread, 3))
    share = outcome.minutes / 3
    assert share == pytest.approx(555.4 / 1297.8, rel=1e-3)  # multiply-adds of the two networks
    assert "3 settings would detect" in explain(outcome)
    assert "at least 3 settings are needed" in explain(outcome)
    wide = make_claim({**PER_SETTING, "method": "*"}, suites=("bare",))
    outcome, *_ = judge([wide, *claims[1:]], frame, [suite, other, lone])
    assert (outcome.expected, outcome.seeds) == (8, None)
    assert outcome.detectable == pytest.approx(power_analysis.compute_detectable(spread, 8))
    assert outcome.minutes == pytest.approx(8 * share)


def test_seeds_are_the_pairs_where_settings_are_too_few():
    suite = small(data="cifar10, cifar100")
    runs = {
        "cross_entropy": [0.050, 0.052, 0.048],
        ("cross_entropy", "temperature"): [0.030, 0.033, 0.027],
        ("cross_entropy", "vector"): [0.031, 0.032, 0.029],
    }
    outcome = judge_claim(PER_SETTING, frame_of(suite, runs), suite)
    assert (outcome.finding, outcome.pairs) == ("holds", 3)
    assert format_gain(outcome).endswith("3 seeds")
    assert "mean of 4 comparisons, over seeds because there are too few settings" in explain(
        outcome
    )
    assert outcome.effect == pytest.approx(np.mean([0.0195, 0.0195, 0.02]))
    every = {**PER_SETTING, "method": "*"}  # eight settings are enough
    assert judge_claim(every, frame_of(suite, runs), suite).pairs == 2
    one_seed = small(data="cifar10, cifar100", seeds="0")
    alone = {name: values[:1] for name, values in runs.items()}
    assert judge_claim(PER_SETTING, frame_of(one_seed, alone), one_seed).pairs == 2


def test_settings_that_no_suite_has_tell_no_spread():
    suite = small(data="cifar10, cifar100", seeds="0")
    outcome = judge_claim(PER_SETTING, frame_of(suite, {}), suite)
    assert (outcome.detectable, outcome.expected) == (None, None)
    assert "spread unknown without runs" in explain(outcome)


EFFECT = re.compile(r"could detect|(seeds|settings) would detect|spread unknown without runs")
MINUTES = re.compile(r"(about|more than) [\d,]+ GPU minutes?\b|no GPU needed")


@pytest.mark.slow
@pytest.mark.skipif(not (RESULTS / "store").is_dir(), reason="no published store")
def test_every_published_claim_left_open_tells_its_effect_and_its_minutes():
    claims, outcomes = read_claims(), StoredResults().outcomes
    assert {outcome.claim.id for outcome in outcomes} == {claim.id for claim in claims}
    left = {
        outcome.claim.id: explain(outcome)
        for outcome in outcomes
        if outcome.finding == "not decided" and not outcome.conditions.disqualified
    }
    assert [name for name, text in left.items() if not EFFECT.search(text)] == []
    assert [name for name, text in left.items() if not MINUTES.search(text)] == []
