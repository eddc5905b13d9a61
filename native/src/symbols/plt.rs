//! Stubs of the linker that jump on to a function of another file, named after it: `malloc@plt`.

use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use super::table::{string_at, Symbol};
use crate::elf::{Elf, Section, EM_AARCH64, EM_X86_64};

const RELOCATION: u64 = 24;
const SYMBOL_SIZE: u64 = 24;
/// Bytes of a table of relocations that are looked at.
const TABLE_MAX: u64 = 64 << 20;
const PIECE: usize = 24 << 12;
const STUB: u64 = 16;

/// The slot that each stub reads its target from, and the symbol that the slot is for.
#[derive(Default)]
pub struct Stubs {
    jumps: OnceLock<FxHashMap<u64, u32>>,
    /// Slots that are filled when the file is loaded: few of the large table are needed, but all must be read.
    others: OnceLock<FxHashMap<u64, u32>>,
}

/// The section of stubs that holds an address.
pub fn section_of(elf: &Elf, vaddr: u64) -> Option<&Section> {
    let holds = |s: &&Section| s.name.starts_with(".plt") && vaddr >= s.vaddr && vaddr - s.vaddr < s.size;
    elf.sections.iter().find(holds)
}

/// Is this the name of a stub?
pub fn is_stub_name(name: &str) -> bool {
    name.ends_with("@plt")
}

impl Stubs {
    /// The stub at an address, and its size.
    pub fn find(&self, elf: &Elf, vaddr: u64) -> Option<(Symbol, u64)> {
        let section = section_of(elf, vaddr)?;
        let size = match section.entry_size {
            8 => 8,
            _ => STUB,
        };
        let start = vaddr - (vaddr - section.vaddr) % size;
        let mut code = vec![0u8; size as usize];
        if !elf.read_vaddr(start, &mut code) {
            return None;
        }
        let symbol = match elf.machine {
            EM_X86_64 => match slot_x86(&code, start) {
                Some(slot) => self.symbol_of(elf, slot)?,
                None => nth_jump(elf, pushed(&code)?)?,
            },
            EM_AARCH64 => self.symbol_of(elf, slot_aarch64(&code, start)?)?,
            _ => return None,
        };
        let name = name_of(elf, symbol)? + "@plt";
        Some((Symbol { start, name }, size))
    }

    fn symbol_of(&self, elf: &Elf, slot: u64) -> Option<u32> {
        let jumps = self.jumps.get_or_init(|| slots(elf, ".rela.plt"));
        let others = || self.others.get_or_init(|| slots(elf, ".rela.dyn"));
        jumps.get(&slot).or_else(|| others().get(&slot)).copied()
    }
}

/// `jmp [rip + far]`, with or without a mark for indirect branches before it.
fn slot_x86(code: &[u8], start: u64) -> Option<u64> {
    let at = (0..code.len().saturating_sub(5)).find(|&i| code[i..i + 2] == [0xff, 0x25])?;
    if !matches!(
        &code[..at],
        [] | [0xf2] | [0xf3, 0x0f, 0x1e, 0xfa] | [0xf3, 0x0f, 0x1e, 0xfa, 0xf2]
    ) {
        return None; // in the middle of another instruction, or the stub that all others jump to
    }
    let far = i32::from_le_bytes(code.get(at + 2..at + 6)?.try_into().ok()?);
    Some((start + at as u64 + 6).wrapping_add_signed(far.into()))
}

/// `push number` of a stub that only leads to the first one.
fn pushed(code: &[u8]) -> Option<u64> {
    let code = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    let number = code.strip_prefix(&[0x68])?.get(..4)?;
    Some(u64::from(u32::from_le_bytes(number.try_into().ok()?)))
}

/// `adrp x16, page; ldr x17, [x16, #offset]`
fn slot_aarch64(code: &[u8], start: u64) -> Option<u64> {
    let words: Vec<u32> = code
        .chunks_exact(4)
        .filter_map(|b| Some(u32::from_le_bytes(b.try_into().ok()?)))
        .collect();
    let i = words.iter().position(|w| w & 0x9f00_001f == 0x9000_0010)?;
    let (adrp, ldr) = (*words.get(i)?, *words.get(i + 1)?);
    if ldr & 0xffc0_03ff != 0xf940_0211 {
        return None;
    }
    let pages = i64::from((adrp >> 5 & 0x7_ffff) << 2 | adrp >> 29 & 3) << 43 >> 43;
    let page = (start + 4 * i as u64) & !4095;
    let slot = page.wrapping_add_signed(pages << 12);
    Some(slot.wrapping_add(u64::from(ldr >> 10 & 0xfff) * 8))
}

