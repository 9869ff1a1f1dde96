"""The word-vectors task: vectors of words from the words around them."""

from __future__ import annotations

from weft.metrics.word_vectors import WORD_VECTORS
from weft.tasks.compare_spec import Compare
from weft.tasks.data_spec import Data
from weft.tasks.spec import Task
from weft.tasks.word_vectors.data import VectorDataConfig, VectorTokenizerConfig, WordVocabulary, check, lines, open_words
from weft.tasks.word_vectors.predict import NeighborOptions, Neighbors, embed, evaluate, predict, word_vectors
from weft.tasks.word_vectors.presets import PRESETS

DATA = Data(
    data_config=VectorDataConfig,
    tokenizer_config=VectorTokenizerConfig,
    vocabulary=WordVocabulary(),
    columns=lambda config, vocabulary: (),
    check=check,
    open_input=open_words,
    input_output_pairs=lines,
)
WORD_VECTORS_TASK: Task[str, Neighbors] = Task(
    name="word-vectors",
    model_noun="table of word vectors",
    description="finds similar words",
    loss_unit="pair",
    progress_unit="items",
    output_noun="words",
    command="neighbors",
    example_input="WORD",
    data=DATA,
    presets=PRESETS,
    eval_suites=(WORD_VECTORS,),
    validation_suites=(WORD_VECTORS,),
    ranking_metrics=("spearman", "analogy_accuracy"),
    compare=Compare(length_unit="characters", same_items="evaluate both with the same files"),
    evaluate=evaluate,
    shares_evaluation=False,
    predict=predict,
    predict_options=NeighborOptions,
    embed=embed,
    word_vectors=word_vectors,
)
TASK = WORD_VECTORS_TASK  # the name that the registry imports
