"""options: how tokens are chosen, in Ollama's words. Its own defaults hold where nothing is said."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from daemon.api.openai.sampling_fields import read_stops
from daemon.serving.request import Sampling
from engine.errors import InvalidParameter
from engine.messages import MAX_INT, AnyInt, CountOrOff, Repetition

DEFAULT_TEMPERATURE, DEFAULT_TOP_K, DEFAULT_TOP_P = 0.8, 40, 0.9


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    num_predict: Annotated[int, Meta(ge=-2, le=MAX_INT)] | None = None  # -1, -2: what the context has room for
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: CountOrOff | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repeat_penalty: Repetition | None = None
    repeat_last_n: AnyInt | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: AnyInt | None = None
    stop: str | list[str] | None = None
    typical_p: float | None = None
    tfs_z: float | None = None
    mirostat: AnyInt | None = None
    # How a model is loaded: the plan in force says that here.
    num_ctx: Any = None
    num_keep: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    num_thread: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    numa: Any = None
    vocab_only: Any = None
    # Without effect where mirostat is off, or in every engine of today.
    mirostat_tau: Any = None
    mirostat_eta: Any = None
    penalize_newline: Any = None


def read_options(options: Options | None, top_logprobs: int | None) -> tuple[Sampling, tuple[str, ...]]:
    """The sampling, and the stop strings. Raises: InvalidParameter naming the option"""
    given = options or Options()
    for name, value, neutral in (
        ("typical_p", given.typical_p, 1.0),
        ("tfs_z", given.tfs_z, 1.0),
        ("mirostat", given.mirostat, 0),
    ):
        if value is not None and value != neutral:
            raise InvalidParameter(
                f"options.{name} is {value}; only {neutral}, which turns it off, is served.",
                "Leave it out.",
                param=f"options.{name}",
            )
    if given.repeat_last_n not in (None, -1, 0):
        raise InvalidParameter(
            f"options.repeat_last_n is {given.repeat_last_n}; repetitions are looked for in the whole text (-1).",
            "Leave it out.",
            param="options.repeat_last_n",
        )
    predict = given.num_predict
    if predict == 0:
        raise InvalidParameter("options.num_predict is 0; it must be -2, -1 or more than 0.", param="options")
    sampling = Sampling(
        max_tokens=None if predict is None or predict < 0 else predict,
        temperature=DEFAULT_TEMPERATURE if given.temperature is None else given.temperature,
        top_k=max(0, DEFAULT_TOP_K if given.top_k is None else given.top_k),
        top_p=DEFAULT_TOP_P if given.top_p is None else given.top_p,
        min_p=given.min_p or 0.0,
        repetition_penalty=1.0 if given.repeat_last_n == 0 else given.repeat_penalty or 1.0,
        presence_penalty=given.presence_penalty or 0.0,
        frequency_penalty=given.frequency_penalty or 0.0,
        seed=given.seed,
        top_logprobs=top_logprobs,
    )
    return sampling, read_stops(given.stop)
