#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Replays of built-in workloads and hand-made traces: hits as a plain model has them, every byte right."""

import json
import os

import cli
import workload_model

FAST = "--as-fast-as-possible"
# Answers at the default seed and 512 tokens, fixed so that a change of the recipe is seen.
FIXED = {
    "chat": dict(requests=310, prompt_tokens=1287743, blocks_referenced=2663, blocks_hit=1984, tokens_hit=1015808),
    "agent": dict(requests=187, prompt_tokens=3101701, blocks_referenced=6156, blocks_hit=5679, tokens_hit=2861361),
}


def workloads_at_the_default_seed():
    for name, expected in FIXED.items():
        cli.equal(workload_model.answers(name, 512), expected, f"the model's answer for {name}")
        found = cli.clean(cli.replay("--workload", name, "--pool", "256M", FAST), **expected)
        cli.equal(found["blocks_evicted"], 0, "blocks_evicted")
        if found["loads_verified"] < 4 * expected["blocks_hit"]:
            raise AssertionError(f"only {found['loads_verified']} loads verified")
        # tiny: 4 layers of 8 bytes a token
        cli.equal(found["bytes_verified"], 32 * expected["tokens_hit"], "bytes_verified")
        cli.equal(found["bytes_h2d"], 32 * expected["tokens_hit"], "bytes_h2d")
        cli.equal(found["bytes_d2h"], 32 * (expected["prompt_tokens"] - expected["tokens_hit"]), "bytes_d2h")


def other_seeds_and_block_sizes():
    for name, tokens, seed in (("chat", 64, 7), ("chat", 100, 8), ("agent", 256, 9)):
        cli.clean(cli.replay("--workload", name, "--seed", seed, "--block-tokens", tokens, "--pool", "512M", FAST),
                  **workload_model.answers(name, tokens, seed))


def the_same_on_the_host_device():
    cli.clean(cli.replay("--workload", "chat", "--pool", "256M", "--device", "host", FAST), **FIXED["chat"])


def the_same_where_the_code_of_a_gpu_moves():
    few = ("--workload", "chat", "--requests", 60, "--pool", "256M", "--verify-checksums", FAST)
    expected = cli.clean(cli.replay(*few))
    found = cli.clean(cli.replay(*few, "--device", "sim:kernels"))
    for name in ("blocks_hit", "loads_verified", "bytes_h2d", "bytes_d2h", "device_s"):
        cli.equal(found[name], expected[name], name)


def late_and_out_of_order():
    cli.clean(cli.replay("--workload", "agent", "--pool", "256M", "--shuffle", FAST), **FIXED["agent"])


def with_checksums():
    cli.clean(cli.replay("--workload", "agent", "--pool", "256M", "--verify-checksums", FAST), **FIXED["agent"])


def by_arrival():
    found = cli.clean(cli.replay("--workload", "chat", "--pool", "256M"), requests=310, prompt_tokens=1287743,
                      blocks_referenced=2663)
    # Requests that are in flight together cannot hit each other's blocks.
    if not 0 < found["blocks_hit"] <= 1984:
        raise AssertionError(f"blocks_hit is {found['blocks_hit']}")
    if not 0 < found["ttft_ns"]["p50"] <= found["ttft_ns"]["p99"]:
        raise AssertionError(f"ttft_ns is {found['ttft_ns']}")
    again = cli.clean(cli.replay("--workload", "chat", "--pool", "256M"))
    for name in ("blocks_hit", "device_s", "compute_s", "exposed_transfer_s", "ttft_ns"):
        cli.equal(again[name], found[name], f"{name} of the same replay again")


def models_of_every_kind():
    for model in ("llama-3-8b", "gpt-oss-20b", "deepseek-v3", "deepseek-v3.2"):
        found = cli.clean(cli.replay("--workload", "chat", "--model", model, "--block-tokens", 512, "--scale", 256,
                                     "--requests", 60, "--pool", "512M", FAST))
        if not found["blocks_hit"]:
            raise AssertionError(f"no hit with {model}")


def a_model_with_state_hits_where_a_prompt_ended():
    # Recurrent state is kept at the end of each prompt and nowhere else: the first turn of a session finds nothing,
    # each later one all of the prompt before it.
    nr = 80
    turns = workload_model.requests("agent")[:nr]
    expected = sum(lookup for *_, prompt, lookup in turns if lookup != prompt)
    found = cli.clean(cli.replay("--workload", "agent", "--model", "qwen3-next-80b-a3b", "--block-tokens", 512, "--scale",
                                 1024, "--requests", nr, "--pool", "256M", "--shuffle", "--verify-checksums", FAST),
                      tokens_hit=expected)
    if not found["config"]["checkpoint_bytes"]:
        raise AssertionError("the model has no state")


