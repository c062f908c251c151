#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""omnikv bench: the table, comparison and drawing of given results; rows of a small run; pages given back. No figure is judged."""

import json
import os
import signal
import subprocess
import time
import xml.etree.ElementTree

import cli

HERE = os.path.join(cli.TOP, "tests", "cli", "bench")
HUGE = "/proc/sys/vm/nr_hugepages"
# Rows of each benchmark.
ROWS = {"gather": ["M1", "M1", "M10"] * 4, "scatter": ["M2", "M2", "M10"] * 4, "match": ["M3"] * 11, "readers": ["M3"] * 8,
        "life": ["M4"] * 4, "ring": ["M5"] * 6, "fork": ["fork"] * 2, "get": ["M6"] * 8,
        "start": ["M8"] * 3, "restart": ["M8"] * 5, "spill": ["M9"] * 12}


def path(name):
    return os.path.join(HERE, name)


def text(name):
    with open(path(name), encoding="utf-8") as file:
        return file.read()


def the_table_is_as_ever():
    done = cli.run("bench", "--from", path("run.json"))
    cli.equal(done.status, 0, "the exit status", done)
    cli.equal(done.out, text("table.txt"), "the table", done)
    cli.equal(done.err, "", "standard error", done)


def a_comparison_names_what_came_and_went():
    done = cli.run("bench", "--from", path("run.json"), "--compare", path("then.json"))
    cli.equal(done.status, 0, "the exit status", done)
    cli.equal(done.out, text("table.txt") + "\n" + text("compare.txt"), "table and comparison", done)
    # With --json standard output holds the object alone.
    done = cli.run("bench", "--from", path("run.json"), "--compare", path("then.json"), "--json")
    with open(path("run.json"), encoding="utf-8") as file:
        cli.equal(done.json, json.load(file), "the object", done)
    cli.equal(done.err, text("compare.txt"), "the comparison", done)


def a_drawing_has_a_bar_a_ratio():
    with cli.temporary() as directory:
        out = os.path.join(directory, "ratios.svg")
        done = cli.run("bench", "--from", path("run.json"), "--svg", out)
        cli.equal(done.status, 0, "the exit status", done)
        tree = xml.etree.ElementTree.parse(out)
        bars = [float(r.get("width")) for r in tree.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "16"]
        # 300 units are a ratio of 1: 0.8916 and 1.
        cli.equal(bars, [267.5, 300.0], "the bars", done)
        done = cli.run("bench", "--from", path("run.json"), "--svg", os.path.join(directory, "no", "such"))
        cli.equal(done.status, 1, "the exit status", done)


def mistakes_are_told():
    cli.mistakes([
        (["bench"], ["no benchmark", "--list"]),
        (["bench", "nonesuch"], ["nonesuch", "--list"]),
        (["bench", "M"], ["'M'", "--list"]),
        (["bench", "ring", "--rounds", "0"], ["--rounds", "'0'"]),
        (["bench", "ring", "--rounds", "102"], ["--rounds", "101"]),
        (["bench", "ring", "--footprint", "1M"], ["--footprint", "1M", "16M"]),
        (["bench", "ring", "--from", path("run.json")], ["--from", "ring"]),
    ])
    for where in (os.path.join(HERE, "nonesuch"), os.path.join(HERE, "run.json", "below")):
        done = cli.run("bench", "spill", "--footprint", "16M", "--disk", where)
        cli.equal((done.status, done.err.count("\n")), (1, 1), "status and lines of errors", done)
        if where not in done.err or "--disk" not in done.err:
            raise AssertionError(f"neither {where} nor --disk in the message\n{done}")


