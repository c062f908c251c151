// SPDX-License-Identifier: GPL-2.0-only
/*
 * Failing allocations: what the linker puts between our objects and the C library. See fault.h.
 *
 * Nothing here locks: the count is one thread's own. The names are those of the linker's --wrap
 * (the Makefile has the list).
 */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include <openssl/evp.h>

#include "fault.h"

static _Thread_local unsigned int nr_left;	/* calls until the one that fails; 0: none does */
static _Thread_local bool has_fired;

void fault_arm(unsigned int nth)
{
	nr_left = nth;
	has_fired = false;
}

bool fault_disarm(void)
{
	nr_left = 0;
	return has_fired;
}

static bool fails(void)
{
	if (!nr_left || --nr_left)
		return false;
	has_fired = true;
	errno = ENOMEM;
	return true;
}

#define WRAP(type, name, parameters, arguments, failure) \
	type __real_##name parameters; \
	type __wrap_##name parameters; \
	type __wrap_##name parameters \
	{ \
		return fails() ? failure : __real_##name arguments; \
	}

WRAP(void *, malloc, (size_t bytes), (bytes), NULL)
WRAP(void *, calloc, (size_t count, size_t bytes), (count, bytes), NULL)
WRAP(void *, realloc, (void *old, size_t bytes), (old, bytes), NULL)
WRAP(void *, aligned_alloc, (size_t align, size_t bytes), (align, bytes), NULL)
WRAP(int, posix_memalign, (void **out, size_t align, size_t bytes), (out, align, bytes), ENOMEM)
WRAP(char *, strdup, (const char *text), (text), NULL)
WRAP(char *, strndup, (const char *text, size_t bytes), (text, bytes), NULL)
WRAP(EVP_MD_CTX *, EVP_MD_CTX_new, (void), (), NULL)
WRAP(int, EVP_DigestInit_ex, (EVP_MD_CTX *ctx, const EVP_MD *type, ENGINE *engine), (ctx, type, engine), 0)
WRAP(int, EVP_DigestInit_ex2, (EVP_MD_CTX *ctx, const EVP_MD *type, const OSSL_PARAM params[]), (ctx, type, params), 0)
WRAP(int, EVP_DigestUpdate, (EVP_MD_CTX *ctx, const void *data, size_t bytes), (ctx, data, bytes), 0)
WRAP(int, EVP_DigestFinal_ex, (EVP_MD_CTX *ctx, unsigned char *digest, unsigned int *len), (ctx, digest, len), 0)
