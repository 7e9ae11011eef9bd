"""Tensor primitives that more than one room uses.

>>> import torch
>>> from calibrant import functional
>>> functional.soft_rank(torch.tensor([0.3, 0.1, 0.9]), strength=0.01).tolist()
[2.0, 1.0, 3.0]
"""

# Importing the package `soft_rank` binds its name here to that package, once. This import
# comes after it and binds the name to the function, so that no later import can undo it.
from calibrant.functional.soft_rank.ranks import hard_rank, soft_rank

__all__ = ["hard_rank", "soft_rank"]
