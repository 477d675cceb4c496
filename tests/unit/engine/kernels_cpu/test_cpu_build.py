"""The library as built: no code of one instruction set leaks into another's, and sanitizers find nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.kernels import cpu

SOURCES = Path(str(cpu.__file__)).parent
CHECK = Path(__file__).with_name("memory_check.cpp")
COMMON = ["-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-fPIC", "-w"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"]
FLAGS = {
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512bf16": [*AVX512, "-mavx512bf16"],
    "amx": [*AVX512, "-mamx-tile", "-mamx-int8", "-mamx-bf16"],
}
EMULATED_TILES = Path(__file__).with_name("emulated_tiles.h")
COMPILER = os.environ.get("CXX") or shutil.which("c++")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="these objects are for x86-64"),
]


def isa_flags(source: Path) -> list[str]:
    return FLAGS.get(source.stem.rpartition("_")[2], [])


def compile_all(sources: list[Path], folder: Path, extra: list[str]) -> list[Path]:
    objects, running = [], []
    for source in sources:
        target = folder / f"{source.stem}.o"
        command = [str(COMPILER), *COMMON, *extra, *isa_flags(source), "-DBAYARD_X86=1", f"-I{SOURCES}"]
        if "-DBAYARD_EMULATED_TILES=1" in extra and source.stem.endswith("_amx"):
            command += ["-include", str(EMULATED_TILES)]
        running.append(subprocess.Popen([*command, "-c", str(source), "-o", str(target)]))
        objects.append(target)
        if len(running) == 2:
            assert running.pop(0).wait(timeout=240) == 0
    assert all(process.wait(timeout=240) == 0 for process in running)
    return objects


@pytest.mark.parametrize("level", ["-O1", "-O3"])
def test_isa_objects_have_no_weak_symbols(tmp_path: Path, level: str) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm")
    sources = [s for s in sorted(SOURCES.glob("*.cpp")) if isa_flags(s)]
    assert len(sources) >= 6
    for made in compile_all(sources, tmp_path, [level]):
        listed = subprocess.run(["nm", "-C", str(made)], capture_output=True, text=True, check=True).stdout
        shared = [line for line in listed.splitlines() if line[17:18] in ("W", "V", "u")]
        assert not shared, f"{made.name}: the linker may keep these for every instruction set: {shared}"


@pytest.mark.timeout(600)
def test_kernels_touch_only_their_memory_and_isas_agree(tmp_path: Path) -> None:
    sanitize = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    # A row of a strided matrix may start at any 4-byte boundary: wider loads say so, casts of their pointers do not.
    sanitize.append("-fno-sanitize=alignment")
    sanitize.append("-DBAYARD_EMULATED_TILES=1")  # AMX is rare: its kernels run on any AVX-512 here
    program = tmp_path / "memory_check"
    objects = compile_all([*sorted(SOURCES.glob("*.cpp")), CHECK], tmp_path, sanitize)
    link = [str(COMPILER), *sanitize, *map(str, objects), "-pthread", "-o", str(program)]
    linked = subprocess.run(link, capture_output=True, text=True, check=False)
    if linked.returncode and "asan" in linked.stderr:
        pytest.skip("the compiler has no sanitizer libraries")
    assert linked.returncode == 0, linked.stderr
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "scalar, 3 threads" in done.stdout
    assert "avx512, 3 threads" not in done.stdout or "amx, 3 threads" in done.stdout
