"""Encoders beside transformers: random ones of each family, and the real MiniLM where it is on the disk."""

from __future__ import annotations

import gguf
import pytest
import torch

from engine.errors import UnsupportedFormat
from engine.models.encoder import load_encoder
from engine.spec import read_spec
from engine.spec.encoder_families import ENCODERS
from tests.fakes.encoders import CASES, saved_encoder, texts, true_vector, write_gguf_encoder, write_pooling


def loaded(folder, dtype=torch.float32):
    return load_encoder(read_spec(folder), torch.device("cpu"), dtype, lambda done, total: None)


@pytest.mark.parametrize("name", CASES)
def test_encoder_matches_transformers_text_by_text_and_in_a_ragged_batch(name, tmp_path):
    model = saved_encoder(name, tmp_path)
    encoder = loaded(tmp_path)
    wanted = torch.stack([true_vector(model, text, CASES[name][1]) for text in texts()])
    together = encoder.embed(texts())
    torch.testing.assert_close(together, wanted, atol=2e-5, rtol=0)
    alone = torch.cat([encoder.embed([text]) for text in texts()])
    torch.testing.assert_close(together, alone, atol=2e-6, rtol=0)


def test_encoder_cases_cover_every_family():
    assert {name.split("-cls")[0] for name in CASES} == {family.key for family in ENCODERS}


def test_encoder_saved_inside_another_model_loads(tmp_path):
    from safetensors.torch import load_file, save_file

    model = saved_encoder("bert", tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({f"bert.{name}": tensor for name, tensor in load_file(file).items()}, file)
    torch.testing.assert_close(
        loaded(tmp_path).embed(texts()[:1])[0], true_vector(model, texts()[0], "mean"), atol=2e-5, rtol=0
    )


def test_encoder_minilm_matches_transformers_on_real_text(minilm_path):
    from transformers import AutoModel

    from engine.text import load_text

    spec = read_spec(minilm_path)
    assert (spec.max_context_tokens, spec.hidden_size, spec.generates) == (256, 384, False)
    encoder, pipeline = loaded(minilm_path), load_text(spec)
    model = AutoModel.from_pretrained(minilm_path).eval()
    sentences = ["A man is eating food.", "Ein Mann isst.", "naïve café, 東京 [SEP] [CLS]", "many words " * 100]
    ids = [pipeline.encode(sentence, add_bos=True) for sentence in sentences]
    assert all(one[0] == 101 and one[-1] == 102 and 102 not in one[1:-1] for one in ids)
    found = encoder.embed(ids)
    wanted = torch.stack([true_vector(model, one, "mean") for one in ids])
    assert float((found * wanted).sum(dim=1).min()) > 0.99999
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=0)


def test_encoder_without_a_stated_pooling_is_refused_with_what_is_missing(tmp_path):
    saved_encoder("bert", tmp_path)
    (tmp_path / "modules.json").unlink()
    with pytest.raises(UnsupportedFormat, match=r"modules\.json"):
        read_spec(tmp_path)


@pytest.mark.parametrize("more", [("Dense",), ("Normalize", "Dense"), ("Pooling",)])
def test_encoder_with_a_further_step_is_refused(more, tmp_path):
    saved_encoder("bert", tmp_path)
    write_pooling(tmp_path, "mean", more=more)
    with pytest.raises(UnsupportedFormat, match=r"step Dense|pools twice"):
        read_spec(tmp_path)


@pytest.mark.parametrize("stored", [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0])
def test_encoder_from_gguf_matches_transformers_on_what_its_blocks_decode_to(stored, tmp_path):
    model = saved_encoder("bert-cls-tanh", tmp_path / "hf", hidden_size=64, intermediate_size=96, hidden_act="gelu")
    write_gguf_encoder(tmp_path / "model.gguf", model, stored)
    spec = read_spec(tmp_path / "model.gguf")
    assert (spec.is_encoder, spec.pooling.kind.value, spec.max_context_tokens) == (True, "cls", 66)
    wanted = torch.stack([true_vector(model, text, "cls") for text in texts()])
    torch.testing.assert_close(loaded(tmp_path / "model.gguf").embed(texts()), wanted, atol=2e-5, rtol=0)


@pytest.mark.parametrize(("key", "value"), [("pooling_type", 0), ("pooling_type", 4), ("rope.freq_base", 2)])
def test_encoder_from_gguf_that_states_what_is_not_followed_is_refused(key, value, tmp_path):
    model = saved_encoder("bert", tmp_path / "hf")
    write_gguf_encoder(tmp_path / "model.gguf", model, gguf.GGMLQuantizationType.F32, **{key: value})
    with pytest.raises(UnsupportedFormat, match=key.replace(".", r"\.")):
        read_spec(tmp_path / "model.gguf")
