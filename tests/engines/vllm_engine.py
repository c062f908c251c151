# SPDX-License-Identifier: GPL-2.0-only
"""One vLLM engine in a process of its own, told what to do by lines of JSON on standard input; answers are lines that begin
with "@ ". Not a test.

    {"do": "run", "prompts": [[...]], "salt": null, "new": 24}   texts, log-probabilities, cached tokens, TTFT of each
    {"do": "reset"}                                              forget vLLM's own prefix cache
    {"do": "break", "share": 0.3}                                that share of loads fails, with the slots scribbled on
    {"do": "epoch"}                                              as after new weights
    {"do": "abort", "prompts": [[...]], "after": 3}              requests that are aborted after some steps
    {"do": "metrics"}                                            the counters of the connector
    {"do": "compared"}                                           blocks loaded with the bytes that were computed, and with others

Among the options are "keep_prefix_cache" and "compare_bytes": see the functions of these names.
"""

import ctypes
import hashlib
import json
import os
import random
import sys
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


def say(answer):
    print("@ " + json.dumps(answer), flush=True)


def tell_steps(engine):
    """Whoever waits for an answer sees whether there is still something done for it."""
    plain, told = engine.step, [time.monotonic()]

    def step():
        done = plain()
        if time.monotonic() - told[0] >= 1:
            told[0] = time.monotonic()
            print("~", flush=True)
        return done
    engine.step = step


class Patient:
    """A load's job, whose engine hears of it when we have been at its slots, not before."""

    def __init__(self, job):
        self.begin = job.begin

    def over(self, _result):
        pass


def regions(mover, slot):
    """(address, bytes) of each piece of a block in the engine's memory."""
    return [(layer.address + layer.base_off + slot * layer.slot_stride + region * layer.region_stride, layer.region_bytes)
            for layer in mover._layers for region in range(layer.nr_regions)]


def broken_load(share):
    """What a load that fails may leave behind: garbage in the slots of blocks that it says did not arrive."""
    from omnikv import blocks
    plain, chance = blocks.BlockMover.load, random.Random(1)

    def load(self, space, keys, slots, first, verify, job):
        failed = plain(self, space, keys, slots, first, verify, Patient(job))
        for i in range(first, len(keys)):
            if chance.random() < share:
                failed.add(i)
                for address, count in regions(self, slots[i - first]):
                    ctypes.memset(address, 0x5a, count)
        return failed
    blocks.BlockMover.load = load if share else plain


def compare_bytes():
    """What is loaded, with what was computed and saved under the same key: the counts that it returns go on."""
    from omnikv import blocks
    load, save = blocks.BlockMover.load, blocks.BlockMover.save
    computed, counts = {}, {"same": 0, "other": 0}

    def digest(mover, slot):
        total = hashlib.sha256()
        for address, count in regions(mover, slot):
            total.update(ctypes.string_at(address, count))
        return total.digest()

    def comparing(self, space, keys, slots, first, verify, job):
        failed = load(self, space, keys, slots, first, verify, Patient(job))
        for i in set(range(first, len(keys))) - failed:
            counts["same" if computed.get(keys[i]) == digest(self, slots[i - first]) else "other"] += 1
        return failed

    def noting(self, space, keys, slots, job):
        for key, slot in zip(keys, slots):
            computed.setdefault(key, digest(self, slot))
        return save(self, space, keys, slots, job)
    blocks.BlockMover.load, blocks.BlockMover.save = comparing, noting
    return counts


def keep_prefix_cache():
    """vLLM turns its own prefix cache off for MLA on CPUs without AMX. What it does with one is what a test compares with."""
    from vllm.platforms.cpu import CpuPlatform
    plain = CpuPlatform.check_and_update_config.__func__

    def check(cls, config):
        plain(cls, config)
        config.cache_config.enable_prefix_caching = True
    CpuPlatform.check_and_update_config = classmethod(check)


def main():
    from vllm import LLM, SamplingParams
    options = json.loads(sys.argv[1])
    begin = time.monotonic()
    if options.pop("keep_prefix_cache", False):
        keep_prefix_cache()
    compared = compare_bytes() if options.pop("compare_bytes", False) else None
    options = {"model": os.path.join(os.environ["OMNIKV_DATA"], "models", "stories260K-hf-hd32"), "block_size": 32, **options}
    llm = LLM(skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=512, disable_log_stats=False, max_num_seqs=32,
              **options)
    tell_steps(llm.llm_engine)
    # The first steps of a process are slow, whatever they compute.
    llm.generate([{"prompt_token_ids": [1] + [7] * n, "cache_salt": "warm-up"} for n in (40, 100, 200)],
                 SamplingParams(max_tokens=4, detokenize=False, ignore_eos=True), use_tqdm=False)
    llm.llm_engine.reset_prefix_cache()
    say({"start_s": time.monotonic() - begin, "blocks": llm.llm_engine.vllm_config.cache_config.num_gpu_blocks})
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "run":
            params = SamplingParams(temperature=0, max_tokens=order.get("new", 24), detokenize=False, ignore_eos=True, logprobs=2)
            prompts = [{"prompt_token_ids": p, **({"cache_salt": order["salt"]} if order.get("salt") else {})} for p in order["prompts"]]
            answers = []
            for out in llm.generate(prompts, params, use_tqdm=False):
                text = out.outputs[0]
                best = [sorted((entry.logprob for entry in step.values()), reverse=True)[:2] for step in text.logprobs]
                answers.append({"text": list(text.token_ids), "best": best, "cached": out.num_cached_tokens, "end": text.finish_reason,
                                "ttft_s": getattr(out.metrics, "first_token_latency", None)})
            say(answers)
        elif order["do"] == "reset":
            say(llm.llm_engine.reset_prefix_cache())
        elif order["do"] == "epoch":
            say(llm.llm_engine.reset_prefix_cache(reset_connector=True))
        elif order["do"] == "compared":
            say(compared or {})
        elif order["do"] == "break":
            broken_load(order["share"])
            say(True)
        elif order["do"] == "abort":
            engine, params = llm.llm_engine, SamplingParams(temperature=0, max_tokens=200, detokenize=False, ignore_eos=True)
            names = [engine.add_request(f"abort-{i}", {"prompt_token_ids": p}, params) or f"abort-{i}"
                     for i, p in enumerate(order["prompts"])]
            for _ in range(order["after"]):
                engine.step()
            engine.abort_request(names)
            while engine.has_unfinished_requests():
                engine.step()
            say(len(names))
        elif order["do"] == "metrics":
            say({m.name: m.value for m in llm.get_metrics() if hasattr(m, "value") and
                 ("omnikv" in m.name or "prefix_cache" in m.name or "preempt" in m.name)})


if __name__ == "__main__":
    main()
