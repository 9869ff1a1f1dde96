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
from weft.metrics.lm import EvaluationSetup
from weft.metrics.masked_lm import masked_scores
from weft.runs.eval_data import EvalData
from weft.tasks import embedding
from weft.tasks.embedding import EmbeddingOutput
from weft.tasks.invalid_inputs import read_text
from weft.tasks.masked_lm.compare import observe
from weft.tasks.spec import Evaluation, Fault, Files, Options, Progress, ProgressCallback, phase
from weft.text.tokenizers import Tokenizer
from weft.text.whole_words import word_boundaries

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.masked_lm.objective import PseudoLogLikelihood

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
        self.run, self.directory, self.config, self.device = run, run.directory, run.config, run.device
        self.tokenizer: Tokenizer = run.vocabulary

    @property
    def model(self) -> Any:
        """The model itself: `forward`, `log_probs`, `loss`, and its `encoder`."""
        return self.run.model

    @property
    def lines(self) -> bool:
        return bool(self.config.data.read_as == "lines")

    # ---- gaps

    def fault(self, tokens: Sequence[int]) -> str | None:
        """Why a text can't be filled, if it can't."""
        if self.tokenizer.vocab_size not in tokens:
            return f"has no {MASKS[0]}; write it where a token is missing"
        max_length = self.model.max_positions
        if max_length is not None and len(tokens) > max_length:
            return f"has {len(tokens):,} tokens, but {self.directory.path} reads at most {max_length}; shorten it"
        return None

    @property
    def gaps(self) -> re.Pattern[str]:
        """What a gap looks like in a text."""
        return _SPACED if word_boundaries(self.tokenizer) == "bytes" and self.tokenizer.type != "byte" else _MASK

    def tokens(self, text: str) -> list[int]:
        """<s>, the tokens of a text with its gaps, </s>."""
        parts = self.gaps.split(text)
        first, *others = self.tokenizer.encode_batch(parts)
        found = [self.tokenizer.bos_id, *first.tolist()]
        for ids in others:
            found += [self.tokenizer.vocab_size, *ids.tolist()]
        return [*found, self.tokenizer.eos_id]

    def fill(self, tokens: list[int], n: int) -> list[list[Filling]]:
        from weft.tasks.masked_lm.objective import best_tokens

        # special tokens are no text, and the mask is no answer
        found = best_tokens(self.model, tokens, n, among=range(3, self.tokenizer.vocab_size), device=self.device)
        return [[Filling(self._shown(number), value) for number, value in best] for best in found]

    def _shown(self, number: int) -> str:
        """A token as it looks in a text; what is no whole character, by its name."""
        text = self.tokenizer.decode([number])
        return text if text and "\ufffd" not in text else self.tokenizer.token_text(number)

    # ---- whole texts

    def nats(
        self,
        data: Files | None = None,
        *,
        progress: ProgressCallback | None = None,
        reading: ProgressCallback | None = None,
    ) -> tuple[PseudoLogLikelihood, Corpus]:
        """Nats of every token of a text when it alone is hidden, and the text's tokens."""
        import torch

        from weft.tasks.masked_lm.objective import token_pseudo_nll

        window = self.config.data.context_length
        with TemporaryDirectory() as place, torch.inference_mode():  # what was mapped stays when the file is gone
            corpus = EvalData(self.directory, self.config, self.tokenizer).corpus(data, Path(place), reading)
            return token_pseudo_nll(self.model, corpus, window=window, device=self.device, progress=progress), corpus

    def measured(self) -> EvaluationSetup:
        """How scores of the run are come by."""
        unit = "line" if self.lines else "window"
        context = "masked:line" if self.lines else f"masked:window/{self.config.data.context_length}"
        return EvaluationSetup(context, unit, self.tokenizer.hash)


def predict(
    run: Run[str, Filled], texts: Sequence[str], options: FillOptions, progress: Progress | None
) -> list[Filled | Fault]:
    """For each text and each [MASK] in it the `n` most probable tokens, best first."""
    if options.n < 1:
        raise UsageError("fill", f"n must be at least 1, not {options.n}")
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
    from weft.tasks.masked_lm.objective import pseudo_likelihood_items

    reader: MaskedReader = run.reader
    hidden, corpus = reader.nats(data, progress=phase(progress, "evaluating"), reading=phase(progress, "tokenising"))
    items = pseudo_likelihood_items(hidden)
    scores, tokens = masked_scores(items, reader.measured()), int(items.statistics["tokens"].sum())
    return Evaluation(scores, items, partial(observe, run, hidden, items, corpus), "tokens/s filled", tokens)


def embed(run: Run[str, Filled], texts: Sequence[str], pool: str, progress: Progress | None) -> EmbeddingOutput:
    return embedding.embed_texts(run, run.vocabulary, texts, pool, max_length=run.model.max_positions, progress=progress)
