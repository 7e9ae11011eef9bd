"""Read and write methods as text: ``name(option=value)`` and ``focal+0.5*s_avuc``.

A value is a plain Python value (number, text in quotes, list, tuple, True, None) or a bare
word, which is text. Nothing is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from calibrant.core.errors import InputError

Options = dict[str, Any]
_YAML_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"[A-Za-z_]\w*$")
_TERM = re.compile(r"^(?:(?P<weight>[^*()]+)\*\s*)?(?P<method>[A-Za-z_]\w*\s*(?:\(.*\))?)$", re.S)


class Term(NamedTuple):
    """One part of a loss: its weight (None where the text has none), name and options."""

    weight: float | None
    name: str
    options: Options


def parse_method(text: str, *, kind: str = "method") -> tuple[str, Options]:
    """Read a method's name and options.

    >>> parse_method("temperature(objective=sb_ece, num_bins=10)")
    ('temperature', {'objective': 'sb_ece', 'num_bins': 10})
    >>> parse_method("deep_ensemble(recipe=mixup(alpha=0.4))", kind="recipe")
    ('deep_ensemble', {'recipe': 'mixup(alpha=0.4)'})

    Args:
        text: A name, or a name with options in parentheses.
        kind: What the text names. An option of that name may hold such a text itself.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            options = dict(_read_option(option, kind) for option in node.keywords)
            if len(options) == len(node.keywords):
                return node.func.id, options
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    article = "an" if kind[0] in "aeiou" else "a"
    raise InputError(
        f"{article} {kind} is written name(option=value, ...), each option once, with plain "
        f"values, found {text!r}"
    )


def _read_option(option: ast.keyword, kind: str) -> tuple[str, Any]:
    if option.arg is None:
        raise ValueError("**options")
    value = option.value
    if isinstance(value, ast.Name):
        return option.arg, _YAML_WORDS.get(value.id, value.id)
    if isinstance(value, ast.Call) and option.arg == kind:
        text = ast.unparse(value)
        parse_method(text, kind=kind)
        return option.arg, text
    return option.arg, ast.literal_eval(value)


def parse_value(text: str) -> Any:
    """Read one value of an option: a plain Python value, ``true``, ``null``, or text.

    >>> parse_value("1e-3"), parse_value("true"), parse_value("[1, 2]"), parse_value("cosine")
    (0.001, True, [1, 2], 'cosine')
    """
    word = text.strip()
    if word in _YAML_WORDS:
        return _YAML_WORDS[word]
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        if word[:1] in ("[", "(", "{", "'", '"'):
            raise InputError(f"{text!r} is not a value: check its brackets and quotes") from None
        return word


def format_method(name: str, options: Mapping[str, Any]) -> str:
    """Write a method the one way that results and keys use: options sorted, no spaces.

    >>> format_method("temperature", {"objective": "sb_ece", "num_bins": 10})
    'temperature(num_bins=10,objective=sb_ece)'
    """
    if not options:
        return name
    return f"{name}({','.join(f'{key}={_format_value(options[key])}' for key in sorted(options))})"


def _format_value(value: Any) -> str:
    if isinstance(value, str) and _WORD.match(value) and value not in ("None", "True", "False"):
        return value
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(repr, value))}]"
    return repr(value)


def parse_terms(text: str) -> list[Term]:
    """Read the parts of a loss.

    >>> [tuple(term) for term in parse_terms("focal(gamma=3)+0.5*s_avuc")]
    [(None, 'focal', {'gamma': 3}), (0.5, 's_avuc', {})]
    """
    return [_parse_term(part.strip(), text) for part in split_terms(text)]


def split_terms(text: str) -> list[str]:
    """Split at plus signs outside parentheses, quotes and numbers such as 1e+3."""
    return split_outside(text, "+")


def split_outside(text: str, separator: str) -> list[str]:
    """Split at a separator outside parentheses, quotes and numbers such as 1e+3.

    >>> split_outside("ece(num_bins=10, order=2),nll", ",")
    ['ece(num_bins=10, order=2)', 'nll']
    """
    parts, depth, begin, quote, escaped = [], 0, 0, "", False
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote and not escaped else quote
            escaped = sign == "\\" and not escaped
            continue
        quote = sign if sign in "'\"" else ""
        depth += (sign in "([") - (sign in ")]")
        in_number = re.search(r"[\d.][eE]$", text[:place]) is not None
        if sign == separator and depth == 0 and not in_number:
            parts.append(text[begin:place])
            begin = place + 1
    return [*parts, text[begin:]]


def _parse_term(part: str, text: str) -> Term:
    match = _TERM.match(part)
    if match is None:
        raise InputError(
            f"{part!r} in {text!r} is not a loss; write primary+beta*secondary, as in "
            "focal(gamma=2)+0.5*sb_ece"
        )
    name, options = parse_method(match["method"], kind="loss")
    if match["weight"] is None:
        return Term(None, name, options)
    try:
        return Term(float(match["weight"]), name, options)
    except ValueError:
        raise InputError(
            f"the weight of {name} must be a number, found {match['weight']!r} in {text!r}"
        ) from None


def format_terms(terms: Sequence[Term]) -> str:
    """Write the parts of a loss so that `parse_terms` reads them back."""
    return "+".join(_format_term(term) for term in terms)


def _format_term(term: Term) -> str:
    weight = "" if term.weight is None else f"{term.weight!r}*"
    options = ", ".join(f"{key}={value!r}" for key, value in term.options.items())
    return f"{weight}{term.name}({options})" if options else f"{weight}{term.name}"


def has_term(text: str, names: Collection[str]) -> bool:
    """Say whether a loss has a part with one of the names."""
    return any(term.name in names for term in parse_terms(text))


