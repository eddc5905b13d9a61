//! Real processes, looked at from outside while they are blocked in a known place. The registers come from
//! `/proc/PID/task/TID/syscall`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use unidle_scope::kernel;
use unidle_scope::memory::ProcessMemory;
use unidle_scope::sample::{Frame, Frames, Kind, Outer, RawSample, Resolved};
use unidle_scope::symbols::KernelSymbols;
use unidle_scope::target::{registers_of_blocked, Target};

/// A process that is killed at the end of its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const BLOCKED: &str = "\
import os, threading
def innermost(fd):
    return os.read(fd, 1)
def outer(fd):
    return innermost(fd)
def stages(fd):
    yield sorted([fd], key=outer)
r, w = os.pipe()
t = threading.Thread(target=outer, args=(r,), daemon=True)
t.start()
print('tid', t.native_id, flush=True)
list(stages(r))
";

/// Starts a program of Python: the process, and what it printed first.
fn start(python: &Path, program: &str, home: Option<&str>) -> (Process, String) {
    let mut command = Command::new(python);
    if let Some(home) = home {
        command.env("PYTHONHOME", home);
    }
    let child = command
        .args(["-S", "-c", program])
        .stdout(Stdio::piped())
        .spawn()
        .expect("an interpreter");
    let mut process = Process(child);
    let mut line = String::new();
    let out = process.0.stdout.as_mut().expect("its output");
    BufReader::new(out).read_line(&mut line).expect("its first line");
    (process, line)
}

/// The stack of a thread, once it is blocked in a read.
fn look(target: &mut Target, tid: u32, frames: &mut Frames) -> (Resolved, Vec<Frame>) {
    let pid = target.pid();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        if let Some(regs) = registers_of_blocked(pid, tid) {
            let mut stack = vec![0; 32 << 10];
            let n = ProcessMemory::new(pid)
                .read_some(regs.sp, &mut stack)
                .expect("its stack");
            let mut python = Vec::new();
            target.python_frames(tid, None, &mut python);
            let sample = RawSample {
                pid,
                tid,
                time_ns: 1,
                regs,
                stack: &stack[..n],
                outer: Outer::default(),
                python_known: true,
                python: &python,
                kernel: &[],
                live: true,
            };
            let resolved = target.resolve(&sample, frames);
            let shown: Vec<Frame> = resolved
                .frames
                .iter()
                .filter_map(|&f| frames.get(f).cloned())
                .collect();
            if shown.iter().any(|f| f.function == "innermost") && resolved.complete {
                return (resolved, shown);
            }
            assert!(std::time::Instant::now() < until, "{resolved:?} {shown:#?}");
        }
        assert!(std::time::Instant::now() < until, "the thread never blocked");
        std::thread::yield_now();
    }
}

fn python_of(frames: &[Frame]) -> Vec<(&str, u32)> {
    let python = frames.iter().filter(|f| f.kind == Kind::Python);
    python.map(|f| (f.function.as_str(), f.line)).collect()
}

/// Interpreters to test with: those of `UNIDLE_PYTHONS` (separated by colons), else the system's.
fn interpreters() -> Vec<PathBuf> {
    match std::env::var_os("UNIDLE_PYTHONS") {
        Some(list) => std::env::split_paths(&list).collect(),
        None => vec![PathBuf::from("/usr/bin/python3")],
    }
}

#[test]
fn blocked_threads_show_python_and_native_frames_in_their_places() {
    for python in interpreters() {
        let (process, line) = start(&python, BLOCKED, None);
        let pid = process.0.id();
        let tid: u32 = line.trim().trim_start_matches("tid ").parse().expect("a thread");
        let mut target = Target::open(pid).expect("target");
        let mut frames = Frames::default();
        let version = target.python().expect("its Python").version;
        assert!((311..=314).contains(&version));
        let (main, shown) = look(&mut target, pid, &mut frames);
        assert!(main.rooted && !main.mismatch);
        let expected = [("<module>", 12), ("stages", 7), ("outer", 5), ("innermost", 3)];
        assert_eq!(python_of(&shown), expected, "{}", python.display());
        // sorted() is native, between the generator and its key function; the leaf is the C library's read.
        let native = |f: &&Frame| f.kind == Kind::Native;
        assert!(
            shown
                .last()
                .filter(native)
                .is_some_and(|f| f.function.contains("read")),
            "{shown:#?}"
        );
        let at = |name: &str| shown.iter().position(|f| f.function == name).expect("its frame");
        assert!(at("stages") + 1 < at("outer") && at("outer") + 1 == at("innermost"));
        let (thread, shown) = look(&mut target, tid, &mut frames);
        assert!(thread.rooted);
        let run = python_of(&shown);
        assert!(
            run.ends_with(&[("outer", 5), ("innermost", 3)]) && run[0].0 == "Thread._bootstrap",
            "{run:?}"
        );
    }
}

