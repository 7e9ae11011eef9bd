"""The engine: settings, run folders, learning rates, weight averages, refusals."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from calibrant import metrics
from calibrant.core.errors import InputError
from calibrant.training.config import Config
from calibrant.training.optimizer import Average, learning_rate, renew_batch_norm

pytest.importorskip("lightning")
from calibrant.training import Diverged, Run, train
from calibrant.training.setup import _make_parts
from tests.helpers.kill_nursery import some_digits

QUICK = {
    "epochs": 4,
    "model_options": {"hidden": [32]},
    "device": "cpu",
    "lr": 0.05,
    "batch_size": 25,
}


@pytest.fixture(scope="module")
def splits():
    return some_digits(400, 300, 200)


class TestConfig:
    def test_round_trip(self, tmp_path):
        config = Config(milestones=(3, 5), clip=1.0, recipe_options={"a": 1}, report_epoch="last")
        (tmp_path / "c.yaml").write_text(config.to_yaml())
        assert Config.read(tmp_path / "c.yaml") == config
        assert config.changed(lr=0.2).lr == 0.2

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"learning_rate": 0.1}, "unknown setting 'learning_rate'"),
            ({"epoch": 3}, "did you mean epochs"),
            ({"epochs": 2.5}, "epochs must be int, found 2.5"),
            ({"epochs": 0}, "at least 1"),
            ({"epochs": True}, "epochs must be int"),
            ({"lr": "fast"}, "lr must be float, found 'fast'"),
            ({"lr": 0.0}, "above 0"),
            ({"optimizer": "adam"}, "sgd, adamw"),
            ({"milestones": [1.5]}, "whole numbers"),
            ({"model_options": 3}, "mapping"),
            ({"report_epoch": "best"}, "lowest_ece_after:N"),
            ({"report_epoch": "lowest_ece_after:30"}, "there are 30 epochs"),
            ({"schedule": "multi_step"}, "there are none"),
            ({"report_epoch": "best_validation", "average": "swa"}, "swa averages the last"),
            ({"flip": 1}, "flip must be bool"),
        ],
    )
    def test_mistakes_are_explained(self, settings, message):
        with pytest.raises(InputError, match=message):
            Config.of(settings)

    def test_yaml_may_write_small_numbers_plainly(self, tmp_path):
        (tmp_path / "c.yaml").write_text("lr: 1e-3\nclip: 2\n")
        assert Config.read(tmp_path / "c.yaml").lr == 1e-3
        (tmp_path / "c.yaml").write_text("- a\n")
        with pytest.raises(InputError, match="name: value"):
            Config.read(tmp_path / "c.yaml")
        (tmp_path / "c.yaml").write_text("a: [")
        with pytest.raises(InputError, match="not YAML"):
            Config.read(tmp_path / "c.yaml")


class TestRates:
    def test_multi_step(self):
        config = Config(schedule="multi_step", milestones=(2, 3), epochs=4, lr=1.0)
        assert [round(learning_rate(config, step, 2), 6) for step in range(8)] == [
            1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01,
        ]  # fmt: skip

    def test_cosine(self):
        config = Config(schedule="cosine", epochs=4, lr=2.0)
        assert learning_rate(config, 0, 5) == 2.0
        assert learning_rate(config, 10, 5) == pytest.approx(1.0)
        assert learning_rate(config, 15, 5) == pytest.approx(1 - 0.5**0.5)

    def test_one_cycle_rises_and_falls(self):
        config = Config(schedule="one_cycle", epochs=10, lr=1.0, warmup=0.3)
        rates = [learning_rate(config, step, 10) for step in range(101)]
        assert rates[0] == pytest.approx(0.04)
        assert max(rates) == rates[30] == pytest.approx(1.0)
        assert rates[65] == pytest.approx(0.5)
        assert rates[100] == 0
        assert learning_rate(Config(schedule="constant", lr=0.3), 7, 2) == 0.3


class TestAverages:
    def test_plain_average(self):
        net = nn.Linear(2, 1)
        mean, seen = Average(net, None), []
        for value in (1.0, 2.0, 6.0):
            nn.init.constant_(net.weight, value)
            seen.append(value)
            mean.update(net)
        assert torch.allclose(mean.weights[0], torch.full((1, 2), 3.0))
        mean.copy_to(net)
        assert torch.allclose(net.weight, torch.full((1, 2), 3.0))

    def test_exponential_average_of_a_constant_is_it(self):
        net = nn.Linear(2, 1)
        mean = Average(net, 0.9)
        nn.init.constant_(net.weight, 5.0)
        for _ in range(400):
            mean.update(net)
        assert torch.allclose(mean.weights[0], net.weight, atol=1e-4)
        nn.init.constant_(net.weight, 6.0)
        mean.update(net)
        assert torch.allclose(mean.weights[0], torch.full((1, 2), 5.1), atol=1e-4)

    def test_batch_norm_is_renewed(self):
        net = nn.Sequential(nn.BatchNorm1d(2))
        batches = [torch.randn(50, 2) + 3, torch.randn(50, 2) + 5]
        renew_batch_norm(net, batches)
        wanted = torch.stack([batch.mean(0) for batch in batches]).mean(0)
        assert torch.allclose(net[0].running_mean, wanted)
        assert net[0].momentum == 0.1


class TestRuns:
    def test_a_run_is_a_folder(self, tmp_path, splits):
        lines = []
        run = train(Config(**QUICK), tmp_path / "run", data=splits, on_epoch=lines.append)
        assert [line["epoch"] for line in run.metrics] == [1, 2, 3, 4]
        assert len(lines) == 4
        assert {"train_ece", "validation_ece", "lr", "train_loss"} <= set(run.metrics[0])
        for part, rows in (("train", 400), ("validation", 300), ("test", 200)):
            predictions = run.predictions(part)
            assert predictions.num_rows == rows
            accuracy = float(metrics.accuracy(predictions.scores, predictions.labels))
            assert accuracy == pytest.approx(run.outcome["figures"][f"{part}_accuracy"])
        assert run.outcome["figures"]["test_accuracy"] > 0.7
        assert run.outcome["rule"] == "last"
        assert run.outcome["epoch"] == 4
        assert run.config == Config(**QUICK)
        assert json.loads((run.folder / "environment.json").read_text())["torch"]
        assert json.loads((run.folder / "chosen.json").read_text())["epoch"] == 4
        # A finished run is not trained again.
        before = (run.folder / "run.json").stat().st_mtime_ns
        again = train(Config(**QUICK), tmp_path / "run", data=splits)
        assert (again.folder / "run.json").stat().st_mtime_ns == before

    def test_a_run_resumed_elsewhere_records_it(self, tmp_path, splits, monkeypatch):
        class Stop(Exception):
            pass

        def stop(line):
            raise Stop

        for threads in (1, 2, 2, 1):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            with pytest.raises(Stop):
                train(Config(**QUICK), tmp_path, data=splits, on_epoch=stop)
        record = json.loads((tmp_path / "environment.json").read_text())
        assert record["threads"] == 1
        assert [entry["threads"] for entry in record["resumed"]] == [2]

    def test_seed_decides_everything(self, tmp_path, splits):
        def weights(name, seed):
            torch.rand(3)  # earlier draws do not matter
            config = Config(**QUICK, seed=seed)
            return train(config, tmp_path / name, data=splits).weights()

        first, same, different = weights("a", 0), weights("b", 0), weights("c", 1)
        assert all(torch.equal(first[key], same[key]) for key in first)
        assert not all(torch.equal(first[key], different[key]) for key in first)

    def test_a_network_that_cannot_take_these_images_is_named_with_others(self, tmp_path, splits):
        with pytest.raises(InputError, match=r"lenet5 does not take images of 1 x 8 x 8.*mlp"):
            train(Config.of({"model": "lenet5"}), tmp_path / "run", data=splits)

    def test_other_settings_in_the_same_folder_are_refused(self, tmp_path, splits):
        train(Config(**QUICK), tmp_path / "run", data=splits)
        with pytest.raises(InputError, match=r"lr: 0\.05 there, 0\.1 now"):
            train(Config(**{**QUICK, "lr": 0.1}), tmp_path / "run", data=splits)
        (tmp_path / "notes").mkdir()
        (tmp_path / "notes" / "x.txt").touch()
        with pytest.raises(InputError, match="not a run"):
            train(Config(**QUICK), tmp_path / "notes", data=splits)
        with pytest.raises(InputError, match="is not finished"):
            _ = Run(tmp_path / "nothing").outcome
        with pytest.raises(InputError, match="train, validation, test"):
            Run(tmp_path / "run").predictions("all")

    def test_nan_stops_with_the_reason(self, tmp_path, splits):
        config = Config(**{**QUICK, "lr": 1e12})
        with pytest.raises(Diverged, match=r"epoch 1.*lower lr"):
            train(config, tmp_path / "run", data=splits)
        assert not Run(tmp_path / "run").is_done
        # There is no checkpoint: the folder can be used again.
        assert train(Config(**QUICK), tmp_path / "run", data=splits).is_done

    @pytest.mark.parametrize("average", ["ema", "swa"])
    def test_averages_train(self, average, tmp_path, splits):
        config = Config(**QUICK, average=average, ema_decay=0.9, swa_start=0.5)
        run = train(config, tmp_path / "run", data=splits)
        plain = train(Config(**QUICK), tmp_path / "plain", data=splits)
        assert run.outcome["figures"]["test_accuracy"] > 0.7
        key = "network.classifier.weight"
        assert not torch.equal(run.weights()[key], plain.weights()[key])

    def test_other_optimisers_and_options(self, tmp_path, splits):
        config = Config(
            **{**QUICK, "lr": 3e-3},
            optimizer="adamw",
            schedule="one_cycle",
            clip=1.0,
            crop=1,
            flip=True,
            cutout=2,
            precision="bf16",
            evaluate_every=2,
        )
        run = train(config, tmp_path / "run", data=splits)
        assert "validation_ece" not in run.metrics[0]
        assert "validation_ece" in run.metrics[1]
        assert run.outcome["figures"]["train_accuracy"] > 0.4

    def test_the_epoch_reported_follows_the_rule(self, tmp_path, splits):
        config = Config(**{**QUICK, "epochs": 6}, report_epoch="lowest_ece_after:2")
        run = train(config, tmp_path / "ece", data=splits)
        later = [line for line in run.metrics if line["epoch"] > 2]
        best = min(later, key=lambda line: line["validation_ece"])
        assert run.outcome["epoch"] == best["epoch"]
        figures = run.outcome["figures"]
        assert figures["validation_ece"] == pytest.approx(best["validation_ece"], rel=1e-6)
        config = config.changed(report_epoch="best_validation")
        run = train(config, tmp_path / "accuracy", data=splits)
        best = max(run.metrics, key=lambda line: line["validation_accuracy"])
        assert run.outcome["epoch"] == best["epoch"]
        assert run.outcome["figures"]["validation_nll"] == pytest.approx(
            best["validation_nll"], rel=1e-6
        )

    @pytest.mark.parametrize("rule", ["best_validation", "lowest_ece_after:2"])
    def test_a_rule_without_validation_rows_is_refused(self, rule, tmp_path, splits):
        with pytest.raises(InputError, match="needs validation rows, and there are none"):
            train(Config(**QUICK, report_epoch=rule, validation=0.0), tmp_path)

    def test_members_record_their_epochs(self, tmp_path, splits):
        config = Config(**{**QUICK, "epochs": 6}, report_epoch="best_validation")
        config = config.changed(recipe="deep_ensemble", recipe_options={"members": 2})
        run = train(config, tmp_path, data=splits)
        members = [Run(tmp_path / "members" / str(i)).outcome["epoch"] for i in range(2)]
        assert run.outcome["epochs"] == members
        assert (run.outcome["rule"], run.outcome["epochs_rule"]) == ("mean", "best_validation")

    def test_any_network_and_loss_with_memory(self, tmp_path, splits):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        config = Config(**QUICK, loss="crl")
        run = train(config, tmp_path / "run", data=splits, network=net)
        assert run.outcome["figures"]["test_accuracy"] > 0.5

    def test_the_network_given_stays_as_it_was(self, tmp_path, splits):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        before = {name: value.clone() for name, value in net.state_dict().items()}
        config = Config(**{**QUICK, "recipe": "balcal"})
        runs = [train(config, tmp_path / n, data=splits, network=net) for n in "ab"]
        assert {name: value.tolist() for name, value in net.state_dict().items()} == {
            name: value.tolist() for name, value in before.items()
        }
        assert isinstance(net[1], nn.Linear)
        assert runs[0].outcome["figures"] == runs[1].outcome["figures"]

    def test_a_network_can_be_trained_in_place(self, tmp_path, splits):
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        run = train(Config(**QUICK), tmp_path / "run", data=splits, network=net, in_place=True)
        learned = run.weights()
        assert torch.equal(net[1].weight.cpu(), learned["network.1.weight"])
        config = Config(**{**QUICK, "recipe": "deep_ensemble", "recipe_options": {"members": 2}})
        with pytest.raises(InputError, match="several networks: leave in_place out"):
            train(config, tmp_path / "two", data=splits, network=net, in_place=True)

    def test_ordinary_loaders(self, tmp_path, splits):
        rows = [
            (image.float().flatten() / 255, label)
            for image, label in zip(splits.train.images, splits.train.labels, strict=True)
        ]
        loader = DataLoader(rows, batch_size=50)
        net = nn.Linear(64, 10)
        run = train(
            Config(**QUICK),
            tmp_path / "run",
            data=(loader, loader, loader),
            network=net,
        )
        assert run.outcome["figures"]["test_accuracy"] > 0.5
        assert run.predictions("test").num_rows == 400


def test_loaders_that_cannot_serve_are_refused(tmp_path):
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield torch.zeros(4), 0

    endless = torch.utils.data.DataLoader(Endless(), batch_size=2)
    rows = torch.utils.data.TensorDataset(torch.zeros(8, 4), torch.zeros(8).long())
    loader = torch.utils.data.DataLoader(rows, batch_size=2)
    for first, settings, message in (
        (endless, {}, "must know its length"),
        (loader, {"devices": 2}, "DistributedSampler"),
    ):
        config = Config(**{**QUICK, "model_options": {}}, **settings)
        with pytest.raises(InputError, match=message):
            _make_parts((first, loader, loader), torch.nn.Linear(4, 2), torch.device("cpu"), config)


@pytest.fixture
def compiled(monkeypatch):
    """Record the size of every compiled graph; run the graphs eagerly."""
    sizes = []

    def eagerly(graph, inputs):
        sizes.append(len(graph.graph.nodes))
        return graph.forward

    whole = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module, **_: whole(module, backend=eagerly))
    torch._dynamo.reset()
    return sizes


def test_a_compiled_run_is_the_same_run_and_predictions_compile_nothing(splits, tmp_path, compiled):
    settings = QUICK | {"epochs": 2, "precision": "bf16"}
    plain = train(Config(**settings), tmp_path / "plain", data=splits)
    assert not compiled
    fast = train(Config(**settings, compile=True), tmp_path / "fast", data=splits)
    # One graph of the network in training mode, one of the loss, neither broken.
    assert len(compiled) == 2
    left, right = plain.weights(), fast.weights()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert plain.outcome["figures"] == fast.outcome["figures"]


def test_a_loss_that_fails_to_compile_is_trained_uncompiled(splits, tmp_path, monkeypatch):
    whole = torch.compile

    def compile(module, **_):
        def backend(graph, inputs):
            if isinstance(module, torch.nn.Module) and not list(module.parameters()):
                raise RuntimeError("PassManager::run failed")
            return graph.forward

        return whole(module, backend=backend)

    settings = QUICK | {"epochs": 1, "loss": "focal+0.5*s_avuc"}
    plain = train(Config(**settings), tmp_path / "plain", data=splits)
    monkeypatch.setattr(torch, "compile", compile)
    with pytest.warns(UserWarning, match=r"failed on the loss focal\+0.5\*s_avuc.*PassManager"):
        fast = train(Config(**settings, compile=True), tmp_path / "fast", data=splits)
    left, right = plain.weights(), fast.weights()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_compiled_runs_are_cuda_graphs_on_a_single_gpu_only():
    from calibrant.training.setup import graph_mode

    single, double = Config(compile=True), Config(compile=True, devices=2)
    assert graph_mode(single, torch.device("cuda")) == "reduce-overhead"
    assert graph_mode(double, torch.device("cuda")) is None
    assert graph_mode(single, torch.device("cpu")) is None


@pytest.mark.slow
def test_a_process_that_makes_many_runs_compiles_each(splits, tmp_path, compiled):
    for seed in range(10):  # PyTorch keeps eight graphs of one function, then gives up
        config = Config(**QUICK | {"epochs": 1}, compile=True, seed=seed)
        train(config, tmp_path / str(seed), data=splits)
        assert len(compiled) == 2 * (seed + 1)


def test_a_network_whose_layers_freeze_is_not_compiled(splits, tmp_path, compiled):
    settings = QUICK | {"epochs": 4, "recipe": "plp"}
    train(Config(**settings, compile=True), tmp_path / "run", data=splits)
    assert len(compiled) == 1  # the loss
