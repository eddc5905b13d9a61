/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs of calls.bpf.c share: the cookie, what lies in maps, and counting. */
#ifndef UNIDLE_CALLS_H
#define UNIDLE_CALLS_H

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
#define FLAG_MARK 32   /* each entry is told on the time line */

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

#define PORT_UNIX 0x10000

#define LOST_SPANS 0
#define LOST_STACKS 1
#define LOST_CALLS 2
#define LOST_LIVE 3
#define LOST_STARTS 4
#define LOST_SITES 5
#define LOST_TRAFFIC 6
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
/* Bytes that were read from or written to a connection of a server. */
struct passed {
	__u32 tgid, tid;
	__u64 ns, socket;
	__u32 bytes;
	__u16 sent, family; /* sent: 0 read, 1 written */
	__u16 local_port, remote_port;
	__u8 local[16], remote[16]; /* of a unix socket: the start of its path, in both */
	__u8 head[24];              /* how the bytes begin, where that is known; else zeros */
	__u32 pad;
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
HASH(ports, __u32, __u32, 4096); /* where the watched listen; PORT_UNIX: on a unix socket */
HASH(pythons, __u32, struct py_config, 16384);
LRU(py_threads, __u32, __u64, 16384);
LRU(devices, __u64, __u32, 16384);
LRU(owners, __u64, __u64, 65536);
LRU(sys_starts, __u64, struct sys_start, 65536);
PER_CPU(hits, __u64, GROUPS);
PER_CPU(lost, __u64, LOST);
PER_CPU(scratch, __u64[SCAN_WORDS], 1);
RING(spans, 4194304);
RING(traffic, 1048576);
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

#endif
