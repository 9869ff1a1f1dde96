"""The definition of a task: one record of functions for commands, training, comparisons and explanations.

Start with `Task`, at the end of this file; the classes before it are the types of its fields, by topic. `Data`, how a task
reads and tokenizes data, is in `data_spec`, and `Compare` in `compare_spec`.

Optional fields are capabilities: a task with `embed=None` has models without a text encoder. This module does not import torch
or numpy at run time, so that the command line can list tasks without them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from weft.config import Config
from weft.errors import DataError
from weft.html import html_table
from weft.metrics.score_table import TITLES, default_scores, score_rows
from weft.tasks.compare_spec import Compare, Predictions
from weft.text.table_layout import columns

if TYPE_CHECKING:
    import numpy as np

    from weft.decode.cache_options import Cache, CacheConfig
    from weft.decode.generate import Continuation, ContinueCallback, Frame
    from weft.decode.incremental import IncrementalModel
    from weft.decode.options import GenerationConfig
    from weft.decode.predict import Search
    from weft.explain.explanation import Explanation, TokenSpan
    from weft.explain.inputs import ModelInput
    from weft.explain.logit_lens import Readout
    from weft.explain.options import ExplainConfig
    from weft.explain.sparse_attribution import SparseAttribution
    from weft.explain.stacks import Stack
    from weft.explain.surprisal import SurprisalResult
    from weft.metrics.items import ItemStatistics, Score
    from weft.metrics.metric import Suite
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.runs.run import Run
    from weft.runs.run_dir import RunDir
    from weft.tasks.data_spec import Data
    from weft.tasks.embedding import EmbeddingOutput
    from weft.tasks.lines import Lines
    from weft.tasks.recipe import Recipes
    from weft.text.tokenizers import Tokenizer
    from weft.training.neural import NetworkTask
    from weft.training.sample_outputs import Samples
    from weft.training.weight_compatibility import Weights
    from weft.vectors.word_vectors import WordVectors

I = TypeVar("I")  # noqa: E741  # an input: a text, a tuple of texts, a sentence
P = TypeVar("P")  # a prediction
R = TypeVar("R")  # the result for one input
Progress = Callable[[str, int, int], None]  # phase, done, total
ProgressCallback = Callable[[int, int], None]  # done, total, in one phase
FileView = Callable[["Run[Any, Any]", str, "ExplainConfig", Callable[[float, str], None]], "Explanation"]
Files = str | Path | Sequence[str | Path]


def phase(progress: Progress | None, name: str) -> ProgressCallback | None:
    """The progress callback of one phase."""
    return None if progress is None else partial(progress, name)


class InvalidInput(NamedTuple):
    """The result for an input that cannot be used, with the reason."""

    reason: str


class InputSpec(NamedTuple):
    """What one input of a run is."""

    kind: str = "text"  # text, pair, words (a text or a list of words), audio, image, video or features
    names: tuple[str, ...] = ("text",)  # of the texts of an input


class Options(Config):
    """Options of prediction or evaluation. Tasks add fields."""


class LabelOptions(Options):
    """Options of the evaluation of labels and tags."""

    strict: bool = False  # raise an error for labels that are not in the training data, instead of counting them as wrong


# ---- models and their training


class Estimator(Protocol):
    """Checks, trains and loads the models of a preset."""

    @property
    def by_steps(self) -> bool:
        """Whether training has steps and a budget; otherwise the model is fitted in one pass."""

    @property
    def network_task(self) -> NetworkTask[Any] | None:
        """The task-specific part of training networks; None if the models are not networks."""

    def uses_torch(self, config: RunConfig) -> bool:
        """Whether training needs torch, which takes longer to import than many models take to fit."""

    def num_parameters(self, config: RunConfig, vocabulary: Any) -> int | None:
        """The number of parameters; None if it depends on the data."""

    def check(self, config: RunConfig) -> None:
        """Refuse invalid combinations of options."""

    def train(self, job: Job) -> None:
        """Train the model and write its best weights to the run directory."""

    def load(self, config: RunConfig, vocabulary: Any, directory: RunDir, device: str) -> Any:
        """The trained model itself, without a wrapper."""

    def chosen_options(self, model: Any) -> dict[str, Any]:
        """The options of [model] that training chose on validation data, for a model that is trained without any."""


def override(values: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a preset, replaced by the options of a run file."""
    return {**values, **options}


