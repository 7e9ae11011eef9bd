"""Every suite of the papers can be made: runs, losses, recipes, networks, calibrators, steps."""

from __future__ import annotations

import json
import warnings
from functools import lru_cache

import pytest
import yaml

from calibrant import losses, models
from calibrant.bench import Suite, available
from calibrant.bench.calibrator_text import list_preserving, make
from calibrant.bench.measure.measurement import DENSE, USUAL
from calibrant.bench.measure.steps import check_after, needs_network
from calibrant.bench.select.tune import Tuning
from calibrant.bench.tables.formatting import canonical_name, check_metric
from calibrant.bench.tables.tabulate import OF_TWO_SETS
from calibrant.core.errors import InputError
from calibrant.training import recipes
from replication.published import find_published
from replication.stored import SUITES

NAMES = sorted(path.stem for path in SUITES.glob("*.yaml"))
# Issue and methods: one a paper, the usual questions, and the sweeps of section 5.
ASKED = [
    "quick-cifar",
    "quick-meta-acc",
    "quick-papers",
    "quick-seeds",
    "r-aurc-paper",
    "r-aurc",
    "soft-calibration",
    "acls",
    "mac-cal",
    "class-scaling",
    "shift",
    "long-tail",
    "ood",
    "segmentation",
    "r-aurc-grid",
    "r-aurc-sweeps",
    "acls-grid",
    "acls-ablation",
    "mac-cal-gamma",
    "mac-cal-sweeps",
    "mac-cal-ablation",
    "mac-cal-heads",
    "hard-classes",
    "quick-tune",
    "combinations",
    "pooled",
    "pooled-seven",
    "headline",
    "class-scaling-long-tail",
    "class-scaling-other",
    "class-scaling-authors",
    "secondary-pilot",
    "quick-tiny",
    "quick-mac-cal",
    "headline-cifar10",
    "r-aurc-gamma",
    "r-aurc-tiny-imagenet",
    "acls-tiny-imagenet",
    "acls-imagenet",
    "acls-voc",
    "mac-cal-tiny-imagenet",
    "soft-calibration-imagenet",
    "class-scaling-table-1",
    "r-aurc-epochs",
    "r-aurc-ablation",
    "acls-shares",
    "acls-tiny-grid",
    "mac-cal-pictures",
    "shift-soft",
]
QUICK = [
    "quick-cifar",
    "shift",
    "ood",
    "quick-tune",
    "combinations",
    "pooled",
    "r-aurc-grid",
    "r-aurc-sweeps",
    "acls-grid",
    "acls-ablation",
    "mac-cal-gamma",
    "mac-cal-sweeps",
    "mac-cal-ablation",
    "acls-shares",
    "mac-cal-pictures",
    "shift-soft",
]


@lru_cache
def read_suite(name: str) -> Suite:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a sweep goes where a loss warns
        return Suite.read(SUITES / f"{name}.yaml")


def read_yaml(name: str) -> dict:
    return yaml.safe_load((SUITES / f"{name}.yaml").read_text())


def test_every_suite_that_was_asked_for_is_there():
    assert set(ASKED) == set(NAMES) == set(available(SUITES))


@pytest.mark.parametrize("name", NAMES)
def test_a_suite_can_be_made(name):
    """Without training: settings, names and options are all ones there are."""
    made = read_suite(name)
    assert made.name == name
    assert 30 < len(made.about) < 160
    assert made.specs
    seen = set()
    for _, spec in made.specs:
        config = spec.config
        asked = (config.loss, config.recipe, str(config.recipe_options), config.model)
        if spec.logits is None and asked not in seen:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                losses.get(config.loss, num_samples=10)
            recipes.get(config.recipe, **config.recipe_options)
            assert config.model in models.available()
        if asked not in seen:
            for text in spec.calibrators:
                make(text)
            for step, options in spec.after:
                check_after(step, json.loads(options))
                assert spec.logits is None or not needs_network(step)
        seen.add(asked)
    for metric in made.metrics:
        check_metric(metric)
    if made.tune:
        assert Tuning.of(made.tune).settings


