"""proof: a test generation that a worker must pass before it is given traffic in a running one's place."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from typing import TYPE_CHECKING

from daemon.workers.incarnation import Incarnation
from engine.errors import WorkerLost
from engine.messages import Embed, FinishReason, SamplingParams, Submit, WorkerReady

if TYPE_CHECKING:
    from engine.client import EngineClient

PROOF_TOKENS = 4
PROOF_S = 60.0
_PROMPT = [1, 2, 3]  # every vocabulary has them
_numbers = itertools.count(1)


async def prove(now: Incarnation, stop: asyncio.Event) -> bool:
    """Let the loaded worker write a few tokens; False if stop was asked meanwhile.

    Raises: WorkerLost, WorkerStalled if it cannot
    """
    assert now.ready is not None
    proving = asyncio.ensure_future(_answer(now.client, now.ready))
    watching = asyncio.ensure_future(now.until_over(stop))
    try:
        await asyncio.wait({proving, watching}, timeout=PROOF_S, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
            return False
        if not proving.done():
            raise WorkerLost(f"did not end its test generation within {PROOF_S:g} s")
        proving.result()
        return True
    finally:
        for task in (proving, watching):
            task.cancel()
        await asyncio.gather(proving, watching, return_exceptions=True)


async def _answer(client: EngineClient, ready: WorkerReady) -> None:
    """Raises: WorkerLost"""
    request_id = f"proof-{next(_numbers)}"
    if not ready.generates:
        delta = await client.embed(Embed(request_id, _PROMPT))
        if delta.embedding is None:
            raise WorkerLost(f"failed its test embedding: {delta.error.message if delta.error else delta.finish}")
        return
    sampling = SamplingParams(max_tokens=PROOF_TOKENS, temperature=0.0, ignore_eos=True)
    written = 0
    async with aclosing(client.submit(Submit(request_id, _PROMPT, sampling))) as deltas:  # type: ignore[type-var]
        async for delta in deltas:
            written += len(delta.token_ids)
            if delta.finish is not None and delta.finish not in (FinishReason.LENGTH, FinishReason.STOP):
                raise WorkerLost(f"failed its test generation: {delta.error.message if delta.error else delta.finish}")
    if written != PROOF_TOKENS:
        raise WorkerLost(f"wrote {written} tokens in its test generation; {PROOF_TOKENS} were asked for")
