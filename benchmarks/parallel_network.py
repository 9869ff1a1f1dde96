"""Train on several hosts that lose packets, connections and power. Hosts are network namespaces on this machine, connected by
an emulated network (needs root and /dev/net/tun; skipped without them). Each row is trained by torchrun and has a bar.

    python benchmarks/parallel_network.py
    python benchmarks/parallel_network.py --only "cut link" --only "dead host"

`parallel_cost.py` compares the time of a step with a prediction from bytes and latency.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from _common import verdict
from _host_jobs import ROOT, Ending, Job, char_lm
from _hosts import LinkConfig, Network, emulated_hosts, missing_requirement

LIMIT_SECONDS = 60.0  # from a fault to the end of all processes
RUN_SECONDS = 300.0  # of a whole run, on a busy machine
LINK = LinkConfig(delay_ms=5, megabits=100)
TRAIN = {"max_steps": 60, "num_validations": 6}
ALPHA, BETA = "rank 0 (host alpha)", "rank 1 (host beta)"
RELATIVE = 1e-4  # of the losses of two processes and of one


class Outcome(NamedTuple):
    is_met: bool
    text: str


def example_data() -> Path:
    return ROOT / "examples" / "data" / "names.txt"


def final_loss(job: Job) -> float:
    """The last validation loss."""
    return float(next(line["valid_loss"] for line in reversed(job.metrics()) if "valid_loss" in line))


def ended_with(endings: Mapping[str, Ending], expected: Mapping[str, str]) -> Outcome:
    """Whether all hosts stopped in time with an error, and the messages of hosts have the expected words."""
    in_time = all(ending.exit_code not in (None, 0) for ending in endings.values())
    seconds = max(ending.seconds for ending in endings.values())
    state = f"all stopped after {seconds:.0f} s" if in_time else "NOT STOPPED: " + _unfinished(endings)
    messages = "; ".join(f"{name}: {endings[name].error or 'NO MESSAGE'}" for name in expected)
    are_named = all(words in endings[name].error for name, words in expected.items())
    return Outcome(in_time and are_named, f"{state}; {messages}")


def _unfinished(endings: Mapping[str, Ending]) -> str:
    return ", ".join(name for name, ending in endings.items() if ending.exit_code in (None, 0))


def finishes(job: Job) -> Outcome:
    """Start a job, or resume it, and wait for its end."""
    first = max((int(path.name) for path in job.checkpoints()), default=0)
    job.network.set_link(job.network.link)
    job.start()
    endings = job.endings(RUN_SECONDS)
    if not all(ending.finished for ending in endings.values()):
        return Outcome(False, f"did not finish: {endings}")
    return Outcome(True, f"{'resumed at step ' + str(first) if first else 'trained'}, loss {final_loss(job):.6f}")


class Benchmark:
    """The rows; each has its own directory."""

    def __init__(self, work_dir: Path) -> None:
        self.work_dir = work_dir
        self.uninterrupted: float | None = None  # the loss of two hosts without a fault

    def job(self, network: Network, name: str, **train: Any) -> Job:
        return Job(network, self.work_dir / name, char_lm(example_data(), **{**TRAIN, **train}))

    def _and_resumes(self, job: Job, outcome: Outcome) -> Outcome:
        """The fault, then the same command again: the result is that of a run without the fault, bit for bit."""
        if not outcome.is_met:
            return outcome
        resumed = finishes(job)
        text = f"{outcome.text}; {resumed.text}"
        if not resumed.is_met or self.uninterrupted is None:
            return Outcome(resumed.is_met, text)
        is_equal = final_loss(job) == self.uninterrupted
        return Outcome(is_equal, f"{text}, {'the same as' if is_equal else 'NOT'} without the fault")

    # ---- rows

    def trains(self, network: Network) -> Outcome:
        """Latency and lost packets change nothing but the time."""
        network.set_link(LINK._replace(loss=0.01))
        job = self.job(network, "trains")
        outcome = finishes(job)
        if not outcome.is_met:
            return outcome
        alone = Job(network, self.work_dir / "alone", char_lm(example_data(), **TRAIN))
        command = [sys.executable, "-P", "-m", "weft", "train", str(alone.run_file), "--output-dir", str(alone.run_dir)]
        subprocess.run([*command, "--threads", "1", "--quiet"], check=True)
        self.uninterrupted = final_loss(job)
        difference = abs(self.uninterrupted / final_loss(alone) - 1)
        return Outcome(difference <= RELATIVE, f"{network.link}: {outcome.text}, one process differs by {difference:.1e}")

    def cut_link(self, network: Network) -> Outcome:
        """Both hosts stop and name the other one."""
        job = self.job(network, "cut")
        job.start()
        job.wait_for_checkpoint()
        network.cut(network.hosts[1])
        return self._and_resumes(job, ended_with(job.endings(LIMIT_SECONDS), {"alpha": BETA, "beta": ALPHA}))

    def dead_host(self, network: Network) -> Outcome:
        """Every process of a host is killed, and nothing tells the other one: its network is gone as well."""
        job = self.job(network, "dead")
        job.start()
        job.wait_for_checkpoint()
        network.cut(network.hosts[1])
        network.hosts[1].kill()
        return self._and_resumes(job, ended_with(job.endings(LIMIT_SECONDS), {"alpha": BETA}))

    def dead_first_host(self, network: Network) -> Outcome:
        """The host of the first process and of torchrun's store is killed; its network closes the connections."""
        job = self.job(network, "dead-first")
        job.start()
        job.wait_for_checkpoint()
        network.hosts[0].kill()
        return self._and_resumes(job, ended_with(job.endings(LIMIT_SECONDS), {"beta": ALPHA}))

    def pause(self, network: Network) -> Outcome:
        """A host that stands still for 15 seconds is waited for."""
        job = self.job(network, "pause")
        job.start()
        job.wait_for_checkpoint()
        network.hosts[1].signal(signal.SIGSTOP)
        time.sleep(15)
        network.hosts[1].signal(signal.SIGCONT)
        endings = job.endings(RUN_SECONDS)
        is_met = all(ending.finished for ending in endings.values())
        return Outcome(is_met, f"waited, loss {final_loss(job):.6f}" if is_met else f"did not finish: {endings}")

    def long_pause(self, network: Network) -> Outcome:
        """A host that stands still for longer is lost. It stops when it runs again."""
        job = self.job(network, "long-pause")
        job.start()
        job.wait_for_checkpoint()
        network.hosts[1].signal(signal.SIGSTOP)
        time.sleep(LIMIT_SECONDS - 15)
        network.hosts[1].signal(signal.SIGCONT)
        return self._and_resumes(job, ended_with(job.endings(LIMIT_SECONDS), {"alpha": BETA}))

    def slow_rank(self, network: Network) -> Outcome:
        """A host that is permanently slower slows all of them down, and is named."""
        job = self.job(network, "slow")
        job.start()
        job.wait_for_checkpoint()
        generator = random.Random(1)
        while job.running["alpha"].poll() is None:
            network.hosts[1].signal(signal.SIGSTOP)
            time.sleep(generator.uniform(0.2, 0.4))
            network.hosts[1].signal(signal.SIGCONT)
            time.sleep(0.1)
        endings = job.endings(LIMIT_SECONDS)
        is_met = all(ending.finished for ending in endings.values())
        lines = [line for line in job.log(network.hosts[0]).read_text().split("\n") if "slowest rank 1 (host beta)" in line]
        state = "trained" if is_met else f"did not finish: {endings}"
        return Outcome(is_met and bool(lines), f"{state}; {lines[-1].strip() if lines else 'NOT NAMED'}")

    def killed_process(self, network: Network) -> Outcome:
        """A process is killed; torchrun starts all of them again on both hosts."""
        job = self.job(network, "killed")
        job.max_restarts = 3
        job.start()
        job.wait_for_checkpoint()
        os.kill(max(network.hosts[1].pids()), signal.SIGKILL)  # the process that torchrun has started
        endings = job.endings(RUN_SECONDS)
        if not all(ending.finished for ending in endings.values()):
            return Outcome(False, f"did not finish: {endings}")
        resumed = "resuming" in job.log(network.hosts[0]).read_text() + job.log(network.hosts[1]).read_text()
        is_equal = self.uninterrupted in (None, final_loss(job))
        return Outcome(resumed and is_equal, f"{'resumed' if resumed else 'NOT RESUMED'}, loss {final_loss(job):.6f}")

    def unequal_data(self, network: Network) -> Outcome:
        """The data file of one host has another line."""
        ours, theirs = self.work_dir / "data" / "names.txt", self.work_dir / "data" / "other.txt"
        ours.parent.mkdir(parents=True)
        shutil.copy(example_data(), ours)
        theirs.write_text(ours.read_text().replace("\n", "x\n", 1))
        job = Job(network, self.work_dir / "unequal-data", char_lm(ours, **TRAIN))
        job.setup["beta"] = [f"mount --bind '{theirs}' '{ours}'"]
        job.start()
        return ended_with(job.endings(LIMIT_SECONDS), {"alpha": BETA, "beta": BETA})

    def unequal_run_files(self, network: Network) -> Outcome:
        """The run file of one host has another learning rate."""
        job = self.job(network, "unequal-run-files")
        job.run_files["beta"] = Job(
            network, self.work_dir / "other", char_lm(example_data(), **TRAIN, weight_decay=0.3)
        ).run_file
        job.start()
        return ended_with(job.endings(LIMIT_SECONDS), {"alpha": BETA, "beta": BETA})

    def own_directories(self, network: Network) -> Outcome:
        """The run directory of one host is not that of the other."""
        job = self.job(network, "own-directories")
        job.run_dir.mkdir()
        job.setup["beta"] = [f"mount -t tmpfs tmpfs '{job.run_dir}'"]
        job.start()
        return ended_with(job.endings(LIMIT_SECONDS), {"alpha": BETA, "beta": BETA})

    def full_disk(self, network: Network) -> Outcome:
        """The disk of the first host is full after some checkpoints; with more space, the run resumes."""
        job = self.job(network, "full-disk")
        job.run_dir.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(job.run_dir)], check=True)
        try:
            job.start()
            outcome = ended_with(job.endings(RUN_SECONDS), {"alpha": "no space left on disk", "beta": ALPHA})
            subprocess.run(["mount", "-o", "remount,size=100m", str(job.run_dir)], check=True)
            return self._and_resumes(job, outcome)
        finally:
            subprocess.run(["umount", str(job.run_dir)], check=True)


