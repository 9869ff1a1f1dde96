"""What a task is to the rest of the package: one record, which commands, training, comparisons and explanations ask.

Optional fields are capabilities: `embed=None` is a task whose models have no encoder of texts. Nothing here imports torch or
numpy when it runs, so that the command line can list tasks without them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from weft.config import Config
from weft.html import html_table
from weft.tasks.compare_spec import Compare, Predictions

if TYPE_CHECKING:
    from weft.decode.generate import Continuation, ContinueCallback
    from weft.decode.incremental import IncrementalModel
    from weft.decode.options import GenerationConfig
    from weft.explain.explanation import TokenSpan
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
    from weft.text.tokenizers import Tokenizer
    from weft.training.neural import NetworkTask
    from weft.training.sample_outputs import Samples
    from weft.training.weight_compatibility import Weights

I = TypeVar("I")  # noqa: E741  # an input, as a caller gives it: a text, a pair of texts, a path
P = TypeVar("P")  # a prediction
Progress = Callable[[str, int, int], None]  # what is going on, how much of it is done, how much there is
ProgressCallback = Callable[[int, int], None]  # the same of one thing that is going on
Files = str | Path | Sequence[str | Path]


def phase(progress: Progress | None, name: str) -> ProgressCallback | None:
    """Who is told of one part of the work."""
    return None if progress is None else partial(progress, name)


class Fault(NamedTuple):
    """Why one input among others gives no prediction."""

    reason: str


class Options(Config):
    """What a caller may say about predicting or evaluating; a task's own table adds fields."""


class LabelOptions(Options):
    """How labels and tags are scored."""

    strict: bool = False  # refuse labels that training never saw, instead of counting them as wrong


# ---- models and their training


class Estimator(Protocol):
    """How models of one kind are checked, trained and loaded."""

    @property
    def by_steps(self) -> bool:
        """Whether training goes step by step, by gradients, within a budget; else a model is counted, or solved in one go."""

    @property
    def shape(self) -> NetworkTask[Any] | None:
        """What is particular to its networks; None where its models are none."""

    def num_parameters(self, config: RunConfig, vocabulary: Any) -> int | None:
        """How many parameters a model will have; None where the data decides."""

    def check(self, config: RunConfig) -> None:
        """Refuse options that are each valid, but not together."""

    def train(self, job: Job) -> None:
        """Leave the run directory with the model's best weights."""

    def load(self, config: RunConfig, vocabulary: Any, directory: RunDir, device: str) -> Any:
        """The model itself, never a wrapper."""


