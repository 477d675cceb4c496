"""The state lock: one owner, named to the next."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from daemon.store.lock import StateLock, lock_holder
from engine.errors import ConfigError, StateInUse

HOLD = (
    "import sys, time; from pathlib import Path; from daemon.store.lock import StateLock;"
    "lock = StateLock.acquire(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
)


def test_second_owner_is_refused_naming_the_first(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=f"in use by process {holder.pid}"):
            StateLock.acquire(tmp_path)
        assert lock_holder(tmp_path) == holder.pid
    finally:
        holder.kill()
        holder.communicate()
    with StateLock.acquire(tmp_path):  # a killed owner leaves nothing in the way
        pass


def test_command_that_ends_soon_is_waited_for(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        threading.Timer(0.5, holder.kill).start()
        begun = time.monotonic()
        with StateLock.acquire(tmp_path, 20.0, tmp_path / "no.sock"):
            assert 0.3 < time.monotonic() - begun < 10
    finally:
        holder.kill()
        holder.communicate()


def test_lock_that_is_not_given_up_may_be_tried_again_unless_a_daemon_answers(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with StateLock.acquire(tmp_path):
        with pytest.raises(StateInUse) as caught:
            StateLock.acquire(tmp_path, 0.2, path)
        assert caught.value.exit_code == 75
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            begun = time.monotonic()
            with pytest.raises(ConfigError, match="in use by process") as refused:
                StateLock.acquire(tmp_path, 20.0, path)
        assert time.monotonic() - begun < 5
        assert refused.value.exit_code == 78


def test_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(3):
        with StateLock.acquire(tmp_path):
            pass
    assert lock_holder(tmp_path) is None


def test_folder_is_made_private(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with StateLock.acquire(folder):
        assert folder.stat().st_mode & 0o007 == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere; the read-only mount is tested with the process")
def test_unwritable_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="cannot be written"):
        StateLock.acquire(tmp_path)


def test_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        StateLock.acquire(tmp_path / "file" / "state")


def test_no_lock_file_has_no_holder(tmp_path: Path) -> None:
    assert lock_holder(tmp_path) is None
