"""The next-token distribution at each step, before and after temperature, top-k, top-p and min-p.

Shapes: V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.decode import logits_processors as processors
from weft.decode.incremental import IncrementalModel
from weft.decode.logits_processors import LogitsProcessor, right_aligned
from weft.errors import UsageError
from weft.explain import guides
from weft.explain.beam_search import why_not_single_model
from weft.explain.explanation import Explanation, Figure, TokenSpan, align_columns, list_tokens
from weft.explain.inputs import explain_spec
from weft.explain.options import ExplainConfig
from weft.plots.bars import Bar, bars
from weft.runs.run import AnyRun
from weft.text.reading import check_text
from weft.text.tokenizers import Tokenizer

MAX_PANELS = 24  # steps in the figure; the data has all


class Filter(NamedTuple):
    """A logits processor with its name."""

    name: str
    processor: LogitsProcessor


class Step(NamedTuple):
    """The distributions of one decoding step."""

    token: int  # the generated token
    log_probs: np.ndarray  # (V,): of the model
    filtered: list[np.ndarray]  # (V,) after each filter, normalized


class _Decoding(NamedTuple):
    """A prompt and its known continuation."""

    model: IncrementalModel[Any]
    tokens: list[int]  # prompt and continuation
    prompt_length: int
    state: Any
    banned_tokens: Sequence[int]
    tokenizer: Tokenizer  # of the continuation
    spans: list[TokenSpan]  # of the continuation


def filters(options: ExplainConfig, banned_tokens: Sequence[int]) -> list[Filter]:
    """The filters of `generate` and `predict`, in the order they apply."""
    chain = [Filter("banned tokens", processors.ban_tokens(banned_tokens))]
    if options.temperature:
        chain.append(Filter(f"temperature {options.temperature:g}", processors.temperature(options.temperature)))
    if options.top_k is not None:
        chain.append(Filter(f"top-k {options.top_k}", processors.top_k(options.top_k)))
    if options.top_p is not None and options.top_p < 1:
        chain.append(Filter(f"top-p {options.top_p:g}", processors.top_p(options.top_p)))
    if options.min_p is not None:
        chain.append(Filter(f"min-p {options.min_p:g}", processors.min_p(options.min_p)))
    return chain


def why_no_distribution(run: AnyRun) -> str | None:
    """Why the next-token distribution is not available, or None."""
    if run.spec.decode is None or explain_spec(run).target_tokens is None:
        return f"task {run.config.task!r} does not generate tokens"
    return why_not_single_model(run)


def _prepare(run: AnyRun, text: str, options: ExplainConfig) -> _Decoding:
    """The prompt, followed by `target` or by the model's own output."""
    decode, output = run.spec.decode, explain_spec(run).target_tokens
    if decode is None or output is None:
        raise UsageError("view", f"distribution is not available: {why_no_distribution(run)}")
    continuation, prompt = output(run, text, options), list(decode.prompt_ids(run, text))
    state = None if decode.encode_source is None else decode.encode_source(run, text)
    return _Decoding(
        decode.incremental_model(run),
        [*prompt, *(token for token, _ in continuation)],
        len(prompt),
        state,
        decode.suppressed_tokens(run),
        decode.target_tokenizer(run),
        [span for _, span in continuation],
    )


def _normalize(log_probs: Tensor) -> np.ndarray:
    """(1, V) -> (V,)"""
    return np.asarray(log_probs.double().log_softmax(-1)[0].cpu().numpy())


@torch.no_grad()
def step_distributions(decoding: _Decoding, filters: Sequence[Filter], device: torch.device) -> list[Step]:
    """The distributions of each step, computed token by token as in decoding."""
    model, tokens = decoding.model, decoding.tokens
    prompt = torch.tensor([tokens[: decoding.prompt_length]], device=device)
    log_probs, state = model.start(prompt, None, decoding.state)
    steps = list[Step]()
    for i in range(decoding.prompt_length, len(tokens)):
        context = right_aligned(torch.tensor([tokens[:i]], device=device), None)
        processed, filtered = log_probs.float(), list[np.ndarray]()
        for step_filter in filters:
            processed = step_filter.processor(processed, context)
            filtered.append(_normalize(processed))
        steps.append(Step(tokens[i], _normalize(log_probs), filtered))
        if i + 1 < len(tokens):
            log_probs, state = model.step(torch.tensor([tokens[i]], device=device), state)
    return steps


