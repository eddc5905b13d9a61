/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are read and written by their descriptors. */
#ifndef UNIDLE_CALLS_FILES_H
#define UNIDLE_CALLS_FILES_H

#include "calls.h"

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

#endif
