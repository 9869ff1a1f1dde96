"""workers.json: all that workers on any host need to know about a comparison, and the check that their host is alike."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import Field, ValidationError

from weft import __version__, files
from weft.comparison.plan import FailedRun, Variant
from weft.comparison.shared_tokenizer import tokenizer_table
from weft.config import Config
from weft.errors import DataError, ModelError, UsageError
from weft.log import check_checksum, with_checksum
from weft.runs.machine import host_name
from weft.runs.resolve import resolve

SHARED_PLAN = "workers.json"
FORMAT = 1


class PlannedVariant(Config):
    """A row of the table."""

    name: str
    values: dict[str, Any]


class Failure(Config):
    """A row that cannot be trained."""

    name: str
    seed: int | None
    reason: str
    code: int


class SharedPlan(Config):
    """A comparison whose tokenizer and variants are prepared."""

    version: int = FORMAT
    weft: str
    code: str  # checksum of the source code
    host: str  # that planned the comparison
    title: str
    command: str
    task: str
    seed: int
    seeds: int = Field(ge=1, le=1000)
    tune_trials: int | None
    fixed: list[str]  # options that the search does not change
    metric: str | None
    tokenize: str | None
    context: str | None
    minimal_pairs: list[str]
    about: dict[str, str]
    variants: list[PlannedVariant] = Field(min_length=1)
    failed: list[Failure]
    data: dict[str, str]  # checksums by path

    @classmethod
    def read(cls, output_dir: Path) -> Self:
        path = output_dir / SHARED_PLAN
        files.refuse_link(path)
        fix = "plan the comparison again with `plan_only`"
        content = check_checksum(files.read_json(path))
        if content is None:
            raise ModelError(path, "checksum mismatch; the file is corrupted", fix)
        if content.get("version") != FORMAT:
            raise ModelError(path, f"format version {content.get('version')!r} is not supported (expected {FORMAT})", fix)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise ModelError(path, f"damaged: {error.errors()[0]['msg']}", fix) from None

    def write(self, output_dir: Path) -> None:
        files.write_json(output_dir / SHARED_PLAN, with_checksum(files.as_json(self.model_dump())))

    def planned_variants(self, output_dir: Path) -> list[Variant]:
        """The variants with the tokenizer in `output_dir`, whose path may differ between hosts."""
        table = tokenizer_table(output_dir)
        return [Variant(variant.name, {**variant.values, "tokenizer": table}) for variant in self.variants]

    def failures(self) -> list[FailedRun]:
        return [FailedRun(**failure.model_dump()) for failure in self.failed]


def is_shared(output_dir: Path) -> bool:
    """Whether a directory contains a comparison for workers."""
    return (output_dir / SHARED_PLAN).is_file()


@cache
def code_checksum() -> str:
    """Checksum of the source code of weft: versions under development have the same number."""
    package, digest = Path(files.__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}:{files.sha256(path)}\n".encode())
    return digest.hexdigest()


# ---- data


class DataFiles(NamedTuple):
    """What the runs of a comparison read, besides the files in its directory."""

    paths: list[Path]  # data files
    media: list[Any]  # sounds, images and video that the data files name


def _data_files(variants: Sequence[Mapping[str, Any]]) -> DataFiles:
    configs = [resolve(values, base=Path()) for values in variants]
    sources = configs[0].datasets.values()  # the same for all variants
    paths = files.list_files(dict.fromkeys(path for source in sources for path in source.paths))
    for train in (config.train for config in configs):
        runs = [path for path in (train.init_from, *(train.distill_from or ())) if path is not None]
        paths += [Path(run) / "model.safetensors" for run in runs]
        if train.init_embeddings is not None:
            vectors = Path(train.init_embeddings)
            paths.append(vectors / "model.safetensors" if vectors.is_dir() else vectors)
    named = configs[0].spec.compare.input_files
    media = [] if named is None else [file for source in sources for file in named(source)]
    return DataFiles(list(dict.fromkeys(paths)), media)


def data_checksums(variants: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The checksum of every file that the runs of these variants read, by its path; for media files, one checksum of all
    sizes."""
    paths, media = _data_files(variants)
    checksums = {str(path): files.sha256(path) if path.exists() else "missing" for path in paths}
    if media:
        digest = hashlib.sha256()
        for file in media:
            digest.update(f"{file}:{_size(file)}\n".encode(errors="surrogateescape"))
        checksums["media files"] = digest.hexdigest()
    return checksums


def _size(file: Any) -> int:
    try:
        return int(file.size())
    except DataError:  # training reports it
        return -1


class HostCheck:
    """Refuses a host whose weft or data differ from those of the host that planned the comparison."""

    def __init__(self, plan: SharedPlan) -> None:
        self.plan, self.host = plan, host_name()
        self._stamps: dict[str, tuple[int, int]] = {}  # size and time of the files that were checked

    def check_version(self) -> None:
        theirs, ours = (self.plan.weft, self.plan.code), (__version__, code_checksum())
        if theirs == ours:
            return
        kind = (f"weft {ours[0]}", f"weft {theirs[0]}")
        if theirs[0] == ours[0]:
            kind = (f"weft {ours[0]} with source code {ours[1][:8]}", f"{theirs[1][:8]}")
        problem = f"{self.host} has {kind[0]}, but {self.plan.host} planned the comparison with {kind[1]}"
        raise UsageError("weft", problem, "install the same version on all hosts")

    def check_data(self) -> None:
        """Compare the data with that of the plan; files are read again only if they have changed since the last check."""
        stamps = {name: _stamp(Path(name)) for name in self.plan.data}
        if self._stamps and stamps == self._stamps:
            return
        current = data_checksums([variant.values for variant in self.plan.variants])
        names = [name for name in sorted({*current, *self.plan.data}) if current.get(name) != self.plan.data.get(name)]
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            difference = _difference(names[0], current, self.plan.data)
            problem = f"{difference} on {self.host}; the comparison was planned on {self.plan.host}"
            raise DataError(f"{names[0]}{more}", problem, "use the same files on all hosts")
        self._stamps = stamps


def _difference(name: str, current: Mapping[str, str], planned: Mapping[str, str]) -> str:
    if planned.get(name, "missing") == "missing":
        return "is not part of the comparison, but exists"
    return "is missing" if current.get(name, "missing") == "missing" else "differs"


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (-1, -1)
    return status.st_size, status.st_mtime_ns
