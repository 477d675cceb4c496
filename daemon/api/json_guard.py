"""Checks a JSON text before it is parsed: encoding, nesting, amount of structure, repeated top-level keys.

The scan looks at structural bytes only, and strings are stepped over in C; its cost follows the structure, which is
bounded, and not the length of the text.
"""

from __future__ import annotations

import re

from engine.errors import InvalidParameter

MAX_DEPTH = 64
MAX_STRUCTURE = 200_000  # brackets, braces and colons in one body

# A string (closed or cut off), or one structural byte. Possessive repeats: no backtracking on hostile input.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+|[\[\]{}:]', re.DOTALL)
_QUOTE, _COLON = ord('"'), ord(":")
_OPEN, _CLOSE = frozenset(b"[{"), frozenset(b"]}")


def check_json(body: bytes) -> None:
    """Refuse what must not reach the parser.

    Blocks: up to tens of milliseconds for the largest body allowed; call it off the event loop for big bodies
    Raises: InvalidParameter
    """
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidParameter(f"The body is not valid UTF-8: byte {error.start:,} of {len(body):,}.") from None
    depth = structure = 0
    keys: set[bytes] = set()
    last_string = b""
    for match in _TOKEN.finditer(body):
        first = body[match.start()]
        if first == _QUOTE:
            if depth == 1:
                last_string = match.group()
            continue
        structure += 1
        if structure > MAX_STRUCTURE:
            raise InvalidParameter(f"The body has more than {MAX_STRUCTURE:,} brackets, braces and colons.")
        if first == _COLON:
            if depth == 1:
                _note_key(keys, last_string)
        elif first in _OPEN:
            depth += 1
            if depth > MAX_DEPTH:
                raise InvalidParameter(f"The body is nested more than {MAX_DEPTH} deep.")
        elif first in _CLOSE:
            depth -= 1


def _note_key(keys: set[bytes], key: bytes) -> None:
    if key in keys:
        name = key.strip(b'"').decode("utf-8", "replace")[:64]
        raise InvalidParameter(f"The key {name!r} appears twice.", "Send each field once.", param=name)
    keys.add(key)
