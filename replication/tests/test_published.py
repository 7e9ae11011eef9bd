"""The papers' figures as they are shipped, under our names and in our units."""

from __future__ import annotations

import csv
from collections import Counter

import pytest
import yaml

from calibrant.bench import canonical_name
from calibrant.calibrators.registry import CALIBRATORS
from calibrant.metrics.registry import METRICS
from replication.published import (
    FILE,
    convert_method,
    find_published,
    load_published,
    make_published,
)
from replication.stored import SUITES

# Of the papers' tables, not of ours: settings, and lines of differences.
NOT_OURS = {
    "accuracy_change_vs_base",
    "ece_change_vs_base",
    "ece_ratio_test_over_train",
    "batch_size",
    "epochs",
    "gamma",
    "learning_rate",
    "weight_decay",
}


def test_no_uncertain_row_is_shipped():
    shipped = load_published()
    assert len(shipped) == 3544
    assert not [row for row in shipped if row.notes.startswith("uncertain:")]


def test_rows_by_paper():
    assert Counter(figure.paper for figure in load_published()) == {
        "r-aurc": 1056,
        "soft-calibration": 300,
        "acls": 323,
        "mac-cal": 389,
        "class-scaling": 1476,
    }


def test_the_file_is_made_from_the_papers_tables(data_folder, tmp_path):
    source = data_folder.parent / "papers" / "published.csv"
    if not source.is_file():
        pytest.skip("no papers here")
    count = make_published(source, tmp_path / "published.csv")
    assert (tmp_path / "published.csv").read_bytes() == FILE.read_bytes()
    with open(source, encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) - count == 48


# Read off the papers by hand.
@pytest.mark.parametrize(
    ("where", "options", "value", "error"),
    [
        (
            ("r-aurc", "Table 1", "cifar10", "resnet50", "cross_entropy", "accuracy"),
            {},
            0.9475,
            None,
        ),
        (
            (
                "r-aurc",
                "Table 1",
                "cifar100",
                "wrn_28_10",
                "r_aurc_entropy",
                "classwise_ece(binning=mass)",
            ),
            {},
            0.00094,
            None,
        ),
        (
            ("r-aurc", "Table 5", "cifar10", "resnet110", "r_aurc_margin", "ece"),
            {"calibrator": "temperature(objective=ece, on=train)"},
            0.0187,
            None,
        ),
        (
            (
                "soft-calibration",
                "Table 2",
                "cifar100",
                "wrn_28_10",
                "focal+s_avuc",
                "ece(binning=mass,order=2)",
            ),
            {},
            0.0157,
            0.00122,
        ),
        (
            (
                "soft-calibration",
                "Table 2",
                "cifar10",
                "wrn_28_10",
                "cross_entropy",
                "adaptive_ece(order=2)",
            ),
            {"calibrator": "temperature(objective=sb_ece)"},
            0.0116,
            0.00106,
        ),
        (
            (
                "soft-calibration",
                "Table 2",
                "cifar100",
                "wrn_28_10",
                "interleaved_s_avuc",
                "adaptive_ece(order=2)",
            ),
            {},
            0.0610,
            0.00095,
        ),
        (
            ("soft-calibration", "Table 3", "cifar10", "wrn_28_10", "cross_entropy", "ece"),
            {"part": "train"},
            0.0005,
            None,
        ),
        (
            ("class-scaling", "Table 1", "cifar10", "densenet40", "logits", "ece"),
            {"calibrator": "temperature(objective=label_smoothing)"},
            0.0044,
            None,
        ),
        (
            ("class-scaling", "Table 2", "cifar100", "wrn_28_10", "cross_entropy", "ece"),
            {"calibrator": "temperature", "long_tail": 0.1},
            0.0962,
            None,
        ),
        (("mac-cal", "Table 1", "cifar100", "resnet110", "mac_cal", "ece"), {}, 0.0144, None),
        (
            ("mac-cal", "Table 3", "cifar10", "average", "acls", "ece"),
            {"calibrator": "mac_cal_head"},
            0.0144,
            None,
        ),
        (("mac-cal", "Table 4", "cifar10", "resnet50", "mit", "train_seconds"), {}, 25172.0, None),
        (
            ("mac-cal", "Table 5", "cifar100", "resnet59", "cross_entropy", "ece"),
            {"calibrator": "mac_cal_head(head=linear, schedule=fixed)"},
            0.0294,
            None,
        ),
        (
            ("mac-cal", "Table 2", "cifar10", "unspecified", "mac_cal", "ood_auroc"),
            {"part": "ood:*"},
            0.8891,
            None,
        ),
    ],
)
def test_figures_in_our_units(where, options, value, error):
    names = ("paper", "table", "data", "model", "method", "metric")
    asked = {"calibrator": "none", "part": "test", "long_tail": None, "variant": ""}
    asked |= dict(zip(names, where, strict=True)) | options
    asked |= {name: canonical_name(asked[name]) for name in ("metric", "calibrator")}
    (figure,) = find_published(**asked)
    assert figure.value == value
    assert figure.error == error


def test_no_description_fits_two_figures():
    fields = ("paper", "table", "data", "long_tail", "model", "method", "calibrator", "part")
    counts = Counter(
        tuple(getattr(figure, name) for name in (*fields, "metric", "variant"))
        for figure in load_published()
    )
    assert not [key for key, count in counts.items() if count > 1]


def test_a_dash_is_no_number():
    where = {"paper": "r-aurc", "table": "Table 4", "data": "tiny-imagenet"}
    (dash,) = find_published(**where, model="wrn_28_10", method="dual_focal")
    (given,) = find_published(**where, model="resnet50", method="dual_focal")
    assert dash.value is None
    assert given.value == 2.3


def test_every_metric_is_one_of_ours_or_known_not_to_be():
    for name in {figure.metric for figure in load_published()} - NOT_OURS:
        bare = canonical_name(name).partition("(")[0]
        assert bare in METRICS or bare in ("train_seconds",) or ":" in bare, name


def test_every_calibrator_is_one_of_ours():
    names = {figure.calibrator.partition("(")[0] for figure in load_published()} - {
        "none",
        "average",
    }
    assert names <= set(CALIBRATORS)


def test_shares_are_shares():
    percent = [
        figure
        for figure in load_published()
        if figure.metric in ("accuracy", "ece", "adaptive_ece", "miou")
    ]
    assert len(percent) > 1000
    assert all(figure.value is None or 0 <= figure.value <= 1 for figure in percent)


def test_method_names():
    assert convert_method("ce+s_avuc") == "s_avuc"
    assert convert_method("kde_xe") == "kde_ece"
    assert convert_method("focal+none") == "focal"


@pytest.mark.parametrize("name", ["r-aurc", "soft-calibration", "acls", "mac-cal"])
def test_suites_of_the_papers_call_methods_by_the_same_names(name):
    suite = yaml.safe_load((SUITES / f"{name}.yaml").read_text(encoding="utf-8"))
    known = {figure.method for figure in find_published(paper=name)}
    assert set(suite["methods"]) <= known


def test_long_tailed_data_is_the_data_and_a_setting():
    figures = find_published(paper="class-scaling", table="Table 2", data="cifar10")
    assert figures
    assert {figure.long_tail for figure in figures} == {0.1}
