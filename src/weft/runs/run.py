"""A trained run: `run = weft.load("runs/x")`, then `run.predict(...)`, `run.evaluate(...)`, `run.explain(...)`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, overload

from weft.config import Config
from weft.data.memory import list_inputs
from weft.decode.options import GenerationConfig, options_from
from weft.errors import UsageError
from weft.parallel.group import ALONE
from weft.tasks.spec import Evaluation, I, InvalidInput, P, Progress, Scored, is_tuple_of_texts, raise_first_invalid

if TYPE_CHECKING:
    import numpy as np
    import torch

    from weft.decode.cache_options import Cache
    from weft.decode.decoder import Decoder
    from weft.decode.engine import Engine, Request
    from weft.decode.generate import Continuation, ContinueCallback
    from weft.explain.explanation import Explanation
    from weft.explain.options import ExplainConfig
    from weft.runs.config import RunConfig
    from weft.runs.ensemble import FusionLM
    from weft.runs.run_dir import RunDir
    from weft.tasks.embedding import EmbeddingOutput
    from weft.tasks.spec import Decode, StreamedText, Task


class Run(Generic[I, P]):
    """A trained model with its configuration, from `weft.load`. The weights are read when they are first needed.

    Attributes:
        directory: The files of the run.
        config: The resolved configuration.
        vocabulary: The tokenizer, a tokenizer pair (seq2seq), or a tokenizer with labels (classification, tagging).
    """

    def __init__(self, directory: RunDir, config: RunConfig, vocabulary: Any, device: str) -> None:
        self.directory, self.config, self.vocabulary, self.device_name = directory, config, vocabulary, device
        self.group = ALONE  # the processes that evaluate together

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, task={self.task!r}, arch={self.arch!r})"

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    @property
    def task(self) -> str:
        """The name of the task, such as "lm" or "classification"."""
        return self.config.task

    @property
    def arch(self) -> str:
        """The name of the architecture, such as "gpt" or "naive-bayes"."""
        return self.config.arch

    @property
    def spec(self) -> Task[I, P]:
        """The task itself: how its models predict, are evaluated and explained."""
        return self.config.spec

    @cached_property
    def device(self) -> torch.device:
        """The device of the model, if it is a neural network."""
        from weft.training.device import pick_device

        return pick_device(self.device_name)

    @cached_property
    def model(self) -> Any:
        """The model itself: a torch module, an n-gram model or a linear model."""
        return self.config.preset.estimator.load(self.config, self.vocabulary, self.directory, self.device_name)

    @property
    def network(self) -> torch.nn.Module | None:
        """The model, if it is a neural network."""
        if not self.config.preset.estimator.by_steps:
            return None
        from torch import nn

        return self.model if isinstance(self.model, nn.Module) else None

    @cached_property
    def predictor(self) -> Any:
        """The model with its vocabulary, as the functions of the task need it."""
        return self.spec.predictor(self)

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels or tags that the model can predict; empty for other tasks."""
        return self.spec.labels(self)

    @property
    def num_parameters(self) -> int:
        """The number of learned values: weights, or probabilities of n-grams."""
        network = self.network
        return int(self.model.num_parameters) if network is None else sum(part.numel() for part in network.parameters())

    @property
    def generates(self) -> bool:
        """Whether the model can continue prompts."""
        return self.spec.decode is not None and self.spec.decode.generate is not None

    def wrong_task(self, fix: str = "") -> UsageError:
        """The error for an operation that models of this task do not have."""
        article = "an" if self.spec.model_noun[0] in "aeiou" else "a"
        return UsageError(self.path, f"is {article} {self.spec.model_noun}", fix or f"use weft {self.spec.command}")

    @property
    def members(self) -> Sequence[Run[I, P]]:
        """The runs of an ensemble; of a single run, the run itself."""
        return [self]

    @property
    def weights(self) -> Sequence[float] | None:
        """The weights of the members of an ensemble; None: equal weights."""
        return None

    @property
    def lm(self) -> FusionLM | None:
        """The language model for shallow fusion."""
        return None

    @property
    def cache(self) -> Cache | None:
        """The options of the neural cache."""
        return None

    @property
    def decoder(self) -> Decoder | None:
        """The program that decodes instead of weft."""
        return None

    # ---- prediction and evaluation

    def try_predict(
        self, inputs: I | Iterable[I], options: Config | None = None, *, progress: Progress | None = None
    ) -> list[P | InvalidInput]:
        """Like `predict`, but returns an `InvalidInput` with the reason for each input that cannot be used."""
        if self.spec.predict is None:
            raise self.wrong_task()
        from weft.runs.memory_data import inputs_of

        batch: list[Any] = [inputs] if self.spec.is_single(self, inputs) else inputs_of(self.config, inputs)
        return self.spec.predict(self, batch, options or self.spec.predict_options(), progress)

    def invalid_inputs(self, inputs: Iterable[I], options: Config | None = None) -> dict[int, str]:
        """The inputs of a list that `predict` refuses: the reason by index, from 0."""
        results = self.try_predict(list(inputs), options)
        return {index: result.reason for index, result in enumerate(results) if isinstance(result, InvalidInput)}

    @overload
    def predict(
        self, inputs: list[I], options: Config | None = None, *, progress: Progress | None = None, **kwargs: Any
    ) -> list[P]: ...

    @overload
    def predict(self, inputs: I, options: Config | None = None, *, progress: Progress | None = None, **kwargs: Any) -> P: ...

    def predict(
        self, inputs: I | list[I], options: Config | None = None, *, progress: Progress | None = None, **kwargs: Any
    ) -> P | list[P]:
        """Predict the output for one input or for a list of inputs.

        Args:
            inputs: One input gives one prediction, a list (or any iterable) gives a list. A string is one input; so is a
                tuple of strings for models that read several texts. For dicts and tables, as in `weft.train`, the input
                columns are used.
            options: Options as one object of the task's options class.
            progress: Called as `progress(phase, done, total)`.
            **kwargs: The same options by name, such as `beam_size=5`.

        Returns:
            A prediction of the task's type, or a list of them. With `n_best` or `num_samples` above 1, the other outputs are
            in its `alternatives`.

        Raises:
            DataError: An input cannot be used; see `try_predict`.
            UsageError: An option is unknown or invalid, or models of this task make no predictions.

        Example:
            >>> weft.load("runs/pronounce").predict("giacchetta").text
        """
        predict_options = options_from(self.spec.predict_options, options, kwargs)
        predictions = raise_first_invalid(self.try_predict(inputs, predict_options, progress=progress))
        return predictions[0] if self.spec.is_single(self, inputs) else predictions

    def evaluate(
        self, data: object = None, options: Config | None = None, *, progress: Progress | None = None, **kwargs: Any
    ) -> Evaluation:
        """Evaluate the model, with 95% confidence intervals.

        Args:
            data: A path, a list of paths, or data in memory as in `weft.train`. Default: the test data of the run, or its
                validation data if it has no test data.
            options: Options as one object of the task's options class.
            progress: Called as `progress(phase, done, total)`.
            **kwargs: The same options by name.

        Returns:
            The scores by metric, and the statistics of single items that they are computed from.

        Raises:
            DataError: The data cannot be used.
            UsageError: An option is unknown or invalid, or the run does not have this data.

        Example:
            >>> run.evaluate([("Great soup.", "good"), ("Far too slow.", "bad")])["accuracy"].value
        """
        from weft.runs.memory_data import as_files

        with as_files(self.config, data) as files:
            return self.spec.evaluate(self, files, options_from(self.spec.evaluate_options, options, kwargs), progress)

    def embed(self, texts: Sequence[Any], *, pooling: str = "mean", progress: Progress | None = None) -> np.ndarray:
        """Compute one vector per text. Texts that are too long are truncated; `embed_with_info` tells which.

        Args:
            pooling: "mean" over the positions, or "first" for the vector of the first token.
            progress: Called as `progress(phase, done, total)`.

        Returns:
            A float32 array (number of texts, hidden size).
        """
        return self.embed_with_info(texts, pooling=pooling, progress=progress).vectors

    def embed_with_info(
        self, texts: Sequence[Any], *, pooling: str = "mean", progress: Progress | None = None
    ) -> EmbeddingOutput:
        """The vectors of `embed`, and which texts were truncated."""
        if self.spec.embed is None:
            raise UsageError(self.path, f"models of task {self.task!r} have no text encoder")
        if isinstance(texts, str):  # its characters would be texts
            raise UsageError("texts", "expected a list of texts, got a string", "use [text]")
        return self.spec.embed(self, list_inputs(texts), pooling, progress)

    # ---- models that generate tokens

    @property
    def _decode(self) -> Decode[Any]:
        if self.spec.decode is None:
            raise UsageError(self.path, f"models of task {self.task!r} assign no probabilities to texts")
        return self.spec.decode

    @overload
    def score(self, inputs: list[Any], *, truncate: bool = False, progress: Progress | None = None) -> list[Scored]: ...

    @overload
    def score(self, inputs: str | tuple[str, str], *, truncate: bool = False, progress: Progress | None = None) -> Scored: ...

    def score(self, inputs: Any, *, truncate: bool = False, progress: Progress | None = None) -> Scored | list[Scored]:
        """Compute the log-probability of a text and of its tokens; for a pair, of the target given the source.

        Args:
            inputs: One text, or one (source, target) pair, gives one result; a list gives a list.
            truncate: Truncate sources that are too long for the model instead of raising an error.
            progress: Called as `progress(phase, done, total)`.

        Returns:
            A `TextScore` or `PairScore` in nats, or a list of them.

        Raises:
            DataError: A text cannot be scored; see `try_score`.
            UsageError: Models of this task assign no probabilities to texts.

        Example:
            >>> weft.load("runs/run").score("Ida lives by the river.").perplexity
        """
        is_single = is_tuple_of_texts(inputs) if self._decode.scores_pairs else isinstance(inputs, str)
        scores = raise_first_invalid(self.try_score([inputs] if is_single else inputs, truncate=truncate, progress=progress))
        return scores[0] if is_single else scores

    def try_score(
        self, inputs: Any, *, truncate: bool = False, progress: Progress | None = None
    ) -> list[Scored | InvalidInput]:
        """Like `score` of a list, but returns an `InvalidInput` with the reason for each text that cannot be scored."""
        return self._decode.score(self, inputs, truncate, progress)

    @overload
    def generate(
        self,
        prompts: list[str],
        options: GenerationConfig | None = None,
        *,
        should_continue: ContinueCallback | None = None,
        **kwargs: Any,
    ) -> list[Continuation]: ...

    @overload
    def generate(
        self,
        prompts: str = "",
        options: GenerationConfig | None = None,
        *,
        should_continue: ContinueCallback | None = None,
        **kwargs: Any,
    ) -> Continuation: ...

    def generate(
        self,
        prompts: str | list[str] = "",
        options: GenerationConfig | None = None,
        *,
        should_continue: ContinueCallback | None = None,
        **kwargs: Any,
    ) -> Continuation | list[Continuation]:
        """Continue a prompt, or each prompt of a list.

        Args:
            prompts: One prompt gives one continuation, a list gives a list.
            options: Options as one object.
            should_continue: Called after each step of a beam search with the number of new tokens and the maximum. If it
                returns False, the search ends and the best continuations so far are returned.
            **kwargs: The same options by name, such as `top_p=0.9`.

        Returns:
            The best continuation, or a list of them. With `n_best` or `num_samples` above 1, the others are in its
            `alternatives`.

        Raises:
            DataError: A prompt cannot be continued.
            UsageError: An option is unknown or invalid, or models of this task do not generate text.

        Example:
            >>> weft.load("runs/run").generate("Ida ", top_p=0.9, seed=1).text
        """
        generate = None if self.spec.decode is None else self.spec.decode.generate
        if generate is None:
            raise self.wrong_task()
        outputs = generate(self, prompts, options_from(GenerationConfig, options, kwargs), should_continue)
        best = [first._replace(alternatives=tuple(rest)) for first, *rest in outputs]
        return best[0] if isinstance(prompts, str) else best

    def stream(self, prompt: str = "", options: GenerationConfig | None = None, **kwargs: Any) -> Iterator[str]:
        """Generate one continuation and yield its text as it grows."""
        if self.spec.decode is None or self.spec.decode.stream is None:
            raise self.wrong_task()
        return self.spec.decode.stream(self, prompt, options_from(GenerationConfig, options, kwargs))

    def predict_stream(self, pieces: Iterable[bytes | np.ndarray], *, pause: float = 2.0) -> Iterator[StreamedText]:
        """Yield the text of arrays of samples, or bytes of PCM or WAV, while they arrive. `pause` seconds end an utterance."""
        if self.spec.decode is None or self.spec.decode.predict_stream is None:
            raise UsageError(self.path, f"models of task {self.task!r} read no streams")
        return self.spec.decode.predict_stream(self, pieces, pause)

    def engine(self) -> Engine[Any]:
        """A decoding engine, to which rows are admitted, and from which they are cancelled, between steps.

        Example:
            >>> (row,) = (engine := run.engine()).admit([run.request("Ida ", max_new_tokens=20)])
            >>> while engine.running:
            ...     events = engine.step()
        """
        from weft.runs.engine import engine_of

        return engine_of(self._decode, self)

    def request(self, text: I, *, max_new_tokens: int | None = None) -> Request:
        """A request for `engine` that greedily continues a prompt, or predicts the target of a source. Set `noise`,
        `min_new_tokens` or another `logits_processor` with `_replace`."""
        from weft.runs.engine import request_of

        return request_of(self._decode, self, text, max_new_tokens)

    # ---- information

    def explain(self, text: str, view: str | None = None, options: ExplainConfig | None = None, **kwargs: Any) -> Explanation:
        """Explain a prediction.

        Args:
            text: The input.
            view: The name of the view, such as "attribution" or "attention"; default: the first that the run has.
            options: Options as one object.
            **kwargs: The same options by name, such as `method="occlusion"`.

        Returns:
            Data, figures and text of the view; notebooks show the figures.

        Example:
            >>> run.explain("too slow", "attribution", method="occlusion")
        """
        from weft.explain import views

        return views.explain(self, text, view, options, kwargs)

    def info(self) -> Mapping[str, Any]:
        """Task, architecture, sizes and configuration of the run."""
        names = {"path": str(self.path), "task": self.task, "arch": self.arch, "parameters": self.num_parameters}
        return {**names, **self.spec.vocab_info(self), "tokenizer": self.vocabulary.hash, "config": self.config.to_dict()}


AnyRun = Run[Any, Any]
