"""quantization_config as those who make checkpoints write it, with all that they tell beside."""

from __future__ import annotations

from typing import Any

import pytest

from engine.spec.fields import Fields
from engine.spec.quantisation import CHANNEL, TENSOR, QuantScheme, Storage
from engine.spec.quantisation_config import read_quantisation

NUMBERS: dict[str, Any] = {
    "actorder": None,
    "block_structure": None,
    "dynamic": False,
    "group_size": None,
    "num_bits": 8,
    "observer": "minmax",
    "observer_kwargs": {},
    "strategy": "channel",
    "symmetric": True,
    "type": "int",
}
TOKENS = NUMBERS | {"dynamic": True, "observer": None, "strategy": "token"}


def compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    group = {"input_activations": inputs, "output_activations": None, "targets": ["Linear"], "weights": weights}
    return {
        "config_groups": {"group_0": group},
        "format": form,
        "global_compression_ratio": 1.24,
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        **more,
    }


WRITTEN: dict[str, tuple[dict[str, Any], QuantScheme]] = {
    "compressed-tensors w8a8": (compressed("int-quantized", NUMBERS, TOKENS), QuantScheme(Storage.WHOLE, 8)),
    "compressed-tensors w4a16, ordered": (
        compressed(
            "pack-quantized",
            NUMBERS | {"num_bits": 4, "strategy": "group", "group_size": 128, "actorder": "group"},
            None,
            sparsity_config={},
            transform_config={},
            version="0.11.0",
        ),
        QuantScheme(Storage.PACKED, 4, 128, ordered=True),
    ),
    "compressed-tensors w4a16, weights ordered": (
        compressed(
            "pack-quantized",
            NUMBERS | {"num_bits": 4, "strategy": "group", "group_size": 128, "actorder": "static", "symmetric": False},
            None,
        ),
        QuantScheme(Storage.PACKED, 4, 128, zeros=True),
    ),
    "compressed-tensors fp8 with a cache": (
        compressed(
            "float-quantized",
            NUMBERS | {"type": "float", "strategy": "tensor", "scale_dtype": None, "zp_dtype": None},
            TOKENS | {"type": "float", "dynamic": False, "strategy": "tensor"},
            kv_cache_scheme=NUMBERS | {"type": "float", "strategy": "tensor"},
        ),
        QuantScheme(Storage.FLOAT8, 8, TENSOR),
    ),
    "compressed-tensors nvfp4": (
        compressed(
            "nvfp4-pack-quantized",
            NUMBERS
            | {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "zp_dtype": None}
            | {"scale_dtype": "torch.float8_e4m3fn", "observer": "static_minmax"},
            NUMBERS
            | {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"},
        ),
        QuantScheme(Storage.NVFP4, 4, 16),
    ),
    "AutoAWQ": (
        {
            "bits": 4,
            "group_size": 128,
            "modules_to_not_convert": None,
            "quant_method": "awq",
            "version": "gemm",
            "zero_point": True,
        },
        QuantScheme(Storage.AWQ, 4, 128, zeros=True),
    ),
    "AutoAWQ at first": (
        {"quant_method": "awq", "version": "GEMM", "w_bit": 4, "q_group_size": 64, "zero_point": True},
        QuantScheme(Storage.AWQ, 4, 64, zeros=True),
    ),
    "transformers' AWQ": (
        {
            "backend": "autoawq",
            "bits": 4,
            "do_fuse": False,
            "exllama_config": None,
            "fuse_max_seq_len": None,
            "group_size": 128,
            "modules_to_fuse": None,
            "modules_to_not_convert": ["gate"],
            "quant_method": "awq",
            "version": "gemm",
            "zero_point": True,
        },
        QuantScheme(Storage.AWQ, 4, 128, zeros=True),
    ),
    "AutoGPTQ": (
        {
            "bits": 4,
            "damp_percent": 0.1,
            "desc_act": True,
            "group_size": 128,
            "is_marlin_format": False,
            "model_file_base_name": "model",
            "model_name_or_path": None,
            "quant_method": "gptq",
            "static_groups": False,
            "sym": True,
            "true_sequential": True,
        },
        QuantScheme(Storage.GPTQ, 4, 128, zeros=True, zeros_less_one=True, ordered=True),
    ),
    "transformers' GPTQ": (
        {
            "batch_size": 1,
            "bits": 4,
            "block_name_to_quantize": None,
            "cache_block_outputs": True,
            "damp_percent": 0.1,
            "dataset": None,
            "desc_act": False,
            "exllama_config": {"version": 1},
            "group_size": 128,
            "max_input_length": None,
            "model_seqlen": None,
            "module_name_preceding_first_block": None,
            "modules_in_block_to_quantize": None,
            "pad_token_id": None,
            "quant_method": "gptq",
            "sym": True,
            "tokenizer": None,
            "true_sequential": True,
            "use_cuda_fp16": False,
            "use_exllama": True,
        },
        QuantScheme(Storage.GPTQ, 4, 128, zeros=True, zeros_less_one=True),
    ),
    "GPTQModel": (
        {
            "bits": 8,
            "checkpoint_format": "gptq_v2",
            "desc_act": True,
            "dynamic": {"-:.*gate.*": {}},
            "format": "gptq_v2",
            "group_size": -1,
            "lm_head": False,
            "meta": {"quantizer": ["gptqmodel:5.6.12"], "mse": 0.0, "act_group_aware": True},
            "method": "gptq",
            "pack_dtype": "int32",
            "pack_impl": "cpu",
            "quant_method": "gptq",
            "sym": True,
        },
        QuantScheme(Storage.GPTQ, 8, zeros=True),
    ),
    "AutoRound": (
        {
            "amp": True,
            "autoround_version": "0.5.1",
            "batch_size": 8,
            "bits": 4,
            "damp_percent": 0.01,
            "data_type": "int",
            "desc_act": False,
            "enable_quanted_input": True,
            "group_size": 128,
            "iters": 200,
            "lr": 0.005,
            "low_gpu_mem_usage": True,
            "nsamples": 512,
            "provider": "auto-round",
            "quant_method": "gptq",
            "seqlen": 2048,
            "sym": True,
            "true_sequential": False,
        },
        QuantScheme(Storage.GPTQ, 4, 128, zeros=True, zeros_less_one=True),
    ),
    "fp8 in blocks": (
        {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
        QuantScheme(Storage.FLOAT8, 8, block=(128, 128), scale_name="weight_scale_inv"),
    ),
    "AutoFP8": (
        {
            "activation_scheme": "static",
            "ignored_layers": ["lm_head"],
            "kv_cache_scheme": "static",
            "quant_method": "fp8",
        },
        QuantScheme(Storage.FLOAT8, 8, TENSOR),
    ),
    "FBGEMM": (
        {"activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"], "quant_method": "fbgemm_fp8"},
        QuantScheme(Storage.FLOAT8, 8, CHANNEL),
    ),
}


@pytest.mark.parametrize("maker", WRITTEN)
def test_what_makers_write_is_understood(maker: str) -> None:
    stated, scheme = WRITTEN[maker]
    found = read_quantisation(Fields(stated, "config.json, quantization_config,"))
    assert found.scheme_of("model.layers.0.mlp.down_proj") == scheme
