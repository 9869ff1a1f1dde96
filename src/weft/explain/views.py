"""The views of `weft explain` by name, and the functions that run them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from weft.decode.options import options_from
from weft.errors import DataError, UsageError, unknown_name
from weft.explain.attention import attention, rollout, sites, why_no_rollout
from weft.explain.attribution import attribution
from weft.explain.beam_search import beam_search_tree, why_no_search
from weft.explain.distribution import distribution, why_no_distribution
from weft.explain.experts import experts, why_no_experts
from weft.explain.explanation import Explanation
from weft.explain.gradient_flow import gradient_flow, why_no_gradients
from weft.explain.gradient_flow_loss import gradient_flow_to_loss
from weft.explain.gradient_flow_runs import compare_gradient_flow
from weft.explain.inputs import explain_spec, network
from weft.explain.logit_lens import logit_lens, why_no_lens
from weft.explain.ngram_counts import counts, why_no_counts
from weft.explain.options import ExplainConfig
from weft.explain.positions import positions, why_no_positions
from weft.explain.progress import ProgressCallback, no_progress
from weft.explain.surprisal import surprisal, why_no_surprisal
from weft.explain.units import units, why_no_units
from weft.runs.run import AnyRun
from weft.text.reading import check_text

MULTI_RUN_VIEW = "gradient-flow"  # the view that can compare several runs
MAX_CHARS = 20_000  # per text: longer figures are not readable and take hours


class ViewSpec(NamedTuple):
    explain: Callable[..., Explanation]  # (run, text, options), with `has_progress` also progress
    unavailable: Callable[[AnyRun], str | None]  # the reason why a run does not have the view, or None
    has_progress: bool = False
    max_tokens: int = MAX_CHARS  # per text: attention needs memory for all pairs of tokens
    needs_text: bool = True


def _why_no_attention(run: AnyRun) -> str | None:
    model = network(run)
    return None if model is not None and sites(model) else f"{run.config.arch} has no attention"


def _always_available(run: AnyRun) -> str | None:
    return None


def _gradient_flow(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback) -> Explanation:
    if explain_spec(run).is_recurrent:
        return gradient_flow(run, text, options, progress)
    return gradient_flow_to_loss(run, text, options)


VIEWS: dict[str, ViewSpec] = {
    "attention": ViewSpec(attention, _why_no_attention, max_tokens=1000),
    "rollout": ViewSpec(rollout, why_no_rollout, max_tokens=1000),
    "attribution": ViewSpec(attribution, _always_available, has_progress=True, max_tokens=4000),
    "surprisal": ViewSpec(surprisal, why_no_surprisal),
    "distribution": ViewSpec(distribution, why_no_distribution),
    "counts": ViewSpec(counts, why_no_counts),
    "beam-search": ViewSpec(beam_search_tree, why_no_search),
    "logit-lens": ViewSpec(logit_lens, why_no_lens, max_tokens=4000),
    "experts": ViewSpec(experts, why_no_experts, max_tokens=4000),
    "units": ViewSpec(units, why_no_units, max_tokens=4000),
    "gradient-flow": ViewSpec(_gradient_flow, why_no_gradients, has_progress=True, max_tokens=1000),
    "positions": ViewSpec(positions, why_no_positions, needs_text=False),
}


def available_views(run: AnyRun) -> list[str]:
    """The names of the views that a run has."""
    if run.spec.file_views is not None:
        return list(run.spec.file_views())
    return [name for name, spec in VIEWS.items() if spec.unavailable(run) is None]


def _check_length(run: AnyRun, text: str, name: str) -> None:
    if isinstance(text, str) and len(text) > MAX_CHARS:  # `check_text` refuses other types
        raise DataError("input", f"{len(text):,} characters exceed the limit of {MAX_CHARS:,}", "use a part of the text")
    tokenizer, limit = next(iter(run.vocabulary.by_name().values())), VIEWS[name].max_tokens
    if (count := len(tokenizer.encode(check_text(text, "input")))) > limit:
        raise DataError("input", f"{count:,} tokens exceed the limit of {limit:,} for {name}", "use a part of the text")


def explain_text(
    run: AnyRun, text: str, view: str | None, options: ExplainConfig, *, progress: ProgressCallback = no_progress
) -> Explanation:
    """Explain a text with one view, by default the first that the run has."""
    if view is not None and view not in VIEWS:
        raise UsageError("view", *unknown_name("view", view, VIEWS))
    if len(run.members) > 1 or run.lm is not None:
        raise UsageError("explain", "not available for an ensemble", "explain one run")
    if run.cache is not None:
        raise UsageError("explain", "not available for a run with a cache", "load the run without it")
    available = available_views(run)
    name = available[0] if view is None else view
    if run.spec.file_views is not None:
        return _explain_file(run, text, name, options, progress)
    spec = VIEWS[name]
    if reason := spec.unavailable(run):
        raise UsageError("view", f"{name} is not available: {reason}", f"choose from {', '.join(available)}")
    _check_length(run, text, name)
    progress(0.0, "")
    return spec.explain(run, text, options, progress) if spec.has_progress else spec.explain(run, text, options)


def _explain_file(run: AnyRun, path: str, name: str, options: ExplainConfig, progress: ProgressCallback) -> Explanation:
    """Explain the output for a file with one of the views of its task."""
    views = {} if run.spec.file_views is None else run.spec.file_views()
    if name not in views:
        raise UsageError("view", f"{name} is not available for task {run.task!r}", f"choose from {', '.join(views)}")
    progress(0.0, "")
    return views[name](run, path, options, progress)


def explain_runs(
    runs: Mapping[str, AnyRun], text: str, view: str | None, options: ExplainConfig, *, progress: ProgressCallback = no_progress
) -> Explanation:
    """Compare several runs, by name, in one view: gradient flow."""
    if view not in (None, MULTI_RUN_VIEW):
        raise UsageError("compare_with", f"only available for the view {MULTI_RUN_VIEW}, not for {view}", "remove it")
    for run in runs.values():
        _check_length(run, text, MULTI_RUN_VIEW)
    return compare_gradient_flow(runs, text, options, progress)


def explain(run: AnyRun, text: str, view: str | None, options: ExplainConfig | None, kwargs: Mapping[str, Any]) -> Explanation:
    """`explain_text` with options as an object or as keyword arguments."""
    return explain_text(run, text, view, options_from(ExplainConfig, options, kwargs))
