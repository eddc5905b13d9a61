/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts calls of probed functions, times them, and follows memory from the call that allocates it to the one that
 * frees it. One program stands at every entry and one at every exit; what to do is in the 64 bits of the probe's cookie
 * (src/calls/cookie.rs writes them: change both).
 *
 * A thread counts in an entry of its own, so plain additions are exact. What threads share is added atomically.
 */
#include "calls_files.h"
#include "calls_memory.h"
#include "calls_sockets.h"

INLINE void tell_span(__u64 id, __u32 fn, __u64 start_ns, __u64 end_ns, __u64 bytes)
{
	struct span *s = bpf_ringbuf_reserve(&spans, sizeof(*s), 0);
	if (!s) {
		lose(LOST_SPANS);
		return;
	}
	s->tgid = id >> 32;
	s->tid = (__u32)id;
	s->fn = fn;
	s->pad = 0;
	s->start_ns = start_ns;
	s->end_ns = end_ns;
	s->bytes = bytes;
	bpf_ringbuf_submit(s, BPF_RB_NO_WAKEUP);
}

INLINE int on_enter(struct user_regs *r, int memory)
{
	__u64 c = bpf_get_attach_cookie(r);
	__u64 id = bpf_get_current_pid_tgid();
	__u32 tgid = id >> 32, group = GROUP(c);
	__u64 *hit = bpf_map_lookup_elem(&hits, &group);
	if (hit)
		*hit += 1;
	if (!bpf_map_lookup_elem(&watched, &tgid))
		return 0;
	if (memory && WHAT(c) == WHAT_ALLOC_INNER) {
		inner_begins(r, id, c);
		return 0;
	}
	__u64 size = size_of(r, c);
	struct call *call = call_of(id, FN(c));
	if (call) {
		call->count += 1;
		call->bytes += size;
	}
	if (WHAT(c) == WHAT_SET_DEVICE) {
		__u32 device = REG_ARG0(r);
		bpf_map_update_elem(&devices, &id, &device, BPF_ANY);
	} else if (memory && WHAT(c) == WHAT_FREE) {
		__u64 address = arg(r, ADDR_ARG(c));
		if (address)
			forget(tgid, SPACE(c), address, 0);
	} else if (memory && WHAT(c) != WHAT_COUNT) {
		allocation_begins(r, id, c, size);
	}
	if (FLAGS(c) & FLAG_MARK) {
		__u64 now = bpf_ktime_get_ns();
		tell_span(id, FN(c), now, now, size);
	}
	if (FLAGS(c) & FLAG_TIMED) {
		struct start_key key = {.id = id, .fn = FN(c)};
		struct start start = {.ns = bpf_ktime_get_ns(), .bytes = size};
		if (!(FLAGS(c) & FLAG_RETURN))
			key.sp = r->sp;
		if (bpf_map_update_elem(&starts, &key, &start, BPF_ANY))
			lose(LOST_STARTS);
	}
	return 0;
}

INLINE int on_leave(struct user_regs *r, int memory)
{
	__u64 c = bpf_get_attach_cookie(r);
	__u64 id = bpf_get_current_pid_tgid();
	__u32 tgid = id >> 32, group = GROUP(c) + EXITS;
	__u64 *hit = bpf_map_lookup_elem(&hits, &group);
	if (hit)
		*hit += 1;
	if (!bpf_map_lookup_elem(&watched, &tgid))
		return 0;
	if (memory && WHAT(c) == WHAT_ALLOC_INNER) {
		inner_ends(r, id, c);
		return 0;
	}
	if (memory && (WHAT(c) == WHAT_ALLOC || WHAT(c) == WHAT_REALLOC || WHAT(c) == WHAT_BREAK))
		allocation_ends(r, id, c);
	if (!(FLAGS(c) & FLAG_TIMED))
		return 0;
	struct start_key key = {.id = id, .fn = FN(c)};
	if (!(FLAGS(c) & FLAG_RETURN))
		key.sp = r->sp;
	struct start *start = bpf_map_lookup_elem(&starts, &key);
	if (!start)
		return 0;
	__u64 now = bpf_ktime_get_ns(), began = start->ns, bytes = start->bytes;
	bpf_map_delete_elem(&starts, &key);
	struct call *call = call_of(id, FN(c));
	if (call) {
		call->ns += now - began;
		call->timed += 1;
	}
	if (FLAGS(c) & FLAG_SPAN)
		tell_span(id, FN(c), began, now, bytes);
	return 0;
}

/* Memory has programs of its own: what only counts is kept short. */
#define UPROBE(name, does, memory)       \
	SEC("uprobe/" #name)             \
	int name(struct user_regs *r)    \
	{                                \
		return does(r, memory);  \
	}

UPROBE(enter, on_enter, 0)
UPROBE(leave, on_leave, 0)
UPROBE(enter_memory, on_enter, 1)
UPROBE(leave_memory, on_leave, 1)

/* ---- processes ---- */

SEC("tp_btf/sched_process_fork")
int forked(__u64 *ctx)
{
	struct task_struct *parent = (void *)ctx[0], *child = (void *)ctx[1];
	__u32 from = parent->tgid, to = child->tgid;
	__u32 *known = bpf_map_lookup_elem(&watched, &from);
	if (!known || child->pid != child->tgid)
		return 0;
	__u32 value = 1;
	bpf_map_update_elem(&watched, &to, &value, BPF_ANY);
	struct py_config *py = bpf_map_lookup_elem(&pythons, &from);
	if (py)
		bpf_map_update_elem(&pythons, &to, py, BPF_ANY);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int execed(__u64 *ctx)
{
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	__u32 anew = 2; /* what the program before it held is gone */
	if (bpf_map_lookup_elem(&watched, &tgid)) {
		bpf_map_delete_elem(&pythons, &tgid);
		bpf_map_update_elem(&watched, &tgid, &anew, BPF_ANY);
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
