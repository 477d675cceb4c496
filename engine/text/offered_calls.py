"""offered_tool_grammar: an answer of text, of calls, or of both, where every call's arguments fit its function."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import InvalidParameter
from engine.messages import Grammar, GrammarKind
from engine.text.answer_grammar import lark_or_schema
from engine.text.forced_calls import forced_tool_grammar, harmony_thinking
from engine.text.lark_text import literal, mark, regex, thinking_first
from engine.text.output_forms import tool_format
from engine.text.pipeline import TextPipeline
from engine.text.schema_limits import check_text
from engine.text.tools import ToolFormat

_MARKS = {
    ToolFormat.MISTRAL: "[TOOL_CALLS]",
    ToolFormat.MISTRAL_ARGS: "[TOOL_CALLS]",
    ToolFormat.DEEPSEEK: "<｜tool▁calls▁begin｜>",
    ToolFormat.DEEPSEEK_V31: "<｜tool▁calls▁begin｜>",
}  # of the others: <tool_call>
_ALL_AT_ONCE = frozenset({ToolFormat.MISTRAL, ToolFormat.DEEPSEEK, ToolFormat.DEEPSEEK_V31})


def offered_tool_grammar(
    pipeline: TextPipeline, prompt_ids: Sequence[int], tools: Sequence[Mapping[str, Any]], *, parallel: bool = True
) -> Grammar:
    """What Submit.sampling.grammar is for tool_choice "auto" where some function is strict.

    Raises: InvalidParameter
    """
    form = tool_format(pipeline)
    forced = forced_tool_grammar(pipeline, [], tools, parallel=parallel).text
    rules = dict(line.split(": ", 1) for line in forced.splitlines() if ": " in line and not line.startswith("start"))
    calls = {name: rule for name, rule in rules.items() if name.startswith(("call", "args_"))}
    if form is ToolFormat.HARMONY:
        start, lines = _on_channels(pipeline)
    elif form is ToolFormat.LLAMA3_JSON:
        several = 'call ("; " call)*' if parallel else "call"
        start, lines = f"{several} | PLAIN?", ["PLAIN: /\\s*[^{\\s](.|\\n)*/"]
    else:
        opening = _MARKS.get(form, "<tool_call>")
        start, lines = _after_mark(pipeline, form, opening, calls, forced, parallel)
    if form is not ToolFormat.HARMONY:
        start, thinking = thinking_first(pipeline, list(prompt_ids), f"({start})")
        lines.append(thinking.rstrip("\n"))
    lines += [f"{name}: {rule}" for name, rule in calls.items()]
    text = f"start: {start}\n" + "\n".join(line for line in lines if line) + "\n"
    check_text(text, "The tools' grammar", param="tools")
    return Grammar(GrammarKind.LARK, text)


def offered_or_answer_grammar(
    pipeline: TextPipeline,
    prompt_ids: Sequence[int],
    tools: Sequence[Mapping[str, Any]],
    answer: Grammar,
    *,
    parallel: bool = True,
) -> Grammar:
    """The same where an answer that calls nothing must match: calls alone, or the answer alone.

    Raises: InvalidParameter
    """
    forced = forced_tool_grammar(pipeline, [], tools, parallel=parallel).text
    first, *rules = forced.splitlines()
    calls = first.partition(": ")[2]
    if tool_format(pipeline) is ToolFormat.HARMONY:
        channel, message = (mark(pipeline, f"<|{name}|>") for name in ("channel", "message"))
        start = f'({calls}) | analysis* {channel} "final" {message} @answer'
    else:
        start, thinking = thinking_first(pipeline, list(prompt_ids), f"(({calls}) | @answer)")
        rules += [line for line in thinking.splitlines() if line not in rules]
    text = "\n".join((f"start: {start}", *rules)) + "\n"
    check_text(text, "The tools' grammar", param="tools")
    whole = {"grammars": [{"lark_grammar": text}, {"name": "answer", **lark_or_schema(answer)}]}
    return Grammar(GrammarKind.LARK, json.dumps(whole, ensure_ascii=False))


def _after_mark(
    pipeline: TextPipeline, form: ToolFormat, opening: str, calls: dict[str, str], forced: str, parallel: bool
) -> tuple[str, list[str]]:
    """Text up to a mark, what follows the mark, and so on; the last text holds no mark."""
    written = mark(pipeline, opening)
    if form in _ALL_AT_ONCE:
        start = next(line for line in forced.splitlines() if line.startswith("start: "))
        body = f"body: {start.partition(written)[2].strip()}"
    else:
        opened = [name for name in calls if name != "call" and calls[name].startswith(written)]
        if not opened:
            raise InvalidParameter("No tool can be called in this model's format.", param="tools")
        for name in opened:
            calls[name] = calls[name][len(written) :].strip()
        calls.pop("call")
        body = f"body: {' | '.join(opened)}"
    once = not parallel or form in _ALL_AT_ONCE
    if pipeline.special_id(opening) is not None:  # plain text never holds the token
        lines = ["TEXT: /(.|\\n)*/", f"before: TEXT {written}", body]
    else:
        excluded = regex(f"(.|\\n)*{re.escape(opening)}(.|\\n)*")
        lines = [f"before[suffix={literal(opening)}]: /(.|\\n)*/", f"TEXT: /(.|\\n)*/ & ~{excluded}", body]
    return ("TEXT | before body" if once else "(before body)* TEXT"), lines


def _on_channels(pipeline: TextPipeline) -> tuple[str, list[str]]:
    channel, message, end, begin = (mark(pipeline, f"<|{name}|>") for name in ("channel", "message", "end", "start"))
    start, thinking = harmony_thinking(pipeline, "(said* (call | final))")
    said = f'said: {channel} "commentary" {message} SAID {end} {begin} "assistant"'  # what it tells before it calls
    return start, [thinking.rstrip("\n"), said, f'final: {channel} "final" {message} SAID', "SAID: /(.|\\n)*/"]
