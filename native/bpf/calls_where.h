/* SPDX-License-Identifier: Apache-2.0 */
/* Where a thread stands: its Python frames and return addresses as one number, and the copy of its stack. */
#ifndef UNIDLE_CALLS_WHERE_H
#define UNIDLE_CALLS_WHERE_H

#include "calls.h"

struct python_walk {
	struct py_config *py;
	struct stack_event *into; /* nothing: hash only */
	__u64 interp, ts, frame, thread, hash;
	__u32 n, limit;
};

static long find_thread(__u32 i, struct python_walk *w)
{
	__u64 thread = 0;
	if (!w->ts) {
		bpf_probe_read_user(&w->interp, 8, (void *)(w->interp + w->py->off_interp_next));
		if (!w->interp)
			return 1;
		bpf_probe_read_user(&w->ts, 8, (void *)(w->interp + w->py->off_threads_head));
		return 0;
	}
	bpf_probe_read_user(&thread, 8, (void *)(w->ts + w->py->off_ts_thread_id));
	if (thread == w->thread)
		return 1;
	if (bpf_probe_read_user(&w->ts, 8, (void *)(w->ts + w->py->off_ts_next)))
		w->ts = 0;
	return 0;
}

static long walk_frame(__u32 i, struct python_walk *w)
{
	struct py_frame f = {};
	__u8 byte = 0;
	if (!w->frame || w->n >= w->limit)
		return 1;
	if (bpf_probe_read_user(&f.code, 8, (void *)(w->frame + w->py->off_f_executable)))
		return 1;
	f.code &= ~7ull;
	bpf_probe_read_user(&f.instr, 8, (void *)(w->frame + w->py->off_f_instr));
	if (w->into) {
		bpf_probe_read_user(&byte, 1, (void *)(w->frame + w->py->off_f_owner));
		f.owner = byte;
		if (w->py->flags & PY_IS_ENTRY) {
			bpf_probe_read_user(&byte, 1, (void *)(w->frame + w->py->off_f_is_entry));
			f.flags = byte ? PY_FRAME_IS_ENTRY : 0;
		}
		if (w->n < PY_FRAMES_MAX)
			w->into->python[w->n] = f;
	}
	w->hash = mix(mix(w->hash, f.code), f.instr);
	w->n++;
	if (bpf_probe_read_user(&w->frame, 8, (void *)(w->frame + w->py->off_f_previous)))
		w->frame = 0;
	return 0;
}

INLINE __u64 thread_pointer(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	__u64 at = 0;
#if defined(__TARGET_ARCH_x86)
	READ_KERNEL(at, task->thread.fsbase);
#else
	READ_KERNEL(at, task->thread.uw.tp_value);
#endif
	return at;
}

/* Points w at the thread's innermost Python frame. False: none is known. */
INLINE int python_frame(struct python_walk *w, __u64 id)
{
	__u32 tgid = id >> 32, tid = (__u32)id;
	w->py = bpf_map_lookup_elem(&pythons, &tgid);
	if (!w->py || !w->py->version)
		return 0;
	w->thread = thread_pointer();
	if (!w->thread)
		return 0;
	__u64 *known = bpf_map_lookup_elem(&py_threads, &tid);
	__u64 owner = 0;
	if (known && !bpf_probe_read_user(&owner, 8, (void *)(*known + w->py->off_ts_thread_id)) && owner == w->thread) {
		w->ts = *known;
	} else {
		w->ts = 0;
		if (bpf_probe_read_user(&w->interp, 8, (void *)(w->py->runtime + w->py->off_interp_head)) || !w->interp)
			return 0;
		bpf_probe_read_user(&w->ts, 8, (void *)(w->interp + w->py->off_threads_head));
		bpf_loop(PY_THREADS_MAX, find_thread, w, 0);
		if (!w->ts || !w->interp)
			return 0;
		owner = 0;
		bpf_probe_read_user(&owner, 8, (void *)(w->ts + w->py->off_ts_thread_id));
		if (owner != w->thread)
			return 0;
		__u64 ts = w->ts;
		bpf_map_update_elem(&py_threads, &tid, &ts, BPF_ANY);
	}
	w->frame = 0;
	bpf_probe_read_user(&w->frame, 8, (void *)(w->ts + w->py->off_ts_frame));
	if (w->frame && w->py->flags & PY_CFRAME)
		bpf_probe_read_user(&w->frame, 8, (void *)(w->frame + w->py->off_cframe_frame));
	return w->frame != 0;
}

