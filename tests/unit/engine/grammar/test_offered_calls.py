"""Offered calls: a model may answer in text, but what it calls fits the function, in every family's format."""

from __future__ import annotations

import json

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.messages import FinishReason, Grammar, GrammarKind, Knobs, SamplingParams, Submit
from engine.text import Content, IncrementalDetokenizer, ToolCall, output_parser
from engine.text.offered_calls import offered_or_answer_grammar, offered_tool_grammar
from engine.text.tools import ToolFormat
from tests.fakes.engine_models import attention, core_of, spec_of
from tests.fakes.templates import WITH_TOOLS
from tests.fakes.tiny_text import NoiseModel, tiny_compiler, tiny_text

PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer", "maximum": 9, "minimum": 1}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PLACE, "strict": True}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {"get_weather": PLACE, "now": {"type": "object", "maxProperties": 0}}
USER = [{"role": "user", "content": "Weather?"}]
MARKS = {
    ToolFormat.MISTRAL: "[TOOL_CALLS]",
    ToolFormat.MISTRAL_ARGS: "[TOOL_CALLS]",
    ToolFormat.DEEPSEEK: "<｜tool▁calls▁begin｜>",
    ToolFormat.DEEPSEEK_V31: "<｜tool▁calls▁begin｜>",
}


def written(text, prompt, grammar, seeds, bias):
    """What the model of noise says under the grammar, as its parser's parts, once a seed."""
    vocab = text.vocab_size
    core = core_of(
        spec_of(attention(), vocab=vocab, context=4096),
        large_pages=1500,
        model=NoiseModel(text, vocab),
        knobs=Knobs(max_running=8, token_budget=512, prefill_chunk=512),
        grammars=tiny_compiler(text, vocab),
    )
    seen = {str(seed): [] for seed in seeds}
    for seed in seeds:
        sampling = SamplingParams(
            max_tokens=800, seed=seed, stop_token_ids=text.stop_token_ids, grammar=grammar, logit_bias=bias
        )
        core.add(Submit(str(seed), prompt, sampling))
    while core.has_work() or core.is_compiling:
        for delta in core.step().deltas if core.has_work() else ():
            assert delta.error is None, delta.error
            seen[delta.request_id].append(delta)
    found = []
    for deltas in seen.values():
        parser = output_parser(text, prompt, tools=TOOLS)
        shown = IncrementalDetokenizer(text, keep=parser.kept_token_ids)
        parts = [part for delta in deltas for part in parser.feed(shown.feed(delta.token_ids))]
        found.append((deltas[-1].finish, parts + parser.flush()))
    return found


@pytest.mark.parametrize("form", WITH_TOOLS)
def test_calls_fit_their_functions_in_every_format(form):
    text = tiny_text(WITH_TOOLS[form])
    prompt = text.render_chat(USER, TOOLS)
    grammar = offered_tool_grammar(text, prompt, TOOLS)
    assert grammar.kind is GrammarKind.LARK
    opening = text.special_id(MARKS.get(form, "<tool_call>"))
    bias = {} if opening is None else {opening: 9.0}
    calls = 0
    for finish, parts in written(text, prompt, grammar, range(4), bias):
        assert finish in (FinishReason.STOP, FinishReason.LENGTH)
        for part in parts:
            if isinstance(part, ToolCall):
                calls += 1
                jsonschema.validate(json.loads(part.arguments), SCHEMAS[part.name])
    assert calls or form is ToolFormat.LLAMA3_JSON  # noise seldom begins with a brace


def accepts(grammar, said):
    """Whether the grammar lets this be said and end there, byte by byte."""
    matcher = LLMatcher(LLTokenizer("byte"), grammar.text, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.consume_token(byte) for byte in said.encode()) and matcher.is_accepting()


WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("said", "accepted"),
    [
        ("", True),
        ("Sunny, I think: a < b.", True),
        ("<tool_cal", True),
        (WEATHER, True),
        (f"Let me look.\n{WEATHER}\n{NOW}", True),
        (f"{NOW} and so on", True),
        (WEATHER.replace("3", '"three"'), False),
        (WEATHER.replace("get_weather", "get_time"), False),
        ("<tool_call>nonsense", False),
        (WEATHER[:-12], False),
    ],
)
def test_marks_in_plain_text_bind_what_follows_them(said, accepted):
    text = tiny_text(WITH_TOOLS[ToolFormat.HERMES], plain_marks=True)
    grammar = offered_tool_grammar(text, [], TOOLS)
    assert accepts(grammar, said) == accepted


def test_one_call_at_most_ends_the_answer():
    text = tiny_text(WITH_TOOLS[ToolFormat.HERMES], plain_marks=True)
    grammar = offered_tool_grammar(text, [], TOOLS, parallel=False)
    assert accepts(grammar, f"Well. {NOW}")
    assert accepts(grammar, "Well.")
    assert not accepts(grammar, f"{NOW}\n{NOW}")


@pytest.mark.parametrize(("said", "accepted"), [("Sunny.", True), ("", True), ('{"name": "get_time"', False)])
def test_llama_answers_with_calls_or_with_text(said, accepted):
    text = tiny_text(WITH_TOOLS[ToolFormat.LLAMA3_JSON], plain_marks=True)
    call = '{"name": "get_weather", "parameters": {"city": "Rome", "days": 3}}'
    grammar = offered_tool_grammar(text, [], TOOLS)
    assert accepts(grammar, f"{call}; {call}")
    assert accepts(grammar, said) == accepted


NUMBER = Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"type": "integer", "minimum": 1, "maximum": 9}))


@pytest.mark.parametrize("form", [ToolFormat.HERMES, ToolFormat.LLAMA3_JSON, ToolFormat.HARMONY, ToolFormat.DEEPSEEK])
def test_what_calls_nothing_matches_the_answer(form):
    text = tiny_text(WITH_TOOLS[form])
    prompt = text.render_chat(USER, TOOLS)
    grammar = offered_or_answer_grammar(text, prompt, TOOLS, NUMBER)
    for finish, parts in written(text, prompt, grammar, range(4), {}):
        assert finish is FinishReason.STOP
        calls = [part for part in parts if isinstance(part, ToolCall)]
        said = "".join(part.text for part in parts if isinstance(part, Content))
        assert calls if not said.strip() else 1 <= int(said) <= 9


def test_answer_or_calls_and_nothing_else():
    text = tiny_text(WITH_TOOLS[ToolFormat.HERMES], plain_marks=True)
    grammar = offered_or_answer_grammar(text, [], TOOLS, NUMBER)
    assert accepts(grammar, "7")
    assert accepts(grammar, f"{NOW}\n{WEATHER}")
    assert not accepts(grammar, f"7 {NOW}")
    assert not accepts(grammar, "Sunny.")
