"""Reflection in both versions that clients speak; v1 has the messages of v1alpha under another name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc import aio
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

ALPHA, FINAL = "grpc.reflection.v1alpha", "grpc.reflection.v1"
SERVICE = "ServerReflection"


class Pools:
    """Several descriptor pools as the one that a reflection servicer asks. The first that knows answers."""

    def __init__(self, pools: Iterable[Any]) -> None:
        self._pools = tuple(pools)

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any) -> Any:
            for pool in self._pools:
                try:
                    return getattr(pool, name)(*arguments)
                except (KeyError, TypeError):  # TypeError: a message of another pool
                    continue
            raise KeyError(arguments)

        return ask


def add_reflection(server: aio.Server, services: Iterable[str], pools: Iterable[Any]) -> None:
    """Serve grpc.reflection.v1 and v1alpha over these services, whose files are in these pools."""
    names = [*services, *(f"{package}.{SERVICE}" for package in (ALPHA, FINAL))]
    servicer = ReflectionServicer(names, Pools((descriptor_pool.Default(), *pools, _final_pool())))
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for package in (ALPHA, FINAL):
        handler = grpc.method_handlers_generic_handler(f"{package}.{SERVICE}", {"ServerReflectionInfo": method})
        server.add_generic_rpc_handlers((handler,))


def _final_pool() -> descriptor_pool.DescriptorPool:
    """A description of v1, made from that of v1alpha."""
    alpha = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
    renamed = descriptor_pb2.FileDescriptorProto.FromString(_renamed(alpha).SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(renamed)
    return pool


def _renamed(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    file.name, file.package = "grpc/reflection/v1/reflection.proto", FINAL
    for message in file.message_type:
        for field in message.field:
            if field.HasField("type_name"):
                field.type_name = field.type_name.replace(f".{ALPHA}.", f".{FINAL}.")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{ALPHA}.", f".{FINAL}.")
            method.output_type = method.output_type.replace(f".{ALPHA}.", f".{FINAL}.")
    return file
