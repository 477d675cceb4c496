"""forced_tool_grammar: a grammar that makes a model answer with calls, in its own format, with arguments that fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.errors import InvalidParameter
from engine.messages import Grammar, GrammarKind
from engine.text.lark_text import json_of, literal, mark, regex, thinking_first
from engine.text.output_forms import tool_format
from engine.text.pipeline import TextPipeline
from engine.text.schema_limits import CALL_OPTIONS, check_text, guided_schema
from engine.text.tools import ToolFormat

_NAME = re.compile(r"[\w.-]{1,256}")
_MOST_TOOLS = 128


def forced_tool_grammar(
    pipeline: TextPipeline,
    prompt_ids: Sequence[int],
    tools: Sequence[Mapping[str, Any]],
    *,
    choice: str | None = None,
    parallel: bool = True,
) -> Grammar:
    """What Submit.sampling.grammar is for tool_choice "required" (choice None) or a function's name.

    tools are OpenAI's {"type": "function", "function": {name, parameters, strict}}. A function that is not strict takes
    arguments as far as its schema is understood; one that is, is refused where it is not (by the worker).
    Raises: InvalidParameter
    """
    functions = [_function(tool) for tool in tools]
    chosen = functions if choice is None else [f for f in functions if f["name"] == choice]
    if not chosen:
        raise InvalidParameter(
            f"tool_choice names {choice!r}; the request has {', '.join(f['name'] for f in functions) or 'no tools'}.",
            param="tool_choice",
        )
    if len(chosen) > _MOST_TOOLS:
        raise InvalidParameter(f"{len(chosen)} tools were sent; up to {_MOST_TOOLS} are taken.", param="tools")
    form = tool_format(pipeline)
    lines: list[str] = []
    calls = [_WRITERS[form](pipeline, index, function, lines) for index, function in enumerate(chosen)]
    lines.append(f"call: {' | '.join(calls)}")
    root = _several(pipeline, form, "call", parallel)
    if form is ToolFormat.HARMONY:
        start, rules = harmony_thinking(pipeline, root)
    else:
        start, rules = thinking_first(pipeline, list(prompt_ids), root)
    text = f"start: {start}\n{rules}" + "\n".join(lines) + "\n"
    check_text(text, "The tools' grammar", param="tools")
    return Grammar(GrammarKind.LARK, text)


def harmony_thinking(pipeline: TextPipeline, root: str) -> tuple[str, str]:
    """Any number of messages on the channel "analysis" before the message that counts."""
    m = _marks(pipeline, "channel", "message", "end", "start")
    thinking = f'analysis: {m[0]} "analysis" {m[1]} ANALYSIS {m[2]} {m[3]} "assistant"\nANALYSIS: /(.|\\n)*/\n'
    return f"analysis* {root}", thinking


def _marks(pipeline: TextPipeline, *names: str) -> list[str]:
    return [mark(pipeline, f"<|{name}|>") for name in names]


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    described = tool.get("function", tool)
    if not isinstance(described, Mapping) or not isinstance(described.get("name"), str):
        raise InvalidParameter("A tool has no function with a name.", param="tools")
    if _NAME.fullmatch(described["name"]) is None:
        raise InvalidParameter(
            f"A tool is called {described['name']!r}.", "Use letters, digits, _, - and dots.", param="tools"
        )
    return dict(described)


def _arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments, as the compiler is to read it."""
    schema = function.get("parameters")
    if schema is None:
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
    if isinstance(schema, Mapping) and not any(key in schema for key in ("type", "$ref", "anyOf", "allOf")):
        schema = {"type": "object", **schema}
    return guided_schema(schema, {**CALL_OPTIONS, "lenient": not function.get("strict")}, param="tools")


def _several(pipeline: TextPipeline, form: ToolFormat, call: str, parallel: bool) -> str:
    """How one call, or one and more, stand in the whole output."""
    between = {
        ToolFormat.LLAMA3_JSON: '"; "',
        ToolFormat.MISTRAL: '", "',
        ToolFormat.MISTRAL_ARGS: "",
        ToolFormat.DEEPSEEK_V31: "",
    }.get(form, '"\\n"')
    several = f"{call} ({between} {call})*" if parallel and form is not ToolFormat.HARMONY else call
    if form is ToolFormat.MISTRAL:
        return f'{mark(pipeline, "[TOOL_CALLS]")} "[" {several} "]"'
    if form in (ToolFormat.DEEPSEEK, ToolFormat.DEEPSEEK_V31):
        opening, closing = mark(pipeline, "<｜tool▁calls▁begin｜>"), mark(pipeline, "<｜tool▁calls▁end｜>")
        return f"{opening} {several} {closing}"
    return several


def _hermes(pipeline: TextPipeline, index: int, function: Mapping[str, Any], lines: list[str]) -> str:
    opening, closing = mark(pipeline, "<tool_call>"), mark(pipeline, "</tool_call>")
    body = _json_call(function, "arguments")
    lines.append(f'call_{index}: {opening} "\\n" {body} "\\n" {closing}')
    return f"call_{index}"


def _llama3(pipeline: TextPipeline, index: int, function: Mapping[str, Any], lines: list[str]) -> str:
    lines.append(f"call_{index}: {_json_call(function, 'parameters')}")
    return f"call_{index}"


