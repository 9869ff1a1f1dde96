"""`weft predict`: one line in, one line out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.output import finite, say, write, write_json
from weft.cli.together import Together
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.decode.predict import Prediction
    from weft.decode.predict_options import PredictOptions
    from weft.translator import Translator

LINES = 1024  # predicted at a time; of a terminal one, for somebody waits for the answer


def as_json(line: str, found: Sequence[Prediction]) -> dict[str, Any]:
    """A line and what it became, best first."""
    predictions = [
        {"text": one.text, "score": finite(one.score), "log_prob": finite(one.log_prob), "tokens": len(one.tokens)}
        for one in found
    ]
    return {"source": line, "predictions": predictions}


@dataclass(kw_only=True)
class Predict(Together):
    """Translate, pronounce, inflect: print what every line of standard input becomes.

    One line in, one line out; an empty line stays empty. A line that can't be read gives an empty line, a message, and
    exit code 3 at the end; the others are not lost.
    """

    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A line to predict from, instead of standard input.")] = (
        None
    )
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read files, not standard input; may be given several times."),
    ] = None
    best: Annotated[
        int, typer.Option("--n-best", metavar="N", help="The N best of each line: line number, score and text, by tabs.")
    ] = 1
    length: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens to write at most.  [default: twice the source's and 32]")
    ] = None
    least: Annotated[int, typer.Option(metavar="N", help="Tokens before the end may come.")] = 0
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="What every output must start with.")] = ""
    ban: Annotated[
        list[str] | None, typer.Option(metavar="TOKEN", help="Never write this token; may be given several times.")
    ] = None
    samples: Annotated[int, typer.Option(metavar="N", help="Draw N outputs of each line instead of searching.")] = 1
    temperature: Annotated[float | None, typer.Option(metavar="X", help="Of sampling: below 1 safer, above 1 wilder.")] = None
    top_k: Annotated[int | None, typer.Option(metavar="N", help="Sample from the N most probable tokens.")] = None
    top_p: Annotated[
        float | None, typer.Option(metavar="X", help="Sample from the fewest tokens that have X of the probability.")
    ] = None
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed, the same samples.")] = 0
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut lines that are longer than the model reads.")] = False
    alignments: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write for each line where its output looked: JSON, and a heat map as SVG."),
    ] = None
    layer: Annotated[int | None, typer.Option(metavar="N", help="Of --alignments: one layer, not the mean.")] = None
    head: Annotated[int | None, typer.Option(metavar="N", help="Of --alignments: one head, not the mean.")] = None

    def run(self) -> int:
        from weft.cli.lines import batched, input_lines
        from weft.run import as_translator

        if self.text is not None and self.data:
            raise UsageError("--data: does not go with a text; give one of them")
        if self.alignments is None and (self.layer, self.head) != (None, None):
            raise UsageError("--layer and --head: choose among --alignments DIR, which is not given")
        options, run = self._options(), as_translator(self.load())
        lines = iter([self.text]) if self.text is not None else input_lines(self.data, run.settings.data.encoding)
        alone = self.text is None and not self.data and sys.stdin.isatty()
        done, bad = 0, 0
        for batch in batched(lines, 1 if alone else LINES):
            bad += self._predict(run, batch, options, done)
            done += len(batch)
            sys.stdout.flush()
        return DataError.exit_code if bad else 0

    def _options(self) -> PredictOptions:
        from weft.decode.predict_options import PredictOptions

        given = {name: getattr(self, name) for name in PredictOptions.model_fields}
        return PredictOptions(**given | {"ban": self.ban or []})

    def _predict(self, run: Translator, lines: list[str], options: PredictOptions, before: int) -> int:
        """Print what the lines become; how many could not be read."""
        faults = run.faults(lines, truncate=options.truncate)
        for number, fault in faults.items():
            say(f"weft: line {before + number + 1}: {fault}")
        read = ["" if number in faults else line for number, line in enumerate(lines)]
        found = run.predict(read, options, prefixes=[self.prefix] * len(read))
        if self.alignments is not None:
            self._align(run, read, [best[0] for best in found], before)
        for number, (line, predictions) in enumerate(zip(lines, found, strict=True)):
            error = {"error": faults[number]} if number in faults else {}
            if self.json:
                write_json({**as_json(line, [] if error else predictions), **error}, indent=None)
            elif self.best * self.samples > 1:
                for one in predictions:
                    write(f"{before + number + 1}\t{one.score:.4f}\t{one.text}\n")
            else:
                write(predictions[0].text + "\n")
        return len(faults)

    def _align(self, run: Translator, lines: list[str], outputs: list[Prediction], before: int) -> None:
        from weft import files
        from weft.report.heatmap import heatmap

        filled = [number for number, output in enumerate(outputs) if output.tokens]
        found = run.align(
            [lines[number] for number in filled], [outputs[number] for number in filled], layer=self.layer, head=self.head
        )
        place: Any = self.alignments
        place.mkdir(parents=True, exist_ok=True)
        for number, one in zip(filled, found, strict=True):
            name = f"{before + number + 1:06d}"
            files.write_json(place / f"{name}.json", {**one.to_json(), "text": outputs[number].text})
            picture = heatmap(one.weights, rows=one.target, columns=one.source, title=lines[number])
            files.write_text(place / f"{name}.svg", picture)
