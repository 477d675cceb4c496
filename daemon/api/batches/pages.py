"""Lists as OpenAI's clients page through them: after a known id, so many at once."""

from __future__ import annotations

from typing import Any

from engine.errors import InvalidParameter

DEFAULT_LIMIT, MAX_LIMIT = 20, 10_000
_FIELDS = frozenset({"limit", "after", "order", "purpose"})


def page(objects: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
    """objects: newest first. Raises: InvalidParameter"""
    odd = sorted(query.keys() - _FIELDS)
    if odd:
        raise InvalidParameter(f"There is no query field {odd[0][:64]!r}.", param=odd[0][:64])
    limit = _limit(query.get("limit", str(DEFAULT_LIMIT)))
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidParameter(f"order is {order[:16]!r}; it must be asc or desc.", param="order")
    if order == "asc":
        objects = objects[::-1]
    if (after := query.get("after")) is not None:
        ids = [one["id"] for one in objects]
        if after not in ids:
            raise InvalidParameter(f"after is {after[:64]!r}, which is not in the list.", param="after")
        objects = objects[ids.index(after) + 1 :]
    shown = objects[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(objects) > limit,
    }


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_LIMIT:
        raise InvalidParameter(f"limit is {text[:16]!r}; it must be 1 to {MAX_LIMIT:,}.", param="limit")
    return int(text)
