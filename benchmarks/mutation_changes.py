"""Small changes to a Python file, one at a time: what ``mutation.py`` puts to the tests."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import Any

BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_PAIRS = "mean sum, max min, amax amin, argmax argmin, maximum minimum, cummax cummin, any all"
_PAIRS += ", clamp_min clamp_max, logical_and logical_or, floor ceil, zeros_like ones_like"
_PAIRS += ", isfinite isnan"
SWAPPED = dict(pair.split() for pair in _PAIRS.split(", "))
SWAPPED |= {after: before for before, after in SWAPPED.items()}
_ALONE = "detach where clamp clamp_min clamp_max abs relu exp expm1 log log1p sqrt square sigmoid"
_ALONE += " tanh neg masked_fill masked_fill_ nan_to_num cumsum flip softmax log_softmax"
WRAPPERS = frozenset(_ALONE.split())
SKIPPED = ("annotation", "returns", "decorator_list", "bases", "exc", "cause", "type")
NARROWING = re.compile(r" is not None$|^isinstance\(|^callable\(")  # for the type checker
LITTLE = (ast.Constant, ast.Attribute, ast.Name)  # say little by themselves
Place = tuple[ast.AST, str, int | None]  # of a node: its parent's field, and where in a list


@dataclass(frozen=True)
class Change:
    """One file with one change in it."""

    file: str  # below src/calibrant
    line: int
    what: str
    function: int  # the first line of the outermost function it is in, 0 outside all
    source: str = field(repr=False)

    @property
    def key(self) -> str:
        """The same for the same change of the same file."""
        return hashlib.sha256(f"{self.file}\n{self.source}".encode()).hexdigest()[:20]


def changes(file: str, source: str) -> Iterator[Change]:
    """Every change of a file, each once."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.returns and _text(node.returns) == "Tensor":
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return):
                    inner.signed = True  # type: ignore[attr-defined]
    seen = {ast.unparse(tree)}
    for place, function in _places(tree, 0):
        old = _at(place)
        replacements = list(_replacements(old, place))
        for new in replacements:
            little = isinstance(old, LITTLE) or isinstance(new, LITTLE)
            before = _said(place, little)
            _put(place, new)
            changed = ast.unparse(ast.fix_missing_locations(tree))
            after = _said(place, little)
            _put(place, old)
            if changed in seen or not _compiles(changed):
                continue
            seen.add(changed)
            what = _difference(before, after)
            yield Change(file, getattr(old, "lineno", 0), what, function, changed)


def rewritten(source: str) -> str:
    """The file as a changed one is written, without a change."""
    return ast.unparse(ast.parse(source))


def _places(node: ast.AST, function: int) -> Iterator[tuple[Place, int]]:
    """Where something may be changed: not in annotations, docstrings, messages or decorators."""
    for name, value in ast.iter_fields(node):
        if name in SKIPPED or (name == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.alias):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue
            if isinstance(child, ast.If) and _text(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.Assert) and NARROWING.search(_text(child.test)):
                continue
            within = function
            if isinstance(child, ast.FunctionDef) and not function:
                within = min(
                    [child.lineno, *(decorator.lineno for decorator in child.decorator_list)]
                )
            yield (node, name, index if isinstance(value, list) else None), within
            yield from _places(child, within)


def _at(place: Place) -> Any:
    parent, name, index = place
    value = getattr(parent, name)
    return value if index is None else value[index]


def _put(place: Place, node: ast.AST) -> None:
    parent, name, index = place
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


