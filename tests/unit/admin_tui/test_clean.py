"""No text from outside may reach the terminal as an instruction."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from admin_tui.clean import REPLACEMENT, clean, clean_json


def test_clean_replaces_escape_sequences_and_keeps_the_rest() -> None:
    assert clean("\x1b[2Jname\x07") == f"{REPLACEMENT}[2Jname{REPLACEMENT}"


@given(st.text(alphabet=st.characters()))
def test_clean_leaves_no_control_and_no_reordering_character(text: str) -> None:
    result = clean(text)
    assert len(result) == len(text)
    assert not [c for c in result if unicodedata.category(c) == "Cc"]
    assert not [
        c
        for c in result
        if unicodedata.bidirectional(c) in {"RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"}
    ]


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S", "Zs"], exclude_characters="\ufeff")))
def test_clean_of_ordinary_text_changes_nothing(text: str) -> None:
    assert clean(text) == text


def test_clean_json_reaches_every_string_and_key() -> None:
    assert clean_json({"a\x00": ["\x1b", {"b": "\x9b", "n": 1, "x": None}]}) == {
        f"a{REPLACEMENT}": [REPLACEMENT, {"b": REPLACEMENT, "n": 1, "x": None}]
    }
