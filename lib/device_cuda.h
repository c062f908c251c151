/* SPDX-License-Identifier: MIT */
/*
 * The "cuda" device from inside: one NVIDIA GPU by the driver API, found at run time.
 *
 * device_cuda.c owns the device, its streams and events; device_cuda_driver.c the table of the driver's functions;
 * device_cuda_memory.c HBM, the registration of pools and words that both sides see; device_cuda_copy.c the rings'
 * transfers; device_cuda_path.c how a transfer is made and what that costs; device_cuda_graph.c replays.
 *
 * Each public call makes the device's context current for its own duration only, so that an engine's is left
 * alone. Errors of the driver are returned by the call that met them. What a context has lost (is_lost) is
 * answered with -EIO from then on; nothing else is sticky.
 */
#ifndef OKV_DEVICE_CUDA_H
#define OKV_DEVICE_CUDA_H

#include <stdbool.h>

#include "cuda_abi.h"
#include "device.h"
#include "kernels/kernels.h"

struct omnikv_ring;

/* ---- driver ------------------------------------------------------------------------------- */

struct okv_cuda_driver {
	void	*handle;
	int	version;		/* 12080 is 12.8 */
#define OKV_CUDA_MEMBER(name, version, is_needed, args) int (*name) args;
	OKV_CUDA_FUNCTIONS(OKV_CUDA_MEMBER)
#undef OKV_CUDA_MEMBER
};

/**
 * okv_cuda_driver_open() - find the driver and start it
 * @err: "GPU unavailable: " and the loader's or the driver's own reason
 *
 * Return: 0, or -ENODEV, -ENOSYS (a driver that is too old).
 */
int okv_cuda_driver_open(struct okv_cuda_driver *drv, struct omnikv_error *err);
void okv_cuda_driver_close(struct okv_cuda_driver *drv);
/** "CUDA_ERROR_OUT_OF_MEMORY (out of memory)", or the number. @text: of at least 128 bytes. */
const char *okv_cuda_error_text(const struct okv_cuda_driver *drv, int error, char *text, size_t bytes);
/** The errno of conventions for a driver's error. */
int okv_cuda_errno(int error);
/**
 * For threads of the library's own: what they ask of the driver is no part of a capture that some thread of the engine
 * has under way, and must neither be refused nor spoil that.
 */
static inline void okv_cuda_thread_relax(const struct okv_cuda_driver *drv)
{
	int mode = OKV_CU_STREAM_CAPTURE_MODE_RELAXED;

	drv->cuThreadExchangeStreamCaptureMode(&mode);
}

/** After this error the context is of no use. */
bool okv_cuda_is_fatal(int error);

/* ---- words: 64 bits of pinned memory that CPU and device read and write ------------------- */

/*
 * The word behind an event. In generation g it is below 2g until the event fires, 2g once it has, and 2g + 1 when
 * it is poisoned, so that waiting for "at least 2g" ends either way. A transfer that will write it late holds
 * @nr_writers: the word is not handed on before.
 */
struct okv_cuda_word {
	_Atomic uint64_t	*host;
	uint64_t		ptr;		/* as the device sees it */
	/* under dev->lock */
	uint64_t		gen;
	uint32_t		nr_writers;
	bool			is_orphan;	/* its event has gone on without it */
	struct okv_cuda_word	*next;		/* of free ones */
};

struct okv_cuda_event {
	struct omnikv_event	base;
	struct okv_cuda_word	*word;
	struct okv_cuda_word	*spare;		/* takes over where a reset finds the word with writers */
	uint32_t		nr_graphs;	/* under dev->lock: captured in so many, so the word stays */
};

/* ---- pools -------------------------------------------------------------------------------- */

enum okv_cuda_chunk_state { OKV_CHUNK_NEW, OKV_CHUNK_BUSY, OKV_CHUNK_MAPPED, OKV_CHUNK_REFUSED };

struct okv_cuda_chunk {
	_Atomic uint32_t	state;
	_Atomic uint32_t	heat;		/* bytes asked for while not registered, in pages */
	uint64_t		ptr;		/* device's address; valid in MAPPED */
};

/* A pool's linear map, registered chunk by chunk by threads of its own. Shared by all rings of the process. */
struct okv_cuda_map {
	struct okv_cuda_map	*next;
	uint32_t		nr_users;
	bool			is_abandoned;	/* not for those who come now */
	/* fixed after creation */
	struct okv_cuda_driver	drv;
	int			device;		/* whose primary context is held */
	void			*context;
	unsigned char		*base;
	uint64_t		bytes;
	uint64_t		chunk_bytes;
	uint32_t		nr_chunks;
	struct okv_cuda_chunk	*chunks;
	uint32_t		nr_threads;
	pthread_t		threads[4];
	_Atomic uint32_t	is_stopping;
	_Atomic int		error;		/* last refusal, of the driver */
	pthread_mutex_t		lock;		/* picking and ending a chunk */
	uint32_t		nr_mapped;	/* under lock */
	uint32_t		nr_refused;
	uint32_t		nr_busy;
};

