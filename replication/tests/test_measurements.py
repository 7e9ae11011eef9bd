"""Looks into a trained network: hardest classes, masked weights, inactive regularisers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from calibrant import metrics
from calibrant.bench import Spec, Subject
from calibrant.bench.measure.steps import measure_run
from calibrant.core.errors import InputError
from calibrant.predictions import Predictions
from calibrant.training import Config, train
from replication import class_scaling_fits, measurements

pytestmark = pytest.mark.slow  # claims are judged by `make test-all`

CONFIG = Config(data="digits", model="mlp", epochs=3, device="cpu", validation=300, batch_size=64)
NAMES = class_scaling_fits.HARD, measurements.MASKED  # registered on import
DONE = {("run", "none")}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Short runs by loss, each made once."""
    made = {}

    def train_once(loss="cross_entropy"):
        if loss not in made:
            made[loss] = train(CONFIG.changed(loss=loss), tmp_path_factory.mktemp("run") / "run")
        return made[loss]

    return train_once


def measure(run, name, *, logits=None, **options):
    config = CONFIG if logits else run.config
    spec = Spec(config, after=((name, json.dumps(options)),), logits=logits)
    rows = measure_run(spec, None if logits else run, DONE)
    return {(row["part"], row["calibrator"], row["metric"]): row["value"] for row in rows}


