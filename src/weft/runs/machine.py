"""The machine that a run is trained or evaluated on: timings of different machines cannot be compared."""

from __future__ import annotations

import platform
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import NamedTuple

from weft.errors import ModelError, ResourceError
from weft.log import Log, read_log
from weft.training.device import has_driver

MACHINES = "machines.jsonl"  # in a run directory: a line for each machine that the run was trained on
MAX_CHARS = 200  # of a name
CPU_INFO = Path("/proc/cpuinfo")


class Machine(NamedTuple):
    """A machine, as far as it explains timings."""

    host: str
    processor: str
    gpu: str  # "none" without one
    threads: int

    @property
    def hardware(self) -> str:
        """'AMD EPYC 7763, 8 threads', or with a GPU 'NVIDIA H100'."""
        return self.gpu if self.gpu != "none" else f"{self.processor}, {self.threads} thread{'' if self.threads == 1 else 's'}"


def host_name() -> str:
    return _printable(platform.node()) or "unknown host"


@cache
def processor() -> str:
    """The model name of the processor."""
    with suppress(OSError):
        for line in CPU_INFO.read_text(errors="replace").split("\n"):
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return _printable(" ".join(value.split()))
    return _printable(platform.processor() or platform.machine()) or "unknown processor"


def _printable(text: str) -> str:
    return "".join(char for char in text if char.isprintable())[:MAX_CHARS]


def torch_version() -> str:
    """`torch.__version__` without importing torch. The version of its package may lack the end, such as +cu130."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return version("torch")
    return str(run_path(str(Path(spec.origin).with_name("version.py")))["__version__"])


def gpu() -> str:
    """The GPU that torch sees. Importing torch takes seconds, so it is imported only if there is a driver."""
    if not has_driver():
        return "none"
    import torch

    return _printable(torch.cuda.get_device_name()) if torch.cuda.is_available() else "none"


def this_machine(threads: int | None = None) -> Machine:
    """This machine with the number of threads that torch uses, or would use: `threads`, or else torch is asked."""
    if threads is None:
        import torch

        threads = torch.get_num_threads()
    return Machine(host_name(), processor(), gpu(), threads)


def write_machine(run_dir: Path, step: int, threads: int | None = None) -> None:
    """Record this machine in a run that starts or resumes on it at `step`, unless it is the last one recorded. `threads` as in
    `this_machine`."""
    current = this_machine(threads)
    if read_machines(run_dir)[-1:] != [current]:
        with Log(run_dir / MACHINES) as log:
            log.write({"step": step, **current._asdict()})


def read_machines(run_dir: Path) -> list[Machine]:
    """The machines that a run was trained on, in order; empty if they are not recorded or the record is damaged."""
    machines = []
    with suppress(ModelError, ResourceError):
        for record in read_log(run_dir / MACHINES, allow_text=True):
            host, name, gpu, threads = (record.get(field) for field in Machine._fields)
            if isinstance(host, str) and isinstance(name, str) and isinstance(gpu, str) and isinstance(threads, int):
                machines.append(Machine(_printable(host), _printable(name), _printable(gpu), threads))
    return machines
