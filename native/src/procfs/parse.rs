//! The small texts of `/proc/PID/task/TID`, read as they are and never trusted.

/// Fields of `stat` (proc_pid_stat(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    pub name: String,
    /// `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I`
    pub state: char,
    pub parent: u32,
    /// User and system time in clock ticks.
    pub ticks: u64,
    /// Clock ticks since boot: with the pid it names a process for ever.
    pub started: u64,
}

impl Stat {
    /// The flags that the kernel has for this state, as far as a wait's name depends on them.
    pub fn task_state(&self) -> u32 {
        match self.state {
            'D' => 0x2,
            'T' => 0x4,
            't' => 0x8,
            _ => 0x1,
        }
    }

    pub fn ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }
}

/// The name is in brackets and may hold brackets and blanks itself: the last one ends it.
pub fn stat(text: &str) -> Option<Stat> {
    let open = text.find('(')?;
    let close = text.rfind(')')?;
    let name = text.get(open + 1..close)?.to_owned();
    let fields: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
    let number = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok());
    Some(Stat {
        name,
        state: fields.first()?.chars().next()?,
        parent: number(1)? as u32,
        ticks: number(11)?.saturating_add(number(12)?),
        started: number(19)?,
    })
}

/// `schedstat`: time on a CPU, time of waiting for one, and how often it was put on one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedTimes {
    pub on_ns: u64,
    pub runq_ns: u64,
    pub slices: u64,
}

pub fn schedstat(text: &str) -> Option<SchedTimes> {
    let mut fields = text.split_ascii_whitespace().map(|f| f.parse::<u64>().ok());
    let mut next = || fields.next().flatten();
    Some(SchedTimes {
        on_ns: next()?,
        runq_ns: next()?,
        slices: next()?,
    })
}

/// `syscall` (proc_pid_syscall(5)): where a thread is that does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyscallPlace {
    Running,
    Blocked {
        /// Number of the system call, -1 where it is in none (a page fault).
        call: i64,
        arguments: [u64; 3],
        sp: u64,
        ip: u64,
    },
}

pub fn syscall(text: &str) -> Option<SyscallPlace> {
    let text = text.trim();
    if text == "running" {
        return Some(SyscallPlace::Running);
    }
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let hex = |i: usize| {
        let digits = fields.get(i)?.strip_prefix("0x")?;
        u64::from_str_radix(digits, 16).ok()
    };
    let call: i64 = fields.first()?.parse().ok()?;
    let (arguments, rest) = match fields.len() {
        3 if call < 0 => ([0; 3], 1),
        9 => ([hex(1)?, hex(2)?, hex(3)?], 7),
        _ => return None,
    };
    Some(SyscallPlace::Blocked {
        call,
        arguments,
        sp: hex(rest)?,
        ip: hex(rest + 1)?,
    })
}

/// The pids in `children`.
pub fn children(text: &str) -> Vec<u32> {
    text.split_ascii_whitespace()
        .filter_map(|f| f.parse().ok())
        .collect()
}

/// A command line as one line.
pub fn command(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let words: Vec<&str> = text.split('\0').filter(|w| !w.is_empty()).collect();
    let mut line: String = words.join(" ").replace(['\n', '\r'], " ");
    if let Some((cut, _)) = line.char_indices().nth(300) {
        line.truncate(cut);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_brackets_and_blanks() {
        let text = "12 (a) b (c) R 7 1 1 0 -1 0 1 2 3 4 50 60 0 0 20 0 3 0 9876 1 2";
        let s = stat(text).expect("a line of stat");
        assert_eq!(
            (s.name.as_str(), s.state, s.parent, s.ticks, s.started),
            ("a) b (c", 'R', 7, 110, 9876)
        );
        for end in 0..text.len() - 6 {
            let cut = stat(&text[..end]);
            assert!(cut.is_none_or(|c| c.started != 9876), "{end}");
        }
    }

    #[test]
    fn a_blocked_thread_says_its_call_and_its_registers() {
        let told = "7 0x5 0x6 0x7 0x8 0x9 0xa 0x7ffc0000 0x7f11\n";
        assert_eq!(
            syscall(told),
            Some(SyscallPlace::Blocked {
                call: 7,
                arguments: [5, 6, 7],
                sp: 0x7ffc_0000,
                ip: 0x7f11
            })
        );
        assert_eq!(syscall("running\n"), Some(SyscallPlace::Running));
        assert!(matches!(
            syscall("-1 0x1 0x2"),
            Some(SyscallPlace::Blocked {
                call: -1,
                sp: 1,
                ip: 2,
                ..
            })
        ));
        for bad in ["", "7", "7 0x1 0x2", "x y z", "7 5 6 7 8 9 a b c", "-1 0x1"] {
            assert_eq!(syscall(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_need_all_three_fields() {
        assert_eq!(
            schedstat("10 20 3\n"),
            Some(SchedTimes {
                on_ns: 10,
                runq_ns: 20,
                slices: 3
            })
        );
        assert_eq!(schedstat("10 20"), None);
        assert_eq!(schedstat("10 x 3"), None);
    }

    #[test]
    fn a_command_is_one_short_line() {
        assert_eq!(command(b"python\0train.py\0--x=\n1\0"), "python train.py --x= 1");
        assert_eq!(command("é".repeat(1000).as_bytes()).chars().count(), 300);
    }

    #[test]
    fn own_files_are_understood() {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}"));
        let s = stat(&read("stat").expect("stat")).expect("a line of stat");
        assert!(!s.ended() && s.started > 0);
        assert!(schedstat(&read("schedstat").expect("schedstat")).is_some());
        // Of the first thread, which waits for the one that runs this.
        assert!(syscall(&read("syscall").expect("syscall")).is_some());
    }
}
