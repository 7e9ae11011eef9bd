"""Build hostile inputs from cases: small dictionaries of plain values, which a corpus can keep."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

SEEDS = st.integers(0, 2**32 - 1)
ODD_NUMBERS = [
    *("nan", "inf", "-inf", 0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 5e-324, 1e-12, 1 + 1e-3, 1e4),
    *(1e30, -1e30, 3.4e38, -3.4e38, 1.797e308, -1.797e308),
]
ODD_LABELS = [-1, -100, 0, 1, 2, 7, 255, 2**31, 2**62, -(2**63)]
ODD_TEXTS = [
    "",
    "a",
    "0",
    "1.0",
    "nan",
    "ä",
    "\ud83d",
    "\x00",
    "a,b",
    '"',
    "x" * 400,
    "-1",
    "1e400",
]
ODD_PLAIN: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 3, 2**31, 2**63, 2**70, 10**400),
    *(0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "a", "x" * 300, "\ud83d", "$float", [], {}, [[]], {"a": 1}, [None], [1, "a"], [0.1] * 30),
]

PLAIN_SCORES = st.fixed_dictionaries(
    {
        "seed": SEEDS,
        "rows": st.sampled_from([1, 2, 3, 12, 40, 40]),
        "classes": st.sampled_from([2, 3, 3, 4]),
        "shape": st.sampled_from(["table", "table", "table", "vector", "dense"]),
        "kind": st.sampled_from(["logits", "probs", "sure"]),
        "scale": st.sampled_from([1.0, 1.0, 5.0, 0.0, 1e4]),
        "dtype": st.sampled_from(["float64", "float32"]),
        "holder": st.sampled_from(["numpy", "torch"]),
        "odd": st.just([]),
    }
)
ODD_SCORES = st.fixed_dictionaries(
    {
        "seed": SEEDS,
        "rows": st.sampled_from([0, 1, 2, 3, 5, 12, 40]),
        "classes": st.sampled_from([0, 1, 2, 2, 3, 3, 4, 7]),
        "shape": st.sampled_from(["table"] * 6 + ["vector", "vector", "dense", "scalar", "empty"]),
        "kind": st.sampled_from(["logits", "logits", "probs", "probs", "ties", "sure"]),
        "scale": st.sampled_from([1.0, 1.0, 5.0, 0.0, 1e-30, 1e4, 1e30, 1e300]),
        "dtype": st.sampled_from(
            ["float64"] * 5
            + ["float32", "float16", "int64", "int8", "bool", "U3", "O", "complex64", ">f8", "g"]
        ),
        "holder": st.sampled_from(
            ["numpy"] * 5 + ["torch", "torch", "list", "strided", "frozen", "masked", "bfloat16"]
        ),
        "odd": st.lists(
            st.tuples(st.integers(0, 300), st.sampled_from(ODD_NUMBERS)), max_size=2
        ).map(lambda pairs: [list(pair) for pair in pairs]),
    }
)
SCORES = st.one_of(PLAIN_SCORES, PLAIN_SCORES, ODD_SCORES)
PLAIN_LABELS = st.fixed_dictionaries(
    {
        "dtype": st.just("int64"),
        "holder": st.sampled_from(["numpy", "torch"]),
        "length": st.just("same"),
        "one": st.booleans(),
        "odd": st.just([]),
    }
)
ODD_LABEL_SETS = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(
            ["int64"] * 6 + ["int8", "uint8", "uint64", "bool", "float64", "U2", "O"]
        ),
        "holder": st.sampled_from(["numpy"] * 5 + ["torch", "list", "masked"]),
        "length": st.sampled_from(["same"] * 9 + ["short", "long", "column", "none"]),
        "one": st.booleans(),  # a single class
        "odd": st.lists(st.tuples(st.integers(0, 60), st.sampled_from(ODD_LABELS)), max_size=1).map(
            lambda pairs: [list(pair) for pair in pairs]
        ),
    }
)
LABELS = st.one_of(PLAIN_LABELS, PLAIN_LABELS, ODD_LABEL_SETS)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            ["flip", "flip", "set", "cut", "insert", "delete", "repeat", "zero", "join"]
        ),
        st.integers(0, 2**20),
        st.integers(0, 2**20),
    ).map(list),
    min_size=1,
    max_size=4,
)
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["set", "set", "set", "drop", "double", "rename", "swap"]),
        st.integers(0, 10_000),
        st.integers(0, len(ODD_PLAIN) - 1),
    ).map(list),
    min_size=1,
    max_size=3,
)


def make_scores(case: dict[str, Any]) -> Any:
    """Return an array of scores, or what stands for one."""
    rng = np.random.default_rng(case["seed"])
    n, k = case["rows"], case["classes"]
    shapes = {"table": (n, k), "vector": (n,), "dense": (n, k, 2, 2), "scalar": (), "empty": (n, 0)}
    values = rng.normal(size=shapes[case["shape"]])
    with np.errstate(all="ignore"):
        if case["kind"] == "ties":
            values = np.round(values)
        elif case["kind"] == "sure" and values.ndim > 1 and values.shape[1]:
            values = np.eye(values.shape[1])[rng.integers(0, values.shape[1], len(values))]
        elif case["kind"] in ("probs", "sure"):
            values = np.exp(values)
            whole = values.sum(1, keepdims=True) if values.ndim > 1 else 1.0 + values
            values = values / whole
        else:
            values = values * case["scale"]
        flat = values.reshape(-1)
        for place, value in case["odd"]:
            if flat.size:
                flat[place % flat.size] = float(value)
        values = flat.reshape(values.shape).astype(case["dtype"])
    return hold(values, case["holder"])


def make_labels(case: dict[str, Any], scores: dict[str, Any]) -> Any:
    """Return labels for the scores of a case."""
    rng = np.random.default_rng(scores["seed"] + 1)
    n, k = scores["rows"], max(1, scores["classes"] if scores["shape"] != "vector" else 2)
    shape = (n, 2, 2) if scores["shape"] == "dense" else (n,)
    lengths = {"short": (max(0, n - 1),), "long": (n + 1,), "column": (n, 1)}
    shape = lengths.get(case["length"], shape)
    if case["length"] == "none":
        return None
    labels = np.zeros(shape, np.int64) if case["one"] else rng.integers(0, k, shape)
    flat = labels.reshape(-1)
    for place, value in case["odd"]:
        if flat.size:
            flat[place % flat.size] = value
    return hold(flat.reshape(shape).astype(case["dtype"]), case["holder"])


def hold(values: Any, holder: str) -> Any:
    """Return an array in one of the forms that users give."""
    if holder in ("torch", "bfloat16"):
        try:
            tensor = torch.from_numpy(values)
        except (TypeError, ValueError):  # types that PyTorch lacks
            return values
        return tensor.bfloat16() if holder == "bfloat16" and values.dtype.kind == "f" else tensor
    if holder == "list":
        return values.tolist()
    if holder == "strided" and values.ndim:
        return np.repeat(values, 2, axis=0)[::-2][::-1]
    if holder == "frozen":
        values.flags.writeable = False
    if holder == "masked":
        return np.ma.masked_array(values, mask=np.arange(values.size).reshape(values.shape) == 1)
    return values


def damage(content: bytes, changes: list[list[Any]], other: bytes = b"") -> bytes:
    """Return the content with its bytes changed."""
    data = bytearray(content)
    for kind, place, value in changes:
        if not data:
            return bytes(data)
        at, octet = place % len(data), value % 256
        if kind == "flip":
            data[at] ^= 1 << (value % 8)
        elif kind == "set":
            data[at] = octet
        elif kind == "cut":
            del data[at:]
        elif kind == "insert":
            data[at:at] = bytes([octet]) * (1 + value % 9)
        elif kind == "delete":
            del data[at : at + 1 + value % 16]
        elif kind == "repeat":
            data[at:at] = data[at : at + 1 + value % 64]
        elif kind == "zero":
            data[at : at + 8] = (b"\x00" * 8, b"\xff" * 8, b"\x7f" + b"\xff" * 7)[value % 3]
        elif other:
            data[at:] = other[value % len(other) :]
    return bytes(data)


def edit(value: Any, edits: list[list[Any]]) -> Any:
    """Return plain values with some of them replaced, dropped, doubled or renamed."""
    root = [copy.deepcopy(value)]
    for kind, place, number in edits:
        places = list(_list_places(root))
        if not places:
            break
        parent, key = places[place % len(places)]
        odd = copy.deepcopy(ODD_PLAIN[number])
        if kind == "drop" and parent is not root:
            del parent[key]
        elif kind == "double" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        elif kind == "rename" and isinstance(parent, dict):
            parent[f"{key}_"] = parent.pop(key)
        elif kind == "swap":
            other, name = places[(place + 1 + number) % len(places)]
            if other is not root and parent is not root:
                parent[key] = copy.deepcopy(other[name])
        else:
            parent[key] = odd
    return root[0]


def _list_places(value: Any) -> Any:
    """Yield the container and key of every value in plain values."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _list_places(value[key])


def write_json(value: Any) -> bytes:
    """Return JSON as an enemy writes it: with NaN, half characters and huge numbers."""
    return json.dumps(value, ensure_ascii=True).encode()
