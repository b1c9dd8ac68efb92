# Everything a developer or CI calls. `make test` needs Go and gcc; what a
# target needs beyond that it installs from the distribution's packages when it may, or says
# what to install.

GO ?= go
PKGS := ./...

# The C library that `softnic exec` preloads into programs, which the Go compiler embeds.
# Programs can be run so on Linux only. Elsewhere, and for tests where there is no gcc, softnic
# is built without it, and says so when it is asked for.
PRELOAD := uverbs/preload/lib/libsoftnic.so
ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(shell uname -s),Linux)
BUILD_PRELOAD := $(PRELOAD)
TEST_PRELOAD := $(if $(shell command -v $(firstword $(CC))),$(PRELOAD))
endif

.PHONY: build test lint race fuzz interop corpus bench pyverbs mutants nightly clean

build: $(BUILD_PRELOAD) ## bin/softnic
	$(GO) build -o bin/softnic ./cmd/softnic

$(PRELOAD): $(wildcard uverbs/preload/src/*)
	CC="$(CC)" sh uverbs/preload/src/build.sh $@

lint: $(TEST_PRELOAD) ## gofmt, go vet for three systems, staticcheck
	@out=$$(gofmt -l $$(git ls-files '*.go' 2>/dev/null || find . -name '*.go')); \
	if [ -n "$$out" ]; then echo "gofmt would change: $$out: run gofmt -w"; exit 1; fi
	$(GO) vet $(PKGS)
	GOOS=darwin $(GO) vet $(PKGS)
	GOOS=windows $(GO) vet $(PKGS)
	$(GO) tool staticcheck $(PKGS)

test: lint ## lint, then all tests with the race detector
	$(GO) test -race -timeout 5m $(PKGS)

interop: ## kernel rxe in a VM, stock tools, tshark
	bash interop/run.sh

corpus: ## makes the golden captures in testdata anew: kernel rxe in a VM, and softnic
	SOFTNIC_CORPUS=testdata bash interop/run.sh -run '^TestCorpus$$'
	$(GO) test -count 1 ./interop/corpus
	$(GO) test -count 1 -run '^TestGoldenAsTshark$$' ./interop/judge

ROWS ?=
bench: ## softnic against what a user would take instead: ROWS=P1,R1 for some rows, ARGS=-lab for all with those of the VM, ARGS=-j for JSON
	@bash interop/bench/run.sh $(if $(ROWS),-rows $(ROWS)) $(ARGS)

pyverbs: ## rdma-core v44's own Python suite, on a copy of yours: TESTS=<rdma-core v44>/tests
	@test -x /usr/bin/python3 || { echo "pyverbs: no /usr/bin/python3: apt install python3-pyverbs ibverbs-providers"; exit 1; }
	@/usr/bin/python3 -B interop/pyverbs/run.py --check "$(TESTS)"
	@$(MAKE) -s build
	@/usr/bin/python3 -B interop/pyverbs/run.py "$(TESTS)"

mutants: ## every named rule, broken on purpose, must turn a test red
	$(GO) run ./interop/mutants

FUZZTIME ?= 60s
fuzz: ## every fuzz target for FUZZTIME
	@for p in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
	    echo "== $$p $$f"; \
	    if ! out=$$($(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$p 2>&1); then \
	      echo "$$out"; \
	      case "$$out" in *"Failing input"*) exit 1;; *"context deadline exceeded"*) echo "(the time was over while an input was being made smaller: nothing found)";; *) exit 1;; esac; \
	    else echo "$$out" | tail -1; fi; \
	  done; \
	done

nightly: fuzz ## long runs: fuzzing, long tests, and the tests of the engines five times over
	SOFTNIC_LONG=1 SOFTNIC_SEEDS=10000 $(GO) test -timeout 60m ./interop/cases/...
	SOFTNIC_SEEDS=5000 $(GO) test -count 1 -run '^TestOwnCaptures$$' ./trace/replay
	SOFTNIC_STOCK=1 SOFTNIC_LONG=1 $(GO) test -count 1 -timeout 60m ./interop/stock
	SOFTNIC_WALK=600 $(GO) test -race -count 1 -timeout 20m -run TestWalk ./device ./uverbs
	SOFTNIC_WALK=20 $(GO) test -race -count 5 -timeout 60m ./device/... ./transport/... ./uverbs/... ./interop/cases/...

clean:
	rm -rf bin softnic-demo.pcapng $(PRELOAD)
