"""Log lines as fields of the systemd journal: `journalctl -u bayard BAYARD_WORKER=w1` finds a worker's."""

from __future__ import annotations

import json
import re
import socket
import struct
from pathlib import Path
from typing import Any

SOCKET = Path("/run/systemd/journal/socket")
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2, "exception": 3}
_MOST_BYTES = 64 << 10  # of a value; a datagram is bounded
_FOREIGN = re.compile(r"[^A-Z0-9_]")


class JournalStream:
    """A text stream that takes one JSON object a line and sends it on. Raises: OSError where there is no journal"""

    def __init__(self, path: Path = SOCKET) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(self._path)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)  # a stuck journal loses lines, and holds up no request

    def write(self, text: str) -> int:
        """Raises: OSError when the journal does not take it"""
        for line in text.splitlines():
            if line:
                self._socket.send(encode(fields_of(json.loads(line))))
        return len(text)

    def flush(self) -> None:
        return

    def isatty(self) -> bool:
        return False

    def close(self) -> None:
        self._socket.close()


def fields_of(line: dict[str, Any]) -> dict[str, str]:
    """MESSAGE for people, PRIORITY for filters, and every value under BAYARD_ and its name."""
    values = {key: value for key, value in line.items() if key not in ("event", "level", "timestamp")}
    event = str(line.get("event", ""))
    shown = " ".join(f"{key}={_text(value)}" for key, value in values.items() if key != "exception")
    fields = {
        "MESSAGE": f"{event} {shown}".strip(),
        "PRIORITY": str(_PRIORITIES.get(str(line.get("level")), 6)),
        "SYSLOG_IDENTIFIER": "bayard",
        "BAYARD_EVENT": event,
    }
    for key, value in values.items():
        if value is not None:
            fields["BAYARD_" + _FOREIGN.sub("_", key.upper())[:50]] = _text(value)
    return fields


def encode(fields: dict[str, str]) -> bytes:
    """The journal's own protocol: NAME=value, or for values of several lines their length before them."""
    parts: list[bytes] = []
    for name, value in fields.items():
        data = value.encode("utf-8", "replace")[:_MOST_BYTES]
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
