// SPDX-License-Identifier: GPL-2.0-only
/*
 * The module itself: its limits, the control node /dev/omnikv, and the private pseudo file
 * system that the files of pools and windows live in. Leaves everything that a file does to
 * pool.c and window.c. Entered by module load and unload, and by whoever makes a file.
 */
#include <linux/file.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>
#include <linux/sysinfo.h>

#include "okv.h"

#define OKV_FS_MAGIC	0x6f6b7631	/* "okv1" */

ulong okv_limit_bytes;
module_param_named(limit_bytes, okv_limit_bytes, ulong, 0644);
MODULE_PARM_DESC(limit_bytes, "most bytes of all pools together (0 at load: 7/8 of memory)");

ulong okv_user_bytes;
module_param_named(user_bytes, okv_user_bytes, ulong, 0644);
MODULE_PARM_DESC(user_bytes, "most bytes of pools made by one uid without CAP_SYS_ADMIN (default 0: none)");

uint okv_windows_max = 1024;
module_param_named(windows_max, okv_windows_max, uint, 0644);
MODULE_PARM_DESC(windows_max, "most windows a client");

uint okv_leases_max = 16 << 20;
module_param_named(leases_max, okv_leases_max, uint, 0644);
MODULE_PARM_DESC(leases_max, "most leases a client and pool");

uint okv_binds_max = 64 << 20;
module_param_named(binds_max, okv_binds_max, uint, 0644);
MODULE_PARM_DESC(binds_max, "most 4-KiB pages bound in windows of a client and pool");

uint okv_quarantine_ms = 1000;
module_param_named(quarantine_ms, okv_quarantine_ms, uint, 0644);
MODULE_PARM_DESC(quarantine_ms, "how long memory of a dead client rests at most while something refers to it, in ms");

struct workqueue_struct *okv_wq;
struct kmem_cache *okv_hold_cache;
struct kmem_cache *okv_bind_cache;
static struct vfsmount *okv_mnt;

static int okv_fs_init(struct fs_context *fc)
{
	return init_pseudo(fc, OKV_FS_MAGIC) ? 0 : -ENOMEM;
}

/* Without owner: kern_mount() would pin the module for ever. Files pin it by themselves. */
static struct file_system_type okv_fs_type = {
	.name		= "omnikv",
	.init_fs_context = okv_fs_init,
	.kill_sb	= kill_anon_super,
};

/* The size stands for the object, and owners and modes are not looked at: nothing to set. */
#ifdef OKV_HAVE_MNT_IDMAP
static int okv_setattr(struct mnt_idmap *idmap, struct dentry *dentry, struct iattr *attr)
#else
static int okv_setattr(struct user_namespace *ns, struct dentry *dentry, struct iattr *attr)
#endif
{
	return -EPERM;
}

static const struct inode_operations okv_inode_ops = { .setattr = okv_setattr };

struct file *okv_file_create(const char *name, const struct file_operations *fops, void *priv, u64 size)
{
	struct inode *inode;
	struct file *file;

	inode = alloc_anon_inode(okv_mnt->mnt_sb);
	if (IS_ERR(inode))
		return ERR_CAST(inode);
	inode->i_mode = S_IFREG | 0600;
	inode->i_op = &okv_inode_ops;
	i_size_write(inode, size);

	/* The file takes fops->owner without counting it, and gives it up when it goes. */
	__module_get(THIS_MODULE);
	file = alloc_file_pseudo(inode, okv_mnt, name, O_RDWR, fops);
	if (IS_ERR(file)) {
		module_put(THIS_MODULE);
		iput(inode);
		return file;
	}
	file->private_data = priv;
	return file;
}

static const struct file_operations okv_fops = {
	.owner		= THIS_MODULE,
	.open		= okv_client_open,
	.release	= okv_client_release,
	.unlocked_ioctl	= okv_ioctl,
	.compat_ioctl	= compat_ptr_ioctl,
	.llseek		= noop_llseek,
};

static struct miscdevice okv_misc = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "omnikv",
	.fops	= &okv_fops,
	/* Who may open which pool is the pool's own mode. */
	.mode	= 0666,
};

static int __init okv_init(void)
{
	int ret;

	if (!okv_limit_bytes) {
		struct sysinfo si;

		si_meminfo(&si);
		okv_limit_bytes = (si.totalram - si.totalram / 8) * si.mem_unit;
	}

	okv_hold_cache = KMEM_CACHE(okv_hold, SLAB_ACCOUNT);
	if (!okv_hold_cache)
		return -ENOMEM;
	ret = -ENOMEM;
	okv_bind_cache = KMEM_CACHE(okv_bind, SLAB_ACCOUNT);
	if (!okv_bind_cache)
		goto err_holds;
	okv_wq = alloc_workqueue("omnikv", WQ_UNBOUND, 0);
	if (!okv_wq)
		goto err_binds;

	okv_mnt = kern_mount(&okv_fs_type);
	ret = PTR_ERR_OR_ZERO(okv_mnt);
	if (ret)
		goto err_wq;

	ret = misc_register(&okv_misc);
	if (ret)
		goto err_mount;

	ret = okv_sysfs_init(okv_misc.this_device);
	if (ret)
		goto err_misc;
	return 0;

err_misc:
	misc_deregister(&okv_misc);
err_mount:
	kern_unmount(okv_mnt);
err_wq:
	destroy_workqueue(okv_wq);
err_binds:
	kmem_cache_destroy(okv_bind_cache);
err_holds:
	kmem_cache_destroy(okv_hold_cache);
	return ret;
}

/* No file and no pool is left: each of them pins the module. */
static void __exit okv_exit(void)
{
	okv_sysfs_exit(okv_misc.this_device);
	misc_deregister(&okv_misc);
	mmu_notifier_synchronize();
	okv_quarantine_exit();
	destroy_workqueue(okv_wq);
	kern_unmount(okv_mnt);
	kmem_cache_destroy(okv_bind_cache);
	kmem_cache_destroy(okv_hold_cache);
}

module_init(okv_init);
module_exit(okv_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Pinned host memory for KV caches: pools, extents, windows");
