"""Masked language models (Devlin et al. 2019): an encoder that fills gaps, by what stands on both sides of them.

Shapes: B rows, S positions, N chosen positions, D width, V words, the mask among them as the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from weft.config import OneOf
from weft.models import build
from weft.models.encoder import Text, TextEncoder, TextEncoderTable, text_encoder
from weft.nn.attention import ACTIVATIONS
from weft.nn.heads import TokenHead

MASKINGS = ("token", "word", "span")


class MaskedTable(TextEncoderTable):
    """An encoder under a head of words, and how gaps are made for it to learn from."""

    tied: bool = True  # one matrix for the embedding and the output
    transform: bool = False  # a layer of its own before the output, as in BERT
    pairs: bool = False  # two lines that follow each other are read as one text, <s> a </s> b </s>
    segments: bool | None = None  # a vector for each of two texts; as `pairs`, unless given
    share: float = Field(0.15, gt=0.0, le=1.0)  # of the tokens of each text that are to be predicted
    masking: Annotated[str, OneOf(MASKINGS)] = "token"  # what is hidden together: nothing, the pieces of a word, words in a row

    @model_validator(mode="after")
    def two_sided(self) -> Self:
        if not self.two_way:
            raise ValueError("two_way=false hides what stands after a gap; a masked language model reads both ways")
        if self.transform and self.activation == "gated":
            raise ValueError(
                "transform=true has no gate, which activation='gated' is; use another activation, or transform=false"
            )
        if self.tied and self.read() != self.width:
            raise ValueError(
                f"tied=true makes the embedding the output, which reads width={self.width}, not embedding={self.embedding}; "
                f"add tied=false"
            )
        return self

    def filled(self) -> Self:
        segments = self.pairs if self.segments is None else self.segments
        found: Self = super().filled().model_copy(update={"segments": segments})
        return found


class MaskedModel(nn.Module):
    """P(token | the tokens around it), where the last word of the embedding stands for what is hidden."""

    def __init__(self, encoder: TextEncoder, transform: nn.Module, head: TokenHead) -> None:
        super().__init__()
        self.encoder, self.transform, self.head = encoder, transform, head

    @property
    def longest(self) -> int | None:
        return self.encoder.longest

    @property
    def mask(self) -> int:
        return len(self.head.bias) - 1

    def matrices(self) -> set[str]:
        return build.matrices(self.encoder.stack, "encoder.stack")

    def forward(self, text: Text) -> Tensor:
        """What the head reads, (B, S, D)."""
        y: Tensor = self.encoder(text)[0]
        return y

    def log_probs(self, y: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        found: Tensor = self.head(self.transform(y))
        return found

    def loss(self, text: Text, targets: Tensor, chosen: Tensor, smoothing: float = 0.0) -> Tensor:
        """Nats of the targets (B, S) at the chosen (B, S) positions, row by row: (N,)."""
        y = self.transform(self(text)[chosen])  # no other position needs scores, and a vocabulary is wide
        return self.head.loss(y[:, None], targets[chosen][:, None], smoothing)[:, 0]


def masked_model(table: MaskedTable, *, words: int, longest: int) -> MaskedModel:
    """The model of a filled table, freshly initialised from torch's default generator; `words` are the tokenizer's."""
    encoder = text_encoder(table, words=words + 1, longest=longest, segments=bool(table.segments))
    front: Any = encoder.front
    if table.tied:  # loud vectors would have each token predict itself
        nn.init.normal_(front.embedding.weight, std=0.02 if table.traits.small_init else table.width**-0.5)
    transform: nn.Module = nn.Identity()
    if table.transform:
        norm = build.norm(table.norm if table.norm != "none" else "layer", table.width, eps=table.norm_eps)
        dense = nn.Linear(table.width, table.width)
        nn.init.normal_(dense.weight, std=0.02)
        nn.init.zeros_(dense.bias)
        transform = nn.Sequential(dense, ACTIVATIONS[table.activation or "gelu"](), norm)
    head = TokenHead(table.width, words + 1, weight=front.embedding.weight if table.tied else None)
    return MaskedModel(encoder, transform, head)


BERT: Mapping[str, Any] = {
    "mixer": "attention",
    "positions": "learned",
    "connection": "post-norm",
    "norm": "layer",
    "layers": 4,
    "dropout": 0.1,
    "embedding_norm": True,
    "transform": True,
}
TRANSFORMER: Mapping[str, Any] = {
    "mixer": "attention",
    "positions": "rotary",
    "connection": "residual",
    "norm": "rms",
    "layers": 4,
    "qk_norm": True,
    "dropout": 0.1,
}