ROWS: dict[str, tuple[str, Callable[[Benchmark, Network], Outcome]]] = {
    "latency and loss": ("trains; loss within 1e-4 of one process", Benchmark.trains),
    "cut link": ("both stop within 60 s, rank and host named; resumes", Benchmark.cut_link),
    "dead host": ("stops within 60 s, rank and host named; resumes", Benchmark.dead_host),
    "dead first host": ("stops within 60 s, rank and host named; resumes", Benchmark.dead_first_host),
    "host pauses 15 s": ("waits and finishes", Benchmark.pause),
    "host pauses 45 s": ("all stop, rank and host named; resumes", Benchmark.long_pause),
    "slow rank": ("finishes; the slow rank and host are named", Benchmark.slow_rank),
    "killed process": ("torchrun starts all again; resumes", Benchmark.killed_process),
    "unequal data": ("refused, rank and host named", Benchmark.unequal_data),
    "unequal run files": ("refused, rank and host named", Benchmark.unequal_run_files),
    "directories not shared": ("refused, rank and host named", Benchmark.own_directories),
    "full disk": ("both stop, host named; resumes with more space", Benchmark.full_disk),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(ROWS), help="run only this row; repeatable")
    parser.add_argument("--output-dir", type=Path, help="keep runs and logs in this new directory")
    args = parser.parse_args()
    if (reason := missing_requirement()) is not None:
        parser.exit(0, f"skipped: {reason}\n")
    met = True
    with tempfile.TemporaryDirectory() as name:
        benchmark = Benchmark(args.output_dir or Path(name))
        for row in args.only or ROWS:
            bar, function = ROWS[row]
            start = time.monotonic()
            with emulated_hosts(["alpha", "beta"], LINK) as network:
                outcome = function(benchmark, network)
            met = met and outcome.is_met
            print(
                f"{row} ({bar}): {verdict(outcome.is_met)} in {time.monotonic() - start:.0f} s\n    {outcome.text}", flush=True
            )
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
