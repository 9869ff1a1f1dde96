"""Which parts of a recording an output depends on: the contribution of each feature to the score of each word.

Integrated gradients follow the score of a word from features of 0, the mean of the recording, to the features; they sum to the
difference of the scores.

Shapes: T frames, F bands, N tokens of the output, W words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import DataError
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.frame_attribution import (
    MAX_WORDS,
    N_STEPS,
    attribute,
    check_options,
    target_tokens,
    token_scores,
    word_scores,
    word_tokens,
)
from weft.explain.options import ExplainConfig
from weft.explain.progress import ProgressCallback
from weft.explain.speech_alignment import WordTime
from weft.nn.memory import Memory
from weft.tasks.asr.predict import SpeechOptions

if TYPE_CHECKING:
    from weft.decode.prediction import Prediction
    from weft.runs.run import Run
    from weft.tasks.asr.decoding import SpeechPredictor

DEFAULT_METHOD = "integrated-gradients"
METHODS = (DEFAULT_METHOD, "input-x-gradient")
GUIDE = (
    "Each figure is the recording, with the features that raised the score of one word in orange; the stronger the color, the "
    "larger the contribution, in nats of log-probability. The box is the time of the word."
)


def _encoder(model: Any) -> Callable[[Tensor], Memory]:
    """A function from features (R, T, F) to the memory of the decoder and of CTC."""

    def encode(x: Tensor) -> Memory:
        vectors = model.encoder.front.vectors(x)
        mask = torch.ones(vectors.shape[:2], dtype=torch.bool, device=x.device)
        memory: Memory = model.encoder.from_vectors(vectors, mask)
        return memory

    return encode


def _output(run: Run[Any, Prediction], path: str, options: ExplainConfig) -> tuple[list[int], str]:
    """The tokens to explain, and their text: those of `target`, or of the prediction."""
    if options.target is not None:
        return target_tokens(run.vocabulary, options.target), options.target
    search = SpeechOptions(beam_size=options.beam_size, length_penalty=options.length_penalty, patience=options.patience)
    prediction: Prediction = run.predict(path, search)
    return [token for token in prediction.token_ids if token != run.vocabulary.eos_id], prediction.text


def attribution(run: Run[Any, Prediction], path: str, options: ExplainConfig, progress: ProgressCallback) -> Explanation:
    """The contribution of each feature to each word of the output."""
    check_options(options, METHODS, "recordings")
    predictor: SpeechPredictor = run.predictor
    frames = predictor.read_or_raise(path)
    tokens, text = _output(run, path, options)
    words = word_tokens(tokens, run.vocabulary)
    if not words:
        raise DataError(path, "the output is empty: there is no word to explain", "pass a target")
    if len(words) > MAX_WORDS:
        raise DataError(path, f"{len(words)} words exceed the limit of {MAX_WORDS}", "use a part of the recording")
    model: Any = run.model
    recording = predictor.recording(frames)
    features = torch.from_numpy(recording.features)[None].to(run.device)
    steps = 1 if options.method == "input-x-gradient" else options.n_steps or N_STEPS
    scores = token_scores(model, _encoder(model), features, tokens)
    times = predictor.token_times(frames, tokens)
    if scores is None:
        raise DataError(path, "the recording is too short for this output")
    mean, indices = torch.zeros_like(features), [indices for _, indices in words]
    values = attribute(scores, features, mean, indices, steps, progress)
    ends = word_scores(scores, torch.cat([features, mean]), indices)
    spans = [_span(word, indices, times) for word, indices in words]
    method = options.method or DEFAULT_METHOD
    title = f"Attribution of {run.directory.path} for {text}: {method.replace('-', ' ')}"
    maximum, figures, data = float(values.max()) or 1.0, list[Figure](), list[dict[str, Any]]()
    lines = [("word", "time (s)", "log-prob", "strongest frames (s)")]
    for span, value, (score, baseline) in zip(spans, values, ends, strict=True):
        by_frame = value.sum(1)
        caption = f"Contributions to {span.word}"
        highlight = np.sqrt(value.clip(0) / maximum)
        timed = [] if np.isnan(span.start) else [span]
        figures.append(Figure(caption, recording.picture(highlight, timed, caption)))
        when = "" if not timed else f"{span.start:.2f} to {span.end:.2f}"
        strongest = sorted((np.argsort(-by_frame, kind="stable")[: options.top] * recording.seconds).round(2).tolist())
        lines.append((span.word, when, f"{score:.3f}", "  ".join(f"{time:.2f}" for time in strongest)))
        data.append(_word_data(span, score, baseline, value))
    note = [f"{method.replace('-', ' ')}, baseline: the mean of the features" + (f", {steps} steps" if steps > 1 else "")]
    numbers = {"tokens": [], "text": text, "method": method, "n_steps": None if steps == 1 else steps, "words": data}
    return Explanation("attribution", title, numbers, figures, [*align_columns(lines, left=(0, 1, 3)), *note], GUIDE)


def _span(word: str, tokens: list[int], times: list[WordTime]) -> WordTime:
    """The time of a word; NaN if it is not known."""
    if not times:
        return WordTime(word, float("nan"), float("nan"))
    return WordTime(word, times[tokens[0]].start, times[tokens[-1]].end)


def _word_data(span: WordTime, score: float, baseline: float, value: np.ndarray) -> dict[str, Any]:
    times = {} if np.isnan(span.start) else {"start": span.start, "end": span.end}
    return {
        "word": span.word,
        **times,
        "log_prob": float(score),
        "baseline_log_prob": float(baseline),
        "sum": float(value.sum()),
        "by_frame": value.sum(1).round(5).tolist(),
        "by_band": value.sum(0).round(5).tolist(),
    }


VIEWS: Mapping[str, Callable[[Any, str, ExplainConfig, ProgressCallback], Explanation]] = {"attribution": attribution}
