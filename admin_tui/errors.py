"""What can go wrong between the console and the daemon.

ConsoleError         message, hint
  Unreachable        nobody answers at the socket
  TimedOut           somebody listens, but no answer came in time
  Refused            the daemon answered with an error: code, message, hint, request id
  Mismatch           the answer is not what this console understands
"""

from __future__ import annotations


class ConsoleError(Exception):
    """Base of what the client raises; shown as it is."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class Unreachable(ConsoleError):
    """No daemon at the other end."""


class TimedOut(ConsoleError):
    """The deadline passed."""


class Refused(ConsoleError):
    """The daemon's own error object."""

    def __init__(self, status: int, code: str, message: str, hint: str = "", request_id: str = "") -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code
        self.request_id = request_id

    @property
    def forbidden(self) -> bool:
        return self.status in (401, 403)

    def __str__(self) -> str:
        tail = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.code}: {super().__str__()}{tail}"


class Mismatch(ConsoleError):
    """Console and daemon are of versions that do not understand each other."""
