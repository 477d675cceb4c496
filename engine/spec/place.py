"""What lies at a path that somebody named: looked at before it is opened, for opening a pipe can wait for good."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from engine.errors import ConfigError, NotFound, UnsupportedFormat

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_SHOWN_CHARACTERS = 300


def place_of(text: str) -> Path:
    """A path as a person writes it; ~NAME of nobody here stays as it is."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def mode_at(path: Path) -> int | None:
    """st_mode of what is there, behind links; None where nothing is or can be, as under a name that is too long.

    Raises: ConfigError for what this user may not look at
    """
    try:
        return os.stat(path).st_mode
    except ValueError:  # a null byte, or half of a surrogate pair
        return None
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise ConfigError(
            f"{_shown(path)} cannot be read: {error.strerror or error}.", "Check the path and its owner."
        ) from error


def is_there(path: Path) -> bool:
    """Raises: ConfigError as mode_at"""
    return mode_at(path) is not None


def require_plain(path: Path) -> None:
    """Raises: NotFound; UnsupportedFormat for what is neither a file nor a folder; ConfigError"""
    if not is_there(path):
        raise NotFound(
            f"there is no file or folder {_shown(path)}.", "Check the path; it is seen from the server's side."
        )
    refuse_pipe(path)


def refuse_pipe(path: Path) -> None:
    """Raises: UnsupportedFormat for what is there and neither a file nor a folder; ConfigError"""
    mode = mode_at(path)
    if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UnsupportedFormat(
            f"{_shown(path)} is neither a file nor a folder.", "A pipe, socket or device cannot be read here: copy it."
        )


def _shown(path: Path) -> str:
    text = str(path)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
