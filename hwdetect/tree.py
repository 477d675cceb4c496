"""Read-only view of a machine's files: the real root, a recorded folder, or a text bundle.

What is missing is None, never an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

READ_LIMIT_BYTES = 4 * 1024 * 1024
_BUNDLE_HEADER = re.compile(r"^### FILE:\s+(/\S+).*$", re.MULTILINE)


class Tree(Protocol):
    """Paths are absolute, as on the machine itself."""

    @property
    def is_live(self) -> bool: ...

    def read(self, path: str) -> str | None: ...

    def names(self, path: str) -> list[str]: ...

    def exists(self, path: str) -> bool: ...

    def link(self, path: str) -> str | None: ...


class FolderTree:
    """A folder that holds the machine's files; the root folder itself is the live machine."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.is_live = root.resolve() == Path("/")

    def real(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str | None:
        try:
            # O_NONBLOCK: a pipe or a device node in a recorded folder must not stop the detection
            handle = os.open(self.real(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            chunks: list[bytes] = []
            size = 0
            while size < READ_LIMIT_BYTES and (chunk := os.read(handle, 65536)):
                chunks.append(chunk)
                size += len(chunk)
            return b"".join(chunks).decode("utf-8", "replace")
        except OSError:
            return None
        finally:
            os.close(handle)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self.real(path)))
        except (OSError, ValueError):
            return []

    def exists(self, path: str) -> bool:
        try:
            return os.path.lexists(self.real(path))
        except ValueError:
            return False

    def link(self, path: str) -> str | None:
        try:
            return os.readlink(self.real(path))
        except (OSError, ValueError):
            return None


class BundleTree:
    """Files kept in one text, each after a line `### FILE: /its/path`."""

    is_live = False

    def __init__(self, text: str) -> None:
        self.files: dict[str, str] = {}
        headers = list(_BUNDLE_HEADER.finditer(text))
        for header, following in zip(headers, [*headers[1:], None], strict=True):
            end = following.start() if following else len(text)
            self.files[header.group(1)] = text[header.end() + 1 : end]

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        return sorted({name[len(prefix) :].split("/")[0] for name in self.files if name.startswith(prefix)})

    def exists(self, path: str) -> bool:
        return path in self.files or bool(self.names(path))

    def link(self, path: str) -> str | None:
        return None


def is_bundle(text: str) -> bool:
    return bool(_BUNDLE_HEADER.search(text))


def line(tree: Tree, path: str) -> str | None:
    """The stripped content of a one-line file; None if it is missing or empty."""
    text = tree.read(path)
    return text.strip("\x00 \t\r\n") or None if text is not None else None


def numbered(tree: Tree, folder: str, prefix: str) -> Iterator[tuple[int, str]]:
    """Number and path of the entries called prefix + number, in numeric order."""
    found: list[tuple[int, str]] = []
    for name in tree.names(folder):
        digits = name.removeprefix(prefix)
        if name.startswith(prefix) and digits.isascii() and digits.isdigit() and len(digits) < 8:
            found.append((int(digits), f"{folder}/{name}"))
    yield from sorted(found)
