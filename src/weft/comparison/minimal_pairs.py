"""Minimal pairs: how often a model gives the grammatical sentence of a pair the higher probability.

A language model scores a sentence by the sum of its tokens' log-probabilities, a masked one by its pseudo-log-likelihood
(Salazar et al. 2020), which masks each token in turn. If a pair compares two forms of a word after the same prefix, the sum
ends with that word. A masked model reads both directions, so it always scores the whole sentence.

Shapes: N pairs, M = 2 N texts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.comparison.breakdown import Cell, as_json, subset
from weft.comparison.significance import Estimate, bootstrap, clip_to_range, estimate
from weft.data.minimal_pair_files import MinimalPair
from weft.errors import UsageError, unknown_name
from weft.metrics.items import Array, ItemStatistics
from weft.metrics.minimal_pairs import PAIRS, pair_items
from weft.runs.run import AnyRun
from weft.tasks.compare_spec import SentenceScoring
from weft.tasks.registry import TASKS, find_task

ProgressCallback = Callable[[int, int], None]
SCORE_BY = ("sentence", "word")
(ACCURACY,) = PAIRS
PROBLEMS = ("unknown", "unknown_choice", "equal", "long")
DISTRACTORS = "distractor_agreement"  # name prefix of BLiMP's paradigms with an attractor


# ---- problems of pairs


def _differing(a: Array, b: Array) -> tuple[Array, Array]:
    """Two token sequences without their common prefix and suffix."""
    min_length = min(len(a), len(b))
    differing = np.flatnonzero(a[:min_length] != b[:min_length])
    prefix = int(differing[0]) if len(differing) else min_length
    rest_a, rest_b, max_suffix = a[prefix:], b[prefix:], min_length - prefix
    differing = np.flatnonzero(rest_a[::-1][:max_suffix] != rest_b[::-1][:max_suffix])
    suffix = int(differing[0]) if len(differing) else max_suffix
    return rest_a[: len(rest_a) - suffix], rest_b[: len(rest_b) - suffix]


def _problems(run: AnyRun, texts: Sequence[str], long: Array) -> dict[str, Array]:
    """Problems of each pair, bool (N,) each: an unknown token, an unknown token among those that differ, equal token
    sequences, and a sentence that is too long."""
    encoded, unk = run.vocabulary.encode_batch(texts), run.vocabulary.unk_id
    half = len(texts) // 2
    pairs = list(zip(encoded[:half], encoded[half:], strict=True))
    unknown = np.array([(a == unk).any() or (b == unk).any() for a, b in pairs], bool)
    differing = np.array([any((part == unk).any() for part in _differing(a, b)) for a, b in pairs], bool)
    equal = np.array([np.array_equal(a, b) for a, b in pairs], bool)
    columns = (unknown, differing | (equal & unknown), equal)  # equal sequences have no differing token
    return dict(zip(PROBLEMS, [*columns, long[:half] | long[half:]], strict=True))


# ---- pairs


def _scoring_tasks() -> list[str]:
    """The tasks whose models give a sentence a probability."""
    return [repr(name) for name in TASKS if find_task(name).compare.sentences is not None]


def check_task(task: str) -> None:
    """Raise UsageError if runs of the task do not give sentences a probability."""
    if find_task(task).compare.sentences is None:
        raise UsageError("minimal_pairs", f"not available for task {task!r}; it requires task {' or '.join(_scoring_tasks())}")


def check_run(run: AnyRun) -> SentenceScoring:
    """How a run scores sentences; raises UsageError if it does not give sentences a probability."""
    if run.spec.compare.sentences is None:
        raise UsageError(
            run.directory.path,
            f"minimal pairs are not available for task {run.config.task!r}",
            f"use a run of task {' or '.join(_scoring_tasks())}",
        )
    return run.spec.compare.sentences


def _scores_whole_sentences(pairs: Sequence[MinimalPair], by: str | None) -> Array:
    """bool (N,): whether each pair is scored by its whole sentences."""
    if by == "sentence":
        return np.ones(len(pairs), bool)
    return np.array([pair.choice is None or (by is None and not pair.forced) for pair in pairs], bool)


def _text(pair: MinimalPair, whole_sentence: bool, side: int) -> str:
    """The text to score for the good (0) or bad (1) sentence of a pair."""
    return (pair.good, pair.bad)[side] if whole_sentence or pair.choice is None else pair.choice[side]


def evaluate_minimal_pairs(
    run: AnyRun,
    pairs: Sequence[MinimalPair],
    *,
    by: str | None = None,
    mean: bool = False,
    progress: ProgressCallback | None = None,
) -> ItemStatistics:
    """Score each pair: by the whole sentences, by the word that differs, or as the authors of the suite do (`by`);
    by the sum of log-probabilities or by their mean per token (`mean`). Calls `progress(tokens done, all tokens)`."""
    sentences = check_run(run)
    if by is not None and by not in SCORE_BY:
        raise UsageError("score_by", *unknown_name("unit", by, SCORE_BY))
    if by == "word" and sentences.bidirectional:
        raise UsageError("score_by", f"{run.directory.path} is a masked language model and scores whole sentences", "remove it")
    whole_sentence = _scores_whole_sentences(pairs, "sentence" if sentences.bidirectional else by)
    texts = [_text(pair, whole, side) for side in (0, 1) for pair, whole in zip(pairs, whole_sentence, strict=True)]
    scored = sentences.score(run, texts, np.concatenate([whole_sentence, whole_sentence]), progress)
    scores = scored.log_probs / np.maximum(scored.num_tokens, 1) if mean else scored.log_probs
    half = len(pairs)
    return pair_items(scores[:half], scores[half:], _problems(run, texts, scored.is_too_long))


def scorable_pairs(pairs: Sequence[MinimalPair], by: str | None) -> list[MinimalPair]:
    """The pairs that can be scored this way: by word, only those that differ in one word."""
    return [pair for pair in pairs if by != "word" or pair.choice is not None]


# ---- rows: phenomena, attractors


class Row(NamedTuple):
    """A group of pairs and the accuracy of every model on them."""

    by: str  # "all", "phenomenon", "paradigm", "attractors" or "recency"
    name: str
    size: int
    scores: dict[str, Estimate]


def _indices_by_key(keys: Sequence[Hashable]) -> dict[Any, Array]:
    """The indices of each key, in order of first occurrence; None is skipped."""
    indices: dict[Any, list[int]] = {}
    for i, key in enumerate(keys):
        if key is not None:
            indices.setdefault(key, []).append(i)
    return {key: np.array(members) for key, members in indices.items()}


def _phenomena(pairs: Sequence[MinimalPair]) -> Iterator[tuple[str, str, Array]]:
    """Each phenomenon, followed by its paradigms if they have other names."""
    paradigms = _indices_by_key([(pair.phenomenon, pair.paradigm) for pair in pairs])
    for name, members in _indices_by_key([pair.phenomenon or None for pair in pairs]).items():
        yield "phenomenon", name, members
        for (above, inner), inner_members in paradigms.items():
            if above == name and inner not in ("", name):
                yield "paradigm", inner, inner_members


def _attractors(pairs: Sequence[MinimalPair]) -> Iterator[tuple[str, str, Array]]:
    for count, members in sorted(_indices_by_key([pair.attractors for pair in pairs]).items()):
        yield "attractors", str(count), members


def _recency(pairs: Sequence[MinimalPair]) -> Iterator[tuple[str, str, Array]]:
    """Syntax or recency: pairs without attractors, pairs with some, and BLiMP's distractor paradigms."""
    counts = [None if pair.attractors is None else min(pair.attractors, 1) for pair in pairs]
    for count, members in sorted(_indices_by_key(counts).items()):
        yield "recency", "1 or more attractors" if count else "no attractor", members
    for _, members in _indices_by_key([pair.paradigm.startswith(DISTRACTORS) or None for pair in pairs]).items():
        yield "recency", "distractor paradigms", members


