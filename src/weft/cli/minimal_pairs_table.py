"""What runs said of minimal pairs, as `weft probe` and `weft compare` give it out: JSON, and the table that is made of it."""

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
# what counts half is what a model can't tell apart
COUNTED = {
    "unknown": "pairs with an unknown word",
    "unknown_choice": "  in what differs",
    "equal": "pairs that become equal (count half)",
    "long": "pairs that are too long (count half)",
}


def verdict(found: Estimate) -> str:
    """What a model follows, by the interval of its accuracy on pairs with attractors."""
    from weft.metrics.minimal_pairs import CHANCE

    if found.low is None or found.high is None or found.low <= CHANCE <= found.high:
        return "neither clearly"
    return "the subject" if found.low > CHANCE else "the nearest noun"


def decisive_rows(rows: Sequence[Row]) -> Row | None:
    """The row that tells syntax from recency: BLiMP's paradigms if they are there, else all pairs with attractors."""
    known = {row.name: row for row in rows if row.by == "recency"}
    return known.get("distractor paradigms", known.get("1 or more attractors"))


def _counts(runs: Sequence[ItemStatistics]) -> dict[str, int]:
    """How many pairs have an unknown word, and so on, in the mean of the runs of one name."""
    return {name: round(sum(float(run.statistics[name].sum()) for run in runs) / len(runs)) for name in COUNTED}


def as_json(rows: Sequence[Row], groups: Mapping[str, Sequence[ItemStatistics]]) -> dict[str, Any]:
    """For programs: the rows, what each name follows, and what it did not know."""
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
    row = decisive_rows(rows)
    follows = None if row is None else {name: verdict(found) for name, found in row.found.items()}
    return {"rows": told, "follows": follows, "counts": {name: _counts(runs) for name, runs in groups.items()}}


def signature(pairs: int, *, by: str | None = None, mean: bool = False, known: bool = False) -> str:
    """Every choice behind the numbers, named."""
    from weft import __version__
    from weft.comparison.significance import SAMPLES

    chosen = f"by:{by or 'suite'}|{'mean' if mean else 'sum'}|{'known' if known else 'all'}|ties:half"
    return f"weft:{__version__}|{chosen}|pairs:{pairs}|resamples:{SAMPLES}|interval:95%"


def _shown(found: Mapping[str, Any]) -> str:
    """'61.2 (59.0-63.5)'."""
    return f"{found['value']:.1f}" + ("" if found["low"] is None else f" ({found['low']:.1f}-{found['high']:.1f})")


def as_table(told: Mapping[str, Any]) -> str:
    """What `as_json` tells, with its signature: phenomena down, names across; below them what the models did not know."""
    known = told["counts"]
    heads = ["".join(letter if letter.isprintable() else " " for letter in name) for name in known]  # a row is a line
    lines = [["accuracy in %", "pairs", *heads]]
    blank, section = [""] * len(lines[0]), ""
    for row in told["rows"]:
        if row["by"] in SECTIONS and row["by"] != section:
            section = row["by"]
            lines += [blank, [SECTIONS[section], *blank[1:]]]
        indent = "  " if row["by"] in (*SECTIONS, "paradigm") else ""
        lines.append([indent + row["name"], f"{row['pairs']:,}", *(_shown(row["accuracy"][name]) for name in known)])
    if told["follows"] is not None:
        lines.append(["  so it follows", "", *(told["follows"][name] for name in known)])
    unknown = [(text, [counted[name] for counted in known.values()]) for name, text in COUNTED.items()]
    told_of = [[text, "", *(f"{count:,}" for count in counts)] for text, counts in unknown if any(counts)]
    return columns(lines + ([blank, *told_of] if told_of else [])) + f"{told['signature']}\n"
