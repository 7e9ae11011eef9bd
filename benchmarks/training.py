"""Speed of the engine: seconds an epoch, minutes to 95%, and MaC-Cal's head on features.

    CALIBRANT_DATA=FOLDER python benchmarks/training.py --json build/training.json
    python benchmarks/training.py --report build/training.json --write benchmarks/TRAINING.md

FOLDER holds cifar10.npz (scripts/pack_data.py makes it). Each part is written as it ends, so a
run cut off keeps what it measured; ``--parts`` takes some of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from calibrant.calibrators import get
from calibrant.data import load
from calibrant.training import Config, train
from harness import machine, table, versions

# Issue by issue the same setting, so that figures can be compared.
SETTING = {
    "data": "cifar10",
    "validation": 5000,
    "batch_size": 512,
    "lr": 0.4,
    "nesterov": True,
    "schedule": "one_cycle",
    "crop": 4,
    "flip": True,
    "precision": "bf16",
    "channels_last": True,
}
NETWORKS = {"resnet18": 0.9, "resnet50": 2.2, "wrn_28_10": 4.5}  # seconds an epoch aimed at
PARTS = (*NETWORKS, "95%", "head")
SETTINGS = ("eager", "compiled")
GOAL = 0.95
GOAL_SETTING = {"epochs": 100, "validation": 0, "cutout": 8}  # all 50,000 rows are trained on
HEAD = {"rows": 50_000, "width": 2048, "classes": 100, "epochs": 40, "gamma": 0.9}
HEAD_AIM = {"cuda": 8.0, "cpu": 90.0}


def epochs(splits, model: str, compiled: bool, count: int) -> dict:
    """Seconds of each epoch after the first, which chooses kernels or compiles."""
    config = Config.of(
        SETTING
        | {"model": model, "compile": compiled, "epochs": count}
        | {"evaluate_every": count, "checkpoint_every": count}
    )
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        train(config, folder, data=splits, on_epoch=lambda line: seconds.append(line["seconds"]))
        whole = time.perf_counter() - begun
    # The last epoch is followed by a look at the validation rows.
    return {"first": seconds[0], "seconds": seconds[1:-1], "whole": whole}


def goal() -> dict:
    """Test accuracy and minutes of a whole run, predictions and first epoch included."""
    splits = load("cifar10", validation=GOAL_SETTING["validation"])
    count = GOAL_SETTING["epochs"]
    config = Config.of(
        SETTING
        | {"model": "resnet18", "evaluate_every": count, "checkpoint_every": count}
        | GOAL_SETTING
    )
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        run = train(config, folder, data=splits)
        seconds = time.perf_counter() - begun
        return {"seconds": seconds, "settings": config.to_dict(), **run.outcome["figures"]}


def head(device: str) -> dict:
    """Fit of MaC-Cal's head on made-up features that a linear head gets partly right."""
    draw = torch.Generator().manual_seed(0)
    rows, width, classes = HEAD["rows"], HEAD["width"], HEAD["classes"]
    labels = torch.randint(classes, (rows,), generator=draw)
    centres = torch.randn(classes, width, generator=draw)
    features = torch.relu(0.25 * centres[labels] + torch.randn(rows, width, generator=draw))
    features, labels = features.to(device), labels.to(device)
    seconds = []
    for _ in range(3 if device == "cuda" else 1):
        begun = time.perf_counter()
        made = get("mac_cal_head", gamma=HEAD["gamma"], epochs=HEAD["epochs"])
        made.fit(features, labels)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return {"seconds": seconds, "threads": torch.get_num_threads()}


def measure(given: argparse.Namespace) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = {"machine": machine(torch.get_num_threads()), "device": device}
    found["versions"] = versions(("calibrant", "torch", "triton", "lightning"))
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
    networks = [part for part in given.parts if part in NETWORKS]
    splits = load("cifar10", validation=5000) if networks else None
    for part in given.parts:
        if part == "head":
            found[part] = head(device)
        elif part == "95%":
            found[part] = goal()
        else:
            for compiled in [setting == "compiled" for setting in given.settings]:
                name = f"{part}{' compiled' if compiled else ''}"
                found[name] = epochs(splits, part, compiled, given.epochs)
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(found, indent=1))
        print(part, json.dumps({k: v for k, v in found.items() if k.startswith(part)}), flush=True)


def report(files: list[Path]) -> str:
    """Markdown of what was measured."""
    lines = ["# Speed of the engine", ""]
    for path in files:
        found = json.loads(path.read_text())
        lines += [f"Device: {found['device']}. Versions: {found['versions']}.", ""]
        lines += [*found["machine"], ""]
        rows = []
        for model, aim in NETWORKS.items():
            for name in (model, f"{model} compiled"):
                if name not in found:
                    continue
                seconds = found[name]["seconds"]
                median = statistics.median(seconds)
                spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
                first = f"{found[name]['first']:.1f}"
                met = "met" if median <= aim else "missed"
                rows.append([name, f"{median:.2f}", spread, first, f"{aim} ({met})"])
        if rows:
            lines += [
                "Seconds an epoch of CIFAR-10 (45,000 images, batch 512, bf16, channels last, data "
                "and augmentation on the device): median and range of the epochs after the first.",
                "",
                table(["network", "seconds", "range", "first epoch", "aim"], rows),
                "",
            ]
        if "95%" in found:
            ran = found["95%"]
            lines += [
                f"ResNet-18, {ran['settings']['epochs']} epochs: test accuracy "
                f"{ran['test_accuracy']:.2%}, ECE {ran['test_ece']:.2%}, in {ran['seconds']:.0f} s "
                f"(aim: {GOAL:.0%} in 180 s), the first epoch and predictions of all rows "
                f"included. Settings beside the above: {GOAL_SETTING}.",
                "",
            ]
        if "head" in found:
            seconds = found["head"]["seconds"]
            aim = HEAD_AIM["cpu" if found["device"] == "cpu" else "cuda"]
            lines += [
                f"MaC-Cal's head on {HEAD['rows']:,} x {HEAD['width']:,} features, "
                f"{HEAD['epochs']} epochs at one gamma: "
                f"{', '.join(f'{number:.1f}' for number in seconds)} s (aim: {aim:.0f} s; "
                f"{found['head']['threads']} CPU threads).",
                "",
            ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--json", type=Path, default=Path("build/training.json"))
    parser.add_argument("--report", type=Path, nargs="+")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--note", default="", help="what a reader of the report must know")
    given = parser.parse_args()
    if not given.report:
        measure(given)
        return
    text = report(given.report) + (f"\n{given.note}\n" if given.note else "")
    if given.write:
        given.write.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
