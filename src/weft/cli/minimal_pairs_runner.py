"""Minimal pairs: read before anything else, then scored by one run after another."""

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


def refuse_files(paths: Sequence[Path], option: str) -> None:
    """Refuse the files that a shell pattern after `option` expands to: only the first of them belongs to the option."""
    for path in paths:
        if path.is_file():
            raise UsageError(
                path, "a file, not a run directory", f"repeat `{option}` before every file, or name their directory"
            )


def read_pairs(paths: Sequence[Path], *, by: str | None = None, quiet: bool = False) -> list[MinimalPair]:
    """Read the pairs to score, and report those that are skipped."""
    from weft.comparison.minimal_pairs import scorable_pairs
    from weft.data.minimal_pair_files import read_suite

    suite = read_suite(paths)
    pairs = scorable_pairs(suite.pairs, by)
    if not pairs:
        raise DataError(
            "score_by word", f"none of the {len(suite.pairs):,} pairs differs in exactly one word", "use `score_by` sentence"
        )
    for path in suite.skipped:
        note(f"skipped {path}: not a suite of minimal pairs", quiet=quiet)
    counts = {
        "skipped {} verbs that have one form only": suite.identical,
        "skipped {} pairs that differ in more than one word": len(suite.pairs) - len(pairs),
        "{} pairs are duplicates and count twice": len(pairs) - len(set(pairs)),
    }
    for text, count in counts.items():
        if count:
            note(text.format(f"{count:,}"), quiet=quiet)
    return pairs


class MinimalPairsRunner:
    """Scores the same pairs with several runs, and shows the progress."""

    def __init__(self, pairs: Sequence[MinimalPair], display: Display, *, device: str = "auto") -> None:
        self.pairs, self.display, self.device = pairs, display, device

    def evaluate(self, runs: Mapping[str, Path], *, by: str | None = None, mean: bool = False) -> dict[str, ItemStatistics]:
        """Score the pairs with each run; returns the item statistics by name."""
        from weft.comparison.minimal_pairs import evaluate_minimal_pairs
        from weft.runs.load import load

        items, num_runs = dict[str, "ItemStatistics"](), len(runs)
        for done, (name, path) in enumerate(runs.items()):

            def progress(part: int, total: int, name: str = name, done: int = done) -> None:
                self.display.show(
                    "scoring minimal pairs", (done + part / max(1, total)) / num_runs, f"{name}  {done} of {num_runs} runs"
                )

            progress(0, 1)
            items[name] = evaluate_minimal_pairs(
                load(path, device=self.device), self.pairs, by=by, mean=mean, progress=progress
            )
        return items

    def rows(self, groups: Mapping[str, Sequence[ItemStatistics]]) -> list[Row]:
        """Accuracies of each model over its seeds."""
        from weft.comparison.minimal_pairs import rows

        self.display.show("comparing", 0.0)
        return rows(groups, self.pairs, progress=lambda done, total: self.display.show("comparing", done / total))
