"""The requests that are here now, as an operator sees them: states and counts, never their text."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from daemon.store.base import utc_now
from daemon.tenants.principal import Principal
from engine.errors import NotFound


class RequestState(StrEnum):
    QUEUED = "queued"  # waits for its tenant's place
    PREPARING = "preparing"  # template and tokens
    WAITING = "waiting"  # in the engine, no token yet
    DECODE = "decode"


class Asked(Protocol):
    """What is shown of any request, whatever it asks for."""

    @property
    def model(self) -> str: ...
    @property
    def stream(self) -> bool: ...


class AskedFor(Protocol):
    """What is looked at of a request: one for text, or for embeddings."""

    @property
    def model(self) -> str: ...
    @property
    def stream(self) -> bool: ...


@dataclass(slots=True)
class LiveRequest:
    """Mutable. Owner: the Generation's path."""

    id: str
    tenant: str
    key_prefix: str
    model: str
    origin: str  # "http", "grpc", "batch"
    stream: bool
    cancel: Callable[[], Awaitable[None]]  # ends it on an operator's word
    cancelled: bool = False
    worker: str | None = None
    state: RequestState = RequestState.QUEUED
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    output_tokens: int = 0
    started_at: datetime = field(default_factory=utc_now)
    started_mono: float = field(default_factory=time.monotonic)
    first_token_mono: float | None = None
    last_token_mono: float | None = None

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started_mono

    @property
    def first_token_s(self) -> float | None:
        return None if self.first_token_mono is None else self.first_token_mono - self.started_mono

    @property
    def inter_token_s(self) -> float | None:
        """Mean time between tokens."""
        if self.first_token_mono is None or self.last_token_mono is None or self.output_tokens < 2:
            return None
        return (self.last_token_mono - self.first_token_mono) / (self.output_tokens - 1)


class LiveRequests:
    """Owner: the ServingPath. Used on the event loop only."""

    def __init__(self) -> None:
        self._by_id: dict[str, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(
        self,
        request_id: str,
        request: Asked,
        principal: Principal,
        origin: str,
        cancel: Callable[[], Awaitable[None]],
    ) -> LiveRequest:
        live = LiveRequest(
            request_id,
            principal.tenant_name,
            principal.key_prefix,
            request.model,
            origin,
            request.stream,
            cancel,
        )
        self._by_id[request_id] = live
        return live

    def remove(self, request_id: str) -> None:
        self._by_id.pop(request_id, None)

    def get(self, request_id: str) -> LiveRequest | None:
        return self._by_id.get(request_id)

    async def cancel(self, request_id: str) -> LiveRequest:
        """End one on an operator's word. Raises: NotFound"""
        live = self._by_id.get(request_id)
        if live is None:
            raise NotFound(f"There is no request {request_id!r} here now.", "It may have ended already.")
        live.cancelled = True
        await live.cancel()
        return live

    def all(self) -> list[LiveRequest]:
        """Oldest first."""
        return list(self._by_id.values())
