"""Recognition while a recording arrives: the greedy output of a CTC model that reads in one direction.

Each part of the model has a state: the samples under the window of the next feature frame, the statistics of the
normalization, the last inputs of the convolutions, the states of the encoder, and the last label of the path. So a stream costs
the same at any time, and its text equals that of the whole recording. It is behind the audio by half a window and by the frames
of one position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weft.decode.detokenize import StreamingDetokenizer
from weft.decode.prediction import Prediction
from weft.errors import DataError, UsageError
from weft.media.audio import to_int16
from weft.nn.spectrogram import StreamingLogMel
from weft.nn.speech_front import FULL_SCALE

if TYPE_CHECKING:
    from weft.runs.run import Run


def check_streamable(run: Run[Any, Prediction]) -> None:
    """Refuse a run whose outputs depend on audio that is still to come."""
    where, model = "stream", run.members[0].config.model
    if len(run.members) > 1 or run.lm is not None:
        raise UsageError(where, "not available for several models", "use one run without a language model")
    if model.has_decoder:
        raise UsageError(where, "the attention decoder reads the whole recording", "train with model.ctc_weight = 1")
    if model.encoder.bidirectional:
        fix = "train with model.encoder.bidirectional = false"
        raise UsageError(where, "the encoder is bidirectional: it reads the whole recording", fix)
    if not model.can_stream:
        fix = 'train with model.normalization = "running"'
        raise UsageError(where, "the features are normalized over the whole recording", fix)


def as_int16(samples: np.ndarray) -> np.ndarray:
    """Samples (T,) of 16 bits, or in [-1, 1], as 16-bit integers."""
    if samples.ndim != 1 or samples.dtype.kind not in "fi" or (samples.dtype.kind == "i" and samples.dtype != np.int16):
        raise DataError("input", "expected an array of samples: 16-bit integers, or numbers in [-1, 1]")
    if samples.dtype.kind == "f" and not np.isfinite(samples).all():
        raise DataError("input", "the samples are not finite")
    return samples if samples.dtype == np.int16 else to_int16(samples)


class SpeechStream:
    """Text of a recording that arrives in pieces: `push` returns the text that is new, `finish` the rest."""

    def __init__(self, run: Run[Any, Prediction]) -> None:
        check_streamable(run)
        self.model: Any = run.model
        self.tokenizer, self.device = run.vocabulary, run.device
        front = self.model.encoder.front
        self.log_mel, self.factor = StreamingLogMel(front.log_mel), front.subsampling.factor
        self._restart()

    def _restart(self) -> None:
        self.norm_state, self.conv_state, self.stack_state = None, None, None
        self.features = self.log_mel.buffer.new_zeros(0, self.model.encoder.front.log_mel.num_mels)  # of the next position
        self.last, self.num_positions, self.num_blanks = self.model.blank, 0, 0  # blanks since the last label
        self.detokenizer = StreamingDetokenizer(self.tokenizer, [])

    @property
    def delay(self) -> float:
        """Seconds of audio after a moment that may arrive before its position is computed."""
        log_mel = self.model.encoder.front.log_mel
        return float((log_mel.lookahead + (self.factor - 1) * log_mel.hop) / log_mel.rate)

    @property
    def silence(self) -> float:
        """Seconds since the last label."""
        log_mel = self.model.encoder.front.log_mel
        return float(self.num_blanks * self.factor * log_mel.hop / log_mel.rate)

    def push(self, samples: np.ndarray) -> str:
        """The new text after these samples (T,): of 16 bits, or in [-1, 1], at the rate of the run."""
        waveform = torch.from_numpy(as_int16(samples).astype(np.float32)).to(self.device) / FULL_SCALE
        return self._read(self.log_mel.push(waveform), is_last=False)

    def finish(self) -> str:
        """The text that is left at the end. The next samples start another recording."""
        missing = -self.log_mel.num_samples % self.log_mel.log_mel.hop  # a recording is padded to whole frames
        frames = [self.log_mel.push(self.log_mel.buffer.new_zeros(missing)), self.log_mel.finish()]
        text = self._read(torch.cat(frames), is_last=True) + self.detokenizer.finish()
        self._restart()
        return text

    @torch.inference_mode()
    def _read(self, frames: Tensor, *, is_last: bool) -> str:
        """The new text after feature frames (T, F); only whole positions are read, until the last."""
        self.features = torch.cat([self.features, frames])
        count = len(self.features) if is_last else len(self.features) // self.factor * self.factor
        if not count:
            return ""
        x, self.features = self.features[None, :count], self.features[count:].clone()
        front, stack = self.model.encoder.front, self.model.encoder.stack
        self._check_positions(stack.positions.max_positions, -(-count // self.factor))
        x, self.norm_state = front.running_norm(x, None, self.norm_state)
        x, self.conv_state = front.subsampling(x, self.conv_state)
        y, self.stack_state = stack(x, self.stack_state)
        return "".join(map(self._emit, self.model.ctc_head(y)[0].argmax(-1).tolist()))

    def _check_positions(self, maximum: int | None, count: int) -> None:
        self.num_positions += count
        if maximum is not None and self.num_positions > maximum:
            fix = 'train with model.position_encoding = "rotary", or increase data.max_seconds'
            raise DataError("stream", "longer than the learned positions of the model", fix)

    def _emit(self, label: int) -> str:
        """The text that is final after the label of one position: a repeated label is the same one, until a blank."""
        is_new, self.last = label not in (self.last, self.model.blank), label
        self.num_blanks = self.num_blanks + 1 if label == self.model.blank else 0
        is_special = label in (self.tokenizer.unk_id, self.tokenizer.bos_id)
        return self.detokenizer.push(label) if is_new and not is_special else ""
