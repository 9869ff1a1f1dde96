"""Does a model know grammar? Minimal pairs under any model that gives sentences a probability, by phenomenon and attractors.

A language model scores a sentence by the sum of its tokens' log-probabilities, a masked one by its pseudo-log-likelihood
(Salazar et al. 2020), where each token in turn is hidden. Where the suite compares the forms of a word after what stands before
them, the sum ends with that word: what is before it is the same for both. A masked model reads both sides, so it always has the
whole sentence.

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
from weft.tasks.compare_spec import Sentences
from weft.tasks.registry import TASKS, find_task

ProgressCallback = Callable[[int, int], None]
BY = ("sentence", "word")
(ACCURACY,) = PAIRS
FAULTS = ("unknown", "unknown_choice", "equal", "long")
DISTRACTORS = "distractor_agreement"  # how the names of BLiMP's paradigms with an attractor begin


# ---- what stands between a pair and its answer


def _differing(a: Array, b: Array) -> tuple[Array, Array]:
    """Two rows of tokens without what they share at their beginnings and ends."""
    short = min(len(a), len(b))
    apart = np.flatnonzero(a[:short] != b[:short])
    head = int(apart[0]) if len(apart) else short
    left, right, rest = a[head:], b[head:], short - head
    apart = np.flatnonzero(left[::-1][:rest] != right[::-1][:rest])
    tail = int(apart[0]) if len(apart) else rest
    return left[: len(left) - tail], right[: len(right) - tail]


def _faults(run: AnyRun, texts: Sequence[str], long: Array) -> dict[str, Array]:
    """bool (N,) each: a word is unknown; one of those that differ is; both become the same tokens; one is too long."""
    coded, unk = run.vocabulary.encode_batch(texts), run.vocabulary.unk_id
    half = len(texts) // 2
    pairs = list(zip(coded[:half], coded[half:], strict=True))
    unknown = np.array([(a == unk).any() or (b == unk).any() for a, b in pairs], bool)
    apart = np.array([any((part == unk).any() for part in _differing(a, b)) for a, b in pairs], bool)
    equal = np.array([np.array_equal(a, b) for a, b in pairs], bool)
    # where all became the same, nothing is left of the words that differ
    columns = (unknown, apart | (equal & unknown), equal)
    return dict(zip(FAULTS, [*columns, long[:half] | long[half:]], strict=True))


# ---- pairs


def _scoring() -> list[str]:
    """The tasks whose models give a sentence by itself a probability, as a message names them."""
    return [repr(name) for name in TASKS if find_task(name).compare.sentences is not None]


def check_task(task: str) -> None:
    """Refuse a comparison of runs that give no sentence a probability by itself."""
    if find_task(task).compare.sentences is None:
        raise UsageError(
            "",
            f"--minimal-pairs: runs of task {task!r} give a sentence by itself no probability; drop it, or compare runs of tasks "
            + " or ".join(_scoring()),
        )


def check_run(run: AnyRun) -> Sentences:
    """How a run scores sentences; one that gives no sentence a probability by itself is refused."""
    if run.task.compare.sentences is None:
        raise UsageError(
            run.directory.path,
            f"is a run of task {run.config.task!r}, which gives a sentence by itself no probability",
            f"probe runs of tasks {' and '.join(_scoring())}",
        )
    return run.task.compare.sentences


def _whole(pairs: Sequence[MinimalPair], by: str | None) -> Array:
    """bool (N,): whether whole sentences are compared."""
    if by == "sentence":
        return np.ones(len(pairs), bool)
    return np.array([pair.choice is None or (by is None and not pair.forced) for pair in pairs], bool)


def _text(pair: MinimalPair, whole: bool, side: int) -> str:
    """What is scored of a pair: of its good sentence (0) or its bad one (1)."""
    return (pair.good, pair.bad)[side] if whole or pair.choice is None else pair.choice[side]


def evaluate_minimal_pairs(
    run: AnyRun,
    pairs: Sequence[MinimalPair],
    *,
    by: str | None = None,
    mean: bool = False,
    progress: ProgressCallback | None = None,
) -> ItemStatistics:
    """What a run prefers, pair by pair: by whole sentences, by the word that decides, or as the authors of the suite do; by
    the sum of log-probabilities, or their mean a token. `watch(tokens done, tokens in all)` is told of progress."""
    sentences = check_run(run)
    if by is not None and by not in BY:
        raise UsageError("--score-by", *unknown_name("unit", by, BY))
    if by == "word" and sentences.whole:
        raise UsageError(
            "--score-by", f"{run.directory.path} reads a sentence from both sides, so there is no choice by word", "drop it"
        )
    whole = _whole(pairs, "sentence" if sentences.whole else by)
    texts = [_text(pair, all_of_it, side) for side in (0, 1) for pair, all_of_it in zip(pairs, whole, strict=True)]
    found = sentences.score(run, texts, np.concatenate([whole, whole]), progress)
    scores = found.log_probs / np.maximum(found.tokens, 1) if mean else found.log_probs
    half = len(pairs)
    return pair_items(scores[:half], scores[half:], _faults(run, texts, found.long))


def decided_by_one_token(pairs: Sequence[MinimalPair], by: str | None) -> list[MinimalPair]:
    """The pairs that can be asked so: by word, those that one word decides."""
    return [pair for pair in pairs if by != "word" or pair.choice is not None]


# ---- rows: phenomena, attractors


class Row(NamedTuple):
    """Some of the pairs, and how every model, by name, does on them."""

    by: str  # "all", "phenomenon", "paradigm", "attractors" or "recency"
    name: str
    size: int
    found: dict[str, Estimate]


def _places(keys: Sequence[Hashable]) -> dict[Any, Array]:
    """Where each key stands, in the order of their first places; None is no key."""
    found: dict[Any, list[int]] = {}
    for at, key in enumerate(keys):
        if key is not None:
            found.setdefault(key, []).append(at)
    return {key: np.array(places) for key, places in found.items()}


def _phenomena(pairs: Sequence[MinimalPair]) -> Iterator[tuple[str, str, Array]]:
    """Each phenomenon, and below it its paradigms where they say more."""
    paradigms = _places([(pair.phenomenon, pair.paradigm) for pair in pairs])
    for name, members in _places([pair.phenomenon or None for pair in pairs]).items():
        yield "phenomenon", name, members
        for (above, inner), places in paradigms.items():
            if above == name and inner not in ("", name):
                yield "paradigm", inner, places


def _attractors(pairs: Sequence[MinimalPair]) -> Iterator[tuple[str, str, Array]]:
    for count, members in sorted(_places([pair.attractors for pair in pairs]).items()):
        yield "attractors", str(count), members


def _recency(pairs: Sequence[MinimalPair]) -> Iterator[tuple[str, str, Array]]:
    """What tells syntax from the nearest noun: pairs without attractors, with some, and those of BLiMP that are about it."""
    counts = [None if pair.attractors is None else min(pair.attractors, 1) for pair in pairs]
    for count, members in sorted(_places(counts).items()):
        yield "recency", "1 or more attractors" if count else "no attractor", members
    for _, members in _places([pair.paradigm.startswith(DISTRACTORS) or None for pair in pairs]).items():
        yield "recency", "distractor paradigms", members


def subset(items: ItemStatistics, members: Array) -> ItemStatistics:
    """Some of the items, by their places."""
    return ItemStatistics(items.keys[members], {name: values[members] for name, values in items.statistics.items()})


def _estimates(groups: Mapping[str, Sequence[ItemStatistics]], members: Array) -> dict[str, Estimate]:
    """The accuracy of every name on some of the pairs; all runs at once, since they see the same draws."""
    again = iter(resampled([subset(run, members) for runs in groups.values() for run in runs], {"": ACCURACY.of}))
    drawn = {name: [next(again)[""] for _ in runs] for name, runs in groups.items()}
    return {name: clipped(estimate(runs), ACCURACY) for name, runs in drawn.items()}


def rows(
    groups: Mapping[str, Sequence[ItemStatistics]], pairs: Sequence[MinimalPair], *, progress: ProgressCallback | None = None
) -> list[Row]:
    """Accuracy in percent with 95 % intervals, over pairs, and over seeds where a name has several runs: of all pairs, by
    phenomenon and paradigm, by attractors, and what tells syntax from recency. `watch(pairs done, pairs in all)` is told of
    progress."""
    parts = [("all", "all", np.arange(len(pairs))), *_phenomena(pairs), *_attractors(pairs), *_recency(pairs)]
    found, known = list[Row](), dict[bytes, dict[str, Estimate]]()
    total = sum(len(members) for _, _, members in parts)
    for by, name, members in parts:
        key = members.tobytes()  # the same pairs under another name are not drawn again
        known[key] = known.get(key) or _estimates(groups, members)
        found.append(Row(by, name, len(members), known[key]))
        if progress is not None:
            progress(sum(row.size for row in found), total)
    return found


def breakdowns(found: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as breakdowns of comparison.json: by phenomenon with all pairs before them, and the others where they have more
    than one bin."""
    named = {
        "phenomenon": "phenomenon of minimal pairs",
        "paradigm": "paradigm of minimal pairs",
        "attractors": "attractors between subject and verb of minimal pairs",
        "recency": "what tells syntax from recency in minimal pairs",
    }
    made = []
    for by, title in named.items():
        cells = [Cell(row.name, row.size, row.found) for row in found if row.by == by]
        if by == "phenomenon":
            whole = [Cell(row.name, row.size, row.found) for row in found if row.by == "all"]
            cells = cells if [cell.size for cell in cells] == [whole[0].size] else whole + cells  # unless one is all of them
        if len(cells) > 1 or (cells and by == "phenomenon"):
            made.append(as_json(title, ACCURACY, cells, list(cells[0].found), unit="pairs"))
    return made