def hard_rows(rows=3000, classes=5):
    """Sure and right of most classes; of the last two unsure, too sure, and often wrong."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, classes, rows)
    logits = draw.normal(0, 1, (rows, classes))
    logits[np.arange(rows), labels] += 4.0
    hard = labels >= classes - 2
    logits[hard] += 4 * draw.normal(0, 1, (int(hard.sum()), classes))
    return logits.astype(np.float32), labels


def test_a_temperature_of_the_hardest_classes_is_traced(tmp_path):
    path = tmp_path / "made-net.npz"
    Predictions.from_logits(*hard_rows()).write(path)
    figures = measure(None, "hardest_classes", logits=str(path), hardest=2, steps=200, every=50)
    steps = sorted({int(part[5:]) for part, _, _ in figures if part.startswith("test@")})
    assert steps == [0, 50, 100, 150, 200]
    warmth = [figures[f"test@{step}", "hardest_classes", "parameter:temperature"] for step in steps]
    assert warmth[0] == 1
    assert warmth == sorted(warmth)
    test = Predictions.read(path).split(0.5, seed=0)[1]
    whole = torch.as_tensor(test.array).double() / warmth[2]
    direct = float(metrics.ece(whole, torch.as_tensor(test.labels)))
    assert figures["test@100", "hardest_classes", "ece"] == pytest.approx(direct, abs=1e-6)
    # Of two steps with one loss, the even one is that of the smaller spread.
    even, uneven = (
        {metric: figures["test", f"hardest_classes:{name}", metric] for metric in ("nll", "ece")}
        | {"spread": figures["test", f"hardest_classes:{name}", "classwise_nll_std"]}
        for name in ("even", "uneven")
    )
    assert even["nll"] == pytest.approx(uneven["nll"], rel=0.05)  # the same on validation rows
    assert even["spread"] < uneven["spread"]


def test_nothing_of_the_hardest_classes_is_fitted_on_test_rows(tmp_path):
    logits, labels = hard_rows()
    figures = []
    for name in ("as-drawn", "other-test-rows"):
        path = tmp_path / f"{name}.npz"
        if name == "other-test-rows":  # another temperature would fit these best
            logits = 0.1 * logits
        halves = np.arange(len(labels)) < len(labels) // 2
        Predictions.from_logits(hard_rows()[0][halves], labels[halves]).write(tmp_path / "fit.npz")
        Predictions.from_logits(logits[~halves], labels[~halves]).write(path)
        files = (str(tmp_path / "fit.npz"), str(path))
        options = {"hardest": 2, "steps": 50, "every": 50}
        figures.append(measure(None, "hardest_classes", logits=files, **options))
    of = [each["test@50", "hardest_classes", "parameter:temperature"] for each in figures]
    assert of[0] == of[1] > 1
    nll = [each["test@50", "hardest_classes", "nll"] for each in figures]
    assert nll[0] != pytest.approx(nll[1], rel=0.01)


def test_masks_on_the_classifier_of_a_run(run):
    figures = measure(run(), "masked", ratios=[0.0, 0.5, 1.0], draws=3)
    predictions = run().predictions("test")
    accuracy = float(metrics.accuracy(predictions.array, predictions.labels))
    sure = torch.softmax(torch.as_tensor(predictions.array).double(), 1).amax(1).mean()
    assert figures["test@0", "masked", "accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert figures["test@0", "masked", "confidence"] == pytest.approx(float(sure), abs=1e-5)
    assert figures["test@0", "masked", "confidence"] > figures["test@50", "masked", "confidence"]
    assert figures["test@100", "masked", "accuracy"] < 0.3  # the bias alone answers


def test_a_regulariser_is_inactive_where_no_logit_is_beyond_the_margin(run):
    made = run("acls(margin=6)")
    figures = measure(made, "inactive")
    logits = np.asarray(made.predictions("train").array, dtype=np.float64)
    gap = logits.max(1) - logits.min(1)
    assert 0 < (gap <= 6).mean() < 1
    assert figures["train", "none", "inactive"] == pytest.approx((gap <= 6).mean(), abs=1e-9)
    shares = [figures[f"train@{place}", "regulariser", "share"] for place in range(20)]
    assert math.fsum(shares) == pytest.approx(1)
    classes = logits.shape[1]
    each = [
        0.1 * max(top - low - 6, 0) ** 2
        + 0.01
        * sum(max(top - z - 6, 0) ** 2 for place, z in enumerate(row) if place != row.argmax())
        / (classes - 1)
        for row, top, low in zip(logits, logits.max(1), logits.min(1), strict=True)
    ]
    # The first bin: below 0.005.
    assert shares[0] == pytest.approx(np.mean(np.array(each) < 0.005), abs=2e-3)
    assert shares[-1] == pytest.approx(np.mean(np.array(each) >= 0.095), abs=2e-3)


def test_by_rank_it_is_inactive_where_history_and_confidence_agree(run):
    made = run("acls(margin=6, condition='ranking')")
    figures = measure(made, "inactive")
    counts = made.weights()
    (name,) = (key for key in counts if key.startswith("loss.") and key.endswith("history.counts"))
    right, seen = counts[name].double().numpy()
    assert np.median(seen) == CONFIG.epochs  # a last batch that is not full is left out
    predictions = made.predictions("train")
    sure = torch.softmax(torch.as_tensor(predictions.array).double(), 1).amax(1).numpy()
    order = torch.randperm(len(sure), generator=torch.Generator().manual_seed(CONFIG.seed)).tolist()
    zero = 0
    for start in range(0, len(order), 64):
        batch = order[start : start + 64]
        for place, row in enumerate(batch):
            two = batch[(place + 1) % len(batch)]
            known = seen[row] > 0 and seen[two] > 0  # else there is nothing to rank by
            rise = known and right[row] / seen[row] - right[two] / seen[two]
            zero += not rise * (sure[row] - sure[two]) < 0
    assert figures["train", "none", "inactive"] == pytest.approx(zero / len(order), abs=2e-3)
    assert figures["train", "none", "inactive"] > 0.5


def test_looks_at_what_is_not_there_are_refused(run, tmp_path):
    with pytest.warns(UserWarning, match="inactive needs the loss acls, found cross_entropy"):
        measure(run(), "inactive")
    path = tmp_path / "made-net.npz"
    Predictions.from_logits(*hard_rows(300)).write(path)
    with pytest.raises(InputError, match="masked needs a network"):
        measure(None, "masked", logits=str(path))


def test_the_share_of_gamma_3_is_that_of_rows_from_the_threshold_on(run):
    made = run("flsd")
    figures = measure(made, "flsd_gamma", threshold=0.6)
    rows = made.predictions("train")
    p = torch.softmax(torch.as_tensor(rows.array).double(), 1)
    own = p[torch.arange(len(p)), torch.as_tensor(rows.labels)]
    assert 0 < float((own >= 0.6).double().mean()) < 1
    expected = float((own >= 0.6).double().mean())
    assert figures["train", "none", "flsd_gamma_3"] == pytest.approx(expected, abs=1e-3)
    printed = figures["train", "none", "flsd_gamma_3:predicted"]
    assert printed == pytest.approx(float((p.amax(1) >= 0.6).double().mean()), abs=1e-3)
    assert printed >= expected


def test_flips_are_counted_before_and_after_each_step(run):
    made = run("acls(margin=1, lambda1=5.0)")
    before = {name: value.clone() for name, value in made.weights().items()}
    figures = measure(made, "flipped")
    whole, plain = (
        [figures["train", name, metric] for metric in ("flipped", "unlearned")]
        for name in ("none", "step:cross_entropy")
    )
    assert 0 <= whole[1] <= whole[0] <= 1
    assert 0 <= plain[1] <= plain[0] <= 1
    assert whole != plain
    assert all(torch.equal(before[name], value) for name, value in made.weights().items())


def test_a_step_of_nothing_flips_nothing(run):
    subject = Subject(run())
    job = subject.network()
    job.config, before = job.config.changed(lr=1e-12), (job.epoch, job.train)
    assert measurements.train_once_more(job) == {"flipped": 0.0, "unlearned": 0.0}
    job.config = job.config.changed(lr=30.0, schedule="constant")
    assert measurements.train_once_more(job)["flipped"] > 0.3
    assert job.network.training is False
    assert (job.epoch, job.train) == before


def test_confidences_are_shares_of_test_rows_and_fall_under_masks(run):
    options = {"ratios": [0.0, 0.5], "heads": [{"epochs": 2, "gamma": 0.9}], "draws": 2}
    figures = measure(run(), "confidences", **options)
    rows = run().predictions("test")
    sure = torch.softmax(torch.as_tensor(rows.array).double(), 1).amax(1).numpy()
    expected = np.histogram(sure, bins=20, range=(0, 1))[0] / len(sure)
    middles = (np.arange(20) + 0.5) / 20
    means = {}
    for name in ("none", "masked:0", "masked:50", "head"):
        shares = [figures[f"test@{place}", name, "share"] for place in range(20)]
        assert math.fsum(shares) == pytest.approx(1)
        means[name] = float(np.dot(shares, middles))
        if name in ("none", "masked:0"):
            np.testing.assert_allclose(shares, expected, atol=5e-3)
    assert means["masked:50"] < means["none"]


def test_angles_of_weights_and_class_means_and_an_embedding(run):
    figures = measure(run(), "geometry", rows=60, heads=[{"epochs": 2, "gamma": 0.9}])
    network = Subject(run()).network()
    weight = network.split().head.weight.detach().double()
    cosine = float(torch.cosine_similarity(weight[2], weight[7], dim=0))
    angle = figures["test@27", "none", "angle:weights"]
    assert angle == pytest.approx(math.degrees(math.acos(cosine)), abs=1e-3)
    assert figures["test@72", "none", "angle:weights"] == angle
    assert figures["test@33", "none", "angle:weights"] == 0
    above = [
        figures[f"test@{10 * i + j}", "none", "angle:weights"]
        for i in range(10)
        for j in range(i + 1, 10)
    ]
    assert figures["test", "none", "angle:weights"] == pytest.approx(np.mean(above))
    assert figures["test", "none", "angle:weights:sd"] == pytest.approx(np.std(above, ddof=1))
    features, labels = network.features(network.test)
    means = np.stack([features[labels == k].double().mean(0).numpy() for k in range(10)])
    means -= means.mean(0)
    own = means[2] @ means[7] / np.linalg.norm(means[2]) / np.linalg.norm(means[7])
    expected = math.degrees(math.acos(own))
    assert figures["test@27", "none", "angle:features"] == pytest.approx(expected, abs=1e-3)
    rows = run().predictions("test")
    for name in ("none", "head"):
        drawn = {
            (part, metric) for part, own, metric in figures if own == name and "tsne" in metric
        }
        assert len(drawn) == 4 * 60
        labels_drawn = [figures[f"test@{row}", name, "tsne:label"] for row in range(60)]
        assert labels_drawn == torch.as_tensor(rows.labels)[:60].tolist()
    p = torch.softmax(torch.as_tensor(rows.array).double()[5], 0)
    entropy = float(-(p * p.log()).sum() / math.log(10))
    assert figures["test@5", "none", "tsne:entropy"] == pytest.approx(entropy, abs=1e-3)
    assert ("test@5", "head", "angle:weights") in figures
