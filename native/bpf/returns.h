/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * A return probe, of whoever set it, puts the address of its own trampoline in the place of the caller's. The kernel
 * remembers the caller's, and where it was: with it the stack can be followed as if there were no probe. On aarch64 the
 * address was in a register, and where the function has saved it is not known here.
 */
#ifndef UNIDLE_RETURNS_H
#define UNIDLE_RETURNS_H

#include "vmlinux.h"
#include "helpers.h"
#include "scope.h"

/* The innermost return that is awaited; most threads have none. */
static inline_always struct return_instance *returns_of(struct task_struct *task)
{
	struct task_struct___uprobes *probed = (void *)task;
	struct uprobe_task *utask;

	if (!member_exists(probed->utask) || member_exists(((struct pt_regs___arm *)0)->pc))
		return 0;
	utask = probed->utask;
	return utask ? utask->return_instances : 0;
}

static inline_always void keep_returns(struct task_struct *task, struct thread *t)
{
	struct return_instance *awaited = returns_of(task);

	t->n_returns = 0;
	for (__u32 i = 0; awaited && i < RETURNS_MAX; i++) {
		t->returns[i].at = awaited->stack;
		t->returns[i].to = awaited->orig_ret_vaddr;
		t->n_returns = i + 1;
		awaited = awaited->next;
	}
}

#endif
