"""A trained run: `run = weft.load("runs/x")`, then `run.predict(...)`, `run.evaluate(...)`, `run.explain(...)`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from weft.config import Config
from weft.errors import DataError, UsageError
from weft.tasks.spec import Evaluation, Fault, I, P, Progress, Scored, is_tuple_of_texts

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from weft.decode.generate import Continuation, ContinueCallback
    from weft.decode.options import GenerationConfig
    from weft.explain.explanation import Explanation
    from weft.explain.options import ExplainConfig
    from weft.runs.config import RunConfig
    from weft.runs.ensemble import FusionLM
    from weft.runs.run_dir import RunDir
    from weft.tasks.embedding import EmbeddingOutput
    from weft.tasks.spec import Decode, Task

T = TypeVar("T", bound=Config)
R = TypeVar("R")


def refuse_faults(results: Sequence[R | Fault]) -> list[R]:
    """The results; the first input that has none is refused."""
    for number, one in enumerate(results, 1):
        if isinstance(one, Fault):
            raise DataError(f"line {number}", f"{one.reason}")
    return [one for one in results if not isinstance(one, Fault)]


class Run(Generic[I, P]):
    """A run directory, loaded. Nothing in it is ever run as code, and no state of a call is kept in it.

    Its weights, which it may not have yet, are read when they are first needed.
    """

    def __init__(self, directory: RunDir, config: RunConfig, vocabulary: Any, device: str) -> None:
        self.directory, self.config, self.vocabulary, self.device_name = directory, config, vocabulary, device

    @cached_property
    def device(self) -> torch.device:
        """Where its network computes."""
        from weft.training.device import pick_device

        return pick_device(self.device_name)

    @property
    def task(self) -> Task[I, P]:
        """The record of its task."""
        return self.config.spec

    @cached_property
    def model(self) -> Any:
        """The model itself: a torch module, an n-gram model, a linear model."""
        return self.config.preset.estimator.load(self.config, self.vocabulary, self.directory, self.device_name)

    @property
    def network(self) -> nn.Module | None:
        """The model, if it is a network."""
        if not self.config.preset.estimator.by_steps:
            return None
        from torch import nn

        return self.model if isinstance(self.model, nn.Module) else None

    @cached_property
    def reader(self) -> Any:
        """The model bound to its vocabulary, as the task's functions use it."""
        return self.task.reader(self)

    @property
    def labels(self) -> tuple[str, ...]:
        """What it may say of a text or a word; empty where it says something else."""
        return self.task.labels(self)

    @property
    def num_parameters(self) -> int:
        """Numbers that were learned: weights, or probabilities of n-grams."""
        return sum(weight.numel() for weight in self.network.parameters()) if self.network else int(self.model.num_parameters)

    @property
    def generates(self) -> bool:
        """Whether it continues prompts."""
        return self.task.decode is not None and self.task.decode.generate is not None

    def refuse(self, instead: str) -> UsageError:
        """Why it can't do something that models of other tasks do; `instead` says what to use."""
        article = "an" if self.task.noun[0] in "aeiou" else "a"
        return UsageError(self.directory.path, f"is {article} {self.task.noun}, which {self.task.does}", f"{instead}")

    def _options(self, config: type[T], options: Config | None, named: Mapping[str, Any]) -> T:
        from weft.decode.options import options_from

        return options_from(config, options, named)

    @property
    def members(self) -> Sequence[Run[I, P]]:
        """The runs that it is made of: itself, or those of an ensemble."""
        return [self]

    @property
    def weights(self) -> Sequence[float] | None:
        """How much each member of an ensemble counts; None: all alike."""
        return None

    @property
    def lm(self) -> FusionLM | None:
        """A language model that helps to choose among outputs."""
        return None

    # ---- inputs to outputs

    def try_predict(
        self, inputs: I | Iterable[I], options: Config | None = None, *, progress: Progress | None = None
    ) -> list[P | Fault]:
        """A prediction for each input; for one that can't be used, the reason."""
        if self.task.predict is None:
            raise self.refuse(f"use weft {self.task.use}")
        several: Any = [inputs] if self.task.is_single(self, inputs) else inputs
        return self.task.predict(self, list(several), options or self.task.predict_options(), progress)

    @overload
    def predict(
        self, inputs: list[I], options: Config | None = None, *, progress: Progress | None = None, **named: Any
    ) -> list[P]: ...

    @overload
    def predict(self, inputs: I, options: Config | None = None, *, progress: Progress | None = None, **named: Any) -> P: ...

    def predict(
        self, inputs: I | list[I], options: Config | None = None, *, progress: Progress | None = None, **named: Any
    ) -> P | list[P]:
        """Predict the output of one input, or of each of a list.

        Args:
            inputs: One input gives one prediction, a list (or any iterable) a list. A text is one input; so is a tuple of
                texts for models that read several. Of dicts, and of tables as in `weft.training`, the input columns are read.
            options: How to predict, as one object of the task's own table.
            progress: Called with the phase, how much is done and how much there is.
            **named: The same options by name, such as `beam=5`.

        Returns:
            A prediction of the task, or a list of them; where several outputs were asked for, the others are the best one's
            `alternatives`.

        Raises:
            DataError: An input can't be used; `try_predict` refuses none.
            UsageError: An option is unknown or wrong, or models of this task predict nothing.

        Example:
            >>> weft.load("runs/pronounce").predict("giacchetta").text
        """
        from weft.runs.memory_data import inputs_of

        single = self.task.is_single(self, inputs)
        given: list[Any] = [inputs] if single else inputs_of(self.config, inputs)
        chosen = self._options(self.task.predict_options, options, named)
        found = refuse_faults(self.try_predict(given, chosen, progress=progress))
        return found[0] if single else found

    def evaluate(
        self, data: object = None, options: Config | None = None, *, progress: Progress | None = None, **named: Any
    ) -> Evaluation:
        """Evaluate the model, with confidence intervals.

        Args:
            data: A path, a list of paths, or data in memory as in `weft.training`; the run's own test data by default, or else
                its validation data.
            options: How to evaluate, as one object of the task's own table.
            progress: Called with the phase, how much is done and how much there is.
            **named: The same options by name.

        Returns:
            The scores, and the statistics of single items that they were computed from.

        Raises:
            DataError: The data can't be used.
            UsageError: An option is unknown or wrong, or the run has no such data.

        Example:
            >>> run.evaluate([("Great soup.", "good"), ("Far too slow.", "bad")])["accuracy"].value
        """
        from weft.runs.memory_data import as_files

        chosen = self._options(self.task.evaluate_options, options, named)
        with as_files(self.config, data) as files:
            return self.task.evaluate(self, files, chosen, progress)

    def embed(self, texts: Sequence[Any], *, pool: str = "mean", progress: Progress | None = None) -> np.ndarray:
        """float32 (N, D): a vector for each text, the mean over its positions or that of its first token. A text longer than
        the model reads is truncated; `embedded` tells which were."""
        return self.embed_with_info(texts, pool=pool, progress=progress).vectors

    def embed_with_info(self, texts: Sequence[Any], *, pool: str = "mean", progress: Progress | None = None) -> EmbeddingOutput:
        """The vectors of `embed`, and which texts were truncated."""
        if self.task.embed is None:
            raise UsageError(self.directory.path, f"is a run of task {self.config.task!r}, which has no encoder of texts")
        return self.task.embed(self, texts, pool, progress)

    # ---- models that write tokens

    @property
    def _decode(self) -> Decode[Any]:
        if self.task.decode is None:
            raise UsageError(
                "score", f"{self.directory.path} is a run of task {self.config.task!r}, which gives texts no probability"
            )
        return self.task.decode

    @overload
    def score(self, inputs: list[Any], *, truncate: bool = False, progress: Progress | None = None) -> list[Scored]: ...

    @overload
    def score(self, inputs: str | tuple[str, str], *, truncate: bool = False, progress: Progress | None = None) -> Scored: ...

    def score(self, inputs: Any, *, truncate: bool = False, progress: Progress | None = None) -> Scored | list[Scored]:
        """The log-probability of a text and of each of its tokens; of a pair, that of the target given its source.

        Args:
            inputs: One text, or one pair, gives one result; a list gives a list.
            truncate: Cut sources that are longer than the model reads, instead of refusing them.
            progress: Called with the phase, how much is done and how much there is.

        Returns:
            Log-probabilities in nats, or a list of them.

        Raises:
            DataError: A text can't be scored; `try_score` refuses none.
            UsageError: Models of this task give texts no probability.

        Example:
            >>> weft.load("runs/run").score("Ida lives by the river.").perplexity
        """
        single = is_tuple_of_texts(inputs) if self._decode.pairs else isinstance(inputs, str)
        found = refuse_faults(self.try_score([inputs] if single else inputs, truncate=truncate, progress=progress))
        return found[0] if single else found

    def try_score(self, inputs: Any, *, truncate: bool = False, progress: Progress | None = None) -> list[Scored | Fault]:
        """The same; for a text that can't be scored, the reason."""
        return self._decode.score(self, inputs, truncate, progress)

    @overload
    def generate(
        self,
        prompts: list[str],
        options: GenerationConfig | None = None,
        *,
        should_continue: ContinueCallback | None = None,
        **named: Any,
    ) -> list[Continuation]: ...

    @overload
    def generate(
        self,
        prompts: str = "",
        options: GenerationConfig | None = None,
        *,
        should_continue: ContinueCallback | None = None,
        **named: Any,
    ) -> Continuation: ...

    def generate(
        self,
        prompts: str | list[str] = "",
        options: GenerationConfig | None = None,
        *,
        should_continue: ContinueCallback | None = None,
        **named: Any,
    ) -> Continuation | list[Continuation]:
        """Continue a prompt, or each of a list.

        Args:
            prompts: One prompt gives one continuation, a list a list.
            options: How to generate, as one object.
            going: Called at each step of a beam with the tokens written and the tokens at most; once it returns False, what
                is found is returned.
            **named: The same options by name, such as `top_p=0.9`.

        Returns:
            The continuation, a beam's best, or a list of them; where several were asked for, the others are its
            `alternatives`.

        Raises:
            DataError: A prompt can't be continued.
            UsageError: An option is unknown or wrong, or models of this task continue no prompts.

        Example:
            >>> weft.load("runs/run").generate("Ida ", top_p=0.9, seed=1).text
        """
        generate = None if self.task.decode is None else self.task.decode.generate
        if generate is None:
            raise self.refuse(f"use weft {self.task.use}")
        from weft.decode.options import GenerationConfig, options_from

        found = generate(self, prompts, options_from(GenerationConfig, options, named), should_continue)
        best = [one._replace(alternatives=tuple(others)) for one, *others in found]
        return best[0] if isinstance(prompts, str) else best

    def stream(self, prompt: str = "", options: GenerationConfig | None = None, **named: Any) -> Iterator[str]:
        """One continuation, piece by piece as it is found."""
        stream = None if self.task.decode is None else self.task.decode.stream
        if stream is None:
            raise self.refuse(f"use weft {self.task.use}")
        from weft.decode.options import GenerationConfig, options_from

        return stream(self, prompt, options_from(GenerationConfig, options, named))

    # ---- about it

    def explain(self, text: str, view: str | None = None, options: ExplainConfig | None = None, **named: Any) -> Explanation:
        """How a prediction comes about: data, pictures and words of one view; options as one object, or by name:
        `explain("too slow", "attribution", method="occlusion")`."""
        from weft.explain import views

        return views.explain(self, text, view, options, named)

    def info(self) -> Mapping[str, Any]:
        """What the run is: settings and sizes."""
        return {
            "path": str(self.directory.path),
            "task": self.config.task,
            "arch": self.config.arch,
            "parameters": self.num_parameters,
            **self.task.sizes(self),
            "tokenizer": self.vocabulary.hash,
            "settings": self.config.to_dict(),
        }


AnyRun = Run[Any, Any]
