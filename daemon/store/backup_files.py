"""Uploaded files and batches' answers in a back-up: linked first, so that what is deleted meanwhile is still there.

Files only grow, so the first bytes of one are the same later: each is taken as long as it was when it was digested.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from daemon.store.lock import make_private_dir

PREFIX = "files/"
CHUNK_BYTES = 1 << 20
_NAME = re.compile(r"files/file-[0-9a-f]{24}\.jsonl")


@dataclass(slots=True)
class HeldFiles:
    """Hard links to every file of a folder, in a folder beside it. Owner: one back-up; `close` removes the links.

    `hold` is called before and after the database is copied: what the copy knows is then held, whoever deletes it.
    """

    folder: Path
    sizes: dict[str, int] = field(default_factory=dict)  # by name in the archive

    def hold(self) -> None:
        """Raises: OSError"""
        if not self.folder.is_dir():
            return
        make_private_dir(self._links)
        for path in self.folder.iterdir():
            link = self._links / path.name
            if _NAME.fullmatch(PREFIX + path.name) and not link.exists():
                try:
                    os.link(path, link)
                except FileNotFoundError:
                    continue  # deleted between the listing and the link

    def digests(self) -> dict[str, str]:
        """By name in the archive, of the bytes that are there now. Blocks: to read them. Raises: OSError"""
        found = {}
        for path in sorted(self._links.iterdir()) if self._links.is_dir() else ():
            name = PREFIX + path.name
            self.sizes[name] = path.stat().st_size
            with path.open("rb") as file:
                found[name] = _digest(file, self.sizes[name])
        return found

    def add_to(self, archive: tarfile.TarFile) -> None:
        """Each as long as its digest says. Blocks. Raises: OSError, TarError"""
        for name, size in self.sizes.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = size, 0o600
            with (self._links / name.removeprefix(PREFIX)).open("rb") as file:
                archive.addfile(member, file)

    def close(self) -> None:
        shutil.rmtree(self._links, ignore_errors=True)

    @property
    def _links(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.held")


def is_file(name: str) -> bool:
    """Whether a member of an archive is such a file; nothing else comes near the folder."""
    return _NAME.fullmatch(name) is not None


def copy_member(source: IO[bytes], target: Path | None) -> str:
    """The digest of a member, written to target where that is named. Blocks. Raises: OSError"""
    digest = hashlib.sha256()
    if target is None:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
        return digest.hexdigest()
    make_private_dir(target.parent)
    with open(target, "wb", opener=_private) as file:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def put_in_place(draft: Path, folder: Path, kept: Path) -> None:
    """The folder that restored files were written to takes the present one's place. Raises: OSError"""
    if folder.exists():
        folder.replace(kept)
    if draft.exists():
        draft.replace(folder)


def draft_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.restored-{secrets.token_hex(4)}")


def _digest(file: IO[bytes], size: int) -> str:
    digest = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(size, CHUNK_BYTES))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