@pytest.mark.parametrize("name", NAMES)
def test_every_source_has_figures_beside_ours(name):
    """A name that is not the paper's, or a metric nobody measures, would leave a column empty."""
    made = read_suite(name)
    measured = {
        canonical_name(metric) for metric in (*USUAL, *DENSE, *OF_TWO_SETS, "train_seconds")
    }
    for source in made.published:
        figures = set()
        for method, spec in made.specs[: len(made.specs) // len(made.found["seeds"])]:
            config, more = spec.config, [json.loads(text) for _, text in spec.after]
            extra = {canonical_name(name) for options in more for name in options.get("names", ())}
            for metric in map(canonical_name, made.metrics):
                assert metric in measured | extra, metric
                where = {"method": method, "metric": metric, "long_tail": config.long_tail}
                where |= {"data": config.data, "model": config.model}
                for after in ("none", *spec.calibrators, *(step for step, _ in spec.after)):
                    for part in ("test", "ood:*"):
                        figures.add(
                            source.figure(**where, calibrator=canonical_name(after), part=part)
                        )
        assert figures - {None}, source


def test_what_replicates_a_paper_has_its_figures_beside_it():
    papers = ("r-aurc", "soft-calibration", "acls", "mac-cal", "class-scaling")
    for name in papers:
        assert {source.paper for source in read_suite(name).published} == {name}
    assert {source.paper for source in read_suite("quick-cifar").published} == set(papers[:4])
    assert {source.paper for source in read_suite("headline").published} == set(papers[:4])


@pytest.mark.parametrize("name", NAMES)
def test_no_two_methods_are_the_same_run(name):
    """A slip of the pen, as `where` not reaching its method, would make them so."""
    made = read_suite(name)
    assert len({(spec.key, spec.logits) for _, spec in made.specs}) == len(made.specs)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_line_of_where_reaches_a_run(name):
    entry = read_yaml(name)
    whole = {spec.key: spec for _, spec in read_suite(name).specs}
    for place in range(len(entry.get("where") or ())):
        less = {**entry, "where": [row for k, row in enumerate(entry["where"]) if k != place]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                other = {spec.key: spec for _, spec in Suite.parse(yaml.safe_dump(less)).specs}
            except InputError:
                continue  # without it there is no such suite
        assert other != whole, entry["where"][place]


@pytest.mark.parametrize("name", QUICK)
def test_quick_suites_share_one_protocol(name):
    """So that a run of one is a run of the other, and their figures can be compared."""
    mine, first = read_yaml(name)["defaults"], read_yaml("quick-cifar")["defaults"]
    differs = {key for key in mine.keys() | first.keys() if mine.get(key) != first.get(key)}
    assert differs <= ({"evaluate_every"} if name == "r-aurc-sweeps" else set())


def test_shift_and_ood_are_runs_of_quick_cifar_that_leave_nothing_of_it_to_do():
    quick = {spec.key: spec for _, spec in read_suite("quick-cifar").specs}
    shift = {spec.key: spec for _, spec in read_suite("shift").specs}
    for name in ("shift", "ood"):
        for _, spec in read_suite(name).specs:
            assert spec.wanted >= quick[spec.key].wanted
    for _, spec in read_suite("ood").specs:
        assert shift[spec.key].wanted >= spec.wanted


def test_quick_cifar_is_what_the_first_table_needs():
    made = read_suite("quick-cifar")
    text = " ".join(spec.config.loss for _, spec in made.specs)
    used = {spec.config.recipe for _, spec in made.specs}
    for loss in losses.available():
        assert loss in text or loss == "mmce_weighted", loss
    assert used >= {
        "interleaved",
        "mixup",
        "mit",
        "tst",
        "vtst",
        "plp",
        "balcal",
        "cape",
        "mac_cal",
    }
    for csf in ("msp", "margin", "neg_entropy"):
        assert f"csf='{csf}'" in text
    for secondary in ("avuc", "avuc_gs", "s_avuc", "sb_ece"):
        assert {secondary, f"focal+{secondary}"} <= set(made.methods)
    assert {spec.config.seed for _, spec in made.specs} == {0, 1, 2}
    assert {spec.config.data for _, spec in made.specs} == {"cifar10", "cifar100"}
    for _, spec in made.specs:
        assert set(spec.calibrators) >= set(list_preserving())
        assert "mac_cal_head" in dict(spec.after)
        assert spec.config.epochs == 30
    assert 200 <= len(made.runs) <= 240


@pytest.mark.parametrize(
    ("data", "method", "loss"),
    [
        ("cifar10", "acls", "acls(margin=6)"),
        ("cifar100", "acls", "acls(margin=10)"),
        ("cifar100", "mbls", "mbls(margin=10)"),
        ("cifar10", "inverse_focal", "inverse_focal(gamma=2)"),
        ("cifar100", "inverse_focal", "inverse_focal(gamma=1)"),
        ("cifar10", "r_aurc_entropy", "r_aurc(csf='neg_entropy', lam=0.5, strength=0.05)"),
        ("cifar100", "r_aurc_msp", "r_aurc(csf='msp', lam=0.5, strength=0.01)"),
        ("cifar100", "kde_ece", "0.5*kde_ece(bandwidth=0.05)"),
    ],
)
def test_options_are_the_papers_for_the_data(data, method, loss):
    for name, spec in read_suite("quick-cifar").specs:
        if (name, spec.config.data) == (method, data):
            assert spec.config.loss == loss


def test_the_gammas_of_r_aurc_are_those_of_its_table_4():
    gammas = {
        (figure.data, figure.model, figure.method): figure.value
        for figure in find_published(paper="r-aurc", table="Table 4")
        if figure.value is not None
    }
    checked = 0
    for method, spec in read_suite("r-aurc").specs:
        if method in ("dual_focal", "inverse_focal"):
            gamma = losses.get(spec.config.loss).gamma
            assert gamma == gammas[spec.config.data, spec.config.model, method]
            checked += 1
    assert checked == 2 * 4 * 2 * 5


def test_rates_and_decays_of_the_long_tail_are_those_of_table_4():
    names = {"learning_rate": "lr", "weight_decay": "weight_decay", "epochs": "epochs"}
    for figure in find_published(paper="class-scaling", table="Table 4"):
        if figure.metric in names:
            model = "wrn_28_10" if figure.model == "wrn_28" else figure.model
            mine = [
                spec.config
                for _, spec in read_suite("class-scaling-long-tail").specs
                if (spec.config.data, spec.config.model) == (figure.data, model)
            ]
            assert mine, (figure.data, figure.model)
            assert all(getattr(config, names[figure.metric]) == figure.value for config in mine)


def test_the_grids_are_those_of_the_tables():
    for name, table, paper in (
        ("r-aurc-grid", "Table 9", "r-aurc"),
        ("acls-grid", "Table A", "acls"),
    ):
        assert {figure.method for figure in find_published(paper=paper, table=table)} <= set(
            read_suite(name).methods
        )
