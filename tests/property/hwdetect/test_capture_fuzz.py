"""Damaged tool output never raises and never makes devices or memory that the text does not hold."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hwdetect.capture import parse_capture
from hwdetect.facts import encode
from hwdetect.text import clean

HERE = Path(__file__).resolve()
FIXTURES = HERE.parents[2] / "unit" / "hwdetect" / "fixtures"
CORPUS = HERE.parents[4] / "shared" / "hw"
LARGEST_CHARS = 30_000


def _cases() -> list[tuple[str, str, str]]:
    """Name, command and text of every case: the project's own, and the corpus where it is."""
    found = [
        (name, want["tool"], (FIXTURES / name).read_text())
        for name, want in json.loads((FIXTURES / "expected.json").read_text()).items()
    ]
    if CORPUS.is_dir():
        tools = {row["file"]: row["tool"] for row in map(json.loads, (CORPUS / "INDEX.jsonl").read_text().splitlines())}
        found += [
            (path.name, tools.get(path.name, ""), path.read_text(errors="replace"))
            for path in sorted(CORPUS.glob("*.txt"))
        ]
    return [case for case in found if len(case[2]) <= LARGEST_CHARS]


CASES = _cases()
COUNTS = {name: len(parse_capture(text, tool).devices) for name, tool, text in CASES}
NOISE = ("", "[INFO x] a log line", "{", "]", "|", "+----+", "\x1b[31mred", "0 0 0", "WARNING: : :", "\ufffd" * 3)


def rearrange(text: str, seed: int, steps: int) -> str:
    """Cut, delete, repeat and move lines, and put noise between them: no new numbers come in."""
    chance = random.Random(seed)
    lines = text.splitlines()
    for _ in range(steps):
        if not lines:
            break
        here, there = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(7):
            case 0:
                del lines[here]
            case 1:
                lines.insert(there, lines[here])
            case 2:
                lines[here], lines[there] = lines[there], lines[here]
            case 3:
                lines.insert(here, chance.choice(NOISE))
            case 4:
                lines = lines[: max(1, here)]
            case 5:
                low, high = sorted((here, there))
                lines[high:high] = lines[low:high]
            case _:
                lines.insert(there, lines.pop(here))
    whole = "\n".join(lines)
    return whole[: chance.randrange(len(whole) + 1)] if chance.random() < 0.3 else whole


def corrupt(text: str, seed: int, steps: int) -> str:
    """Change, drop and add single characters."""
    chance = random.Random(seed)
    chars = list(text)
    for _ in range(steps):
        if not chars:
            break
        here = chance.randrange(len(chars))
        match chance.randrange(3):
            case 0:
                chars[here] = chance.choice("09|:+- /\t\nXé\x00\x1b\ufffd{}[]<>\"'")
            case 1:
                del chars[here]
            case _:
                chars.insert(here, chance.choice("019|:=-NA"))
    return "".join(chars)


def figures(text: str) -> set[int]:
    """Every number of the text in every unit that a tool may mean, in bytes."""
    numbers = {float(n) for n in re.findall(r"\d{1,30}(?:\.\d+)?", clean(text))}
    return {int(n * unit) for n in numbers for unit in (1, 1 << 10, 1 << 20, 1 << 30)}


def assert_within(text: str, tool: str) -> int:
    report = parse_capture(text, tool)
    json.dumps(encode(report))
    if "### FILE:" not in text:
        held = figures(text)
        for device in report.devices:
            for value in (device.memory_total_bytes, *(part.memory_total_bytes for part in device.partitions)):
                assert value is None or value in held
            assert (
                device.memory_used_bytes is None
                or device.memory_total_bytes is None
                or (0 <= device.memory_used_bytes <= device.memory_total_bytes)
            )
    return len(report.devices)


@settings(max_examples=800, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(case=st.sampled_from(CASES), seed=st.integers(0, 2**32), steps=st.integers(1, 12))
def test_rearranged_text_gives_no_more_devices_than_the_whole(
    case: tuple[str, str, str], seed: int, steps: int
) -> None:
    name, tool, text = case
    changed = rearrange(text, seed, steps)
    assert assert_within(changed, tool) <= COUNTS[name]
    assert_within(changed, "")


@settings(max_examples=500, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(case=st.sampled_from(CASES), seed=st.integers(0, 2**32), steps=st.integers(1, 30))
def test_corrupted_text_gives_no_more_devices_than_it_has_lines(
    case: tuple[str, str, str], seed: int, steps: int
) -> None:
    _, tool, text = case
    changed = corrupt(text, seed, steps)
    assert assert_within(changed, tool) <= len([line for line in changed.splitlines() if line.strip()]) + 16


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=st.text(max_size=400), tool=st.sampled_from(sorted({tool for _, tool, _ in CASES})))
@example(text="9" * 5000, tool="")
@example(text="|" + "0 " * 3000, tool="nvidia-smi")
def test_any_text_is_survived(text: str, tool: str) -> None:
    assert_within(text, tool)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(raw=st.binary(max_size=600))
def test_any_bytes_are_survived(raw: bytes) -> None:
    assert parse_capture(raw) is not None


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_every_prefix_is_survived(name: str) -> None:
    """Truncated output: at forty places each."""
    _, tool, text = next(case for case in CASES if case[0] == name)
    for part in range(1, 41):
        assert assert_within(text[: len(text) * part // 41], tool) <= COUNTS[name]
