"""Text helpers and the host's parsers, at their edges."""

from __future__ import annotations

import pytest

from hwdetect.detect import detect_tree
from hwdetect.host.isa import isa_levels
from hwdetect.host.topology import sockets_by_distance
from hwdetect.text import clean, cpu_list, cpu_mask, format_cpu_list, known, mib, number, pci_address, size_bytes, sized
from hwdetect.tree import BundleTree


def bundle(files: dict[str, str]) -> BundleTree:
    return BundleTree("".join(f"### FILE: {path}\n{text}\n" for path, text in files.items()))


@pytest.mark.parametrize(
    ("text", "ids"),
    [("0-3,8", (0, 1, 2, 3, 8)), ("", ()), ("5\n", (5,)), ("0-3:2/4", (0, 1, 2, 3)), ("a-b", None),
     ("0-999999999", None), ("3-1", ()), ("1,,2", (1, 2)), ("²", None)],
)  # fmt: skip
def test_cpu_list(text: str, ids: tuple[int, ...] | None) -> None:
    assert cpu_list(text) == ids


def test_cpu_list_written_back() -> None:
    assert format_cpu_list((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"
    assert format_cpu_list(()) == ""
    assert cpu_mask("00000003,00000001") == (0, 32, 33)
    assert cpu_mask("zz") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [("00000000:3B:00.0", "0000:3b:00.0"), ("3b:00.1", "0000:3b:00.1"), ("00008ED1:00:00.0", "8ed1:00:00.0"),
     ("0000:xx:00.0", None), ("12:34:56", None), ("at 0000:03:00.0, lost", "0000:03:00.0")],
)  # fmt: skip
def test_pci_address(text: str, expected: str | None) -> None:
    assert pci_address(text) == expected


@pytest.mark.parametrize(
    ("text", "size"),
    [("143771 MiB", 143771 << 20), ("4095MB", 4095 << 20), ("64G", 64 << 30), ("12216.00 MiB", 12216 << 20),
     ("100", 100), ("[N/A]", None), ("-5 MiB", None), ("abc", None), ("1 XiB", None), ("9" * 60, None)],
)  # fmt: skip
def test_size(text: str, size: int | None) -> None:
    assert size_bytes(text) == size


def test_sizes_with_and_without_units() -> None:
    assert mib("100") == 100 << 20
    assert sized("100") is None
    assert sized("100 MiB") == 100 << 20


@pytest.mark.parametrize("text", ["N/A", "[Not Supported]", "NA", "-", "", "ERR!", "Unknown Error", None, "none"])
def test_every_way_to_say_unknown_is_none(text: str | None) -> None:
    assert known(text) is None
    assert number(text) is None


def test_clean_strips_escapes_and_bad_bytes() -> None:
    assert clean(b"\xef\xbb\xbf\x1b[4mGPU0\x1b[0m\r\nx\x00y\xff") == "GPU0\nx y\ufffd"
    assert clean("\x1b]0;title\x07ok") == "ok"


@pytest.mark.parametrize(
    ("flags", "levels"),
    [
        ("sse2 sse4_2 avx avx2 fma f16c", ("sse4_2", "avx", "avx2")),
        ("sse2 avx2", ()),
        ("sse2 avx512f avx512bw avx512cd avx512dq avx512vl avx512_bf16", ("avx512", "avx512_bf16")),
        ("sse2 amx_tile amx_int8", ("amx_int8",)),
        ("asimd asimddp i8mm sve", ("neon", "neon_dotprod", "neon_i8mm", "sve")),
        ("", ()),
    ],
)
def test_isa_levels_need_every_flag(flags: str, levels: tuple[str, ...]) -> None:
    assert isa_levels(frozenset(flags.split())) == levels


@pytest.mark.parametrize(
    ("rows", "sockets"),
    [
        (["10 12 20 22", "12 10 22 24", "20 22 10 12", "22 24 12 10"], 2),
        (["10 20", "20 10"], None),
        (["10 16 16 22", "16 10 22 16", "16 22 10 16", "22 16 16 10"], None),
        (["10 17 20 20", "17 10 20 20", "20 20 10 17", "20 20 17 10"], None),
        (["10"], None),
        (["10 12", "12"], None),
    ],
)
def test_sockets_by_distance(rows: list[str], sockets: int | None) -> None:
    files = {f"/sys/devices/system/node/node{n}/distance": row for n, row in enumerate(rows)}
    assert sockets_by_distance(bundle(files)) == sockets


def test_affinity_of_a_recorded_process_limits_usable_cpus() -> None:
    files = {
        "/proc/cpuinfo": "processor : 0\nprocessor : 1\nprocessor : 2\n",
        "/sys/devices/system/cpu/online": "0-2",
        "/proc/self/status": "Cpus_allowed_list:\t1-2\n",
    }
    assert detect_tree(bundle(files)).cpu.usable_cpus == (1, 2)


def test_old_kernel_without_available_memory_counts_free_and_cache() -> None:
    files = {"/proc/meminfo": "MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 10 kB\nCached: 200 kB\nShmem: 50 kB\n"}
    assert detect_tree(bundle(files)).memory.available_bytes == 260 * 1024


def test_wsl_and_container_are_told() -> None:
    files = {
        "/proc/version": "Linux version 5.15.153.1-microsoft-standard-WSL2 (gcc)",
        "/proc/self/cgroup": "0::/kubepods/besteffort/pod1",
    }
    host = detect_tree(bundle(files)).host
    assert (host.wsl, host.container, host.kernel) == (True, "kubernetes", "5.15.153.1-microsoft-standard-WSL2")


@pytest.mark.parametrize("text", ["", "garbage", "\x00\x01", "MemTotal: many kB", "processor : x"])
def test_damaged_kernel_files_are_survived(text: str) -> None:
    paths = ("/proc/cpuinfo", "/proc/meminfo", "/proc/self/cgroup", "/proc/self/mountinfo", "/proc/version",
             "/sys/devices/system/cpu/online", "/sys/devices/system/node/node0/meminfo")  # fmt: skip
    machine = detect_tree(bundle(dict.fromkeys(paths, text)))
    assert machine.memory.total_bytes is None
    assert machine.accelerators == ()
