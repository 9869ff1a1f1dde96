"""Evidence: what one run did on the items of one test set, kept in files so that nothing is measured twice."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weft import __version__, files
from weft.compare.costs import Cost, cost
from weft.compare.evidence_check import fault
from weft.errors import ModelError, ResourceError
from weft.metrics.items import Items, Score
from weft.runs.eval_data import Files, named, own_split
from weft.runs.load import load as load_run
from weft.runs.run import AnyRun
from weft.tasks.spec import Evaluation, Progress
from weft.tensors import read_arrays, write_tensors

Watch = Callable[[int, int], None]
VERSION = 4
PLAIN = (
    "kind",
    "seed",
    "task",
    "inputs",
    "references",
    "data",
    "key",
    "item",
    "policy",
    "context",
    "unknown",
)  # kept as they are
TRIES = 3  # to put evidence where another process is putting it
SAMPLES, LONGEST = 4, 100  # texts that a language model writes, and their tokens


class How(NamedTuple):
    """How runs are measured: all of a comparison in one way, or their scores would not compare."""

    tokenize: str | None = None  # how BLEU splits outputs; None: as suits them
    context: str | None = None  # what a language model predicts a token from; None: its whole past


HOW = How()


class Evidence(NamedTuple):
    """What one run did on the items of one test set."""

    run: Path
    kind: str  # of the model
    seed: int
    task: str
    scores: list[Score]
    items: Items  # keys, statistics that add up, outputs
    inputs: list[str]  # what was read, item by item: source line, text, sentence; of running text the block
    references: list[str]  # what was meant: target, labels, tags with blanks between; "" where there is none
    lengths: np.ndarray  # int64 (N,): tokens of each item's input; of tagged sentences words
    cost: Cost
    data: str = ""  # what was read, in words
    labels: tuple[str, ...] = ()  # of classifiers and taggers
    frequencies: Mapping[str, np.ndarray] = {}  # statistics (N, F) by how frequent tokens or words were in training
    rarest: np.ndarray | None = None  # int64 (N,): how often the rarest token of an input occurs in training
    samples: tuple[str, ...] = ()  # what a language model writes
    key: str = ""  # the sum of weights, settings, data, and how it was measured
    item: str = "item"  # what one is: "line", "text", "block of about 100 bytes"
    unknown: float = 0.0  # the share of tokens, of a language model's text, that are <unk>
    policy: str = ""  # the context policy of a language model, as it was asked for
    context: str = ""  # the same as the run followed it


class _Clock:
    """Passes progress on, and remembers when the last of it came: what follows is counting, not decoding."""

    def __init__(self, watch: Watch | None) -> None:
        self.watch, self.began, self.last = watch, time.perf_counter(), 0.0

    def __call__(self, done: int, total: int) -> None:
        self.last = time.perf_counter()
        if self.watch is not None:
            self.watch(done, total)

    def seconds(self) -> float:
        return max(1e-9, (self.last or time.perf_counter()) - self.began)


def _evaluating(watch: Watch) -> Progress:
    """Who is told of evaluating alone: reading and tokenizing are no decoding."""
    return lambda what, done, total: watch(done, total) if what == "evaluating" else None


def evaluate(run: AnyRun, data: Files | None, how: How, watch: Watch) -> Evaluation:
    """The run on `data`, measured so, as far as its task knows of such options."""
    known = run.task.evaluate_options.model_fields
    options = {name: value for name, value in how._asdict().items() if name in known}
    return run.evaluate(data, progress=_evaluating(watch), **options)


def gather(run: AnyRun, data: Files | None = None, *, how: How = HOW, watch: Watch | None = None) -> Evidence:
    """What a loaded run does on `data`, or on its own test or validation data; `watch(done, total)` is told of progress."""
    import_module("torch")  # now, not while the clock runs: models import it when they first need it
    parameters, _ = run.parameters, run.reader  # reads the weights, which is no decoding
    clock = _Clock(watch)
    found = evaluate(run, data, how, clock)
    seconds, seen = clock.seconds(), found.observed()
    settings, contexts = run.settings, run.task.compare.contexts
    return Evidence(
        run=run.folder.path,
        kind=settings.kind,
        seed=settings.seed,
        task=settings.task,
        scores=found.scores,
        items=seen.items,
        inputs=seen.inputs,
        references=seen.references,
        lengths=np.asarray(seen.lengths, np.int64),
        cost=cost(run.folder, parameters, decoding=found.units / seconds, unit=found.unit),
        data=_described(run, data),
        labels=run.labels,
        frequencies=seen.frequencies,
        rarest=seen.rarest,
        samples=_samples(run),
        key=key(run, data, how),
        item=seen.item,
        unknown=seen.unknown,
        policy=_policy(run, how.context),
        context="" if contexts is None else contexts.follow(run, how.context),
    )


def _policy(run: AnyRun, context: str | None) -> str:
    contexts = run.task.compare.contexts
    return "" if contexts is None else context or contexts.default


def _described(run: AnyRun, data: Files | None) -> str:
    if data is not None:
        return ", ".join(map(str, named(data)))
    split, source = own_split(run.folder, run.settings)
    # where the files lie on this machine is in the settings; a page that is sent elsewhere has no use for it
    first, *others = dict.fromkeys(path.name for path in source.paths)
    more = f" and {others[0] if len(others) == 1 else f'{len(others)} more'}" if others else ""
    return f"{first}{more} ({split})"


def _samples(run: AnyRun) -> tuple[str, ...]:
    """A few texts of a language model, always the same."""
    if not run.generates:
        return ()
    length = LONGEST if run.reader.room is None else min(LONGEST, run.reader.room)
    found = run.generate("", length=length, samples=SAMPLES, seed=0)
    return tuple(one.text for one in found.ranked())


def key(run: AnyRun, data: Files | None = None, how: How = HOW) -> str:
    """A sum of all that evidence follows from: weights, settings, the files that are read, and how it is measured."""
    given = own_split(run.folder, run.settings)[1].paths if data is None else named(data)
    # where the text is gone, a run reads the tokens that training left
    sums = [files.sha256(path) if path.exists() else "gone" for path in files.within(given)]
    own = [files.sha256(path) for path in (run.folder.weights, run.folder.resolved)]
    contexts = run.task.compare.contexts
    opening = [] if contexts is None else list(contexts.opening(run))
    parts = [VERSION, __version__, *own, sums, how.tokenize, _policy(run, how.context), opening]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def save(evidence: Evidence, folder: Path) -> None:
    """Makes `folder`, or replaces it in one step, with all that `load` needs: numbers as safetensors, texts as JSON."""
    bounds = [[np.nan if value is None else value for value in score[1:4]] for score in evidence.scores]
    tensors = {
        "keys": evidence.items.keys,
        "lengths": evidence.lengths,
        "scores": np.array(bounds, np.float64).reshape(-1, 3),
        **{f"statistics.{name}": values for name, values in evidence.items.statistics.items()},
        **{f"frequencies.{name}": values for name, values in evidence.frequencies.items()},
        **({} if evidence.rarest is None else {"rarest": evidence.rarest}),
    }
    about = {
        "version": VERSION,
        **{name: getattr(evidence, name) for name in PLAIN},
        "run": str(evidence.run),
        "outputs": evidence.items.outputs,
        "scores": [[score.name, score.signature] for score in evidence.scores],
        "cost": evidence.cost._asdict(),
        "labels": list(evidence.labels),
        "samples": list(evidence.samples),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with files.building(folder) as place:
        write_tensors(place / "numbers.safetensors", {name: np.ascontiguousarray(one) for name, one in tensors.items()})
        files.write_json(place / "evidence.json", about)


def load(folder: Path) -> Evidence:
    """The evidence that `save` wrote; what is damaged is refused by name."""
    files.verify(folder)
    about = files.read_json(folder / "evidence.json")
    if not isinstance(about, dict) or about.get("version") != VERSION:
        raise ModelError(f"{folder}: is no evidence of this version of weft; remove it to have it measured again")
    arrays = _plain(read_arrays(folder / "numbers.safetensors")[0])
    if wrong := fault(about, arrays, _under(arrays, "statistics.")):
        raise ModelError(f"{folder}: is no evidence: its {wrong} can't be right; remove it to have it measured again")
    named_scores = zip(about["scores"], arrays["scores"].tolist(), strict=True)
    return Evidence(
        run=Path(about["run"]),
        scores=[Score(name, *_bounds(values), signature) for (name, signature), values in named_scores],
        items=Items(arrays["keys"], _under(arrays, "statistics."), about["outputs"]),
        lengths=arrays["lengths"],
        cost=Cost(**about["cost"]),
        labels=tuple(about["labels"]),
        frequencies=_under(arrays, "frequencies."),
        rarest=arrays.get("rarest"),
        samples=tuple(about["samples"]),
        **{name: about[name] for name in PLAIN},
    )


def _plain(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Those of types that evidence has: numpy does not know all others."""
    return {name: array for name, array in arrays.items() if array.dtype in (np.float64, np.int64)}


