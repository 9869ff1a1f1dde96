"""The [model] table of speech recognition, and its presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import Choice, invalid
from weft.models import seq2seq_config
from weft.models.frame_to_text_config import FrameEncoderConfig, FrameToTextConfig

NORMALIZATIONS = ("utterance", "running")


class SpeechEncoderConfig(FrameEncoderConfig):
    """The stack that reads the recording, and the convolutions before it."""

    subsampling: Literal[2, 4, 8] = 4
    """Frames of 10 ms per position of the encoder."""
    subsampling_channels: int = Field(32, ge=1, le=4096)
    """Channels of the convolutions."""
    conv_blocks: int = Field(0, ge=0, le=64)
    """Residual blocks of two convolutions after those that subsample."""


class SpeechConfig(FrameToTextConfig):
    """An encoder of speech with a CTC output, an attention decoder, or both."""

    encoder: SpeechEncoderConfig = Field(default_factory=lambda: SpeechEncoderConfig.model_validate({}))
    """Options of the encoder alone."""
    ctc_weight: float = Field(1.0, ge=0.0, le=1.0)
    """Weight of CTC in training and decoding; the attention decoder has the rest. 1: no decoder. 0: no CTC."""
    num_mels: int = Field(80, ge=8, le=256)
    """Mel bands of the features."""
    normalization: Annotated[str, Choice(NORMALIZATIONS)] | None = None
    """Normalize features over the utterance, or over its frames so far (running), which a stream allows. Default: running if
    the encoder reads in one direction."""
    num_freq_masks: int = Field(2, ge=0, le=100)
    """SpecAugment: masked bands per utterance; 0 for none."""
    freq_mask_width: int = Field(27, ge=1, le=256)
    """SpecAugment: maximum width of a masked band."""
    num_time_masks: int = Field(5, ge=0, le=100)
    """SpecAugment: masked stretches of time per utterance; 0 for none."""
    time_mask_ratio: float = Field(0.05, gt=0.0, lt=1.0)
    """SpecAugment: maximum length of a masked stretch, as a fraction of the utterance."""
    speed_perturbation: list[Annotated[float, Field(ge=0.5, le=2.0)]] = Field(default_factory=lambda: [0.9, 1.0, 1.1])
    """Speeds that training batches are played at; [1.0] for none."""

    @model_validator(mode="after")
    def check_recognizer(self) -> Self:
        if not self.speed_perturbation:
            raise invalid("speed_perturbation", "expected at least one speed", "set it to [1.0] for none")
        return self

    @property
    def can_stream(self) -> bool:
        """Whether a stream gives the same outputs as the whole recording."""
        return not self.has_decoder and not self.encoder.bidirectional and self.normalization == "running"

    def with_defaults(self) -> Self:
        normalization = self.normalization or ("utterance" if self.encoder.bidirectional else "running")
        return super().with_defaults().model_copy(update={"normalization": normalization})


def merge(preset: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run file over those of a preset."""
    return seq2seq_config.merge(preset, options, SpeechConfig)


RECURRENT: Mapping[str, Any] = {
    "num_layers": 3, "hidden_size": 512, "dropout": 0.3, "attention": "additive", "decoder": {"num_layers": 1},
}  # fmt: skip
TRANSFORMER: Mapping[str, Any] = {
    "layer_type": "attention", "position_encoding": "rotary", "skip_connection": "residual", "norm": "layernorm",
    "activation": "relu", "num_layers": 6, "dropout": 0.1, "attention_dropout": 0.1, "attention": "scaled-dot",
    "decoder": {"num_layers": 3},
}  # fmt: skip
CONFORMER: Mapping[str, Any] = {**TRANSFORMER, "encoder": {"conv_kernel": 15}}
