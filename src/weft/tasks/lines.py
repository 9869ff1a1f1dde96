"""What a line of the command line is to a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from weft.config import Config
from weft.tasks.spec import Fault

if TYPE_CHECKING:
    from weft.data.input_records import Entry, Values
    from weft.runs.config import RunConfig

I_co = TypeVar("I_co", covariant=True)  # an input, as the task's `predict` takes it
P_contra = TypeVar("P_contra", contravariant=True)  # a prediction


class Lines(Protocol[I_co, P_contra]):
    """What a line is to a task, and how a prediction is printed. It is made for one run and the options of one command. What
    most have in common is written here: lines of tasks inherit it."""

    config: RunConfig
    given: Any  # the options of the command
    batch: int = 1024  # lines predicted at a time, at most
    item: str = "line"  # what notes count
    columns: Sequence[str] = ()  # that a table gets
    tables: bool = True  # whether a table in is a table out; else records are printed as lines are

    def __init__(self, config: RunConfig, options: Any) -> None:
        self.config, self.given = config, options

    def split(self, line: str) -> tuple[tuple[str, ...], str | None]:
        """The texts of a line, and what is wrong with them, if something is."""
        return (line,), None

    def parse(self, texts: tuple[str, ...]) -> I_co | Fault | None:
        """The texts of a line, or of a record of a file, as an input; None: an empty one, which stays empty."""

    def options(self, numbers: Sequence[int]) -> Config:
        """How to predict from inputs that have these numbers, from 1, among all lines."""
        given: Config = self.given
        return given

    def text(self, prediction: P_contra | None, number: int | None) -> str:
        """A prediction as one line or several, with newlines; None: there is none. `number` is that of its line, None where
        it is the only one."""

    def json(self, entry: Entry, prediction: P_contra | None) -> dict[str, Any]:
        """A line and its prediction, for programs."""

    def values(self, prediction: P_contra | None) -> Values:
        """What a record of a file gets, by its column."""
        return {}

    def truncated(self, prediction: P_contra) -> bool:
        """Whether the input was longer than the model reads."""
        return False

    def files(self, entry: Entry, prediction: P_contra, name: str) -> Mapping[str, bytes]:
        """What is written beside it where that is asked for, by the names of files, which begin with `name`."""
        return {}
