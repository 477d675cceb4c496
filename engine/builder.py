"""From a WorkerConfig to an EngineCore or an EncoderCore: read, load, size the pages."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from engine.core import EngineCore
from engine.devices import Device, open_device
from engine.devices.cpu import CpuDevice, usable_cpus
from engine.devices.upload import prepare
from engine.encoder.core import EncoderCore
from engine.errors import DoesNotFit, InvalidParameter
from engine.grammar import GrammarCompiler
from engine.kernels.cpu import library as cpu_library
from engine.kv.layout import PageLayout, solve_layout
from engine.messages import WorkerConfig
from engine.models import load_model
from engine.models.adapters import AdapterBank
from engine.models.encoder import load_encoder
from engine.models.loading import KV_NAMES
from engine.models.packed_store import PackedStore
from engine.quantize.on_load import rounding_of
from engine.runner.forward_model import ForwardModel
from engine.spec import read_spec
from engine.spec.adapter_spec import named, read_adapter
from engine.spec.kv_scales import calibrated_scales
from engine.spec.model_spec import ModelSpec
from engine.speculative import Drafter
from engine.speculative.loading import load_draft_model
from engine.speculative.next_token_loading import load_next_token_layer
from engine.text import load_text

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
KV_BYTES = {"fp8": torch.uint8, "int8": torch.int8}  # a byte a number, with a multiplier a head of a token
Progress = Callable[[str, int, int], None]  # stage, done bytes, total bytes


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    core: EngineCore | EncoderCore
    device: Device
    kernels: dict[str, str]
    notes: list[str] = field(default_factory=list)
    num_pages: int = 0
    page_tokens: int = 0
    generates: bool = True
    embedding_dimensions: int = 0  # 0: it does not embed
    vocab_size: int = 0
    adapters: tuple[str, ...] = ()
    read_bytes: int = 0
    read_s: float = 0.0


def build_engine(config: WorkerConfig, progress: Progress) -> BuiltEngine:
    """Blocks for as long as loading takes. Raises: BayardError with what does not fit or is not supported."""
    device = open_device(config.device)
    prepare(device.torch_device)
    notes: list[str] = []
    if device.torch_device.type == "cpu":
        torch.set_num_threads(config.threads or usable_cpus())
        if cpu_library.absent_reason() is None:
            cpu_library.set_threads(config.threads)
    spec = read_spec(config.model_path)
    asked = _dtype("dtype", config.dtype, device.default_dtype)
    dtype = _activations(asked, device, notes)
    if spec.is_encoder:
        return _build_encoder(config, spec, device, dtype, notes, progress)
    kv_dtype = KV_BYTES.get(config.kv_dtype) or _dtype("kv_dtype", config.kv_dtype, _kv_default(config, device, asked))
    layout = solve_layout(spec, bytes_per_element=kv_dtype.itemsize, page_tokens=config.page_tokens)
    max_context = min(config.max_context_tokens or spec.max_context_tokens, spec.max_context_tokens)
    calibrated_kv, why_scales = calibrated_scales(spec, config.kv_scales, KV_NAMES.get(kv_dtype, ""))
    rounding, rounding_notes = rounding_of(
        config.weights,
        spec,
        device.torch_device,
        dtype,
        lambda done, total: progress("learning", done, total),
        device.capabilities.names(),
    )
    notes += rounding_notes
    bank = _bank(config, spec)
    began = time.perf_counter()
    packed = _packed(config, spec, device, dtype)
    model = load_model(
        spec,
        device.torch_device,
        dtype,
        lambda done, total: progress("reading", done, total),
        max_context_tokens=max_context,
        kv_dtype=kv_dtype,
        activation=config.activation,
        capabilities=device.capabilities.names(),
        rounding=rounding,
        adapters=bank,
        packed=packed,
        calibrated_kv=calibrated_kv,
    )
    if why_scales:
        model.kernels["KV multipliers"] = why_scales
    read_s = time.perf_counter() - began
    if _has_own_threads(model.kernels):
        # What is left to torch is small, and its pool spins after each op on the cores that the kernels' pool uses.
        torch.set_num_threads(1)
    if config.max_context_tokens > spec.max_context_tokens:
        notes.append(
            f"A context of {config.max_context_tokens:,} tokens was asked for; {spec.name} was made for "
            f"{spec.max_context_tokens:,}, which is used."
        )
    drafters: list[Drafter] = []
    running: ForwardModel = model
    if config.draft_model_path == config.model_path:  # before the pages are counted: it takes its memory first
        own = load_next_token_layer(config, spec, model, device, dtype, kv_dtype, max_context, progress)
        drafters.append(own)
        running = own.target
    elif config.draft_model_path:
        drafters.append(load_draft_model(config, spec, device, dtype, kv_dtype, max_context, progress))
    num_large = _num_large_pages(config, spec, layout, kv_dtype, max_context, device)
    progress("allocating", 0, num_large * layout.large_page_elements * kv_dtype.itemsize)
    core = EngineCore(
        running,
        layout,
        num_large_pages=num_large,
        kv_dtype=kv_dtype,
        device=device,
        knobs=config.knobs,
        max_context_tokens=max_context,
        vocab_size=spec.vocab_size,
        embeds=spec.pooling is not None,
        adapters=None if bank is None else bank.numbers,
        generates=spec.generates,
        swap_bytes=_swap_bytes(config, layout, kv_dtype),
        grammars=GrammarCompiler(lambda: load_text(spec), spec.vocab_size),
    )
    core.scheduler.speculation.drafters += drafters
    # What loading made lives as long as the process: keep the collector from walking it in the middle of a step.
    gc.collect()
    gc.freeze()
    if core.max_context_tokens < max_context:
        notes.append(
            f"The page pool holds {core.max_context_tokens:,} tokens of one sequence; the context is limited to that "
            f"instead of {max_context:,}."
        )
    return BuiltEngine(
        core,
        device,
        dict(model.kernels),
        notes + list(model.notes) + list(device.notes),
        core.kv.num_pages,
        core.layout.page_tokens,
        spec.generates,
        spec.hidden_size if spec.pooling is not None else 0,
        spec.vocab_size,
        tuple(adapter.name for adapter in config.adapters),
        spec.weight_bytes,
        read_s,
    )


def _packed(config: WorkerConfig, spec: ModelSpec, device: Device, dtype: torch.dtype) -> PackedStore | None:
    """Where the model's packed weights are kept between starts, if the CPU's kernels take them as stored."""
    kept = bool(config.packed_dir) and config.packed_bytes > 0 and config.weights == "stored"
    if not kept or device.torch_device.type != "cpu" or cpu_library.absent_reason() is not None:
        return None
    return PackedStore(Path(config.packed_dir), config.packed_bytes, config.model_path, spec, str(dtype))


def _bank(config: WorkerConfig, spec: ModelSpec) -> AdapterBank | None:
    """The adapters that rows may ask for. Raises: UnsupportedFormat, ConfigError"""
    if not config.adapters:
        return None
    return AdapterBank(spec, [named(read_adapter(Path(one.path)), one.name) for one in config.adapters])


def _build_encoder(
    config: WorkerConfig, spec: ModelSpec, device: Device, dtype: torch.dtype, notes: list[str], progress: Progress
) -> BuiltEngine:
    """An engine without pages. Raises: InvalidParameter for what an encoder cannot have."""
    for name in ("adapters", "draft_model_path", "swap_bytes"):
        if getattr(config, name):
            raise InvalidParameter(f"{spec.name} is an encoder; it can have no {name}.", "Leave it out.", param=name)
    if config.weights != "stored":
        raise InvalidParameter(
            f"{spec.name} is an encoder; its weights are not made into {config.weights}.",
            "Use stored.",
            param="weights",
        )
    began = time.perf_counter()
    model = load_encoder(
        spec,
        device.torch_device,
        dtype,
        lambda done, total: progress("reading", done, total),
        activation=config.activation,
        capabilities=device.capabilities.names(),
    )
    read_s = time.perf_counter() - began
    if _has_own_threads(model.kernels):
        torch.set_num_threads(1)  # as for a decoder: attention within a text is a few hundredths of the work
    core = EncoderCore(
        model,
        knobs=config.knobs,
        max_context_tokens=min(config.max_context_tokens or spec.max_context_tokens, spec.max_context_tokens),
        vocab_size=spec.vocab_size,
    )
    gc.collect()
    gc.freeze()
    return BuiltEngine(
        core,
        device,
        dict(model.kernels),
        notes + model.notes + list(device.notes),
        generates=False,
        embedding_dimensions=spec.hidden_size,
        vocab_size=spec.vocab_size,
        read_bytes=spec.weight_bytes,
        read_s=read_s,
    )


def _has_own_threads(kernels: dict[str, str]) -> bool:
    """Whether the CPU library, with its own pool, computes all that is large."""
    large = [why for op, why in kernels.items() if op.split()[0] in ("linear", "experts", "paged_attention")]
    return bool(large) and all(why.startswith("cpu") for why in large)


def _activations(asked: torch.dtype, device: Device, notes: list[str]) -> torch.dtype:
    """On a CPU float32: torch's half precision sums in another order for another number of rows. Mutates: notes"""
    if device.torch_device.type != "cpu" or asked is torch.float32:
        return asked
    notes.append(
        f"Activations of {str(asked).removeprefix('torch.')} were asked for; on a CPU they are float32, which its "
        "kernels compute in, so that a token does not depend on what shares its step."
    )
    return torch.float32


