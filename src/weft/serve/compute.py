"""Operations on many inputs in one call: predict, score, embed; and explain, which is a call of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft.config import Config
from weft.errors import DataError, UsageError
from weft.runs.run import AnyRun
from weft.serve.errors import NotFound
from weft.serve.jobs import Embed, Explain, Predict, Score
from weft.serve.media import stored
from weft.tasks.spec import InvalidInput

Gathered = Predict | Score | Embed
PER_INPUT_OPTIONS = ("numbers", "target_prefixes")  # options with one value per input


def is_whole(job: Gathered) -> bool:
    """Whether the inputs must be computed in a call of their own, because the options have one value for each."""
    if not isinstance(job, Predict):
        return False
    names = [name for name in PER_INPUT_OPTIONS if name in type(job.options).model_fields]
    return any(getattr(job.options, name) is not None for name in names)


def batch_key(job: Gathered) -> str:
    """Requests with the same key are computed in one call."""
    if isinstance(job, Predict):
        return f"predict {job.options.model_dump_json()}"
    return f"score {job.truncate}" if isinstance(job, Score) else f"embed {job.pooling}"


def with_numbers(options: Config, numbers: Sequence[int]) -> Config:
    """The options for inputs with these numbers in their own request, from 1, which seed their samples."""
    if "numbers" not in type(options).model_fields:
        return options
    return options.model_copy(update={"numbers": list(numbers)})


def _hide_path(run: AnyRun, text: str) -> str:
    """A message without the place of the run on this machine."""
    return text.replace(str(run.path), run.path.name)


def _predict(run: AnyRun, job: Predict, inputs: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    results: list[Any] = list(inputs)
    valid = [index for index, value in enumerate(inputs) if value is not None and not isinstance(value, InvalidInput)]
    options = job.options if is_whole(job) else with_numbers(job.options, [numbers[index] for index in valid])
    with stored([inputs[index] for index in valid]) as files:
        predictions = run.try_predict(files.inputs, options)
        for index, prediction in zip(valid, predictions, strict=True):
            is_invalid = isinstance(prediction, InvalidInput)
            results[index] = InvalidInput(_hide_path(run, files.hide(prediction.reason))) if is_invalid else prediction
    return results


def _score(run: AnyRun, job: Score, inputs: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    pairs = [value if isinstance(value, tuple) else (value,) for value in inputs]
    with stored([pair[0] for pair in pairs]) as files:
        values = [(first, *pair[1:]) for first, pair in zip(files.inputs, pairs, strict=True)]
        results = run.try_score([value if len(value) > 1 else value[0] for value in values], truncate=job.truncate)
        return [
            InvalidInput(_hide_path(run, files.hide(each.reason))) if isinstance(each, InvalidInput) else each
            for each in results
        ]


def _embed(run: AnyRun, job: Embed, inputs: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    return list(run.embed(list(inputs), pooling=job.pooling))


_CALLS: dict[str, Callable[[AnyRun, Any, Sequence[Any], Sequence[int]], list[Any]]] = {
    Predict.operation: _predict,
    Score.operation: _score,
    Embed.operation: _embed,
}


def compute(run: AnyRun, job: Gathered, inputs: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    """One result per input. `numbers` are those of the inputs in their own requests, from 1."""
    return _CALLS[job.operation](run, job, inputs, numbers)


def check_gathered(run: AnyRun, job: Gathered) -> None:
    """Refuse operations that a run does not have, and options that are wrong for all inputs."""
    spec = run.spec
    has = {"predict": spec.predict is not None, "score": spec.decode is not None, "embed": spec.embed is not None}
    if not has[job.operation]:
        raise NotFound(job.operation, f"not available for a {spec.model_noun}", f"use {spec.command}")
    if isinstance(job, Predict) and not isinstance(job.options, spec.predict_options):
        raise UsageError("options", f"expected {spec.predict_options.__name__}, got {type(job.options).__name__}")


@contextmanager
def _checking(run: AnyRun, check: Callable[[], None]) -> Iterator[None]:
    """Call `check` before each layer of the network computes something, so that no view can hold up the others for long."""
    modules = [] if run.network is None else list(run.network.modules())
    hooks = [module.register_forward_pre_hook(lambda module, inputs: check()) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def explain(run: AnyRun, name: str, job: Explain, check: Callable[[], None]) -> Any:
    """The explanation of one input, with the name of the run in place of its path. `check` is called now and then, and may
    raise."""
    from weft.decode.options import options_from
    from weft.explain.options import ExplainConfig
    from weft.explain.views import explain_text

    options = options_from(ExplainConfig, None, job.options)

    def progress(fraction: float, text: str) -> None:
        check()

    if run.spec.explain is None and run.spec.file_views is None:
        raise NotFound("explain", f"not available for a {run.spec.model_noun}")
    with stored([job.input]) as files, _checking(run, check):
        value = str(files.inputs[0]) if files.directory else files.inputs[0]
        try:
            explanation = explain_text(run, value, job.view, options, progress=progress)
        except (DataError, UsageError) as error:
            raise type(error)(files.hide(error.where), files.hide(error.problem), files.hide(error.fix)) from None
        title = files.hide(explanation.title).replace(str(run.path), name)
        return explanation._replace(data=files.hide(explanation.data), title=title)
