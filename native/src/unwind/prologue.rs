//! What the first instructions of an x86-64 function do to the stack: where unwind data is missing, this tells how far
//! away the return address is. Only straight-line code from the function's start is followed.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// What a prologue has done up to some instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prologue {
    /// From the stack pointer to the return address, where that is the same in every call.
    pub depth: u64,
    /// From the return address down to where the caller's rbp was saved.
    pub bp_below: Option<u64>,
    /// rbp was made a frame pointer: the return address is at rbp + 8 whatever came after.
    pub frame_pointer: bool,
    /// The stack pointer was moved by an amount that only the processor knew (as for arrays that are aligned to a page).
    pub moved: Option<Moved>,
}

/// Where a function that moved its stack pointer far away keeps the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    pub old: Old,
    /// From the old stack pointer to the return address.
    pub depth: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// In rbp.
    Bp,
    /// In memory, so far above the stack pointer.
    At(u64),
    /// Somewhere that is not followed.
    Elsewhere,
}

/// Bytes of a function that are looked at.
pub const PROLOGUE_MAX: usize = 192;
const INSTRUCTIONS_MAX: usize = 64;

/// Follows the instructions from a function's start (`code`) up to offset `until`, to the first jump, call or return.
pub fn analyse(code: &[u8], until: u64) -> Prologue {
    let mut state = State::default();
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    for _ in 0..INSTRUCTIONS_MAX {
        if decoder.ip() >= until || !decoder.can_decode() {
            break;
        }
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() || instruction.flow_control() != FlowControl::Next {
            break;
        }
        if state.follow(&instruction).is_none() {
            break;
        }
    }
    state.told
}

/// A register that holds what the stack pointer was.
#[derive(Clone, Copy)]
struct Copied {
    register: Register,
    depth: u64,
}

#[derive(Default)]
struct State {
    told: Prologue,
    copied: Option<Copied>,
}

impl State {
    /// Nothing where the stack can no longer be followed.
    fn follow(&mut self, i: &Instruction) -> Option<()> {
        let to = i.op0_register();
        match i.mnemonic() {
            Mnemonic::Push => {
                self.told.depth = self.told.depth.checked_add(8)?;
                if to == Register::RBP && self.told.moved.is_none() {
                    self.told.bp_below = self.told.bp_below.or(Some(self.told.depth));
                }
                self.shifted(8)
            }
            Mnemonic::Pop => {
                self.overwritten(to);
                self.told.depth = self.told.depth.checked_sub(8)?;
                self.shifted(-8)
            }
            Mnemonic::Sub | Mnemonic::Add if to == Register::RSP => self.adjusted(i),
            Mnemonic::And if to == Register::RSP => self.moved(),
            Mnemonic::Mov if i.code() == Code::Mov_rm64_r64 && i.op0_kind() == OpKind::Memory => {
                self.stored(i);
                Some(())
            }
            Mnemonic::Mov if to != Register::RSP && i.op1_register() == Register::RSP => {
                if self.told.moved.is_none() {
                    let depth = self.told.depth;
                    self.told.frame_pointer =
                        to == Register::RBP && depth == 8 && self.told.bp_below == Some(8);
                    self.copied = Some(Copied { register: to, depth });
                }
                Some(())
            }
            _ if i.op0_kind() == OpKind::Register && to.full_register() == Register::RSP => {
                matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test).then_some(())
            }
            Mnemonic::Cmp | Mnemonic::Test => Some(()),
            _ => {
                if i.op0_kind() == OpKind::Register {
                    self.overwritten(to.full_register());
                }
                Some(())
            }
        }
    }

    /// `sub rsp, n`, `add rsp, n`, or by a register.
    fn adjusted(&mut self, i: &Instruction) -> Option<()> {
        if i.op1_kind() == OpKind::Register {
            return self.moved();
        }
        let n = i.try_immediate(1).ok()? as i64;
        let down = if i.mnemonic() == Mnemonic::Sub {
            n
        } else {
            n.checked_neg()?
        };
        self.told.depth = self.told.depth.checked_add_signed(down)?;
        self.shifted(down)
    }

    /// What is kept relative to the stack pointer is so much farther from it.
    fn shifted(&mut self, down: i64) -> Option<()> {
        if let Some(Moved { old: Old::At(at), .. }) = &mut self.told.moved {
            *at = at.checked_add_signed(down)?;
        }
        Some(())
    }

    fn moved(&mut self) -> Option<()> {
        let copied = self.copied?;
        let old = match (copied.register, self.told.moved) {
            (Register::RBP, _) => Old::Bp,
            _ => Old::Elsewhere,
        };
        self.told.moved = Some(Moved {
            old,
            depth: copied.depth,
        });
        Some(())
    }

    /// `mov [rsp + n], register`
    fn stored(&mut self, i: &Instruction) {
        if i.memory_base() != Register::RSP || i.memory_index() != Register::None {
            return;
        }
        let (at, what) = (i.memory_displacement64(), i.op1_register());
        if at > 1 << 20 {
            return;
        }
        match (&mut self.told.moved, self.copied) {
            (Some(moved), Some(copied)) if copied.register == what => moved.old = Old::At(at),
            (None, _) if what == Register::RBP && at < self.told.depth => {
                let below = self.told.depth - at;
                self.told.bp_below = self.told.bp_below.or(Some(below));
            }
            _ => {}
        }
    }

    fn overwritten(&mut self, register: Register) {
        if self.copied.is_some_and(|c| c.register == register) {
            self.copied = None;
            if let Some(moved) = self.told.moved.as_mut().filter(|m| m.old == Old::Bp) {
                moved.old = Old::Elsewhere;
            }
        }
    }
}

