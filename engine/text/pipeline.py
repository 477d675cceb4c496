"""TextPipeline: everything between a caller's text and token ids, for one model. Never imports torch."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from engine.errors import InvalidParameter
from engine.text.chat_template import ChatTemplate
from engine.text.reasoning import ReasoningSplitter
from engine.text.special_tokens import SpecialTokens
from engine.text.tokenizer_parts import TokenizerParts
from engine.text.tools import ToolFormat, ToolParser, tool_format_of, tool_parser

_SECRET_DIGITS = 38  # 126 bits
_THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
_LONG_CHARACTERS = 4096
_THINK_TAIL_TOKENS = 12  # enough to spell the mark and a few line breaks without a token for it


class TextPipeline:
    """Tokenizer and chat template of one model. All methods may be called from any number of threads at once."""

    def __init__(
        self, parts: TokenizerParts, *, prompts: Mapping[str, str] | None = None, default_prompt: str = ""
    ) -> None:
        """prompts: what an embedding model wants before texts of some purpose, by name."""
        self._parts = parts
        self.embedding_prompts: Mapping[str, str] = dict(prompts or {})
        self._default_prompt = default_prompt
        secret = str(secrets.randbelow(9 * 10**_SECRET_DIGITS) + 10**_SECRET_DIGITS)
        self._specials = SpecialTokens(parts.specials, opening=f"1{secret}", closing=f"2{secret}")
        self._forbidden = self._specials.ids - {parts.unknown_token_id}  # never from plain text
        self._chat = ChatTemplate(parts.templates, parts.special_names, self._specials)
        self._tool_format = tool_format_of(self._chat.literal_text)
        self.stop_token_ids: tuple[int, ...] = parts.stop_token_ids
        self.bos_token_id: int | None = parts.bos_token_id
        self.vocab_size: int = len(parts.table)
        self.strips_leading_space: bool = parts.strips_leading_space
        self.special_token_ids: frozenset[int] = self._specials.control_ids

    @property
    def has_chat_template(self) -> bool:
        return self._chat.exists

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be used, one sentence each."""
        return self._chat.notes

    def encode(self, text: str, *, special: bool = False, add_bos: bool = False) -> list[int]:
        """Token ids of text.

        special reads special-token text as special tokens; without it they are plain text. add_bos puts around the
        text what the tokenizer was made to put there (BOS; [CLS] and [SEP] of an encoder).
        Raises: InvalidParameter when text holds half a surrogate pair
        """
        ids = self._encode_marked(text, marked=False) if special else self._encode_plain(self._parts.head, text)
        return [*self._parts.prefix_ids, *ids, *self._parts.suffix_ids] if add_bos else ids

    def encode_for_embedding(self, text: str, prompt: str | None = None) -> list[int]:
        """Token ids of a text to embed, as the model was made to read it; special-token text in it is plain.

        prompt: a name of embedding_prompts, whose text comes first; None: the checkpoint's default one, if any
        Raises: InvalidParameter for a prompt there is not
        """
        name = self._default_prompt if prompt is None else prompt
        if name and name not in self.embedding_prompts:
            known = ", ".join(sorted(self.embedding_prompts)) or "none"
            raise InvalidParameter(f"This model has no prompt {name!r}.", f"It has: {known}.", param="prompt_name")
        return self.encode((self.embedding_prompts[name] if name else "") + text, add_bos=True)

    def count(self, text: str) -> int:
        """Tokens of text, special-token text counted as plain."""
        return len(self.encode(text))

    def render_chat(
        self,
        /,  # a variable may have this name too
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Token ids of a conversation; no string of the caller's becomes a special token.

        variables are the template's own (enable_thinking, reasoning_effort, documents, ...).
        Raises: InvalidParameter when there is no template or it refuses the messages
        """
        return self._encode_marked(self._chat.render(messages, tools, add_generation_prompt, variables), marked=True)

    @property
    def tool_format(self) -> ToolFormat | None:
        """How the chat template asks for tool calls; None when it does not speak of tools in a known form."""
        return self._tool_format

    @property
    def thinking_marks(self) -> tuple[str, str] | None:
        """What this model puts around its thinking; None for one that does not think, or does so on channels."""
        if self._tool_format is ToolFormat.HARMONY:
            return None
        known = self._specials.by_text
        return next((m for m in _THINKING if m[0] in known or m[0] in self._chat.literal_text), None)

    def tool_parser(self, tools: Sequence[Mapping[str, Any]] = ()) -> ToolParser | None:
        """A parser of this model's tool calls; None when its template asks for none in a format that has one."""
        form = self._tool_format
        return None if form is None or form is ToolFormat.HARMONY else tool_parser(form, tools)

    def reasoning_splitter(self, prompt_ids: Sequence[int]) -> ReasoningSplitter | None:
        """A splitter of thinking and answer for the text after a prompt; None for a model that does not think."""
        marks = self.thinking_marks
        if marks is None:
            return None
        return ReasoningSplitter(*marks, begins_inside=self.prompt_end(prompt_ids).endswith(marks[0]))

    def prompt_end(self, prompt_ids: Sequence[int]) -> str:
        """The last of a prompt as text, long enough to hold a mark; white space at its end left out."""
        return self.decode(prompt_ids[-_THINK_TAIL_TOKENS:], skip_special=False).rstrip()

    def special_id(self, text: str) -> int | None:
        """The id of a guarded token; None when text is none."""
        token = self._specials.by_text.get(text)
        return None if token is None else token.token_id

    @property
    def guarded_token_ids(self) -> frozenset[int]:
        """Tokens that never come from a caller's plain text: control tokens and markup."""
        return self._specials.ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of ids. Bytes that are no UTF-8 are left out."""
        data = b"".join(self.token_bytes(n) for n in ids if not (skip_special and n in self._specials.control_ids))
        text = data.decode("utf-8", "ignore")
        return text[1:] if self.strips_leading_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, half characters too; b"" for an id that has no token."""
        return self._parts.table.bytes_of(token_id)

    def _encode_marked(self, text: str, *, marked: bool) -> list[int]:
        ids: list[int] = []
        tokenizer = self._parts.head
        for piece in self._specials.cut(text, marked=marked):
            if isinstance(piece, str):
                ids += self._encode_plain(tokenizer, piece)
            else:
                ids.append(piece.token_id)
            tokenizer = self._parts.tail
        return ids

    def _encode_plain(self, tokenizer: Tokenizer, text: str) -> list[int]:
        ids = _encode(tokenizer, text)
        if self._forbidden.isdisjoint(ids):
            return ids
        # The vocabulary itself spells a special token out of plain text: cut it, finer until it does not.
        for pieces in (self._specials.broken(text), list(text)):
            ids = [
                n for i, piece in enumerate(pieces) for n in _encode(tokenizer if i == 0 else self._parts.tail, piece)
            ]
            if self._forbidden.isdisjoint(ids):
                return ids
        raise InvalidParameter("The text holds a character that only a special token of this model can spell.")


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        if len(text) > _LONG_CHARACTERS:  # of the library's calls those for batches alone let other threads run
            return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    except (UnicodeEncodeError, TypeError) as error:
        raise InvalidParameter(
            "The text holds half a surrogate pair, which is no character.", "Send well-formed Unicode."
        ) from error
    return ids
