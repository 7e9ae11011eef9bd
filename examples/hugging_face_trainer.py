"""Hugging Face: a Trainer that trains with a calibrant loss.

    pip install 'transformers[torch]' && python examples/hugging_face_trainer.py

It suits models that classify sequences, images or tokens; labels of -100 are ignored, as usual.
A language model's labels must be shifted by one place first, which this does not do.
"""

from __future__ import annotations

from typing import Any

import digits
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainingArguments

from calibrant import losses


class CalibratedTrainer(Trainer):
    """`transformers.Trainer` with ``objective``, any text `losses.get` reads, as its loss."""

    def __init__(self, *args: Any, objective: str = "focal+0.5*s_avuc", **options: Any) -> None:
        super().__init__(*args, **options)
        self.loss = losses.get(objective).to(self.args.device)
        # The loss is a mean over its own batch. This tells Trainer to divide it by the number
        # of batches whose gradients are added up, which it otherwise leaves to the model.
        self.model_accepts_loss_kwargs = False

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the loss of a batch; in evaluation cross-entropy, to compare losses by."""
        # Without labels the model does not compute a loss of its own.
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        logits = outputs["logits"].movedim(-1, 1)  # classes second, also with one label per token
        loss = self.loss if model.training else nn.functional.cross_entropy
        value = loss(logits, inputs["labels"])
        return (value, outputs) if return_outputs else value


class Digits(nn.Module):
    """A network with the interface of a transformers model."""

    def __init__(self) -> None:
        super().__init__()
        self.network = digits.network()

    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return logits by name; Trainer requires the ``labels`` argument."""
        return {"logits": self.network(pixels)}


def main(epochs: int = 100) -> None:
    """Train with the gradients of two batches per step, and evaluate on test rows."""
    train_rows, test_rows = (
        [{"pixels": pixels, "labels": label} for pixels, label in part] for part in digits.data()
    )
    settings = TrainingArguments(
        output_dir="run",
        num_train_epochs=epochs,
        per_device_train_batch_size=25,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        report_to="none",
        save_strategy="no",
    )
    trainer = CalibratedTrainer(
        model=Digits(), args=settings, train_dataset=train_rows, eval_dataset=test_rows
    )
    trainer.train()
    print(trainer.evaluate())
    logits = torch.as_tensor(trainer.predict(test_rows).predictions)
    print(f"mean confidence {float(logits.softmax(1).amax(1).mean()):.3f}")


if __name__ == "__main__":
    main()
