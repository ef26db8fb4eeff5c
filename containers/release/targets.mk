# What is shipped: wheels, and what belongs to images. Included by the Makefile.

# Builds of one commit are equal bit by bit: every time that they record is the commit's.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)

# What builds and checks it has an environment of its own, made once for each lock and Python.
RELEASE_PYTHON ?= $(PY)
RELEASE_TAG = $(shell $(RELEASE_PYTHON) -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
RELEASE = $(CACHE)/release-$(shell sha256sum < containers/release/requirements.lock | cut -c1-16)-$(RELEASE_TAG)

.PHONY: wheel test-wheel release-tools
release-tools: $(STAMP)
	@test -e $(RELEASE)/.installed || { rm -rf $(RELEASE) && \
	  $(BIN)/uv venv --quiet --python $(RELEASE_PYTHON) $(RELEASE) && \
	  $(BIN)/uv pip install --quiet --python $(RELEASE)/bin/python --require-hashes -r containers/release/requirements.lock && \
	  touch $(RELEASE)/.installed; }

# The C++ library is linked in, since older systems have an older one; of glibc, 2.34 is the first with threads in libc.
WHEEL_PLATFORM := manylinux_2_34_$(shell uname -m)
WHEEL_LINK := -static-libstdc++ -Wl,--exclude-libs,ALL
wheel: release-tools ## dist/: a wheel for glibc 2.34 and newer, of this Python; RELEASE_PYTHON=python3.12: of another
	@rm -rf build/wheel && mkdir -p build/wheel dist
	PATH=$(RELEASE)/bin:$$PATH PYTHONHASHSEED=0 $(RELEASE)/bin/python native/compile_core.py --out build/wheel/core --cache $(CACHE)
	PATH=$(RELEASE)/bin:$$PATH LDFLAGS="$(WHEEL_LINK)" SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(RELEASE)/bin/python -m build --wheel \
	  --no-isolation --outdir build/wheel -C build-dir=build/wheel/native -C cmake.define.AEGAEON_COMPILED_CORE=$(abspath build/wheel/core) . >build/wheel/log || { tail -30 build/wheel/log >&2; exit 1; }
	PATH=$(RELEASE)/bin:$$PATH $(RELEASE)/bin/auditwheel repair --plat $(WHEEL_PLATFORM) --wheel-dir dist build/wheel/*.whl >>build/wheel/log 2>&1 || { tail -30 build/wheel/log >&2; exit 1; }
	@ls -l dist/aegaeon-$(VERSION)-$(RELEASE_TAG)-*.whl

# Away from the checkout, of which nothing may be found; packages of the versions that everything is tested with.
WHEEL_TEST := $(abspath build/test-wheel)
test-wheel: wheel models ## the wheel in a new environment runs the demo
	@rm -rf $(WHEEL_TEST) && mkdir -p $(WHEEL_TEST)/empty
	$(BIN)/uv venv --quiet --python $(RELEASE_PYTHON) $(WHEEL_TEST)/venv
	sed '/^ *--hash/d; s/ *\\$$//' requirements.lock > $(WHEEL_TEST)/constraints.txt
	$(BIN)/uv pip install --quiet --python $(WHEEL_TEST)/venv/bin/python -c $(WHEEL_TEST)/constraints.txt \
	  "$$(ls dist/aegaeon-$(VERSION)-$(RELEASE_TAG)-*.whl)[engine,demo]"
	cd $(WHEEL_TEST)/empty && AEGAEON_CORE=compiled ../venv/bin/aegaeon demo --models $(MODELS)

# ---- arm64, without a machine of that kind: Debian's cross compiler, and its tests under QEMU.
.PHONY: test-arm64 arm64-packages lock-arm64
ARM64_PACKAGES := g++-aarch64-linux-gnu qemu-user libgtest-dev
arm64-packages:
	@which aarch64-linux-gnu-g++ qemu-aarch64 >/dev/null && test -d /usr/src/googletest || \
	  { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq -y --no-install-recommends $(ARM64_PACKAGES) >/dev/null; } || \
	  { echo "as root: apt-get install $(ARM64_PACKAGES)" >&2; exit 1; }
test-arm64: $(STAMP) arm64-packages lock-arm64 ## the images' locks have wheels for arm64; the native core is compiled for it, its tests run under QEMU
	@$(BIN)/cmake -S native -B build/arm64 -G Ninja -DAEGAEON_TESTS=ON -DCMAKE_BUILD_TYPE=Release \
	  -DCMAKE_TOOLCHAIN_FILE=$(abspath containers/release/arm64.cmake) -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja >/dev/null
	@$(BIN)/cmake --build build/arm64
	@$(BIN)/ctest --test-dir build/arm64 --output-on-failure
# Of the base image's glibc.
lock-arm64: $(STAMP)
	@set -e; for lock in control engine engine-vllm-arm64 build; do echo "containers/$$lock.lock"; $(BIN)/uv pip install --quiet --dry-run \
	  --no-deps --python-platform aarch64-manylinux_2_36 --python-version 3.11 --only-binary :all: --require-hashes \
	  --target build/arm64-packages -r containers/$$lock.lock; done

.PHONY: images test-images sbom release
BUILDER ?= buildah bud
IMAGES_OF := control engine engine-vllm
# PLATFORM=linux/arm64: for such nodes. The locks are the same, but for packages that only Intel's processors have.
PLATFORM ?=
LOCK = containers/$(image)$(and $(filter linux/arm64% aarch64,$(or $(PLATFORM),$(shell uname -m))),$(filter engine-vllm,$(image)),-arm64).lock
# buildah makes every stage up to the image's own: gigabytes of packages that it does not have.
WITHOUT_engine = --build-arg VLLM_LOCK=containers/none.lock
WITHOUT_engine-vllm = --build-arg ENGINE_LOCK=containers/none.lock --build-arg VLLM_LOCK=$(LOCK)
# Docker takes the time as an argument of the build.
TIMES = $(if $(findstring docker,$(BUILDER)),--build-arg SOURCE_DATE_EPOCH=,--timestamp=)$(SOURCE_DATE_EPOCH)
LABEL = --label org.opencontainers.image
LABELS = $(LABEL).title=aegaeon-$(image) $(LABEL).version=$(VERSION) $(LABEL).licenses=Apache-2.0 \
  $(LABEL).revision=$(shell git rev-parse HEAD) $(LABEL).created=$(shell date -u -d @$(SOURCE_DATE_EPOCH) +%FT%TZ)
images: sbom ## the images aegaeon-control, aegaeon-engine and aegaeon-engine-vllm, or those of IMAGES_OF='control engine' (BUILDER='podman build', for example), with their SBOMs; PLATFORM=linux/arm64
	set -e; $(foreach image,$(IMAGES_OF),$(BUILDER) $(if $(PLATFORM),--platform $(PLATFORM)) --target $(image) $(WITHOUT_$(image)) $(TIMES) $(LABELS) $(IMAGE_FLAGS) \
	  -t localhost/aegaeon-$(image):$(VERSION) -f Containerfile .;)
test-images: $(STAMP) cluster-packages ## the control image, built twice without a cache, has one digest; its labels, and its packages beside the SBOM
	$(PY) -m pytest -q e2e/test_images.py
# What the locks bring, with hashes; scanners find the base's Debian packages in the image.
sbom: release-tools ## build/release/IMAGE.cdx.json: the packages of each image, in CycloneDX
	@mkdir -p build/release
	@set -e; $(foreach image,$(IMAGES_OF),SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) PYTHONWARNINGS=ignore $(RELEASE)/bin/cyclonedx-py requirements \
	  --output-reproducible --pyproject pyproject.toml -o build/release/aegaeon-$(image).cdx.json $(LOCK);)
release: ## what would publish images, SBOMs, chart and wheels in REGISTRY, signed; PUBLISH=1 does
	@VERSION=$(VERSION) IMAGES='$(IMAGES_OF)' bash containers/release/publish $(or $(REGISTRY),registry.example/aegaeon)
