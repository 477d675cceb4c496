"""Deltas joined equal the whole, for any partition of a model's text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.reasoning import ReasoningSplitter
from engine.text.tools import ToolCall, ToolFormat, tool_parser

CALLS = ['{"name": "f", "arguments": {"a": "b"}}', '{"name": "g", "parameters": {}}', '{"name": "</tool_call>"}']
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<", "tool_call>", "</"]
PIECES = [*CALLS, *MARKS, "{", "}", '"', "\\", "\n", " ", "text", ";", "é😀"]
texts = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def parts(text, cuts):
    places = sorted({min(cut, len(text)) for cut in cuts})
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def joined(events):
    """Neighbouring texts as one."""
    result: list[object] = []
    for event in events:
        if isinstance(event, str) and result and isinstance(result[-1], str):
            result[-1] += event
        else:
            result.append(event)
    return result


@pytest.mark.parametrize("form", ToolFormat)
@settings(max_examples=400, deadline=None)
@given(text=texts, cuts=st.lists(st.integers(0, 200)))
def test_tool_parser_any_partition_gives_the_same(form, text, cuts):
    whole, split = tool_parser(form), tool_parser(form)
    expected = joined([*whole.feed(text), *whole.flush()])
    events = [event for part in parts(text, cuts) for event in split.feed(part)]
    assert joined([*events, *split.flush()]) == expected
    if not any(isinstance(event, ToolCall) for event in expected):  # nothing is lost
        assert "".join(expected) == text


@settings(max_examples=400, deadline=None)
@given(text=texts, cuts=st.lists(st.integers(0, 200)), inside=st.booleans())
def test_reasoning_splitter_any_partition_gives_the_same(text, cuts, inside):
    def run(pieces):
        splitter = ReasoningSplitter(begins_inside=inside)
        found = [splitter.feed(piece) for piece in pieces] + [splitter.flush()]
        return "".join(s.reasoning for s in found), "".join(s.content for s in found)

    assert run(parts(text, cuts)) == run([text])
