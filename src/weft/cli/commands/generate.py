"""`weft generate`: continue prompts."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.cache_options import CacheOptions
from weft.cli.engine_options import EngineOptions
from weft.cli.ensemble_options import (
    MixtureOptions,
    Patience,
    blank_invalid,
    describe_mixture,
    invalid_lines,
    warn_invalid,
    warn_unknown,
)
from weft.cli.inputs import Inputs, as_line, note_if_file
from weft.cli.options import DECODING, FILES, MinP, TopK, TopP
from weft.cli.output import finite, note, write, write_json
from weft.errors import DataError, UsageError
from weft.text.table_layout import on_one_line

if TYPE_CHECKING:
    from weft.cli.input_lines import Line
    from weft.decode.generate import Continuation
    from weft.decode.options import GenerationConfig
    from weft.runs.run import AnyRun

MAX_PROMPTS = 1_000_000


def as_json(prompt: str | None, continuations: Sequence[Continuation]) -> dict[str, Any]:
    """A prompt and its continuations, best first; `prompt` is None if the line is not valid text."""
    items = [
        {
            "text": continuation.text,
            "tokens": continuation.token_ids,
            "log_prob": finite(continuation.log_prob),
            "score": finite(continuation.score),
            "finish_reason": continuation.finish_reason,
        }
        for continuation in continuations
    ]
    return {"prompt": prompt, "continuations": items}


def _results_json(
    lines: Sequence[Line], problems: Mapping[int, str], results: Sequence[Sequence[Continuation]]
) -> list[dict[str, Any]]:
    """The JSON of all lines, with their continuations or errors."""
    results_json = list[dict[str, Any]]()
    for index, line in enumerate(lines):
        result = as_json(None if isinstance(line, DataError) else line, [] if index in problems else results[index])
        results_json.append({**result, "error": problems[index]} if index in problems else result)
    return results_json


def _read_all(lines: Iterator[Line], source: str) -> list[Line]:
    """Read all prompts. They are sorted by length before the first is continued, so endless input is refused."""
    prompts = list(islice(lines, MAX_PROMPTS + 1))
    if len(prompts) > MAX_PROMPTS:
        raise UsageError(source, f"more than {MAX_PROMPTS:,} prompts", "split it")
    return prompts


@dataclass(kw_only=True)
class Generate(CacheOptions, EngineOptions, MixtureOptions):
    """Generate text with a language model.

    Without a prompt, prompts are read from standard input, one per line, unless that is a terminal; then the model starts
    from nothing. The prompt is printed before its continuation. A line that cannot be continued gives a warning, and exit
    code 3 at the end.
    """

    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", show_default=False, help="Text to continue; - reads standard input."),
    ] = None
    max_new_tokens: Annotated[
        int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Maximum number of tokens to generate.")
    ] = 100
    min_new_tokens: Annotated[
        int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Minimum number of tokens to generate.")
    ] = 0
    stop: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=DECODING, metavar="TEXT", help="Stop before this string. Repeatable."),
    ] = None
    temperature: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=DECODING,
            metavar="X",
            help="Sampling temperature; 0 is greedy. Several, e.g. 0.5,0.8,1, are tried in turn.  [default: 1]",
        ),
    ] = None
    greedy: Annotated[bool, typer.Option("--greedy", rich_help_panel=DECODING, help="Same as --temperature 0.")] = False
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    num_samples: Annotated[
        int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Number of continuations of each prompt.")
    ] = 1
    seed: Annotated[int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Sampling seed.")] = 0
    beam_size: Annotated[
        int | None,
        typer.Option(rich_help_panel=DECODING, metavar="N", help="Beam size; use beam search instead of sampling."),
    ] = None
    length_penalty: Annotated[
        float | None,
        typer.Option(rich_help_panel=DECODING, metavar="X", help="Divide log-probabilities by length^X.  [default: 0]"),
    ] = None
    patience: Patience = None
    n_best: Annotated[
        int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Print the N best outputs of the beam search.")
    ] = 1
    repetition_penalty: Annotated[
        float,
        typer.Option(
            rich_help_panel=DECODING,
            metavar="X",
            help="Divide a token's probability by X for each occurrence among the last 64 tokens.",
        ),
    ] = 1.0
    no_repeat_ngram_size: Annotated[
        int | None,
        typer.Option(rich_help_panel=DECODING, metavar="N", help="Never generate an n-gram of this size twice."),
    ] = None
    input: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FILES,
            metavar="FILE",
            readable=False,
            help="Read lines from this file instead of standard input.",
        ),
    ] = None
    no_echo: Annotated[
        bool, typer.Option("--no-echo", rich_help_panel=FILES, help="Print continuations without their prompts.")
    ] = False

    def run(self) -> int:
        from weft.cli.memory import keep_freed_memory

        keep_freed_memory()
        temperatures = self._temperatures()
        options = [self._options(value) for value in temperatures]
        self._check_generates()
        run = self.load()
        for line in describe_mixture(run):
            note(line, quiet=self.quiet)
        decode = run.spec.decode
        if decode is None:
            raise run.wrong_task()
        self.no_echo = self.no_echo or not decode.echoes_prompt
        if (lines := self._lines(run)) is None:
            note_if_file(self.prompt, f"use --input {self.prompt} to read the file", quiet=self.quiet)
            lines, problems = ["" if self.prompt == "-" else self.prompt or ""], dict[int, str]()
        else:
            unreadable = invalid_lines(lines)
            unusable = decode.invalid_prompts(run, blank_invalid(lines, unreadable), options[0])
            problems = warn_invalid(unreadable, unusable, 0, "" if self.input is None else f"{self.input}: ")
        code = self._generate_all(run, lines, problems, options)
        warn_unknown(Counter(run.spec.unknown_tokens(run, blank_invalid(lines, problems))), quiet=self.quiet)
        return code or (DataError.exit_code if problems else 0)

    def _check_generates(self) -> None:
        """Refuse a run of another task before its model is loaded."""
        from weft.runs.load import load

        run = load(self.run_dir, device=self.device)
        if not run.generates:
            raise run.wrong_task()

    def _temperatures(self) -> list[float | None]:
        """The temperatures to use; None is the default."""
        if self.temperature is None:
            return [0.0 if self.greedy else None]
        try:
            temperatures = [float(part) for part in self.temperature.split(",")]
        except ValueError:
            raise UsageError(
                "temperature", f"expected a number, or numbers separated by commas, got {self.temperature!r}"
            ) from None
        if self.greedy and temperatures != [0.0]:
            raise UsageError("greedy", f"cannot be combined with `temperature` {self.temperature}")
        return [*temperatures]

    def _options(self, temperature: float | None) -> GenerationConfig:
        from weft.decode.options import GenerationConfig

        values = {name: getattr(self, name) for name in GenerationConfig.model_fields}
        return GenerationConfig(**values | {"stop": self.stop or [], "temperature": temperature})

    def _generate_all(
        self, run: AnyRun, lines: Sequence[Line], problems: Mapping[int, str], options: Sequence[GenerationConfig]
    ) -> int:
        """Print continuations at each temperature, with the same random numbers, and return the exit code."""
        if len(options) == 1:
            return self._continue(run, lines, problems, options[0])
        results = list[dict[str, Any]]()
        for config in options:
            continuations, _ = self._generate(run, lines, problems, config)
            if self.json:
                listed = _results_json(lines, problems, continuations)
                results += [{"temperature": config.temperature, **result} for result in listed]
            else:
                write(f"=== temperature {config.temperature:g} ===\n")
                self._print(run, lines, problems, continuations, config)
        if self.json:
            write_json({"run": str(self.run_dir), "seed": self.seed, "results": results})
        return 0

    def _lines(self, run: AnyRun) -> list[Line] | None:
        """The prompts of a file or of standard input; None if the prompt is an argument, or empty."""
        from weft.cli.input_lines import STANDARD_INPUT, any_lines

        encoding = run.config.data.encoding
        if self.input is not None:
            if self.prompt is not None:
                raise UsageError("input", "cannot be combined with a prompt argument")
            inputs = Inputs(run, None, [self.input])
            inputs.note_formats(quiet=self.quiet)
            return _read_all(map(as_line, chain.from_iterable(inputs.batches())), str(self.input))
        if self.prompt == "-" or (self.prompt is None and not sys.stdin.isatty()):
            return _read_all(any_lines(None, encoding), STANDARD_INPUT) or None
        return None

    def _continue(self, run: AnyRun, lines: Sequence[Line], problems: Mapping[int, str], options: GenerationConfig) -> int:
        """Print the continuations of the valid lines, and return the exit code."""
        if options.beam_size is None and not self.json and not problems and len(lines) * options.num_samples == 1:
            self._stream(run, str(lines[0]), options)
            return 0
        continuations, code = self._generate(run, lines, problems, options)
        if self.json:
            results = _results_json(lines, problems, continuations)
            write_json({"run": str(self.run_dir), "seed": options.seed, "results": results})
        else:
            self._print(run, lines, problems, continuations, options)
        return code

    def _generate(
        self, run: AnyRun, lines: Sequence[Line], problems: Mapping[int, str], options: GenerationConfig
    ) -> tuple[list[list[Continuation]], int]:
        """The continuations of each line, and the exit code of the search."""
        # invalid lines are continued as empty ones, since the samples of the others depend on their line numbers
        prompts = blank_invalid(lines, problems) if len(problems) < len(lines) else []
        if options.beam_size is not None:
            return self._search(run, prompts, options)
        return [best.ranked() for best in run.generate(prompts, options)], 0

    def _stream(self, run: AnyRun, prompt: str, options: GenerationConfig) -> None:
        pieces = run.stream(prompt, options)
        first = next(pieces, "")  # an invalid request is refused here, before anything is printed
        for piece in chain([] if self.no_echo else [prompt], [first], pieces):
            write(piece)
            sys.stdout.flush()
        write("\n")

    def _search(self, run: AnyRun, prompts: list[str], options: GenerationConfig) -> tuple[list[list[Continuation]], int]:
        """Beam search with progress: with a length penalty, a longer text can become the best at any token. A signal stops it,
        and the outputs so far are returned with the exit code."""
        from weft.cli.display import Display
        from weft.cli.signals import Stop

        with Stop("Printing the best so far", "quit") as stop, Display(quiet=self.quiet) as display:

            def should_continue(done: int, total: int) -> bool:
                stop.saves = True
                display.show("searching", done / total, f"{done:,} of at most {total:,} tokens")
                return not stop.is_requested

            results = run.generate(prompts, options, should_continue=should_continue)
        return [best.ranked() for best in results], stop.exit_code if stop.is_requested else 0

    def _print(
        self,
        run: AnyRun,
        lines: Sequence[Line],
        problems: Mapping[int, str],
        results: Sequence[Sequence[Continuation]],
        options: GenerationConfig,
    ) -> None:
        """One continuation per line if the model generates lines, and an empty line for each invalid prompt; running text below
        a heading, unless there is only one."""
        by_line = run.spec.decode is not None and run.spec.decode.is_single_line(run)
        rows = [(line, [] if index in problems else results[index]) for index, line in enumerate(lines)]
        per_prompt = options.num_samples * options.n_best
        for number, (line, continuations) in enumerate(rows, 1):
            for rank, continuation in enumerate(continuations, 1):
                if not by_line and len(lines) * per_prompt > 1:
                    prompt = f"prompt {number}, " if len(lines) > 1 else ""
                    write(f"--- {prompt}{rank} of {len(continuations)} ---\n")
                text = ("" if self.no_echo else str(line)) + continuation.text
                write((on_one_line(text) if by_line else text) + "\n")
            if by_line and number - 1 in problems:
                write("\n" * per_prompt)
