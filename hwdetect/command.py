"""Run a vendor's tool: fixed path, C locale, no shell, three seconds, bounded output, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

LIMIT_S = 3.0
OUTPUT_LIMIT_BYTES = 8 * 1024 * 1024
_REAP_S = 0.2

PATH = ":".join(
    (
        "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/lib/wsl/lib",
        "/usr/local/nvidia/bin", "/opt/rocm/bin", "/opt/hyhal/bin", "/opt/dtk/bin", "/opt/mxdriver/bin",
        "/opt/maca/bin", "/usr/local/corex/bin", "/usr/local/neuware/bin", "/usr/local/musa/bin",
        "/usr/local/Ascend/driver/tools", "/opt/PPU_SDK/bin",
        "/usr/local/PPU_SDK/ppu-smi/bin", "/opt/PPU_SDK/ppu-smi/bin", "/usr/local/xpu/bin", "/usr/local/birensupa/bin",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Output:
    """What a run gave. `text` is both streams, the standard one first: tools print errors on either."""

    text: bytes
    exit_status: int | None  # negative: killed by that signal; None: it never ended
    timed_out: bool = False
    truncated: bool = False


def find(tool: str) -> str | None:
    """Where the tool is on the fixed path."""
    return shutil.which(tool, path=PATH)


def module_path() -> list[str]:
    """Where this process finds its modules, for a child that starts in another folder."""
    return [os.path.abspath(entry or ".") for entry in sys.path]


def run(argv: Sequence[str], limit_s: float = LIMIT_S) -> Output | None:
    """The tool's output, or None if there is no such tool.

    Blocks: at most `limit_s` and a moment to reap. The tool's own children are killed with it.
    """
    program = find(argv[0]) if "/" not in argv[0] else argv[0]
    if program is None:
        return None
    environment = {"PATH": PATH, "LC_ALL": "C", "LANG": "C", "HOME": "/nonexistent", "TERM": "dumb", "COLUMNS": "500"}
    # Container toolkits put the driver's libraries on this path only
    if "LD_LIBRARY_PATH" in os.environ:
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        return None
    try:
        return _collect(process, time.monotonic() + limit_s)
    finally:
        _end(process)


def _collect(process: subprocess.Popen[bytes], deadline: float) -> Output:
    parts: dict[int, list[bytes]] = {0: [], 1: []}
    size = 0
    with selectors.DefaultSelector() as ready:
        for number, stream in enumerate((process.stdout, process.stderr)):
            if stream is not None:
                ready.register(stream, selectors.EVENT_READ, number)
        while ready.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return Output(b"".join(parts[0] + parts[1]), None, timed_out=True)
            for key, _ in ready.select(left):
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    ready.unregister(key.fileobj)
                    continue
                size += len(chunk)
                if size > OUTPUT_LIMIT_BYTES:
                    return Output(b"".join(parts[0] + parts[1]), None, truncated=True)
                parts[key.data].append(chunk)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    text = b"\n".join(b"".join(part) for part in parts.values() if part)
    return Output(text, process.returncode, timed_out=process.returncode is None)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole session and close the pipes; a process stuck in the kernel is left to it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)
