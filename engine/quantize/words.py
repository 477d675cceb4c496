"""The words and the last line of a process of this package: all that is refused is told as one JSON object."""

from __future__ import annotations

import argparse
import json
from typing import NoReturn

from engine.errors import BayardError, InvalidParameter

INTERRUPTED = 130  # the exit status of a process that Ctrl-C has ended


class Words(argparse.ArgumentParser):
    """Raises: InvalidParameter where other parsers print their usage and end the process."""

    def error(self, message: str) -> NoReturn:
        raise InvalidParameter(f"{message}.", "`--help` lists the options.")


def told(error: BayardError) -> str:
    return json.dumps({"error": {"code": error.code, "message": error.message, "hint": error.hint}})
