/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts calls of probed functions, times them, and follows memory from the call that allocates it to the one that
 * frees it. One program stands at every entry and one at every exit; what to do is in the 64 bits of the probe's cookie
 * (src/calls/cookie.rs writes them: change both).
 *
 * A thread counts in an entry of its own, so plain additions are exact. What threads share is added atomically.
 */
#include "calls_kernel.h"
#include "python.h"

#define FN(c) ((__u32)(c) & 0xffffff)
#define GROUP(c) ((__u32)((c) >> 24) & 0x1f)
#define WHAT(c) ((__u32)((c) >> 32) & 0xff)
#define SIZE_ARG(c) ((__u32)((c) >> 40) & 0xf)  /* 15: none */
#define SIZE_ARG2(c) ((__u32)((c) >> 44) & 0xf) /* multiplied by that argument; 15: none */
#define FLAGS(c) ((__u32)((c) >> 48) & 0xff)
#define ADDR_ARG(c) ((__u32)((c) >> 56) & 0xf) /* 15: the address is the return value */
#define CLASS(c) ((__u32)((c) >> 60) & 0xf)    /* 0: host, 1: device of the thread, 2: device in argument 2, 3: pages */
#define IS_PAGES(c) (CLASS(c) == 3)
/* A page that the kernel gave and a block of the allocator may begin at one address: they are told apart. */
#define SPACE(c) (IS_PAGES(c) ? 2 : CLASS(c) ? 1 : 0)

#define WHAT_COUNT 0
#define WHAT_ALLOC 1
#define WHAT_FREE 2
#define WHAT_REALLOC 3
#define WHAT_SET_DEVICE 4
#define WHAT_ALLOC_OUTER 5 /* allocates by calling an inner one, whose end is cheaper to see */
#define WHAT_ALLOC_INNER 6 /* counts for nothing outside an outer one */
#define WHAT_BREAK 7       /* moves the end of the heap by its argument, returns where it was */

#define FLAG_TIMED 1
#define FLAG_SPAN 2
#define FLAG_DTYPE 4   /* the second size argument is NCCL's data type */
#define FLAG_STATUS 8  /* returns 0 when it went well */
#define FLAG_RETURN 16 /* its exit is a return probe: the stack pointer there tells nothing */

#define GROUPS 64 /* 32 and what counts their exits */
#define EXITS 32
#define NO_ARG 15
#define STACK_PIECE 1024
#define STACK_PIECES 32
#define SCAN_WORDS 64
#define KEY_PY_FRAMES 24
#define PY_THREADS_MAX 512
#define TEXT_WORDS 16384 /* a bit for each 64 KiB of program text, by its hash: 2^20 bits */
#define DEVICE_UNKNOWN 0xffff
#define DEVICE_PAGES 0xfffffffe
#define PROT_WRITE 2
#define MAP_ANONYMOUS 0x20
#define MAP_STACK 0x20000
#define PAGE 4096
#define TRIM_PAGES 65536 /* of a heap that shrinks: what is above is looked for no more */

#define FN_TCP_SEND 1
#define FN_TCP_RECV 2
#define FN_TCP_RETRANSMIT 3
#define FN_FILE 16 /* + number in file_call() */

#define LOST_SPANS 0
#define LOST_STACKS 1
#define LOST_CALLS 2
#define LOST_LIVE 3
#define LOST_STARTS 4
#define LOST_SITES 5
#define LOST 8

struct call_key {
	__u32 tgid, tid, fn, pad;
};
struct call {
	__u64 count, bytes, ns, timed;
};
struct start_key {
	__u64 id, sp;
	__u32 fn, pad;
};
struct start {
	__u64 ns, bytes;
};
struct span {
	__u32 tgid, tid, fn, pad;
	__u64 start_ns, end_ns, bytes;
};
struct live_key {
	__u32 tgid, device_class;
	__u64 address;
};
struct site_key {
	__u64 hash;
	__u32 tgid, device; /* 0: host, 1 + n: cuda:n */
};
struct live {
	__u64 size;
	struct site_key site;
};
struct site {
	__u64 allocations, allocated, live, live_bytes, told;
};
struct allocating {
	__u64 sp, back, size, out, old, old_size;
	struct site_key site, old_site;
	__u32 fn, flags; /* fn 0: waits for an inner one */
};
struct stack_event {
	struct site_key site;
	__u64 time_ns, ip, sp, bp, lr;
	__u32 tid, n_python, stack_bytes, pad;
	struct py_frame python[PY_FRAMES_MAX];
	__u8 stack[STACK_PIECES * STACK_PIECE];
};
struct sys_start {
	__u64 ns;
	__u32 fn, pad;
};

