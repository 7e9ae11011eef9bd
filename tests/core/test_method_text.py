"""Methods are read from text without executing it, and written in one way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrant.core.errors import InputError
from calibrant.core.method_text import (
    Term,
    format_method,
    format_terms,
    has_term,
    merge_options,
    parse_method,
    parse_terms,
    set_option,
)

WORDS = st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(
    lambda word: word not in ("true", "false", "null") and not __import__("keyword").iskeyword(word)
)
VALUES = st.one_of(
    st.integers(-99, 99),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.booleans(),
    st.none(),
    WORDS,
    st.text("ab +*()'\"=,", max_size=6),
)
OPTIONS = st.dictionaries(WORDS, VALUES, max_size=3)


@given(WORDS, OPTIONS)
def test_a_method_that_is_written_is_read_back(name, options):
    text = format_method(name, options)
    assert parse_method(text) == (name, options)
    assert format_method(*parse_method(text)) == text


@given(st.lists(st.tuples(st.none() | st.floats(0.1, 9), WORDS, OPTIONS), min_size=1, max_size=3))
def test_a_loss_that_is_written_is_read_back(parts):
    terms = [Term(*part) for part in parts]
    assert parse_terms(format_terms(terms)) == terms


@pytest.mark.parametrize(
    "text",
    ["", "f(", "f(1)", "a.b(c=1)", "f(**x)", "f(a=1, a=2)", "f(a=g())", "f(a=open('x'))", "1.5"],
)
def test_anything_else_is_refused(text):
    with pytest.raises(InputError, match=r"written name\(option=value, ...\), each option once"):
        parse_method(text)


def test_a_method_may_hold_one_of_its_own_kind():
    text = "deep_ensemble(members=3, recipe=mixup(alpha=0.4))"
    inner = {"members": 3, "recipe": "mixup", "recipe_options": {"alpha": 0.4}}
    assert merge_options(text, {}, kind="recipe") == ("deep_ensemble", inner)
    with pytest.raises(InputError, match="is given twice"):
        merge_options("mixup(alpha=0.4)", {"alpha": 0.2}, kind="recipe")


def test_signs_inside_numbers_and_quotes_separate_nothing():
    assert parse_terms("a+1e+3*b")[1].weight == 1000
    assert parse_terms("a(x='b+c')+d")[0].options == {"x": "b+c"}
    assert [term.name for term in parse_terms("a(x=[1, 2]) + 2*b")] == ["a", "b"]


def test_an_option_of_one_part_changes():
    assert set_option("focal+s_avuc", ["s_avuc"], "threshold", 0.25) == (
        "focal+s_avuc(threshold=0.25)"
    )
    assert has_term("focal+s_avuc", ["s_avuc"])
    with pytest.raises(InputError, match="has no part acls"):
        set_option("focal", ["acls"], "margin", 1.0)
