"""The command line: fast to start, one line for an error, the right exit status."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon import cli
from daemon.cli import COMMANDS, run
from daemon.commands.client import refusal_of
from engine.errors import ConfigError, NotFound


@pytest.mark.parametrize("name", COMMANDS)
def test_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert f"Usage: bayard {name}" in capsys.readouterr().out
    assert importlib.import_module(f"daemon.commands.{name.replace('-', '_')}").__doc__


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from daemon.cli import run; run(['--help']);"
        "print([m for m in ('torch', 'sqlalchemy', 'pydantic', 'fastapi', 'grpc', 'httpx', 'alembic', 'numpy')"
        " if m in sys.modules], file=sys.stderr)"
    )
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr.strip() == "[]"
    assert time.monotonic() - begun < 5


def test_unknown_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["frobnicate"]) == 2
    assert "No such command 'frobnicate'" in capsys.readouterr().err


def test_configuration_error_is_one_line_and_78(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["config", "show", "--config", str(tmp_path / "none.toml")]) == 78
    err = capsys.readouterr().err
    assert err.startswith("bayard: invalid_configuration: the settings file")
    assert err.count("\n") == 1


def test_config_show_tells_value_and_source(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b.toml"
    file.write_text("[http]\nport = 99\n")
    monkeypatch.setenv("BAYARD_LOG_LEVEL", "debug")
    assert run(["config", "show", "--config", str(file), "--state-dir", "/s", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["file"] == str(file)
    assert shown["settings"]["http.port"] == {"value": 99, "source": "file", "default": 8080}
    assert shown["settings"]["log.level"] == {"value": "debug", "source": "env", "default": "info"}
    assert shown["settings"]["state_dir"]["source"] == "flag"
    assert run(["config", "show", "--config", str(file)]) == 0
    assert "http.port                         99" in capsys.readouterr().out


def test_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "0.1.0"


def test_version_equals_the_projects() -> None:
    import tomllib

    from daemon import __version__

    project = tomllib.loads((Path(cli.__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["version"] == __version__


def test_status_without_a_daemon_says_how_to_start_one(capsys: pytest.CaptureFixture[str], short_dir: Path) -> None:
    assert run(["status", "--state-dir", str(short_dir)]) == 78
    err = capsys.readouterr().err
    assert "no daemon answers on" in err
    assert "bayard serve" in err


def test_setting_without_a_value_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--set", "http.port"]) == 2
    assert "is no KEY=VALUE" in capsys.readouterr().err


def test_error_of_the_daemon_keeps_its_class_and_hint() -> None:
    body = json.dumps({"code": "not_found", "message": "there is no worker 'x'.", "hint": "Workers: w."}).encode()
    error = refusal_of(404, body)
    assert type(error) is NotFound
    assert str(error) == "not_found: there is no worker 'x'. Workers: w."
    assert type(refusal_of(500, b'{"error": {"code": "invalid_configuration", "message": "m"}}')) is ConfigError
    assert "status 502 and nothing readable" in refusal_of(502, b"<html>").message


@pytest.mark.parametrize(
    "command",
    ["models list", "plan list", "schedule list", "tenants list", "keys list", "workers list", "status", "config show"],
)
def test_every_command_finds_the_daemon_by_the_same_flags(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert all(flag in out for flag in ("--config", "--state-dir", "--run-dir"))


@pytest.mark.parametrize("command", ["models show", "plan activate", "schedule remove", "keys revoke", "models import"])
def test_argument_that_is_no_text_is_refused_in_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "a\udcff"]) == 1
    assert capsys.readouterr().err == (
        "bayard: invalid_parameter: the argument 'a\\udcff' is not valid UTF-8. "
        "Rename the file, or correct the argument.\n"
    )


def test_error_does_not_reach_the_terminal_with_control_characters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["serve", "--config", f"{tmp_path}/\x1b[31m\x9b.toml"]) == 78
    err = capsys.readouterr().err
    assert err.removesuffix("\n").isprintable()
    assert "\\x1b[31m\\x9b.toml is not there" in err
