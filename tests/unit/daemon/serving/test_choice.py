"""ChoiceDecoder and LogprobAligner: the same text and entries however the tokens are cut into deltas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from daemon.serving.aligner import finite
from daemon.serving.choice import ChoiceDecoder
from daemon.serving.events import ChoiceDone, LogprobEntry, TextDelta
from engine.messages import TokenDelta, TokenLogprob
from tests.fakes.fake_text import ByteText

TEXTS = st.text(alphabet="ab<é東🙂\n", max_size=30)


def decode(data: bytes, cuts: list[int], stops: tuple[str, ...]) -> tuple[str, list[LogprobEntry], str | None]:
    """The text, its entries and the stop string that ended it."""
    decoder = ChoiceDecoder(0, ByteText(), stops, logprobs=True, continuing=False)  # type: ignore[arg-type]
    events, at = [], 0
    for end in [*sorted(cuts), len(data)]:
        ids = list(data[at:end])
        at = max(at, end)
        events += decoder.feed(TokenDelta("r", ids, [TokenLogprob(i, -1.0) for i in ids]))
        if decoder.done:
            break
    else:
        events += decoder.finish("length")
    *deltas, done = events
    assert isinstance(done, ChoiceDone)
    assert done.reason == ("length" if done.stop is None else "stop")
    text, entries = "", []
    for delta in deltas:
        assert isinstance(delta, TextDelta)
        text += delta.text
        entries += delta.logprobs or ()
    return text, entries, done.stop


@given(
    TEXTS, st.lists(st.integers(0, 60), max_size=8), st.lists(st.sampled_from(["a<", "<é", "東🙂", "ba"]), max_size=2)
)
def test_choice_however_cut_gives_the_same_text_and_entries(text: str, cuts: list[int], stops: list[str]) -> None:
    data = text.encode()
    cuts = [min(cut, len(data)) for cut in cuts]
    got = decode(data, cuts, tuple(stops))
    assert got == decode(data, list(range(len(data))), tuple(stops))
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(found)[1]] if found else text
    assert got[0] == expected
    assert (got[2] is not None) == bool(found)
    assert b"".join(entry.token_bytes for entry in got[1]).decode() == expected


def test_choice_incomplete_last_character_is_dropped_but_its_entry_is_told() -> None:
    text, entries, _ = decode("é".encode()[:1], [], ())
    assert text == ""
    assert [entry.token_bytes for entry in entries] == [b"\xc3"]


def test_logprob_that_is_no_number_for_json_becomes_the_known_impossible() -> None:
    assert [finite(value) for value in (-1.5, float("-inf"), float("nan"), float("inf"))] == [-1.5] + [-9999.0] * 3
