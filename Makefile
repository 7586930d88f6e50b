# Two commands on a fresh clone: `make demo` and `make test`. Both set up .venv themselves; a second run installs nothing.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := $(shell find src -name '*.py' -o -name 'py.typed' -o -path '*/shipped/*.*')
PIP := pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test lint types wheel fuzz soak test-gpu format clean
.DEFAULT_GOAL := help

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .make/installed ## a small ViT on handwritten digits, from scratch and from our checkpoint, with a report that compares both
	@runs="runs/demo-$$(date +%Y%m%d-%H%M%S)"; train="$(BIN)/vitreous train digits --recipe digits_transfer"; \
	echo "training from scratch" && $$train --from None --model vitreous-mini --out "$$runs/from-scratch" && \
	echo && echo "fine-tuning vitreous-mini" && $$train --compare-with "$$runs/from-scratch" --out "$$runs/from-checkpoint" && \
	echo && echo "inspecting the fine-tuned model" && $(BIN)/vitreous inspect "$$runs/from-checkpoint" && \
	echo && echo "report with both runs: $$runs/from-checkpoint/report.html"

# Two test processes of one thread each; on a larger machine, `make test JOBS=8`. The tests start processes of their own,
# and threads that wait for each other's core are slower than none.
JOBS ?= 2
test: .make/installed lint ## everything: lint, types, the built wheel, tests
	@$(MAKE) --no-print-directory -j $(JOBS) types wheel
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

lint: .make/installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: .make/installed
	@$(BIN)/mypy --strict src

wheel: .make/wheel ## build the wheel, install it into a clean environment and import it there

fuzz: .make/installed ## 27,000 damaged checkpoints and data files, each with 5 s and 1 GiB (a few minutes)
	@VITREOUS_FUZZ=50 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/weights/test_fuzz.py tests/data/test_data_fuzz.py

soak: .make/installed ## interrupt training runs for 10 minutes (signals, full disk); resumed runs must be bit-identical
	@OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py

test-gpu: .make/installed ## the tests that need a CUDA GPU
	@$(BIN)/python -m pytest -q -m gpu

format: .make/installed ## format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove everything that was installed or built
	rm -rf .venv .venv-wheel .make dist

.make/python: Makefile
	@command -v $(PYTHON) >/dev/null || { echo "Vitreous needs Python 3.11 or newer, and $(PYTHON) was not found: install it, or name another with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Vitreous needs Python 3.11 or newer, and $(PYTHON) is %d.%d: name another with make PYTHON=python3.11" % sys.version_info[:2])'
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install its venv module (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@mkdir -p .make && touch $@

.make/venv: .make/python
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@touch $@

.make/installed: .make/venv pyproject.toml constraints.txt
	@echo "installing into .venv (once; a few minutes)"
	@$(BIN)/$(PIP) --editable '.[all,dev]'
	@touch $@

# What a user gets from `pip install vitreous`: the wheel and its declared dependencies, nothing else.
.make/wheel-env: .make/python pyproject.toml constraints.txt
	@rm -rf .venv-wheel && $(PYTHON) -m venv .venv-wheel
	@.venv-wheel/bin/$(PIP) .
	@touch $@

.make/wheel: .make/installed .make/wheel-env $(SOURCES) README.md LICENSE
	@rm -rf dist && $(BIN)/python -m hatchling build -t wheel >/dev/null 2>&1 || $(BIN)/python -m hatchling build -t wheel
	@test $$(cat dist/*.whl | wc -c) -lt 12000000 || { echo "the wheel is larger than 12 MB" >&2; exit 1; }
	@.venv-wheel/bin/$(PIP) --no-deps --force-reinstall dist/*.whl
	@cd dist && ../.venv-wheel/bin/python -c 'import vitreous; assert "site-packages" in vitreous.__file__; vitreous.create("Ti/16")'
	@cd dist && ../.venv-wheel/bin/vitreous models "Ti/16"
	@cd dist && ../.venv-wheel/bin/vitreous info vitreous-mini >/dev/null
	@touch $@
