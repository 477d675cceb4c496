"""The tensor `embedding_request`: embeddings asked for through KServe, as Triton's servers for text models do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from daemon.api.body import decode_json
from daemon.api.embeddings import request as embeddings
from daemon.api.embeddings.vectors import as_base64, as_floats
from daemon.api.grpc.gen import kserve_pb2 as kp
from daemon.api.grpc.kserve_request import (
    EMBED_INPUTS,
    EMPTY_FINAL,
    VERSION,
    check_version,
    read_outputs,
    read_parameters,
)
from daemon.api.grpc.kserve_tensors import add_output, read_inputs
from daemon.api.openai.reply import encode
from engine.errors import InvalidParameter

if TYPE_CHECKING:
    from daemon.api.services import Services
    from daemon.tenants.principal import Principal

OUTPUTS = {"text_output": "BYTES", "num_input_tokens": "UINT32"}


def is_embedding(request: kp.ModelInferRequest) -> bool:
    return any(tensor.name == "embedding_request" for tensor in request.inputs)


async def embed_response(
    services: Services, principal: Principal, request: kp.ModelInferRequest, remaining_s: float | None
) -> kp.ModelInferResponse:
    """text_output holds one JSON array of numbers, or base64 text, for each input. Raises: BayardError"""
    check_version(request.model_name, request.model_version)
    tensors = read_inputs(request, EMBED_INPUTS)
    odd = sorted(read_parameters(request).keys() - {EMPTY_FINAL})
    if odd:
        raise InvalidParameter(f"The parameter {odd[0][:64]!r} has no meaning for embeddings.", param=odd[0][:64])
    outputs = read_outputs(request, tensors, OUTPUTS)
    body = decode_json(str(tensors["embedding_request"]).encode(), embeddings.tensor_decoder)
    asked = embeddings.read_tensor(body, request.model_name)
    embedded = await services.embedding.embed(replace(asked.request, deadline_s=remaining_s), principal, origin="grpc")
    made = kp.ModelInferResponse(model_name=request.model_name, model_version=VERSION, id=request.id)
    if "text_output" in outputs:
        shown = as_base64 if asked.base64 else (lambda vector: encode(as_floats(vector)).decode())
        add_output(made, "text_output", "BYTES", [shown(vector) for vector in embedded.vectors])
    if "num_input_tokens" in outputs:
        add_output(made, "num_input_tokens", "UINT32", [embedded.usage.prompt_tokens])
    return made
