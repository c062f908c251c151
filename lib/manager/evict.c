/* SPDX-License-Identifier: MIT */
/*
 * Leaf-first LRU on intrusive lists; evict.h says why recording the deepest block is enough.
 *
 * The listed nodes are sorted by tick. Whatever is put in by a touch goes to the tail; an
 * ancestor goes to its victim's place, which is right unless it was itself recorded later,
 * and a node coming back from the parked list belongs near the head. The last two walk
 * forward from there, past nodes that are themselves just back or about to leave.
 */
#include "manager/evict.h"

#include <errno.h>

/* Read once: what is checked is what is used, also where others may write to it. */
#define OKV_READ_ONCE(what)	__atomic_load_n(&(what), __ATOMIC_RELAXED)

static bool is_node(const struct okv_evict *ev, uint32_t id)
{
	return id < ev->nr_ids;
}

/* OKV_EVICT_NONE: none, or none that can be. */
static uint32_t next_of(const struct okv_evict *ev, uint32_t id)
{
	uint32_t next = OKV_READ_ONCE(okv_evict_node(ev, id)->next);

	return is_node(ev, next) ? next : OKV_EVICT_NONE;
}

static uint32_t prev_of(const struct okv_evict *ev, uint32_t id)
{
	uint32_t prev = OKV_READ_ONCE(okv_evict_node(ev, id)->prev);

	return is_node(ev, prev) ? prev : OKV_EVICT_NONE;
}

static void list_init(struct okv_evict_list *list)
{
	list->head = OKV_EVICT_NONE;
	list->tail = OKV_EVICT_NONE;
	list->nr_nodes = 0;
}

/* Insert before @next, or at the tail when it is OKV_EVICT_NONE. */
static void list_insert(struct okv_evict *ev, struct okv_evict_list *list, uint32_t id, uint32_t next)
{
	struct okv_evict_node *node = okv_evict_node(ev, id);
	uint32_t prev = next == OKV_EVICT_NONE ? list->tail : prev_of(ev, next);

	node->prev = prev;
	node->next = next;
	if (prev == OKV_EVICT_NONE)
		list->head = id;
	else
		okv_evict_node(ev, prev)->next = id;
	if (next == OKV_EVICT_NONE)
		list->tail = id;
	else
		okv_evict_node(ev, next)->prev = id;
	list->nr_nodes++;
}

static void list_unlink(struct okv_evict *ev, struct okv_evict_list *list, uint32_t id)
{
	uint32_t prev = prev_of(ev, id), next = next_of(ev, id);

	if (prev == OKV_EVICT_NONE)
		list->head = next;
	else
		okv_evict_node(ev, prev)->next = next;
	if (next == OKV_EVICT_NONE)
		list->tail = prev;
	else
		okv_evict_node(ev, next)->prev = prev;
	list->nr_nodes -= list->nr_nodes != 0;
}

static void take_off(struct okv_evict *ev, uint32_t id)
{
	struct okv_evict_node *node = okv_evict_node(ev, id);

	if (node->state == OKV_EVICT_LISTED)
		list_unlink(ev, &ev->listed, id);
	else if (node->state == OKV_EVICT_PARKED)
		list_unlink(ev, &ev->parked, id);
	node->state = OKV_EVICT_OFF;
}

/* List an OFF node by its tick, looking forward from @from. */
static void list_sorted(struct okv_evict *ev, uint32_t id, uint32_t from)
{
	struct okv_evict_node *node = okv_evict_node(ev, id);
	uint64_t nr_left = ev->listed.nr_nodes;

	/* No list is longer than its count. */
	while (from != OKV_EVICT_NONE && nr_left-- && okv_evict_node(ev, from)->tick < node->tick)
		from = next_of(ev, from);
	list_insert(ev, &ev->listed, id, from);
	node->state = OKV_EVICT_LISTED;
}

void okv_evict_init(struct okv_evict *ev, uint32_t stride)
{
	ev->chunks = NULL;
	ev->stride = stride;
	ev->nr_ids = 0;
	list_init(&ev->listed);
	list_init(&ev->parked);
	ev->tick = 0;
}

void okv_evict_node_init(struct okv_evict *ev, uint32_t id)
{
	struct okv_evict_node *node = okv_evict_node(ev, id);

	*node = (struct okv_evict_node){ .state = OKV_EVICT_OFF, .prev = OKV_EVICT_NONE, .next = OKV_EVICT_NONE };
	if (id >= ev->nr_ids)
		ev->nr_ids = id + 1;
}

void okv_evict_restore(struct okv_evict *ev, uint32_t id, bool is_leaf)
{
	okv_evict_node_init(ev, id);
	okv_evict_node(ev, id)->tick = ++ev->tick;
	if (!is_leaf)
		return;
	list_insert(ev, &ev->listed, id, OKV_EVICT_NONE);
	okv_evict_node(ev, id)->state = OKV_EVICT_LISTED;
}

