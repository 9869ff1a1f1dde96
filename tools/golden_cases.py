"""The recorded runs and commands. A scene is a run file and the commands to run on it and on its run. All names of tasks,
architectures and options are in this file, in golden_media.py and in golden_refusals.py."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A command line, its standard input, and the files that it writes."""

    name: str
    words: tuple[str, ...]
    stdin: bytes = b""
    files: tuple[str, ...] = ()


def case(name: str, words: str, *more: str, stdin: str | bytes = b"", files: tuple[str, ...] = ()) -> Case:
    """`words` are split at spaces; `more` are arguments that may contain spaces."""
    return Case(name, (*words.split(), *more), stdin.encode() if isinstance(stdin, str) else stdin, files)


@dataclass(frozen=True)
class Scene:
    """A run that is trained with `options`, and its cases; `needs` are scenes whose runs it uses."""

    name: str
    run_file: str = ""
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    cases: tuple[Case, ...] = field(default=())

    @property
    def run(self) -> str:
        return f"runs/{self.name}"


VIEWS = (
    "attention",
    "rollout",
    "attribution",
    "surprisal",
    "distribution",
    "counts",
    "beam-search",
    "logit-lens",
    "units",
    "gradient-flow",
    "positions",
)
VIEW_OPTIONS = {
    "attribution": " --n-steps 8 --method integrated-gradients"
}  # the adaptive number of steps may be in the thousands
ARCHS = {
    "lm": "gpt transformer lstm gru mingru minlstm rnn conv ngram",
    "seq2seq": "lstm-input-feeding transformer lstm gru rnn bahdanau luong sutskever cho",
    "classification": "lstm gru rnn conv transformer bert logistic-regression naive-bayes",
    "tagging": "lstm gru rnn conv transformer bert",
    "masked-lm": "transformer bert lstm",
    "denoising": "transformer lstm-input-feeding",
    "qa": "transformer bert lstm gru rnn",
    "asr": "lstm gru rnn transformer conformer",
    "captioning": "transformer vit show-and-tell show-attend-tell s2vt lstm gru rnn lipnet",
}
TRAIN = '\n[train]\nmax_steps = 12\nbatch_tokens = 256\nnum_validations = 3\ndevice = "cpu"\n'


def run_file(task: str, data: str, tokenizer: str, model: str, train: str = "") -> str:
    """The text of a run file; each table is lines of TOML, separated by semicolons."""
    parts = {"data": data, "tokenizer": tokenizer, "model": model}
    tables = "".join(f"\n[{name}]\n" + text.replace("; ", "\n") + "\n" for name, text in parts.items() if text)
    return f'task = "{task}"\nseed = 1\nrecommend = false\n' + tables + TRAIN + train.replace("; ", "\n")


def run_file_cases(scene: Scene) -> list[Case]:
    """The commands for every run file."""
    path = f"{scene.name}.toml"
    return [
        case("check", f"check {path}"),
        case("check-json", f"check {path} --json"),
        case("check-windows", f"check {path} --show-windows 2 --json"),
        case("check-gradients-json", f"check {path} --gradients --entries 2 --json"),
    ]