def one_slot_is_enough():
    cli.clean(cli.replay("--workload", "chat", "--pool", "256M", "--slots", 1, FAST), **FIXED["chat"])


def plain_lru(name, capacity):
    """Blocks hit by least recently used over single blocks."""
    cache, hit = {}, 0
    for request in workload_model.requests(name):
        for key in workload_model.keys(request, request[5], 512):
            if key not in cache:
                break
            hit += 1
        for key in workload_model.keys(request, request[4], 512):
            cache.pop(key, None)
            cache[key] = True
            if len(cache) > capacity:
                del cache[next(iter(cache))]
    return hit


def a_pool_that_is_too_small_evicts():
    # 8 MiB hold 512 blocks of 16 KiB; the policy may differ from plain LRU by tie-breaks and what is leased.
    found = cli.clean(cli.replay("--workload", "chat", "--pool", "8M", FAST), requests=310, requests_refused=0)
    usable = found["config"]["pool_usable_bytes"] // 16384
    expected = plain_lru("chat", usable)
    if abs(found["blocks_hit"] - expected) > 0.02 * expected + 2:
        raise AssertionError(f"blocks_hit is {found['blocks_hit']}, plain LRU of {usable} blocks hits {expected}")
    if not found["blocks_evicted"]:
        raise AssertionError("nothing was evicted")


def what_does_not_fit_is_refused_and_the_rest_goes_on():
    with cli.temporary() as folder:
        trace = os.path.join(folder, "t.jsonl")
        with open(trace, "w") as file:
            for n in (4, 2000, 4):
                file.write(json.dumps({"timestamp": 0, "input_length": 512 * n, "hash_ids": list(range(n))}) + "\n")
        found = cli.clean(cli.replay("--trace", trace, "--pool", "8M", FAST), requests=3, requests_refused=1,
                          blocks_referenced=2008, blocks_hit=4)
        found = cli.clean(cli.replay("--trace", trace, "--pool", "64M", "--slot-tokens", 4096, FAST), requests=3,
                          requests_refused=1, blocks_hit=4)
        cli.equal(found["config"]["slot_tokens"], 4096, "slot_tokens")


def a_run_of_which_all_was_refused_is_no_success():
    for args, words in ((("--pool", "16K"), ["all 5 requests", "--pool"]),
                        (("--pool", "8M", "--slot-tokens", 1), ["all 5 requests", "buffer of 1 tokens", "--slot-tokens"])):
        done = cli.replay("--workload", "chat", "--requests", 5, FAST, *args)
        cli.fields(done, status=1, requests=5, requests_refused=5)
        for word in words:
            if word not in done.err:
                raise AssertionError(f"no '{word}'\n{done}")
    done = cli.replay("--workload", "chat", "--requests", 5, FAST, "--pool", "8M", "--slot-tokens", 2800)
    found = cli.clean(done)
    if not 0 < found["requests_refused"] < 5 or f"{found['requests_refused']} of 5 requests were refused" not in done.err:
        raise AssertionError(str(done))


def ids_that_are_no_chain_are_named_and_left_out():
    lines = ([1, 2], [1, 1], [2, 1], [3, 2], [1, 2], [3])
    with cli.temporary() as folder:
        trace = os.path.join(folder, "t.jsonl")
        with open(trace, "w") as file:
            for ids in lines:
                file.write(json.dumps({"timestamp": 0, "input_length": 512 * len(ids), "hash_ids": ids}) + "\n")
        done = cli.replay("--trace", trace, "--pool", "8M", FAST)
        cli.clean(done, requests=3, malformed_lines=3, blocks_hit=2)
        for word in (f"{trace}:2: hash_ids has 1 twice", f"{trace}:3: hash_ids[0]: 2 stood", f"{trace}:4: hash_ids[1]: 2 stood"):
            if word not in done.err:
                raise AssertionError(f"no '{word}'\n{done}")


