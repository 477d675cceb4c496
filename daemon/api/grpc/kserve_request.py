"""A ModelInferRequest as what it asks for: the body that HTTP would have sent, and which outputs come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from daemon.api.body import convert, decode_json
from daemon.api.grpc.gen import kserve_pb2 as kp
from daemon.api.grpc.kserve_tensors import TensorKind, Value, read_inputs
from daemon.api.openai.completion_request import CompletionBody, read_completion
from daemon.serving.request import GenerationRequest
from engine.errors import InvalidParameter, ModelNotFound

VERSION = "1"
INPUTS = {
    kind.name: kind
    for kind in (
        TensorKind("text_input", "BYTES", optional=False),
        TensorKind("stream", "BOOL"),
        TensorKind("sampling_parameters", "BYTES"),
        TensorKind("exclude_input_in_output", "BOOL"),
        TensorKind("return_finish_reason", "BOOL"),
        TensorKind("return_cumulative_logprob", "BOOL"),
        TensorKind("return_logprobs", "BOOL"),
        TensorKind("return_num_input_tokens", "BOOL"),
        TensorKind("return_num_output_tokens", "BOOL"),
        TensorKind("image", "BYTES"),
    )
}
EMBED_INPUTS = {
    kind.name: kind
    for kind in (
        TensorKind("embedding_request", "BYTES", optional=False),
        TensorKind("return_num_input_tokens", "BOOL"),
    )
}
OUTPUTS = {  # name -> datatype
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "cumulative_logprob": "FP32",
    "logprobs": "BYTES",
    "num_input_tokens": "UINT32",
    "num_output_tokens": "UINT32",
}
EMPTY_FINAL = "triton_enable_empty_final_response"
SAMPLING = frozenset(
    {"n", "best_of", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed", "logprobs",
     "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "logit_bias"}
)  # fmt: skip
_NUMBERS = SAMPLING - {"stop", "logit_bias", "ignore_eos"}
_objects = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class InferRequest:
    """What one ModelInferRequest asks for. timeout_s: the client's own bound beside the call's deadline."""

    id: str
    model: str
    generation: GenerationRequest
    stream: bool
    outputs: frozenset[str]
    prefix: str = ""  # the input, where it comes back before the output
    empty_final: bool = False
    timeout_s: float | None = None


def read_infer(request: kp.ModelInferRequest, *, may_stream: bool) -> InferRequest:
    """Raises: InvalidParameter, ModelNotFound for a version that there is not"""
    check_version(request.model_name, request.model_version)
    tensors = read_inputs(request, INPUTS)
    if "image" in tensors:
        raise InvalidParameter("This model reads text only.", "Leave the tensor 'image' out.", param="image")
    stream = tensors.get("stream") is True
    if stream and not may_stream:
        raise InvalidParameter("ModelInfer gives one response.", "Use ModelStreamInfer to stream.", param="stream")
    parameters = read_parameters(request)
    empty_final, timeout_s = _transport_parameters(parameters)
    outputs = read_outputs(request, tensors, OUTPUTS)
    body = _sampling(tensors.get("sampling_parameters"), parameters)
    if outputs & {"logprobs", "cumulative_logprob"}:
        body.setdefault("logprobs", 0)
    body |= {
        "model": request.model_name,
        "prompt": tensors["text_input"],
        "stream": stream,
    }
    generation = read_completion(convert(body, CompletionBody))
    if stream and generation.n > 1:
        raise InvalidParameter("A stream has one choice.", "Leave n out, or stream false.", param="n")
    prefix = str(tensors["text_input"]) if _wants_input(tensors, stream=stream) else ""
    return InferRequest(request.id, request.model_name, generation, stream, outputs, prefix, empty_final, timeout_s)


def check_version(model: str, version: str) -> None:
    """Raises: ModelNotFound"""
    if version not in ("", VERSION):
        raise ModelNotFound(
            f"The model {model[:128]!r} has no version {version[:32]!r}.",
            f"There is version {VERSION}; leave it out.",
            param="model_version",
        )


def read_parameters(request: kp.ModelInferRequest) -> dict[str, Any]:
    """Raises: InvalidParameter for one without a value"""
    read: dict[str, Any] = {}
    for name, parameter in request.parameters.items():
        chosen = parameter.WhichOneof("parameter_choice")
        if chosen is None:
            raise InvalidParameter(f"The parameter {name[:64]!r} has no value.", param=name[:64])
        read[name] = getattr(parameter, chosen)
    return read


def read_outputs(request: kp.ModelInferRequest, tensors: dict[str, Value], known: dict[str, str]) -> frozenset[str]:
    """The outputs asked for by name, or else the text and those that flags ask for. Raises: InvalidParameter"""
    named: set[str] = set()
    for output in request.outputs:
        if output.name not in known:
            raise InvalidParameter(
                f"There is no output tensor {output.name[:64]!r}.", f"There are {', '.join(known)}.", param="outputs"
            )
        for parameter, value in output.parameters.items():
            if parameter != "binary_data" or not value.bool_param:
                raise InvalidParameter(
                    f"The parameter {parameter[:64]!r} of the output {output.name!r} is not supported.", param="outputs"
                )
        named.add(output.name)
    flagged = {name.removeprefix("return_") for name, value in tensors.items() if value is True} & known.keys()
    return frozenset(named | flagged if named else flagged | {"text_output"})


def _wants_input(tensors: dict[str, Value], *, stream: bool) -> bool:
    exclude = tensors.get("exclude_input_in_output")
    if stream and exclude is False:
        raise InvalidParameter(
            "A stream never holds the input, and exclude_input_in_output is false.",
            "Set it to true, or leave it out.",
            param="exclude_input_in_output",
        )
    return not stream and exclude is not True


def _transport_parameters(parameters: dict[str, Any]) -> tuple[bool, float | None]:
    """Takes out of parameters what is not about sampling. Raises: InvalidParameter"""
    empty_final = parameters.pop(EMPTY_FINAL, False)
    if not isinstance(empty_final, bool):
        raise InvalidParameter(f"{EMPTY_FINAL} is not a bool.", param=EMPTY_FINAL)
    timeout_us = parameters.pop("timeout", 0)
    if isinstance(timeout_us, bool) or not isinstance(timeout_us, int) or timeout_us < 0:
        raise InvalidParameter("timeout is a whole number of microseconds.", param="timeout")
    return empty_final, timeout_us / 1e6 if timeout_us else None


def _sampling(text: Value | None, parameters: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if isinstance(text, str) and text.strip():
        try:
            body = decode_json(text.encode(), _objects)
        except InvalidParameter as error:
            raise InvalidParameter(
                f"sampling_parameters: {error.message}", error.hint, param="sampling_parameters"
            ) from None
    twice = sorted(body.keys() & parameters.keys())
    if twice:
        raise InvalidParameter(f"{twice[0]!r} is both in sampling_parameters and a parameter.", param=twice[0])
    body |= parameters
    for name, value in body.items():
        if name not in SAMPLING:
            raise InvalidParameter(
                f"{name[:64]!r} is no sampling parameter.", f"There are {', '.join(sorted(SAMPLING))}.", param=name[:64]
            )
        if isinstance(value, str) and name in _NUMBERS:  # Triton's own examples send numbers as texts
            body[name] = _number(name, value)
    return body


def _number(name: str, text: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise InvalidParameter(f"{name} is {text[:32]!r}; it must be a number.", param=name)
