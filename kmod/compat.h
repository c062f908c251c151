/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What differs between the kernels that the module is built for. The OKV_HAVE_* come from
 * Kbuild, which looks into the headers of the kernel at hand. Nothing else in kmod/ asks
 * which kernel it is.
 */
#ifndef OKV_COMPAT_H
#define OKV_COMPAT_H

#include <linux/mm.h>

#ifndef OKV_HAVE_VM_FLAGS_SET
static inline void vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags &= ~flags;
}
#endif

/* How many page-table entries map any page of a large file folio. */
static inline int okv_folio_mapcount(struct folio *folio)
{
#ifdef OKV_HAVE_FOLIO_MAPCOUNT
	return folio_mapcount(folio);
#else
	long i, nr = folio_nr_pages(folio);
	int entire = folio_entire_mapcount(folio), sum = entire;

	for (i = 0; i < nr; i++)
		sum += atomic_read(&folio_page(folio, i)->_mapcount) + 1;
	/* A whole mapping of a file folio is counted at each of its pages as well. */
	return sum - entire * nr;
#endif
}

#endif /* OKV_COMPAT_H */
