"""Activations rounded as E4M3 codes are, as numbers: beside the codes, and beside torch's own conversion."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed: `make test` installs it for these tests")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

from engine.kernels import reference  # noqa: E402
from engine.kernels.triton.quantise_rows import quantise_rows  # noqa: E402
from engine.kernels.triton.rounded_rows import rounded, rounded_gate, rounded_norm  # noqa: E402


def test_every_float16_is_the_nearest_e4m3_of_a_wider_range() -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16).to(DEVICE)
    got = rounded(every.float().view(16, -1)).view(-1)
    normal = torch.isfinite(every) & (every.abs() >= 2.0**-6) & (every.abs() <= 448)
    assert torch.equal(got[normal], every[normal].float().to(torch.float8_e4m3fn).float())
    finite = torch.isfinite(every)
    assert torch.equal(torch.isnan(got), torch.isnan(every))
    assert torch.equal(got[torch.isinf(every)], every[torch.isinf(every)].float())
    assert bool(((got - every).abs()[finite] <= every.float().abs()[finite] / 16).all())


@pytest.mark.parametrize("group", [0, 128])
def test_numbers_are_what_codes_say_but_for_those_that_vanish_beside_others(group: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 512, device=DEVICE) * torch.tensor([1e-4, 1e-3, 1.0, 50.0, 300.0, 1e4], device=DEVICE)[:, None]
    x[2, ::5] *= 1e-6
    codes, _ = quantise_rows(x, "fp8", group=group)
    wide = codes.scales.repeat_interleave(512 // codes.scales.shape[1], dim=1)
    said = codes.codes.float() * wide
    got = rounded(x)
    small = x.abs() < wide * 2.0**-6
    assert torch.equal(got[~small], said[~small])
    assert bool(((got - said).abs() <= wide * 2.0**-9).all())
    assert int(small.sum()) > 50


def test_norms_and_gates_round_what_they_would_have_stored() -> None:
    torch.manual_seed(1)
    x, residual = (torch.randn(3, 200, device=DEVICE).half() for _ in range(2))
    weight = torch.rand(200, device=DEVICE) + 0.5
    got, none = rounded_norm(x, None, weight, 1e-5)
    assert none is None
    torch.testing.assert_close(got, rounded(reference.rms_norm(x, weight, 1e-5)), rtol=0.13, atol=0)
    assert float((got == rounded(reference.rms_norm(x, weight, 1e-5))).float().mean()) > 0.98
    added, total = rounded_norm(x, residual, weight, 1e-5)
    assert total is not None
    assert torch.equal(total, x + residual)
    assert float((added == rounded(reference.add_rms_norm(x, residual, weight, 1e-5)[0])).float().mean()) > 0.98
    gates = torch.randn(3, 400, device=DEVICE).half()
    for name, truth in (("silu", reference.silu_mul(gates)), ("gelu_tanh", reference.gelu_mul(gates))):
        assert float((rounded_gate(gates, name) == rounded(truth)).float().mean()) > 0.98
