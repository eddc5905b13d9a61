//! The registers that unwinding carries from frame to frame, numbered as DWARF does.

use crate::elf::{EM_AARCH64, EM_X86_64};
use crate::sample::Regs;

pub const REGISTERS: usize = 34;
const X86_64_IP: usize = 16;

/// Which registers have which role on one kind of processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arch {
    pub machine: u16,
    pub sp: u8,
    pub bp: u8,
    /// The link register, where there is one.
    pub lr: Option<u8>,
    /// Registers that a called function gives back as they were.
    kept: u64,
    /// Bits of a code address; those above may be a signature.
    code_bits: u32,
}

impl Arch {
    pub const X86_64: Arch = Arch {
        machine: EM_X86_64,
        sp: 7,
        bp: 6,
        lr: None,
        // rbx, rbp, r12 to r15
        kept: 1 << 3 | 1 << 6 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 15,
        code_bits: 64,
    };
    pub const AARCH64: Arch = Arch {
        machine: EM_AARCH64,
        sp: 31,
        bp: 29,
        lr: Some(30),
        // x19 to x29
        kept: 0x7ff << 19,
        code_bits: 48,
    };

    pub const fn host() -> Arch {
        if cfg!(target_arch = "aarch64") {
            Self::AARCH64
        } else {
            Self::X86_64
        }
    }
}

/// Values of the registers of one frame, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    arch: Arch,
    values: [u64; REGISTERS],
    known: u64,
    ip: u64,
}

impl Registers {
    pub fn new(arch: Arch, regs: &Regs) -> Self {
        let mut new = Self {
            arch,
            values: [0; REGISTERS],
            known: 0,
            ip: regs.ip,
        };
        new.set(arch.sp, regs.sp);
        new.set(arch.bp, regs.bp);
        if let Some(lr) = arch.lr {
            new.set(lr, regs.lr);
        }
        new
    }

    pub fn get(&self, register: u8) -> Option<u64> {
        let i = usize::from(register);
        // The column of the return address stands for the instruction pointer of the frame itself: stubs of the
        // linker tell by it how far they got.
        if self.arch.lr.is_none() && i == X86_64_IP {
            return Some(self.ip);
        }
        (i < REGISTERS && self.known & (1 << i) != 0).then(|| self.values[i])
    }

    pub fn set(&mut self, register: u8, value: u64) {
        if let Some(slot) = self.values.get_mut(usize::from(register)) {
            *slot = value;
            self.known |= 1 << register;
        }
    }

    pub fn forget(&mut self, register: u8) {
        if usize::from(register) < REGISTERS {
            self.known &= !(1 << register);
        }
    }

    /// Only what calls keep stays known.
    pub(super) fn called(&mut self) {
        self.known &= self.arch.kept;
    }

    pub fn ip(&self) -> u64 {
        self.ip
    }

    pub fn set_ip(&mut self, ip: u64) {
        self.ip = match self.arch.code_bits {
            64 => ip,
            bits => ip & ((1 << bits) - 1),
        };
    }

    pub fn sp(&self) -> u64 {
        self.values[usize::from(self.arch.sp)]
    }

    pub fn set_sp(&mut self, sp: u64) {
        self.set(self.arch.sp, sp);
    }

    pub fn bp(&self) -> Option<u64> {
        self.get(self.arch.bp)
    }

    pub fn set_bp(&mut self, bp: Option<u64>) {
        match bp {
            Some(bp) => self.set(self.arch.bp, bp),
            None => self.forget(self.arch.bp),
        }
    }

    /// The return address of a function that has not saved it: only the leaf's, and only with a link register.
    pub(super) fn link(&self, first: bool) -> Option<u64> {
        self.arch.lr.filter(|_| first).and_then(|lr| self.get(lr))
    }
}

impl PartialEq for Registers {
    /// What is not known does not tell one from another.
    fn eq(&self, other: &Self) -> bool {
        let known = |i: &usize| self.known & (1 << i) != 0;
        self.ip == other.ip
            && self.known == other.known
            && self.arch == other.arch
            && (0..REGISTERS)
                .filter(known)
                .all(|i| self.values[i] == other.values[i])
    }
}

impl Registers {
    /// The registers of a caller that was found without unwind data: little more is known than where it goes on.
    pub(super) fn called_with(&mut self, ip: u64, sp: u64, bp: Option<u64>) {
        self.known = 0;
        self.set_sp(sp);
        self.set_ip(ip);
        self.set_bp(bp);
    }
}
