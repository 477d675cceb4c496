"""libbayard_cpu, loaded once: which instruction set and threads it uses, and why it is absent where it is."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from engine.errors import ConfigError, InvalidParameter, WorkerError
from engine.kernels.cpu import abi

LIBRARY = Path(__file__).with_name("libbayard_cpu.so")
ISA_VARIABLE = "BAYARD_CPU_ISA"
KNOWN_ISAS = ("scalar", "avx2", "avx512", "amx")


@cache
def load() -> ctypes.CDLL:
    """The library, with the instruction set that BAYARD_CPU_ISA names, or the best.

    Raises: ConfigError for a name that is unknown or cannot run here; OSError if there is no library
    """
    library = ctypes.CDLL(str(LIBRARY))
    library.bayard_abi_version.restype = ctypes.c_int
    found = library.bayard_abi_version()
    if found != abi.ABI_VERSION:
        raise OSError(f"{LIBRARY.name} has ABI {found}; this Bayard needs {abi.ABI_VERSION}")
    abi.bind(library)
    _set_isa(library, os.environ.get(ISA_VARIABLE, ""))
    return library


@cache
def absent_reason() -> str | None:
    """None if the library can be used; else one plain sentence. Raises ConfigError as load does."""
    try:
        load()
    except OSError as error:
        if not LIBRARY.is_file():
            return "libbayard_cpu was not built: installing found no C++ compiler or CMake"
        return f"libbayard_cpu cannot be loaded: {error}"
    return None


def _set_isa(library: ctypes.CDLL, name: str) -> None:
    code = library.bayard_set_isa(name.encode())
    if code == 0:
        return
    here = [isa for isa in KNOWN_ISAS if library.bayard_isa_available(isa.encode())]
    text = library.bayard_error_text(code).decode()
    raise ConfigError(
        f"{ISA_VARIABLE} asks for {name!r}: {text}.",
        f"Unset {ISA_VARIABLE}, or set it to one of {', '.join(here)}.",
    )


def set_isa(name: str) -> None:
    """Use an instruction set from now on; "" is the best. Raises: ConfigError. Not while a step runs."""
    _set_isa(load(), name)


def isa() -> str:
    """The instruction set in use."""
    return str(load().bayard_isa().decode())


def has_bf16() -> bool:
    """Whether products of bf16 with bf16 are computed as such, in tiles or with AVX512_BF16."""
    return bool(load().bayard_has_bf16())


def available_isas() -> tuple[str, ...]:
    """Those this CPU, its kernel and this build can run, plainest first."""
    return tuple(name for name in KNOWN_ISAS if load().bayard_isa_available(name.encode()))


def set_threads(threads: int, pin: bool = True) -> None:
    """Threads a call uses, the caller's included; 0 is one a usable core. pin keeps each on a core of its own.

    Raises: InvalidParameter if negative or absurd. Blocks until a running call has ended
    """
    if load().bayard_set_threads(threads, int(pin)) != 0:
        raise InvalidParameter(f"{threads} threads were asked for; 0 to 4096 can be had.", "Set threads to 0.")


def threads() -> int:
    return int(load().bayard_threads())


def usable_cores() -> int:
    """Cores this process may use: its affinity, one thread a core, bounded by its cgroup's quota."""
    return int(load().bayard_usable_cores())


def memory_nodes() -> int:
    """Memory nodes that the usable cores belong to."""
    return int(load().bayard_interleave(None, 0))


def check(code: int, what: str) -> None:
    """Raise what a return code means."""
    if code == 0:
        return
    text = load().bayard_error_text(code).decode()
    if code == abi.NO_MEMORY:
        raise MemoryError(f"{what}: {text}")
    raise WorkerError(f"{what}: {text}.", "This is a defect: report it with the model's name.")
