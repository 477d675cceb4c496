"""AdapterSpec: what a LoRA folder is, as PEFT writes it: adapter_config.json beside adapter_model.safetensors.

An adapter adds scale * B(A x) to some of a model's projections. What would change anything else is refused.
Source: PEFT's LoraConfig; LoRA (arXiv 2106.09685), rank-stabilised scales (arXiv 2312.03732)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path

from engine.errors import UnsupportedFormat
from engine.ggml_types import PLAIN_TYPES
from engine.spec.fields import Fields
from engine.spec.hf_folder import read_json
from engine.spec.model_spec import TensorInfo
from engine.spec.safetensors_header import read_safetensors_header

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MAX_RANK = 512
MAX_ALPHA = 1e6
_PREFIX = "base_model.model."
_TENSOR = re.compile(r"(?P<module>[A-Za-z0-9_.]+)\.lora_(?P<side>[AB])(?:\.default)?\.weight")
_PATTERN = re.compile(r"[A-Za-z0-9_.]+")

# Values that say how it was trained, or repeat what the tensors show: nothing to do.
_OF_TRAINING = frozenset(
    {
        "auto_mapping",
        "base_model_class",
        "base_model_name_or_path",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "lora_dropout",
        "megatron_core",
        "parent_library",
        "peft_version",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
    }
)
_READ = frozenset(
    {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "init_lora_weights", "bias"}
)
# What would change more than the projections' outputs -> why it is refused when it is set.
_REFUSED = {
    "use_dora": "DoRA rescales the base's weights",
    "modules_to_save": "it replaces whole modules of the base",
    "fan_in_fan_out": "its matrices are stored transposed",
    "layer_replication": "it repeats layers of the base",
    "lora_bias": "its B has a bias",
    "trainable_token_indices": "it replaces rows of the embedding",
    "target_parameters": "it adapts parameters that are no projections",
    "alora_invocation_tokens": "it begins in the middle of a text",
    "use_qalora": "QALoRA pools the inputs of A",
}
# Starts that take something away from the base's weights, which are then not those that are served.
_BASE_CHANGING = ("pissa", "olora", "corda", "loftq")


@dataclass(frozen=True, slots=True)
class AdapterPair:
    """One projection's share."""

    module: str  # the projection's name in a Hugging Face folder, without ".weight"
    a: TensorInfo  # [r, in]
    b: TensorInfo  # [out, r]
    scale: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    name: str
    path: str
    file: str
    base_model: str  # as the one who trained it called the base; "" where that is not stated
    pairs: tuple[AdapterPair, ...]

    @property
    def rank(self) -> int:
        return max(pair.rank for pair in self.pairs)

    @property
    def weight_bytes(self) -> int:
        return sum(pair.a.size_bytes + pair.b.size_bytes for pair in self.pairs)

    @property
    def num_parameters(self) -> int:
        return sum(pair.a.num_elements + pair.b.num_elements for pair in self.pairs)


def is_adapter(path: Path) -> bool:
    """Whether a folder is an adapter and no model of its own."""
    return (path / CONFIG_FILE).is_file() and not (path / "config.json").is_file()


