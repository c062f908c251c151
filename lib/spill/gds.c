// SPDX-License-Identifier: MIT
/*
 * GPUDirect Storage by libcufile, see gds.h.
 *
 * Owns the library's handle, what of its interface is declared here, and the registered file. The driver behind it is
 * opened once for each file, which it counts. OMNIKV_CUFILE names another library.
 */
#include "spill/gds.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "error.h"

#define LIBRARY		"libcufile.so.0"
#define TRIES_MAX	16u

/* The interface, as NVIDIA documents it: what is needed of it. */
struct gds_status {
	int	error;		/* 0: none */
	int	cuda_error;
};

#define GDS_TYPE_FD	1

struct gds_descr {
	int		type;
	union {
		int	fd;
		void	*handle;
	}		handle;
	const void	*fs_ops;
};

struct gds_api {
	struct gds_status	(*driver_open)(void);
	struct gds_status	(*driver_close)(void);
	struct gds_status	(*handle_register)(void **handle, struct gds_descr *descr);
	void			(*handle_deregister)(void *handle);
	ssize_t			(*read)(void *handle, void *base, size_t bytes, off_t file_off, off_t base_off);
};

struct okv_gds {
	void		*library;
	struct gds_api	api;
	void		*handle;
};

static const struct {
	const char	*name;
	size_t		off;
} symbols[] = {
	{ "cuFileDriverOpen", offsetof(struct gds_api, driver_open) },
	{ "cuFileDriverClose", offsetof(struct gds_api, driver_close) },
	{ "cuFileHandleRegister", offsetof(struct gds_api, handle_register) },
	{ "cuFileHandleDeregister", offsetof(struct gds_api, handle_deregister) },
	{ "cuFileRead", offsetof(struct gds_api, read) },
};

static int load(struct okv_gds *gds, struct omnikv_error *err)
{
	const char *path = getenv("OMNIKV_CUFILE");

	gds->library = dlopen(path ? path : LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!gds->library)
		return okv_error_set(err, -EOPNOTSUPP, "GPUDirect Storage unavailable: %.180s", dlerror());
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		void *symbol = dlsym(gds->library, symbols[i].name);

		if (!symbol)
			return okv_error_set(err, -EOPNOTSUPP, "GPUDirect Storage unavailable: libcufile has no %s; install a later one",
					     symbols[i].name);
		memcpy((char *)&gds->api + symbols[i].off, &symbol, sizeof(symbol));
	}
	return 0;
}

int okv_gds_open(int fd, struct okv_gds **out, struct omnikv_error *err)
{
	struct gds_descr descr = { .type = GDS_TYPE_FD, .handle.fd = fd };
	struct okv_gds *gds = calloc(1, sizeof(*gds));
	struct gds_status status;
	int ret;

	if (!gds)
		return -ENOMEM;
	ret = load(gds, err);
	if (ret)
		goto err_free;
	status = gds->api.driver_open();
	if (status.error) {
		ret = okv_error_set(err, -EOPNOTSUPP, "GPUDirect Storage unavailable: its driver does not start (error %d, CUDA %d); "
				    "see gdscheck -p", status.error, status.cuda_error);
		goto err_free;
	}
	status = gds->api.handle_register(&gds->handle, &descr);
	if (status.error) {
		ret = okv_error_set(err, -EOPNOTSUPP, "GPUDirect Storage unavailable: it does not serve the spill store's file system "
				    "(error %d, CUDA %d); see gdscheck -p", status.error, status.cuda_error);
		goto err_driver;
	}
	*out = gds;
	return 0;

err_driver:
	gds->api.driver_close();
err_free:
	if (gds->library)
		dlclose(gds->library);
	free(gds);
	return ret;
}

void okv_gds_close(struct okv_gds *gds)
{
	if (!gds)
		return;
	gds->api.handle_deregister(gds->handle);
	gds->api.driver_close();
	dlclose(gds->library);
	free(gds);
}

int okv_gds_read(struct okv_gds *gds, void *dev, uint64_t dev_off, uint64_t off, uint64_t bytes)
{
	uint64_t done = 0;

	for (uint32_t i = 0; done < bytes; i++) {
		ssize_t nr = i < TRIES_MAX ? gds->api.read(gds->handle, dev, bytes - done, off + done, dev_off + done) : -1;

		if (nr == -1 && i < TRIES_MAX && errno == EINTR)
			continue;
		/* The end of the file is no end of a block. */
		if (nr <= 0 || (uint64_t)nr > bytes - done)
			return -EIO;
		done += nr;
	}
	return 0;
}
