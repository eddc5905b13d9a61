/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Samples of what runs: a timer on every CPU takes registers, Python's frames, and a piece of the stack.
 */
#ifndef UNIDLE_SAMPLES_H
#define UNIDLE_SAMPLES_H

#include "python_walk.h"
#include "returns.h"

#define RETURNS_OF_SAMPLE 16

static inline_always __u32 copy_stack(struct walk *w, __u64 sp)
{
	__u32 done = 0;

#pragma unroll
	for (__u32 i = 0; i < STACK_BYTES / PIECE_BYTES; i++) {
		if (bpf_probe_read_user(w->sample.stack + i * PIECE_BYTES, PIECE_BYTES,
					(const void *)(sp + i * PIECE_BYTES)))
			break;
		done = (i + 1) * PIECE_BYTES;
	}
	if (done < STACK_BYTES) {
		/* What is left up to the end of the page: stacks end where pages do. */
		__u32 rest = 4096 - ((__u32)(sp + done) & 4095);

		if (rest < PIECE_BYTES && done <= STACK_BYTES - PIECE_BYTES &&
		    !bpf_probe_read_user(w->sample.stack + done, rest, (const void *)(sp + done)))
			done += rest;
	}
	return done;
}

/* Arrays of the leaf (MKL packs its matrices there) may be larger than what was copied, or have pages that nobody has
 * written to yet, where the copy ends. Its callers are at the outer end of the stack: below where the main thread's
 * began, and below the thread's own data for the others. Copied piece by piece from the end on, down to such a page. */
static inline_always __u32 copy_outer(struct walk *w, struct task_struct *task, __u64 from)
{
	struct mm_struct *mm = task->mm;
	__u64 end;
	__u32 done = 0;

	if (!mm)
		return 0;
	end = task->pid == task->tgid ? mm->start_stack : thread_pointer(task);
	end = (end + PIECE_BYTES - 1) & ~(PIECE_BYTES - 1ull);
	if (end <= from || end - from > (1ull << 30))
		return 0;
	w->sample.outer = end;
#pragma unroll
	for (__u32 i = 0; i < OUTER_BYTES / PIECE_BYTES; i++) {
		if (end - i * PIECE_BYTES <= from ||
		    bpf_probe_read_user(w->sample.stack + STACK_BYTES + i * PIECE_BYTES, PIECE_BYTES,
					(const void *)(end - (i + 1) * PIECE_BYTES)))
			break;
		done = (i + 1) * PIECE_BYTES;
	}
	return done;
}

/* The copy of the stack has the addresses that the functions will return to in truth. */
static inline_always void restore_returns(struct walk *w, struct task_struct *task, __u64 sp)
{
	struct return_instance *awaited = returns_of(task);

	for (__u32 i = 0; awaited && i < RETURNS_OF_SAMPLE; i++) {
		__u64 far, outer;

		far = awaited->stack - sp;
		outer = (w->sample.outer - 1 - awaited->stack) & ~(PIECE_BYTES - 1ull);
		outer |= awaited->stack & (PIECE_BYTES - 1);
		if (!(far & 7) && far + 8 <= w->sample.n_stack && far <= STACK_BYTES - 8)
			*(__u64 *)(w->sample.stack + far) = awaited->orig_ret_vaddr;
		else if (!(outer & 7) && outer + 8 <= w->sample.n_outer && outer <= OUTER_BYTES - 8)
			*(__u64 *)(w->sample.stack + STACK_BYTES + outer) = awaited->orig_ret_vaddr;
		awaited = awaited->next;
	}
}

SEC("perf_event")
int clocked(void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 pid = task->tgid, place = 0;
	struct target *target = watched(pid);
	struct thread *t;
	struct user user;
	struct walk *w;
	__u32 size;
	long n;

	if (!target)
		return 0;
	w = walk_of_this_cpu();
	t = known(task->pid, &place);
	if (!w)
		return 0;
	if (!t) {
		t = enter(pid, task->pid, ON, bpf_ktime_get_ns());
		if (!t)
			return 0;
		known(task->pid, &place);
	}
	if (t->state == RUNNABLE)
		t->state = ON; /* now it is known: it was on a CPU all the time */
	t->samples++;
	user_side(task, &user);
	w->sample.head.type = SAMPLE;
	w->sample.head.pid = pid;
	w->sample.head.tid = task->pid;
	w->sample.head.flags = 0;
	w->sample.head.time = bpf_ktime_get_ns();
	w->sample.slot = place;
	w->sample.ip = user.ip;
	w->sample.sp = user.sp;
	w->sample.bp = user.bp;
	w->sample.lr = user.lr;
	w->sample.n_python = 0;
	n = bpf_get_stack(ctx, w->sample.kernel, sizeof(w->sample.kernel), 0);
	w->sample.n_kernel = n > 0 ? (__u32)n / 8 : 0;
	if (t->state != ON && !w->sample.n_kernel) {
		/* It runs, in its own code: nobody may read its stack as if it did not. */
		__sync_fetch_and_add(&t->seq, 1);
		change(t, t->state == OFF ? OFF : RUNQ, ON, w->sample.head.time);
		__sync_fetch_and_add(&t->seq, 1);
	}
	/* A process that is coming to its end has no user side any more. */
	w->sample.n_stack = w->sample.n_outer = 0;
	w->sample.outer = 0;
	if (task->flags & 4) { /* PF_EXITING */
		w->sample.ip = w->sample.sp = 0;
	} else {
		if (target->python.version)
			python_frames(w, target, t, task);
		w->sample.n_stack = copy_stack(w, user.sp);
		w->sample.n_outer = copy_outer(w, task, user.sp + w->sample.n_stack);
		restore_returns(w, task, user.sp);
	}
	count(samples, 1);
	if (w->sample.head.flags & SAMPLE_TORN)
		count(torn, 1);
	if (w->sample.head.flags & SAMPLE_CUT)
		count(cut, 1);
	size = sizeof(w->sample) - STACK_BYTES - OUTER_BYTES;
	size += w->sample.n_outer ? STACK_BYTES + w->sample.n_outer : w->sample.n_stack;
	if (size > sizeof(w->sample))
		size = sizeof(w->sample);
	if (bpf_ringbuf_output(&ring, &w->sample, size, BPF_RB_NO_WAKEUP))
		count(drops, 1);
	return 0;
}

#endif
