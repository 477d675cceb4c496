"""IncrementalDetokenizer: token ids to text as they come, whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from engine.text.pipeline import TextPipeline

_DECODER = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """One stream's text. However the ids are split over calls, the texts joined are the same.

    A character is held until its last byte is there. Bytes that are no UTF-8 are left out and counted, so that U+FFFD
    appears only where the model wrote it. continuing keeps the first token's space, for text that goes on after a
    prompt's; keep names control tokens whose text is wanted (OutputParser.kept_token_ids). Owner: one stream; not for
    several threads.
    """

    def __init__(
        self,
        pipeline: TextPipeline,
        *,
        skip_special: bool = True,
        continuing: bool = False,
        keep: frozenset[int] = frozenset(),
    ) -> None:
        self._bytes_of = pipeline.token_bytes
        self._skip = pipeline.special_token_ids - keep if skip_special else frozenset[int]()
        self._decoder = _DECODER("ignore")
        self._strip_space = pipeline.strips_leading_space and not continuing
        self._bytes_in = 0
        self._bytes_out = 0

    def feed(self, ids: Iterable[int]) -> str:
        data = b"".join([self._bytes_of(token_id) for token_id in ids if token_id not in self._skip])
        return self._emit(data, final=False)

    def flush(self) -> str:
        """The end of the stream: an incomplete last character is dropped."""
        return self._emit(b"", final=True)

    @property
    def dropped_bytes(self) -> int:
        """Bytes that became no text so far; exact after flush."""
        return self._bytes_in - self._bytes_out

    def _emit(self, data: bytes, *, final: bool) -> str:
        self._bytes_in += len(data)
        text = self._decoder.decode(data, final)
        self._bytes_out += len(text.encode())
        if self._strip_space and text:
            self._strip_space = False
            return text.removeprefix(" ")
        return text
