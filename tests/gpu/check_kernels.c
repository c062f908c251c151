// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every kernel on the GPU itself, against its definition: random shapes, alignments, hints and numbers of CTAs, in
 * mapped host memory and device memory, every byte of both compared, also what should not have changed.
 *
 *     check_kernels FIRST LAST [REGION_BYTES]    seeds; prints one line of JSON
 *
 * With OMNIKV_GPU_DRY=1 the device code runs on the CPU instead, so that this program can be tried without a GPU.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../harness/gpu_card.h"
#include "../harness/kernel_case.h"

#define NR_MAX		200u

/* Where a case's two sides and its list are, on the device or in copies of them. */
struct sides {
	uint64_t	host, device, list, sums;
};

/* Offsets are given out from the start of a side, in ascending order with gaps. */
struct cursor {
	uint64_t	used, bytes;
};

static uint64_t take(struct cursor *c, uint64_t bytes, uint32_t skew)
{
	uint64_t begin = (c->used + 255) / 256 * 256 + skew;

	c->used = begin + bytes + 16;
	return begin;
}

static int has_room(const struct cursor *c, uint64_t bytes)
{
	return c->used + bytes + 1024 <= c->bytes;
}

static uint32_t skew(uint64_t *random)
{
	switch (case_below(random, 4)) {
	case 0:
		return case_below(random, 128);
	case 1:
		return case_below(random, 8) * 16;
	default:
		return 0;
	}
}

static int copy_case(uint64_t *random, const struct sides *at, void *list, uint64_t bytes,
		     const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas)
{
	struct cursor host = { 0, bytes }, device = { 0, bytes };
	struct okv_kernel_run *runs = list;
	struct okv_copy_args args = { .list = at->list, .nr = case_size(random, NR_MAX), .align_dst = case_below(random, 2) };
	uint32_t i;

	for (i = 0; i < args.nr; i++) {
		uint32_t len = case_size(random, 70000), from = skew(random), to = skew(random);

		if (!has_room(&host, len) || !has_room(&device, len))
			len = 0;
		if (case_below(random, 2))
			to = to / 16 * 16 + from % 16;
		runs[i] = (struct okv_kernel_run) { at->host + take(&host, len, from), at->device + take(&device, len, to), len };
		args.max_bytes = len > args.max_bytes ? len : args.max_bytes;
	}
	if (args.align_dst) {
		for (i = 0; i < args.nr; i++)
			runs[i] = (struct okv_kernel_run) { runs[i].dst, runs[i].src, runs[i].bytes };
	}
	args.max_bytes = case_below(random, 2) ? args.max_bytes : args.max_bytes / 3;
	return okv_launch_copy(ops, ctx, max_ctas, &args);
}

static int dense_case(uint64_t *random, const struct sides *at, void *list, uint64_t bytes,
		      const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas)
{
	struct cursor host = { 0, bytes }, device = { 0, bytes };
	struct okv_kernel_piece *pieces = list;
	struct okv_gather_args args = { .list = at->list, .nr = case_size(random, NR_MAX), .nr_planes = 1 + case_below(random, 4) };
	uint32_t entries = 1 + case_size(random, 64), align = case_below(random, 3) ? 16 : 1, i, p;
	uint64_t piece_bytes = 0;

	for (p = 0; p < args.nr_planes; p++) {
		uint32_t row_bytes = (1 + case_size(random, 256) + align - 1) / align * align;

		args.planes[p] = (struct okv_dense_plane) {
			.device = at->device + take(&device, (uint64_t)row_bytes * entries * args.nr, skew(random)),
			.host_off = piece_bytes, .row_bytes = row_bytes,
		};
		piece_bytes += (uint64_t)row_bytes * entries;
	}
	for (i = 0; i < args.nr && has_room(&host, piece_bytes); i++) {
		pieces[i].host = at->host + take(&host, piece_bytes, skew(random));
		pieces[i].nr_rows = case_below(random, entries + 1);
		pieces[i].entry = case_below(random, entries - pieces[i].nr_rows + 1);
		pieces[i].row = (uint64_t)i * entries;
	}
	args.nr = has_room(&device, 0) ? i : 0;
	args.max_rows = case_below(random, 2) ? entries : 1;
	return (case_below(random, 2) ? okv_launch_scatter : okv_launch_gather)(ops, ctx, max_ctas, &args);
}

