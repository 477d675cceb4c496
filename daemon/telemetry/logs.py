"""Structured logs: the event is a constant, values are fields; console for people, JSON lines for machines."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, TextIO, cast

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import Processor

from daemon.settings import LogSettings
from daemon.telemetry.journal import JournalStream

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
QUIET = ("uvicorn.error", "uvicorn.access", "httpx", "httpcore", "apscheduler", "alembic", "asyncio")


def set_up_logging(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send structlog and the standard library's loggers to stderr in one form. Mutates: both, process-wide."""
    out = _Unbreakable(stream or _stream_of(settings))
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    render: list[Processor]
    if settings.format in ("json", "journal"):
        told = structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))
        render = [told, structlog.processors.JSONRenderer()]
    else:
        # the plain form: the other one shows local variables, and among them prompts and keys
        render = [structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[settings.level]),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, out)),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(cast(TextIO, out))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_of_logger],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    for old in root.handlers:  # settings were read again
        if isinstance(old, logging.StreamHandler) and isinstance(old.stream, _Unbreakable):
            old.stream.leave()
    root.handlers = [handler]
    root.setLevel(LEVELS[settings.level])
    for name in QUIET:
        logging.getLogger(name).setLevel(max(LEVELS[settings.level], logging.WARNING))


def _stream_of(settings: LogSettings) -> TextIO:
    if settings.format == "journal":
        try:
            return cast(TextIO, JournalStream())
        except OSError as error:
            print(json.dumps({"event": "no_journal", "level": "warning", "error": str(error)}), file=sys.stderr)
    return sys.stderr


class _Unbreakable:
    """A log that has nowhere to go loses lines; it never stops the work that it tells about."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost_lines = 0

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # the reader went away, the disk is full, the stream is closed
            self.lost_lines += 1
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self.lost_lines += 1

    def isatty(self) -> bool:
        return self._stream.isatty()

    def leave(self) -> None:
        """Close what was opened for the log alone."""
        if isinstance(self._stream, JournalStream):
            self._stream.close()


def set_up_command_logging() -> None:
    """For a command that does the daemon's work itself: its output is the answer, so only faults are logged."""
    set_up_logging(LogSettings(level="error", format="console"))


def _name_of_logger(_logger: Any, _method: str, event: Any) -> Any:
    record = event.get("_record")
    if record is not None:
        event["logger"] = record.name
    return event
