#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Real traces, where they are: the hits that follow from them, no wrong byte, nothing leaked."""

import glob
import os

import cli

FAST = "--as-fast-as-possible"


def need_memory(gib):
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                cli.need(int(line.split()[1]) >= gib << 20, f"less than {gib} GiB of memory is available")


def conversations():
    need_memory(5)
    found = cli.clean(cli.replay("--trace", cli.data("traces/conversation_trace.jsonl"), "--model", "tiny", "--pool", "4G",
                                 FAST), requests=12031, blocks_referenced=288500, blocks_hit=105710, blocks_evicted=0)
    if not found["loads_verified"]:
        raise AssertionError("nothing was verified")
    print(f"# {found['wall_s']:.1f} s, {found['max_rss_bytes'] / 2**20:.0f} MiB")


def conversations_in_a_pool_that_evicts():
    found = cli.clean(cli.replay("--trace", cli.data("traces/conversation_trace.jsonl"), "--model", "tiny", "--pool",
                                 "256M", FAST), requests=12031, blocks_referenced=288500)
    if abs(found["blocks_hit"] - 76613) > 0.02 * 76613:
        raise AssertionError(f"blocks_hit is {found['blocks_hit']}, not within 2 % of 76613")
    print(f"# {found['blocks_hit']} hits, plain LRU 76613")


def conversations_by_arrival():
    need_memory(5)
    found = cli.clean(cli.replay("--trace", cli.data("traces/conversation_trace.jsonl"), "--model", "tiny", "--pool", "4G"),
                      requests=12031, blocks_referenced=288500)
    # A request cannot hit what is in flight beside it.
    if not 100000 < found["blocks_hit"] <= 105710:
        raise AssertionError(f"blocks_hit is {found['blocks_hit']}")
    print(f"# {found['blocks_hit']} hits")


def agent_sessions():
    cli.data("traces/agent")
    traces = sorted(glob.glob(os.path.join(cli.DATA, "traces/agent/*.jsonl")))
    args = [arg for trace in traces for arg in ("--trace", trace)]
    for tokens, referenced, hit in ((16, 26754, 20860), (64, 6663, 5189), (512, 804, 618)):
        cli.clean(cli.replay(*args, "--block-tokens", tokens, "--pool", "512M", FAST), requests=95,
                  blocks_referenced=referenced, blocks_hit=hit)


def sharegpt():
    for tokens, referenced, hit in ((16, 15942, 1220), (64, 3873, 295), (512, 349, 22)):
        cli.clean(cli.replay("--trace", cli.data("traces/llmservingsim_sharegpt-llama-3.1-8b-300-sps10.jsonl"),
                             "--block-tokens", tokens, "--pool", "512M", FAST), requests=300,
                  blocks_referenced=referenced, blocks_hit=hit)


def azure_has_no_content():
    cli.clean(cli.replay("--trace", cli.data("traces/AzureLLMInferenceTrace_code.csv"), "--pool", "256M", FAST),
              requests=8819, blocks_hit=0)


def a_slice_under_the_address_sanitizer():
    cli.need(os.path.exists(cli.ASAN), "build/asan is not built")
    cli.clean(cli.replay("--trace", cli.data("traces/conversation_trace.jsonl"), "--requests", 300, "--pool", "64M", FAST,
                         program=cli.ASAN))


cli.main([conversations, conversations_in_a_pool_that_evicts, conversations_by_arrival, agent_sessions, sharegpt,
          azure_has_no_content, a_slice_under_the_address_sanitizer])