/// Is the instruction before `code`'s end a call? `code` holds the bytes before a return address.
pub fn ends_in_call(code: &[u8]) -> bool {
    let n = code.len();
    if n >= 5 && code[n - 5] == 0xe8 {
        return true;
    }
    (2..=7usize).any(|len| n >= len && indirect_call_length(&code[n - len..]) == Some(len))
}

/// Where a direct call before the return address `to` leads.
pub fn call_target(code: &[u8], to: u64) -> Option<u64> {
    let n = code.len();
    if n < 5 || code[n - 5] != 0xe8 {
        return None;
    }
    let far = i32::from_le_bytes(code[n - 4..].try_into().ok()?);
    Some(to.wrapping_add_signed(i64::from(far)))
}

/// Length of the `call r/m64` that `b` starts with.
fn indirect_call_length(b: &[u8]) -> Option<usize> {
    let (prefix, b) = match b {
        [0x40..=0x4f, rest @ ..] => (1, rest),
        _ => (0, b),
    };
    let &[0xff, modrm, ..] = b else {
        return None;
    };
    if (modrm >> 3) & 7 != 2 {
        return None;
    }
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let sib = usize::from(mode != 3 && rm == 4);
    let displacement = match (mode, rm) {
        (3, _) => 0,
        (0, 5) => 4,
        (0, 4) if b.get(2)? & 7 == 5 => 4,
        (0, _) => 0,
        (1, _) => 1,
        _ => 4,
    };
    Some(prefix + 2 + sib + displacement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushes_and_room_for_locals_add_up() {
        // endbr64; push rbp; push r15; push rbx; sub rsp, 0x28; movaps ...
        let code = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x41, 0x57, 0x53, 0x48, 0x83, 0xec, 0x28, 0x0f, 0x29,
        ];
        let all = analyse(&code, 100);
        assert_eq!(
            (all.depth, all.bp_below, all.frame_pointer),
            (24 + 0x28, Some(8), false)
        );
        assert_eq!(analyse(&code, 5).depth, 8);
        assert_eq!(analyse(&code, 0), Prologue::default());
    }

    #[test]
    fn a_frame_pointer_is_noticed() {
        assert!(analyse(&[0x55, 0x48, 0x89, 0xe5, 0x41, 0x57], 50).frame_pointer);
        // Not one: rbp is pushed second.
        assert!(!analyse(&[0x41, 0x57, 0x55, 0x48, 0x89, 0xe5], 50).frame_pointer);
    }

    #[test]
    fn a_stack_pointer_that_is_moved_to_a_page_is_found_again() {
        // sub rsp, 0x40; mov [rsp+8], rbp; mov rbp, rsp; imul rax, rax, 0xc0; sub rsp, rax; and rsp, -4096;
        // mov [rsp+0x78], rbp; mov [rsp], rdi; mov rbp, [rsp+0x10]
        let code = [
            0x48, 0x83, 0xec, 0x40, 0x48, 0x89, 0x6c, 0x24, 0x08, 0x48, 0x89, 0xe5, 0x48, 0x69, 0xc0, 0xc0,
            0x00, 0x00, 0x00, 0x48, 0x29, 0xc4, 0x48, 0x81, 0xe4, 0x00, 0xf0, 0xff, 0xff, 0x48, 0x89, 0x6c,
            0x24, 0x78, 0x48, 0x89, 0x3c, 0x24, 0x48, 0x8b, 0x6c, 0x24, 0x10,
        ];
        let told = |until| analyse(&code, until);
        assert_eq!(
            (told(12).depth, told(12).bp_below, told(12).moved),
            (0x40, Some(0x38), None)
        );
        let moved = |until| told(until).moved.map(|m| (m.old, m.depth));
        assert_eq!(moved(29), Some((Old::Bp, 0x40)));
        assert_eq!(moved(34), Some((Old::At(0x78), 0x40)));
        assert_eq!(moved(100), Some((Old::At(0x78), 0x40)));
        assert_eq!(told(100).bp_below, Some(0x38));
    }

    #[test]
    fn nothing_is_followed_beyond_a_jump() {
        // push rbx; jmp +0; push rbx
        assert_eq!(analyse(&[0x53, 0xeb, 0x00, 0x53], 50).depth, 8);
    }

    #[test]
    fn any_bytes_are_taken() {
        let mut seed = 1u32;
        for _ in 0..20_000 {
            let code: Vec<u8> = (0..40)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 24) as u8
                })
                .collect();
            analyse(&code, u64::MAX);
        }
    }

    #[test]
    fn calls_of_all_encodings_are_seen_and_other_code_is_not() {
        assert!(ends_in_call(&[0, 0, 0xe8, 1, 2, 3, 4]));
        assert!(ends_in_call(&[0xff, 0xd0]));
        assert!(ends_in_call(&[0x41, 0xff, 0xd7]));
        assert!(ends_in_call(&[0xff, 0x15, 1, 2, 3, 4]));
        assert!(ends_in_call(&[0xff, 0x50, 0x10]));
        assert!(ends_in_call(&[0xff, 0x94, 0x24, 1, 2, 3, 4]));
        assert!(!ends_in_call(&[0xff, 0xe0]));
        assert!(!ends_in_call(&[0x90; 7]));
        assert!(!ends_in_call(&[]));
        assert_eq!(call_target(&[0xe8, 0xfb, 0xff, 0xff, 0xff], 0x1005), Some(0x1000));
    }
}
