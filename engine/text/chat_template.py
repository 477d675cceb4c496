"""ChatTemplate: messages to text, with the caller's strings disarmed on the way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from engine.errors import InvalidParameter
from engine.text.special_tokens import SpecialTokens
from engine.text.template_engine import BoundedTemplate
from engine.text.template_text import literal_text

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_DEPTH_LIMIT = 64
_BROKEN_HINT = "Fetch the model's files again, or use /v1/completions with a prompt of your own."


class ChatTemplate:
    """The chat templates of one model: "default", and perhaps "tool_use" for requests with tools."""

    def __init__(self, sources: Mapping[str, str], names: Mapping[str, str], specials: SpecialTokens) -> None:
        self._names = dict(names)
        self._specials = specials
        self._literals = {name: literal_text(source) for name, source in sources.items()}
        self._compiled: dict[str, BoundedTemplate] = {}
        self._broken: dict[str, str] = {}
        for name, source in sources.items():
            try:
                self._compiled[name] = BoundedTemplate(source)
            except jinja2.TemplateError as error:
                self._broken[name] = f"line {getattr(error, 'lineno', '?')}: {error}"

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"The chat template {name!r} cannot be used: {why}." for name, why in self._broken.items())

    @property
    def literal_text(self) -> str:
        """What the templates write themselves."""
        return "\0".join(self._literals.values())

    @property
    def exists(self) -> bool:
        return bool(self._compiled)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """The conversation as marked text (see SpecialTokens.mark).

        Raises: InvalidParameter when there is no usable template or it refuses the messages
        """
        name = "tool_use" if tools and "tool_use" in self._compiled else "default"
        template = self._compiled.get(name) or (
            next(iter(self._compiled.values())) if len(self._compiled) == 1 else None
        )
        if template is None:
            why = self._broken.get(name)
            raise InvalidParameter(
                f"The model's chat template cannot be used: {why}." if why else "The model has no chat template.",
                _BROKEN_HINT
                if why
                else "It is not a chat model: use /v1/completions, or load an instruction-tuned one.",
                param="messages",
            )
        literals = self._literals[name if name in self._compiled else next(iter(self._compiled))]
        taken = {"messages", "tools", "add_generation_prompt", *self._names} & set(variables)
        if taken:
            raise InvalidParameter(
                f"A template variable may not be named {sorted(taken)[0]!r}.", param="chat_template_kwargs"
            )
        given = {
            **self._names,
            **self._disarmed(variables),
            "messages": [self._message(message, literals) for message in messages],
            "tools": self._disarmed(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        given.setdefault("documents", None)
        try:
            return template.render(given)
        except Exception as error:
            said = str(error) or type(error).__name__
            raise InvalidParameter(
                f"The model's chat template refused the messages: {said}.".replace("..", "."),
                "Check the order of roles, and whether this model knows tools or system messages.",
                param="messages",
            ) from error

    def _message(self, message: Mapping[str, Any], literals: str) -> dict[str, Any]:
        role = message.get("role")
        if role not in ROLES:
            raise InvalidParameter(
                f"A message has the role {role!r}.", f"Use one of {', '.join(sorted(ROLES))}.", param="messages"
            )
        plain = dict(message)
        if role == "developer" and "developer" not in literals:
            plain["role"] = "system"
        plain["content"] = flat_content(message.get("content"))
        if message.get("tool_calls"):
            plain["tool_calls"] = [_with_parsed_arguments(call) for call in message["tool_calls"]]
        if role == "assistant" and "reasoning_content" in literals and plain.get("reasoning_content") is None:
            before, end, after = plain["content"].rpartition("</think>")
            if end:  # templates cut it off themselves, which the marks would hinder
                plain["reasoning_content"] = before.rstrip("\n").split("<think>")[-1].lstrip("\n")
                plain["content"] = after.lstrip("\n")
        return {key: value if key == "role" else self._disarmed(value) for key, value in plain.items()}

    def _disarmed(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return self._specials.mark(value)
        if depth > _DEPTH_LIMIT:
            raise InvalidParameter(f"A value is nested more than {_DEPTH_LIMIT} deep.", param="messages")
        if isinstance(value, Mapping):
            return {self._specials.mark(str(key)): self._disarmed(item, depth + 1) for key, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self._disarmed(item, depth + 1) for item in value]
        return value


def flat_content(content: Any) -> str:
    """A message's content as one text; null is no text.

    Raises: InvalidParameter for a part that is not text
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if (
            isinstance(part, Mapping)
            and kind in ("text", "input_text", "output_text")
            and isinstance(part.get("text"), str)
        ):
            texts.append(part["text"])
        else:
            raise InvalidParameter(
                f"A content part has the type {kind!r}; this model reads text only.",
                "Leave it out, or choose a model for that input.",
                param="messages",
            )
    return "".join(texts)


def _with_parsed_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """Templates expect a call's arguments as an object; clients send them as JSON text."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"])
    except (json.JSONDecodeError, RecursionError):
        return dict(call)  # what a model once wrote, broken: shown to it as it was
    return {
        **call,
        "function": {**function, "arguments": arguments if isinstance(arguments, dict) else function["arguments"]},
    }
