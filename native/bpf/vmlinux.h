/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs here need of the kernel's types, and no more. Only the names of types and members count: their
 * offsets are those of the running kernel (CO-RE). Members that a kernel may lack stand in types of their own
 * ("flavours": the part of a type's name from ___ on is ignored by the loader) and are asked for with member_exists().
 */
#ifndef UNIDLE_VMLINUX_H
#define UNIDLE_VMLINUX_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;
typedef _Bool bool;

#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
#endif

typedef struct {
	int counter;
} atomic_t;

struct upid {
	int nr;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct signal_struct {
	atomic_t live;
};

struct thread_struct {
	unsigned long fsbase;
};

struct mm_struct {
	unsigned long start_stack;
};

struct task_struct {
	unsigned int __state;
	int pid;
	int tgid;
	unsigned int flags;
	int on_cpu;
	char comm[16];
	struct signal_struct *signal;
	struct pid *thread_pid;
	struct task_struct *group_leader;
	struct mm_struct *mm;
	struct thread_struct thread;
};

/* Without CONFIG_UPROBES there are none. */
struct return_instance {
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	struct return_instance *next;
};

struct uprobe_task {
	struct return_instance *return_instances;
};

struct task_struct___uprobes {
	struct uprobe_task *utask;
};

/* Before 5.14. */
struct task_struct___state {
	long state;
};

/* aarch64 */
struct user_fpsimd_uw___arm {
	unsigned long tp_value;
};

struct thread_struct___arm {
	struct user_fpsimd_uw___arm uw;
};

struct task_struct___arm {
	struct thread_struct___arm thread;
};

/* x86-64 */
struct pt_regs {
	unsigned long bp;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
	unsigned long ip;
	unsigned long sp;
};

/* aarch64 */
struct pt_regs___arm {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__s32 syscallno;
};

struct bpf_iter_meta;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#ifndef BPF_NO_PRESERVE_ACCESS_INDEX
#pragma clang attribute pop
#endif

/* include/uapi/linux/bpf.h */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_STACK = 23,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_EXIST = 2,
};

enum {
	BPF_F_NO_PREALLOC = 1,
	BPF_F_MMAPABLE = 1024,
	BPF_F_USER_STACK = 256,
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
};

#endif
