"""The tables of `benchmarks/losses.py`, from the files it writes."""

from __future__ import annotations

import statistics
from typing import Any

from calibrant.losses.registry import LOSSES
from losses_steps import SETTINGS, quartiles

NAMES = list(LOSSES)
ALLOWED = {"r_aurc": 5.0, "kde_ece": 10.0, "cpc": 10.0}  # per cent of a step; 3 for all others
MEMORY_ALLOWED = 1024.0  # MiB
HOST_BOUND = "resnet18"  # the network whose step the host's time is told as a share of

HEAD = """# What the losses cost

Printed by `benchmarks/losses.py`. A secondary loss is measured as it is trained, with
cross-entropy beside it. Everything is compared with `torch.nn.functional.cross_entropy` in the
same run.

"""


def merged(files: list[list[dict]]) -> list[dict]:
    """What was measured of each device, by however many runs: a later one's part replaces."""
    devices: dict[tuple[str, str], dict] = {}
    for measured in (measured for found in files for measured in found):
        key = (measured["device"], measured["torch"])
        devices[key] = _over(devices.get(key, {}), measured)
    return list(devices.values())


def _over(old: Any, new: Any, depth: int = 3) -> Any:
    if depth == 0 or not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: _over(old.get(key), value, depth - 1) for key, value in new.items()}


def report(found: list[dict]) -> str:
    parts = []
    for measured in found:
        parts.append(
            f"## {measured['device']}, torch {measured['torch']}"
            + (f", {measured['threads']} threads" if measured["device"].startswith("CPU") else "")
        )
        if measured.get("steps"):
            parts += [targets(measured), *step_tables(measured)]
        if measured.get("host"):
            parts.append(host_table(measured))
        if measured.get("profiled"):
            waiting = [
                f"{name} of {kind} ({', '.join(calls)})"
                for name, kinds in measured["profiled"].items()
                for kind, calls in kinds.items()
                if calls
            ]
            count = sum(len(kinds) for kinds in measured["profiled"].values())
            parts.append(
                f"Losses that make the host wait for the device, of {len(measured['profiled'])} in "
                f"{count} kinds of batch (class indices, probabilities, class weights, dense), by "
                f"what the profiler saw: {'; '.join(waiting) or 'none'} (target: none)."
            )
        elif measured.get("waits"):
            waiting = [name for name, does in measured["waits"].items() if does]
            parts.append(
                f"Losses, of {len(measured['waits'])}, that make the host wait for the device: "
                + (", ".join(waiting) or "none")
                + " (target: none)."
            )
        if measured.get("memory"):
            memory = ", ".join(
                f"`{name}` {cell['mib']:,.0f} MiB at {cell['shape']}"
                for name, cell in measured["memory"].items()
            )
            worst = max(cell["mib"] for cell in measured["memory"].values())
            parts.append(
                f"Memory above the logits, forward and backward: {memory} (target: under "
                f"{MEMORY_ALLOWED:,.0f} MiB, {'met' if worst < MEMORY_ALLOWED else 'missed'})."
            )
        if measured.get("alone"):
            parts.append(alone_table(measured))
    return "\n\n".join(parts)


