#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Builds and runs the tests, lane by lane. Called by tests/all, which installs what is missing first.

A lane is a directory tests/<lane>/ with one program a .c file (cmocka), executable scripts, or one
executable named "run" that is the whole lane. A program reports by cmocka's standard output or by
TAP; one that prints neither counts as one test by its exit status (0 passed, 4 skipped, its last
line being the reason). What a lane needs beyond that is a method of Session named lane_<lane>.

Standard library only: a fresh machine has nothing else.
"""

import argparse
import concurrent.futures
import fnmatch
import glob
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Order of running, cheap first. Lanes that a directory adds beyond these come before fuzz.
ORDER = ["lint", "unit", "conformance", "manager", "spill", "kernels", "pipeline", "engine", "python", "engines",
         "docs", "packages", "fuzz", "kmod", "guest", "soak", "gpu"]
NOT_LANES = {"harness", "abi", "bench"}

# Seconds: per commit, with --full. A lane that is not named here has the last.
BUDGETS = {
    "lint": (120, 300), "unit": (900, 1800), "conformance": (300, 900), "docs": (60, 60),
    "packages": (180, 300), "fuzz": (600, 7200), "kmod": (2400, 7200), "guest": (900, 21600), "soak": (600, 9000),
    "python": (600, 600), "manager": (600, 7200), "engines": (900, 3600),
    "": (600, 3600),
}
BUILD_BUDGET = 1800
TEST_TIMEOUT = 120
FUZZ_SECONDS = (20, 600)

# How the unit and conformance lanes are built and run: name -> (arguments of make, directory).
VARIANTS = {
    "plain": ([], "build"),
    "signals": ([], "build"),
    "asan": (["SAN=address"], "build/asan"),
    "tsan": (["SAN=thread"], "build/tsan"),
    "clang": (["CC=clang"], "build/clang"),
    "cov": (["COVERAGE=1"], "build/cov"),
    "fuzz": (["SAN=fuzzer"], "build/fuzz"),
}
RUN_VARIANTS = {"unit": ["plain", "asan", "tsan", "signals"], "conformance": ["plain", "asan", "signals"], "spill": ["plain", "asan"],
                "kernels": ["plain", "asan", "clang"]}
COMPILED_ONLY = {"unit": ["clang"]}
# The plain build again, with a signal a millisecond that no program is to notice.
VARIANT_ENV = {"signals": {"LD_PRELOAD": os.path.join(TOP, "build", "lib", "libsignals.so")}}
# One suite for every provider: each program is run with each of these as its argument.
CONFORMANCE_POOLS = {"memory": "embedded:32M", "file": "embedded:32M:{tmp}/conformance.{variant}.pool",
                     "daemon": "omnikvd:32M"}
# Builds whose programs the scripts of a lane run.
SCRIPT_VARIANTS = {"cli": ["plain", "asan"]}

# Decided without kernel, device, disk or clock: held to COVERAGE_FLOOR by --coverage.
PURE_FILES = """
    core/*.c lib/crc32c.c lib/wire.c lib/stock.c
    lib/layout*.c lib/presets.c lib/plan.c lib/key*.c lib/chain*.c lib/namespace.c lib/identity.c lib/block.c lib/table.c lib/size.c
    lib/ring_queue.c lib/pool_file.c lib/hold.c
    lib/manager/index*.c lib/manager/evict*.c
    lib/spill/format.c lib/spill/reclaim.c
    kmod/batch_check.c kmod/winmap.c
    tools/omnikv/trace*.c tools/omnikv/workload.c tools/omnikv/gpu.c tools/omnikv/oracle.c
""".split()
COVERAGE_FLOOR = 95.0

SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")


class Outcome:
    """One test: lane, name, status ("passed", "failed", "skipped"), and why it was not passed."""

    def __init__(self, lane, name, status, reason="", log=""):
        self.lane, self.name, self.status, self.reason, self.log = lane, name, status, reason, log
        self.count = 1


def parse_cmocka(text):
    """[(name, status, reason)] from cmocka's standard output; the summary repeats names and is not counted."""
    found, current, last = [], None, ""
    for line in text.splitlines():
        m = re.match(r"\[ (RUN     |      OK| FAILED | SKIPPED) \] (.*?)\s*$", line)
        if not m:
            last = line.strip() or last
            continue
        word, name = m.group(1).strip(), m.group(2)
        if word == "RUN":
            if current is not None:
                found.append((current, "failed", "no result: " + last))
            current, last = name, ""
        elif current is not None:
            status = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[word]
            found.append((current, status, last if status != "passed" else ""))
            current = None
    if current is not None:
        found.append((current, "failed", "ended in this test: " + last))
    return found


def parse_tap(text):
    """[(name, status, reason)] from TAP. The reason of a failure is what stands behind it after "# ", line by line."""
    found = []
    for line in text.splitlines():
        m = re.match(r"(not ok|ok)\b\s*\d*\s*-?\s*(.*?)\s*(?:#\s*(SKIP|TODO)\S*\s*(.*))?$", line, re.I)
        if not m:
            if line.startswith("# ") and found and found[-1][1] == "failed":
                name, status, reason = found[-1]
                found[-1] = (name, status, f"{reason}\n{line[2:]}".strip())
            continue
        if m.group(3):
            found.append((m.group(2), "skipped", m.group(4) or m.group(3)))
        else:
            found.append((m.group(2), "passed" if m.group(1) == "ok" else "failed", ""))
    return found


class Session:
    def __init__(self, options):
        self.options = options
        self.outcomes = []
        self.lock = threading.Lock()
        self.is_tty = sys.stdout.isatty()
        self.built = {}
        self.times = []  # (seconds, program) of the lane that runs
        self.lane = ""
        self.lane_end = 0.0
        self.build_s = 0.0
        self.full = 1 if options.full else 0
        self.env = dict(os.environ)
        data = os.path.join(os.path.dirname(TOP), "shared", "data")
        self.env.setdefault("OMNIKV_DATA", data)
        self.env["OMNIKV_FULL"] = str(self.full)
        self.env["OMNIKV_TOP"] = TOP
        self.env["TMPDIR"] = os.path.join(TOP, "build", "tmp")
        self.env["LC_ALL"] = "C.UTF-8"
        # A sanitizer's report is a failure; a forked child of a threaded test is no error of ours.
        self.env.setdefault("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0:detect_stack_use_after_return=1")
        self.env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
        self.env.setdefault("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0")

    # ---- reporting ----------------------------------------------------------------------------
    def progress(self, text):
        if self.is_tty:
            width = shutil.get_terminal_size().columns - 1
            sys.stdout.write("\r\033[K" + text[:width])
            sys.stdout.flush()

    def say(self, text):
        with self.lock:
            if self.is_tty:
                sys.stdout.write("\r\033[K")
            print(text, flush=True)

    def record(self, name, status, reason="", log="", tail=True, count=1):
        outcome = Outcome(self.lane, name, status, reason, log)
        outcome.count = count
        with self.lock:
            self.outcomes.append(outcome)
        if status == "failed":
            lines = reason.splitlines()
            self.say(f"FAILED {self.lane}: {name}{': ' + lines[0] if lines else ''}")
            if lines[1:]:
                self.say("\n".join(f"    | {line}" for line in lines[1:20]))
            if log and tail:
                self.show_tail(log)
        elif status == "skipped":
            self.say(f"skipped {self.lane}: {name}: {reason or 'no reason given'}")

    def show_tail(self, log):
        try:
            with open(log, errors="replace") as file:
                lines = file.read().splitlines()[-40:]
        except OSError:
            return
        self.say("\n".join(f"    | {line}" for line in lines))
        self.say(f"    whole output: {os.path.relpath(log, TOP)}")

    # ---- running ------------------------------------------------------------------------------
    def left(self):
        return self.lane_end - time.monotonic()

    def execute(self, argv, log, timeout, env=None):
        """Run @argv with its output in @log. Returns (exit status, or None where it ran out of time; output)."""
        os.makedirs(os.path.dirname(log), exist_ok=True)
        merged = dict(self.env, **(env or {}))

        def in_child():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            # What runs in the background has these ignored, and would hand that on to what a test interrupts.
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)

        with open(log, "wb") as out:
            child = subprocess.Popen(argv, cwd=TOP, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                     env=merged, start_new_session=True, preexec_fn=in_child)
            try:
                status = child.wait(timeout=max(timeout, 0.1))
            except subprocess.TimeoutExpired:
                status = None
            finally:
                # Whatever it started ends with it.
                try:
                    os.killpg(child.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                child.wait()
        with open(log, errors="replace") as file:
            return status, file.read()

    def program(self, name, argv, timeout=TEST_TIMEOUT, env=None):
        """Run one test program and record each test in it."""
        if self.left() <= 0:
            self.record(name, "failed", "not run: the lane's time budget is used up")
            return
        log = os.path.join(TOP, "build", "logs", self.lane, re.sub(r"[^A-Za-z0-9._-]+", "-", name) + ".log")
        self.progress(f"{self.lane}: {name}")
        timeout = min(timeout, self.left())
        begin = time.monotonic()
        status, text = self.execute(argv, log, timeout, env)
        seconds = time.monotonic() - begin
        with self.lock:
            self.times.append((seconds, name))

        found = parse_cmocka(text) or parse_tap(text)
        is_told = False
        for test, result, reason in found:
            shown = not is_told and result == "failed"
            is_told = is_told or result == "failed"
            self.record(f"{name}: {test}", result, reason, log, tail=shown)
        if status is None:
            self.record(name, "failed", f"stopped after {seconds:.0f} s", log, tail=not is_told)
            return
        last = text.strip().splitlines()[-1].strip() if text.strip() else ""
        if found:
            # A sanitizer's report at exit fails a program whose tests all passed.
            if status not in (0, 4) and not any(r == "failed" for _, r, _ in found):
                self.record(name, "failed", f"exit status {status} after its tests", log)
            return
        summary = SUMMARY.match(last)
        if summary:
            passed, failed, skipped = map(int, summary.groups())
            for result, count in (("passed", passed), ("skipped", skipped), ("failed", failed)):
                if count:
                    self.record(f"{name} ({count})", result, "see its output", log, count=count)
            if status and not failed:
                self.record(name, "failed", f"exit status {status}", log)
        elif status == 0:
            self.record(name, "passed", "", log)
        elif status == 4:
            self.record(name, "skipped", last, log)
        else:
            self.record(name, "failed", f"exit status {status}", log)

    def build(self, variant, target="tests"):
        """Build a variant once. Returns whether it is there."""
        if (variant, target) in self.built:
            return self.built[variant, target]
        argv, _ = VARIANTS[variant]
        log = os.path.join(TOP, "build", "logs", "build", f"{variant}-{target}.log")
        self.progress(f"build: {variant}")
        begin = time.monotonic()
        jobs = str(os.cpu_count() or 1)
        status, _ = self.execute(["make", "-k", "-j", jobs, target] + argv, log, BUILD_BUDGET - self.build_s)
        self.build_s += time.monotonic() - begin
        # The lane's budget is for its tests.
        self.lane_end += time.monotonic() - begin
        good = status == 0
        if not good:
            reason = "the time budget of building is used up" if status is None else f"make ended with {status}"
            self.record(f"build {variant}", "failed", reason, log)
        self.built[variant, target] = good
        return good

    def wanted(self, name):
        patterns = self.options.test
        return not patterns or any(fnmatch.fnmatch(name, p) or p in name for p in patterns)

    # ---- lanes --------------------------------------------------------------------------------
    def programs_of(self, lane):
        """Names of the C programs of a lane, without directory or suffix. A lane that is one "run" builds its own."""
        if os.access(f"{TOP}/tests/{lane}/run", os.X_OK):
            return []
        names = sorted(os.path.basename(p)[:-2] for p in glob.glob(f"{TOP}/tests/{lane}/*.c"))
        return [n for n in names if self.wanted(n)]

    def scripts_of(self, lane):
        """Executable scripts of a lane; "run" alone where there is one."""
        found = sorted(p for p in glob.glob(f"{TOP}/tests/{lane}/*") if os.path.isfile(p) and os.access(p, os.X_OK))
        whole = [p for p in found if os.path.basename(p) == "run"]
        return whole or [p for p in found if self.wanted(os.path.basename(p))]

    def run_programs(self, lane, variant):
        """The C programs of @lane in one variant, as many at a time as there are processors."""
        names = self.programs_of(lane)
        if not names:
            return
        # -k built what could be built: run that, so that one file that does not compile hides no other result.
        self.build(variant)
        directory = VARIANTS[variant][1]
        env = {"OMNIKV_BUILD": os.path.join(TOP, directory), "OMNIKV_VARIANT": variant, **VARIANT_ENV.get(variant, {})}
        jobs = []
        with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as workers:
            for name in names:
                path = os.path.join(TOP, directory, "tests", lane, name)
                label = name if variant == "plain" else f"{name} [{variant}]"
                if not os.path.exists(path):
                    with_reason = ("failed", "was not built")
                    self.record(label, *with_reason)
                    continue
                timeout = self.left() if lane == "soak" else TEST_TIMEOUT * (1 + 4 * self.full)
                if lane != "conformance":
                    jobs.append(workers.submit(self.program, label, [path], timeout, env))
                    continue
                # One after another: a pool on a file has one owner.
                for provider, spec in CONFORMANCE_POOLS.items():
                    pool = spec.format(tmp=self.env["TMPDIR"], variant=variant)
                    self.program(f"{label} on {provider}", [path, pool], timeout,
                                 {**env, "OMNIKV_TEST_PROVIDER": provider})
                    if os.path.exists(pool.split(":")[-1]):
                        os.remove(pool.split(":")[-1])
            for job in jobs:
                job.result()

    def lane_default(self, lane):
        for variant in self.options.variant or RUN_VARIANTS.get(lane, ["plain"]):
            self.run_programs(lane, variant)
        if not self.options.variant:
            for variant in COMPILED_ONLY.get(lane, []):
                if self.build(variant):
                    self.record(f"compiles [{variant}]", "passed")
        scripts = self.scripts_of(lane)
        if scripts and not self.programs_of(lane):
            for variant in SCRIPT_VARIANTS.get(lane, ["plain"]):
                self.build(variant, "all")
        env = {"OMNIKV_BUILD": os.path.join(TOP, "build")}
        for path in scripts:
            name = os.path.basename(path)
            whole = name == "run"
            self.program(name if not whole else lane, [path],
                         self.left() if whole else TEST_TIMEOUT * 5 * (1 + 4 * self.full), env)

    def lane_lint(self, lane):
        for path in self.scripts_of(lane):
            self.program(os.path.basename(path), [path])

    def lane_fuzz(self, lane):
        names = self.programs_of(lane)
        plain, fuzz = self.build("plain"), self.build("fuzz", "fuzzers")
        seconds = FUZZ_SECONDS[self.full]
        self.lane_end = max(self.lane_end, time.monotonic() + (seconds + 60) * len(names))
        for name in names:
            seeds = f"tests/fuzz/corpus/{name}"
            has_seeds = os.path.isdir(os.path.join(TOP, seeds))
            if plain:
                self.program(f"{name} replays its corpus", [f"build/tests/fuzz/{name}"] + ([seeds] if has_seeds else []))
            if fuzz:
                grown = os.path.join(TOP, "build", "corpus", name)
                crashes = os.path.join(TOP, "build", "crashes", name) + "/"
                os.makedirs(grown, exist_ok=True)
                os.makedirs(crashes, exist_ok=True)
                argv = [f"build/fuzz/tests/fuzz/{name}", f"-max_total_time={seconds}", "-timeout=10",
                        "-rss_limit_mb=2048", "-print_final_stats=1", f"-artifact_prefix={crashes}", grown]
                # -verbosity would hide what found a crash; the log is a file anyway.
                self.program(f"{name} for {seconds} s", argv + ([seeds] if has_seeds else []), seconds + 60)

    def run_lane(self, lane):
        budget = BUDGETS.get(lane, BUDGETS[""])[self.full]
        self.lane = lane
        self.times = []
        before = len(self.outcomes)
        build_before = self.build_s
        begin = time.monotonic()
        self.lane_end = begin + budget
        try:
            getattr(self, f"lane_{lane}", self.lane_default)(lane)
        except OSError as error:
            self.record("runner", "failed", str(error))
        built = self.build_s - build_before
        spent = time.monotonic() - begin - built
        counts = self.counts(self.outcomes[before:])
        text = f"{lane}: {counts[0]} passed, {counts[1]} failed, {counts[2]} skipped in {spent:.0f} s of {budget} s"
        slow = [f"{name} {seconds:.0f} s" for seconds, name in sorted(self.times, reverse=True)[:3] if seconds >= 5]
        self.say(text + (f" (and {built:.0f} s building)" if built >= 1 else "") +
                 (f"; slowest: {', '.join(slow)}" if slow else ""))

    def counts(self, outcomes):
        return [sum(o.count for o in outcomes if o.status == s) for s in ("passed", "failed", "skipped")]

    # ---- coverage -----------------------------------------------------------------------------
    def coverage(self):
        """Run the unit and conformance lanes under gcov and hold the pure files to the floor."""
        self.lane = "coverage"
        self.lane_end = time.monotonic() + BUDGETS["unit"][self.full]
        for path in glob.glob(f"{TOP}/build/cov/**/*.gcda", recursive=True):
            os.remove(path)
        if not self.build("cov"):
            return
        outcomes, self.outcomes = self.outcomes, []
        for lane in ("unit", "conformance"):
            self.run_programs(lane, "cov")
        for name in self.programs_of("fuzz"):
            seeds = f"tests/fuzz/corpus/{name}"
            if os.path.isdir(os.path.join(TOP, seeds)):
                self.program(f"{name} replays its corpus", [f"build/cov/tests/fuzz/{name}", seeds])
        # Counted already by their own lanes, except where they fail here alone.
        self.outcomes = outcomes + [o for o in self.outcomes if o.status == "failed"]

        lines = {}
        # By what was compiled, so that a file that nothing ran counts as not run.
        for data in glob.glob(f"{TOP}/build/cov/obj/**/*.gcno", recursive=True):
            if not os.path.exists(os.path.join(TOP, os.path.relpath(data, f"{TOP}/build/cov/obj")[:-5] + ".c")):
                continue
            done = subprocess.run(["gcov", "--json-format", "--stdout", data], cwd=TOP, capture_output=True, check=False)
            for document in done.stdout.decode(errors="replace").splitlines():
                if not document.startswith("{"):
                    continue
                for file in json.loads(document)["files"]:
                    path = os.path.relpath(os.path.join(TOP, file["file"]), TOP)
                    counts = lines.setdefault(path, {})
                    for line in file["lines"]:
                        number = line["line_number"]
                        counts[number] = max(counts.get(number, 0), line["count"])

        pure = sorted({os.path.relpath(p, TOP) for g in PURE_FILES for p in glob.glob(os.path.join(TOP, g))})
        self.say(f"{'pure file':<40} {'lines':>6} {'run':>6} {'share':>7}")
        total = run = 0
        low = []
        for path in pure:
            counts = lines.get(path, {})
            hit = sum(1 for c in counts.values() if c)
            share = 100.0 * hit / len(counts) if counts else 0.0
            missed = [n for n, c in sorted(counts.items()) if not c]
            if share < COVERAGE_FLOOR:
                low.append(path)
            note = "  not run: " + ranges(missed) if missed else ""
            self.say(f"{path:<40} {len(counts):>6} {hit:>6} {share:>6.1f} %{note}")
            total, run = total + len(counts), run + hit
        share = 100.0 * run / total if total else 0.0
        self.say(f"{'all pure files':<40} {total:>6} {run:>6} {share:>6.1f} %")
        if not pure:
            self.record("line coverage of the pure files", "skipped", "there is none yet")
        for path in pure:
            if path in low:
                self.record(f"line coverage of {path}", "failed", f"under {COVERAGE_FLOOR:.0f} %")
            else:
                self.record(f"line coverage of {path}", "passed")


