"""Run every test with progress shown; pytest's closing line is the last one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    environment = dict(os.environ)
    # Two threads a process: more only fight over the two cores that CI has.
    environment.setdefault("OMP_NUM_THREADS", "2")
    command = [sys.executable, "-m", "pytest", "--durations=10", *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
