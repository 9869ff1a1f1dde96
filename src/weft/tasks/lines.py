"""How a task reads input lines and prints predictions on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from weft.config import Config
from weft.tasks.spec import InvalidInput

if TYPE_CHECKING:
    from weft.data.input_records import InputRecord, Values
    from weft.runs.config import RunConfig

I_co = TypeVar("I_co", covariant=True)  # an input, as the task's `predict` takes it
P_contra = TypeVar("P_contra", contravariant=True)  # a prediction


class Lines(Protocol[I_co, P_contra]):
    """Reads input lines and formats predictions, for one run and the options of one command. Methods with a body are
    defaults."""

    config: RunConfig
    command_options: Any
    batch_size: int = 1024  # maximum number of lines per call of `predict`
    unit: str = "line"  # in notes
    columns: Sequence[str] = ()  # columns that are added to a table
    reads_files: bool = False  # whether a line is the path of a file, which is opened
    outputs_tables: bool = True  # whether the output for a table is a table; otherwise records are printed as lines

    def __init__(self, config: RunConfig, options: Any) -> None:
        self.config, self.command_options = config, options

    def split(self, line: str) -> tuple[tuple[str, ...], str | None]:
        """The texts of a line, and a problem with the line, or None."""
        return (line,), None

    def parse(self, texts: tuple[str, ...]) -> I_co | InvalidInput | None:
        """The texts of a line or record as an input; None for an empty line, whose output is empty."""

    def options(self, numbers: Sequence[int]) -> Config:
        """The options for inputs with these line numbers, from 1."""
        options: Config = self.command_options
        return options

    def text(self, prediction: P_contra | None, number: int | None) -> str:
        """A prediction as one or more lines, with newlines; None: there is none. `number` is the line number,
        None if there is only one line."""

    def json(self, entry: InputRecord, prediction: P_contra | None) -> dict[str, Any]:
        """A line and its prediction as JSON."""

    def values(self, prediction: P_contra | None) -> Values:
        """The values that are added to a record, by column."""
        return {}

    def truncated(self, prediction: P_contra) -> bool:
        """Whether the input was truncated."""
        return False

    def files(self, entry: InputRecord, prediction: P_contra, name: str) -> Mapping[str, bytes]:
        """Further output files, if they are requested; their names start with `name`."""
        return {}
