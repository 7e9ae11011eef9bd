"""What the bench measures of a trained network: second stages, shift, out of distribution."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.io import savemat
from sklearn.metrics import roc_auc_score

from calibrant import data, metrics
from calibrant.bench.measure.ood import load_outside
from calibrant.bench.measure.steps import measure_run
from calibrant.bench.measure.subject import Subject
from calibrant.bench.suite.spec import Spec
from calibrant.calibrators import get
from calibrant.data.corruptions import corrupt
from calibrant.training import Config, train

CONFIG = Config(data="digits", model="mlp", epochs=2, device="cpu", validation=400, batch_size=64)
DONE = {("run", "none")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Short runs by recipe, each made once."""
    made = {}

    def train_once(recipe="standard", **settings):
        name = json.dumps([recipe, settings], sort_keys=True)
        if name not in made:
            folder = tmp_path_factory.mktemp("runs") / "run"
            made[name] = train(CONFIG.changed(recipe=recipe, **settings), folder)
        return made[name]

    return train_once


def after(run, name, **options):
    spec = Spec(run.config, after=((name, json.dumps(options)),))
    return {
        (row["part"], row["calibrator"], row["metric"]): row["value"]
        for row in measure_run(spec, run, DONE)
    }


@pytest.mark.parametrize(
    ("name", "recipe"), [("mac_cal_head", "mac_cal"), ("tst", "tst"), ("vtst", "vtst")]
)
def test_a_second_stage_afterwards_is_the_recipes_own(runs, name, recipe):
    options = {"epochs": 3}
    race = {"race": True} if recipe == "mac_cal" else {}  # stored texts leave it out: former.py
    whole = runs(recipe, recipe_options=options | race)
    figures = after(runs(), name, **options)
    for part in ("train", "validation", "test"):
        predictions = whole.predictions(part)
        for metric in ("accuracy", "nll", "ece"):
            direct = float(getattr(metrics, metric)(predictions.array, predictions.labels))
            assert figures[part, f"{name}(epochs=3)", metric] == pytest.approx(direct, abs=1e-6)
    if name == "mac_cal_head":
        gamma = whole.outcome["recipe"]["gamma"]
        assert figures["validation", "mac_cal_head(epochs=3)", "parameter:gamma"] == gamma
        assert figures["train@0", "mac_cal_head(epochs=3)", "sparsity"] == 0.5
        assert ("train@3", "mac_cal_head(epochs=3)", "confidence") in figures


def test_a_calibrator_on_top_of_a_second_stage(runs):
    run = runs()
    figures = after(run, "tst", epochs=3, then=["temperature"], crossfit=True)
    before = figures["validation", "tst(epochs=3)", "nll"]
    behind = figures["validation", "tst(epochs=3)+temperature", "nll"]
    assert behind < before
    assert behind < figures["validation:crossfit", "tst(epochs=3)+temperature", "nll"]
    assert figures["test", "tst(epochs=3)+temperature", "changed"] == 0


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("standard", {"average": "ema"}),
        ("mac_cal", {"recipe_options": {"epochs": 3}}),
        ("vtst", {"recipe_options": {"epochs": 3}}),
        ("balcal", {}),
        ("mc_dropout", {}),
        ("deep_ensemble", {"recipe_options": {"members": 2}}),
        ("interleaved", {"loss": "s_avuc", "recipe_options": {"interleave": "auto"}}),
        ("standard", {"report_epoch": "lowest_ece_after:0"}),
    ],
)
def test_a_rebuilt_network_says_what_the_run_said(runs, recipe, settings):
    run = runs(recipe, **settings)
    subject = Subject(run)
    again = subject.predict(subject.data.test)
    before = run.predictions("test")
    assert torch.equal(again.labels, before.labels)
    wanted, actual = (
        torch.log_softmax(predictions.array.double(), 1) for predictions in (before, again)
    )
    # MC dropout draws anew in every batch, and batches are larger here.
    tolerance = 0.2 if recipe == "mc_dropout" else 1e-5
    assert float((wanted - actual).abs().max()) < tolerance


