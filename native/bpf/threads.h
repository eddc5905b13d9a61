/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The table of threads: who has a place, and how a thread goes from one state to the next.
 */
#ifndef UNIDLE_THREADS_H
#define UNIDLE_THREADS_H

#include "registers.h"
#include "scope_maps.h"

static inline_always struct target *watched(__u32 pid)
{
	return bpf_map_lookup_elem(&targets, &pid);
}

static inline_always struct thread *known(__u32 tid, __u32 *place)
{
	__u32 *at = bpf_map_lookup_elem(&places, &tid);

	if (!at)
		return 0;
	*place = *at;
	return bpf_map_lookup_elem(&threads, at);
}

/* A place that was given back, or else the next that was never used. */
static inline_always bool vacancy(__u32 *place)
{
	struct counters *c;
	__u64 next;

	if (!bpf_map_pop_elem(&vacant, place))
		return 1;
	c = bpf_map_lookup_elem(&counted, &zero);
	if (!c)
		return 0;
	next = __sync_fetch_and_add(&c->high, 1);
	*place = (__u32)next;
	return next < THREADS_MAX;
}

/* Nothing where the table is full, or where another CPU was quicker. */
static inline_always struct thread *enter(__u32 pid, __u32 tid, __u32 state, __u64 now)
{
	struct thread *t;
	__u32 place = 0;

	if (!vacancy(&place)) {
		count(lost_threads, 1);
		return 0;
	}
	t = bpf_map_lookup_elem(&threads, &place);
	if (!t)
		return 0;
	__sync_fetch_and_add(&t->seq, 1);
	t->pid = pid;
	t->tid = tid;
	t->since = now;
	t->first = now;
	t->on = t->off = t->runq = t->switches = 0;
	t->ip = t->sp = t->bp = t->lr = 0;
	t->call = -1;
	t->args[0] = t->args[1] = t->args[2] = 0;
	t->fsbase = 0;
	t->task_state = 0;
	t->samples = 0;
	t->python = 0;
	t->python_tries = t->python_skip = 0;
	t->comm[0] = 0;
	t->n_returns = 0;
	t->state = state;
	__sync_fetch_and_add(&t->seq, 1);
	if (bpf_map_update_elem(&places, &tid, &place, BPF_NOEXIST)) {
		t->state = FREE;
		bpf_map_push_elem(&vacant, &place, 0);
		return 0;
	}
	return t;
}

/* The time since the last change goes where `was` says, and a new state begins. */
static inline_always void change(struct thread *t, __u32 was, __u32 is, __u64 now)
{
	__u64 ns = now > t->since ? now - t->since : 0;

	if (was == ON)
		t->on += ns;
	else if (was == OFF)
		t->off += ns;
	else
		t->runq += ns;
	t->since += ns;
	t->state = is;
}

static inline_always void end(struct thread *t, struct task_struct *task, __u32 tid)
{
	bpf_probe_read_kernel(t->comm, sizeof(t->comm), task->comm);
	t->state = ENDED;
	bpf_map_delete_elem(&places, &tid);
}

#endif
