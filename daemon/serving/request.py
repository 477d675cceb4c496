"""What a client asked for, after validation and before anything is known of the model's tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Endpoint(StrEnum):
    """Which contract the answer follows; also the prefix of the answer's id."""

    CHAT = "chat"
    COMPLETION = "completion"

    @property
    def id_prefix(self) -> str:
        return "chatcmpl-" if self is Endpoint.CHAT else "cmpl-"


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template, roles and text only."""

    messages: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text that is continued as it is; special tokens in it are honoured."""

    text: str


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
class GenerationRequest:
    """One request. It has len(prompts) * n choices, prompt-major."""

    endpoint: Endpoint
    model: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    n: int = 1
    stops: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n
