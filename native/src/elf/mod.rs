//! ELF files (64 bit, little endian) as far as unwinding and symbols need them: segments, sections, build id.
//! Reads small pieces on demand, and trusts nothing that a file says of itself.

mod source;

use std::sync::Arc;

pub use source::{FileSource, Source};

pub const EM_X86_64: u16 = 62;
pub const EM_AARCH64: u16 = 183;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const SHN_XINDEX: u16 = 0xffff;

const SEGMENTS_MAX: u16 = 256;
const SECTIONS_MAX: u64 = 4096;
const NAMES_MAX: u64 = 1 << 20;
/// Addresses and offsets of real files end far below: sums of two never overflow.
const END_MAX: u64 = 1 << 56;

/// Do `size` bytes from `at` lie where those of a file can?
fn is_sane(at: u64, size: u64) -> bool {
    at.checked_add(size).is_some_and(|end| end <= END_MAX)
}

/// A `PT_LOAD` segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub vaddr: u64,
    pub offset: u64,
    pub file_size: u64,
    pub memory_size: u64,
    pub executable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub name: String,
    pub kind: u32,
    pub vaddr: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub entry_size: u64,
}

/// The headers of one file, and its bytes.
#[derive(Clone)]
pub struct Elf {
    pub source: Arc<dyn Source>,
    pub machine: u16,
    /// Where a program starts.
    pub entry: u64,
    pub segments: Vec<Segment>,
    pub sections: Vec<Section>,
    /// `vaddr` and size of `.eh_frame_hdr`.
    pub eh_frame_hdr: Option<(u64, u64)>,
    notes: Vec<(u64, u64)>,
}

fn u16_at(b: &[u8], o: usize) -> Option<u16> {
    Some(u16::from_le_bytes(b.get(o..o + 2)?.try_into().ok()?))
}

fn u32_at(b: &[u8], o: usize) -> Option<u32> {
    Some(u32::from_le_bytes(b.get(o..o + 4)?.try_into().ok()?))
}

fn u64_at(b: &[u8], o: usize) -> Option<u64> {
    Some(u64::from_le_bytes(b.get(o..o + 8)?.try_into().ok()?))
}

impl Elf {
    /// Nothing for a file that is no ELF file of this kind.
    pub fn parse(source: Arc<dyn Source>) -> Option<Elf> {
        let mut head = [0u8; 64];
        if !source.read_at(0, &mut head) || head[..6] != *b"\x7fELF\x02\x01" {
            return None;
        }
        let mut elf = Elf {
            source,
            machine: u16_at(&head, 18)?,
            entry: u64_at(&head, 24)?,
            segments: Vec::new(),
            sections: Vec::new(),
            eh_frame_hdr: None,
            notes: Vec::new(),
        };
        elf.read_segments(u64_at(&head, 32)?, u16_at(&head, 54)?, u16_at(&head, 56)?)?;
        // A file without sections (sstrip) can still be unwound.
        elf.read_sections(
            u64_at(&head, 40)?,
            u16_at(&head, 58)?,
            u16_at(&head, 60)?,
            u16_at(&head, 62)?,
        );
        Some(elf)
    }

    fn read_segments(&mut self, at: u64, entry: u16, count: u16) -> Option<()> {
        if entry != 56 || count > SEGMENTS_MAX {
            return None;
        }
        let mut b = vec![0u8; usize::from(entry) * usize::from(count)];
        if !self.source.read_at(at, &mut b) {
            return None;
        }
        for p in b.chunks_exact(usize::from(entry)) {
            let (kind, flags) = (u32_at(p, 0)?, u32_at(p, 4)?);
            let (offset, vaddr) = (u64_at(p, 8)?, u64_at(p, 16)?);
            let (file_size, memory_size) = (u64_at(p, 32)?, u64_at(p, 40)?);
            let size = file_size.max(memory_size);
            let sane = is_sane(offset, size) && is_sane(vaddr, size);
            match kind {
                PT_LOAD if sane => self.segments.push(Segment {
                    vaddr,
                    offset,
                    file_size,
                    memory_size,
                    executable: flags & PF_X != 0,
                }),
                PT_GNU_EH_FRAME if sane => self.eh_frame_hdr = Some((vaddr, memory_size)),
                PT_NOTE if sane => self.notes.push((offset, file_size)),
                _ => {}
            }
        }
        Some(())
    }

