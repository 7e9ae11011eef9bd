"""Every decided verdict, computed again from the store with a few lines of pandas."""

from __future__ import annotations

import fnmatch
import json
from functools import lru_cache

import pandas as pd
import pytest
import yaml
from scipy import stats

from calibrant.bench import canonical_name
from calibrant.bench.suite.former import store_calibrator
from calibrant.bench.tables.formatting import higher_is_better
from replication.claims.claim import FILE
from replication.stored import RESULTS, StoredResults

pytestmark = pytest.mark.slow  # claims are judged by `make test-all`

OUTCOMES = json.loads((RESULTS / "claims.json").read_text(encoding="utf-8"))["outcomes"]
CLAIMS = {claim["id"]: claim for claim in yaml.safe_load(FILE.read_text(encoding="utf-8"))}
DECIDED = [
    outcome
    for outcome in OUTCOMES
    if outcome["status"] != "not decided" and "correlation" not in CLAIMS[outcome["id"]]["test"]
]
# Claims about the best of several methods are computed again whether they are decided or not.
PICKED = [
    outcome
    for outcome in OUTCOMES
    if "best" in str(CLAIMS[outcome["id"]]["test"]) and outcome["effect"] is not None
]
SETTINGS = ["data", "model", "long_tail"]


@lru_cache
def read_store():
    parts = [pd.read_parquet(path) for path in sorted((RESULTS / "store").glob("*.parquet"))]
    columns = ["key", "part", "calibrator", "metric", "value", "written"]
    frame = pd.concat([part[columns] for part in parts], ignore_index=True)
    frame = frame.astype({name: str for name in columns if name != "value"})
    names = {name: canonical_name(name) for name in frame["calibrator"].unique()}
    names |= {name: canonical_name(name) for name in frame["metric"].unique()}
    frame = frame.replace({"calibrator": names, "metric": names})
    return frame.sort_values("written").drop_duplicates(columns[:4], keep="last")


@lru_cache
def read_suites(names):
    """Read the store's rows of joined suites, with the method, seed and settings of each run."""
    results = StoredResults()
    specs = [spec for name in names.split("+") for spec in results.read_suite(name).specs]
    plan = pd.DataFrame(
        {
            "key": spec.key,
            "method": method,
            "seed": spec.config.seed,
            **{name: str(getattr(spec.config, name)) for name in SETTINGS},
        }
        for method, spec in specs
    ).drop_duplicates()
    return read_store().merge(plan, on="key")


def as_list(value):
    return value if isinstance(value, list) else [value]


def list_entries(rows, side, metric, asked):
    """List (method, calibrator, figures by setting and seed) of a side.

    A calibrator may be stored by two spellings; the suite's own is preferred.
    """
    part, method = side["part"], side["method"]
    ours = rows[(rows["metric"] == metric) & rows["part"].map(lambda p: fnmatch.fnmatch(p, part))]
    for name in dict.fromkeys(as_list(method)) if method != "*" else rows["method"].unique():
        for text in dict.fromkeys(as_list(side["calibrator"])):
            stored = {canonical_name(text), canonical_name(store_calibrator(text))}
            stored = stored & asked or stored
            found = [
                own
                for spelling in stored
                if len(own := ours[(ours["method"] == name) & (ours["calibrator"] == spelling)])
            ]
            if found:
                yield name, text, found[0].groupby([*SETTINGS, "seed"])["value"].mean()


def pick_best(entries, side, rows, metric, asked, *, lower):
    """Keep in each setting the entry with the best mean over seeds on validation rows.

    Methods whose network has less than half of the others' accuracy there are left out.
    """
    held_out = [*list_entries(rows, {**side, "part": "validation"}, metric, asked)]
    chosen_by = {entry[:2]: entry[2].groupby(level=SETTINGS).mean() for entry in held_out}
    seen = rows[(rows["part"] == "validation") & (rows["calibrator"] == "none")]
    right = seen[seen["metric"] == "accuracy"].groupby([*SETTINGS, "method"])["value"].mean()
    kept = {}
    for setting in sorted({place[:-1] for entry in entries for place in entry[2].index}):
        here = [
            entry for entry in entries if setting in entry[2].groupby(level=SETTINGS).size().index
        ]
        accuracy = {name: right[(*setting, name)] for name, *_ in here}
        learned = [e for e in here if accuracy[e[0]] >= 0.5 * max(accuracy.values())]
        figures = [(1 if lower else -1) * chosen_by[e[:2]][setting] for e in learned]
        name, text, series = learned[figures.index(min(figures))]
        kept[setting] = (name, text, series.loc[[p for p in series.index if p[:-1] == setting]])
    return [*kept.values()]


