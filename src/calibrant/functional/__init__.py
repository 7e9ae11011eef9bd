"""Pure tensor primitives shared by more than one room; imports nothing of ours.

>>> import torch
>>> from calibrant import functional
>>> functional.soft_rank(torch.tensor([0.3, 0.1, 0.9]), strength=0.01).tolist()
[2.0, 1.0, 3.0]
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant.functional.soft_ranks import hard_rank, soft_rank

__all__ = ["hard_rank", "soft_rank"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from calibrant.functional import soft_ranks

        return getattr(soft_ranks, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
