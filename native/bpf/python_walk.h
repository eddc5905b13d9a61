/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The frames of CPython of the thread that runs. How they are found: python.h.
 */
#ifndef UNIDLE_PYTHON_WALK_H
#define UNIDLE_PYTHON_WALK_H

#include "threads.h"

static inline_always struct walk *walk_of_this_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&walks, &cpu);
}

#define read_user(into, from) bpf_probe_read_user((into), sizeof(*(into)), (const void *)(from))

/* All thread states of all interpreters, until the one that belongs to this thread. */
static long look_for_state(__u32 i, void *unused)
{
	struct walk *w = walk_of_this_cpu();
	__u64 id = 0;

	if (!w)
		return 1;
	if (!w->state) {
		if (!w->interp)
			return 1;
		if (read_user(&w->state, w->interp + w->config.off_threads_head))
			return 1;
		if (read_user(&w->interp, w->interp + w->config.off_interp_next))
			w->interp = 0;
		return 0;
	}
	if (read_user(&id, w->state + w->config.off_ts_thread_id))
		return 1;
	if (id == w->fsbase) {
		w->found = w->state;
		return 1;
	}
	if (read_user(&w->state, w->state + w->config.off_ts_next))
		return 1;
	return 0;
}

static inline_always __u64 python_state(struct walk *w, struct thread *t, __u32 tries_max)
{
	__u64 id = 0;

	if (t->python) {
		if (!read_user(&id, t->python + w->config.off_ts_thread_id) && id == w->fsbase)
			return t->python;
		t->python = 0;
		t->python_tries = t->python_skip = 0;
	}
	/* A thread that is not Python's is asked again, but ever more rarely; the main one will be Python's very soon. */
	if (t->python_skip) {
		t->python_skip--;
		return 0;
	}
	w->interp = w->state = w->found = 0;
	read_user(&w->interp, w->config.runtime + w->config.off_interp_head);
	bpf_loop(1024, look_for_state, 0, 0);
	t->python = w->found;
	if (!w->found) {
		if (t->python_tries < tries_max)
			t->python_tries++;
		t->python_skip = 1u << t->python_tries;
	}
	return w->found;
}

static inline_always __u64 word(struct walk *w, __u32 offset)
{
	offset &= 127;
	if (offset > sizeof(w->bytes) - 8)
		return 0;
	return *(__u64 *)(w->bytes + offset);
}

static inline_always __u32 byte(struct walk *w, __u32 offset)
{
	offset &= 127;
	return offset < sizeof(w->bytes) ? w->bytes[offset] : 0;
}

/* What was walked is no chain of frames: begin anew where the C frame before says. */
static inline_always long walk_from_before(struct walk *w)
{
	w->unchecked = 0;
	w->frame = w->before;
	w->sample.n_python = 0;
	return 0;
}

static long next_frame(__u32 i, void *unused)
{
	struct walk *w = walk_of_this_cpu();
	struct py_frame *frame;
	__u32 n;

	if (!w)
		return 1;
	n = w->sample.n_python;
	if (!w->frame)
		return w->unchecked ? walk_from_before(w) : 1;
	if (n >= PY_FRAMES_MAX) {
		w->sample.head.flags |= SAMPLE_CUT;
		return 1;
	}
	/* Frames lie at addresses that are multiples of 8; every version's is at least 80 bytes long. */
	if ((w->frame & 7) || bpf_probe_read_user(w->bytes, 80, (const void *)w->frame)) {
		if (w->unchecked)
			return walk_from_before(w);
		w->sample.head.flags |= SAMPLE_TORN;
		return 1;
	}
	frame = &w->sample.python[n & (PY_FRAMES_MAX - 1)];
	frame->code = word(w, w->config.off_f_executable) & ~7ull;
	frame->instr = word(w, w->config.off_f_instr);
	frame->owner = byte(w, w->config.off_f_owner);
	frame->flags = 0;
	if ((w->config.flags & PY_IS_ENTRY) && byte(w, w->config.off_f_is_entry))
		frame->flags = PY_FRAME_IS_ENTRY;
	w->sample.n_python = n + 1;
	w->frame = word(w, w->config.off_f_previous);
	if (w->unchecked && (frame->flags || frame->owner >= 3)) {
		if (w->frame != w->before)
			return walk_from_before(w);
		w->unchecked = 0;
	}
	return 0;
}

/* The current frame; with PY_CFRAME also that of the C frame before, by which the first run is checked. */
static inline_always long first_frame(struct walk *w, __u64 state)
{
	__u64 cframe, before = 0;

	w->before = w->unchecked = 0;
	if (read_user(&w->frame, state + w->config.off_ts_frame))
		return -1;
	if (!(w->config.flags & PY_CFRAME) || !w->frame)
		return 0;
	cframe = w->frame;
	if (read_user(&w->frame, cframe + w->config.off_cframe_frame))
		return -1;
	if (read_user(&before, cframe + w->config.off_cframe_previous))
		return 0;
	if (before && read_user(&w->before, before + w->config.off_cframe_frame))
		return 0;
	w->unchecked = 1;
	return 0;
}

static inline_always void python_frames(struct walk *w, struct target *target, struct thread *t,
					struct task_struct *task)
{
	__u64 state;

	w->config = target->python;
	w->fsbase = thread_pointer(task);
	w->sample.head.flags |= SAMPLE_PYTHON;
	state = python_state(w, t, task->pid == task->tgid ? 0 : 6);
	if (!state) {
		count(without_python, 1);
		return;
	}
	w->frame = 0;
	if (first_frame(w, state))
		return;
	bpf_loop(PY_FRAMES_MAX + 1, next_frame, 0, 0);
}

#endif