def run_cases(scene: Scene, text: str, lines: str | bytes, prompt: str, *, limit: str = "") -> list[Case]:
    """The commands for every run, whether its task has them or not: errors are results as well.

    Args:
        scene: The scene of the run.
        text: A valid input of the task.
        lines: Inputs, among them an empty, a short and an invalid one.
        prompt: A prompt, or a text with a mask.
        limit: Options that keep explained outputs short.
    """
    run, short_text = scene.run, text if len(text) < 20 or "\t" in text else text[:12].rstrip()
    view_options = {view: options + limit for view, options in VIEW_OPTIONS.items()}
    return [
        case("train-again", f"train {scene.name}.toml", *scene.options),
        case("info", f"info {run}"),
        case("info-json", f"info {run} --json"),
        case("evaluate", f"evaluate {run}"),
        case("evaluate-json", f"evaluate {run} --json"),
        case("predict-text", f"predict {run}", text),
        case("predict", f"predict {run}", stdin=lines),
        case("predict-json", f"predict {run} --json", stdin=lines),
        case("score", f"score {run}", stdin=lines),
        case("score-json", f"score {run} --json", stdin=lines),
        case("score-tokens", f"score {run} --per-token", stdin=lines),
        case("generate", f"generate {run} --max-new-tokens 12 --seed 3 --num-samples 2 --top-k 5", prompt),
        case("generate-json", f"generate {run} --max-new-tokens 12 --greedy --json", prompt),
        case("predict-mask", f"predict {run} --n-best 3", prompt),
        case("predict-mask-json", f"predict {run} --n-best 2 --json", stdin=lines),
        case("embed", f"embed {run}", stdin=lines),
        case("embed-first", f"embed {run} --pooling first", text),
        *(case(f"explain-{view}", f"explain {run} --view {view}{view_options.get(view, '')}", text) for view in VIEWS),
        *(
            case(f"explain-{view}-json", f"explain {run} --view {view}{view_options.get(view, '')} --json", text)
            for view in VIEWS
        ),
        case("explain-default", f"explain {run} --top 2{limit}", short_text),
        case("explain-occlusion-json", f"explain {run} --view attribution --method occlusion --json{limit}", short_text),
        case("prune-json", f"prune {run} --json --max-tokens 2000"),
        case("prune-heads-json", f"prune {run} --remove 1 --importance gradient --max-tokens 2000 --json"),
        case("geometry-json", f"analyze geometry {run} --max-words 2000 --json"),
        case("similarity-json", f"analyze similarity {run} --max-words 1000 --json"),
    ]


def lm(name: str, data: str, tokenizer: str, model: str, *more: Case, train: str = "") -> Scene:
    scene = Scene(name, run_file("lm", f'train = "tales.txt"; valid = 0.1; test = 0.1; {data}', tokenizer, model, train))
    lines = b"The cat sees a hat.\n\na\nThe \xff cat\nThe old dog \xe2\x82\xac.\n"
    run = scene.run
    extra = [
        case("evaluate-reset", f"evaluate {run} --context reset --json"),
        case("evaluate-carry", f"evaluate {run} --context carry --json"),
        case("evaluate-stride", f"evaluate {run} --context stride:8 --json"),
        case("evaluate-data", f"evaluate {run} --data pairs.en"),
        case("generate-beam", f"generate {run} --beam-size 3 --n-best 2 --max-new-tokens 10 --json", "The "),
        case("generate-lines", f"generate {run} --max-new-tokens 8 --temperature 0.5,1.0 --no-echo", stdin=lines),
        case("minimal-pairs", f"analyze minimal-pairs {run} --suite suite.tsv"),
        case("minimal-pairs-json", f"analyze minimal-pairs {run} --suite suite.tsv --mean-log-prob --json"),
        case("export-hf", f"export {run} --format hf --output-dir hf-{name}", files=(f"hf-{name}",)),
        case("export-arpa", f"export {run} --format arpa --output-dir {name}.arpa", files=(f"{name}.arpa",)),
    ]
    cases = (*run_file_cases(scene), *run_cases(scene, "The cat sees a hat.", lines, "The "), *extra, *more)
    return Scene(name, scene.run_file, cases=cases)


