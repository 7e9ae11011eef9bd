"""How ``mutation.py`` runs tests: copies of the package, a forked child each, and the clock."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import cache_from_source
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from mutation_changes import Change, changes, rewritten

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/losses/test_*.py", "tests/functional/test_soft_rank.py")
HEAVY = "numpy scipy.optimize scipy.special sklearn.datasets torchmetrics pytest torch "
HEAVY += "torch._dynamo torch._functorch.aot_autograd torch.distributed"
ELSEWHERE = {"subprocess", "start_processes"}  # such tests call functions unseen
GRACE = 20.0  # seconds to finish what has begun
SLACK = 3.0  # times the usual time


@dataclass
class Known:
    """What the unchanged tests did."""

    digest: str
    seconds: dict[str, float]
    calls: dict[str, list[str]]  # "file:first line of a function" -> tests
    failing: list[str]

    def tests_of(self, change: Change) -> list[str]:
        """The tests that call the function, or anything of the file; quickest first."""
        near = f"{change.file}:{change.function}" if change.function else ""
        wide = [name for name in self.calls if name.startswith(f"{change.file}:")]
        chosen = set(self.calls.get(near, ())) if near else set()
        if not chosen and not change.function:
            chosen = {test for name in wide for test in self.calls[name]}
        chosen |= set(self.calls.get(f"{change.file}:elsewhere", ()))
        return sorted(chosen, key=lambda test: self.seconds[test])


class Chosen:
    """A pytest plugin: only these tests, in this order, and the first that failed."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.order = {test: place for place, test in enumerate(tests)}
        self.failed = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Select and sort."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order),
            key=lambda item: self.order[item.nodeid],
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a failure."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that cannot be imported."""
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (not imported)"


class Noted:
    """A pytest plugin: how long each test takes and which of our functions it calls."""

    def __init__(self, package: Path, order: Sequence[str] | None) -> None:
        self.order = order  # where given, nothing is traced
        self.package = f"{package}{os.sep}"
        self.found: dict[str, Any] = {}
        self.codes: set[CodeType] = set()
        self.shared: list[tuple[set[str], str, list[str]]] = []
        self.items: list[Any] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """All, in the order given."""
        if self.order is not None:
            Chosen(self.order).pytest_collection_modifyitems(items)
        self.items = list(items)

    def _of(self, test: str) -> dict[str, Any]:
        fresh: dict[str, Any] = {"seconds": 0.0, "failed": False, "elsewhere": False, "calls": []}
        record: dict[str, Any] = self.found.setdefault(test, fresh)
        return record

    def _called(self) -> list[str]:
        codes, self.codes = self.codes, set()  # the old set grows no more while it is read
        return sorted(
            f"{code.co_filename[len(self.package) :]}:{code.co_firstlineno}"
            for code in codes
            if code.co_filename.startswith(self.package)
        )

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        self.codes.add(frame.f_code)

    def pytest_runtest_setup(self, item: Any) -> None:
        """Begin a test, with nothing remembered from the ones before it."""
        for module in list(sys.modules.values()):
            if str(getattr(module, "__file__", None) or "").startswith(str(item.path.parent)):
                for value in list(vars(module).values()):
                    if hasattr(value, "cache_clear"):
                        value.cache_clear()
        self.codes.clear()
        if self.order is None:
            sys.settrace(self._trace)

    def pytest_runtest_call(self, item: Any) -> None:
        """What was called so far belongs to fixtures, and to all that share them."""
        called = self._called()
        if called:
            self.shared.append((set(item.fixturenames), item.nodeid.split("::")[0], called))

    def pytest_runtest_teardown(self, item: Any) -> None:
        """End a test."""
        sys.settrace(None)
        code = getattr(getattr(item, "function", None), "__code__", None)
        elsewhere = bool(code and ELSEWHERE & set(code.co_names))
        self._of(item.nodeid).update(calls=self._called(), elsewhere=elsewhere)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Times, and failures."""
        record = self._of(report.nodeid)
        record["seconds"] += report.duration
        record["failed"] |= report.failed

    def results(self) -> dict[str, Any]:
        """A test's seconds, calls and failure."""
        for item in self.items:
            for fixtures, home, called in self.shared:
                if item.nodeid.startswith(home) and fixtures & set(item.fixturenames):
                    self._of(item.nodeid)["calls"] += called
        return self.found


def targets(root: Path) -> list[str]:
    """The files to change, below src/calibrant."""
    package = root / "src" / "calibrant"
    losses = [path for path in (package / "losses").glob("*.py") if path.name != "__init__.py"]
    shared = [
        path
        for name in ("soft_rank/*", "kernels")
        for path in (package / "functional").glob(f"{name}.py")
    ]
    files = [*losses, *(path for path in shared if not path.name.startswith(("triton", "__")))]
    return sorted(path.relative_to(package).as_posix() for path in files)