def test_several_networks_have_no_features_and_say_so(runs):
    run = runs("deep_ensemble", recipe_options={"members": 2})
    with pytest.warns(UserWarning, match="the run has several networks"):
        figures = after(run, "mac_cal_head")
    assert figures["run", "after:mac_cal_head", "failed"] == 1


@pytest.fixture(scope="module")
def able(tmp_path_factory):
    """A network that has learnt, to be shaken."""
    config = CONFIG.changed(epochs=15, schedule="one_cycle")
    return train(config, tmp_path_factory.mktemp("able") / "run")


def test_shift_is_worse_the_stronger_and_fits_nothing_on_it(able):
    kinds = ["gaussian_noise", "impulse_noise", "contrast"]
    figures = after(able, "shift", kinds=kinds, severities=[1, 3, 5], calibrators=["temperature"])
    accuracy = [
        np.mean([figures[f"test:{kind}:{level}", "none", "accuracy"] for kind in kinds])
        for level in (1, 3, 5)
    ]
    clean = able.outcome["figures"]["test_accuracy"]
    assert clean + 0.02 > accuracy[0] > accuracy[1] > accuracy[2]
    # By hand: the corruption, the network's answer, the temperature of clean validation rows.
    held = able.predictions("validation")
    made = get("temperature").fit(held.array, held.labels)
    splits = data.load("digits", validation=400)
    images = corrupt(splits.test.images, "contrast", 3)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (splits.mean, splits.std))
    weights = {
        key[8:]: tensor for key, tensor in able.weights().items() if key.startswith("network.")
    }
    values = ((images.float() / 255 - mean) / std).flatten(1)
    for layer in ("body.1", "body.3"):
        values = torch.relu(values @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"])
    logits = values @ weights["classifier.weight"].T + weights["classifier.bias"]
    for name, scores in (("none", logits), ("temperature", made.calibrate(logits))):
        direct = float(metrics.ece(scores, splits.test.labels))
        assert figures["test:contrast:3", name, "ece"] == pytest.approx(direct, abs=1e-5)


def test_shift_of_a_second_stage_whether_or_not_it_was_measured_before(able):
    names = ["tst(epochs=3)", "tst(epochs=3)+temperature"]
    shift = {"kinds": ["fog"], "severities": [5], "calibrators": names}
    alone = after(able, "shift", **shift)
    steps = (("tst", '{"epochs": 3, "then": ["temperature"]}'), ("shift", json.dumps(shift)))
    rows = measure_run(Spec(able.config, after=steps), able, DONE)
    figures = {(row["part"], row["calibrator"], row["metric"]): row["value"] for row in rows}
    for name in names:
        value = figures["test:fog:5", name, "nll"]
        assert value > figures["test", name, "nll"]
        assert value == alone["test:fog:5", name, "nll"]
    assert len({figures["test:fog:5", name, "nll"] for name in ("none", *names)}) == 3
    accuracy = [figures["test:fog:5", name, "accuracy"] for name in names]
    assert accuracy[0] == accuracy[1]


def test_shift_refuses_what_does_not_exist(able):
    with pytest.warns(UserWarning, match="no corruption is called 'rain'"):
        assert after(able, "shift", kinds=["rain"])


def test_out_of_distribution_rows_are_told_apart(able):
    figures = after(able, "ood", calibrators=["temperature"])
    subject = Subject(able)
    test = subject.data.test
    other = load_outside("photographs", test)
    assert other.images.shape[1:] == test.images.shape[1:]
    assert len(other) > 500
    inside, outside = (subject.predict(predictions).array for predictions in (test, other))
    both = torch.softmax(torch.cat((inside, outside)).double(), 1)
    known = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    direct = roc_auc_score(known, both.amax(1).numpy())
    assert figures["ood:photographs", "none", "ood_auroc"] == pytest.approx(direct, abs=1e-6)
    entropy = roc_auc_score(known, -torch.special.entr(both).sum(1).numpy())
    name = "ood_auroc(score=neg_entropy)"
    assert figures["ood:photographs", "none", name] == pytest.approx(entropy, abs=1e-6)
    assert 0.5 < direct < 1
    sure = float(both[len(inside) :].amax(1).mean())
    assert figures["ood:photographs", "none", "mean_confidence"] == pytest.approx(sure, abs=1e-6)
    assert ("ood:photographs", "temperature", "fpr95") in figures


@pytest.fixture
def pack(tmp_path):
    """A few images in the places of CIFAR-10, SVHN and CIFAR-10-C."""
    draw = np.random.default_rng(0)

    def images(rows):
        return draw.integers(0, 256, (rows, 32, 32, 3)).astype(np.uint8)

    labels = np.arange(60) % 10
    arrays = {"x_train": images(60), "y_train": labels, "x_test": images(20), "y_test": labels[:20]}
    np.savez(tmp_path / "cifar10.npz", **arrays, classes=np.array(list("abcdefghij")))
    (tmp_path / "svhn").mkdir()
    for part in ("train", "test"):
        content = {"X": images(15).transpose(1, 2, 3, 0), "y": np.ones((15, 1), np.uint8)}
        savemat(tmp_path / "svhn" / f"{part}_32x32.mat", content)
    (tmp_path / "CIFAR-10-C").mkdir()
    np.save(tmp_path / "CIFAR-10-C" / "fog.npy", images(5 * 20))
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", np.tile(labels[:20], 5))
    return tmp_path


def test_corrupted_folders_are_predicted_and_checked_for_their_classes(tmp_path):
    from PIL import Image

    generator = np.random.default_rng(0)
    names = ("n01", "n02")
    pixels = generator.integers(0, 256, (12, 64, 64, 3), dtype=np.uint8)
    labels = np.tile([0, 1], 6)
    sets = {"x_train": pixels, "y_train": labels, "x_test": pixels[:4], "y_test": labels[:4]}
    np.savez(tmp_path / "tiny_imagenet.npz", **sets, classes=np.array(names))
    for wnid in names:
        place = tmp_path / "Tiny-ImageNet-C" / "fog" / "1" / wnid
        place.mkdir(parents=True)
        Image.fromarray(generator.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(
            place / "a.JPEG"
        )
    config = Config(
        data="tiny_imagenet", data_folder=str(tmp_path), model="mlp", epochs=1, device="cpu",
        validation=4, batch_size=4,
    )  # fmt: skip
    run = train(config, tmp_path / "run")
    shifted = after(run, "shift", official=True, kinds=["fog"], severities=[1])
    assert ("official:fog:1", "none", "nll") in shifted
    (tmp_path / "Tiny-ImageNet-C" / "fog" / "1" / "n02").rename(
        tmp_path / "Tiny-ImageNet-C" / "fog" / "1" / "n03"
    )
    with pytest.warns(UserWarning, match="2 classes such as n01, n03, and the test images"):
        after(run, "shift", official=True, kinds=["fog"], severities=[1])


def test_official_corruptions_and_several_other_sets(pack, tmp_path):
    config = Config(
        data="cifar10", data_folder=str(pack), model="lenet5", epochs=1, device="cpu",
        validation=20, batch_size=20,
    )  # fmt: skip
    run = train(config, tmp_path / "run")
    figures = after(run, "ood", against=["svhn", "photographs"])
    parts = {part for part, _, _ in figures if part.startswith("ood:")}
    assert parts == {"ood:svhn", "ood:photographs"}
    alone = after(run, "ood", against="svhn")
    name = ("ood:svhn", "none", "ood_auroc")
    assert figures[name] == alone[name]
    shifted = after(run, "shift", official=True, kinds=["fog"], severities=[1, 5])
    assert {part for part, _, _ in shifted if part != "run"} == {"official:fog:1", "official:fog:5"}
    subject = Subject(run)
    read = data.read_corrupted("cifar10", "fog", 5, folder=pack)
    rows = subject.predict(replace(subject.data.test, images=read.images, labels=read.labels))
    direct = float(metrics.nll(rows.array, rows.labels))
    assert shifted["official:fog:5", "none", "nll"] == pytest.approx(direct, rel=1e-5)
    with pytest.warns(UserWarning, match="no other set"):
        assert "failed" in {metric for _, _, metric in after(run, "ood", against=["cifar10"])}