def seq2seq(
    name: str, data: str, tokenizer: str, model: str, *more: Case, options: tuple[str, ...] = (), needs: tuple[str, ...] = ()
) -> Scene:
    data = f"train = {data}; valid = 0.1; test = 0.1; max_length = 60"
    text = run_file("seq2seq", data, tokenizer, model)
    scene, run = Scene(name, text, options), f"runs/{name}"
    lines = b"the cat sees a hat\n\na\nthe \xff cat\nthe old owl has a \xe2\x82\xac\n" + b"the cat " * 60 + b"\n"
    pairs = "the cat sees a hat\tle chat voit un chapeau\n\nthe cat\nthe dog\tle chien\n"
    extra = [
        case("evaluate-greedy", f"evaluate {run} --beam-size 1 --json"),
        case("predict-n-best", f"predict {run} --n-best 3 --length-penalty 0.6 --json", stdin=lines),
        case("predict-sampled", f"predict {run} --num-samples 2 --seed 5 --top-p 0.9", "the cat sees a hat"),
        case("predict-truncated", f"predict {run} --truncate --beam-size 2", stdin=lines),
        case("predict-prefix", f"predict {run} --min-new-tokens 3 --max-new-tokens 8 --target-prefix le", "the dog"),
        case("predict-data", f"predict {run} --beam-size 1 --input pairs.tsv"),
        case("score-pairs", f"score {run}", stdin=pairs),
        case("score-pairs-json", f"score {run} --json", stdin=pairs),
        case("explain-target", f"explain {run} --view attribution --method input-x-gradient --target", "le chat", "the cat"),
    ]
    cases = (
        *run_file_cases(scene),
        *run_cases(scene, "the old cat sees a hat", lines, "the ", limit=" --max-new-tokens 4"),
        *extra,
        *more,
    )
    return Scene(name, text, options, needs, cases)


def classification(
    name: str, data: str, model: str, text: str, *more: Case, options: tuple[str, ...] = (), needs: tuple[str, ...] = ()
) -> Scene:
    bare = Scene(name, run_file("classification", f"{data}; valid = 0.15; test = 0.15", "", model), options)
    lines = text.encode() + b"\n\na\n\xff\n" + "the film was never \u20ac\n".encode()
    cases = (*run_file_cases(bare), *run_cases(bare, text, lines, text), *more)
    return Scene(name, bare.run_file, options, needs, cases)


def tagging(name: str, data: str, model: str, text: str, *more: Case) -> Scene:
    bare = Scene(name, run_file("tagging", f'train = "{data}"; valid = 0.15; test = 0.15', "", model))
    lines = text.encode() + b"\n\na\n\xff\nNed  leaves\tParis\n"
    extra = case("predict-data", f"predict {bare.run} --input {data}")
    return Scene(name, bare.run_file, cases=(*run_file_cases(bare), *run_cases(bare, text, lines, text), extra, *more))


def masked_lm(name: str, model: str, tokenizer: str, data: str = 'read_as = "lines"', needs: tuple[str, ...] = ()) -> Scene:
    """A masked language model, with the tokenizer of the run that it needs, if any."""
    text = run_file("masked-lm", f'train = "tales.txt"; valid = 0.1; test = 0.1; {data}', tokenizer, model)
    bare = Scene(name, text, tuple(word for other in needs for word in ("--tokenizer-from", f"runs/{other}")), needs)
    lines = b"The cat [MASK] a hat.\n\n[MASK]\nThe \xff cat\nno gap at all\nThe <mask> dog \xe2\x82\xac [MASK].\n"
    masked_text = "The cat [MASK] a hat."
    mask_views = [
        case(f"explain-mask-{view}", f"explain {bare.run} --view {view}{VIEW_OPTIONS.get(view, '')} --json", masked_text)
        for view in VIEWS
    ]
    export = case("export-hf", f"export {bare.run} --format hf --output-dir hf-{name}", files=(f"hf-{name}",))
    cases = (*run_file_cases(bare), *run_cases(bare, "The cat sees a hat.", lines, masked_text), *mask_views, export)
    return Scene(name, text, bare.options, needs, cases)