static int relayout_case(uint64_t *random, const struct sides *at, void *list, uint64_t bytes,
			 const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas)
{
	struct cursor host = { 0, bytes }, device = { 0, bytes };
	struct okv_kernel_piece *pieces = list;
	struct okv_relayout_args args = {
		.list = at->list, .nr = case_size(random, 24), .nr_planes = 1 + case_below(random, 3),
		.nr_layers = 1 + case_below(random, 5), .to_host = case_below(random, 2),
	};
	uint32_t entries = 1 + case_size(random, 16), unit = 1u << case_below(random, 6), i, p;

	for (p = 0; p < args.nr_planes; p++) {
		struct okv_relayout_plane *plane = &args.planes[p];

		plane->rows_per_entry = 1 + case_below(random, 3);
		plane->slice_bytes = unit * (1 + case_below(random, 6));
		plane->host_slice_off = unit * case_below(random, 3);
		plane->device_off = unit * case_below(random, 3);
		plane->host_row_bytes = plane->host_slice_off + plane->slice_bytes + unit * case_below(random, 3);
		plane->device_row_bytes = plane->device_off + plane->slice_bytes + unit * case_below(random, 3);
		plane->host_off = args.host_layer_bytes;
		args.host_layer_bytes += (uint64_t)entries * plane->rows_per_entry * plane->host_row_bytes;
		plane->device_layer_bytes = (uint64_t)args.nr * entries * plane->rows_per_entry * plane->device_row_bytes;
		plane->device = at->device + take(&device, plane->device_layer_bytes * args.nr_layers, skew(random));
	}
	for (i = 0; i < args.nr && has_room(&host, args.host_layer_bytes * args.nr_layers); i++) {
		pieces[i].host = at->host + take(&host, args.host_layer_bytes * args.nr_layers, skew(random));
		pieces[i].nr_rows = case_below(random, entries + 1);
		pieces[i].entry = case_below(random, entries - pieces[i].nr_rows + 1);
		pieces[i].row = (uint64_t)i * entries;
	}
	args.nr = has_room(&device, 0) ? i : 0;
	args.max_rows = case_below(random, 2) ? entries : 1;
	return okv_launch_relayout(ops, ctx, max_ctas, &args);
}

static int crc32c_case(uint64_t *random, const struct sides *at, void *list, uint64_t bytes,
		       const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas)
{
	struct cursor side = { 0, bytes };
	struct okv_kernel_span *spans = list;
	struct okv_crc32c_args args = { .list = at->list, .crc = at->sums, .nr = case_size(random, NR_MAX) };
	uint64_t base = case_below(random, 2) ? at->host : at->device;
	uint32_t i;

	for (i = 0; i < args.nr; i++) {
		uint32_t len = case_size(random, 40000);

		if (!has_room(&side, len))
			len = 0;
		spans[i] = (struct okv_kernel_span) { base + take(&side, len, skew(random)), len };
	}
	return okv_launch_crc32c(ops, ctx, max_ctas, &args);
}

