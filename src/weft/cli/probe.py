"""`weft probe`: minimal pairs, by phenomenon and by number of attractors, for several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import Device, Shared
from weft.cli.output import columns, finite, note, write, write_json
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.compare.probe import Row
    from weft.compare.significance import Estimate
    from weft.data.probe_files import Pair
    from weft.metrics.items import Items

SECTIONS = {"attractors": "attractors", "recency": "syntax or recency"}
# what counts half is what a model can't tell apart
COUNTED = {
    "unknown": "pairs with an unknown word",
    "unknown_choice": "  in what differs",
    "equal": "pairs that become equal (count half)",
    "long": "pairs that are too long (count half)",
}


def _units() -> list[str]:
    return ["sentence", "word"]


def shown(found: Estimate) -> str:
    """'61.2 (59.0-63.5)'."""
    return f"{found.value:.1f}" + ("" if found.low is None else f" ({found.low:.1f}-{found.high:.1f})")


def verdict(found: Estimate) -> str:
    """What a model follows, by the interval of its accuracy on pairs with attractors."""
    from weft.metrics.probes import CHANCE

    if found.low is None or found.high is None or found.low <= CHANCE <= found.high:
        return "neither clearly"
    return "the subject" if found.low > CHANCE else "the nearest noun"


def deciding(rows: Sequence[Row]) -> Row | None:
    """The row that tells syntax from recency: BLiMP's paradigms if they are there, else all pairs with attractors."""
    known = {row.name: row for row in rows if row.by == "recency"}
    return known.get("distractor paradigms", known.get("1 or more attractors"))


def counts(items: Mapping[str, Items]) -> dict[str, dict[str, int]]:
    """Of each run, how many pairs have an unknown word, and so on."""
    return {run: {name: int(found.statistics[name].sum()) for name in COUNTED} for run, found in items.items()}


def as_table(rows: Sequence[Row], items: Mapping[str, Items]) -> str:
    """Phenomena down, runs across; below them what the models did not know."""
    names = list(items)
    lines = [["accuracy in %", "pairs", *names]]
    section = ""
    for row in rows:
        if row.by in SECTIONS and row.by != section:
            lines += [[""] * (2 + len(names)), [SECTIONS[row.by], *[""] * (1 + len(names))]]
            section = row.by
        indent = "  " if row.by in (*SECTIONS, "paradigm") else ""
        lines.append([indent + row.name, f"{row.size:,}", *(shown(row.found[name]) for name in names)])
    if (last := deciding(rows)) is not None:
        lines.append(["  so it follows", "", *(verdict(last.found[name]) for name in names)])
    known = counts(items)
    told = [[text, "", *(f"{known[run][name]:,}" for run in names)] for name, text in COUNTED.items()]
    told = [line for line, name in zip(told, COUNTED, strict=True) if any(known[run][name] for run in names)]
    return columns(lines + ([[""] * (2 + len(names)), *told] if told else []))


def as_json(rows: Sequence[Row], items: Mapping[str, Items]) -> dict[str, Any]:
    """The same for programs."""
    told = [
        {
            "by": row.by,
            "name": row.name,
            "pairs": row.size,
            "accuracy": {
                name: {part: finite(value) for part, value in one._asdict().items()} for name, one in row.found.items()
            },
        }
        for row in rows
    ]
    row = deciding(rows)
    follows = None if row is None else {name: verdict(found) for name, found in row.found.items()}
    return {"rows": told, "follows": follows, "counts": counts(items)}


def as_csv(rows: Sequence[Row], names: Sequence[str]) -> str:
    """A line a row, with three columns a run."""
    head = ["by", "name", "pairs", *(part for name in names for part in (name, f"{name} low", f"{name} high"))]
    lines = [[row.by, row.name, row.size, *(_blank(part) for name in names for part in row.found[name])] for row in rows]
    return _csv([head, *lines])


