# SPDX-License-Identifier: GPL-2.0-only
"""transformers over omnikv: the text of prompts with shared prefixes is that of transformers alone, and every byte that is
loaded is the one that was computed."""

import hashlib
import os
import random

import omnikv
import pytest
import torch
import transformers
from omnikv.transformers import KVStore

MODEL = os.path.join(os.environ.get("OMNIKV_DATA", ""), "models", "stories260K-hf-hd32")
PROMPTS = 200 if os.environ.get("OMNIKV_FULL") == "1" else 60
NEW = 24
T = 16
NAT = 0.1


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


@pytest.fixture
def manager():
    with omnikv.connect("embedded:64M", hugetlb=False) as manager:
        yield manager
        manager.check()


def story(model, seed, length):
    """Tokens that the model itself tells, so that its choices are as sure as they are in use."""
    torch.manual_seed(seed)
    return model.generate(torch.tensor([[1]]), do_sample=True, min_new_tokens=length, max_new_tokens=length, pad_token_id=0)[0, :length]


def prompts_of(model):
    """Prompts of 20 to 200 tokens over four common beginnings."""
    chance = random.Random(6)
    heads = [story(model, seed, 160).tolist() for seed in range(4)]
    tails = [story(model, 100 + seed, 64).tolist() for seed in range(8)]
    return [heads[chance.randrange(4)][:chance.randrange(17, 161)] + tails[chance.randrange(8)][:chance.randrange(3, 40)]
            for _ in range(PROMPTS)]


def greedy(model, ids, cache=None):
    out = model.generate(ids, past_key_values=cache, max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=None,
                         output_logits=True, return_dict_in_generate=True)
    return out.sequences, torch.stack(out.logits, 1)


def digest(cache, tokens, row=0):
    total = hashlib.sha256()
    for layer in cache.layers:
        for tensor in (layer.keys, layer.values):
            total.update(tensor[row, :, :tokens].contiguous().numpy().tobytes())
    return total.digest()


def near_tie(expected, logits, found):
    """Do the texts first differ where the two best log-probabilities lie within NAT?"""
    at = next(i for i, (a, b) in enumerate(zip(expected, found)) if a != b)
    best = torch.log_softmax(logits[at], -1).topk(2).values
    return float(best[0] - best[1]) <= NAT


def test_text_and_bytes_are_those_of_transformers_alone(model, manager):
    store = KVStore(manager, model, weights="stories260K")
    computed, hits, equal, ties = {}, 0, 0, 0
    for prompt in prompts_of(model):
        ids = torch.tensor([prompt])
        expected, logits = greedy(model, ids)
        with store.cache(ids) as cache:
            if cache.hit_tokens:
                hits += cache.hit_tokens
                assert digest(cache, cache.hit_tokens) == computed[tuple(prompt[:cache.hit_tokens])]
            found, _ = greedy(model, ids, cache)
            new = cache.commit(found)
            tokens = found[0].tolist()
            end = cache.get_seq_length() // T * T
            # Blocks that others committed first keep the bytes that they had.
            if new:
                first = end - new * T
                for n in range(first + T, end + 1, T):
                    computed[tuple(tokens[:n])] = digest(cache, n)
        if torch.equal(expected, found):
            equal += 1
        else:
            ties += 1
            assert near_tie(expected[0, len(prompt):].tolist(), logits[0], found[0, len(prompt):].tolist())
    assert hits > 40 * PROMPTS
    print(f"{PROMPTS} prompts, {hits} tokens loaded, {equal} texts equal, {ties} differ first within {NAT} nat")


def crc32c(data):
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def test_the_checksum_of_a_block_is_that_of_what_was_computed(model, manager):
    store = KVStore(manager, model, weights="stories260K")
    ids = story(model, 1, 40)[None]
    with store.cache(ids) as cache:
        text, _ = greedy(model, ids, cache)
        assert cache.commit(text) == 3
        rows = b"".join(tensor[0, :, T:2 * T].transpose(0, 1).contiguous().numpy().tobytes()
                        for layer in cache.layers for tensor in (layer.keys, layer.values))
    with store.space.sequence(store.keys(text[0].tolist())) as seq:
        assert seq.block_crc(1) == crc32c(rows)


