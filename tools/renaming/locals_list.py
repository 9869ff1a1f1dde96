"""Local variables and parameters whose names say nothing: by file and function, for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from renaming.index import Index

# participles, quantities, and words of no content; see section 1 no. 3 of the guide to names
VAGUE = {
    *("found", "given", "said", "told", "held", "kept", "made", "meant", "asked", "wanted", "known", "seen", "shown", "drawn"),
    *("chosen", "changed", "moved", "gone", "taken", "written", "counted", "measured", "judged", "placed", "grouped", "led"),
    *("one", "own", "other", "others", "some", "many", "most", "least", "longest", "largest", "widest", "few", "every", "both"),
    *(
        "beside",
        "apart",
        "alike",
        "together",
        "aside",
        "anew",
        "again",
        "instead",
        "around",
        "inside",
        "ahead",
        "back",
        "before",
    ),
    *(
        "what",
        "how",
        "whole",
        "cure",
        "fault",
        "faults",
        "share",
        "shares",
        "right",
        "letters",
        "piece",
        "pieces",
        "stretch",
        "way",
    ),
    *("theirs", "ours", "stay", "worth", "odd", "company", "going", "telling", "watch", "watcher", "settings", "folder"),
}


def show(root: Path) -> None:
    """One line a function: file, function, how many, which."""
    index = Index(root, sorted((root / "src").rglob("*.py")))
    by_function = defaultdict[tuple[str, str], list[str]](list)
    for key in index.definitions:
        if key.kind in ("param", "local") and key.name in VAGUE:
            by_function[key.path, key.owner].append(key.name)
    total = Counter[str]()
    for (path, owner), names in sorted(by_function.items()):
        total[path] += len(names)
        print(f"{path}\t{owner}\t{len(names)}\t{' '.join(sorted(names))}")
    print(f"{total.total():,} names in {len(by_function):,} functions of {len(total)} files")
