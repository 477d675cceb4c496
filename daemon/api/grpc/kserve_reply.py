"""Events of a generation as KServe responses: one of the whole, or one for each piece of a stream."""

from __future__ import annotations

from typing import Any

from daemon.api.grpc.gen import kserve_pb2 as kp
from daemon.api.grpc.kserve_request import OUTPUTS, VERSION, InferRequest
from daemon.api.grpc.kserve_tensors import add_output
from daemon.api.openai.reply import encode
from daemon.serving.events import LogprobEntry, TokenUsage

FINAL = "triton_final_response"


class Piece:
    """The text of every choice so far, with what goes with it. Owner: one call."""

    def __init__(self, num_choices: int) -> None:
        self.texts = [""] * num_choices
        self.entries: list[list[LogprobEntry]] = [[] for _ in range(num_choices)]
        self.reasons = [""] * num_choices
        self.output_tokens = 0


def whole_response(asked: InferRequest, piece: Piece, usage: TokenUsage) -> kp.ModelInferResponse:
    """The one response of a request that is not streamed."""
    piece.texts = [asked.prefix + text for text in piece.texts]
    piece.output_tokens = usage.completion_tokens
    return response(asked, piece, usage.prompt_tokens)


def response(asked: InferRequest, piece: Piece, prompt_tokens: int) -> kp.ModelInferResponse:
    made = kp.ModelInferResponse(model_name=asked.model, model_version=VERSION, id=asked.id)
    for name, datatype in OUTPUTS.items():
        if name in asked.outputs:
            add_output(made, name, datatype, _values(name, piece, prompt_tokens))
    return made


def final_mark(made: kp.ModelInferResponse, *, final: bool) -> kp.ModelInferResponse:
    made.parameters[FINAL].bool_param = final
    return made


def empty_final(asked: InferRequest) -> kp.ModelInferResponse:
    """The response without tensors that says that no more come."""
    return final_mark(kp.ModelInferResponse(model_name=asked.model, model_version=VERSION, id=asked.id), final=True)


def _values(name: str, piece: Piece, prompt_tokens: int) -> list[Any]:
    match name:
        case "text_output":
            return list(piece.texts)
        case "finish_reason":
            return list(piece.reasons)
        case "cumulative_logprob":
            return [sum(entry.logprob for entry in entries) for entries in piece.entries]
        case "logprobs":
            return [encode([_logprob(entry) for entry in entries]) for entries in piece.entries]
        case "num_input_tokens":
            return [prompt_tokens]
        case _:
            return [piece.output_tokens]


def _logprob(entry: LogprobEntry) -> dict[str, Any]:
    return {
        "token": entry.token,
        "logprob": entry.logprob,
        "bytes": list(entry.token_bytes),
        "top_logprobs": [{"token": other.token, "logprob": other.logprob} for other in entry.top],
    }