def _under(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def _bounds(values: list[float]) -> tuple[float, float | None, float | None]:
    """A value and its bounds; NaN stands for a bound that there is none of."""
    low, high = (None if np.isnan(bound) else bound for bound in values[1:])
    return values[0], low, high


def gathered(
    path: Path,
    folder: Path,
    data: Files | None = None,
    *,
    how: How = HOW,
    device: str = "auto",
    watch: Watch | None = None,
    named: bool = False,
) -> Evidence:
    """The evidence of the run in `path`: what `folder` has of these weights, this data and this way of measuring, else measured
    and kept there. `named`: whoever asks has named the run's own data, in a run file."""
    run = load_run(path, device=device)
    run.folder.named = named
    wanted = key(run, data, how)
    if (kept := _kept(folder, wanted)) is not None:
        return kept._replace(run=path)
    found = gather(run, data, how=how, watch=watch)
    for left in reversed(range(TRIES)):
        try:
            save(found, folder)
            break
        except ResourceError:  # another process may have put the same there
            if _kept(folder, wanted) is not None:
                break
            if not left:
                raise
    return found


def _kept(folder: Path, wanted: str) -> Evidence | None:
    """The evidence in `folder`, if it is whole and of what is wanted; else it is to be measured."""
    with suppress(ModelError, ResourceError):  # damaged, of another version, or just being replaced
        kept = load(folder) if folder.exists() else None
        return kept if kept is not None and kept.key == wanted else None
    return None
