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

from weft.comparison.breakdown import Cell, as_json
from weft.comparison.significance import Estimate, clipped, estimate, resampled
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
DISTRACTORS = "distractor_agreement"  # prefix of the names of BLiMP's paradigms with an attractor


# ---- problems of pairs


def _differing(a: Array, b: Array) -> tuple[Array, Array]:
    """Two token sequences without their common prefix and suffix."""
    short = min(len(a), len(b))
    differing = np.flatnonzero(a[:short] != b[:short])
    head = int(differing[0]) if len(differing) else short
    left, right, rest = a[head:], b[head:], short - head
    differing = np.flatnonzero(left[::-1][:rest] != right[::-1][:rest])
    tail = int(differing[0]) if len(differing) else rest
    return left[: len(left) - tail], right[: len(right) - tail]


def _problems(run: AnyRun, texts: Sequence[str], long: Array) -> dict[str, Array]:
    """bool (N,) each: a token is unknown; a differing token is unknown; both have the same tokens; one is too long."""
    encoded, unk = run.vocabulary.encode_batch(texts), run.vocabulary.unk_id
    half = len(texts) // 2
    pairs = list(zip(encoded[:half], encoded[half:], strict=True))
    unknown = np.array([(a == unk).any() or (b == unk).any() for a, b in pairs], bool)
    differing = np.array([any((part == unk).any() for part in _differing(a, b)) for a, b in pairs], bool)
    equal = np.array([np.array_equal(a, b) for a, b in pairs], bool)
    # if both have the same tokens, nothing differs
    columns = (unknown, differing | (equal & unknown), equal)
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


def _whole(pairs: Sequence[MinimalPair], by: str | None) -> Array:
    """bool (N,): whether whole sentences are compared."""
    if by == "sentence":
        return np.ones(len(pairs), bool)
    return np.array([pair.choice is None or (by is None and not pair.forced) for pair in pairs], bool)


def _text(pair: MinimalPair, whole: bool, side: int) -> str:
    """The text to score of the good (0) or the bad sentence (1) of a pair."""
    return (pair.good, pair.bad)[side] if whole or pair.choice is None else pair.choice[side]


def evaluate_minimal_pairs(
    run: AnyRun,
    pairs: Sequence[MinimalPair],
    *,
    by: str | None = None,
    mean: bool = False,
    progress: ProgressCallback | None = None,
) -> ItemStatistics:
    """Score each pair: by the whole sentences, by the word that differs, or by the choice of the authors of the pairs (`by`);
    by the sum of log-probabilities or by their mean per token (`mean`). Calls `progress(tokens done, all tokens)`."""
    sentences = check_run(run)
    if by is not None and by not in SCORE_BY:
        raise UsageError("score_by", *unknown_name("unit", by, SCORE_BY))
    if by == "word" and sentences.bidirectional:
        raise UsageError("score_by", f"{run.directory.path} is a masked language model and scores whole sentences", "remove it")
    whole = _whole(pairs, "sentence" if sentences.bidirectional else by)
    texts = [_text(pair, is_whole, side) for side in (0, 1) for pair, is_whole in zip(pairs, whole, strict=True)]
    scored = sentences.score(run, texts, np.concatenate([whole, whole]), progress)
    scores = scored.log_probs / np.maximum(scored.num_tokens, 1) if mean else scored.log_probs
    half = len(pairs)
    return pair_items(scores[:half], scores[half:], _problems(run, texts, scored.is_too_long))


def decided_by_one_token(pairs: Sequence[MinimalPair], by: str | None) -> list[MinimalPair]:
    """The pairs that can be scored so: by word, only those that differ in one word."""
    return [pair for pair in pairs if by != "word" or pair.choice is not None]


# ---- rows: phenomena, attractors


class Row(NamedTuple):
    """A group of pairs and the accuracy of every model on them."""

    by: str  # "all", "phenomenon", "paradigm", "attractors" or "recency"
    name: str
    size: int
    scores: dict[str, Estimate]


def _positions(keys: Sequence[Hashable]) -> dict[Any, Array]:
    """The positions of each key, in order of first occurrence; None is not a key."""
    positions: dict[Any, list[int]] = {}
    for at, key in enumerate(keys):
        if key is not None:
            positions.setdefault(key, []).append(at)
    return {key: np.array(members) for key, members in positions.items()}


def _phenomena(pairs: Sequence[MinimalPair]) -> Iterator[tuple[str, str, Array]]:
    """Each phenomenon, followed by its paradigms if they have other names."""
    paradigms = _positions([(pair.phenomenon, pair.paradigm) for pair in pairs])
    for name, members in _positions([pair.phenomenon or None for pair in pairs]).items():
        yield "phenomenon", name, members
        for (above, inner), inner_members in paradigms.items():
            if above == name and inner not in ("", name):
                yield "paradigm", inner, inner_members


def _attractors(pairs: Sequence[MinimalPair]) -> Iterator[tuple[str, str, Array]]:
    for count, members in sorted(_positions([pair.attractors for pair in pairs]).items()):
        yield "attractors", str(count), members


def _recency(pairs: Sequence[MinimalPair]) -> Iterator[tuple[str, str, Array]]:
    """Syntax or recency: pairs without attractors, pairs with some, and BLiMP's distractor paradigms."""
    counts = [None if pair.attractors is None else min(pair.attractors, 1) for pair in pairs]
    for count, members in sorted(_positions(counts).items()):
        yield "recency", "1 or more attractors" if count else "no attractor", members
    for _, members in _positions([pair.paradigm.startswith(DISTRACTORS) or None for pair in pairs]).items():
        yield "recency", "distractor paradigms", members


def subset(items: ItemStatistics, members: Array) -> ItemStatistics:
    """The items at these positions."""
    return ItemStatistics(items.keys[members], {name: values[members] for name, values in items.statistics.items()})


def _estimates(groups: Mapping[str, Sequence[ItemStatistics]], members: Array) -> dict[str, Estimate]:
    """The accuracy of every model on some of the pairs; all runs at once, so that they share the resamples."""
    again = iter(resampled([subset(run, members) for runs in groups.values() for run in runs], {"": ACCURACY.of}))
    samples = {name: [next(again)[""] for _ in runs] for name, runs in groups.items()}
    return {name: clipped(estimate(runs), ACCURACY) for name, runs in samples.items()}


def rows(
    groups: Mapping[str, Sequence[ItemStatistics]], pairs: Sequence[MinimalPair], *, progress: ProgressCallback | None = None
) -> list[Row]:
    """Accuracy in percent with 95% confidence intervals over pairs, and over seeds if a model has several runs: of all pairs,
    by phenomenon and paradigm, by attractors, and by recency. Calls `progress(pairs done, all pairs)`."""
    parts = [("all", "all", np.arange(len(pairs))), *_phenomena(pairs), *_attractors(pairs), *_recency(pairs)]
    table, known = list[Row](), dict[bytes, dict[str, Estimate]]()
    total = sum(len(members) for _, _, members in parts)
    for by, name, members in parts:
        key = members.tobytes()  # the same pairs under another name are not resampled again
        known[key] = known.get(key) or _estimates(groups, members)
        table.append(Row(by, name, len(members), known[key]))
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
            cells = (
                cells if [cell.size for cell in cells] == [all_pairs[0].size] else all_pairs + cells
            )  # unless one phenomenon has all pairs
        if len(cells) > 1 or (cells and by == "phenomenon"):
            documents.append(as_json(title, ACCURACY, cells, list(cells[0].scores), unit="pairs"))
    return documents
