"""The [model] tables of word vectors."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from weft.config import Choice, Config, invalid

LOSSES = ("negative-sampling", "hierarchical-softmax")
WINDOW_WEIGHTS = ("dynamic", "harmonic", "flat")
TARGET_WORDS, MIN_EPOCHS, MAX_EPOCHS = 50_000_000, 5, 30  # of training by default: a small text is read more often


class WindowConfig(Config):
    """The options of all word vectors."""

    vector_size: int = Field(100, ge=1, le=65536)
    """Dimensions of the vectors."""
    window: int = Field(5, ge=1, le=100)
    """Maximum distance between a word and its context words."""

    def with_defaults(self) -> Self:
        return self


class Word2VecConfig(WindowConfig):
    """Skip-gram or CBOW, with or without character n-grams."""

    cbow: bool = False
    """Predict a word from the mean of its context words (CBOW), instead of each context word from the word (skip-gram)."""
    loss: Annotated[str, Choice(LOSSES, "loss")] = "negative-sampling"
    """How outputs are scored: against sampled words, or along the path of a word in a binary tree."""
    negatives: float = Field(5.0, gt=0, le=1000)
    """Negative samples per pair of words. Their weight is what counts: the pairs of a chunk share their samples."""
    negative_power: float = Field(0.75, ge=0, le=1)
    """Negative samples are drawn with the count of a word to this power."""
    subsample: float = Field(1e-4, ge=0, le=1)
    """Words with a higher relative frequency are randomly skipped; 0: none."""
    num_epochs: int | None = Field(None, ge=1, le=10_000)
    """Passes over the text. Default: 5 to 30, more for a small text."""
    lr: float = Field(0.025, gt=0, le=10)
    """Learning rate at the start. It falls linearly to almost 0."""
    max_char_ngram: int = Field(0, ge=0, le=20)
    """Longest character n-gram that is part of a word's vector, as in fastText; 0: none, and unseen words have no vector."""
    min_char_ngram: int | None = Field(None, ge=1, le=20)
    """Shortest character n-gram, by default 3."""
    buckets: int | None = Field(None, ge=1, le=10_000_000)
    """Vectors that the character n-grams share, by their hash; by default 200,000."""
    add_contexts: bool | None = None
    """Add the output vector of a word to its input vector. Default: true, if words have output vectors."""

    @model_validator(mode="after")
    def check_options(self) -> Self:
        for name in ("min_char_ngram", "buckets") if not self.max_char_ngram else ():
            if getattr(self, name) is not None:
                raise invalid(name, "not used without max_char_ngram", "set max_char_ngram or remove it")
        if self.max_char_ngram and (self.min_char_ngram or 3) > self.max_char_ngram:
            raise invalid("max_char_ngram", f"must be at least min_char_ngram ({self.min_char_ngram or 3})")
        if self.add_contexts and self.loss != "negative-sampling":
            raise invalid("add_contexts", f"with loss {self.loss!r}, words have no output vectors", "remove it")
        if self.add_contexts and self.max_char_ngram:
            raise invalid("add_contexts", "unseen words have no output vectors", "remove it or max_char_ngram")
        return self

    def with_defaults(self) -> Self:
        if not self.max_char_ngram:
            add_contexts = self.loss == "negative-sampling" if self.add_contexts is None else self.add_contexts
            return self.model_copy(update={"add_contexts": add_contexts})
        return self.model_copy(update={"min_char_ngram": self.min_char_ngram or 3, "buckets": self.buckets or 200_000})

    def epochs_for(self, num_words: int) -> int:
        """The number of epochs for a text."""
        if self.num_epochs is not None:
            return self.num_epochs
        return int(min(MAX_EPOCHS, max(MIN_EPOCHS, round(TARGET_WORDS / max(1, num_words)))))


class CountConfig(WindowConfig):
    """How co-occurrences are counted."""

    window_weights: Annotated[str, Choice(WINDOW_WEIGHTS, "weights")] = "dynamic"
    """Weight of a context word at distance d of a window w. dynamic: (w - d + 1) / w, that of word2vec on average. harmonic:
    1 / d. flat: 1."""
    subsample: float = Field(1e-4, ge=0, le=1)
    """Words with a higher relative frequency are randomly skipped, so that windows reach farther; 0: none."""


class PMIConfig(CountConfig):
    """Pointwise mutual information of words and context words, and its singular vectors."""

    vector_size: int = Field(100, ge=0, le=65536)
    """Dimensions of the vectors; 0: the rows of the PMI matrix themselves."""
    positive: bool = True
    """Replace negative values by 0 (PPMI). Pairs that never occur have 0 in any case."""
    context_power: float = Field(0.75, gt=0, le=1)
    """Raise the counts of context words to this power: rare contexts get less weight."""
    shift: float = Field(5.0, ge=1, le=1000)
    """Subtract the logarithm of this number, as k negative samples do."""
    eigenvalue_power: float = Field(0.5, ge=0, le=1)
    """Multiply singular vectors by their singular values to this power."""


class GloveConfig(CountConfig):
    """GloVe: log counts as dot products, by weighted least squares (Pennington et al. 2014)."""

    window: int = Field(10, ge=1, le=100)
    window_weights: Annotated[str, Choice(WINDOW_WEIGHTS, "weights")] = "harmonic"
    subsample: float = Field(0.0, ge=0, le=1)
    x_max: float = Field(100.0, gt=0)
    """Pairs with at least this count have weight 1."""
    weight_power: float = Field(0.75, ge=0, le=2)
    """Rarer pairs have the weight (count / x_max) to this power."""
    num_epochs: int = Field(25, ge=1, le=10_000)
    """Passes over the counts."""
    lr: float = Field(0.05, gt=0, le=10)
    """Learning rate of AdaGrad."""
