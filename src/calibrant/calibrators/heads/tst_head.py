"""TST's head: a fresh classifier on frozen features."""

from __future__ import annotations

from typing import Literal

from calibrant.calibrators.heads.mac_cal_head import MacCalHead


class TSTHead(MacCalHead):
    """The second stage of two-stage training (Jordahn and Olmos 2024): only the head, anew.

    It is `mac_cal_head` without masks.

    Args:
        num_classes: The number of classes, where the last ones have no rows. Default: None (as
            many as the largest label or the class names need).
        head: ``"bottleneck"`` is linear-ReLU-linear, ``"linear"`` one linear layer. Default:
            'bottleneck' (ours: as in `mac_cal_head`, so that the two differ in masks alone).
        width: The width of the bottleneck; None is 128 for up to 32 classes, else 256. Default:
            None (docs/decisions.md).
        epochs: The number of epochs. Default: 40 (mac-cal, section 5.1).
        learning_rate: The learning rate of SGD, constant. Default: 0.1 (mac-cal, section 5.1).
        momentum: The momentum of SGD. Default: 0.9 (mac-cal, section 5.1).
        weight_decay: The weight decay, on biases too, as in PyTorch. Default: 0.0005 (mac-cal,
            section 5.1).
        batch_size: Rows in a batch. Default: 128 (mac-cal, section 5.1).
        seed: The seed of first weights and batches. Default: 0 (ours: a fit repeats exactly).
    """

    name = "tst_head"

    def __init__(
        self,
        *,
        num_classes: int | None = None,
        head: Literal["bottleneck", "linear"] = "bottleneck",
        width: int | None = None,
        epochs: int = 40,
        learning_rate: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        batch_size: int = 128,
        seed: int = 0,
    ) -> None:
        super().__init__(
            gamma=1.0,
            schedule="fixed",
            sparsity=0.0,
            num_classes=num_classes,
            head=head,
            width=width,
            epochs=epochs,
            learning_rate=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            batch_size=batch_size,
            seed=seed,
        )
