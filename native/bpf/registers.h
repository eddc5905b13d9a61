/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The user side of a thread: its registers, its thread pointer, and the state that the kernel has it in.
 */
#ifndef UNIDLE_REGISTERS_H
#define UNIDLE_REGISTERS_H

#include "vmlinux.h"
#include "helpers.h"

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

#endif
