//! Where a function ends. A return probe would do too, but it swaps the return address on the stack: an exception that
//! passes it ends the process, and an unwinder cannot pass it while the call lasts. A probe at each `ret` does neither.

/// The offsets of all exits in a function's code, or nothing where not all of them can be known (it ends in a jump to
/// another function, or holds bytes that are no instructions).
///
/// `is_own` says whether an address outside belongs to the function (the part that the compiler moved away as cold).
pub fn exits(code: &[u8], address: u64, is_own: impl Fn(u64) -> bool) -> Option<Vec<u64>> {
    imp::exits(code, address, is_own).filter(|found| !found.is_empty())
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

    pub fn exits(code: &[u8], address: u64, is_own: impl Fn(u64) -> bool) -> Option<Vec<u64>> {
        let end = address.checked_add(code.len() as u64)?;
        let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let mut before = Mnemonic::INVALID;
        let mut found = Vec::new();
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                return None;
            }
            match instruction.flow_control() {
                FlowControl::Return => found.push(instruction.ip() - address),
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                    let to = instruction.near_branch_target();
                    if !(address..end).contains(&to) && !is_own(to) {
                        return None;
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
    pub fn exits(code: &[u8], address: u64, is_own: impl Fn(u64) -> bool) -> Option<Vec<u64>> {
        let end = address.checked_add(code.len() as u64)?;
        let mut found = Vec::new();
        for (n, word) in code.chunks_exact(4).enumerate() {
            let at = address + 4 * n as u64;
            let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            match word {
                // ret, retaa, retab
                w if w & 0xffff_fc1f == 0xd65f_0000 || w & 0xffff_fbff == 0xd65f_0bff => found.push(at - address),
                // b: 26 bits of words
                w if w >> 26 == 0b000101 => {
                    let to = at.wrapping_add_signed(i64::from((w << 6) as i32 >> 4));
                    if !(address..end).contains(&to) && !is_own(to) {
                        return None;
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
    pub fn exits(_code: &[u8], _address: u64, _is_own: impl Fn(u64) -> bool) -> Option<Vec<u64>> {
        None
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    const AT: u64 = 0x1000;

    fn of(code: &[u8]) -> Option<Vec<u64>> {
        exits(code, AT, |_| false)
    }

    #[test]
    fn every_return_is_found() {
        // test edi,edi; je +2; inc eax ... ret; xor eax,eax; ret
        assert_eq!(of(&[0x85, 0xff, 0x74, 0x01, 0xc3, 0x31, 0xc0, 0xc3]), Some(vec![4, 7]));
        // rep ret, and a constant that holds 0xc3: mov eax, 0xc3
        assert_eq!(of(&[0xb8, 0xc3, 0, 0, 0, 0xf3, 0xc3]), Some(vec![5]));
    }

    #[test]
    fn a_function_that_ends_elsewhere_has_no_known_exits() {
        assert_eq!(of(&[0x75, 0x01, 0xc3, 0xe9, 0, 1, 0, 0]), None); // jmp away
        assert_eq!(of(&[0xff, 0xe0]), None); // jmp rax
        assert_eq!(of(&[0xff, 0x60, 0x18]), None); // jmp [rax+0x18]
        assert_eq!(of(&[0x90, 0x90]), None); // never returns
        assert_eq!(of(&[0xc3, 0x06]), None); // no instruction of 64 bits
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_jump_to_its_own_cold_part_is_no_exit() {
        let code = [0x0f, 0x85, 0, 1, 0, 0, 0xc3];
        assert_eq!(exits(&code, AT, |_| false), None);
        assert_eq!(exits(&code, AT, |to| to == AT + 6 + 0x100), Some(vec![6]));
    }

    #[test]
    fn a_switch_is_no_exit() {
        // add rdx,rax; jmp rdx; ret
        assert_eq!(of(&[0x48, 0x01, 0xc2, 0xff, 0xe2, 0xc3]), Some(vec![5]));
        // notrack jmp [rdx*8+0x0]
        assert_eq!(of(&[0x3e, 0xff, 0x24, 0xd5, 0, 0, 0, 0, 0xc3]), Some(vec![8]));
    }

    #[test]
    fn no_bytes_make_it_fall() {
        let mut seed = 1u64;
        for _ in 0..2000 {
            let code: Vec<u8> = (0..48)
                .map(|_| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (seed >> 56) as u8
                })
                .collect();
            if let Some(found) = of(&code) {
                assert!(found.iter().all(|&at| at < 48));
            }
        }
    }
}
