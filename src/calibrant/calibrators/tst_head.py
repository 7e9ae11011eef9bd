"""TST's head: a fresh classifier on frozen features, as two-stage training has it."""

from __future__ import annotations

from typing import Literal

from calibrant.calibrators.mac_cal_head import MacCalHead


class TSTHead(MacCalHead):
    """Two-stage training's second stage (Jordahn and Olmos 2024): the head anew, nothing else.

    It is `mac_cal_head` without its masks, so it has the same options for head and training.
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