def _compiles(source: str) -> bool:
    try:
        compile(source, "changed", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def _said(place: Place, little: bool) -> str:
    """A node in words, the expression around it where it says little by itself."""
    parent, name, index = place
    node = _at(place)
    if name in ("defaults", "kw_defaults") and index is not None:
        assert isinstance(parent, ast.arguments)
        named = parent.kwonlyargs if name == "kw_defaults" else [*parent.posonlyargs, *parent.args]
        which = index if name == "kw_defaults" else index - len(parent.defaults)
        return f"{named[which].arg}={_text(node)}"
    if isinstance(node, ast.FunctionDef):
        return f"def {node.name}: {_text(node.body[-1])}"
    around = isinstance(parent, ast.expr | ast.keyword | ast.Assign | ast.AnnAssign | ast.Return)
    return _text(parent if little and around else node)


def _shared(first: str, second: str) -> int:
    """How many letters they begin with together."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


def _difference(before: str, after: str, longest: int = 60, margin: int = 20) -> str:
    """before → after, without most of what they share where they are long."""
    if max(len(before), len(after)) > longest:
        start = _shared(before, after)
        end = _shared(before[start:][::-1], after[start:][::-1])
        cut = max(start - margin, 0), max(end - margin, 0)
        before, after = (
            ("…" if cut[0] else "") + text[cut[0] : len(text) - cut[1]] + ("…" if cut[1] else "")
            for text in (before, after)
        )
    return f"{before} → {after}"


def _replacements(node: ast.AST, place: Place) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    parent, name, _ = place
    if isinstance(node, ast.expr) and name in ("test", "ifs"):
        yield from _conditions(node, parent)
    if isinstance(node, ast.BinOp):
        yield from _sums(node)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for kind in COMPARED[type(operator)]:
                ops = [*node.ops[:index], kind(), *node.ops[index + 1 :]]
                yield ast.Compare(node.left, ops, node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for index in range(len(node.values)):
            rest = node.values[:index] + node.values[index + 1 :]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.Constant):
        yield from _constants(node, parent)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Attribute) and node.attr in SWAPPED:
        yield ast.Attribute(node.value, SWAPPED[node.attr], node.ctx)
    elif isinstance(node, ast.Name) and name == "func" and node.id in SWAPPED:
        yield ast.Name(SWAPPED[node.id], node.ctx)
    elif isinstance(node, ast.stmt):
        yield from _statements(node)


def _conditions(test: ast.expr, parent: ast.AST) -> Iterator[ast.expr]:
    """Negated, always and never; a loop is not made endless on purpose."""
    if isinstance(parent, ast.Assert):
        return  # left out as a statement
    if not isinstance(test, ast.Compare | ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), test)  # the others are turned round anyway
    yield ast.Constant(False)
    if not isinstance(parent, ast.While):
        yield ast.Constant(True)


def _sums(node: ast.BinOp) -> Iterator[ast.expr]:
    kind = type(node.op)
    if kind in BINARY:
        yield ast.BinOp(node.left, BINARY[kind](), node.right)
    if kind in (ast.Add, ast.Sub):
        yield node.left
        yield node.right if kind is ast.Add else ast.UnaryOp(ast.USub(), node.right)
    if kind is ast.Pow:
        yield node.left


def _constants(node: ast.Constant, parent: ast.AST) -> Iterator[ast.expr]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value * 2)
        yield ast.Constant(value + 1)
        if value == 1 and isinstance(value, int) and isinstance(parent, ast.Call | ast.keyword):
            yield ast.Constant(0)  # most likely a dimension
    elif value in ("mean", "sum"):
        yield ast.Constant(SWAPPED[value])


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    """Without a function that wraps: x.exp() → x, torch.where(c, a, b) → a and b."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in WRAPPERS:
        return
    owner = node.func.value
    arguments = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    if not (isinstance(owner, ast.Name) and owner.id in ("torch", "F", "functional", "math")):
        yield owner
        if node.func.attr == "where":
            yield from arguments[1:]
    elif node.func.attr == "where":
        yield from arguments[1:]
    else:
        yield from arguments[:1]


def _statements(node: ast.stmt) -> Iterator[ast.stmt]:
    """Left out, or returned from early."""
    if isinstance(node, ast.Expr | ast.AugAssign | ast.Assert):
        yield ast.Pass()
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        if isinstance(target, ast.Attribute):
            yield ast.Pass()
        elif isinstance(target, ast.Name) and target.id in {
            name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)
        }:
            yield ast.Pass()  # x = f(x)
    elif isinstance(node, ast.Return) and node.value is not None:
        if hasattr(node, "signed") and not isinstance(node.value, ast.UnaryOp):
            yield ast.Return(ast.UnaryOp(ast.USub(), node.value))
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args:
            yield ast.Return(call.args[0])
    elif isinstance(node, ast.FunctionDef) and len(node.body) > 1:
        docs = [node.body[0]] if ast.get_docstring(node) is not None else []
        first = node.body[len(docs) :]
        if isinstance(node.returns, ast.Constant) and node.returns.value is None and first:
            shorter = copy(node)
            shorter.body = [*docs, ast.Return(None)]
            yield shorter
