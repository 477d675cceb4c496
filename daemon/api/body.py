"""Reading a request's body: bounded before it is buffered, then decoded into a checked struct."""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

import msgspec

from daemon.api.json_guard import check_json
from engine.errors import InvalidParameter

T = TypeVar("T")
_BIG_BODY_BYTES = 64 * 1024  # above this a body is checked and parsed off the loop
_PATH = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_FIELD = re.compile(r"field `([^`]*)`")


def decode_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Parse and validate. Blocks: in proportion to the body. Raises: InvalidParameter."""
    check_json(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise validation_error(error) from None
    except msgspec.DecodeError as error:
        raise InvalidParameter(f"The body is not valid JSON: {_malformed(error)}.") from None
    except RecursionError:
        raise InvalidParameter("The body is nested too deep.") from None


async def decode_json_off_loop(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """decode_json, in a thread where the body is big enough to hold up other requests."""
    if len(body) <= _BIG_BODY_BYTES:
        return decode_json(body, decoder)
    return await asyncio.to_thread(decode_json, body, decoder)


def convert(value: Any, into: type[T]) -> T:
    """Validate plain values that did not come as JSON. Raises: InvalidParameter."""
    try:
        return msgspec.convert(value, into)
    except msgspec.ValidationError as error:
        raise validation_error(error) from None


def validation_error(error: msgspec.ValidationError) -> InvalidParameter:
    """Say which field was wrong and what it must be."""
    match = _PATH.match(str(error))
    what, path = (match["what"], match["path"] or "") if match else (str(error), "")
    where = path.removeprefix("$").removeprefix(".")
    field = _FIELD.search(what)
    if field and "unknown field" in what:
        name = f"{where}.{field[1]}" if where else field[1]
        return InvalidParameter(f"The field {name!r} is not supported.", "Remove it.", param=name)
    if field and "missing required" in what:
        name = f"{where}.{field[1]}" if where else field[1]
        return InvalidParameter(f"The field {name!r} is required.", param=name)
    if not where:
        return InvalidParameter(f"The body is wrong: {_plain(what)}.")
    return InvalidParameter(f"{where}: {_plain(what)}.", param=re.sub(r"\[.*\]$", "", where) or where)


def _plain(what: str) -> str:
    text = what.replace("`", "").replace(" | null", "").strip()
    return text[:1].lower() + text[1:]


def _malformed(error: msgspec.DecodeError) -> str:
    text = str(error).removeprefix("JSON is malformed: ")
    if "truncated" in text:
        return "it ends too early, or holds half of a surrogate pair"
    return text[:1].lower() + text[1:]
