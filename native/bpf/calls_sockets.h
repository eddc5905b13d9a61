/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes through sockets: counts by thread, and what passes on connections to a server. */
#ifndef UNIDLE_CALLS_SOCKETS_H
#define UNIDLE_CALLS_SOCKETS_H

#include "calls.h"

#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define STREAM 1
#define MSG_PEEK 2 /* the same bytes are read again */

INLINE int is_tcp(struct sock *sk)
{
	unsigned short family = sk->__sk_common.skc_family;
	return (family == AF_INET || family == AF_INET6) && sk->sk_protocol == 6;
}

INLINE __u16 swapped(__u16 port)
{
	return port >> 8 | port << 8;
}

/* Where the bytes of the present system call begin in memory: 0 where that cannot be told. */
INLINE __u64 bytes_at(void)
{
	struct user_regs *r = bpf_task_pt_regs(bpf_get_current_task_btf());
	__u64 at = 0;
	__s32 number = 0;
	READ_KERNEL(number, REG_CALL(r));
	READ_KERNEL(at, REG_ARG1(r));
	switch (number) {
	case SYS_READ: case SYS_WRITE: case SYS_SENDTO: case SYS_RECVFROM:
		return at;
	case SYS_SENDMSG: case SYS_RECVMSG: /* struct user_msghdr: name, its length, pieces */
		if (bpf_probe_read_user(&at, 8, (void *)(at + 16)))
			return 0;
		break;
	case SYS_READV: case SYS_WRITEV:
		break;
	default:
		return 0;
	}
	if (bpf_probe_read_user(&at, 8, (void *)at))
		return 0;
	return at;
}

/* Whether somebody may be served there: it is a port where the watched listen, on either side (one of them may relay). */
INLINE int serves(struct sock *sk)
{
	__u32 local = sk->__sk_common.skc_num, remote = swapped(sk->__sk_common.skc_dport), any = PORT_UNIX;
	if (sk->__sk_common.skc_family == AF_UNIX)
		return sk->sk_type == STREAM && bpf_map_lookup_elem(&ports, &any);
	return is_tcp(sk) && (bpf_map_lookup_elem(&ports, &local) || bpf_map_lookup_elem(&ports, &remote));
}

/* False: a socket without an address, which is the client's. */
INLINE int address_of(struct sock *sk, struct passed *p)
{
	struct unix_address *at = 0;
	int len = 0;
	p->family = sk->__sk_common.skc_family;
	p->local_port = sk->__sk_common.skc_num;
	p->remote_port = swapped(sk->__sk_common.skc_dport);
	if (p->family == AF_INET) {
		READ_KERNEL(*(__u32 *)p->local, sk->__sk_common.skc_rcv_saddr);
		READ_KERNEL(*(__u32 *)p->remote, sk->__sk_common.skc_daddr);
	} else if (p->family == AF_INET6) {
		READ_KERNEL(p->local, sk->__sk_common.skc_v6_rcv_saddr);
		READ_KERNEL(p->remote, sk->__sk_common.skc_v6_daddr);
	} else {
		p->local_port = p->remote_port = 0;
		READ_KERNEL(at, ((struct unix_sock *)sk)->addr);
		if (!at)
			return 0;
		READ_KERNEL(len, at->len);
		if (len <= 2) /* its family and no path */
			return 0;
		const char *path = (const char *)&at->len + sizeof(int) + 2; /* behind its family */
		bpf_probe_read_kernel(p->local, 16, path);
		bpf_probe_read_kernel(p->remote, 16, path + 16);
	}
	return 1;
}

INLINE void tell_passed(struct sock *sk, __u64 id, int n, __u16 sent)
{
	struct passed p = {.tgid = id >> 32, .tid = (__u32)id, .bytes = n, .sent = sent};
	if (!address_of(sk, &p))
		return;
	p.ns = bpf_ktime_get_ns();
	p.socket = (__u64)sk;
	__u64 at = bytes_at();
	__u32 size = n < (int)sizeof(p.head) ? n : sizeof(p.head);
	if (at && size <= sizeof(p.head))
		bpf_probe_read_user(p.head, size, (void *)at);
	if (bpf_ringbuf_output(&traffic, &p, sizeof(p), BPF_RB_NO_WAKEUP))
		lose(LOST_TRAFFIC);
}

INLINE int moved(__u64 *ctx, __u32 fn, __u16 sent)
{
	__u64 id = bpf_get_current_pid_tgid(), at = ctx[0];
	__u32 tgid = id >> 32;
	struct sock *sk = (struct sock *)ctx[0];
	int n = (int)ctx[1];
	if (!bpf_map_lookup_elem(&watched, &tgid) || (int)ctx[2] & MSG_PEEK)
		return 0;
	if (n > 0 && serves(sk))
		tell_passed(sk, id, n, sent);
	if (!is_tcp(sk))
		return 0;
	bpf_map_update_elem(&owners, &at, &id, BPF_ANY);
	if (n <= 0)
		return 0;
	struct call *call = call_of(id, fn);
	if (call) {
		call->count += 1;
		call->bytes += n;
	}
	return 0;
}

SEC("tp_btf/sock_send_length")
int tcp_sent(__u64 *ctx)
{
	return moved(ctx, FN_TCP_SEND, 1);
}

SEC("tp_btf/sock_recv_length")
int tcp_received(__u64 *ctx)
{
	return moved(ctx, FN_TCP_RECV, 0);
}

/* Runs wherever the timer or the acknowledgement came in, so the socket's last user is asked, and several may add. */
SEC("tp_btf/tcp_retransmit_skb")
int tcp_again(__u64 *ctx)
{
	__u64 sk = ctx[0];
	struct sk_buff *skb = (void *)ctx[1];
	__u64 *owner = bpf_map_lookup_elem(&owners, &sk);
	if (!owner)
		return 0;
	struct call *call = call_of(*owner, FN_TCP_RETRANSMIT);
	if (call) {
		__sync_fetch_and_add(&call->count, 1);
		__sync_fetch_and_add(&call->bytes, skb->len);
	}
	return 0;
}

#endif
