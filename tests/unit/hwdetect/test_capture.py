"""The parsers' dialects, on texts written for these tests: they hold where the corpus is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwdetect.capture import DIALECTS, parse_capture

FOLDER = Path(__file__).parent / "fixtures"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text())


def test_fixtures_and_expectations_match() -> None:
    assert {path.name for path in FOLDER.iterdir()} - {"expected.json"} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_fixture_gives_expected_facts(name: str, check_report: Callable[..., None]) -> None:
    want = EXPECTED[name]
    check_report(parse_capture((FOLDER / name).read_bytes(), want["tool"]), want)


@pytest.mark.parametrize("name", EXPECTED)
def test_fixture_with_carriage_returns_and_bad_bytes_gives_the_same_devices(name: str) -> None:
    raw = (FOLDER / name).read_bytes()
    plain = parse_capture(raw, EXPECTED[name]["tool"])
    spoiled = parse_capture(b"\xff\xfe odd \x00 line\r\n" + raw.replace(b"\n", b"\r\n"), EXPECTED[name]["tool"])
    assert [(d.index, d.memory_total_bytes) for d in spoiled.devices] == [
        (d.index, d.memory_total_bytes) for d in plain.devices
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "hello", "\x1b[31m", "|||||\n+++", "{", "[[[[", "GPU", "0"])
def test_text_of_no_tool_gives_a_note_or_a_limit(text: str) -> None:
    report = parse_capture(text)
    assert report.devices == ()
    assert report.notes or report.cgroup is not None


def test_capture_names_every_vendor() -> None:
    vendors = {want["vendor"] for want in EXPECTED.values() if want.get("vendor")}
    assert vendors == {
        "nvidia", "amd", "intel", "gaudi", "ascend", "mthreads", "hygon", "cambricon", "iluvatar", "metax", "enflame",
        "kunlunxin", "thead", "biren",
    }  # fmt: skip


def test_dialect_names_are_unique() -> None:
    names = [dialect.name for dialect in DIALECTS]
    assert len(names) == len(set(names))


def test_every_known_fact_has_a_source() -> None:
    for name, want in EXPECTED.items():
        for device in parse_capture((FOLDER / name).read_bytes(), want["tool"]).devices:
            for field in ("name", "memory_total_bytes", "pci_address", "state", "driver_version", "capabilities"):
                if getattr(device, field) not in (None, "unknown"):
                    assert field in device.sources, (name, field)
