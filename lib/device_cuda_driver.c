// SPDX-License-Identifier: MIT
/*
 * The CUDA driver, found at run time.
 *
 * Owns the table of its functions and what is said when there is none. Nothing links against it: a machine without
 * a GPU runs everything else. Any thread; a table is its owner's.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_cuda.h"
#include "error.h"

/* cuGetProcAddress() came with 11.3, stream memory operations that need no switch with 11.7. */
#define OLDEST_VERSION	11070

#define UNAVAILABLE	"GPU unavailable: "

struct symbol {
	const char	*name;
	int		version;
	bool		is_needed;
	size_t		off;
};

#define SYMBOL(name, version, is_needed, args) { #name, version, is_needed, offsetof(struct okv_cuda_driver, name) },
static const struct symbol symbols[] = { OKV_CUDA_FUNCTIONS(SYMBOL) };

/* Before the driver can name its errors: those that keep it from starting, and what to do. */
static const char *start_error(int error)
{
	switch (error) {
	case OKV_CUDA_ERROR_STUB_LIBRARY:
		return "CUDA_ERROR_STUB_LIBRARY: this is the stub that the toolkit has for linking, not a driver; take its folder off LD_LIBRARY_PATH";
	case OKV_CUDA_ERROR_NO_DEVICE:
		return "CUDA_ERROR_NO_DEVICE: there is a driver, and no GPU that this process may use; see nvidia-smi and CUDA_VISIBLE_DEVICES";
	case OKV_CUDA_ERROR_INSUFFICIENT_DRIVER:
		return "CUDA_ERROR_INSUFFICIENT_DRIVER: the kernel's driver is older than this library of it; install both from one release";
	case OKV_CUDA_ERROR_SYSTEM_NOT_READY:
		return "CUDA_ERROR_SYSTEM_NOT_READY: the GPUs are not set up; is nvidia-fabricmanager running?";
	case OKV_CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
		return "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: kernel module and libcuda are of different releases; reboot or reload the module";
	case OKV_CUDA_ERROR_DEVICE_UNAVAILABLE:
		return "CUDA_ERROR_DEVICE_UNAVAILABLE: the GPU is in exclusive use by another process";
	case OKV_CUDA_ERROR_UNKNOWN:
		return "CUDA_ERROR_UNKNOWN: the driver could not start; see the kernel's log, and whether nvidia-uvm is loaded";
	default:
		return NULL;
	}
}

int okv_cuda_errno(int error)
{
	switch (error) {
	case OKV_CUDA_SUCCESS:
		return 0;
	case OKV_CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case OKV_CUDA_ERROR_INVALID_VALUE:
	case OKV_CUDA_ERROR_INVALID_HANDLE:
	case OKV_CUDA_ERROR_INVALID_CONTEXT:
		return -EINVAL;
	case OKV_CUDA_ERROR_NOT_SUPPORTED:
	case OKV_CUDA_ERROR_NOT_FOUND:
		return -EOPNOTSUPP;
	case OKV_CUDA_ERROR_NOT_PERMITTED:
		return -EPERM;
	case OKV_CUDA_ERROR_NO_DEVICE:
	case OKV_CUDA_ERROR_INVALID_DEVICE:
	case OKV_CUDA_ERROR_STUB_LIBRARY:
	case OKV_CUDA_ERROR_INSUFFICIENT_DRIVER:
	case OKV_CUDA_ERROR_DEVICE_UNAVAILABLE:
	case OKV_CUDA_ERROR_SYSTEM_NOT_READY:
	case OKV_CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
		return -ENODEV;
	case OKV_CUDA_ERROR_NOT_READY:
		return -EAGAIN;
	default:
		return -EIO;
	}
}

/*
 * Faults of the device or of a kernel: every later call of the context returns the same. A launch that finds no room (701)
 * is none.
 */
bool okv_cuda_is_fatal(int error)
{
	switch (error) {
	case OKV_CUDA_ERROR_ECC_UNCORRECTABLE:
	case 220: /* NVLINK_UNCORRECTABLE */
	case 226: /* CONTAINED */
	case OKV_CUDA_ERROR_ILLEGAL_ADDRESS:
	case 702: /* LAUNCH_TIMEOUT */
	case 709: /* CONTEXT_IS_DESTROYED */
	case 710: /* ASSERT */
	case 721: /* TENSOR_MEMORY_LEAK */
	case 911: /* EXTERNAL_DEVICE */
	case OKV_CUDA_ERROR_UNKNOWN:
		return true;
	default:
		/* HARDWARE_STACK_ERROR to LAUNCH_FAILED */
		return error >= 714 && error <= OKV_CUDA_ERROR_LAUNCH_FAILED;
	}
}

