"""Prompts of token IDs, and log-probabilities of the tokens of prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from weft.decode.engine import Request
from weft.decode.generate import Job as Decoding
from weft.decode.logits_processors import NO_TOKEN
from weft.decode.options import check_length
from weft.errors import UsageError
from weft.runs.run import AnyRun
from weft.serve.jobs import Generate


def refuse_prompts(run: AnyRun, job: Generate) -> None:
    """Refuse prompts of token IDs that a model cannot read, and log-probabilities of prompts that are put into a template."""
    decode, lists = run.spec.decode, [prompt for prompt in job.prompts if not isinstance(prompt, str)]
    has_template = decode is not None and not decode.echoes_prompt
    if lists and has_template:
        raise UsageError("prompt", "the model reads prompts in a template, not token IDs", "send texts")
    if job.scores_prompts and has_template:
        raise UsageError(
            "echo", "the model reads prompts in a template, which has no log-probabilities", "leave out `logprobs`"
        )
    if job.scores_prompts and job.options.beam_size is not None:
        raise UsageError("echo", "log-probabilities cannot be combined with `beam_size`")
    check_token_ids(run, lists)
    eos_id = run.vocabulary.eos_id
    for ids in lists:
        if job.scores_prompts and eos_id in ids:
            raise UsageError("prompt", f"{eos_id}, the end of a text, cannot be scored in the middle of one", "remove it")


def check_token_ids(run: AnyRun, prompts: Sequence[Sequence[int]]) -> None:
    """Refuse numbers that are not in the vocabulary."""
    size = run.vocabulary.vocab_size
    wrong = next((token for ids in prompts for token in ids if not 0 <= token < size), None)
    if wrong is not None:
        raise UsageError("prompt", f"{wrong} is not a token ID", f"use 0 to {size - 1}")


def opening(decoding: Decoding) -> list[int]:
    """The tokens before every prompt."""
    return list(decoding.frame.bos_ids or [decoding.tokenizer.bos_id])


def with_opening(decoding: Decoding, ids: Sequence[int]) -> list[int]:
    """Token IDs after the opening, which they may begin with themselves if it is the BOS token. So the IDs of a text are
    continued as the text is."""
    start = opening(decoding)
    tokens = list(ids) if start == [decoding.tokenizer.bos_id] == list(ids[:1]) else [*start, *ids]
    check_length(decoding.model.max_positions, len(tokens), decoding.options.max_new_tokens)
    return tokens


def forced(request: Request, num_read: int) -> Request:
    """A request that generates its own prompt, except the first tokens, which are read: so each token has a log-probability.
    What follows the prompt is the same as for the request itself."""
    prompt, processor, noise = list(request.prompt), request.logits_processor, request.noise
    num_forced = len(prompt) - num_read

    def process(log_probs: Tensor, tokens: Tensor) -> Tensor:  # of one row, since no other row has this processor
        position = int((tokens[0] != NO_TOKEN).sum())
        if position >= len(prompt):
            return log_probs if processor is None else processor(log_probs, tokens)
        only = torch.full_like(log_probs, -math.inf)
        only[:, prompt[position]] = 0.0
        return only

    return request._replace(
        prompt=prompt[:num_read],
        max_new_tokens=num_forced + request.max_new_tokens,
        min_new_tokens=num_forced + request.min_new_tokens if request.min_new_tokens else 0,
        logits_processor=process,
        noise=None if noise is None else lambda position: noise(max(0, position - num_forced)),
    )