fn nth_jump(elf: &Elf, n: u64) -> Option<u32> {
    let section = elf.section(".rela.plt").filter(|s| n < s.size / RELOCATION)?;
    let mut b = [0u8; RELOCATION as usize];
    let read = elf
        .source
        .read_at(section.offset.checked_add(n * RELOCATION)?, &mut b);
    read.then(|| relocation(&b, elf.machine)).flatten().map(|r| r.1)
}

/// Slot and symbol, for a slot that holds the address of a function.
fn relocation(b: &[u8], machine: u16) -> Option<(u64, u32)> {
    let at = u64::from_le_bytes(b.get(..8)?.try_into().ok()?);
    let info = u64::from_le_bytes(b.get(8..16)?.try_into().ok()?);
    let address = match machine {
        EM_X86_64 => matches!(info as u32, 6 | 7), // GLOB_DAT, JUMP_SLOT
        _ => matches!(info as u32, 1025 | 1026),   // the same
    };
    let symbol = (info >> 32) as u32;
    (address && symbol != 0).then_some((at, symbol))
}

fn slots(elf: &Elf, name: &str) -> FxHashMap<u64, u32> {
    let mut found = FxHashMap::default();
    let Some(section) = elf.section(name) else {
        return found;
    };
    let mut left = section.size.min(TABLE_MAX).min(elf.source.len()) / RELOCATION * RELOCATION;
    let (mut at, mut piece) = (section.offset, vec![0u8; PIECE]);
    while left > 0 {
        let n = left.min(PIECE as u64) as usize;
        if !elf.source.read_bulk(at, &mut piece[..n]) {
            break;
        }
        let entries = piece[..n].chunks_exact(RELOCATION as usize);
        found.extend(entries.filter_map(|b| relocation(b, elf.machine)));
        at += n as u64;
        left -= n as u64;
    }
    found
}

fn name_of(elf: &Elf, symbol: u32) -> Option<String> {
    let table = elf.section(".dynsym")?;
    let strings = elf.sections.get(table.link as usize)?;
    let at = u64::from(symbol) * SYMBOL_SIZE;
    let mut b = [0u8; 4];
    if at >= table.size || !elf.source.read_at(table.offset.checked_add(at)?, &mut b) {
        return None;
    }
    string_at(
        &*elf.source,
        strings.offset,
        strings.size,
        u32::from_le_bytes(b).into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_of_a_stub_is_read_from_its_jump() {
        // jmp [rip+0x2fe2]; push 0; jmp
        let lazy = [
            0xff, 0x25, 0xe2, 0x2f, 0, 0, 0x68, 0, 0, 0, 0, 0xe9, 0xe0, 0xff, 0xff, 0xff,
        ];
        assert_eq!(slot_x86(&lazy, 0x1030), Some(0x4018));
        // endbr64; bnd jmp [rip+0x2f75]; nop
        let marked = [
            0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0x75, 0x2f, 0, 0, 0x0f, 0x1f, 0x44, 0, 0,
        ];
        assert_eq!(slot_x86(&marked, 0x1050), Some(0x3fd0));
        // push [rip+...]; jmp [rip+...]: the one that all lead to
        let first = [
            0xff, 0x35, 0xe2, 0x2f, 0, 0, 0xff, 0x25, 0xe4, 0x2f, 0, 0, 0x0f, 0x1f, 0x40, 0,
        ];
        assert_eq!(slot_x86(&first, 0x1020), None);
        // endbr64; push 3; bnd jmp
        let only = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x68, 3, 0, 0, 0, 0xf2, 0xe9, 1, 2, 3, 4, 0x90,
        ];
        assert_eq!((slot_x86(&only, 0x1020), pushed(&only)), (None, Some(3)));
        // adrp x16, +0x1f000; ldr x17, [x16, #0xfb8]; add x16, x16, #0xfb8; br x17
        let arm: Vec<u8> = [0xf000_00f0u32, 0xf947_de11, 0x913e_e210, 0xd61f_0220]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        assert_eq!(slot_aarch64(&arm, 0x6a0), Some(0x1f_fb8));
    }
}
