//! What a blocked thread waits in, from its system call and the kind of the file descriptor it was given.

use std::fs;

/// What a file descriptor stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fd {
    File,
    Pipe,
    Tcp,
    Udp,
    Unix,
    Socket,
    Terminal,
    /// `eventfd`, `timerfd`, `inotify`, ...
    Anonymous(String),
    /// Name below `/dev`.
    Device(String),
    Unknown,
}

/// The kernel's flags of a task's state (`include/linux/sched.h`).
const UNINTERRUPTIBLE: u32 = 0x2;
const STOPPED: u32 = 0x4;
const TRACED: u32 = 0x8;
const FROZEN: u32 = 0x8000;

/// How a system call waits, and which of its arguments is the file descriptor.
enum Call {
    Plain(&'static str),
    /// A verb, for the file descriptor in the first argument.
    On(&'static str),
    Other,
}

const CHANGES: &str = "change files";

/// What opening a file with these flags is: looking one up, or making, emptying or changing one.
fn opened(flags: u64) -> &'static str {
    let changes =
        flags & libc::O_ACCMODE as u64 != libc::O_RDONLY as u64 || flags & libc::O_CREAT as u64 != 0;
    if changes {
        CHANGES
    } else {
        "file system"
    }
}

fn call_of(call: i64, args: [u64; 3]) -> Call {
    use libc as l;
    #[allow(non_upper_case_globals)]
    #[cfg(target_arch = "x86_64")]
    match call {
        l::SYS_epoll_wait => return Call::Plain("epoll_wait"),
        l::SYS_poll => return Call::Plain("poll"),
        l::SYS_select => return Call::Plain("select"),
        l::SYS_pause => return Call::Plain("signal"),
        l::SYS_open => return Call::Plain(opened(args[1])),
        l::SYS_unlink | l::SYS_rename | l::SYS_mkdir | l::SYS_rmdir => return Call::Plain(CHANGES),
        l::SYS_stat | l::SYS_lstat | l::SYS_access | l::SYS_getdents | l::SYS_readlink => {
            return Call::Plain("file system")
        }
        l::SYS_fork | l::SYS_vfork => return Call::Plain("fork"),
        _ => {}
    }
    match call {
        l::SYS_futex => Call::Plain("futex"),
        l::SYS_epoll_pwait | l::SYS_epoll_pwait2 => Call::Plain("epoll_wait"),
        l::SYS_ppoll => Call::Plain("poll"),
        l::SYS_pselect6 => Call::Plain("select"),
        l::SYS_nanosleep | l::SYS_clock_nanosleep => Call::Plain("sleep"),
        l::SYS_wait4 | l::SYS_waitid => Call::Plain("wait child"),
        l::SYS_rt_sigtimedwait | l::SYS_rt_sigsuspend => Call::Plain("signal"),
        l::SYS_clone | l::SYS_clone3 => Call::Plain("fork"),
        l::SYS_execve | l::SYS_execveat => Call::Plain("exec"),
        l::SYS_exit | l::SYS_exit_group => Call::Plain("exit"),
        l::SYS_sched_yield => Call::Plain("yield"),
        l::SYS_restart_syscall => Call::Plain("sleep"),
        l::SYS_semop | l::SYS_semtimedop => Call::Plain("semaphore"),
        l::SYS_msgrcv | l::SYS_msgsnd | l::SYS_mq_timedreceive | l::SYS_mq_timedsend => {
            Call::Plain("message queue")
        }
        l::SYS_io_uring_enter => Call::Plain("io_uring"),
        l::SYS_io_getevents | l::SYS_io_submit => Call::Plain("aio"),
        l::SYS_fsync
        | l::SYS_fdatasync
        | l::SYS_sync_file_range
        | l::SYS_msync
        | l::SYS_sync
        | l::SYS_syncfs => Call::Plain("sync file"),
        l::SYS_flock => Call::Plain("lock file"),
        l::SYS_fcntl => Call::Plain("lock file"),
        l::SYS_openat => Call::Plain(opened(args[2])),
        l::SYS_unlinkat
        | l::SYS_renameat
        | l::SYS_renameat2
        | l::SYS_truncate
        | l::SYS_ftruncate
        | l::SYS_fallocate
        | l::SYS_mkdirat => Call::Plain(CHANGES),
        l::SYS_newfstatat
        | l::SYS_statx
        | l::SYS_getdents64
        | l::SYS_fstat
        | l::SYS_faccessat
        | l::SYS_close => Call::Plain("file system"),
        l::SYS_mmap
        | l::SYS_munmap
        | l::SYS_mprotect
        | l::SYS_brk
        | l::SYS_madvise
        | l::SYS_mremap
        | l::SYS_mlock => Call::Plain("memory map"),
        l::SYS_membarrier => Call::Plain("membarrier"),
        l::SYS_read | l::SYS_pread64 | l::SYS_readv | l::SYS_preadv | l::SYS_preadv2 => Call::On("read"),
        l::SYS_write | l::SYS_pwrite64 | l::SYS_writev | l::SYS_pwritev | l::SYS_pwritev2 => {
            Call::On("write")
        }
        l::SYS_sendfile | l::SYS_splice | l::SYS_copy_file_range => Call::On("write"),
        l::SYS_recvfrom | l::SYS_recvmsg | l::SYS_recvmmsg => Call::On("recv"),
        l::SYS_sendto | l::SYS_sendmsg | l::SYS_sendmmsg => Call::On("send"),
        l::SYS_accept | l::SYS_accept4 => Call::Plain("accept"),
        l::SYS_connect => Call::Plain("connect"),
        l::SYS_ioctl => Call::On("ioctl"),
        _ => Call::Other,
    }
}

/// The name of the wait: `futex`, `read pipe`, `recv tcp`, `sleep`, `page fault`, ... `call` is the system call's number
/// (negative: the thread is in none), `args` its first arguments, `task_state` the kernel's, `fd` says what the first
/// argument stands for and is only asked where it matters.
pub fn wait_name(call: i64, args: [u64; 3], task_state: u32, fd: impl FnOnce() -> Fd) -> String {
    if task_state & (STOPPED | TRACED) != 0 {
        return "stopped".into();
    }
    if task_state & FROZEN != 0 {
        return "frozen".into();
    }
    if call < 0 {
        return "page fault".into();
    }
    match call_of(call, args) {
        Call::Plain(name) => name.into(),
        Call::On(verb) => on_fd(verb, fd()),
        Call::Other if task_state & UNINTERRUPTIBLE != 0 => "disk".into(),
        Call::Other => format!("system call {call}"),
    }
}

fn on_fd(verb: &str, fd: Fd) -> String {
    // read and recv on a socket are the same thing, as are write and send.
    let by_message = match verb {
        "read" => "recv",
        "write" => "send",
        other => other,
    };
    match fd {
        Fd::File => format!("{verb} file"),
        Fd::Pipe => format!("{verb} pipe"),
        Fd::Tcp => format!("{by_message} tcp"),
        Fd::Udp => format!("{by_message} udp"),
        Fd::Unix => format!("{by_message} unix"),
        Fd::Socket => format!("{by_message} socket"),
        Fd::Terminal => format!("{verb} terminal"),
        Fd::Anonymous(kind) => format!("{verb} {kind}"),
        Fd::Device(name) => format!("{verb} {name}"),
        Fd::Unknown => verb.to_owned(),
    }
}

/// What `/proc/PID/fd/N` points to. `socket` tells the kind of a socket by its inode.
pub fn fd_kind(link: &str, socket: impl FnOnce(u64) -> Fd) -> Fd {
    let bracketed = |prefix: &str| link.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(']'));
    if let Some(inode) = bracketed("socket:[") {
        return inode.parse().map_or(Fd::Socket, socket);
    }
    if link.starts_with("pipe:") {
        return Fd::Pipe;
    }
    if let Some(kind) = link.strip_prefix("anon_inode:") {
        let kind = kind.trim_matches(|c| c == '[' || c == ']');
        return Fd::Anonymous(kind.to_owned());
    }
    match link.strip_prefix("/dev/") {
        Some(name) if name.starts_with("pts/") || name.starts_with("tty") => Fd::Terminal,
        Some(name) if !name.starts_with("shm/") => Fd::Device(device_name(name)),
        _ if link.starts_with('/') => Fd::File,
        _ => Fd::Unknown,
    }
}