def host_table(measured: dict) -> str:
    """What the host spends on a loss, and the share of its step with cross-entropy."""
    step = measured.get("steps", {}).get(f"{HOST_BOUND}/eager")
    whole = 1e3 * statistics.median(step["plain_ms"]) if step else None
    share = f", and as a share of {HOST_BOUND}'s step of {whole / 1e3:.1f} ms" if whole else ""
    lines = [
        "The host's time for forward and backward at 512x100 in bfloat16, the card not waited "
        f"for: microseconds, and how many more than cross-entropy's{share}. Where the host bounds "
        "a step, that is what the loss adds to it.",
        "",
        "| loss | eager | by `losses.graphed` |",
        "|---|---:|---:|",
    ]
    for name in NAMES:
        cells = []
        for setting in ("eager", "graphed"):
            cell = measured["host"].get(name, {}).get(setting)
            if cell:
                part = f", {100 * cell['more'] / whole:+.1f}%" if whole else ""
                cells.append(f"{cell['us']:.0f} ({cell['more']:+.0f}{part})")
            else:
                cells.append("")
        if any(cells):
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def alone_table(measured: dict) -> str:
    sizes = list(measured["alone"])
    lines = [
        f"Forward and backward alone, median of up to {measured['rounds']} rounds: milliseconds, "
        "and times cross-entropy's.",
        "",
        "| loss | " + " | ".join(sizes) + " |",
        "|---|" + "---:|" * len(sizes),
    ]
    for name in NAMES:
        cells = []
        for size in sizes:
            cell = measured["alone"][size].get(name)
            shown = "" if cell is None else f"{1e3 * cell['seconds']:.3f} ({cell['ratio']:.1f}x)"
            cells.append(shown)
        if any(cells):
            lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdict(name: str, overheads: list[float]) -> str:
    """Whether the median is allowed; said with a doubt where the quartiles lie on both sides."""
    low, middle, high = quartiles(overheads)
    allowed = ALLOWED.get(name, 3.0)
    said = "met" if middle <= allowed else "missed"
    return f"{said}, closely" if low <= allowed < high else said


def targets(measured: dict) -> str:
    """For every setting and network how many losses keep to their target, and which do not."""
    lines = [
        "Overhead of a whole step over cross-entropy's, allowed: 3%, "
        + ", ".join(f"`{name}` {allowed:g}%" for name, allowed in ALLOWED.items())
        + ".",
        "",
        "| setting | network | met | missed |",
        "|---|---|---:|---|",
    ]
    for key, part in ordered(measured["steps"]):
        network, setting = key.split("/")
        verdicts = {
            name: verdict(name, cell["overhead"])
            for name, cell in part["losses"].items()
            if cell.get("overhead")
        }
        failed = [name for name, cell in part["losses"].items() if "failure" in cell]
        missed = [name for name, said in verdicts.items() if said.startswith("missed")]
        bad = ", ".join(
            [f"`{name}`" for name in missed] + [f"`{name}` (failed)" for name in failed]
        )
        met = f"{len(verdicts) - len(missed)} of {len(part['losses'])}"
        lines.append(f"| {SETTINGS[setting]} | {network} | {met} | {bad} |")
    return "\n".join(lines)


def ordered(steps: dict[str, dict]) -> list[tuple[str, dict]]:
    return sorted(steps.items(), key=lambda item: list(SETTINGS).index(item[0].split("/")[1]))


def step_tables(measured: dict) -> list[str]:
    """For each setting, a table of the networks."""
    tables = []
    for setting, says in SETTINGS.items():
        parts = {
            key.split("/")[0]: part
            for key, part in measured["steps"].items()
            if key.split("/")[1] == setting
        }
        if parts:
            tables.append(step_table(says, parts))
    return tables


def step_table(says: str, parts: dict[str, dict]) -> str:
    references = "; ".join(
        f"{net} at batch {part['batch']}, {part['rounds']} rounds of {part['steps']} steps, "
        f"cross-entropy's step {statistics.median(part['plain_ms']):.2f} ms"
        for net, part in parts.items()
    )
    lines = [
        f"A whole step in bfloat16, {says}: milliseconds, and overhead over cross-entropy's step "
        f"(median, first to third quartile). Of {references}.",
        "",
        "| loss | " + " | ".join(f"{net} | target" for net in parts) + " |",
        "|---|" + "---:|---|" * len(parts),
    ]
    for name in NAMES:
        cells = []
        for part in parts.values():
            cell = part["losses"].get(name)
            if cell is None:
                cells += ["", ""]
            elif "failure" in cell:
                cells += ["failed", "missed"]
            else:
                low, middle, high = quartiles(cell["overhead"])
                shown = f"{statistics.median(cell['ms']):.2f} ({middle:+.1f}%, "
                cells += [shown + f"{low:+.1f} to {high:+.1f})", verdict(name, cell["overhead"])]
        if any(cells):
            lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)
