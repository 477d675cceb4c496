"""Quantised folders that contradict themselves, or whose multipliers are no numbers: refused, by the tensor's name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import UnsupportedFormat
from engine.models.checkpoint import MappedCheckpoint
from engine.spec import read_spec
from tests.fakes.quantised_checkpoints import FORMATS, llama, write_pair

Tensors = dict[str, torch.Tensor]
MODULE = "model.layers.0.mlp.down_proj"
SCALES = {"awq": "scales", "gptq": "scales", "fp8-block": "weight_scale_inv"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder in a format, written once."""
    folders: dict[str, Path] = {}

    def _made(name: str) -> Path:
        if name not in folders:
            keep = ("layers.1.", "self_attn", "gate_proj", "up_proj")
            folders[name] = write_pair(tmp_path_factory.mktemp(name), name, keep=keep)[0]
            config = json.loads((folders[name] / "config.json").read_text())
            stays = ["lm_head", "re:.*layers.1.*", "re:.*self_attn.*", "re:.*(gate|up)_proj"]
            key = "ignore" if "config_groups" in config["quantization_config"] else "modules_to_not_convert"
            config["quantization_config"][key] = stays
            (folders[name] / "config.json").write_text(json.dumps(config))
        return folders[name]

    return _made


@pytest.fixture
def read(made: Callable[[str], Path], tmp_path: Path) -> Callable[..., Any]:
    """Read down_proj of layer 0, after a change of its tensors by suffix and of the configuration."""

    def _read(name: str, change: Callable[[Tensors], Any] = len, **config: Any) -> Any:
        folder = tmp_path / "changed"
        shutil.copytree(made(name), folder)
        stored = load_file(folder / "model.safetensors")
        parts = {key.removeprefix(f"{MODULE}."): stored.pop(key) for key in list(stored) if key.startswith(MODULE)}
        change(parts)
        stored |= {f"{MODULE}.{suffix}": part.contiguous() for suffix, part in parts.items()}
        save_file(stored, folder / "model.safetensors")
        stated = json.loads((folder / "config.json").read_text())
        stated["quantization_config"] |= config
        (folder / "config.json").write_text(json.dumps(stated))
        return MappedCheckpoint(read_spec(folder), lambda done, total: None).matrix("mlp_down", 0)

    return _read


def put(suffix: str, value: Any) -> Callable[[Tensors], None]:
    """A first number that is another one."""

    def change(parts: Tensors) -> None:
        parts[suffix].view(-1)[0] = value

    return change


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("ct-nvfp4", "ct-mxfp4")])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_multiplier_that_is_no_number_is_refused_in_every_format(
    name: str, value: float, read: Callable[..., Any]
) -> None:
    suffix = SCALES.get(name.partition("-")[0], SCALES.get(name, "weight_scale"))
    with pytest.raises(UnsupportedFormat, match=rf"down_proj\.{suffix} holds \d+ numbers that cannot multiply"):
        read(name, put(suffix, value))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -0.01, 1e-40])
def test_divisor_that_cannot_divide_is_refused(value: float, read: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedFormat, match="weight_global_scale holds 1 numbers that cannot multiply"):
        read("ct-nvfp4", put("weight_global_scale", value))


@pytest.mark.parametrize("exponent", [255, 254, 240])
def test_exponents_beyond_numbers_are_refused(exponent: int, read: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedFormat, match="down_proj holds 1 fp4_mx codes"):
        read("ct-mxfp4", put("weight_scale", exponent))


@pytest.mark.parametrize(
    ("name", "suffix", "config"),
    [
        ("gptq-order", "g_idx", {}),
        (
            "ct-w4a16-order",
            "weight_g_idx",
            {"config_groups": FORMATS["ct-w4a16-order"].config["config_groups"]},
        ),
    ],
)
def test_order_that_is_stated_and_not_there_is_refused(
    name: str, suffix: str, config: dict[str, Any], read: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedFormat, match="index of columns that says nothing"):
        read(name, lambda parts: parts[suffix].fill_(-1), **config)
    shutil.rmtree(tmp_path / "changed")
    with pytest.raises(UnsupportedFormat, match=rf"lacks .*down_proj\.{suffix}"):
        read(name, lambda parts: parts.pop(suffix), **config)


