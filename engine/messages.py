"""The only types that cross the border between the daemon and an engine worker.

Encoded with msgspec's MessagePack over ZeroMQ (ipc). The daemon sends `Command`s, the worker sends `Event`s; the
worker sends at most one `StepReport` an engine step. Every submitted request gets exactly one `TokenDelta` whose
`finish` is set. This module imports neither torch nor anything else of Bayard.

Units: token counts are tokens, `_bytes` are bytes, `_s` seconds on the monotonic clock of the sender.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

PROTOCOL_VERSION = 3
MAX_INT = 2**63 - 1  # MessagePack has no larger one that every reader knows; an API refuses what is above
LEAST_REPETITION, MOST_REPETITION = 1e-6, 1e6  # a penalty that leaves float32 its numbers

Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
CountOrOff = Annotated[int, Meta(ge=-1, le=MAX_INT)]  # -1, as 0: off
Several = Annotated[int, Meta(ge=1, le=MAX_INT)]
AnyInt = Annotated[int, Meta(ge=-MAX_INT - 1, le=MAX_INT)]
Repetition = Annotated[float, Meta(ge=LEAST_REPETITION, le=MOST_REPETITION)]


class FinishReason(StrEnum):
    STOP = "stop"  # an end-of-sequence or stop token
    LENGTH = "length"  # max_tokens or the context is full
    ABORT = "abort"  # the client went away or an operator cancelled
    ERROR = "error"  # see ErrorInfo


class GrammarKind(StrEnum):
    """What a request's output must match; the worker refuses what it cannot compile and never samples unconstrained."""

    JSON_SCHEMA = "json_schema"  # text: the schema as JSON
    JSON_OBJECT = "json_object"  # any JSON object; text is empty
    REGEX = "regex"  # text: the whole output, in Rust's regex syntax
    CHOICE = "choice"  # text: a JSON list of strings
    LARK = "lark"  # text: a grammar in llguidance's dialect of Lark


class Grammar(Struct, frozen=True, forbid_unknown_fields=True):
    kind: GrammarKind
    text: str = ""


class SamplingParams(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How one request's tokens are chosen. temperature 0 is greedy; the other filters then have no effect."""

    max_tokens: Several
    temperature: Annotated[float, Meta(ge=0.0)] = 1.0
    top_k: Count = 0  # 0 = off
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    repetition_penalty: Repetition = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    seed: AnyInt | None = None  # None: drawn by the worker
    stop_token_ids: tuple[AnyInt, ...] = ()  # end-of-sequence ids included; one without a logit never comes
    ignore_eos: bool = False  # True: stop_token_ids are not looked at
    min_tokens: Count = 0  # stop tokens are masked until then
    top_logprobs: AnyInt | None = None  # None: no log-probabilities; 0: of the chosen token alone
    logit_bias: dict[AnyInt, float] | None = None
    grammar: Grammar | None = None  # the output is kept to it by masking logits


# ---------------------------------------------------------------- daemon -> worker


class Submit(Struct, frozen=True, tag=True):
    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    priority: int = 0  # lower runs first
    cache_salt: str = ""  # prefix cache entries are shared only within one salt (tenant isolation)
    tenant: str = ""  # token shares of a step are fair between tenants of one priority
    weight: Annotated[float, Meta(gt=0.0)] = 1.0  # this tenant's share beside the others'
    deadline_s: float | None = None  # seconds after arrival by which it must have ended; None: whenever
    prompt_group: str = ""  # requests of one group have the same prompt (n > 1): it is computed once
    adapter: str = ""  # a LoRA adapter of WorkerConfig.adapters; "": the base model alone


class Embed(Struct, frozen=True, tag=True):
    """One text's embedding; the answer is one TokenDelta with `embedding` and finish STOP. Abort ends it too."""

    request_id: str
    prompt_token_ids: list[int]
    priority: int = 0
    tenant: str = ""
    weight: Annotated[float, Meta(gt=0.0)] = 1.0
    deadline_s: float | None = None
    adapter: str = ""


class Abort(Struct, frozen=True, tag=True):
    request_id: str


class Knobs(Struct, frozen=True, forbid_unknown_fields=True):
    """What may change inside a running worker without interrupting a stream."""

    max_running: Annotated[int, Meta(ge=1)] = 64  # sequences in a step
    token_budget: Annotated[int, Meta(ge=1)] = 512  # tokens of all kinds in a step
    prefill_chunk: Annotated[int, Meta(ge=1)] = 256  # prompt tokens of one request in a step
    prefix_cache: bool = True
    # Tokens that each running request may still write for which an admission leaves room, beside the whole prompt; 0:
    # room for the prompt's first chunk is enough.
    ahead_tokens: Annotated[int, Meta(ge=0)] = 0
    speculation_tokens: Annotated[int, Meta(ge=0, le=16)] = 0  # guessed tokens a step checks at once; 0 = off
    cache_share: Annotated[float, Meta(ge=0.0, le=1.0)] = 1.0  # of all pages, what the prefix cache may hold idle
    max_step_ms: Annotated[float, Meta(ge=0.0)] = 0.0  # prompts take less of a step while streams run; 0 = no limit


class SetKnobs(Struct, frozen=True, tag=True):
    knobs: Knobs


class Sleep(Struct, frozen=True, tag=True):
    """Give memory back and stay: see Slept. Requests still there get ABORT first, later ones an error at once."""


class Wake(Struct, frozen=True, tag=True):
    """Serve again; answered with Woken. Nothing happens to a worker that is awake."""


class Stop(Struct, frozen=True, tag=True):
    """End the process. Requests still there get ABORT first."""


Command = Submit | Embed | Abort | SetKnobs | Sleep | Wake | Stop

# ---------------------------------------------------------------- worker -> daemon


class ErrorInfo(Struct, frozen=True):
    code: str
    message: str
    hint: str = ""


class TokenLogprob(Struct, frozen=True):
    token_id: int
    logprob: float
    top: list[tuple[int, float]] = []  # (token id, logprob), best first


class Usage(Struct, frozen=True):
    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens whose KV came from the prefix cache
    output_tokens: int = 0
    preemptions: int = 0
    device_s: float = 0.0  # this request's share of step time


class TokenDelta(Struct, frozen=True, omit_defaults=True):
    """New tokens of one request. finish is set exactly once, on the last one."""

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] | None = None
    finish: FinishReason | None = None
    error: ErrorInfo | None = None
    usage: Usage | None = None  # with finish
    embedding: bytes | None = None  # little-endian float32, of length one; of an Embed


