"""The structs and functions of bayard_cpu.h as ctypes sees them. Field order is the header's; a test compares sizes."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_uint, c_uint64, c_void_p

ABI_VERSION = 9
KINDS = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"),
    *("I8_ROW", "I4_G128", "I4Z_G128"),
)
INTEGER_KINDS = frozenset(KINDS[3:])
EXACT, INT8, BF16_ROUNDED = 0, 1, 2
PLAIN, RMS_NORM, SILU_MUL, GELU_MUL, SWIGLU_CLAMPED = range(5)
NO_SLOT, LOGITS = -1, -2
(OP_EMBEDDING, OP_LINEAR, OP_NORM, OP_ADD, OP_ROPE_KV, OP_ATTENTION, OP_GATHER, OP_GATE_MUL, OP_SCALE, OP_SOFTCAP) = (
    range(10)
)
UNKNOWN_ISA, ISA_UNAVAILABLE, NO_MEMORY = 1, 2, 5


class Weight(Structure):
    _fields_ = (("packed", c_void_p), ("n", c_int64), ("k", c_int64), ("kind", c_int32), ("reserved", c_int32))


class Linear(Structure):
    _fields_ = (
        ("weight", POINTER(Weight)),
        ("bias", c_void_p),
        ("norm_weight", c_void_p),
        ("eps", c_float),
        ("mode", c_int32),
        ("prepare", c_int32),
        ("reserved", c_int32),
    )


class Experts(Structure):
    _fields_ = (
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("gate_up_bias", c_void_p),
        ("down_bias", c_void_p),
        ("experts", c_int64),
        ("hidden", c_int64),
        ("inner", c_int64),
        ("gate_up_kind", c_int32),
        ("down_kind", c_int32),
        ("mode", c_int32),
        ("gate", c_int32),
    )


class Kv(Structure):
    _fields_ = (
        ("base", c_void_p),
        ("page_stride", c_int64),
        ("v_offset", c_int64),
        ("head_stride", c_int64),
        ("token_stride", c_int64),
        ("pages", c_int64),
        ("type", c_int32),
        ("page_tokens", c_int32),
    )


class Attention(Structure):
    _fields_ = (
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("reserved", c_int32),
        ("window", c_int64),
        ("sinks", c_void_p),
    )


class Op(Structure):
    _fields_ = (
        ("code", c_int32),
        ("in_", c_int32),
        ("out", c_int32),
        ("residual", c_int32),
        ("rows", c_int32),
        ("layer", c_int32),
        ("group", c_int32),
        ("prepare", c_int32),
        ("linear", Linear),
        ("weight", Weight),
        ("weight_row_bytes", c_int64),
        ("out_column", c_int64),
        ("norm_weight", c_void_p),
        ("norm_weight_k", c_void_p),
        ("cos_sin", c_void_p),
        ("cos_rows", c_int64),
        ("rotary", c_int64),
        ("kv_scales", c_void_p),
        ("attention", Attention),
        ("eps", c_float),
        ("scale", c_float),
    )


class Group(Structure):
    _fields_ = (
        ("block_tables", c_void_p),
        ("table_stride", c_int64),
        ("table_width", c_int64),
        ("write_pages", c_void_p),
        ("write_offsets", c_void_p),
    )


class Step(Structure):
    _fields_ = (
        ("tokens", c_int64),
        ("sequences", c_int64),
        ("logit_count", c_int64),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("query_starts", c_void_p),
        ("context_lens", c_void_p),
        ("logit_rows", c_void_p),
        ("groups", POINTER(Group)),
        ("kv", POINTER(Kv)),
        ("num_groups", c_int64),
        ("num_kv", c_int64),
        ("logits", c_void_p),
        ("logits_stride", c_int64),
        ("argmax", c_void_p),
    )


class Link(Structure):
    """Addresses of a driver's functions, its context and a stream of it."""

    _fields_ = (
        ("use", c_void_p),
        ("pin", c_void_p),
        ("unpin", c_void_p),
        ("make_event", c_void_p),
        ("copy", c_void_p),
        ("record", c_void_p),
        ("wait", c_void_p),
        ("context", c_void_p),
        ("stream", c_void_p),
        ("event_flags", c_uint),
        ("reserved", c_uint),
    )


