/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Exact times of every thread: the tracepoints of the scheduler, and a look at what is there when watching starts.
 */
#ifndef UNIDLE_SWITCHES_H
#define UNIDLE_SWITCHES_H

#include "returns.h"
#include "threads.h"

static inline_always void leave(struct task_struct *task, bool preempted, __u32 task_state, __u64 now)
{
	__u32 pid = task->tgid, tid = task->pid, place = 0;
	bool runnable = preempted || !task_state, dead = task_state & 0x80; /* TASK_DEAD */
	struct thread *t;
	struct user user;

	t = known(tid, &place);
	if (!t) {
		if (dead || !watched(pid))
			return;
		/* Seen for the first time as it leaves: its times start here. */
		t = enter(pid, tid, runnable ? RUNQ : OFF, now);
		if (!t)
			t = known(tid, &place); /* it was entered meanwhile */
		if (!t)
			return;
	}
	user_side(task, &user);
	__sync_fetch_and_add(&t->seq, 1);
	change(t, ON, runnable ? RUNQ : OFF, now); /* it did run, whatever was believed */
	t->switches++;
	t->ip = user.ip;
	t->sp = user.sp;
	t->bp = user.bp;
	t->lr = user.lr;
	t->call = user.call;
	t->args[0] = user.args[0];
	t->args[1] = user.args[1];
	t->args[2] = user.args[2];
	t->fsbase = thread_pointer(task);
	t->task_state = task_state;
	keep_returns(task, t);
	if (dead && !preempted)
		end(t, task, tid);
	__sync_fetch_and_add(&t->seq, 1);
}

static inline_always void arrive(struct task_struct *task, __u64 now)
{
	__u32 tid = task->pid, place = 0;
	struct thread *t = known(tid, &place);

	if (!t) {
		if (!watched(task->tgid) || enter(task->tgid, tid, ON, now))
			return;
		/* It was entered meanwhile, as one that does not run. */
		t = known(tid, &place);
		if (!t)
			return;
	}
	__sync_fetch_and_add(&t->seq, 1);
	change(t, t->state == OFF ? OFF : RUNQ, ON, now);
	__sync_fetch_and_add(&t->seq, 1);
}

static inline_always void on_switch(__u64 *ctx, __u32 task_state)
{
	struct task_struct *prev = (void *)ctx[1], *next = (void *)ctx[2];
	__u64 now;

	/* Kernel threads have no place, nor has the idle one: one look at a flag (PF_KTHREAD) or number keeps them out. */
	now = bpf_ktime_get_ns();
	if (prev->pid && !(prev->flags & 0x200000))
		leave(prev, ctx[0], task_state, now);
	if (next->pid && !(next->flags & 0x200000))
		arrive(next, now);
}

/* The argument prev_state is there since 5.18; the loader takes the program that loads. */
SEC("tp_btf/sched_switch")
int switched(__u64 *ctx)
{
	on_switch(ctx, (__u32)ctx[3]);
	return 0;
}

SEC("tp_btf/sched_switch")
int switched_before_5_18(__u64 *ctx)
{
	on_switch(ctx, state_of((void *)ctx[1]));
	return 0;
}

SEC("tp_btf/sched_wakeup")
int woken(__u64 *ctx)
{
	struct task_struct *task = (void *)ctx[0];
	__u32 place = 0;
	struct thread *t;
	__u64 now;

	if (task->flags & 0x200000)
		return 0;
	t = known(task->pid, &place);
	if (!t) {
		if (watched(task->tgid))
			enter(task->tgid, task->pid, RUNNABLE, bpf_ktime_get_ns());
		return 0;
	}
	/* One that runs, and is woken before it has gone to sleep, goes on running. */
	if (t->state != OFF)
		return 0;
	now = bpf_ktime_get_ns();
	__sync_fetch_and_add(&t->seq, 1);
	change(t, OFF, RUNQ, now);
	__sync_fetch_and_add(&t->seq, 1);
	return 0;
}

/* Every thread that is there when watching starts: also what has slept for hours gets its place and its registers. */
SEC("iter/task")
int there_already(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u32 state, place = 0;
	struct thread *t;
	struct user user;

	if (!task || (task->flags & 0x200000) || !watched(task->tgid))
		return 0;
	t = known(task->pid, &place);
	if (t)
		return 0;
	state = state_of(task);
	if (state & 0xa0) /* TASK_DEAD, or on its way there: 0x80, and EXIT_ZOMBIE of old kernels */
		return 0;
	t = enter(task->tgid, task->pid, state ? OFF : RUNNABLE, bpf_ktime_get_ns());
	if (!t || !state)
		return 0;
	user_side(task, &user);
	/* It may have been woken since: then these are the registers it had before, as `leave` would have them. */
	t->ip = user.ip;
	t->sp = user.sp;
	t->bp = user.bp;
	t->lr = user.lr;
	t->args[0] = user.args[0];
	t->args[1] = user.args[1];
	t->args[2] = user.args[2];
	t->call = user.call;
	t->fsbase = thread_pointer(task);
	t->task_state = state;
	keep_returns(task, t);
	return 0;
}

#endif
