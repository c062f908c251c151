# SPDX-License-Identifier: GPL-2.0-only
"""What the tests of the command line share: running omnikv, TAP. Not a test. Standard library only."""

import json
import os
import subprocess
import sys
import tempfile

TOP = os.environ.get("OMNIKV_TOP") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("OMNIKV_BUILD") or os.path.join(TOP, "build")
DATA = os.environ.get("OMNIKV_DATA") or os.path.join(os.path.dirname(TOP), "shared", "data")
OMNIKV = os.path.join(BUILD, "bin", "omnikv")
# Built by the unit lane; tests that want it skip where it is not there.
ASAN = os.path.join(TOP, "build", "asan", "bin", "omnikv")


class Done:
    """Exit status and outputs of a command that ran; .json is its object, where it printed one."""

    def __init__(self, argv, status, out, err):
        self.argv, self.status, self.out, self.err = argv, status, out, err

    @property
    def json(self):
        return json.loads(self.out)

    def __str__(self):
        return f"{' '.join(self.argv)}\nexit status {self.status}\n{self.out[-2000:]}{self.err[-2000:]}"


def run(*args, program=OMNIKV, timeout=300, env=None):
    argv = [program, *map(str, args)]
    done = subprocess.run(argv, capture_output=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
                          env=dict(os.environ, **(env or {})))
    return Done(argv, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def replay(*args, **kwargs):
    return run("replay", "--json", *args, **kwargs)


class Skip(Exception):
    """Raised by a test that cannot run here; its text is the reason."""


def need(condition, why):
    if not condition:
        raise Skip(why)


def data(name):
    path = os.path.join(DATA, name)
    need(os.path.exists(path), f"{name} is not there")
    return path


def equal(found, expected, what, done=None):
    if found != expected:
        raise AssertionError(f"{what} is {found!r}, not {expected!r}\n{done or ''}")


def fields(done, status=0, **expected):
    """Exit status, and fields of the JSON object."""
    equal(done.status, status, "the exit status", done)
    found = done.json
    for name, value in expected.items():
        equal(found[name], value, name, done)
    return found


def clean(done, **expected):
    """A replay that went well: nothing wrong, nothing leaked, each block and token counted once."""
    found = fields(done, wrong_bytes=0, checksum_errors=0, leaked_bytes=0, leaked_leases=0, check="ok",
                   requests_failed=0, first_wrong=None, **expected)
    equal(found["blocks_hit"] + found["blocks_missed"], found["blocks_referenced"], "blocks hit and missed", done)
    equal(found["blocks_hit_dram"] + found["blocks_hit_nvme"], found["blocks_hit"], "blocks hit by tier", done)
    equal(found["tokens_hit"] + found["tokens_missed"], found["prompt_tokens"], "tokens hit and missed", done)
    return found


def mistakes(rows):
    """Rows of (arguments, words that the one line must have)."""
    for args, words in rows:
        done = run(*args)
        equal(done.status, 2, "the exit status", done)
        equal(done.out, "", "standard output", done)
        equal(done.err.count("\n"), 1, "lines on standard error", done)
        for word in words:
            if word not in done.err:
                raise AssertionError(f"no '{word}' in the message\n{done}")


def temporary():
    return tempfile.TemporaryDirectory(prefix="omnikv-cli-")


def main(tests):
    """Run functions as tests; their names, with spaces, are the tests' names."""
    failed = 0
    wanted = sys.argv[1:]
    tests = [t for t in tests if not wanted or any(w in t.__name__ for w in wanted)]
    print(f"1..{len(tests)}")
    for number, test in enumerate(tests, 1):
        name = test.__name__.replace("_", " ")
        try:
            test()
            print(f"ok {number} - {name}", flush=True)
        except Skip as why:
            print(f"ok {number} - {name} # SKIP {why}", flush=True)
        except (AssertionError, KeyError, ValueError, OSError, subprocess.SubprocessError) as why:
            failed += 1
            print(f"not ok {number} - {name}")
            for line in f"{type(why).__name__}: {why}".splitlines():
                print(f"# {line}")
            sys.stdout.flush()
    sys.exit(1 if failed else 0)