def override(values: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    return {**values, **options}


class SearchDimension(NamedTuple):
    """What a search may try for one option of [model]."""

    option: str  # such as "features.ngrams"
    values: Sequence[Any]
    beside: tuple[str, Any] | None = None  # it means something only where another option has this value


class Preset(NamedTuple):
    """A named architecture: which table reads its options, what differs from the defaults, and who trains it."""

    estimator: Estimator
    config_class: type[Any]
    values: Mapping[str, Any] = {}
    train_defaults: Mapping[str, Any] = {}
    merge: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] = override
    choices: Sequence[
        SearchDimension
    ] = ()  # what a search may change where there are no steps to train: learning rate and width
    unit: str = "parameters"  # what a model's size is counted by

    def merged(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The preset's values under those of a run file."""
        return self.merge(self.values, options)


# ---- results


@dataclass(frozen=True)
class Evaluation:
    """Scores of a run on a data set, and the statistics of single items that they were computed from."""

    scores: list[Score]
    items: ItemStatistics
    observed: Callable[[], Predictions]  # what was read and meant, item by item: made when it is asked for
    unit: str  # of what was done: "texts/s"
    units: int  # how many of those there were
    report: str = ""  # tables for people: scores by label, confusions
    unseen: Counter[str] | None = None  # labels that training never saw, and how often; None where there are no labels
    notes: tuple[str, ...] = ()  # what is to be known of the data beside its scores

    def __iter__(self) -> Iterator[Score]:
        return iter(self.scores)

    def __getitem__(self, name: str) -> Score:
        for score in self.scores:
            if score.name == name:
                return score
        raise KeyError(f"{name}; known: {', '.join(score.name for score in self.scores)}")

    def _repr_html_(self) -> str:
        rows = [
            [score.name, *("" if value is None else f"{value:.4f}" for value in (score.value, score.low, score.high))]
            for score in self.scores
        ]
        return html_table(["", "value", "low", "high"], rows)


def none_unknown(run: Run[Any, Any], inputs: Sequence[Any]) -> Sequence[str]:
    return ()


# ---- tasks whose models write tokens


class Scored(Protocol):
    """A text under a model that gives its tokens probabilities, in nats."""

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


def is_text(run: Run[Any, Any], given: object) -> bool:
    """Whether what a caller gave is one input: a string is one, all else several."""
    return isinstance(given, str)


def is_tuple_of_texts(given: object) -> bool:
    """Whether it is one input of a task whose inputs have several texts."""
    return isinstance(given, tuple) and all(isinstance(text, str) for text in given)


@dataclass(frozen=True)
class Decode(Generic[I]):
    """How models of a task give texts probabilities and write them."""

    # of texts or pairs, and whether long sources are cut; a Fault for one that can't be scored
    score: Callable[[Run[Any, Any], Any, bool, Progress | None], list[Any]]
    prompt: Callable[[Run[Any, Any], I], Sequence[int]]  # the tokens that an output is written after
    limit: Callable[[Run[Any, Any], I], int]  # how many tokens an output has at most, unless told
    end: Callable[[Run[Any, Any]], int | None]  # the token that ends an output, if one does
    never: Callable[[Run[Any, Any]], Sequence[int]]  # tokens that are never written
    beam: int  # the width of a search, unless told
    alpha: float = 0.0  # of its length penalty, unless told
    source: Callable[[Run[Any, Any], I], Any] | None = None  # the state of a decoder that has read an input, in one row
    steps: Callable[[Run[Any, Any]], IncrementalModel[Any]] = field(default=lambda run: run.model)
    target: Callable[[Run[Any, Any]], Tokenizer] = field(default=lambda run: run.vocabulary)  # of outputs
    generate: (
        Callable[[Run[Any, Any], str | Sequence[str], GenerationConfig, ContinueCallback | None], list[list[Continuation]]]
        | None
    ) = None
    stream: Callable[[Run[Any, Any], str, GenerationConfig], Iterator[str]] | None = None
    pairs: bool = False  # what is scored is a source and a target, a tab between them; else a text
    # prompts that can't be continued by as much as is asked for, by their number from 0, and why
    prompt_faults: Callable[[Run[Any, Any], Sequence[str], GenerationConfig], Mapping[int, str]] = field(
        default=lambda run, prompts, options: {}
    )
    lines: Callable[[Run[Any, Any]], bool] = field(default=lambda run: True)  # whether a continuation is one line


# ---- explanations


@dataclass(frozen=True)
class Explain:
    """How models of a task are looked into. Optional functions are views, or parts of views, that not every task has."""

    read: Callable[[Run[Any, Any], str, ExplainConfig], ModelInput]  # a text as a network reads it
    stacks: Callable[[Run[Any, Any]], Sequence[Stack]]  # of a network, in the order in which its sequences are read
    tokenizers: Callable[[Run[Any, Any]], Sequence[Tokenizer]] = field(default=lambda run: [run.vocabulary])  # of the sequences
    read_unmasked: Callable[[Run[Any, Any], str], ModelInput] | None = None  # where `read` wants masks in a text
    attribute: Callable[[Run[Any, Any], str, ExplainConfig], SparseAttribution] | None = None  # of models that are no networks
    surprisal: Callable[[Run[Any, Any], str, ExplainConfig], SurprisalResult] | None = None
    readout: Callable[[Run[Any, Any], ModelInput], Readout] | None = None  # how a layer's vectors become tokens, for the lens
    output: Callable[[Run[Any, Any], str, ExplainConfig], list[tuple[int, TokenSpan]]] | None = (
        None  # tokens of a target, or own
    )
    context: Callable[[Run[Any, Any]], int] | None = None  # tokens of the longest context that is counted in training text
    sample: Callable[[Run[Any, Any], int], tuple[str, list[str]]] | None = None  # of its own data: the split, and texts
    room: Callable[[Run[Any, Any]], int | None] = field(default=lambda run: None)  # tokens of a text that is not split
    line: Callable[[Run[Any, Any]], bool] = field(default=lambda run: True)  # whether a text is one line
    places: bool = False  # a prediction is named with its place: tags, ends of answers
    stepwise: bool = False  # reads token by token, so that gradients go back in time
    masks: bool = False  # has a vector of the mask
    records: bool = False  # files are read as data, not as the lines of `predict`


# ---- the record


@dataclass(frozen=True)
class Task(Generic[I, P]):
    """Everything that is particular to one task."""

    name: str  # as run files have it
    noun: str  # what a model of it is: "classifier"
    does: str  # "gives texts labels"
    item: str  # what a loss is counted by: "token", "text", "word"
    counts: str  # what progress is counted by: "tokens", "texts", "questions"
    says: str  # what a model of it says of an item: "labels", "tags"
    data: Data
    presets: Mapping[str, Preset]
    suites: Sequence[Suite]  # a run has the metrics of one of them: its data decides which
    validation: Sequence[Suite]  # the same of what validation measures
    evaluate: Callable[[Run[I, P], Files | None, Any, Progress | None], Evaluation]
    use: str = "predict"  # the command after training: predict, generate, fill
    reader: Callable[[Run[I, P]], Any] = field(default=lambda run: run.model)  # bound to its vocabulary, as functions here want
    predict: Callable[[Run[I, P], Sequence[I], Any, Progress | None], list[P | Fault]] | None = None
    is_single: Callable[[Run[I, P], object], bool] = is_text  # whether what a Python caller gave is one input, or several
    predict_options: type[Config] = Options
    lines: Callable[[RunConfig, Any], Lines[I, P]] | None = None  # of `predict`, with its options
    unknown: Callable[[Run[I, P], Sequence[I]], Sequence[str]] = none_unknown  # what in inputs has no token: read as <unk>
    evaluate_options: type[Config] = Options
    embed: Callable[[Run[I, P], Sequence[Any], str, Progress | None], EmbeddingOutput] | None = None
    decode: Decode[I] | None = None
    explain: Callable[[], Explain] | None = None  # imports what looks into models
    compare: Compare = field(default_factory=Compare)
    decides: tuple[str, ...] = ()  # comparisons go by the first of these that the runs have; (): by their first score
    weights: Weights | None = None  # what weights of its networks mean, for starts from others; None: by names and shapes alone
    samples: Samples | None = None  # texts that models write while they are trained
    joins: bool = False  # whether several runs can be one: an ensemble
    labels: Callable[[Run[I, P]], tuple[str, ...]] = field(default=lambda run: ())
    sizes: Callable[[Run[I, P]], Mapping[str, Any]] = field(
        default=lambda run: {"vocabulary": run.vocabulary.vocab_size}
    )  # for `info`


AnyTask = Task[Any, Any]
