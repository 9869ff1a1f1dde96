"""What a masked language model says: tokens for masks, scores, vectors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.data.corpus import Corpus
from weft.errors import UsageError
from weft.metrics.language import Measured
from weft.metrics.masked import masked_scores
from weft.runs.eval_data import HeldOut
from weft.tasks import embedding
from weft.tasks.embedding import Embedded
from weft.tasks.faults import read_text
from weft.tasks.masked_lm.compare import observe
from weft.tasks.spec import Evaluation, Fault, Files, Options, Progress, Watch, phase
from weft.text.tokenizers import Tokenizer
from weft.text.whole_words import pieces

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.masked_lm.objective import Hidden

MASKS = ("[MASK]", "<mask>")
_MASK = re.compile("|".join(map(re.escape, MASKS)))
_SPACED = re.compile(" ?(?:" + "|".join(map(re.escape, MASKS)) + ")")  # where a space is a part of the token after it


class Filling(NamedTuple):
    token: str
    probability: float


Filled = list[list[Filling]]  # of each mask the best tokens, best first


class FillOptions(Options):
    """How masks are filled."""

    n: int = 5  # tokens for each mask


class MaskedReader:
    """A masked language model that reads texts with masks."""

    def __init__(self, run: Run[str, Filled]) -> None:
        self.run, self.folder, self.settings, self.device = run, run.folder, run.settings, run.device
        self.tokenizer: Tokenizer = run.vocabulary

    @property
    def model(self) -> Any:
        """The model itself: `forward`, `log_probs`, `loss`, and its `encoder`."""
        return self.run.model

    @property
    def lines(self) -> bool:
        return bool(self.settings.data.read == "lines")

    # ---- gaps

    def fault(self, tokens: Sequence[int]) -> str | None:
        """Why a text can't be filled, if it can't."""
        if self.tokenizer.size not in tokens:
            return f"has no {MASKS[0]}; write it where a token is missing"
        longest = self.model.longest
        if longest is not None and len(tokens) > longest:
            return f"has {len(tokens):,} tokens, but {self.folder.path} reads at most {longest}; shorten it"
        return None

    @property
    def gaps(self) -> re.Pattern[str]:
        """What a gap looks like in a text."""
        return _SPACED if pieces(self.tokenizer) == "bytes" and self.tokenizer.kind != "byte" else _MASK

    def tokens(self, text: str) -> list[int]:
        """<s>, the tokens of a text with its gaps, </s>."""
        parts = self.gaps.split(text)
        first, *others = self.tokenizer.encode_batch(parts)
        found = [self.tokenizer.begin, *first.tolist()]
        for ids in others:
            found += [self.tokenizer.size, *ids.tolist()]
        return [*found, self.tokenizer.end]

    def fill(self, tokens: list[int], n: int) -> list[list[Filling]]:
        from weft.tasks.masked_lm.objective import best_tokens

        # special tokens are no text, and the mask is no answer
        found = best_tokens(self.model, tokens, n, among=range(3, self.tokenizer.size), device=self.device)
        return [[Filling(self._shown(number), value) for number, value in best] for best in found]

    def _shown(self, number: int) -> str:
        """A token as it looks in a text; what is no whole character, by its name."""
        text = self.tokenizer.decode([number])
        return text if text and "\ufffd" not in text else self.tokenizer.show(number)

    # ---- whole texts

    def nats(
        self,
        data: Files | None = None,
        *,
        watch: Watch | None = None,
        reading: Watch | None = None,
    ) -> tuple[Hidden, Corpus]:
        """Nats of every token of a text when it alone is hidden, and the text's tokens."""
        import torch

        from weft.tasks.masked_lm.objective import hidden_nats

        window = self.settings.data.window
        with TemporaryDirectory() as place, torch.inference_mode():  # what was mapped stays when the file is gone
            corpus = HeldOut(self.folder, self.settings, self.tokenizer).corpus(data, Path(place), reading)
            return hidden_nats(self.model, corpus, window=window, device=self.device, watch=watch), corpus

    def measured(self) -> Measured:
        """How scores of the run are come by."""
        unit = "line" if self.lines else "window"
        context = "masked:line" if self.lines else f"masked:window/{self.settings.data.window}"
        return Measured(context, unit, self.tokenizer.hash)


def predict(
    run: Run[str, Filled], texts: Sequence[str], options: FillOptions, progress: Progress | None
) -> list[Filled | Fault]:
    """For each text and each [MASK] in it the `n` most probable tokens, best first."""
    if options.n < 1:
        raise UsageError(f"fill: n must be at least 1, not {options.n}")
    reader: MaskedReader = run.reader
    found: list[Filled | Fault] = []
    for number, given in enumerate(texts, 1):
        text = read_text(given)
        tokens = [] if isinstance(text, Fault) else reader.tokens(text)
        reason = text.reason if isinstance(text, Fault) else reader.fault(tokens)
        found.append(reader.fill(tokens, options.n) if reason is None else Fault(reason))
        if progress is not None:
            progress("predicting", number, len(texts))
    return found


def evaluate(run: Run[str, Filled], data: Files | None, options: Options, progress: Progress | None) -> Evaluation:
    """Pseudo-perplexity over a whole text, line by line, or window by window of running text."""
    from weft.tasks.masked_lm.objective import hidden_items

    reader: MaskedReader = run.reader
    hidden, corpus = reader.nats(data, watch=phase(progress, "evaluating"), reading=phase(progress, "tokenising"))
    items = hidden_items(hidden)
    scores, tokens = masked_scores(items, reader.measured()), int(items.statistics["tokens"].sum())
    return Evaluation(scores, items, partial(observe, run, hidden, items, corpus), "tokens/s filled", tokens)


def embed(run: Run[str, Filled], texts: Sequence[str], pool: str, progress: Progress | None) -> Embedded:
    return embedding.embed_texts(run, run.vocabulary, texts, pool, longest=run.model.longest, progress=progress)
