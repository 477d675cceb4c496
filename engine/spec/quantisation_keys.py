"""The keys that a quantization_config may have: those that are read, and those that only tell how it was made.

Source: what compressed-tensors, AutoAWQ, AutoGPTQ, GPTQModel, AutoRound and transformers write
"""

from __future__ import annotations

from engine.errors import UnsupportedFormat
from engine.spec.fields import Fields

_ANY = frozenset({"quant_method", "modules_to_not_convert", "ignored_layers"})
# Of four-bit makers: which texts, how many of them, what was searched for, and with which kernels to run it.
_MAKING = """
act_bits act_data_type act_dynamic act_group_aware act_group_size act_sym amp autoround_version awq_gemm backend
batch_size block_name_to_quantize cache_block_outputs damp_auto_increment damp_percent data_type dataset
disable_exllama do_fuse enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input exllama_config
fuse_max_seq_len gradient_accumulate_steps hyb_act is_marlin_format iters low_gpu_mem_usage lr max_input_length meta
method minmax_lr model_file_base_name model_name_or_path model_seqlen module_name_preceding_first_block
modules_in_block_to_quantize modules_to_fuse mse nsamples pack_dtype pack_impl pad_token_id provider quant_block_list
scale_dtype seqlen static_groups supported_types to_quant_block_names tokenizer train_bs true_sequential use_cuda_fp16
use_exllama
"""
KEYS: dict[str, frozenset[str]] = {
    "compressed-tensors": frozenset(
        {
            "quant_method",
            "format",
            "quantization_status",
            "global_compression_ratio",
            "kv_cache_scheme",
            "config_groups",
            "ignore",
            "sparsity_config",
            "transform_config",
            "version",
            "run_compressed",
        }
    ),
    "awq": _ANY
    | frozenset(_MAKING.split())
    | {"bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "lm_head", "sym"}
    | {"desc_act", "format", "checkpoint_format"},
    "gptq": _ANY
    | frozenset(_MAKING.split())
    | {"bits", "group_size", "desc_act", "sym", "checkpoint_format", "format", "dynamic", "lm_head"},
    "fp8": _ANY
    | {"activation_scheme", "fmt", "weight_block_size", "scale_fmt", "kv_cache_scheme", "kv_cache_quant_method"}
    | {"dequantize", "ignored_layers"},
    "fbgemm_fp8": _ANY | {"activation_scale_ub"},
}
FAMILY_KEYS = frozenset({"quant_method", "modules_to_not_convert", "dequantize"})  # of forms that a family has itself
GROUP_KEYS = frozenset({"targets", "weights", "input_activations", "output_activations", "format"})
NUMBERS_KEYS = frozenset(  # of weights, of activations and of a cache
    {
        "num_bits",
        "type",
        "symmetric",
        "strategy",
        "group_size",
        "block_structure",
        "dynamic",
        "actorder",
        "observer",
        "observer_kwargs",
        "scale_dtype",
        "zp_dtype",
    }
)
SPARSITY_KEYS = frozenset(
    {"format", "global_sparsity", "sparsity_structure", "registry_requires_subclass", "ignore", "targets"}
)
TRANSFORM_KEYS = frozenset({"config_groups"})


def refuse_unknown(stated: Fields, known: frozenset[str]) -> None:
    """Raises: UnsupportedFormat for a key that is none of them and says something."""
    unknown = sorted(name for name, value in stated.values.items() if name not in known and value is not None)
    if unknown:
        raise UnsupportedFormat(
            f"{stated.source} states {unknown[0]} = {str(stated.values[unknown[0]])[:80]!r}, which is not understood "
            "and may change the numbers.",
            "Take the key out of config.json if it does not say how weights are stored; else convert the model again.",
        )
