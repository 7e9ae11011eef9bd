"""The examples run, and train with the loss they name.

Each way of training is compared with the same steps written out by hand. transformers is not a
dependency: its example runs on a stand-in that calls it as `transformers.Trainer` does, and on the
real one if it is installed.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import calibrant.metrics
from calibrant import losses

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = ("digits", "plain_loop", "lightning_module", "hugging_face_trainer")


@pytest.fixture
def example(monkeypatch):
    """Import an example as a script beside the others, and forget it afterwards."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def trainers(example, monkeypatch):
    """The example for Hugging Face on top of the stand-in."""
    stand_in = ModuleType("transformers")
    stand_in.Trainer, stand_in.TrainingArguments = StandInTrainer, SimpleNamespace
    monkeypatch.setitem(sys.modules, "transformers", stand_in)
    return example("hugging_face_trainer")


class StandInTrainer:
    """Call ``compute_loss`` as `transformers.Trainer` does, and use its result in the same way.

    As of transformers 4.57 and 5.22: if the model takes further keywords, the trainer passes the
    number of labels in all batches of a step, expects the loss to be divided by it, and does not
    divide the loss by the number of batches.
    """

    def __init__(self, model, args, train_dataset=None, eval_dataset=None):
        self.model, self.args = model, args
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.args.device = torch.device("cpu")
        parameters = inspect.signature(model.forward).parameters.values()
        self.model_accepts_loss_kwargs = any(
            parameter.kind == parameter.VAR_KEYWORD for parameter in parameters
        )
        self.optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)

    def batches(self, rows, size):
        for begin in range(0, len(rows), size):
            some = rows[begin : begin + size]
            yield {key: torch.stack([row[key] for row in some]) for key in some[0]}

    def train(self):
        wanted = self.args.gradient_accumulation_steps
        for _ in range(self.args.num_train_epochs):
            batches = list(self.batches(self.train_dataset, self.args.per_device_train_batch_size))
            for begin in range(0, len(batches), wanted):
                self.step(batches[begin : begin + wanted])

    def step(self, group):
        count = None
        if self.model_accepts_loss_kwargs:
            count = sum((inputs["labels"] != -100).sum() for inputs in group)
        for inputs in group:
            self.model.train()
            loss = self.compute_loss(self.model, inputs, num_items_in_batch=count)
            (loss / len(group) if count is None else loss).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def prediction_step(self, inputs):
        self.model.eval()
        labels = inputs["labels"]
        with torch.no_grad():
            loss, outputs = self.compute_loss(
                self.model, inputs, return_outputs=True, num_items_in_batch=None
            )
        logits = tuple(value for key, value in outputs.items() if key != "loss")
        return loss.mean(), logits[0], labels

    def predict(self, rows):
        steps = [self.prediction_step(inputs) for inputs in self.batches(rows, 500)]
        mean = float(torch.stack([step[0] for step in steps]).mean())
        logits = torch.cat([step[1] for step in steps]).numpy()
        return SimpleNamespace(predictions=logits, metrics={"eval_loss": mean})

    def evaluate(self):
        return self.predict(self.eval_dataset).metrics


class Tagger(nn.Module):
    """A model like those of transformers, for rows (B,4) or tokens (B,T,4); records its inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        self.given = []

    def forward(self, values, labels=None, **further):
        self.given.append((labels, sorted(further)))
        return {"logits": self.layer(values)}


def rows_of(count, *shape):
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(count, *shape, 4, generator=generator)
    labels = torch.randint(0, 3, (count, *shape), generator=generator)
    return values, labels


def arguments(**changed):
    settings = {
        "learning_rate": 1.0,
        "num_train_epochs": 1,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
    }
    return SimpleNamespace(**{**settings, **changed})


def dataset(values, labels):
    return [{"values": v, "labels": y} for v, y in zip(values, labels, strict=True)]


def by_hand(network, loader, loss, *, epochs, rate=3e-3):
    """The usual loop with Adam."""
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    for _ in range(epochs):
        for images, labels in loader:
            value = loss(network(images), labels)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    return network


def assert_same(first, second, **tolerance):
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def differs(first, second):
    return any(
        not torch.allclose(a, b, atol=1e-3)
        for a, b in zip(first.parameters(), second.parameters(), strict=True)
    )


# A plain loop.


def test_plain_loop_trains_with_the_loss_it_names(example):
    digits, plain = example("digits"), example("plain_loop")
    loader = lambda: digits.batches(digits.data()[0])  # noqa: E731
    trained = plain.train(digits.network(), loader(), epochs=3)
    composed = losses.compose(losses.Focal(), (0.5, losses.SoftAvUC()))
    assert_same(trained, by_hand(digits.network(), loader(), composed, epochs=3))
    usual = plain.train(digits.network(), loader(), objective="cross_entropy", epochs=3)
    assert_same(usual, by_hand(digits.network(), loader(), nn.CrossEntropyLoss(), epochs=3))
    assert differs(trained, usual)


def test_two_lines_of_the_plain_loop_are_ours():
    code = (FOLDER / "plain_loop.py").read_text(encoding="utf-8")
    lines = code[code.index("from calibrant") : code.index("def main")].splitlines()
    ours = [line for line in lines if "losses" in line.split('"""')[0]]
    assert [line.split("  #")[0].strip() for line in ours] == [
        "from calibrant import losses",
        "loss = losses.get(objective)",
    ]


