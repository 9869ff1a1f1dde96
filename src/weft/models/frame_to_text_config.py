"""The part of [model] that models of recordings, images and clips share."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from weft.config import invalid
from weft.models.seq2seq_config import EncoderConfig, Seq2SeqConfig

UNUSED_ENCODER_OPTIONS = ("reverse_source", "embedding_norm")  # of encoders of text
UNUSED_OPTIONS = ("copy_mechanism", "share_embeddings")  # a file has no tokens


class FrameEncoderConfig(EncoderConfig):
    """The stack that reads the frames, after a front end."""

    @model_validator(mode="after")
    def check_unused(self) -> Self:
        for option in UNUSED_ENCODER_OPTIONS:
            if getattr(self, option):
                raise invalid(option, "only for encoders of text", "remove it")
        return self


class FrameToTextConfig(Seq2SeqConfig):
    """An encoder of frames with a CTC output, an attention decoder, or both."""

    encoder: FrameEncoderConfig = Field(default_factory=lambda: FrameEncoderConfig.model_validate({}))
    """Options of the encoder alone."""
    ctc_weight: float = Field(0.0, ge=0.0, le=1.0)
    """Weight of CTC in training and decoding; the attention decoder has the rest. 1: no decoder. 0: no CTC."""

    @model_validator(mode="after")
    def check_frames(self) -> Self:
        for option in UNUSED_OPTIONS:
            if getattr(self, option):
                raise invalid(option, "only for sources of text", "remove it")
        return self

    @property
    def has_ctc(self) -> bool:
        return self.ctc_weight > 0

    @property
    def has_decoder(self) -> bool:
        return self.ctc_weight < 1
