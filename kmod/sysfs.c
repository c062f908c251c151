// SPDX-License-Identifier: GPL-2.0-only
/*
 * What administrators see below /sys/class/misc/omnikv: version and features of the module, and
 * a directory for each pool, one value a file, with uevents when pools come and go. Limits are
 * the module's parameters. Entered by readers, and by creation and end of pools; an end waits
 * for readers, so no lock is held then that they take.
 */
#include <linux/device.h>
#include <linux/kobject.h>
#include <linux/sysfs.h>

#include "okv.h"

static struct kset *okv_pools_kset;

/* ---- the module ----------------------------------------------------------------------- */

static ssize_t version_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", OMNIKV_UAPI_VERSION);
}
static DEVICE_ATTR_RO(version);

static ssize_t features_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "windows meta_windows numa revoke\n");
}
static DEVICE_ATTR_RO(features);

static ssize_t limit_bytes_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%lu\n", okv_limit_bytes);
}
static DEVICE_ATTR_RO(limit_bytes);

static ssize_t used_bytes_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", okv_used_bytes());
}
static DEVICE_ATTR_RO(used_bytes);

static struct attribute *okv_dev_attrs[] = {
	&dev_attr_version.attr,
	&dev_attr_features.attr,
	&dev_attr_limit_bytes.attr,
	&dev_attr_used_bytes.attr,
	NULL,
};

static const struct attribute_group okv_dev_group = { .attrs = okv_dev_attrs };

/* ---- pools ---------------------------------------------------------------------------- */

struct okv_pool_attr {
	struct attribute	attr;
	ssize_t			(*show)(struct okv_pool *pool, char *buf);
};

#define POOL_ATTR(name) \
	static struct okv_pool_attr okv_attr_##name = { { __stringify(name), 0444 }, name##_show }
#define POOL_VALUE(name, format, value) \
	static ssize_t name##_show(struct okv_pool *pool, char *buf) \
	{ \
		return sysfs_emit(buf, format "\n", value); \
	} \
	POOL_ATTR(name)

static u64 granules_of(struct okv_pool *pool, unsigned int state)
{
	u64 nr;

	spin_lock(&pool->map_lock);
	nr = pool->map.state_granules[state];
	spin_unlock(&pool->map_lock);
	return nr * pool->granule_bytes;
}

static u64 extents_of(struct okv_pool *pool, unsigned int state)
{
	u64 nr;

	spin_lock(&pool->map_lock);
	nr = pool->map.nr_extents[state];
	spin_unlock(&pool->map_lock);
	return nr;
}

static const char *const okv_pool_state_names[] = {
	[OKV_POOL_NEW] = "creating", [OKV_POOL_LIVE] = "live", [OKV_POOL_DEAD] = "dead",
	[OKV_POOL_DROPPED] = "dropped",
};

POOL_VALUE(state, "%s", okv_pool_state_names[READ_ONCE(pool->state)]);
POOL_VALUE(bytes, "%llu", pool->bytes);
POOL_VALUE(ready_bytes, "%llu", (u64)atomic64_read(&pool->ready_units) << OKV_UNIT_SHIFT);
POOL_VALUE(granule_bytes, "%u", pool->granule_bytes);
POOL_VALUE(client_bytes, "%llu", pool->client_bytes);
POOL_VALUE(uid, "%u", from_kuid(&init_user_ns, READ_ONCE(pool->uid)));
POOL_VALUE(gid, "%u", from_kgid(&init_user_ns, READ_ONCE(pool->gid)));
POOL_VALUE(mode, "0%o", READ_ONCE(pool->mode));
POOL_VALUE(epoch, "%u", READ_ONCE(pool->epoch));
POOL_VALUE(clients, "%u", READ_ONCE(pool->nr_clients));
POOL_VALUE(leases, "%lld", atomic64_read(&pool->nr_leases));
POOL_VALUE(bound_pages_total, "%lld", atomic64_read(&pool->nr_binds));
POOL_VALUE(zaps_total, "%lld", atomic64_read(&pool->nr_zaps));
POOL_VALUE(huge_page_misses, "%llu", pool->seg.nr_small);
POOL_VALUE(free_bytes, "%llu", granules_of(pool, OMNIKV_EXTENT_FREE));
POOL_VALUE(private_bytes, "%llu", granules_of(pool, OMNIKV_EXTENT_PRIVATE));
POOL_VALUE(sealed_bytes, "%llu", granules_of(pool, OMNIKV_EXTENT_SEALED));
POOL_VALUE(meta_bytes, "%llu", granules_of(pool, OMNIKV_EXTENT_META));
POOL_VALUE(quarantined_bytes, "%llu", granules_of(pool, OMNIKV_EXTENT_QUARANTINED));
POOL_VALUE(private_extents, "%llu", extents_of(pool, OMNIKV_EXTENT_PRIVATE));
POOL_VALUE(sealed_extents, "%llu", extents_of(pool, OMNIKV_EXTENT_SEALED));
POOL_VALUE(meta_extents, "%llu", extents_of(pool, OMNIKV_EXTENT_META));
POOL_VALUE(quarantined_extents, "%llu", extents_of(pool, OMNIKV_EXTENT_QUARANTINED));

