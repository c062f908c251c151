// SPDX-License-Identifier: GPL-2.0-only
/*
 * Requests of random bytes: what okv_sqe_check() lets pass lies inside its extents and device
 * memory, by arithmetic that cannot overflow, and what lies inside is let pass.
 *
 * Input: granule_bytes and hbm_bytes (8 bytes each), one sqe, pieces as far as the input goes.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ring_queue.h"

#define wide unsigned __int128

static int expected(const struct omnikv_sqe *sqe, wide granule_bytes, wide hbm_bytes)
{
	wide total = 0;
	uint32_t i;

	if (sqe->opcode >= OMNIKV_OP_NR || sqe->flags > OMNIKV_SQE_F_ALL || sqe->reserved)
		return -EINVAL;
	if (sqe->opcode == OMNIKV_OP_SPILL || sqe->opcode == OMNIKV_OP_FETCH || sqe->opcode == OMNIKV_OP_PULL)
		return -EOPNOTSUPP;
	if (!okv_op_moves(sqe->opcode))
		return 0;
	if (!sqe->hbm || !sqe->pieces || !sqe->nr_pieces)
		return -EINVAL;
	if (sqe->opcode != OMNIKV_OP_COPY && !granule_bytes)
		return -EPERM;
	for (i = 0; i < sqe->nr_pieces; i++) {
		const struct omnikv_piece *p = &sqe->pieces[i];
		wide from = p->extent_off, to = p->device_off, bytes = p->bytes;
		wide extent_bytes = granule_bytes * p->extent.nr_granules;

		if (!bytes || to + bytes > hbm_bytes)
			return -EINVAL;
		if (sqe->opcode == OMNIKV_OP_COPY) {
			if (from + bytes > hbm_bytes || (from < to + bytes && to < from + bytes))
				return -EINVAL;
		} else if (!p->extent.nr_granules || extent_bytes > UINT64_MAX || from + bytes > extent_bytes) {
			return -EINVAL;
		}
		total += bytes;
	}
	return total > INT64_MAX ? -EINVAL : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct omnikv_piece pieces[64];
	struct omnikv_sqe sqe;
	uint64_t granule_bytes, hbm_bytes;
	size_t nr;

	if (size < sizeof(granule_bytes) + sizeof(hbm_bytes) + sizeof(sqe))
		return 0;
	memcpy(&granule_bytes, data, sizeof(granule_bytes));
	memcpy(&hbm_bytes, data + 8, sizeof(hbm_bytes));
	memcpy(&sqe, data + 16, sizeof(sqe));
	data += 16 + sizeof(sqe);
	size -= 16 + sizeof(sqe);
	nr = size / sizeof(pieces[0]);
	if (nr > sizeof(pieces) / sizeof(pieces[0]))
		nr = sizeof(pieces) / sizeof(pieces[0]);
	memcpy(pieces, data, nr * sizeof(pieces[0]));
	/* Small opcodes more often; as many pieces as there are. */
	if (sqe.opcode & 0x80)
		sqe.opcode %= OMNIKV_OP_NR;
	sqe.pieces = (uintptr_t)sqe.pieces & 7 ? pieces : NULL;
	sqe.nr_pieces = (uint32_t)nr;
	sqe.spill_io = NULL;
	if (okv_sqe_check(&sqe, granule_bytes, hbm_bytes) != expected(&sqe, granule_bytes, hbm_bytes))
		abort();
	return 0;
}