def read_adapter(folder: Path) -> AdapterSpec:
    """Read the configuration and the tensors' header. Raises: UnsupportedFormat, ConfigError."""
    config = Fields(read_json(folder / CONFIG_FILE), f"{folder.name}/{CONFIG_FILE}")
    config.one_of("peft_type", ("LORA",), "")
    _refuse_others(config)
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise UnsupportedFormat(
            f"{folder.name} has no {WEIGHTS_FILE}.",
            "Pickle files can run code and are never opened: save the adapter as safetensors.",
        )
    sides: dict[str, dict[str, TensorInfo]] = {}
    for info in read_safetensors_header(file):
        found = _TENSOR.fullmatch(info.name)
        if found is None or len(info.shape) != 2 or info.dtype not in PLAIN_TYPES:
            raise UnsupportedFormat(
                f"{folder.name} holds {info.name} as {info.dtype} {list(info.shape)}; matrices lora_A and lora_B of "
                f"{', '.join(PLAIN_TYPES)} alone can be applied.",
                "Train it without DoRA, without biases and without modules_to_save.",
            )
        sides.setdefault(found["module"].removeprefix(_PREFIX), {})[found["side"]] = info
    if not sides:
        raise UnsupportedFormat(f"{folder.name}/{WEIGHTS_FILE} holds no tensors.", "Save the adapter again.")
    scales = _Scales(config)
    return AdapterSpec(
        name=folder.name,
        path=str(folder),
        file=str(file),
        base_model=config.text("base_model_name_or_path", ""),
        pairs=tuple(_pair(folder, module, found, scales) for module, found in sorted(sides.items())),
    )


def _refuse_others(config: Fields) -> None:
    for name, why in _REFUSED.items():
        if config.values.get(name):
            raise UnsupportedFormat(
                f"{config.source} sets {name}: {why}, which is not supported.",
                "Merge the adapter into its base and import the result.",
            )
    config.one_of("bias", ("none",), "none")
    start = config.values.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(_BASE_CHANGING):
        raise UnsupportedFormat(
            f"{config.source} states init_lora_weights = {start!r}: its base's weights were changed too.",
            "Save it again as a plain LoRA (PEFT's path_initial_model_for_weight_conversion), or merge it.",
        )
    known = _OF_TRAINING | _READ | set(_REFUSED)
    for name, value in config.values.items():
        if name not in known and value not in (None, False, "", {}, []):
            raise config.refuse(name, "a key that is understood, or null,")


class _Scales:
    """The rank and the multiplier that the configuration states for a module."""

    def __init__(self, config: Fields) -> None:
        self._config = config
        self._rank = config.whole("r", 1, MAX_RANK)
        self._alpha = config.number("lora_alpha", 0.0, MAX_ALPHA, 8.0)
        self._stabilised = config.truth("use_rslora", False)
        self._ranks = _patterns(config, "rank_pattern")
        self._alphas = _patterns(config, "alpha_pattern")

    def of(self, module: str) -> tuple[int, float]:
        rank = int(_match(self._ranks, module, self._rank))
        alpha = _match(self._alphas, module, self._alpha)
        return rank, alpha / (sqrt(rank) if self._stabilised else rank)


def _patterns(config: Fields, name: str) -> dict[str, float]:
    section = config.section(name)
    if section is None:
        return {}
    for pattern in section.values:
        if not _PATTERN.fullmatch(pattern):
            raise section.refuse(pattern, "the end of a module's name, no regular expression,")
    if name == "rank_pattern":
        return {pattern: section.whole(pattern, 1, MAX_RANK) for pattern in section.values}
    return {pattern: section.number(pattern, 0.0, MAX_ALPHA) for pattern in section.values}


def _match(patterns: Mapping[str, float], module: str, default: float) -> float:
    return next((v for end, v in patterns.items() if module == end or module.endswith(f".{end}")), default)


def _pair(folder: Path, module: str, found: Mapping[str, TensorInfo], scales: _Scales) -> AdapterPair:
    rank, scale = scales.of(module)
    a, b = found.get("A"), found.get("B")
    if a is None or b is None or a.shape[0] != rank or b.shape[1] != rank:
        shapes = {side: list(info.shape) for side, info in sorted(found.items())}
        raise UnsupportedFormat(
            f"{folder.name} has {module} as {shapes}; {rank} rows of lora_A and columns of lora_B are needed.",
            "The configuration and the weights do not belong together: save both again.",
        )
    return AdapterPair(module, a, b, scale)


def named(spec: AdapterSpec, name: str) -> AdapterSpec:
    """The same adapter under the name that requests ask for."""
    return replace(spec, name=name)
