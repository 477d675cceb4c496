"""How a vocabulary writes bytes as text, and the table from token id to the bytes a token stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCEPIECE_SPACE = "\u2581"


class Spelling(StrEnum):
    BYTE_LEVEL = "byte_level"  # each byte is one printable character (GPT-2's alphabet)
    SENTENCEPIECE = "sentencepiece"  # plain text with U+2581 for a space, and <0xNN> for single bytes
    WORDPIECE = "wordpiece"  # plain text, "##" continues a word


@cache
def byte_alphabet() -> dict[int, str]:
    """Byte -> the character that spells it: printable Latin-1 as itself, the rest from U+0100 on, in byte order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in alphabet:
            alphabet[byte] = chr(256 + len(alphabet) - len(printable))
    return alphabet


@cache
def _byte_of_character() -> dict[str, int]:
    return {character: byte for byte, character in byte_alphabet().items()}


class TokenTable:
    """Token id -> bytes. Special tokens are their literal text; an id without a token is no bytes."""

    def __init__(self, tokens: Sequence[str | None], spelling: Spelling, literal: Mapping[int, str]) -> None:
        self._tokens = tokens
        self._literal = literal
        self.spelling = spelling

    def __len__(self) -> int:
        return len(self._tokens)

    def text_of(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it; None when the id has none."""
        return self._tokens[token_id] if 0 <= token_id < len(self._tokens) else None

    def bytes_of(self, token_id: int) -> bytes:
        literal = self._literal.get(token_id)
        if literal is not None:
            return literal.encode()
        token = self.text_of(token_id)
        if token is None:
            return b""
        if self.spelling is Spelling.BYTE_LEVEL:
            table = _byte_of_character()
            try:
                return bytes([table[character] for character in token])
            except KeyError:  # an entry outside the alphabet is literal text
                return token.encode()
        if self.spelling is Spelling.WORDPIECE:
            return token[2:].encode() if token.startswith("##") else b" " + token.encode()
        single = _BYTE_TOKEN.fullmatch(token)
        if single:
            return bytes([int(single[1], 16)])
        return token.replace(_SENTENCEPIECE_SPACE, " ").encode()
