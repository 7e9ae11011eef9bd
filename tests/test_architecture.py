"""The rooms import each other one way, no modules import each other in a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import calibrant

SOURCE = Path(calibrant.__file__).parent
LEAVES = {"core", "functional"}
# The rooms of the house, and which of the others each may import.
ARROWS: dict[str, set[str]] = {
    "core": set(),
    "functional": {"core"},
    "predictions": LEAVES,
    "losses": LEAVES,
    "metrics": LEAVES,
    "data": LEAVES,
    "models": LEAVES,
    "evaluation": {*LEAVES, "metrics", "predictions"},
    "calibrators": {*LEAVES, "losses", "metrics", "predictions"},
}
ARROWS["training"] = set(ARROWS) - {"evaluation"}
for acting_room in ("decisions", "monitor"):
    ARROWS[acting_room] = {*LEAVES, "metrics", "predictions", "evaluation", "calibrators"}
ARROWS["report"] = {"core", "evaluation", "predictions", "decisions", "monitor"}
for user_room in ("integrations", "demo"):
    ARROWS[user_room] = set(ARROWS) - {"integrations"}
ARROWS["bench"] = set(ARROWS) - {"integrations", "demo"}
ARROWS["cli"] = set(ARROWS)
ARROWS["__main__"] = {"cli"}
ARROWS["__init__"] = set(ARROWS) - {"__main__", "cli", "demo"}
ANYBODY = {"_version"}
HEAVY = {"torchmetrics", "pandas", "matplotlib", "pyarrow", "sklearn", "scipy", "jinja2", "typer"}
HEAVY |= {"rich", "yaml", "safetensors", "lightning", "pydantic", "filelock"}


def list_modules(source=SOURCE):
    """Return every module's dotted name, without ``calibrant``, and its file."""
    modules = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        modules[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = (
            path
        )
    return modules


MODULES = list_modules()


def list_imports(name, path, modules):
    """Return the modules of ours that a file imports anywhere, also under TYPE_CHECKING."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    package = ["calibrant", *(package if name != "__init__" else [])]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            # `from package import module` imports the module; `import name` the package.
            inner = [f"{base}.{alias.name}" for alias in node.names]
            names = [
                imported if imported.removeprefix("calibrant.") in modules else base
                for imported in inner
            ]
        else:
            continue
        for imported in names:
            first, _, rest = imported.partition(".")
            if first == "calibrant":
                yield rest or "__init__"


def find_circle(graph):
    """Return modules that import each other in a circle; none where there is no circle."""
    state = {}

    def visit(module, path):
        state[module] = "open"
        for target in sorted(graph.get(module, ())):
            if state.get(target) == "open":
                return [*path[path.index(target) :], target]
            if target not in state and (circle := visit(target, [*path, target])):
                return circle
        state[module] = "done"
        return []

    for module in graph:
        if module not in state and (circle := visit(module, [module])):
            return circle
    return []


@pytest.mark.parametrize("name", MODULES)
def test_imports_follow_the_arrows(name):
    room = name.split(".")[0]
    assert room in {*ARROWS, *ANYBODY}, f"{room} is not a room of the house"
    targets = {imported.split(".")[0] for imported in list_imports(name, MODULES[name], MODULES)}
    wrong = targets - {room, *ARROWS.get(room, ()), *ANYBODY}
    assert not wrong, f"{room} may not import {sorted(wrong)}"


def test_arrows_make_no_circle():
    assert not find_circle({room: targets - {room} for room, targets in ARROWS.items()})


def test_modules_make_no_circle():
    """Imports inside functions and under TYPE_CHECKING count; a package's __init__ does not."""
    files = {name for name, path in MODULES.items() if path.name != "__init__.py"}
    graph = {
        name: {
            imported for imported in list_imports(name, MODULES[name], MODULES) if imported in files
        }
        - {name}
        for name in files
    }
    assert not find_circle(graph)


def test_the_walker_sees_every_form_of_import(tmp_path):
    for room in ("functional", "metrics"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").touch()
        (tmp_path / room / "base.py").touch()
    path = tmp_path / "functional" / "x.py"
    path.write_text(
        "import calibrant.metrics.base\nfrom calibrant import report\n"
        "from calibrant.metrics import base\nfrom calibrant import metrics\n"
        "def f():\n    from calibrant.evaluation import evaluate\n"
        "    from ..predictions import value\n    from . import base\n"
        "if TYPE_CHECKING:\n    import calibrant.cli as c\nimport numpy\n"
    )
    modules = list_modules(tmp_path)
    assert set(list_imports("functional.x", path, modules)) == {
        *("metrics.base", "metrics", "__init__", "evaluation", "predictions"),
        *("functional.base", "cli"),
    }


def test_the_circle_finder_finds_circles():
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def list_loaded(statement):
    code = f"import sys; {statement}; print(*sorted({{m.split('.')[0] for m in sys.modules}}))"
    command = [sys.executable, "-c", code]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_loads_nothing_heavy():
    assert not list_loaded("import calibrant") & {*HEAVY, "torch"}


def test_importing_the_metrics_and_predictions_loads_nothing_heavy():
    assert not list_loaded("import calibrant.metrics, calibrant.predictions") & HEAVY
