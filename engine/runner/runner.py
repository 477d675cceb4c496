"""ModelRunner: from a step's chunks to its sampled tokens, on any device.

launch() returns as soon as the work is queued; LaunchedStep.wait() gives the tokens. On a device that runs behind the
caller's back a step whose tokens the device can choose by itself never waits for the host: they go from the device's
pool into the next step, and a pinned copy of them follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

import numpy as np
import torch

from engine.batch import ForwardBatch, GroupMeta
from engine.devices import Device
from engine.kernels import registry
from engine.kernels.registry import OpQuery
from engine.kv.layout import PageLayout
from engine.layers.pooling import unit
from engine.runner.constrain import fill_masks
from engine.runner.direct import DirectDecode, WholeStep, is_plain_decode
from engine.runner.draw import DrawTokens, draw, draw_once, plan_draw, reader
from engine.runner.forward_model import EmbeddingModel, ForwardModel
from engine.runner.graphs import DecodeGraphs, bucket_of
from engine.runner.inputs import Ints, SlotTables, StepArrays, build_arrays
from engine.runner.launched import LaunchedStep, by_id
from engine.runner.sampler import Sampled, sample
from engine.runner.step_graphs import MOST_LOGITS, StepGraphs
from engine.runner.token_counts import TokenCounts
from engine.runner.warm_up import WarmUp
from engine.scheduler.chunk import ScheduledChunk
from engine.scheduler.request import PENDING, Request
from engine.speculative import accepted

FIRST_POOL = 4096  # places for last tokens; growing past it captures every graph again


class ModelRunner:
    def __init__(
        self,
        model: ForwardModel,
        layout: PageLayout,
        kv_views: Sequence[torch.Tensor],
        device: Device,
        max_context_tokens: int,
        vocab_size: int,
        *,
        embeds: bool = False,
        adapters: Mapping[str, int] | None = None,
    ) -> None:
        """embeds: the model states how its texts become vectors. adapters: by name, the numbers its rows have."""
        self.adapters = dict(adapters or {})
        self.embeds = embeds and isinstance(model, EmbeddingModel)
        self.model = model
        self._vocab_size = vocab_size
        self._logits: torch.Tensor | None = None  # [largest size, vocab] float32
        self.layout = layout
        self.device = device
        self.tables = SlotTables(layout, max_context_tokens)
        self._kv_views = kv_views
        self._pool = torch.zeros(FIRST_POOL, dtype=torch.int32, device=device.torch_device)
        query = OpQuery(device.torch_device.type, "float32", capabilities=device.capabilities.names())
        self._pick_greedy: Callable[[torch.Tensor], torch.Tensor] = registry.select("pick_greedy", query).run
        self._newest_tokens = registry.select("newest_tokens", query).run
        self._keep_tokens = registry.select("keep_tokens", query).run
        self._draw_tokens: DrawTokens = registry.select("draw_tokens", query).run
        chooses = registry.select("choose_tokens", query)
        self._choose_one = chooses.run if chooses.name == "cpu" else None  # in place of torch's own ops, row by row
        self._counts = TokenCounts(device, vocab_size)
        recorded = getattr(model, "recorded", None)
        self._direct: DirectDecode | None = None
        if not device.runs_behind and isinstance(recorded, WholeStep):
            self._direct = DirectDecode(recorded, layout, kv_views, max_context_tokens)
        self._warm_up: WarmUp | None = None
        self.graphs: DecodeGraphs | None = None
        self.adapted_graphs: DecodeGraphs | None = None
        self.step_graphs: StepGraphs | None = None
        if device.capabilities.graphs and getattr(model, "replayable", True):
            made = (self._forward_greedy, layout, kv_views, device, self.tables.max_blocks)
            self.graphs = DecodeGraphs(*made)
            most = getattr(model, "captured_rows", None)
            self.step_graphs = StepGraphs(self._forward_picked, *made[1:], most_rows=most)
            drawing = partial(draw_once, self._counts, self._draw_tokens, device)
            self._warm_up = WarmUp(model.forward, layout, kv_views, device, max_context_tokens, drawing)
            if self.adapters:  # graphs of their own, so that steps of the base alone cost what they did
                self.adapted_graphs = DecodeGraphs(*made, adapted=True)

    def release(self, request: Request) -> None:
        self.tables.release(request)
        self._counts.release(request)

    @torch.inference_mode()
    def prepare(self, max_batch: int, max_tokens: int = 0) -> bool:
        """Capture the largest decode graph that is missing, then warm prompts' steps up, then capture small steps.

        False: nothing is left. max_tokens: of a step
        """
        for graphs in (self.graphs, self.adapted_graphs):
            bucket = None if graphs is None else graphs.missing(max_batch)
            if graphs is not None and bucket is not None:
                self._ensure_logits(max(max_batch, MOST_LOGITS))
                graphs.prepare(bucket, self._ensure_pool())
                return True
        if self._warm_up is not None and self._warm_up.next():
            return True
        size = None if self.step_graphs is None else self.step_graphs.missing(max_batch, max_tokens)
        if self.step_graphs is None or size is None:
            return False
        self._ensure_logits(max(max_batch, MOST_LOGITS))
        self.step_graphs.prepare(size, self._ensure_pool(), None if self.graphs is None else self.graphs.memory)
        return True

    def forget_graphs(self) -> None:
        """What they hold lies elsewhere now; they are captured again."""
        for graphs in (self.graphs, self.adapted_graphs, self.step_graphs):
            if graphs is not None:
                graphs.forget()

    def launch(self, chunks: list[ScheduledChunk]) -> LaunchedStep:
        """Queue a step. Blocks: on a CPU until it is computed."""
        found = None
        if self._direct is not None and all(is_plain_decode(chunk) for chunk in chunks):
            found = self._direct.run(chunks)
        return self._launch(chunks) if found is None else self._chosen(chunks, *found)

    def _chosen(self, chunks: list[ScheduledChunk], logits: torch.Tensor, largest: list[int]) -> LaunchedStep:
        """What is drawn from logits that the host has already, with each row's largest one's place."""
        requests = [chunk.request for chunk in chunks]
        if all(request.is_plain_greedy and request.grammar is None for request in requests):
            results = [Sampled(token if token >= 0 else None) for token in largest]
        else:
            with torch.inference_mode():
                results = sample(
                    logits,
                    requests,
                    pick_greedy=lambda _: torch.tensor(largest, dtype=torch.int32),
                    choose=self._choose_one,
                )
        found = by_id(requests, results)
        return LaunchedStep(chunks, True, lambda: found)

    @torch.inference_mode()
    def _launch(self, chunks: list[ScheduledChunk]) -> LaunchedStep:
        samplers = [chunk.request for chunk in chunks if chunk.samples]
        draws, drafts = self.device.capabilities.graphs, any(chunk.draft for chunk in chunks)
        # Whether the device needs no host to choose the tokens.
        alone = (
            not drafts and not any(r.embeds for r in samplers) and (draws or all(r.is_plain_greedy for r in samplers))
        )
        decode_only = alone and all(chunk.num_tokens == 1 and chunk.samples for chunk in chunks)
        adapted = any(chunk.request.adapter for chunk in chunks)
        graphs = self.adapted_graphs if adapted else self.graphs
        if decode_only and graphs is not None and graphs.takes(len(chunks)):
            arrays = build_arrays(chunks, self.tables, blocks=self.tables.max_blocks)
            logits = self._ensure_logits(len(chunks))
            picked = graphs.replay(arrays, self._ensure_pool(), self._numbers_of(chunks) if adapted else None)
            if picked is not None:
                return self._drawn(chunks, samplers, logits[: len(chunks)], picked, arrays.slots, in_pool=True)
        picked = None
        small = None if adapted else self._small_step(chunks, samplers)
        if small is not None:
            arrays, logits, picked = small
        else:
            arrays = build_arrays(chunks, self.tables)
            batch, slots = self._upload(arrays, chunks)
            batch.token_ids = self._resolve(batch.token_ids, arrays, slots)
            if adapted:
                batch.adapters = self._adapters_of(chunks)
            if any(request.embeds for request in samplers):
                return self._embedded(batch, chunks, samplers)
            logits = self.model.forward(batch)
        if not samplers:
            return LaunchedStep(chunks, False, dict)
        if alone:
            sampling = arrays.slots[[chunk.samples for chunk in chunks]]
            picked = self._pick_greedy(logits) if picked is None else picked
            return self._drawn(chunks, samplers, logits, picked, sampling, in_pool=False)
        results = by_id(samplers, self._checked(logits, chunks))
        return LaunchedStep(chunks, True, lambda: results)

    def _small_step(
        self, chunks: list[ScheduledChunk], samplers: list[Request]
    ) -> tuple[StepArrays, torch.Tensor, torch.Tensor] | None:
        """The step replayed, with its logits and the largest ones' places; None where there is no graph for it."""
        if self.step_graphs is None or any(request.embeds for request in samplers):
            return None
        wanted = sum(1 + len(chunk.draft) for chunk in chunks if chunk.samples)
        size = self.step_graphs.captured(sum(chunk.num_tokens for chunk in chunks), len(chunks), wanted)
        if size is None or self._logits is None:
            return None
        arrays = build_arrays(chunks, self.tables, blocks=self.tables.max_blocks)
        picked = self.step_graphs.replay(size, arrays, self._ensure_pool())
        return arrays, self._logits[: len(arrays.logit_rows)], picked

    def _numbers_of(self, chunks: list[ScheduledChunk]) -> Ints:
        """Shapes: -> [S]"""
        return np.array([self.adapters.get(chunk.request.adapter, -1) for chunk in chunks], np.int32)

    def _adapters_of(self, chunks: list[ScheduledChunk]) -> torch.Tensor:
        """Shapes: -> [T] index"""
        rows = np.repeat(self._numbers_of(chunks), [chunk.num_tokens for chunk in chunks])
        return self.device.copy_to_device(rows).to(self.device.index_dtype)

    def _embedded(self, batch: ForwardBatch, chunks: list[ScheduledChunk], samplers: list[Request]) -> LaunchedStep:
        """A step in which some requests want their last hidden state; the others' tokens are chosen as ever."""
        assert isinstance(self.model, EmbeddingModel)
        states = self.model.hidden(batch)
        ends = list(accumulate(1 + len(chunk.draft) for chunk in chunks if chunk.samples))
        last = {request.id: end - 1 for request, end in zip(samplers, ends, strict=True)}
        embedding = [request for request in samplers if request.embeds]
        vectors = unit(states[[last[request.id] for request in embedding]]).cpu()
        finite = torch.isfinite(vectors).all(dim=1).tolist()
        results = {
            request.id: Sampled(None, embedding=vector.astype("<f4").tobytes() if is_finite else None)
            for request, vector, is_finite in zip(embedding, vectors.numpy(), finite, strict=True)
        }
        others = [chunk for chunk in chunks if chunk.samples and not chunk.request.embeds]
        if others:
            rows = [row for c in others for row in range(last[c.request.id] - len(c.draft), last[c.request.id] + 1)]
            results |= by_id([c.request for c in others], self._checked(self.model.logits(states[rows]), others))
        return LaunchedStep(chunks, True, lambda: results)

    def _checked(self, logits: torch.Tensor, chunks: list[ScheduledChunk]) -> list[Sampled]:
        """One result a sampling chunk: of a draft, the model's own tokens as far as the guesses were right."""
        sampling = [chunk for chunk in chunks if chunk.samples]
        requests, drafts = [chunk.request for chunk in sampling], [chunk.draft for chunk in sampling]
        if self.device.capabilities.graphs:
            return self._checked_there(logits, requests, drafts)
        return sample(logits, requests, drafts, pick_greedy=self._pick_greedy, choose=self._choose_one)

    def _checked_there(
        self, logits: torch.Tensor, requests: list[Request], drafts: list[tuple[int, ...]]
    ) -> list[Sampled]:
        """The same with every row's token chosen on the device, at once."""
        picked = self._pick_greedy(logits)
        rows = [request for request, draft in zip(requests, drafts, strict=True) for _ in range(1 + len(draft))]
        ahead = [n for draft in drafts for n in range(1 + len(draft))]
        plan = plan_draw(rows, self._counts, ahead, fill_masks(requests, drafts, self._vocab_size))
        logprobs = None
        if plan is not None:
            logprobs = draw(logits, picked, plan, self._counts, self._draw_tokens, self.device)
        found = reader(rows, picked, logprobs, self.device)()
        out, at = [], 0
        for draft in drafts:
            count = 1 + len(draft)
            tokens = [result.token_id for result in found[at : at + count]]
            right = accepted(draft, tokens)
            followed = tuple(token for token in tokens[1 : right + 1] if token is not None)
            out.append(replace(found[at], followed=followed))
            at += count
        return out

    def _forward_greedy(self, batch: ForwardBatch, slots: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
        """One decode step on the device alone: input tokens from the pool where the host has none, results into it."""
        picked = self._forward_picked(batch, slots, pool)
        self._keep_tokens(pool, slots, picked)
        return picked

    def _forward_picked(self, batch: ForwardBatch, slots: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
        """A step whose rows' input tokens come from their places in the pool where the host has none."""
        batch.token_ids = self._newest_tokens(batch.token_ids, slots, pool)
        logits = self.model.forward(batch)
        assert self._logits is not None
        self._logits[: logits.shape[0]].copy_(logits)  # where a draw after the replay finds them
        return self._pick_greedy(logits)

    def _drawn(
        self,
        chunks: list[ScheduledChunk],
        samplers: list[Request],
        logits: torch.Tensor,
        picked: torch.Tensor,
        slots: Ints,
        *,
        in_pool: bool,
    ) -> LaunchedStep:
        """Choose the rows' tokens where more than the largest logit is wanted, and leave them for the next step.

        in_pool: the tokens picked are in the pool already
        """
        masks = fill_masks(samplers, [()] * len(samplers), self._vocab_size)
        plan = plan_draw(samplers, self._counts, (), masks)
        logprobs = None
        if plan is not None:
            logprobs = draw(logits, picked, plan, self._counts, self._draw_tokens, self.device)
        if plan is not None or not in_pool:
            self._ensure_pool()[self.device.copy_to_device(slots).to(self.device.index_dtype)] = picked
        read = reader(samplers, picked, logprobs, self.device)
        return LaunchedStep(chunks, masks is not None, lambda: by_id(samplers, read()))

    def _ensure_logits(self, rows: int) -> torch.Tensor:
        """A buffer that graphs leave their logits in, large enough for the size that rows need."""
        size = bucket_of(rows)
        if self._logits is None or self._logits.shape[0] < size:
            if self._logits is not None:
                self.forget_graphs()  # they hold the old buffer's address
            self._logits = torch.empty(size, self._vocab_size, device=self.device.torch_device)
        return self._logits

    def _resolve(self, token_ids: torch.Tensor, arrays: StepArrays, slots: torch.Tensor) -> torch.Tensor:
        """Tokens that are not on the host yet come from the pool."""
        if int(arrays.token_ids.min()) != PENDING:
            return token_ids
        rows = self.device.copy_to_device(arrays.query_starts[1:] - 1).to(self.device.index_dtype)
        last = token_ids.clone()
        newest = token_ids[rows]
        # Only a sequence's newest token can be pending, and it stands in the sequence's last row.
        last[rows] = torch.where(newest < 0, self._ensure_pool()[slots].to(newest.dtype), newest)
        return last

    def _ensure_pool(self) -> torch.Tensor:
        """The pool has a place a slot, and one more that padding rows share."""
        if self._pool.shape[0] <= self.tables.num_rows:
            larger = torch.zeros(self.tables.num_rows + 1, dtype=torch.int32, device=self._pool.device)
            larger[: self._pool.shape[0]] = self._pool
            self._pool = larger
            self.forget_graphs()  # they hold the old pool's address
        return self._pool

    def _upload(self, arrays: StepArrays, chunks: list[ScheduledChunk]) -> tuple[ForwardBatch, torch.Tensor]:
        send = self.device.copy_to_device

        def index(array: Ints) -> torch.Tensor:
            return send(array).to(self.device.index_dtype)

        offsets = index(arrays.write_offsets)
        groups = [
            GroupMeta(send(table), index(pages), offsets)
            for table, pages in zip(arrays.tables, arrays.write_pages, strict=True)
        ]
        batch = ForwardBatch(
            token_ids=index(arrays.token_ids),
            positions=index(arrays.positions),
            query_starts=send(arrays.query_starts),
            context_lens=send(arrays.context_lens),
            logit_rows=index(arrays.logit_rows),
            groups=groups,
            kv_views=self._kv_views,
            layer_groups=self.layout.layer_groups,
            max_query_tokens=max(chunk.num_tokens for chunk in chunks),
            max_context_tokens=int(arrays.context_lens.max()),
        )
        return batch, index(arrays.slots)
