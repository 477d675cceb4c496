"""Speed of a profile by roofline: bytes against bandwidth, operations against rates, plus fixed overheads."""

from __future__ import annotations

from dataclasses import dataclass

from daemon.planning.profile import SpeedEstimate
from daemon.planning.rates import DeviceRates
from daemon.planning.traffic import Traffic, WeightShare, attention_flops, kv_elements_read
from engine.messages import Knobs
from engine.spec.model_spec import ModelSpec

_TYPICAL_PROMPT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step by what they are spent on."""

    weights_s: float
    attention_s: float
    overhead_s: float
    compute_bound: bool

    @property
    def total_s(self) -> float:
        return self.weights_s + self.attention_s + self.overhead_s


class SpeedModel:
    """Predicts steps of one model on one device. Owner: one planning answer."""

    def __init__(self, spec: ModelSpec, traffic: Traffic, rates: DeviceRates, kv_element_bytes: float) -> None:
        self._spec = spec
        self._traffic = traffic
        self._rates = rates
        self._kv_element_bytes = kv_element_bytes

    def step(self, decodes: int, prefill_tokens: int, context_tokens: float, logit_rows: int | None = None) -> StepTime:
        """One step of `decodes` streams at `context_tokens` each beside a prompt slice that starts at nothing."""
        rows = decodes + prefill_tokens
        weights_s = 0.0
        bound_s = 0.0
        for share in self._traffic.dense:
            spent_s, computing = self._linear_s(share, rows, 1.0)
            weights_s += spent_s
            bound_s += spent_s if computing else 0.0
        touched = self._traffic.expert_fraction(rows)
        for share in self._traffic.experts:
            active_rows = rows * self._traffic.experts_per_token / max(self._traffic.num_experts, 1)
            spent_s, computing = self._linear_s(share, active_rows, touched)
            weights_s += spent_s
            bound_s += spent_s if computing else 0.0
        if self._traffic.head is not None:
            head_rows = logit_rows if logit_rows is not None else decodes + (1 if prefill_tokens else 0)
            spent_s, computing = self._linear_s(self._traffic.head, head_rows, 1.0)
            weights_s += spent_s
            bound_s += spent_s if computing else 0.0
        return StepTime(
            weights_s=weights_s,
            attention_s=self._attention_s(decodes, prefill_tokens, context_tokens),
            overhead_s=self._overhead_s(),
            compute_bound=bound_s > weights_s / 2,
        )

    def _overhead_s(self) -> float:
        layers = self._spec.layers
        routed = sum(1 for layer in layers if layer.mlp.num_experts)
        rates = self._rates
        return rates.step_overhead_s + rates.layer_overhead_s * len(layers) + rates.experts_overhead_s * routed

    def _linear_s(self, share: WeightShare, rows: float, touched: float) -> tuple[float, bool]:
        """Seconds of one group of matrices, and whether arithmetic (not reading) sets them."""
        if rows <= 0:
            return 0.0, False
        rate = self._rates.of_kind(share.kind)
        seconds = rate.seconds(
            share.size_bytes * touched, share.elements * touched, rows / touched if touched else rows
        )
        return seconds, seconds > 1.5 * share.size_bytes * touched / self._rates.read_bytes_per_s

    def _attention_s(self, decodes: int, prefill_tokens: int, context_tokens: float) -> float:
        read_bytes = decodes * kv_elements_read(self._spec, context_tokens) * self._kv_element_bytes
        prefill_flops = attention_flops(self._spec, prefill_tokens, prefill_tokens / 2)
        decode_flops = attention_flops(self._spec, decodes, context_tokens)
        decode_s = max(read_bytes / self._rates.kv_rate, decode_flops / self._rates.attention_flops)
        return decode_s + prefill_flops / self._rates.attention_flops

    def prefill_s(self, prompt_tokens: int, chunk_tokens: int) -> float:
        """Seconds until a prompt's first token on an idle worker."""
        full, rest = divmod(prompt_tokens, chunk_tokens)
        seconds = 0.0
        done = 0
        for size in [chunk_tokens] * full + ([rest] if rest else []):
            step = self.step(0, size, 0.0, logit_rows=1)
            earlier_flops = attention_flops(self._spec, size, done)
            seconds += step.total_s + earlier_flops / self._rates.attention_flops
            done += size
        return seconds

    def estimate(self, knobs: Knobs, context_tokens: int) -> SpeedEstimate:
        """The figures a person is shown, at a context that a stream typically has."""
        typical = float(min(context_tokens, 2 * _TYPICAL_PROMPT_TOKENS))
        alone = self.step(1, 0, typical)
        together = self.step(knobs.max_running, 0, typical)
        prompt = min(_TYPICAL_PROMPT_TOKENS, context_tokens)
        first_s = self.prefill_s(prompt, min(knobs.prefill_chunk, knobs.token_budget))
        parts = {
            "arithmetic" if alone.compute_bound else "reading weights": alone.weights_s,
            "attention over the context": alone.attention_s,
            "fixed overhead of a step": alone.overhead_s,
        }
        return SpeedEstimate(
            decode_tok_s=1.0 / alone.total_s,
            decode_ms=alone.total_s * 1e3,
            batch_tok_s=knobs.max_running / together.total_s,
            prefill_tok_s=prompt / first_s,
            first_token_s=first_s,
            limited_by=max(parts, key=lambda part: parts[part]),
            rates_source=self._rates.source,
        )

    def chunk_for(self, target_s: float, decodes: int, smallest: int, largest: int) -> int:
        """The largest power of two of prompt tokens whose step still ends within `target_s`; at least `smallest`."""
        chunk = smallest
        while chunk * 2 <= largest and self.step(decodes, chunk * 2, 1024.0).total_s <= target_s:
            chunk *= 2
        return chunk
