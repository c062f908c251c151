// SPDX-License-Identifier: GPL-2.0-only
/*
 * What stands for a model's kernels while transfers are measured beside them: arithmetic that touches no memory, and
 * reading of device memory, each on all SMs.
 *
 * Geometry: any number of CTAs of 256 threads.
 */

extern "C" __global__ void gpu_load_compute(float *out, unsigned int iterations)
{
	float a = threadIdx.x, b = blockIdx.x, c = 1.0f, d = 2.0f;

	for (unsigned int i = 0; i < iterations; i++) {
		a = a * 0.999f + b;
		b = b * 0.998f + c;
		c = c * 0.997f + d;
		d = d * 0.996f + a;
	}
	/* Never true, and not known to be. */
	if (a + b + c + d == 12345.678f)
		*out = a;
}

extern "C" __global__ void gpu_load_read(const uint4 *in, unsigned long long nr, unsigned int rounds, unsigned int *out)
{
	unsigned int sum = 0;

	for (unsigned int r = 0; r < rounds; r++) {
		for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < nr;
		     i += (unsigned long long)gridDim.x * blockDim.x) {
			const uint4 v = __ldcs(in + i);

			sum += v.x ^ v.y ^ v.z ^ v.w;
		}
	}
	if (sum == 0x12345678u)
		*out = sum;
}