def test_files(root: Path) -> list[str]:
    """The tests of losses and soft rank, and the files with examples in their docstrings."""
    found = sorted(path for pattern in TESTS for path in root.glob(pattern))
    examples = [root / "src" / "calibrant" / file for file in targets(root)]
    found += [path for path in examples if ">>>" in path.read_text(encoding="utf-8")]
    return [path.relative_to(root).as_posix() for path in found]


def digest_of(root: Path, only: Sequence[str] | None = None) -> str:
    """Changes with any file of the tests or the package that may matter, or of those asked for."""
    files = sorted([*root.glob("tests/**/*.py"), *root.glob("src/calibrant/losses/*.py")])
    files += sorted(root.glob("src/calibrant/functional/**/*.py"))
    named = {*root.glob("tests/**/test_*.py")} - {root / file for file in test_files(root)}
    whole = hashlib.sha256(repr(only).encode())
    for path in files:
        if path not in named:
            whole.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return whole.hexdigest()[:20]


def copied(root: Path, to: Path) -> Path:
    """Package and tests, in a folder of their own."""
    skip = shutil.ignore_patterns("__pycache__", "*.pyc")
    for part in ("src", "tests"):
        shutil.copytree(root / part, to / part, ignore=skip)
    shutil.copy(root / "pyproject.toml", to)
    return to


def prepare() -> None:
    """What every child needs, imported once; and nothing of ours."""
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", MPLBACKEND="Agg")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    data = ROOT.parent / "shared" / "data"
    if data.is_dir():
        os.environ.setdefault("CALIBRANT_TEST_DATA", str(data))
    for name in HEAVY.split():
        try:
            import_module(name)
        except ImportError:
            print(f"without {name}", file=sys.stderr)
    if "calibrant" in sys.modules:
        raise RuntimeError("calibrant is imported already: its copies would not be")


def child(folder: Path, plugin: Any, files: Sequence[str], answer: Path, *, stop: bool) -> int:
    """Fork, run pytest in a copy, write the plugin's answer; gives the child's number."""
    number = os.fork()
    if number:
        return number
    code = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        quiet = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.chdir(folder)
        source = str(folder / "src")
        sys.path[:] = [
            source,
            *(entry for entry in sys.path if entry not in ("", str(ROOT / "src"))),
        ]
        os.environ["PYTHONPATH"] = source
        sys.dont_write_bytecode = False  # the next child need not compile the tests again
        import pytest

        arguments = ["-q", "-p", "no:cacheprovider", "--tb=line", *(["-x"] if stop else [])]
        arguments += ["--basetemp", str(folder / "temporary"), *files]
        code = int(pytest.main(arguments, plugins=[plugin]))
        import calibrant

        if not str(calibrant.__file__).startswith(source):
            code = 71
        found = plugin.failed if isinstance(plugin, Chosen) else plugin.results()
        answer.write_text(json.dumps(found), encoding="utf-8")
    except SystemExit:
        code = 72
    finally:
        os._exit(code)


def run_all(
    work: Iterator[tuple[Any, Any]], folders: Sequence[Path], ends: float = float("inf")
) -> Iterator[Any]:
    """Each piece of work in a free folder; gives (label, code or None when late, answer, seconds).

    A piece is (label, start), and start(folder, answer) gives (a child's number, its limit).
    """
    free = list(folders)
    busy: dict[int, tuple[Any, Path, float, float]] = {}
    more = True
    try:
        while (more or busy) and time.monotonic() < ends:
            while more and free:
                piece = next(work, None)
                if piece is None:
                    more = False
                    break
                label, start = piece
                folder = free.pop()
                answer = folder / "answer.json"
                answer.unlink(missing_ok=True)
                number, limit = start(folder, answer)
                busy[number] = (label, folder, time.monotonic(), limit)
            for number, (label, folder, began, limit) in list(busy.items()):
                ended, status = os.waitpid(number, os.WNOHANG)
                taken = time.monotonic() - began
                code: int | None = os.waitstatus_to_exitcode(status) if ended else None
                if not ended and taken < limit:
                    continue
                _end(number, reap=not ended)
                answer = folder / "answer.json"
                found = json.loads(answer.read_text()) if ended and answer.exists() else None
                del busy[number]
                free.append(folder)
                yield label, folder, code, found, taken
            time.sleep(0.01)
    finally:
        for number in busy:
            _end(number, reap=True)


