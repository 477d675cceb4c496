"""The unit and its two companions, judged by systemd's own tools in a tree made for the purpose."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SYSTEMD = Path(__file__).resolve().parents[3] / "packaging" / "systemd"
EXPOSURE_LIMIT_TENTHS = 20  # systemd's score of how much a service could harm: 0 none, 100 everything


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on this machine")
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root folder with the files where the package would put them."""
    for source, target in (
        ("bayard.service", "etc/systemd/system/bayard.service"),
        ("bayard.sysusers", "usr/lib/sysusers.d/bayard.conf"),
        ("bayard.tmpfiles", "usr/lib/tmpfiles.d/bayard.conf"),
    ):
        (tmp_path / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SYSTEMD / source, tmp_path / target)
    for executable in ("opt/bayard/bin/python", "bin/kill"):
        (tmp_path / executable).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / executable).write_text("#!/bin/sh\n")
        (tmp_path / executable).chmod(0o755)
    return tmp_path


def verify(tree: Path) -> subprocess.CompletedProcess[str]:
    # Without --recursive-errors=no the exit status is 0 even for unknown keys.
    command = [tool("systemd-analyze"), "verify", "--man=no", "--recursive-errors=no", f"--root={tree}"]
    return subprocess.run([*command, "bayard.service"], capture_output=True, text=True, check=False, timeout=30)


def test_unit_when_verified_has_no_complaint(tree: Path) -> None:
    result = verify(tree)
    assert (result.returncode, result.stderr.strip()) == (0, "")


def test_verify_when_a_key_is_misspelt_fails(tree: Path) -> None:
    unit = tree / "etc/systemd/system/bayard.service"
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSeconds="))
    assert verify(tree).returncode != 0


def test_unit_exposure_stays_within_limit() -> None:
    command = [tool("systemd-analyze"), "security", "--offline=true", f"--threshold={EXPOSURE_LIMIT_TENTHS}"]
    result = subprocess.run(
        [*command, "./bayard.service"], cwd=SYSTEMD, capture_output=True, text=True, check=False, timeout=30
    )
    assert result.returncode == 0, result.stdout[-300:]


def test_sysusers_then_tmpfiles_make_user_and_folders(tree: Path) -> None:
    subprocess.run([tool("systemd-sysusers"), f"--root={tree}", "bayard.conf"], check=True, timeout=30)
    users = (tree / "etc/passwd").read_text()
    assert "bayard:x:" in users
    assert "/var/lib/bayard" in users
    groups = {line.split(":")[0]: line.split(":")[3] for line in (tree / "etc/group").read_text().splitlines()}
    assert groups["render"] == groups["video"] == "bayard"
    if os.geteuid() != 0:
        pytest.skip("only root may give the folders to that user")
    user = next(line.split(":") for line in users.splitlines() if line.startswith("bayard:"))
    command = [tool("systemd-tmpfiles"), f"--root={tree}", "--create", "bayard.conf"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert result.returncode == 0, result.stderr
    models = tree / "var/lib/bayard/models"
    assert models.stat().st_mode & 0o777 == 0o750
    assert models.stat().st_uid == int(user[2])


def test_unit_says_what_the_daemon_relies_on() -> None:
    unit = configparser.ConfigParser(strict=False, delimiters="=", interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(SYSTEMD / "bayard.service")
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) >= 10
    assert service["OOMPolicy"] == "continue"
    assert service["KillMode"] == "mixed"
    assert service["RestartPreventExitStatus"] == "78"
