"""The benchmark of guesses and grammars runs, and counts what it says."""

from __future__ import annotations

import json

from bench.guesses import CASES, main


def test_a_short_run_gives_a_line_a_case(smollm_path, capsys):
    words = ["--model", str(smollm_path), "--batches", "1", "--guesses", "0,3", "--tokens", "12", "--threads", "2"]
    assert main([*words, "--always"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["case"], line["guesses"]) for line in lines] == [(case, n) for case in CASES for n in (0, 3)]
    for line in lines:
        assert line["tokens_s"] > 0
        assert line["right"] <= line["guessed"]
        assert (line["guessed"] == 0) == (line["guesses"] == 0) or line["case"] == "free"
