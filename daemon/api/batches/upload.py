"""POST /v1/files: a multipart body, its file written to the disk as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from engine.errors import InvalidParameter

MAX_FIELD_BYTES = 4096
MAX_FIELDS = 16
MAX_HEADER_BYTES = 4096
FLUSH_BYTES = 256 << 10


class Upload:
    """Takes the body in pieces; append blocks for the disk and is called in threads. Owner: one handler."""

    def __init__(self, content_type: bytes | None, append: Callable[[bytes], None]) -> None:
        """Raises: InvalidParameter for a body of another kind"""
        kind, options = parse_options_header(content_type or b"")
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise InvalidParameter("The body must be multipart/form-data.", "Send the file as the field `file`.")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._append = append
        self._pending = bytearray()
        self._name = ""
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = b""
        self._text = bytearray()
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begin,
                "on_header_field": self._header_field,
                "on_header_value": self._header_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._part_data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
        )

    async def feed(self, chunk: bytes) -> None:
        """Raises: InvalidParameter"""
        with _told():
            self._parser.write(chunk)
        if len(self._pending) >= FLUSH_BYTES:
            await self._flush()

    async def finish(self) -> None:
        """Raises: InvalidParameter for a body that ends too early or has no file"""
        with _told():
            self._parser.finalize()
        if not self._ended:
            raise InvalidParameter("The body ends before its last boundary.", param="file")
        if self.filename is None:
            raise InvalidParameter("The field 'file' is required.", param="file")
        await self._flush()

    async def _flush(self) -> None:
        data, self._pending = bytes(self._pending), bytearray()
        if data:
            await asyncio.to_thread(self._append, data)

    def _part_begin(self) -> None:
        self._disposition, self._name = b"", ""
        self._text = bytearray()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._check_header()

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._check_header()

    def _check_header(self) -> None:
        if len(self._header) + len(self._value) > MAX_HEADER_BYTES:
            raise InvalidParameter(f"A part's header has more than {MAX_HEADER_BYTES:,} bytes.")

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == "file":
            if self.filename is not None:
                raise InvalidParameter("There are two files.", "Send one.", param="file")
            self.filename = options.get(b"filename", b"upload.jsonl").decode("utf-8", "replace")
        elif len(self.fields) >= MAX_FIELDS:
            raise InvalidParameter(f"There are more than {MAX_FIELDS} fields.")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == "file":
            self._pending += data[start:end]
            return
        self._text += data[start:end]
        if len(self._text) > MAX_FIELD_BYTES:
            raise InvalidParameter(f"The field {self._name[:64]!r} is too long.", param=self._name[:64])

    def _part_end(self) -> None:
        if self._name != "file":
            self.fields[self._name] = self._text.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except MultipartParseError as error:
        raise InvalidParameter(f"The body is no valid multipart/form-data: {error}.") from None


def whole_number(fields: dict[str, Any], name: str) -> int | None:
    """Raises: InvalidParameter"""
    text = fields.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InvalidParameter(f"{name} is {text[:32]!r}; it must be a whole number.", param=name)
    return int(text)
