"""Evaluation of shards: the numbers of `evaluate`, whoever sums which piece."""

from __future__ import annotations

import itertools
import pickle
from copy import deepcopy

import numpy as np
import pytest

import calibrant
from calibrant import InputError, Predictions, evaluate, evaluate_shards
from calibrant.evaluation.bootstrap import mean_interval
from calibrant.evaluation.clustered import influence_interval
from calibrant.evaluation.shards import evaluate as entry
from calibrant.evaluation.shards import routes, sums
from calibrant.evaluation.shards.keyed import KeyedSums, draw_rows, encode_keys, sum_by_key
from calibrant.evaluation.shards.scores import ScoreCells, ScoreRuns, cell_width, find_cells
from calibrant.predictions.shards import list_shards

pytest.importorskip("pyarrow")

OF_CLASSES = ["accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece", "aurc", "e_aurc"]
OF_CLASSES += ["failure_auroc", "ks_error", "mce", "coverage_at_risk", "augrc"]
OF_EVENTS = ["oe_ratio", "calibration_in_the_large", "calibration_slope", "brier", "nll", "ece"]
OF_EVENTS += ["brier_skill", "log_ece", "auroc", "average_precision", "adaptive_ece", "mean_gap"]


def make_classes(number=3000, classes=4, seed=0, **how):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(number, classes)).astype(np.float32) * 2
    logits[: number // 10] *= 5  # confidences near 1
    chance = np.exp(logits / 1.5)
    chance /= chance.sum(1, keepdims=True)
    labels = (chance.cumsum(1) > rng.random((number, 1))).argmax(1)
    return Predictions.from_logits(logits, labels, **draw_units(rng, number, **how))


def make_events(number=3000, seed=0, **how):
    rng = np.random.default_rng(seed)
    place = rng.normal(size=number) * 2 - 1
    happened = rng.random(number) < 1 / (1 + np.exp(-0.8 * place))
    chance = 1 / (1 + np.exp(-place))
    return Predictions.from_events(chance, happened, **draw_units(rng, number, **how))


def draw_units(rng, number, weights=False, clusters=False):
    units = {}
    if weights:
        units["weights"] = rng.exponential(size=number) + 0.1
    if clusters:  # each lies in every shard
        units["clusters"] = rng.integers(0, 60, number)
    return units


def write_shards(predictions, folder, parts=3):
    folder.mkdir(parents=True, exist_ok=True)
    bounds = np.linspace(0, len(predictions), parts + 1).astype(int)
    for part, (start, stop) in enumerate(itertools.pairwise(bounds)):
        predictions.take(np.arange(start, stop)).write(folder / f"part-{part}.parquet")
    return folder


def send(value):
    """Return what another process would get."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def read_figures(evaluation):
    return {name: (f.value, f.low, f.high) for name, f in evaluation.figures.items()}


UNITS = [{}, {"weights": True}, {"clusters": True}, {"weights": True, "clusters": True}]


@pytest.mark.parametrize("how", UNITS, ids=["plain", "weights", "clusters", "both"])
@pytest.mark.parametrize("task", ["classes", "events"])
def test_figures_are_those_of_the_rows(task, how, tmp_path):
    make, names = (make_classes, OF_CLASSES) if task == "classes" else (make_events, OF_EVENTS)
    predictions = make(**how)
    folder = write_shards(predictions, tmp_path / "shards")
    settings = {"metrics": names, "resamples": 200}
    whole, found = evaluate(predictions, **settings), evaluate_shards(folder, **settings)
    for name in names:
        assert found[name].value == pytest.approx(whole[name].value, rel=2e-6), name
        if found[name].low is not None and whole[name].low is not None:
            width = whole[name].high - whole[name].low
            allowed = 0.35 if how else 1e-4  # of the width: units are joined at random
            assert abs(found[name].low - whole[name].low) <= allowed * width + 1e-9, name
            assert abs(found[name].high - whole[name].high) <= allowed * width + 1e-9, name
    assert found.num_rows == whole.num_rows
    assert found.num_clusters == whole.num_clusters
    assert found.verdict.state == whole.verdict.state
    assert found.verdict.direction == whole.verdict.direction
    assert found.verdict.gap == pytest.approx(whole.verdict.gap, abs=1e-9)
    if not how:
        # The class tests and the test of calibration see the same cells.
        assert found.verdict.p_value == pytest.approx(whole.verdict.p_value, rel=1e-6)
    for table in ("bins", "mass_bins", "classes"):
        mine, theirs = (getattr(each, table).select_dtypes("number") for each in (found, whole))
        # Of rows with units, cells of equal mass are cut at the edges of finer ones.
        hidden = ("accuracy_", "band_", *(["count"] if table == "mass_bins" else []))
        shown = [name for name in mine if not (how and name.startswith(hidden))]
        assert np.allclose(mine[shown], theirs[shown], rtol=1e-5, equal_nan=True), table
    assert found.to_json()


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_intervals_of_means_are_those_of_influences(weights, clusters, tmp_path):
    predictions = make_classes(weights=weights, clusters=clusters)
    found = evaluate_shards(write_shards(predictions, tmp_path), metrics=["nll"], resamples=100)
    logits = predictions.array.astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    loss = -logs[np.arange(len(logs)), predictions.labels]
    each = predictions.weights if weights else np.ones(len(loss))
    mean = float(np.average(loss, weights=each))
    wanted = influence_interval(
        mean, loss - mean, weights=predictions.weights, clusters=predictions.clusters
    )
    ends = wanted.low, wanted.high
    if not weights and not clusters:
        ends = mean_interval(loss, 0.95)
    assert found["nll"].value == pytest.approx(mean, rel=1e-6)
    allowed = 1e-3 * (ends[1] - ends[0])
    assert (found["nll"].low, found["nll"].high) == pytest.approx(ends, abs=allowed)


@pytest.mark.parametrize("how", [{}, {"weights": True, "clusters": True}], ids=["plain", "units"])
def test_sums_do_not_depend_on_who_makes_them_or_when(how, tmp_path, monkeypatch):
    folder = write_shards(make_classes(**how), tmp_path / "shards", parts=5)
    settings = {"metrics": OF_CLASSES, "resamples": 100}
    local = evaluate_shards(folder, **settings)

    def run_elsewhere(job, pieces, workers):
        made = {}
        for piece in reversed(pieces):  # other processes, in another order
            made[piece.start] = send(send(job).run(piece))
        return (made[piece.start] for piece in pieces)

    monkeypatch.setattr(routes, "_run_ray", run_elsewhere)
    other = evaluate_shards(folder, on="ray", **settings)
    assert other.to_json() == local.to_json()  # to the last bit


def test_the_number_of_row_groups_changes_rounding_only(tmp_path):
    import pyarrow.parquet as parquet

    predictions = make_events(clusters=True)
    predictions.write(tmp_path / "one.parquet")
    table = parquet.read_table(tmp_path / "one.parquet")
    parquet.write_table(table, tmp_path / "many.parquet", row_group_size=256)
    settings = {"metrics": OF_EVENTS, "resamples": 100}
    one = evaluate_shards(tmp_path / "one.parquet", **settings)
    many = evaluate_shards(tmp_path / "many.parquet", **settings)
    for name, ends in read_figures(one).items():
        assert read_figures(many)[name] == pytest.approx(ends, rel=1e-9), name


# Scores by size


def test_runs_hold_every_row_once_in_order():
    rng = np.random.default_rng(1)
    score = rng.random(5000).round(2)
    wrong = rng.random(5000) < 0.3
    runs = ScoreRuns()
    for start in range(0, 5000, 700):
        part = ScoreRuns()
        part.add(score[start : start + 700], wrong[start : start + 700], None)
        part.sort()
        runs.merge(part)
    table = runs.table()
    names, home = np.unique(score, return_inverse=True)
    assert np.array_equal(table.score, names)
    assert np.array_equal(table.count[:, 1], np.bincount(home, wrong))
    assert np.array_equal(table.count.sum(1), np.bincount(home))


def test_cells_keep_the_order_of_probabilities_and_are_narrow():
    rng = np.random.default_rng(0)
    score = np.sort(np.concatenate((rng.random(20_000), 10.0 ** -rng.uniform(0, 15, 20_000))))
    score = np.sort(np.concatenate((score, 1 - score, [0.0, 0.5, 1.0])))
    cell = find_cells(score)
    assert (np.diff(cell) >= 0).all()
    same = np.diff(cell) == 0
    width = cell_width(score)[1:]
    inside = np.minimum(score, 1 - score)[1:] > 1e-15
    assert (np.diff(score)[same & inside] <= 1.001 * width[same & inside]).all()
    assert len(np.unique(cell)) > 10_000


def test_figures_from_cells_are_bounded_by_their_notes(tmp_path, monkeypatch):
    predictions = make_classes(20_000)
    folder = write_shards(predictions, tmp_path)
    names = ["aurc", "failure_auroc", "ks_error", "adaptive_ece", "accuracy", "nll", "smooth_ece"]
    exact = evaluate_shards(folder, metrics=names, resamples=100)
    monkeypatch.setattr(entry, "EXACT_ROWS", 1000)
    monkeypatch.setattr("calibrant.evaluation.shards.scores._MANTISSA", 5)  # coarse: ties abound
    cells = evaluate_shards(folder, metrics=names, resamples=100)
    assert cells.settings["shards"]["ranks"] == "cells"
    for name in ("accuracy", "nll"):
        assert read_figures(cells)[name] == read_figures(exact)[name]
    for name in ("aurc", "failure_auroc", "ks_error"):
        note = cells[name].note
        low, high = map(float, note.partition("[")[2].partition("]")[0].split(","))
        assert low <= exact[name].value <= high, name
        assert high - low < 0.01
        assert cells[name].value != exact[name].value
    assert cells["smooth_ece"].value == pytest.approx(exact["smooth_ece"].value, abs=1e-3)
    assert cells["adaptive_ece"].value == pytest.approx(exact["adaptive_ece"].value, abs=1e-3)
    with pytest.raises(InputError, match="depends on single ranks"):
        evaluate_shards(folder, metrics=["sweep_ece"])


def test_cells_and_runs_agree_where_cells_hold_one_score():
    score = np.repeat([0.1, 0.25, 0.7, 0.999], [5, 3, 9, 4])
    wrong = np.arange(21) % 3 == 0
    weights = np.linspace(0.5, 2, 21)
    tables = []
    for kind in (ScoreRuns, ScoreCells):
        scores = kind(weighted=True)
        scores.add(score, wrong, weights)
        tables.append(scores.table())
    runs, cells = tables
    assert np.allclose(runs.score, cells.score, rtol=1e-15)
    assert np.array_equal(runs.count, cells.count)
    assert np.allclose(runs.weight, cells.weight)


# Keys and random numbers


def test_random_numbers_belong_to_rows():
    whole = draw_rows(0, 1000, 7)
    for start, number in ((0, 5), (3, 10), (4, 4), (501, 499)):
        assert np.array_equal(draw_rows(start, number, 7), whole[start : start + number])
    assert not np.array_equal(draw_rows(0, 1000, 8), whole)
    assert len(np.unique(whole)) == 1000
    assert 0.4 < (whole >> np.uint64(63)).mean() < 0.6


def test_keys_of_clusters_are_the_same_in_every_shard():
    names = np.array(["b", "a", "b", "ü"])
    keys = encode_keys(names)
    assert keys[0] == keys[2] != keys[1]
    assert np.array_equal(encode_keys(names[[3, 0]]), keys[[3, 0]])
    numbers = encode_keys(np.arange(100_000))
    assert len(np.unique(numbers)) == 100_000
    groups = np.bincount((numbers % np.uint64(128)).astype(int), minlength=128)
    assert groups.min() > 600
    assert groups.max() < 1000


def test_sums_by_key_merge():
    rng = np.random.default_rng(2)
    keys, values = rng.integers(0, 50, 1000), rng.random((1000, 2))
    whole = KeyedSums()
    for start in range(0, 1000, 130):
        part = KeyedSums()
        part.add(keys[start : start + 130], values[start : start + 130])
        whole.merge(part)
    found, total = whole.whole()
    assert np.array_equal(found, np.unique(keys))
    wanted = np.stack([np.bincount(keys, column) for column in values.T], axis=1)
    assert np.allclose(total, wanted[found])
    assert np.allclose(sum_by_key(keys, values)[1], wanted[found])


def test_very_many_clusters_are_joined(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    chance = rng.random(8000)
    predictions = Predictions.from_events(
        chance, rng.random(8000) < chance, clusters=np.arange(8000) // 2
    )
    folder = write_shards(predictions, tmp_path)
    exact = evaluate_shards(folder, metrics=["brier"], resamples=100)
    monkeypatch.setattr(sums, "MOST_CLUSTERS", 1000)
    joined = evaluate_shards(folder, metrics=["brier"], resamples=100)
    assert exact.num_clusters == 4000
    assert joined.num_clusters <= 1000
    assert joined["brier"].value == exact["brier"].value
    widths = [each["brier"].high - each["brier"].low for each in (exact, joined)]
    assert widths[1] == pytest.approx(widths[0], rel=0.15)


# What shards may hold


def test_rows_are_left_out_as_asked(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rng = np.random.default_rng(0)
    logits = rng.normal(size=(600, 3))
    labels = rng.integers(0, 3, 600)
    labels[::10] = -100
    columns = {f"logit_{k}": logits[:, k] for k in range(3)}
    parquet.write_table(pa.table({**columns, "label": labels}), tmp_path / "a.parquet")
    found = evaluate_shards(tmp_path / "a.parquet", ignore_index=-100, resamples=100)
    assert (found.num_rows, found.num_ignored) == (540, 60)
    missing = [None if label < 0 else int(label) for label in labels]
    parquet.write_table(pa.table({**columns, "label": missing}), tmp_path / "b.parquet")
    again = evaluate_shards(tmp_path / "b.parquet", drop_unlabelled=True, resamples=100)
    assert again.num_rows == 540
    assert again.warnings == ("left out 60 rows without a label",)
    assert again["nll"].value == pytest.approx(found["nll"].value)
    with pytest.raises(InputError, match="missing values"):
        evaluate_shards(tmp_path / "b.parquet")


def test_a_shard_need_not_hold_an_event(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    rng = np.random.default_rng(0)
    chance = rng.random(900)
    answer = np.where(rng.random(900) < chance, "yes", "no")
    answer[:300] = "no"
    for part in range(3):
        rows = slice(300 * part, 300 * part + 300)
        table = pa.table({"score": chance[rows], "answer": answer[rows]})
        parquet.write_table(table, tmp_path / f"{part}.parquet")
    how = {"score_columns": "score", "label_column": "answer", "kind": "probs"}
    found = evaluate_shards(tmp_path, pos_label="yes", metrics=["mean_gap"], resamples=100, **how)
    assert found["mean_gap"].value == pytest.approx(chance.mean() - (answer == "yes").mean())
    with pytest.raises(InputError, match="never have the value pos_label='ja'"):
        evaluate_shards(tmp_path, pos_label="ja", metrics=["mean_gap"], resamples=100, **how)


def test_what_cannot_be_summed_is_refused(tmp_path):
    folder = write_shards(make_classes(300), tmp_path / "classes")
    for name, reason in (
        ("kde_ece", "needs all rows at once"),
        ("aurc(loss=brier)", "another score or loss"),
        ("classwise_ece(binning=mass)", "needs all rows at once"),
    ):
        with pytest.raises(InputError, match=reason):
            evaluate_shards(folder, metrics=[name])
    events = write_shards(make_events(300), tmp_path / "events")
    with pytest.raises(InputError, match="test of single rows"):
        evaluate_shards(events, metrics=["spiegelhalter"])
    labels = np.random.default_rng(0).integers(0, 2, (50, 3))
    many = Predictions.from_multilabel(np.full((50, 3), 0.5), labels, is_logits=False)
    many.write(tmp_path / "many.parquet")
    with pytest.raises(InputError, match="found many labels a row"):
        evaluate_shards(tmp_path / "many.parquet")
    make_classes(300).write(tmp_path / "rows.csv")
    with pytest.raises(InputError, match="shards are Parquet files"):
        evaluate_shards(tmp_path / "rows.csv")
    make_classes(300).write(tmp_path / "bare.parquet", labels=False)
    with pytest.raises(InputError, match="no labels"):
        evaluate_shards(tmp_path / "bare.parquet")
    with pytest.raises(InputError, match="on must be one of local, ray"):
        evaluate_shards(folder, on="moon")


def test_shards_must_agree(tmp_path):
    make_classes(300).write(tmp_path / "a.parquet")
    make_classes(300, classes=5).write(tmp_path / "b.parquet")
    with pytest.raises(InputError, match="another number of classes than the first rows"):
        evaluate_shards(tmp_path, metrics=["nll"])
    make_classes(300, weights=True).write(tmp_path / "b.parquet")
    with pytest.raises(InputError, match="another column of weights"):
        evaluate_shards(tmp_path, metrics=["nll"])


# Where shards lie


def test_paths_with_schemes_and_globs(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    predictions = make_classes(900)
    store = fsspec.filesystem("memory")
    folder = write_shards(predictions, tmp_path / "run" / "day=1")
    for part in range(3):
        name = f"part-{part}.parquet"
        store.pipe(f"/shards/run/day={part}/{name}", (folder / name).read_bytes())
    store.pipe("/shards/run/_metadata.parquet", b"no data")
    local = evaluate_shards(str(tmp_path / "**" / "*.parquet"), metrics=["nll", "aurc"])
    for path in ("memory://shards/run/**/part-*.parquet", "memory://shards/run"):
        found = evaluate_shards(path, metrics=["nll", "aurc"])
        assert read_figures(found) == read_figures(local)
    with_scheme = evaluate_shards(f"file://{tmp_path}/run", metrics=["nll", "aurc"])
    assert read_figures(with_scheme) == read_figures(local)
    with pytest.raises(InputError, match="no file matches"):
        evaluate_shards("memory://shards/run/**/*.pq.parquet")
    with pytest.raises(InputError, match="no such file or folder"):
        evaluate_shards("memory://shards/nowhere")
    with pytest.raises(InputError, match="zz://"):
        evaluate_shards("zz://shards/*.parquet")
    store.rm("/shards", recursive=True)


def test_keys_and_options_of_an_address_are_not_shown():
    from calibrant.predictions.shards import _hide

    secret = "s3://key:word@bucket/run/**/*.parquet?endpoint_override=localhost"
    assert _hide(secret) == "s3://bucket/run/**/*.parquet"
    assert _hide("memory://run/part-?.parquet") == "memory://run/part-?.parquet"
    assert _hide("/data/a@b/x.parquet") == "/data/a@b/x.parquet"


def test_pieces_join_small_row_groups_and_number_rows(tmp_path):
    import pyarrow.parquet as parquet

    predictions = make_events(1000)
    predictions.write(tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    predictions.write(tmp_path / "b.parquet")
    shards = list_shards(tmp_path, piece_rows=350)
    assert [piece.row_groups for piece in shards.pieces] == [
        (0, 1, 2),
        (3, 4, 5),
        (6, 7, 8),
        (9,),
        (0,),
    ]
    assert [piece.start for piece in shards.pieces] == [0, 300, 600, 900, 1000]
    assert shards.num_rows == 2000


def test_a_part_of_a_file_that_is_cut_short_is_an_error(tmp_path):
    folder = write_shards(make_classes(300), tmp_path / "shards")
    file = folder / "part-1.parquet"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"part-1\.parquet"):
        evaluate_shards(folder)


def test_merging_leaves_the_parts_alone(tmp_path):
    folder = write_shards(make_classes(600, clusters=True), tmp_path)
    shards = list_shards(folder)
    begin = entry.read_first(shards, entry.make_reading())
    measures = entry.choose_measures(["nll", "aurc"], 15)
    options = entry.row_options(begin.predictions, None)
    plan = entry.Plan()
    _, empty = entry._make_sums(begin.predictions, measures, 15, plan, options, None, exact=True)
    job = sums.Job(entry.make_reading(), empty, sums.describe(begin), options, 0)
    first, second = (job.run(piece) for piece in shards.pieces[:2])
    copies = send(first), send(second)
    total, again = deepcopy(empty), deepcopy(empty)
    for part, copy in zip((first, second), copies, strict=True):
        total.merge(part)
        again.merge(copy)
    assert np.array_equal(second.units.clusters.whole()[1], copies[1].units.clusters.whole()[1])
    assert second.moments.first.tolist() == copies[1].moments.first.tolist()
    assert total.moments.first.tolist() == again.moments.first.tolist()
    assert np.array_equal(total.scores.table().count, again.scores.table().count)
    assert total.num_rows == 400
    assert calibrant.evaluate_shards is evaluate_shards
