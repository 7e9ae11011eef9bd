"""Write and read checkpoints that survive a kill at any moment.

A checkpoint is two files: tensors in safetensors, the rest in JSON. The tensors are written
under another name, flushed to the disk and renamed; then, in the same way, the JSON, which
holds the digests of both. A checkpoint counts only if its JSON exists and both digests match;
otherwise the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.core.files import write_file

KEPT = 2  # the last checkpoint, and one before it in case the last is damaged


def save(folder: Path, epoch: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write the checkpoint of an epoch, then delete old ones.

    Args:
        folder: The folder of the checkpoints.
        epoch: The number of epochs finished.
        tensors: What safetensors holds.
        facts: What JSON holds.
    """
    from safetensors.torch import save as to_bytes

    folder.mkdir(parents=True, exist_ok=True)
    content = to_bytes({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    base = folder / f"epoch-{epoch:06d}"
    write_file(base.with_suffix(".safetensors"), content)
    record = {"epoch": epoch, "sha256": hashlib.sha256(content).hexdigest(), **facts}
    record["facts_sha256"] = _digest(record)
    write_file(base.with_suffix(".json"), json.dumps(record).encode())
    tidy(folder)


def tidy(folder: Path) -> None:
    """Delete old checkpoints and the remains of a kill; call it once the last one is whole."""
    kept = {f"epoch-{epoch:06d}" for epoch in _epochs(folder)[-KEPT:]}
    # Delete the JSON first: tensors without it do not count as a checkpoint.
    for path in sorted(folder.glob("epoch-*.json")) + sorted(folder.glob("epoch-*.safetensors")):
        if path.stem not in kept:
            path.unlink(missing_ok=True)
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read tensors and facts of the last whole checkpoint; None if there is none."""
    from safetensors.torch import load as from_bytes

    for epoch in reversed(_epochs(folder)):
        base = folder / f"epoch-{epoch:06d}"
        try:
            facts = json.loads(base.with_suffix(".json").read_bytes())
            content = base.with_suffix(".safetensors").read_bytes()
            digest = facts.pop("facts_sha256")
            if digest != _digest(facts) or facts["sha256"] != hashlib.sha256(content).hexdigest():
                raise ValueError("its digest does not match")
            return from_bytes(content), facts
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            warnings.warn(
                f"the checkpoint after epoch {epoch} is damaged ({error}): the one before it is "
                "used",
                stacklevel=2,
            )
    return None


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _epochs(folder: Path) -> list[int]:
    stems = (path.stem[6:] for path in folder.glob("epoch-*.json"))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's tensors, such as momenta, named by the parameter's number."""
    tensors: dict[str, Tensor] = {}
    for number, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            if value is not None:
                tensors[f"{number}.{key}"] = torch.as_tensor(value)
    return tensors


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: dict[str, Tensor]) -> None:
    """Restore what `optimizer_state` returned; the learning rate is not part of it."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in saved.items():
        number, _, key = name.partition(".")
        state.setdefault(int(number), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def strip_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the entries whose names start with ``prefix``, prefix removed."""
    cut = len(prefix)
    return {name[cut:]: value for name, value in tensors.items() if name.startswith(prefix)}