#[test]
fn a_program_that_was_replaced_on_disk_is_read_from_the_file_that_it_runs() {
    let folder = std::env::temp_dir().join(format!("unidle-replaced-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("folder");
    let copy = folder.join("python3");
    fs::copy("/usr/bin/python3", &copy).expect("a copy");
    let (process, _) = start(&copy, BLOCKED, Some("/usr"));
    fs::remove_file(&copy).expect("deleted");
    fs::copy("/bin/true", &copy).expect("replaced");
    let mut target = Target::open(process.0.id()).expect("target");
    let (_, shown) = look(&mut target, process.0.id(), &mut Frames::default());
    fs::remove_dir_all(&folder).expect("removed");
    assert_eq!(python_of(&shown).len(), 4);
}

#[test]
fn a_process_without_python_has_native_stacks() {
    let mut child = Process(
        Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cat"),
    );
    let pid = child.0.id();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let mut frames = Frames::default();
    loop {
        assert!(std::time::Instant::now() < until);
        let (Ok(mut target), Some(regs)) = (Target::open(pid), registers_of_blocked(pid, pid)) else {
            continue;
        };
        assert_eq!(target.python(), None);
        let mut stack = vec![0; 8 << 10];
        let n = ProcessMemory::new(pid)
            .read_some(regs.sp, &mut stack)
            .expect("its stack");
        let sample = RawSample {
            pid,
            tid: pid,
            time_ns: 1,
            regs,
            stack: &stack[..n],
            outer: Outer::default(),
            python_known: true,
            python: &[],
            kernel: &[],
            live: true,
        };
        let resolved = target.resolve(&sample, &mut frames);
        if resolved.complete {
            break;
        }
    }
    drop(child.0.stdin.take());
    let mut rest = Vec::new();
    child
        .0
        .stdout
        .take()
        .expect("its output")
        .read_to_end(&mut rest)
        .expect("its end");
}

#[test]
fn a_process_that_is_gone_cannot_be_opened() {
    let mut process = Process(Command::new("true").spawn().expect("true"));
    process.0.wait().expect("its end");
    assert!(Target::open(process.0.id()).is_err());
}

/// What a user who may not ask the kernel reads instead has to say the same, at every place where a function begins.
#[test]
fn the_kernel_names_addresses_as_its_own_list_does() {
    let text = fs::read("/proc/kallsyms").expect("the kernel's names");
    let listed = KernelSymbols::parse(&text);
    if listed.hidden {
        eprintln!("skipped: kernel.kptr_restrict hides addresses");
        return;
    }
    let mut places: Vec<u64> = Vec::new();
    for line in String::from_utf8_lossy(&text).lines() {
        let mut fields = line.split_ascii_whitespace();
        if let (Some(address), Some("T" | "t")) = (fields.next(), fields.next()) {
            places.push(u64::from_str_radix(address, 16).expect("an address") + 1);
        }
    }
    places.sort_unstable();
    places.dedup();
    assert!(places.len() > 10_000);
    let Ok(session) = kernel::Kernel::load() else {
        eprintln!("skipped: BPF programs cannot be loaded here");
        return;
    };
    let mut aliases = 0;
    let step = places.len() / 4_000;
    for &place in places.iter().step_by(step) {
        let asked = kernel::name_of(place).expect("an answer");
        let Some((function, module)) = listed.find(place) else {
            panic!("{place:x} is in no function");
        };
        // Outside of its text the kernel prints no names: what ran once at the start, and is gone.
        let Some((name, of)) = asked else { continue };
        if name != function {
            aliases += 1; // several names for one place
        }
        assert_eq!(of, module, "{place:x} {name} {function}");
    }
    eprintln!("{aliases} by another name");
    assert!(aliases < 4_000 / 4, "{aliases}");
    drop(session);
    assert!(kernel::name_of(places[0]).is_err());
}
