"""Whether a loss ever makes the host wait for the device, by what the profiler saw."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from calibrant.losses.registry import is_secondary
from losses_steps import caller, trainable

SPAN = "the loss, forward and backward"
FLAT, DENSE = (512, 100), (8, 12, 180, 240)
FLAT_ONLY = ("crl", "kde_ece")


def synchronisations(call: Callable[[], object]) -> list[str]:
    """The calls that wait, and the copies to the host, between a call's begin and its end."""
    call()  # what is made once, is made
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        with record_function(SPAN):
            call()
        torch.cuda.synchronize()
    events = list(seen.events() or ())
    spans = [
        event.time_range
        for event in events
        if event.name == SPAN and event.device_type == DeviceType.CPU
    ]
    if len(spans) != 1:
        raise RuntimeError(f"the profiler saw the loss {len(spans)} times, not once")
    return sorted(
        {
            event.name
            for event in events
            if spans[0].start <= event.time_range.start <= spans[0].end
            and ("Synchronize" in event.name or "DtoH" in event.name)
        }
    )


def waits(name: str, device: torch.device) -> dict[str, list[str]]:
    """What waits, by the kind of batch: class indices, probabilities, class weights, dense."""
    known = torch.ones(4, device=device)
    if not synchronisations(lambda: known.sum().item()):
        raise RuntimeError("the profiler does not see a value's way to the host: it says nothing")
    found = {}
    for kind in ("labels", "probabilities", "weight", "dense"):
        if (kind == "dense" and name in FLAT_ONLY) or (kind == "weight" and is_secondary(name)):
            continue
        shape = DENSE if kind == "dense" else FLAT
        draw = torch.Generator().manual_seed(0)
        logits = (3 * torch.randn(shape, generator=draw)).to(device).requires_grad_()
        target = torch.randint(shape[1], (shape[0], *shape[2:]), generator=draw).to(device)
        if kind == "probabilities":
            target = torch.nn.functional.one_hot(target, shape[1]).float()
        loss = trainable(name, shape[0]).to(device)
        if kind == "weight":
            loss.weight = torch.linspace(0.5, 1.5, shape[1], device=device)
        call = caller(loss, shape[0], device)
        found[kind] = synchronisations(lambda: call(logits, target).backward())  # noqa: B023
    return found
