/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Children, programs and ends of processes: followed here, so that no fork is too quick.
 */
#ifndef UNIDLE_PROCESSES_H
#define UNIDLE_PROCESSES_H

#include "threads.h"

static inline_always void tell(__u32 type, __u32 pid, __u32 tid)
{
	struct event event = { .type = type, .pid = pid, .tid = tid, .time = bpf_ktime_get_ns() };

	if (bpf_ringbuf_output(&ring, &event, sizeof(event), BPF_RB_FORCE_WAKEUP))
		count(lost_events, 1);
}

SEC("tp_btf/sched_process_fork")
int forked(__u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	__u32 pid = child->tgid, tid = child->pid, from = parent->tgid;
	struct target *target = watched(from);

	if (!target)
		return 0;
	if (pid != from) {
		if (!(target->flags & TARGET_FOLLOW))
			return 0;
		/* The child's memory is its parent's, so Python is where it was. */
		if (bpf_map_update_elem(&targets, &pid, target, BPF_ANY)) {
			count(lost_targets, 1);
			return 0;
		}
		tell(FORKED, pid, from);
	}
	enter(pid, tid, RUNQ, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_process_exec")
int execed(__u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	__u32 pid = task->tgid, tid = task->pid, old = (__u32)ctx[1], place = 0;
	struct target *target = watched(pid);
	struct thread *t;

	if (!target)
		return 0;
	target->python.version = 0;
	if (old != tid) {
		/* A thread that is not the first execs: it takes over the first one's number, and starts anew under it. */
		__u64 now = bpf_ktime_get_ns();

		t = known(old, &place);
		if (t) {
			__sync_fetch_and_add(&t->seq, 1);
			change(t, ON, ON, now);
			end(t, task, old);
			__sync_fetch_and_add(&t->seq, 1);
		}
		t = known(tid, &place);
		if (t)
			end(t, task, tid);
		enter(pid, tid, ON, now);
	}
	t = known(tid, &place);
	if (t) {
		t->python = 0;
		t->python_tries = t->python_skip = 0;
	}
	tell(EXECED, pid, tid);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int exited(__u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	__u32 pid = task->tgid;
	struct target *target;

	if (task->signal->live.counter)
		return 0;
	target = watched(pid);
	if (!target)
		return 0;
	target->flags |= TARGET_ENDED;
	tell(EXITED, pid, task->pid);
	return 0;
}

#endif
