// SPDX-License-Identifier: MIT
/*
 * Fail-points: the table of what is armed. See failpoint.h.
 *
 * Only in builds with OKV_FAILPOINTS; empty otherwise. The table is the library's one piece of
 * global state, and exists for tests alone. One mutex guards it; it is dropped before a test's
 * callback runs and before any sleep, so a callback may arm and disarm.
 */
#include "failpoint.h"

#ifdef OKV_FAILPOINTS

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NR_POINTS	32
#define NAME_BYTES	64

struct armed {
	struct okv_failpoint	point;	/* its name is @name below */
	char			name[NAME_BYTES];
	uint64_t		nr_hits;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct armed table[NR_POINTS];	/* under lock; a free slot has an empty name */
/* How many slots are taken: lets a hit pass without the lock while nothing is armed. */
static atomic_uint nr_armed;
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;

static void read_environment(void)
{
	const char *text = getenv("OMNIKV_FAILPOINTS");

	if (text)
		okv_failpoint_arm_text(text);
}

static struct armed *find_locked(const char *name)
{
	for (unsigned int i = 0; i < NR_POINTS; i++)
		if (table[i].name[0] && !strcmp(table[i].name, name))
			return &table[i];
	return NULL;
}

static struct armed *find_free_locked(void)
{
	for (unsigned int i = 0; i < NR_POINTS; i++)
		if (!table[i].name[0])
			return &table[i];
	return NULL;
}

static void drop_locked(struct armed *slot)
{
	slot->name[0] = '\0';
	atomic_fetch_sub_explicit(&nr_armed, 1, memory_order_relaxed);
}

int okv_failpoint_arm(const struct okv_failpoint *point)
{
	struct armed *slot;
	int ret = 0;

	if (!point->name || !point->name[0] || strlen(point->name) >= NAME_BYTES)
		return -EINVAL;

	pthread_mutex_lock(&lock);
	slot = find_locked(point->name);
	if (!slot) {
		slot = find_free_locked();
		if (!slot) {
			ret = -ENOSPC;
			goto out;
		}
		strcpy(slot->name, point->name);
		atomic_fetch_add_explicit(&nr_armed, 1, memory_order_relaxed);
	}
	slot->point = *point;
	slot->point.name = slot->name;
	slot->nr_hits = 0;
out:
	pthread_mutex_unlock(&lock);
	return ret;
}

static int set_key(struct okv_failpoint *point, const char *key, uint32_t value)
{
	if (!strcmp(key, "nth"))
		point->nth = value;
	else if (!strcmp(key, "times"))
		point->times = value;
	else if (!strcmp(key, "error") && value <= 4095)
		point->error = (int)value;
	else if (!strcmp(key, "delay"))
		point->delay_ms = value;
	else if (!strcmp(key, "kill") && value <= 1)
		point->flags = value ? OKV_FAILPOINT_F_KILL : 0;
	else
		return -EINVAL;
	return 0;
}

/* @text is one point and is cut up. */
static int arm_one_text(char *text)
{
	struct okv_failpoint point = { 0 };
	char *save = NULL;
	char *part;

	point.name = strtok_r(text, ":", &save);
	while ((part = strtok_r(NULL, ":", &save))) {
		char *value = strchr(part, '=');
		unsigned long number;
		char *end;

		if (!value || value[1] < '0' || value[1] > '9')
			return -EINVAL;
		*value++ = '\0';
		number = strtoul(value, &end, 10);
		if (*end || number > UINT32_MAX || set_key(&point, part, (uint32_t)number))
			return -EINVAL;
	}
	return okv_failpoint_arm(&point);
}

int okv_failpoint_arm_text(const char *text)
{
	char *copy = strdup(text);
	char *save = NULL;
	int ret = 0;

	if (!copy)
		return -ENOMEM;
	for (char *one = strtok_r(copy, ";", &save); one && !ret; one = strtok_r(NULL, ";", &save))
		ret = arm_one_text(one);
	free(copy);
	return ret;
}

void okv_failpoint_disarm(const char *name)
{
	struct armed *slot;

	pthread_mutex_lock(&lock);
	slot = find_locked(name);
	if (slot)
		drop_locked(slot);
	pthread_mutex_unlock(&lock);
}

void okv_failpoint_disarm_all(void)
{
	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; i < NR_POINTS; i++)
		if (table[i].name[0])
			drop_locked(&table[i]);
	pthread_mutex_unlock(&lock);
}

uint64_t okv_failpoint_hits(const char *name)
{
	struct armed *slot;
	uint64_t nr_hits = 0;

	pthread_mutex_lock(&lock);
	slot = find_locked(name);
	if (slot)
		nr_hits = slot->nr_hits;
	pthread_mutex_unlock(&lock);
	return nr_hits;
}

static void sleep_ms(uint32_t ms)
{
	struct timespec left = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };

	while (nanosleep(&left, &left) && errno == EINTR)
		;
}

int okv_failpoint_hit(const char *name)
{
	struct okv_failpoint point;
	struct armed *slot;
	bool is_firing = false;
	int saved_errno = errno;

	pthread_once(&environment_once, read_environment);
	if (!atomic_load_explicit(&nr_armed, memory_order_relaxed))
		return 0;

	pthread_mutex_lock(&lock);
	slot = find_locked(name);
	if (slot) {
		uint64_t first = slot->point.nth ? slot->point.nth : 1;

		slot->nr_hits++;
		point = slot->point;
		is_firing = slot->nr_hits >= first &&
			    (!point.times || slot->nr_hits < first + point.times);
	}
	pthread_mutex_unlock(&lock);
	if (!is_firing)
		return 0;

	if (point.delay_ms)
		sleep_ms(point.delay_ms);
	if (point.flags & OKV_FAILPOINT_F_KILL)
		raise(SIGKILL);
	if (point.fn)
		point.error = point.fn(point.opaque, name);
	errno = saved_errno;
	return point.error;
}

#endif /* OKV_FAILPOINTS */