def denoising(name: str, model: str, tokenizer: str, data: str = "") -> Scene:
    files = 'train = "tales.txt"; valid = 0.1; test = 0.1; max_length = 64; truncate = true'
    bare = Scene(name, run_file("denoising", f"{files}{data}", tokenizer, model))
    lines = b"The cat <mask> a hat.\n\n<mask>\nThe \xff cat\nno gap at all\nThe [MASK] dog \xe2\x82\xac <extra_id_1>.\n"
    text = "The cat <mask> a hat."
    noise = case("predict-noise", f"predict {bare.run} --add-noise --json", "The cat sees a hat.")
    pairs = "The cat <mask> a hat.\tThe cat sees a hat.\n\nno tab\n"
    scored = case("score-pairs-json", f"score {bare.run} --json", stdin=pairs)
    shown = case("check-examples", f"check {name}.toml --show-examples 3 --json")
    return Scene(name, bare.run_file, cases=(*run_file_cases(bare), *run_cases(bare, text, lines, text), noise, scored, shown))


def qa(name: str, model: str, data: str = "") -> Scene:
    bare = Scene(
        name,
        run_file("qa", f'train = "answers.tsv"; valid = 0.15; test = 0.15; max_length = 16; doc_stride = 4{data}', "", model),
    )
    text = "Who was the hat bought?\tEva bought a hat in Rome on Friday."
    lines = text.encode() + b"\n\na\nWhere?\t\n\xff\tx\nWhen was it?\tZo\xc3\xab bought a \xe2\x82\xac.\n"
    cases = (
        *run_file_cases(bare),
        *run_cases(bare, text, lines, text),
        case("predict-data", f"predict {bare.run} --input answers.tsv"),
    )
    return Scene(name, bare.run_file, cases=cases)


def _lm_scenes() -> list[Scene]:
    word = 'type = "word"'
    imported = (
        case(
            "import-arpa", "import lm-ngram.arpa --format arpa --output-dir runs/imported-arpa --tokenizer-from runs/lm-ngram"
        ),
        case("import-arpa-evaluate", "evaluate runs/imported-arpa --data tales.txt --json"),
    )
    imported_hf = (
        case("import-hf", "import hf-lm-gpt2 --output-dir runs/imported-gpt2"),
        case("import-hf-score", "score runs/imported-gpt2", stdin="The cat sees a hat.\n"),
    )
    small, lstm = "num_layers = 2; hidden_size = 32; num_heads = 4", 'arch = "lstm"; num_layers = 1; hidden_size = 16'
    as_gpt2 = f'arch = "transformer"; {small}; position_encoding = "learned"; tie_embeddings = true; activation = "gelu-tanh"'
    return [
        lm("lm-ngram", "", word, 'arch = "ngram"; order = 3', *imported),
        lm("lm-gpt", "context_length = 32", 'type = "char"', f'arch = "gpt"; {small}'),
        lm("lm-conv", "context_length = 32", 'type = "char"', 'arch = "conv"; hidden_size = 16; kernel_size = 3'),
        lm("lm-gpt2", "context_length = 32", 'type = "bpe"; vocab_size = 280', as_gpt2, *imported_hf),
        lm("lm-lstm-lines", 'read_as = "lines"', word, lstm, train="num_samples = 2; sample_max_new_tokens = 10"),
        lm(
            "lm-lstm-stream",
            'read_as = "stream"; context_length = 16',
            word,
            'arch = "lstm"; num_layers = 2; hidden_size = 16; dropout = 0.2',
        ),
    ]