def test_one_token_is_left_to_compute(model, manager):
    store = KVStore(manager, model, weights="stories260K")
    whole = story(model, 2, 64)
    with store.cache(whole[None]) as cache:
        cache.commit(greedy(model, whole[None], cache)[0])
    for length in (1, 2, 15, 16, 17, 31, 32, 33, 64):
        ids = whole[None, :length]
        with store.cache(ids) as cache:
            assert cache.hit_tokens == (length - 1) // T * T
            assert torch.equal(greedy(model, ids, cache)[0], greedy(model, ids)[0])


def test_rows_of_a_batch_share_what_all_have(model, manager):
    store = KVStore(manager, model, weights="stories260K")
    one, two = story(model, 3, 50), story(model, 4, 50)
    with store.cache(one[None]) as cache:
        cache.commit(greedy(model, one[None], cache)[0])
    both = torch.stack([one, two])
    with store.cache(both) as cache:
        assert cache.hit_tokens == 0
        text, _ = greedy(model, both, cache)
        assert cache.commit(text) == 4       # of the second: the first has its own already
    with store.cache(both) as cache:
        assert cache.hit_tokens == 48
        assert torch.equal(greedy(model, both, cache)[0], text)
    with pytest.raises(omnikv.InvalidError, match="different length"):
        store.cache(both, attention_mask=torch.tensor([[0] + [1] * 49, [1] * 50]))


def test_beams_publish_nothing(model, manager):
    store = KVStore(manager, model, weights="stories260K")
    ids = story(model, 5, 40)[None]
    with store.cache(ids) as cache:
        text = model.generate(ids, past_key_values=cache, max_new_tokens=20, num_beams=3, do_sample=False, pad_token_id=0)
        assert cache.commit(text) == 0
    assert store.space.lookup(store.keys(text[0].tolist())) == 0


def test_tokens_that_the_cache_has_not_seen_are_refused(model, manager):
    store = KVStore(manager, model, weights="stories260K")
    ids = story(model, 6, 40)[None]
    with store.cache(ids) as cache:
        text, _ = greedy(model, ids, cache)
        with pytest.raises(ValueError, match="commit"):
            cache.commit(text + 1)
        assert cache.commit(text) > 0


def test_new_weights_find_nothing_of_the_old(model, manager):
    store = KVStore(manager, model, weights="stories260K")
    ids = story(model, 7, 60)[None]
    with store.cache(ids) as cache:
        cache.commit(greedy(model, ids, cache)[0])
    with store.cache(ids) as cache:
        assert cache.hit_tokens == 48
    store.set_epoch(1)
    with store.cache(ids) as cache:
        assert cache.hit_tokens == 0
    with KVStore(manager, model, weights="stories260K", salt=b"another user").cache(ids) as cache:
        assert cache.hit_tokens == 0


def test_a_pool_that_is_too_small_costs_hits_and_nothing_else(model, caplog):
    ids = story(model, 8, 200)[None]
    with omnikv.connect("embedded:200K", hugetlb=False) as small, KVStore(small, model, weights="stories260K") as store:
        with store.cache(ids) as cache:
            text, _ = greedy(model, ids, cache)
            assert cache.commit(text) == 0
        assert torch.equal(text, greedy(model, ids)[0])
        told = [record for record in caplog.records if "only 0 new blocks" in record.message]
        assert len(told) == 1 and "\n" not in told[0].message
        small.check()


def test_models_that_keep_something_else_are_refused_by_layer(model, manager):
    config = transformers.AutoConfig.from_pretrained(MODEL)
    config.layer_types = ["full_attention"] * 4 + ["sliding_attention"]
    with pytest.raises(omnikv.NotSupportedError, match='layer 4 is "sliding_attention"'):
        omnikv.transformers.layout_of(config, torch.float32)
    with pytest.raises(omnikv.NotSupportedError, match="float64"):
        omnikv.transformers.layout_of(model.config, torch.float64)
