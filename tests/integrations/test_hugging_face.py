"""The Hugging Face callback, metrics, loss and model card, with the real Trainer.

Models are tiny and random: a BERT of one layer, and a linear tagger that counts its calls.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import calibrant
from calibrant import Predictions, losses
from calibrant.core.errors import InputError

transformers = pytest.importorskip("transformers")

from calibrant.integrations.hugging_face import (  # noqa: E402
    CalibrationCallback,
    TrainerLoss,
    compute_metrics,
    make_model_card_block,
    read_output,
    write_model_card_block,
)

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
SETTINGS = {"max_position_embeddings": 8, "vocab_size": 20, "hidden_size": 8}
SETTINGS |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


class Tagger(nn.Module):
    """A model for rows (B,4) or tokens (B,T,4), whose layer starts overconfident."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        self.layer.weight.data *= 8
        self.calls = 0

    def forward(self, values, labels=None):
        self.calls += 1
        logits = self.layer(values)
        if labels is None:
            return {"logits": logits}
        return {"loss": cross_entropy(logits.movedim(-1, 1), labels), "logits": logits}


def make_rows(count, *shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, *shape, 4, generator=generator)
    labels = values[..., :3].argmax(-1)
    flipped = torch.rand(labels.shape, generator=generator) < 0.3
    labels[flipped] = 0
    if shape:
        labels[:, -1] = -100
    return [{"values": v, "labels": y} for v, y in zip(values, labels, strict=True)]


def make_bert_rows(count, seed=1):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 20, (count, 6), generator=generator)
    return [{"input_ids": row, "labels": row[0] % 3} for row in tokens]


def make_bert(seed=0, **options):
    torch.manual_seed(seed)
    config = transformers.BertConfig(num_labels=3, **SETTINGS)
    return transformers.BertForSequenceClassification(config)


def make_trainer(folder, model, callback=None, **options):
    settings = {
        "output_dir": str(folder),
        "num_train_epochs": 2,
        "per_device_train_batch_size": 16,
        "learning_rate": 0.0,
        "report_to": "none",
        "save_strategy": "no",
        "eval_strategy": "epoch",
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 0,
    }
    names = ("compute_metrics", "compute_loss_func", "train_dataset", "eval_dataset")
    own = {name: options.pop(name) for name in names if name in options}
    arguments = transformers.TrainingArguments(**{**settings, **options})
    callbacks = [] if callback is None else [callback]
    return transformers.Trainer(model=model, args=arguments, callbacks=callbacks, **own)


def predict(model, rows):
    values, labels = (torch.stack([row[name] for row in rows]) for name in ("values", "labels"))
    with torch.no_grad():
        return Predictions.from_logits(model.layer(values), labels)


def test_the_callback_judges_repairs_and_reports_a_bert(tmp_path):
    train, held_out, test = (make_bert_rows(n, seed) for n, seed in ((32, 1), (120, 2), (200, 3)))
    seen = []
    callback = CalibrationCallback(
        method="temperature", on_evaluation=lambda evaluation, step: seen.append(step)
    )
    trainer = make_trainer(
        tmp_path,
        make_bert(),
        callback,
        train_dataset=train,
        eval_dataset=held_out,
        compute_metrics=callback.compute_metrics,
        learning_rate=1e-2,
    )
    trainer.train()
    output = trainer.predict(held_out)
    rows = Predictions.from_logits(output.predictions, output.label_ids)
    figures = calibrant.evaluate(rows, metrics=("accuracy", "nll", "ece"))
    logged = [record for record in trainer.state.log_history if "eval_ece" in record]
    assert len(logged) == 2
    for name in ("accuracy", "nll", "ece"):
        assert logged[1][f"eval_{name}"] == pytest.approx(figures[name].value, rel=1e-4)
        assert logged[1][f"eval_{name}_low"] == pytest.approx(figures[name].low, rel=1e-4)
    assert seen == [2, 4]
    folder = tmp_path / "calibration"
    names = {path.name for path in folder.iterdir()}
    assert names == {"reliability-step=2.png", "reliability-step=4.png", "calibrator.safetensors"}
    expected = calibrant.calibrate(rows, method="temperature")
    scores = output.predictions
    loaded = calibrant.load(folder / "calibrator.safetensors")
    np.testing.assert_allclose(loaded.calibrate(scores), expected.calibrate(scores), rtol=1e-3)
    tokens = torch.stack([row["input_ids"] for row in held_out])
    with torch.no_grad():
        joined = callback.calibrated_.eval()(input_ids=tokens)
    assert type(joined).__name__ == "SequenceClassifierOutput"
    np.testing.assert_allclose(joined.logits, loaded.calibrate(scores), rtol=1e-3, atol=1e-5)
    block = callback.report(trainer.predict(test))
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert 'id="repair"' in text
    assert "BertForSequenceClassification" in text
    assert "| metric | before, 95% interval | after, 95% interval |" in block
    assert 'calibrant.load("calibrator.safetensors")' in block


