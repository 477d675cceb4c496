"""What a command changes without a daemon stands in the audit log as the daemon would have written it."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from daemon.cli import run
from daemon.settings import Settings
from daemon.store.session import Store
from daemon.tenants import audit


@pytest.fixture(autouse=True)
def no_other_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BAYARD_STATE_DIR", "BAYARD_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def entries(settings: Settings) -> list[audit.AuditRecord]:
    """Oldest first, of a whole chain."""
    store = Store.open(settings)
    try:
        assert store.read_sync(audit.verify).broken_at is None
        return store.read_sync(audit.page)[::-1]
    finally:
        store.close()


def test_changes_without_a_daemon_are_audited(settings: Settings, smollm_path: Path) -> None:
    night = (
        "--plan",
        "mine",
        "--cron",
        "0 20 * * *",
        "--for",
        "12h",
        "--timezone",
        "Europe/Berlin",
        "--except",
        "2026-12-25",
    )
    for argv in (
        ("models", "import", str(smollm_path), "--name", "tiny", "--link"),
        ("models", "verify", "tiny"),
        ("plan", "save", "mine", "tiny", "--context", "2048"),
        ("plan", "activate", "mine", "--for", "30m", "--reason", "a test"),
        ("schedule", "add", "night", *night),
        ("schedule", "release"),
        ("schedule", "remove", "night"),
        ("plan", "delete", "mine"),
        ("models", "delete", "tiny", "--unload"),
    ):
        assert run([*argv, "--state-dir", str(settings.state_dir)]) == 0, argv
    found = entries(settings)
    assert {(entry.actor, entry.origin) for entry in found} == {(f"{getpass.getuser()}@command", "command")}
    assert [(entry.action, entry.subject, entry.after) for entry in found] == [
        ("model.import", f"path:{smollm_path}", {"path": str(smollm_path), "name": "tiny", "link": True, "base": None}),
        ("model.verify", "model:tiny", None),
        (
            "plan.save",
            "plan:mine",
            {
                "strategy": "latency",
                "models": ["tiny"],
                "context_tokens": 2048,
                "users": None,
                "weights": None,
                "kv_dtype": None,
                "replace_automatic": False,
            },
        ),
        ("plan.activate", "plan:mine", {"for_s": 1800, "reason": "a test"}),
        (
            "schedule.add",
            "rule:night",
            {
                "name": "night",
                "cron": "0 20 * * *",
                "duration_s": 43_200,
                "plan": "mine",
                "timezone": "Europe/Berlin",
                "except_dates": ["2026-12-25"],
            },
        ),
        ("schedule.release", "schedule", None),
        ("schedule.remove", "rule:night", None),
        ("plan.delete", "plan:mine", None),
        ("model.delete", "model:tiny", {"unload": True}),
    ]


def test_refused_and_reading_commands_leave_no_entry(settings: Settings) -> None:
    for argv, status in (
        (("models", "list"), 0),
        (("schedule", "show"), 0),
        (("models", "import", "/nowhere.gguf"), 1),
        (("plan", "delete", "nothing"), 1),
        (("schedule", "remove", "nothing"), 1),
    ):
        assert run([*argv, "--state-dir", str(settings.state_dir)]) == status, argv
    assert entries(settings) == []


def test_verify_tells_of_a_kept_hash_that_is_missing(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--state-dir", str(settings.state_dir))
    assert run(["schedule", "release", *place]) == 0
    head = entries(settings)[-1].hash
    assert run(["audit", "verify", "--contains", head, *place]) == 0
    assert run(["audit", "verify", "--contains", "f" * 64, *place]) == 1
    assert "MISSING" in capsys.readouterr().out
    assert run(["audit", "verify", "--contains", "short", *place]) == 2
