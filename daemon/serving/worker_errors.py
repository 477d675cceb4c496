"""An ErrorInfo that crossed the process border, as an exception of our tree again."""

from __future__ import annotations

from engine.errors import BayardError, WorkerError, all_error_types
from engine.messages import ErrorInfo

_BY_CODE: dict[str, type[BayardError]] = {kind.code: kind for kind in all_error_types()}


def error_from(info: ErrorInfo) -> BayardError:
    """A code this daemon does not know is a WorkerError that names it."""
    kind = _BY_CODE.get(info.code)
    if kind is None:
        return WorkerError(f"{info.code}: {info.message}", info.hint)
    return kind(info.message, info.hint)