class DecodePace(Struct, frozen=True, omit_defaults=True):
    """Smoothed over the steps of one kind in which streams did nothing but decode."""

    steps: int = 0
    step_s: float = 0.0
    rows: float = 0.0  # streams
    context_tokens: float = 0.0  # of a stream


class WorkerStats(Struct, frozen=True):
    """The state of the step loop; sent with each step and as a heartbeat when idle."""

    step: int = 0  # advances with each engine step
    beat: int = 0  # advances each turn of the loop, idle turns too
    running: int = 0
    waiting: int = 0
    kv_pages_total: int = 0
    kv_pages_active: int = 0  # held by live requests
    kv_pages_cached: int = 0  # reusable prefix cache content
    page_tokens: int = 0
    prompt_tokens_total: int = 0
    cached_tokens_total: int = 0
    output_tokens_total: int = 0
    preemptions_total: int = 0
    swapped_pages: int = 0  # of preempted requests, in host memory now
    swap_outs_total: int = 0  # preemptions whose pages were kept in host memory
    swap_ins_total: int = 0  # ... and came back from it
    deadlines_total: int = 0  # requests ended because their time was up
    shed_total: int = 0  # requests ended because a step had not memory enough
    aborts_total: int = 0
    draft_tokens_total: int = 0  # guessed
    draft_accepted_total: int = 0  # ... and right
    outlier_misses_total: int | None = None  # rows with an outlier in a column not kept apart; None: none are kept
    last_step_s: float = 0.0
    rss_bytes: int = 0
    device_bytes: int = 0
    knobs: Knobs = Knobs()
    alone: DecodePace = DecodePace()  # steps of one stream
    together: DecodePace = DecodePace()  # of several


class LoadProgress(Struct, frozen=True, tag=True):
    stage: str  # "reading", "packing", "warming"
    done_bytes: int
    total_bytes: int


class WorkerReady(Struct, frozen=True, tag=True):
    protocol: int
    pid: int
    model: str
    device: str
    max_context_tokens: int
    kv_pages_total: int
    page_tokens: int
    load_s: float
    kernels: dict[str, str] = {}  # op -> chosen implementation and why
    notes: list[str] = []  # fall-backs taken, one sentence each
    embeds: bool = False  # it answers Embed; an encoder answers nothing else
    generates: bool = True
    embedding_dimensions: int = 0
    adapters: tuple[str, ...] = ()  # names of those loaded
    read_bytes: int = 0  # of weights
    read_s: float = 0.0  # ... in so many of load_s
    disk_bytes_per_s: float | None = None  # what the disk under them reads in sequence; None: not measurable