def compare(outcome):
    """Give left's gain over right by comparison: a series over seeds each."""
    test, rows = CLAIMS[outcome["id"]]["test"], read_suites(outcome["suite"])
    for setting, wanted in test.get("only", {}).items():
        rows = rows[rows[setting].isin(list(map(str, as_list(wanted))))]
    suites = [StoredResults().read_suite(name) for name in outcome["suite"].split("+")]
    judged = {name for suite in suites for _, spec in suite.specs for name in spec.judged}
    gains, asked = [], {canonical_name(name) for name in judged}
    for metric in map(canonical_name, as_list(test.get("metric") or test["left"]["metric"])):
        lower = test.get("better", "higher" if higher_is_better(metric) else "lower") == "lower"
        shared = {name: test[name] for name in ("method", "calibrator", "part") if name in test}
        sides = [
            {"calibrator": "none", "part": "test", **shared, **test[side]}
            for side in ("left", "right")
        ]
        left, right = (
            pick_best([*found], side, rows, metric, asked, lower=lower)
            if "pick" in side
            else [*found]
            for side in sides
            for found in (list_entries(rows, side, metric, asked),)
        )
        if test.get("zip"):
            names = [as_list(side["calibrator"]) for side in sides]
            pairs = [
                (a, b)
                for a in left
                for b in right
                if (len(names[0]) == 1 or (a[1], b[1]) in zip(*names, strict=True))
                and (
                    "method" in test
                    or (a[0], b[0])
                    in zip(*(as_list(side["method"]) for side in sides), strict=True)
                )
            ]
        else:
            pairs = [(a, b) for a in left for b in right]
        for a, b in pairs:
            if "method" in test and a[0] != b[0]:
                continue
            gain = (a[2] - test.get("ratio", 1) * b[2]).dropna() * (-1 if lower else 1)
            gains += [own for _, own in gain.groupby(level=SETTINGS) if len(own)]
    return gains


@pytest.mark.parametrize("outcome", DECIDED, ids=lambda each: f"{each['id']}-{each['suite']}")
def test_a_decided_verdict_follows_from_the_store(outcome):
    test = CLAIMS[outcome["id"]]["test"]
    gains, margin = compare(outcome), test.get("margin", 0)
    means = pd.Series([gain.mean() for gain in gains]) + margin
    held = outcome["status"] in ("seen here", "reproduced")
    decide = test.get("decide", "every")
    assert len(gains) == outcome["for"] + outcome["against"] + outcome["open"]
    assert means.mean() - margin == pytest.approx(
        outcome["effect"], rel=0.005, abs=2e-6
    )  # a seed that few comparisons have is weighed otherwise
    if decide == "every":
        assert (means.min() > 0) == held
        if test.get("pairs") != "settings":
            p = [
                stats.ttest_1samp(gain + margin, 0).pvalue
                for gain, mean in zip(gains, means, strict=True)
                if (mean > 0) == held and gain.std() > 0
            ]
            assert (max(p) if held else min(p)) < 0.05
    elif decide == "mean":
        assert (means.mean() > 0) == held
    elif decide == "count":
        assert ((means > 0).mean() > 0.5) == held
    else:
        assert (means.max() > 0) == held


@pytest.mark.parametrize("outcome", PICKED, ids=lambda each: f"{each['id']}-{each['suite']}")
def test_the_gain_of_a_best_method_follows_from_the_store(outcome):
    gains = compare(outcome)
    assert len(gains) == outcome["for"] + outcome["against"] + outcome["open"]
    by_seed = pd.concat([gain.droplevel(SETTINGS) for gain in gains], axis=1).dropna()
    assert by_seed.to_numpy().mean() == pytest.approx(outcome["effect"], rel=1e-4, abs=1e-7)


def test_the_best_on_validation_rows_is_not_the_best_on_test_rows():
    """The choice must matter: by test rows some claim would have another gain."""
    moved = 0
    for outcome in PICKED:
        rows, test = read_suites(outcome["suite"]), CLAIMS[outcome["id"]]["test"]
        side = {"calibrator": "none", "part": "test", **test["left"]}
        side = {**side, **({"calibrator": test["calibrator"]} if "calibrator" in test else {})}
        metric = canonical_name(as_list(test["metric"])[0])
        entries = [*list_entries(rows, side, metric, set())]
        lower = not higher_is_better(metric)
        picked = pick_best(entries, side, rows, metric, set(), lower=lower)
        for name, text, series in picked:
            setting = series.index[0][:-1]
            means = {
                entry[:2]: entry[2].groupby(level=SETTINGS).mean().get(setting) for entry in entries
            }
            best = (min if lower else max)(means, key=means.get)
            moved += best != (name, text)
    assert moved > 0