def test_without_compute_metrics_the_model_is_run_again(tmp_path):
    held_out = make_rows(100, seed=2)
    model, callback = Tagger(), CalibrationCallback(method=None, picture_every=0)
    trainer = make_trainer(tmp_path, model, callback, eval_dataset=held_out)
    trainer.evaluate()
    figures = calibrant.evaluate(predict(model, held_out), metrics=("accuracy", "nll", "ece"))
    for name, figure in figures.figures.items():
        assert callback.evaluation_[name].value == pytest.approx(figure.value, rel=1e-5)
    assert model.calls == 2 * 13
    calls = model.calls
    trainer.compute_metrics = callback.compute_metrics
    trainer.evaluate()
    assert model.calls == calls + 13


def test_the_best_model_is_calibrated_if_it_is_loaded(tmp_path):
    train, held_out = make_bert_rows(32), make_bert_rows(120, seed=2)
    callback = CalibrationCallback(method="temperature", picture_every=0)
    trainer = make_trainer(
        tmp_path,
        make_bert(),
        callback,
        train_dataset=train,
        eval_dataset=held_out,
        compute_metrics=callback.compute_metrics,
        learning_rate=0.1,
        num_train_epochs=3,
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="eval_nll",
        greater_is_better=True,
    )
    trainer.train()
    values = [record["eval_nll"] for record in trainer.state.log_history if "eval_nll" in record]
    assert max(values) != values[-1]
    output = trainer.predict(held_out)
    rows = Predictions.from_logits(output.predictions, output.label_ids)
    assert calibrant.metrics.nll(rows.array, rows.labels) == pytest.approx(max(values), rel=1e-4)
    expected = calibrant.calibrate(rows, method="temperature").calibrate(rows.array)
    np.testing.assert_allclose(callback.calibrator_.calibrate(rows.array), expected, rtol=1e-3)


def test_tokens_are_rows_in_clusters_of_texts(tmp_path):
    held_out = make_rows(60, 5, seed=2)
    callback = CalibrationCallback(method="temperature", picture_every=0)
    model = Tagger()
    options = {"train_dataset": make_rows(16, 5), "eval_dataset": held_out}
    trainer = make_trainer(
        tmp_path, model, callback, compute_metrics=callback.compute_metrics, **options
    )
    trainer.train()
    predictions = read_output(trainer.predict(held_out))
    assert len(predictions) == 60 * 4
    np.testing.assert_array_equal(predictions.clusters, np.repeat(np.arange(60), 4))
    again = callback._run(model, trainer.get_eval_dataloader())
    np.testing.assert_allclose(again.array, predictions.array, rtol=1e-5)
    np.testing.assert_array_equal(again.labels, predictions.labels)
    np.testing.assert_array_equal(again.clusters, predictions.clusters)
    assert callback.evaluation_.num_clusters == 60
    assert callback.calibrator_ is not None
    assert callback.calibrated_ is None