/// `nvidia0` and `nvidia1` are one kind of device, as are `infiniband/uverbs0` and `infiniband/uverbs1`.
fn device_name(name: &str) -> String {
    name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned()
}

/// What sockets are, by inode: looked up in the process's own network namespace, once for each socket.
#[derive(Debug, Default)]
pub struct Sockets {
    known: rustc_hash::FxHashMap<u64, Fd>,
}

/// Of one table of sockets: on a machine with a million connections the rest are plain "socket".
const TABLE_BYTES: u64 = 4 << 20;

impl Sockets {
    pub fn kind(&mut self, pid: u32, inode: u64) -> Fd {
        if let Some(kind) = self.known.get(&inode) {
            return kind.clone();
        }
        if self.known.len() > 10_000 {
            self.known.clear();
        }
        let kind = [
            ("tcp", Fd::Tcp),
            ("tcp6", Fd::Tcp),
            ("unix", Fd::Unix),
            ("udp", Fd::Udp),
            ("udp6", Fd::Udp),
        ]
        .into_iter()
        .find(|(table, _)| has_inode(pid, table, inode))
        .map_or(Fd::Socket, |(_, kind)| kind);
        self.known.insert(inode, kind.clone());
        kind
    }

    /// What the file descriptor of a process stands for now.
    pub fn fd(&mut self, pid: u32, fd: u64) -> Fd {
        // System calls take an int: its upper half means nothing.
        match fs::read_link(format!("/proc/{pid}/fd/{}", fd as u32)) {
            Ok(link) => fd_kind(&link.to_string_lossy(), |inode| self.kind(pid, inode)),
            Err(_) => Fd::Unknown,
        }
    }
}