def _kv_default(config: WorkerConfig, device: Device, dtype: torch.dtype) -> torch.dtype:
    """On the host float16, half of float32's memory and traffic: perplexity moves by hundredths of a percent."""
    free = config.dtype == "auto" and device.torch_device.type == "cpu"
    return torch.float16 if free and dtype is torch.float32 else dtype


def _dtype(setting: str, name: str, default: torch.dtype) -> torch.dtype:
    if name == "auto":
        return default
    if name not in DTYPES:
        raise InvalidParameter(f"{setting} is {name!r}.", f"Use auto or one of {', '.join(DTYPES)}.", param=setting)
    return DTYPES[name]


def _swap_bytes(config: WorkerConfig, layout: PageLayout, kv_dtype: torch.dtype) -> int:
    """Raises: DoesNotFit if host memory was given that holds no page, or more than the host has."""
    page_bytes = layout.large_page_elements * kv_dtype.itemsize
    if config.swap_bytes and config.swap_bytes < page_bytes:
        raise DoesNotFit(
            f"Host memory for preempted requests of {config.swap_bytes:,} bytes holds no page of {page_bytes:,}.",
            f"Give swap_bytes {page_bytes:,} or more, or 0.",
        )
    free = CpuDevice().free_bytes()
    if config.swap_bytes > free:
        raise DoesNotFit(
            f"Host memory for preempted requests of {config.swap_bytes:,} bytes does not fit the {free:,} bytes free.",
            "Lower swap_bytes.",
        )
    return config.swap_bytes


