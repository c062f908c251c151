# SPDX-License-Identifier: GPL-2.0-only
#
# Builds everything that runs in user space: the library, the programs and the tests. Sources
# are found by wildcard, so a new file needs no line here. Each combination of compiler and
# instrumentation has a directory of its own, so that they never mix:
#
#   make                          build/         gcc
#   make CC=clang                 build/clang
#   make SAN=address              build/asan     address and undefined-behaviour sanitizers
#   make SAN=thread               build/tsan
#   make SAN=fuzzer               build/fuzz     clang's libFuzzer with the address sanitizer
#   make COVERAGE=1               build/cov      gcov
#
# Targets: all (default), tests, check, modules, install, clean. V=1 shows the commands.

MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.SECONDARY:

ifeq ($(origin CC),default)
CC := gcc
endif
is_clang := $(findstring clang,$(CC))

SAN ?=
COVERAGE ?=

# ---- variant ---------------------------------------------------------------------------------
opt := -O2
ifeq ($(SAN),address)
B := build/asan$(if $(is_clang),-clang)
san_flags := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
opt := -O1
else ifeq ($(SAN),thread)
B := build/tsan$(if $(is_clang),-clang)
san_flags := -fsanitize=thread -fno-omit-frame-pointer
opt := -O1
else ifeq ($(SAN),fuzzer)
CC := clang
is_clang := clang
B := build/fuzz
san_flags := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
opt := -O1
else ifneq ($(SAN),)
$(error SAN=$(SAN) is unknown; use address, thread or fuzzer)
else ifneq ($(COVERAGE),)
B := build/cov
san_flags := --coverage -fprofile-update=atomic
opt := -O0
else
B := build$(if $(is_clang),/clang)
endif
is_plain := $(if $(san_flags),,y)

# ---- packages --------------------------------------------------------------------------------
packages := liburing libisal libxxhash libcrypto jansson numa
# Of omnikvd: its configuration file, and the service manager.
daemon_packages := inih libsystemd
test_packages := cmocka
# Of omnikvd where they are there: it publishes KV events with them.
events_packages := libzmq msgpack
has_events := $(shell pkg-config --exists $(events_packages) 2>/dev/null && echo y)
ifneq ($(filter-out clean help,$(or $(MAKECMDGOALS),all)),)
missing := $(shell for p in $(packages) $(daemon_packages); do pkg-config --exists $$p 2>/dev/null || echo $$p; done)
ifneq ($(missing),)
$(error $(missing) not found by pkg-config; run tools/setup as root)
endif
endif
pkg_cflags := $(shell pkg-config --cflags $(packages) 2>/dev/null)
pkg_libs := $(shell pkg-config --libs $(packages) 2>/dev/null)
test_libs := $(shell pkg-config --libs $(test_packages) 2>/dev/null)

# ---- flags -----------------------------------------------------------------------------------
CFLAGS ?= $(opt) -g
WERROR ?= -Werror
cppflags := -D_GNU_SOURCE -Ilib/include -Iuapi -Ilib -I. $(if $(has_events),-DOKV_HAVE_EVENTS) $(CPPFLAGS)
cflags := -std=c11 -Wall -Wextra $(WERROR) -fPIC -fvisibility=hidden -pthread $(CFLAGS) $(san_flags) $(pkg_cflags)
ldflags := -pthread -Wl,--as-needed $(san_flags) $(LDFLAGS)
libs := $(pkg_libs) -ldl -lm
comma := ,
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $(2);)

