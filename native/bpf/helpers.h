/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a map, a program and a helper function of the kernel are written. Numbers of helpers: the list in
 * include/uapi/linux/bpf.h. Declared here, so that building needs clang and nothing else.
 */
#ifndef UNIDLE_HELPERS_H
#define UNIDLE_HELPERS_H

#define SEC(name) __attribute__((section(name), used))
#define inline_always inline __attribute__((always_inline))

/* A map is a struct whose members only carry types (BTF). */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

#define member_exists(member) __builtin_preserve_field_info(member, 2)

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static __u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static long (*const bpf_get_stack)(void *ctx, void *into, __u32 size, __u64 flags) = (void *)67;
static long (*const bpf_map_push_elem)(void *map, const void *value, __u64 flags) = (void *)87;
static long (*const bpf_map_pop_elem)(void *map, void *value) = (void *)88;
static long (*const bpf_probe_read_user)(void *into, __u32 size, const void *from) = (void *)112;
static long (*const bpf_probe_read_kernel)(void *into, __u32 size, const void *from) = (void *)113;
static long (*const bpf_ringbuf_output)(void *ring, void *data, __u64 size, __u64 flags) = (void *)130;
static struct task_struct *(*const bpf_get_current_task_btf)(void) = (void *)158;
static long (*const bpf_snprintf)(char *into, __u32 size, const char *fmt, __u64 *args, __u32 args_size) = (void *)165;
static struct pt_regs *(*const bpf_task_pt_regs)(struct task_struct *task) = (void *)175;
static long (*const bpf_loop)(__u32 times, void *step, void *ctx, __u64 flags) = (void *)181;

#endif