/* A word is fired, is waited for, and then another value is, which never comes. */
static int event_case(uint64_t *random, const struct sides *at, void *list, uint64_t bytes,
		      const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas)
{
	struct okv_event_args args = { .word = at->sums, .step = at->list, .late = at->sums + 8, .nr_polls = 1000000 };
	uint64_t step = case_below(random, 1u << 20);
	int ret;

	(void)bytes;
	(void)max_ctas;
	memcpy(list, &step, sizeof(step));
	args.base = case_below(random, 1u << 20);
	ret = okv_launch_fire(ops, ctx, &args);
	if (!ret)
		ret = okv_launch_wait(ops, ctx, &args);
	args.base += 1 + case_below(random, 1000);
	args.nr_polls = 1 + case_below(random, 20);
	return ret ? ret : okv_launch_wait(ops, ctx, &args);
}

typedef int (*case_fn)(uint64_t *random, const struct sides *at, void *list, uint64_t bytes,
		       const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas);

static const struct {
	const char	*name;
	case_fn		fn;
} kinds[] = { { "copy", copy_case }, { "gather or scatter", dense_case }, { "relayout", relayout_case }, { "crc32c", crc32c_case },
	    { "wait and fire", event_case } };

static int64_t differ(const unsigned char *a, const unsigned char *b, uint64_t bytes)
{
	uint64_t i;

	if (!memcmp(a, b, bytes))
		return -1;
	for (i = 0; a[i] == b[i]; i++)
		;
	return (int64_t)i;
}

/* The memory and the kernels of either. */
struct place {
	bool		is_dry;
	struct gpu_card	card;
	struct gpu_host	host, list, sums, stage;
	uint64_t	device;
};

static struct gpu_host place_host(struct place *p, size_t bytes)
{
	struct gpu_host host = { .bytes = bytes };

	if (!p->is_dry)
		return card_host(&p->card, bytes);
	host.ptr = aligned_alloc(256, (bytes + 255) / 256 * 256);
	if (!host.ptr)
		exit(1);
	host.device = (uintptr_t)host.ptr;
	return host;
}

static void place_host_free(struct place *p, struct gpu_host *host)
{
	if (p->is_dry)
		free(host->ptr);
	else
		card_host_free(&p->card, host);
}

static int place_open(struct place *p, uint64_t bytes, struct omnikv_error *err)
{
	const char *dry = getenv("OMNIKV_GPU_DRY");

	memset(p, 0, sizeof(*p));
	p->is_dry = dry && !strcmp(dry, "1");
	if (p->is_dry && !okv_kernels_shim) {
		snprintf(err->text, sizeof(err->text), "the library was built without a C++ compiler");
		return -ENODEV;
	}
	if (p->is_dry) {
		snprintf(p->card.name, sizeof(p->card.name), "dry");
		p->card.nr_sms = 4;
	} else if (card_open(&p->card, err)) {
		return -ENODEV;
	}
	p->host = place_host(p, bytes);
	p->stage = place_host(p, bytes);
	p->list = place_host(p, NR_MAX * 64);
	p->sums = place_host(p, NR_MAX * 4);
	p->device = p->is_dry ? place_host(p, bytes).device : card_alloc(&p->card, bytes);
	return 0;
}

static void place_close(struct place *p)
{
	if (p->is_dry)
		free((void *)(uintptr_t)p->device);
	else
		CARD(&p->card, cuMemFree(p->device));
	place_host_free(p, &p->host);
	place_host_free(p, &p->stage);
	place_host_free(p, &p->list);
	place_host_free(p, &p->sums);
	if (!p->is_dry)
		card_close(&p->card);
}

/* Between p->stage and device memory, whole. */
static void place_copy(struct place *p, bool to_device, uint64_t bytes)
{
	void *device = (void *)(uintptr_t)p->device;

	if (p->is_dry) {
		memcpy(to_device ? device : p->stage.ptr, to_device ? p->stage.ptr : device, bytes);
		return;
	}
	if (to_device)
		CARD(&p->card, cuMemcpyHtoDAsync(p->device, p->stage.ptr, bytes, p->card.stream));
	else
		CARD(&p->card, cuMemcpyDtoHAsync(p->stage.ptr, p->device, bytes, p->card.stream));
	CARD(&p->card, cuStreamSynchronize(p->card.stream));
}

