"""Where the parts of a language model stand in a decoder: its layers, between parts that look at a source."""

from __future__ import annotations

import re

from weft.models.seq2seq_config import Seq2SeqConfig

_LAYER = re.compile(r"stack\.layers\.(\d+)\.(.+)")


def _recurrent(config: Seq2SeqConfig) -> str:
    """Where the recurrent layers of a decoder stand."""
    if config.feed_context:
        return "decoder.stack.layers.1.mixer"
    fed = config.attention != "none" and (config.input_feeding or config.attention_placement == "before")
    return f"decoder.stack.layers.0.mixer{'.inner' if fed else ''}"


def name_in_decoder(name: str, config: Seq2SeqConfig) -> str:
    """The name that a weight of a language model has in the decoder of a filled table."""
    attends, size = config.decoder.traits.attends, 2 if isinstance(config.decoder.ffn_dim, int) else 1
    if name.startswith("embedding."):
        return f"decoder.embedder.{name}"
    if found := _LAYER.match(name):
        number, rest = int(found[1]), found[2]
        layer, part = divmod(number, size)
        if attends:  # the attention to the source stands between the two parts of a layer
            return f"decoder.stack.layers.{layer * (size + 1) + 2 * part}.{rest}"
        if part == 0 and rest.startswith("mixer."):  # around it stands what starts it from the source
            rest = rest.replace("mixer.", "mixer.inner.", 1)
        return f"{_recurrent(config)}.layers.{number}.{rest}"
    if name.startswith("stack.final_norm.") and not attends:
        return f"{_recurrent(config)}.{name.removeprefix('stack.')}"
    return f"head.{name}" if name.startswith("head.") else f"decoder.{name}"
