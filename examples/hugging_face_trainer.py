"""Hugging Face: a Trainer with a calibrant loss, and a callback that judges and repairs.

    pip install 'calibrant[huggingface]' && python examples/hugging_face_trainer.py

It suits models that classify sequences, images or tokens; labels of -100 are ignored, as usual.
"""

from __future__ import annotations

import digits
import torch
from torch import Tensor, nn
from torch.utils.data import random_split
from transformers import Trainer, TrainingArguments

from calibrant.integrations.hugging_face import (
    CalibrationCallback,
    TrainerLoss,
    write_model_card_block,
)


class Digits(nn.Module):
    """A network with the interface of a transformers model."""

    def __init__(self) -> None:
        super().__init__()
        self.network = digits.network()

    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return logits by name; Trainer requires the ``labels`` argument."""
        return {"logits": self.network(pixels)}


def main(epochs: int = 100) -> None:
    """Train with the gradients of two batches per step, calibrate, and report on other rows."""
    train_rows, others = (
        [{"pixels": pixels, "labels": label} for pixels, label in part] for part in digits.data()
    )
    held_out, test_rows = random_split(others, [0.5, 0.5], torch.Generator().manual_seed(0))
    settings = TrainingArguments(
        output_dir="run",
        num_train_epochs=epochs,
        per_device_train_batch_size=25,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        eval_strategy="epoch",
        report_to="none",
        save_strategy="no",
    )
    callback = CalibrationCallback(picture_every=10)
    trainer = Trainer(
        model=Digits(),
        args=settings,
        train_dataset=train_rows,
        eval_dataset=held_out,
        compute_loss_func=TrainerLoss("focal+0.5*s_avuc"),
        compute_metrics=callback.compute_metrics,
        callbacks=[callback],
    )
    trainer.train()
    block = callback.report(trainer.predict(test_rows))
    print(block)
    print(f"model card: {write_model_card_block('run/README.md', block)}")


if __name__ == "__main__":
    main()
