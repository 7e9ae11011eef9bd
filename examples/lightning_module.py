"""Lightning: the loss is a module of the LightningModule like any other.

    pip install 'calibrant[train]' && python examples/lightning_module.py

As part of the module it moves to the device, and checkpoints save its state. With several
processes, a loss that remembers samples (``crl``) needs
``strategy=DDPStrategy(broadcast_buffers=False)``, and ``history.synchronize()`` after each epoch.
"""

from __future__ import annotations

import digits
import lightning
import torch
from torch import Tensor, nn

from calibrant import losses
from calibrant.metrics.modules import ECE, NLL


class Classifier(lightning.LightningModule):
    """Any network with any loss; validation logs its likelihood and calibration error."""

    def __init__(self, network: nn.Module, objective: str = "focal+0.5*s_avuc") -> None:
        super().__init__()
        self.network = network
        self.loss = losses.get(objective)
        self.ece, self.nll = ECE(), NLL()

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Compute the loss of a batch."""
        images, labels = batch
        loss: Tensor = self.loss(self.network(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Update two metrics that compare losses, whose own values differ in scale."""
        images, labels = batch
        logits = self.network(images)
        for name, metric in (("val_ece", self.ece), ("val_nll", self.nll)):
            metric.update(logits, labels)
            self.log(name, metric)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over the network's parameters."""
        return torch.optim.Adam(self.network.parameters(), lr=3e-3)


def main(epochs: int = 100) -> None:
    """Train on the CPU and validate on test rows."""
    train_rows, test_rows = digits.data()
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    module = Classifier(digits.network())
    trainer.fit(module, digits.batches(train_rows), digits.batches(test_rows, shuffle=False))
    print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
