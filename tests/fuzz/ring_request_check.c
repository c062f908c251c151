// SPDX-License-Identifier: GPL-2.0-only
/*
 * Requests of random bytes: what okv_sqe_check() lets pass lies inside its extents and device
 * memory, by arithmetic that cannot overflow, and what lies inside is let pass.
 *
 * Input: granule_bytes and hbm_bytes (8 bytes each), one sqe, pieces as far as the input goes, and their rows if there are any.
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
		const struct omnikv_rows *r = sqe->rows ? &sqe->rows[i] : NULL;
		const struct omnikv_piece *p = &sqe->pieces[i];
		wide from = p->extent_off, to = p->device_off, bytes = p->bytes;
		wide extent_bytes = granule_bytes * p->extent.nr_granules;
		wide host = bytes, device = bytes;

		if (!bytes || (r && r->reserved))
			return -EINVAL;
		if (r && !r->slice_bytes && (r->host_row_bytes || r->device_row_bytes))
			return -EINVAL;
		if (r && r->slice_bytes) {
			wide nr = bytes / r->slice_bytes;

			if (nr * r->slice_bytes != bytes || nr > OMNIKV_ROWS_MAX || r->host_row_bytes < r->slice_bytes ||
			    r->device_row_bytes < r->slice_bytes)
				return -EINVAL;
			host = (nr - 1) * r->host_row_bytes + r->slice_bytes;
			device = (nr - 1) * r->device_row_bytes + r->slice_bytes;
		}
		if (to + device > hbm_bytes)
			return -EINVAL;
		if (sqe->opcode == OMNIKV_OP_COPY) {
			if (from + host > hbm_bytes || (from < to + device && to < from + host))
				return -EINVAL;
		} else if (!p->extent.nr_granules || extent_bytes > UINT64_MAX || from + host > extent_bytes) {
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
	static struct omnikv_rows rows[64];
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
	/* Half of them have none. */
	sqe.rows = (uintptr_t)sqe.rows & 1 ? rows : NULL;
	nr = size / (sizeof(pieces[0]) + (sqe.rows ? sizeof(rows[0]) : 0));
	if (nr > sizeof(pieces) / sizeof(pieces[0]))
		nr = sizeof(pieces) / sizeof(pieces[0]);
	memcpy(pieces, data, nr * sizeof(pieces[0]));
	if (sqe.rows)
		memcpy(rows, data + nr * sizeof(pieces[0]), nr * sizeof(rows[0]));
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
