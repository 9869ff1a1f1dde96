"""`weft analyze minimal-pairs`: accuracy by phenomenon and by number of attractors, for several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import FILES, Csv, Device, ModelCommand
from weft.cli.output import check_files, note, write, write_json
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.comparison.minimal_pairs import Row
    from weft.data.minimal_pair_files import MinimalPair
    from weft.metrics.items import ItemStatistics


def _units() -> list[str]:
    return ["sentence", "word"]


def as_csv(rows: Sequence[Row], names: Sequence[str]) -> str:
    """One line per row, with three columns per run."""
    head = ["by", "name", "pairs", *(part for name in names for part in (name, f"{name} low", f"{name} high"))]
    lines = [[row.by, row.name, row.size, *(_blank(part) for name in names for part in row.scores[name])] for row in rows]
    return _csv([head, *lines])


def pairs_csv(pairs: Sequence[MinimalPair], items: Mapping[str, ItemStatistics]) -> str:
    """One line per pair, with three columns per run: log-probability of both sentences, and whether the pair is correct."""
    parts = ("good", "bad", "correct")
    head = ["phenomenon", "paradigm", "attractors", "good", "bad", *(f"{run} {part}" for run in items for part in parts)]
    numbers = [item.statistics[part].tolist() for item in items.values() for part in parts]
    lines = [
        [pair.phenomenon, pair.paradigm, _blank(pair.attractors), pair.good, pair.bad, *values]
        for pair, *values in zip(pairs, *numbers, strict=True)
    ]
    return _csv([head, *lines])


def _blank(value: float | None) -> float | str:
    return "" if value is None else value


def _csv(lines: Sequence[Sequence[Any]]) -> str:
    import csv
    import io

    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()


@dataclass(kw_only=True)
class AnalyzeMinimalPairs(ModelCommand):
    """Test language models on minimal pairs: which of two sentences is grammatical?

    A pair is correct if the grammatical sentence has the higher probability. Accuracies are listed by phenomenon, and by the
    number of attractors, nouns between subject and verb. Suites are files of minimal pairs, or directories of them: BLiMP's
    JSONL, TSV with the columns good and bad, and the agreement data of Linzen et al. and Gulordava et al.
    """

    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories, compared side by side.")]
    suite: Annotated[
        list[Path],
        typer.Option(metavar="FILE", readable=False, help="Minimal-pair file or directory. Repeatable."),
    ]
    score_by: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT",
            autocompletion=_units,
            help="Compare whole sentences, or only the word that differs: sentence or word."
            "  [default: as in the suite's paper]",
        ),
    ] = None
    mean_log_prob: Annotated[bool, typer.Option("--mean-log-prob", help="Compare mean instead of total log-probabilities.")] = (
        False
    )
    skip_unknown: Annotated[bool, typer.Option("--skip-unknown", help="Skip pairs that differ in an unknown word.")] = False
    csv: Csv = None
    save_pairs: Annotated[
        Path | None,
        typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write all pairs with their scores as CSV."),
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.cli.minimal_pairs_runner import MinimalPairsRunner, read_pairs, refuse_files
        from weft.comparison.minimal_pairs import SCORE_BY, check_run
        from weft.errors import unknown_name
        from weft.runs.load import load

        if self.score_by is not None and self.score_by not in SCORE_BY:
            raise UsageError("score_by", *unknown_name("unit", self.score_by, SCORE_BY))
        check_files({"csv": self.csv, "save_pairs": self.save_pairs})
        pairs = read_pairs(self.suite, by=self.score_by, quiet=self.quiet)
        refuse_files(self.run_dirs, "suite")
        for path in self.run_dirs:
            check_run(load(path, device=self.device))  # before the first run is scored
        with Display(quiet=self.quiet) as display:
            items = MinimalPairsRunner(pairs, display, device=self.device).evaluate(
                self._names(), by=self.score_by, mean=self.mean_log_prob
            )
            if self.skip_unknown:
                pairs, items = self._without_unknown(pairs, items)
            rows = MinimalPairsRunner(pairs, display).rows({name: [item] for name, item in items.items()})
        self._print(rows, pairs, items)
        return 0

    def _names(self) -> dict[str, Path]:
        """The runs by name: the name of the directory, or the path if two names are equal."""
        paths = {Path(abspath(path)): path for path in self.run_dirs}
        names = [path.name for path in paths]
        return {path.name if names.count(path.name) == 1 else str(run_dir): run_dir for path, run_dir in paths.items()}

    def _without_unknown(
        self, pairs: Sequence[MinimalPair], items: Mapping[str, ItemStatistics]
    ) -> tuple[list[MinimalPair], dict[str, ItemStatistics]]:
        """The pairs that differ only in words in the vocabulary of all runs."""
        import numpy as np

        from weft.comparison.breakdown import subset

        unknown = np.any([item.statistics["unknown_choice"] > 0 for item in items.values()], axis=0)
        selected = np.flatnonzero(~unknown)
        if not len(selected):
            raise DataError("skip_unknown", f"all {len(pairs):,} pairs differ in a word that is unknown to some run")
        note(f"skipped {int(unknown.sum()):,} of {len(pairs):,} pairs that differ in an unknown word", quiet=self.quiet)
        return [pairs[index] for index in selected.tolist()], {name: subset(item, selected) for name, item in items.items()}

    def _print(self, rows: Sequence[Row], pairs: Sequence[MinimalPair], items: Mapping[str, ItemStatistics]) -> None:
        from weft import files
        from weft.cli.minimal_pairs_table import as_json, as_table, signature

        if self.save_pairs is not None:
            files.write_text(self.save_pairs, pairs_csv(pairs, items), named=True)
        if self.csv is not None and str(self.csv) != "-":
            files.write_text(self.csv, as_csv(rows, list(items)), named=True)
        options = signature(len(pairs), by=self.score_by, mean=self.mean_log_prob, skip_unknown=self.skip_unknown)
        result = {**as_json(rows, {name: [item] for name, item in items.items()}), "signature": options}
        if self.json:
            runs = {name: str(path) for name, path in self._names().items()}
            write_json({**result, "runs": runs, "suite": list(map(str, self.suite))})
        elif self.csv is not None and str(self.csv) == "-":
            write(as_csv(rows, list(items)))
        else:
            write(as_table(result))
