"""Describe this machine, or what was saved: python -m hwdetect [--json] [--root FOLDER] [--capture FILE]."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hwdetect.capture import parse_capture
from hwdetect.detect import detect
from hwdetect.facts import encode
from hwdetect.render import table


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hwdetect", description="Describe a machine's hardware.")
    parser.add_argument("--json", action="store_true", help="print the description as JSON")
    parser.add_argument("--root", type=Path, default=Path("/"), help="folder with a recorded machine's files")
    parser.add_argument("--state-dir", type=Path, help="also describe the disk under this folder")
    parser.add_argument("--capture", type=Path, help="read one saved tool output instead of a machine")
    parser.add_argument("--tool", default="", help="the command that printed the saved output")
    options = parser.parse_args(arguments)
    if options.capture is not None:
        try:
            raw = options.capture.read_bytes()
        except OSError as error:
            print(f"hwdetect: {options.capture}: {error.strerror}", file=sys.stderr)
            return 2
        print(json.dumps(encode(parse_capture(raw, options.tool)), indent=2, ensure_ascii=False))
        return 0
    if not options.root.is_dir():
        print(f"hwdetect: {options.root} is not a folder", file=sys.stderr)
        return 2
    machine = detect(options.root, state_dir=options.state_dir)
    print(machine.to_json() if options.json else table(machine), end="\n" if options.json else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