def _estimates(groups: Mapping[str, Sequence[ItemStatistics]], members: Array) -> dict[str, Estimate]:
    """The accuracy of every model on some pairs. All runs are resampled at once, so that they share the resamples."""
    samples_of_runs = iter(
        bootstrap([subset(run, members) for runs in groups.values() for run in runs], {"": ACCURACY.compute})
    )
    samples = {name: [next(samples_of_runs)[""] for _ in runs] for name, runs in groups.items()}
    return {name: clip_to_range(estimate(runs), ACCURACY) for name, runs in samples.items()}


def rows(
    groups: Mapping[str, Sequence[ItemStatistics]], pairs: Sequence[MinimalPair], *, progress: ProgressCallback | None = None
) -> list[Row]:
    """Accuracy in percent with 95% confidence intervals over pairs, and over seeds if a model has several runs: of all pairs,
    by phenomenon and paradigm, by attractors, and by recency. Calls `progress(pairs done, all pairs)`."""
    parts = [("all", "all", np.arange(len(pairs))), *_phenomena(pairs), *_attractors(pairs), *_recency(pairs)]
    table, estimates = list[Row](), dict[bytes, dict[str, Estimate]]()
    total = sum(len(members) for _, _, members in parts)
    for by, name, members in parts:
        key = members.tobytes()  # the same pairs under another name are resampled only once
        estimates[key] = estimates.get(key) or _estimates(groups, members)
        table.append(Row(by, name, len(members), estimates[key]))
        if progress is not None:
            progress(sum(row.size for row in table), total)
    return table


def breakdowns(table: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as breakdowns of comparison.json: by phenomenon, with all pairs first, and the others if they have more than one
    bin."""
    titles = {
        "phenomenon": "phenomenon (minimal pairs)",
        "paradigm": "paradigm (minimal pairs)",
        "attractors": "attractors between subject and verb (minimal pairs)",
        "recency": "syntax or recency (minimal pairs)",
    }
    documents = []
    for by, title in titles.items():
        cells = [Cell(row.name, row.size, row.scores) for row in table if row.by == by]
        if by == "phenomenon":
            all_pairs = [Cell(row.name, row.size, row.scores) for row in table if row.by == "all"]
            if [cell.size for cell in cells] != [all_pairs[0].size]:  # unless one phenomenon has all pairs
                cells = all_pairs + cells
        if len(cells) > 1 or (cells and by == "phenomenon"):
            documents.append(as_json(title, ACCURACY, cells, list(cells[0].scores), unit="pairs"))
    return documents