def pairs_csv(pairs: Sequence[Pair], items: Mapping[str, Items]) -> str:
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
class Probe(Shared):
    """Ask language models which of two sentences is right: by phenomenon, and by nouns that stand between subject and verb.

    A pair is right where the good sentence has the higher probability. Suites are files of minimal pairs: BLiMP's JSONL, TSV
    with columns good and bad, and the agreement data of Linzen et al. and Gulordava et al.; or folders of them.
    """

    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, compared side by side.")]
    suite: Annotated[
        list[Path],
        typer.Option(metavar="FILE", readable=False, help="Minimal pairs: a file or a folder; may be given several times."),
    ]
    by: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT",
            autocompletion=_units,
            help="Compare by whole sentence, or up to the word that decides.  [default: as the authors of the suite do]",
        ),
    ] = None
    mean: Annotated[bool, typer.Option("--mean", help="Compare the mean log-probability of a token, not the sum.")] = False
    known: Annotated[
        bool, typer.Option("--known", help="Leave out pairs where a word that differs is unknown to one of the runs.")
    ] = False
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as CSV; - is standard output.")] = None
    pairs: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every pair and its scores as CSV.")] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.compare.probe import rows

        pairs = self._read()
        with Display(quiet=self.quiet) as display:
            items = self._probed(pairs, display)
            if self.known:
                pairs, items = self._known(pairs, items)
            display.show("comparing", 0.0)
            found = rows({name: [one] for name, one in items.items()}, pairs)
        self._give(found, pairs, items)
        return 0

    def _read(self) -> list[Pair]:
        """The pairs that are asked about; what was left out is told."""
        from weft.compare.probe import BY, decided
        from weft.config import no_such
        from weft.data.probe_files import read_suite

        if self.by is not None and self.by not in BY:
            raise UsageError(f"--by: {no_such('unit', self.by, BY)}")
        suite = read_suite(self.suite)
        pairs = decided(suite.pairs, self.by)
        if not pairs:
            raise DataError(f"--by word: no one word decides any of the {len(suite.pairs):,} pairs; use --by sentence")
        for path in suite.skipped:
            note(f"{path}: is no suite of minimal pairs; left out", quiet=self.quiet)
        told = {
            "verbs have one form only; left out": suite.same,
            "pairs are not decided by one word; left out": len(suite.pairs) - len(pairs),
            "pairs stand there twice; they count twice": len(pairs) - len(set(pairs)),
        }
        for text, count in told.items():
            if count:
                note(f"weft: {count:,} {text}", quiet=self.quiet)
        return pairs

    def _names(self) -> dict[str, Path]:
        """What runs are called: by their folder, or, where two would have one name, by their path."""
        paths = {Path(abspath(path)): path for path in self.folders}
        names = [path.name for path in paths]
        return {path.name if names.count(path.name) == 1 else str(given): given for path, given in paths.items()}

    def _probed(self, pairs: Sequence[Pair], display: Display) -> dict[str, Items]:
        from weft.compare.probe import check_run, probe
        from weft.run import load

        named, found = self._names(), dict[str, Any]()
        for path in named.values():
            if path.is_file():
                raise UsageError(f"{path}: is a file, not a run folder; --suite goes before every file, or before their folder")
            check_run(load(path, device=self.device))  # before the first of them is scored: what is refused is refused at once
        for done, (name, path) in enumerate(named.items()):

            def watch(part: int, whole: int, name: str = name, done: int = done) -> None:
                display.show("probing", (done + part / max(1, whole)) / len(named), f"{name}  {done} of {len(named)} runs")

            watch(0, 1)
            found[name] = probe(load(path, device=self.device), pairs, by=self.by, mean=self.mean, watch=watch)
        return found

    def _known(self, pairs: Sequence[Pair], items: Mapping[str, Items]) -> tuple[list[Pair], dict[str, Items]]:
        """What all runs know the words of that differ."""
        import numpy as np

        from weft.compare.probe import subset

        unknown = np.any([found.statistics["unknown_choice"] > 0 for found in items.values()], axis=0)
        kept = np.flatnonzero(~unknown)
        if not len(kept):
            raise DataError(f"--known: every one of the {len(pairs):,} pairs differs in a word that some run does not know")
        note(f"weft: {int(unknown.sum()):,} of {len(pairs):,} pairs differ in an unknown word; left out", quiet=self.quiet)
        return [pairs[at] for at in kept.tolist()], {name: subset(found, kept) for name, found in items.items()}

    def _signature(self, pairs: int) -> str:
        """Every choice behind the numbers, named."""
        from weft import __version__
        from weft.compare.significance import SAMPLES

        chosen = f"by:{self.by or 'suite'}|{'mean' if self.mean else 'sum'}|{'known' if self.known else 'all'}|ties:half"
        return f"weft:{__version__}|{chosen}|pairs:{pairs}|resamples:{SAMPLES}|interval:95%"

    def _give(self, rows: Sequence[Row], pairs: Sequence[Pair], items: Mapping[str, Items]) -> None:
        from weft import files

        if self.pairs is not None:
            files.write_text(self.pairs, pairs_csv(pairs, items))
        if self.csv is not None and str(self.csv) != "-":
            files.write_text(self.csv, as_csv(rows, list(items)))
        signature = self._signature(len(pairs))
        if self.json:
            about = {"suite": list(map(str, self.suite)), "signature": signature}
            write_json({**as_json(rows, items), "runs": {name: str(path) for name, path in self._names().items()}, **about})
        elif self.csv is not None and str(self.csv) == "-":
            write(as_csv(rows, list(items)))
        else:
            write(as_table(rows, items) + signature + "\n")