# ---- device code ---------------------------------------------------------------------------
# One compressed fatbin for every variant. Without nvcc the library is built without GPU code.
NVCC ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc build/cuda/nvidia/*/bin/nvcc))
fatbin := $(if $(NVCC),build/kernels/kernels.fatbin)
kernel_src := $(wildcard kernels/*.cu kernels/*.cuh kernels/*.h)
kernel_archs := 80 90 100
# The same code for the CPU, for a simulated device. The thread sanitizer takes each of its fibres for a thread: too slow.
CXX := $(if $(filter thread,$(SAN)),,$(shell command -v $(if $(is_clang),$(patsubst %clang,%clang++,$(CC)),g++)))
shim_flags := -std=c++17 -x c++ -Wno-unknown-pragmas -fno-exceptions -fno-rtti -fno-threadsafe-statics -include kernels/shim/cuda.h \
	$(if $(is_clang),-fno-sanitize=function)
nvcc_flags := -std=c++17 -O3 -Werror all-warnings --compress-mode=size \
	$(foreach a,$(kernel_archs),-gencode arch=compute_$(a),code=sm_$(a)) -gencode arch=compute_80,code=compute_80

# ---- sources ---------------------------------------------------------------------------------
lib_src := $(sort $(wildcard core/*.c lib/*.c lib/*/*.c kernels/*.c kernels/*/*.c))
lib_src := $(filter-out lib/python/% lib/include/%,$(lib_src))
# A directory below tools/ with a main() is a program of that name; tests may link with its other files.
tool_src := $(sort $(wildcard tools/*/*.c))
main_src := $(if $(tool_src),$(shell grep -l '^int main\b' $(tool_src)))
tool_dirs := $(patsubst %/,%,$(sort $(dir $(main_src))))
tool_names := $(notdir $(tool_dirs))
toollib_src := $(filter-out $(main_src),$(tool_src))
harness_src := $(filter-out %/fuzz_replay.c,$(sort $(wildcard tests/harness/*.c)))
# One program for each .c below tests/<lane>/, except the harness, the module's tests and what a guest builds itself.
test_src := $(filter-out tests/harness/% tests/kmod/% tests/fuzz/%,$(sort $(wildcard tests/*/*.c)))
fuzz_src := $(sort $(wildcard tests/fuzz/*.c))

# Test programs see the library with fail-points compiled in; what is installed has none.
T := $(if $(is_plain),$(B)/test,$(B))
obj = $(patsubst %.c,$(B)/obj/%.o,$(1))
tobj = $(patsubst %.c,$(T)/obj/%.o,$(1))

version = $(shell sed -n 's/^.define OMNIKV_VERSION_$(1)[^0-9]*\([0-9]*\)$$/\1/p' lib/include/omnikv/version.h)
major := $(call version,MAJOR)
full_version := $(major).$(call version,MINOR).$(call version,PATCH)

lib_obj = $(call $(1),$(lib_src) $(if $(CXX),kernels/kernels.cu.c))

a := $(B)/lib/libomnikv.a
so := $(B)/lib/libomnikv.so.$(major)
ta := $(T)/lib/libomnikv$(if $(is_plain),-test).a
tool_a := $(T)/lib/libtools.a
harness_a := $(T)/lib/libharness.a
# A CUDA driver on this machine's memory, which tests let the library load.
fake_cuda := $(B)/lib/libfake-cuda.so
# And a libcufile.
fake_cufile := $(B)/lib/libfake-cufile.so
# Preloaded into programs that are to notice no signal.
signals := $(B)/lib/libsignals.so
bins := $(addprefix $(B)/bin/,$(tool_names))
tests := $(patsubst tests/%.c,$(B)/tests/%,$(test_src))
fuzzers := $(patsubst tests/%.c,$(B)/tests/%,$(fuzz_src))

# ---- targets ---------------------------------------------------------------------------------
.PHONY: all tests fuzzers check install clean help
all: $(a) $(bins)
ifneq ($(is_plain),)
all: $(so) $(B)/lib/libomnikv.so $(B)/lib/pkgconfig/omnikv.pc
endif
tests: all $(tests) $(fuzzers)
fuzzers: $(fuzzers)

check:
	./tests/all --only unit

# The kernel module, for the running kernel or KDIR=...: build/kmod/<release>/omnikv.ko
KDIR ?= /lib/modules/$(shell uname -r)/build
.PHONY: modules
modules:
	kmod/build $(KDIR) build/kmod/$(notdir $(patsubst %/build,%,$(realpath $(KDIR)))) $(if $(W),W=$(W)) $(if $(C),C=$(C))

# For scripts: the nvcc that is used, or nothing.
.PHONY: print-nvcc
print-nvcc:
	@echo $(NVCC)

help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

clean:
	rm -rf build

# ---- rules -----------------------------------------------------------------------------------
# Objects are made anew when the flags change.
flags_text := $(CC) $(cppflags) $(cflags) $(ldflags)
$(shell mkdir -p $(B); printf '%s\n' '$(flags_text)' | cmp -s - $(B)/.flags || printf '%s\n' '$(flags_text)' > $(B)/.flags)

define compile
$(call say,CC,$@)
@mkdir -p $(@D)
$(Q)$(CC) $(cppflags) $(cflags) $(1) -MMD -MP -c -o $@ $<
endef

$(B)/obj/%.o: %.c $(B)/.flags
	$(call compile,$(if $(is_plain),,-DOKV_FAILPOINTS))
# Results of the tests' model are compared to the bit, also between compilers.
$(T)/obj/tests/harness/llm_model.o: cflags += -ffp-contract=off
ifneq ($(is_plain),)
$(T)/obj/%.o: %.c $(B)/.flags
	$(call compile,-DOKV_FAILPOINTS)
endif

# What ptxas says of registers and spills is kept beside the fatbin.
$(shell mkdir -p build/kernels; printf '%s\n' '$(NVCC) $(nvcc_flags)' | cmp -s - build/kernels/.flags || \
	printf '%s\n' '$(NVCC) $(nvcc_flags)' > build/kernels/.flags)
build/kernels/kernels.fatbin: $(kernel_src) build/kernels/.flags
	$(call say,NVCC,$@)
	$(Q)$(NVCC) -fatbin $(nvcc_flags) -Xptxas -v -o $@ kernels/kernels.cu 2> build/kernels/ptxas.log || \
		{ cat build/kernels/ptxas.log >&2; exit 1; }
	@$(NVCC) --version | sed -n 's/^.*release.*, V\([0-9.]*\)$$/nvcc \1: $(kernel_archs:%=sm_%) and PTX of compute_80/p' \
		> build/kernels/nvcc.txt
$(sort $(B)/obj/kernels/fatbin.o $(T)/obj/kernels/fatbin.o): kernels/fatbin.c $(fatbin) $(B)/.flags build/kernels/.flags
	$(if $(NVCC),,@echo "no nvcc: built without GPU code; tools/setup takes nvcc from Python's index")
	$(call compile,$(if $(NVCC),-DOKV_FATBIN='"$(fatbin)"' -DOKV_FATBIN_TEXT="\"$$(cat build/kernels/nvcc.txt)\""))

# The device code for the CPU: what compiles C, but as C++.
$(sort $(B)/obj/kernels/kernels.cu.o $(T)/obj/kernels/kernels.cu.o): kernels/kernels.cu $(B)/.flags
	$(call say,CXX,$@)
	@mkdir -p $(@D)
	$(Q)$(CXX) $(cppflags) $(filter-out -std=%,$(cflags)) $(shim_flags) -MMD -MP -c -o $@ $<
$(sort $(B)/obj/kernels/shim/ops.o $(T)/obj/kernels/shim/ops.o): cppflags += $(if $(CXX),-DOKV_HAS_SHIM)

define archive
$(call say,AR,$@)
@mkdir -p $(@D); rm -f $@
$(Q)ar rcs $@ $^
endef

$(a): $(call lib_obj,obj)
	$(archive)
ifneq ($(is_plain),)
$(ta): $(call lib_obj,tobj)
	$(archive)
endif
$(tool_a): $(call tobj,$(toollib_src))
	$(archive)
$(harness_a): $(call tobj,$(harness_src))
	$(archive)

# The build stops where the version, the export map and the list of changes disagree.
$(so): $(call lib_obj,obj) lib/omnikv.map lib/include/omnikv/version.h Documentation/changes.rst
	$(call say,LD,$@)
	@mkdir -p $(@D)
	@grep -q '^OMNIKV_$(major)\.$(call version,MINOR) ' lib/omnikv.map || \
		{ echo "lib/omnikv.map has no node for version $(full_version) of version.h" >&2; exit 1; }
	@grep -m1 -E '^[0-9]+\.[0-9]+\.[0-9]+' Documentation/changes.rst | grep -q '^$(full_version)\b' || \
		{ echo "Documentation/changes.rst does not begin with version $(full_version) of version.h" >&2; exit 1; }
	$(Q)$(CC) -shared -Wl,-soname,libomnikv.so.$(major) -Wl,--version-script=lib/omnikv.map -Wl,-z,defs \
		$(ldflags) -o $@ $(filter %.o,$^) $(libs)
$(B)/lib/libomnikv.so: $(so)
	@ln -sf $(<F) $@

define link
$(call say,LD,$@)
@mkdir -p $(@D)
$(Q)$(CC) $(ldflags) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(1)
endef

define tool_rule
$(B)/bin/$(notdir $(1)): $(call obj,$(wildcard $(1)/*.c)) $(a)
	$$(call link,$$(libs) $$(libs_$(notdir $(1))))
endef
# Of programs that need more than the library does. Tests link with the programs' files, so they need it too.
libs_omnikvd := $(shell pkg-config --libs $(daemon_packages) $(if $(has_events),$(events_packages)) 2>/dev/null)
$(foreach d,$(tool_dirs),$(eval $(call tool_rule,$(d))))

# Our objects' allocations pass through tests/harness/fault.c, which fails them on request.
wrapped := malloc calloc realloc aligned_alloc posix_memalign strdup strndup EVP_MD_CTX_new \
	EVP_DigestInit_ex EVP_DigestInit_ex2 EVP_DigestUpdate EVP_DigestFinal_ex
# The wrappers come into every program: compiler runtimes behind them call malloc as well.
wrap_flags := -Wl$(comma)--undefined=__wrap_malloc $(addprefix -Wl$(comma)--wrap=,$(wrapped))

$(fake_cuda): $(call tobj,$(wildcard tests/harness/cuda/*.c kernels/ref/*.c) kernels/launch.c lib/crc32c.c)
	$(call link,-shared $(libs))

$(signals): $(call tobj,$(wildcard tests/harness/signals/*.c))
	$(call link,-shared)

$(fake_cufile): $(call tobj,$(wildcard tests/harness/cufile/*.c))
	$(call link,-shared)

$(B)/tests/%: $(T)/obj/tests/%.o $(harness_a) $(tool_a) $(ta) | $(fake_cuda) $(fake_cufile) $(signals)
	$(call link,-Wl$(comma)--start-group $(filter %.a,$^) -Wl$(comma)--end-group $(wrap_flags) $(test_libs) $(libs) $(libs_omnikvd))

# A fuzz target is run by libFuzzer, or replays files given as arguments.
ifeq ($(SAN),fuzzer)
$(B)/tests/fuzz/%: $(T)/obj/tests/fuzz/%.o $(harness_a) $(tool_a) $(ta)
	$(call link,-fsanitize=fuzzer $(libs) $(libs_omnikvd))
else
$(B)/tests/fuzz/%: $(T)/obj/tests/fuzz/%.o $(T)/obj/tests/harness/fuzz_replay.o $(harness_a) $(tool_a) $(ta)
	$(call link,$(libs) $(libs_omnikvd))
endif

# ---- for a machine with a GPU ----------------------------------------------------------------
# build/gpu: programs, their device code, what they load and the script that runs them, to be carried to where there is
# neither nvcc nor a library of ours: only the C library and the driver are that machine's.
gpu_programs := $(patsubst tests/gpu/%.c,build/gpu/%,$(wildcard tests/gpu/*.c))
.PHONY: gpu
ifeq ($(fatbin),)
gpu:
	@echo "make gpu needs nvcc; tools/setup takes it from Python's index" >&2; exit 1
else
gpu: $(gpu_programs) build/gpu/load.fatbin build/gpu/run build/gpu/.libraries
endif
$(gpu_programs): build/gpu/%: $(T)/obj/tests/gpu/%.o $(harness_a) $(ta)
	$(call link,$(wrap_flags) -Wl$(comma)-rpath$(comma)'$$ORIGIN' $(libs))
# What they load beside the C library comes along.
build/gpu/.libraries: $(gpu_programs)
	@rm -f build/gpu/*.so*
	$(Q)ldd $^ | sed -n 's/^.*=> \(\/[^ ]*\) .*/\1/p' | sort -u | \
		grep -vE '/(libc|libm|libdl|libpthread|librt)\.so|/ld-' | xargs -r cp -Lt build/gpu
	@touch $@
build/gpu/load.fatbin: tests/gpu/load.cu build/kernels/.flags
	$(call say,NVCC,$@)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -fatbin $(nvcc_flags) -o $@ $<
build/gpu/run: tests/gpu/run
	@mkdir -p $(@D)
	$(Q)install -m 755 $< $@

# ---- install ---------------------------------------------------------------------------------
prefix ?= /usr/local
exec_prefix ?= $(prefix)
bindir ?= $(exec_prefix)/bin
libdir ?= $(exec_prefix)/lib
includedir ?= $(prefix)/include
mandir ?= $(prefix)/share/man
sysconfdir ?= $(if $(filter /usr,$(prefix)),/etc,$(prefix)/etc)
unitdir ?= $(prefix)/lib/systemd/system
sysusersdir ?= $(prefix)/lib/sysusers.d
D := $(DESTDIR)

define pc_text
prefix=$(prefix)
libdir=$(libdir)
includedir=$(includedir)

Name: omnikv
Description: DRAM-centric KV-cache memory for LLM inference
Version: $(full_version)
Libs: -L$${libdir} -lomnikv
Libs.private: $(libs) -pthread
Cflags: -I$${includedir}
endef
export pc_text

.PHONY: FORCE
FORCE:
$(B)/lib/pkgconfig/omnikv.pc: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' "$$pc_text" | cmp -s - $@ || printf '%s\n' "$$pc_text" > $@

install: all
	install -d $(D)$(bindir) $(D)$(libdir)/pkgconfig $(D)$(includedir)/omnikv $(D)$(includedir)/linux
	$(if $(bins),install -m 755 $(bins) $(D)$(bindir))
	install -m 644 $(a) $(D)$(libdir)/libomnikv.a
	install -m 755 $(so) $(D)$(libdir)/libomnikv.so.$(full_version)
	ln -sf libomnikv.so.$(full_version) $(D)$(libdir)/libomnikv.so.$(major)
	ln -sf libomnikv.so.$(major) $(D)$(libdir)/libomnikv.so
	install -m 644 $(B)/lib/pkgconfig/omnikv.pc $(D)$(libdir)/pkgconfig/omnikv.pc
	install -m 644 $(wildcard lib/include/*.h) $(D)$(includedir)
	install -m 644 $(wildcard lib/include/omnikv/*.h) $(D)$(includedir)/omnikv
	install -m 644 $(wildcard uapi/linux/*.h) $(D)$(includedir)/linux
	install -d $(D)$(mandir)/man1 $(D)$(mandir)/man4 $(D)$(mandir)/man8
	install -m 644 $(wildcard Documentation/man/*.1) $(D)$(mandir)/man1
	install -m 644 $(wildcard Documentation/man/*.4) $(D)$(mandir)/man4
	install -m 644 $(wildcard Documentation/man/*.8) $(D)$(mandir)/man8
	install -d $(D)$(unitdir) $(D)$(sysusersdir) $(D)$(sysconfdir)/omnikv
	for unit in service socket; do sed 's|@bindir@|$(bindir)|; s|@sysconfdir@|$(sysconfdir)|' \
		tools/omnikvd/systemd/omnikvd.$$unit > $(D)$(unitdir)/omnikvd.$$unit && \
		chmod 644 $(D)$(unitdir)/omnikvd.$$unit || exit 1; done
	install -m 644 tools/omnikvd/systemd/omnikv.sysusers $(D)$(sysusersdir)/omnikv.conf
	# An operator's settings stay.
	[ -e $(D)$(sysconfdir)/omnikv/omnikvd.conf ] || \
		install -m 644 tools/omnikvd/systemd/omnikvd.conf $(D)$(sysconfdir)/omnikv/omnikvd.conf

# ---- dependencies ----------------------------------------------------------------------------
-include $(shell find $(B)/obj $(T)/obj -name '*.d' 2>/dev/null)