def test_index_is_not_needed_where_one_group_is_a_row(read: Callable[..., Any]) -> None:
    found = read("gptq-8", lambda parts: parts.pop("g_idx"), desc_act=True)
    assert found.kind == "int8"


def test_shape_that_contradicts_the_matrix_is_refused(read: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedFormat, match=r"weight_shape says \[999, 256\]; .* \[128, 256\]"):
        read("ct-w4a16", put("weight_shape", 999))


def outliers(**parts: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda stored: stored.update(parts)


COLUMNS = torch.tensor([3, 7, 200], dtype=torch.int32)
KEPT = torch.ones(128, 3, dtype=torch.float16)


@pytest.mark.parametrize(
    ("name", "parts", "message"),
    [
        ("ct-w8a8", {"outlier_columns": COLUMNS}, "outlier_columns without .*outlier_weight"),
        ("ct-w8a8", {"outlier_weight": KEPT}, "outlier_weight without .*outlier_columns"),
        ("ct-w8a8", {"outlier_threshold": torch.ones(1)}, "outlier_threshold without"),
        ("ct-w8a8", {"outlier_columns": COLUMNS, "outlier_weight": KEPT[:, :2]}, "3 numbers in .* and 2 columns"),
        ("ct-w8a8", {"outlier_columns": COLUMNS, "outlier_weight": KEPT * torch.nan}, "outlier_weight holds 384"),
        *(
            (
                "ct-w8a8",
                {"outlier_columns": COLUMNS, "outlier_weight": KEPT, "outlier_threshold": torch.tensor([threshold])},
                "outlier_threshold",
            )
            for threshold in (float("nan"), float("inf"), 0.0, -1.0)
        ),
        ("ct-w8a8", {"outlier_columns": COLUMNS.flip(0), "outlier_weight": KEPT}, "out of order or range"),
        (
            "ct-w8a8",
            {
                "outlier_columns": COLUMNS,
                "outlier_weight": KEPT,
                "weight_zero_point": torch.ones(128, 1).to(torch.int8),
            },
            "outlier columns beside codes with zero points",
        ),
        ("ct-w8a8-zeros", {"outlier_columns": COLUMNS, "outlier_weight": KEPT}, "zero points; one multiplier a row"),
    ],
)
def test_outlier_columns_that_contradict_what_is_beside_them_are_refused(
    name: str, parts: Tensors, message: str, read: Callable[..., Any]
) -> None:
    with pytest.raises(UnsupportedFormat, match=message):
        read(name, outliers(**parts))


def test_outlier_columns_that_belong_together_are_read(read: Callable[..., Any]) -> None:
    found = read("ct-w8a8", outliers(outlier_columns=COLUMNS, outlier_weight=KEPT, outlier_threshold=torch.ones(1)))
    assert found.outliers.threshold == 1.0
    assert found.dequantize()[:, COLUMNS.long()].eq(1.0).all()


def _group(name: str = "ct-w8a8", **weights: Any) -> dict[str, Any]:
    group: dict[str, Any] = FORMATS[name].config["config_groups"]["group_0"]
    return {"config_groups": {"group_0": group | {"weights": group["weights"] | weights}}}


def _beside(name: str = "ct-w8a8", **keys: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": FORMATS[name].config["config_groups"]["group_0"] | keys}}


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("ct-w8a8", {"rotation": "hadamard"}, "quantization_config, states rotation = 'hadamard'"),
        ("ct-w8a8", _beside(rotation="hadamard"), "config_groups, group_0, states rotation"),
        (
            "ct-w8a8",
            _group(rotation="hadamard"),
            "quantization_config, config_groups, group_0, weights, states rotation",
        ),
        ("ct-w8a8", _beside(input_activations={"spin": 1}), "input_activations, states spin"),
        ("ct-w8a8", {"kv_cache_scheme": {"num_bits": 8, "spin": 1}}, "kv_cache_scheme, states spin"),
        ("ct-w8a8", {"transform_config": {"spin": 1}}, "transform_config, states spin"),
        ("ct-w8a8", {"sparsity_config": {"format": "dense", "spin": 1}}, "sparsity_config, states spin"),
        ("awq", {"rotation": "hadamard"}, "states rotation"),
        ("awq", {"desc_act": True}, "desc_act"),
        ("gptq", {"rotation": "hadamard"}, "states rotation"),
        ("gptq", {"adapter": {"name": "lora"}}, "states adapter"),
        ("gptq", {"format": "marlin"}, "format"),
        ("gptq", {"checkpoint_format": "gptq", "format": "gptq_v2"}, "gptq, as checkpoint_format states,"),
        ("gptq", {"desc_act": "yes"}, "desc_act = 'yes'; true or false"),
        ("gptq", {"data_type": "fp"}, "data_type"),
        ("gptq", {"group_size": [32]}, "group_size"),
        ("fp8-block", {"rotation": "hadamard"}, "states rotation"),
        ("fp8-block", {"scale_fmt": "log"}, "scale_fmt"),
        ("fbgemm", {"rotation": "hadamard"}, "states rotation"),
        ("ct-w4a16", _group("ct-w4a16", actorder="banana"), "actorder = 'banana'"),
        ("ct-w4a16", _group("ct-w4a16", dynamic=True), "dynamic = True"),
        ("ct-w4a16", _group("ct-w4a16", group_size=[32]), r"group_size = \[32\]; a number of columns"),
        ("ct-w4a16", _group("ct-w4a16", strategy="tensor_group"), "'tensor_group'; one that is not for 4-bit floats"),
        ("ct-w8a8", _group(actorder="group", strategy="group", group_size=32), "where numbers are not packed"),
        ("ct-fp8-row", _group("ct-fp8-row", symmetric=False), "symmetric = False; true, for floats"),
        ("ct-nvfp4", _group("ct-nvfp4", symmetric=False), "symmetric"),
        ("ct-nvfp4", _group("ct-nvfp4", group_size=32), "group_size = 32; 16 is needed"),
        ("awq", {"bits": 8}, "bits = 8; 4 is needed"),
    ],
)
def test_key_or_value_that_is_not_understood_is_refused(
    name: str, config: dict[str, Any], message: str, read: Callable[..., Any]
) -> None:
    with pytest.raises(UnsupportedFormat, match=message) as raised:
        read(name, **config)
    assert ",," not in raised.value.message