def _num_large_pages(
    config: WorkerConfig,
    spec: ModelSpec,
    layout: PageLayout,
    kv_dtype: torch.dtype,
    max_context: int,
    device: Device,
) -> int:
    """Pages for what the profile asks, plus the null page. Raises: DoesNotFit with both numbers."""
    page_bytes = layout.large_page_elements * kv_dtype.itemsize
    free = device.free_bytes()
    if config.kv_bytes:
        pages = config.kv_bytes // page_bytes
    elif config.kv_tokens:
        pages = layout.large_pages_for_pool(config.kv_tokens, max_context, config.knobs.prefill_chunk)
    else:
        wanted = config.knobs.max_running * layout.large_pages_for(max_context, config.knobs.prefill_chunk)
        share = 0.25 if device.torch_device.type == "cpu" else 0.9
        pages = min(wanted, int(free * share) // page_bytes)
    least = layout.large_pages_for(2 * layout.page_tokens)
    if pages < least:
        raise DoesNotFit(
            f"{spec.name}: the KV cache needs at least {least * page_bytes:,} bytes, "
            f"and was given {pages * page_bytes:,}.",
            "Give the profile more KV memory.",
        )
    if pages * page_bytes > free:
        raise DoesNotFit(
            f"{spec.name}: the KV cache of {pages * page_bytes:,} bytes does not fit the {free:,} bytes that "
            f"{config.device} has free.",
            "Lower the context, the number of users or the KV precision.",
        )
    return pages + 1
