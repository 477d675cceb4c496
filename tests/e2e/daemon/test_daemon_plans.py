"""Models, plans and the schedule through a running daemon: every command, the worker's knobs, and the event log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.daemon.conftest import FAKE, MODEL, Daemon


def told(daemon: Daemon, *argv: str) -> Any:
    return json.loads(daemon.command(*argv, "--json").stdout)


def events(daemon: Daemon) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = daemon.admin("events?limit=200")["items"]
    return items


def test_import_plan_switch_schedule_and_delete_through_a_running_daemon(daemon: Daemon, smollm_path: Path) -> None:
    daemon.env["BAYARD_WORKERS_COMMAND"] = FAKE
    daemon.start()
    assert daemon.admin("models")["items"] == []

    imported = told(daemon, "models", "import", str(smollm_path), "--name", MODEL, "--link")
    assert imported["plans"] == ["latency", "throughput"]
    daemon.until_serving()  # nobody asked: the first import's plan is the default
    first = daemon.worker()

    preview = told(daemon, "plan", MODEL, "--strategy", "throughput", "--users", "8")
    assert preview["fits"] is True
    assert preview["chosen"]["knobs"]["max_running"] == 8
    by_path = told(daemon, "plan", str(smollm_path))
    assert by_path["chosen"]["path"] == str(smollm_path)
    no = daemon.command("plan", MODEL, "--users", "100000", "--context", "8192", ok=False)
    assert no.returncode == 1
    assert "Nearest:" in no.stdout

    knobs = {plan["name"]: plan["models"][0]["knobs"] for plan in daemon.admin("plans")["items"]}
    assert knobs["latency"]["max_running"] < knobs["throughput"]["max_running"]
    assert told(daemon, "plan", "activate", "throughput")["plan"] == "throughput"

    def running() -> dict[str, Any]:
        (view,) = daemon.admin("workers")["items"]
        found: dict[str, Any] = view["knobs"]
        return found

    daemon.until(lambda: running() == knobs["throughput"])
    assert daemon.worker()["pid"] == first["pid"]  # the same process: nothing was interrupted

    # a rule that is in force now, whenever now is
    rule = ["schedule", "add", "now", "--plan", "latency", "--cron", "* * * * *", "--for", "2h"]
    assert told(daemon, *rule)["plan"] == "latency"
    daemon.until(lambda: running() == knobs["latency"])
    assert daemon.admin("schedule")["rule"] == "now"
    assert any(item["rule"] == "now" for item in daemon.admin("schedule/timeline")["items"])
    override = told(daemon, "plan", "activate", "throughput", "--for", "1h", "--reason", "a fair")
    assert override["until_at"] is not None
    daemon.until(lambda: running() == knobs["throughput"])
    assert told(daemon, "schedule", "release")["plan"] == "latency"
    daemon.until(lambda: running() == knobs["latency"])
    refused = daemon.command("plan", "delete", "latency", ok=False)
    assert refused.returncode == 1
    assert "schedule rule now" in refused.stderr
    daemon.command("schedule", "remove", "now")

    moves = [event for event in events(daemon) if event["fields"].get("move") == "knobs"]
    assert len(moves) == 5  # the last by the rule's removal, back to the default
    assert all("plan " in event["reason"] for event in moves)
    assert any("rule now" in event["reason"] for event in moves)
    assert any("a fair" in event["reason"] for event in moves)

    assert told(daemon, "models", "verify", MODEL)["problems"] == []
    used = daemon.command("models", "delete", MODEL, ok=False)
    assert used.returncode == 1
    assert "plan latency" in used.stderr
    daemon.command("models", "delete", MODEL, "--unload")
    assert daemon.admin("workers")["items"] == []
    assert daemon.admin("plans")["items"] == []
    assert smollm_path.exists()


def test_plan_in_force_survives_a_kill_of_the_daemon(daemon: Daemon, smollm_path: Path) -> None:
    daemon.env["BAYARD_WORKERS_COMMAND"] = FAKE
    daemon.command("models", "import", str(smollm_path), "--name", MODEL, "--link")
    daemon.start()
    daemon.until_serving()
    daemon.command("plan", "activate", "throughput")
    daemon.stop()  # SIGKILL
    (daemon.state_dir / "serve.log").unlink()  # the fixture waits for the next start's own word
    daemon.start()
    daemon.until_serving()
    assert daemon.admin("schedule")["plan"] == "throughput"
    assert (
        daemon.worker()["knobs"]["max_running"]
        == told(daemon, "plan", "show", "throughput")["models"][0]["knobs"]["max_running"]
    )
