//! Where a function ends. A return probe would do too, but it swaps the return address on the stack: an exception that
//! passes it ends the process, and an unwinder cannot pass it while the call lasts. A probe at each `ret` does neither.

/// Where a function's code leaves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// Offsets of its return instructions.
    pub returns: Vec<u64>,
    /// Addresses outside that it jumps to: other functions, or its own part that the compiler moved away as cold.
    pub outside: Vec<u64>,
}

/// Nothing where not all exits can be known: it jumps to where a register points, or holds bytes that are no instructions.
pub fn exits(code: &[u8], address: u64) -> Option<Exits> {
    imp::exits(code, address)
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use super::Exits;
    use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

    pub fn exits(code: &[u8], address: u64) -> Option<Exits> {
        let end = address.checked_add(code.len() as u64)?;
        let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let mut before = Mnemonic::INVALID;
        let mut found = Exits::default();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                return None;
            }
            match instruction.flow_control() {
                FlowControl::Return => found.returns.push(instruction.ip() - address),
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                    let to = instruction.near_branch_target();
                    if !(address..end).contains(&to) {
                        found.outside.push(to);
                    }
                }
                // A table of a switch is added to its base just before, or is indexed; anything else calls away.
                FlowControl::IndirectBranch => {
                    let table = match instruction.op0_kind() {
                        OpKind::Register => matches!(before, Mnemonic::Add | Mnemonic::Movsxd),
                        _ => instruction.memory_index() != iced_x86::Register::None,
                    };
                    if !table {
                        return None;
                    }
                }
                _ => {}
            }
            before = instruction.mnemonic();
        }
        Some(found)
    }
}

#[cfg(target_arch = "aarch64")]
mod imp {
    use super::Exits;

    pub fn exits(code: &[u8], address: u64) -> Option<Exits> {
        let end = address.checked_add(code.len() as u64)?;
        let mut found = Exits::default();
        for (n, word) in code.chunks_exact(4).enumerate() {
            let at = address + 4 * n as u64;
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            match word {
                // ret, retaa, retab
                w if w & 0xffff_fc1f == 0xd65f_0000 || w & 0xffff_fbff == 0xd65f_0bff => {
                    found.returns.push(at - address)
                }
                // b: 26 bits of words
                w if w >> 26 == 0b000101 => {
                    let to = at.wrapping_add_signed(i64::from((w << 6) as i32 >> 4));
                    if !(address..end).contains(&to) {
                        found.outside.push(to);
                    }
                }
                // br and braa: a switch and a call away look the same
                w if w & 0xffff_fc1f == 0xd61f_0000 || w & 0xffff_f800 == 0xd71f_0800 => return None,
                _ => {}
            }
        }
        Some(found)
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod imp {
    use super::Exits;

    pub fn exits(_code: &[u8], _address: u64) -> Option<Exits> {
        None
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    const AT: u64 = 0x1000;

    fn of(code: &[u8]) -> Option<(Vec<u64>, Vec<u64>)> {
        exits(code, AT).map(|e| (e.returns, e.outside))
    }

    #[test]
    fn every_return_is_found() {
        // test edi,edi; je +1; ret; xor eax,eax; ret
        assert_eq!(
            of(&[0x85, 0xff, 0x74, 0x01, 0xc3, 0x31, 0xc0, 0xc3]),
            Some((vec![4, 7], vec![]))
        );
        // a constant that holds 0xc3, and rep ret
        assert_eq!(of(&[0xb8, 0xc3, 0, 0, 0, 0xf3, 0xc3]), Some((vec![5], vec![])));
    }

    #[test]
    fn jumps_away_are_told() {
        assert_eq!(
            of(&[0x75, 0x01, 0xc3, 0xe9, 0, 1, 0, 0]),
            Some((vec![2], vec![AT + 8 + 0x100]))
        );
        assert_eq!(
            of(&[0x0f, 0x85, 0, 1, 0, 0, 0xc3]),
            Some((vec![6], vec![AT + 6 + 0x100]))
        );
    }

    #[test]
    fn a_function_that_ends_who_knows_where_has_no_known_exits() {
        assert_eq!(of(&[0xff, 0xe0]), None); // jmp rax
        assert_eq!(of(&[0xff, 0x60, 0x18]), None); // jmp [rax+0x18]
        assert_eq!(of(&[0xc3, 0x06]), None); // no instruction of 64 bits
    }

    #[test]
    fn a_switch_is_no_exit() {
        // add rdx,rax; jmp rdx; ret
        assert_eq!(of(&[0x48, 0x01, 0xc2, 0xff, 0xe2, 0xc3]), Some((vec![5], vec![])));
        // notrack jmp [rdx*8+0x0]
        assert_eq!(
            of(&[0x3e, 0xff, 0x24, 0xd5, 0, 0, 0, 0, 0xc3]),
            Some((vec![8], vec![]))
        );
    }

    #[test]
    fn no_bytes_make_it_fall() {
        let mut seed = 1u64;
        for _ in 0..2000 {
            let code: Vec<u8> = (0..48)
                .map(|_| {
                    seed = seed
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    (seed >> 56) as u8
                })
                .collect();
            if let Some((found, _)) = of(&code) {
                assert!(found.iter().all(|&at| at < 48));
            }
        }
    }
}
