"""Pieces of a grammar in llguidance's dialect of Lark, for one model's tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.text.pipeline import TextPipeline


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def mark(pipeline: TextPipeline, text: str) -> str:
    """A mark as the one token it is in this vocabulary, else as its text."""
    token_id = pipeline.special_id(text)
    return literal(text) if token_id is None else f"<[{token_id}]>"


def regex(pattern: str) -> str:
    """A pattern between slashes; a slash or a line break of its own is escaped."""
    out, at = [], 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\" and at + 1 < len(pattern):
            out.append(pattern[at : at + 2])
            at += 2
            continue
        out.append({"/": "\\/", "\n": "\\n"}.get(character, character))
        at += 1
    return f"/{''.join(out)}/"


def json_of(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def until(pipeline: TextPipeline, closing: str, name: str) -> str:
    """A rule of that name: any text and the closing mark after it."""
    token_id = pipeline.special_id(closing)
    if token_id is not None:  # plain text never holds the token
        return f"{name}: {name.upper()}_TEXT <[{token_id}]>\n{name.upper()}_TEXT: /(.|\\n)*/\n"
    return f"{name}[suffix={literal(closing)}]: /(.|\\n)*/\n"


def thinking_first(pipeline: TextPipeline, prompt_ids: list[int], root: str) -> tuple[str, str]:
    """How an output begins that is constrained only after the model's thinking: (start rule, rules it needs).

    A prompt that ends inside thinking makes it a must, one that has closed it forbids it.
    """
    marks = pipeline.thinking_marks
    if marks is None:
        return root, ""
    end = pipeline.prompt_end(prompt_ids)
    if end.endswith(marks[1]):
        return root, ""
    rules = until(pipeline, marks[1], "thinking")
    if end.endswith(marks[0]):
        return f"thinking /\\n*/ {root}", rules
    return f"({mark(pipeline, marks[0])} thinking /\\n*/)? {root}", rules
