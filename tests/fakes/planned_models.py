"""Descriptions of machines and models for the planner's tests, by their public shapes; nothing lies on a disk."""

from __future__ import annotations

from engine.spec.model_spec import (
    AttentionKind,
    AttentionSpec,
    CheckpointFormat,
    LayerSpec,
    MlpKind,
    MlpSpec,
    ModelSpec,
    TensorInfo,
)
from hwdetect.accelerator import Accelerator, Capabilities, State, Vendor
from hwdetect.machine import Cpu, Machine, Memory

GIB = 1 << 30
_BLOCK = {"F32": (1, 4), "BF16": (1, 2), "F16": (1, 2), "Q4_K": (256, 144), "Q4_1": (32, 20), "F8_E4M3": (1, 1)}


def made_spec(
    name: str = "model",
    *,
    hidden: int = 2048,
    layers: int = 16,
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 64,
    mlp: int = 8192,
    vocab: int = 128_256,
    context: int = 131_072,
    kind: str = "BF16",
    experts: int = 0,
    active: int = 0,
    tied: bool = False,
    window: int | None = None,
) -> ModelSpec:
    """A decoder of this shape with all its matrices in one kind of storage."""
    tensors: list[TensorInfo] = []
    offset = 0

    def add(tensor: str, *shape: int) -> None:
        nonlocal offset
        elements, size = _BLOCK[kind if len(shape) > 1 else "F32"]
        count = 1
        for dim in shape:
            count *= dim
        size_bytes = count // elements * size
        dtype = kind if len(shape) > 1 else "F32"
        tensors.append(TensorInfo(tensor, dtype, shape, "model.gguf", offset, size_bytes))
        offset += size_bytes

    add("token_embd.weight", vocab, hidden)
    if not tied:
        add("output.weight", vocab, hidden)
    add("output_norm.weight", hidden)
    for i in range(layers):
        add(f"blk.{i}.attn_norm.weight", hidden)
        add(f"blk.{i}.ffn_norm.weight", hidden)
        add(f"blk.{i}.attn_q.weight", heads * head_dim, hidden)
        add(f"blk.{i}.attn_k.weight", kv_heads * head_dim, hidden)
        add(f"blk.{i}.attn_v.weight", kv_heads * head_dim, hidden)
        add(f"blk.{i}.attn_output.weight", hidden, heads * head_dim)
        if experts:
            add(f"blk.{i}.ffn_gate_inp.weight", experts, hidden)
        for part, shape in (("gate", (mlp, hidden)), ("up", (mlp, hidden)), ("down", (hidden, mlp))):
            if experts:
                add(f"blk.{i}.ffn_{part}_exps.weight", experts, *shape)
            else:
                add(f"blk.{i}.ffn_{part}.weight", *shape)
    attention = AttentionSpec(
        AttentionKind.FULL if window is None else AttentionKind.SLIDING,
        heads,
        kv_heads,
        head_dim,
        head_dim**-0.5,
        None,
        window_tokens=window,
    )
    block = MlpSpec(MlpKind.EXPERTS if experts else MlpKind.DENSE, mlp, num_experts=experts, experts_per_token=active)
    return ModelSpec(
        name=name,
        architecture="llama",
        format=CheckpointFormat.GGUF,
        path=f"/nowhere/{name}.gguf",
        files=(f"{name}.gguf",),
        hidden_size=hidden,
        vocab_size=vocab,
        max_context_tokens=context,
        norm_eps=1e-5,
        tie_embeddings=tied,
        layers=tuple(LayerSpec(i, attention, block) for i in range(layers)),
        tensors=tuple(tensors),
        source_dtype=kind,
    )


def cpu_machine(
    total_gib: float = 24, available_gib: float | None = None, cores: int = 8, cgroup_gib: float | None = None
) -> Machine:
    return Machine(
        cpu=Cpu(model="Some CPU", physical_cores=cores, logical_cpus=cores, isa_levels=("avx2",)),
        memory=Memory(
            total_bytes=int(total_gib * GIB),
            kernel_available_bytes=int((total_gib if available_gib is None else available_gib) * GIB),
            cgroup_limit_bytes=None if cgroup_gib is None else int(cgroup_gib * GIB),
        ),
    )


def gpu(
    name: str, total_gib: float, *, vendor: Vendor = Vendor.NVIDIA, free_gib: float | None = None, **known: object
) -> Accelerator:
    capabilities = known.pop("capabilities", Capabilities(bf16=True, fp8=True, triton=True, graphs=True))
    return Accelerator(
        vendor=vendor,
        name=name,
        memory_total_bytes=int(total_gib * GIB),
        memory_free_bytes=int((total_gib if free_gib is None else free_gib) * GIB),
        state=known.pop("state", State.USABLE),  # type: ignore[arg-type]
        capabilities=capabilities,  # type: ignore[arg-type]
        **known,  # type: ignore[arg-type]
    )


def gpu_machine(*accelerators: Accelerator, host_gib: float = 512) -> Machine:
    numbered = tuple(
        Accelerator(**{**{f: getattr(a, f) for f in a.__dataclass_fields__}, "index": i})
        for i, a in enumerate(accelerators)
    )
    host = cpu_machine(host_gib, cores=32)
    return Machine(cpu=host.cpu, memory=host.memory, accelerators=numbered)