class Stored(Structure):
    """Bytes in memory, or in an open file."""

    _fields_ = (
        ("memory", c_void_p),
        ("offset", c_int64),
        ("bytes", c_int64),
        ("file", c_int32),
        ("reserved", c_int32),
    )


_P, _I, _L, _F = c_void_p, c_int, c_int64, c_float

# name -> result, arguments
FUNCTIONS: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "bayard_abi_version": (_I, ()),
    "bayard_struct_bytes": (_L, (c_char_p,)),
    "bayard_error_text": (c_char_p, (_I,)),
    "bayard_set_isa": (_I, (c_char_p,)),
    "bayard_isa": (c_char_p, ()),
    "bayard_isa_available": (_I, (c_char_p,)),
    "bayard_has_bf16": (_I, ()),
    "bayard_set_threads": (_I, (_I, _I)),
    "bayard_threads": (_I, ()),
    "bayard_usable_cores": (_I, ()),
    "bayard_places": (_I, (c_char_p, _P, _L, _P, _P)),
    "bayard_quota": (_I, (c_char_p,)),
    "bayard_interleave": (_I, (_P, _L)),
    "bayard_packed_bytes": (_L, (_I, _L, _L)),
    "bayard_pack": (_I, (_I, _P, _L, _L, _L, _P)),
    "bayard_linear": (_I, (POINTER(Linear), _P, _L, _L, _P, _L, _P, _L)),
    "bayard_experts": (_I, (POINTER(Experts), _P, _L, _L, _P, _P, _L, _P, _L)),
    "bayard_embedding": (_I, (_I, _P, _L, _L, _L, _P, _L, _P, _L)),
    "bayard_rms_norm": (_I, (_P, _L, _L, _L, _P, _F, _P, _L)),
    "bayard_add_rms_norm": (_I, (_P, _L, _P, _L, _L, _L, _P, _F, _P, _L, _P, _L)),
    "bayard_gate_mul": (_I, (_I, _P, _L, _L, _L, _P, _L)),
    "bayard_rope": (_I, (_P, _L, _L, _L, _L, _P, _P, _L, _L)),
    "bayard_kv_write": (_I, (_P, _L, _P, _L, _L, _L, _L, POINTER(Kv), _P, _P, _P)),
    "bayard_attention": (_I, (POINTER(Attention), _P, _L, POINTER(Kv), _P, _L, _L, _P, _P, _L, _L, _P, _L)),
    "bayard_choose": (_I, (_P, _L, _L, _L, _P, _P, _P, _L, _P, _L, _P)),
    "bayard_argmax": (_I, (_P, _L, _L, _L, _I, _P)),
    "bayard_sender_new": (_P, (POINTER(Link), _I, _L)),
    "bayard_sender_free": (None, (_P,)),
    "bayard_sender_put": (_L, (_P, _P, _L, c_uint64, _L)),
    "bayard_sender_wait": (_I, (_P, _L)),
    "bayard_sender_done": (_L, (_P,)),
    "bayard_program_create": (_I, (_P, _L, POINTER(Op), _L, POINTER(_P))),
    "bayard_program_free": (None, (_P,)),
    "bayard_program_run": (_I, (_P, POINTER(Step))),
    "bayard_program_profile": (_I, (_P, _I, _P, _L)),
    "bayard_program_bytes": (_L, (_P,)),
}

STRUCTS: dict[str, type[Structure]] = {
    "BayardWeight": Weight,
    "BayardLinear": Linear,
    "BayardExperts": Experts,
    "BayardKv": Kv,
    "BayardAttention": Attention,
    "BayardOp": Op,
    "BayardGroup": Group,
    "BayardStep": Step,
    "BayardLink": Link,
    "BayardStored": Stored,
}


def bind(library: ctypes.CDLL) -> None:
    """Give each function of a loaded library its types."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = list(arguments)
