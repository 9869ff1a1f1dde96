"""The search tree of beam search: every hypothesis, its score, and why it ended.

Shapes: K beams, V vocabulary size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.decode.beam import BeamEvent, BeamOptions, Hypothesis, beam_search
from weft.decode.incremental import IncrementalModel
from weft.decode.logits_processors import LogitsProcessor, ban_tokens
from weft.decode.options import resolve_patience
from weft.errors import UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, TokenSpan, align_columns, list_tokens
from weft.explain.inputs import explain_spec, special_token, token_spans
from weft.explain.options import ExplainConfig
from weft.plots import tree as tree_plot
from weft.plots.tree import KINDS, Node
from weft.runs.run import AnyRun
from weft.text.reading import check_text
from weft.text.tokenizers import Tokenizer

ROOT = 0
MAX_NODES = 3000  # more is too large for a page, and nobody can read it


class SearchNode(NamedTuple):
    """One hypothesis of the search."""

    parent: int  # index of the node that it extends; -1 for the root
    token: int  # its last token
    length: int  # number of generated tokens, including EOS
    log_prob: float  # sum of processed log-probabilities
    score: float  # with the length penalty
    fate: str  # a key of plots.tree.KINDS other than "best"


class SearchTree:
    """Records a search of one sentence, step by step."""

    def __init__(self, options: BeamOptions) -> None:
        self.options = options
        self.nodes = [SearchNode(-1, -1, 0, 0.0, 0.0, "kept")]
        self.beams: list[int | None] = [ROOT]  # K active nodes; None for an empty beam
        self._banned = list[tuple[int, int, float]]()  # banned candidates of the next step: beam, token, log_prob

    def record_banned(self, processor: LogitsProcessor) -> LogitsProcessor:
        """The processor, with a record of the most probable tokens that it bans."""

        def process(log_probs: Tensor, tokens: Tensor) -> Tensor:
            processed = processor(log_probs, tokens)
            sums = [-math.inf if node is None else self.nodes[node].log_prob for node in self.beams]
            totals = log_probs.double().cpu() + torch.tensor(sums, dtype=torch.float64)[:, None]  # (K, V)
            banned = totals.masked_fill(~processed.isneginf().cpu(), -math.inf)
            values, indices = banned.flatten().topk(min(self.options.beam_size, banned.numel()))
            vocab_size = banned.size(1)
            self._banned = [
                (index // vocab_size, index % vocab_size, value)
                for value, index in zip(values.tolist(), indices.tolist(), strict=True)
                if value > -math.inf
            ]
            return processed

        return process

    def _add(self, parent: int | None, token: int, log_prob: float, fate: str) -> int:
        parent = ROOT if parent is None else parent
        length = self.nodes[parent].length + 1
        score = log_prob / length**self.options.length_penalty
        self.nodes.append(SearchNode(parent, token, length, log_prob, score, fate))
        return len(self.nodes) - 1

    def _fate(self, rank: int, token: int, survivors: Sequence[int]) -> str:
        """The fate of the candidate with this rank in a step."""
        if token == self.options.eos_id:
            # EOS counts only among the `beam_size` best candidates of a step
            return "ended" if rank < self.options.beam_size else "late"
        # with beam size 1, only the best candidate can continue: if that is EOS, the search has ended
        return "kept" if rank in survivors and (rank == 0 or self.options.beam_size > 1) else "cut"

    def record(self, event: BeamEvent) -> None:
        """Add the candidates of one step."""
        if len(self.nodes) > MAX_NODES:
            raise UsageError(
                "beam search",
                f"{len(self.nodes) - 1:,} hypotheses of {self.nodes[-1].length} tokens; a tree of more than {MAX_NODES:,} is"
                " not shown",
                "lower max_new_tokens or beam_size",
            )
        survivors = event.survivors[0].tolist()
        candidates = zip(event.tokens[0].tolist(), event.parents[0].tolist(), event.scores[0].tolist(), strict=True)
        parents, continued = self.beams, dict[int, int]()  # nodes by rank
        for rank, (token, parent, log_prob) in enumerate(candidates):
            if log_prob > -math.inf:
                fate = self._fate(rank, token, survivors)
                node = self._add(parents[parent], token, log_prob, fate)
                if fate == "kept":
                    continued[rank] = node
        # a ban had an effect only on tokens that would have ranked among the continued candidates
        minimum = min((self.nodes[node].log_prob for node in continued.values()), default=-math.inf)
        for beam, token, log_prob in self._banned:
            if log_prob > minimum:
                self._add(parents[beam], token, log_prob, "banned")
        self.beams = [continued.get(rank) for rank in survivors]

    def finish(self) -> None:
        """Mark the active hypotheses at the end of the search: at the length limit, or earlier if none could win or enough
        others have finished."""
        num_finished = sum(node.fate == "ended" for node in self.nodes)
        early = "hopeless" if num_finished < self.options.max_finished else "stopped"
        for index in (node for node in self.beams if node is not None and node != ROOT):
            node = self.nodes[index]
            fate = early if node.length < self.options.max_new_tokens else "limit"
            self.nodes[index] = node._replace(fate=fate)

    def output(self, index: int) -> list[int]:
        """The tokens of a hypothesis."""
        tokens = list[int]()
        while index != ROOT:
            tokens.append(self.nodes[index].token)
            index = self.nodes[index].parent
        return tokens[::-1]

    def path(self, tokens: list[int]) -> list[int]:
        """The indices of the nodes that lead to a hypothesis, without the root."""
        path, parent = list[int](), ROOT
        for token in tokens:
            parent = next(i for i, node in enumerate(self.nodes) if node.parent == parent and node.token == token)
            path.append(parent)
        return path

    def token_log_prob(self, node: SearchNode) -> float:
        """The log-probability of the last token of a hypothesis."""
        return node.log_prob - self.nodes[node.parent].log_prob


class _Search(NamedTuple):
    """The arguments of a search of one sentence."""

    model: IncrementalModel[Any]
    prompt: Tensor
    state: Any
    options: BeamOptions
    banned_tokens: Sequence[int]
    tokenizer: Tokenizer  # of the output
    spans: list[TokenSpan]  # of the input


def why_not_single_model(run: AnyRun) -> str | None:
    """Why outputs of an ensemble, or with shallow fusion, are not explained, or None."""
    return "ensembles and shallow fusion cannot be explained" if len(run.members) > 1 or run.lm is not None else None


def why_no_search(run: AnyRun) -> str | None:
    """Why beam search is not available, or None."""
    if run.spec.decode is None:
        return f"task {run.config.task!r} has no decoding"
    return why_not_single_model(run)


def _prepare(run: AnyRun, text: str, options: ExplainConfig) -> _Search:
    """The search of `generate --beam-size`, or of `predict`."""
    decode = run.spec.decode
    if decode is None:
        raise UsageError("view", f"beam-search is not available: {why_no_search(run)}")
    tokenizer, state = explain_spec(run).tokenizers(run)[0], None
    tokens = token_spans(tokenizer, text)
    if decode.encode_source is not None:
        tokens.append(special_token(tokenizer, tokenizer.eos_id))
        with torch.no_grad():
            state = decode.encode_source(run, text)
    length_penalty = decode.length_penalty if options.length_penalty is None else options.length_penalty
    beam_options = BeamOptions(
        decode.beam_size if options.beam_size is None else options.beam_size,
        decode.max_new_tokens(run, text) if options.max_new_tokens is None else options.max_new_tokens,
        decode.eos_id(run),
        length_penalty,
        patience=resolve_patience(options.patience, length_penalty),
    )
    prompt = torch.tensor([list(decode.prompt_ids(run, text))], device=run.device)
    spans = [span for _, span in tokens]
    return _Search(
        decode.incremental_model(run),
        prompt,
        state,
        beam_options,
        decode.suppressed_tokens(run),
        decode.target_tokenizer(run),
        spans,
    )


def _run_search(search: _Search) -> tuple[SearchTree, Hypothesis]:
    """The search tree and the best hypothesis."""
    tree = SearchTree(search.options)
    processor = tree.record_banned(ban_tokens(search.banned_tokens))
    ((best, *_),) = beam_search(
        search.model, search.prompt, options=search.options, state=search.state, processor=processor, progress=tree.record
    )
    tree.finish()
    return tree, best


def _data(tree: SearchTree, best_path: set[int], token_text: Callable[[int], str]) -> Iterator[dict[str, Any]]:
    for i, node in enumerate(tree.nodes[1:], 1):
        yield {
            "id": i,
            "parent": node.parent,
            "step": node.length,
            "token": token_text(node.token),
            "log_prob": round(node.log_prob, 6),
            "token_log_prob": round(tree.token_log_prob(node), 6),
            "score": round(node.score, 6),
            "fate": node.fate,
            "best": i in best_path,
        }


def _plot_nodes(tree: SearchTree, best_path: set[int], tokenizer: Tokenizer) -> Iterator[Node]:
    yield Node(None, "start", "", "best", "start of the search")
    for i, node in enumerate(tree.nodes[1:], 1):
        tooltip = [
            tokenizer.decode(tree.output(i)),
            KINDS[node.fate],
            f"log-probability {node.log_prob:.4f}",
            f"score {node.score:.4f}",
            f"probability {math.exp(node.log_prob):.4g}, last token {math.exp(tree.token_log_prob(node)):.4g}",
        ]
        kind = "best" if i in best_path else node.fate
        yield Node(node.parent, tokenizer.token_text(node.token), f"{node.score:.2f}", kind, "\n".join(tooltip))


def _lines(tree: SearchTree, decode: Callable[[list[int]], str], top: int) -> list[str]:
    counts = Counter(node.fate for node in tree.nodes[1:])
    fates = align_columns([[f"{counts[kind]:,}", KINDS[kind]] for kind in KINDS if counts[kind]], left=(1,))
    finished = [i for i, node in enumerate(tree.nodes) if node.fate in ("ended", "limit")]
    rows = [["score", "log-probability", "probability", "output"]]
    for i in sorted(finished, key=lambda i: -tree.nodes[i].score)[:top]:
        score, log_prob = tree.nodes[i].score, tree.nodes[i].log_prob
        rows.append([f"{score:.4f}", f"{log_prob:.4f}", f"{math.exp(log_prob):.3g}", decode(tree.output(i))])
    return [f"{len(tree.nodes) - 1:,} hypotheses:", *fates, "best finished hypotheses:", *align_columns(rows, left=(3,))]


def beam_search_tree(run: AnyRun, text: str, options: ExplainConfig) -> Explanation:
    """The search tree of `generate` with a beam, or of `predict`, with their `beam_size`, `length_penalty`, `patience` and
    `max_new_tokens`."""
    search = _prepare(run, check_text(text, "input"), options)
    tree, best = _run_search(search)
    path, tokenizer = tree.path(best.tokens), search.tokenizer
    output, score = tokenizer.decode(best.tokens), tree.nodes[path[-1]].score
    data = {
        "tokens": list_tokens(search.spans),
        "beam_size": search.options.beam_size,
        "length_penalty": search.options.length_penalty,
        "output": output,
        "score": score,
        "hypotheses": list(_data(tree, set(path), tokenizer.token_text)),
    }
    svg = tree_plot.tree(list(_plot_nodes(tree, set(path), tokenizer)))
    title = f"Beam search (beam size {search.options.beam_size}): {output!r}, score {score:.4f}"
    lines = _lines(tree, tokenizer.decode, options.top)
    return Explanation("beam-search", title, data, [Figure("Search tree", svg)], lines, guides.SEARCH)
