"""Special tokens: which pieces of text may become control tokens, and how a text is cut at them.

A special token counts only where Bayard itself reads it (a template's own text, or a caller that asked for it);
the tokenizer underneath does not know it, so text from a caller cannot become one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

_MARKUP = re.compile(r"<[|｜].*[|｜]>|\[/?[A-Z][A-Z_]*\]", re.DOTALL)
_Trie: TypeAlias = "dict[str, _Trie]"


@dataclass(frozen=True, slots=True)
class SpecialToken:
    token_id: int
    text: str
    control: bool  # left out of decoded text; False for markup that a parser or a reader wants to see (<think>)
    lstrip: bool = False  # swallows white space before it
    rstrip: bool = False  # ... and after it
    single_word: bool = False  # not inside a word


def is_guarded(text: str, *, control: bool, template_text: str) -> bool:
    """Whether a token must never come from a caller's plain text.

    Control tokens are, and so is markup that the chat template writes (<tool_call>) or that looks like control
    (<|fim_prefix|>). Other added tokens, such as runs of spaces or HTML tags, are ordinary text spelled compactly.
    """
    if not text or text.isspace():
        return False
    return control or text in template_text or _MARKUP.fullmatch(text) is not None


def _trie_pattern(words: Iterable[str]) -> str:
    """One pattern that matches the longest of words, by common prefixes: fast for thousands of words."""
    trie: _Trie = {}
    for word in words:
        node = trie
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}

    def write(node: _Trie) -> str:
        branches = [re.escape(character) + write(below) for character, below in node.items() if character]
        if not branches:
            return ""
        joined = branches[0] if len(branches) == 1 and "" not in node else f"(?:{'|'.join(branches)})"
        return joined + "?" if "" in node else joined

    return write(trie) or "(?!)"


class SpecialTokens:
    """The guarded tokens of one vocabulary, and the marks that disarm them inside a caller's text.

    `mark` puts a secret before and after each special token in a caller's string. A template may move, trim, split or
    escape the string; `cut` takes for special only what bears no mark, and removes the marks. The secret is digits, as
    these survive case changes, JSON and HTML escaping.
    """

    def __init__(self, tokens: Iterable[SpecialToken], *, opening: str, closing: str) -> None:
        self.by_text = {token.text: token for token in tokens}
        self.ids = frozenset(token.token_id for token in self.by_text.values())
        self.control_ids = frozenset(token.token_id for token in self.by_text.values() if token.control)
        any_token = _trie_pattern(sorted(self.by_text))
        self._live = re.compile(f"(?P<live>{any_token})")
        self._marked = re.compile(f"{opening}(?P<dead>{any_token}){closing}|{opening}|{closing}|(?P<live>{any_token})")
        self._opening, self._closing = opening, closing
        self._heads = frozenset(text[:n] for text in self.by_text for n in range(1, len(text)))
        self._tails = frozenset(text[n:] for text in self.by_text for n in range(1, len(text)))
        self._longest = max(map(len, self.by_text), default=1)

    def mark(self, text: str) -> str:
        """text with its special tokens disarmed; almost always text itself."""
        if self._live.search(text):
            text = self._live.sub(lambda match: self._opening + match[0] + self._closing, text)
        spans = range(1, min(self._longest, len(text) + 1))
        if any(text[:n] in self._tails for n in spans):  # could complete a token that what stands before it begins
            text = self._opening + text
        if any(text[-n:] in self._heads for n in spans):
            text += self._closing
        return text

    def broken(self, text: str) -> list[str]:
        """text in pieces, none of which holds a special token: each token is cut after its first character."""
        cuts = [match.start() + 1 for match in self._live.finditer(text)]
        return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) if a < b]

    def cut(self, text: str, *, marked: bool = False) -> Iterator[str | SpecialToken]:
        """text as plain runs and special tokens, in order; white space is swallowed as the tokens ask."""
        run: list[str] = []
        at = 0
        for match in (self._marked if marked else self._live).finditer(text):
            live: str | None = match["live"]
            token = self.by_text[live] if live is not None else None
            if token is not None and token.single_word and _inside_word(text, match.start(), match.end()):
                continue
            run.append(text[at : match.start()])
            at = match.end()
            if token is None:
                run.append(match["dead"] or "")
                continue
            plain = "".join(run)
            run = []
            if token.lstrip:
                plain = plain.rstrip()
            if plain:
                yield plain
            yield token
            if token.rstrip:
                while at < len(text) and text[at].isspace():
                    at += 1
        plain = "".join(run) + text[at:]
        if plain:
            yield plain


def _inside_word(text: str, start: int, end: int) -> bool:
    before = start > 0 and (text[start - 1].isalnum() or text[start - 1] == "_")
    after = end < len(text) and (text[end].isalnum() or text[end] == "_")
    return before or after
