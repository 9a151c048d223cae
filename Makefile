# Everything runs in .venv, which make builds and rebuilds when pyproject.toml or constraints.txt change.
PYTHON ?= python3
BIN := .venv/bin

GPU_TESTS := $(addprefix tests/, test_gpu.py test_gpu_kernels.py test_doctor.py test_train_many.py layers/test_tcn.py studies/test_trials.py)

.PHONY: compare test check format test-gpu clean

compare: .venv/installed
	$(BIN)/seqloom compare

test: .venv/installed check
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# On a machine with a GPU and a torch of its own; installs nothing but seqloom.
test-gpu:
	PYTHONPATH=src:$$PYTHONPATH $(PYTHON) -m pytest -m gpu -p no:cacheprovider $(GPU_TESTS)

.venv/installed: pyproject.toml constraints.txt setup.py $(wildcard csrc/*)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab,onnx,test]'
	touch $@

clean:
	rm -rf .venv build .pytest_cache .mypy_cache .ruff_cache src/seqloom.egg-info