int main(int argc, char **argv)
{
	uint64_t first = argc > 2 ? strtoull(argv[1], NULL, 10) : 0, last = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
	uint64_t bytes = argc > 3 ? strtoull(argv[3], NULL, 10) : (uint64_t)4 << 20, nr_cases = 0, seed, i;
	struct omnikv_error err = { "" };
	struct place place;
	unsigned char *want_host, *want_device;
	void *want_list;
	uint32_t *want_sums;

	if (!first || last < first || bytes < ((uint64_t)1 << 20) || bytes % 8) {
		fprintf(stderr, "usage: check_kernels FIRST LAST [REGION_BYTES]\n");
		return 2;
	}
	if (place_open(&place, bytes, &err)) {
		printf("%s\n", err.text);
		return 4;
	}
	want_host = malloc(bytes);
	want_device = malloc(bytes);
	want_list = malloc(NR_MAX * 64);
	want_sums = malloc(NR_MAX * 4);
	if (!want_host || !want_device || !want_list || !want_sums) {
		fprintf(stderr, "out of memory\n");
		return 1;
	}
	for (seed = first; seed <= last; seed++) {
		uint64_t fill = seed, random;
		size_t k = seed % (sizeof(kinds) / sizeof(kinds[0]));
		struct sides want = {
			(uintptr_t)want_host, (uintptr_t)want_device, (uintptr_t)want_list, (uintptr_t)want_sums,
		};
		struct sides got = { place.host.device, place.device, place.list.device, place.sums.device };
		uint32_t max_ctas;
		int64_t a, b, c;

		for (i = 0; i + 8 <= bytes; i += 8) {
			uint64_t words[2] = { case_random(&fill), case_random(&fill) };

			memcpy(want_host + i, &words[0], 8);
			memcpy(want_device + i, &words[1], 8);
		}
		memcpy(place.host.ptr, want_host, bytes);
		memset(place.sums.ptr, 0, NR_MAX * 4);
		memset(want_sums, 0, NR_MAX * 4);
		memcpy(place.stage.ptr, want_device, bytes);
		place_copy(&place, true, bytes);
		random = seed;
		max_ctas = 1 + case_below(&random, 2 * (uint32_t)place.card.nr_sms);
		if (kinds[k].fn(&random, &want, want_list, bytes, &okv_kernels_ref, NULL, max_ctas))
			goto wrong_case;
		random = seed;
		max_ctas = 1 + case_below(&random, 2 * (uint32_t)place.card.nr_sms);
		if (kinds[k].fn(&random, &got, place.list.ptr, bytes, place.is_dry ? okv_kernels_shim : &card_ops,
				place.is_dry ? NULL : &place.card, max_ctas))
			goto wrong_case;
		if (!place.is_dry)
			CARD(&place.card, cuStreamSynchronize(place.card.stream));
		place_copy(&place, false, bytes);
		a = differ(want_host, place.host.ptr, bytes);
		b = differ(want_device, place.stage.ptr, bytes);
		c = differ((unsigned char *)want_sums, place.sums.ptr, NR_MAX * 4);
		if (a >= 0 || b >= 0 || c >= 0) {
			fprintf(stderr, "%s, seed %llu: host differs at %lld, device at %lld, sums at %lld\n", kinds[k].name,
				(unsigned long long)seed, (long long)a, (long long)b, (long long)c);
			return 1;
		}
		nr_cases++;
	}
	printf("{\"cases\": %llu, \"card\": \"%s\", \"compute\": %d}\n", (unsigned long long)nr_cases, place.card.name,
	       place.card.compute);
	place_close(&place);
	free(want_host);
	free(want_device);
	free(want_list);
	free(want_sums);
	return 0;

wrong_case:
	fprintf(stderr, "seed %llu: the launcher refused it\n", (unsigned long long)seed);
	return 1;
}
