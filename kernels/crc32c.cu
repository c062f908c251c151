// SPDX-License-Identifier: MIT
/*
 * Kernel crc32c: the checksum of each span, where the span is.
 *
 * in   list  [nr] struct okv_kernel_span   device or mapped host memory, 8-byte aligned
 * in   the bytes of each span              device or mapped host memory, any alignment
 * out  crc   [nr] uint32_t                 device or mapped host memory, 4-byte aligned
 *
 * Geometry: any number of CTAs of OKV_CRC32C_THREADS threads; a warp takes one span after another, grid-stride.
 *
 * A sum is the remainder of the bytes, as a polynomial over GF(2), times x^32 modulo P, so the spans of 16 bytes that
 * each lane reads (512 bytes a step of the warp) are summed apart and moved to their places by multiplications with
 * powers of x: one by x^4096 a step, and a few at the end. A multiplication by a constant is four look-ups, one a
 * byte, in tables that each CTA makes for itself in shared memory. Zeros before the first byte change nothing, so a
 * span is read as if it ended with a whole step. What is behind its last 16-byte boundary follows byte by byte.
 */
#include "group.cuh"

#define OKV_CRC32C_POLY		0x82f63b78u	/* bit 31 is x^0 */
#define OKV_CRC32C_STEP		512u		/* bytes that a warp reads at once */
#define OKV_CRC32C_SHORT	64u		/* spans shorter than this are summed byte by byte */
#define OKV_CRC32C_TABLES	7u

/* @value times x^@bits. */
static constexpr __host__ __device__ uint32_t okv_crc_times_x(uint32_t value, uint32_t bits)
{
	for (uint32_t i = 0; i < bits; i++)
		value = value >> 1 ^ (value & 1 ? OKV_CRC32C_POLY : 0);
	return value;
}

/* @a times @b. */
static __device__ __forceinline__ uint32_t okv_crc_times(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (uint32_t i = 0; i < 32; i++) {
		product ^= b & 1u << (31 - i) ? a : 0;
		a = okv_crc_times_x(a, 1);
	}
	return product;
}

/* Table t multiplies by x to the power of 8 times this: a step, a word, and 1, 2, 4, 8, 16 lanes' vectors. */
static __device__ __forceinline__ uint32_t okv_crc_factor(uint32_t table)
{
	constexpr uint32_t one = 0x80000000u;
	constexpr uint32_t step = okv_crc_times_x(one, 8 * OKV_CRC32C_STEP);
	constexpr uint32_t word = okv_crc_times_x(one, 32);
	constexpr uint32_t lanes[5] = {
		okv_crc_times_x(one, 8 * 16), okv_crc_times_x(one, 8 * 32), okv_crc_times_x(one, 8 * 64),
		okv_crc_times_x(one, 8 * 128), okv_crc_times_x(one, 8 * 256),
	};

	switch (table) {
	case 0:
		return step;
	case 1:
		return word;
	case 2:
		return lanes[0];
	case 3:
		return lanes[1];
	case 4:
		return lanes[2];
	case 5:
		return lanes[3];
	default:
		return lanes[4];
	}
}

struct okv_crc_table {
	uint32_t	of[4][256];	/* [byte of the word][its value] */
};

static __device__ __forceinline__ uint32_t okv_crc_by(const okv_crc_table &table, uint32_t value)
{
	return table.of[0][value & 255] ^ table.of[1][value >> 8 & 255] ^ table.of[2][value >> 16 & 255] ^
	       table.of[3][value >> 24];
}

/* Every bit's product first, then every byte's as the sum of its bits'. */
static __device__ void okv_crc_tables_make(okv_crc_table *tables, uint32_t (*bits)[32])
{
	for (uint32_t i = threadIdx.x; i < OKV_CRC32C_TABLES * 32; i += blockDim.x)
		bits[i / 32][i % 32] = okv_crc_times(1u << i % 32, okv_crc_factor(i / 32));
	__syncthreads();
	for (uint32_t i = threadIdx.x; i < OKV_CRC32C_TABLES * 1024; i += blockDim.x) {
		uint32_t sum = 0;

		for (uint32_t bit = 0; bit < 8; bit++)
			sum ^= i >> bit & 1 ? bits[i / 1024][i / 256 % 4 * 8 + bit] : 0;
		tables[i / 1024].of[i / 256 % 4][i % 256] = sum;
	}
	__syncthreads();
}

