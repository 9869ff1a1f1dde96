"""What could have come next: the distribution at each step, before and after temperature, top-k, top-p and min-p.

Shapes: T steps, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.decode import choose
from weft.decode.choose import Adjust, right_aligned
from weft.decode.steps import Steps
from weft.errors import UsageError
from weft.explain import guides
from weft.explain.inputs import explaining
from weft.explain.options import ExplainOptions
from weft.explain.search import several_models
from weft.explain.view import Picture, Piece, View, aligned, listed
from weft.plots.bars import Bar, bars
from weft.runs.run import AnyRun
from weft.text.gate import clean
from weft.text.tokenizers import Tokenizer

PANELS = 24  # steps that are drawn; the data has all


class Cut(NamedTuple):
    """One step of a filter: what it is called, and how it changes log-probabilities."""

    name: str
    adjust: Adjust


class Moment(NamedTuple):
    """One step."""

    token: int  # that came
    log_probs: np.ndarray  # (V,): the model's own
    after: list[np.ndarray]  # (V,): normalised, after each filter


class _Asked(NamedTuple):
    steps: Steps[Any]
    tokens: list[int]  # all that is read and written; what comes at each is known
    first: int  # of `tokens`, the first that is looked at
    state: Any
    never: Sequence[int]
    tokenizer: Tokenizer
    pieces: list[Piece]


def cuts(options: ExplainOptions, never: Sequence[int]) -> list[Cut]:
    """The filters of `generate` and `predict`, in the order they apply."""
    found = [Cut("never written", choose.ban(never))]
    if options.temperature:
        found.append(Cut(f"temperature {options.temperature:g}", choose.temperature(options.temperature)))
    if options.top_k is not None:
        found.append(Cut(f"top-k {options.top_k}", choose.top_k(options.top_k)))
    if options.top_p is not None and options.top_p < 1:
        found.append(Cut(f"top-p {options.top_p:g}", choose.top_p(options.top_p)))
    if options.min_p is not None:
        found.append(Cut(f"min-p {options.min_p:g}", choose.min_p(options.min_p)))
    return found


def _asked(run: AnyRun, text: str, options: ExplainOptions) -> _Asked:
    """After what comes before it, the target given, or what the run itself writes."""
    decode, output = run.task.decode, explaining(run).output
    if decode is None or output is None:
        raise UsageError(f"--what distribution: {no_distribution(run)}")
    found, before = output(run, text, options), list(decode.prompt(run, text))
    state = None if decode.source is None else decode.source(run, text)
    tokens, pieces = [*before, *(number for number, _ in found)], [piece for _, piece in found]
    return _Asked(decode.steps(run), tokens, len(before), state, decode.never(run), decode.target(run), pieces)


def no_distribution(run: AnyRun) -> str | None:
    """Why a run has no next token, if it has none."""
    if run.task.decode is None or explaining(run).output is None:
        return f"a run of task {run.settings.task!r} writes nothing token by token"
    return several_models(run)


def _normalised(log_probs: Tensor) -> np.ndarray:
    found: np.ndarray = log_probs.double().log_softmax(-1)[0].cpu().numpy()
    return found


@torch.no_grad()
def moments(asked: _Asked, filters: Sequence[Cut], device: torch.device) -> list[Moment]:
    """What the model says at each step, and what every filter makes of it, read token by token as decoding does."""
    prompt = torch.tensor([asked.tokens[: asked.first]], device=device)
    log_probs, state = asked.steps.start(prompt, None, asked.state)
    found = list[Moment]()
    for at in range(asked.first, len(asked.tokens)):
        before = right_aligned(torch.tensor([asked.tokens[:at]], device=device), None)
        allowed, after = log_probs.float(), list[np.ndarray]()
        for one in filters:
            allowed = one.adjust(allowed, before)
            after.append(_normalised(allowed))
        found.append(Moment(asked.tokens[at], _normalised(log_probs), after))
        if at + 1 < len(asked.tokens):
            log_probs, state = asked.steps.step(torch.tensor([asked.tokens[at]], device=device), state)
    return found


def _cut_by(one: Moment, token: int, filters: Sequence[Cut]) -> str | None:
    """The filter that took a token away, if one did."""
    if np.isneginf(one.log_probs[token]):
        return "the model"
    return next((cut.name for cut, left in zip(filters, one.after, strict=True) if np.isneginf(left[token])), None)


def _listed(one: Moment, filters: Sequence[Cut], top: int, show: Callable[[int], str]) -> list[dict[str, Any]]:
    """The most probable tokens of a step, and the one that came, if it is not among them."""
    order = np.argsort(-one.log_probs, kind="stable")[:top].tolist()
    chosen = order if one.token in order else [*order, one.token]
    return [
        {
            "token": show(token),
            "before": round(float(np.exp(one.log_probs[token])), 6),
            "after": round(float(np.exp(one.after[-1][token])), 6),
            "cut": _cut_by(one, token, filters),
            "came": token == one.token,
        }
        for token in chosen
    ]


def _step_data(one: Moment, filters: Sequence[Cut], top: int, show: Callable[[int], str]) -> dict[str, Any]:
    probabilities = np.exp(one.log_probs)
    known = probabilities[probabilities > 0]
    return {
        "entropy": round(float(-(known * np.log(known)).sum()), 6),
        "left": [int(np.isfinite(left).sum()) for left in one.after],
        "mass": round(float(probabilities[np.isfinite(one.after[-1])].sum()), 6),
        "tokens": _listed(one, filters, top, show),
    }


def _bar(token: dict[str, Any]) -> Bar:
    cut = "" if token["cut"] is None else f"\ncut by: {token['cut']}"
    told = f"{token['token']}\nbefore {token['before']:.4f}\nafter {token['after']:.4f}{cut}"
    return Bar(token["token"], token["before"], token["after"], told, token["cut"], token["came"])


def _pictures(steps: Sequence[dict[str, Any]], pieces: Sequence[Piece]) -> list[Picture]:
    groups = [
        (f"{at}. {piece.text}", [_bar(token) for token in step["tokens"]])
        for at, (step, piece) in enumerate(zip(steps[:PANELS], pieces, strict=False), 1)
    ]
    return [Picture("What could have come at each step, before and after the filters", bars(groups))]


def _lines(steps: Sequence[dict[str, Any]], pieces: Sequence[Piece], filters: Sequence[Cut]) -> list[str]:
    rows = [["step", "came", "before", "after", "tokens left", "entropy"]]
    for at, (step, piece) in enumerate(zip(steps, pieces, strict=True), 1):
        came = next(token for token in step["tokens"] if token["came"])
        after = f"cut by {came['cut']}" if came["cut"] else f"{came['after']:.4f}"
        rows.append(
            [str(at), repr(piece.text), f"{came['before']:.4f}", after, f"{step['left'][-1]:,}", f"{step['entropy']:.3f}"]
        )
    return [*aligned(rows, left=(1,)), f"filters, in this order: {', '.join(cut.name for cut in filters)}"]


def distribution(run: AnyRun, text: str, options: ExplainOptions) -> View:
    """The next-token distribution at each step of a continuation (--target, or what greedy decoding writes) or a translation,
    before and after --temperature, --top-k, --top-p and --min-p."""
    asked = _asked(run, clean(text, "input"), options)
    if len(asked.tokens) == asked.first:
        raise UsageError("input: nothing comes after it; give --target, or a text that the model goes on with")
    filters = cuts(options, asked.never)
    steps = [_step_data(one, filters, options.top, asked.tokenizer.show) for one in moments(asked, filters, run.device)]
    data = {"tokens": listed(asked.pieces), "filters": [cut.name for cut in filters], "steps": steps}
    title = "What could have come next, step by step"
    return View(
        "distribution", title, data, _pictures(steps, asked.pieces), _lines(steps, asked.pieces, filters), guides.DISTRIBUTION
    )
