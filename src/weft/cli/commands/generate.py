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

from weft.cli.ensemble_options import blank_invalid, invalid_lines, note_unknown, report_invalid
from weft.cli.inputs import Inputs, as_line, note_file
from weft.cli.options import DECODING, Device, MinP, ModelCommand, TopK, TopP
from weft.cli.output import finite, write, write_json
from weft.errors import DataError, UsageError
from weft.text.table_layout import on_one_line

if TYPE_CHECKING:
    from weft.cli.input_lines import Line
    from weft.decode.generate import Continuation
    from weft.decode.options import GenerationConfig
    from weft.runs.run import AnyRun

MAX_PROMPTS = 1_000_000


def as_json(prompt: str | None, found: Sequence[Continuation]) -> dict[str, Any]:
    """A prompt and its continuations, best first; None is a line that is no text."""
    continuations = [
        {"text": one.text, "tokens": one.token_ids, "log_prob": finite(one.log_prob), "score": finite(one.score)}
        for one in found
    ]
    return {"prompt": prompt, "continuations": continuations}


def _told(
    lines: Sequence[Line], problems: Mapping[int, str], results: Sequence[Sequence[Continuation]]
) -> list[dict[str, Any]]:
    """Every line and what became of it, for programs."""
    found = list[dict[str, Any]]()
    for at, line in enumerate(lines):
        told = as_json(None if isinstance(line, DataError) else line, [] if at in problems else results[at])
        found.append({**told, "error": problems[at]} if at in problems else told)
    return found


def _all(lines: Iterator[Line], where: str) -> list[Line]:
    """The prompts; they are sorted by length before the first is continued, so input without end is refused."""
    prompts = list(islice(lines, MAX_PROMPTS + 1))
    if len(prompts) > MAX_PROMPTS:
        raise UsageError(where, f"has more than {MAX_PROMPTS:,} prompts", "split it")
    return prompts