def read_figures(ready: WorkerReady, weights: str = "stored") -> str:
    """How fast a worker's weights were read, beside what their disk reads in sequence, for people.

    weights: as WorkerConfig.weights; where they are rounded, that is most of the work and no speed of the disk's
    """
    if not ready.read_s:
        return "unknown"
    if weights != "stored":
        told = f"{ready.read_bytes / 1e6:,.0f} MB read and rounded to {weights} in {ready.read_s:.2f} s"
        if ready.disk_bytes_per_s is None:
            return told
        return f"{told}; to read them takes {ready.read_bytes / ready.disk_bytes_per_s:.2f} s at the disk's speed"
    rate = ready.read_bytes / ready.read_s
    told = f"{ready.read_bytes / 1e6:,.0f} MB in {ready.read_s:.2f} s, {rate / 1e6:,.0f} MB/s"
    if ready.disk_bytes_per_s is None:
        return told
    share = rate / ready.disk_bytes_per_s
    cached = "; they were in the page cache" if share > 1.0 else ""
    return f"{told}, {share:.0%} of the disk's {ready.disk_bytes_per_s / 1e6:,.0f} MB/s in sequence{cached}"


class Slept(Struct, frozen=True, tag=True):
    """Asleep, or still awake with an error that says why."""

    took_s: float
    pool_bytes: int = 0  # of KV pages, given back
    moved_bytes: int = 0  # of weights, in host memory now
    error: ErrorInfo | None = None


class Woken(Struct, frozen=True, tag=True):
    """Awake, or still asleep with an error that says why."""

    took_s: float
    graphs_kept: bool = True  # False: they are captured anew
    error: ErrorInfo | None = None


class StepReport(Struct, frozen=True, tag=True):
    deltas: list[TokenDelta]
    stats: WorkerStats


class Heartbeat(Struct, frozen=True, tag=True):
    stats: WorkerStats


class WorkerFailed(Struct, frozen=True, tag=True):
    """The worker is about to exit with a status other than 0."""

    error: ErrorInfo


Event = LoadProgress | WorkerReady | StepReport | Heartbeat | Slept | Woken | WorkerFailed

# ---------------------------------------------------------------- start-up


class AdapterSource(Struct, frozen=True, forbid_unknown_fields=True):
    name: str  # how Submit.adapter asks for it
    path: str  # a PEFT folder


class WorkerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a worker needs to start; written as JSON and given as a file's path (python -m engine.worker FILE)."""

    worker_id: str
    model_name: str
    model_path: str  # a GGUF file or a Hugging Face folder
    endpoint: str  # ipc://..., bound by the daemon
    device: str = "cpu"  # "cpu", "cuda:0", ...
    dtype: str = "auto"  # activations: "auto", "float32", "bfloat16", "float16"; float32 on a CPU
    kv_dtype: str = "auto"
    activation: str = "exact"  # "int8" or "fp8" let a kernel round activations where weights are of that kind
    kv_bytes: int = 0  # 0: sized for kv_tokens
    kv_tokens: int = 0  # 0: enough for knobs.max_running sequences of max_context_tokens, bounded by memory
    page_tokens: int = 16
    max_context_tokens: int = 0  # 0: what the model was made for
    threads: int = 0  # CPU threads; 0: every core the process may use
    knobs: Knobs = Knobs()
    heartbeat_s: float = 0.5
    weights: str = "stored"  # or what they are made into at load: "fp8", "int8", "int8-mixed", "int4", ...
    adapters: tuple[AdapterSource, ...] = ()
    draft_model_path: str = ""  # a small model of the same tokens that guesses; "": none
    swap_bytes: int = 0  # host memory for the pages of preempted requests; 0: they are computed again
    packed_dir: str = ""  # a folder that keeps weights packed for the CPU's kernels for the next start; "": none does
    packed_bytes: int = 0  # at most so many in it
    kv_scales: str = "auto"  # of a kv_dtype of one byte: "dynamic", "calibrated", or what the checkpoint has


command_encoder = msgspec.msgpack.Encoder()
command_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
event_encoder = msgspec.msgpack.Encoder()
event_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
