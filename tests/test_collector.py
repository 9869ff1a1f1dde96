"""Python's garbage collector is kept away from what a command imports, and from nothing else."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from weft.cli.collector import PausedImport, paused, pausing_import


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
    with pausing_import("noted"):
        assert num_hooks() == 1
        assert find_spec("noted") is not None  # a question is no import
        import noted  # type: ignore[import-not-found]
        import noted.later  # type: ignore[import-not-found]

        assert not noted.is_enabled and not noted.inner.is_enabled and noted.later.is_enabled
        assert gc.isenabled() and num_hooks() == 0
    loader = noted.__spec__.loader
    assert loader.get_source("noted") == (package / "__init__.py").read_text() and pickle.dumps(loader)
    with pausing_import("noted"):  # it has been imported
        assert num_hooks() == 0


def test_nothing_is_left_behind_if_it_is_not_imported(package):
    with pausing_import("noted"):
        assert num_hooks() == 1
    import noted

    assert num_hooks() == 0 and noted.is_enabled


def test_a_collector_that_is_off_stays_off(package):
    gc.disable()
    try:
        with pausing_import("noted"):
            import noted

            assert not noted.is_enabled and not gc.isenabled()
    finally:
        gc.enable()


def test_loaders_that_belong_to_several_modules_are_left_alone(package, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("zipped.py", "import gc\nis_enabled = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path / "archive.zip")
    monkeypatch.delitem(sys.modules, "zipped", raising=False)
    with pausing_import("zipped"):
        import zipped  # type: ignore[import-not-found]

        assert zipped.is_enabled


@pytest.mark.parametrize(("name", "error"), [("broken", RuntimeError), ("noted_missing", ModuleNotFoundError)])
def test_errors_of_the_import_stay_what_they_are(package, name, error):
    with pausing_import(name), pytest.raises(error):
        __import__(name)
    assert gc.isenabled() and num_hooks() == 0


CODE = """
import atexit, gc, sys
import weft.cli.main
from weft.__main__ import start
from weft.cli import collector

atexit.register(lambda: print(gc.get_freeze_count() > frozen))  # called after what start() registers

def main():
    global frozen
    import torch
    frozen = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]
    print(gc.isenabled(), frozen > 100_000, any(isinstance(finder, collector.PausedImport) for finder in sys.meta_path))
    return 3

weft.cli.main.main = main
assert start() == 3
"""


def test_a_command_runs_with_the_collector_and_nothing_is_searched_at_exit():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True True False\nTrue\n")


def test_the_command_line_is_imported_without_the_collector():
    code = "import gc, sys, types\nclass Main(types.ModuleType):\n    def main(self): return int(gc.isenabled())\n"
    code += "class Finder:\n    def find_spec(self, name, path=None, target=None):\n"
    code += "        if name == 'weft.cli.main': print(gc.isenabled())\n"
    code += "sys.meta_path.insert(0, Finder())\nsys.argv = ['weft', '--version']\nfrom weft.__main__ import start\nstart()\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("False\nweft ") and done.returncode == 0


def test_ctrl_c_while_a_class_is_created_is_an_interruption(monkeypatch):
    import weft.cli.main
    from weft.__main__ import start

    def interrupted() -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__") from error

    monkeypatch.setattr(weft.cli.main, "main", interrupted)
    assert start() == 130