def tails_within_an_entry_stay_private():
    for entry, block in ((4, 512), (3, 48)):
        model = {"name": "packed", "nr_layers": 2, "groups": [
            {"kind": "compressed", "layers": "all", "tokens_per_entry": entry,
             "planes": [{"role": "kv", "dtype": "u8", "heads": 1, "elems": 64}]}]}
        with cli.temporary() as folder:
            layout, trace = os.path.join(folder, "m.json"), os.path.join(folder, "t.jsonl")
            with open(layout, "w") as file:
                json.dump(model, file)
            with open(trace, "w") as file:
                for tokens in (1000, 1000, 1001, 1001):
                    ids = [1, 2] if tokens == 1000 else [1, 3]
                    file.write(json.dumps({"timestamp": 0, "input_length": tokens, "hash_ids": ids}) + "\n")
            if block == 512:
                # The second hits block and tail, the others the block alone.
                cli.clean(cli.replay("--trace", trace, "--pool", "8M", FAST, "--model", layout, "--verify-checksums"), requests=4,
                          blocks_hit=4, tail_blocks_committed=1)
            for mode in ([FAST], []):
                cli.clean(cli.replay("--workload", "agent", "--requests", 40, "--pool", "64M", "--model", layout,
                                     "--block-tokens", block, "--verify-checksums", *mode))


def each_token_is_counted_once():
    # 1000 tokens of which 600 and then 200 more are known: 800 hit, 200 missed, whatever was asked before.
    lines = [{"timestamp": 0, "input": "a" * 600}, {"timestamp": 1, "input": "a" * 800},
             {"timestamp": 2, "input": "a" * 800 + "b" * 200}]
    with cli.temporary() as folder:
        trace = os.path.join(folder, "t.jsonl")
        with open(trace, "w") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
        args = ("--trace", trace, "--block-tokens", 100, "--pool", "8M", FAST)
        cli.clean(cli.replay(*args), prompt_tokens=2400, tokens_hit=600 + 800, tokens_missed=600 + 200 + 200,
                  blocks_referenced=24, blocks_hit=14)
        # A load that fails is tried again; nothing is counted twice.
        cli.clean(cli.replay(*args, "--inject", "fail:200000"), prompt_tokens=2400, tokens_hit=1400,
                  tokens_missed=1000, blocks_hit=14)


def runs_end_with_their_sequence():
    with cli.temporary() as folder:
        trace = os.path.join(folder, "t.jsonl")
        with open(trace, "w") as file:
            for ids in ([1, 2, 3, 4], [5], [6]):
                file.write(json.dumps({"timestamp": 0, "input_length": 512 * len(ids), "hash_ids": ids}) + "\n")
        cli.clean(cli.replay("--trace", trace, "--pool", "8M", FAST), mean_run_blocks=2.0)


def malformed_lines_are_left_out_and_counted():
    with cli.temporary() as folder:
        trace = os.path.join(folder, "t.jsonl")
        with open(trace, "w") as file:
            file.write('{"timestamp": 0, "input_length": 512, "hash_ids": [1]}\n')
            file.write('{"timestamp": 0, "input_length": 512, "hash_ids": [1, 2]}\n' * 15)
            file.write('{"timestamp": 0, "input_length": 512, "hash_ids": [1]}\n')
        done = cli.replay("--trace", trace, FAST)
        cli.clean(done, requests=2, malformed_lines=15, blocks_hit=1)
        if f"{trace}:2: 2 hash_ids" not in done.err or "and 5 more malformed lines" not in done.err:
            raise AssertionError(str(done))
        done = cli.replay("--trace", trace, FAST, "--strict")
        cli.equal(done.status, 2, "the exit status", done)
        cli.equal(done.out, "", "standard output", done)
        if f"{trace}:2: 2 hash_ids" not in done.err:
            raise AssertionError(str(done))


