"""The words and the last line of a process of this package: all that is refused is told as one JSON object."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from engine.errors import BayardError, InvalidParameter

INTERRUPTED = 130  # the exit status of a process that Ctrl-C has ended
_UNHEARD = 1  # ... and of one whose last words nobody would read
_ENDS = (signal.SIGINT, signal.SIGTERM)


class Words(argparse.ArgumentParser):
    """Raises: InvalidParameter where other parsers print their usage and end the process."""

    def error(self, message: str) -> NoReturn:
        raise InvalidParameter(f"{message}.", "`--help` lists the options.")


def told(error: BayardError) -> str:
    return json.dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}})


def run(main: Callable[[list[str]], int], words: list[str]) -> NoReturn:
    """The process's whole life: without a trace where it is told to end, or nobody listens any more."""
    for number in _ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        status = main(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):  # which the interpreter would flush, and complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        status = _UNHEARD
    sys.exit(status)


def _interrupt(_: int, __: FrameType | None) -> NoReturn:
    """Once: the second of two signals would break into how the first is answered."""
    for number in _ENDS:
        signal.signal(number, _heed_no_more)  # not SIG_IGN, of which Python complains where the second has come already
    raise KeyboardInterrupt


def _heed_no_more(_: int, __: FrameType | None) -> None:
    """Both were sent: the command's Ctrl-C and the command's own word."""