#define HASH(name, key_type, value_type, n)      \
	struct {                                 \
		__uint(type, BPF_MAP_TYPE_HASH); \
		__uint(map_flags, BPF_F_NO_PREALLOC); \
		__uint(max_entries, n);          \
		__type(key, key_type);           \
		__type(value, value_type);       \
	} name SEC(".maps")

#define LRU(name, key_type, value_type, n)           \
	struct {                                     \
		__uint(type, BPF_MAP_TYPE_LRU_HASH); \
		__uint(max_entries, n);              \
		__type(key, key_type);               \
		__type(value, value_type);           \
	} name SEC(".maps")

#define PER_CPU(name, value_type, n)                     \
	struct {                                         \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); \
		__uint(max_entries, n);                  \
		__type(key, __u32);                      \
		__type(value, value_type);               \
	} name SEC(".maps")

#define RING(name, n)                               \
	struct {                                    \
		__uint(type, BPF_MAP_TYPE_RINGBUF); \
		__uint(max_entries, n);             \
	} name SEC(".maps")

HASH(watched, __u32, __u32, 16384);
HASH(calls, struct call_key, struct call, 524288);
HASH(starts, struct start_key, struct start, 65536);
HASH(lives, struct live_key, struct live, 4194304);
HASH(sites, struct site_key, struct site, 16384);
HASH(allocs, __u64, struct allocating, 16384);
HASH(pythons, __u32, struct py_config, 16384);
LRU(py_threads, __u32, __u64, 16384);
LRU(devices, __u64, __u32, 16384);
LRU(owners, __u64, __u64, 65536);
LRU(sys_starts, __u64, struct sys_start, 65536);
PER_CPU(hits, __u64, GROUPS);
PER_CPU(lost, __u64, LOST);
PER_CPU(scratch, __u64[SCAN_WORDS], 1);
RING(spans, 4194304);
RING(stacks, 8388608);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64[TEXT_WORDS]);
} text SEC(".maps");

INLINE void lose(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&lost, &what);
	if (n)
		*n += 1;
}

/* The empty asm keeps each load at its own constant offset: the verifier refuses a computed one. */
#define ARG_CASE(n)                          \
	case n: {                            \
		__u64 v = REG_ARG##n(r);     \
		asm volatile("" : "+r"(v));  \
		return v;                    \
	}

INLINE __u64 arg(struct user_regs *r, __u32 n)
{
	switch (n) {
		ARG_CASE(0)
		ARG_CASE(1)
		ARG_CASE(2)
		ARG_CASE(3)
		ARG_CASE(4)
		ARG_CASE(5)
	}
	return 0;
}

/* ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, fp8, fp8. */
INLINE __u64 dtype_bytes(__u64 dtype)
{
	switch ((__u32)dtype) {
	case 2: case 3: case 7: return 4;
	case 4: case 5: case 8: return 8;
	case 6: case 9: return 2;
	}
	return 1;
}

INLINE __u64 size_of(struct user_regs *r, __u64 c)
{
	if (SIZE_ARG(c) == NO_ARG)
		return 0;
	__u64 size = arg(r, SIZE_ARG(c));
	if (SIZE_ARG2(c) != NO_ARG) {
		__u64 by = arg(r, SIZE_ARG2(c));
		size *= FLAGS(c) & FLAG_DTYPE ? dtype_bytes(by) : by;
	}
	return size;
}

INLINE struct call *call_of(__u64 id, __u32 fn)
{
	struct call_key key = {.tgid = id >> 32, .tid = (__u32)id, .fn = fn};
	struct call *call = bpf_map_lookup_elem(&calls, &key);
	if (call)
		return call;
	struct call none = {};
	bpf_map_update_elem(&calls, &key, &none, BPF_NOEXIST);
	call = bpf_map_lookup_elem(&calls, &key);
	if (!call)
		lose(LOST_CALLS);
	return call;
}

INLINE __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
	return hash ^ (hash >> 29);
}

/* ---- where the thread stands: Python frames and return addresses, as one number ---- */

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

INLINE struct site *site_of(struct site_key *key)
{
	struct site *site = bpf_map_lookup_elem(&sites, key);
	if (site)
		return site;
	struct site none = {};
	bpf_map_update_elem(&sites, key, &none, BPF_NOEXIST);
	site = bpf_map_lookup_elem(&sites, key);
	if (!site && key->hash) { /* no room for more sites: the bytes stay exact, their place is not known */
		lose(LOST_SITES);
		key->hash = 0;
		site = bpf_map_lookup_elem(&sites, key);
		if (!site) {
			bpf_map_update_elem(&sites, key, &none, BPF_NOEXIST);
			site = bpf_map_lookup_elem(&sites, key);
		}
	}
	return site;
}

