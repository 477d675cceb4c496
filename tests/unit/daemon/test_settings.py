"""Settings: four sources, every value knows which; nothing unknown passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daemon.reference import metrics_page, settings_page
from daemon.settings import Source
from daemon.settings_load import load_settings, setting_fields, setting_rows, variable_of
from engine.errors import ConfigError

DOCS = Path(__file__).parents[3] / "docs"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_later_source_wins_and_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "b.toml", 'state_dir = "/s"\n[http]\nhost = "0.0.0.0"\nport = 1\n[grpc]\nport = 9\n')
    settings = load_settings(file, {"BAYARD_HTTP_PORT": "2", "BAYARD_GRPC_PORT": "10"}, {"http.port": 3})
    assert (settings.http.port, settings.source_of("http.port")) == (3, Source.FLAG)
    assert (settings.grpc.port, settings.source_of("grpc.port")) == (10, Source.ENV)
    assert (settings.http.host, settings.source_of("http.host")) == ("0.0.0.0", Source.FILE)
    assert (settings.limits.max_queue, settings.source_of("limits.max_queue")) == (256, Source.DEFAULT)


@pytest.mark.parametrize("key", ["state_dir", "run_dir", "admin_socket"])
def test_folder_of_no_name_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{variable_of(key)} sets {key} to nothing"):
        load_settings(None, {variable_of(key): "", "CONFIGURATION_DIRECTORY": "/none"})


def test_flag_of_none_is_not_given() -> None:
    settings = load_settings(None, {"STATE_DIRECTORY": "/s", "CONFIGURATION_DIRECTORY": "/none"}, {"http.port": None})
    assert settings.source_of("http.port") is Source.DEFAULT


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("[http]\nprot = 1\n", "sets http.prot, which is no setting", "http.port"),
        ("[htpp]\nport = 1\n", "sets htpp.port", "http.port"),
        ("quite_else = 1\n", "quite_else", "bayard config show"),
        ("[http]\nport = 70000\n", "sets http.port to 70000", "docs/settings.md"),
        ("[http]\nport = 'x'\n", "sets http.port to 'x'", "docs/settings.md"),
        ("[log]\nlevel = 'loud'\n", "sets log.level to 'loud'", "docs/settings.md"),
        ("[schedule]\ntimezone = 'Mars/Base'\n", "there is no time zone 'Mars/Base'", "docs/settings.md"),
        ("[workers]\nstall_after_s = -1\n", "sets workers.stall_after_s to -1", "docs/settings.md"),
        ("http = 3\n", "sets http", ""),
        ("[http\n", "is not valid TOML", "Correct"),
    ],
)
def test_file_with_a_mistake_is_refused_naming_it(tmp_path: Path, text: str, said: str, hint: str) -> None:
    file = write(tmp_path / "b.toml", text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file, {})
    assert said in caught.value.message
    assert str(file) in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 78


def test_unknown_variable_is_refused_naming_the_nearest() -> None:
    with pytest.raises(ConfigError, match="BAYARD_HTTP_PROT is no setting") as caught:
        load_settings(None, {"BAYARD_HTTP_PROT": "1"})
    assert "BAYARD_HTTP_PORT" in caught.value.hint


def test_variables_of_tests_and_the_engine_are_let_be(tmp_path: Path) -> None:
    env = {"BAYARD_TEST_GGUF": "x", "BAYARD_CPU_ISA": "avx2", "BAYARD_STATE_DIR": str(tmp_path)}
    assert load_settings(None, env).state_dir == tmp_path


def test_bad_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"BAYARD_HTTP_PORT sets http\.port to 'many'"):
        load_settings(None, {"BAYARD_HTTP_PORT": "many"})


def test_named_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        load_settings(tmp_path / "none.toml", {})
    with pytest.raises(ConfigError, match="is not there"):
        load_settings(None, {"BAYARD_CONFIG": str(tmp_path / "none.toml")})


def test_usual_file_that_is_missing_is_no_mistake(tmp_path: Path) -> None:
    settings = load_settings(None, {"CONFIGURATION_DIRECTORY": str(tmp_path), "STATE_DIRECTORY": str(tmp_path)})
    assert settings.file is None


def test_usual_file_is_read(tmp_path: Path) -> None:
    write(tmp_path / "bayard.toml", "[http]\nport = 99\n")
    settings = load_settings(None, {"CONFIGURATION_DIRECTORY": str(tmp_path), "STATE_DIRECTORY": "/s"})
    assert settings.http.port == 99
    assert settings.file == tmp_path / "bayard.toml"


def test_paths_of_the_service_are_systemds() -> None:
    env = {"STATE_DIRECTORY": "/var/lib/x", "RUNTIME_DIRECTORY": "/run/x", "CONFIGURATION_DIRECTORY": "/none"}
    settings = load_settings(None, env)
    assert (settings.state_dir, settings.run_dir) == (Path("/var/lib/x"), Path("/run/x"))
    assert settings.admin_socket == Path("/run/x/admin.sock")


def test_paths_of_a_person_are_in_xdg_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    settings = load_settings(None, {"XDG_STATE_HOME": "/h/state", "XDG_RUNTIME_DIR": "/run/u", "HOME": "/h"})
    assert (settings.state_dir, settings.run_dir) == (Path("/h/state/bayard"), Path("/run/u/bayard"))


def test_sockets_follow_a_chosen_state_folder(tmp_path: Path) -> None:
    settings = load_settings(None, {}, {"state_dir": tmp_path})
    assert settings.run_dir == tmp_path / "run"
    assert settings.admin_socket == tmp_path / "run" / "admin.sock"


def test_socket_path_too_long_is_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match="the path has 131 bytes; a unix socket allows 107"):
        load_settings(None, {}, {"state_dir": "/s", "admin_socket": "/" + "x" * 130})


def test_secret_is_never_shown(tmp_path: Path) -> None:
    url = "postgresql://bayard:hunter2@db/bayard"
    settings = load_settings(None, {"BAYARD_DATABASE_URL": url}, {"state_dir": tmp_path})
    assert settings.database_url.get_secret_value() == url
    shown = json.dumps([row.value for row in setting_rows(settings)])
    assert "hunter2" not in shown
    assert "hunter2" not in repr(settings)
    assert "********" in shown


def test_every_key_has_a_description_and_its_own_variable() -> None:
    fields = setting_fields()
    assert all(info.description for info in fields.values())
    assert len({variable_of(key) for key in fields}) == len(fields)


def test_rows_list_every_key_as_json(tmp_path: Path) -> None:
    rows = setting_rows(load_settings(None, {}, {"state_dir": tmp_path}))
    assert [row.key for row in rows] == list(setting_fields())
    json.dumps([row.value for row in rows])


@pytest.mark.parametrize(("name", "made"), [("settings.md", settings_page), ("metrics.md", metrics_page)])
def test_generated_page_is_current(name: str, made: object) -> None:
    assert callable(made)
    assert (DOCS / name).read_text() == made(), "run: python -m daemon.reference docs"
