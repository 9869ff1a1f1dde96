"""The tokenizer of models that respond: subwords by default."""

from __future__ import annotations

from typing import Annotated

from weft.config import Choice
from weft.text.tokenizers import TYPES, TokenizerConfig


class SubwordTokenizerConfig(TokenizerConfig):
    """The tokenizer of prompts and responses: byte-pair encoding by default, which keeps newlines and spaces."""

    type: Annotated[str, Choice(TYPES, "type")] = "bpe"
