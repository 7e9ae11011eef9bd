"""Would the tests notice? Small changes to the losses, one at a time, each put to their tests.

    PYTHONPATH=src python benchmarks/mutation.py --jobs 16
    PYTHONPATH=src python benchmarks/mutation.py --report --write benchmarks/MUTATION.md

Every file of ``losses`` and the CPU files of the soft rank are changed in the ways of
``mutation_changes.py``: a sign, a term, a reduction, a constant, a condition. A changed file
never touches the checkout: each job has its own copy of package and tests in a temporary
folder. The tests run once unchanged, with every function they call noted; a change to a function
is then put to the tests that call it, quickest first, until one fails. Caught is a failure, a
crash, or three times the time the unchanged tests took (``--limit`` seconds at least).

One process imports PyTorch and forks a child for each change. Results are JSON lines in a
file that is kept: a run that is stopped goes on where it was. A change once caught stays so
while its file is the same; one that survived is tried again when any test has changed.
CUDA is hidden, so that every machine says the same.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from mutation_equal import EQUIVALENT, EXPLAINED, LAST, NEGATIVE, SAME
from mutation_runs import (
    ROOT,
    SLACK,
    Known,
    baseline,
    changes_of,
    copied,
    digest_of,
    prepare,
    targets,
    tried,
)

LINES = ROOT / "benchmarks" / ".mutation-losses.jsonl"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Lines of earlier runs; a last one that was cut off is left out."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


def settled(lines: Iterable[dict[str, Any]], digest: str | None) -> dict[str, dict[str, Any]]:
    """The latest result of each change that still holds: caught, or survived these tests."""
    found = {line["key"]: line for line in lines if "key" in line}
    return {
        key: line
        for key, line in found.items()
        if line["caught"] or digest is None or line["digest"] == digest
    }


def run(options: argparse.Namespace) -> None:
    """Put every change that is not settled to its tests."""
    prepare()
    # A polite end tidies up as well: children ended, copies removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ends = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    with tempfile.TemporaryDirectory(prefix="mutation-") as named:
        top = Path(named).resolve()
        folders = [copied(ROOT, top / "0")]
        folders += [copied(folders[0], top / str(job)) for job in range(1, options.jobs)]
        first = folders[0]
        digest = digest_of(first, options.tests)
        chosen = [
            file
            for file in targets(first)
            if any(fnmatch(Path(file).name, pattern) for pattern in options.files or ["*"])
        ]
        lines = [] if options.fresh else read_lines(options.lines)
        if options.fresh:
            options.lines.unlink(missing_ok=True)
        done = settled(lines, digest)
        every = [change for file in chosen for change in changes_of(first, file)]
        todo = [change for change in every if change.key not in done]
        print(f"{len(every)} changes, {len(todo)} to try", file=sys.stderr, flush=True)
        if not todo:
            return
        known = next(
            (
                Known(**line["known"])
                for line in reversed(lines)
                if line.get("known", {}).get("digest") == digest
            ),
            None,
        )
        with options.lines.open("a", encoding="utf-8") as log:
            if known is None:
                known = baseline(folders, digest, set(options.tests) if options.tests else None)
                print(json.dumps({"known": vars(known)}), file=log, flush=True)
            todo.sort(
                key=lambda change: sum(known.seconds[test] for test in known.tests_of(change))
            )
            began = time.monotonic()
            for number, line in enumerate(tried(todo, known, folders, options.limit, ends), 1):
                print(json.dumps(line), file=log, flush=True)
                if not line["caught"] or number % 50 == 0:
                    taken = time.monotonic() - began
                    mark = "caught" if line["caught"] else "SURVIVED"
                    says = f"{number}/{len(todo)} {taken:.0f} s {mark} {line['file']}"
                    print(f"{says}:{line['line']} {line['what']}", file=sys.stderr, flush=True)


def why(file: str, text: str, what: str) -> tuple[str, str]:
    """The kind and the reason of a change that no test here can tell, where it is written down."""
    for named, words, change, reason in EQUIVALENT:
        if named == file and change == what and words in text:
            return SAME, reason
    before, _, after = what.partition(" → ")
    for named, words, kind, reason in EXPLAINED:
        fits = {LAST: before.replace("-1", "1") == after, NEGATIVE: after == "-2"}
        if named == file and words in text and fits.get(reason, True):
            return kind, reason
    return "", ""


def report(root: Path, lines: Sequence[dict[str, Any]]) -> str:
    """Scores by file, and every survivor."""
    results = settled(lines, None)
    rows, survivors = [], []
    totals = [0, 0, 0, 0]
    for file in targets(root):
        every = changes_of(root, file)
        done = [results[change.key] for change in every if change.key in results]
        alive = [line for line in done if not line["caught"]]
        source = (root / "src" / "calibrant" / file).read_text(encoding="utf-8").splitlines()
        for line in alive:
            line["kind"], line["why"] = why(file, source[line["line"] - 1], line["what"])
        same = sum(line["kind"] == SAME for line in alive)
        counts = [len(every), len(done), len(done) - len(alive), same]
        totals = [total + more for total, more in zip(totals, counts, strict=True)]
        rows.append(_row(file, counts))
        survivors += sorted(alive, key=lambda line: (line["file"], line["line"]))
    late = sum(line["by"] == "time" for line in results.values())
    failing: list[str] = next(
        (line["known"]["failing"] for line in reversed(lines) if "known" in line), []
    )
    head = ["| file | changes | tried | caught | survived | of these the same | score |"]
    head.append("|---|---|---|---|---|---|---|")
    text = [
        "# Do the tests of the losses notice a change?",
        "",
        "One small change at a time (a sign, a term, a reduction, a constant or default, a "
        "comparison, a condition, a wrapper such as `exp` or `detach` left out, a statement left "
        "out), put to the tests that call the changed function. Caught is a failing test, a crash, "
        f"or more than {SLACK:g} times the usual time ({late} of them). Some survivors compute "
        "the same as the original, and no test can tell: these have their reason below. The score "
        "is caught / (tried − the same). CUDA is hidden: what only a GPU runs survives.",
        "",
        *head,
        *rows,
        _row("**all**", totals),
        "",
    ]
    if failing:
        text += ["Left out, for they failed unchanged: " + ", ".join(failing) + ".", ""]
    text += [f"## Survivors ({len(survivors)})", "", "| file:line | change | tests | why |"]
    text += ["|---|---|---|---|"]
    for line in survivors:
        what = line["what"].replace("|", "\\|")
        place = f"{line['file']}:{line['line']}"
        text.append(f"| {place} | `{what}` | {line['tests']} | {line['why']} |")
    text += ["", "Made by `python benchmarks/mutation.py`, which says how.", ""]
    return "\n".join(text)


def _row(name: str, counts: Sequence[int]) -> str:
    every, tried, caught, same = counts
    score = f"{caught / (tried - same):.1%}" if tried > same else "—"
    return f"| {name} | {every} | {tried} | {caught} | {tried - caught} | {same} | {score} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="names such as brier.py or soft_rank*; all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=30.0, help="least seconds for a change")
    parser.add_argument("--minutes", type=float, help="stop after so long; run again to go on")
    parser.add_argument("--lines", type=Path, default=LINES, help="where results are kept")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--tests", nargs="+", help="these test files alone, for a trial")
    parser.add_argument("--count", action="store_true", help="only count the changes")
    parser.add_argument("--report", action="store_true", help="write up what is there")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.count:
        counts = {file: len(changes_of(ROOT, file)) for file in targets(ROOT)}
        print(*(f"{count:5} {file}" for file, count in counts.items()), sep="\n")
        print(f"{sum(counts.values()):5} in all")
    elif options.report:
        text = report(ROOT, read_lines(options.lines))
        print(text)
        if options.write:
            options.write.write_text(text, encoding="utf-8")
    else:
        run(options)


if __name__ == "__main__":
    main()
