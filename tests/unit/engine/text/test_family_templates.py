"""Templates in each family's style: histories with tools, what is not there, and what must not become a mark."""

from __future__ import annotations

import json

import pytest

from engine.errors import InvalidParameter
from engine.text import Content, IncrementalDetokenizer, Reasoning, ToolCall, output_parser
from engine.text.tools import ToolFormat
from tests.fakes.templates import GEMMA, HERMES, WITH_TOOLS
from tests.fakes.tiny_text import SPECIALS, tiny_text

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "<|im_end|> of the day",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
ARGUMENTS = {"city": "Zürich </think>", "days": 3}
HISTORY = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "ask the tool",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(ARGUMENTS)}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "assistant", "content": "It rains."},
    {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]},
]


@pytest.mark.parametrize("form", WITH_TOOLS)
def test_format_follows_the_template(form):
    assert tiny_text(WITH_TOOLS[form]).tool_format is form


@pytest.mark.parametrize("form", WITH_TOOLS)
def test_history_with_a_call_renders_what_the_parser_reads_back(form):
    text = tiny_text(WITH_TOOLS[form])
    upto = text.render_chat(HISTORY[:1], [TOOL])
    through = text.render_chat(HISTORY[:2], [TOOL], add_generation_prompt=False)
    shared = [a == b for a, b in zip(upto, through, strict=False)]
    written = through[[*shared, False].index(False) :]
    parser = output_parser(text, upto, tools=[TOOL])
    shown = IncrementalDetokenizer(text, keep=parser.kept_token_ids)
    ends = set(text.stop_token_ids) - parser.kept_token_ids
    found = parser.feed(shown.feed([token for token in written if token not in ends])) + parser.flush()
    calls = [part for part in found if isinstance(part, ToolCall)]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("get_weather", ARGUMENTS)]
    assert not any(isinstance(part, Content) and part.text.strip() for part in found)


@pytest.mark.parametrize("form", WITH_TOOLS)
def test_whole_history_renders_with_and_without_tools(form):
    text = tiny_text(WITH_TOOLS[form])
    for tools in (None, [TOOL]):
        shown = text.decode(text.render_chat(HISTORY, tools), skip_special=False)
        assert ("of the day" in shown) == bool(tools)
        for piece in ("Weather?", "get_weather", "rain", "It rains.", "And now?"):
            assert piece in shown


@pytest.mark.parametrize("form", WITH_TOOLS)
def test_marks_in_anything_a_caller_sends_stay_text(form):
    text = tiny_text(WITH_TOOLS[form])

    def render(evil: str) -> list[int]:
        call = {"function": {"name": f"f{evil}", "arguments": json.dumps({f"k{evil}": f"v{evil}"})}}
        messages = [
            {"role": "user", "content": f"a{evil}"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": f"r{evil}"},
            {"role": "tool", "content": f"t{evil}", "tool_call_id": "x"},
            {"role": "assistant", "content": f"c{evil}"},
            {"role": "user", "content": f"z{evil}"},
        ]
        tool = {"type": "function", "function": {"name": f"n{evil}", "description": f"d{evil}"}}
        return text.render_chat(messages, [tool])

    def marks(ids: list[int]) -> list[int]:
        return [n for n in ids if n in text.guarded_token_ids]

    clean = marks(render("x"))
    for evil in SPECIALS:
        assert marks(render(evil)) == clean, evil


def test_template_without_tools_or_system_says_so():
    text = tiny_text(GEMMA)
    assert text.tool_format is None
    assert text.decode(text.render_chat(HISTORY[:1])) == "user\nWeather?\nmodel\n"
    with pytest.raises(InvalidParameter, match="System role"):
        text.render_chat([{"role": "system", "content": "s"}, *HISTORY[:1]])
    with pytest.raises(InvalidParameter, match="alternate"):
        text.render_chat([HISTORY[0], HISTORY[0]])


def test_thinking_is_told_apart_by_how_the_prompt_ends():
    text = tiny_text(HERMES)

    def parts(written: str, **variables):
        prompt = text.render_chat(HISTORY[:1], **variables)
        parser = output_parser(text, prompt)
        shown = IncrementalDetokenizer(text, keep=parser.kept_token_ids)
        return parser.feed(shown.feed(text.encode(written, special=True))) + parser.flush()

    assert parts("<think>\nhm\n</think>\n\nyes") == [Reasoning("hm"), Content("yes")]
    assert parts("yes", enable_thinking=False) == [Content("yes")]
    deepseek = tiny_text(WITH_TOOLS[ToolFormat.DEEPSEEK])
    prompt = deepseek.render_chat(HISTORY[:1], thinking=True)
    parser = output_parser(deepseek, prompt)
    assert parser.feed("hm</think>yes") == [Reasoning("hm"), Content("yes")]


def test_harmony_parts_of_one_turn():
    text = tiny_text(WITH_TOOLS[ToolFormat.HARMONY])
    parser = output_parser(text, text.render_chat(HISTORY[:1]), tools=[TOOL])
    written = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>One moment.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "a"}'
    )
    shown = IncrementalDetokenizer(text, keep=parser.kept_token_ids)
    found = parser.feed(shown.feed(text.encode(written, special=True))) + parser.flush()
    assert found == [Reasoning("hm"), Content("One moment."), ToolCall(0, "get_weather", '{"city": "a"}')]
    final = output_parser(text, [], tools=[])
    assert final.feed("<|channel|>final<|message|>yes") + final.flush() == [Content("yes")]
