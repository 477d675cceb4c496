"""A conversation as token ids: the model's template, its tools, and how much it is to think."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from daemon.serving.output import shown_tools
from daemon.serving.request import ChatPrompt, Endpoint, GenerationRequest
from daemon.serving.tool_prompt import speaks_of_tools, with_tools_told
from engine.errors import InvalidParameter
from engine.text.tools import ToolFormat

if TYPE_CHECKING:
    from engine.text import TextPipeline

_TEMPLATE_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high"}  # templates know low, medium and high
_NO_THINKING = frozenset({"none", "minimal"})


def render_prompt(prompt: ChatPrompt, request: GenerationRequest, text: TextPipeline) -> list[int]:
    """Raises: InvalidParameter"""
    messages = list(prompt.messages)
    continued: list[int] = []
    if prompt.continue_final:
        last = messages.pop()
        if last["role"] != "assistant" or last.get("tool_calls") or not messages:
            raise InvalidParameter(
                "continue_final_message needs a last message that is the assistant's text, after another.",
                param="continue_final_message",
            )
        continued = text.encode(last["content"])
    tools = shown_tools(request)
    if text.tool_format is None and (tools or speaks_of_tools(messages)):
        messages, tools = with_tools_told(messages, tools), []
    variables = {**_thinking(request), **request.template_kwargs}
    ids = text.render_chat(messages, tools or None, prompt.add_generation_prompt, **variables)
    if request.reasoning_effort not in (None, *_NO_THINKING) and not thinks(text):
        param = "reasoning.effort" if request.endpoint is Endpoint.RESPONSE else "reasoning_effort"
        raise InvalidParameter(
            f"{param} is {request.reasoning_effort!r}; the model {request.model} does not think before it answers.",
            "Leave it out, or ask for a model that does.",
            param=param,
        )
    return ids + continued


def thinks(text: TextPipeline) -> bool:
    return text.thinking_marks is not None or text.tool_format is ToolFormat.HARMONY


def _thinking(request: GenerationRequest) -> dict[str, Any]:
    """Template variables; a template that knows none of them takes no notice."""
    effort = request.reasoning_effort
    if effort is None:
        return {}
    return {"reasoning_effort": _TEMPLATE_EFFORTS.get(effort, effort), "enable_thinking": effort not in _NO_THINKING}
