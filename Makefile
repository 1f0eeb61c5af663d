# The front door. `make help` lists what there is; everything behind it is CMake and scripts that also work alone.

BUILD  := build/release
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)
TEST_JOBS ?= $(JOBS)
FUZZ_SECONDS ?= 60
# A number of inputs for each fuzzer, in the place of FUZZ_SECONDS.
FUZZ_RUNS ?=
# Set-up runs again only when its script has changed; one stamp for each group of packages.
SETUP_KEY := $(firstword $(shell cksum < scripts/setup))
setup = build/.setup/$(1)-$(SETUP_KEY)
CTEST = ctest --output-on-failure --no-tests=error -j $(TEST_JOBS)
# The thread sanitizer of g++ 12 needs addresses where older kernels put them; setarch -R asks for that.
PLAIN_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)

.NOTPARALLEL:
.PHONY: all build help test test-long test-rdma unit checks demo install wheel deb bench format tidy docs asan ubsan tsan sanitizers fuzz clean
all: build

help:
	@echo 'make                    installs what is missing, builds everything into $(BUILD)'
	@echo 'make test               every check of the build, and every test that takes less than minutes'
	@echo 'make test-long          the tests that take minutes each'
	@echo 'make test-rdma          tests over verbs in software (Soft-RoCE), in a virtual machine'
	@echo 'make unit               the quick tests only'
	@echo 'make checks             the checks of the build only: headers, module order, format, symbols'
	@echo 'make demo               trains handwritten digits with 4 ranks, then shows what collectives cost here'
	@echo 'make install PREFIX=dir installs headers, libraries, pkg-config and CMake files, the tutti program'
	@echo 'make wheel              a wheel for every Python 3 and every Linux since glibc 2.28, in build/dist'
	@echo 'make deb                Debian packages of this tree, for this release of Debian, in build/dist'
	@echo 'make bench              measures Tutti and its peers on this machine'
	@echo 'make asan|ubsan|tsan    the quick tests under a sanitizer'
	@echo 'make sanitizers         all tests but the slow ones under asan and tsan'
	@echo 'make fuzz               runs every fuzzer for FUZZ_SECONDS=$(FUZZ_SECONDS), or for FUZZ_RUNS inputs'
	@echo 'make format             formats the code'
	@echo 'make tidy               clang-tidy over the code'
	@echo 'make docs               writes the pages that come from tables'
	@echo 'make clean              removes build/'

# What was installed may be found now, so each build is configured anew.
build/.setup/%-$(SETUP_KEY): scripts/setup
	@scripts/setup $*
	@mkdir -p $(@D) && rm -f $(@D)/$*-* build/*/build.ninja && touch $@

$(BUILD)/build.ninja: | $(call setup,build)
	@cmake --preset release $(CMAKE_ARGS)

build: $(call setup,build) $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS)

test: $(call setup,test) build
	@cd $(BUILD) && $(CTEST) -LE long

test-long: $(call setup,test) build
	@cd $(BUILD) && $(CTEST) -L long

# RDMA_TESTS names those of tests/rdma/tests that are to run; all of them when it is empty.
test-rdma: $(call setup,rdma) build
	@tests/rdma/run $(BUILD) $(RDMA_TESTS)

unit: build
	@cd $(BUILD) && $(CTEST) -L unit

checks: $(call setup,test) build
	@cd $(BUILD) && $(CTEST) -L checks

# The demo needs the library, without the coordinator, and two programs. Where not everything has been built they are
# built alone: no tests, and kernels only for the GPUs that are here.
DEMO := $(if $(wildcard $(BUILD)/tools/tutti),$(BUILD),build/demo)

demo: $(call setup,build)
	@[ -e $(DEMO)/build.ninja ] || cmake --preset $(notdir $(DEMO)) $(CMAKE_ARGS)
	@echo 'make: building the library and the two programs of the demo in $(DEMO)'
	@NINJA_STATUS='make: %p of the build, %e s: ' \
	   cmake --build $(DEMO) -j $(JOBS) --target demo_programs
	@examples/digits/run-demo $(DEMO)

install: build
	@cmake --install $(BUILD) --strip --prefix $(abspath $(PREFIX))

# The library and the program of the wheel are those of the build, linked in another way. TORCH names folders with a
# PyTorch, for which the wheel gets a compiled backend of torch.distributed; build/torch when it is empty.
wheel: $(call setup,build) $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS) --target tutti_portable tutti_portable_nccl tutti_portable_program tutti_portable_ncclras tutti_nccl_link tutti_nccl_overlay tutti_audit
	@tools/build_wheel $(BUILD) build/dist $(TORCH)

deb: $(call setup,build) $(call setup,deb)
	@mkdir -p build/dist && rm -f build/dist/*.deb debian/debhelper-build-stamp
	@DEB_BUILD_OPTIONS="noautodbgsym parallel=$(JOBS) $(DEB_BUILD_OPTIONS)" DEB_DESTINATION=build/dist debian/rules binary
	@echo 'make: the packages are in build/dist'

bench: $(call setup,bench) build
	@if [ -x bench/run ]; then bench/run $(BUILD); else echo 'make: bench/run is not there' >&2; exit 1; fi

WHICH = -L unit
asan ubsan tsan: $(call setup,build)
	@[ -e build/$@/build.ninja ] || cmake --preset $@
	@cmake --build build/$@ -j $(JOBS)
	@cd build/$@ && $(if $(filter tsan,$@),$(PLAIN_ADDRESSES)) $(CTEST) $(WHICH)

sanitizers: $(call setup,test)
	@failed=; for one in asan tsan; do \
	   $(MAKE) --no-print-directory $$one WHICH='-LE slow' || failed="$$failed $$one"; \
	 done; [ -z "$$failed" ] || { echo "make: failed under:$$failed" >&2; exit 1; }

# What a fuzzer found interesting is kept for the next time, in build/fuzz/corpus.
fuzz: $(call setup,build) $(call setup,fuzz)
	@[ -e build/fuzz/build.ninja ] || cmake --preset fuzz
	@cmake --build build/fuzz -j $(JOBS) --target fuzzers
	@failed=; for one in build/fuzz/fuzzers/*; do \
	   name=$${one##*/}; corpus=build/fuzz/corpus/$$name; mkdir -p $$corpus; echo "fuzz: $$name"; \
	   $$one $(if $(FUZZ_RUNS),-runs=$(FUZZ_RUNS),-max_total_time=$(FUZZ_SECONDS)) -timeout=10 -print_final_stats=1 -verbosity=0 \
	         -artifact_prefix=build/fuzz/$$name- $$corpus || failed="$$failed $$name"; \
	 done; [ -z "$$failed" ] || { echo "make: failed:$$failed; the input is in build/fuzz" >&2; exit 1; }

format: $(call setup,test)
	@tools/checks/format --fix

tidy: $(call setup,tidy) build
	@tools/checks/tidy $(BUILD)

docs: build
	@WRITE_DOCS=1 $(BUILD)/config_test --gtest_filter='SettingsDocsTest.*' --gtest_brief=1
	@WRITE_DOCS=1 $(BUILD)/plan_test --gtest_filter='*DocsTest.*' --gtest_brief=1

clean:
	@rm -rf build
