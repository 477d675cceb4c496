"""ModelSpec of an encoder in a GGUF file."""

from __future__ import annotations

from pathlib import Path

from engine.errors import UnsupportedFormat
from engine.spec.encoder_checkpoint import checked, encoder_layers
from engine.spec.encoder_families import MODEL_NAMES, EncoderFamily
from engine.spec.fields import MAX_CONTEXT, MAX_LAYERS, MAX_WIDTH, Fields
from engine.spec.gguf_header import GgufHeader
from engine.spec.model_spec import CheckpointFormat, ModelSpec, PoolingKind, PoolingSpec

# Keys under the architecture's name that are understood; any other may change the sums.
READ_KEYS = (
    "attention.causal",
    "attention.head_count",
    "attention.layer_norm_epsilon",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "pooling_type",
    "vocab_size",
)
_POOLINGS = {1: PoolingKind.MEAN, 2: PoolingKind.CLS, 3: PoolingKind.LAST}


def gguf_encoder_spec(header: GgufHeader, family: EncoderFamily, name: str) -> ModelSpec:
    """Raises: UnsupportedFormat."""
    metadata = Fields(header.metadata, Path(header.path).name)
    prefix = f"{family.gguf_architectures[0]}."
    unknown = sorted(
        key for key in header.metadata if key.startswith(prefix) and key.removeprefix(prefix) not in READ_KEYS
    )
    if unknown:
        raise UnsupportedFormat(
            f"{metadata.source} states {', '.join(unknown[:3])}, which is not understood and may change its vectors.",
            "Import the model as a Hugging Face folder.",
        )
    if metadata.truth(f"{prefix}attention.causal", False):
        raise metadata.refuse(f"{prefix}attention.causal", "false")
    pooling = _POOLINGS.get(metadata.whole(f"{prefix}pooling_type", 0, 8, 0))
    if pooling is None:
        raise metadata.refuse(f"{prefix}pooling_type", "1 (mean), 2 (cls) or 3 (last)")
    embed = next((info for info in header.tensors if info.name == MODEL_NAMES["embed"][0]), None)
    if embed is None or len(embed.shape) != 2:
        raise UnsupportedFormat(f"{metadata.source} lacks the tensor {MODEL_NAMES['embed'][0]}.", "Convert it again.")
    hidden = metadata.whole(f"{prefix}embedding_length", 1, MAX_WIDTH)
    return checked(
        ModelSpec(
            name=name,
            architecture=family.key,
            format=CheckpointFormat.GGUF,
            path=header.path,
            files=(header.path,),
            hidden_size=hidden,
            vocab_size=embed.shape[0],
            max_context_tokens=metadata.whole(f"{prefix}context_length", 1, MAX_CONTEXT),
            norm_eps=metadata.number(f"{prefix}attention.layer_norm_epsilon", 0.0, 1.0, 1e-12),
            tie_embeddings=True,
            layers=encoder_layers(
                metadata,
                hidden,
                layers=metadata.whole(f"{prefix}block_count", 1, MAX_LAYERS),
                heads=f"{prefix}attention.head_count",
                inner=metadata.whole(f"{prefix}feed_forward_length", 1, MAX_WIDTH),
                activation="gelu",
            ),
            tensors=header.tensors,
            pooling=PoolingSpec(pooling),
            generates=False,
        )
    )
