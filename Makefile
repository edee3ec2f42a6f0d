# The front door to CMake: `make help` says what there is.
BUILD ?= build
TYPE  ?= Release
FLAGS ?=
JOBS  ?= $(shell nproc)

.PHONY: all demo check check-asan check-tsan install-check fuzz deps clean help
.DEFAULT_GOAL := all

# Configured once; looks for the packages first, so that what is missing is said in one line.
$(BUILD)/CMakeCache.txt:
	@tools/deps.sh
	cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=$(TYPE) $(FLAGS)

all: $(BUILD)/CMakeCache.txt ## build the library and the program
	cmake --build $(BUILD) -j $(JOBS)

DEMO = Question: Maya has 92 balloons. Max has 5 times as many. How many more does Max have?

demo: all ## answer a word problem with the checkpoint in models/, and show where the memory goes
	@printf '\n%s\nAnswer:' "$(DEMO)"
	@$(BUILD)/moewe generate models/wordmath --stats --stop 'Question:' --prompt "$$(printf '%s\nAnswer:' "$(DEMO)")"

check: all ## all tests
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

check-asan: ## the same under the address and undefined-behaviour sanitizers
	$(MAKE) --no-print-directory check BUILD=$(BUILD)-asan FLAGS="-DMOEWE_SANITIZE=address,undefined"

check-tsan: ## the shorter tests that run threads, under the thread sanitizer
	$(MAKE) --no-print-directory all BUILD=$(BUILD)-tsan FLAGS="-DMOEWE_SANITIZE=thread"
	ctest --test-dir $(BUILD)-tsan --output-on-failure -j $(JOBS) -R '^(layer|engine|fuzz_run|families|cli_blocks)' -E '^layer_(bits|quant)'

install-check: all ## install into a scratch folder and build a program against it, both ways
	tools/install_check.sh $(BUILD)

fuzz: ## each fuzz target for FUZZ_SECONDS (60) under the sanitizers; needs clang
	FUZZ_OUT=$(abspath $(BUILD))-fuzz JOBS=$(JOBS) fuzz/run.sh

deps: ## install the packages that the build needs (Debian, as root)
	tools/deps.sh --install

clean: ## remove what was built
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-fuzz

help:
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'
	@echo 'variables: BUILD=folder TYPE=Release|Debug FLAGS="cmake options" JOBS=n'
