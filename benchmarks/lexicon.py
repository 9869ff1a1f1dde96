"""An English-French lexicon from word vectors: Procrustes, CSLS, refinement, words spelled alike.

    python benchmarks/lexicon.py [--vectors FILE] [--dictionaries DIR]

The vectors are en-fr.vectors.npz (int8 unit vectors of 2,857 English and 6,696 French words), the dictionaries those of XLING
(Glavas et al. 2019): 5,000 pairs to learn from, of which 2,539 are covered, and 2,000 to test with, of which 318 are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from _common import SHARED_DATA, require_data

from weft.lexicon.align import AlignOptions, align
from weft.lexicon.dictionary import covered_pairs, read_dictionary
from weft.lexicon.evaluation import evaluate_lexicon
from weft.vectors.word_vectors import dense_vectors

ROWS = {
    "Procrustes": ("nearest", AlignOptions(refine=0), True),
    "least squares": ("nearest", AlignOptions(refine=0, method="least-squares"), True),
    "Procrustes, CSLS": ("csls", AlignOptions(refine=0), True),
    "refined once, CSLS": ("csls", AlignOptions(refine=1), True),
    "refined 5 times, CSLS": ("csls", AlignOptions(refine=5), True),
    "words spelled alike, refined 5 times, CSLS": ("csls", AlignOptions(refine=5), False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=Path, default=SHARED_DATA / "lexicon-en-fr" / "en-fr.vectors.npz")
    parser.add_argument("--dictionaries", type=Path, default=SHARED_DATA / "bli-xling")
    args = parser.parse_args()
    require_data(parser, args.vectors, "--vectors FILE")
    arrays = np.load(args.vectors, allow_pickle=False)
    source, target = (
        dense_vectors([str(word) for word in arrays[f"{side}_words"]], arrays[side].astype(np.float32), side)
        for side in ("en", "fr")
    )
    train = read_dictionary(args.dictionaries / "yacle.train.freq.5k.en-fr.tsv")
    test = read_dictionary(args.dictionaries / "yacle.test.freq.2k.en-fr.tsv")
    pairs = covered_pairs(train, source, target)
    print(f"{len(pairs.source):,} of {pairs.total:,} training pairs covered")
    for name, (retrieval, options, has_dictionary) in ROWS.items():
        found = align(source, target, pairs if has_dictionary else None, options)
        result = evaluate_lexicon(test, source, target, found.retrieval(retrieval), signature=name)
        values = {score.name: score for score in result.scores}
        first = values["precision_at_1"]
        others = ", ".join(f"{label} {values[key].value:.3g}" for key, label in (("precision_at_5", "P@5"), ("mrr", "MRR")))
        print(f"{name:<44} P@1 {first.value:.1f} [{first.low:.1f}, {first.high:.1f}], {others}; {result.covered} words")


if __name__ == "__main__":
    main()
