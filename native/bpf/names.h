/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Names an address of the kernel as the kernel itself prints it. The agent runs it for the few addresses that it has
 * seen: for them it would have to read and sort all names in /proc/kallsyms. Attached to nothing.
 */
#ifndef UNIDLE_NAMES_H
#define UNIDLE_NAMES_H

#include "helpers.h"

#define NAME_BYTES 504 /* KSYM_NAME_LEN was 128 before 6.1 and is 512 since: what is longer is cut off */

struct named {
	__u64 address;
	char text[NAME_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct named);
} named SEC(".maps");

static const char function[] = "%ps";

SEC("raw_tp")
int name(void *ctx)
{
	__u32 first = 0;
	struct named *one = bpf_map_lookup_elem(&named, &first);

	if (one)
		bpf_snprintf(one->text, sizeof(one->text), function, &one->address, sizeof(one->address));
	return 0;
}

#endif
