"""Python's garbage collector is kept away from what a command imports, and from nothing else."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from weft.cli.collector import PausedImport, pause_imports, paused


@pytest.fixture(autouse=True)
def unfrozen():
    yield
    gc.unfreeze()


def test_nothing_is_collected_while_it_is_paused_nor_searched_later():
    gc.unfreeze()
    with pytest.raises(KeyError), paused():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled() and gc.get_freeze_count() > 0


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose modules note whether the collector is enabled while they are imported."""
    directory = tmp_path / "noted"
    directory.mkdir()
    (directory / "__init__.py").write_text("import gc\nfrom noted import inner\nis_enabled = gc.isenabled()\n")
    for name in ("inner", "later"):
        (directory / f"{name}.py").write_text("import gc\nis_enabled = gc.isenabled()\n")
    (tmp_path / "broken.py").write_text("raise RuntimeError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("noted", "noted.inner", "noted.later", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return directory


def num_hooks() -> int:
    return sum(isinstance(finder, PausedImport) for finder in sys.meta_path)


def test_it_is_paused_while_a_package_is_imported_for_the_first_time(package):
    pause_imports("noted")
    assert num_hooks() == 1
    import noted  # type: ignore[import-not-found]
    import noted.later  # type: ignore[import-not-found]

    assert not noted.is_enabled and not noted.inner.is_enabled and noted.later.is_enabled
    assert gc.isenabled() and num_hooks() == 0
    assert noted.__spec__.loader.get_source("noted") == (package / "__init__.py").read_text()
    pause_imports("noted")  # it has been imported
    assert num_hooks() == 0


@pytest.mark.parametrize(("name", "error"), [("broken", RuntimeError), ("noted_missing", ModuleNotFoundError)])
def test_errors_of_the_import_stay_what_they_are(package, name, error):
    pause_imports(name)
    with pytest.raises(error):
        __import__(name)
    assert gc.isenabled() and num_hooks() == 0


CODE = """
import gc, sys
import weft.cli.main
from weft.__main__ import start

def main():
    import torch
    print(gc.isenabled(), gc.get_freeze_count() > 100_000, len(sys.meta_path))
    return 3

weft.cli.main.main = main
num_finders = len(sys.meta_path)
assert start() == 3
assert len(sys.meta_path) == num_finders
"""


def test_a_command_runs_with_the_collector():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("True True ")
