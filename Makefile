# SPDX-License-Identifier: Apache-2.0
# The few commands a person needs. CMake and ninja do the building, scripts/ holds what is longer
# than a line, and every target works in a fresh clone. Nothing here is needed to use CMake alone:
# `cmake --preset release && ninja -C build` is the same build.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: help setup build tests demo test test-golden test-moved-kv test-all bench bench-peers bench-replay bench-policies bench-rd bench-kv lint fuzz clean

JOBS ?= $(shell nproc)
CTEST := ctest --output-on-failure --timeout 900 -j$(JOBS)

help:
	@echo 'make setup        install what the build needs from Debian (asks for root only if something is missing)'
	@echo 'make build        build/kvik'
	@echo 'make demo         install, build, fetch a model, chat, replay a load with gaps in the cache, move KV over a slow link'
	@echo 'make test         every test that runs in CI time, then test-golden'
	@echo 'make test-golden  compare with reference values (KVIK_GOLDEN=folder KVIK_MODELS=folder)'
	@echo 'make test-moved-kv  an lm-eval task and long conversations on KV that moves (KVIK_EVAL_DATA=folder KVIK_MODELS=folder)'
	@echo 'make test-all     also tests that wait for leases, asan+ubsan, tsan, -Werror on both compilers, planted defects, a soak and a minute of fuzzing'
	@echo 'make bench        speed against the measured limits of this machine'
	@echo 'make bench-peers  speed against llama.cpp and vLLM (PEER_PYTHON=python VLLM_PYTHON=python)'
	@echo 'make bench-replay every eviction policy on every trace, and what that says of hazard (KVIK_TRACES=folder)'
	@echo 'make bench-policies  the same load on a server under each eviction policy (BENCH_FLAGS="FOLDER --only REGEX")'
	@echo 'make bench-rd     what compression costs, every preset and profile (KVIK_EVAL_DATA=folder KVIK_MODELS=folder)'
	@echo 'make bench-kv     KV between servers over emulated links (KVIK_EVAL_DATA=folder KVIK_MODELS=folder)'
	@echo 'make lint         clang-format and clang-tidy (all=1: every file, not only changed ones)'
	@echo 'make fuzz         each fuzz target for FUZZ_SECONDS (600)'

setup:
	scripts/setup.sh build

build/build.ninja:
	cmake --preset release || { echo "hint: 'make setup' installs what is missing" >&2; exit 1; }

build: build/build.ninja
	ninja -C build kvik

tests: build/build.ninja
	ninja -C build

demo: setup
	$(MAKE) build
	scripts/demo.sh

test: setup
	$(MAKE) tests
	$(CTEST) --no-tests=error --test-dir build -LE 'golden|long'
	$(MAKE) test-golden

test-moved-kv: build
	scripts/lm_eval_kv.py || [[ $$? -eq 77 ]]
	scripts/session_quality.py || [[ $$? -eq 77 ]]

test-golden: tests
	scripts/test_golden.sh

test-all: setup
	scripts/setup.sh clang
	$(MAKE) test
	$(CTEST) --no-tests=error --test-dir build -L long
	cmake --preset asan && ninja -C build-asan && $(CTEST) --no-tests=error --test-dir build-asan -LE 'golden|repo|long'
	cmake --preset tsan && ninja -C build-tsan && $(CTEST) --no-tests=error --test-dir build-tsan -LE 'golden|repo|long'
	cmake --preset dev && ninja -C build-dev
	cmake --preset clang && ninja -C build-clang
	scripts/test_defects.sh
	scripts/soak.sh
	$(MAKE) test-moved-kv
	FUZZ_SECONDS=$${FUZZ_SECONDS:-15} scripts/fuzz.sh

bench: tests
	scripts/bench.sh $(BENCH_FLAGS)

bench-peers: build
	python3 -B scripts/bench_peers.py

bench-replay: build
	python3 -B scripts/replay_grid.py $(BENCH_FLAGS)

bench-policies: build
	python3 -B scripts/bench_policies.py $(or $(BENCH_FLAGS),build/bench-policies)

bench-rd: build
	python3 -B scripts/rate_distortion.py $(or $(BENCH_FLAGS),build/bench-rd)

bench-kv: build
	python3 -B scripts/bench_kv.py $(or $(BENCH_FLAGS),build/bench-kv)

lint:
	scripts/setup.sh clang
	scripts/lint.sh $(if $(all),--all)

fuzz:
	scripts/setup.sh clang
	scripts/fuzz.sh

clean:
	rm -rf build build-*
