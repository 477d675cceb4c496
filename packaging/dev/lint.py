"""Run every linter, say what each found, and fail if any did."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LINTERS: dict[str, list[str]] = {
    "ruff check": [str(BIN / "ruff"), "check", "."],
    "ruff format": [str(BIN / "ruff"), "format", "--check", "."],
    "mypy": [str(BIN / "mypy")],
    "import borders": [str(BIN / "lint-imports")],
    "file sizes": [sys.executable, "packaging/dev/file_sizes.py"],
}


def main() -> int:
    failed = []
    for name, command in LINTERS.items():
        print(f"==> {name}", flush=True)
        began = time.monotonic()
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
        print(f"    {time.monotonic() - began:.1f} s", flush=True)
    print(f"lint: failed in {', '.join(failed)}" if failed else "lint: all clean")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
