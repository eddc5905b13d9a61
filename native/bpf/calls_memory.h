/* SPDX-License-Identifier: Apache-2.0 */
/* Follows memory from the call that allocates it to the one that frees it. */
#ifndef UNIDLE_CALLS_MEMORY_H
#define UNIDLE_CALLS_MEMORY_H

#include "calls_where.h"

INLINE struct site *site_of(struct site_key *key)
{
	struct site *site = bpf_map_lookup_elem(&sites, key);
	if (site)
		return site;
	struct site none = {};
	bpf_map_update_elem(&sites, key, &none, BPF_NOEXIST);
	site = bpf_map_lookup_elem(&sites, key);
	if (!site && key->hash) { /* no room for more sites: the bytes stay exact, their place is not known */
		lose(LOST_SITES);
		key->hash = 0;
		site = bpf_map_lookup_elem(&sites, key);
		if (!site) {
			bpf_map_update_elem(&sites, key, &none, BPF_NOEXIST);
			site = bpf_map_lookup_elem(&sites, key);
		}
	}
	return site;
}

INLINE void forget(__u32 tgid, __u32 device_class, __u64 address, struct allocating *keep)
{
	struct live_key key = {.tgid = tgid, .device_class = device_class, .address = address};
	struct live *live = bpf_map_lookup_elem(&lives, &key);
	if (!live)
		return;
	__u64 size = live->size;
	struct site_key at = live->site;
	if (bpf_map_delete_elem(&lives, &key)) /* another thread was first */
		return;
	struct site *site = bpf_map_lookup_elem(&sites, &at);
	if (site) {
		__sync_fetch_and_add(&site->live, -1ull);
		__sync_fetch_and_add(&site->live_bytes, -size);
	}
	if (keep) {
		keep->old_size = size;
		keep->old_site = at;
	}
}

INLINE void remember(__u32 tgid, __u32 device_class, __u64 address, __u64 size, struct site_key *at)
{
	struct site *site = bpf_map_lookup_elem(&sites, at);
	if (!site)
		return;
	forget(tgid, device_class, address, 0); /* freed by a way that is not probed */
	struct live_key key = {.tgid = tgid, .device_class = device_class, .address = address};
	struct live live = {.size = size, .site = *at};
	if (bpf_map_update_elem(&lives, &key, &live, BPF_ANY)) {
		lose(LOST_LIVE);
		return;
	}
	__sync_fetch_and_add(&site->live, 1);
	__sync_fetch_and_add(&site->live_bytes, size);
}

/* Whether this call comes from inside another one that allocates: only the outermost has the memory. */
INLINE int is_inner(struct allocating *outer, struct user_regs *r)
{
	__u64 back = 0;
	if (!outer || outer->sp <= r->sp)
		return 0;
	if (outer->flags & FLAG_RETURN)
		return 1;
	if (bpf_probe_read_user(&back, 8, (void *)outer->sp))
		return 0;
	return back == outer->back; /* else it was left by an exception */
}

/* Of what is mapped: memory that can be written, and is neither a file's nor a stack. */
INLINE int takes_memory(struct user_regs *r)
{
	return REG_ARG2(r) & PROT_WRITE && REG_ARG3(r) & MAP_ANONYMOUS && !(REG_ARG3(r) & MAP_STACK);
}