def _mistral(pipeline: TextPipeline, index: int, function: Mapping[str, Any], lines: list[str]) -> str:
    lines.append(f"call_{index}: {_json_call(function, 'arguments')}")
    return f"call_{index}"


def _mistral_args(pipeline: TextPipeline, index: int, function: Mapping[str, Any], lines: list[str]) -> str:
    opening, between = mark(pipeline, "[TOOL_CALLS]"), mark(pipeline, "[ARGS]")
    lines.append(f"call_{index}: {opening} {literal(function['name'])} {between} {json_of(_arguments(function))}")
    return f"call_{index}"


def _deepseek(pipeline: TextPipeline, index: int, function: Mapping[str, Any], lines: list[str]) -> str:
    opening, separator, closing = (mark(pipeline, f"<｜tool▁{name}｜>") for name in ("call▁begin", "sep", "call▁end"))
    head = literal(function["name"] + "\n```json\n")
    body = json_of(_arguments(function))
    lines.append(f'call_{index}: {opening} "function" {separator} {head} {body} "\\n```" {closing}')
    return f"call_{index}"


def _deepseek_v31(pipeline: TextPipeline, index: int, function: Mapping[str, Any], lines: list[str]) -> str:
    opening, separator, closing = (mark(pipeline, f"<｜tool▁{name}｜>") for name in ("call▁begin", "sep", "call▁end"))
    body = json_of(_arguments(function))
    lines.append(f"call_{index}: {opening} {literal(function['name'])} {separator} {body} {closing}")
    return f"call_{index}"


def _harmony(pipeline: TextPipeline, index: int, function: Mapping[str, Any], lines: list[str]) -> str:
    channel, constrain, message = _marks(pipeline, "channel", "constrain", "message")
    address = literal(f"commentary to=functions.{function['name']} ")
    body = json_of(_arguments(function))
    lines.append(f'call_{index}: {channel} {address} {constrain} "json" {message} {body}')
    return f"call_{index}"


def _glm(pipeline: TextPipeline, index: int, function: Mapping[str, Any], lines: list[str]) -> str:
    opening, closing = mark(pipeline, "<tool_call>"), mark(pipeline, "</tool_call>")
    key = [mark(pipeline, "<arg_key>"), mark(pipeline, "</arg_key>")]
    value = [mark(pipeline, "<arg_value>"), mark(pipeline, "</arg_value>")]

    def pair(name: str, body: str) -> str:
        return f'{key[0]} {literal(name)} {key[1]} "\\n" {value[0]} {body} {value[1]} "\\n"'

    lines.append(f'call_{index}: {opening} {literal(function["name"])} "\\n" args_{index} {closing}')
    lines.append(f"args_{index}: {_pairs(function, pair)}")
    return f"call_{index}"


def _coder(pipeline: TextPipeline, index: int, function: Mapping[str, Any], lines: list[str]) -> str:
    opening, closing = mark(pipeline, "<tool_call>"), mark(pipeline, "</tool_call>")

    def pair(name: str, body: str) -> str:
        head = literal(f"<parameter={name}>\n")
        return f'{head} {body} "\\n</parameter>\\n"'

    head = literal(f"\n<function={function['name']}>\n")
    lines.append(f'call_{index}: {opening} {head} args_{index} "</function>\\n" {closing}')
    lines.append(f"args_{index}: {_pairs(function, pair)}")
    return f"call_{index}"


def _json_call(function: Mapping[str, Any], arguments: str) -> str:
    head = '{"name": ' + literal(function["name"]) + f', "{arguments}": '
    return f'{literal(head)} {json_of(_arguments(function))} "}}"'


def _pairs(function: Mapping[str, Any], pair: Callable[[str, str], str]) -> str:
    """A function's declared arguments in order, those not required perhaps left out. Texts stand without quotes."""
    schema = _arguments(function)
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return '""'
    shared: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema}
    required = schema.get("required") or ()
    found = []
    for name, declared in properties.items():
        described = dict(declared) if isinstance(declared, Mapping) else {}
        if "enum" in described and all(isinstance(value, str) for value in described["enum"]):
            body = f"({' | '.join(literal(value) for value in described['enum'])})"
        elif described.get("type") == "string":
            body = regex(f"[^<]{_bounds(described)}")
        else:
            body = json_of({**described, **shared})
        found.append(pair(str(name), body) if name in required else f"({pair(str(name), body)})?")
    return " ".join(found) or '""'


def _bounds(schema: Mapping[str, Any]) -> str:
    """How often a character may come in a text, as a regular expression says it."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if not isinstance(least, int) or not isinstance(most, int | None):
        return "*"
    return "*" if least == 0 and most is None else f"{{{least},{'' if most is None else most}}}"


_WRITERS: Mapping[ToolFormat, Callable[[TextPipeline, int, Mapping[str, Any], list[str]], str]] = {
    ToolFormat.HERMES: _hermes,
    ToolFormat.LLAMA3_JSON: _llama3,
    ToolFormat.MISTRAL: _mistral,
    ToolFormat.MISTRAL_ARGS: _mistral_args,
    ToolFormat.DEEPSEEK: _deepseek,
    ToolFormat.DEEPSEEK_V31: _deepseek_v31,
    ToolFormat.GLM: _glm,
    ToolFormat.QWEN3_CODER: _coder,
    ToolFormat.HARMONY: _harmony,
}
