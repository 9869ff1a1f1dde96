"""Compare a CTranslate2 model with the run that it was exported from: the log-probabilities of random tokens, and of the tokens
that CTranslate2 decodes itself, which tests its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.decode.engine import pad
from weft.runs.run import AnyRun

SHAPES = ((1, 3), (4, 17), (3, 64))  # rows, tokens of the longest row
NUM_NEW_TOKENS = 12
NUM_SPECIALS = 3


class Difference(NamedTuple):
    absolute: float  # the largest difference of a log-probability
    relative: float  # the same, divided by its absolute value if that is more than 1
    shapes: list[tuple[int, int]]


def _rows(rng: np.random.Generator, shape: tuple[int, int], vocab_size: int) -> list[list[int]]:
    """Random tokens; one row has the full length."""
    num_rows, longest = shape
    lengths = [longest, *rng.integers(1, longest + 1, num_rows - 1).tolist()]
    return [rng.integers(min(NUM_SPECIALS, vocab_size - 1), vocab_size, length).tolist() for length in lengths]


def _difference(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], shapes: list[tuple[int, int]]) -> Difference:
    a, b = np.concatenate(ours), np.concatenate(theirs)
    error = np.abs(a - b)
    return Difference(float(error.max()), float((error / np.maximum(1.0, np.abs(a))).max()), shapes)


def _shapes(limit: int) -> list[tuple[int, int]]:
    return [(rows, max(1, min(length, limit))) for rows, length in SHAPES]


@torch.no_grad()
def _scores(run: AnyRun, rows: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None) -> list[np.ndarray]:
    """The log-probability of each token after the first of each row."""
    state = None
    if sources is not None:
        tokens, source_mask = pad(sources, run.device)
        state = run.model.encode(tokens, torch.ones_like(tokens, dtype=torch.bool) if source_mask is None else source_mask)
    tokens, token_mask = pad(rows, run.device)
    scores = run.model.score(tokens, token_mask, state).double().cpu().numpy()
    return [row[: len(tokens) - 1] for row, tokens in zip(scores, rows, strict=True)]


def compare_translator(run: AnyRun, model: Any, source_names: Sequence[str], target_names: Sequence[str]) -> Difference:
    """Compare an encoder-decoder."""
    tokenizers, rng = run.predictor.tokenizer, np.random.default_rng(0)
    start, eos_id = list(tokenizers.target.start_tokens.target), tokenizers.target.eos_id
    max_length = run.config.data.max_length  # CTranslate2 cannot score more tokens than attention sees
    source_shapes, target_shapes = _shapes(max_length - 1), _shapes(max_length - len(start))
    ids = {name: token_id for token_id, name in enumerate(target_names)}
    ours, theirs = list[np.ndarray](), list[np.ndarray]()
    for source_shape, target_shape in zip(source_shapes, target_shapes, strict=True):
        sources = [[*row, tokenizers.source.eos_id] for row in _rows(rng, source_shape, len(source_names))]
        targets = [[*start[1:], *row] for row in _rows(rng, target_shape, len(target_names))]
        source_tokens = [[source_names[token_id] for token_id in row] for row in sources]
        target_tokens = [[target_names[token_id] for token_id in row] for row in targets]
        ours += _scores(run, [[start[0], *row, eos_id] for row in targets], sources)
        # one at a time: with a sliding window, CTranslate2 4.8.4 refuses texts of different lengths
        scores = model.score_batch(source_tokens, target_tokens, max_batch_size=1, max_input_length=0)
        theirs += [np.array(row.log_probs) for row in scores]
        length = max(1, min(NUM_NEW_TOKENS, target_shape[1]))
        results = model.translate_batch(
            source_tokens, target_prefix=[[target_names[token_id] for token_id in start[1:]]] * len(sources), beam_size=2,
            length_penalty=0, min_decoding_length=0, max_decoding_length=len(start) - 1 + length, max_input_length=0,
            return_end_token=True, return_scores=True,
        )  # fmt: skip
        decoded = [[ids[token] for token in result.hypotheses[0]] for result in results]
        new_scores = [row[len(start) - 1 :] for row in _scores(run, [[start[0], *row] for row in decoded], sources)]
        ours.append(np.array([row.mean() for row in new_scores]))
        theirs.append(np.array([result.scores[0] / len(row) for result, row in zip(results, new_scores, strict=True)]))
    return _difference(ours, theirs, target_shapes)


def compare_generator(run: AnyRun, model: Any, source_names: Sequence[str], target_names: Sequence[str]) -> Difference:
    """Compare a language model."""
    rng, context_length = np.random.default_rng(0), run.model.context_length
    shapes = _shapes(context_length)
    ours, theirs = list[np.ndarray](), list[np.ndarray]()
    for num_rows, longest in shapes:
        rows = [[1, *row] for row in _rows(rng, (num_rows, longest), len(target_names))]
        texts = [[target_names[token_id] for token_id in row] for row in rows]
        ours += _scores(run, rows, None)
        theirs += [np.array(row.log_probs) for row in model.score_batch(texts, max_batch_size=1, max_input_length=0)]
        num_new = max(1, min(NUM_NEW_TOKENS, context_length // 2))
        size = max(1, min(longest, context_length - num_new + 1))
        results = model.generate_batch(
            [text[:size] for text in texts], beam_size=2, length_penalty=0, min_length=0, max_length=num_new,
            include_prompt_in_result=False, return_end_token=True, return_scores=True,
        )  # fmt: skip
        decoded = [result.sequences_ids[0] for result in results]
        prompts = [row[:size] for row in rows]
        whole = _scores(run, [[*prompt, *new] for prompt, new in zip(prompts, decoded, strict=True)], None)
        new_scores = [row[len(prompt) - 1 :] for row, prompt in zip(whole, prompts, strict=True)]
        ours.append(np.array([row.mean() for row in new_scores]))
        theirs.append(np.array([result.scores[0] / len(row) for result, row in zip(results, new_scores, strict=True)]))
    return _difference(ours, theirs, shapes)
