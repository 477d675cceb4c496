"""PackedStore: a model's packed weights kept in a file for its next start, found by what the model's files are.

One file a model in a folder of such files, which together stay within a limit: the one used longest ago goes first,
and any whose model is gone. A file that cannot be used is made anew, with the reason told.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from engine.kernels.cpu import abi
from engine.kernels.cpu.experts import PackedExperts
from engine.kernels.cpu.packed_file import (
    LAYOUT_VERSION,
    PARTIAL,
    PackedEntry,
    PackedFile,
    PackedFileUnusable,
    PackedFileWriter,
    read_identity,
)
from engine.kernels.cpu.weights import PackedWeight
from engine.quant.host_blocks import FORMS_VERSION
from engine.spec.model_spec import ModelSpec
from engine.spec.packed_names import SUFFIX, packed_name

FREE_SHARE = 0.05  # of the disk that is left to others
STALE_PARTIAL_S = 3600.0
Packed = PackedWeight | PackedExperts

log = logging.getLogger("bayard.engine")


class PackedStore:
    """Owner: the loader. `told` says for people what became of it."""

    def __init__(self, folder: Path, limit_bytes: int, model_path: str, spec: ModelSpec, dtype: str) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._file: PackedFile | None = None
        self._writer: PackedFileWriter | None = None
        self._began = time.perf_counter()
        self._ending: threading.Thread | None = None
        self.told = "packed"
        identity = identity_of(spec, dtype)
        self.path = folder / packed_name(model_path, identity)
        self._open(identity)

    @property
    def held(self) -> dict[str, str]:
        """Kinds that are held as another one, as they were when the file was made."""
        return {} if self._file is None else self._file.notes

    def take(self, key: str) -> tuple[list[Packed], tuple[int, ...]] | None:
        """What is kept under a key, and the rows of each role in it."""
        if self._file is None or key not in self._file.groups:
            return None
        group = self._file.groups[key]
        return [_packed(entry, self._file) for entry in group.entries], group.widths

    def put(self, key: str, parts: Sequence[object], widths: Sequence[int]) -> None:
        """Keep matrices for the next start, if they are of this library and there is room."""
        if self._writer is None or not all(isinstance(part, PackedWeight | PackedExperts) for part in parts):
            return
        found = [part for part in parts if isinstance(part, PackedWeight | PackedExperts)]
        more = sum(part.num_bytes for part in found)
        try:
            total = self._writer.num_bytes + more
            if total > self._limit_bytes:
                self._give_up(f"packed; more than the {self._limit_bytes:,} bytes that may be kept for the next start")
            elif more > _spare_bytes(self._folder):
                self._give_up(f"packed; not kept for the next start, since {self._folder} is nearly full")
            else:
                self._writer.put(key, [(_entry(part), part.data) for part in found], widths)
        except OSError as error:
            self._give_up(f"packed; not kept for the next start: {error}")

    def finish(self, held: dict[str, str]) -> None:
        """All is loaded. What is to be kept goes to the disk behind the caller's back."""
        seconds = time.perf_counter() - self._began
        if self._file is not None:
            how = "mapped" if self._file.is_mapped else "read"
            self.told = f"{how}, {self._file.num_bytes:,} bytes that an earlier start kept, {seconds:.2f} s"
        elif self._writer is not None:
            self.told = f"packed{self._why}, {self._writer.num_bytes:,} bytes kept for the next start, {seconds:.2f} s"
            self._ending = threading.Thread(target=self._end, args=(dict(held),), name="packed-file", daemon=True)
            self._ending.start()
        log.info("packed_weights %s", self.told)

    def wait(self) -> None:
        """Blocks: until the file is on the disk, or given up."""
        if self._ending is not None:
            self._ending.join()

    def _open(self, identity: dict[str, object]) -> None:
        self._why = ""
        try:
            self._file = PackedFile(self.path, identity)
            os.utime(self.path)  # used now
            return
        except FileNotFoundError:
            self._why = ""
        except PackedFileUnusable as error:
            log.warning("packed_file_unusable file=%s why=%s", self.path.name, error)
            self._why = f" anew: the file kept was of no use, {error}"
        try:
            self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            sweep(self._folder)
            self._writer = PackedFileWriter(self.path, identity)
        except OSError as error:
            self.told = f"packed; not kept for the next start: {error}"

    def _end(self, held: dict[str, str]) -> None:
        assert self._writer is not None
        try:
            self._writer.finish(held)
            shrink(self._folder, self._limit_bytes, self.path)
        except OSError as error:
            log.warning("packed_file_not_kept file=%s why=%s", self.path.name, error)
            self._writer.abandon()

    def _give_up(self, told: str) -> None:
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        self.told = told
        log.info("packed_file_given_up %s", told)


def identity_of(spec: ModelSpec, dtype: str) -> dict[str, object]:
    """All that decides what packed matrices hold: the files, by what can be seen of them fast, and this code."""
    first: dict[str, int] = {}
    for info in spec.tensors:
        first[info.file] = min(info.offset_bytes, first.get(info.file, info.offset_bytes))
    files = []
    for file in sorted(spec.files):
        path = Path(file).resolve()
        found = path.stat()
        with path.open("rb") as opened:
            header = hashlib.sha256(opened.read(first.get(file, 0))).hexdigest()
        files.append({"path": str(path), "size": found.st_size, "mtime_ns": found.st_mtime_ns, "header": header})
    return {"files": files, "dtype": dtype, "layout": LAYOUT_VERSION, "forms": FORMS_VERSION, "kinds": list(abi.KINDS)}


def sweep(folder: Path) -> None:
    """Remove what nobody will use: files of models that are gone or changed, and halves that a crash left."""
    now = time.time()
    for path in folder.iterdir():
        try:
            if path.suffix == PARTIAL and now - path.stat().st_mtime > STALE_PARTIAL_S:
                path.unlink(missing_ok=True)
            elif path.suffix == SUFFIX and not _model_is_there(path):
                log.info("packed_file_removed file=%s why=its model is gone or changed", path.name)
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("packed_file_stays file=%s why=%s", path.name, error)


def shrink(folder: Path, limit_bytes: int, keep: Path) -> None:
    """Remove the files used longest ago until the rest is within the limit."""
    files = sorted((path for path in folder.glob(f"*{SUFFIX}") if path != keep), key=lambda path: path.stat().st_mtime)
    total = keep.stat().st_size + sum(path.stat().st_size for path in files)
    for path in files:
        if total <= limit_bytes:
            return
        total -= path.stat().st_size
        log.info("packed_file_removed file=%s why=used longest ago", path.name)
        path.unlink(missing_ok=True)


def _model_is_there(path: Path) -> bool:
    try:
        files = read_identity(path)["files"]
        assert isinstance(files, list)
        for file in files:
            found = Path(file["path"]).stat()
            if (found.st_size, found.st_mtime_ns) != (file["size"], file["mtime_ns"]):
                return False
    except (PackedFileUnusable, OSError):
        return False
    return True


def _spare_bytes(folder: Path) -> int:
    usage = shutil.disk_usage(folder)
    return int(usage.free - FREE_SHARE * usage.total)


def _entry(part: Packed) -> PackedEntry:
    experts = part.num_experts if isinstance(part, PackedExperts) else 0
    return PackedEntry(part.kind, part.shape[0], part.shape[1], experts, 0, 0, 0)


def _packed(entry: PackedEntry, file: PackedFile) -> Packed:
    data, shape = file.data(entry), (entry.rows, entry.columns)
    if entry.experts:
        return PackedExperts(entry.kind, entry.experts, shape, data)
    return PackedWeight.over(entry.kind, shape, data)
