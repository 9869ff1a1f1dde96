"""Captioners: a front end of pixels or features for `frame_to_text`."""

from __future__ import annotations

from torch import Tensor, nn

from weft.models import build
from weft.models.caption_config import CaptionConfig, CaptionEncoderConfig, FrameShape
from weft.models.frame_to_text import FrameToText, encoder_layers, frame_to_text
from weft.nn.dropout import IntegerDropout
from weft.nn.stack import Stack
from weft.nn.vision import FeatureFront, ImageAugment, TimeMask, VisionFront, grid_size
from weft.text.tokenizers import Tokenizer


def positions_per_frame(encoder: CaptionEncoderConfig, shape: FrameShape) -> int:
    """Positions that the front end of a resolved configuration makes of a frame."""
    if shape.pixels is None or shape.is_per_frame(encoder):
        return 1
    height, width = grid_size(encoder.front, *shape.pixels[:2], patch_size=encoder.patch_size or 1)
    return height * width


class CaptionFront(nn.Module):
    """Augmented frames to positions, with dropout."""

    def __init__(
        self,
        front: VisionFront | FeatureFront,
        *,
        augment: ImageAugment | None = None,
        time_mask: TimeMask | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.augment, self.time_mask = augment or nn.Identity(), time_mask or TimeMask(0, 0.0)
        self.front, self.dropout = front, IntegerDropout(dropout)

    def forward(self, frames: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        y, position_mask = self.front(self.time_mask(self.augment(frames), mask), mask)
        return self.dropout(y), position_mask


def caption_front(config: CaptionConfig, shape: FrameShape) -> CaptionFront:
    encoder = config.encoder
    dropout = encoder.dropout if config.embedding_dropout is None else config.embedding_dropout
    if shape.pixels is None:
        return CaptionFront(FeatureFront(shape.num_features, encoder.input_dim()), dropout=dropout)
    front = VisionFront(
        shape.pixels,
        encoder.input_dim(),
        kind=encoder.front,
        per_frame=shape.is_per_frame(encoder),
        hidden_channels=encoder.conv_channels or 1,
        blocks_per_stage=encoder.blocks_per_stage or 1,
        patch_size=encoder.patch_size or 1,
    )
    augment = ImageAugment(
        shape.pixels,
        max_shift=config.max_shift,
        brightness=config.brightness,
        contrast=config.contrast,
        flip=config.horizontal_flip,
    )
    time_mask = TimeMask(config.num_time_masks, config.time_mask_ratio)
    return CaptionFront(front, augment=augment, time_mask=time_mask, dropout=dropout)


def _layers(config: CaptionConfig, max_positions: int) -> Stack:
    """The stack after the front end; without layers, it adds positions and normalizes."""
    encoder = config.encoder
    if encoder.num_layers:
        return encoder_layers(config, max_positions=max_positions)
    positions = build.input_position_encoding(encoder.position_encoding, encoder.hidden_size, max_positions=max_positions)
    norm = build.norm(encoder.norm, encoder.hidden_size, eps=encoder.norm_eps)
    return Stack((), positions=positions, final_norm=norm)


def captioner(config: CaptionConfig, tokenizer: Tokenizer, shape: FrameShape, *, max_positions: int) -> FrameToText:
    """The model of a resolved configuration, initialized with torch's default random generator."""
    layers = _layers(config, max_positions)
    model = frame_to_text(config, caption_front(config, shape), layers, tokenizer, max_positions=max_positions)
    model.doubly_stochastic_weight = config.doubly_stochastic_weight
    return model
