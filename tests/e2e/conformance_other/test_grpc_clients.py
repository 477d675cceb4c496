"""C40 to C43, with Triton's client against the real model; and the same tokens over HTTP and gRPC."""

from __future__ import annotations

import json
import queue
import time
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from daemon.api.grpc.gen import bayard_pb2 as pb
from daemon.api.grpc.gen import bayard_pb2_grpc as stubs
from daemon.api.grpc.gen import kserve_pb2 as kp
from tests.e2e.conformance_other.conftest import MODEL, Served

PROMPT = "The capital of France is"
GREEDY = json.dumps({"temperature": 0, "max_tokens": 8})


@pytest.fixture(scope="module")
def triton() -> Any:
    pytest.importorskip("tritonclient", reason="Triton's client: pip install --no-deps tritonclient")
    return pytest.importorskip("tritonclient.grpc", reason="Triton's client wants ml_dtypes and python-rapidjson")


@pytest.fixture(scope="module")
def client(served: Served, triton: Any) -> Any:
    with triton.InferenceServerClient(served.target) as made:
        yield made


def inputs(triton: Any, text: str, sampling: str = GREEDY, **flags: bool) -> list[Any]:
    numpy = pytest.importorskip("numpy")
    made = []
    for name, value in {"text_input": text, "sampling_parameters": sampling}.items():
        tensor = triton.InferInput(name, [1], "BYTES")
        tensor.set_data_from_numpy(numpy.array([value.encode()], dtype=object))
        made.append(tensor)
    for name, flag in flags.items():
        tensor = triton.InferInput(name, [1], "BOOL")
        tensor.set_data_from_numpy(numpy.array([flag]))
        made.append(tensor)
    return made


def text_of(result: Any) -> str:
    return str(result.as_numpy("text_output")[0].decode())


def test_our_kserve_is_the_wire_that_triton_speaks(triton: Any) -> None:
    """Every message that both have: the same numbers and kinds."""
    from tritonclient.grpc import model_config_pb2, service_pb2

    files = (service_pb2.DESCRIPTOR, model_config_pb2.DESCRIPTOR)
    theirs = {name: message for file in files for name, message in file.message_types_by_name.items()}
    compared = 0
    for name, message in kp.DESCRIPTOR.message_types_by_name.items():
        for field in message.fields:
            other = theirs[name].fields_by_number[field.number]
            assert (field.name, field.type) == (other.name, other.type), f"{name}.{field.name}"
            compared += 1
    assert compared > 50
    assert isinstance(FileDescriptorProto.FromString(kp.DESCRIPTOR.serialized_pb), FileDescriptorProto)


def test_c40_infer_with_excluded_input_is_the_text(client: Any, triton: Any, served: Served) -> None:
    headers = dict(served.metadata)
    bare = client.infer(MODEL, inputs(triton, PROMPT, exclude_input_in_output=True), headers=headers)
    whole = client.infer(MODEL, inputs(triton, PROMPT, exclude_input_in_output=False), headers=headers)
    assert text_of(bare)
    assert text_of(whole) == PROMPT + text_of(bare)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL, headers=headers)
    assert client.get_model_metadata(MODEL, headers=headers).name == MODEL
    assert client.get_model_config(MODEL, headers=headers).config.model_transaction_policy.decoupled


def test_c41_stream_ends_with_an_empty_final_response(client: Any, triton: Any, served: Served) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)), headers=dict(served.metadata))
    client.async_stream_infer(
        MODEL, inputs(triton, PROMPT, stream=True), request_id="9", enable_empty_final_response=True
    )
    texts, final = [], False
    while not final:
        result, error = answers.get(timeout=30)
        assert error is None
        response = result.get_response()
        final = response.parameters["triton_final_response"].bool_param
        assert response.id == "9"
        if response.outputs:
            texts.append(text_of(result))
        assert final != bool(response.outputs)
    client.stop_stream()
    whole = client.infer(MODEL, inputs(triton, PROMPT, exclude_input_in_output=True), headers=dict(served.metadata))
    assert "".join(texts) == text_of(whole)