def _seq2seq_scenes() -> list[Scene]:
    two, word = '["pairs.en", "pairs.fr"]', 'source = {type = "word"}; target = {type = "word"}'
    ensembles = (
        case("ensemble-evaluate", "evaluate runs/sutskever --ensemble runs/sutskever-2 --json"),
        case(
            "ensemble-predict",
            "predict runs/sutskever --ensemble runs/sutskever-2 --beam-size 3 --json",
            stdin="the cat sees a hat\n",
        ),
        case("ensemble-score", "score runs/sutskever --ensemble runs/sutskever-2", stdin="the cat\tle chat\n"),
        case("fusion-evaluate", "evaluate runs/sutskever --lm runs/lm-french --lm-weight 0.2 --json"),
        case("fusion-predict", "predict runs/sutskever --lm runs/lm-french --json", stdin="the cat sees a hat\n"),
        case("fusion-score", "score runs/sutskever --lm runs/lm-french", stdin="the cat\tle chat\n"),
        case("similarity-two-json", "analyze similarity runs/sutskever runs/sutskever-2 --max-words 1000 --json"),
    )
    second, french = ("--tokenizer-from", "runs/sutskever"), 'file = "runs/sutskever/tokenizer.target.json"'
    sutskever = 'arch = "sutskever"; num_layers = 1; hidden_size = 16'
    french_lm = run_file(
        "lm",
        'train = "pairs.fr"; valid = 0.1; test = 0.1; read_as = "lines"',
        french,
        'arch = "lstm"; num_layers = 1; hidden_size = 16',
    )
    return [
        seq2seq(
            "seq2seq", '"pairs.tsv"', 'type = "char"', 'arch = "lstm-input-feeding"; hidden_size = 24; copy_mechanism = true'
        ),
        seq2seq(
            "transformer",
            two,
            'type = "bpe"; vocab_size = 280',
            'arch = "transformer"; num_layers = 2; hidden_size = 32; num_heads = 4',
        ),
        seq2seq("bahdanau", '"pairs.tsv"', word, 'arch = "bahdanau"; num_layers = 1; hidden_size = 16'),
        seq2seq("sutskever", two, word, sutskever),
        seq2seq(
            "sutskever-2", two, "", sutskever.replace("16", "20"), *ensembles, options=second, needs=("sutskever", "lm-french")
        ),
        Scene("lm-french", french_lm, needs=("sutskever",)),
    ]


def _label_scenes() -> list[Scene]:
    reviews, review = 'train = "reviews.csv"', "The soup was dull."
    small = "num_layers = 1; hidden_size = 16"
    archs = {
        "naive-bayes": "",
        "logistic-regression": "",
        "lstm": f"; {small}",
        "conv": f'; {small}; class_weight = "balanced"',
    }
    label_scenes = []
    for arch, options in archs.items():
        run = f"runs/classification-{arch}"
        extra = (
            case("predict-data", f"predict {run} --input reviews.csv"),
            case("evaluate-strict", f"evaluate {run} --strict --data reviews.csv --json"),
        )
        label_scenes.append(classification(f"classification-{arch}", reviews, f'arch = "{arch}"{options}', review, *extra))
    letters = 'train = "letters.jsonl"; multilabel = true'
    pairs = 'train = "inference.tsv"; text_column = ["premise", "hypothesis"]'
    both, heads = "the cat sees a hat\tthe cat likes a hat", "num_layers = 2; hidden_size = 32; num_heads = 4"
    multi, several = "I bought a hat and it has a scratch", "predict runs/{0} --json --input letters.jsonl"
    label_scenes += [
        classification(
            "multilabel-lstm",
            letters,
            f'arch = "lstm"; {small}',
            multi,
            case("predict-data", several.format("multilabel-lstm")),
        ),
        classification(
            "multilabel-logistic-regression",
            letters,
            'arch = "logistic-regression"',
            multi,
            case("predict-data", several.format("multilabel-logistic-regression")),
        ),
        classification(
            "pairs-transformer",
            pairs,
            f'arch = "transformer"; {heads}',
            both,
            case("predict-data", "predict runs/pairs-transformer --input inference.tsv"),
        ),
        classification("pairs-logistic-regression", pairs, 'arch = "logistic-regression"', both),
        classification(
            "classification-bert",
            f"{reviews}; max_length = 64",
            'arch = "bert"; num_layers = 2; hidden_size = 32; num_heads = 4',
            review,
            options=("--init-from", "runs/bert"),
            needs=("bert",),
        ),
        tagging(
            "tagging-lstm",
            "entities.txt",
            f'arch = "lstm"; {small}; head = "crf"; char_encoder = {{layer_type = "lstm", hidden_size = 8, embedding_dim = 8}}',
            "Ada likes New Delhi .",
        ),
        tagging("tagging-conv", "entities.txt", f'arch = "conv"; {small}; char_encoder = false', "Ada likes New Delhi ."),
        tagging("tagging-speech", "speech.conllu", f'arch = "transformer"; {heads}; head = "linear"', "the old cat sees a hat"),
    ]
    return label_scenes