/* "NODE BYTES" a line, of the nodes that have any. */
static ssize_t node_bytes_show(struct okv_pool *pool, char *buf)
{
	int i, len = 0;

	for (i = 0; i < ARRAY_SIZE(pool->seg.node_bytes); i++)
		if (pool->seg.node_bytes[i])
			len += sysfs_emit_at(buf, len, "%d %llu\n", i, pool->seg.node_bytes[i]);
	return len;
}
POOL_ATTR(node_bytes);

static struct attribute *okv_pool_attrs[] = {
	&okv_attr_state.attr, &okv_attr_bytes.attr, &okv_attr_ready_bytes.attr,
	&okv_attr_granule_bytes.attr, &okv_attr_client_bytes.attr, &okv_attr_uid.attr,
	&okv_attr_gid.attr, &okv_attr_mode.attr, &okv_attr_epoch.attr, &okv_attr_clients.attr,
	&okv_attr_leases.attr, &okv_attr_bound_pages_total.attr, &okv_attr_zaps_total.attr,
	&okv_attr_huge_page_misses.attr, &okv_attr_free_bytes.attr, &okv_attr_private_bytes.attr,
	&okv_attr_sealed_bytes.attr, &okv_attr_meta_bytes.attr, &okv_attr_quarantined_bytes.attr,
	&okv_attr_private_extents.attr, &okv_attr_sealed_extents.attr, &okv_attr_meta_extents.attr,
	&okv_attr_quarantined_extents.attr, &okv_attr_node_bytes.attr,
	NULL,
};
ATTRIBUTE_GROUPS(okv_pool);

static ssize_t pool_attr_show(struct kobject *kobj, struct attribute *attr, char *buf)
{
	struct okv_pool *pool = container_of(kobj, struct okv_pool, kobj);

	return container_of(attr, struct okv_pool_attr, attr)->show(pool, buf);
}

static const struct sysfs_ops okv_pool_sysfs_ops = { .show = pool_attr_show };

static void pool_kobj_release(struct kobject *kobj)
{
	complete(&container_of(kobj, struct okv_pool, kobj)->kobj_gone);
}

static struct kobj_type okv_pool_ktype = {
	.release	= pool_kobj_release,
	.sysfs_ops	= &okv_pool_sysfs_ops,
	.default_groups	= okv_pool_groups,
};

int okv_sysfs_pool_add(struct okv_pool *pool)
{
	int ret;

	pool->kobj.kset = okv_pools_kset;
	ret = kobject_init_and_add(&pool->kobj, &okv_pool_ktype, NULL, "%s", pool->name);
	if (ret) {
		kobject_put(&pool->kobj);
		wait_for_completion(&pool->kobj_gone);
		return ret;
	}
	kobject_uevent(&pool->kobj, KOBJ_ADD);
	return 0;
}

void okv_sysfs_pool_del(struct okv_pool *pool)
{
	kobject_uevent(&pool->kobj, KOBJ_REMOVE);
	kobject_del(&pool->kobj);
	kobject_put(&pool->kobj);
	wait_for_completion(&pool->kobj_gone);
}

int okv_sysfs_init(struct device *dev)
{
	int ret;

	okv_pools_kset = kset_create_and_add("pools", NULL, &dev->kobj);
	if (!okv_pools_kset)
		return -ENOMEM;
	ret = sysfs_create_group(&dev->kobj, &okv_dev_group);
	if (ret)
		kset_unregister(okv_pools_kset);
	return ret;
}

void okv_sysfs_exit(struct device *dev)
{
	sysfs_remove_group(&dev->kobj, &okv_dev_group);
	kset_unregister(okv_pools_kset);
}
