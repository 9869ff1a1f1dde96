"""Every view there is, by the name that a person asks for it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from weft.decode.options import options_from
from weft.errors import DataError, UsageError, unknown_name
from weft.explain.attention import attention, rollout, sites, why_no_rollout
from weft.explain.attribution import attribution
from weft.explain.beam_search import beam_search_tree, why_no_search
from weft.explain.distribution import distribution, why_no_distribution
from weft.explain.explanation import Explanation
from weft.explain.gradient_flow import gradient_flow, why_no_gradients
from weft.explain.gradient_flow_loss import gradient_flow_to_loss
from weft.explain.gradient_flow_runs import compare_gradient_flow
from weft.explain.inputs import explaining, network
from weft.explain.logit_lens import logit_lens, why_no_lens
from weft.explain.ngram_counts import counts, why_no_counts
from weft.explain.options import ExplainConfig
from weft.explain.positions import positions, why_no_positions
from weft.explain.progress import ProgressCallback, no_progress
from weft.explain.surprisal import surprisal, why_no_surprisal
from weft.explain.units import units, why_no_units
from weft.runs.run import AnyRun
from weft.text.reading import check_text

MULTI_RUN_VIEWS = "gradients"  # the view that several runs share
MAX_TOKENS = 20_000  # characters of a text: more can neither be drawn nor read, and takes hours


class ViewSpec(NamedTuple):
    show: Callable[..., Explanation]  # (run, text, options); those that take long also `telling`
    unavailable: Callable[[AnyRun], str | None]  # why a run has no such view, if it has none
    long: bool = False  # tells of its progress
    tokens: int = MAX_TOKENS  # of a text, at most: where each is seen against each, memory grows with the square of them
    reads: bool = True  # needs a text


def _why_no_attention(run: AnyRun) -> str | None:
    model = network(run)
    return None if model is not None and sites(model) else f"in a run of kind {run.config.arch!r} nothing attends"


def _never(run: AnyRun) -> str | None:
    return None


def _gradients(run: AnyRun, text: str, options: ExplainConfig, progress: ProgressCallback) -> Explanation:
    if explaining(run).stepwise:
        return gradient_flow(run, text, options, progress)
    return gradient_flow_to_loss(run, text, options)


VIEWS: dict[str, ViewSpec] = {
    "attention": ViewSpec(attention, _why_no_attention, tokens=1000),
    "rollout": ViewSpec(rollout, why_no_rollout, tokens=1000),
    "attribution": ViewSpec(attribution, _never, long=True, tokens=4000),
    "surprisal": ViewSpec(surprisal, why_no_surprisal),
    "distribution": ViewSpec(distribution, why_no_distribution),
    "counts": ViewSpec(counts, why_no_counts),
    "search": ViewSpec(beam_search_tree, why_no_search),
    "lens": ViewSpec(logit_lens, why_no_lens, tokens=4000),
    "units": ViewSpec(units, why_no_units, tokens=4000),
    "gradients": ViewSpec(_gradients, why_no_gradients, long=True, tokens=1000),
    "positions": ViewSpec(positions, why_no_positions, reads=False),
}


def available_views(run: AnyRun) -> list[str]:
    """The views that a run has."""
    return [name for name, entry in VIEWS.items() if entry.unavailable(run) is None]


def _check_length(run: AnyRun, text: str, name: str) -> None:
    if len(text) > MAX_TOKENS:
        raise DataError(
            "explain", f"the text has {len(text):,} characters, and a view shows at most {MAX_TOKENS:,}", "give a part of it"
        )
    tokenizer, limit = next(iter(run.vocabulary.by_name().values())), VIEWS[name].tokens
    if (found := len(tokenizer.encode(check_text(text, "input")))) > limit:
        raise DataError("explain", f"the text has {found:,} tokens, and {name} shows at most {limit:,}", "give a part of it")


def explain_text(
    run: AnyRun, text: str, view: str | None, options: ExplainConfig, *, progress: ProgressCallback = no_progress
) -> Explanation:
    """One view of a run and a text; without a name the first that the run has."""
    if view is not None and view not in VIEWS:
        raise UsageError("--view", *unknown_name("view", view, VIEWS))
    known = available_views(run)
    name = known[0] if view is None else view
    entry = VIEWS[name]
    if reason := entry.unavailable(run):
        raise UsageError(f"--view {name}", f"{reason}", f"{run.directory.path} has: {', '.join(known)}")
    _check_length(run, text, name)
    progress(0.0, "")
    return entry.show(run, text, options, progress) if entry.long else entry.show(run, text, options)


def explain_runs(
    runs: Mapping[str, AnyRun], text: str, view: str | None, options: ExplainConfig, *, progress: ProgressCallback = no_progress
) -> Explanation:
    """Several runs, by name, in one view: their gradients."""
    if view not in (None, MULTI_RUN_VIEWS):
        raise UsageError(
            "--compare-with", f"several runs are shown together by --view {MULTI_RUN_VIEWS}, not by --view {view}", "drop one"
        )
    for run in runs.values():
        _check_length(run, text, MULTI_RUN_VIEWS)
    return compare_gradient_flow(runs, text, options, progress)


def explain(run: AnyRun, text: str, view: str | None, options: ExplainConfig | None, named: Mapping[str, Any]) -> Explanation:
    """`show`, with options as they were given: as one object, or by name."""
    return explain_text(run, text, view, options_from(ExplainConfig, options, named))