struct scan {
	__u64 *words, *text;
	__u64 hash;
};

/* A word of the stack counts if it points into program text: then it is, or was, a return address. */
static long scan_word(__u32 i, struct scan *s)
{
	if (i >= SCAN_WORDS)
		return 1;
	__u64 word = s->words[i];
	if (word < 0x10000 || word >> 47)
		return 0;
	__u32 bit = (__u32)(((word >> 16) * 0x9e3779b97f4a7c15ull) >> 44);
	if (s->text[(bit >> 6) & (TEXT_WORDS - 1)] >> (bit & 63) & 1)
		s->hash = mix(s->hash, word);
	return 0;
}

INLINE __u64 site_hash(struct user_regs *r, __u64 id, __u32 fn)
{
	__u32 zero = 0;
	struct scan s = {.hash = mix(fn, r->sp & 0xfff)};
	s.words = bpf_map_lookup_elem(&scratch, &zero);
	s.text = bpf_map_lookup_elem(&text, &zero);
	if (s.words && s.text && !bpf_probe_read_user(s.words, SCAN_WORDS * 8, (void *)r->sp)) {
		s.hash = mix(s.hash, s.words[0]);
		bpf_loop(SCAN_WORDS, scan_word, &s, 0);
	}
	if (REG_LR(r))
		s.hash = mix(s.hash, REG_LR(r));
	struct python_walk w = {.hash = s.hash, .limit = KEY_PY_FRAMES};
	if (python_frame(&w, id))
		bpf_loop(KEY_PY_FRAMES, walk_frame, &w, 0);
	return w.hash ? w.hash : 1;
}

struct copy {
	struct stack_event *e;
	__u64 from;
};

static long copy_piece(__u32 i, struct copy *c)
{
	if (i >= STACK_PIECES)
		return 1;
	if (bpf_probe_read_user(&c->e->stack[i * STACK_PIECE], STACK_PIECE, (void *)(c->from + i * STACK_PIECE))) {
		/* The last piece ends where the mapping does. */
		__u64 left = (0x1000 - ((c->from + i * STACK_PIECE) & 0xfff)) & (STACK_PIECE - 1);
		if (left && !bpf_probe_read_user(&c->e->stack[i * STACK_PIECE], left, (void *)(c->from + i * STACK_PIECE)))
			c->e->stack_bytes = i * STACK_PIECE + left;
		return 1;
	}
	c->e->stack_bytes = (i + 1) * STACK_PIECE;
	return 0;
}

INLINE int tell_stack(struct user_regs *r, __u64 id, struct site_key *site)
{
	struct stack_event *e = bpf_ringbuf_reserve(&stacks, sizeof(*e), 0);
	if (!e) {
		lose(LOST_STACKS);
		return 0;
	}
	e->site = *site;
	e->time_ns = bpf_ktime_get_ns();
	e->ip = REG_IP(r);
	e->sp = r->sp;
	e->bp = REG_BP(r);
	e->lr = REG_LR(r);
	e->tid = (__u32)id;
	e->stack_bytes = 0;
	e->pad = 0;
	struct copy c = {.e = e, .from = r->sp};
	bpf_loop(STACK_PIECES, copy_piece, &c, 0);
	struct python_walk w = {.into = e, .limit = PY_FRAMES_MAX};
	if (python_frame(&w, id))
		bpf_loop(PY_FRAMES_MAX, walk_frame, &w, 0);
	e->n_python = w.n;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 1;
}

#endif