INLINE void forget(__u32 tgid, __u32 device_class, __u64 address, struct allocating *keep)
{
	struct live_key key = {.tgid = tgid, .device_class = device_class, .address = address};
	struct live *live = bpf_map_lookup_elem(&lives, &key);
	if (!live)
		return;
	__u64 size = live->size;
	struct site_key at = live->site;
	if (bpf_map_delete_elem(&lives, &key)) /* another thread was first */
		return;
	struct site *site = bpf_map_lookup_elem(&sites, &at);
	if (site) {
		__sync_fetch_and_add(&site->live, -1ull);
		__sync_fetch_and_add(&site->live_bytes, -size);
	}
	if (keep) {
		keep->old_size = size;
		keep->old_site = at;
	}
}

INLINE void remember(__u32 tgid, __u32 device_class, __u64 address, __u64 size, struct site_key *at)
{
	struct site *site = bpf_map_lookup_elem(&sites, at);
	if (!site)
		return;
	forget(tgid, device_class, address, 0); /* freed by a way that is not probed */
	struct live_key key = {.tgid = tgid, .device_class = device_class, .address = address};
	struct live live = {.size = size, .site = *at};
	if (bpf_map_update_elem(&lives, &key, &live, BPF_ANY)) {
		lose(LOST_LIVE);
		return;
	}
	__sync_fetch_and_add(&site->live, 1);
	__sync_fetch_and_add(&site->live_bytes, size);
}

/* Whether this call comes from inside another one that allocates: only the outermost has the memory. */
INLINE int is_inner(struct allocating *outer, struct user_regs *r)
{
	__u64 back = 0;
	if (!outer || outer->sp <= r->sp)
		return 0;
	if (outer->flags & FLAG_RETURN)
		return 1;
	if (bpf_probe_read_user(&back, 8, (void *)outer->sp))
		return 0;
	return back == outer->back; /* else it was left by an exception */
}

/* Of what is mapped: memory that can be written, and is neither a file's nor a stack. */
INLINE int takes_memory(struct user_regs *r)
{
	return REG_ARG2(r) & PROT_WRITE && REG_ARG3(r) & MAP_ANONYMOUS && !(REG_ARG3(r) & MAP_STACK);
}

INLINE void allocation_begins(struct user_regs *r, __u64 id, __u64 c, __u64 size)
{
	struct allocating *outer = bpf_map_lookup_elem(&allocs, &id);
	if (is_inner(outer, r))
		return;
	if (IS_PAGES(c) && WHAT(c) == WHAT_ALLOC && !takes_memory(r))
		return;
	if (WHAT(c) == WHAT_BREAK && !size) /* asks where the heap ends */
		return;
	struct allocating a = {.sp = r->sp, .size = size, .flags = FLAGS(c)};
	if (WHAT(c) != WHAT_ALLOC_OUTER)
		a.fn = FN(c);
	bpf_probe_read_user(&a.back, 8, (void *)r->sp);
	if (ADDR_ARG(c) != NO_ARG)
		a.out = arg(r, ADDR_ARG(c));
	a.site.tgid = id >> 32;
	if (CLASS(c)) {
		__u32 *device = bpf_map_lookup_elem(&devices, &id);
		a.site.device = 1 + (device ? *device & 0xffff : DEVICE_UNKNOWN);
		if (CLASS(c) == 2)
			a.site.device = 1 + (REG_ARG2(r) & 0xff);
		if (IS_PAGES(c))
			a.site.device = DEVICE_PAGES;
	}
	if (WHAT(c) == WHAT_REALLOC) {
		a.old = a.out;
		if (a.old)
			forget(id >> 32, SPACE(c), a.old, &a);
		if (a.old && !size) /* the C library frees */
			return;
		if (IS_PAGES(c) && !a.old_site.tgid) /* a file's, or a stack */
			return;
	}
	if (WHAT(c) == WHAT_BREAK && (long long)size < 0) { /* the heap shrinks: that is nobody's */
		bpf_map_update_elem(&allocs, &id, &a, BPF_ANY);
		return;
	}
	a.site.hash = site_hash(r, id, FN(c));
	struct site *site = site_of(&a.site);
	if (site && !site->told && a.site.hash && tell_stack(r, id, &a.site))
		site->told = 1;
	bpf_map_update_elem(&allocs, &id, &a, BPF_ANY);
}

