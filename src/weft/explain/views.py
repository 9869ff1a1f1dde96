"""Every view there is, by the name that a person asks for it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from weft.config import no_such
from weft.decode.options import chosen
from weft.errors import DataError, UsageError
from weft.explain.attention import attention, no_rollout, rollout, sites
from weft.explain.attribution import attribution
from weft.explain.counts import counts, no_counts
from weft.explain.distribution import distribution, no_distribution
from weft.explain.flow import gradients, no_gradients
from weft.explain.flow_together import gradients_together
from weft.explain.flow_whole import gradients_whole
from weft.explain.inputs import explaining, network
from weft.explain.lens import lens, no_lens
from weft.explain.options import ExplainOptions
from weft.explain.positions import no_positions, positions
from weft.explain.search import no_search, search
from weft.explain.surprisal import no_surprisal, surprisal
from weft.explain.telling import Telling, untold
from weft.explain.units import no_units, units
from weft.explain.view import View
from weft.runs.run import AnyRun
from weft.text.gate import clean

TOGETHER = "gradients"  # the view that several runs share
LONGEST = 20_000  # characters of a text: more can neither be drawn nor read, and takes hours


class Entry(NamedTuple):
    show: Callable[..., View]  # (run, text, options); those that take long also `telling`
    unfit: Callable[[AnyRun], str | None]  # why a run has no such view, if it has none
    long: bool = False  # tells of its progress
    tokens: int = LONGEST  # of a text, at most: where each is seen against each, memory grows with the square of them
    reads: bool = True  # needs a text


def _no_attention(run: AnyRun) -> str | None:
    model = network(run)
    return None if model is not None and sites(model) else f"in a run of kind {run.settings.kind!r} nothing attends"


def _never(run: AnyRun) -> str | None:
    return None


def _gradients(run: AnyRun, text: str, options: ExplainOptions, telling: Telling) -> View:
    if explaining(run).stepwise:
        return gradients(run, text, options, telling)
    return gradients_whole(run, text, options)


VIEWS: dict[str, Entry] = {
    "attention": Entry(attention, _no_attention, tokens=1000),
    "rollout": Entry(rollout, no_rollout, tokens=1000),
    "attribution": Entry(attribution, _never, long=True, tokens=4000),
    "surprisal": Entry(surprisal, no_surprisal),
    "distribution": Entry(distribution, no_distribution),
    "counts": Entry(counts, no_counts),
    "search": Entry(search, no_search),
    "lens": Entry(lens, no_lens, tokens=4000),
    "units": Entry(units, no_units, tokens=4000),
    "gradients": Entry(_gradients, no_gradients, long=True, tokens=1000),
    "positions": Entry(positions, no_positions, reads=False),
}


def fitting(run: AnyRun) -> list[str]:
    """The views that a run has."""
    return [name for name, entry in VIEWS.items() if entry.unfit(run) is None]


def _check_length(run: AnyRun, text: str, name: str) -> None:
    if len(text) > LONGEST:
        raise DataError(
            f"explain: the text has {len(text):,} characters, and a view shows at most {LONGEST:,}; give a part of it"
        )
    tokenizer, most = next(iter(run.vocabulary.named().values())), VIEWS[name].tokens
    if (found := len(tokenizer.encode(clean(text, "input")))) > most:
        raise DataError(f"explain: the text has {found:,} tokens, and {name} shows at most {most:,}; give a part of it")


def show(run: AnyRun, text: str, what: str | None, options: ExplainOptions, *, telling: Telling = untold) -> View:
    """One view of a run and a text; without a name the first that the run has."""
    if what is not None and what not in VIEWS:
        raise UsageError(f"--what: {no_such('view', what, VIEWS)}")
    known = fitting(run)
    name = known[0] if what is None else what
    entry = VIEWS[name]
    if reason := entry.unfit(run):
        raise UsageError(f"--what {name}: {reason}; {run.folder.path} has: {', '.join(known)}")
    _check_length(run, text, name)
    telling(0.0, "")
    return entry.show(run, text, options, telling) if entry.long else entry.show(run, text, options)


def show_together(
    runs: Mapping[str, AnyRun], text: str, what: str | None, options: ExplainOptions, *, telling: Telling = untold
) -> View:
    """Several runs, by name, in one view: their gradients."""
    if what not in (None, TOGETHER):
        raise UsageError(f"--with: several runs are shown together by --what {TOGETHER}, not by --what {what}; drop one")
    for run in runs.values():
        _check_length(run, text, TOGETHER)
    return gradients_together(runs, text, options, telling)


def explain(run: AnyRun, text: str, what: str | None, options: ExplainOptions | None, named: Mapping[str, Any]) -> View:
    """`show`, with options as they were given: as one object, or by name."""
    return show(run, text, what, chosen(ExplainOptions, options, named))