/* ---- device ------------------------------------------------------------------------------- */

/* How a transfer is made. */
enum okv_cuda_path {
	OKV_PATH_ENGINE,	/* one asynchronous copy a run */
	OKV_PATH_BATCH,		/* cuMemcpyBatchAsync() */
	OKV_PATH_KERNEL,	/* a gather or scatter kernel over mapped host memory */
	OKV_NR_PATHS,
};

enum okv_cuda_direction { OKV_H2D, OKV_D2H, OKV_D2D, OKV_NR_DIRECTIONS };

#define OKV_PATH_SIZES		6	/* 512 B, 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB */
#define OKV_PATH_COUNTS		3	/* 16, 256, 4096 runs */

/* Nanoseconds a run, submission included, of each path; 0: the path cannot do it. */
struct okv_cuda_costs {
	float	ns[OKV_NR_DIRECTIONS][OKV_PATH_SIZES][OKV_PATH_COUNTS][OKV_NR_PATHS];
};

struct okv_cuda {
	struct okv_cuda_driver	drv;
	int			device;
	int			ordinal;
	void			*context;
	uint64_t		opened_ns;
	uint64_t		total_bytes;	/* of its memory */
	uint32_t		nr_sms;
	uint32_t		max_sms;	/* of copying kernels */
	int			priority;	/* the highest that streams can have */
	bool			has_dma_buf;
	bool			has_vmm_rdma;
	char			model[64];
	struct okv_cu_uuid	uuid;

	struct okv_cuda_costs	costs;
	int			forced_path;	/* -1: none */

	void			*module;
	void			*kernels[OKV_KERNEL_NR];

	_Atomic uint32_t	is_lost;
	_Atomic uint32_t	has_leaks;	/* a copy that never ended may still write words */
	_Atomic uint64_t	nr_bounced_bytes;
	_Atomic uint64_t	path_bytes[OKV_NR_PATHS];

	/* under dev->lock */
	struct okv_cuda_word	*free_words;
	struct okv_cuda_page	*pages;
};

static inline struct okv_cuda *okv_cuda_of(const struct omnikv_device *dev)
{
	return dev->priv;
}

/** Make the device's context current for this thread; pair with okv_cuda_leave(). -EIO when it is lost. */
int okv_cuda_enter(struct omnikv_device *dev);
void okv_cuda_leave(struct omnikv_device *dev);
/** 0, or the errno of @error; notes a lost context. */
int okv_cuda_check(struct omnikv_device *dev, int error);

/* ---- device_cuda_memory.c ----------------------------------------------------------------- */

/** Without dev->lock, context current. A word that is below what its generation waits for, or NULL. */
struct okv_cuda_word *okv_cuda_word_get(struct omnikv_device *dev);
void okv_cuda_word_put_locked(struct omnikv_device *dev, struct okv_cuda_word *word);
/** All pages; every word has been put. */
void okv_cuda_words_free(struct omnikv_device *dev);

int okv_cuda_hbm_alloc(struct omnikv_device *dev, uint64_t bytes, void **ptr, uint64_t *mapped_bytes);
int okv_cuda_hbm_bind(struct omnikv_device *dev, void *ptr, uint64_t mapped_bytes, uint64_t from_bytes, uint64_t to_bytes);
void okv_cuda_hbm_free(struct omnikv_device *dev, void *ptr, uint64_t mapped_bytes, uint64_t bytes);
int okv_cuda_hbm_check(struct omnikv_device *dev, void *ptr, uint64_t bytes);
int okv_cuda_hbm_dmabuf(struct omnikv_device *dev, void *ptr, uint64_t bytes, int *fd);

/** The registration of @base; begins it in the background where it is new. */
int okv_cuda_map_get(struct omnikv_device *dev, void *base, uint64_t bytes, struct okv_cuda_map **map);
/** The last one ends registration and takes all of it back. No transfer is under way. */
void okv_cuda_map_put(struct okv_cuda_map *map);
/**
 * Instead of putting it, where a copy never ends: its registration stays. The pool's addresses may be another's later, so
 * nobody finds it any more.
 */
void okv_cuda_map_abandon(struct okv_cuda_map *map);
/**
 * okv_cuda_map_find() - the device's address of @host
 * @bytes: cut to what is registered (or is not) in one piece
 *
 * Return: 0 when it is not registered yet: go by the bounce buffer. Raises its chunk's heat then.
 */
uint64_t okv_cuda_map_find(struct okv_cuda_map *map, const void *host, uint64_t *bytes);
void okv_cuda_map_count(const struct okv_cuda_map *map, uint64_t *mapped, uint64_t *refused);

