"""POST /v1/rerank: documents in the order of their nearness to a query, by the cosine of their embeddings."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from daemon.api.embeddings.request import MAX_INPUTS
from daemon.api.embeddings.vectors import as_floats, cosine
from daemon.serving.embedding import Embedded, EmbeddingRequest
from daemon.serving.request import TextPrompt
from engine.errors import InvalidParameter
from engine.messages import Several


class Document(msgspec.Struct, frozen=True):
    text: str


class RerankBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: Annotated[str, Meta(min_length=1, max_length=512)]
    query: str
    documents: list[str | Document]
    top_n: Several | None = None
    return_documents: bool | None = None
    user: Any = None


decoder = msgspec.json.Decoder(RerankBody)


def read_rerank(body: RerankBody) -> EmbeddingRequest:
    """Raises: InvalidParameter naming the field that is wrong"""
    if not body.query:
        raise InvalidParameter("query is empty.", param="query")
    if not 1 <= len(body.documents) < MAX_INPUTS:
        raise InvalidParameter(
            f"documents has {len(body.documents):,} entries; it must have 1 to {MAX_INPUTS - 1:,}.", param="documents"
        )
    texts = [_text(document) for document in body.documents]
    for at, text in enumerate(texts):
        if not text:
            raise InvalidParameter(f"documents[{at}] is empty.", "Leave it out.", param="documents")
    return EmbeddingRequest(body.model, tuple(map(TextPrompt, (body.query, *texts))), param="documents")


def answer(embedded: Embedded, body: RerankBody) -> dict[str, Any]:
    """relevance_score is the cosine, from -1 to 1. Blocks: in proportion to the documents."""
    query, *documents = (as_floats(vector) for vector in embedded.vectors)
    scores = sorted(
        ((cosine(query, one), at) for at, one in enumerate(documents)), key=lambda pair: (-pair[0], pair[1])
    )
    results: list[dict[str, Any]] = []
    for score, at in scores[: body.top_n]:
        result: dict[str, Any] = {"index": at, "relevance_score": score}
        if body.return_documents:
            result["document"] = {"text": _text(body.documents[at])}
        results.append(result)
    return {
        "id": embedded.id,
        "object": "rerank",
        "model": embedded.model,
        "results": results,
        "usage": {"prompt_tokens": embedded.usage.prompt_tokens, "total_tokens": embedded.usage.total_tokens},
    }


def _text(document: str | Document) -> str:
    return document if isinstance(document, str) else document.text
