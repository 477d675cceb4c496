"""Tools for a model whose chat template knows none: told in its system message, in the Hermes way of writing calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_INSTRUCTIONS = """# Tools

You can call functions to help with the request. Each line between <tools> and </tools> describes one:
<tools>
{tools}
</tools>

To call a function, write a JSON object with its name and its arguments between <tool_call> and </tool_call>:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument": "its value"}}}}
</tool_call>"""


def with_tools_told(messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation in roles and text alone: tools in the system message, calls and results as text."""
    told = [_as_text(message) for message in messages]
    if not tools:
        return told
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=lines)
    if told and told[0]["role"] == "system":
        first = {**told[0], "content": f"{told[0]['content']}\n\n{instructions}"}
        return [first, *told[1:]]
    return [{"role": "system", "content": instructions}, *told]


def speaks_of_tools(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether calls or their results are in the conversation."""
    return any(message["role"] == "tool" or message.get("tool_calls") for message in messages)


def _as_text(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [message["content"]] if message["content"] else []
    texts += [f"<tool_call>\n{_call_text(call['function'])}\n</tool_call>" for call in calls]
    return {"role": message["role"], "content": "\n".join(texts)}


def _call_text(function: dict[str, Any]) -> str:
    """What a model once wrote, broken, is shown as it was."""
    try:
        return json.dumps(
            {"name": function["name"], "arguments": json.loads(function["arguments"] or "{}")}, ensure_ascii=False
        )
    except (json.JSONDecodeError, RecursionError):
        return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
