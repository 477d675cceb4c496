"""Forced calls: a model of noise writes calls in every family's format, and the family's parser reads them back."""

from __future__ import annotations

import json
import time

import jsonschema
import pytest

from engine.errors import InvalidParameter
from engine.messages import FinishReason, Grammar, GrammarKind, Knobs, SamplingParams, Submit
from engine.text import (
    Content,
    IncrementalDetokenizer,
    Reasoning,
    ToolCall,
    answer_grammar,
    forced_tool_grammar,
    output_parser,
)
from engine.text.tools import ToolFormat
from tests.fakes.engine_models import attention, core_of, spec_of
from tests.fakes.templates import GEMMA, WITH_TOOLS
from tests.fakes.tiny_text import NoiseModel, tiny_compiler, tiny_text

PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["c", "f"]},
        "where": {"$ref": "#/$defs/point"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "on": {"type": "boolean"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": PLACE}},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {"get_weather": PLACE, "now": {"type": "object", "maxProperties": 0}}
ALL = {**WITH_TOOLS, "none": GEMMA}
USER = [{"role": "user", "content": "Weather?"}]


def written(text, prompt, grammar, *, seeds=range(4), **params):
    """What the model of noise says under the grammar, as its parser's parts, once a seed."""
    vocab = text.vocab_size
    spec = spec_of(attention(), vocab=vocab, context=4096)
    core = core_of(
        spec,
        large_pages=1500,
        model=NoiseModel(text, vocab),
        knobs=Knobs(max_running=8, token_budget=512, prefill_chunk=512),
        grammars=tiny_compiler(text, vocab),
    )
    seen = {seed: [] for seed in seeds}
    for seed in seeds:
        sampling = SamplingParams(
            max_tokens=2500, seed=seed, stop_token_ids=text.stop_token_ids, grammar=grammar, **params
        )
        core.add(Submit(str(seed), prompt, sampling))
    while core.has_work() or core.is_compiling:
        if not core.has_work():
            time.sleep(0.002)
            continue
        for delta in core.step().deltas:
            assert delta.error is None, delta.error
            seen[int(delta.request_id)].append(delta)
    found = []
    for deltas in seen.values():
        parser = output_parser(text, prompt, tools=TOOLS)
        shown = IncrementalDetokenizer(text, keep=parser.kept_token_ids)
        parts = [part for delta in deltas for part in parser.feed(shown.feed(delta.token_ids))]
        found.append((deltas[-1].finish, parts + parser.flush()))
    return found


@pytest.mark.parametrize("choice", [None, "get_weather"])
@pytest.mark.parametrize("form", ALL)
def test_required_calls_are_written_and_read_in_every_format(form, choice):
    text = tiny_text(ALL[form])
    prompt = text.render_chat(USER, None if form == "none" else TOOLS)
    grammar = forced_tool_grammar(text, prompt, TOOLS, choice=choice)
    names = set()
    for finish, parts in written(text, prompt, grammar):
        assert finish is FinishReason.STOP
        calls = [part for part in parts if isinstance(part, ToolCall)]
        assert calls
        assert not [part for part in parts if isinstance(part, Content)], parts
        for call in calls:
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
            names.add(call.name)
    assert names == ({choice} if choice else names)


@pytest.mark.parametrize("form", ALL)
def test_named_call_is_the_only_one_without_parallel(form):
    text = tiny_text(ALL[form])
    prompt = text.render_chat(USER)
    grammar = forced_tool_grammar(text, prompt, TOOLS, choice="now", parallel=False)
    for finish, parts in written(text, prompt, grammar, seeds=range(2)):
        assert finish is FinishReason.STOP
        assert [part for part in parts if isinstance(part, ToolCall)] == [ToolCall(0, "now", "{}")]


def test_marks_are_spelled_where_the_vocabulary_has_none():
    text = tiny_text(WITH_TOOLS[ToolFormat.HERMES], plain_marks=True)
    prompt = text.render_chat(USER, TOOLS)
    grammar = forced_tool_grammar(text, prompt, TOOLS, choice="now", parallel=False)
    for _, parts in written(text, prompt, grammar, seeds=range(2)):
        assert [part for part in parts if isinstance(part, ToolCall)] == [ToolCall(0, "now", "{}")]


@pytest.mark.parametrize("form", [ToolFormat.HERMES, ToolFormat.DEEPSEEK, ToolFormat.HARMONY])
@pytest.mark.parametrize("inside", [False, True])
def test_answer_is_constrained_and_thinking_is_not(form, inside):
    text = tiny_text(ALL[form])
    prompt = text.render_chat(USER, thinking=inside)
    several = {"type": "array", "items": {"enum": [1, "a"]}, "minItems": 2}
    grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(several))
    thought = 0
    for finish, parts in written(text, prompt, answer_grammar(text, prompt, grammar)):
        assert finish is FinishReason.STOP
        content = "".join(part.text for part in parts if isinstance(part, Content))
        assert len(json.loads(content)) >= 2
        thought += any(isinstance(part, Reasoning) for part in parts)
    if inside and form is ToolFormat.DEEPSEEK:
        assert thought > 0


def test_grammar_of_a_model_that_does_not_think_stays_as_it_is():
    text = tiny_text(WITH_TOOLS[ToolFormat.LLAMA3_JSON], plain_marks=True)
    grammar = Grammar(GrammarKind.JSON_OBJECT)
    assert answer_grammar(text, text.render_chat(USER), grammar) is grammar


@pytest.mark.parametrize("kind", [GrammarKind.REGEX, GrammarKind.CHOICE, GrammarKind.JSON_OBJECT])
def test_every_kind_can_follow_thinking(kind):
    text = tiny_text(WITH_TOOLS[ToolFormat.HARMONY])
    prompt = text.render_chat(USER)
    said = {GrammarKind.REGEX: "a{2}/b", GrammarKind.CHOICE: '["aa/b", "aa/b"]', GrammarKind.JSON_OBJECT: ""}[kind]
    for _, parts in written(text, prompt, answer_grammar(text, prompt, Grammar(kind, said)), seeds=range(2)):
        content = "".join(part.text for part in parts if isinstance(part, Content))
        assert content == "aa/b" if said else isinstance(json.loads(content), dict)


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        (TOOLS, "other", "tool_choice names 'other'"),
        ([], None, "no tools"),
        ([{"type": "function", "function": {}}], None, "no function"),
        ([{"type": "function", "function": {"name": "a b"}}], None, "is called"),
        ([{"type": "function", "function": {"name": "a", "parameters": [1]}}], None, "no object"),
    ],
)
def test_tools_that_cannot_be_forced_are_refused(tools, choice, message):
    text = tiny_text(WITH_TOOLS[ToolFormat.HERMES])
    with pytest.raises(InvalidParameter, match=message):
        forced_tool_grammar(text, [], tools, choice=choice)


def test_schema_that_a_strict_function_cannot_keep_to_is_refused_and_a_loose_one_is_followed_as_far_as_known():
    text = tiny_text(WITH_TOOLS[ToolFormat.HERMES])
    numbers = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": numbers}}}
    loose = forced_tool_grammar(text, [], [{"function": function}])
    assert all(finish is FinishReason.STOP for finish, _ in written(text, [65], loose, seeds=range(2)))
    strict = forced_tool_grammar(text, [], [{"function": {**function, "strict": True}}])
    with pytest.raises(AssertionError, match="invalid_parameter"):
        written(text, [65], strict, seeds=range(1))
