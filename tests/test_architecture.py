"""The rooms of the house import each other one way only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import calibrant

SOURCE = Path(calibrant.__file__).parent
# What a room may import of ours, besides itself and what `EVERYONE` may.
ARROWS = {
    "functional": set(),
    "predictions": {"functional"},
    "losses": {"functional"},
    "metrics": {"functional"},
    "evaluation": {"metrics", "predictions", "functional"},
    "calibrators": {"functional", "losses", "metrics", "predictions"},
    "models": {"functional"},
    "data": {"functional"},
    "training": {
        "functional",
        "predictions",
        "losses",
        "metrics",
        "calibrators",
        "models",
        "data",
    },
    "report": {"evaluation", "predictions", "functional.errors"},
}
EVERYONE = {"_version"}
ARROWS["bench"] = set(ARROWS)
# These use the package as anyone does: all but what is named here, and nothing imports them.
ON_TOP = {"demo": {"cli"}, "cli": set(), "__main__": set(), "__init__": {"cli", "demo"}}
HEAVY = ("torchmetrics", "pandas", "matplotlib", "pyarrow", "sklearn", "scipy", "jinja2", "typer")
HEAVY += ("rich", "yaml", "safetensors", "lightning")


def files():
    return sorted(SOURCE.rglob("*.py"))


def room_of(path):
    first, *rest = path.relative_to(SOURCE).parts
    return first if rest else first.removesuffix(".py")


def imports(path):
    """Modules of ours a file imports, anywhere in it, without the leading ``calibrant``."""
    package = ("calibrant", *path.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*parent, *([node.module] if node.module else [])])
            # `from calibrant import metrics` imports the room, not the top.
            whole = base == "calibrant"
            names = [f"{base}.{alias.name}" if whole else base for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "calibrant":
                yield rest


def allowed(room, imported):
    target = imported.split(".")[0]
    if room in ON_TOP:
        return target not in ON_TOP[room]
    named = (imported == one or imported.startswith(f"{one}.") for one in ARROWS[room])
    return target in (room, *EVERYONE) or any(named)


def test_every_room_is_known():
    assert {room_of(path) for path in files()} <= {*ARROWS, *ON_TOP, *EVERYONE}


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_arrows(path):
    room, ours = room_of(path), sorted(set(imports(path)))
    if room in EVERYONE:
        assert not ours
        return
    wrong = [name for name in ours if not allowed(room, name)]
    assert not wrong, f"{room} may not import {wrong} (it may: {sorted(ARROWS.get(room, ()))})"


def test_arrows_make_no_circle():
    def reaches(room, seen=()):
        assert room not in seen, f"{room} imports itself by way of {seen}"
        for target in ARROWS.get(room, ()):
            reaches(target.split(".")[0], (*seen, room))

    for room in ARROWS:
        reaches(room)


def test_the_walker_sees_every_form_of_import(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    room = tmp_path / "functional"
    room.mkdir()
    path = room / "x.py"
    path.write_text(
        "import calibrant.metrics.base\n"
        "from calibrant import report\n"
        "def f():\n    from calibrant.evaluation import evaluate\n"
        "    from ..predictions import value\n    from . import errors\n"
        "if TYPE_CHECKING:\n    import calibrant.cli as c\n"
        "import numpy\n"
    )
    found = sorted(imports(path))
    assert found == ["cli", "evaluation", "functional", "metrics.base", "predictions", "report"]
    assert [name for name in found if allowed("functional", name)] == ["functional"]
    assert allowed("report", "functional.errors")
    assert not allowed("report", "functional.blocks")
    assert allowed("cli", "evaluate")
    assert not allowed("demo", "cli.main")


def loaded_by(statement):
    code = f"import sys; {statement}; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    command = [sys.executable, "-c", code]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    assert not loaded_by("import calibrant") & {*HEAVY, "torch"}


def test_importing_the_metrics_and_predictions_loads_nothing_heavy():
    assert not loaded_by("import calibrant.metrics, calibrant.predictions") & set(HEAVY)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_stay_small(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350
