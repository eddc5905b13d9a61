//! What the first instructions of an x86-64 function do to the stack: where unwind data is missing, this tells how far
//! away the return address is. Only the few instructions are understood that prologues are made of.

/// What a prologue has done up to some instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prologue {
    /// From the stack pointer to the return address.
    pub depth: u64,
    /// From the return address down to where the caller's rbp was pushed.
    pub bp_below: Option<u64>,
    /// rbp was made a frame pointer: the return address is at rbp + 8 whatever came after.
    pub frame_pointer: bool,
}

/// Bytes of a function that are looked at.
pub const PROLOGUE_MAX: usize = 96;

/// Reads the instructions from a function's start (`code`) up to offset `until`; stops at the first one that it does
/// not know, or that is no part of a prologue.
pub fn analyse(code: &[u8], until: u64) -> Prologue {
    let mut state = Prologue::default();
    let mut at = 0usize;
    while (at as u64) < until {
        let Some(rest) = code.get(at..) else {
            break;
        };
        match instruction(rest, &mut state) {
            Some(len) => at += len,
            None => break,
        }
    }
    state
}

fn instruction(b: &[u8], state: &mut Prologue) -> Option<usize> {
    let imm32 = |at: usize| Some(u64::from(u32::from_le_bytes(b.get(at..at + 4)?.try_into().ok()?)));
    match *b {
        // endbr64, and one-byte and multi-byte nop
        [0xf3, 0x0f, 0x1e, 0xfa, ..] => Some(4),
        [0x90, ..] => Some(1),
        // push rbp; push of another register
        [0x55, ..] => {
            state.depth += 8;
            state.bp_below = state.bp_below.or(Some(state.depth));
            Some(1)
        }
        [0x50..=0x57, ..] => {
            state.depth += 8;
            Some(1)
        }
        [0x41, 0x50..=0x57, ..] => {
            state.depth += 8;
            Some(2)
        }
        // mov rbp, rsp in both encodings
        [0x48, 0x89, 0xe5, ..] | [0x48, 0x8b, 0xec, ..] => {
            state.frame_pointer = state.bp_below == Some(8) && state.depth == 8;
            Some(3)
        }
        // sub rsp, imm8 / imm32
        [0x48, 0x83, 0xec, n @ 0..=0x7f, ..] => {
            state.depth += u64::from(n);
            Some(4)
        }
        [0x48, 0x81, 0xec, ..] => {
            state.depth += imm32(3)?;
            Some(7)
        }
        // Moves between registers do not touch the stack, unless rsp is their target: mov r64, r64
        [0x48 | 0x49 | 0x4c | 0x4d, 0x89 | 0x8b, m, ..] if m >= 0xc0 => {
            let (rex, opcode) = (b[0], b[1]);
            let (reg, rm) = ((m >> 3) & 7, m & 7);
            let to_sp = if opcode == 0x89 {
                rm == 4 && rex & 1 == 0
            } else {
                reg == 4 && rex & 4 == 0
            };
            (!to_sp).then_some(3)
        }
        _ => None,
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
