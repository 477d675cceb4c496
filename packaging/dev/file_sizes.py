"""No file may grow beyond what a reader takes in at once: 350 lines, or a reason in EXCEPTIONS."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_LINES = 350
GENERATED = {"gen", "build", "dist", "__pycache__", "CMakeFiles"}
KINDS = (".py", ".cpp", ".h", ".tcss", ".sh")

# path -> why it may be longer. An entry that is no longer needed is an error, so that the list stays short.
EXCEPTIONS: dict[str, str] = {}


def too_long() -> list[str]:
    """One sentence for each file over the limit without a reason, and for each reason without need."""
    complaints = []
    for name in source_files():
        lines = len((ROOT / name).read_bytes().splitlines())
        if lines > LIMIT_LINES and name not in EXCEPTIONS:
            complaints.append(f"{name}: {lines} lines, the limit is {LIMIT_LINES}. Split it by idea.")
        if lines <= LIMIT_LINES and name in EXCEPTIONS:
            complaints.append(f"{name}: {lines} lines; its exception is no longer needed.")
    gone = [name for name in EXCEPTIONS if not (ROOT / name).exists()]
    return complaints + [f"{name}: is gone; remove its exception." for name in gone]


def source_files() -> list[str]:
    """Our own sources, as paths from the root; not what was generated, built or installed."""
    found = []
    for folder, below, files in os.walk(ROOT):
        below[:] = [name for name in below if not name.startswith(".") and name not in GENERATED]
        found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in files if name.endswith(KINDS)]
    return sorted(found)


if __name__ == "__main__":
    found = too_long()
    print("\n".join(found) or f"file sizes: every file is within {LIMIT_LINES} lines")
    sys.exit(bool(found))
