"""Where a result says that it comes from."""

from __future__ import annotations

import pytest

from bench import provenance


def test_archive_within_another_checkout_says_its_own_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "ROOT", provenance.ROOT / "bench")
    monkeypatch.setenv("SOURCE_COMMIT", "abc1234")
    assert provenance.commit() == "abc1234"
    monkeypatch.delenv("SOURCE_COMMIT")
    assert provenance.commit() == "unknown"


def test_command_names_files_and_not_where_they_lie() -> None:
    said = provenance.command("offline", ["--model", "/some/where/a model.gguf", "--do", "latency"])
    assert said == "python -m bench.offline --model 'a model.gguf' --do latency"
