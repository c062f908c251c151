// SPDX-License-Identifier: MIT
/*
 * The device code as nvcc wrote it, inside the library, and what it was built with.
 *
 * Constants only; any thread. Without nvcc there is no code, and the text says so.
 */
#include "kernels.h"

/* The size is the assembler's, so that the data is read nowhere while compiling. */
__asm__(".pushsection .rodata\n"
	".balign 64\n"
	".hidden okv_kernels_fatbin_data\n"
	".globl okv_kernels_fatbin_data\n"
	"okv_kernels_fatbin_data:\n"
#ifdef OKV_FATBIN
	".incbin \"" OKV_FATBIN "\"\n"
#endif
	".balign 8\n"
	".hidden okv_kernels_fatbin_bytes\n"
	".globl okv_kernels_fatbin_bytes\n"
	"okv_kernels_fatbin_bytes:\n"
	".quad okv_kernels_fatbin_bytes - okv_kernels_fatbin_data\n"
	".popsection\n");

extern const unsigned char okv_kernels_fatbin_data[] __attribute__((visibility("hidden")));
extern const uint64_t okv_kernels_fatbin_bytes __attribute__((visibility("hidden")));

const void *okv_kernels_fatbin(size_t *bytes)
{
	*bytes = okv_kernels_fatbin_bytes;
	return okv_kernels_fatbin_bytes ? okv_kernels_fatbin_data : NULL;
}

const char *okv_kernels_build(void)
{
#ifdef OKV_FATBIN_TEXT
	return OKV_FATBIN_TEXT;
#else
	return "built without GPU code, since there was no nvcc; run tools/setup and make again";
#endif
}
