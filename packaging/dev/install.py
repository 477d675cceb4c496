"""Make .venv and build the CPU kernels, each only if what it was made from has changed.

Runs on the plain system Python (3.11 or newer) before anything is installed, so it uses the standard library alone.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
KERNELS = ROOT / "engine" / "kernels" / "cpu"
TRITON = "triton==3.6.0"  # its interpreter runs the GPU kernels' tests on the CPU; a CUDA torch brings its own


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file alone may be run by an older Python
        print(f"Python 3.11 or newer is needed; {sys.executable} is {sys.version.split()[0]}.")
        print("Try: make PYTHON=python3.11")
        return 1
    began = time.monotonic()
    wanted = {"packages": packages_digest(), "kernels": kernels_digest()}
    stale = [part for part, digest in wanted.items() if stamp(part) != digest or not PYTHON.exists()]
    if "packages" in stale:
        install_packages()
    if stale:
        build_bayard()
        for part, digest in wanted.items():
            (VENV / f".bayard-{part}").write_text(digest)
        print(f"==> installed in {time.monotonic() - began:.0f} s", flush=True)
    return 0


def packages_digest() -> str:
    return digest_of([ROOT / "pyproject.toml", ROOT / "constraints.txt", Path(__file__)], sys.version)


def kernels_digest() -> str:
    kinds = {".h", ".cpp", ".txt", ".cmake"}
    sources = sorted(p for p in KERNELS.rglob("*") if p.suffix in kinds and "build" not in p.relative_to(KERNELS).parts)
    return digest_of(
        [*sources, ROOT / "packaging" / "native" / "CMakeLists.txt"], str(shutil.which("c++") or shutil.which("g++"))
    )


def digest_of(files: list[Path], also: str) -> str:
    digest = hashlib.sha256(also.encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def stamp(part: str) -> str:
    file = VENV / f".bayard-{part}"
    return file.read_text() if file.exists() else ""


def install_packages() -> None:
    if not of_this_python():
        say(f"making .venv with Python {sys.version.split()[0]}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    install_torch(wanted_torch())
    say("the build tools")
    pip("scikit-build-core", "cmake", "ninja")


def of_this_python() -> bool:
    """Whether .venv is there and of this interpreter's version: what another version made cannot be mended."""
    folder = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return PYTHON.exists() and (VENV / "lib" / folder / "site-packages" / "pip").exists()


def wanted_torch() -> str:
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]
    return pinned[0].strip()


def install_torch(torch: str) -> None:
    """Prefer the CPU build where there is no NVIDIA device: it is a tenth of the size of the CUDA one."""
    say(f"{torch} (the largest download)")
    if not Path("/dev/nvidiactl").exists():
        found = subprocess.run(pip_command("--no-deps", f"{torch}+cpu"), check=False, stderr=subprocess.DEVNULL)
        if found.returncode == 0:
            return
        print("    no CPU-only build at the package index in use; taking the default one", flush=True)
    pip(torch)


def build_bayard() -> None:
    say("Bayard and its CPU kernels (without a compiler: without the kernels)")
    pip("--no-build-isolation", "-e", ".[test]")
    if not has_module("triton"):
        say(f"{TRITON} (for the tests of the GPU kernels)")
        # Its wheels are for Linux on x86-64 and arm64; elsewhere those tests are skipped, saying so.
        done = subprocess.run(pip_command("--no-deps", TRITON), check=False)
        if done.returncode:
            print(f"    {TRITON} could not be installed: the tests that need it are skipped", flush=True)
    install_clients()


def install_clients() -> None:
    """Other makers' clients, for the conformance tests: without them these are skipped, saying so."""
    import tomllib  # not there in the older Pythons that main() turns away

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    say("the clients of the conformance tests")
    if subprocess.run(pip_command(*extras["conformance"]), check=False).returncode:
        print("    they could not be installed: the tests that need them are skipped", flush=True)


def has_module(name: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([str(PYTHON), "-c", code], check=False).returncode == 0


def pip(*arguments: str) -> None:
    done = subprocess.run(pip_command(*arguments), check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(f"pip install {' '.join(arguments)} failed with status {done.returncode}: see the lines above")


def pip_command(*arguments: str) -> list[str]:
    constraints = str(ROOT / "constraints.txt")
    return [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-c", constraints, *arguments]


def say(what: str) -> None:
    print(f"==> {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
