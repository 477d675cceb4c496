"""Tool calls as models write them, and text that only looks like one."""

from __future__ import annotations

import json

import pytest

from engine.text.tools import Llama3JsonParser, ToolCall, ToolFormat, tool_format_of, tool_parser


def events(parser, text):
    return [*parser.feed(text), *parser.flush()]


def hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


CALL = '{"name": "get", "arguments": {"city": "Zürich", "n": [1, {"x": null}]}}'
ARGUMENTS = '{"city": "Zürich", "n": [1, {"x": null}]}'


def test_hermes_text_and_two_calls_in_order():
    text = "Let me see.\n" + hermes(CALL) + "\n" + hermes('{"name": "b", "arguments": {}}') + "\n"
    assert events(tool_parser(ToolFormat.HERMES), text) == [
        "Let me see.",
        ToolCall(0, "get", ARGUMENTS),
        ToolCall(1, "b", "{}"),
    ]


def test_hermes_call_is_given_when_its_mark_closes():
    parser = tool_parser(ToolFormat.HERMES)
    assert parser.feed(hermes(CALL)[:-1]) == []
    assert parser.feed(">") == [ToolCall(0, "get", ARGUMENTS)]


def test_hermes_closing_mark_within_a_string_does_not_close():
    arguments = {"text": 'a </tool_call> "quoted" \\'}
    body = json.dumps({"name": "f", "arguments": arguments})
    assert events(tool_parser(ToolFormat.HERMES), hermes(body)) == [ToolCall(0, "f", json.dumps(arguments))]


def test_hermes_call_without_closing_mark_counts_if_complete():
    assert events(tool_parser(ToolFormat.HERMES), "<tool_call>" + CALL) == [ToolCall(0, "get", ARGUMENTS)]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" + CALL[:-3],
        hermes("not json"),
        hermes('{"name": 5, "arguments": {}}'),
        hermes('{"name": "f", "arguments": [1]}'),
        hermes('{"name": "f", "arguments": "no object"}'),
        "a < b <tool_cal",
        "white space kept  \n",
        "before \n" + hermes("not json") + "\n after",
    ],
)
def test_hermes_what_is_no_call_comes_as_text(text):
    assert "".join(events(tool_parser(ToolFormat.HERMES), text)) == text


def test_hermes_arguments_written_as_text_are_read():
    assert events(tool_parser(ToolFormat.HERMES), hermes('{"name": "f", "arguments": "{\\"a\\": 1}"}')) == [
        ToolCall(0, "f", '{"a": 1}')
    ]


def test_llama3_calls_joined_by_semicolons():
    text = '{"name": "a", "parameters": {"x": 1}}; {"name": "b", "parameters": {}}'
    assert events(Llama3JsonParser(), text) == [ToolCall(0, "a", '{"x": 1}'), ToolCall(1, "b", "{}")]


@pytest.mark.parametrize("text", ["Hello {", '{"name": "a"', '{"answer": 42}', "  ", '{"name": "a"} and more'])
def test_llama3_what_is_no_call_comes_as_text(text):
    assert "".join(events(Llama3JsonParser(), text)) == text


def test_tool_format_is_read_from_the_template():
    assert tool_format_of("use <tool_call> tags") is ToolFormat.HERMES
    assert tool_format_of('Respond as {"name": function, "parameters": {}}') is ToolFormat.LLAMA3_JSON
    assert tool_format_of("<|im_start|>") is None


def test_coder_call_cut_between_its_arguments_is_text():
    """Only what the closing mark of the function ends is whole: another argument may have been on its way."""
    cut = "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
    found = events(tool_parser(ToolFormat.QWEN3_CODER), cut)
    assert "".join(part for part in found if isinstance(part, str)) == cut
    whole = events(tool_parser(ToolFormat.QWEN3_CODER), cut + "</function>")
    assert [part.name for part in whole if isinstance(part, ToolCall)] == ["weather"]