INLINE void inner_begins(struct user_regs *r, __u64 id, __u64 c)
{
	struct allocating *outer = bpf_map_lookup_elem(&allocs, &id);
	if (outer && !outer->fn && is_inner(outer, r))
		outer->out = arg(r, ADDR_ARG(c));
}

INLINE void inner_ends(struct user_regs *r, __u64 id, __u64 c)
{
	struct allocating *a = bpf_map_lookup_elem(&allocs, &id);
	__u64 address = 0;
	if (!a || a->fn || !a->out)
		return;
	if ((__u32)REG_RET(r) == 0)
		bpf_probe_read_user(&address, 8, (void *)a->out);
	if (address) {
		struct site *site = bpf_map_lookup_elem(&sites, &a->site);
		if (site) {
			__sync_fetch_and_add(&site->allocations, 1);
			__sync_fetch_and_add(&site->allocated, a->size);
		}
		struct site_key at = a->site;
		remember(id >> 32, 0, address, a->size, &at);
	}
	bpf_map_delete_elem(&allocs, &id);
}

struct trim {
	__u64 page, end;
	__u32 tgid, pad;
};

static long trim_page(__u32 i, struct trim *t)
{
	if (t->page >= t->end)
		return 1;
	forget(t->tgid, 2, t->page, 0);
	t->page += PAGE;
	return 0;
}

INLINE void allocation_ends(struct user_regs *r, __u64 id, __u64 c)
{
	struct allocating *a = bpf_map_lookup_elem(&allocs, &id);
	if (!a || a->fn != FN(c) || (!(FLAGS(c) & FLAG_RETURN) && a->sp != r->sp))
		return;
	__u64 address = 0;
	if (FLAGS(c) & FLAG_STATUS && (__u32)REG_RET(r) != 0)
		address = 0;
	else if (WHAT(c) == WHAT_REALLOC || ADDR_ARG(c) == NO_ARG)
		address = REG_RET(r);
	else
		bpf_probe_read_user(&address, 8, (void *)a->out);
	if (address > -(__u64)PAGE) /* an error number */
		address = 0;
	if (WHAT(c) == WHAT_BREAK && (long long)a->size < 0) {
		struct trim t = {.page = (address + a->size + PAGE - 1) & -(__u64)PAGE, .end = address, .tgid = id >> 32};
		if (address)
			bpf_loop(TRIM_PAGES, trim_page, &t, 0);
	} else if (address) {
		struct site *site = bpf_map_lookup_elem(&sites, &a->site);
		if (site) {
			__sync_fetch_and_add(&site->allocations, 1);
			__sync_fetch_and_add(&site->allocated, a->size);
		}
		struct site_key at = a->site;
		remember(id >> 32, SPACE(c), address, a->size, &at);
	} else if (a->old_site.tgid) { /* a realloc that failed leaves the old block as it was */
		struct site_key at = a->old_site;
		remember(id >> 32, SPACE(c), a->old, a->old_size, &at);
	}
	bpf_map_delete_elem(&allocs, &id);
}

/* ---- the two programs ---- */

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
	if (FLAGS(c) & FLAG_SPAN) {
		struct span *s = bpf_ringbuf_reserve(&spans, sizeof(*s), 0);
		if (!s) {
			lose(LOST_SPANS);
			return 0;
		}
		s->tgid = tgid;
		s->tid = (__u32)id;
		s->fn = FN(c);
		s->pad = 0;
		s->start_ns = began;
		s->end_ns = now;
		s->bytes = bytes;
		bpf_ringbuf_submit(s, BPF_RB_NO_WAKEUP);
	}
	return 0;
}

SEC("uprobe/enter")
int enter(struct user_regs *r)
{
	return on_enter(r, 0);
}

SEC("uprobe/leave")
int leave(struct user_regs *r)
{
	return on_leave(r, 0);
}

SEC("uprobe/enter_memory")
int enter_memory(struct user_regs *r)
{
	return on_enter(r, 1);
}

SEC("uprobe/leave_memory")
int leave_memory(struct user_regs *r)
{
	return on_leave(r, 1);
}

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

/* ---- TCP ---- */

INLINE int is_tcp(struct sock *sk)
{
	unsigned short family = sk->__sk_common.skc_family;
	return (family == 2 || family == 10) && sk->sk_protocol == 6;
}

