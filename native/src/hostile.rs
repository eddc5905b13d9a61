//! The entries through which garbage can come in, for fuzzing and for the tests that flip bytes: none may panic, loop
//! for long, or take much memory.

use std::sync::Arc;

use crate::calls::functions_of;
use crate::elf::build_id_of_notes;
use crate::image::Image;
use crate::maps::Maps;
use crate::python::line_at;
use crate::recording::Recording;
use crate::sample::Frames;
use crate::symbols::{debug, demangle, KernelSymbols, Methods, PerfMap};

/// A file that says it is an ELF file: headers, symbols, names, unwind data.
pub fn elf(data: &[u8]) {
    build_id_of_notes(data);
    let Some(image) = Image::new("file", Arc::new(data.to_vec())) else {
        return;
    };
    image.elf.build_id();
    debug::find(&image.elf, "/bin/file", &[]);
    debug::unpacked(&image.elf);
    Methods::read(&image.elf, &|_| true);
    functions_of(&image.elf);
    image.address_of("_PyRuntime");
    let places: Vec<u64> = image
        .elf
        .segments
        .iter()
        .map(|s| s.vaddr.saturating_add(s.memory_size / 2))
        .collect();
    let stubs = image.elf.sections.iter().filter(|s| s.name.starts_with(".plt"));
    let stubs: Vec<u64> = stubs.map(|s| s.vaddr.saturating_add(s.size / 2)).collect();
    for at in places
        .into_iter()
        .chain(stubs)
        .chain([image.elf.entry, 0, u64::MAX])
    {
        image.unwind(at);
        image.is_loop_part(at);
        image.is_stub(at);
        if let Some(named) = image.symbol(at) {
            image.shown(&named);
        }
    }
}

/// Call frame information: `data` stands for all of `.eh_frame`, with and without a table to search it by.
pub fn eh_frame(data: &[u8]) {
    for table in [true, false] {
        let file = file_around(data, table);
        if let Some(image) = Image::new("file", Arc::new(file)) {
            for at in places() {
                if let Some(found) = image.unwind(at) {
                    follow(&found.rule);
                }
            }
        }
    }
}

/// Addresses all over the file, and some that no file has.
fn places() -> impl Iterator<Item = u64> {
    let near = (0x3e00..0x4000).step_by(4); // where the seed's functions come to lie
    (0..0x8000)
        .step_by(0x200)
        .chain(near)
        .chain([0x10_0000, 1 << 31, 1 << 47, u64::MAX])
}

fn follow(rule: &crate::unwind::Rule) {
    let regs = crate::sample::Regs {
        ip: 0x1000,
        sp: 0x8000,
        bp: 0x8100,
        lr: 0,
    };
    let mut regs = crate::unwind::Registers::new(crate::unwind::Arch::X86_64, &regs);
    let _ = rule.follow(&mut regs, true, &mut |addr| Some(addr ^ 0x55));
}

/// A file with this `.eh_frame` at address 0x4000 (what it speaks of lies below), and a table of which each entry leads to its first FDE.
fn file_around(data: &[u8], table: bool) -> Vec<u8> {
    const AT: u64 = 0x4000;
    let mut f = vec![0u8; AT as usize];
    f[..6].copy_from_slice(b"\x7fELF\x02\x01");
    let mut put = |at: usize, b: &[u8]| f[at..at + b.len()].copy_from_slice(b);
    put(18, &62u16.to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(40, &0x180u64.to_le_bytes());
    put(54, &56u16.to_le_bytes());
    put(56, &(1 + u16::from(table)).to_le_bytes());
    put(58, &64u16.to_le_bytes());
    put(60, &2u16.to_le_bytes());
    let size = AT + data.len() as u64;
    // One segment of all there is, and the table's.
    put(64, &1u32.to_le_bytes());
    put(68, &5u32.to_le_bytes());
    put(96, &size.to_le_bytes());
    put(104, &size.to_le_bytes());
    put(120, &0x6474_e550u32.to_le_bytes());
    put(136, &0x300u64.to_le_bytes());
    put(160, &(12u64 + 8).to_le_bytes());
    // Sections: names, .eh_frame
    put(0x198, &0x200u64.to_le_bytes());
    put(0x1a0, &32u64.to_le_bytes());
    put(0x1c0, &1u32.to_le_bytes());
    put(0x1d0, &AT.to_le_bytes());
    put(0x1d8, &AT.to_le_bytes());
    put(0x1e0, &(data.len() as u64).to_le_bytes());
    put(0x201, b".eh_frame");
    // The table: one entry, from address 0 on, to the FDE after the first entry.
    let first = data
        .get(..4)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u32::from_le_bytes);
    let fde = (AT as i32)
        .wrapping_add(first as i32)
        .wrapping_add(4)
        .wrapping_sub(0x300);
    put(0x300, &[1, 0x1b, 3, 0x3b]);
    put(0x308, &1u32.to_le_bytes());
    put(0x30c, &(-0x300i32).to_le_bytes());
    put(0x310, &fde.to_le_bytes());
    f.extend_from_slice(data);
    f
}

/// Texts: a perf map, mappings, symbols of the kernel, a mangled name, a line table.
pub fn perf_map(data: &[u8]) {
    PerfMap::parse(data).find(0x1000);
    Maps::parse(data).find(0x1000);
    KernelSymbols::parse(data).find(u64::MAX);
    demangle(&String::from_utf8_lossy(data));
    line_at(data, 1, 40);
}

/// A recorded sample: registers, stack, memory, files.
pub fn sample(data: &[u8]) {
    if let Some(recording) = Recording::of_bytes(data) {
        let _ = recording.play(&mut Frames::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_of_functions_has_some_that_groups_want() {
        let data = include_bytes!("../fuzz/seeds/elf/calls");
        let image = Image::new("file", Arc::new(data.to_vec())).expect("an ELF file");
        assert!(functions_of(&image.elf) >= 4);
    }

    #[test]
    fn the_seed_of_call_frame_information_has_rules_that_are_found() {
        let data = include_bytes!("../fuzz/seeds/eh_frame/small");
        for table in [true, false] {
            let image = Image::new("file", Arc::new(file_around(data, table))).expect("an ELF file");
            let found = places().filter(|&at| image.unwind(at).is_some()).count();
            assert!(found > 0, "{table}");
        }
    }
}
