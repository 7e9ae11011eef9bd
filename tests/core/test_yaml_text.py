"""Whatever a YAML file holds, reading it takes bounded memory and ends in values or one error."""

import pytest

from calibrant.bench.suite.suite import Suite
from calibrant.core.errors import InputError
from calibrant.core.yaml_text import decode_text, parse_yaml
from calibrant.training.config import Config


def make_bomb(levels=40, width=9):
    lines = ["a0: &a0 [lol, lol]"]
    for level in range(1, levels):
        inner = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} [{inner}]")
    return "\n".join(lines)


MERGE = "\n".join(
    ["a0: &a0 {k: v}"]
    + [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], k{n}: v}}" for n in range(1, 12)]
)
HOSTILE = {
    "aliases": make_bomb(),
    "merges": MERGE,
    "long": f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1_000)}]",
    "deep lists": "a: " + "[" * 5_000 + "]" * 5_000,
    "deep maps": "\n".join("  " * depth + "a:" for depth in range(200)),
    "itself": "a: &a [*a]",
    "date": "a: 2001-13-45",
    "time": "a: 2001-01-01T99:99:99Z",
    "number": "a: " + "1" * 5_000,
    "binary": "a: !!binary 'a'",
    "integer": "a: !!int ''",
    "real": "a: !!float x",
    "pairs": "a: !!omap [x]",
    "python": "a: !!python/object/apply:os.system [echo]",
    "control": "a: \x00",
    "key": "? [a, b]\n: c",
    "tab": "a:\n\t- b",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_one_short_error(text, tmp_path):
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "a.yaml", extra="train")
    assert len(str(caught.value)) < 1_000
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    for read in (Suite.read, Config.read):
        with pytest.raises(InputError, match=r"a\.yaml"):
            read(tmp_path / "a.yaml")


def test_aliases_that_are_meant_are_read():
    text = "a: &a {x: [1, 2]}\nb: {<<: *a, y: 3}\nc: [*a, *a]\n"
    whole = {"x": [1, 2]}
    assert parse_yaml(text, "a.yaml", extra="train") == {
        "a": whole,
        "b": {**whole, "y": 3},
        "c": [whole, whole],
    }


def test_text_that_is_not_utf_8_is_said(tmp_path):
    with pytest.raises(InputError, match=r"a\.yaml: is not text in UTF-8 \(byte 2\)"):
        decode_text(b"a:\xff", "a.yaml")
    (tmp_path / "a.yaml").write_bytes("name: süß".encode("latin-1"))
    for read in (Suite.read, Config.read):
        with pytest.raises(InputError, match="is not text in UTF-8"):
            read(tmp_path / "a.yaml")
    assert decode_text("name: süß".encode("utf-8-sig"), "a.yaml") == "name: süß"


def find_error(text):
    """Return the error that a suite raises; empty if it raises none."""
    try:
        Suite.parse(text)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "lines",
    [
        "seeds: [2001-01-01]",
        "seeds: [1.5]",
        "methods: {a: {lr: 2001-01-01}}",
        "methods: {a: {lr: .nan}}",
        "methods: {a: {loss: [focal]}}",
        "methods: {a: {recipe: {mixup: 1}}}",
        "methods: {1: {loss: focal}, null: {loss: 3}}",
        "grid: {data: [[digits]]}",
        "grid: {data: [null]}",
        "calibrators: [{temperature: 1}]",
        "after: [{shift: [1]}]",
        "metrics: [7]",
        "name: [a]",
        "baseline: {a: 1}",
        "keep: 3",
        "logits: [3]",
        "tune: [1]",
        "published: [{file: 3, paper: 4}]",
        f"about: {{k: {'x' * 100_000}}}",
        f"seeds: {list(range(400))}\ngrid: {{lr: {list(range(1, 400))}}}",
    ],
)
def test_odd_values_in_a_suite_are_one_short_error(lines):
    text = "name: odd\ndefaults: {data: digits, model: mlp, epochs: 1}\n"
    text += "" if "methods" in lines or "logits" in lines else "methods: {cross_entropy: {}}\n"
    assert len(find_error(text + lines)) < 3_000
