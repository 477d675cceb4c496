"""EncoderCore: every text ends exactly once, in fair order, whatever happens to it."""

from __future__ import annotations

import struct

import pytest
import torch

from engine.encoder.core import EncoderCore
from engine.errors import WorkerError
from engine.messages import Embed, FinishReason, Knobs, SamplingParams, Submit, TokenDelta


class Lengths:
    """A model whose vector of a text is (its length, its first token)."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.broken = False

    def embed(self, texts):
        if self.broken:
            raise RuntimeError("out of something")
        self.batches.append([text[0] for text in texts])
        vectors = torch.tensor([[float(len(text)), float(text[0])] for text in texts])
        vectors[vectors[:, 1] == 66] = float("nan")
        return vectors


def made(**knobs: int) -> tuple[EncoderCore, Lengths]:
    model = Lengths()
    settings = Knobs(**({"max_running": 4, "token_budget": 20} | knobs))
    return EncoderCore(model, knobs=settings, max_context_tokens=16, vocab_size=100), model


def text(name: str, length: int = 3, first: int = 1, **more: object) -> Embed:
    return Embed(name, [first] * length, **more)


def run(core: EncoderCore) -> dict[str, TokenDelta]:
    found: dict[str, TokenDelta] = {}
    while core.has_work():
        for delta in core.step().deltas:
            assert delta.request_id not in found, "a second terminal delta"
            assert delta.finish is not None
            found[delta.request_id] = delta
    return found


def test_texts_end_with_their_vectors_and_usage():
    core, _ = made()
    for index in range(9):
        core.embed(text(f"t{index}", length=index + 1, first=index))
    found = run(core)
    assert {d.finish for d in found.values()} == {FinishReason.STOP}
    assert [struct.unpack("<2f", found[f"t{i}"].embedding) for i in range(9)] == [(i + 1.0, float(i)) for i in range(9)]
    assert [found[f"t{i}"].usage.prompt_tokens for i in range(9)] == list(range(1, 10))
    assert core.stats().prompt_tokens_total == 45


def test_batch_keeps_to_the_knobs_but_a_text_wider_than_the_budget_runs_alone():
    core, model = made(token_budget=8)
    for index, length in enumerate((3, 3, 3, 12, 3)):
        core.embed(text(f"t{index}", length=length, first=index))
    run(core)
    assert [sorted(batch) for batch in model.batches] == [[0, 1], [2], [3], [4]]


def test_one_tenants_text_does_not_wait_for_anothers_many():
    core, model = made(max_running=2)
    for index in range(50):
        core.embed(text(f"busy{index}", first=1, tenant="busy"))
    core.step()
    core.embed(text("one", first=2, tenant="quiet"))
    core.step()
    assert 2 in model.batches[-1]


def test_more_urgent_texts_come_first_and_weights_share_the_rest():
    core, model = made(max_running=3)
    for index in range(12):
        core.embed(text(f"a{index}", first=1, tenant="a", priority=1))
        core.embed(text(f"b{index}", first=2, tenant="b", weight=2.0, priority=1))
    core.embed(text("urgent", first=3))
    run(core)
    assert 3 in model.batches[0]
    early = [first for batch in model.batches[:4] for first in batch]
    assert early.count(2) == pytest.approx(2 * early.count(1), abs=2)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (Embed("x", []), "invalid_parameter"),
        (Embed("x", [1] * 17), "context_length_exceeded"),
        (Embed("x", [100]), "invalid_parameter"),
        (Embed("x", [-1]), "invalid_parameter"),
        (Embed("x", [1], adapter="other"), "invalid_parameter"),
        (Embed("x", [66]), "numerical_fault"),
        (Embed("x", [1], deadline_s=-1.0), "deadline_exceeded"),
        (Embed("x", [1], deadline_s=float("nan")), "invalid_parameter"),
        (Embed("x", [1], weight=float("inf")), "invalid_parameter"),
        (Submit("x", [1], SamplingParams(max_tokens=1)), "invalid_parameter"),
    ],
)
def test_text_that_cannot_be_embedded_ends_with_its_reason_and_leaves_others_alone(bad, code):
    core, _ = made()
    core.embed(text("good"))
    core.add(bad) if isinstance(bad, Submit) else core.embed(bad)
    found = run(core)
    assert found["x"].finish is FinishReason.ERROR
    assert found["x"].error.code == code
    assert found["good"].finish is FinishReason.STOP


def test_aborted_text_ends_once_and_is_not_computed():
    core, model = made()
    core.embed(text("keep", first=1))
    core.embed(text("gone", first=2))
    core.abort("gone")
    core.abort("gone")
    core.abort("never came")
    found = run(core)
    assert found["gone"].finish is FinishReason.ABORT
    assert model.batches == [[1]]
    core.embed(text("gone", first=3))  # its name is free again
    assert run(core)["gone"].finish is FinishReason.STOP


def test_step_that_fails_ends_its_texts_and_the_third_in_a_row_the_worker():
    core, model = made()
    model.broken = True
    for index in range(3):
        core.embed(text(f"t{index}"))
        if index == 2:
            with pytest.raises(WorkerError, match="3 steps failed"):
                core.step()
        else:
            (delta,) = core.step().deltas
            assert (delta.finish, delta.error.code) == (FinishReason.ERROR, "worker_error")