/* ---- device_cuda_path.c ------------------------------------------------------------------- */

/** The cheapest path for @nr runs of @bytes in all. Pure but for the table. */
enum okv_cuda_path okv_cuda_path_choose(const struct okv_cuda *cuda, enum okv_cuda_direction dir, uint32_t nr,
					uint64_t bytes);
/** Read the table from its cache, or measure it. Context current. */
void okv_cuda_paths_measure(struct omnikv_device *dev);

/* What one submission needs, and where it is put together; every array has @max entries. */
struct okv_cuda_list {
	uint32_t		max;
	uint32_t		nr;
	uint64_t		bytes;
	uint64_t		max_bytes;	/* of the longest run */
	uint64_t		*dsts;		/* as copy engines take them: this process's addresses of host memory */
	uint64_t		*srcs;
	size_t			*sizes;
	struct okv_kernel_run	*runs;		/* as kernels take them: the device's addresses; pinned */
	uint64_t		runs_ptr;	/* as the device sees them */
	uint64_t		device_runs;	/* device memory of the same size */
};

int okv_cuda_list_init(struct okv_cuda *cuda, struct okv_cuda_list *list, uint32_t max);
void okv_cuda_list_fini(struct okv_cuda *cuda, struct okv_cuda_list *list);
/** Add a run, or lengthen the last one where @may_join and it follows that on both sides. There is room. */
void okv_cuda_list_add(struct okv_cuda_list *list, bool may_join, uint64_t dst, uint64_t src, uint64_t bytes,
		       uint64_t kernel_dst, uint64_t kernel_src);
/**
 * okv_cuda_submit() - hand a list to @stream
 * @nr_runs: of the list, from its start
 *
 * The list must stay as it is until the stream has passed. Return: 0, or the driver's error, with a part of it under way.
 */
int okv_cuda_submit(struct okv_cuda *cuda, enum okv_cuda_path path, enum okv_cuda_direction dir, void *stream,
		    const struct okv_cuda_list *list);

bool okv_cuda_has_kernels(const struct okv_cuda *cuda);
/** Take the kernels of this build that the GPU can run. Context current. */
void okv_cuda_kernels_load(struct omnikv_device *dev);
void okv_cuda_kernels_unload(struct omnikv_device *dev);
/** Sums of @nr spans; @spans and @crc: mapped host memory as the device sees it. Driver's error, or 0. */
int okv_cuda_crc32c(struct okv_cuda *cuda, void *stream, uint64_t spans, uint64_t crc, uint32_t nr);
/** The kernel that waits, or fires; driver's error, or 0. */
int okv_cuda_event_kernel(struct okv_cuda *cuda, void *stream, bool is_wait, const struct okv_event_args *args);

/* ---- device_cuda_table.c: the table of costs as text. Pure. ------------------------------- */

/** @key: what the table is of, one line. Return: its length, or -ENOSPC. */
int okv_cuda_costs_print(const struct okv_cuda_costs *costs, const char *key, char *text, size_t bytes);
/** -EBADMSG for everything that is not exactly what okv_cuda_costs_print() writes for @key. */
int okv_cuda_costs_parse(struct okv_cuda_costs *costs, const char *key, const char *text, size_t bytes);
/** Read or write the file of @key; hostile until checked. Files of others, or that others may write, are not read. */
int okv_cuda_costs_load(struct okv_cuda_costs *costs, const char *key, const char *name);
int okv_cuda_costs_save(const struct okv_cuda_costs *costs, const char *key, const char *name);

/* ---- device_cuda_graph.c: as the operations of struct okv_device_ops that have these names --- */

int okv_cuda_graph_create(struct omnikv_device *dev, uint64_t timeout_ns, struct omnikv_graph **graph);
void okv_cuda_graph_destroy(struct omnikv_graph *graph);
int okv_cuda_graph_add(struct omnikv_graph *graph, struct omnikv_stream *stream, struct omnikv_event *event, bool is_wait);
int okv_cuda_graph_begin(struct omnikv_graph *graph, struct omnikv_stream *stream);
int okv_cuda_graph_status(struct omnikv_graph *graph);

/* ---- device_cuda_copy.c ------------------------------------------------------------------- */

/** Pools that the device's rings use, in bytes. */
void okv_cuda_rings_count(struct omnikv_device *dev, uint64_t *all, uint64_t *mapped, uint64_t *refused);
int okv_cuda_ring_init(struct omnikv_ring *ring);
void okv_cuda_ring_exit(struct omnikv_ring *ring);
void okv_cuda_op_start(struct okv_op *op);
bool okv_cuda_op_recall(struct okv_op *op);

#endif /* OKV_DEVICE_CUDA_H */