fn has_inode(pid: u32, table: &str, inode: u64) -> bool {
    use std::io::Read;
    let Ok(file) = fs::File::open(format!("/proc/{pid}/net/{table}")) else {
        return false;
    };
    let mut text = String::new();
    if file.take(TABLE_BYTES).read_to_string(&mut text).is_err() {
        return false;
    }
    let inode = inode.to_string();
    let column = if table == "unix" { 6 } else { 9 };
    text.lines()
        .any(|line| line.split_ascii_whitespace().nth(column) == Some(inode.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(call: i64, fd: Fd) -> String {
        wait_name(call, [0; 3], 1, || fd)
    }

    #[test]
    fn a_wait_is_named_by_its_call_and_what_it_waits_on() {
        assert_eq!(name(libc::SYS_futex, Fd::Unknown), "futex");
        assert_eq!(name(libc::SYS_read, Fd::Pipe), "read pipe");
        assert_eq!(name(libc::SYS_read, Fd::Tcp), "recv tcp");
        assert_eq!(name(libc::SYS_pread64, Fd::File), "read file");
        assert_eq!(name(libc::SYS_sendmsg, Fd::Unix), "send unix");
        assert_eq!(name(libc::SYS_clock_nanosleep, Fd::Unknown), "sleep");
        assert_eq!(name(libc::SYS_ioctl, Fd::Device("nvidia".into())), "ioctl nvidia");
        assert_eq!(name(-1, Fd::Unknown), "page fault");
    }

    #[test]
    fn a_file_that_is_opened_to_be_written_is_changed() {
        let named = |flags: i32| wait_name(libc::SYS_openat, [0, 0, flags as u64], 2, || Fd::Unknown);
        assert_eq!(named(libc::O_RDONLY | libc::O_CLOEXEC), "file system");
        assert_eq!(
            named(libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC),
            "change files"
        );
        assert_eq!(
            wait_name(libc::SYS_renameat2, [0; 3], 2, || Fd::Unknown),
            "change files"
        );
    }

    #[test]
    fn a_stopped_thread_is_stopped_whatever_it_was_called_in() {
        assert_eq!(wait_name(libc::SYS_read, [0; 3], 4, || Fd::Pipe), "stopped");
        assert_eq!(wait_name(-1, [0; 3], 0x8000, || Fd::Pipe), "frozen");
    }

    #[test]
    fn an_unknown_call_says_its_number_or_that_it_waits_for_a_disk() {
        assert_eq!(wait_name(9_999, [0; 3], 1, || Fd::Unknown), "system call 9999");
        assert_eq!(wait_name(9_999, [0; 3], 2, || Fd::Unknown), "disk");
    }

    #[test]
    fn links_of_file_descriptors_are_told_apart() {
        let kind = |link: &str| fd_kind(link, |_| Fd::Tcp);
        assert_eq!(kind("socket:[123]"), Fd::Tcp);
        assert_eq!(kind("socket:[x]"), Fd::Socket);
        assert_eq!(kind("pipe:[9]"), Fd::Pipe);
        assert_eq!(kind("anon_inode:[eventfd]"), Fd::Anonymous("eventfd".into()));
        assert_eq!(kind("/dev/pts/3"), Fd::Terminal);
        assert_eq!(kind("/dev/nvidia7"), Fd::Device("nvidia".into()));
        assert_eq!(kind("/dev/shm/x"), Fd::File);
        assert_eq!(kind("/data/x (deleted)"), Fd::File);
        assert_eq!(kind(""), Fd::Unknown);
    }

    #[test]
    fn a_real_socket_is_known_for_what_it_is() {
        use std::os::fd::AsRawFd;
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let mut sockets = Sockets::default();
        let pid = std::process::id();
        assert_eq!(sockets.fd(pid, tcp.as_raw_fd() as u64), Fd::Tcp);
        assert_eq!(sockets.fd(pid, unix.as_raw_fd() as u64), Fd::Unix);
    }
}
