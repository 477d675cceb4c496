"""From prompts to token ids, and whether they fit: the text work before a request meets the engine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from daemon.serving.chat_prompt import render_prompt
from daemon.serving.fill_in import fill_in_ids
from daemon.serving.output import choice_grammar
from daemon.serving.request import ChatPrompt, GenerationRequest, Prompt, Sampling, TextPrompt, TokenPrompt
from daemon.tenants.limits import TenantLimits
from engine.errors import ContextTooLong, InvalidParameter
from engine.messages import Grammar, SamplingParams

if TYPE_CHECKING:
    from engine.text import TextPipeline

_LONGEST: WeakKeyDictionary[TextPipeline, int] = WeakKeyDictionary()
INLINE_BYTES = 2048  # about a millisecond of work; a thread would wait longer than that for a busy loop's lock
SLOW_S = 0.02  # of processor time for so little text: a template that works hard whatever it is given
_SLOW: WeakSet[TextPipeline] = WeakSet()


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """token_ids to submit; echo is the prompt as text where the client wants it back; grammar binds each choice."""

    token_ids: list[int]
    echo: str = ""
    grammar: Grammar | None = None


def prepare_prompts(request: GenerationRequest, text: TextPipeline, max_context_tokens: int) -> list[PreparedPrompt]:
    """Render and tokenise. Blocks: in proportion to the text; runs in a thread.

    Raises: InvalidParameter; ContextTooLong for a text so long that no tokenizing is needed to know
    """
    longest = _longest_token_bytes(text)
    for prompt in request.prompts:
        fewest = -(-_text_bytes(prompt) // longest)
        if fewest > max_context_tokens:
            raise _too_long(request, f"at least {fewest:,}", max_context_tokens)
    began_s = time.thread_time()
    try:
        return [_prepare(prompt, request, text) for prompt in request.prompts]
    finally:
        if time.thread_time() - began_s > SLOW_S and _is_small(request):
            _SLOW.add(text)


def is_quick(request: GenerationRequest, text: TextPipeline) -> bool:
    """Whether preparing is so little work that the event loop had better do it itself."""
    return text in _LONGEST and text not in _SLOW and _is_small(request)


def _is_small(request: GenerationRequest) -> bool:
    """Whatever a template may write counts: tools, calls and variables too, and white space."""
    tools = request.tools.tools if request.tools is not None else ()
    shown = [(tool.name, tool.description, tool.parameters) for tool in tools]
    return _left([*map(_parts, request.prompts), request.template_kwargs, shown], INLINE_BYTES) >= 0


def _parts(prompt: Prompt) -> object:
    match prompt:
        case ChatPrompt():
            return prompt.messages
        case TextPrompt():
            return (prompt.text, prompt.suffix)
        case TokenPrompt():
            return prompt.token_ids


def _left(value: object, left_bytes: int) -> int:
    """left_bytes less what value holds; stops as soon as nothing is left. Nesting is bounded where bodies are read."""
    if isinstance(value, str):
        return left_bytes - len(value.encode("utf-8", "surrogatepass")) if len(value) <= left_bytes else -1
    if isinstance(value, Mapping):
        value = chain(value, value.values())
    elif not isinstance(value, list | tuple):
        return left_bytes - 1
    for item in value:
        left_bytes = _left(item, left_bytes)
        if left_bytes < 0:
            break
    return left_bytes


def resolve_sampling(
    request: GenerationRequest,
    prompt: PreparedPrompt,
    max_context_tokens: int,
    limits: TenantLimits,
    text: TextPipeline,
    choice: int,
) -> SamplingParams:
    """The engine's parameters for one choice; each choice of one prompt draws from a seed of its own.

    Raises: ContextTooLong, InvalidParameter
    """
    asked = request.sampling
    max_tokens = _max_tokens(request, len(prompt.token_ids), max_context_tokens, limits)
    _check_vocabulary(asked, text.vocab_size)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
        repetition_penalty=asked.repetition_penalty,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        seed=None if asked.seed is None else _shifted(asked.seed, choice),
        stop_token_ids=tuple(text.stop_token_ids),
        ignore_eos=asked.ignore_eos,
        min_tokens=min(asked.min_tokens, max_tokens),
        top_logprobs=asked.top_logprobs,
        logit_bias=asked.logit_bias,
        grammar=prompt.grammar,
    )


def _max_tokens(request: GenerationRequest, prompt_tokens: int, context: int, limits: TenantLimits) -> int:
    if limits.max_context_tokens is not None:
        context = min(context, limits.max_context_tokens)
    room = context - prompt_tokens
    if room < 1:
        raise _too_long(request, f"{prompt_tokens:,}", context)
    asked, most = request.sampling.max_tokens, limits.max_output_tokens
    if asked is None or request.clamp_max_tokens:
        return min(room if asked is None else max(1, asked), room, room if most is None else most)
    if most is not None and asked > most:
        raise InvalidParameter(
            f"{asked:,} output tokens were asked for; this tenant may have {most:,}.",
            "Ask for fewer.",
            param="max_tokens",
        )
    if asked > room:
        raise ContextTooLong(
            f"The prompt has {prompt_tokens:,} tokens and {asked:,} more were asked for; "
            f"the model {request.model} here allows {context:,} for both.",
            f"Ask for at most {room:,}, or shorten the prompt.",
            param="max_tokens",
        )
    return max(1, asked)


def _too_long(request: GenerationRequest, tokens: str, context: int) -> ContextTooLong:
    return ContextTooLong(
        f"The prompt has {tokens} tokens; the model {request.model} here allows {context:,} for prompt and answer.",
        "Shorten it, or ask for a model with a longer context.",
        param="messages" if isinstance(request.prompts[0], ChatPrompt) else "prompt",
    )


def _longest_token_bytes(text: TextPipeline) -> int:
    found = _LONGEST.get(text)
    if found is None:
        found = max(1, *(len(text.token_bytes(token_id)) for token_id in range(text.vocab_size)))
        _LONGEST[text] = found
    return found


def _text_bytes(prompt: Prompt) -> int:
    """Bytes that surely become tokens: a template may strip what stands around a text."""
    if isinstance(prompt, TokenPrompt):
        return len(prompt.token_ids)  # a token is a byte or more
    texts = (
        [prompt.text, prompt.suffix] if isinstance(prompt, TextPrompt) else [str(m["content"]) for m in prompt.messages]
    )
    return sum(len(one.strip().encode("utf-8", "surrogatepass")) for one in texts)


def _shifted(seed: int, by: int) -> int:
    """seed + by within 64 bits."""
    return (seed + by + 2**63) % 2**64 - 2**63


def _check_vocabulary(sampling: Sampling, vocab_size: int) -> None:
    for token_id in sampling.logit_bias or ():
        if token_id >= vocab_size:
            raise InvalidParameter(
                f"logit_bias names token {token_id}; the model has {vocab_size:,}.", param="logit_bias"
            )


def _prepare(prompt: Prompt, request: GenerationRequest, text: TextPipeline) -> PreparedPrompt:
    if isinstance(prompt, ChatPrompt):
        token_ids = render_prompt(prompt, request, text)
        return PreparedPrompt(token_ids, grammar=choice_grammar(request, text, token_ids))
    if isinstance(prompt, TextPrompt):
        if prompt.suffix:
            token_ids = fill_in_ids(text, request.model, prompt.text, prompt.suffix)
        else:
            token_ids = text.encode(prompt.text, special=True, add_bos=True)
        if not token_ids:
            raise InvalidParameter("The prompt has no tokens.", param="prompt")
        return PreparedPrompt(token_ids, prompt.text if request.echo else "")
    for token_id in prompt.token_ids:
        if not 0 <= token_id < text.vocab_size:
            raise InvalidParameter(
                f"prompt holds token id {token_id}; the model has {text.vocab_size:,}.", param="prompt"
            )
    token_ids = list(prompt.token_ids)
    return PreparedPrompt(token_ids, text.decode(token_ids) if request.echo else "")
