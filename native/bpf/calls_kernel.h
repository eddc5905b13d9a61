/* SPDX-License-Identifier: Apache-2.0 */
/* The little of the kernel that calls.bpf.c needs: helpers by number, and the fields that CO-RE finds again. */
#ifndef UNIDLE_CALLS_KERNEL_H
#define UNIDLE_CALLS_KERNEL_H

struct task_struct;
typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;

#if !defined(__TARGET_ARCH_arm64) && !defined(__TARGET_ARCH_x86)
#define __TARGET_ARCH_x86
#endif

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_MAP_TYPE_RINGBUF 27
#define BPF_F_NO_PREALLOC 1
#define BPF_ANY 0
#define BPF_NOEXIST 1
#define BPF_RB_NO_WAKEUP 1

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) =
	(void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static __u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static __u64 (*bpf_get_current_task)(void) = (void *)35;
static struct task_struct *(*bpf_get_current_task_btf)(void) = (void *)158;
static void *(*bpf_task_pt_regs)(struct task_struct *task) = (void *)175;
static __u64 (*bpf_get_attach_cookie)(void *ctx) = (void *)174;
static long (*bpf_probe_read_user)(void *to, __u32 size, const void *from) = (void *)112;
static long (*bpf_probe_read_kernel)(void *to, __u32 size, const void *from) = (void *)113;
static long (*bpf_ringbuf_output)(void *ring, void *data, __u64 size, __u64 flags) = (void *)130;
static void *(*bpf_ringbuf_reserve)(void *ring, __u64 size, __u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static long (*bpf_loop)(__u32 n, void *callback, void *with, __u64 flags) = (void *)181;

/* The registers as a uprobe's program gets them; the layout is the kernel's ABI. */
#if defined(__TARGET_ARCH_x86)
struct user_regs {
	__u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#define REG_ARG0(r) ((r)->di)
#define REG_ARG1(r) ((r)->si)
#define REG_ARG2(r) ((r)->dx)
#define REG_ARG3(r) ((r)->cx)
#define REG_ARG4(r) ((r)->r8)
#define REG_ARG5(r) ((r)->r9)
#define REG_RET(r) ((r)->ax)
#define REG_BP(r) ((r)->bp)
#define REG_IP(r) ((r)->ip)
#define REG_LR(r) 0
#define REG_CALL(r) ((r)->orig_ax)
enum { SYS_READ = 0, SYS_WRITE = 1, SYS_READV = 19, SYS_WRITEV = 20, SYS_SENDTO = 44, SYS_RECVFROM = 45,
       SYS_SENDMSG = 46, SYS_RECVMSG = 47 };
#elif defined(__TARGET_ARCH_arm64)
struct user_regs {
	__u64 regs[31], sp, pc, pstate, orig_x0;
	__s32 syscallno;
};
#define REG_ARG0(r) ((r)->regs[0])
#define REG_ARG1(r) ((r)->regs[1])
#define REG_ARG2(r) ((r)->regs[2])
#define REG_ARG3(r) ((r)->regs[3])
#define REG_ARG4(r) ((r)->regs[4])
#define REG_ARG5(r) ((r)->regs[5])
#define REG_RET(r) ((r)->regs[0])
#define REG_BP(r) ((r)->regs[29])
#define REG_IP(r) ((r)->pc)
#define REG_LR(r) ((r)->regs[30])
#define REG_CALL(r) ((r)->syscallno)
enum { SYS_READ = 63, SYS_WRITE = 64, SYS_READV = 65, SYS_WRITEV = 66, SYS_SENDTO = 206, SYS_RECVFROM = 207,
       SYS_SENDMSG = 211, SYS_RECVMSG = 212 };
#else
#error "define __TARGET_ARCH_x86 or __TARGET_ARCH_arm64"
#endif

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};
struct sock_common {
	unsigned short skc_family;
	__u16 skc_num;   /* the local port */
	__u16 skc_dport; /* the other one, in network order */
	__u32 skc_daddr, skc_rcv_saddr;
	struct in6_addr skc_v6_daddr, skc_v6_rcv_saddr;
};
struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol, sk_type;
};
struct unix_address {
	int len; /* the address follows: its family (2 bytes), its path */
};
struct unix_sock {
	struct unix_address *addr;
};
struct sk_buff {
	unsigned int len;
};
struct inode {
	unsigned short i_mode;
};
struct file {
	struct inode *f_inode;
};
struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};
struct files_struct {
	struct fdtable *fdt;
};
#if defined(__TARGET_ARCH_x86)
struct thread_struct {
	unsigned long fsbase;
};
#else
struct thread_uw {
	unsigned long tp_value;
};
struct thread_struct {
	struct thread_uw uw;
};
#endif
struct task_struct {
	int pid;
	int tgid;
	struct files_struct *files;
	struct thread_struct thread;
};
#pragma clang attribute pop

#define READ_KERNEL(to, from) bpf_probe_read_kernel(&(to), sizeof(to), &(from))

#endif
