"""The texts that wait to be embedded: by priority, fair between tenants by tokens, in the order they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.messages import Embed


@dataclass(slots=True)
class WaitingText:
    command: Embed
    arrived_mono: float
    ended: bool = False  # aborted while it waited

    @property
    def num_tokens(self) -> int:
        return len(self.command.prompt_token_ids)

    @property
    def due_mono(self) -> float | None:
        deadline_s = self.command.deadline_s
        return None if deadline_s is None else self.arrived_mono + deadline_s


@dataclass(slots=True)
class _Tenant:
    texts: deque[WaitingText] = field(default_factory=deque)
    served_tokens: float = 0.0  # divided by its weight


class WaitingTexts:
    """Owner: EncoderCore."""

    def __init__(self) -> None:
        self._by_id: dict[str, WaitingText] = {}
        self._tenants: dict[tuple[int, str], _Tenant] = {}  # by priority and name; those that wait for something

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def __iter__(self) -> Iterator[WaitingText]:
        return iter(list(self._by_id.values()))

    def add(self, text: WaitingText) -> None:
        key = (text.command.priority, text.command.tenant)
        tenant = self._tenants.get(key)
        if tenant is None:
            # One that comes anew starts where those who wait are: its silence is no credit.
            peers = [other.served_tokens for (priority, _), other in self._tenants.items() if priority == key[0]]
            tenant = self._tenants[key] = _Tenant(served_tokens=min(peers, default=0.0))
        tenant.texts.append(text)
        self._by_id[text.command.request_id] = text

    def remove(self, request_id: str) -> WaitingText | None:
        """Take one out of its place; None if it does not wait."""
        text = self._by_id.pop(request_id, None)
        if text is not None:
            text.ended = True
        return text

    def overdue(self, now_mono: float) -> list[WaitingText]:
        """Take out what should have ended by now."""
        late = [text for text in self._by_id.values() if text.due_mono is not None and text.due_mono <= now_mono]
        for text in late:
            self.remove(text.command.request_id)
        return late

    def take(self, max_texts: int, max_tokens: int) -> list[WaitingText]:
        """The next batch: at least one text if any waits, else no more than so many texts and tokens."""
        taken: list[WaitingText] = []
        tokens = 0
        while len(taken) < max_texts:
            key = self._next()
            if key is None:
                break
            tenant = self._tenants[key]
            text = tenant.texts[0]
            if taken and tokens + text.num_tokens > max_tokens:
                break
            tenant.texts.popleft()
            tenant.served_tokens += text.num_tokens / text.command.weight
            del self._by_id[text.command.request_id]
            taken.append(text)
            tokens += text.num_tokens
        return taken

    def _next(self) -> tuple[int, str] | None:
        """Of the most urgent tenants with a text, the one served least."""
        for key, tenant in list(self._tenants.items()):
            while tenant.texts and tenant.texts[0].ended:
                tenant.texts.popleft()
            if not tenant.texts:
                del self._tenants[key]
        return min(self._tenants, key=lambda key: (key[0], self._tenants[key].served_tokens), default=None)
