PY ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
DEMO ?= demo

.DEFAULT_GOAL := help

.PHONY: help install demo quick test lint types bench smoke docs clean

help: ## Show these targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  \1\t\2/' | expand -t 12

install: $(STAMP) ## Make .venv and install detkit with everything that the ordinary index serves

$(STAMP): pyproject.toml
	$(PY) -m venv $(VENV)
	$(BIN)/python -m pip install -q -e '.[all]'
	@touch $(STAMP)

demo: $(STAMP) ## All five stages on drawn scenes, then the report, in $(DEMO)/
	rm -rf $(DEMO) && mkdir -p $(DEMO)
	$(BIN)/detkit train recipes/demo.yaml --run $(DEMO)/run
	$(BIN)/detkit fuse $(DEMO)/run
	$(BIN)/detkit compile $(DEMO)/run --target openvino --fp32
	$(BIN)/detkit compile $(DEMO)/run --target rtx --fp16
	$(BIN)/detkit bench $(DEMO)/run --target openvino --fp32 --device cpu
	$(BIN)/detkit eval $(DEMO)/run
	$(BIN)/detkit report $(DEMO)/run

smoke: $(STAMP) ## All stages in under a minute; proves that they run, not accuracy
	rm -rf build/smoke && mkdir -p build/smoke
	$(BIN)/detkit train recipes/smoke.yaml --run build/smoke/run
	$(BIN)/detkit fuse build/smoke/run
	$(BIN)/detkit compile build/smoke/run --target onnxruntime --fp16
	$(BIN)/detkit bench build/smoke/run --device cpu
	$(BIN)/detkit report build/smoke/run

lint: $(STAMP) ## ruff and import-linter
	$(BIN)/ruff check detkit tests benchmarks
	$(BIN)/lint-imports

types: $(STAMP) ## pyright
	$(BIN)/pyright --pythonpath $(BIN)/python

quick: $(STAMP) ## The tests of a minute
	$(BIN)/python -m pytest -q -m "not slow and not gpu"

test: lint types ## Everything: lint, types and all tests
	$(BIN)/python -m pytest -q

bench: $(STAMP) ## Benchmarks that print both sides and their ratio
	$(BIN)/python benchmarks/train_precision.py
	$(BIN)/python benchmarks/blocks.py
	$(BIN)/python benchmarks/fused_latency.py

docs: $(STAMP) ## Write docs/recipe.md from the schema
	$(BIN)/python -m detkit.report.schema_page > docs/recipe.md

clean: ## Remove what the targets made
	rm -rf build $(DEMO) .pytest_cache .ruff_cache
