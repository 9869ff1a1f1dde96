"""Decoders of recordings have the options of other decoders."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from weft.config import parse_config
from weft.models.frame_to_text import encoder_layers, frame_to_text
from weft.models.frame_to_text_config import FrameToTextConfig
from weft.models.seq2seq_config import broadcast_to_sides
from weft.text.tokenizers import from_vocab

ATTENTION = {"layer_type": "attention", "num_heads": 2, "hidden_size": 8, "num_layers": 2, "attention": "scaled-dot"}


def build(**options: Any) -> Any:
    values = broadcast_to_sides({**ATTENTION, **options}, FrameToTextConfig)
    config = parse_config(FrameToTextConfig, values, prefix="model").with_defaults()
    torch.manual_seed(0)
    layers = encoder_layers(config, max_positions=16)
    return frame_to_text(config, nn.Identity(), layers, from_vocab(["a", "b"]), max_positions=16)


def test_options_of_the_decoder_have_an_effect():
    plain = build()
    names = {name for name, _ in plain.named_parameters()}
    assert {"head.bias", "decoder.stack.layers.0.mixer.to_qkv.bias"} <= names and plain.decoder.embedder.scale == 8**0.5
    options = {"head_bias": False, "bias": False, "scale_embeddings": False, "position_encoding": "relative-bias"}
    other = build(**options, decoder={"embedding_norm": True})
    assert not any(name.endswith((".to_qkv.bias", ".up_proj.bias", "head.bias")) for name, _ in other.named_parameters())
    assert other.decoder.embedder.scale == 1.0 and isinstance(other.decoder.stack.input_proj, nn.LayerNorm)
    first, second = (other.decoder.stack.layers[index].mixer.positions for index in (0, 3))
    assert first is second and not torch.equal(first.table.weight, other.encoder.stack.layers[0].mixer.positions.table.weight)
