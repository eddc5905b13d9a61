/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Looks at the threads of watched processes: samples of what runs (a timer on every CPU), exact times of every thread
 * (the scheduler's tracepoints), and children, programs and ends (followed here, so that no fork is too quick).
 * Nothing of a process that is not watched is read or kept.
 */
#include "vmlinux.h"
#include "helpers.h"
#include "scope.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

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

/* ---- registers ------------------------------------------------------------------------------------------------- */

struct user {
	__u64 ip, sp, bp, lr, args[3];
	__s64 call;
};

static inline_always void user_side(struct task_struct *task, struct user *into)
{
	struct pt_regs *regs = bpf_task_pt_regs(task);

	__builtin_memset(into, 0, sizeof(*into));
	into->call = -1;
	if (!regs)
		return;
	if (member_exists(((struct pt_regs___arm *)0)->pc)) {
		struct pt_regs___arm *arm = (void *)regs;

		into->ip = arm->pc;
		into->sp = arm->sp;
		into->bp = arm->regs[29];
		into->lr = arm->regs[30];
		into->call = arm->syscallno;
		into->args[0] = arm->regs[0];
		into->args[1] = arm->regs[1];
		into->args[2] = arm->regs[2];
	} else {
		into->ip = regs->ip;
		into->sp = regs->sp;
		into->bp = regs->bp;
		into->call = (__s64)regs->orig_ax;
		into->args[0] = regs->di;
		into->args[1] = regs->si;
		into->args[2] = regs->dx;
	}
}

static inline_always __u64 thread_pointer(struct task_struct *task)
{
	if (member_exists(((struct task_struct___arm *)0)->thread.uw.tp_value))
		return ((struct task_struct___arm *)task)->thread.uw.tp_value;
	return task->thread.fsbase;
}

static inline_always __u32 state_of(struct task_struct *task)
{
	if (member_exists(((struct task_struct *)0)->__state))
		return task->__state;
	return (__u32)((struct task_struct___state *)task)->state;
}

/* ---- the table of threads -------------------------------------------------------------------------------------- */

static inline_always struct target *watched(__u32 pid)
{
	return bpf_map_lookup_elem(&targets, &pid);
}

static inline_always struct thread *known(__u32 tid, __u32 *place)
{
	__u32 *at = bpf_map_lookup_elem(&places, &tid);

	if (!at)
		return 0;
	*place = *at;
	return bpf_map_lookup_elem(&threads, at);
}

/* A place that was given back, or else the next that was never used. */
static inline_always bool vacancy(__u32 *place)
{
	struct counters *c;
	__u64 next;

	if (!bpf_map_pop_elem(&vacant, place))
		return 1;
	c = bpf_map_lookup_elem(&counted, &zero);
	if (!c)
		return 0;
	next = __sync_fetch_and_add(&c->high, 1);
	*place = (__u32)next;
	return next < THREADS_MAX;
}

/* Nothing where the table is full, or where another CPU was quicker. */
static inline_always struct thread *enter(__u32 pid, __u32 tid, __u32 state, __u64 now)
{
	struct thread *t;
	__u32 place = 0;

	if (!vacancy(&place)) {
		count(lost_threads, 1);
		return 0;
	}
	t = bpf_map_lookup_elem(&threads, &place);
	if (!t)
		return 0;
	__sync_fetch_and_add(&t->seq, 1);
	t->pid = pid;
	t->tid = tid;
	t->since = now;
	t->first = now;
	t->on = t->off = t->runq = t->switches = 0;
	t->ip = t->sp = t->bp = t->lr = 0;
	t->call = -1;
	t->args[0] = t->args[1] = t->args[2] = 0;
	t->fsbase = 0;
	t->task_state = 0;
	t->samples = 0;
	t->python = 0;
	t->python_tries = t->python_skip = 0;
	t->comm[0] = 0;
	t->state = state;
	__sync_fetch_and_add(&t->seq, 1);
	if (bpf_map_update_elem(&places, &tid, &place, BPF_NOEXIST)) {
		t->state = FREE;
		bpf_map_push_elem(&vacant, &place, 0);
		return 0;
	}
	return t;
}

/* The time since the last change goes where `was` says, and a new state begins. */
static inline_always void change(struct thread *t, __u32 was, __u32 is, __u64 now)
{
	__u64 ns = now > t->since ? now - t->since : 0;

	if (was == ON)
		t->on += ns;
	else if (was == OFF)
		t->off += ns;
	else
		t->runq += ns;
	t->since += ns;
	t->state = is;
}

static inline_always void end(struct thread *t, struct task_struct *task, __u32 tid)
{
	bpf_probe_read_kernel(t->comm, sizeof(t->comm), task->comm);
	t->state = ENDED;
	bpf_map_delete_elem(&places, &tid);
}

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
	if (dead && !preempted)
		end(t, task, tid);
	__sync_fetch_and_add(&t->seq, 1);
}