def _filtered_by(step: Step, token: int, names: Sequence[str]) -> str | None:
    """The name of the filter that removed a token, or None."""
    if np.isneginf(step.log_probs[token]):
        return "the model"
    return next((name for name, log_probs in zip(names, step.filtered, strict=True) if np.isneginf(log_probs[token])), None)


def _top_tokens(step: Step, names: Sequence[str], top: int, token_text: Callable[[int], str]) -> list[dict[str, Any]]:
    """The most probable tokens of a step, and the generated token if it is not among them."""
    tokens = np.argsort(-step.log_probs, kind="stable")[:top].tolist()
    if step.token not in tokens:
        tokens.append(step.token)
    return [
        {
            "token": token_text(token),
            "before": round(float(np.exp(step.log_probs[token])), 6),
            "after": round(float(np.exp(step.filtered[-1][token])), 6),
            "filtered_by": _filtered_by(step, token, names),
            "chosen": token == step.token,
        }
        for token in tokens
    ]


def _step_data(step: Step, names: Sequence[str], top: int, token_text: Callable[[int], str]) -> dict[str, Any]:
    probs = np.exp(step.log_probs)
    positive = probs[probs > 0]
    return {
        "entropy": round(float(-(positive * np.log(positive)).sum()), 6),
        "remaining": [int(np.isfinite(log_probs).sum()) for log_probs in step.filtered],
        "mass": round(float(probs[np.isfinite(step.filtered[-1])].sum()), 6),
        "tokens": _top_tokens(step, names, top, token_text),
    }


def _bar(token: dict[str, Any]) -> Bar:
    removed = "" if token["filtered_by"] is None else f"\nremoved by: {token['filtered_by']}"
    tooltip = f"{token['token']}\nbefore {token['before']:.4f}\nafter {token['after']:.4f}{removed}"
    return Bar(token["token"], token["before"], token["after"], tooltip, token["filtered_by"], token["chosen"])


def _figures(steps: Sequence[dict[str, Any]], spans: Sequence[TokenSpan]) -> list[Figure]:
    groups = [
        (f"{number}. {span.text}", [_bar(token) for token in step["tokens"]])
        for number, (step, span) in enumerate(zip(steps[:MAX_PANELS], spans, strict=False), 1)
    ]
    return [Figure("Next-token probabilities before and after the filters", bars(groups))]


def _lines(steps: Sequence[dict[str, Any]], spans: Sequence[TokenSpan], names: Sequence[str]) -> list[str]:
    rows = [["step", "token", "before", "after", "tokens left", "entropy"]]
    for number, (step, span) in enumerate(zip(steps, spans, strict=True), 1):
        token = next(token for token in step["tokens"] if token["chosen"])
        after = f"removed by {token['filtered_by']}" if token["filtered_by"] else f"{token['after']:.4f}"
        remaining, entropy = f"{step['remaining'][-1]:,}", f"{step['entropy']:.3f}"
        rows.append([str(number), repr(span.text), f"{token['before']:.4f}", after, remaining, entropy])
    return [*align_columns(rows, left=(1,)), f"filters, in order: {', '.join(names)}"]


def distribution(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The next-token distribution at each step of a continuation or seq2seq output (`target`, or the greedy output), before and
    after `temperature`, `top_k`, `top_p` and `min_p`."""
    decoding = _prepare(run, check_text(text, "input"), options)
    if not decoding.spans:
        raise UsageError("input", "the model generates no token after it", "set `target` or use another text")
    chain = filters(options, decoding.banned_tokens)
    names, token_text = [step_filter.name for step_filter in chain], decoding.tokenizer.token_text
    steps = [_step_data(step, names, options.top, token_text) for step in step_distributions(decoding, chain, run.device)]
    data = {"tokens": list_tokens(decoding.spans), "filters": names, "steps": steps}
    title = f"Next-token distribution of {run.directory.path}"
    figures, lines = _figures(steps, decoding.spans), _lines(steps, decoding.spans, names)
    return Explanation("distribution", title, data, figures, lines, guides.DISTRIBUTION)
