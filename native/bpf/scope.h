/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs of scope.bpf.c and the agent tell each other. The same layouts as src/kernel/layout.rs: change both.
 * Times are of the kernel's monotonic clock, in nanoseconds. Pids and tids are those of the first pid namespace.
 */
#ifndef UNIDLE_SCOPE_H
#define UNIDLE_SCOPE_H

#include "python.h"

#define THREADS_MAX 16384 /* threads that are watched at once */
#define TARGETS_MAX 8192  /* processes that are watched at once */
#define STACK_BYTES 32768 /* of a thread's stack that go with a sample */
#define OUTER_BYTES (24 << 10)
#define PIECE_BYTES 1024  /* in which it is copied */
#define KERNEL_FRAMES 64
#define RETURNS_MAX 4 /* return addresses of a blocked thread that probes have replaced */

#define TARGET_FOLLOW 1u /* its children are watched as well */
#define TARGET_ENDED 2u

struct target {
	__u32 flags;
	__u32 pad;
	struct py_config python;
};

enum state {
	FREE = 0,
	ON = 1,       /* on a CPU */
	OFF = 2,      /* blocked */
	RUNQ = 3,     /* could run, and waits for a CPU */
	ENDED = 4,    /* the agent frees the place */
	RUNNABLE = 5, /* ON or RUNQ: the next event tells which */
};

/* A return address that a return probe has replaced: where it was, and what it was. */
struct returned {
	__u64 at;
	__u64 to;
};

/*
 * One place of the table of threads. `seq` is odd while the place is being written; it grows with every change of state.
 * At any time on + off + runq == since - first.
 */
struct thread {
	__u32 seq;
	__u32 state;
	__u32 pid;
	__u32 tid;
	__u64 since; /* when this state began */
	__u64 first;
	__u64 on;
	__u64 off;
	__u64 runq;
	__u64 switches;
	/* Of the user side, as it was when the thread last left a CPU; all zero where that was not seen. */
	__u64 ip, sp, bp, lr;
	__s64 call;    /* number of the system call that it is in; negative: in none */
	__u64 args[3]; /* of that call */
	__u64 fsbase;  /* the thread pointer */
	__u32 task_state;
	__u32 samples;
	/* The thread state of CPython, once it is found. */
	__u64 python;
	__u32 python_tries;
	__u32 python_skip;
	char comm[16]; /* written when the thread ends */
	/* Innermost first, as it was when the thread last left a CPU. */
	struct returned returns[RETURNS_MAX];
	__u32 n_returns;
	__u32 unused;
};

struct counters {
	__u64 samples;
	__u64 drops;          /* samples that found no room in the ring */
	__u64 lost_events;    /* forks, execs and exits that found none */
	__u64 lost_threads;   /* found no place in the table of threads */
	__u64 lost_targets;   /* children that found no place in the table of processes */
	__u64 torn;           /* Python frames that could not be read */
	__u64 cut;            /* more than PY_FRAMES_MAX Python frames */
	__u64 without_python; /* samples of Python's processes from threads that have no thread state */
	__u64 high;           /* places of the table of threads that were ever used, or asked for */
};

enum record {
	SAMPLE = 1,
	FORKED = 2,
	EXECED = 3,
	EXITED = 4,
};

struct event {
	__u32 type;
	__u32 pid;
	__u32 tid; /* of FORKED: the parent's pid */
	__u32 flags;
	__u64 time;
};

#define SAMPLE_TORN 1u /* Python frames could not all be read */
#define SAMPLE_CUT 2u  /* more than PY_FRAMES_MAX of them */
#define SAMPLE_PYTHON 4u /* it was known where Python frames are */

struct sample {
	struct event head;
	__u64 ip, sp, bp, lr;
	__u32 n_python;
	__u32 n_kernel;
	__u32 n_stack;
	__u32 slot;
	__u64 outer; /* where a stack ends of which not all was copied: its outer pieces follow STACK_BYTES of stack */
	__u32 n_outer;
	__u32 unused;
	struct py_frame python[PY_FRAMES_MAX];
	__u64 kernel[KERNEL_FRAMES];
	__u8 stack[STACK_BYTES + OUTER_BYTES]; /* the last: of the outer end, or of all of it, only what there is is sent */
};

#endif
