"""Run a case of a target: every outcome is a result, an `InputError`, or a defined value.

A target is an entrance of the library: a strategy that draws cases (plain dictionaries), and a
function that gives the entrance the input of a case and checks what comes out. Checks raise
`Wrong`, never `assert`, so that they hold under ``python -O`` too.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from calibrant.core.errors import InputError

CORPUS = Path(__file__).parent / "corpus"
LONGEST_MESSAGE = 7_000
TARGETS: dict[str, Target] = {}


class Wrong(Exception):
    """An outcome that no documentation promises."""


@dataclass(frozen=True)
class Target:
    """An entrance.

    Args:
        name: Its name.
        cases: Draws cases.
        run: Gives the entrance the input of a case, and checks the result.
        share: How many cases it gets, beside those of the others.
    """

    name: str
    cases: st.SearchStrategy[dict[str, Any]]
    run: Callable[[dict[str, Any]], None]
    share: int


def target(
    cases: st.SearchStrategy[dict[str, Any]], *, share: int
) -> Callable[[Callable[[dict[str, Any]], None]], Callable[[dict[str, Any]], None]]:
    """Register a function as the target of its name."""

    def register(run: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        name = run.__name__.removeprefix("fuzz_")
        TARGETS[name] = Target(name, cases, run, share)
        return run

    return register


def check(target: Target, case: dict[str, Any]) -> bool:
    """Run a case; return whether it gave a result, False where an `InputError` refused it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            target.run(case)
        except InputError as error:
            message = str(error)
            if not message.strip() or len(message) > LONGEST_MESSAGE:
                raise Wrong(f"a message of {len(message)} characters: {message[:200]}") from error
            return False
    return True


def read_corpus(name: str) -> list[dict[str, Any]]:
    """Return the stored cases of a target: those that once failed, and hand-written ones."""
    path = CORPUS / f"{name}.jsonl"
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def keep(name: str, case: dict[str, Any]) -> None:
    """Append a case to the corpus, once."""
    if case not in read_corpus(name):
        CORPUS.mkdir(exist_ok=True)
        with (CORPUS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(case) + "\n")


@cache
def find_folder() -> Path:
    """Return a folder for the files of cases, in memory where there is such a disk."""
    memory = Path("/dev/shm")
    holder = tempfile.TemporaryDirectory(
        prefix="calibrant-fuzz-", dir=memory if memory.is_dir() else None
    )
    _HOLDERS.append(holder)  # it goes with the process
    return Path(holder.name)


_HOLDERS: list[Any] = []


def iterate_targets(names: list[str]) -> Iterator[Target]:
    """Yield the targets of these names, or all."""
    import tests.fuzz.targets  # noqa: F401  registers them

    for name in names or TARGETS:
        if name not in TARGETS:
            raise SystemExit(f"no target is called {name!r}; all: {', '.join(TARGETS)}")
        yield TARGETS[name]