def test_keys_that_only_tell_how_it_was_made_are_passed_over(read: Callable[..., Any]) -> None:
    told = {"damp_percent": 0.1, "static_groups": False, "true_sequential": True, "meta": {"quantizer": ["some:1"]}}
    assert (
        read("gptq", checkpoint_format="gptq", format="gptq", pack_dtype="int32", unheard=None, **told).kind == "int4"
    )


def test_size_of_groups_says_the_strategy_that_is_not_stated(read: Callable[..., Any]) -> None:
    weights = dict(FORMATS["ct-w4a16"].config["config_groups"]["group_0"]["weights"])
    weights.pop("strategy")
    assert read("ct-w4a16", config_groups={"group_0": {"targets": ["Linear"], "weights": weights}}).group == 32


@pytest.mark.parametrize("second", ["Linear", "re:.*down_proj$"])
def test_groups_that_store_one_module_otherwise_are_refused(second: str, read: Callable[..., Any]) -> None:
    first = FORMATS["ct-w8a8"].config["config_groups"]["group_0"]
    other = FORMATS["ct-fp8-row"].config["config_groups"]["group_0"] | {"format": "float-quantized"}
    targets = ["Linear"] if second == "Linear" else [r"re:.*mlp\..*"]
    groups = {"group_1": first | {"targets": targets}, "group_0": other | {"targets": [second]}}
    with pytest.raises(UnsupportedFormat, match=r"Linear is in group_1 too|2 groups for .*down_proj that store"):
        read("ct-w8a8", config_groups=groups)


def test_rows_that_words_of_zero_points_do_not_divide_are_refused(tmp_path: Path) -> None:
    """GPTQ packs the zero points of eight rows in a word; here a matrix has twelve."""
    folder = llama(tmp_path / "narrow", head_dim=6)
    stored = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.k_proj"
    rows, columns = stored.pop(f"{name}.weight").shape
    stored |= {
        f"{name}.qweight": torch.zeros(columns // 8, rows, dtype=torch.int32),
        f"{name}.scales": torch.ones(columns // 32, rows, dtype=torch.float16),
        f"{name}.qzeros": torch.zeros(columns // 32, rows // 8, dtype=torch.int32),
    }
    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": FORMATS["gptq"].config}))
    with pytest.raises(UnsupportedFormat, match="k_proj as 12 x 128"):
        read_spec(folder)