    fn read_sections(&mut self, at: u64, entry: u16, count: u16, names: u16) -> Option<()> {
        if at == 0 || entry != 64 {
            return None;
        }
        let mut first = [0u8; 64];
        if !self.source.read_at(at, &mut first) {
            return None;
        }
        // Large counts stand in the first section header.
        let count = if count == 0 {
            u64_at(&first, 32)?
        } else {
            u64::from(count)
        };
        let names = if names == SHN_XINDEX {
            u32_at(&first, 40)?
        } else {
            u32::from(names)
        };
        if count > SECTIONS_MAX {
            return None;
        }
        let mut b = vec![0u8; usize::from(entry) * count as usize];
        if !self.source.read_at(at, &mut b) {
            return None;
        }
        let headers: Vec<&[u8]> = b.chunks_exact(usize::from(entry)).collect();
        let table = headers.get(names as usize)?;
        let (o, size) = (u64_at(table, 24)?, u64_at(table, 32)?.min(NAMES_MAX));
        let mut text = vec![0u8; size as usize];
        if !self.source.read_at(o, &mut text) {
            return None;
        }
        for header in headers {
            self.sections.push(section(header, &text)?);
        }
        Some(())
    }

    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|s| s.name == name)
    }

    /// The address in the file's own numbering of a file offset that is mapped executable.
    pub fn vaddr_of_offset(&self, offset: u64) -> Option<u64> {
        let holds = |s: &&Segment| offset >= s.offset && offset - s.offset < s.file_size;
        let found = self.segments.iter().filter(holds);
        let best = found
            .clone()
            .find(|s| s.executable)
            .or_else(|| found.clone().next())?;
        Some(best.vaddr + (offset - best.offset))
    }

    /// The mapping of a segment starts at a page, which may lie before the segment: as above for any mapped offset.
    pub fn vaddr_of_mapped(&self, offset: u64, executable: bool) -> Option<u64> {
        const PAGE: u64 = 4095;
        let holds = |s: &&Segment| {
            let (from, to) = (
                s.offset & !PAGE,
                (s.offset + s.file_size).saturating_add(PAGE) & !PAGE,
            );
            s.executable == executable && from <= offset && offset < to
        };
        let s = self.segments.iter().find(holds)?;
        Some(s.vaddr.wrapping_sub(s.offset).wrapping_add(offset))
    }

    /// Where in the file the bytes of an address lie.
    pub fn offset_of_vaddr(&self, vaddr: u64) -> Option<u64> {
        let s = self
            .segments
            .iter()
            .find(|s| vaddr >= s.vaddr && vaddr - s.vaddr < s.file_size)?;
        Some(s.offset + (vaddr - s.vaddr))
    }

    /// Bytes of the file by address. `into` must lie within one segment.
    pub fn read_vaddr(&self, vaddr: u64, into: &mut [u8]) -> bool {
        self.offset_of_vaddr(vaddr)
            .is_some_and(|o| self.source.read_at(o, into))
    }

    /// The build id, from the notes: by their section, else by their segment (files that hold symbols alone have
    /// segments that say nothing of where their bytes are).
    pub fn build_id(&self) -> Option<Vec<u8>> {
        let section = self.section(".note.gnu.build-id").map(|s| (s.offset, s.size));
        let notes = section.into_iter().chain(self.notes.iter().copied());
        notes.into_iter().find_map(|(offset, size)| {
            let mut b = vec![0u8; size.min(4096) as usize];
            let read = self.source.read_at(offset, &mut b);
            read.then(|| build_id_of_notes(&b)).flatten()
        })
    }
}

/// The build id in the bytes of a note segment.
pub fn build_id_of_notes(mut b: &[u8]) -> Option<Vec<u8>> {
    const NT_GNU_BUILD_ID: u32 = 3;
    while b.len() >= 12 {
        let (name, size, kind) = (u32_at(b, 0)? as usize, u32_at(b, 4)? as usize, u32_at(b, 8)?);
        let value_at = 12usize.checked_add(name.checked_add(3)? & !3)?;
        let value = b.get(value_at..value_at.checked_add(size)?)?;
        if kind == NT_GNU_BUILD_ID && b.get(12..16) == Some(b"GNU\0") {
            return Some(value.to_vec());
        }
        b = b.get(value_at.checked_add(size.checked_add(3)? & !3)?..)?;
    }
    None
}

fn section(s: &[u8], names: &[u8]) -> Option<Section> {
    let name = names.get(u32_at(s, 0)? as usize..).unwrap_or_default();
    let end = name.iter().position(|&c| c == 0).unwrap_or(name.len()).min(256);
    let (vaddr, offset, size) = (u64_at(s, 16)?, u64_at(s, 24)?, u64_at(s, 32)?);
    let sane = is_sane(vaddr, size) && is_sane(offset, size);
    Some(Section {
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
        kind: u32_at(s, 4)?,
        // Others refer to it by its number: it stays, as an empty one.
        vaddr: if sane { vaddr } else { 0 },
        offset: if sane { offset } else { 0 },
        size: if sane { size } else { 0 },
        link: u32_at(s, 40)?,
        entry_size: u64_at(s, 56)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Elf {
        let file = std::fs::File::open("/proc/self/exe").expect("own program");
        Elf::parse(Arc::new(FileSource::new(file).expect("its length"))).expect("an ELF file")
    }

    #[test]
    fn own_program_has_segments_sections_and_an_unwind_table() {
        let elf = own();
        assert!(elf.segments.iter().any(|s| s.executable));
        let text = elf.section(".text").expect("text").clone();
        assert_eq!(elf.vaddr_of_offset(text.offset), Some(text.vaddr));
        assert_eq!(elf.offset_of_vaddr(text.vaddr), Some(text.offset));
        let hdr = elf.section(".eh_frame_hdr").expect("table");
        assert_eq!(elf.eh_frame_hdr, Some((hdr.vaddr, hdr.size)));
    }

    #[test]
    fn files_that_are_cut_short_or_no_elf_files_are_refused_or_read_in_part() {
        let whole = std::fs::read("/proc/self/exe").expect("own program");
        for keep in [0, 3, 63, 64, 100, 300, 1000, 4000] {
            if let Some(elf) = Elf::parse(Arc::new(whole[..keep].to_vec())) {
                assert!(elf.sections.is_empty());
            }
        }
        assert!(Elf::parse(Arc::new(b"#!/bin/sh\n".repeat(20))).is_none());
    }

    #[test]
    fn a_small_read_across_blocks_is_whole_and_one_past_the_end_is_refused() {
        let whole = std::fs::read("/proc/self/exe").expect("own program");
        let source = FileSource::new(std::fs::File::open("/proc/self/exe").expect("open")).expect("length");
        let mut b = [0u8; 40];
        let at = (16 << 10) - 7;
        assert!(source.read_at(at as u64, &mut b));
        assert_eq!(b, whole[at..at + 40]);
        assert!(!source.read_at(whole.len() as u64 - 39, &mut b));
        assert!(!source.read_at(u64::MAX - 3, &mut b));
    }
}