def test_many_labels_and_class_names_are_what_make_predictions_says():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(50, 3)), rng.integers(0, 2, (50, 3)).astype(np.float32)
    output = SimpleNamespace(predictions=(logits, None), label_ids=labels)
    make = partial(Predictions.from_multilabel, class_names=["a", "b", "c"])
    assert read_output(output, make_predictions=make).task == "multilabel"
    figures = compute_metrics(output, metrics=["ece"], intervals=False, make_predictions=make)
    expected = calibrant.evaluate(make(logits, labels), metrics=["ece"], intervals=False)
    assert figures == {"ece": expected["ece"].value}
    binary = SimpleNamespace(predictions=logits[:, :1], label_ids=labels[:, 0].astype(int))
    assert read_output(binary, name="one").num_classes == 2
    with pytest.raises(InputError, match="no labels"):
        read_output(SimpleNamespace(predictions=logits, label_ids=None))


def make_step(rows, loss, model):
    """One step of gradient descent at rate 1 on the loss of all rows."""
    values, labels = (torch.stack([row[name] for row in rows]) for name in ("values", "labels"))
    loss(model(values)["logits"].movedim(-1, 1), labels).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= parameter.grad
    return model


@pytest.mark.parametrize("shape", [(), (5,)])
def test_the_loss_adds_up_gradients_of_several_batches_as_of_one(tmp_path, shape):
    rows, model = make_rows(8, *shape), Tagger()
    trainer = make_trainer(
        tmp_path,
        model,
        train_dataset=rows,
        eval_dataset=rows,
        compute_loss_func=TrainerLoss("focal"),
        max_steps=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        optim="sgd",
        learning_rate=1.0,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        eval_strategy="no",
    )
    trainer.train()
    expected = make_step(rows, losses.Focal(), Tagger())
    torch.testing.assert_close(model.layer.weight, expected.layer.weight, rtol=1e-5, atol=1e-6)
    values, labels = (torch.stack([row[name] for row in rows]) for name in ("values", "labels"))
    with torch.no_grad():
        likelihood = cross_entropy(expected(values)["logits"].movedim(-1, 1), labels)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(likelihood), rel=1e-4)


def test_the_loss_composes_and_takes_a_module():
    rows, model = make_rows(8), Tagger()
    values, labels = (torch.stack([row[name] for row in rows]) for name in ("values", "labels"))
    output = model(values)
    composed = TrainerLoss("focal+0.5*s_avuc")(output, labels)
    logits = output["logits"]
    expected = losses.focal(logits, labels) + 0.5 * losses.s_avuc(logits, labels)
    torch.testing.assert_close(composed, expected)
    half = TrainerLoss(losses.Focal())(output, labels, num_items_in_batch=16)
    torch.testing.assert_close(half, losses.focal(logits, labels) / 2)


def test_model_cards_keep_what_else_they_say(tmp_path):
    rng = np.random.default_rng(0)
    rows = Predictions.from_logits(3 * rng.normal(size=(300, 3)), rng.integers(0, 3, 300))
    evaluation = calibrant.evaluate(rows, metrics=["ece"])
    block = make_model_card_block(evaluation)
    assert block.startswith(f"## Calibration\n\n{evaluation.verdict.headline}\n\n| metric |")
    assert "Measured on 300 rows" in block
    card = tmp_path / "README.md"
    card.write_text("---\nlicense: mit\n---\n# A model\n", encoding="utf-8")
    write_model_card_block(card, block)
    first = card.read_text(encoding="utf-8")
    assert first.startswith("---\nlicense: mit\n---\n# A model\n\n<!-- calibrant: begin -->\n## C")
    card.write_text(first + "\n## Use\n", encoding="utf-8")
    write_model_card_block(card, block.replace("300", "301"))
    text = card.read_text(encoding="utf-8")
    assert text == first.replace("300", "301") + "\n## Use\n"
    assert write_model_card_block(tmp_path / "new" / "README.md", block).exists()


def test_wrong_use_says_what_to_do(tmp_path):
    callback = CalibrationCallback(picture_every=0)
    trainer = make_trainer(
        tmp_path, Tagger(), callback, train_dataset=make_rows(16), eval_strategy="no"
    )
    with pytest.raises(InputError, match="eval_strategy='epoch'"):
        trainer.train()
    with pytest.raises(InputError, match=r"report\(output, PATH\)"):
        CalibrationCallback().report(None)
