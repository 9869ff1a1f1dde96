"""How surprising each token of a text is: the nats that a model pays for it, token by token.

Shapes: T tokens, V words.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.errors import DataError
from weft.explain import guides
from weft.explain.inputs import located, special, written
from weft.explain.options import ExplainOptions
from weft.explain.view import Picture, Piece, View, aligned, listed
from weft.models.encoder import Text
from weft.plots.lines import Axis, Series, lines
from weft.plots.token_heatmap import coloured
from weft.text.gate import clean, many

ROWS = 64  # copies of a text that are read at once, each with another gap
BITS = 1 / math.log(2)


class Surprise(NamedTuple):
    pieces: list[Piece]
    nats: np.ndarray  # (T,)
    given: str  # what each token was predicted from


def _of_language(run: Any, text: str, options: ExplainOptions) -> Surprise:
    """Any model that steps, n-grams among them."""
    ends = [special(run.vocabulary, run.reader.end)] if run.reader.end is not None else []
    pieces = [piece for _, piece in [*located(run.vocabulary, text), *ends]]
    if not pieces:  # a tokenizer of words has no token for spaces alone
        raise DataError("input: is empty; there is nothing to be surprised at")
    (found,) = run.score([text])
    return Surprise(pieces, -np.array(found.log_probs), "the tokens before it")


def _of_pairs(run: Any, text: str, options: ExplainOptions) -> Surprise:
    """Each token of a target: of the one given, or of what the run writes."""
    output = written(run, text, options)
    target = options.target
    if target is None:
        target = run.vocabulary.target.decode([number for number, _ in output])
        output = [*located(run.vocabulary.target, target), special(run.vocabulary.target, run.vocabulary.target.end)]
    (found,) = run.score([(text, target)])
    pieces = [piece for _, piece in output]
    return Surprise(pieces, -np.array(found.log_probs), "the source and the tokens before it")


@torch.no_grad()
def _of_gaps(run: Any, text: str, options: ExplainOptions) -> Surprise:
    """Each token hidden in its turn."""
    tokenizer, model = run.vocabulary, run.model
    found = located(tokenizer, text)
    tokens = [tokenizer.begin, *(number for number, _ in found), tokenizer.end]
    if model.longest is not None and len(tokens) > model.longest:
        raise DataError(f"input: has {len(tokens):,} tokens, but {run.folder.path} reads at most {model.longest}; shorten it")
    if not found:
        raise DataError("input: is empty; there is nothing to be surprised at")
    rows = torch.tensor(tokens, device=run.device).expand(len(found), -1).clone()
    at = torch.arange(len(found), device=run.device)
    wanted = rows[0, 1:-1].clone()
    rows[at, at + 1] = model.mask
    nats = []
    for part in torch.split(at, ROWS):
        y = model(Text(rows[part], torch.ones_like(rows[part], dtype=torch.bool)))
        log_probs = model.log_probs(y[torch.arange(len(part)), part + 1])
        nats.append(-log_probs.gather(1, wanted[part, None])[:, 0])
    return Surprise([piece for _, piece in found], torch.cat(nats).double().cpu().numpy(), "all other tokens")


MEASURES = {"lm": _of_language, "translate": _of_pairs, "masked-lm": _of_gaps}


def no_surprisal(run: Any) -> str | None:
    """Why a run is surprised at no text, if it is not."""
    task = run.settings.task
    return None if task in MEASURES else f"a run of task {task!r} predicts no tokens"


def surprise(run: Any, text: str, options: ExplainOptions) -> Surprise:
    """What a run pays for each token of a text."""
    return MEASURES[run.settings.task](run, clean(text, "input"), options)


def _pictures(found: Surprise, bits: np.ndarray) -> list[Picture]:
    tokens, finite = [piece.text for piece in found.pieces], np.where(np.isfinite(bits), bits, np.nan)
    ceiling = float(np.nanmax(finite)) if np.isfinite(bits).any() else 1.0
    shown = np.where(np.isfinite(bits), bits, ceiling)  # what was impossible is as dark as the most surprising
    line = Series("", list(range(1, len(tokens) + 1)), finite.tolist(), labels=tokens)
    return [
        Picture("The text, the more surprising the darker", coloured(tokens, shown, name="surprisal, bits")),
        Picture(
            "Token by token", lines([line], across=Axis("token", names=["", *tokens], every=True), up=Axis("surprisal, bits"))
        ),
    ]


def _lines(found: Surprise, bits: np.ndarray, top: int) -> list[str]:
    order = np.argsort(-bits, kind="stable")[:top]
    rows = [["token", "number", "bits", "probability"]]
    rows += [[repr(found.pieces[at].text), str(at + 1), f"{bits[at]:.2f}", f"{2 ** -bits[at]:.3g}"] for at in order.tolist()]
    mean = bits.mean()
    return [
        f"{many(len(bits), 'token')}, {bits.sum():.2f} bits, {mean:.3f} a token (perplexity {2**mean:.3f}); most surprising:",
        *aligned(rows),
    ]


def surprisal(run: Any, text: str, options: ExplainOptions) -> View:
    """The surprisal of every token of a text; of a translation, of every token of the target."""
    found = surprise(run, text, options)
    bits = found.nats * BITS
    data = {
        "tokens": listed(found.pieces),
        "given": found.given,
        "nats": [value if math.isfinite(value) else None for value in found.nats.tolist()],
        "bits": [value if math.isfinite(value) else None for value in bits.tolist()],
    }
    title = f"How surprising each token is, given {found.given}"
    return View("surprisal", title, data, _pictures(found, bits), _lines(found, bits, options.top), guides.SURPRISAL)
