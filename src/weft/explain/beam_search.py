"""The search tree of beam search: every hypothesis, its score, and why it ended.

Shapes: K beams, M candidates, V words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.decode import logits_processors as choose
from weft.decode.beam import BeamEvent, BeamOptions, Hypothesis, beam_search
from weft.decode.incremental import IncrementalModel
from weft.decode.logits_processors import LogitsProcessor
from weft.errors import UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, TokenSpan, align_columns, list_tokens
from weft.explain.inputs import explaining, special, token_spans
from weft.explain.options import ExplainConfig
from weft.plots.tree import KINDS, Node, tree
from weft.runs.run import AnyRun
from weft.text.reading import check_text
from weft.text.tokenizers import Tokenizer

ROOT = 0


class Step(NamedTuple):
    """One hypothesis of the search."""

    parent: int  # its number among the steps; the root continues nothing: -1
    token: int  # the last
    length: int  # tokens so far, the end included
    log_prob: float  # the sum, as the search saw it
    score: float  # under the length penalty
    fate: str  # of tree.KINDS, but for the best


class Tree:
    """Records a search step by step."""

    def __init__(self, options: BeamOptions) -> None:
        self.options = options
        self.steps = [Step(-1, -1, 0, 0.0, 0.0, "kept")]
        self.beams: list[int | None] = [ROOT]  # the steps that are alive; None where a beam is empty
        self._banned = list[tuple[int, int, float]]()  # beam, token, sum: of the step that is about to come

    def adjusting(self, adjust: LogitsProcessor) -> LogitsProcessor:
        """The processor, with a record of the tokens that it bans."""

        def progress(log_probs: Tensor, tokens: Tensor) -> Tensor:
            allowed = adjust(log_probs, tokens)
            sums = [-math.inf if at is None else self.steps[at].log_prob for at in self.beams]
            every = log_probs.double().cpu() + torch.tensor(sums, dtype=torch.float64)[:, None]
            lost = every.masked_fill(~allowed.isneginf().cpu(), -math.inf)
            values, index = lost.flatten().topk(min(self.options.beam_size, lost.numel()))
            found = zip(values.tolist(), index.tolist(), strict=True)
            self._banned = [(at // lost.size(1), at % lost.size(1), value) for value, at in found if value > -math.inf]
            return allowed

        return progress

    def _add(self, parent: int | None, token: int, total: float, fate: str) -> int:
        parent = ROOT if parent is None else parent
        length = self.steps[parent].length + 1
        self.steps.append(Step(parent, token, length, total, total / length**self.options.length_penalty, fate))
        return len(self.steps) - 1

    def _fate(self, place: int, token: int, kept: set[int]) -> str:
        if token == self.options.eos_id:
            # the end token counts only among the `width` best candidates of a step
            return "ended" if place < self.options.beam_size else "late"
        # a beam of 1 goes on with its best candidate, or has ended
        return "kept" if place in kept and (place == 0 or self.options.beam_size > 1) else "cut"

    def watch(self, event: BeamEvent) -> None:
        """One step of a search of one sentence."""
        kept = event.survivors[0].tolist()
        rows = zip(event.tokens[0].tolist(), event.parents[0].tolist(), event.scores[0].tolist(), strict=True)
        before, numbers = self.beams, dict[int, int]()
        for place, (token, parent, total) in enumerate(rows):
            if total > -math.inf:
                numbers[place] = self._add(before[parent], token, total, self._fate(place, token, set(kept)))
        # only what would have been among those that go on was lost by a ban
        should_continue = {place: at for place, at in numbers.items() if self.steps[at].fate == "kept"}
        minimum = min((self.steps[at].log_prob for at in should_continue.values()), default=-math.inf)
        for row, token, total in self._banned:
            if total > minimum:
                self._add(before[row], token, total, "banned")
        self.beams = [should_continue.get(place) for place in kept]

    def close(self) -> None:
        """Mark the active hypotheses at the end of the search: at the length limit, or before, if none could win."""
        for at in (at for at in self.beams if at is not None and at != ROOT):
            step = self.steps[at]
            self.steps[at] = step._replace(fate="hopeless" if step.length < self.options.max_new_tokens else "limit")

    def output(self, at: int) -> list[int]:
        """The tokens of a hypothesis."""
        tokens = list[int]()
        while at != ROOT:
            tokens.append(self.steps[at].token)
            at = self.steps[at].parent
        return tokens[::-1]

    def path(self, tokens: list[int]) -> list[int]:
        """The numbers of the steps that lead to a hypothesis."""
        found, at = list[int](), ROOT
        for token in tokens:
            at = next(number for number, step in enumerate(self.steps) if step.parent == at and step.token == token)
            found.append(at)
        return found


class _Asked(NamedTuple):
    """A search of one sentence."""

    steps: IncrementalModel[Any]
    prompt: Tensor
    state: Any
    options: BeamOptions
    banned_tokens: Sequence[int]
    tokenizer: Tokenizer
    pieces: list[TokenSpan]


def _asked(run: AnyRun, text: str, options: ExplainConfig) -> _Asked:
    """As `generate --beam-size`, or as `predict`."""
    decode = run.spec.decode
    if decode is None:
        raise UsageError("view", f"beam-search is not available: {why_no_search(run)}")
    tokenizer, state = explaining(run).tokenizers(run)[0], None
    found = token_spans(tokenizer, text)
    if decode.encode_source is not None:
        found.append(special(tokenizer, tokenizer.eos_id))
        with torch.no_grad():
            state = decode.encode_source(run, text)
    search = BeamOptions(
        decode.beam_size if options.beam_size is None else options.beam_size,
        decode.max_new_tokens(run, text) if options.max_new_tokens is None else options.max_new_tokens,
        decode.eos_id(run),
        decode.length_penalty if options.length_penalty is None else options.length_penalty,
    )
    prompt = torch.tensor([list(decode.prompt_ids(run, text))], device=run.device)
    pieces = [piece for _, piece in found]
    return _Asked(
        decode.incremental_model(run),
        prompt,
        state,
        search,
        decode.suppressed_tokens(run),
        decode.target_tokenizer(run),
        pieces,
    )


def several_models(run: AnyRun) -> str | None:
    """Why outputs of an ensemble, or with shallow fusion, are not explained, or None."""
    return "ensembles and shallow fusion cannot be explained" if len(run.members) > 1 or run.lm is not None else None


def why_no_search(run: AnyRun) -> str | None:
    """Why beam search is not available, or None."""
    if run.spec.decode is None:
        return f"task {run.config.task!r} has no decoding"
    return several_models(run)


def build_tree(asked: _Asked) -> tuple[Tree, Hypothesis]:
    """The tree of a search and its best hypothesis."""
    found = Tree(asked.options)
    adjust = found.adjusting(choose.ban_tokens(asked.banned_tokens))
    ((best, *_),) = beam_search(
        asked.steps, asked.prompt, options=asked.options, state=asked.state, processor=adjust, progress=found.watch
    )
    found.close()
    return found, best


def _data(found: Tree, best: set[int], show: Callable[[int], str]) -> Iterator[dict[str, Any]]:
    for at, step in enumerate(found.steps[1:], 1):
        yield {
            "id": at,
            "parent": step.parent,
            "step": step.length,
            "token": show(step.token),
            "log_prob": round(step.log_prob, 6),
            "token_log_prob": round(_last(found, step), 6),
            "score": round(step.score, 6),
            "fate": step.fate,
            "best": at in best,
        }


def _last(found: Tree, step: Step) -> float:
    """The log-probability of the last token alone."""
    return step.log_prob - found.steps[step.parent].log_prob


def _nodes(found: Tree, best: set[int], show: Callable[[int], str], decode: Callable[[list[int]], str]) -> Iterator[Node]:
    yield Node(None, "start", "", "best", "start of the search")
    for at, step in enumerate(found.steps[1:], 1):
        kind = "best" if at in best else step.fate
        progress = (
            f"{decode(found.output(at))}\n{KINDS[step.fate]}\nlog-probability {step.log_prob:.4f}\nscore {step.score:.4f}"
        )
        progress += f"\nprobability {math.exp(step.log_prob):.4g}, last token {math.exp(_last(found, step)):.4g}"
        yield Node(step.parent, show(step.token), f"{step.score:.2f}", kind, progress)


def _lines(found: Tree, decode: Callable[[list[int]], str], top: int) -> list[str]:
    counts = {kind: sum(step.fate == kind for step in found.steps[1:]) for kind in KINDS}
    progress = align_columns([[f"{count:,}", KINDS[kind]] for kind, count in counts.items() if count], left=(1,))
    ended = sorted(
        (at for at, step in enumerate(found.steps) if step.fate in ("ended", "limit")), key=lambda at: -found.steps[at].score
    )
    rows = [["score", "log-probability", "probability", "output"]]
    for at in ended[:top]:
        score, total = found.steps[at].score, found.steps[at].log_prob
        rows.append([f"{score:.4f}", f"{total:.4f}", f"{math.exp(total):.3g}", decode(found.output(at))])
    return [f"{len(found.steps) - 1:,} hypotheses:", *progress, "best finished hypotheses:", *align_columns(rows, left=(3,))]


def beam_search_tree(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The search tree of `generate` with a beam, or of `predict`, with their `beam_size`, `length_penalty` and
    `max_new_tokens`."""
    asked = _asked(run, check_text(text, "input"), options)
    found, best = build_tree(asked)
    way, tokenizer = found.path(best.tokens), asked.tokenizer
    score = found.steps[way[-1]].score
    data = {
        "tokens": list_tokens(asked.pieces),
        "beam_size": asked.options.beam_size,
        "length_penalty": asked.options.length_penalty,
        "output": tokenizer.decode(best.tokens),
        "score": score,
        "hypotheses": list(_data(found, set(way), tokenizer.token_text)),
    }
    picture = tree(list(_nodes(found, set(way), tokenizer.token_text, tokenizer.decode)))
    title = f"Beam search (beam size {asked.options.beam_size}): {tokenizer.decode(best.tokens)!r}, score {score:.4f}"
    lines = _lines(found, tokenizer.decode, options.top)
    return Explanation("beam-search", title, data, [Figure("Search tree", picture)], lines, guides.SEARCH)