def test_c42_deadline_frees_the_slot(client: Any, triton: Any, served: Served) -> None:
    endless = json.dumps({"temperature": 0, "max_tokens": 4000, "ignore_eos": True})
    began = time.monotonic()
    refused = pytest.importorskip("tritonclient.utils").InferenceServerException
    with pytest.raises(refused) as caught:
        client.infer(MODEL, inputs(triton, PROMPT, endless), headers=dict(served.metadata), client_timeout=0.3)
    assert "DEADLINE_EXCEEDED" in str(caught.value)
    assert time.monotonic() - began < 2.0
    served.idle()


def test_c43_health_and_reflection(served: Served) -> None:
    with grpc.insecure_channel(served.target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", MODEL, "inference.GRPCInferenceService", "bayard.v1.Inference"):
            status = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5).status
            assert status == health_pb2.HealthCheckResponse.SERVING
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = next(iter(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([listing]))))
        names = {service.name for service in answer.list_services_response.service}
        assert {"bayard.v1.Inference", "inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names


def test_http_and_grpc_give_the_same_tokens(served: Served) -> None:
    """The same request by four doors: two of HTTP, two of gRPC."""
    sampling = {"temperature": 0.8, "seed": 11, "max_tokens": 24, "top_k": 40}
    headers = {"x-api-key": served.key}
    messages = [{"role": "user", "content": "Tell me about Paris."}]
    with grpc.insecure_channel(served.target) as channel:
        stub = stubs.InferenceStub(channel)
        chat = stub.Chat(
            pb.ChatRequest(model=MODEL, messages=[pb.Message(**messages[0])], logprobs=True, **sampling),
            metadata=served.metadata,
        )
        by_grpc = [bytes(entry.token) for delta in chat for entry in delta.logprobs]
        generated = stub.Generate(pb.GenerateRequest(model=MODEL, text=PROMPT, **sampling), metadata=served.metadata)
        text_by_grpc = "".join(delta.text for delta in generated)
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as http:
        body = {"model": MODEL, "messages": messages, "logprobs": True, **sampling}
        choice = http.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
        by_http = [bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]]
        completion = http.post("/v1/completions", json={"model": MODEL, "prompt": PROMPT, **sampling})
    assert by_grpc == by_http
    assert len(by_grpc) == 24
    assert text_by_grpc == completion.json()["choices"][0]["text"]


def test_tokenize_is_the_same_over_both(served: Served) -> None:
    text = "Déjà vu <|im_end|> 日本"
    with grpc.insecure_channel(served.target) as channel:
        stub = stubs.InferenceStub(channel)
        tokens = list(stub.Tokenize(pb.TokenizeRequest(model=MODEL, text=text), metadata=served.metadata).token_ids)
        back = stub.Detokenize(pb.DetokenizeRequest(model=MODEL, token_ids=tokens), metadata=served.metadata).text
    answer = httpx.post(
        f"{served.url}/tokenize", json={"model": MODEL, "prompt": text}, headers={"x-api-key": served.key}
    )
    assert answer.json()["tokens"] == tokens
    assert back == text


def test_embed_is_the_same_over_both(served: Served, encoder: str) -> None:
    with grpc.insecure_channel(served.target) as channel:
        answer = stubs.InferenceStub(channel).Embed(
            pb.EmbedRequest(model=encoder, texts=["one", "two"]), metadata=served.metadata
        )
    body = {"model": encoder, "input": ["one", "two"]}
    data = httpx.post(f"{served.url}/v1/embeddings", json=body, headers={"x-api-key": served.key}).json()["data"]
    for vector, other in zip(answer.embeddings, data, strict=True):
        assert list(vector.values) == pytest.approx(other["embedding"], abs=1e-5)
