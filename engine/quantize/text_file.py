"""Texts that people give, of which no more is read and cut into tokens than is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from engine.errors import InvalidParameter

CHARACTERS_A_TOKEN = 64  # read at most: ten times what texts have, for such as are full of spaces
FIRST_GUESS = 8  # characters a token
MARGIN_TOKENS = 64  # what is cut off behind these changes none of those before


def read_text(path: Path, most_tokens: int, param: str) -> str:
    """The beginning of a UTF-8 file, long enough for that many tokens.

    Raises: InvalidParameter, which names param, where it cannot be read, is no text or empty
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(CHARACTERS_A_TOKEN * most_tokens)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"{path} is no text: {error}.", "Give a UTF-8 file.", param=param) from error
    if not text.strip():
        raise InvalidParameter(f"{path} is empty.", "Give a UTF-8 file with text in it.", param=param)
    return text


def first_tokens(encode: Callable[[str], Sequence[int]], text: str, most: int) -> list[int]:
    """As many of the whole text's first tokens, without cutting all of it: a long text takes gigabytes."""
    length = FIRST_GUESS * (most + MARGIN_TOKENS)
    while length < len(text):
        found = encode(text[:length])
        if len(found) >= most + MARGIN_TOKENS:
            return list(found[:most])
        length *= 2
    return list(encode(text)[:most])
