"""Speech recognizers: a front end of log-mel features for `frame_to_text`."""

from __future__ import annotations

from weft.models.frame_to_text import FrameToText, encoder_layers, frame_to_text
from weft.models.speech_config import SpeechConfig
from weft.nn.spectrogram import LogMel, RunningNorm, SpecAugment, SpeedPerturbation
from weft.nn.speech_front import SpeechFront, Subsampling
from weft.text.tokenizers import Tokenizer

WINDOWS_PER_SECOND = 40  # a window of features has 25 ms


def speech_front(config: SpeechConfig, *, rate: int, hop: int) -> SpeechFront:
    encoder, window = config.encoder, rate // WINDOWS_PER_SECOND
    return SpeechFront(
        LogMel(rate=rate, num_mels=config.num_mels, window=window, hop=hop, n_fft=1 << (window - 1).bit_length()),
        Subsampling(
            config.num_mels,
            encoder.input_dim(),
            factor=encoder.subsampling,
            channels=encoder.subsampling_channels,
            num_blocks=encoder.conv_blocks,
        ),
        running_norm=RunningNorm() if config.normalization == "running" else None,
        spec_augment=SpecAugment(
            num_freq_masks=config.num_freq_masks,
            freq_width=config.freq_mask_width,
            num_time_masks=config.num_time_masks,
            time_width=config.time_mask_ratio,
        ),
        speed=SpeedPerturbation(tuple(config.speed_perturbation)),
        dropout=encoder.dropout if config.embedding_dropout is None else config.embedding_dropout,
    )


def recognizer(config: SpeechConfig, tokenizer: Tokenizer, *, max_positions: int, rate: int, hop: int) -> FrameToText:
    """The model of a resolved configuration, initialized with torch's default random generator."""
    layers = encoder_layers(config, max_positions=max_positions)
    front = speech_front(config, rate=rate, hop=hop)
    return frame_to_text(config, front, layers, tokenizer, max_positions=max_positions)
