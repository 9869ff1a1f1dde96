"""Special tokens before a source and before a target.

A source is `tokens </s>` and a target `<s> tokens </s>`, unless the tokenizer says otherwise: BART, for example, reads <s>
before a source, and its decoder starts with </s> <s>. Other start tokens are part of tokenizer.json, as two named tokens of its
post-processor, so that a run that is trained with the same file has them, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from weft.errors import ModelError
from weft.text.pipelines import BOS, EOS, SPECIALS

MAX_START_TOKENS = 8


class StartTokens(NamedTuple):
    """Token IDs before the text."""

    source: tuple[int, ...] = ()
    target: tuple[int, ...] = (SPECIALS.index(BOS),)  # at least one: the decoder reads them first

    def num_positions(self, side: str) -> int:
        """The positions that "source" or "target" needs in addition to its text and one special token. Another side is both:
        a text that is restored is source and target."""
        numbers = {"source": len(self.source), "target": len(self.target) - 1}
        return numbers.get(side, max(numbers.values()))


DEFAULT_START = StartTokens()
NAMES = {"source": "source_start", "target": "target_start"}


def read_start_tokens(data: bytes, vocab_size: int, where: str) -> StartTokens:
    """The start tokens in a tokenizer.json; the default if it has none."""
    if not any(name.encode() in data for name in NAMES.values()):
        return DEFAULT_START
    processor = json.loads(data).get("post_processor")
    tokens = processor.get("special_tokens") if isinstance(processor, Mapping) else None
    if not isinstance(tokens, Mapping) or not any(name in tokens for name in NAMES.values()):
        return DEFAULT_START
    ids = {side: tokens[name]["ids"] if name in tokens else [] for side, name in NAMES.items()}
    for side, name in NAMES.items():
        minimum = 1 if side == "target" else 0
        if not minimum <= len(ids[side]) <= MAX_START_TOKENS or not all(0 <= token_id < vocab_size for token_id in ids[side]):
            raise ModelError(where, f"corrupted: {name} must be from {minimum} to {MAX_START_TOKENS} token IDs")
    return StartTokens(tuple(ids["source"]), tuple(ids["target"]))


def post_processor(start: StartTokens, tokens: Sequence[str]) -> dict[str, Any]:
    """The post-processor of tokenizer.json for these start tokens; `tokens` is the vocabulary by ID."""
    special: dict[str, list[int]] = {NAMES["source"]: list(start.source), NAMES["target"]: list(start.target)}
    special = {name: ids for name, ids in special.items() if ids} | {EOS: [SPECIALS.index(EOS)]}

    def token(name: str) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": name, "type_id": 0}}] if name in special else []

    source, target = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    single = [*token(NAMES["source"]), source, *token(EOS)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *token(NAMES["target"]), target, *token(EOS)],
        "special_tokens": {
            name: {"id": name, "ids": ids, "tokens": [tokens[token_id] for token_id in ids]} for name, ids in special.items()
        },
    }
