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
from weft.comparison.costs import Cost, compute_cost
from weft.comparison.results_check import find_problem
from weft.errors import ModelError, ResourceError
from weft.metrics.items import ItemStatistics, Score
from weft.runs.eval_data import Files, named, own_split
from weft.runs.load import load as load_run
from weft.runs.run import AnyRun
from weft.tasks.spec import Evaluation, Progress
from weft.tensors import read_arrays, write_tensors

ProgressCallback = Callable[[int, int], None]
VERSION = 4
SIMPLE_LAYERS = (
    "arch",
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
MAX_TRIES = 3  # to put evidence where another process is putting it
SAMPLES, LONGEST = 4, 100  # texts that a language model writes, and their tokens


class EvaluationOptions(NamedTuple):
    """How runs are measured: all of a comparison in one way, or their scores would not compare."""

    tokenize: str | None = None  # how BLEU splits outputs; None: as suits them
    context: str | None = None  # what a language model predicts a token from; None: its whole past


DEFAULT_OPTIONS = EvaluationOptions()


class RunResults(NamedTuple):
    """What one run did on the items of one test set."""

    run: Path
    arch: str  # of the model
    seed: int
    task: str
    scores: list[Score]
    items: ItemStatistics  # keys, statistics that add up, outputs
    inputs: list[str]  # what was read, item by item: source line, text, sentence; of running text the block
    references: list[str]  # what was meant: target, labels, tags with blanks between; "" where there is none
    lengths: np.ndarray  # int64 (N,): tokens of each item's input; of tagged sentences words
    cost: Cost
    data: str = ""  # what was read, in words
    labels: tuple[str, ...] = ()  # of classifiers and taggers
    frequencies: Mapping[str, np.ndarray] = {}  # statistics (N, F) by how frequent tokens or words were in training
    rarest: np.ndarray | None = None  # int64 (N,): how often the rarest token of an input occurs in training
    samples: tuple[str, ...] = ()  # what a language model writes
    cache_key: str = ""  # the sum of weights, settings, data, and how it was measured
    item: str = "item"  # what one is: "line", "text", "block of about 100 bytes"
    unknown: float = 0.0  # the share of tokens, of a language model's text, that are <unk>
    policy: str = ""  # the context policy of a language model, as it was asked for
    context: str = ""  # the same as the run followed it


class _Clock:
    """Passes progress on, and remembers when the last of it came: what follows is counting, not decoding."""

    def __init__(self, progress: ProgressCallback | None) -> None:
        self.watch, self.began, self.last = progress, time.perf_counter(), 0.0

    def __call__(self, done: int, total: int) -> None:
        self.last = time.perf_counter()
        if self.watch is not None:
            self.watch(done, total)

    def seconds(self) -> float:
        return max(1e-9, (self.last or time.perf_counter()) - self.began)


def _evaluating(progress: ProgressCallback) -> Progress:
    """Who is told of evaluating alone: reading and tokenizing are no decoding."""
    return lambda what, done, total: progress(done, total) if what == "evaluating" else None


def evaluate(run: AnyRun, data: Files | None, evaluation: EvaluationOptions, progress: ProgressCallback) -> Evaluation:
    """The run on `data`, measured so, as far as its task knows of such options."""
    known = run.task.evaluate_options.model_fields
    options = {name: value for name, value in evaluation._asdict().items() if name in known}
    return run.evaluate(data, progress=_evaluating(progress), **options)


def evaluate_run(
    run: AnyRun,
    data: Files | None = None,
    *,
    evaluation: EvaluationOptions = DEFAULT_OPTIONS,
    progress: ProgressCallback | None = None,
) -> RunResults:
    """What a loaded run does on `data`, or on its own test or validation data; `watch(done, total)` is told of progress."""
    import_module("torch")  # now, not while the clock runs: models import it when they first need it
    parameters, _ = run.num_parameters, run.reader  # reads the weights, which is no decoding
    clock = _Clock(progress)
    found = evaluate(run, data, evaluation, clock)
    seconds, seen = clock.seconds(), found.observed()
    config, contexts = run.config, run.task.compare.contexts
    return RunResults(
        run=run.directory.path,
        arch=config.arch,
        seed=config.seed,
        task=config.task,
        scores=found.scores,
        items=seen.items,
        inputs=seen.inputs,
        references=seen.references,
        lengths=np.asarray(seen.lengths, np.int64),
        cost=compute_cost(run.directory, parameters, decoding=found.units / seconds, unit=found.unit),
        data=_described(run, data),
        labels=run.labels,
        frequencies=seen.frequencies,
        rarest=seen.rarest,
        samples=_samples(run),
        cache_key=cache_key(run, data, evaluation),
        item=seen.item,
        unknown=seen.unknown,
        policy=_policy(run, evaluation.context),
        context="" if contexts is None else contexts.follow(run, evaluation.context),
    )


def _policy(run: AnyRun, context: str | None) -> str:
    contexts = run.task.compare.contexts
    return "" if contexts is None else context or contexts.default


def _described(run: AnyRun, data: Files | None) -> str:
    if data is not None:
        return ", ".join(map(str, named(data)))
    split, source = own_split(run.directory, run.config)
    # where the files lie on this machine is in the settings; a page that is sent elsewhere has no use for it
    first, *others = dict.fromkeys(path.name for path in source.paths)
    more = f" and {others[0] if len(others) == 1 else f'{len(others)} more'}" if others else ""
    return f"{first}{more} ({split})"


def _samples(run: AnyRun) -> tuple[str, ...]:
    """A few texts of a language model, always the same."""
    if not run.generates:
        return ()
    length = LONGEST if run.reader.max_tokens is None else min(LONGEST, run.reader.max_tokens)
    found = run.generate("", length=length, samples=SAMPLES, seed=0)
    return tuple(one.text for one in found.ranked())


def cache_key(run: AnyRun, data: Files | None = None, evaluation: EvaluationOptions = DEFAULT_OPTIONS) -> str:
    """A sum of all that evidence follows from: weights, settings, the files that are read, and how it is measured."""
    given = own_split(run.directory, run.config)[1].paths if data is None else named(data)
    # where the text is gone, a run reads the tokens that training left
    sums = [files.sha256(path) if path.exists() else "gone" for path in files.within(given)]
    own = [files.sha256(path) for path in (run.directory.weights, run.directory.resolved)]
    contexts = run.task.compare.contexts
    opening = [] if contexts is None else list(contexts.opening(run))
    parts = [VERSION, __version__, *own, sums, evaluation.tokenize, _policy(run, evaluation.context), opening]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def save(results: RunResults, directory: Path) -> None:
    """Makes `folder`, or replaces it in one step, with all that `load` needs: numbers as safetensors, texts as JSON."""
    bounds = [[np.nan if value is None else value for value in score[1:4]] for score in results.scores]
    tensors = {
        "keys": results.items.keys,
        "lengths": results.lengths,
        "scores": np.array(bounds, np.float64).reshape(-1, 3),
        **{f"statistics.{name}": values for name, values in results.items.statistics.items()},
        **{f"frequencies.{name}": values for name, values in results.frequencies.items()},
        **({} if results.rarest is None else {"rarest": results.rarest}),
    }
    about = {
        "version": VERSION,
        **{name: getattr(results, name) for name in SIMPLE_LAYERS},
        "run": str(results.run),
        "outputs": results.items.outputs,
        "scores": [[score.name, score.signature] for score in results.scores],
        "cost": results.cost._asdict(),
        "labels": list(results.labels),
        "samples": list(results.samples),
    }
    directory.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_directory(directory) as place:
        write_tensors(place / "numbers.safetensors", {name: np.ascontiguousarray(one) for name, one in tensors.items()})
        files.write_json(place / "evidence.json", about)


def load(directory: Path) -> RunResults:
    """The evidence that `save` wrote; what is damaged is refused by name."""
    files.verify(directory)
    about = files.read_json(directory / "evidence.json")
    if not isinstance(about, dict) or about.get("version") != VERSION:
        raise ModelError(directory, "is no evidence of this version of weft", "remove it to have it measured again")
    arrays = _plain(read_arrays(directory / "numbers.safetensors")[0])
    if wrong := find_problem(about, arrays, _under(arrays, "statistics.")):
        raise ModelError(directory, f"is no evidence: its {wrong} can't be right", "remove it to have it measured again")
    named_scores = zip(about["scores"], arrays["scores"].tolist(), strict=True)
    return RunResults(
        run=Path(about["run"]),
        scores=[Score(name, *_bounds(values), signature) for (name, signature), values in named_scores],
        items=ItemStatistics(arrays["keys"], _under(arrays, "statistics."), about["outputs"]),
        lengths=arrays["lengths"],
        cost=Cost(**about["cost"]),
        labels=tuple(about["labels"]),
        frequencies=_under(arrays, "frequencies."),
        rarest=arrays.get("rarest"),
        samples=tuple(about["samples"]),
        **{name: about[name] for name in SIMPLE_LAYERS},
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


def load_or_evaluate(
    path: Path,
    directory: Path,
    data: Files | None = None,
    *,
    evaluation: EvaluationOptions = DEFAULT_OPTIONS,
    device: str = "auto",
    progress: ProgressCallback | None = None,
    named: bool = False,
) -> RunResults:
    """The evidence of the run in `path`: what `folder` has of these weights, this data and this way of measuring, else measured
    and kept there. `named`: whoever asks has named the run's own data, in a run file."""
    run = load_run(path, device=device)
    run.directory.named = named
    wanted = cache_key(run, data, evaluation)
    if (kept := _kept(directory, wanted)) is not None:
        return kept._replace(run=path)
    found = evaluate_run(run, data, evaluation=evaluation, progress=progress)
    for left in reversed(range(MAX_TRIES)):
        try:
            save(found, directory)
            break
        except ResourceError:  # another process may have put the same there
            if _kept(directory, wanted) is not None:
                break
            if not left:
                raise
    return found


def _kept(directory: Path, wanted: str) -> RunResults | None:
    """The evidence in `folder`, if it is whole and of what is wanted; else it is to be measured."""
    with suppress(ModelError, ResourceError):  # damaged, of another version, or just being replaced
        kept = load(directory) if directory.exists() else None
        return kept if kept is not None and kept.cache_key == wanted else None
    return None