@dataclass(kw_only=True)
class Generate(ModelCommand):
    """Continue a prompt by sampling, greedily, or by beam search.

    Without a prompt, prompts are read from standard input, one a line, unless that is a terminal; then the model
    begins by itself. The prompt is printed before its continuation. A line that can't be continued gives a message, and
    exit code 3 at the end; the others are not lost.
    """

    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help="What to continue; - reads standard input.")] = None
    input: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Read prompts from a file, one a line.")
    ] = None
    no_echo: Annotated[bool, typer.Option("--no-echo", help="Print continuations without their prompts.")] = False
    max_new_tokens: Annotated[int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Tokens to add at most.")] = 100
    min_new_tokens: Annotated[
        int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Tokens before the text may end.")
    ] = 0
    stop: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=DECODING, metavar="TEXT", help="End before this text; may be given several times."),
    ] = None
    temperature: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=DECODING,
            metavar="X,...",
            help="Below 1 safer, above 1 wilder, 0 greedy; several, 0.5,0.8,1.0, one after another.  [default: 1]",
        ),
    ] = None
    greedy: Annotated[
        bool, typer.Option("--greedy", rich_help_panel=DECODING, help="Always the most probable token: --temperature 0.")
    ] = False
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    num_samples: Annotated[int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Continuations of each prompt.")] = 1
    seed: Annotated[int, typer.Option(rich_help_panel=DECODING, metavar="N", help="The same seed, the same text.")] = 0
    beam_size: Annotated[
        int | None, typer.Option(rich_help_panel=DECODING, metavar="N", help="Search with a beam this wide; nothing is drawn.")
    ] = None
    length_penalty: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=DECODING, metavar="X", help="With --beam-size: score = log-probability / length^X.  [default: 0]"
        ),
    ] = None
    n_best: Annotated[int, typer.Option(rich_help_panel=DECODING, metavar="N", help="With --beam-size: the N best.")] = 1
    repetition_penalty: Annotated[
        float,
        typer.Option(rich_help_panel=DECODING, metavar="X", help="Divide by X for each time a token stands in the last 64."),
    ] = 1.0
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(rich_help_panel=DECODING, metavar="N", help="No N-gram twice.")
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        temperatures = self._temperatures()
        options = [self._options(value) for value in temperatures]
        from weft.runs.load import load, prepared

        run = load(self.run_dir, device=self.device)
        decode = run.task.decode
        if decode is None or decode.generate is None:
            raise run.refuse(f"use weft {run.task.use}")
        prepared(run)
        if (lines := self._lines(run)) is None:
            note_file(self.prompt, f"use --input {self.prompt} to read the file", quiet=self.quiet)
            lines, problems = ["" if self.prompt == "-" else self.prompt or ""], dict[int, str]()
        else:
            broken = invalid_lines(lines)
            unfit = decode.prompt_faults(run, blank_invalid(lines, broken), options[0])
            problems = report_invalid(broken, unfit, 0, "" if self.input is None else f"{self.input}: ")
        code = self._each(run, lines, problems, options)
        note_unknown(Counter(run.task.unknown(run, blank_invalid(lines, problems))), quiet=self.quiet)
        return code or (DataError.exit_code if problems else 0)

    def _temperatures(self) -> list[float | None]:
        """Those that were asked for; None is that of the model."""
        if self.temperature is None:
            return [0.0 if self.greedy else None]
        try:
            found = [float(part) for part in self.temperature.split(",")]
        except ValueError:
            raise UsageError(
                "--temperature", f"must be a number, or several with commas between them, not {self.temperature!r}"
            ) from None
        if self.greedy and found != [0.0]:
            raise UsageError("--greedy", "is --temperature 0", f"drop it, or --temperature {self.temperature}")
        return [*found]

    def _options(self, temperature: float | None) -> GenerationConfig:
        from weft.decode.options import GenerationConfig

        given = {name: getattr(self, name) for name in GenerationConfig.model_fields}
        return GenerationConfig(**given | {"stop": self.stop or [], "temperature": temperature})

    def _each(
        self, run: AnyRun, lines: Sequence[Line], problems: Mapping[int, str], options: Sequence[GenerationConfig]
    ) -> int:
        """Print what becomes of the lines at each temperature, from the same random numbers; the exit code of that."""
        if len(options) == 1:
            return self._continue(run, lines, problems, options[0])
        results = list[dict[str, Any]]()
        for one in options:
            found, _ = self._found(run, lines, problems, one)
            if self.json:
                results += [{"temperature": one.temperature, **told} for told in _told(lines, problems, found)]
            else:
                write(f"=== temperature {one.temperature:g} ===\n")
                self._print(run, lines, problems, found, one)
        if self.json:
            write_json({"run": str(self.run_dir), "seed": self.seed, "results": results})
        return 0

    def _lines(self, run: AnyRun) -> list[Line] | None:
        """Prompts of a file or of standard input; None where there is one, or none."""
        from weft.cli.input_lines import STANDARD, any_lines

        encoding = run.config.data.encoding
        if self.input is not None:
            if self.prompt is not None:
                raise UsageError("--input", "does not go with a prompt", "give one of them")
            inputs = Inputs(run, None, [self.input])
            inputs.report_file(quiet=self.quiet)
            return _all(map(as_line, chain.from_iterable(inputs.batches())), str(self.input))
        if self.prompt == "-" or (self.prompt is None and not sys.stdin.isatty()):
            return _all(any_lines(None, encoding), STANDARD) or None
        return None

    def _continue(self, run: AnyRun, lines: Sequence[Line], problems: Mapping[int, str], options: GenerationConfig) -> int:
        """Print what becomes of the lines that have no fault; the exit code of that."""
        if options.beam_size is None and not self.json and not problems and len(lines) * options.num_samples == 1:
            self._stream(run, str(lines[0]), options)
            return 0
        found, code = self._found(run, lines, problems, options)
        if self.json:
            write_json({"run": str(self.run_dir), "seed": options.seed, "results": _told(lines, problems, found)})
        else:
            self._print(run, lines, problems, found, options)
        return code

    def _found(
        self, run: AnyRun, lines: Sequence[Line], problems: Mapping[int, str], options: GenerationConfig
    ) -> tuple[list[list[Continuation]], int]:
        """The continuations of each line, and the exit code of the search."""
        # one with a fault is continued as an empty one, for what is drawn for the others depends on their numbers
        prompts = blank_invalid(lines, problems) if len(problems) < len(lines) else []
        if options.beam_size is not None:
            return self._search(run, prompts, options)
        return [one.ranked() for one in run.generate(prompts, options)], 0

    def _stream(self, run: AnyRun, prompt: str, options: GenerationConfig) -> None:
        pieces = run.stream(prompt, options)
        first = next(pieces, "")  # what can't be done is refused here, before anything is printed
        for piece in chain([] if self.no_echo else [prompt], [first], pieces):
            write(piece)
            sys.stdout.flush()
        write("\n")

    def _search(self, run: AnyRun, prompts: list[str], options: GenerationConfig) -> tuple[list[list[Continuation]], int]:
        """Search with progress: with a length penalty, a longer text can be better to the last token. A signal ends it, and
        what was found by then is given, with the exit code."""
        from weft.cli.display import Display
        from weft.cli.signals import Stop

        with Stop("printing what is found") as stop, Display(quiet=self.quiet) as display:

            def should_continue(done: int, total: int) -> bool:
                stop.saves = True
                display.show("searching", done / total, f"{done:,} of at most {total:,} tokens")
                return not stop.is_requested

            found = run.generate(prompts, options, going=should_continue)
        return [one.ranked() for one in found], stop.exit_code if stop.is_requested else 0

    def _print(
        self,
        run: AnyRun,
        lines: Sequence[Line],
        problems: Mapping[int, str],
        results: Sequence[Sequence[Continuation]],
        options: GenerationConfig,
    ) -> None:
        """One a line where lines are what the model writes, and empty ones for what has a fault; running text under a heading
        each, unless there is only one."""
        by_line = run.task.decode is not None and run.task.decode.lines(run)
        rows = [(line, [] if at in problems else results[at]) for at, line in enumerate(lines)]
        each = options.num_samples * options.n_best
        for number, (line, some) in enumerate(rows, 1):
            for place, one in enumerate(some, 1):
                if not by_line and len(lines) * each > 1:
                    of = f"prompt {number}, " if len(lines) > 1 else ""
                    write(f"--- {of}{place} of {len(some)} ---\n")
                text = ("" if self.no_echo else str(line)) + one.text
                write((on_one_line(text) if by_line else text) + "\n")
            if by_line and number - 1 in problems:
                write("\n" * each)
