/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The maps of scope.bpf.c, and how its programs count.
 */
#ifndef UNIDLE_SCOPE_MAPS_H
#define UNIDLE_SCOPE_MAPS_H

#include "helpers.h"
#include "scope.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TARGETS_MAX);
	__type(key, __u32);
	__type(value, struct target);
} targets SEC(".maps");

/* Where a thread stands in `threads`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THREADS_MAX);
	__type(key, __u32);
	__type(value, __u32);
} places SEC(".maps");

/* The agent reads it as memory: at every tick only the places that changed cost it anything. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, THREADS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, THREADS_MAX);
	__type(value, __u32);
} vacant SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct counters);
} counted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20); /* the agent chooses by the number of CPUs */
} ring SEC(".maps");

struct walk {
	struct py_config config;
	__u64 frame;
	__u64 before; /* 3.11, 3.12: the frame that the innermost run has to end at; see python.h */
	__u64 unchecked;
	__u64 interp;
	__u64 state;
	__u64 fsbase;
	__u64 found;
	__u8 bytes[96]; /* of one interpreter frame */
	struct sample sample;
};

/* One for each CPU, but no per-CPU array: of those a value is 32 KiB at most. Only `clocked` uses it, and that never
 * interrupts itself. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* the agent says how many CPUs there are */
	__type(key, __u32);
	__type(value, struct walk);
} walks SEC(".maps");

static const __u32 zero = 0;

#define count(member, n)                                                          \
	({                                                                        \
		struct counters *c_ = bpf_map_lookup_elem(&counted, &zero);       \
		if (c_)                                                           \
			__sync_fetch_and_add(&c_->member, (n));                   \
	})

#endif
