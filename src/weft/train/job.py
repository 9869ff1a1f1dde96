"""One run from its file to its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tomli_w

from weft import files
from weft.data.corpus import Corpus, write_corpus
from weft.data.source import Source
from weft.errors import UsageError
from weft.tasks.language import LanguageTask
from weft.text.tokenizers import Tokenizer, train_tokenizer
from weft.train import checkpoint
from weft.train.folder import Journal, RunFolder, make_folder, open_folder
from weft.train.loop import Loop
from weft.train.network import default_context, pick_device
from weft.train.settings import Settings, resolve


class Watcher(Protocol):
    """Who looks at a run while it goes on: the command line, or nobody."""

    def note(self, text: str) -> None: ...

    def working(self, name: str, done: int, total: int) -> None:
        """How much of something that takes a while is done: tokenising, counting, validating."""

    def step(self, loop: Loop, loss: float, seconds: float) -> None: ...

    def validated(self, loop: Loop, scores: dict[str, float]) -> None: ...

    def counted(self, parameters: int, scores: dict[str, float]) -> None: ...

    def stopping(self) -> bool: ...


@dataclass
class Job:
    """Everything a family needs to train."""

    settings: Settings
    folder: RunFolder
    tokenizer: Tokenizer
    corpora: Mapping[str, Corpus]
    watcher: Watcher

    def task(self, *, carries: bool) -> LanguageTask:
        return LanguageTask(
            carries=carries,
            valid=self.corpora.get("valid"),
            context=default_context(self.settings),
            device=pick_device(self.settings.train.device),
        )

    def journal(self) -> Journal:
        return Journal(self.folder, self.tokenizer.hash, tensorboard=self.settings.train.tensorboard)


def train(values: Mapping[str, Any], out: Path, *, base: Path, watcher: Watcher, fresh: bool = False) -> RunFolder:
    """Train what a run file says into `out`, or go on where an earlier process stopped; paths are seen from `base`."""
    settings = resolve(values, base=base)
    folder = make_folder(out)
    folder.refuse_strangers()
    with files.Lock(out):
        folder.begin(settings, tomli_w.dumps(dict(values)), fresh=fresh)
        changed = folder.note_environment()
        if changed:
            watcher.note(f"resuming on another machine or set-up, so not bit for bit ({'; '.join(changed)})")
        sources = settings.sources()
        tokenizer = prepare_tokenizer(settings, sources["train"], folder, watcher)
        folder.data.mkdir(exist_ok=True)
        corpora = {name: prepare_corpus(name, source, tokenizer, folder, watcher) for name, source in sources.items()}
        settings.preset.family.train(Job(settings, folder, tokenizer, corpora, watcher))
    return folder


def prepare_tokenizer(settings: Settings, source: Source, folder: RunFolder, watcher: Watcher) -> Tokenizer:
    """The run's own once it has a checkpoint; until then made anew, since the text may have changed: trained on the training
    text, or taken from the file that is named."""
    if checkpoint.names(folder.path):
        return Tokenizer.load(folder.tokenizer)
    watcher.note(source.seen.describe())
    tokenizer = train_tokenizer(settings.tokenizer, _watched(source, watcher))
    tokenizer.save(folder.tokenizer)
    return tokenizer


def _watched(source: Source, watcher: Watcher) -> Iterator[str]:
    """The texts of a source, with the progress of whoever reads them."""
    done, total = 0, source.seen.characters
    for text in source.texts():
        watcher.working("reading for the tokenizer", done, total)
        done += len(text)
        yield text
    watcher.working("making the tokenizer", 0, 1)


def prepare_corpus(name: str, source: Source, tokenizer: Tokenizer, folder: RunFolder, watcher: Watcher) -> Corpus:
    """The tokens of a split, on disk; what an earlier process made is used again if the text is still the same."""

    def watch(done: int, total: int) -> None:
        watcher.working(f"tokenising {name}", done, total)

    begun = bool(checkpoint.names(folder.path))
    return write_corpus(source, tokenizer, folder.data, name, watch=watch, must_match=begun)


def borrow_tokenizer(values: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The run file with the tokenizer of another run."""
    path = open_folder(run).tokenizer
    if not path.exists():
        raise UsageError(f"--tokenizer-from: {run} has no tokenizer.json")
    return {**values, "tokenizer": {"file": str(path.resolve())}}