INLINE void allocation_begins(struct user_regs *r, __u64 id, __u64 c, __u64 size)
{
	struct allocating *outer = bpf_map_lookup_elem(&allocs, &id);
	if (is_inner(outer, r))
		return;
	if (IS_PAGES(c) && WHAT(c) == WHAT_ALLOC && !takes_memory(r))
		return;
	if (WHAT(c) == WHAT_BREAK && !size) /* asks where the heap ends */
		return;
	struct allocating a = {.sp = r->sp, .size = size, .flags = FLAGS(c)};
	if (WHAT(c) != WHAT_ALLOC_OUTER)
		a.fn = FN(c);
	bpf_probe_read_user(&a.back, 8, (void *)r->sp);
	if (ADDR_ARG(c) != NO_ARG)
		a.out = arg(r, ADDR_ARG(c));
	a.site.tgid = id >> 32;
	if (CLASS(c)) {
		__u32 *device = bpf_map_lookup_elem(&devices, &id);
		a.site.device = 1 + (device ? *device & 0xffff : DEVICE_UNKNOWN);
		if (CLASS(c) == 2)
			a.site.device = 1 + (REG_ARG2(r) & 0xff);
		if (IS_PAGES(c))
			a.site.device = DEVICE_PAGES;
	}
	if (WHAT(c) == WHAT_REALLOC) {
		a.old = a.out;
		if (a.old)
			forget(id >> 32, SPACE(c), a.old, &a);
		if (a.old && !size) /* the C library frees */
			return;
		if (IS_PAGES(c) && !a.old_site.tgid) /* a file's, or a stack */
			return;
	}
	if (WHAT(c) == WHAT_BREAK && (long long)size < 0) { /* the heap shrinks: that is nobody's */
		bpf_map_update_elem(&allocs, &id, &a, BPF_ANY);
		return;
	}
	a.site.hash = site_hash(r, id, FN(c));
	struct site *site = site_of(&a.site);
	if (site && !site->told && a.site.hash && tell_stack(r, id, &a.site))
		site->told = 1;
	bpf_map_update_elem(&allocs, &id, &a, BPF_ANY);
}

INLINE void inner_begins(struct user_regs *r, __u64 id, __u64 c)
{
	struct allocating *outer = bpf_map_lookup_elem(&allocs, &id);
	if (outer && !outer->fn && is_inner(outer, r))
		outer->out = arg(r, ADDR_ARG(c));
}

INLINE void inner_ends(struct user_regs *r, __u64 id, __u64 c)
{
	struct allocating *a = bpf_map_lookup_elem(&allocs, &id);
	__u64 address = 0;
	if (!a || a->fn || !a->out)
		return;
	if ((__u32)REG_RET(r) == 0)
		bpf_probe_read_user(&address, 8, (void *)a->out);
	if (address) {
		struct site *site = bpf_map_lookup_elem(&sites, &a->site);
		if (site) {
			__sync_fetch_and_add(&site->allocations, 1);
			__sync_fetch_and_add(&site->allocated, a->size);
		}
		struct site_key at = a->site;
		remember(id >> 32, 0, address, a->size, &at);
	}
	bpf_map_delete_elem(&allocs, &id);
}

struct trim {
	__u64 page, end;
	__u32 tgid, pad;
};

static long trim_page(__u32 i, struct trim *t)
{
	if (t->page >= t->end)
		return 1;
	forget(t->tgid, 2, t->page, 0);
	t->page += PAGE;
	return 0;
}

INLINE void allocation_ends(struct user_regs *r, __u64 id, __u64 c)
{
	struct allocating *a = bpf_map_lookup_elem(&allocs, &id);
	if (!a || a->fn != FN(c) || (!(FLAGS(c) & FLAG_RETURN) && a->sp != r->sp))
		return;
	__u64 address = 0;
	if (FLAGS(c) & FLAG_STATUS && (__u32)REG_RET(r) != 0)
		address = 0;
	else if (WHAT(c) == WHAT_REALLOC || ADDR_ARG(c) == NO_ARG)
		address = REG_RET(r);
	else
		bpf_probe_read_user(&address, 8, (void *)a->out);
	if (address > -(__u64)PAGE) /* an error number */
		address = 0;
	if (WHAT(c) == WHAT_BREAK && (long long)a->size < 0) {
		struct trim t = {.page = (address + a->size + PAGE - 1) & -(__u64)PAGE, .end = address, .tgid = id >> 32};
		if (address)
			bpf_loop(TRIM_PAGES, trim_page, &t, 0);
	} else if (address) {
		struct site *site = bpf_map_lookup_elem(&sites, &a->site);
		if (site) {
			__sync_fetch_and_add(&site->allocations, 1);
			__sync_fetch_and_add(&site->allocated, a->size);
		}
		struct site_key at = a->site;
		remember(id >> 32, SPACE(c), address, a->size, &at);
	} else if (a->old_site.tgid) { /* a realloc that failed leaves the old block as it was */
		struct site_key at = a->old_site;
		remember(id >> 32, SPACE(c), a->old, a->old_size, &at);
	}
	bpf_map_delete_elem(&allocs, &id);
}

#endif
