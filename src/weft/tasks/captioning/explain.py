"""Which parts of an image or a clip an output depends on: the contributions of pixels to the score of each word, or attention.

Integrated gradients follow the score of a word from the blurred image to the image. A gray image is not a useful baseline: the
first normalization of most networks makes their output independent of the contrast, so the score changes in a moment at the
start of the path, which no number of steps finds. The contributions of pixels are summed in cells.

Shapes: R rows, T frames or positions, H height, W width, C channels, N words, h and w the height and width of a grid of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.decode.prediction import Prediction
from weft.errors import DataError
from weft.explain import frame_attribution
from weft.explain.explanation import Explanation, Figure, align_columns
from weft.explain.frame_attribution import MAX_WORDS, N_STEPS, OF_ATTRIBUTION, Scores
from weft.explain.frame_contributions import FrameContributions
from weft.explain.options import ExplainConfig
from weft.explain.progress import ProgressCallback
from weft.nn.memory import Memory
from weft.tasks.captioning.predict import CaptionOptions
from weft.tasks.captioning.reader import EncodedReader
from weft.tasks.media_data import find_file

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.captioning.decoding import CaptionPredictor
    from weft.tasks.media_predict import Frames

METHODS = ("integrated-gradients", "input-x-gradient", "occlusion")
NOUN = "images and clips"
CELLS = 16  # along the longer side of an image
BATCH_OCCLUDED = 32  # images with a hidden cell that are encoded at once
ATTRIBUTION_GUIDE = (
    "Each panel is the image or a frame, orange where pixels raise the score of one word, in nats of log-probability, compared "
    "with the blurred image. The same color is the same amount in all panels."
)
ATTENTION_GUIDE = "Each panel is the image, or each row the frames of a clip, with the weights of the attention for one word."


@dataclass(frozen=True)
class _Input:
    """What is explained: numbers (1, T, H, W, C) that the model depends on, and how."""

    values: Tensor  # pixels; features (1, T, 1, 1, F)
    baseline: Tensor
    encode: Callable[[Tensor], Memory]  # values (R, ...) to the memory
    pictures: np.ndarray | None

    def cell_size(self) -> int:
        """Pixels per side of a cell."""
        return max(1, -(-max(self.values.shape[2:4]) // CELLS))


def _blurred(pixels: Tensor) -> Tensor:
    """Pixels (1, T, H, W, C), averaged twice over half of the image in each direction."""
    images, size = pixels[0].permute(0, 3, 1, 2), max(pixels.shape[2:4]) // 4
    for kernel, padding in (((2 * size + 1, 1), (0, 0, size, size)), ((1, 2 * size + 1), (size, size, 0, 0))) * 2:
        images = F.avg_pool2d(F.pad(images, padding, mode="replicate"), kernel, stride=1)
    return images.permute(0, 2, 3, 1)[None]


def _input(predictor: CaptionPredictor, value: object, frames: Frames) -> _Input:
    model: Any = predictor.members[0].model
    reader = predictor.frame_readers[0]

    def encode_frames(x: Tensor) -> Memory:
        memory: Memory = model.encoder(x, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device))
        return memory

    if isinstance(reader, EncodedReader):
        encoded, pixels = reader, reader.prepared(value).permute(0, 2, 3, 1)[None].to(predictor.device)

        def encode_pixels(x: Tensor) -> Memory:
            rows = [encoded.as_frames(encoded.encoder.features(row.permute(0, 3, 1, 2))) for row in x]
            return encode_frames(torch.stack(rows).to(x.device))

        return _Input(pixels, _blurred(pixels), encode_pixels, reader.pictures(value, frames[0]))
    source = torch.from_numpy(np.array(frames[0], np.float32))[None].to(predictor.device)
    shape = reader.options.shape.pixels
    if shape is None:
        mean = source.mean(1, keepdim=True).expand_as(source)
        return _Input(source[:, :, None, None], mean[:, :, None, None], lambda x: encode_frames(x.flatten(2)), None)
    pixels = source.view(1, -1, *shape)
    return _Input(pixels, _blurred(pixels), lambda x: encode_frames(x.flatten(2)), reader.pictures(value, frames[0]))


def _in_cells(values: np.ndarray, size: int) -> np.ndarray:
    """Contributions (N, T, H, W) summed in square cells, (N, T, h, w)."""
    height, width = (-side % size for side in values.shape[2:])
    padded = np.pad(values, ((0, 0), (0, 0), (0, height), (0, width)))
    cells: np.ndarray = padded.reshape(*values.shape[:2], padded.shape[2] // size, size, -1, size).sum((3, 5))
    return cells


@torch.no_grad()
def _occlude(scores: Scores, source: _Input, words: list[list[int]], progress: ProgressCallback) -> np.ndarray:
    """The loss of score (N, T, h, w) if a cell of an image, or a frame of a clip, is replaced by the baseline."""
    _, num_frames, height, width, _ = source.values.shape
    size = source.cell_size() if num_frames == 1 else max(height, width)
    grid = -(-height // size), -(-width // size)
    parts = [(frame, row, column) for frame in range(num_frames) for row in range(grid[0]) for column in range(grid[1])]
    score, losses = frame_attribution.word_scores(scores, source.values, words), list[np.ndarray]()
    for low in range(0, len(parts), BATCH_OCCLUDED):
        batch = parts[low : low + BATCH_OCCLUDED]
        x = source.values.repeat(len(batch), 1, 1, 1, 1)
        for index, (frame, row, column) in enumerate(batch):
            rows, columns = (slice(size * place, size * (place + 1)) for place in (row, column))
            x[index, frame, rows, columns] = source.baseline[0, frame, rows, columns]
        losses.append(score - frame_attribution.word_scores(scores, x, words))
        progress((low + len(batch)) / len(parts), "")
    return np.concatenate(losses, axis=1).reshape(len(words), num_frames, *grid)


def _file(run: Run[Any, Prediction], value: object) -> object:
    """The file of a path, which may be relative to the root of the training data; any other value as it is."""
    from pathlib import Path

    return find_file(str(value), Path(), run.config.data.root) if isinstance(value, str | Path) else value


def _output(run: Run[Any, Prediction], value: object, options: ExplainConfig) -> Prediction:
    """The output to explain: that of `target`, or the prediction."""
    if options.target is not None:
        return Prediction(options.target, frame_attribution.target_tokens(run.vocabulary, options.target), 0.0, 0.0)
    search = CaptionOptions(beam_size=options.beam_size, length_penalty=options.length_penalty, patience=options.patience)
    prediction: Prediction = run.predict(value, search)
    return prediction


def _words(name: str, tokens: list[int], run: Run[Any, Prediction]) -> list[tuple[str, list[int]]]:
    words = frame_attribution.word_tokens(tokens, run.vocabulary)
    if not words:
        raise DataError(name, "the output is empty: there is no word to explain", "pass a target")
    if len(words) > MAX_WORDS:
        raise DataError(name, f"{len(words)} words exceed the limit of {MAX_WORDS}", "pass a shorter target")
    return words


def _places(by_cell: np.ndarray, top: int, *, size: int, has_pixels: bool) -> str:
    """The cells (T, h, w) with the largest numbers: frames of a clip, positions of features, or pixels of an image."""
    num_frames, _, width = by_cell.shape
    if num_frames > 1 or not has_pixels:
        best = np.argsort(-by_cell.sum((1, 2)), kind="stable")[:top]
        return "  ".join(str(frame + 1) for frame in sorted(best.tolist()))
    best = np.argsort(-by_cell[0], axis=None, kind="stable")[:top]
    return "  ".join(f"{int((cell % width + 0.5) * size)},{int((cell // width + 0.5) * size)}" for cell in best.tolist())


def _place_noun(source_frames: int, has_pixels: bool) -> str:
    return "positions" if not has_pixels else "frames" if source_frames > 1 else "places (x,y)"


def attribution(run: Run[Any, Prediction], value: str, options: ExplainConfig, progress: ProgressCallback) -> Explanation:
    """The contribution of each part of a file to each word of the output."""
    frame_attribution.check_options(options, METHODS, NOUN)
    predictor: CaptionPredictor = run.predictor
    file = _file(run, value)
    frames = predictor.read_or_raise(file)
    prediction = _output(run, file, options)
    tokens = [token for token in prediction.token_ids if token != run.vocabulary.eos_id]
    words, source = _words(str(value), tokens, run), _input(predictor, file, frames)
    if source.pictures is None and source.values.size(1) == 1:
        raise DataError(str(value), "one position of features cannot be compared with others")
    scores = frame_attribution.token_scores(run.model, source.encode, source.values, tokens)
    if scores is None:
        raise DataError(str(value), "the clip is too short for this output")
    indices, size = [tokens for _, tokens in words], source.cell_size()
    method, steps = options.method or METHODS[0], 0
    if method == "occlusion":
        cells = _occlude(scores, source, indices, progress)
    else:
        steps = 1 if method == "input-x-gradient" else options.n_steps or N_STEPS
        values = frame_attribution.attribute(scores, source.values, source.baseline, indices, steps, progress)
        cells = _in_cells(values.sum(-1), size)
    ends = frame_attribution.word_scores(scores, torch.cat([source.values, source.baseline]), indices)
    has_pixels, names = source.pictures is not None, [word for word, _ in words]
    title = f"Attribution of {run.directory.path} for {prediction.text}: {method.replace('-', ' ')}"
    noun = _place_noun(cells.shape[1], has_pixels)
    lines, data = [("word", "log-prob", "without", f"strongest {noun}")], list[dict[str, Any]]()
    for word, cell, (score, baseline) in zip(names, cells, ends, strict=True):
        places = _places(cell, options.top, size=size, has_pixels=has_pixels)
        lines.append((word, f"{score:.3f}", f"{baseline:.3f}", places))
        log_probs = {"log_prob": float(score), "baseline_log_prob": float(baseline)}
        data.append({"word": word, **log_probs, "sum": float(cell.sum()), "by_cell": np.round(cell, 5).tolist()})
    kind = "the blurred image" if has_pixels else "the mean of the positions"
    note = f"{method.replace('-', ' ')}, baseline: {kind}" + (f", {steps} steps" if steps > 1 else "")
    svg = FrameContributions(names, cells, source.pictures).to_svg(prediction.text)
    numbers: dict[str, Any] = {"tokens": [], "text": prediction.text, "method": method, "n_steps": steps if steps > 1 else None}
    numbers |= {"cell_size": size if has_pixels else None, "words": data}
    table = [*align_columns(lines, left=(0, 3)), note]
    return Explanation("attribution", title, numbers, [Figure("Contributions to each word", svg)], table, ATTRIBUTION_GUIDE)


def attention(run: Run[Any, Prediction], value: str, options: ExplainConfig, progress: ProgressCallback) -> Explanation:
    """The attention of each word of the output, or its frames on a CTC path."""
    frame_attribution.check_unused(options, OF_ATTRIBUTION, NOUN)
    predictor: CaptionPredictor = run.predictor
    aligned = CaptionOptions(return_alignments=True, layer=options.layer, head=options.head)
    predictor.check_alignable(aligned)
    file = _file(run, value)
    frames = predictor.read_or_raise(file)
    prediction = _output(run, file, options)
    alignment = predictor.align(file, frames, prediction, aligned)
    if not alignment.words:
        raise DataError(str(value), "the output is empty: there is no word to explain", "pass a target")
    has_pixels = alignment.frames is not None
    noun = _place_noun(alignment.weights.shape[1], has_pixels)
    size = 1 if alignment.frames is None else -(-alignment.frames.shape[1] // alignment.weights.shape[2])
    lines = [("word", f"strongest {noun}")]
    for word, weights in zip(alignment.words, alignment.weights, strict=True):
        lines.append((word, _places(weights, options.top, size=size, has_pixels=has_pixels)))
    title = f"Attention of {run.directory.path} for {prediction.text}"
    numbers = {"tokens": [], "text": prediction.text, **alignment.to_json()}
    figure = Figure("Attention of each word", alignment.to_svg(prediction.text))
    return Explanation("attention", title, numbers, [figure], align_columns(lines, left=(0, 1)), ATTENTION_GUIDE)


VIEWS: Mapping[str, Callable[[Any, str, ExplainConfig, ProgressCallback], Explanation]] = {
    "attribution": attribution,
    "attention": attention,
}
