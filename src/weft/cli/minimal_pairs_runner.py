"""Minimal pairs on their way: read before anything else is done, then asked of one run after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from weft.cli.output import note
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.comparison.minimal_pairs import Row
    from weft.data.minimal_pair_files import MinimalPair
    from weft.metrics.items import ItemStatistics


def refuse_files(paths: Sequence[Path]) -> None:
    """Refuse what a pattern after --suite became: only the first of its files belongs to the option."""
    for path in paths:
        if path.is_file():
            raise UsageError(path, "is a file, not a run folder", "--suite goes before every file, or before their folder")


def read_pairs(paths: Sequence[Path], *, by: str | None = None, quiet: bool = False) -> list[MinimalPair]:
    """The pairs that are asked about; what was left out is told."""
    from weft.comparison.minimal_pairs import decided_by_one_token
    from weft.data.minimal_pair_files import read_suite

    suite = read_suite(paths)
    pairs = decided_by_one_token(suite.pairs, by)
    if not pairs:
        raise DataError(
            "--score-by word", f"no one word decides any of the {len(suite.pairs):,} pairs", "use --score-by sentence"
        )
    for path in suite.skipped:
        note(f"{path}: is no suite of minimal pairs; left out", quiet=quiet)
    told = {
        "verbs have one form only; left out": suite.identical,
        "pairs are not decided by one word; left out": len(suite.pairs) - len(pairs),
        "pairs stand there twice; they count twice": len(pairs) - len(set(pairs)),
    }
    for text, count in told.items():
        if count:
            note(f"weft: {count:,} {text}", quiet=quiet)
    return pairs


class MinimalPairsRunner:
    """Asks runs about the same pairs, and shows how far it has come."""

    def __init__(self, pairs: Sequence[MinimalPair], display: Display, *, device: str = "auto") -> None:
        self.pairs, self.display, self.device = pairs, display, device

    def evaluate(self, named: Mapping[str, Path], *, by: str | None = None, mean: bool = False) -> dict[str, ItemStatistics]:
        """What each run prefers, by the name that it is given."""
        from weft.comparison.minimal_pairs import evaluate_minimal_pairs
        from weft.runs.load import load

        found, total = dict[str, "ItemStatistics"](), len(named)
        for done, (name, path) in enumerate(named.items()):

            def progress(part: int, whole: int, name: str = name, done: int = done) -> None:
                self.display.show("probing", (done + part / max(1, whole)) / total, f"{name}  {done} of {total} runs")

            progress(0, 1)
            found[name] = evaluate_minimal_pairs(
                load(path, device=self.device), self.pairs, by=by, mean=mean, progress=progress
            )
        return found

    def rows(self, groups: Mapping[str, Sequence[ItemStatistics]]) -> list[Row]:
        """The accuracy of each name, of its seeds together."""
        from weft.comparison.minimal_pairs import rows

        self.display.show("comparing", 0.0)
        return rows(groups, self.pairs, progress=lambda done, total: self.display.show("comparing", done / total))
