//! Names of kernel addresses, asked of the kernel one by one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use aya::programs::RawTracePoint;
use aya::Ebpf;

use super::object::{explain, map, program, unsupported};
use super::shared::Named;

const BPF_PROG_TEST_RUN: libc::c_long = 10;
/// Bytes of the kernel's `union bpf_attr` as far as a test run's fields go.
const TEST_RUN_BYTES: usize = 80;

/// The program that names, and its map. Whoever loaded it holds it; it is gone with that session.
pub struct Namer {
    program: OwnedFd,
    named: Mutex<Named>,
}

static NEWEST: Mutex<Weak<Namer>> = Mutex::new(Weak::new());

impl Namer {
    /// From here on [`name_of`] answers, as long as what this returns is held. Errors: kernels before 5.13 load no such
    /// program, those before 5.10 run none of this kind.
    pub fn load(bpf: &mut Ebpf) -> io::Result<Arc<Namer>> {
        let name: &mut RawTracePoint = program(bpf, "name")?;
        name.load().map_err(|e| explain(&e))?;
        let fd = name.fd().map_err(|e| explain(&e))?;
        let program = fd.as_fd().try_clone_to_owned()?;
        let named = Mutex::new(Named::new(map(bpf, "named")?.fd().as_fd())?);
        let namer = Arc::new(Namer { program, named });
        namer.name(0)?;
        *NEWEST.lock().unwrap_or_else(|e| e.into_inner()) = Arc::downgrade(&namer);
        Ok(namer)
    }

    fn name(&self, address: u64) -> io::Result<Option<(String, String)>> {
        let mut named = self.named.lock().unwrap_or_else(|e| e.into_inner());
        named.ask(address);
        // Its first field is the program; nothing goes in or out but by the map.
        let mut attr = [0u32; TEST_RUN_BYTES / 4];
        attr[0] = self.program.as_raw_fd() as u32;
        // SAFETY: a valid attribute of this length, which lives for the call.
        let done = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                BPF_PROG_TEST_RUN,
                attr.as_mut_ptr(),
                TEST_RUN_BYTES,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        let text = named.text();
        if text.is_empty() {
            return Err(unsupported("the kernel names nothing"));
        }
        Ok(of_text(&text))
    }
}

/// `function [module]`, or the address itself where it is in no function.
fn of_text(text: &str) -> Option<(String, String)> {
    let (function, module) = text.split_once(' ').unwrap_or((text, ""));
    if function.is_empty() || function.starts_with("0x") || function.starts_with('(') {
        return None;
    }
    let plain = if came_by_bpf(function) { "bpf" } else { "kernel" };
    let module = module.trim_matches(['[', ']']);
    Some((
        function.to_owned(),
        if module.is_empty() { plain } else { module }.to_owned(),
    ))
}

/// Programs are called by their tag, 16 digits, trampolines by a number. The kernel's list says whose they are, what it
/// prints does not.
fn came_by_bpf(function: &str) -> bool {
    let first = |rest: &str| rest.split('_').next().unwrap_or_default().to_owned();
    let tag = function.strip_prefix("bpf_prog_").map(first);
    let number = function.strip_prefix("bpf_trampoline_").map(first);
    tag.is_some_and(|t| t.len() == 16 && t.bytes().all(|b| b.is_ascii_hexdigit()))
        || number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Function and module (`kernel` for the kernel's own code) at an address, nothing where there is none. Errors: no session
/// runs whose program could be asked.
pub fn name_of(address: u64) -> io::Result<Option<(String, String)>> {
    let newest = NEWEST.lock().unwrap_or_else(|e| e.into_inner()).upgrade();
    newest
        .ok_or_else(|| unsupported("no program of this process names addresses"))?
        .name(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_with_their_module_and_addresses_are_no_names() {
        let owned = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(of_text("do_syscall_64"), owned("do_syscall_64", "kernel"));
        assert_eq!(of_text("nic_poll [e1000]"), owned("nic_poll", "e1000"));
        assert_eq!(
            of_text("bpf_prog_6deef7357e7b4530_clocked"),
            owned("bpf_prog_6deef7357e7b4530_clocked", "bpf")
        );
        assert_eq!(
            of_text("bpf_trampoline_6442534"),
            owned("bpf_trampoline_6442534", "bpf")
        );
        assert_eq!(
            of_text("bpf_prog_realloc.cold"),
            owned("bpf_prog_realloc.cold", "kernel")
        );
        assert_eq!(
            of_text("bpf_trampoline_link_prog"),
            owned("bpf_trampoline_link_prog", "kernel")
        );
        assert_eq!(of_text("0xffff888003c4d000"), None);
        assert_eq!(of_text("(null)"), None);
    }
}