const char *okv_cuda_error_text(const struct okv_cuda_driver *drv, int error, char *text, size_t bytes)
{
	const char *name = NULL, *what = NULL;

	if (!drv->cuGetErrorName || drv->cuGetErrorName(error, &name) || !name ||
	    !drv->cuGetErrorString || drv->cuGetErrorString(error, &what) || !what)
		snprintf(text, bytes, "CUDA error %d", error);
	else
		snprintf(text, bytes, "%.60s (%.60s)", name, what);
	return text;
}

/* Both forms of cuGetProcAddress(): the newer one says apart whether a symbol is unknown or too new. */
struct lookup {
	int	(*v2)(const char *name, void **fn, int version, uint64_t flags, int *status);
	int	(*v1)(const char *name, void **fn, int version, uint64_t flags);
};

static int lookup(const struct lookup *get, const char *name, int version, void **fn)
{
	int status = 0, ret;

	*fn = NULL;
	if (get->v2)
		ret = get->v2(name, fn, version, OKV_CU_GET_PROC_ADDRESS_DEFAULT, &status);
	else
		ret = get->v1(name, fn, version, OKV_CU_GET_PROC_ADDRESS_DEFAULT);
	if (ret || status)
		*fn = NULL;
	return ret;
}

static int load_symbols(struct okv_cuda_driver *drv, const char *path, struct omnikv_error *err)
{
	struct lookup get;
	size_t i;
	void *fn;
	int ret;

	get.v2 = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(drv->handle, "cuGetProcAddress_v2");
	get.v1 = (int (*)(const char *, void **, int, uint64_t))dlsym(drv->handle, "cuGetProcAddress");
	if (!get.v2 && !get.v1)
		return okv_error_set(err, -ENOSYS, UNAVAILABLE "%.80s has no cuGetProcAddress: the driver is older than CUDA 11.3; 11.7 (release 515) or newer is needed",
				     path);
	for (i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		ret = lookup(&get, symbols[i].name, symbols[i].version, &fn);
		if (ret && start_error(ret))
			return okv_error_set(err, -ENODEV, UNAVAILABLE "%.60s: %s", path, start_error(ret));
		if (!fn && symbols[i].is_needed)
			return okv_error_set(err, -ENOSYS, UNAVAILABLE "%.80s has no %s: the driver is older than CUDA 11.7 (release 515), which is needed",
					     path, symbols[i].name);
		memcpy((char *)drv + symbols[i].off, &fn, sizeof(fn));
	}
	return 0;
}

int okv_cuda_driver_open(struct okv_cuda_driver *drv, struct omnikv_error *err)
{
	/* For tests, which bring a driver of their own. */
	const char *path = secure_getenv("OMNIKV_CUDA_DRIVER");
	char text[128];
	int ret;

	memset(drv, 0, sizeof(*drv));
	if (!path || !*path)
		path = "libcuda.so.1";
	/* A driver has threads of its own: once loaded it stays. */
	drv->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!drv->handle)
		return okv_error_set(err, -ENODEV, UNAVAILABLE "%.200s; install NVIDIA's driver, or use the device host or sim",
				     dlerror());
	ret = load_symbols(drv, path, err);
	if (ret)
		goto err_close;
	ret = drv->cuInit(0);
	if (ret) {
		ret = okv_error_set(err, -ENODEV, UNAVAILABLE "%.60s: %s", path,
				    start_error(ret) ? start_error(ret) : okv_cuda_error_text(drv, ret, text, sizeof(text)));
		goto err_close;
	}
	if (drv->cuDriverGetVersion(&drv->version) || drv->version < OLDEST_VERSION) {
		ret = okv_error_set(err, -ENOSYS, UNAVAILABLE "%.80s is a driver for CUDA %d.%d; 11.7 (release 515) or newer is needed", path,
				    drv->version / 1000, drv->version % 1000 / 10);
		goto err_close;
	}
	return 0;

err_close:
	okv_cuda_driver_close(drv);
	return ret;
}

void okv_cuda_driver_close(struct okv_cuda_driver *drv)
{
	if (drv->handle)
		dlclose(drv->handle);
	memset(drv, 0, sizeof(*drv));
}
