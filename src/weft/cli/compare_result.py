"""Output of a comparison: comparison.json, report, and the printed tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.cli.output import check_files, terminal_width, warn, write, write_json, write_table

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.comparison.results import RunResults
    from weft.report.comparison import ComparisonInfo

Groups = Mapping[str, Sequence["RunResults"]]
JSON_KEYS = (  # of comparison.json, printed by --json
    "title",
    "task",
    "data",
    "metric",
    "test",
    "test_items",
    "insufficient_data",
    "context",
    "rows",
    "failures",
    "minimal_pairs",
)


class OutputOptions(NamedTuple):
    """How results are printed and written."""

    csv: Path | None
    markdown: Path | None
    latex: Path | None
    json: bool
    quiet: bool

    def check(self, output_dir: Path) -> None:
        """Refuse invalid output files before hours of training; the comparison itself creates `output_dir`."""
        from weft.errors import UsageError

        tables = {"csv": self.csv, "markdown": self.markdown, "latex": self.latex}
        printed = [option for option, path in tables.items() if str(path) == "-"] + ["json"] * self.json
        if len(printed) > 1:
            names = " and ".join(f"`{option}`" for option in printed)
            raise UsageError("", f"{names} cannot both use standard output", "write one of them to a file")
        check_files(tables, new_dir=output_dir)


def _with_minimal_pairs(document: Mapping[str, Any], results: Groups, info: ComparisonInfo, display: Display) -> dict[str, Any]:
    """The comparison document with the accuracy of its runs on minimal pairs, as breakdowns and as a table."""
    from weft.cli.minimal_pairs_runner import MinimalPairsRunner
    from weft.cli.minimal_pairs_table import as_json, signature
    from weft.comparison.minimal_pairs import breakdowns

    runner, names = MinimalPairsRunner(info.pairs, display), [row["name"] for row in document["rows"]]
    items = runner.evaluate({str(run.run): run.run for name in names for run in results[name]})
    groups = {name: [items[str(run.run)] for run in results[name]] for name in names}
    rows = runner.rows(groups)
    about = {"suite": list(map(str, info.suites)), "signature": signature(len(info.pairs))}
    return {
        **document,
        "breakdowns": [*document["breakdowns"], *breakdowns(rows)],
        "minimal_pairs": {**as_json(rows, groups), **about},
    }


def write_results(results: Groups, info: ComparisonInfo, output_dir: Path, display: Display) -> dict[str, Any]:
    """Write comparison.json and report.html to `output_dir`, and return the content of comparison.json."""
    from weft.report.comparison import write_comparison

    def extend(document: Mapping[str, Any]) -> dict[str, Any]:
        return _with_minimal_pairs(document, results, info, display) if info.pairs else dict(document)

    return write_comparison(results, info, output_dir, display, extend)


def write_failures(info: ComparisonInfo) -> None:
    """Print the JSON of a comparison in which all runs failed, with the same keys as any other."""
    keys = [key for key in JSON_KEYS if key != "minimal_pairs"]
    failures = [failure._asdict() for failure in info.failures]
    write_json({**dict.fromkeys(keys), "title": info.title, "rows": [], "failures": failures})


def context_line(document: Mapping[str, Any]) -> str:
    """The line below a table that describes the context policy of its scores; '' for tasks without one."""
    text = document["context"]["text"] if document.get("context") else ""
    return "".join(char if char.isprintable() else " " for char in text) + "\n" * bool(text)


def print_results(results: Groups, document: Mapping[str, Any], info: ComparisonInfo, options: OutputOptions) -> None:
    """Write the tables to files and to standard output."""
    from weft import files
    from weft.cli.minimal_pairs_table import as_table
    from weft.comparison import table, table_text

    rows = table.rows(results, info.metric)
    formats = [(options.csv, table_text.csv), (options.markdown, table_text.markdown), (options.latex, table_text.latex)]
    uses_stdout = options.json
    for path, to_text in formats:
        if path is None:
            continue
        if str(path) == "-":
            write(to_text(rows))
            uses_stdout = True
        else:
            files.write_text(path, to_text(rows), named=True)
    if options.json:
        write_json({name: document[name] for name in JSON_KEYS if name in document})
    elif not uses_stdout:
        write("\n")
        write_table(table_text.terminal(rows, terminal_width()))
        write("".join(f"{line}\n" for line in document["test"].removesuffix("\n").split("\n")) + context_line(document))
        if document["insufficient_data"]:
            warn(document["insufficient_data"], quiet=options.quiet)
        if "minimal_pairs" in document:
            write("\n" + as_table(document["minimal_pairs"]))
