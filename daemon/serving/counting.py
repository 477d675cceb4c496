"""Tokens of a text or of a whole request, exactly as a generation would see them, without making one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from daemon.serving.prepare import prepare_prompts
from daemon.serving.request import GenerationRequest
from daemon.tenants.principal import Principal
from engine.errors import InvalidParameter, PermissionDenied

if TYPE_CHECKING:
    from daemon.router import Replica, Router

INLINE_CHARS = 2048  # longer texts are worked on in a thread


def replica_for(router: Router, principal: Principal, model: str) -> Replica:
    """Raises: PermissionDenied, ModelNotFound, NotReady"""
    if not router.may_use(principal.limits, model):
        raise PermissionDenied(
            f"This key may not use the model {model[:128]!r}.", "Ask the administrator to allow it.", param="model"
        )
    return router.replica_for(model)


async def prompt_tokens(router: Router, principal: Principal, request: GenerationRequest) -> list[int]:
    """The token ids of the request's first prompt. Raises: as a generation does before it meets an engine"""
    replica = replica_for(router, principal, request.model)
    prepared = await asyncio.to_thread(prepare_prompts, request, replica.text, replica.max_context_tokens)
    return prepared[0].token_ids


async def text_tokens(replica: Replica, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
    """add_special puts around the text what the tokenizer was made to put there. Raises: InvalidParameter"""

    def encode() -> list[int]:
        return replica.text.encode(text, special=parse_special, add_bos=add_special)

    return encode() if len(text) <= INLINE_CHARS else await asyncio.to_thread(encode)


async def tokens_text(replica: Replica, token_ids: list[int]) -> str:
    """Special tokens spelled out. Raises: InvalidParameter for an id that the model does not have"""
    for token_id in token_ids:
        if not 0 <= token_id < replica.text.vocab_size:
            raise InvalidParameter(
                f"There is no token {token_id}; the model has {replica.text.vocab_size:,}.", param="tokens"
            )

    def decode() -> str:
        return replica.text.decode(token_ids, skip_special=False)

    return decode() if len(token_ids) <= INLINE_CHARS else await asyncio.to_thread(decode)
