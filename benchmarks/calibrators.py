"""Quality and speed of calibrant's calibrators beside its peers'.

    python benchmarks/calibrators.py quality --jobs 2         run what is missing, then report
    python benchmarks/calibrators.py quality --only ours --sets cifar10 --seeds 0 1
    python benchmarks/calibrators.py quality --report         print from the lines at hand
    python benchmarks/calibrators.py speed                    one process, both cores

``make bench-calibrators`` makes the peers' environment and runs both in it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import calibrator_quality as quality

HERE = Path(__file__).resolve().parent
LINES = HERE / ".calibrator-quality.jsonl"
SPEED_LINES = HERE / ".calibrator-speed.jsonl"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run_quality(options: argparse.Namespace) -> None:
    folder = quality.data_folder(options.data)
    if folder is None:
        say("no real data found (see --data): the synthetic families alone")
    if not options.report:
        keys = quality.select(folder, sets=options.sets, seeds=options.seeds, only=options.only)
        done = {} if options.again else quality.read_lines([options.lines])
        keys = [key for key in keys if key not in done]
        say(f"{len(keys):,} fits to do, {options.jobs} at a time")
        begun = time.perf_counter()
        with options.lines.open("a") as file:
            lines = quality.run(
                keys, folder, jobs=options.jobs, limit=options.limit, memory=options.memory
            )
            for count, line in enumerate(lines, 1):
                file.write(json.dumps(line) + "\n")
                file.flush()
                outcome = line["failure"] or f"NLL {line['nll']:.4f}, {line['fit_seconds']:.2f} s"
                place = f"{count:,}/{len(keys):,} at {time.perf_counter() - begun:,.0f} s"
                say(f"[{place}] {line['set']} {line['seed']} {line['contestant']}: {outcome}")
    if options.run_only:
        return
    import calibrator_report as report

    lines = quality.read_lines([options.lines, *options.merge])
    text = report.quality_report(lines)
    print(text)
    if options.write:
        options.write.write_text(text)
    if options.csv:
        report.write_csv(lines, options.csv)


def run_speed(options: argparse.Namespace) -> None:
    import calibrator_speed as speed
    import calibrator_speed_report as report

    plan = speed.QUICK if options.quick else speed.Plan()
    if options.sizes:
        kept = {s: k for s, k in plan.sizes.items() if speed.label(s) in options.sizes}
        plan = replace(plan, sizes=kept)
    if options.kinds:
        kept = {s: tuple(k for k in kinds if k in options.kinds) for s, kinds in plan.sizes.items()}
        plan = replace(plan, sizes=kept)
    if options.rounds:
        plan = replace(plan, rounds=options.rounds)
    if not options.report:
        with options.lines.open("a") as file:
            only = ["nothing"] if options.no_peers else options.only
            for line in speed.measure(plan, threads=options.threads, only=only):
                file.write(json.dumps(line) + "\n")
                file.flush()
                shown = line["failure"] or f"{min(line['seconds']):.4g} s, NLL {line['nll']:.4f}"
                say(f"{line['size']} {line['kind']} by {line['contestant']}: {shown}")
    text = report.speed_report(speed.read_lines(options.lines))
    print(text)
    if options.write:
        options.write.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("quality", help="test figures on every set and split")
    part.add_argument("--data", metavar="FOLDER", help="holds logits/*.npz")
    part.add_argument("--jobs", type=int, default=1, metavar="N", help="fits at a time")
    part.add_argument("--only", nargs="+", metavar="NAME", help="ours, peers, or names")
    part.add_argument("--sets", nargs="+", metavar="NAME", help="parts of the sets' names")
    part.add_argument("--seeds", nargs="+", type=int, default=list(quality.SEEDS), metavar="N")
    part.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="of one fit")
    part.add_argument(
        "--memory", type=float, default=10.0, metavar="GIB", help="a worker's; 0: any"
    )
    part.add_argument("--again", action="store_true", help="run also what has a line")
    part.add_argument("--run-only", action="store_true", help="run, and report nothing")
    part.add_argument("--report", action="store_true", help="report, and run nothing")
    part.add_argument("--lines", type=Path, default=LINES, metavar="PATH", help="of JSON lines")
    part.add_argument(
        "--merge", nargs="+", type=Path, default=[], metavar="PATH", help="more lines"
    )
    part.add_argument("--write", type=Path, metavar="PATH", help="also write the tables here")
    part.add_argument("--csv", type=Path, metavar="PATH", help="every method on every set")
    part.set_defaults(run=run_quality)
    part = parts.add_parser("speed", help="seconds of a fit, one process, all cores")
    part.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    part.add_argument("--sizes", nargs="+", metavar="SIZE", help="such as 5,000x10")
    part.add_argument("--kinds", nargs="+", metavar="KIND", help="such as temperature")
    part.add_argument("--only", nargs="+", metavar="NAME", help="parts of the peers' names")
    part.add_argument("--no-peers", action="store_true", help="calibrant alone")
    part.add_argument("--rounds", type=int, metavar="N", help="of the race; 5 by default")
    part.add_argument("--quick", action="store_true", help="tiny inputs, one round")
    part.add_argument("--report", action="store_true", help="report, and run nothing")
    part.add_argument("--lines", type=Path, default=SPEED_LINES, metavar="PATH")
    part.add_argument("--write", type=Path, metavar="PATH", help="also write the tables here")
    part.set_defaults(run=run_speed)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
