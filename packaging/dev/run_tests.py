"""Run every test with progress shown; pytest's closing line is the last one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_PROCESSES = 4  # some tests start daemons and workers of their own


def main() -> int:
    environment = dict(os.environ)
    # A process a core, one thread in each; tests of a file stay together, since they share what is slow to make.
    processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
    environment.setdefault("OMP_NUM_THREADS", "1")
    beside = ["-n", str(processes), "--dist", "loadfile"] if processes > 1 else []
    command = [sys.executable, "-m", "pytest", "--durations=10", *beside, *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
