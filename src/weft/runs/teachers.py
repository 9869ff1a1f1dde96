"""The teachers of a run that is trained by knowledge distillation. Only training needs them, not the finished run."""

from __future__ import annotations

from weft import files
from weft.errors import ConfigError, ModelError
from weft.runs.config import RunConfig
from weft.runs.load import load, with_model
from weft.runs.run import AnyRun
from weft.runs.run_dir import RunDir

FILE = "teachers.json"
OPTION = "train.distill_from"


def _load_teacher(path: str, config: RunConfig) -> AnyRun:
    try:
        run = with_model(load(path, device=config.train.device))
    except ModelError as error:
        problem = f"{error.where}: {error.problem}; a run needs its teachers until it is trained"
        raise ConfigError(OPTION, problem, error.fix) from None
    if run.task != config.task:
        raise ConfigError(OPTION, f"{path} has task {run.task!r}, this run has task {config.task!r}", "use runs of one task")
    return run


def load_teachers(config: RunConfig) -> list[AnyRun]:
    """The runs of train.distill_from with their models in eval mode; empty if the loss does not use them."""
    return [_load_teacher(path, config) for path in config.train.distill_from or []] if config.train.distill_weight else []


def write_teachers(directory: RunDir, teachers: list[AnyRun]) -> None:
    """Record the teachers of a run. Refuses to resume with teachers that have changed."""
    record = [{"run": str(run.path), "sha256": files.sha256(run.directory.weights)} for run in teachers]
    path = directory.path / FILE
    if directory.has_started() and path.is_file():
        stored = files.read_json(path, max_bytes=1 << 20)
        for teacher in record:
            if teacher not in stored:
                fix = "restore its model.safetensors, or train again with `overwrite`"
                raise ConfigError(OPTION, f"{teacher['run']} has changed since this run started", fix)
    elif record:
        files.write_json(path, record)
