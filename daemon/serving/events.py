"""What a generation tells whoever serves it. Exactly one Finished or Failed, and it is the last."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import BayardError


@dataclass(frozen=True, slots=True)
class AlternativeLogprob:
    token: str
    token_bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class LogprobEntry:
    """One emitted token. token_bytes are its raw bytes, even where they are part of a character."""

    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[AlternativeLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of one choice; may be empty where only log-probabilities came."""

    index: int
    text: str
    logprobs: tuple[LogprobEntry, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what a choice's model thinks before it answers; never part of its text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A tool call of one choice. The first of a call has call_id and name, later ones only more of its arguments."""

    index: int
    call: int  # number of the call within the choice, from 0
    arguments: str  # the next piece of the JSON text
    call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ChoiceDone:
    """One choice is complete. reason: "stop", "length" or "tool_calls"; stop: the stop string that ended it."""

    index: int
    reason: str
    stop: str | None = None


ChoiceEvent = TextDelta | ReasoningDelta | ToolCallDelta | ChoiceDone


@dataclass(frozen=True, slots=True)
class TokenUsage:
    prompt_tokens: int  # each prompt counted once
    completion_tokens: int  # over all choices
    cached_tokens: int = 0  # of prompt_tokens, those that came from the prefix cache
    device_s: float = 0.0
    reasoning_tokens: int = 0  # of completion_tokens, those before the answer of a model that thinks

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Finished:
    usage: TokenUsage


@dataclass(frozen=True, slots=True)
class Failed:
    error: BayardError


Event = ChoiceEvent | Finished | Failed
