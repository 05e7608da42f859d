# Every target makes its own virtual environment on the first run: nothing is needed before but Python and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Tests that run at once, each on one thread: tiny models gain nothing from a second one. On two cores, the third runs
# while another waits for a process or a lock, which saves a sixth of the time.
PROCESSES ?= 3
# Neighbors run in one process, which keeps what they share; the process that ends first takes from the other.
SPREAD := -n $(PROCESSES) --dist worksteal
# Two cores shared with others: threads that wait must not spin.
export OMP_WAIT_POLICY := PASSIVE
export HF_HUB_DISABLE_TELEMETRY := 1

.PHONY: install demo flags test test-benchmarks test-browser test-commands test-compiled test-controls test-distributed test-families test-faults test-javascript test-lowest test-newest test-notebooks test-peers test-servers check docs format clean release-check dist install-locked lock

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: install  ## the main job on the data in the repository: 5 minutes on 2 cores
	$(BIN)/python examples/quickstart.py --minutes 5

test: install  ## hermetic and offline: 4 to 7 minutes on 2 idle cores, twice that on busy ones
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests $(SPREAD)

test-faults: install  ## commands killed at every write, full disks and all bad inputs: an hour or more; -k bad_input takes 2 minutes
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests $(SPREAD) -m faults

test-javascript: install  ## saved tokenizers and exports in transformers.js; needs node and npm, installs about 500 MB: some minutes
	cd tests/javascript && npm install --ignore-scripts --no-audit --no-fund --no-package-lock
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/tokenization/test_javascript.py tests/test_export.py -k 'transformers_js' -s

check: install  ## lint, format and types; the types of the built wheel, because mypy cannot follow package-dir
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build && $(BIN)/pip install --quiet --no-deps --target build/types .
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p hf_domain

test-benchmarks: install  ## every script of benchmarks/ at its smallest size: about 5 minutes on 2 cores
	$(BIN)/pip install --quiet --constraint constraints.txt model2vec skeletoken
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/test_benchmarks.py -m benchmarks -n $(PROCESSES)

test-browser: install  ## the pages of the explore app and of a report in Chromium, skipped without it: about 3 minutes
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]" gradio playwright
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/examples/test_explore_app.py tests/comparison/test_report_page.py -m browser

test-commands: install  ## the runs of commands that take longest, of which make test takes a sample
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests $(SPREAD) -m commands

test-compiled: install  ## every method compiled and exported in every family, of which make test takes a sample: some minutes
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/modeling tests/methods tests/test_export.py $(SPREAD) -m compiled

test-controls: install  ## whether AdaLM, exBERT, RADA and G-MAP learn what they are for, from their defaults: some minutes each
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/controls -m controls -n $(PROCESSES)

test-distributed: install  ## every method by two processes, against one, and work on a corpus by a cluster; make test takes a sample
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/training/test_two_processes.py tests/training/test_restarts.py \
		tests/test_clusters.py tests/examples tests/modeling/test_varmae.py $(SPREAD) -m distributed

test-families: install  ## every family of transformers with every method, against the table in the documentation: about 10 minutes
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/modeling/test_families.py $(SPREAD) -m families

test-notebooks: install  ## the notebooks of examples/notebooks on little data: some minutes
	$(BIN)/pip install --quiet --constraint constraints.txt ipykernel nbclient
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/examples/test_notebooks.py -m notebooks -n $(PROCESSES)

test-lowest:  ## the tests on the lower bounds of the HuggingFace packages; torch stays at the pinned one
	$(MAKE) VENV=.venv-lowest .venv-lowest/.lowest
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-lowest/bin/python -m pytest tests $(SPREAD)

.venv-lowest/.lowest: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --upgrade pip
	.venv-lowest/bin/pip install --quiet --constraint constraints-lowest.txt --editable ".[dev]"
	touch $@

test-newest:  ## the tests on the newest releases, not on the pinned ones; torch stays at the pinned one
	$(MAKE) VENV=.venv-newest .venv-newest/.newest
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-newest/bin/python -m pytest tests $(SPREAD)

.venv-newest/.newest: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/pip install --quiet --upgrade pip
	grep ^torch== constraints.txt > .venv-newest/constraints.txt
	.venv-newest/bin/pip install --quiet --constraint .venv-newest/constraints.txt --editable ".[dev]"
	touch $@

test-peers: install  ## the tests that transformers and peft run over their own models, over ours; fetches them once: about 2 minutes
	$(BIN)/python tests_peers/fetch.py
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests_peers -n $(PROCESSES)

test-servers: install  ## search servers: the contract and failures of OpenSearch, which Maven fetches; skipped without Java and Maven
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python tests/datastore/servers/run_suite.py

docs: install  ## the site, in build/site; a broken link is an error
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[docs]"
	rm -rf build && $(BIN)/pip install --quiet --no-deps --target build/types .
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

release-check: install  ## what a release still lacks
	$(BIN)/python tools/check_release.py

dist: release-check  ## wheel and sdist, from a copy whose README works on an index page
	rm -rf build/release dist && mkdir -p build/release
	git archive HEAD | tar -x -C build/release
	$(BIN)/python tools/check_release.py --readme build/release/README.md
	$(BIN)/python -m build --outdir dist build/release

install-locked:  ## the tested set, every file checked by its hash: about 5 minutes
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $(VENV)/.installed

lock: install  ## requirements.lock: the tested set with the hash of every file
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --constraint constraints.txt --generate-hashes --no-header \
		--no-emit-index-url --no-annotate --universal --python-version 3.11 --output-file requirements.lock

flags: install  ## hf_domain/flags.json, which answers --help; after each change of a flag or of a script's docstring
	HF_HUB_OFFLINE=1 $(BIN)/python tools/make_flags.py

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist *.egg-info .venv .venv-lowest .venv-newest .pytest_cache .mypy_cache .ruff_cache