def _pretrained_and_qa_scenes() -> list[Scene]:
    small, heads = "num_layers = 1; hidden_size = 16", "num_layers = 2; hidden_size = 32; num_heads = 4"
    return [
        masked_lm("bert", f'arch = "bert"; {heads}; masking = "whole-word"', 'type = "wordpiece"; vocab_size = 300'),
        masked_lm("masked-lstm", f'arch = "lstm"; {small}', "", needs=("bert",)),
        masked_lm(
            "masked-transformer", f'arch = "transformer"; {heads}; masking = "span"', 'type = "char"', "context_length = 32"
        ),
        denoising("denoising-bart", f'arch = "transformer"; {heads}', 'type = "bpe"; vocab_size = 300'),
        denoising(
            "denoising-t5", f'arch = "transformer"; {heads}', 'type = "bpe"; vocab_size = 300', '; noise = "span-corruption"'
        ),
        qa("qa-lstm", f'arch = "lstm"; {small}'),
        qa("qa-transformer", f'arch = "transformer"; {heads}'),
    ]


COMPARED = {
    "lm": "lm-gpt lm-conv",
    "seq2seq": "sutskever sutskever-2",
    "classification": "classification-naive-bayes classification-logistic-regression classification-lstm",
    "tagging": "tagging-lstm tagging-conv",
    "masked-lm": "masked-lstm bert",
    "denoising": "denoising-bart denoising-t5",
    "qa": "qa-lstm qa-transformer",
}


def _compare_scenes() -> list[Scene]:
    compare_scenes = []
    for task, names in COMPARED.items():
        runs, out = " ".join(f"runs/{name}" for name in names.split()), f"compared-{task}"
        words = f"compare {runs} --output-dir {out} --csv {out}.csv --json"
        again = case(
            "compare-again",
            f"compare {runs} --output-dir {out} --markdown {out}.md --latex {out}.tex",
            files=(f"{out}.md", f"{out}.tex"),
        )
        cases = (
            case("compare", words, files=(f"{out}/comparison.json", f"{out}.csv")), again,
            case("similarity-json", f"analyze similarity {runs} --max-words 1000 --json"),
        )  # fmt: skip
        compare_scenes.append(Scene(f"compare-{task}", needs=tuple(names.split()), cases=cases))
    data = 'train = "reviews.csv"; valid = 0.15; test = 0.15'
    text = run_file("classification", data, "", 'arch = "naive-bayes"')
    words = "compare compare-train.toml --models naive-bayes,logistic-regression --output-dir compared --threads 1 --json"
    compare_scenes.append(Scene("compare-train", text, cases=(case("compare", words, files=("compared/comparison.json",)),)))
    return compare_scenes


def _init_scene() -> Scene:
    presets = [case(f"{task}-{arch}", f"init {task} --arch {arch}") for task, archs in ARCHS.items() for arch in archs.split()]
    return Scene("init", cases=(*presets, *(case(task, f"init {task}") for task in ARCHS)))


def scenes() -> list[Scene]:
    """All scenes, each after the scenes that it needs."""
    from golden_media import media_scenes
    from golden_refusals import refusals

    return [
        _init_scene(),
        *_lm_scenes(),
        *_seq2seq_scenes(),
        *_pretrained_and_qa_scenes(),
        *_label_scenes(),
        *_compare_scenes(),
        *media_scenes(),
        refusals(),
    ]