def transfers_hide_behind_compute_as_the_book_has_it():
    # Four layers of Llama-3-8B on an H100: a step loads 8192 tokens of history and computes n more.
    layers, params, heads, dim, history, row = 4, 218.1e6, 32, 128, 8192, 4096
    plane = {"dtype": "bf16", "heads": 8, "elems": 128}
    model = {"name": "four", "nr_layers": layers, "layer_params": params, "q_heads": heads, "head_dim": dim,
             "groups": [{"kind": "full", "layers": "all", "planes": [dict(plane, role="k"), dict(plane, role="v")]}]}
    with cli.temporary() as folder:
        layout, trace = os.path.join(folder, "m.json"), os.path.join(folder, "t.jsonl")
        with open(layout, "w") as file:
            json.dump(model, file)
        for n in (256, 512, 2048):
            with open(trace, "w") as file:
                for tokens in (history, history + n):
                    file.write(json.dumps({"timestamp": 0, "input_length": tokens,
                                           "hash_ids": list(range((tokens + 511) // 512))}) + "\n")
            args = ("--model", layout, "--trace", trace, FAST)
            found = cli.clean(cli.replay(*args, "--pool", "256M"), blocks_hit=16)
            scaled = cli.clean(cli.replay(*args, "--pool", "16M", "--scale", 16), blocks_hit=16)

            def compute(hist, new):
                return (2 * params * new + 4 * heads * dim * new * (hist + new / 2)) / (989e12 * 0.5)

            # 2 us for each transfer; the first load has nothing to hide behind, nor has what takes longer.
            load = history * row / 50e9 + 2e-6
            exposed = load + (layers - 1) * max(0, load - compute(history, n))
            total = layers * (compute(0, history) + compute(history, n))
            for name, expected in (("exposed_transfer_s", exposed), ("compute_s", total)):
                if max(abs(found[name] - expected), abs(scaled[name] - expected)) > 0.01 * expected:
                    raise AssertionError(f"n {n}: {name} is {found[name]}, scaled {scaled[name]}, not {expected}")


def hints_of_next_use_save_blocks():
    # The same bytes, and more of them out of the cache: the trace says who comes back when.
    for pool, more in (("2M", 100), ("3M", 20)):
        plain = cli.clean(cli.replay("--workload", "agent", "--pool", pool, FAST))
        hinted = cli.clean(cli.replay("--workload", "agent", "--pool", pool, "--hints", FAST))
        cli.equal((plain["config"]["hints"], hinted["config"]["hints"]), (False, True), "config.hints")
        cli.equal(hinted["blocks_referenced"], plain["blocks_referenced"], "blocks_referenced")
        if hinted["blocks_hit"] < plain["blocks_hit"] + more:
            raise AssertionError(f"{pool}: {hinted['blocks_hit']} blocks hit with hints, {plain['blocks_hit']} without")
    # Where all fits they change nothing.
    cli.clean(cli.replay("--workload", "agent", "--pool", "256M", "--hints", FAST), **FIXED["agent"])


def every_promised_field_is_there():
    names = """requests prompt_tokens blocks_referenced blocks_hit hit_ratio hit_ratio_dram hit_ratio_nvme bytes_h2d bytes_d2h
        bytes_spilled bytes_fetched loads_verified wrong_bytes blocks_evicted exposed_transfer_s compute_s peak_hbm_bytes
        peak_dram_bytes peak_nvme_bytes wall_s lookup_ns config malformed_lines requests_refused leaked_bytes max_rss_bytes
        mean_run_blocks allocated_over_needed""".split()
    done = cli.replay("--workload", "chat", "--requests", 20, "--pool", "16M")
    found = cli.clean(done)
    missing = [name for name in names if name not in found]
    cli.equal(missing, [], "fields that are missing", done)
    cli.equal(sorted(found["lookup_ns"]), ["p50", "p99"], "lookup_ns", done)
    with open(os.path.join(cli.TOP, "Documentation", "users", "replay.md"), encoding="utf-8") as file:
        page = file.read()
    cli.equal([name for name in found if f"`{name}`" not in page], [], "fields that the manual leaves out")


def the_summary_says_what_counts():
    done = cli.run("replay", "--workload", "chat", "--pool", "64M", FAST)
    cli.equal(done.status, 0, "the exit status", done)
    for text in ("1984 of 2663 blocks, 74.50 %", "workload chat, seed 1", "512 tokens", "lru", ": 0 wrong bytes"):
        if text not in done.out:
            raise AssertionError(f"no '{text}' in\n{done}")


def under_the_address_sanitizer():
    cli.need(os.path.exists(cli.ASAN), "build/asan is not built")
    cli.clean(cli.replay("--workload", "chat", "--requests", 80, "--pool", "32M", "--shuffle", "--verify-checksums", FAST,
                         program=cli.ASAN))
    cli.clean(cli.replay("--workload", "agent", "--requests", 30, "--pool", "2M", "--inject", "fail:20000",
                         program=cli.ASAN))


cli.main([workloads_at_the_default_seed, other_seeds_and_block_sizes, the_same_on_the_host_device,
          the_same_where_the_code_of_a_gpu_moves, late_and_out_of_order, with_checksums, by_arrival, models_of_every_kind,
          a_model_with_state_hits_where_a_prompt_ended, one_slot_is_enough,
          a_pool_that_is_too_small_evicts, hints_of_next_use_save_blocks, what_does_not_fit_is_refused_and_the_rest_goes_on,
          a_run_of_which_all_was_refused_is_no_success, ids_that_are_no_chain_are_named_and_left_out,
          tails_within_an_entry_stay_private,
          each_token_is_counted_once, runs_end_with_their_sequence, malformed_lines_are_left_out_and_counted,
          transfers_hide_behind_compute_as_the_book_has_it, every_promised_field_is_there,
          the_summary_says_what_counts, under_the_address_sanitizer])
