"""How long steps take, from those that ran: what a prompt's tokens cost beside the streams that run."""

from __future__ import annotations

from collections.abc import Sequence

from engine.scheduler.chunk import ScheduledChunk

LEAST_TOKENS = 16  # a step with fewer prompt tokens says nothing of what they cost
DECODE_WEIGHT = 0.2  # of the newest measurement
PROMPT_WEIGHT = 0.5  # ... which follows a prompt's growing context quickly
LEAST_SHARE = 0.1  # of a mixed step that its prompt tokens are taken to cost at the least
HEADROOM = 0.9


class StepPace:
    """Owner: the scheduler. Units: seconds of a step as a client sees it."""

    def __init__(self) -> None:
        self.decode_s: float | None = None  # a step without prompt tokens
        self.prompt_token_s: float | None = None  # what one prompt token adds

    @property
    def prefill_tok_s(self) -> float | None:
        return 1.0 / self.prompt_token_s if self.prompt_token_s else None

    def note_chunks(self, chunks: Sequence[ScheduledChunk], step_s: float) -> None:
        prompt_tokens = sum(chunk.num_tokens for chunk in chunks if not chunk.is_decode)
        self.note(prompt_tokens, sum(chunk.is_decode for chunk in chunks), step_s)

    def note(self, prompt_tokens: int, decodes: int, step_s: float) -> None:
        if prompt_tokens == 0:
            self.decode_s = _mean(self.decode_s, step_s, DECODE_WEIGHT)
        elif prompt_tokens >= LEAST_TOKENS:
            beside_s = (self.decode_s or 0.0) if decodes else 0.0
            added_s = max(step_s - beside_s, LEAST_SHARE * step_s)
            self.prompt_token_s = _mean(self.prompt_token_s, added_s / prompt_tokens, PROMPT_WEIGHT)

    def prompt_tokens_within(self, max_step_s: float) -> int | None:
        """Prompt tokens that keep a step with decodes within so long; None: not known yet.

        Prompts get as long as the decodes themselves at the least, or they would never enter where decodes are slow.
        """
        if self.prompt_token_s is None:
            return None
        decode_s = self.decode_s or 0.0
        return max(LEAST_TOKENS, int(max(HEADROOM * max_step_s - decode_s, decode_s) / self.prompt_token_s))


def _mean(known: float | None, fresh: float, weight: float) -> float:
    return fresh if known is None else known + weight * (fresh - known)
