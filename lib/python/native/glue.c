/* SPDX-License-Identifier: MIT */
/*
 * The C half of the Python package: loops over many keys and pieces, and DLPack capsules.
 *
 * Compiled by cffi into the module that binds the C API. Entered by any thread without the interpreter's
 * lock, which only the DLPack part takes.
 */
#include <stdlib.h>
#include <string.h>

#include <omnikv.h>

/* @nr_keys keys of @len bytes each, one after another. */
static void okv_py_pack_keys(struct omnikv_key *keys, const char *bytes, size_t nr_keys, uint32_t len)
{
	for (size_t i = 0; i < nr_keys; i++) {
		memset(&keys[i], 0, sizeof(keys[i]));
		memcpy(keys[i].bytes, bytes + i * len, len);
		keys[i].len = len;
	}
}

/* Is a token id of @nr signed ones, read as unsigned, negative? */
static int okv_py_has_negative(const uint32_t *ids, size_t nr)
{
	uint32_t all = 0;

	for (size_t i = 0; i < nr; i++)
		all |= ids[i];
	return all >> 31;
}

/*
 * Pieces of whole blocks of one layer, from where the pool has them (@in, one a block) to where an engine does: block i
 * in slot @slots[i], as @nr_regions dense regions (K and V apart) of @region_bytes each. [nr_blocks][nr_regions].
 */
static void okv_py_block_pieces(struct omnikv_piece *out, const struct omnikv_piece *in, size_t nr_blocks,
				const uint32_t *slots, uint64_t base_off, uint64_t slot_stride, uint32_t nr_regions,
				uint64_t region_stride, uint64_t region_bytes)
{
	for (size_t i = 0; i < nr_blocks; i++)
		for (uint32_t r = 0; r < nr_regions; r++, out++) {
			*out = in[i];
			out->extent_off += r * region_bytes;
			out->device_off = base_off + slots[i] * slot_stride + r * region_stride;
			out->bytes = region_bytes;
		}
}

/* Sum of @nr runs of @bytes_each bytes, one after another, from the sums of each. */
static uint32_t okv_py_sum(const uint32_t *crc, size_t nr, uint64_t bytes_each)
{
	uint32_t sum = nr ? crc[0] : 0;

	for (size_t i = 1; i < nr; i++)
		sum = omnikv_crc32c_combine(sum, crc[i], bytes_each);
	return sum;
}

/*
 * DLPack, the exchange format of array libraries (dlpack.h, versions 0.8 and 1.0). Both shapes of the
 * managed tensor share what is between their heads and tails, so one struct holds either.
 */
struct okv_dl_tensor {
	void	*data;
	int32_t	device_type;
	int32_t	device_id;
	int32_t	ndim;
	uint8_t	code;
	uint8_t	bits;
	uint16_t lanes;
	int64_t	*shape;
	int64_t	*strides;
	uint64_t byte_offset;
};

struct okv_dl_managed {
	struct okv_dl_tensor	tensor;
	void			*context;
	void			(*deleter)(struct okv_dl_managed *self);
};

struct okv_dl_versioned {
	uint32_t		major;
	uint32_t		minor;
	void			*context;
	void			(*deleter)(struct okv_dl_versioned *self);
	uint64_t		flags;
	struct okv_dl_tensor	tensor;
};

#define OKV_DL_CPU		1
#define OKV_DL_F_READ_ONLY	1u
#define OKV_DL_NDIM_MAX		8

struct okv_dl_export {
	union {
		struct okv_dl_managed	managed;
		struct okv_dl_versioned	versioned;
	};
	PyObject	*owner;		/* keeps the bytes */
	int64_t		shape[OKV_DL_NDIM_MAX];
	int64_t		strides[OKV_DL_NDIM_MAX];
};

static void dl_free(void *self)
{
	struct okv_dl_export *ex = self;
	PyGILState_STATE gil;

	/* Consumers may free from any thread, and after the interpreter is gone. */
	if (Py_IsInitialized()) {
		gil = PyGILState_Ensure();
		Py_DECREF(ex->owner);
		PyGILState_Release(gil);
	}
	free(ex);
}

static void dl_free_managed(struct okv_dl_managed *self)
{
	dl_free(self);
}

static void dl_free_versioned(struct okv_dl_versioned *self)
{
	dl_free(self);
}

/* A consumer renames the capsule and calls the deleter itself; one that nobody took still has its name. */
static void dl_drop(PyObject *capsule)
{
	const char *const names[] = { "dltensor", "dltensor_versioned" };

	for (int i = 0; i < 2; i++)
		if (PyCapsule_IsValid(capsule, names[i]))
			dl_free(PyCapsule_GetPointer(capsule, names[i]));
}

/*
 * A new capsule over dense rows at @data, or 0. The caller holds a reference on @owner, the Python object that
 * keeps the bytes; the capsule takes one of its own. Returned as a number, since cffi knows no PyObject.
 */
static uintptr_t okv_py_dlpack(uintptr_t owner, void *data, int32_t code, int32_t bits, int32_t ndim,
			       const int64_t *shape, int is_versioned, int is_readonly)
{
	struct okv_dl_export *ex = ndim <= OKV_DL_NDIM_MAX ? calloc(1, sizeof(*ex)) : NULL;
	struct okv_dl_tensor *tensor;
	PyGILState_STATE gil;
	PyObject *capsule;
	int64_t stride = 1;

	if (!ex)
		return 0;
	tensor = is_versioned ? &ex->versioned.tensor : &ex->managed.tensor;
	for (int32_t i = ndim; i-- > 0; stride *= shape[i]) {
		ex->shape[i] = shape[i];
		ex->strides[i] = stride;
	}
	*tensor = (struct okv_dl_tensor){ .data = data, .device_type = OKV_DL_CPU, .ndim = ndim, .code = (uint8_t)code,
					  .bits = (uint8_t)bits, .lanes = 1, .shape = ex->shape, .strides = ex->strides };
	if (is_versioned) {
		ex->versioned.major = 1;
		ex->versioned.deleter = dl_free_versioned;
		ex->versioned.flags = is_readonly ? OKV_DL_F_READ_ONLY : 0;
	} else {
		ex->managed.deleter = dl_free_managed;
	}
	gil = PyGILState_Ensure();
	ex->owner = (PyObject *)owner;
	Py_INCREF(ex->owner);
	capsule = PyCapsule_New(ex, is_versioned ? "dltensor_versioned" : "dltensor", dl_drop);
	if (!capsule) {
		PyErr_Clear();
		Py_DECREF(ex->owner);
		free(ex);
	}
	PyGILState_Release(gil);
	return (uintptr_t)capsule;
}
