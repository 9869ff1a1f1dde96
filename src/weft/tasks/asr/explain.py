"""Which parts of a recording an output depends on: the contribution of each feature to the score of each word.

The score of a word is the log-probability of its tokens: on the most probable CTC path, or of the attention decoder. Integrated
gradients (Sundararajan et al. 2017) follow it from features of 0, the mean of the recording, to the features; they sum to the
difference of the scores.

Shapes: T frames, F bands, N tokens of the output, W words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import DataError, UsageError
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.options import ExplainConfig
from weft.explain.progress import ProgressCallback
from weft.explain.speech_alignment import WordTime
from weft.nn import ctc
from weft.tasks.asr.alignment import word_tokens
from weft.tasks.asr.predict import SpeechOptions

if TYPE_CHECKING:
    from weft.decode.prediction import Prediction
    from weft.runs.run import Run
    from weft.tasks.asr.decoding import SpeechPredictor

N_STEPS = 24
DEFAULT_METHOD = "integrated-gradients"
METHODS = (DEFAULT_METHOD, "input-x-gradient")
MAX_WORDS = 40  # figures
UNUSED = ("component", "layer", "head", "position", "baseline", "temperature", "top_k", "top_p", "min_p", "max_new_tokens")
GUIDE = (
    "Each figure is the recording, with the features that raised the score of one word in orange; the stronger the color, the "
    "larger the contribution, in nats of log-probability. The box is the time of the word."
)


def _score_function(model: Any, features: Tensor, tokens: list[int]) -> Callable[[Tensor], Tensor]:
    """A function from features (R, T, F) to the log-probability of each token of the output, (R, N)."""

    def encode(x: Tensor) -> Any:
        vectors = model.encoder.front.vectors(x)
        return model.encoder.from_vectors(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=x.device))

    if model.ctc_head is None:
        ids = torch.tensor([[model.bos_id, *tokens]], device=features.device)
        return lambda x: -model.attention_loss(encode(x), ids.expand(len(x), -1))
    with torch.no_grad():
        log_probs = model.frame_log_probs(encode(features))[0]
    spans = ctc.align(log_probs.cpu(), tokens, blank=model.blank)

    def path_scores(x: Tensor) -> Tensor:
        log_probs = model.frame_log_probs(encode(x))
        return torch.stack([log_probs[:, span.start : span.end, span.label].sum(1) for span in spans], 1)

    return path_scores


def _attribute(
    scores: Callable[[Tensor], Tensor], features: Tensor, words: list[list[int]], steps: int, progress: ProgressCallback
) -> tuple[np.ndarray, np.ndarray]:
    """The contributions (W, T, F), and the scores of the words with the features and without, (W, 2). A single step is input
    x gradient."""
    shares = [1.0] if steps == 1 else ((torch.arange(steps) + 0.5) / steps).tolist()
    total = torch.zeros(len(words), *features.shape[1:], device=features.device)
    # cuDNN has no gradients of recurrent layers outside of training
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        for number, share in enumerate(shares):
            x = (share * features).requires_grad_()
            by_token = scores(x)[0]
            for word, tokens in enumerate(words):
                (gradient,) = torch.autograd.grad(by_token[tokens].sum(), x, retain_graph=True)
                total[word] += gradient[0] / len(shares)
            progress((number + 1) / len(shares), "")
    with torch.no_grad():
        ends = [scores(x)[0] for x in (features, torch.zeros_like(features))]
        sums = torch.stack([torch.stack([end[tokens].sum() for end in ends]) for tokens in words])
    return (total * features[0]).cpu().numpy(), sums.cpu().double().numpy()


def _check(options: ExplainConfig) -> None:
    for name in UNUSED:
        if getattr(options, name) is not None:
            raise UsageError(name, "not used by explanations of recordings", "remove it")
    if options.method not in (None, *METHODS):
        raise UsageError("method", f"{options.method} is not available for recordings", f"use {' or '.join(METHODS)}")
    if options.n_steps is not None and options.method == "input-x-gradient":
        raise UsageError("n_steps", "not used by method input-x-gradient", "remove it")


def _output(run: Run[Any, Prediction], path: str, options: ExplainConfig) -> tuple[list[int], str]:
    """The tokens to explain, and their text: those of `target`, or of the prediction."""
    if options.target is not None:
        tokens: list[int] = run.vocabulary.encode(options.target).tolist()
        if run.vocabulary.unk_id in tokens:
            raise UsageError("target", f"{options.target!r} contains a token that is not in the vocabulary")
        return tokens, options.target
    search = {"beam_size": options.beam_size, "length_penalty": options.length_penalty}
    prediction: Prediction = run.predict(path, SpeechOptions(**search))
    return [token for token in prediction.token_ids if token != run.vocabulary.eos_id], prediction.text


def attribution(run: Run[Any, Prediction], path: str, options: ExplainConfig, progress: ProgressCallback) -> Explanation:
    """The contribution of each feature to each word of the output."""
    _check(options)
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
    scores = _score_function(model, features, tokens)
    times = predictor.token_times(frames, tokens)
    if times == [] and model.ctc_head is not None:
        raise DataError(path, "the recording is too short for this output")
    values, ends = _attribute(scores, features, [indices for _, indices in words], steps, progress)
    spans = [_span(word, indices, times) for word, indices in words]
    method = options.method or DEFAULT_METHOD
    title = f"Attribution of {run.directory.path} for {text}: {method.replace('-', ' ')}"
    data = {"tokens": [], "text": text, "method": method, "n_steps": None if steps == 1 else steps, "words": []}
    maximum, figures, lines = (
        float(values.max()) or 1.0,
        list[Figure](),
        [("word", "time (s)", "log-prob", "strongest frames (s)")],
    )
    for span, value, (score, baseline) in zip(spans, values, ends, strict=True):
        by_frame = value.sum(1)
        caption = f"Contributions to {span.word}"
        highlight = np.sqrt(value.clip(0) / maximum)
        timed = [] if np.isnan(span.start) else [span]
        figures.append(Figure(caption, recording.picture(highlight, timed, caption)))
        when = "" if not timed else f"{span.start:.2f} to {span.end:.2f}"
        strongest = sorted((np.argsort(-by_frame, kind="stable")[: options.top] * recording.seconds).round(2).tolist())
        lines.append((span.word, when, f"{score:.3f}", "  ".join(f"{time:.2f}" for time in strongest)))
        data["words"].append(_word_data(span, score, baseline, value))
    note = [f"{method.replace('-', ' ')}, baseline: the mean of the features" + (f", {steps} steps" if steps > 1 else "")]
    return Explanation("attribution", title, data, figures, [*align_columns(lines, left=(0, 1, 3)), *note], GUIDE)


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
