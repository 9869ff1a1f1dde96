"""Estimators of word vectors: counting, or a loop of its own over the text. A killed training resumes after the last chunk or
epoch that was saved, and gives the same vectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft import files
from weft.data.corpus import write_corpus
from weft.data.provenance import write_fingerprints
from weft.data.source import fingerprints
from weft.errors import ConfigError, DataError, DivergedError, ModelError, TrainingInterrupted
from weft.log import Log
from weft.models.word_windows import Position, keep_probabilities
from weft.tasks.word_vectors.data import read_words, words_of
from weft.tasks.word_vectors.evaluation import score_suites, suite_values
from weft.tensors import not_finite, read_arrays, write_tensors
from weft.text.char_ngrams import CharNgrams
from weft.text.features import Sparse
from weft.training.checkpoint import run_checksum
from weft.vectors.rows import DenseRows, SparseRows
from weft.vectors.word_vectors import Subwords, WordVectors

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.runs.run_dir import RunDir
    from weft.text.tokenizers import Tokenizer

STATE = "train_state.safetensors"  # of an unfinished training
SAVE_SECONDS = 30.0  # between two saved states
Arrays = Mapping[str, NDArray[Any]]


class Text(NamedTuple):
    """The training text: words as rows of the vectors, the line of each, the count of each word."""

    words: NDArray[np.int32]
    lines: NDArray[np.int32]
    counts: NDArray[np.int64]
    names: list[str]
    provenance: str


class Fitted(NamedTuple):
    """Arrays of the model, how many words were read, and values for the log."""

    arrays: Arrays
    tokens: int
    log: Mapping[str, float]


class SavedState:
    """The file with the state of an unfinished training. One of other options or another text is ignored."""

    def __init__(self, job: Job, text: Text) -> None:
        self.path = job.directory.path / STATE
        self.origin = f"{run_checksum(job.directory.path)} {job.tokenizer.hash} {text.provenance}"
        self._time = time.monotonic()

    def load(self) -> tuple[Position, Arrays] | None:
        """The position and arrays of the state; None if there is none."""
        if not self.path.is_file():
            return None
        try:
            arrays, metadata = read_arrays(self.path)
            position = Position(*map(int, metadata.get("position", "").split()))
        except (ModelError, ValueError, TypeError):  # damaged: training starts over
            return None
        return (position, arrays) if metadata.get("origin") == self.origin else None

    def is_due(self) -> bool:
        return time.monotonic() - self._time >= SAVE_SECONDS

    def save(self, position: Position, arrays: Arrays) -> None:
        if (name := not_finite(arrays)) is not None:
            raise DivergedError(self.path.parent, f"training diverged: {name} has NaN or infinite values", "lower model.lr")
        write_tensors(self.path, arrays, {"origin": self.origin, "position": " ".join(map(str, position))})
        self._time = time.monotonic()


Fit = Callable[["Job", Text], Fitted]


def fit_word2vec(job: Job, text: Text) -> Fitted:
    """Skip-gram and CBOW."""
    from weft.models.word2vec_model import Word2Vec

    config = job.config.model
    model = Word2Vec(config, text.counts, text.names, seed=job.config.seed)
    num_epochs, saved, start = config.epochs_for(len(text.words)), SavedState(job, text), Position(0, 0, 0)
    if (state := saved.load()) is not None:
        start = state[0]
        model.restore(state[1])
        job.callback.on_note(f"resuming at epoch {start.epoch + 1} of {num_epochs}")
    loss: float | None = None
    for progress in model.train(text.words, text.lines, num_epochs=num_epochs, start=start):
        loss = loss if progress.loss is None else progress.loss
        _show(job, progress.position.epoch, num_epochs, progress.fraction, loss)
        should_stop = job.callback.should_stop()
        if should_stop or saved.is_due():
            saved.save(progress.position, model.state())
        if should_stop:
            raise TrainingInterrupted(job.directory.path, "interrupted")
    buckets = model.buckets()
    arrays = {"vectors": model.vectors().numpy()} | ({} if buckets is None else {"buckets": buckets.numpy()})
    return Fitted(arrays, len(text.words) * num_epochs, {"epochs": num_epochs} | ({} if loss is None else {"loss": loss}))


def fit_glove(job: Job, text: Text) -> Fitted:
    from weft.models.glove import Glove

    config = job.config.model
    model = Glove(_count(job, text), config, seed=job.config.seed)
    saved, first, loss = SavedState(job, text), 0, 0.0
    tables = {"words": model.parameters[0], "contexts": model.parameters[1]}
    tables |= {"word_squares": model.squares[0], "context_squares": model.squares[1]}
    if (state := saved.load()) is not None:
        first = state[0].epoch
        for name, table in tables.items():
            table.numpy()[:] = state[1][name]
        job.callback.on_note(f"resuming at epoch {first + 1} of {config.num_epochs}")
    for epoch in range(first, config.num_epochs):

        def progress(done: int, total: int, epoch: int = epoch) -> None:
            _show(job, epoch, config.num_epochs, (epoch + done / max(1, total)) / config.num_epochs, None)

        loss = model.train_epoch(epoch, progress)
        should_stop = job.callback.should_stop()
        if should_stop or saved.is_due():
            saved.save(Position(epoch + 1, 0, 0), {name: table.numpy() for name, table in tables.items()})
        if should_stop:
            raise TrainingInterrupted(job.directory.path, "interrupted")
    tokens = len(text.words)
    return Fitted({"vectors": model.vectors().numpy().copy()}, tokens, {"epochs": config.num_epochs, "loss": loss})


def fit_pmi(job: Job, text: Text) -> Fitted:
    from weft.models.pmi import pmi_matrix, pmi_vectors

    config = job.config.model
    matrix = pmi_matrix(_count(job, text), config)
    if not len(matrix.values):
        where, shift = job.config.datasets["train"].name, config.shift
        raise DataError(where, f"no pair of words has a PMI above log {shift:g}", "lower model.shift, or use more text")
    if not config.vector_size:
        arrays = {"indptr": matrix.indptr, "indices": matrix.indices, "values": matrix.values}
        return Fitted(arrays, len(text.words), {})
    progress = partial(job.callback.on_progress, "singular value decomposition")
    return Fitted({"vectors": pmi_vectors(matrix, config, seed=job.config.seed, progress=progress)}, len(text.words), {})


def _count(job: Job, text: Text) -> Any:
    """The counts of pairs, after subsampling."""
    from weft.models.cooccurrence import count_pairs

    config, words, lines = job.config.model, text.words, text.lines
    if config.subsample:
        keep = keep_probabilities(text.counts, config.subsample)
        kept = np.random.default_rng(job.config.seed).random(len(words)) < keep[words]
        words, lines = words[kept], lines[kept]
    progress = partial(job.callback.on_progress, "counting pairs of words")
    pairs = count_pairs(words, lines, len(text.names), window=config.window, weights=config.window_weights, progress=progress)
    if not len(pairs.counts):
        raise DataError(job.config.datasets["train"].name, "no two words are neighbors in a line", "use longer lines")
    return pairs


def _show(job: Job, epoch: int, num_epochs: int, fraction: float, loss: float | None) -> None:
    text = "" if loss is None else f", loss {loss:.3f}"
    job.callback.on_progress(f"training, epoch {epoch + 1} of {num_epochs}{text}", int(1000 * fraction), 1000)


class VectorTrainer:
    """The estimator of one kind of word vectors."""

    by_steps, network_task = False, None

    def __init__(self, fit: Fit) -> None:
        self.fit = fit

    def uses_torch(self, config: RunConfig) -> bool:
        return bool(config.model.vector_size)  # 0: the PMI of words is counted

    def num_parameters(self, config: RunConfig, vocabulary: Tokenizer) -> None:
        """Unknown before training: it depends on the words of the text."""

    def check(self, config: RunConfig) -> None:
        for option in ("init_from", "distill_from"):
            if config.train.model_dump()[option] is not None:
                raise ConfigError(f"train.{option}", "not used with word vectors", "remove it")

    def train(self, job: Job) -> None:
        start_time = time.perf_counter()
        text = _read_text(job)
        fitted = self.fit(job, text)
        seconds = time.perf_counter() - start_time
        vectors = _vectors(job.config, job.tokenizer, fitted.arrays, str(job.directory.path))
        scores = {}
        if "valid" in job.config.datasets:
            scores = suite_values(score_suites(vectors, list(job.config.datasets["valid"].records())))
        with Log(job.directory.path / "metrics.jsonl") as metrics, Log(job.directory.path / "timings.jsonl") as timings:
            metrics.restore()
            valid = {f"valid_{name}": value for name, value in scores.items()}
            metrics.write({"step": 1, "tokens": fitted.tokens, **fitted.log, **valid})
            timings.write({"step": 1, "seconds": seconds})
        job.directory.write_weights(fitted.arrays, job.tokenizer.hash, 1)
        files.remove(job.directory.path / STATE)
        job.callback.on_fit(vectors.num_parameters, scores)

    def load(self, config: RunConfig, vocabulary: Tokenizer, directory: RunDir, device: str) -> WordVectors:
        arrays = directory.read_arrays(vocabulary.hash)
        try:
            return _vectors(config, vocabulary, arrays, str(directory.path))
        except (KeyError, ValueError):
            raise ModelError(directory.weights, "does not match resolved.toml and tokenizer.json") from None

    def chosen_options(self, model: WordVectors) -> dict[str, Any]:
        return {}


def _read_text(job: Job) -> Text:
    """Write the tokens of the text, and read its words."""
    files.make_subdirectory(job.directory.data)
    for split, source in job.config.datasets.items():
        if split != "train":  # its corpus has them
            write_fingerprints(job.directory.data, split, fingerprints(source.paths))
    progress = partial(job.callback.on_progress, "tokenizing")
    corpus = write_corpus(job.config.datasets["train"], job.tokenizer, job.directory.data, "train", progress=progress)
    words, lines = read_words(corpus)
    names = words_of(job.tokenizer)
    return Text(words, lines, np.bincount(words, minlength=len(names)), names, corpus.provenance)


def _vectors(config: RunConfig, vocabulary: Tokenizer, arrays: Arrays, name: str) -> WordVectors:
    """The vectors of trained arrays."""
    words, options = words_of(vocabulary), config.model
    if "vectors" not in arrays:
        matrix = Sparse(arrays["indptr"], arrays["indices"], arrays["values"], len(words))
        return WordVectors(words, SparseRows(matrix), name=name)
    if arrays["vectors"].shape != (len(words), options.vector_size):
        raise ValueError("vectors of another shape")
    subwords = None
    if "buckets" in arrays:
        ngrams = CharNgrams(options.min_char_ngram, options.max_char_ngram, len(arrays["buckets"]))
        subwords = Subwords(ngrams, arrays["buckets"])
    return WordVectors(words, DenseRows(arrays["vectors"]), name=name, subwords=subwords)