def _end(number: int, *, reap: bool) -> None:
    """End a child with whatever it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)
    if reap:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)


def baseline(folders: Sequence[Path], digest: str, only: set[str] | None) -> Known:
    """The tests on files that say the same, twice: traced, and as a change will be put to them.

    The second time every file is rewritten as changed ones are, without a change, and the
    quickest tests come first: a test that fails then would catch anything, and is left out.
    """
    names = sorted(test_files(folders[0]), key=lambda name: "contract" not in name)
    found: dict[str, Any] = {}
    failing: list[str] = []
    chosen = [name for name in names if only is None or name in only]
    for name, tests, taken in _noted(chosen, folders, None):
        print(f"unchanged: {name}, {len(tests)} tests, {taken:.0f} s", file=sys.stderr, flush=True)
        found |= tests
        if not tests:
            failing.append(name)
    again = set(found)
    order = sorted(found, key=lambda test: found[test]["seconds"])
    plain = {file: _source(folders[0], file) for file in targets(folders[0])}
    _write(folders, {file: rewritten(source) for file, source in plain.items()})
    for _, tests, _ in _noted(chosen, folders, order):
        again -= {test for test, record in tests.items() if not record["failed"]}
    _write(folders, plain)
    failing += sorted(again)
    for test in failing:
        print(f"failed unchanged: {test}", file=sys.stderr, flush=True)
    if len(failing) > 0.2 * len(found):
        raise RuntimeError(f"{len(failing)} of {len(found)} tests fail unchanged")
    calls: dict[str, set[str]] = defaultdict(set)
    near: dict[str, set[str]] = defaultdict(set)  # a file of tests -> our files it calls
    for test, record in found.items():
        near[test.split("::")[0]] |= {called.split(":")[0] for called in record["calls"]}
        for called in record["calls"] if test not in again else ():
            calls[called].add(test)
    for test, record in found.items():
        for file in near[test.split("::")[0]] if record["elsewhere"] and test not in again else ():
            calls[f"{file}:elsewhere"].add(test)
    seconds = {test: record["seconds"] for test, record in found.items()}
    return Known(digest, seconds, {name: sorted(tests) for name, tests in calls.items()}, failing)


def _noted(
    names: Sequence[str], folders: Sequence[Path], order: Sequence[str] | None
) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Files of tests, each with what `Noted` says of its tests; nothing where it does not run."""

    def pieces() -> Iterator[tuple[Any, Any]]:
        for name in names:

            def start(folder: Path, answer: Path, name: str = name) -> tuple[int, float]:
                plugin = Noted(folder / "src" / "calibrant", order)
                return child(folder, plugin, [name], answer, stop=False), 3600.0

            yield name, start

    for name, folder, code, found, taken in run_all(pieces(), folders):
        if code not in (0, 1):
            said = (folder / "output.txt").read_text(encoding="utf-8")[-2000:]
            print(f"{name} does not run unchanged (code {code}):\n{said}", file=sys.stderr)
        yield name, found or {}, taken


def changes_of(root: Path, file: str) -> list[Change]:
    """Every change of a file of a checkout."""
    return list(changes(file, _source(root, file)))


def _source(root: Path, file: str) -> str:
    return (root / "src" / "calibrant" / file).read_text(encoding="utf-8")


def _write(folders: Sequence[Path], sources: Mapping[str, str]) -> None:
    """Write files, and forget what was compiled of them: two may have one size and second."""
    for folder in folders:
        for file, source in sources.items():
            path = folder / "src" / "calibrant" / file
            path.write_text(source, encoding="utf-8")
            for stale in Path(cache_from_source(str(path))).parent.glob(f"{path.stem}.*"):
                stale.unlink()


def tried(
    todo: Sequence[Change], known: Known, folders: Sequence[Path], least: float, ends: float
) -> Iterator[dict[str, Any]]:
    """Each change put to its tests: a line of results each, in no order."""
    originals = {file: _source(folders[0], file) for file in {change.file for change in todo}}
    untested = [change for change in todo if not known.tests_of(change)]
    for change in untested:
        yield _line(change, known, caught=False, by="", tests=0, seconds=0.0)

    def pieces() -> Iterator[tuple[Any, Any]]:
        for change in todo:
            if time.monotonic() > ends:
                return
            tests = known.tests_of(change)
            if not tests:
                continue
            files = list(dict.fromkeys(test.split("::")[0] for test in tests))
            limit = max(least, SLACK * sum(known.seconds[test] for test in tests))

            def start(
                folder: Path,
                answer: Path,
                change: Change = change,
                tests: Sequence[str] = tests,
                files: Sequence[str] = files,
                limit: float = limit,
            ) -> tuple[int, float]:
                _write([folder], {change.file: change.source})
                return child(folder, Chosen(tests), files, answer, stop=True), limit

            yield (change, len(tests)), start

    for (change, count), folder, code, found, taken in run_all(pieces(), folders, ends + GRACE):
        _write([folder], {change.file: originals[change.file]})
        if code in (70, 71):
            said = (folder / "output.txt").read_text(encoding="utf-8")[-2000:]
            raise RuntimeError(f"the runner failed at {change}:\n{said}")
        by = "time" if code is None else found or f"code {code}"
        caught = code not in (0, 5)
        yield _line(
            change, known, caught=caught, by=by if caught else "", tests=count, seconds=taken
        )


def _line(
    change: Change, known: Known, *, caught: bool, by: str, tests: int, seconds: float
) -> dict[str, Any]:
    return {
        "key": change.key,
        "digest": known.digest,
        "file": change.file,
        "line": change.line,
        "what": change.what,
        "caught": caught,
        "by": by,
        "tests": tests,
        "seconds": round(seconds, 2),
    }
