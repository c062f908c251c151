/* SPDX-License-Identifier: MIT */
/*
 * A pin: one count on an index entry, and the record of who has it.
 *
 * The entry's ancestors cannot leave before it, so one pin protects a whole path. Pins hang
 * in a list of their shelf so that what is protected can be counted exactly. All fields are
 * guarded by the manager's lock.
 */
#ifndef OKV_PIN_H
#define OKV_PIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct okv_shelf;

/**
 * struct okv_pin
 * @shelf:     whose index @entry is in
 * @entry:     index entry
 * @nr_blocks: of the path down to it
 * @prev:      NULL: not active
 */
struct okv_pin {
	struct okv_shelf *shelf;
	uint32_t	entry;
	uint32_t	nr_blocks;
	struct okv_pin	*prev;
	struct okv_pin	*next;
};

static inline bool okv_pin_is_active(const struct okv_pin *pin)
{
	return pin->prev != NULL;
}

#endif /* OKV_PIN_H */
