"""The kinds of word vectors."""

from __future__ import annotations

from collections.abc import Mapping

from weft.models.word_vectors_config import GloveConfig, PMIConfig, Word2VecConfig
from weft.tasks.spec import Preset, SearchDimension
from weft.tasks.word_vectors.training import VectorTrainer, fit_glove, fit_pmi, fit_word2vec

WINDOWS = SearchDimension("window", (2, 5, 10))
WORD2VEC = (WINDOWS, SearchDimension("negatives", (5.0, 10.0)), SearchDimension("subsample", (1e-3, 1e-4, 1e-5)))
PMI = (WINDOWS, SearchDimension("shift", (1.0, 5.0, 15.0)), SearchDimension("eigenvalue_power", (0.0, 0.5, 1.0)))
GLOVE = (WINDOWS, SearchDimension("x_max", (10.0, 100.0)))
PRESETS: Mapping[str, Preset] = {
    "skip-gram": Preset(VectorTrainer(fit_word2vec), Word2VecConfig, search_space=WORD2VEC),
    "cbow": Preset(VectorTrainer(fit_word2vec), Word2VecConfig, {"cbow": True, "lr": 0.1}, search_space=WORD2VEC),
    "fasttext": Preset(VectorTrainer(fit_word2vec), Word2VecConfig, {"max_char_ngram": 6, "lr": 0.05}, search_space=WORD2VEC),
    "ppmi": Preset(VectorTrainer(fit_pmi), PMIConfig, search_space=PMI),
    "glove": Preset(VectorTrainer(fit_glove), GloveConfig, search_space=GLOVE),
}
