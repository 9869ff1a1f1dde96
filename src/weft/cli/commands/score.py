"""`weft score`: log-probability and perplexity of each line, and the surprisal of its tokens."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.cache_options import CacheOptions
from weft.cli.ensemble_options import EnsembleOptions, describe_mixture
from weft.cli.inputs import InputFormat, Inputs, problems_in, warn_problems, whole_line, with_values
from weft.cli.options import InputFiles
from weft.cli.output import finite, note, write, write_exact, write_json, write_styled
from weft.cli.usage import with_flags
from weft.decode.score_record import score_record
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.data.input_records import InputRecord
    from weft.runs.run import AnyRun
    from weft.tasks.spec import Decode, Scored

BATCH_LINES = 512
COLUMNS = ("log_prob", "perplexity")


def as_text(line: Scored, *, per_token: bool) -> str:
    """The text output of a scored line: numbers first, since the text may contain anything."""
    from weft.text.reading import preview

    if not per_token:
        return f"{line.log_prob:.4f}\t{line.perplexity:.4f}\t{line.text}\n"
    pairs = zip(line.tokens, line.token_log_probs, strict=True)
    # 0 - x, not -x: the surprisal of a certain token is 0, not -0
    return "".join(f"{preview(token, len(token))}\t{0 - value:.4f}\n" for token, value in pairs) + "\n"


def error_json(line: str | None, error: str, *, per_token: bool) -> dict[str, Any]:
    """The JSON of a line without a score; `text` is None if the line is not valid text."""
    return {"text": line, "log_prob": None, "perplexity": None, "tokens": [] if per_token else 0, "error": error}


def parse_pair(line: str) -> tuple[tuple[str, ...], str | None]:
    """Split a line into source and target; returns the texts and the problem, if any."""
    texts = tuple(line.split("\t"))
    return texts, None if len(texts) == 2 else f"expected a source, a tab and a target, got {len(texts) - 1} tabs"


@dataclass(kw_only=True)
class Score(CacheOptions, EnsembleOptions):
    """Compute the log-probability and perplexity of each line.

    Prints log-probability (in nats), perplexity and text of each line of standard input. seq2seq models read pairs, source and
    target separated by a tab, and score the target. Of tables (.csv, .tsv, .jsonl) the text columns are read, and the table is
    printed with log_prob and perplexity added. A line that cannot be used gives an empty line, a warning, and exit code 3 at
    the end.
    """

    per_token: Annotated[bool, typer.Option("--per-token", help="Print each token with its surprisal.")] = False
    input: InputFiles = None

    def run(self) -> int:
        from weft.cli.display import Display

        run = self.load()
        for line in describe_mixture(run):
            note(line, quiet=self.quiet)
        decode = run.spec.decode
        if decode is None:
            raise UsageError(self.run_dir, f"models of task {run.config.task!r} do not give texts a probability")
        if self.truncate and not decode.scores_pairs:
            raise UsageError("truncate", f"not available for task {run.config.task!r}")
        inputs = Inputs(
            run, None, self.input, InputFormat(parse_pair if decode.scores_pairs else whole_line, BATCH_LINES, targets=True)
        )
        inputs.note_formats(quiet=self.quiet)
        if not (self.json or self.per_token):
            inputs.refuse_mixed(self.input)
            write_exact(inputs.form.head(COLUMNS))
            if sys.stdout.isatty() and inputs.form.is_plain:
                write_styled([("log-prob\tperplexity\ttext", "dim")])
        done, num_invalid = 0, 0
        with Display(quiet=self.quiet) as display:
            for entries in inputs.batches():
                problems, scores = self._score(run, decode, entries, display, done)
                display.clear()
                warn_problems(entries, problems)
                self._print(inputs, entries, problems, scores)
                done, num_invalid = done + len(entries), num_invalid + len(problems)
        return DataError.exit_code if num_invalid else 0

    def _score(
        self, run: AnyRun, decode: Decode[Any], entries: Sequence[InputRecord], display: Display, num_before: int
    ) -> tuple[dict[int, str], dict[int, Scored]]:
        """Problems and scores of the records, both by index in the batch."""
        from weft.tasks.spec import InvalidInput

        unit = "pairs" if decode.scores_pairs else "tokens"

        def progress(phase: str, done: int, total: int) -> None:
            display.show(f"scoring from line {num_before + 1:,} on", done / total, f"{done:,} of {total:,} {unit}")

        problems = problems_in(entries)
        texts = {index: entry.texts for index, entry in enumerate(entries) if index not in problems}
        inputs = [pair if decode.scores_pairs else pair[0] for pair in texts.values()]
        results = dict(zip(texts, run.try_score(inputs, truncate=self.truncate, progress=progress), strict=True))
        problems |= {index: with_flags(result.reason) for index, result in results.items() if isinstance(result, InvalidInput)}
        return problems, {index: result for index, result in results.items() if not isinstance(result, InvalidInput)}

    def _print(
        self, inputs: Inputs, entries: Sequence[InputRecord], problems: Mapping[int, str], scores: Mapping[int, Scored]
    ) -> None:
        for index, entry in enumerate(entries):
            score = scores.get(index)
            if self.json and score is None:
                write_json(error_json(entry.text, problems[index], per_token=self.per_token), indent=None)
            elif self.json and score is not None:
                write_json(score_record(score, per_token=self.per_token), indent=None)
            elif self.per_token or inputs.form.is_plain:
                write("\n" if score is None else as_text(score, per_token=self.per_token))
            else:
                values = (None, None) if score is None else (finite(score.log_prob), finite(score.perplexity))
                write_exact(with_values(inputs, entry, dict(zip(COLUMNS, values, strict=True)), problems.get(index)))
        sys.stdout.flush()
