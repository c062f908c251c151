// SPDX-License-Identifier: GPL-2.0-only
/*
 * A catalog and its index with any bytes in them, as another process may leave them to a reader: nothing outside
 * of the memory is read, every call ends, and an extent that is told lies in the pool.
 *
 * A sound index is made once; the input changes it in places: two bytes of flags (which sums are put right again),
 * then a place of three bytes and a value of eight each.
 */
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "manager/catalog_shared.h"
#include "manager/index.h"
#include "manager/index_shared.h"
#include "manager/reader.h"

#define GRANULE		4096u
#define MEM_BYTES	(16u * GRANULE)
#define ROOT_OFF	64u
#define NR_BLOCKS	48u
#define NR_GROUPS	2u
#define T		16u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static _Alignas(64) unsigned char sound[MEM_BYTES];
static size_t sound_used;
static uint64_t index_off;

static void *take(void *opaque, size_t bytes)
{
	unsigned char *mem = sound + sound_used;

	(void)opaque;
	bytes = (bytes + 63) & ~(size_t)63;
	if (bytes > sizeof(sound) - sound_used)
		return NULL;
	sound_used += bytes;
	return mem;
}

static void give(void *opaque, void *mem, size_t bytes)
{
	(void)opaque;
	(void)mem;
	(void)bytes;
}

static void *claim(void *opaque, uint64_t off, size_t bytes)
{
	(void)opaque;
	(void)off;
	(void)bytes;
	return NULL;
}

static struct omnikv_key key_of(uint32_t n)
{
	struct omnikv_key key = { .len = 16 };

	memcpy(key.bytes, &n, sizeof(n));
	return key;
}

static void root_seal(struct okv_catalog_root *root)
{
	root->crc = okv_crc32c(root, offsetof(struct okv_catalog_root, crc));
}

static void space_seal(struct okv_catalog_space *space)
{
	space->crc = okv_crc32c(space, offsetof(struct okv_catalog_space, crc));
}

static void head_seal(struct okv_index_head *head)
{
	head->crc = okv_crc32c(head, offsetof(struct okv_index_head, crc));
}

/* Two paths of one beginning, one of which ends in a tail. */
static void make_sound(void)
{
	struct okv_index_allocator mem = { .alloc = take, .free = give, .base = sound, .claim = claim };
	struct okv_index_config config = { .nr_groups = NR_GROUPS, .optional_groups = 2, .block_tokens = T, .seed = "fuzz",
					   .allocator = &mem };
	struct okv_catalog_root *root = (struct okv_catalog_root *)(sound + ROOT_OFF);
	struct okv_catalog_spaces *spaces;
	uint32_t id = OKV_ENTRY_NONE, fork = OKV_ENTRY_NONE;
	struct okv_index *ix;

	sound_used = ROOT_OFF + 512;
	spaces = take(NULL, sizeof(*spaces) + sizeof(spaces->spaces[0]));
	if (okv_index_create(&config, &ix) || okv_index_reserve(ix, NR_BLOCKS))
		abort();
	for (uint32_t n = 0; n < NR_BLOCKS; n++) {
		bool is_fork = n >= NR_BLOCKS / 2, is_tail = n == NR_BLOCKS - 1;
		struct omnikv_extent extents[NR_GROUPS] = {
			{ .granule = n % 16, .generation = 1, .nr_granules = 1 }, { .nr_granules = n % 3 == 0, .generation = 1 },
		};
		uint32_t crc[NR_GROUPS] = { n, n };
		struct omnikv_key key = key_of(n);
		struct okv_index_block block = {
			.parent = is_fork && n == NR_BLOCKS / 2 ? fork : id, .nr_tokens = is_tail ? 3 : T, .key = &key,
			.position = is_fork ? n - NR_BLOCKS / 2 + 8 : n, .extents = extents, .crc32c = crc,
		};

		if (okv_index_insert(ix, &block, &id))
			abort();
		if (n == 7)
			fork = id;
	}
	index_off = okv_index_off(ix);
	spaces->nr = 1;
	spaces->spaces[0] = (struct okv_catalog_space){ .identity = "a", .block_tokens = T, .nr_groups = NR_GROUPS,
							.needed_state = 2, .is_used = 1 };
	space_seal(&spaces->spaces[0]);
	*root = (struct okv_catalog_root){ .magic = OKV_CATALOG_MAGIC, .version = OKV_CATALOG_VERSION,
		.granule_bytes = GRANULE, .nr_granules = MEM_BYTES / GRANULE };
	root_seal(root);
	root->spaces_off = (uint64_t)((unsigned char *)spaces - sound);
	root->shelves[0] = index_off;
	okv_index_leave(ix);
}

static void look(const struct okv_reader *reader, const struct okv_reader_space *space, uint32_t first)
{
	struct omnikv_extent extents[NR_BLOCKS * OKV_INDEX_GROUPS_MAX];
	uint32_t crc[NR_BLOCKS * OKV_INDEX_GROUPS_MAX];
	struct okv_reader_block blocks[NR_BLOCKS];
	struct omnikv_key keys[NR_BLOCKS], tail;
	struct okv_reader_hit hit;
	uint64_t nr = 0;

	for (uint32_t n = 0; n < 8; n++)
		keys[nr++] = key_of(n);
	for (uint32_t n = first; n < NR_BLOCKS - 1 && nr < NR_BLOCKS; n++)
		keys[nr++] = key_of(n);
	tail = key_of(NR_BLOCKS - 1);
	if (okv_reader_match(reader, space, keys, nr, &tail, &hit))
		return;
	if (hit.nr_blocks > nr + 1)
		abort();
	if (hit.nr_blocks > NR_BLOCKS)
		return;
	if (okv_reader_blocks(reader, space, &hit, 0, blocks, extents, crc))
		return;
	for (uint64_t i = 0; i < hit.nr_blocks * space->nr_groups; i++)
		if (extents[i].nr_granules && (extents[i].granule + extents[i].nr_granules) * reader->granule_bytes > reader->bytes)
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_reader_space space;
	struct okv_reader reader;
	unsigned char *mem;
	uint32_t flags;

	if (size < 2)
		return 0;
	if (!index_off)
		make_sound();
	/* Of just this size, so that a sanitizer sees every step beyond it. */
	mem = aligned_alloc(64, MEM_BYTES);
	if (!mem)
		abort();
	memcpy(mem, sound, MEM_BYTES);
	flags = data[0] | (uint32_t)data[1] << 8;
	for (data += 2, size -= 2; size >= 11; data += 11, size -= 11) {
		uint32_t at = (data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16) % (MEM_BYTES - 7);

		memcpy(mem + at, data + 3, 8);
	}
	if (flags & 1)
		root_seal((struct okv_catalog_root *)(mem + ROOT_OFF));
	if (flags & 2)
		head_seal((struct okv_index_head *)(mem + index_off));
	if (flags & 4)
		space_seal((struct okv_catalog_space *)(mem + ROOT_OFF + 512 + sizeof(struct okv_catalog_spaces)));
	if (!okv_reader_init(&reader, mem, MEM_BYTES, ROOT_OFF)) {
		uint8_t identity[32] = "a";

		okv_reader_epoch(&reader);
		if (!okv_reader_space(&reader, identity, &space)) {
			if (flags & 8)
				space.match_flags ^= OKV_INDEX_MATCH_F_CHAINED;
			look(&reader, &space, 8);
			look(&reader, &space, NR_BLOCKS / 2);
		}
	}
	free(mem);
	return 0;
}
