"""Deltas joined equal the whole, for any partition of a model's text."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.text.harmony import HarmonyParser
from engine.text.output_parser import Content, MarkedOutputParser, Reasoning
from engine.text.reasoning import ReasoningSplitter
from engine.text.tools import ToolCall, ToolFormat, marks_of, tool_parser

CALLS = ['{"name": "f", "arguments": {"a": "b"}}', '{"name": "g", "parameters": {}}', '{"name": "</tool_call>"}']
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<", "tool_call>", "</"]
PIECES = [*CALLS, *MARKS, "{", "}", '"', "\\", "\n", " ", "text", ";", "é😀"]
texts = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
BODIES = {
    ToolFormat.MISTRAL: ['[{"name": "f", "arguments": {"a": "]"}}]', "[]", "["],
    ToolFormat.MISTRAL_ARGS: ['get[ARGS]{"a": "}\\""}', "b[CALL_ID]x[ARGS]{}", "[ARGS]"],
    ToolFormat.DEEPSEEK: ["function", 'f\n```json\n{"a": 1}\n```', "```"],
    ToolFormat.DEEPSEEK_V31: ["f", '{"a": "<｜tool▁calls▁end｜>"}'],
    ToolFormat.GLM: ["f\n", "<arg_key>a</arg_key>\n<arg_value>1</tool_call></arg_value>", "</arg_value>"],
    ToolFormat.QWEN3_CODER: ["<function=f>\n", "<parameter=a>\n5\n</parameter>\n", "</function>\n", "<parameter="],
    ToolFormat.HARMONY: ["analysis", "final", "commentary to=functions.f ", "assistant", "json", '{"a": 1}', "to="],
}


def texts_of(form):
    """Texts of one format's marks, likely bodies and noise."""
    pieces = [*marks_of(form), *BODIES.get(form, []), *PIECES]
    return st.lists(st.sampled_from(pieces), max_size=14).map("".join)


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


FORMS = [form for form in ToolFormat if form is not ToolFormat.HARMONY]


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=200, deadline=None)
@given(data=st.data(), cuts=st.lists(st.integers(0, 300)))
def test_tool_parser_any_partition_gives_the_same(form, data, cuts):
    text = data.draw(texts_of(form))
    whole, split = tool_parser(form), tool_parser(form)
    expected = joined([*whole.feed(text), *whole.flush()])
    events = [event for part in parts(text, cuts) for event in split.feed(part)]
    assert joined([*events, *split.flush()]) == expected
    if not any(isinstance(event, ToolCall) for event in expected):  # nothing is lost
        assert "".join(expected) == text


def merged(found):
    """Neighbouring parts of one kind as one."""
    result: list[object] = []
    for part in found:
        if result and not isinstance(part, ToolCall) and type(result[-1]) is type(part):
            result[-1] = type(part)(result[-1].text + part.text)
        else:
            result.append(part)
    return result


@example(text="<|message|>", cuts=[6], tools=True)
@settings(max_examples=400, deadline=None)
@given(text=texts_of(ToolFormat.HARMONY), cuts=st.lists(st.integers(0, 300)), tools=st.booleans())
def test_harmony_any_partition_gives_the_same(text, cuts, tools):
    whole, split = HarmonyParser(tools=tools), HarmonyParser(tools=tools)
    expected = merged([*whole.feed(text), *whole.flush()])
    assert merged([p for part in parts(text, cuts) for p in split.feed(part)] + split.flush()) == expected


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), cuts=st.lists(st.integers(0, 300)), inside=st.booleans())
def test_output_parser_any_partition_gives_the_same(form, data, cuts, inside):
    text = data.draw(texts_of(form))

    def run(pieces):
        parser = MarkedOutputParser(ReasoningSplitter(begins_inside=inside), tool_parser(form))
        return merged([p for piece in pieces for p in parser.feed(piece)] + parser.flush())

    found = run(parts(text, cuts))
    assert found == run([text])
    assert [type(part) for part in found].count(Reasoning) <= 1
    assert all(part.text for part in found if isinstance(part, Content))


@settings(max_examples=400, deadline=None)
@given(text=texts, cuts=st.lists(st.integers(0, 200)), inside=st.booleans())
def test_reasoning_splitter_any_partition_gives_the_same(text, cuts, inside):
    def run(pieces):
        splitter = ReasoningSplitter(begins_inside=inside)
        found = [splitter.feed(piece) for piece in pieces] + [splitter.flush()]
        return "".join(s.reasoning for s in found), "".join(s.content for s in found)

    assert run(parts(text, cuts)) == run([text])
