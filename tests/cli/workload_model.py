# SPDX-License-Identifier: GPL-2.0-only
"""The built-in workloads a second time, from the recipe in the manual, and what a plain cache answers.

Not a test; imported by tests. Standard library only.
"""

MASK = (1 << 64) - 1


class Draws:
    """One splitmix64 stream."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def uniform(self, low, high):
        return low + self.next() % (high - low + 1)


RECIPES = {
    "chat": dict(systems=4, conversations=64, system_tokens=(1000, 3000), start=(0, 120000), turns=(2, 8),
                 user=(32, 512), reply=(64, 768), gap=(5000, 60000), knows_last=False),
    "agent": dict(systems=1, conversations=12, system_tokens=(3000, 5000), start=(0, 60000), turns=(8, 24),
                  user=(100, 2000), reply=(50, 400), gap=(1000, 10000), knows_last=True),
}


def requests(name, seed=1):
    """[(time in ms, system prompt, its tokens, conversation, prompt tokens, tokens looked up)] as they are played."""
    recipe, draws, made = RECIPES[name], Draws(seed), []
    systems = [draws.uniform(*recipe["system_tokens"]) for _ in range(recipe["systems"])]
    for conversation in range(recipe["conversations"]):
        system = draws.next() % len(systems)
        time = draws.uniform(*recipe["start"])
        tokens, last = systems[system], 0
        for _ in range(draws.uniform(*recipe["turns"])):
            user, reply = draws.uniform(*recipe["user"]), draws.uniform(*recipe["reply"])
            tokens += user
            lookup = last if recipe["knows_last"] and last else tokens
            made.append((time, system, systems[system], conversation, tokens, lookup))
            last = tokens
            tokens += reply
            time += draws.uniform(*recipe["gap"])
    return sorted(made, key=lambda r: r[0])


def keys(request, tokens, block_tokens):
    """Keys of the first @tokens tokens: (owner, block), with the length where it is a partial tail."""
    _, system, system_tokens, conversation, _, _ = request
    found = []
    for block in range((tokens + block_tokens - 1) // block_tokens):
        owner = ("s", system) if (block + 1) * block_tokens <= system_tokens else ("c", conversation)
        found.append((owner, block, min(block_tokens, tokens - block * block_tokens)))
    return found


def answers(name, block_tokens, seed=1):
    """Of a cache that never evicts: requests, prompt tokens, blocks referenced, blocks hit, tokens hit."""
    cache, referenced, hit, tokens_hit, tokens, nr = set(), 0, 0, 0, 0, 0
    for request in requests(name, seed):
        prompt, lookup = request[4], request[5]
        for key in keys(request, lookup, block_tokens):
            if key not in cache:
                break
            hit += 1
            tokens_hit += key[2]
        blocks = keys(request, prompt, block_tokens)
        cache.update(blocks)
        referenced += len(blocks)
        tokens += prompt
        nr += 1
    return dict(requests=nr, prompt_tokens=tokens, blocks_referenced=referenced, blocks_hit=hit,
                tokens_hit=tokens_hit)


if __name__ == "__main__":
    for workload in RECIPES:
        for size in (16, 512):
            print(workload, size, answers(workload, size))
