"""`weft predict`: one line in, one line out; a table in, a table out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.entries import Inputs, Reads, faults_in, first_texts, note_file, tell_faults, whole, words, written
from weft.cli.options import DECODING, FILES, SHARED
from weft.cli.output import finite, on_one_line, write, write_json
from weft.cli.predict_answers import parse_asked, predict_answers
from weft.cli.predict_labels import LABEL, parse_texts, predict_labels, predict_tags
from weft.cli.together import Searching, tell_unknown
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.data.records import Entry
    from weft.decode.predict import Prediction
    from weft.runs.run import AnyRun, Run
    from weft.tasks.seq2seq.predict import Seq2SeqOptions

LABELS: dict[str, Callable[..., int]] = {"classify": predict_labels, "tag": predict_tags, "span": predict_answers}
ADDED = {"translate": ("prediction",), "tag": (), "classify": LABEL, "span": LABEL}  # to records of files, by task
READING = ("folder", "text", "data", "device", *SHARED)  # options of every run
LINES = 1024  # predicted at a time, at most


def as_json(line: str | None, found: Sequence[Prediction]) -> dict[str, Any]:
    """A line and what it became; None is a line that is no text."""
    predictions = [
        {
            "text": one.text,
            "score": finite(one.score),
            "log_prob": finite(one.log_prob),
            "tokens": len(one.tokens),
            "cut": one.cut,
        }
        for one in found
    ]
    return {"source": line, "predictions": predictions}


@dataclass(kw_only=True)
class Predict(Searching):
    """Translate, pronounce, classify, tag, answer: print what every line of standard input becomes.

    One line in, one line out; an empty line stays empty. Files are read as those of training: of tables (.csv, .tsv, .jsonl)
    the text columns, and the same table is printed with the prediction added; CoNLL with the tags. What can't be read gives
    an empty line, a message, and exit code 3 at the end; the others are not lost.
    """

    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A line to predict from, instead of standard input.")] = (
        None
    )
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Read files, not standard input; may be given several times."),
    ] = None
    n_best: Annotated[
        int,
        typer.Option(
            rich_help_panel=DECODING, metavar="N", help="The N best of each line: line number, score and text, by tabs."
        ),
    ] = 1
    length: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=DECODING, metavar="N", help="Tokens to write at most.  [default: twice the source's and 32]"
        ),
    ] = None
    least: Annotated[int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Tokens before the end may come.")] = 0
    prefix: Annotated[
        str, typer.Option(rich_help_panel=DECODING, metavar="TEXT", help="What every output must start with.")
    ] = ""
    ban: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=DECODING, metavar="TOKEN", help="Never write this token; may be given several times."),
    ] = None
    samples: Annotated[
        int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Draw N outputs of each line instead of searching.")
    ] = 1
    temperature: Annotated[
        float | None, typer.Option(rich_help_panel=DECODING, metavar="X", help="Of sampling: below 1 safer, above 1 wilder.")
    ] = None
    top_k: Annotated[
        int | None, typer.Option(rich_help_panel=DECODING, metavar="N", help="Sample from the N most probable tokens.")
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=DECODING, metavar="X", help="Sample from the fewest tokens that have X of the probability."
        ),
    ] = None
    seed: Annotated[int, typer.Option(rich_help_panel=DECODING, metavar="N", help="The same seed, the same samples.")] = 0
    alignments: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FILES,
            metavar="DIR",
            help="Write for each line where its output looked: JSON, and a heat map as SVG.",
        ),
    ] = None
    layer: Annotated[
        int | None, typer.Option(rich_help_panel=FILES, metavar="N", help="Of --alignments: one layer, not the mean.")
    ] = None
    head: Annotated[
        int | None, typer.Option(rich_help_panel=FILES, metavar="N", help="Of --alignments: one head, not the mean.")
    ] = None

    def run(self) -> int:
        from weft.files import in_the_way

        if self.alignments is None and (self.layer, self.head) != (None, None):
            raise UsageError("--layer and --head: choose among --alignments DIR, which is not given")
        if self.alignments is not None and (file := in_the_way(self.alignments)) is not None:
            raise UsageError(f"--alignments: {file} is a file; name a folder")
        options, loaded = self._options(), self.load()
        task = loaded.settings.task
        if loaded.task.predict is None or task not in ADDED:
            raise loaded.refuse(f"use weft {loaded.task.use}")
        if task in LABELS:
            self._refuse_search(loaded)
        note_file(self.text, f"use --data {self.text} to read the file", quiet=self.quiet)
        inputs = self._inputs(loaded)
        table = not self.json and (task in LABELS or self.n_best * self.samples == 1)
        if table:
            inputs.refuse_unlike(self.data)
            write(inputs.form.head(ADDED.get(task, ())))
        if task in LABELS:
            bad = LABELS[task](loaded, inputs, json=self.json, quiet=self.quiet)
        else:
            bad = self._translate(loaded, inputs, options)
        if table:
            write(inputs.form.tail())
        return DataError.exit_code if bad else 0

    def _inputs(self, run: AnyRun) -> Inputs:
        """What to predict from."""
        parse = {
            "tag": words,
            "span": parse_asked,
            "classify": parse_texts(run.reader.columns if run.settings.task == "classify" else 1),
        }
        inputs = Inputs(run, self.text, self.data, Reads(parse.get(run.settings.task, whole), LINES))
        inputs.tell(quiet=self.quiet, writes=not self.json)
        return inputs

    def _translate(self, run: Run[str, list[Prediction]], inputs: Inputs, options: Seq2SeqOptions) -> int:
        """Print what the records become; how many became nothing."""
        if self.alignments is not None:
            run.reader.check_attention()
        done, bad, unknown = 0, 0, Counter[str]()
        for entries in inputs.batches():
            faults = faults_in(entries)
            faults |= run.reader.faults(first_texts(entries, faults), truncate=options.truncate)
            tell_faults(entries, faults)
            unknown.update(run.reader.unknown(first_texts(entries, faults)))
            self._predict(run, inputs, entries, faults, options, done)
            done, bad = done + len(entries), bad + len(faults)
            sys.stdout.flush()
        tell_unknown(unknown, quiet=self.quiet)
        return bad

    def _refuse_search(self, run: AnyRun) -> None:
        """Labels and answers are not searched for: options of search, and of outputs, would do nothing."""
        gives = "answers questions" if run.settings.task == "span" else "gives labels"
        for field in fields(self):
            if field.name not in READING and getattr(self, field.name) != field.default:
                option = "with" if field.name == "others" else field.name.replace("_", "-")
                raise UsageError(f"--{option}: is for runs that write outputs, but {self.folder} {gives}; drop it")

    def _options(self) -> Seq2SeqOptions:
        from weft.decode.predict_options import PredictOptions
        from weft.tasks.seq2seq.predict import Seq2SeqOptions

        given = {name: getattr(self, name) for name in PredictOptions.model_fields}
        return Seq2SeqOptions(**given | {"ban": self.ban or []})

    def _predict(
        self,
        run: Run[str, list[Prediction]],
        inputs: Inputs,
        entries: Sequence[Entry],
        faults: Mapping[int, str],
        options: Seq2SeqOptions,
        before: int,
    ) -> None:
        """Print what the records become."""
        read = first_texts(entries, faults)
        found = run.predict(read, options.model_copy(update={"prefixes": [self.prefix] * len(read), "first": before + 1}))
        if self.alignments is not None:
            self._align(run, read, [best[0] for best in found], before)
        for number, (entry, predictions) in enumerate(zip(entries, found, strict=True)):
            error = {"error": faults[number]} if number in faults else {}
            if self.json:
                write_json({**as_json(entry.text, [] if error else predictions), **error}, indent=None)
            elif self.n_best * self.samples > 1:
                for one in predictions:
                    write(f"{before + number + 1}\t{one.score:.4f}\t{on_one_line(one.text)}\n")
            elif inputs.form.plain:
                write(on_one_line(predictions[0].text) + "\n")
            else:
                said = {"prediction": None if error else predictions[0].text.replace("\0", "\\0")}
                write(written(inputs, entry, said, faults.get(number)))

    def _align(self, run: Run[str, list[Prediction]], lines: list[str], outputs: list[Prediction], before: int) -> None:
        from weft import files
        from weft.plots.heatmap import heatmap

        filled = [number for number, output in enumerate(outputs) if output.tokens]
        found = run.reader.align(
            [lines[number] for number in filled], [outputs[number] for number in filled], layer=self.layer, head=self.head
        )
        place: Any = self.alignments
        place.mkdir(parents=True, exist_ok=True)
        for number, one in zip(filled, found, strict=True):
            name = f"{before + number + 1:06d}"
            files.write_json(place / f"{name}.json", {**one.to_json(), "text": outputs[number].text})
            picture = heatmap(one.weights, rows=one.target, columns=one.source, title=lines[number], axes=("output", "source"))
            files.write_text(place / f"{name}.svg", picture)
