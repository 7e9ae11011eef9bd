"""The mutation run makes the changes it names, and tells a caught one from one that survives."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEST = "tests/losses/test_one.py"

SOURCE = '''
"""A file to change: 1 + 1 here is prose."""

def loss(x, y, *, gamma: "int | None" = 2.0, reduction="mean") -> Tensor:
    """Not 1 + 1."""
    if x.ndim > 1 and y is not None:
        raise ValueError(f"too many: {x.ndim + 1}")
    assert y is not None
    value = -x.exp().detach() + gamma * y
    return reduce(value.sum(1))


def check(x) -> None:
    if x < 0:
        raise ValueError("negative")
    x.done = True
'''


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def made(benchmarks):
    from mutation_changes import changes

    return list(changes("losses/one.py", SOURCE))


@pytest.mark.parametrize(
    "what",
    [
        "gamma=2.0 → gamma=4.0",
        "gamma=2.0 → gamma=3.0",
        "reduction='mean' → reduction='sum'",
        "x.ndim > 1 → x.ndim >= 1",
        "x.ndim > 1 → x.ndim <= 1",
        "x.ndim > 1 → x.ndim > 2",
        "x.ndim > 1 and y is not None → x.ndim > 1 or y is not None",
        "x.ndim > 1 and y is not None → y is not None",
        "x.ndim > 1 and y is not None → not (x.ndim > 1 and y is not None)",
        "x.ndim > 1 and y is not None → True",
        "x.ndim > 1 and y is not None → False",
        "-x.exp().detach() + gamma * y → -x.exp().detach() - gamma * y",
        "-x.exp().detach() + gamma * y → -x.exp().detach()",
        "-x.exp().detach() + gamma * y → gamma * y",
        "-x.exp().detach() → x.exp().detach()",
        "x.exp().detach() → x.exp()",
        "x.exp().detach → x.detach",
        "gamma * y → gamma / y",
        "value.sum(1) → value.mean(1)",
        "value.sum(1) → value.sum(0)",
        "return reduce(value.sum(1)) → return value.sum(1)",
        "return reduce(value.sum(1)) → return -reduce(value.sum(1))",
        "x.done = True → pass",
    ],
)
def test_every_kind_of_change_is_made(made, what):
    assert [change.what for change in made].count(what) == 1


def test_changes_are_whole_files_each_once_and_know_their_place(made):
    assert (
        len({change.source for change in made}) == len(made) == len({change.key for change in made})
    )
    for change in made:
        compile(change.source, "changed", "exec")
        assert "1 + 1 here is prose" in change.source
        assert "Not 1 + 1." in change.source
        assert "{x.ndim + 1}" in change.source
        assert "'int | None'" in change.source
        assert "assert y is not None" in change.source
        assert change.function == (4 if change.line < 12 else 13)


def project(folder):
    """A package of one loss with a test that minds its sign and not its size."""
    losses = folder / "src" / "calibrant" / "losses"
    tests = folder / "tests" / "losses"
    for made in (losses, losses.parent / "functional", tests, folder / "benchmarks"):
        made.mkdir(parents=True)
    (losses.parent / "__init__.py").write_text("")
    (losses / "__init__.py").write_text("")
    (losses / "one.py").write_text(
        "from __future__ import annotations\n\n\n"
        "def one(x) -> Tensor:\n    while x > 50:\n        x = min(x, 40)\n    return 3 * x\n\n\n"
        "def unused(x) -> Tensor:\n    return -x\n"
    )
    (folder / TEST).write_text(
        "from calibrant.losses.one import one\n\n\n"
        "def test_sign():\n    assert one(2) > 0 and one(-2) < 0\n    assert one(75) > 0\n\n\n"
        "def test_fails_anyhow():\n    assert one(1) == 1\n\n\n"
        "def test_reads_the_source():\n    from pathlib import Path\n    from calibrant.losses"
        " import one\n    one.one(1)\n    assert '\\n\\n\\n' in Path(one.__file__).read_text()\n\n"
        + "".join(f"def test_{i}():\n    pass\n\n\n" for i in range(60))
    )
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    for name in sorted(path.name for path in (ROOT / "benchmarks").glob("mutation*.py")):
        source = (ROOT / "benchmarks" / name).read_text(encoding="utf-8")
        light = re.sub(r"(?m)^HEAVY \+?= .*", 'HEAVY = "pytest"', source)  # not needed here
        (folder / "benchmarks" / name).write_text(light, encoding="utf-8")
    return folder


def run(folder, *options):
    command = [sys.executable, "benchmarks/mutation.py", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done


def test_what_is_excused_is_a_change_that_is_made(benchmarks):
    from mutation import EQUIVALENT
    from mutation_runs import changes_of

    made = {file: changes_of(ROOT, file) for file in {file for file, *_ in EQUIVALENT}}
    for file, words, change, reason in EQUIVALENT:
        source = (ROOT / "src" / "calibrant" / file).read_text(encoding="utf-8").splitlines()
        lines = [candidate.line for candidate in made[file] if candidate.what == change]
        assert [line for line in lines if words in source[line - 1]], (file, change)
        assert reason


def test_what_is_explained_is_there_to_be_changed(benchmarks):
    from mutation import why
    from mutation_equal import EXPLAINED, GPU, SAME

    for file, words, kind, reason in EXPLAINED:
        source = (ROOT / "src" / "calibrant" / file).read_text(encoding="utf-8").splitlines()
        assert any(words in line for line in source), (file, words)
        assert kind in (SAME, GPU)
        assert reason
    row = "functional/soft_rank/cpu_pooling.py", "    flat = scaled.reshape(-1)"
    assert why(*row, "-1 → -2")[0] == SAME
    assert why(*row, "flat = scaled.reshape(-1) → flat = -scaled.reshape(-1)") == ("", "")


@pytest.mark.slow
def test_a_run_tells_caught_from_survived_resumes_and_reports(tmp_path):
    folder = project(tmp_path / "checkout")
    before = (folder / "src" / "calibrant" / "losses" / "one.py").read_text()
    output = run(folder, "--jobs", "2", "--limit", "5").stderr
    for name in ("test_fails_anyhow", "test_reads_the_source"):  # would catch anything
        assert f"failed unchanged: {TEST}::{name}" in output
    assert (folder / "src" / "calibrant" / "losses" / "one.py").read_text() == before
    kept = folder / "benchmarks" / ".mutation-losses.jsonl"
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    by_change = {line["what"]: line for line in lines if "what" in line}
    assert by_change["3 * x → 3 / x"]["caught"] is False  # of a sign, as told
    assert by_change["3 * x → 6 * x"]["caught"] is False
    assert by_change["return 3 * x → return -(3 * x)"]["by"] == f"{TEST}::test_sign"
    assert by_change["x = min(x, 40) → pass"]["by"] == "time"
    assert by_change["return -x → return x"]["caught"] is False
    assert by_change["return -x → return x"]["tests"] == 0  # none calls it
    assert "0 to try" in run(folder).stderr
    # A better test: only survivors are tried again.
    test = folder / TEST
    test.write_text(test.read_text() + "def test_size():\n    assert one(7) == 21\n")
    alive = sum(not line["caught"] for line in by_change.values())
    assert f"{len(by_change)} changes, {alive} to try" in run(folder, "--limit", "5").stderr
    written = folder / "MUTATION.md"
    text = run(folder, "--report", "--write", str(written)).stdout
    assert written.read_text().strip() == text.strip()
    assert "3 * x" not in text
    assert "| losses/one.py:11 |" in text
    assert "test_fails_anyhow" in text
