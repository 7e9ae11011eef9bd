"""Lightning: any network, any loss, and a callback that judges and repairs its confidence.

    pip install 'calibrant[lightning]' && python examples/lightning_module.py

The loss is part of the module: it moves to the device, and checkpoints save its state. With several
processes, a loss that remembers samples (``crl``) needs
``strategy=DDPStrategy(broadcast_buffers=False)``, and ``history.synchronize()`` after each epoch.
"""

from __future__ import annotations

import digits
import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import random_split

from calibrant import losses
from calibrant.integrations.lightning import CalibrationCallback


class Classifier(lightning.LightningModule):
    """Any network with any loss."""

    def __init__(self, network: nn.Module, objective: str = "focal+0.5*s_avuc") -> None:
        super().__init__()
        self.network = network
        self.loss = losses.get(objective)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.network(images)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Compute the loss of a batch."""
        images, labels = batch
        loss: Tensor = self.loss(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Return what the callback judges."""
        images, labels = batch
        return {"logits": self(images), "labels": labels}

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over the network's parameters."""
        return torch.optim.Adam(self.network.parameters(), lr=3e-3)


def main(epochs: int = 100) -> None:
    """Train on the CPU, calibrate on half of the other rows, and test on the rest."""
    train_rows, others = digits.data()
    held_out, test_rows = random_split(others, [0.5, 0.5], torch.Generator().manual_seed(0))
    callback = CalibrationCallback("calibration", picture_every=10)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        callbacks=[callback],
    )
    module = Classifier(digits.network())
    trainer.fit(module, digits.batches(train_rows), digits.batches(held_out, shuffle=False))
    if callback.calibrator_ is not None:
        print(callback.calibrator_.choice_.explanation)
    trainer.test(module, digits.batches(test_rows, shuffle=False))
    print(f"report: {callback.folder}/report.html")


if __name__ == "__main__":
    main()
