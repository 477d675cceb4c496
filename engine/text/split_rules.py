"""How byte-level vocabularies cut text before merging, by the name a GGUF file gives (tokenizer.ggml.pre).

The rules belong to the vocabularies: merges were learned inside these pieces. A name that is not here is refused, as
a wrong rule gives a working but worse model, which nobody would notice.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_SPACES}"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_SPACES}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = [rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"]
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_GPT4O = rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_MARKS}{_SPACES}"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_MARKS}{_SPACES}"
_DEEPSEEK3_TEXT = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class SplitRule:
    """patterns are applied one after the other, each inside the pieces of the one before; () is GPT-2's own rule."""

    patterns: tuple[str, ...] = ()
    single_digits: bool = False  # digits are cut off one by one first
    whole_words: bool = False  # a piece that is a token stays whole, whatever the merges say
    compose: bool = False  # Unicode NFC first
    starts_with_bos: bool = False  # when the file does not say

    def pre_tokenizer(self) -> PreTokenizer:
        steps: list[PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps += [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.patterns))
        return pre_tokenizers.Sequence(steps)

    def normalizer(self) -> Normalizer | None:
        return normalizers.NFC() if self.compose else None


_GPT2_RULE = SplitRule()
_DIGITS_RULE = SplitRule(single_digits=True)
_LLAMA3_RULE = SplitRule((_LLAMA3,), whole_words=True, starts_with_bos=True)
_PLAIN_LLAMA3_RULE = SplitRule((_LLAMA3,))
_QWEN2_RULE = SplitRule((_QWEN2,), compose=True)
_GPT4O_RULE = SplitRule((_GPT4O,))

SPLIT_RULES: dict[str, SplitRule] = {
    **dict.fromkeys(("gpt-2", "default", "phi-2", "mpt", "olmo"), _GPT2_RULE),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS_RULE),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3_RULE),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _PLAIN_LLAMA3_RULE),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2_RULE),
    "qwen35": SplitRule((_QWEN35,), compose=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), _GPT4O_RULE),
    "tekken": SplitRule((_TEKKEN,), whole_words=True, starts_with_bos=True),
    "deepseek-v3": SplitRule((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3_TEXT)),
}
