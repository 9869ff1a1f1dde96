"""Options and vocabularies that the weights of a classifier depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.training.weight_compatibility import Part, Weights, encoder_parts

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.label_tokenizer import LabelTokenizer


def _parts(config: RunConfig, vocabulary: LabelTokenizer, layers: Mapping[str, int]) -> dict[str, Part]:
    head = {"labels": list(vocabulary.labels.names), "data.multilabel": config.data.multilabel}
    return encoder_parts(config, vocabulary.tokenizer, layers, max_length=config.data.max_length, head=head)


WEIGHTS = Weights(_parts)
