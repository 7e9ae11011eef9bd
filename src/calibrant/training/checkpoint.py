"""Checkpoints that survive a kill at any moment: tensors in safetensors, the rest in JSON.

A checkpoint is two files. The tensors are written under another name, flushed to the disk and
renamed; then, in the same way, the JSON, which holds their digest and its own. A checkpoint
without a JSON file whose digests fit does not exist, and the one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

KEPT = 2  # the last, and one before it should the last be damaged


def write_whole(path: Path, content: bytes) -> None:
    """All of a file or nothing: write, flush to the disk, rename, flush the folder."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk must not stay full of halves
        raise


def save(folder: Path, epoch: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write the checkpoint after an epoch, then tidy up."""
    from safetensors.torch import save as to_bytes

    folder.mkdir(parents=True, exist_ok=True)
    content = to_bytes({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    base = folder / f"epoch-{epoch:06d}"
    write_whole(base.with_suffix(".safetensors"), content)
    told = {"epoch": epoch, "sha256": hashlib.sha256(content).hexdigest(), **facts}
    told["facts_sha256"] = _digest(told)
    write_whole(base.with_suffix(".json"), json.dumps(told).encode())
    tidy(folder)


def tidy(folder: Path) -> None:
    """Drop checkpoints no longer needed and whatever a kill left; only once the last is whole."""
    kept = {f"epoch-{one:06d}" for one in _epochs(folder)[-KEPT:]}
    # The JSON first: no half is left valid.
    for path in sorted(folder.glob("epoch-*.json")) + sorted(folder.glob("epoch-*.safetensors")):
        if path.stem not in kept:
            path.unlink(missing_ok=True)
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


def load(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The last checkpoint that is whole; None where there is none."""
    from safetensors.torch import load as from_bytes

    for epoch in reversed(_epochs(folder)):
        base = folder / f"epoch-{epoch:06d}"
        try:
            facts = json.loads(base.with_suffix(".json").read_bytes())
            content = base.with_suffix(".safetensors").read_bytes()
            own = facts.pop("facts_sha256")
            if own != _digest(facts) or facts["sha256"] != hashlib.sha256(content).hexdigest():
                raise ValueError("its digest does not fit")
            return from_bytes(content), facts
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            warnings.warn(
                f"the checkpoint after epoch {epoch} is damaged ({error}): the one before it is "
                "used",
                stacklevel=2,
            )
    return None


def _digest(facts: dict[str, Any]) -> str:
    """Of what the JSON says, however it is written."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _epochs(folder: Path) -> list[int]:
    found = folder.glob("epoch-*.json")
    return sorted(int(path.stem[6:]) for path in found if path.stem[6:].isdigit())


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Momenta and the like, by the parameter's number; rates are not state here."""
    found: dict[str, Tensor] = {}
    for number, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            if value is not None:
                found[f"{number}.{key}"] = torch.as_tensor(value)
    return found


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: dict[str, Tensor]) -> None:
    """Put back what `optimizer_state` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in saved.items():
        number, _, key = name.partition(".")
        state.setdefault(int(number), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin so, by what follows."""
    cut = len(prefix)
    return {name[cut:]: value for name, value in tensors.items() if name.startswith(prefix)}
