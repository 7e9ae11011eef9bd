"""Fill the peers' environment: run by the Python of that environment, with no argument.

calibrant itself is installed first, then each peer on its own, all held to the constraints
file (so PyTorch stays the one version everybody is measured on). A peer that does not
install, does not import, or stops an earlier one from importing is taken out again and
recorded with the reason in ``peers.json`` at the root of the environment; nothing is patched.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = "peers.json"


@dataclass(frozen=True)
class Peer:
    """A library measured beside calibrant."""

    name: str
    module: str
    requirements: tuple[str, ...]
    remark: str = ""


PEERS = (
    Peer("torchmetrics", "torchmetrics", ("torchmetrics",)),
    Peer("netcal", "netcal.metrics", ("netcal",)),
    Peer(
        "probmetrics",
        "probmetrics.metrics",
        ("probmetrics", "numba", "betacal", "venn-abers", "cir-model", "splinecalib"),
        "with numba and the packages some of its calibrators need, declared under its `extra`",
    ),
    # Its own metadata asks for Python 3.12; it runs on 3.11.
    Peer(
        "dirichletcal",
        "dirichletcal",
        ("--ignore-requires-python", "dirichletcal"),
        "measured through probmetrics' `dircal`",
    ),
    Peer("uncertainty-calibration", "calibration", ("uncertainty-calibration",)),
    Peer("river", "river.drift", ("river",), "its drift detectors, beside the monitor"),
    # Its own `cpu` extra: without it the package has no lightning and no torchvision.
    # Last, because a torchvision that does not match PyTorch stops others from importing.
    Peer(
        "torch-uncertainty", "torch_uncertainty.metrics.classification", ("torch-uncertainty[cpu]",)
    ),
)


@dataclass(frozen=True)
class Outcome:
    """Whether a peer can be measured, and if not, why."""

    name: str
    version: str
    ready: bool
    reason: str


def read_record() -> list[Outcome]:
    """Outcomes of the installation, or what is importable where none was recorded."""
    path = Path(sys.prefix) / RECORD
    if path.exists():
        return [Outcome(**entry) for entry in json.loads(path.read_text())]
    outcomes = []
    for peer in PEERS:
        try:
            outcomes.append(Outcome(peer.name, version(peer.name), True, peer.remark))
        except PackageNotFoundError:
            outcomes.append(Outcome(peer.name, "", False, "not installed"))
    return outcomes


def tidy(text: str) -> str:
    """The last line that says something, without addresses or paths of this machine."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    last = (errors or lines or ["no message"])[-1]
    last = re.sub(r"\w+://\S+|(?<![\w.])/\S+", "…", last)
    return last if len(last) <= 200 else last[:199] + "…"


def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def install(*requirements: str) -> subprocess.CompletedProcess[str]:
    return pip("install", "--quiet", "-c", "constraints.txt", *requirements)


def installed() -> dict[str, str]:
    listing = pip("list", "--format=json").stdout
    return {entry["name"]: entry["version"] for entry in json.loads(listing)}


def restore(before: dict[str, str]) -> None:
    """Bring the environment back to the packages and versions it had."""
    now = installed()
    added = sorted(set(now) - set(before))
    if added:
        pip("uninstall", "--quiet", "--yes", *added)
    changed = [f"{name}=={old}" for name, old in before.items() if now.get(name) != old]
    if changed:
        install("--no-deps", *changed)


def import_error(modules: list[str]) -> str | None:
    """Import modules in a fresh process; None when all do."""
    code = "".join(f"import {module}\n" for module in modules)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    return None if done.returncode == 0 else tidy(done.stderr)


def main() -> None:
    print("Installing calibrant ...", flush=True)
    done = install("-e", ".")
    if done.returncode != 0:
        sys.exit(done.stderr)
    outcomes: list[Outcome] = []
    working: list[str] = []
    for peer in PEERS:
        print(f"Installing {peer.name} ...", flush=True)
        before = installed()
        done = install(*peer.requirements)
        found = {name.lower().replace("_", "-"): v for name, v in installed().items()}
        number = found.get(peer.name, "")
        if done.returncode != 0:
            reason = f"does not install: {tidy(done.stderr)}"
        elif error := import_error([peer.module]):
            reason = f"does not import: {error}"
        elif error := import_error([peer.module, *working]):
            reason = f"keeps another peer from importing: {error}"
        else:
            working.append(peer.module)
            outcomes.append(Outcome(peer.name, number, True, peer.remark))
            continue
        restore(before)
        outcomes.append(Outcome(peer.name, number, False, reason))
    record = json.dumps([asdict(outcome) for outcome in outcomes], indent=2)
    (Path(sys.prefix) / RECORD).write_text(record + "\n")
    for outcome in outcomes:
        state = "ready" if outcome.ready else outcome.reason
        print(f"  {outcome.name} {outcome.version}: {state}")


if __name__ == "__main__":
    main()
