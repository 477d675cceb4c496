"""POST /v1/embeddings: the body, its checks, and its meaning as an EmbeddingRequest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from daemon.serving.embedding import EmbeddingRequest
from daemon.serving.request import TextPrompt, TokenPrompt
from engine.errors import InvalidParameter
from engine.messages import AnyInt, Several

MAX_INPUTS = 2048
Input = str | list[str | AnyInt | list[AnyInt]]


class TensorBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a KServe client sends as JSON: the same without the model."""

    input: Input
    encoding_format: str | None = None
    dimensions: Several | None = None
    user: Any = None


class EmbeddingsBody(TensorBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: Annotated[str, Meta(min_length=1, max_length=512)]


decoder = msgspec.json.Decoder(EmbeddingsBody)
tensor_decoder = msgspec.json.Decoder(TensorBody)


@dataclass(frozen=True, slots=True)
class EmbeddingsAsked:
    request: EmbeddingRequest
    base64: bool  # how the vectors are written


def read_embeddings(body: EmbeddingsBody) -> EmbeddingsAsked:
    """Raises: InvalidParameter naming the field that is wrong"""
    return read_tensor(body, body.model)


def read_tensor(body: TensorBody, model: str) -> EmbeddingsAsked:
    """Raises: InvalidParameter naming the field that is wrong"""
    form = body.encoding_format or "float"
    if form not in ("float", "base64"):
        raise InvalidParameter(
            f"encoding_format is {form[:32]!r}; it must be float or base64.", param="encoding_format"
        )
    return EmbeddingsAsked(EmbeddingRequest(model, read_inputs(body.input), body.dimensions), form == "base64")


def read_inputs(given: Input, param: str = "input") -> tuple[TextPrompt | TokenPrompt, ...]:
    """Texts or lists of token ids, one or several. Raises: InvalidParameter"""
    if isinstance(given, str):
        return (_text(given, param),)
    if not given:
        raise InvalidParameter(f"{param} is an empty list.", "Send at least one text.", param=param)
    if all(isinstance(one, int) for one in given):
        return (_tokens([one for one in given if isinstance(one, int)], param),)
    if len(given) > MAX_INPUTS:
        raise InvalidParameter(
            f"{param} has {len(given):,} entries; at most {MAX_INPUTS:,} are served at once.", param=param
        )
    if all(isinstance(one, str) for one in given):
        return tuple(_text(one, param) for one in given if isinstance(one, str))
    if all(isinstance(one, list) for one in given):
        return tuple(_tokens(one, param) for one in given if isinstance(one, list))
    raise InvalidParameter(f"{param} mixes texts and token ids.", "Send one kind.", param=param)


def _text(text: str, param: str) -> TextPrompt:
    if not text:
        raise InvalidParameter(f"{param} holds an empty text.", "Leave it out.", param=param)
    return TextPrompt(text)


def _tokens(token_ids: list[int], param: str) -> TokenPrompt:
    if not token_ids:
        raise InvalidParameter(f"{param} holds an empty list of token ids.", param=param)
    return TokenPrompt(tuple(token_ids))
