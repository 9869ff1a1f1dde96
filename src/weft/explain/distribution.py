"""The next-token distribution at each step, before and after temperature, top-k, top-p and min-p.

Shapes: T steps, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.decode import logits_processors as choose
from weft.decode.incremental import IncrementalModel
from weft.decode.logits_processors import LogitsProcessor, right_aligned
from weft.errors import UsageError
from weft.explain import guides
from weft.explain.beam_search import several_models
from weft.explain.explanation import Explanation, Figure, TokenSpan, align_columns, list_tokens
from weft.explain.inputs import explaining
from weft.explain.options import ExplainConfig
from weft.plots.bars import Bar, bars
from weft.runs.run import AnyRun
from weft.text.reading import check_text
from weft.text.tokenizers import Tokenizer

MAX_PANELS = 24  # steps in the figure; the data has all


class Filter(NamedTuple):
    """One step of a filter: what it is called, and how it changes log-probabilities."""

    name: str
    adjust: LogitsProcessor


class Step(NamedTuple):
    """One step."""

    token: int  # that came
    log_probs: np.ndarray  # (V,): the model's own
    after: list[np.ndarray]  # (V,): normalized, after each filter


class _Asked(NamedTuple):
    steps: IncrementalModel[Any]
    tokens: list[int]  # all that is read and written; what comes at each is known
    first: int  # of `tokens`, the first that is looked at
    state: Any
    banned_tokens: Sequence[int]
    tokenizer: Tokenizer
    pieces: list[TokenSpan]


def filters(options: ExplainConfig, banned_tokens: Sequence[int]) -> list[Filter]:
    """The filters of `generate` and `predict`, in the order they apply."""
    found = [Filter("banned tokens", choose.ban_tokens(banned_tokens))]
    if options.temperature:
        found.append(Filter(f"temperature {options.temperature:g}", choose.temperature(options.temperature)))
    if options.top_k is not None:
        found.append(Filter(f"top-k {options.top_k}", choose.top_k(options.top_k)))
    if options.top_p is not None and options.top_p < 1:
        found.append(Filter(f"top-p {options.top_p:g}", choose.top_p(options.top_p)))
    if options.min_p is not None:
        found.append(Filter(f"min-p {options.min_p:g}", choose.min_p(options.min_p)))
    return found


def _asked(run: AnyRun, text: str, options: ExplainConfig) -> _Asked:
    """After what comes before it, the target given, or what the run itself writes."""
    decode, output = run.spec.decode, explaining(run).target_tokens
    if decode is None or output is None:
        raise UsageError("view", f"distribution is not available: {why_no_distribution(run)}")
    found, before = output(run, text, options), list(decode.prompt_ids(run, text))
    state = None if decode.encode_source is None else decode.encode_source(run, text)
    tokens, pieces = [*before, *(number for number, _ in found)], [piece for _, piece in found]
    return _Asked(
        decode.incremental_model(run),
        tokens,
        len(before),
        state,
        decode.suppressed_tokens(run),
        decode.target_tokenizer(run),
        pieces,
    )


def why_no_distribution(run: AnyRun) -> str | None:
    """Why a run has no next token, if it has none."""
    if run.spec.decode is None or explaining(run).target_tokens is None:
        return f"task {run.config.task!r} does not generate tokens"
    return several_models(run)


def _normalised(log_probs: Tensor) -> np.ndarray:
    found: np.ndarray = log_probs.double().log_softmax(-1)[0].cpu().numpy()
    return found


@torch.no_grad()
def step_distributions(asked: _Asked, filters: Sequence[Filter], device: torch.device) -> list[Step]:
    """What the model says at each step, and what every filter makes of it, read token by token as decoding does."""
    prompt = torch.tensor([asked.tokens[: asked.first]], device=device)
    log_probs, state = asked.steps.start(prompt, None, asked.state)
    found = list[Step]()
    for at in range(asked.first, len(asked.tokens)):
        before = right_aligned(torch.tensor([asked.tokens[:at]], device=device), None)
        allowed, after = log_probs.float(), list[np.ndarray]()
        for one in filters:
            allowed = one.adjust(allowed, before)
            after.append(_normalised(allowed))
        found.append(Step(asked.tokens[at], _normalised(log_probs), after))
        if at + 1 < len(asked.tokens):
            log_probs, state = asked.steps.step(torch.tensor([asked.tokens[at]], device=device), state)
    return found


def _filtered_by(one: Step, token: int, filters: Sequence[Filter]) -> str | None:
    """The filter that removed a token, or None."""
    if np.isneginf(one.log_probs[token]):
        return "the model"
    return next((cut.name for cut, left in zip(filters, one.after, strict=True) if np.isneginf(left[token])), None)


def _listed(one: Step, filters: Sequence[Filter], top: int, show: Callable[[int], str]) -> list[dict[str, Any]]:
    """The most probable tokens of a step, and the one that came, if it is not among them."""
    order = np.argsort(-one.log_probs, kind="stable")[:top].tolist()
    chosen = order if one.token in order else [*order, one.token]
    return [
        {
            "token": show(token),
            "before": round(float(np.exp(one.log_probs[token])), 6),
            "after": round(float(np.exp(one.after[-1][token])), 6),
            "filtered_by": _filtered_by(one, token, filters),
            "chosen": token == one.token,
        }
        for token in chosen
    ]


def _step_data(one: Step, filters: Sequence[Filter], top: int, show: Callable[[int], str]) -> dict[str, Any]:
    probabilities = np.exp(one.log_probs)
    known = probabilities[probabilities > 0]
    return {
        "entropy": round(float(-(known * np.log(known)).sum()), 6),
        "remaining": [int(np.isfinite(left).sum()) for left in one.after],
        "mass": round(float(probabilities[np.isfinite(one.after[-1])].sum()), 6),
        "tokens": _listed(one, filters, top, show),
    }


def _bar(token: dict[str, Any]) -> Bar:
    removed = "" if token["filtered_by"] is None else f"\nremoved by: {token['filtered_by']}"
    progress = f"{token['token']}\nbefore {token['before']:.4f}\nafter {token['after']:.4f}{removed}"
    return Bar(token["token"], token["before"], token["after"], progress, token["filtered_by"], token["chosen"])


def _pictures(steps: Sequence[dict[str, Any]], pieces: Sequence[TokenSpan]) -> list[Figure]:
    groups = [
        (f"{at}. {piece.text}", [_bar(token) for token in step["tokens"]])
        for at, (step, piece) in enumerate(zip(steps[:MAX_PANELS], pieces, strict=False), 1)
    ]
    return [Figure("Next-token probabilities before and after the filters", bars(groups))]


def _lines(steps: Sequence[dict[str, Any]], pieces: Sequence[TokenSpan], filters: Sequence[Filter]) -> list[str]:
    rows = [["step", "token", "before", "after", "tokens left", "entropy"]]
    for at, (step, piece) in enumerate(zip(steps, pieces, strict=True), 1):
        came = next(token for token in step["tokens"] if token["chosen"])
        after = f"removed by {came['filtered_by']}" if came["filtered_by"] else f"{came['after']:.4f}"
        rows.append(
            [str(at), repr(piece.text), f"{came['before']:.4f}", after, f"{step['remaining'][-1]:,}", f"{step['entropy']:.3f}"]
        )
    return [*align_columns(rows, left=(1,)), f"filters, in order: {', '.join(cut.name for cut in filters)}"]


def distribution(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The next-token distribution at each step of a continuation or seq2seq output (`target`, or the greedy output), before and
    after `temperature`, `top_k`, `top_p` and `min_p`."""
    asked = _asked(run, check_text(text, "input"), options)
    if len(asked.tokens) == asked.first:
        raise UsageError("input", "the model generates no token after it", "set `target` or use another text")
    chain = filters(options, asked.banned_tokens)
    steps = [
        _step_data(one, chain, options.top, asked.tokenizer.token_text) for one in step_distributions(asked, chain, run.device)
    ]
    data = {"tokens": list_tokens(asked.pieces), "filters": [cut.name for cut in chain], "steps": steps}
    title = f"Next-token distribution of {run.directory.path}"
    return Explanation(
        "distribution", title, data, _pictures(steps, asked.pieces), _lines(steps, asked.pieces, chain), guides.DISTRIBUTION
    )
