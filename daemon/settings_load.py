"""Reading settings from their five sources, and listing them again with their source."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from daemon import settings_paths
from daemon.settings import Settings, Source
from daemon.settings_stored import NEVER, read_stored
from engine.errors import ConfigError

CONFIG_VARIABLE = "BAYARD_CONFIG"
# Variables that are no settings of the daemon: they belong to tests, tools and the engine's own process.
OTHER_PREFIXES = tuple(
    f"BAYARD_{word}" for word in ("CONFIG", "TEST_", "CPU_", "KERNEL", "ENGINE_", "DEMO_", "BENCH_", "CALIBRATE_")
)


@dataclass(frozen=True, slots=True)
class SettingRow:
    key: str
    value: Any  # JSON-able; secrets already hidden
    default: Any
    source: Source
    variable: str
    description: str


def setting_fields() -> dict[str, FieldInfo]:
    """Every key in dotted form with its field, in the order of the file."""
    found: dict[str, FieldInfo] = {}
    for name, info in Settings.model_fields.items():
        section = info.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            found.update({f"{name}.{key}": inner for key, inner in section.model_fields.items()})
        else:
            found[name] = info
    return found


def variable_of(key: str) -> str:
    return "BAYARD_" + key.upper().replace(".", "_")


def load_settings(
    config_path: Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    stored: Mapping[str, Any] | None = None,
) -> Settings:
    """Read and check everything.

    A flag whose value is None was not given. stored: in the place of what was changed through the admin API.
    Raises: ConfigError for an unreadable file, an unknown key (naming the nearest) or a bad value (naming its source).
    """
    env = os.environ if env is None else env
    fields = setting_fields()
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}

    path, content = _read_file(config_path, env)
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    in_file, in_environment = _flatten(content), _from_environment(env, fields)
    if stored is None:
        stored = read_stored(_state_dir_of((given, in_environment, in_file), env))
    layers = (
        (Source.FILE, in_file),
        (Source.ADMIN, {key: value for key, value in stored.items() if key not in NEVER}),
        (Source.ENV, in_environment),
        (Source.FLAG, given),
    )
    for source, layer in layers:
        for key, value in layer.items():
            if key not in fields:
                raise _unknown(key, source, path, fields)
            values[key] = value
            sources[key] = source

    _fill_paths(values, sources, path, env)
    try:
        settings = Settings.model_validate(_nest(values))
    except ValidationError as error:
        raise _invalid(error, sources, path) from error
    settings._sources.update(sources)
    settings._file = path
    settings._flags.update({key: value for key, value in (flags or {}).items() if value is not None})
    return settings


def setting_rows(settings: Settings) -> list[SettingRow]:
    """Every setting with its effective value and source; secrets hidden."""
    rows = []
    for key, info in setting_fields().items():
        node: Any = settings
        for part in key.split("."):
            node = getattr(node, part)
        default = None if info.is_required() else info.get_default()
        rows.append(
            SettingRow(
                key, _plain(node), _plain(default), settings.source_of(key), variable_of(key), info.description or ""
            )
        )
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return "********" if value.get_secret_value() else ""
    if isinstance(value, Path):
        return str(value)
    return value


def _read_file(config_path: Path | None, env: Mapping[str, str]) -> tuple[Path | None, dict[str, Any]]:
    named = config_path or (Path(env[CONFIG_VARIABLE]) if env.get(CONFIG_VARIABLE) else None)
    path = named or settings_paths.default_config_file(env)
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if named is None:
            return None, {}
        raise ConfigError(f"the settings file {path} is not there.", "Name an existing file with --config.") from error
    except PermissionError as error:
        raise ConfigError(f"the settings file {path} is not readable.", "Check its owner and mode.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file {path} is not valid TOML: {error}.", "Correct that line.") from error
    except OSError as error:
        raise ConfigError(
            f"the settings file {path} could not be read: {error.strerror}.", "Check the path."
        ) from error


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}.") or {f"{prefix}{key}": value})
        else:
            flat[f"{prefix}{key}"] = value
    # an empty table of a known section says nothing and is no mistake
    return {key: value for key, value in flat.items() if not (value == {} and key in Settings.model_fields)}


def _from_environment(env: Mapping[str, str], fields: Mapping[str, FieldInfo]) -> dict[str, str]:
    by_variable = {variable_of(key): key for key in fields}
    found: dict[str, str] = {}
    for name, value in env.items():
        if not name.startswith("BAYARD_") or name.startswith(OTHER_PREFIXES):
            continue
        if name not in by_variable:
            near = difflib.get_close_matches(name, by_variable, n=1)
            hint = f"Did you mean {near[0]}?" if near else "`bayard config show` lists the settings."
            raise ConfigError(f"the environment variable {name} is no setting.", hint)
        found[by_variable[name]] = value
    return found


def _state_dir_of(layers: tuple[Mapping[str, Any], ...], env: Mapping[str, str]) -> Path:
    """As the first layer that names it says."""
    named = next((layer["state_dir"] for layer in layers if str(layer.get("state_dir", "")).strip()), None)
    return Path(named or settings_paths.default_state_dir(env)).expanduser().absolute()


def _fill_paths(
    values: dict[str, Any], sources: Mapping[str, Source], path: Path | None, env: Mapping[str, str]
) -> None:
    for key in ("state_dir", "run_dir", "admin_socket"):
        if key in values and not str(values[key]).strip():  # it would be the folder one happens to stand in
            raise ConfigError(
                f"{_where(key, sources[key], path)} sets {key} to nothing.", "Name a folder, or leave it out."
            )
    state_dir = Path(values.setdefault("state_dir", settings_paths.default_state_dir(env))).expanduser().absolute()
    run_dir = Path(values.setdefault("run_dir", settings_paths.default_run_dir(env, state_dir)))
    values.setdefault("admin_socket", run_dir / "admin.sock")


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, leaf = key.split(".")
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return nested


def _where(key: str, source: Source, path: Path | None) -> str:
    if source is Source.FILE:
        return f"{path}"
    if source is Source.ADMIN:
        return "the admin API"
    return variable_of(key) if source is Source.ENV else "the command line" if source is Source.FLAG else "the defaults"


def _unknown(key: str, source: Source, path: Path | None, fields: Mapping[str, FieldInfo]) -> ConfigError:
    near = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
    hint = f"Did you mean {near[0]}?" if near else "`bayard config show` lists the settings."
    return ConfigError(f"{_where(key, source, path)} sets {key}, which is no setting.", hint)


def _invalid(error: ValidationError, sources: Mapping[str, Source], path: Path | None) -> ConfigError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    where = _where(key, sources.get(key, Source.DEFAULT), path)
    reason = first["msg"].removeprefix("Value error, ").rstrip(".")
    shown = "********" if key == "database_url" else repr(first["input"])
    return ConfigError(f"{where} sets {key} to {shown}: {reason}.", "docs/settings.md describes every setting.")
