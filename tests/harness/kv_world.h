/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A small world for tests of the manager: pool, client, manager, a namespace, and KV whose
 * every byte follows from the tokens before it.
 *
 * A story is a list of tokens. The hash after token i decides the bytes of row i in every plane
 * of every layer, the state at i, and (at the ends of blocks) the keys. So what a sequence must
 * hold is known from its tokens alone, whoever stored it.
 */
#ifndef KV_WORLD_H
#define KV_WORLD_H

#include <omnikv.h>

/* A failure in a thread of a test ends the program: cmocka can only go back in the first. */
void kv_fail(const char *what, const char *file, int line) __attribute__((noreturn));

#define KV_MUST(is_true) do { if (!(is_true)) kv_fail(#is_true, __FILE__, __LINE__); } while (0)

enum kv_shape {
	KV_SHAPE_FULL,		/* one group, two layers, K and V */
	KV_SHAPE_MIXED,		/* that, indexer keys, and one entry for each 4 tokens */
	KV_SHAPE_HYBRID,	/* that of FULL, and a recurrent state */
};

struct okv_authority;

struct kv_world {
	struct omnikv_pool	*pool;
	struct omnikv_client	*client;
	struct omnikv_manager	*manager;
	struct omnikv_space	*space;
	struct omnikv_plan	plan;
	struct omnikv_namespace	ns;
};

/** @nr_blocks: of full blocks of @shape, states included, that the pool has room for. Asserts. */
void kv_world_open(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, uint64_t nr_blocks);
/** The same on a spill store (NULL: none), with @admit of enum omnikv_spill_admit. */
void kv_world_open_spill(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, uint64_t nr_blocks,
			 struct omnikv_spill *spill, uint32_t admit);
/** The same with a manager's configuration of one's own. */
void kv_world_open_config(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, uint64_t nr_blocks,
			  const struct omnikv_manager_config *config);
/** The same on the pool of @spec, which may hold what an earlier world left (kv_world_leave()). */
void kv_world_open_pool(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, const char *spec);
/** The same with a manager's configuration of one's own. */
void kv_world_open_pool_config(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, const char *spec,
			       const struct omnikv_manager_config *config);
/** Close everything and leave what is cached to whoever opens the pool again. Sequences are closed. */
void kv_world_leave(struct kv_world *world);
/** Another client of @base's pool, whose manager asks that of @base in this process. The authority is for tests to break. */
void kv_world_attach(struct kv_world *world, struct kv_world *base, struct okv_authority **auth);
/** The same over a real omnikvd that serves @socket, in blocks of @shape. */
void kv_world_connect(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, const char *socket,
		      const struct omnikv_attach_config *config);
/** The same, waiting up to 60 s for a daemon. */
void kv_world_connect_again(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, const char *socket);
/** Checks, ends the manager and (of kv_world_attach()) the client. Sequences are closed. */
void kv_world_detach(struct kv_world *world);
/** Checks all invariants, closes, and checks that the pool has everything back. Sequences are closed. */
void kv_world_close(struct kv_world *world);
void kv_world_check(struct kv_world *world);
void kv_layout(struct omnikv_layout *layout, enum kv_shape shape);

/** Tokens and the hash after each of them. */
struct kv_story {
	uint32_t	*tokens;
	uint64_t	*hashes;
	uint64_t	nr_tokens;
	uint64_t	capacity;
};

void kv_story_add(struct kv_story *story, uint32_t token);
void kv_story_copy(struct kv_story *to, const struct kv_story *from, uint64_t nr_tokens);
void kv_story_free(struct kv_story *story);

/** Key of block @block_idx, of which @nr_tokens tokens (a tail's key differs by them). */
struct omnikv_key kv_key(const struct kv_world *world, const struct kv_story *story, uint64_t block_idx,
			 uint32_t nr_tokens);
/** Keys of the first @nr full blocks; free() them. */
struct omnikv_key *kv_keys(const struct kv_world *world, const struct kv_story *story, uint64_t nr);

/** Store rows [@from, @to) of all groups, and the state at @to, into @seq's memory. */
void kv_store(const struct kv_world *world, struct omnikv_seq *seq, const struct kv_story *story, uint64_t from,
	      uint64_t to);
/** Compare rows [@from, @to) with what @story says. NULL, or what differs first, in words. */
const char *kv_compare(const struct kv_world *world, const struct omnikv_seq *seq, const struct kv_story *story,
		       uint64_t from, uint64_t to);
/** Is the state at @at there and right? */
bool kv_state_is_right(const struct kv_world *world, const struct omnikv_seq *seq, const struct kv_story *story,
		       uint64_t at);
/** Commit all full blocks, and the tail where @with_tail and there is one. */
int64_t kv_commit(const struct kv_world *world, struct omnikv_seq *seq, const struct kv_story *story, bool with_tail);
/** Open with the keys of the whole story, and its tail where @with_tail and there is one. */
struct omnikv_seq *kv_open(const struct kv_world *world, const struct kv_story *story, bool with_tail);

static inline uint64_t kv_random(uint64_t *seed)
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

#endif /* KV_WORLD_H */
