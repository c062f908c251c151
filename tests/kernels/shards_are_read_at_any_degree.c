// SPDX-License-Identifier: GPL-2.0-only
/*
 * What one degree of tensor parallelism wrote is read at another, and the other way round: blocks of sharded pieces
 * on the host, layer-first tensors of each reader on the device, sharded by heads or by elements. What is right is
 * worked out from the whole tensor, not from the kernel's definition.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

#define NR_LAYERS	3u
#define NR_PLANES	2u
#define NR_BLOCKS	3u
#define BLOCK_TOKENS	5u
#define NR_TOKENS	(NR_BLOCKS * BLOCK_TOKENS)
#define DTYPE_BYTES	2u

/* What an entry is, and which of its two axes is shared out. */
struct shape {
	uint32_t	heads, elems;
	bool		by_elems;
};

/* Bytes of one entry of one shard, and where byte @i of it is in the whole entry. */
static uint32_t shard_bytes(const struct shape *s, uint32_t nr)
{
	return s->heads * s->elems * DTYPE_BYTES / nr;
}

static uint32_t whole_byte(const struct shape *s, uint32_t nr, uint32_t shard, uint32_t i)
{
	uint32_t head_bytes = s->elems * DTYPE_BYTES, part = head_bytes / nr;

	if (!s->by_elems)
		return shard * shard_bytes(s, nr) + i;
	return i / part * head_bytes + shard * part + i % part;
}

static unsigned char byte_of(uint32_t layer, uint32_t plane, uint32_t token, uint32_t i)
{
	uint32_t x = ((layer * NR_PLANES + plane) * NR_TOKENS + token) * 4096 + i;

	x = (x ^ x >> 15) * 0x2c1b3c6du;
	x = (x ^ x >> 12) * 0x297a2d39u;
	return (unsigned char)(x ^ x >> 15);
}

/* Blocks on the host, [block][layer][plane][entry][shard]; tensors on the device, [plane][layer][token][shard]. */
static size_t host_off(uint32_t block, uint32_t layer, uint32_t plane, uint32_t entry, uint32_t bytes)
{
	return ((((size_t)block * NR_LAYERS + layer) * NR_PLANES + plane) * BLOCK_TOKENS + entry) * bytes;
}

static size_t device_off(uint32_t plane, uint32_t layer, uint32_t token, uint32_t bytes)
{
	return (((size_t)plane * NR_LAYERS + layer) * NR_TOKENS + token) * bytes;
}

/* Fill, or compare, one shard of @nr as either side keeps it. */
static void shard(unsigned char *base, bool is_host, const struct shape *s, uint32_t nr, uint32_t idx, bool fill)
{
	uint32_t bytes = shard_bytes(s, nr), layer, plane, token, i;

	for (layer = 0; layer < NR_LAYERS; layer++) {
		for (plane = 0; plane < NR_PLANES; plane++) {
			for (token = 0; token < NR_TOKENS; token++) {
				unsigned char *at = base + (is_host ? host_off(token / BLOCK_TOKENS, layer, plane,
									       token % BLOCK_TOKENS, bytes) :
							    device_off(plane, layer, token, bytes));

				for (i = 0; i < bytes; i++) {
					unsigned char want = byte_of(layer, plane, token, whole_byte(s, nr, idx, i));

					if (fill)
						at[i] = want;
					else if (at[i] != want)
						fail_msg("shard %u of %u, layer %u, plane %u, token %u, byte %u: %02x, not %02x",
							 idx, nr, layer, plane, token, i, at[i], want);
				}
			}
		}
	}
}

