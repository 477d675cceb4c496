"""What a client asked for, after validation and before anything is known of the model's tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from daemon.serving.tools import ToolUse
from engine.messages import Grammar


class Endpoint(StrEnum):
    """Which contract the answer follows; also the prefix of the answer's id."""

    CHAT = "chat"
    COMPLETION = "completion"
    RESPONSE = "response"
    MESSAGE = "message"

    @property
    def id_prefix(self) -> str:
        return _ID_PREFIXES[self]


_ID_PREFIXES = {
    Endpoint.CHAT: "chatcmpl-",
    Endpoint.COMPLETION: "cmpl-",
    Endpoint.RESPONSE: "resp_",
    Endpoint.MESSAGE: "msg_",
}


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template: role, content as text, tool_calls, tool_call_id, reasoning_content.

    continue_final: the last message is the assistant's and is written on. add_generation_prompt False leaves out what
    opens the assistant's turn.
    """

    messages: tuple[dict[str, Any], ...]
    add_generation_prompt: bool = True
    continue_final: bool = False


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text that is continued as it is; special tokens in it are honoured. suffix: what comes after the answer."""

    text: str
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    token_ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen, as asked; max_tokens None means whatever the context has room for."""

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False
    logit_bias: dict[int, float] | None = None
    top_logprobs: int | None = None  # None: no log-probabilities


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the whole answer must match; param names the field that asked for it, for errors."""

    grammar: Grammar
    param: str = "response_format"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request. It has len(prompts) * candidates choices, prompt-major."""

    endpoint: Endpoint
    model: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    n: int = 1
    best_of: int | None = None  # choices made of each prompt, of which the handler keeps the n most probable
    stops: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    tools: ToolUse | None = None
    constraint: Constraint | None = None
    tells_logprobs: bool | None = None  # None: wherever there are any
    reasoning_effort: str | None = None  # none, minimal, low, medium, high; None: as the model's template has it
    clamp_max_tokens: bool = False  # more than there is room for means: as much as there is
    deadline_s: float | None = None  # seconds from now by which it must have ended

    @property
    def candidates(self) -> int:
        """Choices of one prompt."""
        return self.n if self.best_of is None else self.best_of

    @property
    def with_logprobs(self) -> bool:
        """Whether the client is told log-probabilities."""
        return self.sampling.top_logprobs is not None if self.tells_logprobs is None else self.tells_logprobs

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.candidates
