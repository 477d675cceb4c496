"""`bayard models|plan|schedule` without a daemon: the same services in this process, the same JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.api.admin.models import ModelItem
from daemon.api.admin.plans import PlanItem
from daemon.api.admin.schedule import RuleItem
from daemon.commands.durations import seconds_of
from engine.errors import InvalidParameter
from tests.fakes.planned_models import cpu_machine

Bayard = Callable[..., tuple[int, str, str]]


def answer(bayard: Bayard, *argv: str) -> Any:
    status, out, err = bayard(*argv, "--json")
    assert status == 0, err
    return json.loads(out)


def test_model_from_import_to_delete(bayard: Bayard, smollm_path: Path) -> None:
    item = answer(bayard, "models", "import", str(smollm_path), "--name", "org/tiny:1", "--link")
    assert ModelItem.model_validate(item).plans == ["latency", "throughput"]  # as the admin API shows it
    assert answer(bayard, "models", "list") == [item]
    assert answer(bayard, "models", "show", "org/tiny:1") == item
    assert answer(bayard, "models", "verify", "org/tiny:1")["problems"] == []
    status, _, err = bayard("models", "delete", "org/tiny:1")
    assert status == 1
    assert "plan latency" in err
    assert "--unload" in err
    answer(bayard, "models", "delete", "org/tiny:1", "--unload")
    assert answer(bayard, "models", "list") == []
    assert answer(bayard, "plan", "list") == []


def test_tables_name_what_there_is(bayard: Bayard, smollm_path: Path) -> None:
    assert "no model is imported" in bayard("models", "list")[1]
    assert "imported tiny" in bayard("models", "import", str(smollm_path), "--name", "tiny", "--link")[1]
    assert "latency, throughput" in bayard("models", "list")[1]
    assert "linked in place" in bayard("models", "show", "tiny")[1]
    assert "every file is as it was imported" in bayard("models", "verify", "tiny")[1]
    assert "*  latency" in bayard("plan", "list")[1]
    assert "KV cache" in bayard("plan", "show", "latency")[1]
    assert "max_running" in bayard("plan", "diff", "latency", "throughput")[1]
    assert "would run the same" in bayard("plan", "diff", "latency", "latency")[1]
    assert "plan throughput is in force" in bayard("plan", "activate", "throughput")[1]


def test_plan_of_files_needs_no_state_and_leaves_none(bayard: Bayard, smollm_path: Path, short_dir: Path) -> None:
    status, out, _ = bayard("plan", str(smollm_path), "--strategy", "throughput")
    assert status == 0
    assert "yes, on" in out
    assert "memory of" in out
    assert not (short_dir / "state").exists()


def test_plan_for_another_machine_reads_its_description(bayard: Bayard, smollm_path: Path, tmp_path: Path) -> None:
    machine = tmp_path / "hw.json"
    machine.write_text(cpu_machine(2, cores=64).to_json())
    there = answer(bayard, "plan", str(smollm_path), "--machine", str(machine))
    assert there["chosen"]["device_name"] == "Some CPU"
    assert there["chosen"]["threads"] == 64
    machine.write_text(cpu_machine(0.6).to_json())
    status, out, _ = bayard("plan", str(smollm_path), "--machine", str(machine))
    assert status == 1
    assert "why not" in out
    machine.write_text("{}")
    status, _, err = bayard("plan", str(smollm_path), "--machine", str(machine))
    assert status == 1
    assert "bayard hw --json" in err


def test_plan_saved_by_an_operator_and_rules_over_it(bayard: Bayard, smollm_path: Path) -> None:
    answer(bayard, "models", "import", str(smollm_path), "--name", "tiny", "--link")
    saved = answer(
        bayard, "plan", "save", "mine", "tiny", "--strategy", "balanced", "--context", "2048", "--users", "2"
    )
    assert PlanItem.model_validate(saved).origin == "operator"
    assert saved["models"][0]["context_tokens"] == 2048
    assert saved["models"][0]["kv_tokens"] == 4096
    rule = answer(
        bayard, "schedule", "add", "night", "--plan", "mine", "--cron", "0 20 * * mon-fri", "--for", "12h",
        "--timezone", "Europe/Berlin",
    )  # fmt: skip
    assert RuleItem.model_validate(rule).duration_s == 43_200
    assert answer(bayard, "schedule", "list") == [rule]
    shown = answer(bayard, "schedule", "show", "--date", "2026-06-03")
    zone_spans = [(item["plan"], item["rule"]) for item in shown["timeline"]["items"]]
    assert ("mine", "night") in zone_spans
    assert ("latency", None) in zone_spans
    assert "mine" in bayard("schedule", "show", "--date", "2026-06-03")[1]
    assert bayard("schedule", "show", "--date", "tomorrow")[0] == 2
    assert answer(bayard, "plan", "activate", "mine", "--for", "30m")["plan"] == "mine"
    assert answer(bayard, "schedule", "release")["plan"] in ("latency", "mine")
    assert bayard("plan", "delete", "mine")[0] == 1
    answer(bayard, "schedule", "remove", "night")
    answer(bayard, "plan", "delete", "mine")


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("models", "show", "nothing"), "model_not_found"),
        (("models", "import", "/nowhere.gguf"), "not_found"),
        (("plan", "nothing"), "model_not_found"),
        (("plan", "show", "nothing"), "not_found"),
        (("plan", "activate", "nothing"), "not_found"),
        (("plan", "save", "x", "nothing"), "model_not_found"),
        (("schedule", "remove", "nothing"), "not_found"),
        (("schedule", "add", "a", "--plan", "x", "--cron", "0 8 * * *", "--for", "soon"), "invalid_parameter"),
        (("schedule", "add", "a", "--plan", "x", "--cron", "never", "--for", "1h"), "invalid_parameter"),
    ],
)
def test_mistake_is_one_line_with_its_code(bayard: Bayard, argv: tuple[str, ...], code: str) -> None:
    status, _, err = bayard(*argv)
    assert status == 1
    assert f"bayard: {code}: " in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86_400), ("1h30m", 5400), ("1.5h", 5400)]
)
def test_duration_is_read(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "h", "2x", "-1h", "1h30", "soon"])
def test_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        seconds_of(text)
