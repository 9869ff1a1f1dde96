# Everything from a fresh clone: `make demo`, `make test`. PYTHON=python3.12 picks another Python, VENV another place.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
# Another package index to take torch from, such as PyTorch's own of CPU builds, which are a tenth of the size.
TORCH_INDEX ?=

BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := $(VENV)/.tools
BROWSER := $(VENV)/.browser
SITE := $(VENV)/.site
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check
# bytecode is compiled when a module is first imported: most modules never are, and the installation is minutes shorter
export PIP_NO_COMPILE := 1
# and saved, whatever the environment says: otherwise every process that a test starts would compile all of torch again
export PYTHONDONTWRITEBYTECODE :=
# tests of a file share what they train; files in their order, for by default those of few tests, which may be long, come last
SHARED := --dist loadfile --no-loadscope-reorder
# where there is a browser, no test may leave it out
PYTEST := OMP_NUM_THREADS=1 WEFT_BROWSER=$$(command -v chromium) $(BIN)/python -m pytest -q -n $(WORKERS) $(SHARED)
CHECKED := --ignore tests/test_house_rules.py  # by `make check`, before
STYLE = $(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/python tools/lint_words.py $(WORDS)
WORDS := src docs examples benchmarks README.md CONTRIBUTING.md CHANGELOG.md
REFERENCES := tests/test_references.py tests/test_seq2seq_references.py

.DELETE_ON_ERROR:
.PHONY: help wheels install demo test test-all test-processors check format docs docs-serve lock bench clean

help:
	@echo "make demo      teach three models how English words are pronounced, and compare them: minutes"
	@echo "make test      install, check, and all tests but the slow ones"
	@echo "make test-all  the slow ones too"
	@echo "make test-processors  the tests with plain, AVX2 and AVX-512 instructions, as far as this machine has them"
	@echo "make check     ruff, mypy, house rules and layering"
	@echo "make format    let ruff rewrite the files"
	@echo "make docs      the documentation site, into build/site; make docs-serve shows it while you write"
	@echo "make wheels    weft and what it needs to serve, into wheels/, from which the Dockerfile builds without a network"
	@echo "make lock      the hashes of what constraints.txt pins, after a change of it"
	@echo "make bench     the benchmarks, one after another"
	@echo "make clean     remove what the others made"

install: $(TOOLS)

# What is pinned comes first, checked by its hash; then torch, alone, so that no other build of it is pulled in; then weft, with what
# torch's build needs besides. Nothing here is compiled: `make demo` needs no more.
$(READY): pyproject.toml constraints.txt requirements/demo.txt
	$(PYTHON) -c 'import sys; sys.exit("weft needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes --no-deps -r requirements/demo.txt
	$(PIP) install -c constraints.txt --no-deps --retries 1 $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[demo]'
	touch $@

# What tests and checks need besides. KenLM and seqeval, which tests compare with, come as source: their build tools are
# installed before them, pinned, so that building them fetches nothing. KenLM is compiled while the others are installed, by two
# processes.
$(TOOLS): $(READY) requirements/build.txt requirements/source.txt requirements/large.txt requirements/dev.txt
	$(PIP) install --require-hashes --no-deps -r requirements/build.txt
	$(PIP) install --require-hashes --no-deps --no-build-isolation -r requirements/source.txt & compiling=$$!; \
		$(PIP) install --require-hashes --no-deps -r requirements/large.txt & unpacking=$$!; \
		$(PIP) install --require-hashes --no-deps --no-build-isolation -r requirements/dev.txt && wait $$compiling && wait $$unpacking
	$(PIP) install -c constraints.txt --no-build-isolation -e '.[dev,demo]'
	touch $@

# A browser for the tests that look at pages, and a font for pictures. Where Debian's packages may be installed it must come; elsewhere those tests say
# why they are skipped.
$(BROWSER): $(TOOLS)
	if ! command -v chromium >/dev/null && test "$$(id -u)" = 0 && timeout 60 apt-get update -qq -o APT::Update::Error-Mode=any; \
		then timeout 300 apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; fi
	touch $@

# The versions of constraints.txt, torch among them as it is installed here.
wheels: $(READY)
	$(PIP) wheel -c constraints.txt --wheel-dir wheels $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) '.[serve,ctranslate2]'

demo: $(READY)
	$(BIN)/weft demo

check: $(TOOLS)
	$(STYLE)
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -q tests/test_house_rules.py && wait $$types

# torch uses other instructions on other processors, which round differently: the references once more without any of them.
test: $(TOOLS) $(BROWSER)
	$(STYLE)
	($(BIN)/mypy && ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(REFERENCES)) & others=$$!; \
		$(PYTEST) && wait $$others

test-all: check $(BROWSER)
	$(PYTEST) $(CHECKED) -m ''

test-processors: check $(BROWSER)
	ATEN_CPU_CAPABILITY=default $(PYTEST) $(CHECKED)
	for flag in avx2 avx512f; do if grep -qsw $$flag /proc/cpuinfo; \
		then ATEN_CPU_CAPABILITY=$${flag%f} $(PYTEST) $(CHECKED) || exit 1; fi; done

format: $(TOOLS)
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

# What the site is built with, and nothing else needs.
$(SITE): $(READY) requirements/docs.txt
	$(PIP) install --require-hashes --no-deps -r requirements/docs.txt
	touch $@

docs: $(SITE)
	$(BIN)/python docs/gen_reference.py
	$(BIN)/zensical build --strict

docs-serve: $(SITE)
	$(BIN)/python docs/gen_reference.py
	$(BIN)/zensical serve

lock: $(TOOLS) $(SITE)
	$(PIP) install -c constraints.txt uv
	$(BIN)/python requirements/lock.py

# The data is not part of the project: each script says what it needs and skips what is not there. LMPLZ names KenLM's lmplz;
# EOLE, JOEY and HF name the Pythons of environments that have Eole, JoeyNMT and Hugging Face transformers.
bench: $(TOOLS)
	$(BIN)/python benchmarks/names.py
	$(BIN)/python benchmarks/shakespeare.py
	$(BIN)/python benchmarks/tokenizer_speed.py
	$(BIN)/python benchmarks/ngram_kenlm.py $(if $(LMPLZ),--lmplz $(LMPLZ))
	$(BIN)/python benchmarks/seq2seq_speed.py $(if $(EOLE),--eole-python $(EOLE)) $(if $(JOEY),--joey-python $(JOEY)) \
		$(if $(HF),--hf-python $(HF))

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} +
