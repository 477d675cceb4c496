"""The comparison names every peer: measured, or skipped with the reason."""

from __future__ import annotations

import json

import pytest

from bench import peer_process, peers


def script(folder, text: str) -> str:
    """An interpreter that prints a text, whatever it is asked."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_peer_missing_everywhere_is_skipped_with_each_reason(tmp_path, smollm_path):
    broken = script(tmp_path, "echo 'ModuleNotFoundError: no such engine' >&2; exit 1")
    line = peers.peer_figures("llamacpp", smollm_path, 2, [broken, str(tmp_path / "nowhere")])
    assert line["peer"] == "llamacpp"
    assert "no such engine" in line["skipped"]
    assert "No such file" in line["skipped"]


def test_peer_is_measured_by_the_first_interpreter_that_works(tmp_path, smollm_path):
    broken = script(tmp_path, "exit 1")
    (tmp_path / "b").mkdir()
    good = script(tmp_path / "b", 'echo noise; echo \'{"peer": "x", "decode_tok_s": 1.5}\'')
    assert peers.peer_figures("llamacpp", smollm_path, 2, [broken, good]) == {"peer": "x", "decode_tok_s": 1.5}


def test_better_takes_the_best_of_each_figure():
    first, second = (
        {"peer": "p", "prefill_tok_s": 5, "decode_tok_s": 9},
        {"peer": "p", "prefill_tok_s": 7, "decode_tok_s": 1},
    )
    assert peers.better(peers.better(None, first), second) == {"peer": "p", "prefill_tok_s": 7, "decode_tok_s": 9}
    assert peers.better(first, {"peer": "p", "skipped": "crashed"}) == first
    assert peers.better({"peer": "p", "skipped": "crashed"}, second) == second


def test_table_shows_ratios_and_reasons():
    lines = [
        {"peer": "ours", "prefill_tok_s": 300.0, "decode_tok_s": 90.0, "streams8_decode_tok_s": 240.0},
        {"peer": "llama.cpp (x)", "prefill_tok_s": 100.0, "decode_tok_s": 30.0},
        {"peer": "transformers", "skipped": "not here"},
    ]
    text = peers.table(lines)
    assert text.count("(3.00x)") == 2
    assert "(8.00x)" in text
    assert "skipped: not here" in text


def test_main_unknown_peer_or_file_is_a_usage_error(smollm_path, capsys):
    for words in (["--gguf", str(smollm_path), "--peers", "ours,gpt"], ["--gguf", "/nowhere.gguf"]):
        with pytest.raises(SystemExit) as caught:
            peers.main(words)
        assert caught.value.code == 2
    assert "gpt" in capsys.readouterr().err


def test_ours_through_a_worker_that_cannot_start_is_skipped_with_its_words(tmp_path, capsys):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + b"\x00" * 100)
    assert peers.main(["--gguf", str(damaged), "--peers", "ours", "--json"]) == 1
    line = json.loads(capsys.readouterr().out)
    assert "damaged.gguf" in line["skipped"]
    assert line["origin"]["bench"] == "peers"


@pytest.mark.slow
def test_ours_through_the_real_worker(smollm_path, capsys, monkeypatch):
    monkeypatch.setattr("bench.worker_figures.TURNS", 1)
    monkeypatch.setattr("bench.worker_figures.STEPS", 8)
    monkeypatch.setattr("bench.worker_figures.PROMPT", list(range(100, 132)))
    assert peers.main(["--gguf", str(smollm_path), "--threads", "1", "--peers", "ours", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["peer"] == "ours"
    assert min(line["prefill_tok_s"], line["decode_tok_s"], line["streams8_decode_tok_s"]) > 0
    assert line["rss_bytes"] > 50_000_000


def test_peer_process_prints_one_line(monkeypatch, capsys):
    monkeypatch.setitem(peer_process.PEERS, "fake", lambda path, threads: (f"fake {path}", 2.0, 0.5))
    peer_process.main("fake", "m.gguf", "3")
    line = json.loads(capsys.readouterr().out)
    rss = line.pop("peak_rss_bytes")
    assert line == {"peer": "fake m.gguf", "threads": 3, "prefill_tok_s": 256.0, "decode_tok_s": 128.0}
    assert rss > 1_000_000