static __device__ __forceinline__ uint32_t okv_crc_bytes(uint32_t sum, uint64_t address, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		sum = okv_crc_times_x(sum ^ *okv_at<const unsigned char>(address + i), 8);
	return sum;
}

/* The vector at @address of a span that begins at @begin: zeros before it, its first four bytes inverted. */
static __device__ __forceinline__ uint4 okv_crc_vector(uint64_t address, uint64_t begin)
{
	uint32_t words[4] = { 0, 0, 0, 0 };

	if (address >= begin + 4)
		return okv_load<uint4>(address);
#pragma unroll
	for (uint32_t i = 0; i < 16; i++) {
		if (address + i >= begin) {
			const uint32_t byte = *okv_at<const unsigned char>(address + i);

			words[i / 4] |= (byte ^ (address + i < begin + 4 ? 255u : 0u)) << i % 4 * 8;
		}
	}
	return { words[0], words[1], words[2], words[3] };
}

extern "C" __global__ void __launch_bounds__(OKV_CRC32C_THREADS, 4)
okv_kernel_crc32c(const struct okv_crc32c_args args)
{
	__shared__ okv_crc_table tables[OKV_CRC32C_TABLES];
	__shared__ uint32_t bits[OKV_CRC32C_TABLES][32];
	const struct okv_kernel_span *list = okv_at<const struct okv_kernel_span>(args.list);
	const uint32_t lane = threadIdx.x % 32;
	const uint32_t nr_warps = gridDim.x * (blockDim.x / 32);

	okv_crc_tables_make(tables, bits);

	/* The whole warp has the same span, so that all lanes meet at each shuffle. */
	for (uint64_t i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < args.nr; i += nr_warps) {
		const struct okv_kernel_span span = list[i];
		const uint64_t end = span.addr + span.bytes, body_end = end & ~(uint64_t)15;
		uint32_t sum[4] = { 0, 0, 0, 0 };

		if (span.bytes < OKV_CRC32C_SHORT) {
			if (!lane)
				okv_at<uint32_t>(args.crc)[i] = ~okv_crc_bytes(~0u, span.addr, (uint32_t)span.bytes);
			continue;
		}

		/* The last vector is the last lane's; the first lanes' first may lie wholly before the span. */
		const uint64_t vectors = (body_end - (span.addr & ~(uint64_t)15)) / 16, steps = (vectors + 31) / 32;
		uint64_t address = body_end - steps * OKV_CRC32C_STEP + lane * 16;

		for (uint64_t step = 0; step < steps; step++, address += OKV_CRC32C_STEP) {
			uint4 v = { 0, 0, 0, 0 };

			/* Unsigned: what lies before address 0 would too. */
			if (step || address + 16 > span.addr)
				v = okv_crc_vector(address, span.addr);
			sum[0] = okv_crc_by(tables[0], sum[0]) ^ v.x;
			sum[1] = okv_crc_by(tables[0], sum[1]) ^ v.y;
			sum[2] = okv_crc_by(tables[0], sum[2]) ^ v.z;
			sum[3] = okv_crc_by(tables[0], sum[3]) ^ v.w;
		}

		uint32_t all = sum[0];

		all = okv_crc_by(tables[1], all) ^ sum[1];
		all = okv_crc_by(tables[1], all) ^ sum[2];
		all = okv_crc_by(tables[1], all) ^ sum[3];
		all = okv_crc_by(tables[1], all);
#pragma unroll
		for (uint32_t k = 0; k < 5; k++)
			all = okv_crc_by(tables[2 + k], all) ^ __shfl_down_sync(0xffffffffu, all, 1u << k);
		if (!lane)
			okv_at<uint32_t>(args.crc)[i] = ~okv_crc_bytes(all, body_end, (uint32_t)(end - body_end));
	}
}
