/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What all benchmarks share: rows and their samples, memory on known pages, clocks.
 *
 * A benchmark is one function. It makes rows, then runs rounds; in each round it measures ours, the
 * limit and the peer one after another, so that whatever else the machine does falls on all of
 * them. It checks contents outside the timed part and never judges a figure. One thread, but for
 * what a benchmark starts itself.
 */
#ifndef OKV_BENCH_H
#define OKV_BENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <omnikv/key.h>

#define OKV_BENCH_ROUNDS_MAX	101u
#define OKV_BENCH_ROWS_MAX	96u

/** What a target is about. */
enum okv_bench_target {
	OKV_TARGET_NONE,
	OKV_TARGET_RATIO,	/* ours over the limit */
	OKV_TARGET_OURS,
};

/**
 * struct okv_bench_desc - what a row is
 * @row:      "M1"
 * @clock:    "thread CPU" or "wall"
 * @limit:    what no code can beat here; NULL: none in this run
 * @peer:     what others do; NULL: none in this run
 * @is_lower_better: of ours; the target is then an upper bound
 *
 * Texts are copied.
 */
struct okv_bench_desc {
	const char		*row;
	const char		*workload;
	const char		*unit;
	const char		*clock;
	const char		*limit;
	const char		*peer;
	bool			is_lower_better;
	enum okv_bench_target	target_of;
	double			target;
};

struct okv_bench_row;

/**
 * struct okv_bench - one run of the command
 * @nr_rounds:      samples of each row
 * @footprint_bytes: what is worked on; the default is 1 GiB, beyond any cache
 * @nr_huge_pages:  reserved for this run
 * @disk:           directory for what needs a disk
 */
struct okv_bench {
	unsigned int		nr_rounds;
	uint64_t		footprint_bytes;
	uint64_t		nr_huge_pages;
	const char		*disk;
	unsigned int		nr_rows;
	struct okv_bench_row	*rows;
	unsigned int		first_row;	/* of the benchmark that runs */
	struct okv_bench_mem	*mems;
	uint64_t		random;
};

/** A row of the benchmark that runs; never fails (the program ends where memory does). */
struct okv_bench_row *okv_bench_row(struct okv_bench *bench, const struct okv_bench_desc *desc);
/** One round's figures; NAN for what the row has not. */
void okv_bench_sample(struct okv_bench_row *row, double ours, double limit, double peer);

/** Zeroed, touched, 2-MiB aligned where large; on reserved huge pages while there are any. Ends the program on failure. */
void *okv_bench_alloc(struct okv_bench *bench, size_t bytes);
/** The same, which children of this process share instead of copying. */
void *okv_bench_alloc_shared(struct okv_bench *bench, size_t bytes);
/** All of it is given back when the benchmark ends; this does so earlier. NULL is ignored. */
void okv_bench_free(struct okv_bench *bench, void *mem);

/** Rows so far ran on the memory that is held now; for benchmarks that free before they end. */
void okv_bench_note_pages(struct okv_bench *bench);

double okv_bench_cpu_ns(void);		/* of this thread */
double okv_bench_wall_ns(void);
uint64_t okv_bench_random(struct okv_bench *bench);
struct omnikv_key okv_bench_key(struct okv_bench *bench);
/** Ends the program with "omnikv bench: WHAT": results were wrong. */
void okv_bench_must(bool is_right, const char *what);

/**
 * struct okv_benchmark
 * @rows: names of its rows, separated by spaces
 * @need_bytes: memory for a footprint
 * @need_disk:  room on the disk for it; NULL: none
 */
struct okv_benchmark {
	const char	*name;
	const char	*rows;
	const char	*summary;
	uint64_t	(*need_bytes)(uint64_t footprint_bytes);
	void		(*run)(struct okv_bench *bench);
	uint64_t	(*need_disk)(uint64_t footprint_bytes);
};

void okv_bench_gather(struct okv_bench *bench);
void okv_bench_scatter(struct okv_bench *bench);
uint64_t okv_bench_copy_need(uint64_t footprint_bytes);
void okv_bench_match(struct okv_bench *bench);
void okv_bench_readers(struct okv_bench *bench);
uint64_t okv_bench_readers_need(uint64_t footprint_bytes);
void okv_bench_life(struct okv_bench *bench);
uint64_t okv_bench_index_need(uint64_t footprint_bytes);
void okv_bench_ring(struct okv_bench *bench);
uint64_t okv_bench_ring_need(uint64_t footprint_bytes);
void okv_bench_fork(struct okv_bench *bench);
uint64_t okv_bench_fork_need(uint64_t footprint_bytes);
void okv_bench_get(struct okv_bench *bench);
uint64_t okv_bench_get_need(uint64_t footprint_bytes);
void okv_bench_start(struct okv_bench *bench);
uint64_t okv_bench_start_need(uint64_t footprint_bytes);
void okv_bench_restart(struct okv_bench *bench);
uint64_t okv_bench_restart_need(uint64_t footprint_bytes);
void okv_bench_spill(struct okv_bench *bench);
uint64_t okv_bench_spill_need(uint64_t footprint_bytes);
uint64_t okv_bench_spill_disk_need(uint64_t footprint_bytes);

/** Start and end of a benchmark: its rows are told which pages it ran on, its memory is freed. */
void okv_bench_begin(struct okv_bench *bench);
void okv_bench_end(struct okv_bench *bench);

/** Everything as JSON, machine and date included. NULL: no memory. */
json_t *okv_bench_json(const struct okv_bench *bench);
void okv_bench_fini(struct okv_bench *bench);

/**
 * okv_huge_reserve() - have @nr more huge pages of 2 MiB
 *
 * A child process gives them back when this one is gone, however it ended.
 *
 * Return: 0, or -EPERM (not root), -ENOMEM (fewer were to be had; none is kept), or another errno.
 */
int okv_huge_reserve(uint64_t nr);
/** Gives them back now, and waits until that is done. */
void okv_huge_release(void);

/** Memory that programs could still get, bytes; huge pages that are free come on top. */
uint64_t okv_memory_available(void);

/* Printing, from JSON alone: bench_print.c. Return 0 or -EINVAL, with *@why set: not what okv_bench_json() makes. */
int okv_bench_table(FILE *out, const json_t *run, const char **why);
int okv_bench_compare(FILE *out, const json_t *old, const json_t *run, const char **why);
int okv_bench_svg(FILE *out, const json_t *run, const char **why);

#endif /* OKV_BENCH_H */
