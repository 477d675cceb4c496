"""Thinking apart from answering."""

from __future__ import annotations

import pytest

from engine.text.reasoning import ReasoningSplitter


def split(text: str, **options) -> tuple[str, str]:
    splitter = ReasoningSplitter(**options)
    found = [splitter.feed(character) for character in text] + [splitter.flush()]
    return "".join(part.reasoning for part in found), "".join(part.content for part in found)


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nhmm\n\nso\n</think>\n\nYes.\n", "hmm\n\nso", "Yes.\n"),
        ("\n<think></think>ok", "", "ok"),
        ("<think>\n\n</think>\n\nok", "", "ok"),
        ("plain answer", "", "plain answer"),
        ("I say <think>no</think>", "", "I say <think>no</think>"),
        ("<think>cut off", "cut off", ""),
        ("<think>a </thin b</think>c", "a </thin b", "c"),
        ("<thi", "", "<thi"),
        ("  ", "", "  "),
        ("", "", ""),
    ],
)
def test_split_of_a_whole_answer(text, reasoning, content):
    assert split(text) == (reasoning, content)


def test_split_begun_in_the_prompt():
    assert split("so\n</think>\nYes", begins_inside=True) == ("so", "Yes")


def test_feed_gives_reasoning_as_it_comes():
    splitter = ReasoningSplitter()
    assert splitter.feed("<think>one ").reasoning == "one "
    assert splitter.feed("two<").reasoning == "two"
    assert splitter.feed("/think>yes").content == "yes"
