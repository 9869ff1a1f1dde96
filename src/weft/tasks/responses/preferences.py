"""Tables of preferences: a chosen and a rejected text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weft.data.formats import TableFormat, TableRecord
from weft.data.table_rows import file_location
from weft.errors import DataError
from weft.text.reading import FileSummary


@dataclass(frozen=True)
class PreferenceFormat(TableFormat):
    """Tables with a chosen and a rejected text, after a prompt if there is one. The two texts differ."""

    def read(self, inputs: tuple[Path, ...], summary: FileSummary) -> Iterator[TableRecord]:
        for record in super().read(inputs, summary):
            *_, chosen, rejected = record.texts
            if chosen == rejected:
                where = file_location(record.path, record.line)
                raise DataError(where, f"{self.columns[-2]} and {self.columns[-1]} are equal", "remove the pair")
            yield record