static void move(unsigned char *host, unsigned char *device, const struct shape *s, uint32_t nr_host, uint32_t host_idx,
		 uint32_t nr_device, uint32_t device_idx, bool to_host, const struct okv_kernel_ops *ops)
{
	uint32_t units = s->by_elems ? s->elems : s->heads;
	uint32_t unit_bytes = s->by_elems ? DTYPE_BYTES : s->elems * DTYPE_BYTES;
	uint32_t rows = s->by_elems ? s->heads : 1;
	uint32_t host_bytes = shard_bytes(s, nr_host), device_bytes = shard_bytes(s, nr_device);
	uint32_t host_first = 0, device_first = 0, p, b;
	struct okv_kernel_piece pieces[NR_BLOCKS];
	struct okv_relayout_args args = {
		.list = (uint64_t)(uintptr_t)pieces, .nr = NR_BLOCKS, .nr_planes = NR_PLANES, .nr_layers = NR_LAYERS,
		.to_host = to_host, .max_rows = BLOCK_TOKENS, .host_layer_bytes = host_off(0, 1, 0, 0, host_bytes),
	};
	int nr = okv_reshard(units, nr_host, host_idx, nr_device, device_idx, &host_first, &device_first);

	assert_true(nr >= 0);
	if (!nr)
		return;
	for (p = 0; p < NR_PLANES; p++) {
		args.planes[p] = (struct okv_relayout_plane) {
			.device = (uint64_t)(uintptr_t)(device + device_off(p, 0, 0, device_bytes)),
			.device_layer_bytes = device_off(0, 1, 0, device_bytes),
			.host_off = host_off(0, 0, p, 0, host_bytes),
			.device_row_bytes = device_bytes / rows, .device_off = device_first * unit_bytes,
			.host_row_bytes = host_bytes / rows, .host_slice_off = host_first * unit_bytes,
			.slice_bytes = (uint32_t)nr * unit_bytes, .rows_per_entry = rows,
		};
	}
	for (b = 0; b < NR_BLOCKS; b++) {
		pieces[b] = (struct okv_kernel_piece) {
			.host = (uint64_t)(uintptr_t)(host + host_off(b, 0, 0, 0, host_bytes)),
			.row = (uint64_t)b * BLOCK_TOKENS, .nr_rows = BLOCK_TOKENS,
		};
	}
	assert_int_equal(okv_launch_relayout(ops, NULL, 2, &args), 0);
}

static void degrees(const struct shape *s, const struct okv_kernel_ops *ops, uint32_t *nr_cases)
{
	static const uint32_t of[] = { 1, 2, 4, 8 };
	uint32_t a, b, from, to;

	for (a = 0; a < 4; a++) {
		for (b = 0; b < 4; b++) {
			uint32_t nr_host = of[a], nr_device = of[b];
			size_t host_size = host_off(NR_BLOCKS, 0, 0, 0, shard_bytes(s, nr_host));
			size_t device_size = device_off(NR_PLANES, 0, 0, shard_bytes(s, nr_device));
			unsigned char *host = malloc(nr_host * host_size), *device = malloc(nr_device * device_size);

			assert_true(host && device);
			memset(device, 0xa5, nr_device * device_size);
			for (from = 0; from < nr_host; from++)
				shard(host + from * host_size, true, s, nr_host, from, true);
			for (to = 0; to < nr_device; to++) {
				for (from = 0; from < nr_host; from++)
					move(host + from * host_size, device + to * device_size, s, nr_host, from, nr_device, to,
					     false, ops);
				shard(device + to * device_size, false, s, nr_device, to, false);
			}
			memset(host, 0xa5, nr_host * host_size);
			for (from = 0; from < nr_host; from++) {
				for (to = 0; to < nr_device; to++)
					move(host + from * host_size, device + to * device_size, s, nr_host, from, nr_device, to,
					     true, ops);
				shard(host + from * host_size, true, s, nr_host, from, false);
			}
			*nr_cases += 2;
			free(host);
			free(device);
		}
	}
}

static void every_degree_reads_what_every_degree_wrote(void **state)
{
	static const struct shape shapes[] = { { 8, 6, false }, { 8, 64, false }, { 2, 24, true }, { 3, 64, true } };
	const struct okv_kernel_ops *const ways[] = { &okv_kernels_ref, okv_kernels_shim };
	uint32_t nr_cases = 0, i, k;

	(void)state;
	for (i = 0; i < 4; i++) {
		for (k = 0; k < 2; k++) {
			if (ways[k])
				degrees(&shapes[i], ways[k], &nr_cases);
		}
	}
	print_message("# degrees: %u cases\n", nr_cases);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(every_degree_reads_what_every_degree_wrote) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
