"""Tensors of KServe v2 as plain values: in from raw or typed contents, out as raw contents."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from daemon.api.grpc.gen import kserve_pb2 as kp
from engine.errors import InvalidParameter

Value = str | bool
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class TensorKind:
    """One element of one datatype; optional inputs may be left out."""

    name: str
    datatype: str  # BYTES, BOOL, FP32, UINT32
    shape: tuple[int, ...] = (1,)
    optional: bool = True


def read_inputs(request: kp.ModelInferRequest, kinds: dict[str, TensorKind]) -> dict[str, Value]:
    """Each input tensor's one element by name.

    Raises: InvalidParameter for an unknown or repeated tensor, a wrong datatype or shape, or contents that disagree
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidParameter(
            f"There are {len(request.inputs)} input tensors and {len(raw)} raw_input_contents; "
            "there must be one for each, or none.",
            param="raw_input_contents",
        )
    read: dict[str, Value] = {}
    for at, tensor in enumerate(request.inputs):
        kind = kinds.get(tensor.name)
        if kind is None:
            raise InvalidParameter(
                f"There is no input tensor {tensor.name[:64]!r}.", f"There are {', '.join(kinds)}.", param="inputs"
            )
        if tensor.name in read:
            raise InvalidParameter(f"The input tensor {tensor.name!r} is given twice.", param=tensor.name)
        if tensor.parameters:
            raise InvalidParameter(
                f"The input tensor {tensor.name!r} has parameters, which are not supported.", param=tensor.name
            )
        _check_form(tensor, kind)
        if raw and tensor.HasField("contents"):
            raise InvalidParameter(
                f"The input tensor {tensor.name!r} has both contents and raw_input_contents.", param=tensor.name
            )
        read[tensor.name] = _from_raw(raw[at], kind) if raw else _from_contents(tensor.contents, kind)
    for kind in kinds.values():
        if not kind.optional and kind.name not in read:
            raise InvalidParameter(f"The input tensor {kind.name!r} is missing.", param=kind.name)
    return read


def add_output(response: Any, name: str, datatype: str, values: list[Any]) -> None:
    """One tensor of one dimension, as raw contents."""
    tensor = response.outputs.add(name=name, datatype=datatype)
    tensor.shape.append(len(values))
    response.raw_output_contents.append(_PACKERS[datatype](values))


def _check_form(tensor: Any, kind: TensorKind) -> None:
    if tensor.datatype != kind.datatype:
        raise InvalidParameter(
            f"The input tensor {kind.name!r} is of datatype {tensor.datatype[:32]!r}; it must be {kind.datatype}.",
            param=kind.name,
        )
    shape = tuple(tensor.shape)
    if shape not in (kind.shape, (1, *kind.shape)):  # a batch of one is the same
        raise InvalidParameter(
            f"The input tensor {kind.name!r} has shape {list(shape)[:8]}; it must be {list(kind.shape)}.",
            param=kind.name,
        )


def _from_raw(data: bytes, kind: TensorKind) -> Value:
    if kind.datatype == "BOOL":
        if len(data) != 1 or data[0] > 1:
            raise InvalidParameter(
                f"The input tensor {kind.name!r} has {len(data)} raw bytes; a BOOL is one, 0 or 1.", param=kind.name
            )
        return data[0] == 1
    if len(data) < _LENGTH.size or _LENGTH.unpack_from(data)[0] != len(data) - _LENGTH.size:
        told = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else None
        raise InvalidParameter(
            f"The input tensor {kind.name!r} has {len(data)} raw bytes; they must be 4 bytes of length, then as many "
            f"as that says{'' if told is None else f' ({told})'}.",
            param=kind.name,
        )
    return _text(data[_LENGTH.size :], kind)


def _from_contents(contents: kp.InferTensorContents, kind: TensorKind) -> Value:
    given = [(field.name, list(values)) for field, values in contents.ListFields()]
    wanted = "bool_contents" if kind.datatype == "BOOL" else "bytes_contents"
    if len(given) != 1 or given[0][0] != wanted or len(given[0][1]) != 1:
        shown = ", ".join(f"{len(values)} {name}" for name, values in given) or "nothing"
        raise InvalidParameter(
            f"The input tensor {kind.name!r} holds {shown}; it must hold 1 {wanted}.", param=kind.name
        )
    value = given[0][1][0]
    return value if isinstance(value, bool) else _text(value, kind)


def _text(data: bytes, kind: TensorKind) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidParameter(
            f"The input tensor {kind.name!r} is not UTF-8: byte {error.start:,} of {len(data):,}.", param=kind.name
        ) from None


def _pack_bytes(values: list[Any]) -> bytes:
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return b"".join(_LENGTH.pack(len(one)) + one for one in encoded)


def _pack_floats(values: list[Any]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def _pack_counts(values: list[Any]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


_PACKERS = {"BYTES": _pack_bytes, "FP32": _pack_floats, "UINT32": _pack_counts}
