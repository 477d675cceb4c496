"""Worker logs: bounded, the newest lines kept, the start before kept too."""

from __future__ import annotations

from pathlib import Path

from daemon.workers.worker_log import STARTS_KEPT, WorkerLog, earlier, last_lines


def test_log_stays_below_its_bound_and_keeps_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    log = WorkerLog(str(path), 8192)
    for number in range(5000):
        log.write(f"line {number}\n".encode())
        assert path.stat().st_size <= 8192
    log.close()
    lines = path.read_text().splitlines()
    assert lines[0].startswith("[bayard: older lines were dropped")
    assert lines[-1] == "line 4999"
    numbers = [int(line.split()[1]) for line in lines[1:]]
    assert numbers == list(range(numbers[0], 5000))


def test_one_huge_write_is_cut_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    log = WorkerLog(str(path), 4096)
    log.write(b"x" * 100_000 + b"end")
    log.close()
    assert path.stat().st_size <= 4096
    assert path.read_bytes().endswith(b"xend")


def test_next_starts_keep_the_logs_before_and_no_more_than_some(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    for start in range(STARTS_KEPT + 3):
        log = WorkerLog(str(path), 4096)
        log.write(f"start {start}\n".encode())
        log.close()
    newest = STARTS_KEPT + 2
    told = [Path(earlier(str(path), start)).read_text() for start in range(STARTS_KEPT + 1)]
    assert told == [f"start {newest - start}\n" for start in range(STARTS_KEPT + 1)]
    assert len(list(tmp_path.iterdir())) == STARTS_KEPT + 1


def test_folder_that_cannot_be_written_loses_lines_only(tmp_path: Path) -> None:
    log = WorkerLog(str(tmp_path / "none" / "w.log"), 4096)
    log.write(b"lost\n")
    log.close()
    assert log.failure is not None


def test_last_lines_are_whole_and_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    path.write_text("a\n\nb\nc\n")
    assert last_lines(path, 2) == ("b", "c")
    assert last_lines(tmp_path / "none.log") == ()