@pytest.mark.slow
def test_plain_loop_tells_which_is_better(example, capsys):
    example("plain_loop").main(epochs=30)
    output = capsys.readouterr().out
    assert "cross_entropy: This classifier is" in output
    assert "focal+0.5*s_avuc: " in output
    assert "is better in" in output


# Lightning.


@pytest.mark.filterwarnings("ignore")
def test_lightning_takes_the_steps_of_a_plain_loop_and_logs_figures(example):
    lightning = pytest.importorskip("lightning")
    digits, module = example("digits"), example("lightning_module")
    rows, others = digits.data()
    classifier = module.Classifier(digits.network())
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    # In order: Lightning may draw from a generator of its own accord.
    loaders = [digits.batches(part, shuffle=False) for part in (rows, others)]
    trainer.fit(classifier, *loaders)
    composed = losses.compose(losses.Focal(), (0.5, losses.SoftAvUC()))
    expected = by_hand(digits.network(), loaders[0], composed, epochs=3)
    assert_same(classifier.network, expected)
    images, labels = others.tensors
    with torch.no_grad():
        logits = expected(images)
    for name in ("ece", "nll"):
        logged = float(trainer.callback_metrics[f"val_{name}"])
        assert logged == pytest.approx(float(getattr(calibrant.metrics, name)(logits, labels)))


@pytest.mark.filterwarnings("ignore")
def test_lightning_example_runs(example, capsys):
    pytest.importorskip("lightning")
    example("lightning_module").main(epochs=1)
    assert "'val_ece'" in capsys.readouterr().out


# Hugging Face.


def test_trainer_adds_up_the_gradients_of_several_batches_as_of_one(trainers):
    values, labels = rows_of(8)
    model = Tagger()
    trainer = trainers.CalibratedTrainer(
        model=model, args=arguments(), train_dataset=dataset(values, labels), objective="focal"
    )
    trainer.train()
    assert len(model.given) == 2
    assert_same(model, whole_step(values, labels), rtol=1e-5, atol=1e-6)


def whole_step(values, labels):
    """One step of gradient descent on the focal loss of all rows, at rate 1."""
    expected = Tagger()
    losses.focal(expected(values)["logits"], labels).backward()
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter -= parameter.grad
    return expected


def test_trainer_composes_and_keeps_labels_from_the_model(trainers):
    values, labels = rows_of(8)
    model = Tagger()
    trainer = trainers.CalibratedTrainer(model=model, args=arguments())
    inputs = {"values": values, "labels": labels}
    loss = trainer.compute_loss(model, inputs, num_items_in_batch=torch.tensor(99))
    logits = model.layer(values)
    expected = losses.focal(logits, labels) + 0.5 * losses.s_avuc(logits, labels)
    torch.testing.assert_close(loss, expected)
    assert model.given == [(None, [])]
    assert set(inputs) == {"values", "labels"}


def test_trainer_takes_a_label_for_each_token_and_ignores_minus_100(trainers):
    values, labels = rows_of(2, 5)
    labels[0, 3:] = -100
    model = Tagger()
    trainer = trainers.CalibratedTrainer(model=model, args=arguments(), objective="focal")
    loss = trainer.compute_loss(model, {"values": values, "labels": labels})
    kept = labels != -100
    torch.testing.assert_close(loss, losses.focal(model.layer(values)[kept], labels[kept]))


def test_trainer_evaluates_by_likelihood_and_returns_the_logits(trainers):
    values, labels = rows_of(6)
    model = Tagger()
    trainer = trainers.CalibratedTrainer(
        model=model, args=arguments(), eval_dataset=dataset(values, labels)
    )
    logits = model.layer(values).detach()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(cross_entropy(logits, labels)))
    _, returned, targets = trainer.prediction_step({"values": values, "labels": labels})
    torch.testing.assert_close(returned, logits)
    assert torch.equal(targets, labels)


def test_trainer_example_runs(trainers, capsys):
    trainers.main(epochs=2)
    output = capsys.readouterr().out
    assert "eval_loss" in output
    assert "mean confidence" in output


@pytest.mark.filterwarnings("ignore")
def test_real_trainer_adds_up_gradients_alike(example, tmp_path):
    transformers = pytest.importorskip("transformers")
    values, labels = rows_of(8)
    model = Tagger()
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        optim="sgd",
        learning_rate=1.0,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        remove_unused_columns=False,
    )
    rows = dataset(values, labels)
    trainer = example("hugging_face_trainer").CalibratedTrainer(
        model=model, args=settings, train_dataset=rows, eval_dataset=rows, objective="focal"
    )
    trainer.train()
    expected = whole_step(values, labels)
    assert_same(model, expected, rtol=1e-5, atol=1e-6)
    likelihood = float(cross_entropy(expected(values)["logits"], labels))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(likelihood, rel=1e-4)
