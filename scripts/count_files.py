"""Count the files of calibrant that a reader follows through one command.

    python scripts/count_files.py evaluate    # calibrant evaluate FILE --report OUT.html
    python scripts/count_files.py fit         # calibrant fit FILE, with --method auto
    python scripts/count_files.py suite       # calibrant bench run: one run of a small suite
    python scripts/count_files.py fit --functions   # with the functions that ran in each file

A file counts if the command runs at least one function that the file defines, in any thread.
Importing a file does not count: neither its top-level code, nor a class body, nor a decorator or
a registration that runs while some module is imported. Templates (HTML) do not count either.

FILE is `example:cifar10-resnet18`, which the package holds. The suite has nine methods on
scikit-learn's digits and checks them all; it makes one run of cross-entropy, with four calibrators
and every kind of measurement after it. Set PYTHONPATH to count in another source tree.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

SUITE = """\
name: count
defaults:
  data: digits
  model: mlp
  epochs: 20
  batch_size: 128
  lr: 0.1
  schedule: one_cycle
  nesterov: true
  validation: 400
  device: cpu
  evaluate_every: 5
  checkpoint_every: 20
seeds: [0, 1]
methods:
  cross_entropy: {}
  focal: {loss: focal}
  acls: {loss: acls(margin=6)}
  r_aurc_msp: {loss: r_aurc(csf='msp')}
  crl: {loss: crl}
  interleaved_s_avuc: {loss: s_avuc, recipe: interleaved}
  mixup: {recipe: mixup}
  mac_cal: {recipe: mac_cal}
  deep_ensemble: {recipe: deep_ensemble}
calibrators: [temperature, temperature(objective=sb_ece), ensemble_temperature, isotonic]
where:
  - if: {method: deep_ensemble}
    set: {after: [crossfit, {shift: {kinds: [gaussian_noise], severities: [3]}}, ood]}
after:
  - mac_cal_head
  - crossfit: {calibrators: [temperature, isotonic]}
  - shift: {kinds: [gaussian_noise], severities: [3]}
  - ood
keep: rows
baseline: cross_entropy
metrics: [accuracy, nll, ece, adaptive_ece, classwise_ece, brier, aurc]
"""


def make_commands(folder: Path) -> dict[str, list[str]]:
    """Write the suite and return the arguments of each command."""
    file, suite = "example:cifar10-resnet18", folder / "suite.yaml"
    suite.write_text(SUITE)
    run = ["--only", "cross_entropy", "--seeds", "0"]
    return {
        "evaluate": ["evaluate", file, "--report", str(folder / "report.html")],
        "fit": ["fit", file, "--output", str(folder / "calibrator.safetensors")],
        "suite": ["bench", "run", str(suite), "--output", str(folder / "bench"), *run],
    }


def trace_command(arguments: list[str]) -> dict[str, set[str]]:
    """Run a command and return the functions that ran, by file, relative to the package."""
    import calibrant
    from calibrant.cli import main

    package = str(Path(calibrant.__file__).parent)
    functions: dict[str, set[str]] = {}

    def record(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        file = code.co_filename
        if event != "call" or not (file.startswith(package) and file.endswith(".py")):
            return
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # modules and class bodies lack it
        name = getattr(code, "co_qualname", code.co_name)  # qualified from Python 3.11 on
        if is_function and not _is_importing(frame):
            functions.setdefault(file[len(package) + 1 :], set()).add(name)

    sys.argv = ["calibrant", *arguments]
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return functions


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether the frame runs because some module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def main() -> None:
    """Count and print the files of one command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("evaluate", "fit", "suite"))
    parser.add_argument("--functions", action="store_true", help="Print the functions too.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        functions = trace_command(make_commands(Path(folder))[options.command])
    print()
    for file in sorted(functions):
        print(f"{file}: {', '.join(sorted(functions[file]))}" if options.functions else file)
    print(f"{len(functions)} files")


if __name__ == "__main__":
    main()