static inline_always void arrive(struct task_struct *task, __u64 now)
{
	__u32 tid = task->pid, place = 0;
	struct thread *t = known(tid, &place);

	if (!t) {
		if (watched(task->tgid))
			enter(task->tgid, tid, ON, now);
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
	return 0;
}

/* ---- processes ------------------------------------------------------------------------------------------------- */

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

/* ---- samples --------------------------------------------------------------------------------------------------- */

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

static inline_always __u64 python_state(struct walk *w, struct thread *t)
{
	__u64 id = 0;

	if (t->python) {
		if (!read_user(&id, t->python + w->config.off_ts_thread_id) && id == w->fsbase)
			return t->python;
		t->python = 0;
		t->python_tries = t->python_skip = 0;
	}
	/* A thread that is not Python's is asked again, but ever more rarely. */
	if (t->python_skip) {
		t->python_skip--;
		return 0;
	}
	w->interp = w->state = w->found = 0;
	read_user(&w->interp, w->config.runtime + w->config.off_interp_head);
	bpf_loop(1024, look_for_state, 0, 0);
	t->python = w->found;
	if (!w->found) {
		if (t->python_tries < 6)
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
	state = python_state(w, t);
	if (!state) {
		count(without_python, 1);
		return;
	}
	w->frame = 0;
	if (first_frame(w, state))
		return;
	bpf_loop(PY_FRAMES_MAX + 1, next_frame, 0, 0);
}

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

/* Arrays of the leaf (MKL packs its matrices there) may be larger than what was copied. Its callers are at the outer end
 * of the stack: below where the main thread's began, and below the thread's own data for the others. */
static inline_always __u32 copy_outer(struct walk *w, struct task_struct *task, __u64 from)
{
	struct mm_struct *mm = task->mm;
	__u64 end, start;
	__u32 done = 0;

	if (!mm)
		return 0;
	end = task->pid == task->tgid ? mm->start_stack : thread_pointer(task);
	end = (end + PIECE_BYTES - 1) & ~(PIECE_BYTES - 1ull);
	if (end <= from || end - from > (1ull << 30))
		return 0;
	start = end - OUTER_BYTES > from ? end - OUTER_BYTES : from;
	w->sample.outer = start;
#pragma unroll
	for (__u32 i = 0; i < OUTER_BYTES / PIECE_BYTES; i++) {
		if (start + i * PIECE_BYTES >= end ||
		    bpf_probe_read_user(w->sample.stack + STACK_BYTES + i * PIECE_BYTES, PIECE_BYTES,
					(const void *)(start + i * PIECE_BYTES)))
			break;
		done = (i + 1) * PIECE_BYTES;
	}
	return done;
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
	/* A process that is coming to its end has no user side any more. */
	w->sample.n_stack = w->sample.n_outer = 0;
	w->sample.outer = 0;
	if (task->flags & 4) { /* PF_EXITING */
		w->sample.ip = w->sample.sp = 0;
	} else {
		if (target->python.version)
			python_frames(w, target, t, task);
		w->sample.n_stack = copy_stack(w, user.sp);
		if (w->sample.n_stack == STACK_BYTES)
			w->sample.n_outer = copy_outer(w, task, user.sp + STACK_BYTES);
	}
	count(samples, 1);
	if (w->sample.head.flags & SAMPLE_TORN)
		count(torn, 1);
	if (w->sample.head.flags & SAMPLE_CUT)
		count(cut, 1);
	size = sizeof(w->sample) - STACK_BYTES - OUTER_BYTES + w->sample.n_stack + w->sample.n_outer;
	if (size > sizeof(w->sample))
		size = sizeof(w->sample);
	if (bpf_ringbuf_output(&ring, &w->sample, size, BPF_RB_NO_WAKEUP))
		count(drops, 1);
	return 0;
}
