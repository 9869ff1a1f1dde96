"""What is recorded: a scene is a run file and the commands that are tried on its run. All names of tasks, kinds and options
that a run file or a command line has stand in this file and in golden_refusals.py."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """A command line, what it reads from standard input, and the files that it writes."""

    name: str
    words: tuple[str, ...]
    stdin: bytes = b""
    files: tuple[str, ...] = ()


def case(name: str, words: str, *more: str, stdin: str | bytes = b"", files: tuple[str, ...] = ()) -> Case:
    """`words` are split at spaces; `more` are words that hold some."""
    return Case(name, (*words.split(), *more), stdin.encode() if isinstance(stdin, str) else stdin, files)


@dataclass(frozen=True)
class Scene:
    """A run, which is trained with `options`, and the cases that follow; `needs` are scenes whose runs it uses."""

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
    "search",
    "lens",
    "units",
    "gradients",
    "positions",
)
BRIEF = {"attribution": " --steps 8 --method integrated"}  # as many steps as are needed may be thousands
KINDS = {
    "lm": "gpt transformer lstm gru rnn window ngram",
    "translate": "seq2seq transformer lstm gru rnn bahdanau luong sutskever cho",
    "classify": "lstm gru rnn window transformer bert regression naive-bayes",
    "tag": "lstm gru rnn window transformer bert",
    "masked-lm": "transformer bert lstm",
    "span": "transformer bert lstm gru rnn",
}
TRAIN = '\n[train]\nsteps = 12\nbatch_tokens = 256\nvalidations = 3\ndevice = "cpu"\n'


def run_file(task: str, data: str, tokenizer: str, model: str, train: str = "") -> str:
    """The text of a run file; each part as lines of TOML, separated by semicolons."""
    parts = {"data": data, "tokenizer": tokenizer, "model": model}
    tables = "".join(f"\n[{name}]\n" + text.replace("; ", "\n") + "\n" for name, text in parts.items() if text)
    return f'task = "{task}"\nseed = 1\n' + tables + TRAIN + train.replace("; ", "\n")


def before(scene: Scene) -> list[Case]:
    """What is asked of a run file."""
    path = f"{scene.name}.toml"
    return [
        case("check", f"check {path}"),
        case("check-json", f"check {path} --json"),
        case("check-windows", f"check {path} --windows 2 --json"),
        case("gradcheck-json", f"gradcheck {path} --entries 2 --json"),
    ]


def after(scene: Scene, text: str, lines: str | bytes, asked: str, *, limit: str = "") -> list[Case]:
    """What is asked of every run, whether it can answer or not: refusals are results. `text` is one that its task reads,
    `lines` hold an empty one, a short one and one that is wrong, `asked` is a text with a gap, or a prompt; `limit` keeps
    outputs that are explained short."""
    run, brief = scene.run, text if len(text) < 20 or "\t" in text else text[:12].rstrip()
    steps = {view: told + limit for view, told in BRIEF.items()}
    found = [
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
        case("score-tokens", f"score {run} --tokens", stdin=lines),
        case("generate", f"generate {run} --length 12 --seed 3 --samples 2 --top-k 5", asked),
        case("generate-json", f"generate {run} --length 12 --greedy --json", asked),
        case("fill", f"fill {run} --n 3", asked),
        case("fill-json", f"fill {run} --n 2 --json", stdin=lines),
        case("embed", f"embed {run}", stdin=lines),
        case("embed-first", f"embed {run} --pool first", text),
        *(case(f"explain-{view}", f"explain {run} --what {view}{steps.get(view, '')}", text) for view in VIEWS),
        *(case(f"explain-{view}-json", f"explain {run} --what {view}{steps.get(view, '')} --json", text) for view in VIEWS),
        case("explain-default", f"explain {run} --top 2{limit}", brief),
        case("explain-occlusion-json", f"explain {run} --what attribution --method occlusion --json{limit}", brief),
        case("prune-json", f"prune {run} --json --tokens 2000"),
        case("prune-heads-json", f"prune {run} --heads 1 --measure gradient --tokens 2000 --json"),
        case("geometry-json", f"geometry {run} --most 2000 --json"),
        case("similarity-json", f"similarity {run} --most 1000 --json"),
    ]
    return found


def lm(name: str, data: str, tokenizer: str, model: str, *more: Case, train: str = "") -> Scene:
    scene = Scene(name, run_file("lm", f'train = "tales.txt"; valid = 0.1; test = 0.1; {data}', tokenizer, model, train))
    lines = b"The cat sees a hat.\n\na\nThe \xff cat\nThe old dog \xe2\x82\xac.\n"
    run = scene.run
    extra = [
        case("evaluate-reset", f"evaluate {run} --context reset --json"),
        case("evaluate-carry", f"evaluate {run} --context carry --json"),
        case("evaluate-stride", f"evaluate {run} --context stride:8 --json"),
        case("evaluate-data", f"evaluate {run} --data pairs.en"),
        case("generate-beam", f"generate {run} --beam 3 --n-best 2 --length 10 --json", "The "),
        case("generate-lines", f"generate {run} --length 8 --temperature 0.5,1.0 --no-echo", stdin=lines),
        case("probe", f"probe {run} --suite suite.tsv"),
        case("probe-json", f"probe {run} --suite suite.tsv --mean --json"),
        case("export-hf", f"export {run} --to hf --out hf-{name}", files=(f"hf-{name}",)),
        case("export-arpa", f"export {run} --to arpa --out {name}.arpa", files=(f"{name}.arpa",)),
    ]
    cases = (*before(scene), *after(scene, "The cat sees a hat.", lines, "The "), *extra, *more)
    return Scene(name, scene.run_file, cases=cases)


def translate(
    name: str, data: str, tokenizer: str, model: str, *more: Case, options: tuple[str, ...] = (), needs: tuple[str, ...] = ()
) -> Scene:
    data = f"train = {data}; valid = 0.1; test = 0.1; longest = 60"
    text = run_file("translate", data, tokenizer, model)
    scene, run = Scene(name, text, options), f"runs/{name}"
    lines = b"the cat sees a hat\n\na\nthe \xff cat\nthe old owl has a \xe2\x82\xac\n" + b"the cat " * 60 + b"\n"
    pairs = "the cat sees a hat\tle chat voit un chapeau\n\nthe cat\nthe dog\tle chien\n"
    extra = [
        case("evaluate-greedy", f"evaluate {run} --beam 1 --json"),
        case("predict-n-best", f"predict {run} --n-best 3 --alpha 0.6 --json", stdin=lines),
        case("predict-sampled", f"predict {run} --samples 2 --seed 5 --top-p 0.9", "the cat sees a hat"),
        case("predict-truncated", f"predict {run} --truncate --beam 2", stdin=lines),
        case("predict-prefix", f"predict {run} --least 3 --length 8 --prefix le", "the dog"),
        case("predict-data", f"predict {run} --beam 1 --data pairs.tsv"),
        case("score-pairs", f"score {run}", stdin=pairs),
        case("score-pairs-json", f"score {run} --json", stdin=pairs),
        case("explain-target", f"explain {run} --what attribution --method gradient --target", "le chat", "the cat"),
    ]
    cases = (*before(scene), *after(scene, "the old cat sees a hat", lines, "the ", limit=" --length 4"), *extra, *more)
    return Scene(name, text, options, needs, cases)


def classify(
    name: str, data: str, model: str, text: str, *more: Case, options: tuple[str, ...] = (), needs: tuple[str, ...] = ()
) -> Scene:
    bare = Scene(name, run_file("classify", f"{data}; valid = 0.15; test = 0.15", "", model), options)
    lines = text.encode() + b"\n\na\n\xff\n" + "the film was never \u20ac\n".encode()
    cases = (*before(bare), *after(bare, text, lines, text), *more)
    return Scene(name, bare.run_file, options, needs, cases)


def tag(name: str, data: str, model: str, text: str, *more: Case) -> Scene:
    bare = Scene(name, run_file("tag", f'train = "{data}"; valid = 0.15; test = 0.15', "", model))
    lines = text.encode() + b"\n\na\n\xff\nNed  leaves\tParis\n"
    extra = case("predict-data", f"predict {bare.run} --data {data}")
    return Scene(name, bare.run_file, cases=(*before(bare), *after(bare, text, lines, text), extra, *more))


def masked(name: str, model: str, tokenizer: str, data: str = 'read = "lines"', needs: tuple[str, ...] = ()) -> Scene:
    """With the tokenizer of a run that it needs, if it needs one."""
    text = run_file("masked-lm", f'train = "tales.txt"; valid = 0.1; test = 0.1; {data}', tokenizer, model)
    bare = Scene(name, text, tuple(word for other in needs for word in ("--tokenizer-from", f"runs/{other}")), needs)
    lines = b"The cat [MASK] a hat.\n\n[MASK]\nThe \xff cat\nno gap at all\nThe <mask> dog \xe2\x82\xac [MASK].\n"
    gap = "The cat [MASK] a hat."
    seen = [case(f"explain-gap-{view}", f"explain {bare.run} --what {view}{BRIEF.get(view, '')} --json", gap) for view in VIEWS]
    export = case("export-hf", f"export {bare.run} --to hf --out hf-{name}", files=(f"hf-{name}",))
    cases = (*before(bare), *after(bare, "The cat sees a hat.", lines, gap), *seen, export)
    return Scene(name, text, bare.options, needs, cases)


def span(name: str, model: str, data: str = "") -> Scene:
    bare = Scene(
        name, run_file("span", f'train = "answers.tsv"; valid = 0.15; test = 0.15; longest = 16; stride = 4{data}', "", model)
    )
    text = "Who was the hat bought?\tEva bought a hat in Rome on Friday."
    lines = text.encode() + b"\n\na\nWhere?\t\n\xff\tx\nWhen was it?\tZo\xc3\xab bought a \xe2\x82\xac.\n"
    cases = (*before(bare), *after(bare, text, lines, text), case("predict-data", f"predict {bare.run} --data answers.tsv"))
    return Scene(name, bare.run_file, cases=cases)


def _lm_scenes() -> list[Scene]:
    word = 'kind = "word"'
    imported = (
        case("import-arpa", "import arpa lm-ngram.arpa --out runs/imported-arpa --tokenizer-from runs/lm-ngram"),
        case("import-arpa-evaluate", "evaluate runs/imported-arpa --data tales.txt --json"),
    )
    imported_hf = (
        case("import-hf", "import hf hf-lm-gpt2 --out runs/imported-gpt2"),
        case("import-hf-score", "score runs/imported-gpt2", stdin="The cat sees a hat.\n"),
    )
    small, lstm = "layers = 2; width = 32; heads = 4", 'kind = "lstm"; layers = 1; width = 16'
    as_gpt2 = f'kind = "transformer"; {small}; positions = "learned"; tied = true; activation = "gelu-tanh"'
    return [
        lm("lm-ngram", "", word, 'kind = "ngram"; order = 3', *imported),
        lm("lm-gpt", "window = 32", 'kind = "char"', f'kind = "gpt"; {small}'),
        lm("lm-window", "window = 32", 'kind = "char"', 'kind = "window"; width = 16; context = 3'),
        lm("lm-gpt2", "window = 32", 'kind = "bpe"; size = 280', as_gpt2, *imported_hf),
        lm("lm-lstm-lines", 'read = "lines"', word, lstm, train="samples = 2; sample_length = 10"),
        lm("lm-lstm-stream", 'read = "stream"; window = 16', word, 'kind = "lstm"; layers = 2; width = 16; dropout = 0.2'),
    ]


def _translate_scenes() -> list[Scene]:
    two, word = '["pairs.en", "pairs.fr"]', 'source = {kind = "word"}; target = {kind = "word"}'
    together = (
        case("ensemble-evaluate", "evaluate runs/sutskever --with runs/sutskever-2 --json"),
        case(
            "ensemble-predict", "predict runs/sutskever --with runs/sutskever-2 --beam 3 --json", stdin="the cat sees a hat\n"
        ),
        case("ensemble-score", "score runs/sutskever --with runs/sutskever-2", stdin="the cat\tle chat\n"),
        case("fusion-evaluate", "evaluate runs/sutskever --lm runs/lm-french --lm-weight 0.2 --json"),
        case("fusion-predict", "predict runs/sutskever --lm runs/lm-french --json", stdin="the cat sees a hat\n"),
        case("fusion-score", "score runs/sutskever --lm runs/lm-french", stdin="the cat\tle chat\n"),
        case("similarity-two-json", "similarity runs/sutskever runs/sutskever-2 --most 1000 --json"),
    )
    second, french = ("--tokenizer-from", "runs/sutskever"), 'file = "runs/sutskever/tokenizer.target.json"'
    sutskever = 'kind = "sutskever"; layers = 1; width = 16'
    language = run_file(
        "lm", 'train = "pairs.fr"; valid = 0.1; test = 0.1; read = "lines"', french, 'kind = "lstm"; layers = 1; width = 16'
    )
    return [
        translate("seq2seq", '"pairs.tsv"', 'kind = "char"', 'kind = "seq2seq"; width = 24; copying = true'),
        translate("transformer", two, 'kind = "bpe"; size = 280', 'kind = "transformer"; layers = 2; width = 32; heads = 4'),
        translate("bahdanau", '"pairs.tsv"', word, 'kind = "bahdanau"; layers = 1; width = 16'),
        translate("sutskever", two, word, sutskever),
        translate(
            "sutskever-2", two, "", sutskever.replace("16", "20"), *together, options=second, needs=("sutskever", "lm-french")
        ),
        Scene("lm-french", language, needs=("sutskever",)),
    ]


def _label_scenes() -> list[Scene]:
    reviews, review = 'train = "reviews.csv"', "The soup was dull."
    small = "layers = 1; width = 16"
    kinds = {"naive-bayes": "", "regression": "", "lstm": f"; {small}", "window": f"; {small}; balanced = true"}
    found = []
    for kind, more in kinds.items():
        run = f"runs/classify-{kind}"
        extra = (
            case("predict-data", f"predict {run} --data reviews.csv"),
            case("evaluate-strict", f"evaluate {run} --strict --data reviews.csv --json"),
        )
        found.append(classify(f"classify-{kind}", reviews, f'kind = "{kind}"{more}', review, *extra))
    letters = 'train = "letters.jsonl"; multi = true'
    pairs = 'train = "inference.tsv"; text = ["premise", "hypothesis"]'
    both, heads = "the cat sees a hat\tthe cat likes a hat", "layers = 2; width = 32; heads = 4"
    multi, several = "I bought a hat and it has a scratch", "predict runs/{0} --json --data letters.jsonl"
    found += [
        classify("multi-lstm", letters, f'kind = "lstm"; {small}', multi, case("predict-data", several.format("multi-lstm"))),
        classify(
            "multi-regression", letters, 'kind = "regression"', multi, case("predict-data", several.format("multi-regression"))
        ),
        classify(
            "pairs-transformer",
            pairs,
            f'kind = "transformer"; {heads}',
            both,
            case("predict-data", "predict runs/pairs-transformer --data inference.tsv"),
        ),
        classify("pairs-regression", pairs, 'kind = "regression"', both),
        classify(
            "classify-bert",
            f"{reviews}; longest = 64",
            'kind = "bert"; layers = 2; width = 32; heads = 4',
            review,
            options=("--init-from", "runs/bert"),
            needs=("bert",),
        ),
        tag(
            "tag-lstm",
            "entities.txt",
            f'kind = "lstm"; {small}; head = "crf"; spelling = {{mixer = "lstm", width = 8, embedding = 8}}',
            "Ada likes New Delhi .",
        ),
        tag("tag-window", "entities.txt", f'kind = "window"; {small}; spelling = "none"', "Ada likes New Delhi ."),
        tag("tag-speech", "speech.conllu", f'kind = "transformer"; {heads}; head = "linear"', "the old cat sees a hat"),
    ]
    return found


def _masked_and_span_scenes() -> list[Scene]:
    small, heads = "layers = 1; width = 16", "layers = 2; width = 32; heads = 4"
    return [
        masked("bert", f'kind = "bert"; {heads}; masking = "word"', 'kind = "wordpiece"; size = 300'),
        masked("masked-lstm", f'kind = "lstm"; {small}', "", needs=("bert",)),
        masked("masked-transformer", f'kind = "transformer"; {heads}; masking = "span"', 'kind = "char"', "window = 32"),
        span("span-lstm", f'kind = "lstm"; {small}'),
        span("span-transformer", f'kind = "transformer"; {heads}'),
    ]


COMPARED = {
    "lm": "lm-gpt lm-window",
    "translate": "sutskever sutskever-2",
    "classify": "classify-naive-bayes classify-regression classify-lstm",
    "tag": "tag-lstm tag-window",
    "masked-lm": "masked-lstm bert",
    "span": "span-lstm span-transformer",
}


def _compare_scenes() -> list[Scene]:
    found = []
    for task, names in COMPARED.items():
        runs, out = " ".join(f"runs/{name}" for name in names.split()), f"compared-{task}"
        words = f"compare {runs} --out {out} --csv {out}.csv --json"
        again = case(
            "compare-again",
            f"compare {runs} --out {out} --markdown {out}.md --latex {out}.tex",
            files=(f"{out}.md", f"{out}.tex"),
        )
        cases = (
            case("compare", words, files=(f"{out}/comparison.json", f"{out}.csv")), again,
            case("similarity-json", f"similarity {runs} --most 1000 --json"),
        )  # fmt: skip
        found.append(Scene(f"compare-{task}", needs=tuple(names.split()), cases=cases))
    data = 'train = "reviews.csv"; valid = 0.15; test = 0.15'
    text = run_file("classify", data, "", 'kind = "naive-bayes"')
    words = "compare compare-train.toml --models naive-bayes,regression --out compared --threads 1 --json"
    found.append(Scene("compare-train", text, cases=(case("compare", words, files=("compared/comparison.json",)),)))
    return found


def _init_scene() -> Scene:
    kinds = [case(f"{task}-{kind}", f"init {task} --kind {kind}") for task, known in KINDS.items() for kind in known.split()]
    return Scene("init", cases=(*kinds, *(case(task, f"init {task}") for task in KINDS)))


def scenes() -> list[Scene]:
    """All of them, each after those that it needs."""
    from golden_refusals import refusals

    made = [
        _init_scene(),
        *_lm_scenes(),
        *_translate_scenes(),
        *_masked_and_span_scenes(),
        *_label_scenes(),
        *_compare_scenes(),
    ]
    return [*made, refusals()]
