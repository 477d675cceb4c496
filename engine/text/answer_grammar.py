"""answer_grammar: a constraint on the answer, made one on all that a model writes: its thinking stays free."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from engine.errors import InvalidParameter
from engine.messages import Grammar, GrammarKind
from engine.text.forced_calls import harmony_thinking
from engine.text.lark_text import literal, mark, regex, thinking_first
from engine.text.output_forms import tool_format
from engine.text.pipeline import TextPipeline
from engine.text.schema_limits import JSON_OPTIONS, check_regex, check_text, guided_schema, json_schema
from engine.text.tools import ToolFormat


def answer_grammar(pipeline: TextPipeline, prompt_ids: Sequence[int], grammar: Grammar) -> Grammar:
    """What Submit.sampling.grammar is for a response_format. The grammar itself for a model that does not think.

    Raises: InvalidParameter for a schema or expression over a limit
    """
    checked = lark_or_schema(grammar)
    if tool_format(pipeline) is ToolFormat.HARMONY:
        final = f'{mark(pipeline, "<|channel|>")} "final" {mark(pipeline, "<|message|>")} @answer'
        start, rules = harmony_thinking(pipeline, final)
    else:
        start, rules = thinking_first(pipeline, list(prompt_ids), "@answer")
    if start == "@answer":
        return grammar
    whole = {"grammars": [{"lark_grammar": f"start: {start}\n{rules}"}, {"name": "answer", **checked}]}
    return Grammar(GrammarKind.LARK, json.dumps(whole, ensure_ascii=False))


def lark_or_schema(grammar: Grammar) -> dict[str, Any]:
    """A grammar as the compiler's {"json_schema": ...} or {"lark_grammar": ...}.

    Raises: InvalidParameter for one over a limit, or that is no schema, list or expression
    """
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return {"json_schema": guided_schema(json_schema(grammar.text), JSON_OPTIONS)}
        case GrammarKind.JSON_OBJECT:
            return {"json_schema": guided_schema({"type": "object"}, JSON_OPTIONS)}
        case GrammarKind.REGEX:
            check_regex(grammar.text)
            return {"lark_grammar": f"start: {regex(grammar.text)}"}
        case GrammarKind.CHOICE:
            check_text(grammar.text, "The list of choices")
            return {"lark_grammar": f"start: {' | '.join(map(literal, _choices(grammar.text)))}"}
        case GrammarKind.LARK:
            check_text(grammar.text, "The grammar")
            return {"lark_grammar": grammar.text}


def _choices(text: str) -> list[str]:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(f"The choices are no JSON: {error}.", "Send a list of strings.") from error
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) and one for one in choices):
        raise InvalidParameter("The choices are no list of strings.", "Send at least one; none may be empty.")
    return choices
