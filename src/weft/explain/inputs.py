"""A text as model input with its token spans, and the outputs to explain.

Shapes: R copies of the input, N input tokens, K outputs, V classes of an output: tokens, labels or tags.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.decode.predict_options import TRUNCATION
from weft.errors import DataError, UsageError, unknown_name
from weft.explain.explanation import TokenSpan
from weft.explain.options import ExplainConfig
from weft.explain.stacks import Stack
from weft.runs.run import AnyRun
from weft.tasks.spec import Explain
from weft.text.reading import check_text
from weft.text.tokenizers import Tokenizer

EOS = "</s>"  # the only special token that `target` may contain


class InputSide(NamedTuple):
    """One input sequence of a model."""

    name: str  # as displayed: text, source, output
    embedder: str  # name of the module that embeds it
    embedding: str  # name of the token embedding in that module
    tokens: list[int]  # N
    spans: list[TokenSpan]  # N
    prefix_length: int = 0  # number of tokens before the text, such as <s>

    @property
    def text_mask(self) -> list[bool]:
        """Whether each token belongs to the text; the prefix, <s> and </s> do not."""
        markers = (Tokenizer.bos_id, Tokenizer.eos_id)
        return [token not in markers and i >= self.prefix_length for i, token in enumerate(self.tokens)]


class ModelInput(NamedTuple):
    """A text as network input, with its outputs."""

    model: nn.Module
    sides: list[InputSide]
    log_probs: Callable[[Tensor], Tensor]  # output positions (R,), one per copy -> log-probabilities (R, V)
    output_spans: list[TokenSpan]  # K: words or masks; an output that is not in the text has an empty span
    targets: list[int] | None  # K: the requested class of each output; None: explain the predictions
    target_text: Callable[[int], str]  # class index -> text
    truncated: bool = False  # the text was too long for the model
    output_text: str = ""  # the complete seq2seq output
    predict: Callable[[], list[tuple[int, int]]] | None = None  # (position, class) of each prediction; None: argmax at each
    banned_tokens: Sequence[int] = ()  # classes that are never predicted
    stacks: Sequence[Stack] = ()
    logits: Callable[[], Tensor] | None = None  # of the next token at each position, (N, V)


class ExplainedOutput(NamedTuple):
    """An output to explain: one class at one output position."""

    position: int
    target: int
    span: TokenSpan  # text of the target, offsets of the position


def token_spans(tokenizer: Tokenizer, text: str, offset: int = 0) -> list[tuple[int, TokenSpan]]:
    """The token IDs of a text with their spans, shifted by `offset` characters. An unknown token keeps its original text."""
    token_ids = tokenizer.encode(text).tolist()
    return [
        (
            token,
            TokenSpan(
                text[start:end] if token == tokenizer.unk_id else tokenizer.token_text(token), offset + start, offset + end
            ),
        )
        for token, (start, end) in zip(token_ids, tokenizer.offsets(text), strict=True)
    ]


def special_token(tokenizer: Tokenizer, token: int) -> tuple[int, TokenSpan]:
    """A token ID with an empty span, for tokens that are not part of the text."""
    return token, TokenSpan(tokenizer.token_text(token), 0, 0)


def make_side(name: str, embedder: str, tokens: Sequence[tuple[int, TokenSpan]]) -> InputSide:
    embedding = embedder if embedder == "embedding" else f"{embedder}.embedding"
    return InputSide(name, embedder, embedding, [token for token, _ in tokens], [span for _, span in tokens])


def encode_target(tokenizer: Tokenizer, target: str) -> list[tuple[int, TokenSpan]]:
    """The tokens of a target text; a final "</s>" is the EOS token."""
    tokens = token_spans(tokenizer, check_text(target.removesuffix(EOS), "target"))
    if any(token == tokenizer.unk_id for token, _ in tokens):
        raise UsageError("target", f"{target!r} contains unknown tokens, which are never predicted")
    if target.endswith(EOS):
        tokens.append(special_token(tokenizer, tokenizer.eos_id))
    if not tokens:
        raise UsageError("target", "is empty")
    return tokens


def raise_if_invalid(problems: dict[int, str]) -> None:
    """Raise an error if the run cannot read the text (number 0). Explanations do not truncate."""
    if problems:
        raise DataError("input", problems[0].removesuffix(TRUNCATION))


def repeat_tokens(tokens: Sequence[int], positions: Tensor) -> Tensor:
    """The tokens as (R, N), one copy for each of the positions (R,)."""
    return torch.tensor([list(tokens)], device=positions.device).expand(len(positions), -1)


def label_id(run: AnyRun, target: str) -> int:
    """The index of a label or tag."""
    index: int | None = run.vocabulary.labels.index(target)
    if index is None:
        raise UsageError("target", *unknown_name("label", target, run.labels))
    return index


def network(run: AnyRun) -> nn.Module | None:
    """The network of a run, or None for n-gram models and other models of counts."""
    return run.members[0].network


def explain_spec(run: AnyRun) -> Explain:
    """The explanation functions of the run's task."""
    if run.spec.explain is None:
        raise UsageError(run.directory.path, f"explanations are not available for task {run.config.task!r}")
    return run.spec.explain()


def stacks(run: AnyRun) -> Sequence[Stack]:
    """The stacks of the run's network."""
    return explain_spec(run).stacks(run)


def read(run: AnyRun, text: str, options: ExplainConfig) -> ModelInput:
    """The text as input of the run's network."""
    return explain_spec(run).encode_input(run, check_text(text, "input"), options)


def _positions(model_input: ModelInput, position: int | None) -> list[int]:
    """The output positions to explain: one, counted from 1, or all."""
    count = len(model_input.output_spans)
    if position is not None and position > count:
        raise UsageError("position", f"must be from 1 to {count}, got {position}")
    return list(range(count)) if position is None else [position - 1]


def _argmax(run: AnyRun, model_input: ModelInput, positions: list[int]) -> list[tuple[int, int]]:
    """Each position with its most probable class."""
    log_probs = model_input.log_probs(torch.tensor(positions, device=run.device))
    log_probs[:, list(model_input.banned_tokens)] = float("-inf")
    return list(zip(positions, log_probs.argmax(1).tolist(), strict=True))


@torch.no_grad()
def outputs_to_explain(run: AnyRun, model_input: ModelInput, options: ExplainConfig) -> list[ExplainedOutput]:
    """The requested outputs, or the model's predictions if there is no target."""
    positions = _positions(model_input, options.position)
    if model_input.targets is not None:
        pairs = [(position, model_input.targets[position]) for position in positions]
    elif model_input.predict is not None:
        pairs = [(position, target) for position, target in model_input.predict() if position in positions]
    else:
        pairs = _argmax(run, model_input, positions)
    return [
        ExplainedOutput(position, target, model_input.output_spans[position]._replace(text=model_input.target_text(target)))
        for position, target in pairs
    ]
