"""POST /tokenize and /detokenize: a model's tokens of a text or a conversation, and back."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from daemon.api.exchange import Exchange
from daemon.api.openai.chat_request import MAX_MESSAGES, Message, read_conversation
from daemon.api.openai.reply import encode
from daemon.api.openai.tool_fields import ToolField, read_tools
from daemon.serving import counting
from daemon.serving.request import Endpoint, GenerationRequest, Sampling
from engine.errors import InvalidParameter
from engine.messages import AnyInt


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of prompt, content (the same) and messages."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: list[ToolField] | None = None
    add_special_tokens: bool | None = None
    parse_special: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: Annotated[str, Meta(min_length=1, max_length=512)]
    tokens: list[AnyInt]


_tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)


async def tokenize(exchange: Exchange) -> None:
    """POST /tokenize"""
    body: TokenizeBody = await exchange.read_json(_tokenize_decoder)
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        told = "none of them" if not given else " and ".join(given)
        raise InvalidParameter(f"One of prompt, content and messages is needed; {told} came.", param="prompt")
    assert exchange.principal is not None
    router = exchange.services.router
    replica = counting.replica_for(router, exchange.principal, body.model)
    if body.messages is not None:
        tokens = await counting.prompt_tokens(router, exchange.principal, _conversation(body, body.messages))
    else:
        text = body.prompt if body.prompt is not None else body.content or ""
        tokens = await counting.text_tokens(
            replica, text, add_special=body.add_special_tokens is not False, parse_special=bool(body.parse_special)
        )

    def answer() -> bytes:
        told: dict[str, Any] = {"count": len(tokens), "max_model_len": replica.max_context_tokens, "tokens": tokens}
        if body.return_token_strs:
            told["token_strs"] = [replica.text.token_bytes(token).decode("utf-8", "replace") for token in tokens]
        return encode(told)

    short = len(tokens) <= counting.INLINE_CHARS
    await exchange.respond(200, answer() if short else await asyncio.to_thread(answer))


async def detokenize(exchange: Exchange) -> None:
    """POST /detokenize"""
    body: DetokenizeBody = await exchange.read_json(_detokenize_decoder)
    assert exchange.principal is not None
    replica = counting.replica_for(exchange.services.router, exchange.principal, body.model)
    await exchange.respond(200, encode({"prompt": await counting.tokens_text(replica, body.tokens)}))


def _conversation(body: TokenizeBody, messages: list[Message]) -> GenerationRequest:
    prompt, kwargs = read_conversation(
        messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return GenerationRequest(
        endpoint=Endpoint.CHAT,
        model=body.model,
        prompts=(prompt,),
        sampling=Sampling(),
        template_kwargs=kwargs,
        tools=read_tools(body.tools, None, None),
    )
