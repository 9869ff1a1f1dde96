"""Results on minimal pairs, as `weft analyze minimal-pairs` and `weft compare` print them: JSON and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.cli.output import finite
from weft.text.table_layout import columns

if TYPE_CHECKING:
    from weft.comparison.minimal_pairs import Row
    from weft.comparison.significance import Estimate
    from weft.metrics.items import ItemStatistics

SECTIONS = {"attractors": "attractors", "recency": "syntax or recency"}
# a pair counts half if the model cannot tell its sentences apart
COUNTS = {
    "unknown": "pairs with an unknown word",
    "unknown_choice": "  in the word that differs",
    "equal": "pairs with equal tokens (count half)",
    "long": "pairs that are too long (count half)",
}


def verdict(accuracy: Estimate) -> str:
    """Whether the verb agrees with the subject or the nearest noun, by the confidence interval on pairs with attractors."""
    from weft.metrics.minimal_pairs import CHANCE

    if accuracy.low is None or accuracy.high is None or accuracy.low <= CHANCE <= accuracy.high:
        return "not significant"
    return "the subject" if accuracy.low > CHANCE else "the nearest noun"


def decisive_row(rows: Sequence[Row]) -> Row | None:
    """The row that distinguishes syntax from recency: BLiMP's paradigms if present, else all pairs with attractors."""
    rows_by_name = {row.name: row for row in rows if row.by == "recency"}
    return rows_by_name.get("distractor paradigms", rows_by_name.get("1 or more attractors"))


def _counts(runs: Sequence[ItemStatistics]) -> dict[str, int]:
    """Number of pairs with each problem, averaged over the seeds of one model."""
    return {name: round(sum(float(run.statistics[name].sum()) for run in runs) / len(runs)) for name in COUNTS}


def as_json(rows: Sequence[Row], groups: Mapping[str, Sequence[ItemStatistics]]) -> dict[str, Any]:
    """The JSON result: the rows, the noun that each model agrees with, and counts of unknown words."""
    listed = [
        {
            "by": row.by,
            "name": row.name,
            "pairs": row.size,
            "accuracy": {
                name: {part: finite(value) for part, value in accuracy._asdict().items()}
                for name, accuracy in row.scores.items()
            },
        }
        for row in rows
    ]
    row = decisive_row(rows)
    follows = None if row is None else {name: verdict(accuracy) for name, accuracy in row.scores.items()}
    return {"rows": listed, "follows": follows, "counts": {name: _counts(runs) for name, runs in groups.items()}}


def signature(pairs: int, *, by: str | None = None, mean: bool = False, skip_unknown: bool = False) -> str:
    """All options that the scores depend on, as a signature."""
    from weft import __version__
    from weft.comparison.significance import SAMPLES

    options = f"by:{by or 'suite'}|{'mean' if mean else 'sum'}|{'known' if skip_unknown else 'all'}|ties:half"
    return f"weft:{__version__}|{options}|pairs:{pairs}|resamples:{SAMPLES}|interval:95%"


def _format(accuracy: Mapping[str, Any]) -> str:
    """'61.2 [59.0, 63.5]'."""
    value, low, high = (accuracy[name] for name in ("value", "low", "high"))
    return f"{value:.1f}" + ("" if low is None else f" [{low:.1f}, {high:.1f}]")


def as_table(result: Mapping[str, Any]) -> str:
    """The result of `as_json` with its signature: one row per phenomenon, one column per model; counts of problems below."""
    counts = result["counts"]
    heads = ["".join(char if char.isprintable() else " " for char in name) for name in counts]  # no newline in a row
    lines = [["accuracy (%)", "pairs", *heads]]
    blank, section = [""] * len(lines[0]), ""
    for row in result["rows"]:
        if row["by"] in SECTIONS and row["by"] != section:
            section = row["by"]
            lines += [blank, [SECTIONS[section], *blank[1:]]]
        indent = "  " if row["by"] in (*SECTIONS, "paradigm") else ""
        lines.append([indent + row["name"], f"{row['pairs']:,}", *(_format(row["accuracy"][name]) for name in counts)])
    if result["follows"] is not None:
        lines.append(["  agrees with", "", *(result["follows"][name] for name in counts)])
    totals = [(text, [values[name] for values in counts.values()]) for name, text in COUNTS.items()]
    count_rows = [[text, "", *(f"{count:,}" for count in values)] for text, values in totals if any(values)]
    return columns(lines + ([blank, *count_rows] if count_rows else [])) + f"{result['signature']}\n"
