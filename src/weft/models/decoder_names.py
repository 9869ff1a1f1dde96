"""Map weight names of a language model to those of a decoder, whose layers are interleaved with cross-attention."""

from __future__ import annotations

import re

from weft.models.seq2seq_config import Seq2SeqConfig

_LAYER = re.compile(r"stack\.layers\.(\d+)\.(.+)")


def _recurrent(config: Seq2SeqConfig) -> str:
    """Name of the module that contains the recurrent layers of a decoder."""
    if config.feed_context:
        return "decoder.stack.layers.1.mixer"
    stepwise = config.attention != "none" and (config.input_feeding or config.attention_placement == "before")
    return f"decoder.stack.layers.0.mixer{'.inner' if stepwise else ''}"


def name_in_decoder(name: str, config: Seq2SeqConfig) -> str:
    """The name in the decoder of a resolved configuration for a weight of a language model."""
    attends, size = config.decoder.traits.attends, 2 if config.decoder.ffn_dim else 1
    if name.startswith("embedding."):
        return f"decoder.embedder.{name}"
    if match := _LAYER.match(name):
        number, rest = int(match[1]), match[2]
        layer, part = divmod(number, size)
        if attends:  # cross-attention is between self-attention and feed-forward layer
            return f"decoder.stack.layers.{layer * (size + 1) + 2 * part}.{rest}"
        if part == 0 and rest.startswith("mixer."):  # the bridge wraps it
            rest = rest.replace("mixer.", "mixer.inner.", 1)
        return f"{_recurrent(config)}.layers.{number}.{rest}"
    if name.startswith("stack.final_norm.") and not attends:
        return f"{_recurrent(config)}.{name.removeprefix('stack.')}"
    return f"head.{name}" if name.startswith("head.") else f"decoder.{name}"