def what_is_no_result_is_refused():
    with open(path("run.json"), encoding="utf-8") as file:
        good = json.load(file)
    damaged = []
    for key in ("machine", "rows", "footprint_bytes", "huge_pages_reserved"):
        damaged.append({k: v for k, v in good.items() if k != key})
    for key in ("row", "workload", "ours"):
        damaged.append(dict(good, rows=[{k: v for k, v in good["rows"][0].items() if k != key}]))
    for key in good["machine"]:
        damaged.append(dict(good, machine={k: v for k, v in good["machine"].items() if k != key}))
    damaged += [dict(good, footprint_bytes=-1), [], {}, dict(good, rows={}), dict(good, machine=dict(good["machine"], memory_bytes=1e30))]
    with cli.temporary() as directory:
        name = os.path.join(directory, "run.json")
        for run in damaged:
            with open(name, "w", encoding="utf-8") as file:
                json.dump(run, file)
            done = cli.run("bench", "--from", name)
            cli.equal((done.status, done.out, done.err.count("\n")), (1, "", 1), f"status, output and lines of errors for {run}", done)
        done = cli.run("bench", "--from", os.path.join(directory, "nonesuch"))
        cli.equal((done.status, done.out, done.err.count("\n")), (1, "", 1), "status, output and lines of errors", done)


def more_memory_than_there_is_is_refused():
    done = cli.run("bench", "gather", "--footprint", "1T")
    cli.equal((done.status, done.out, done.err.count("\n")), (1, "", 1), "status, output and lines of errors", done)
    for word in ("gather", "2.0", "TiB", "--footprint"):
        if word not in done.err:
            raise AssertionError(f"no '{word}' in the message\n{done}")


def every_benchmark_fills_its_rows():
    listed = [line.split()[0] for line in cli.run("bench", "--list").out.splitlines()]
    cli.equal(listed, list(ROWS), "the benchmarks")
    with cli.temporary() as directory:
        done = cli.run("bench", "all", "--footprint", "16M", "--rounds", "2", "--disk", directory, "--json")
        cli.equal(os.listdir(directory), [], "what is left on the disk", done)
    found = cli.fields(done, footprint_bytes=16 << 20, huge_pages_reserved=0)
    cli.equal([row["row"] for row in found["rows"]], sum(ROWS.values(), []), "the rows", done)
    seen = set()
    for row in found["rows"]:
        name = (row["row"], row["workload"])
        if name in seen:
            raise AssertionError(f"{name} is there twice\n{done}")
        seen.add(name)
        for series in ("ours", "limit", "peer", "ratio"):
            if row[series] is not None and not row[series]["min"] <= row[series]["median"] <= row[series]["max"]:
                raise AssertionError(f"{series} of {name} is out of order\n{done}")
        cli.equal(row["rounds"], 2, f"rounds of {name}", done)
    one = cli.run("bench", "M4", "--footprint", "16M", "--rounds", "1", "--json")
    cli.equal([row["row"] for row in one.json["rows"]], ["M4"] * 4, "rows of one benchmark", one)


def pages_nr():
    with open(HUGE, encoding="ascii") as file:
        return int(file.read())


def wait_for(nr, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if pages_nr() == nr:
            return True
        time.sleep(0.01)
    return False


def huge_pages_come_back_however_it_ends():
    cli.need(os.access(HUGE, os.W_OK), "the count of huge pages cannot be set here")
    before = pages_nr()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen([cli.OMNIKV, "bench", "ring", "--footprint", "16M", "--rounds", "101", "--hugepages", "3"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
            came = wait_for(before + 3, 20)
            child.send_signal(number)
            # Whoever waits for its output waits for it alone.
            child.communicate(timeout=20)
        cli.need(came, "huge pages could not be reserved")
        if not wait_for(before, 20):
            raise AssertionError(f"{pages_nr()} huge pages after {number.name}, {before} before")
    done = cli.run("bench", "ring", "--footprint", "16M", "--rounds", "1", "--hugepages", "3", "--json")
    cli.fields(done, huge_pages_reserved=3)
    cli.equal(pages_nr(), before, "huge pages afterwards", done)
    done = cli.run("bench", "ring", "--hugepages", "500000000")
    cli.equal((done.status, done.err.count("\n")), (2, 1), "status and lines of errors", done)


cli.main([the_table_is_as_ever, a_comparison_names_what_came_and_went, a_drawing_has_a_bar_a_ratio, mistakes_are_told,
          what_is_no_result_is_refused, more_memory_than_there_is_is_refused, every_benchmark_fills_its_rows,
          huge_pages_come_back_however_it_ends])
