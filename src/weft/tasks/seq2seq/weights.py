"""What the weights of encoder-decoders mean: two stacks, and what joins them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.models.decoder_names import in_decoder
from weft.models.pair_tables import Seq2SeqTable
from weft.train.meaning import (
    ABSENT,
    IN_NAMES,
    OF_HEAD,
    OF_TRAINING,
    TIES,
    Part,
    Weights,
    attention_span,
    head_options,
    in_table,
    one_value,
    stack_options,
    words_of,
)

if TYPE_CHECKING:
    from weft.runs.settings import Settings
    from weft.text.sides import Sides


def _joint(table: Seq2SeqTable, layers: int) -> dict[str, Any]:
    """What a decoder computes where it looks at a source."""
    free = OF_TRAINING | IN_NAMES | OF_HEAD | TIES
    options = {name: getattr(table, name) for name in type(table).model_fields if name not in free}
    if table.decoder.traits.attends:
        crossed = [table.decoder.cross_heads_of(layer)[0] for layer in range(layers)]
        return options | {"decoder.cross_heads": one_value(crossed)}
    if table.attention == "none":  # around recurrent layers it is a part that is there or not
        return {name: ABSENT for name in options}
    return options


def _parts(settings: Settings, vocabulary: Sides, layers: Mapping[str, int]) -> dict[str, Part]:
    model, longest = settings.model, settings.data.longest
    parts = {}
    for side, table, tokens in (("encoder", model.encoder, vocabulary.source), ("decoder", model.decoder, vocabulary.target)):
        parts[f"{side}.front"] = Part(words_of(tokens))
        options = in_table(f"model.{side}", stack_options(table, layers[side]))
        parts[f"{side}.stack"] = Part(options, attention_span(table, longest))
    parts["joint"] = Part(in_table("model", _joint(model, layers["decoder"])))
    parts["shared"] = Part({"model.shared": model.shared})
    parts["head"] = Part(in_table("model", head_options(model)) | words_of(vocabulary.target))
    return parts


def _layers(model: Seq2SeqTable) -> dict[str, int]:
    return {"encoder": model.encoder.layers, "decoder": model.decoder.layers}


def _scales(model: Seq2SeqTable) -> dict[str, float]:
    from weft.models.seq2seq import scales

    source, target = scales(model)
    return {"encoder": source, "decoder": target}


WEIGHTS = Weights(_parts, _layers, _scales, masked=False, in_decoder=in_decoder)