def ranges(numbers, most=12):
    """[3, 4, 5, 9] as "3-5 9"."""
    runs = []
    for n in numbers:
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    text = " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:most])
    return text + (" ..." if len(runs) > most else "")


def lanes_here():
    """Lanes of which something exists."""
    found = [d for d in os.listdir(f"{TOP}/tests")
             if os.path.isdir(f"{TOP}/tests/{d}") and d not in NOT_LANES and
             (glob.glob(f"{TOP}/tests/{d}/*.c") or
              any(os.access(p, os.X_OK) and os.path.isfile(p) for p in glob.glob(f"{TOP}/tests/{d}/*")))]
    more = sorted(set(found) - set(ORDER))
    order = ORDER[:ORDER.index("fuzz")] + more + ORDER[ORDER.index("fuzz"):]
    return [lane for lane in order if lane in found]


def main():
    parser = argparse.ArgumentParser(prog="tests/all", description="Sets up, builds and runs every test that this machine can run.")
    parser.add_argument("--list", action="store_true", help="print the lanes, their budgets and their programs, and stop")
    parser.add_argument("--only", metavar="LANE,...", help="run these lanes")
    parser.add_argument("--full", action="store_true", help="the long form of each lane (fuzz: 10 minutes a target)")
    parser.add_argument("--coverage", action="store_true", help=f"line coverage; fails where a pure file is under {COVERAGE_FLOOR:.0f} %%")
    parser.add_argument("--variant", metavar="NAME,...", help="unit, conformance: only these builds (plain, asan, tsan, clang)")
    parser.add_argument("--test", metavar="TEXT", action="append", help="only programs with TEXT in their name, or matching it as a glob")
    options = parser.parse_args()
    here = lanes_here()
    session = Session(options)

    if options.list:
        for lane in here:
            budget = BUDGETS.get(lane, BUDGETS[""])
            print(f"{lane}: at most {budget[0]} s, {budget[1]} s with --full")
            for name in session.programs_of(lane) + [os.path.basename(p) for p in session.scripts_of(lane)]:
                print(f"    {name}")
        return 0

    options.variant = options.variant.split(",") if options.variant else None
    for variant in options.variant or []:
        if variant not in VARIANTS:
            parser.error(f"no build is named {variant}; there are {', '.join(VARIANTS)}")
    lanes = here
    if options.only:
        lanes = options.only.split(",")
        known = set(ORDER) | set(here)
        for lane in lanes:
            if lane not in known:
                parser.error(f"no lane is named {lane}; there are {' '.join(here)}")
    os.makedirs(session.env["TMPDIR"], exist_ok=True)

    begin = time.monotonic()
    for lane in lanes:
        if lane in here:
            session.run_lane(lane)
        else:
            session.lane = lane
            session.record(lane, "skipped", "there is nothing to run in this lane yet")
    if options.coverage:
        session.coverage()
    passed, failed, skipped = session.counts(session.outcomes)
    session.say(f"all in {time.monotonic() - begin:.0f} s, of which {session.build_s:.0f} s of {BUILD_BUDGET} s building")
    if failed:
        session.say("failed:")
        for outcome in session.outcomes:
            if outcome.status == "failed":
                session.say(f"    {outcome.lane}: {outcome.name}")
    session.say(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed + skipped else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
