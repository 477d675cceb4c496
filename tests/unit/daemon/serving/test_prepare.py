"""Text work: on the event loop only where it is sure to be little."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from daemon.serving import prepare
from daemon.serving.prepare import is_quick, prepare_prompts
from daemon.serving.request import ChatPrompt, Endpoint, GenerationRequest, Sampling, TokenPrompt
from daemon.serving.tools import Tool, ToolUse
from engine.errors import InvalidParameter


class Text:
    """A model's text work with a template of our choice."""

    vocab_size = 4
    tool_format = None
    thinking_marks = None

    def __init__(self, render: Any) -> None:
        self._render = render

    def render_chat(self, messages: Any, tools: Any, add_generation_prompt: bool, **variables: Any) -> Any:
        return self._render(messages)

    def token_bytes(self, token_id: int) -> bytes:
        return b"ab"


def chat(content: str = "hi") -> GenerationRequest:
    return GenerationRequest(Endpoint.CHAT, "m", (ChatPrompt(({"role": "user", "content": content},)),), Sampling())


def busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_short_chat_is_quick_once_the_model_is_known() -> None:
    text: Any = Text(lambda messages: [1, 2])
    assert not is_quick(chat(), text)
    prepare_prompts(chat(), text, 100)
    assert is_quick(chat(), text)
    assert not is_quick(chat("x" * (prepare.INLINE_BYTES + 1)), text)


LONG = "x" * (prepare.INLINE_BYTES + 1)
CALLED = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": LONG}}]}


@pytest.mark.parametrize(
    "changed",
    [
        {"tools": ToolUse((Tool("f", description=LONG),))},
        {"tools": ToolUse((Tool("f", parameters={"type": "object", "description": LONG}),))},
        {"template_kwargs": {"documents": [{LONG: 1}]}},
        {"prompts": (ChatPrompt((CALLED,)),)},
        {"prompts": (ChatPrompt(({"role": "assistant", "content": "", "reasoning_content": LONG},)),)},
        {"prompts": (ChatPrompt(({"role": "user", "content": " " * len(LONG)},)),)},
        {"prompts": (TokenPrompt((1,) * len(LONG)),)},
    ],
)
def test_much_that_is_no_message_text_never_runs_on_the_loop(changed: dict[str, Any]) -> None:
    text: Any = Text(lambda messages: [1, 2])
    prepare_prompts(chat(), text, 100)
    assert is_quick(chat(), text)
    assert not is_quick(replace(chat(), **changed), text)


@pytest.mark.parametrize("refuses", [False, True])
def test_template_that_works_hard_on_little_never_runs_on_the_loop_again(refuses: bool) -> None:
    def render(messages: Any) -> list[int]:
        busy(2 * prepare.SLOW_S)
        if refuses:
            raise InvalidParameter("no")
        return [1]

    text: Any = Text(render)
    if refuses:
        with pytest.raises(InvalidParameter):
            prepare_prompts(chat(), text, 100)
    else:
        prepare_prompts(chat(), text, 100)
    assert not is_quick(chat(), text)


def test_much_text_that_takes_its_time_says_nothing_of_the_template() -> None:
    text: Any = Text(lambda messages: busy(2 * prepare.SLOW_S) or [1])
    prepare_prompts(chat("x" * (prepare.INLINE_BYTES + 1)), text, 100_000)
    assert is_quick(chat(), text)