def set_option(text: str, names: Collection[str], option: str, value: Any) -> str:
    """Change an option of the parts named; ``beta`` is a part's weight.

    >>> set_option("focal+s_avuc", ["s_avuc"], "threshold", 0.25)
    'focal+s_avuc(threshold=0.25)'
    >>> set_option("s_avuc(threshold=0.25)", ["s_avuc"], "beta", 3.0)
    '3.0*s_avuc(threshold=0.25)'
    """
    terms = parse_terms(text)
    if not any(term.name in names for term in terms):
        raise InputError(f"{text!r} has no part {', '.join(names)}")
    return format_terms(
        [_set_option(term, option, value) if term.name in names else term for term in terms]
    )


def _set_option(term: Term, option: str, value: Any) -> Term:
    if option == "beta":
        return term._replace(weight=float(value))
    return term._replace(options={**term.options, option: value})


def edit_options(
    text: str, *, drop: Collection[str] = (), add: Mapping[str, Any] | None = None
) -> str:
    """Drop and add options of a method's text; the rest stays as it is written.

    >>> edit_options("r_aurc(csf='msp', lam=.5)", drop=["lam"], add={"reference_batch": None})
    "r_aurc(csf='msp', reference_batch=None)"

    Args:
        text: A name, or a name with options in parentheses.
        drop: The options to drop. Default: none.
        add: The options to add at the end. Default: none.
    """
    for option in drop:
        text = _drop_option(text, option)
    for option, value in (add or {}).items():
        text = _add_option(text, f"{option}={_format_value(value)}")
    return text


def _drop_option(text: str, option: str) -> str:
    name, places = _find_options(text)
    names = [option for option, _, _ in places]
    if option not in names:
        return text
    if len(places) == 1:
        return name
    at = names.index(option)
    begin = places[at - 1][2] if at else places[0][1]
    end = places[at][2] if at else places[1][1]
    return text[:begin] + text[end:]


def _add_option(text: str, written: str) -> str:
    name, places = _find_options(text)
    if not places:
        return f"{name}({written})"
    end = places[-1][2]
    return f"{text[:end]}, {written}{text[end:]}"


def _find_options(text: str) -> tuple[str, list[tuple[str, int, int]]]:
    """Find a method's name, and where each of its options begins and ends in the text."""
    node = ast.parse(text.strip(), mode="eval").body
    if isinstance(node, ast.Name):
        return node.id, []
    assert isinstance(node, ast.Call)  # as `parse_method` reads
    assert isinstance(node.func, ast.Name)
    shift = len(text) - len(text.lstrip())
    lines = text.strip().splitlines(keepends=True)

    def offset(line: int, column: int) -> int:  # columns are counted in bytes
        before = sum(map(len, lines[: line - 1]))
        return shift + before + len(lines[line - 1].encode()[:column].decode())

    return node.func.id, [
        (
            str(keyword.arg),
            offset(keyword.lineno, keyword.col_offset),
            offset(
                keyword.end_lineno or keyword.lineno, keyword.end_col_offset or keyword.col_offset
            ),
        )
        for keyword in node.keywords
    ]


def edit_terms(text: str, edit: Callable[[Term], tuple[Collection[str], Mapping[str, Any]]]) -> str:
    """Drop and add options of a loss's parts; ``beta`` is a part's weight.

    >>> edit_terms("focal(gamma=3) + 1.0*sb_ece", lambda term: ({"beta"}, {}))
    'focal(gamma=3) + sb_ece'

    Args:
        text: The loss.
        edit: Given a part, the options to drop and those to add.
    """
    parts = split_terms(text)
    return "+".join(_edit_term(part, *edit(_parse_term(part.strip(), text))) for part in parts)


def _edit_term(part: str, drop: Collection[str], add: Mapping[str, Any]) -> str:
    match = _TERM.match(part.strip())
    assert match is not None  # as it was parsed
    begin = part.index(match["method"])
    weight, method = part[:begin], part[begin:]
    blank = part[: len(part) - len(part.lstrip())]
    if "beta" in drop:
        weight = blank
    if "beta" in add:
        weight = f"{blank}{float(add['beta'])!r}*"
    rest = {option: value for option, value in add.items() if option != "beta"}
    return weight + edit_options(
        method, drop=[option for option in drop if option != "beta"], add=rest
    )


def merge_options(text: str, options: Mapping[str, Any], *, kind: str) -> tuple[str, Options]:
    """Join the options inside a method's text with those given beside it.

    A method inside it, in the option that is called as its kind (a recipe's ``recipe=``), may
    be such a text too; its own options then stand in ``recipe_options``.

    >>> merge_options("mixup(alpha=0.4)", {}, kind="recipe")
    ('mixup', {'alpha': 0.4})
    >>> merge_options("deep_ensemble(recipe=mixup(alpha=0.4))", {}, kind="recipe")
    ('deep_ensemble', {'recipe': 'mixup', 'recipe_options': {'alpha': 0.4}})
    """
    name, written = parse_method(text, kind=kind) if "(" in text else (text, {})
    for key in written:
        if key in options:
            raise InputError(
                f"the option {key} is given twice, in {text!r} and in {kind}_options "
                f"({options[key]!r}): leave one out"
            )
    merged = {**written, **options}
    inner = merged.get(kind)
    if not isinstance(inner, str) or "(" not in inner:
        return name, merged
    beside = merged.get(f"{kind}_options") or {}
    if not isinstance(beside, Mapping):
        raise InputError(f"{kind}_options is a mapping of options, found {beside!r}")
    merged[kind], inner_options = merge_options(inner, beside, kind=kind)
    return name, merged | ({f"{kind}_options": inner_options} if inner_options else {})