void okv_evict_touch(struct okv_evict *ev, uint32_t id, uint32_t parent)
{
	struct okv_evict_node *node = okv_evict_node(ev, id);

	if (parent != OKV_EVICT_NONE && okv_evict_node(ev, parent)->state == OKV_EVICT_LISTED)
		take_off(ev, parent);
	take_off(ev, id);
	node->tick = ++ev->tick;
	list_insert(ev, &ev->listed, id, OKV_EVICT_NONE);
	node->state = OKV_EVICT_LISTED;
}

void okv_evict_inherit(struct okv_evict *ev, uint32_t id, uint64_t tick)
{
	struct okv_evict_node *node = okv_evict_node(ev, id);
	uint32_t next = next_of(ev, id);

	if (node->tick >= tick)
		return;
	node->tick = tick;
	if (node->state == OKV_EVICT_LISTED) {
		take_off(ev, id);
		list_sorted(ev, id, next);
	}
}

void okv_evict_demote(struct okv_evict *ev, uint32_t id, bool is_leaf)
{
	struct okv_evict_node *node = okv_evict_node(ev, id);

	take_off(ev, id);
	node->tick = 0;
	if (is_leaf)
		list_sorted(ev, id, ev->listed.head);
}

uint64_t okv_evict_take(struct okv_evict *ev, uint32_t id)
{
	take_off(ev, id);
	return okv_evict_node(ev, id)->tick;
}

void okv_evict_succeed(struct okv_evict *ev, uint32_t id, uint64_t tick, uint32_t next)
{
	struct okv_evict_node *node = okv_evict_node(ev, id);

	if (node->tick < tick) {
		/* Recorded earlier than its descendant; in pinned company it may still be there. */
		if (node->state == OKV_EVICT_LISTED)
			take_off(ev, id);
		node->tick = tick;
	}
	if (node->state == OKV_EVICT_OFF)
		list_sorted(ev, id, next);
}

void okv_evict_del(struct okv_evict *ev, uint32_t id, uint32_t parent)
{
	struct okv_evict_node *node = okv_evict_node(ev, id);
	uint32_t next = node->state == OKV_EVICT_LISTED ? next_of(ev, id) : ev->listed.head;
	uint64_t tick = okv_evict_take(ev, id);

	if (parent != OKV_EVICT_NONE)
		okv_evict_succeed(ev, parent, tick, next);
}

void okv_evict_pass_inner(struct okv_evict *ev, uint32_t id)
{
	take_off(ev, id);
}

void okv_evict_pass_pinned(struct okv_evict *ev, uint32_t id)
{
	take_off(ev, id);
	list_insert(ev, &ev->parked, id, OKV_EVICT_NONE);
	okv_evict_node(ev, id)->state = OKV_EVICT_PARKED;
}

int okv_evict_pin(struct okv_evict *ev, uint32_t id)
{
	struct okv_evict_node *node = okv_evict_node(ev, id);

	if (node->nr_pins == OKV_EVICT_PINS_MAX)
		return -EOVERFLOW;
	node->nr_pins++;
	return 0;
}

void okv_evict_unpin(struct okv_evict *ev, uint32_t id)
{
	struct okv_evict_node *node = okv_evict_node(ev, id);

	if (node->nr_pins)
		node->nr_pins--;
	if (node->nr_pins == 0 && node->state == OKV_EVICT_PARKED) {
		take_off(ev, id);
		list_sorted(ev, id, ev->listed.head);
	}
}

static int list_check(const struct okv_evict *ev, const struct okv_evict_list *list, enum okv_evict_state state,
		      const char **reason)
{
	uint64_t nr = 0, tick = 0;
	uint32_t id, prev = OKV_EVICT_NONE;

	for (id = list->head; id != OKV_EVICT_NONE; id = okv_evict_node(ev, id)->next) {
		const struct okv_evict_node *node = okv_evict_node(ev, id);

		if (nr++ >= list->nr_nodes || node->prev != prev) {
			*reason = "eviction list is not linked both ways, or longer than it says";
			return -EUCLEAN;
		}
		if (node->state != state) {
			*reason = "eviction list holds a node of another state";
			return -EUCLEAN;
		}
		if (state == OKV_EVICT_LISTED && node->tick < tick) {
			*reason = "eviction order: ticks fall";
			return -EUCLEAN;
		}
		if (state == OKV_EVICT_PARKED && node->nr_pins == 0) {
			*reason = "eviction: a parked node has no pin";
			return -EUCLEAN;
		}
		tick = node->tick;
		prev = id;
	}
	if (nr != list->nr_nodes || list->tail != prev || tick > ev->tick) {
		*reason = "eviction list is shorter than it says, or of the future";
		return -EUCLEAN;
	}
	return 0;
}

int okv_evict_check(const struct okv_evict *ev, const char **reason)
{
	int ret = list_check(ev, &ev->listed, OKV_EVICT_LISTED, reason);

	return ret ? ret : list_check(ev, &ev->parked, OKV_EVICT_PARKED, reason);
}
