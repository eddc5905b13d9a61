//! Samples the threads of a process by stopping them shortly, and says how well their stacks could be resolved. For
//! work on the unwinder: `look PID [SAMPLES] [--stacks] [--bad]`. The profiler itself never stops anything.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use unidle_scope::memory::{Memory, ProcessMemory};
use unidle_scope::recording::Recording;
use unidle_scope::sample::{Frames, Kind, Outer, RawSample, Regs};
use unidle_scope::target::Target;

const STACK: usize = 32 << 10;

/// Registers of a stopped thread, and the base of its fs segment.
fn stopped<T>(tid: i32, look: impl FnOnce(Regs, u64) -> T) -> Option<T> {
    // SAFETY: plain ptrace requests with a buffer that is large enough for what each of them writes.
    unsafe {
        if libc::ptrace(libc::PTRACE_SEIZE, tid, 0, 0) != 0 {
            return None;
        }
        libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0);
        let mut status = 0;
        libc::waitpid(tid, &mut status, libc::__WALL);
        let mut r: libc::user_regs_struct = std::mem::zeroed();
        let read = libc::ptrace(libc::PTRACE_GETREGS, tid, 0, &mut r);
        let regs = Regs {
            ip: r.rip,
            sp: r.rsp,
            bp: r.rbp,
            lr: 0,
        };
        let out = (read == 0).then(|| look(regs, r.fs_base));
        libc::ptrace(libc::PTRACE_DETACH, tid, 0, 0);
        out
    }
}

/// Writes a recording. `--hide=OLD=NEW` (of one length) replaces what no one else should read.
fn keep(path: &str, sample: &RawSample<'_>, args: &[String]) {
    let Ok((recording, _)) = Recording::take(sample, &mut Frames::default()) else {
        return;
    };
    let mut bytes = recording.to_bytes();
    for (old, new) in args
        .iter()
        .filter_map(|a| a.strip_prefix("--hide=")?.split_once('='))
    {
        assert_eq!(old.len(), new.len(), "of one length");
        while let Some(at) = bytes.windows(old.len()).position(|w| w == old.as_bytes()) {
            bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
        }
    }
    std::fs::write(path, bytes).expect("written");
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let pid: u32 = args[0].parse().expect("a process");
    let samples: usize = args.get(1).and_then(|a| a.parse().ok()).unwrap_or(100);
    let has = |flag: &str| args.iter().any(|a| a == flag);
    let began = Instant::now();
    let mut target = Target::open(pid).expect("target");
    let mut frames = Frames::default();
    println!(
        "opened in {:?}; python {:?}; {:?}",
        began.elapsed(),
        target.python().map(|p| p.name()),
        target.notes()
    );
    let memory = ProcessMemory::new(pid);
    let (mut n, mut rooted, mut mismatch, mut native, mut unsymbolised, mut complete) = (0, 0, 0, 0, 0, 0);
    let mut guessed = 0;
    let (mut first, mut warm) = (None, Vec::new());
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..samples {
        let Ok(list) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
            break;
        };
        for task in list.flatten() {
            let tid: u32 = task.file_name().to_string_lossy().parse().expect("a thread");
            let looked = stopped(tid as i32, |regs, fsbase| {
                let mut stack = vec![0u8; STACK];
                let got = memory.read_some(regs.sp, &mut stack).unwrap_or(0);
                stack.truncate(got);
                let mut python = Vec::new();
                target.python_frames(tid, Some(fsbase), &mut python);
                (regs, stack, python)
            });
            let Some((regs, stack, python)) = looked else {
                continue;
            };
            let at = Instant::now();
            let sample = RawSample {
                pid,
                tid,
                time_ns: began.elapsed().as_nanos() as u64 + 1_000_000_000,
                regs,
                stack: &stack,
                outer: Outer::default(),
                python_known: true,
                python: &python,
                kernel: &[],
                live: has("--live"),
            };
            let r = target.resolve(&sample, &mut frames);
            let took = at.elapsed();
            first.get_or_insert((took, began.elapsed()));
            warm.push((took, r.frames.len()));
            n += 1;
            rooted += usize::from(r.rooted);
            mismatch += usize::from(r.mismatch);
            complete += usize::from(r.complete);
            native += r.native;
            unsymbolised += r.unsymbolised;
            let bad = !r.rooted || r.mismatch;
            if has("--guessed") {
                guessed += usize::from(target.walk(&sample).guessed > 0);
            }
            if let Some(prefix) = args.iter().find_map(|a| a.strip_prefix("--record=")) {
                keep(&format!("{prefix}{n}.sample"), &sample, &args);
            }
            if has("--bad") && bad {
                let walked = target.walk(&sample);
                println!("{:x?} guessed {}", sample.regs, walked.guessed);
                for f in &walked.frames {
                    println!("      {:x} {}", f.ip, target.name_of(f.lookup));
                }
            }
            if has("--stacks") || (has("--bad") && bad) {
                let names: Vec<String> = r
                    .frames
                    .iter()
                    .filter_map(|&f| frames.get(f))
                    .map(|f| match f.kind {
                        Kind::Python => format!("{}:{}", f.function, f.line),
                        _ => format!("{} [{}]", f.function, f.module),
                    })
                    .collect();
                let mark = format!(
                    "rooted={} mismatch={} python={}\n    ",
                    r.rooted,
                    r.mismatch,
                    python.len()
                );
                *seen.entry(mark + &names.join("\n    ")).or_default() += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    for (stack, count) in seen.iter() {
        println!("{count} x {stack}");
    }
    warm.sort();
    let pct = |a: usize, b: usize| 100.0 * a as f64 / b.max(1) as f64;
    println!(
        "samples {n} rooted {:.2} % mismatch {:.2} % complete {:.2} % symbolised {:.2} % guessed {guessed}",
        pct(rooted, n),
        pct(mismatch, n),
        pct(complete, n),
        pct((native - unsymbolised) as usize, native as usize)
    );
    println!(
        "first {first:?}; median {:?}; max {:?}",
        warm.get(warm.len() / 2),
        warm.last()
    );
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for line in status
        .lines()
        .filter(|l| l.starts_with("Rss") || l.starts_with("VmRSS"))
    {
        println!("{line}");
    }
    let _ = memory.u64(0);
}
