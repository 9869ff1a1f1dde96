"""`weft probe`: minimal pairs, by phenomenon and by number of attractors, for several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import FILES, Device, ModelCommand
from weft.cli.output import check_files, note, write, write_json
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.comparison.minimal_pairs import Row
    from weft.data.minimal_pair_files import MinimalPair
    from weft.metrics.items import ItemStatistics


def _units() -> list[str]:
    return ["sentence", "word"]


def as_csv(rows: Sequence[Row], names: Sequence[str]) -> str:
    """A line a row, with three columns a run."""
    head = ["by", "name", "pairs", *(part for name in names for part in (name, f"{name} low", f"{name} high"))]
    lines = [[row.by, row.name, row.size, *(_blank(part) for name in names for part in row.found[name])] for row in rows]
    return _csv([head, *lines])


def pairs_csv(pairs: Sequence[MinimalPair], items: Mapping[str, ItemStatistics]) -> str:
    """A line a pair, with three columns a run: log-probability of both sentences, and whether it is right."""
    parts = ("good", "bad", "right")
    head = ["phenomenon", "paradigm", "attractors", "good", "bad", *(f"{run} {part}" for run in items for part in parts)]
    numbers = [found.statistics[part].tolist() for found in items.values() for part in parts]
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

    held = io.StringIO()
    csv.writer(held, lineterminator="\n").writerows(lines)
    return held.getvalue()


@dataclass(kw_only=True)
class MinimalPairs(ModelCommand):
    """Ask language models which of two sentences is right: by phenomenon, and by nouns that stand between subject and verb.

    A pair is right where the good sentence has the higher probability. Suites are files of minimal pairs: BLiMP's JSONL, TSV
    with columns good and bad, and the agreement data of Linzen et al. and Gulordava et al.; or folders of them.
    """

    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, compared side by side.")]
    suite: Annotated[
        list[Path],
        typer.Option(metavar="FILE", readable=False, help="Minimal pairs: a file or a folder; may be given several times."),
    ]
    score_by: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT",
            autocompletion=_units,
            help="Compare by whole sentence, or up to the word that decides.  [default: as the authors of the suite do]",
        ),
    ] = None
    mean_log_prob: Annotated[
        bool, typer.Option("--mean-log-prob", help="Compare the mean log-probability of a token, not the sum.")
    ] = False
    skip_unknown: Annotated[
        bool, typer.Option("--skip-unknown", help="Leave out pairs where a word that differs is unknown to one of the runs.")
    ] = False
    csv: Annotated[
        Path | None, typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write the table as CSV; - is standard output.")
    ] = None
    save_pairs: Annotated[
        Path | None, typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write every pair and its scores as CSV.")
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.cli.minimal_pairs_runner import MinimalPairsRunner, read_pairs, refuse_files
        from weft.comparison.minimal_pairs import BY, check_run
        from weft.errors import unknown_name
        from weft.runs.load import load

        if self.score_by is not None and self.score_by not in BY:
            raise UsageError("--score-by", *unknown_name("unit", self.score_by, BY))
        check_files({"--csv": self.csv, "--save-pairs": self.save_pairs})
        pairs = read_pairs(self.suite, by=self.score_by, quiet=self.quiet)
        refuse_files(self.run_dirs)
        for path in self.run_dirs:
            check_run(load(path, device=self.device))  # before the first of them is scored: what is refused is refused at once
        with Display(quiet=self.quiet) as display:
            items = MinimalPairsRunner(pairs, display, device=self.device).evaluate(
                self._names(), by=self.score_by, mean=self.mean_log_prob
            )
            if self.skip_unknown:
                pairs, items = self._known(pairs, items)
            found = MinimalPairsRunner(pairs, display).rows({name: [one] for name, one in items.items()})
        self._give(found, pairs, items)
        return 0

    def _names(self) -> dict[str, Path]:
        """What runs are called: by their folder, or, where two would have one name, by their path."""
        paths = {Path(abspath(path)): path for path in self.run_dirs}
        names = [path.name for path in paths]
        return {path.name if names.count(path.name) == 1 else str(given): given for path, given in paths.items()}

    def _known(
        self, pairs: Sequence[MinimalPair], items: Mapping[str, ItemStatistics]
    ) -> tuple[list[MinimalPair], dict[str, ItemStatistics]]:
        """What all runs know the words of that differ."""
        import numpy as np

        from weft.comparison.minimal_pairs import subset

        unknown = np.any([found.statistics["unknown_choice"] > 0 for found in items.values()], axis=0)
        kept = np.flatnonzero(~unknown)
        if not len(kept):
            raise DataError(
                "--skip-unknown", f"every one of the {len(pairs):,} pairs differs in a word that some run does not know"
            )
        note(f"weft: {int(unknown.sum()):,} of {len(pairs):,} pairs differ in an unknown word; left out", quiet=self.quiet)
        return [pairs[at] for at in kept.tolist()], {name: subset(found, kept) for name, found in items.items()}

    def _give(self, rows: Sequence[Row], pairs: Sequence[MinimalPair], items: Mapping[str, ItemStatistics]) -> None:
        from weft import files
        from weft.cli.minimal_pairs_table import as_json, as_table, signature

        if self.save_pairs is not None:
            files.write_text(self.save_pairs, pairs_csv(pairs, items), named=True)
        if self.csv is not None and str(self.csv) != "-":
            files.write_text(self.csv, as_csv(rows, list(items)), named=True)
        chosen = signature(len(pairs), by=self.score_by, mean=self.mean_log_prob, known=self.skip_unknown)
        told = {**as_json(rows, {name: [one] for name, one in items.items()}), "signature": chosen}
        if self.json:
            about = {name: str(path) for name, path in self._names().items()}
            write_json({**told, "runs": about, "suite": list(map(str, self.suite))})
        elif self.csv is not None and str(self.csv) == "-":
            write(as_csv(rows, list(items)))
        else:
            write(as_table(told))