class SearchDimension(NamedTuple):
    """The values of one option of [model] in a hyperparameter search."""

    option: str  # such as "features.ngrams"
    values: Sequence[Any]
    requires: tuple[str, Any] | None = None  # an option and the value that it must have for this one to matter


class Preset(NamedTuple):
    """A named architecture: its configuration class, the values that differ from the defaults, and its estimator."""

    estimator: Estimator
    config_class: type[Any]
    values: Mapping[str, Any] = {}
    train_defaults: Mapping[str, Any] = {}
    merge: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] = override
    search_space: Sequence[SearchDimension] = ()  # for models without training steps; others search lr and hidden_size
    unit: str = "parameters"  # the unit of the model size

    def merged(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of [model]: those of the preset, overridden by those of a run file."""
        return self.merge(self.values, options)


# ---- results


@dataclass(frozen=True)
class Evaluation:
    """Scores of a run on a data set.

    Attributes:
        scores: The scores by the name of the metric, the main metric first.
        items: The statistics of single items that the scores are computed from.
        details: Computes the inputs, references and frequencies of the items, for comparisons.
        unit: The unit of `units` per second, such as "texts/s".
        units: How many texts, lines or tokens were processed.
        report: Text tables: scores by label, confusion matrix.
        unseen_labels: Labels that are not in the training data, with their counts; None for tasks without labels.
        notes: Remarks on the data.
    """

    scores: dict[str, Score]
    items: ItemStatistics
    details: Callable[[], Predictions]
    unit: str
    units: int
    report: str = ""
    unseen_labels: Counter[str] | None = None
    notes: tuple[str, ...] = ()

    @property
    def predictions(self) -> list[str] | None:
        """The output for each item, as text; None if the model outputs no text."""
        return self.items.outputs

    def __iter__(self) -> Iterator[Score]:
        return iter(self.scores.values())

    def __getitem__(self, name: str) -> Score:
        if name not in self.scores:
            raise KeyError(f"{name}; available: {', '.join(self.scores)}")
        return self.scores[name]

    def __str__(self) -> str:
        """The table of `weft evaluate`."""
        return columns([TITLES, *score_rows(default_scores(list(self)))]).rstrip("\n")

    def __repr__(self) -> str:
        scores = (f"{name}={value} {interval}" for name, value, interval in score_rows(self))
        return f"Evaluation({', '.join(scores)})"

    def _repr_html_(self) -> str:
        return html_table(TITLES, score_rows(default_scores(list(self))))


def scores_by_name(scores: Sequence[Score]) -> dict[str, Score]:
    """Scores as `Evaluation.scores` stores them."""
    return {score.name: score for score in scores}


def raise_first_invalid(results: Sequence[R | InvalidInput]) -> list[R]:
    """The results. Raises DataError for the first input that is invalid."""
    for number, result in enumerate(results, 1):
        if isinstance(result, InvalidInput):
            raise DataError(f"line {number}", result.reason)
    return [result for result in results if not isinstance(result, InvalidInput)]


def no_unknown_tokens(run: Run[Any, Any], inputs: Sequence[Any]) -> Sequence[str]:
    """The default of `Task.unknown_tokens`."""
    return ()


# ---- tasks whose models generate tokens


class Scored(Protocol):
    """The log-probability of a text and of its tokens, in nats."""

    @property
    def text(self) -> str: ...

    @property
    def log_prob(self) -> float: ...

    @property
    def perplexity(self) -> float: ...

    @property
    def tokens(self) -> list[str]: ...

    @property
    def token_log_probs(self) -> list[float]: ...


class StreamedText(NamedTuple):
    """The text of an utterance of a stream, after a change."""

    utterance: int  # from 1
    text: str  # so far
    new: str  # its end, which is new
    start: float  # seconds since the start of the stream
    end: float  # seconds that have been read
    is_final: bool = False  # the utterance has ended


def is_text(run: Run[Any, Any], value: object) -> bool:
    """Whether a value is one input, a string, instead of a list of inputs."""
    return isinstance(value, str)


def is_tuple_of_texts(value: object) -> bool:
    """Whether a value is one input of a task whose inputs are tuples of texts."""
    return isinstance(value, tuple) and all(isinstance(text, str) for text in value)


@dataclass(frozen=True)
class Decode(Generic[I]):
    """How models of a task score and generate texts. The first argument of each function is the run."""

    # texts or pairs, `truncate` (shorten long sources), progress -> one `Scored` or InvalidInput per input
    score: Callable[[Run[Any, Any], Any, bool, Progress | None], list[Any]]
    prompt_ids: Callable[[Run[Any, Any], I], Sequence[int]]  # the token IDs that the output of an input continues
    max_new_tokens: Callable[[Run[Any, Any], I], int]  # the default for an input
    eos_id: Callable[[Run[Any, Any]], int | None]  # None if the models have no EOS token
    suppressed_tokens: Callable[[Run[Any, Any]], Sequence[int]]  # IDs of tokens that are never generated
    beam_size: int  # the default
    length_penalty: float = 0.0  # the default
    encode_source: Callable[[Run[Any, Any], I], Any] | None = None  # the initial decoder state of an input, a batch of one row
    incremental_model: Callable[[Run[Any, Any]], IncrementalModel[Any]] = field(default=lambda run: run.model)
    target_tokenizer: Callable[[Run[Any, Any]], Tokenizer] = field(default=lambda run: run.vocabulary)
    generate: (
        Callable[[Run[Any, Any], str | Sequence[str], GenerationConfig, ContinueCallback | None], list[list[Continuation]]]
        | None
    ) = None
    stream: Callable[[Run[Any, Any], str, GenerationConfig], Iterator[str]] | None = None
    # the output for an input that arrives in pieces, after each change, and the seconds of a pause that ends an utterance;
    # raises before the first piece if a run cannot do it
    predict_stream: Callable[[Run[Any, Any], Iterable[bytes | np.ndarray], float], Iterator[StreamedText]] | None = None
    # the response to a conversation, as a stream of text, from (role, text) messages, of which the last is of the user
    chat: Callable[[Run[Any, Any], Sequence[tuple[str, str]], GenerationConfig], Iterator[str]] | None = None
    # what `predict` searches for, and how outputs become its results, so that a server can search for many requests at once;
    # None: it cannot be separated
    prepare_search: Callable[[Run[Any, Any], Sequence[I], Any], Search | None] | None = None
    # prompts as the texts that are continued, in their template, and the tokens around each; for `generate`
    frame_prompts: Callable[[Run[Any, Any], Sequence[str]], tuple[list[str], Frame]] | None = None
    # the last prompt of a conversation as the text that is continued, and its frame, with the earlier turns; for `chat`
    frame_chat: Callable[[Run[Any, Any], Sequence[tuple[str, str]], GenerationConfig], tuple[str, Frame]] | None = None
    echoes_prompt: bool = True  # whether an output is printed after its prompt, as its continuation
    scores_pairs: bool = False  # `score` takes (source, target) pairs instead of texts
    # prompts that are too long for the requested number of new tokens: reasons by index
    invalid_prompts: Callable[[Run[Any, Any], Sequence[str], GenerationConfig], Mapping[int, str]] = field(
        default=lambda run, prompts, options: {}
    )
    is_single_line: Callable[[Run[Any, Any]], bool] = field(default=lambda run: True)  # whether a continuation is one line


# ---- explanations


@dataclass(frozen=True)
class Explain:
    """How models of a task are explained. An optional function is None if the task does not have that view."""

    encode_input: Callable[[Run[Any, Any], str, ExplainConfig], ModelInput]  # a text as network input
    stacks: Callable[[Run[Any, Any]], Sequence[Stack]]  # the stacks of a network, one per input sequence
    tokenizers: Callable[[Run[Any, Any]], Sequence[Tokenizer]] = field(default=lambda run: [run.vocabulary])  # one per sequence
    encode_unmasked: Callable[[Run[Any, Any], str], ModelInput] | None = None  # if `encode_input` requires masks in the text
    attribute: Callable[[Run[Any, Any], str, ExplainConfig], SparseAttribution] | None = None  # for models without gradients
    surprisal: Callable[[Run[Any, Any], str, ExplainConfig], SurprisalResult] | None = None
    readout: Callable[[Run[Any, Any], ModelInput], Readout] | None = None  # hidden states to tokens, for the logit lens
    target_tokens: Callable[[Run[Any, Any], str, ExplainConfig], list[tuple[int, TokenSpan]]] | None = None
    max_ngram_context: Callable[[Run[Any, Any]], int] | None = None  # tokens before the last one in n-gram counts
    sample_texts: Callable[[Run[Any, Any], int], tuple[str, list[str]]] | None = None  # a split, and texts of its data
    max_tokens: Callable[[Run[Any, Any]], int | None] = field(default=lambda run: None)  # longer texts are split
    is_single_line: Callable[[Run[Any, Any]], bool] = field(default=lambda run: True)  # whether a text is one line
    has_positions: bool = False  # predictions have positions: tags, start and end of an answer
    is_recurrent: bool = False  # recurrent over tokens, for gradients through time
    has_mask_token: bool = False
    reads_records: bool = False  # files are read as data sets instead of lines


# ---- the task


@dataclass(frozen=True)
class Task(Generic[I, P]):
    """The definition of one task."""

    name: str  # in run files
    model_noun: str  # "classifier"
    description: str  # of its models: "assigns labels to texts"
    loss_unit: str  # the unit that the loss is a mean over: "token", "text", "word"
    progress_unit: str  # the unit that progress counts: "tokens", "texts", "questions"
    output_noun: str  # "labels", "tags"
    data: Data
    presets: Mapping[str, Preset]
    eval_suites: Sequence[Suite]  # metrics of an evaluation; the data determines which suite applies
    validation_suites: Sequence[Suite]  # metrics of a validation during training
    evaluate: Callable[[Run[I, P], Files | None, Any, Progress | None], Evaluation]
    command: str = "predict"  # the command that runs a model: predict, generate or chat
    example_input: str = "< input.txt"  # an argument of that command, for a hint that can be pasted into a shell
    output_header: str = ""  # header of the columns that `weft predict` prints on a terminal; "" for a single column
    predictor: Callable[[Run[I, P]], Any] = field(default=lambda run: run.model)  # the model with its vocabulary
    # one result per input; called with an empty list to check the options before inputs are read
    predict: Callable[[Run[I, P], Sequence[I], Any, Progress | None], list[P | InvalidInput]] | None = None
    is_single: Callable[[Run[I, P], object], bool] = is_text  # whether a value is one input instead of a list of inputs
    predict_options: type[Config] = Options
    line_format: Callable[[RunConfig, Any], Lines[I, P]] | None = None  # input and output lines of `weft predict`
    unknown_tokens: Callable[[Run[I, P], Sequence[I]], Sequence[str]] = no_unknown_tokens  # parts of inputs that become <unk>
    evaluate_options: type[Config] = Options
    embed: Callable[[Run[I, P], Sequence[Any], str, Progress | None], EmbeddingOutput] | None = None
    word_vectors: Callable[[Run[Any, Any]], WordVectors] | None = None  # the words of a model with their vectors
    decode: Decode[I] | None = None
    explain: Callable[[], Explain] | None = None  # imports the explanation functions
    # imports the views of `weft explain` for inputs that are files, by name: run, path, options, progress -> explanation
    file_views: Callable[[], Mapping[str, FileView]] | None = None
    compare: Compare = field(default_factory=Compare)
    recipes: Recipes | None = None  # recommended settings for given data; None: the presets alone
    fit_archs: tuple[str, ...] = ()  # the networks that `weft fit` trains beside a recommended one; (): typical networks
    ranking_metrics: tuple[str, ...] = ()  # a comparison ranks by the first that the runs have; (): by their first metric
    weights: Weights | None = None  # which weights fit for initialization from other runs; None: names and shapes decide
    samples: Samples | None = None  # sample outputs during training
    # rewards of (prompt, response) pairs for policy gradients, with the label of `data.reward_label` or None
    rewards: Callable[[Run[I, P], Sequence[tuple[str, str]], str | None], list[float]] | None = None
    inputs: Callable[[RunConfig], InputSpec] = field(default=lambda config: InputSpec())  # what an input is, for a server
    shares_evaluation: bool = True  # whether several processes can evaluate a run, each a part of the data
    supports_ensembles: bool = False
    supports_distillation: bool = False  # its objectives are `DistillableObjective`
    supports_r_drop: bool = False  # the same, but teachers have other positions
    fit_weights: Callable[[Sequence[Run[I, P]]], list[float]] | None = None  # the weights of an ensemble, on validation data
    fit_cache: Callable[[Run[I, P], CacheConfig], Cache] | None = None  # the options of a neural cache that are not set
    # the model of an ensemble from its runs and their weights; None: the models are decoded together
    combine: Callable[[Sequence[Run[I, P]], Sequence[float]], Any] | None = None
    labels: Callable[[Run[I, P]], tuple[str, ...]] = field(default=lambda run: ())
    vocab_info: Callable[[Run[I, P]], Mapping[str, Any]] = field(
        default=lambda run: {"vocabulary": run.vocabulary.vocab_size}
    )  # for `weft info`


AnyTask = Task[Any, Any]
