"""Recipes: each trains, resumes, and does what it claims."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytest.importorskip("lightning")
from calibrant import data, metrics, models
from calibrant.calibrators.heads.vtst_head import VTSTHead, kl_to_standard
from calibrant.core.errors import InputError
from calibrant.training import Run, recipes, train
from calibrant.training.config import Config
from calibrant.training.recipes.balcal import BalancedHead, bisect_share, simplex_frame
from calibrant.training.recipes.cape import bin_accuracies
from calibrant.training.recipes.mit import draw_shares, unmix
from calibrant.training.recipes.plp import LayerPeeling, layers_from_top
from calibrant.training.setup import make_job
from tests.helpers.kill_nursery import some_digits
from tests.helpers.loss_names import PRIMARY, SECONDARY

NAMES = list(recipes.available())
LOSS = {"interleaved": "cross_entropy+1.0*sb_ece"}
OPTIONS = {
    "mac_cal": {"epochs": 12, "width": 32, "batch_size": 16},
    "tst": {"epochs": 6, "width": 32, "batch_size": 16},
    "vtst": {"epochs": 4, "latent": 16},
    "cape": {"start": 0.3},
    "deep_ensemble": {"members": 2},
}


@pytest.fixture(scope="module")
def splits():
    """Digits with an eighth of all labels replaced; a network that memorises is overconfident."""
    digits = data.load("digits", validation=300)

    def add_noise(images, count, seed):
        generator = torch.Generator().manual_seed(seed)
        rows = images.take(torch.arange(count))
        wrong = torch.rand(count, generator=generator) < 0.125
        shifted = (rows.labels + torch.randint(1, 10, (count,), generator=generator)) % 10
        labels = torch.where(wrong, shifted, rows.labels)
        return data.Images(rows.images, labels, rows.class_names, name=rows.name)

    return data.Splits(
        add_noise(digits.train, 400, 1),
        add_noise(digits.validation, 300, 2),
        add_noise(digits.test, 500, 3),
        digits.mean,
        digits.std,
    )


def config(recipe="standard", **settings):
    defaults = {
        "epochs": 5,
        "batch_size": 50,
        "lr": 0.1,
        "device": "cpu",
        "model_options": {"hidden": [48]},
        "loss": LOSS.get(recipe, "cross_entropy"),
        "recipe": recipe,
        "recipe_options": OPTIONS.get(recipe, {}),
    }
    return Config(**{**defaults, **settings})


@pytest.fixture(scope="module")
def plain(splits, tmp_path_factory):
    """Long plain training with three seeds: overconfident."""
    folder = tmp_path_factory.mktemp("plain")
    return mean_figures("standard", splits, folder)


def mean_figures(recipe, splits, folder, **settings):
    """Average the figures of three seeds, 60 epochs each."""
    runs = [
        train(config(recipe, epochs=60, seed=seed, **settings), folder / str(seed), data=splits)
        for seed in range(3)
    ]
    figures = [run.outcome["figures"] for run in runs]
    return {name: sum(values[name] for values in figures) / 3 for name in figures[0]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("cutmix", {}),
        ("mixup", {"recipe_options": {"alpha": 1.0}}),
        ("mc_dropout", {}),
        ("cape", {"recipe_options": {"start": 0.1}}),
        ("cape", {"recipe_options": {"start": 0.5, "targets_every": 1}}),
        ("vtst", {"recipe_options": {}}),
        ("tst", {"recipe_options": {"epochs": 10, "head": "linear"}}),
        ("plp", {"recipe_options": {"start": 0.3, "share": 0.9}}),
        ("balcal", {}),
        (
            "interleaved",
            {"loss": "cross_entropy+5*sb_ece", "recipe_options": {"held_out": 0.2}},
        ),
    ],
)
def test_each_lowers_the_calibration_error(recipe, settings, splits, plain, tmp_path):
    """The test ECE and NLL are below those of plain training."""
    figures = mean_figures(recipe, splits, tmp_path, **settings)
    assert plain["test_ece"] > 0.14
    assert figures["test_ece"] < plain["test_ece"] - 0.005
    assert figures["test_nll"] < plain["test_nll"]
    assert figures["test_accuracy"] > plain["test_accuracy"] - 0.04


def test_a_loss_that_takes_labels_alone_is_refused_before_training(splits, monkeypatch):
    monkeypatch.setattr(SECONDARY["mdca"], "soft_targets", False, raising=False)
    for name in ("mixup", "cutmix", "cape"):
        with pytest.raises(InputError, match=rf"{name} gives class probabilities .* mdca takes"):
            make_job(config(name, loss="focal+mdca"), splits, None)
    for name in ("standard", "mit"):
        make_job(config(name, loss="focal+mdca"), splits, None)


@pytest.mark.slow
def test_mit_keeps_the_confidence_that_mixup_loses(splits, tmp_path):
    # Mixup is underconfident on the rows that it was trained on.
    mixup = mean_figures("mixup", splits, tmp_path / "a", recipe_options={"alpha": 1.0})
    mit = mean_figures("mit", splits, tmp_path / "b")
    assert mit["train_ece"] < 0.5 * mixup["train_ece"]


class TestEveryRecipe:
    @pytest.mark.parametrize("name", NAMES)
    def test_trains_and_resumes_to_the_bit(self, name, splits, tmp_path):
        class Stop(Exception):
            pass

        def stop(line):
            if line["epoch"] == 4:
                raise Stop

        whole = train(config(name), tmp_path / "whole", data=splits)
        assert whole.outcome["figures"]["test_accuracy"] > 0.5
        assert whole.predictions("test").num_rows == 500
        with pytest.raises(Stop):
            train(config(name), tmp_path / "part", data=splits, on_epoch=stop)
        part = train(config(name), tmp_path / "part", data=splits)
        files = ["predictions/test.safetensors"]
        recipe = recipes.get(name, **OPTIONS.get(name, {}))
        assert recipe.name == name
        if not recipe.members(config(name)):
            files += ["weights.safetensors", "metrics.jsonl"]
        for file in files:
            assert (part.folder / file).read_bytes() == (whole.folder / file).read_bytes(), file

    @pytest.mark.parametrize("name", NAMES)
    def test_one_batch_with_every_loss(self, name, splits):
        if name == "interleaved":
            texts = [f"cross_entropy+0.5*{term}" for term in SECONDARY]
        else:
            texts = [*PRIMARY, *SECONDARY]
        if recipes.get(name, **OPTIONS.get(name, {})).members(config(name)):
            pytest.skip("its members are runs of other recipes")
        for text in texts:
            job = make_job(config(name, loss=text), splits, None)
            job.recipe.before_epoch(job)
            for sweep in job.recipe.passes(job):
                batch = next(iter(job.batches(sweep.rows)))
                value = sweep.loss(job, batch)
                assert torch.isfinite(value), text
                job.backward_step(value)


def test_unknown_recipes_and_options():
    with pytest.raises(InputError, match="Did you mean mixup"):
        recipes.get("mixupp")
    with pytest.raises(InputError, match="alfa"):
        recipes.get("mixup", alfa=1)
    for name, options, message in (
        ("mixup", {"alpha": 0.0}, "alpha"),
        ("mit", {"margin": 1.5}, "margin"),
        ("plp", {"start": 1.0}, "start"),
        ("balcal", {"delta": 0.0}, "delta"),
        ("cape", {"num_bins": 0}, "num_bins"),
        ("cape", {"targets_every": 0}, "targets_every"),
        ("vtst", {"samples": 0}, "samples"),
        ("mc_dropout", {"rate": 1.0}, "rate"),
        ("interleaved", {"interleave": "often"}, "always or auto"),
        ("mac_cal", {"gamma": 2.0}, "gamma"),
    ):
        with pytest.raises(InputError, match=message):
            recipes.get(name, **options)


class TestMIT:
    def test_recovers_the_logits_of_a_linear_model_exactly(self):
        torch.manual_seed(0)
        net = nn.Linear(6, 4).double()
        left, right = torch.randn(5, 6).double(), torch.randn(5, 6).double()
        high, low = draw_shares(1.0, 0.5, torch.Generator().manual_seed(1))
        mixed = [net(share * left + (1 - share) * right) for share in (high, low)]
        first, second = unmix(*mixed, high, low)
        assert torch.allclose(first, net(left), atol=1e-12)
        assert torch.allclose(second, net(right), atol=1e-12)

    def test_shares_keep_their_distance(self):
        generator = torch.Generator().manual_seed(2)
        draws = torch.tensor([draw_shares(1.0, 0.5, generator) for _ in range(500)])
        assert ((draws[:, 0] - draws[:, 1]) >= 0.5).all()
        # Two uniform draws at least 1/2 apart: the larger has mean 5/6.
        assert draws[:, 0].mean().item() == pytest.approx(5 / 6, abs=0.02)
        single = torch.tensor(
            [draw_shares(1.0, 0.2, generator, single_draw=True) for _ in range(50)]
        )
        assert torch.allclose(single.sum(1), torch.ones(50))
        with pytest.raises(InputError, match="apart"):
            draw_shares(1e6, 0.9, generator)

    def test_loss_of_a_linear_model_is_that_of_raw_images(self, splits):
        job = make_job(config("mit", model_options={"hidden": []}), splits, None)
        batch = next(iter(job.batches()))
        loss = job.recipe.loss(job, batch)
        assert loss.item() == pytest.approx(
            F.cross_entropy(job.model(batch.inputs), batch.target).item(), rel=1e-4
        )


class TestInterleaved:
    def test_held_out_rows_never_reach_the_primary(self, splits, tmp_path, monkeypatch):
        from calibrant.training.recipes.interleaved import Interleaved

        seen = {"primary": set(), "secondary": set()}
        for part in seen:
            inner = getattr(Interleaved, f"_{part}")

            def watch(self, job, batch, part=part, inner=inner):
                seen[part] |= set(batch.index.tolist())
                return inner(self, job, batch)

            monkeypatch.setattr(Interleaved, f"_{part}", watch)
        train(config("interleaved", epochs=4), tmp_path / "run", data=splits)
        assert not seen["primary"] & seen["secondary"]
        assert len(seen["secondary"]) == 40
        assert len(seen["primary"]) > 300

    def test_passes_use_their_own_losses(self, splits):
        job = make_job(config("interleaved"), splits, None)
        first, second = job.recipe.passes(job)
        batch = next(iter(job.batches(first.rows)))
        logits = job.model(batch.inputs)
        assert torch.allclose(first.loss(job, batch), F.cross_entropy(logits, batch.target))
        term = job.loss.secondaries[0](logits, batch.target)
        assert torch.allclose(second.loss(job, batch), term)

    def test_needs_a_secondary_loss(self, splits):
        with pytest.raises(InputError, match="secondary loss"):
            make_job(config("interleaved", loss="focal"), splits, None)

    def test_auto_compares_on_validation_rows(self, splits, tmp_path):
        auto = config("interleaved", recipe_options={"interleave": "auto"}, epochs=6)
        run = train(auto, tmp_path / "run", data=splits)
        errors = [
            Run(run.folder / "members" / str(i)).outcome["figures"]["validation_ece"]
            for i in range(2)
        ]
        figures = run.outcome["figures"]
        assert figures["validation_ece"] == pytest.approx(min(errors), rel=1e-4)
        recipes_used = [Run(run.folder / "members" / str(i)).config.recipe for i in range(2)]
        assert recipes_used == ["standard", "interleaved"]

    @pytest.mark.slow
    def test_auto_waits_for_memorised_rows(self, splits, tmp_path):
        options = {"interleave": "auto"}
        auto = config("interleaved", recipe_options=options, epochs=60, schedule="constant")
        auto = auto.changed(validation=0.0)  # no rows to compare on
        run = train(auto, tmp_path / "run", data=splits)
        states = [line["interleaving"] for line in run.metrics]
        assert states[0] == 0
        assert states == sorted(states)  # once it starts, it stays

    @pytest.mark.slow
    def test_auto_resumes_to_the_bit_and_keeps_its_rate(self, tmp_path):
        # Interleaving starts in between; an epoch then has another number of steps.
        class Stop(Exception):
            pass

        def stop(line):
            if line["epoch"] == 38:
                raise Stop

        splits = some_digits(400, 300, 200)
        options = {"interleave": "auto", "held_out": 0.3}
        auto = config("interleaved", recipe_options=options, epochs=40, validation=0.0)
        auto = auto.changed(loss="cross_entropy+0.1*sb_ece")
        whole = train(auto, tmp_path / "whole", data=splits)
        states = [line["interleaving"] for line in whole.metrics]
        assert 0 < sum(states) < 37
        rates = [line["lr"] for line in whole.metrics]
        cosine = [0.05 * (1 + math.cos(math.pi * epoch / 40)) for epoch in range(40)]
        assert rates == pytest.approx(cosine)
        with pytest.raises(Stop):
            train(auto, tmp_path / "part", data=splits, on_epoch=stop)
        part = train(auto, tmp_path / "part", data=splits)
        for file in ("weights.safetensors", "metrics.jsonl"):
            assert (part.folder / file).read_bytes() == (whole.folder / file).read_bytes(), file


class TestMixing:
    def test_losses_see_mixed_labels(self, splits):
        job = make_job(config("mixup", recipe_options={"alpha": 1.0}), splits, None)
        caught = []
        job.criterion = lambda logits, target: caught.append(target) or logits.sum()
        for name in ("mixup", "cutmix"):
            job.recipe = recipes.get(name, alpha=1.0)
            job.recipe.loss(job, next(iter(job.batches())))
        for soft in caught:
            assert soft.shape == (50, 10)
            assert torch.allclose(soft.sum(1), torch.ones(50))
            assert ((soft > 0.01) & (soft < 0.99)).any()

    @pytest.mark.slow
    def test_lowers_confidence(self, splits, tmp_path):
        plain = train(config(epochs=40), tmp_path / "a", data=splits)
        mixed = train(
            config("mixup", epochs=40, recipe_options={"alpha": 1.0}), tmp_path / "b", data=splits
        )

        def confidence(run):
            return torch.softmax(run.predictions("test").scores, 1).amax(1).mean()

        assert confidence(mixed) < confidence(plain) - 0.05


class TestPeeling:
    def test_schedule(self):
        recipe = LayerPeeling(start=0.5, share=0.5)
        counts = [recipe.count_frozen(epoch, 10, 8) for epoch in range(10)]
        assert counts == [0, 0, 0, 0, 0, 1, 1, 2, 3, 4]

    def test_top_layers_freeze_and_others_learn(self, splits):
        job = make_job(config("plp", model_options={"hidden": [20, 20, 20]}), splits, None)
        layers = layers_from_top(job.network)
        assert layers[0] is job.network.classifier
        job.epoch = 4  # the last: two of four layers frozen
        job.recipe.before_epoch(job)
        before = [layer.weight.clone() for layer in layers]
        for batch in job.batches():
            job.backward_step(job.recipe.loss(job, batch))
        moved = [not torch.equal(a, b.weight) for a, b in zip(before, layers, strict=True)]
        assert moved == [False, False, True, True]


class TestBalCAL:
    def test_frame_is_a_simplex(self):
        frame = simplex_frame(7, 12, torch.Generator().manual_seed(0)).double()
        wanted = torch.full((7, 7), -1 / 6).double().fill_diagonal_(1.0)
        assert torch.allclose(frame @ frame.t(), wanted, atol=1e-6)
        with pytest.raises(InputError, match="at least as many dimensions"):
            simplex_frame(5, 3, torch.Generator())

    def test_bisection_meets_its_target(self):
        def confidence(share):
            return 0.2 + 0.75 * share**3

        assert confidence(bisect_share(confidence, 0.6)) == pytest.approx(0.6, abs=1e-6)
        assert bisect_share(confidence, 0.95) == 1.0
        assert bisect_share(confidence, 0.1) == pytest.approx(0.0, abs=1e-6)

    def test_confidence_is_delta_times_accuracy(self, splits, tmp_path):
        balcal = config("balcal", epochs=25, recipe_options={"delta": 0.9, "rows": 10_000})
        run = train(balcal, tmp_path / "run", data=splits)
        rows = run.predictions("train")
        probs = torch.softmax(rows.scores.double(), 1)
        accuracy = float(metrics.accuracy(rows.scores, rows.labels))
        assert run.metrics[-1]["balance"] < 1
        assert float(probs.amax(1).mean()) == pytest.approx(0.9 * accuracy, abs=0.02)

    def test_head_balances(self):
        head = BalancedHead(nn.Linear(5, 3), simplex_frame(3, 5, torch.Generator()))
        rows = torch.randn(4, 5)
        linear, simplex = head.both(rows)
        assert torch.allclose(head(rows), linear)
        head.share.fill_(0.25)
        assert torch.allclose(head(rows), 0.25 * linear + 0.75 * simplex, atol=1e-6)
        assert simplex.abs().max() <= 1.0001

    def test_balances_the_head_of_a_sequential_network(self, splits, tmp_path):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        run = train(config("balcal", epochs=2), tmp_path / "run", data=splits, network=net)
        assert run.outcome["figures"]["test_accuracy"] > 0.3
        assert "network.3.frame" in run.weights()

    def test_needs_a_linear_classifier(self, splits):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Identity())
        with pytest.raises(InputError, match="no classifier head"):
            make_job(config("balcal"), splits, net)


class TestCaPE:
    def test_bin_accuracies_by_hand(self):
        confidence = torch.tensor([0.9, 0.1, 0.5, 0.3, 0.7, 0.95])
        correct = torch.tensor([True, False, True, False, False, True])
        # Sorted: .1 .3 | .5 .7 | .9 .95 are right 0 0 | 1 0 | 1 1.
        accuracies = bin_accuracies(confidence, correct, 3)
        assert accuracies.tolist() == [1.0, 0.0, 0.5, 0.0, 0.5, 1.0]

    def test_targets_change_half_way(self, splits, tmp_path):
        run = train(config("cape", epochs=6, recipe_options={"start": 0.5}), tmp_path, data=splits)
        refreshed = ["cape_accuracy" in line for line in run.metrics]
        assert refreshed == [False, False, True, False, True, False]
        target = run.weights()["recipe.target"]
        assert target.shape == (400, 10)

    @pytest.mark.parametrize(
        ("epochs", "every", "soft"),
        [(6, 1, [3, 4, 5]), (4, 1, [2, 3]), (2, 1, [1]), (6, 2, [3, 5]), (8, 3, [4, 7])],
    )
    def test_targets_are_used_from_then_on(
        self, epochs, every, soft, splits, tmp_path, monkeypatch
    ):
        seen = set()
        plain = recipes.Recipe.of_logits

        def of_logits(job, logits, batch):
            if batch.target.is_floating_point():
                seen.add(job.epoch)
            return plain(job, logits, batch)

        monkeypatch.setattr(recipes.Recipe, "of_logits", staticmethod(of_logits))
        options = {"start": 0.5, "targets_every": every}
        train(config("cape", epochs=epochs, recipe_options=options), tmp_path, data=splits)
        assert sorted(seen) == soft

    def test_an_epoch_must_be_left_for_targets(self, splits, tmp_path):
        with pytest.raises(InputError, match=r"start after 1 of 1 epochs.*earlier start"):
            train(config("cape", epochs=1), tmp_path, data=splits)

    def test_targets_are_probabilities(self, splits, tmp_path):
        run = train(config("cape", epochs=6), tmp_path, data=splits)
        target = run.weights()["recipe.target"]
        assert torch.allclose(target.sum(1), torch.ones(400), atol=1e-5)


class TestStageTwo:
    @pytest.mark.slow
    def test_mac_cal_reduces_overconfidence(self, splits, tmp_path):
        settings = {"epochs": 60, "schedule": "constant"}
        plain = train(config(**settings), tmp_path / "plain", data=splits)
        reduced = train(
            config(
                "mac_cal", **settings, recipe_options={"epochs": 40, "width": 64, "batch_size": 32}
            ),
            tmp_path / "reduced",
            data=splits,
        )
        before, after = plain.outcome["figures"], reduced.outcome["figures"]
        assert before["test_ece"] > 0.1
        assert after["test_ece"] < before["test_ece"] - 0.03
        assert after["test_accuracy"] > before["test_accuracy"] - 0.05
        # Stage one is the same run: the extractor did not move.
        assert torch.equal(
            plain.weights()["network.body.1.weight"], reduced.weights()["network.body.1.weight"]
        )

    def test_variational_head_by_hand(self):
        generator = torch.Generator().manual_seed(0)
        features, labels = torch.randn(40, 4, generator=generator), torch.arange(40) % 5
        head = VTSTHead(latent=3, samples=6, epochs=2).fit(features, labels)
        rows = torch.randn(2, 4)
        mean, std = head.latent_of(rows)
        each = [
            torch.softmax(F.linear(mean + std * draw, head.weight_, head.bias_), 1)
            for draw in head.draws_
        ]
        assert torch.allclose(head(rows).exp(), torch.stack(each).mean(0), atol=1e-6)
        assert torch.equal(head(rows), head(rows))
        normal = torch.distributions.Normal
        wanted = torch.distributions.kl_divergence(normal(mean, std), normal(0.0, 1.0)).sum(1)
        assert torch.allclose(kl_to_standard(mean, std), wanted, atol=1e-5)

    def test_any_network_with_a_head(self, splits, tmp_path):
        class User(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.fc = nn.Linear(64, 20), nn.Linear(20, 10)

            def forward(self, images):
                return self.fc(self.body(images.flatten(1)).relu())

        for name in ("mac_cal", "vtst"):
            torch.manual_seed(0)
            run = train(config(name), tmp_path / name, data=splits, network=User())
            assert run.outcome["figures"]["test_accuracy"] > 0.5

    @pytest.mark.parametrize("name", ["mac_cal", "tst", "vtst", "balcal", "mc_dropout"])
    def test_a_head_given_by_name(self, name, splits, tmp_path):
        def user():
            torch.manual_seed(0)
            layers = nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10)
            return nn.Sequential(*layers, nn.Identity())

        with pytest.raises(InputError, match="found no classifier head"):  # before any epoch
            make_job(config(name), splits, user())
        make_job(config(name), splits, user()[:-1])  # a linear layer at the end is found
        run = train(config(name, head="3"), tmp_path / "run", data=splits, network=user())
        assert run.outcome["figures"]["test_accuracy"] > 0.5


@pytest.mark.parametrize("name", [name for name in NAMES if not recipes.get(name).dense])
def test_dense_labels_are_refused_before_any_epoch(name, tmp_path):
    images = torch.randint(256, (12, 3, 8, 8), dtype=torch.uint8)
    labels = torch.randint(2, (12, 8, 8))
    part = data.Images(images, labels, ("a", "b"))
    splits = data.Splits(part, part, part, (0.5,) * 3, (0.2,) * 3)
    with pytest.raises(InputError, match=f"{name} needs one label an image"):
        make_job(config(name), splits, nn.Conv2d(3, 2, 1))


class TestDropout:
    def test_mean_of_softmaxes(self, splits):
        options = {"samples": 7, "rate": 0.5}
        job = make_job(config("mc_dropout", recipe_options=options), splits, None)
        assert any(isinstance(module, nn.Dropout) for module in job.network.modules())
        batch = next(iter(job.batches(train=False)))
        job.network.eval()
        with torch.no_grad():
            first = job.recipe.predict(job, batch.inputs)
            second = job.recipe.predict(job, batch.inputs)
            plain = job.model(batch.inputs)
        assert torch.equal(first, second)
        assert torch.allclose(first.exp().sum(1), torch.ones(len(first)), atol=1e-5)
        assert not torch.allclose(torch.softmax(plain, 1), first.exp(), atol=1e-3)
        assert not any(module.training for module in job.network.modules())

    def test_keeps_the_dropout_of_the_network(self, splits):
        settings = config("mc_dropout", model_options={"hidden": [20], "dropout": 0.3})
        job = make_job(settings, splits, None)
        assert isinstance(job.network.classifier, nn.Linear)


class TestEnsemble:
    def test_is_the_mean_of_its_members(self, splits, tmp_path):
        ensemble = config("deep_ensemble", recipe_options={"members": 3})
        run = train(ensemble, tmp_path / "run", data=splits)
        members = [Run(run.folder / "members" / str(i)) for i in range(3)]
        assert [member.config.seed for member in members] == [0, 1, 2]
        softmaxes = [
            torch.softmax(member.predictions("test").scores.double(), 1) for member in members
        ]
        mean = torch.softmax(run.predictions("test").scores.double(), 1)
        assert torch.allclose(mean, torch.stack(softmaxes).mean(0), atol=1e-6)
        losses = [member.outcome["figures"]["test_nll"] for member in members]
        assert run.outcome["figures"]["test_nll"] < sum(losses) / 3  # Jensen
        with pytest.raises(InputError, match="members"):
            run.weights()

    def test_bad_options(self):
        with pytest.raises(InputError, match="at least 2"):
            recipes.get("deep_ensemble", members=1)
        with pytest.raises(InputError, match="must not be ensembles"):
            recipes.get("deep_ensemble", recipe="deep_ensemble")


def test_split_is_used_for_features(splits):
    job = make_job(config(), splits, None)
    features, labels = job.features(job.train)
    assert features.shape == (400, 48)
    assert torch.equal(labels, splits.train.labels)
    assert isinstance(job.split(), models.Split)
    assert math.isfinite(float(features.sum()))
