"""Map weight names of a language model to weight names of a decoder, whose layers also contain cross-attention."""

from __future__ import annotations

import re

from weft.models.seq2seq_config import Seq2SeqConfig

_LAYER = re.compile(r"stack\.layers\.(\d+)\.(.+)")


def _recurrent_stack(config: Seq2SeqConfig) -> str:
    """The name of the stack of recurrent layers inside a decoder."""
    if config.feed_context:
        return "decoder.stack.layers.1.mixer"
    is_stepwise = config.attention != "none" and (config.input_feeding or config.attention_placement == "before")
    return f"decoder.stack.layers.0.mixer{'.inner' if is_stepwise else ''}"


def name_in_decoder(name: str, config: Seq2SeqConfig) -> str:
    """The name that a weight of a language model has in the decoder of a resolved configuration."""
    attends = config.decoder.traits.attends
    num_sublayers = 2 if config.decoder.ffn_dim else 1  # per layer of the language model
    if name.startswith("embedding."):
        return f"decoder.embedder.{name}"
    if match := _LAYER.match(name):
        index, rest = int(match[1]), match[2]
        layer, sublayer = divmod(index, num_sublayers)
        if attends:  # cross-attention is between self-attention and feed-forward layer
            return f"decoder.stack.layers.{layer * (num_sublayers + 1) + 2 * sublayer}.{rest}"
        if sublayer == 0 and rest.startswith("mixer."):  # the bridge wraps it
            rest = rest.replace("mixer.", "mixer.inner.", 1)
        return f"{_recurrent_stack(config)}.layers.{index}.{rest}"
    if name.startswith("stack.final_norm.") and not attends:
        return f"{_recurrent_stack(config)}.{name.removeprefix('stack.')}"
    return f"head.{name}" if name.startswith("head.") else f"decoder.{name}"
