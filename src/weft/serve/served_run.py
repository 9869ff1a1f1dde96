"""A run that is served: its model, its lanes and its queue. New weights are a new `ServedRun`."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from weft.runs.engines import TORCH
from weft.runs.load import load, with_model
from weft.runs.run import AnyRun
from weft.runs.run_dir import VOCABULARY_FILES, RunDir
from weft.serve.gather import Gather
from weft.serve.generation import Processors
from weft.serve.lane import BeamLane, Fail, Lane, SampleLane
from weft.serve.limits import Limits
from weft.serve.ticket import Ticket

Fingerprint = tuple[tuple[str, int, int, int], ...]  # name, inode, size and time of each file


def fingerprint(path: Path) -> Fingerprint:
    """What tells whether the files of a model have changed; files that are missing are left out."""
    directory = RunDir(path)
    files = list[tuple[str, int, int, int]]()
    for name in (directory.weights.name, directory.resolved.name, *VOCABULARY_FILES):
        try:
            status = (path / name).stat()
        except OSError:
            continue
        files.append((name, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(files)


class LoadOptions(NamedTuple):
    """How runs are loaded."""

    device: str = "auto"
    engine: str = TORCH  # the program that searches for the outputs of encoder-decoders
    quantization: str | None = None  # of the weights of another engine

    def load(self, path: Path) -> AnyRun:
        """A run with its weights. Models without a search are computed by weft, whatever the engine."""
        run = load(path, device=self.device)
        has_search = run.spec.decode is not None and run.spec.decode.prepare_search is not None
        if has_search and self.engine != TORCH:
            run = load(path, device=self.device, engine=self.engine, quantization=self.quantization)
        return with_model(run)


class ServedRun:
    """One version of a run. Everything but `info` belongs to the thread of the engine.

    Attributes:
        name: Of the run, in addresses.
        files: What the version was loaded from.
    """

    def __init__(self, name: str, path: Path, *, options: LoadOptions, limits: Limits) -> None:
        self.name, self.path, self.limits = name, path, limits
        self.files = fingerprint(path)  # before loading: a change while loading is seen afterwards
        self.run = options.load(path)
        self.gather = Gather(max_batch=limits.max_batch, seconds=limits.gather_seconds)
        self.processors = Processors()
        self._samples: SampleLane | None = None
        self._beams: BeamLane | None = None

    def sample_lane(self, fail: Fail) -> SampleLane:
        """Rows that are sampled; a new lane after a failure."""
        if self._samples is None:
            self._samples = SampleLane(self.run.model, self.run.device, max_rows=self.limits.max_rows, fail=fail)
        return self._samples

    def beam_lane(self, fail: Fail) -> BeamLane:
        """Sentences that are searched; a new lane after a failure."""
        if self._beams is None:
            self._beams = BeamLane(self.run.model, self.run.device, max_rows=self.limits.max_rows, fail=fail)
        return self._beams

    def lanes(self) -> list[Lane]:
        """The lanes that have been used."""
        return [lane for lane in (self._samples, self._beams) if lane is not None]

    def drop_lane(self, lane: Lane) -> None:
        """Forget a lane that failed, with its rows."""
        self._samples = None if lane is self._samples else self._samples
        self._beams = None if lane is self._beams else self._beams

    @property
    def num_rows(self) -> int:
        return sum(lane.num_rows for lane in self.lanes())

    @property
    def has_work(self) -> bool:
        return bool(self.gather) or any(lane.has_work for lane in self.lanes())

    def tickets(self) -> list[Ticket[Any]]:
        """Tickets that wait or run."""
        return [*self.gather.tickets(), *(ticket for lane in self.lanes() for ticket in lane.tickets())]

    def cancel(self, ticket: Ticket[Any]) -> None:
        """Remove everything of a ticket."""
        self.gather.cancel(ticket)
        for lane in self.lanes():
            lane.cancel(ticket)

    @cached_property
    def operations(self) -> tuple[str, ...]:
        """What can be asked of the run."""
        spec, decode = self.run.spec, self.run.spec.decode
        has = {
            "predict": spec.predict is not None,
            "generate": decode is not None and decode.frame_prompts is not None,
            "chat": decode is not None and decode.frame_chat is not None,
            "score": decode is not None,
            "embed": spec.embed is not None,
            "explain": spec.explain is not None or spec.file_views is not None,
        }
        return tuple(name for name, is_there in has.items() if is_there)

    @cached_property
    def info(self) -> dict[str, Any]:
        """What `/info` shows of the run."""
        from weft.explain.views import available_views

        spec = self.run.spec
        kind, names = spec.inputs(self.run.config)
        return {
            "name": self.name,
            "task": self.run.task,
            "arch": self.run.arch,
            "noun": spec.model_noun,
            "operations": list(self.operations),
            "labels": list(self.run.labels),
            "views": available_views(self.run) if "explain" in self.operations else [],
            "input": kind,
            "inputs": list(names),
            "parameters": self.run.num_parameters,
            "engine": TORCH if self.run.decoder is None else self.run.decoder.describe().removeprefix("engine:"),
        }
