"""The [model] table of captioning, and its presets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, model_validator

from weft.config import Choice, invalid
from weft.models import seq2seq_config
from weft.models.frame_to_text_config import FrameEncoderConfig, FrameToTextConfig
from weft.nn.choices import VISION_FRONTS

# options of single front ends, with their defaults
FRONT_OPTIONS: Mapping[str, Mapping[str, int]] = {
    "resnet": {"conv_channels": 32, "blocks_per_stage": 1},
    "patches": {"patch_size": 8},
    "conv3d": {"conv_channels": 32},
    "resnet3d": {"conv_channels": 32, "blocks_per_stage": 1},
}


class CaptionEncoderConfig(FrameEncoderConfig):
    """The front end that reads pixels or features, and the stack after it."""

    num_layers: int = Field(2, ge=0, le=512)
    """Number of layers after the front end; 0 for none."""
    front: Annotated[str, Choice(VISION_FRONTS)] = "resnet"
    """How pixels are read: a ResNet, linear patches (ViT), 3-D convolutions (LipNet), or a ResNet after one 3-D convolution
    (resnet3d). Features are projected instead."""
    per_frame: bool | None = None
    """Whether a frame is one position; otherwise, each cell of its grid is one. Default: true for clips, except of patches."""
    conv_channels: int | None = Field(None, ge=1, le=4096)
    """Not with patches: channels of the first convolution; later ones have multiples of it."""
    blocks_per_stage: int | None = Field(None, ge=1, le=64)
    """resnet and resnet3d only: residual blocks in each of the four stages."""
    patch_size: int | None = Field(None, ge=1, le=256)
    """patches only: pixels per side of a patch."""

    @model_validator(mode="after")
    def check_front(self) -> Self:
        for option in {name for options in FRONT_OPTIONS.values() for name in options} - set(FRONT_OPTIONS[self.front]):
            if getattr(self, option) is not None:
                raise invalid(option, f"not used with front {self.front!r}", "remove it")
        if self.per_frame and self.front == "patches":
            raise invalid("per_frame", "not possible with front 'patches'", "set it to false, or use 'resnet' or 'conv3d'")
        if not self.num_layers and self.embedding_dim not in (None, self.hidden_size):
            raise invalid("embedding_dim", "must equal hidden_size without layers", "remove it")
        return self

    def with_defaults(self) -> Self:
        front = {name: getattr(self, name) or value for name, value in FRONT_OPTIONS[self.front].items()}
        return super().with_defaults().model_copy(update=front)


class FrameShape(NamedTuple):
    """What a frame is."""

    pixels: tuple[int, int, int] | None  # height, width, channels; None for features
    num_features: int = 0
    is_clip: bool = False  # whether files have several frames of pixels

    def is_per_frame(self, encoder: CaptionEncoderConfig) -> bool:
        """Whether a frame becomes one position."""
        if self.pixels is None:
            return True
        return (self.is_clip and encoder.front != "patches") if encoder.per_frame is None else encoder.per_frame


class CaptionConfig(FrameToTextConfig):
    """An encoder of images, clips or features with an attention decoder, a CTC output, or both."""

    encoder: CaptionEncoderConfig = Field(default_factory=lambda: CaptionEncoderConfig.model_validate({}))
    """Options of the encoder alone."""
    doubly_stochastic_weight: float = Field(0.0, ge=0.0, le=1000.0)
    """Weight of a penalty that makes the attention of all words to each position sum to 1 (Xu). Recurrent decoders only."""
    max_shift: int = Field(4, ge=0, le=1024)
    """Augmentation: training images move by up to this many pixels; 0 for none."""
    brightness: float = Field(0.1, ge=0.0, le=1.0)
    """Augmentation: maximum change of the brightness of training images, where black is -1 and white is 1."""
    contrast: float = Field(0.1, ge=0.0, lt=1.0)
    """Augmentation: maximum relative change of the contrast of training images."""
    num_time_masks: int = Field(0, ge=0, le=100)
    """Augmentation: stretches of a clip that are replaced by its mean frame; 0 for none."""
    time_mask_ratio: float = Field(0.1, gt=0.0, lt=1.0)
    """Augmentation: maximum length of such a stretch, as a fraction of the clip."""
    horizontal_flip: bool = False
    """Augmentation: mirror half of the training images. Not if texts contain "left" or "right"."""

    @model_validator(mode="after")
    def check_penalty(self) -> Self:
        has_weights = self.attention != "none" and not self.decoder.traits.attends and self.has_decoder
        if self.doubly_stochastic_weight and not has_weights:
            raise invalid("doubly_stochastic_weight", "requires a recurrent decoder with attention", "set it to 0")
        return self

    def can_copy_state(self) -> bool:
        return self.encoder.num_layers > 0 and super().can_copy_state()


def merge(preset: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run file over those of a preset."""
    return seq2seq_config.merge(preset, options, CaptionConfig)


SHOW_AND_TELL: Mapping[str, Any] = {
    "layer_type": "lstm", "hidden_size": 512, "dropout": 0.3, "bridge": "project",
    "encoder": {"num_layers": 0, "norm": "layernorm"}, "decoder": {"num_layers": 1},
}  # fmt: skip
# without the gate of the paper (attention_gate), which made short training worse on small data
SHOW_ATTEND_TELL: Mapping[str, Any] = {
    **SHOW_AND_TELL, "attention": "additive", "attention_placement": "before", "doubly_stochastic_weight": 1.0,
}  # fmt: skip
S2VT: Mapping[str, Any] = {
    "layer_type": "lstm", "hidden_size": 512, "dropout": 0.3, "num_layers": 2, "bridge": "copy",
    "encoder": {"bidirectional": False, "per_frame": True},
}  # fmt: skip
RECURRENT: Mapping[str, Any] = {
    "hidden_size": 512, "dropout": 0.3, "num_layers": 1, "attention": "additive", "encoder": {"bidirectional": True},
}  # fmt: skip
TRANSFORMER: Mapping[str, Any] = {
    "layer_type": "attention", "position_encoding": "rotary", "skip_connection": "residual", "norm": "layernorm",
    "activation": "gelu", "num_layers": 3, "hidden_size": 256, "dropout": 0.1, "attention_dropout": 0.0,
    "attention": "scaled-dot",
}  # fmt: skip
VIT: Mapping[str, Any] = {**TRANSFORMER, "encoder": {"front": "patches", "num_layers": 6}}
LIPNET: Mapping[str, Any] = {
    "layer_type": "gru", "hidden_size": 512, "num_layers": 2, "dropout": 0.5, "ctc_weight": 1.0, "horizontal_flip": True,
    "num_time_masks": 3, "time_mask_ratio": 0.13,
    "encoder": {"front": "conv3d", "per_frame": True}, "decoder": {"num_layers": 1},
}  # fmt: skip
