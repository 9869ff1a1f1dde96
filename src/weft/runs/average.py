"""`weft.average`: one model whose weights are the mean of those of several runs (model soups, Wortsman et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from weft import files
from weft.errors import UsageError
from weft.metrics.metric import Metric, metrics_of
from weft.runs.derived_run import check_output_dir, write_derived_run
from weft.runs.finished import remove_on_failure
from weft.runs.load import load, with_model
from weft.runs.run import AnyRun, Run
from weft.training.distillation import vocabulary_difference
from weft.training.weight_compatibility import layers_of, parts_of

if TYPE_CHECKING:
    from weft.tasks.spec import Evaluation, Files

RECORD = "average.json"
MIN_RUNS = 2
Progress = Callable[[int, int], None]  # evaluations: done, total


class Average(NamedTuple):
    """A run with averaged weights.

    Attributes:
        run: The new run.
        runs: All runs that were given.
        used: Those that were averaged.
        scores: The score of each run on the validation data; empty if there is none.
        score: The score of the average.
        metric: The metric of the scores.
        share_initialization: Whether all runs started from the same weights.
    """

    run: Run[Any, Any]
    runs: list[Path]
    used: list[Path]
    scores: list[float]
    score: float | None
    metric: Metric | None
    share_initialization: bool

    @property
    def is_better(self) -> bool:
        """Whether the average is better than every single run."""
        if self.metric is None or self.score is None:
            return False
        return all(self.metric.is_better(self.score, score) for score in self.scores)

    def to_json(self) -> dict[str, Any]:
        """The runs with checksums of their weights, and all scores."""
        scores: Sequence[float | None] = self.scores or [None] * len(self.runs)
        return {
            "metric": None if self.metric is None else self.metric.name,
            "score": self.score,
            "is_better": self.is_better,
            "share_initialization": self.share_initialization,
            "runs": [
                {
                    "run": str(path),
                    "sha256": files.sha256(path / "model.safetensors"),
                    "score": score,
                    "used": path in self.used,
                }
                for path, score in zip(self.runs, scores, strict=True)
            ],
        }


# ---- checks


def _weights(run: AnyRun) -> dict[str, Tensor]:
    return run.directory.read_weights(run.vocabulary.hash)


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


def _shape_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> str:
    """The first weight that only one run has, or that has another shape; "" if there is none."""
    for name in dict.fromkeys([*ours, *theirs]):
        if name not in ours or name not in theirs:
            return f"only one of them has {name}"
        if ours[name].shape != theirs[name].shape:
            return f"{name} is {_shape(ours[name])} and {_shape(theirs[name])}"
    return ""


def _option_differences(first: AnyRun, run: AnyRun) -> str:
    """The options that differ and that change what the weights compute."""
    layers = layers_of(first.config)
    ours, theirs = (parts_of(each.config, each.vocabulary, layers) for each in (first, run))
    texts = [
        text for name in ours for pair in ((ours, theirs), (theirs, ours)) for text in pair[0][name].differences(pair[1][name])
    ]
    return ", ".join(dict.fromkeys(text.partition(":")[0] for text in texts))


def _difference(first: AnyRun, run: AnyRun) -> str:
    """Why the weights of two runs cannot be averaged; "" if they can."""
    if run.task != first.task:
        return f"tasks {first.task!r} and {run.task!r}"
    if any(each.config.preset.estimator.network_task is None for each in (first, run)):
        return f"architectures {first.arch!r} and {run.arch!r}; only networks have weights"
    if name := vocabulary_difference(first.vocabulary, run.vocabulary):
        return f"different {name}" if name.endswith("s") else f"different {name}s"
    if shape := _shape_difference(_weights(first), _weights(run)):
        return f"other weights: {shape}"
    if options := _option_differences(first, run):
        return f"different options: {options}"
    return ""


def _check(runs: Sequence[AnyRun]) -> None:
    for run in runs:
        if difference := _difference(runs[0], run):
            raise UsageError("average", f"{runs[0].path} and {run.path} have {difference}", "average runs of one architecture")


def share_initialization(runs: Sequence[AnyRun]) -> bool:
    """Whether the runs started from the same weights: those of one other run, or random ones of the same seed."""
    starts = [run.config.train.init_from for run in runs]
    if len({Path(start or run.path).resolve() for start, run in zip(starts, runs, strict=True)}) == 1:
        return True
    return starts == [None] * len(runs) and len({run.config.seed for run in runs}) == 1


# ---- the average


def mean_weights(runs: Sequence[AnyRun]) -> dict[str, Tensor]:
    """The mean of each weight, computed in float64."""
    totals = {name: weight.double() for name, weight in _weights(runs[0]).items()}
    for run in runs[1:]:
        for name, weight in _weights(run).items():
            totals[name] += weight.double()
    types = {name: weight.dtype for name, weight in _weights(runs[0]).items()}
    return {name: (total / len(runs)).to(types[name]) for name, total in totals.items()}


class _Evaluator:
    """Evaluates weights on the validation data of a run, or on other data."""

    def __init__(self, run: AnyRun, data: Files | None, progress: Progress | None, total: int) -> None:
        run.config.hide_test_data()
        self.run, self.data, self.progress, self.total, self.done = run, data, progress, total, 0
        self.metric: Metric | None = None  # of the scores, known after the first evaluation

    @property
    def has_data(self) -> bool:
        return self.data is not None or "valid" in self.run.config.datasets

    def score(self, weights: dict[str, Tensor]) -> float:
        self.run.model.load_state_dict(weights)
        evaluation = self.run.evaluate(self.data)
        self.metric = self.metric or self._choose_metric(evaluation)
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)
        return evaluation[self.metric.name].value

    def _choose_metric(self, evaluation: Evaluation) -> Metric:
        """The metric that selected the weights in training, or the first of the task."""
        names = list(evaluation.scores)
        candidates = (self.run.config.train.monitor, *self.run.spec.ranking_metrics, *names)
        return metrics_of(self.run.spec.eval_suites, names)[next(name for name in candidates if name in names)]


def _greedy_soup(runs: Sequence[AnyRun], scores: Sequence[float], evaluator: _Evaluator) -> tuple[list[AnyRun], float]:
    """Add the runs to the average, the best first, each only if the average does not become worse."""
    metric = evaluator.metric
    if metric is None:
        raise UsageError("greedy", "requires validation data", "set `data`")
    order = sorted(range(len(runs)), key=lambda index: scores[index], reverse=metric.higher_is_better)
    used, best = [runs[order[0]]], scores[order[0]]
    for index in order[1:]:
        candidate = [*used, runs[index]]
        score = evaluator.score(mean_weights(candidate))
        if not metric.is_better(best, score):
            used, best = candidate, score
    return used, best


def _run_file(run: AnyRun) -> dict[str, Any]:
    """The run file of a run without its teachers."""
    values = run.config.to_dict()
    return {**values, "train": {name: value for name, value in values["train"].items() if not name.startswith("distill_")}}


def average(
    runs: Sequence[str | Path],
    output_dir: str | Path,
    *,
    greedy: bool = False,
    data: Files | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Average:
    """Average the weights of several runs of one architecture that started from the same weights.

    Args:
        runs: The run directories. Data and options of the new run are those of the first.
        output_dir: The new run directory.
        greedy: Add the runs one after another, the best first, each only if the average does not become worse.
        data: Files to evaluate on. Default: the validation data of the first run.
        device: "cpu", "cuda", or "auto" for the GPU if there is one.
        progress: Called as `progress(done, total)` after each evaluation.

    Returns:
        The new run, and the scores of all runs and of the average.

    Raises:
        ModelError: A run is missing or corrupted.
        UsageError: The runs differ in tokenizer, shapes or options, or the directory contains a run.

    Example:
        >>> weft.average(["runs/a", "runs/b"], "runs/average").is_better
    """
    if isinstance(runs, str | Path) or len(runs) < MIN_RUNS:
        raise UsageError("average", "expected two or more run directories")
    out, members = Path(output_dir), [load(path, device="cpu") for path in runs]
    _check(members)
    evaluator = _Evaluator(
        with_model(load(runs[0], device=device)), data, progress, len(runs) + (len(runs) - 1 if greedy else 1)
    )
    if greedy and not evaluator.has_data:
        raise UsageError("greedy", "the run has no validation data", "set `data`")
    with remove_on_failure(out):
        check_output_dir(out)  # before the work
        used, scores, score = members, list[float](), None
        if evaluator.has_data:
            scores = [evaluator.score(_weights(run)) for run in members]
        if greedy:
            used, score = _greedy_soup(members, scores, evaluator)
        weights = mean_weights(used)
        if evaluator.has_data and not greedy:
            score = evaluator.score(weights)
        paths, used_paths = [run.path for run in members], [run.path for run in used]
        result = Average(members[0], paths, used_paths, scores, score, evaluator.metric, share_initialization(members))
        write_derived_run(members[0], out, _run_file(members[0]), weights, {RECORD: result.to_json()})
    return result._replace(run=with_model(load(out, device=device)))