INLINE int moved(__u64 *ctx, __u32 fn)
{
	__u64 id = bpf_get_current_pid_tgid(), sk = ctx[0];
	__u32 tgid = id >> 32;
	int n = (int)ctx[1];
	if (!bpf_map_lookup_elem(&watched, &tgid) || !is_tcp((struct sock *)ctx[0]))
		return 0;
	bpf_map_update_elem(&owners, &sk, &id, BPF_ANY);
	if (n <= 0)
		return 0;
	struct call *call = call_of(id, fn);
	if (call) {
		call->count += 1;
		call->bytes += n;
	}
	return 0;
}

SEC("tp_btf/sock_send_length")
int tcp_sent(__u64 *ctx)
{
	return moved(ctx, FN_TCP_SEND);
}

SEC("tp_btf/sock_recv_length")
int tcp_received(__u64 *ctx)
{
	return moved(ctx, FN_TCP_RECV);
}

/* Runs wherever the timer or the acknowledgement came in, so the socket's last user is asked, and several may add. */
SEC("tp_btf/tcp_retransmit_skb")
int tcp_again(__u64 *ctx)
{
	__u64 sk = ctx[0];
	struct sk_buff *skb = (void *)ctx[1];
	__u64 *owner = bpf_map_lookup_elem(&owners, &sk);
	if (!owner)
		return 0;
	struct call *call = call_of(*owner, FN_TCP_RETRANSMIT);
	if (call) {
		__sync_fetch_and_add(&call->count, 1);
		__sync_fetch_and_add(&call->bytes, skb->len);
	}
	return 0;
}

/* ---- files ---- */

/* The number of a system call that reads, writes or syncs a file by its descriptor (FILE_CALLS in groups.rs). */
INLINE int file_call(__u64 n)
{
#if defined(__TARGET_ARCH_x86)
	switch (n) {
	case 0: return 0;   /* read */
	case 1: return 1;   /* write */
	case 17: return 2;  /* pread64 */
	case 18: return 3;  /* pwrite64 */
	case 19: return 4;  /* readv */
	case 20: return 5;  /* writev */
	case 74: return 6;  /* fsync */
	case 75: return 7;  /* fdatasync */
	case 295: return 8; /* preadv */
	case 296: return 9; /* pwritev */
	}
#else
	switch (n) {
	case 63: return 0;
	case 64: return 1;
	case 67: return 2;
	case 68: return 3;
	case 65: return 4;
	case 66: return 5;
	case 82: return 6;
	case 83: return 7;
	case 69: return 8;
	case 70: return 9;
	}
#endif
	return -1;
}

INLINE int is_file(__u64 fd)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct files_struct *files = 0;
	struct fdtable *table = 0;
	struct file **list = 0, *file = 0;
	struct inode *inode = 0;
	unsigned int n = 0;
	unsigned short mode = 0;
	READ_KERNEL(files, task->files);
	if (!files)
		return 0;
	READ_KERNEL(table, files->fdt);
	READ_KERNEL(n, table->max_fds);
	if (fd >= n)
		return 0;
	READ_KERNEL(list, table->fd);
	bpf_probe_read_kernel(&file, sizeof(file), list + fd);
	if (!file)
		return 0;
	READ_KERNEL(inode, file->f_inode);
	READ_KERNEL(mode, inode->i_mode);
	return (mode & 0170000) == 0100000 || (mode & 0170000) == 0060000;
}

SEC("tp_btf/sys_enter")
int call_begins(__u64 *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 tgid = id >> 32;
	int fn = file_call(ctx[1]);
	if (fn < 0 || !bpf_map_lookup_elem(&watched, &tgid))
		return 0;
	struct user_regs *r = (void *)ctx[0];
	__u64 fd = 0;
	READ_KERNEL(fd, REG_ARG0(r));
	struct sys_start start = {.ns = bpf_ktime_get_ns(), .fn = FN_FILE + fn};
	if (is_file((__u32)fd))
		bpf_map_update_elem(&sys_starts, &id, &start, BPF_ANY);
	return 0;
}

SEC("tp_btf/sys_exit")
int call_ends(__u64 *ctx)
{
	__u64 id = bpf_get_current_pid_tgid();
	__u32 tgid = id >> 32;
	long ret = (long)ctx[1];
	if (!bpf_map_lookup_elem(&watched, &tgid))
		return 0;
	struct sys_start *start = bpf_map_lookup_elem(&sys_starts, &id);
	if (!start)
		return 0;
	struct call *call = call_of(id, start->fn);
	if (call) {
		call->count += 1;
		call->timed += 1;
		call->ns += bpf_ktime_get_ns() - start->ns;
		if (ret > 0)
			call->bytes += ret;
	}
	bpf_map_delete_elem(&sys_starts, &id);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
