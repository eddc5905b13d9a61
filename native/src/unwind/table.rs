//! Unwind data of one file: from an address to the rule that leads to the caller. FDEs are found by binary search in
//! `.eh_frame_hdr` and parsed one at a time, so that a library with hundreds of thousands of them costs nothing.

use std::sync::{Arc, OnceLock};

use gimli::{BaseAddresses, CieOrFde, EhFrame, EndianSlice, LittleEndian, UnwindContext, UnwindSection};

use super::rule::Rule;
use crate::elf::Elf;

const FDE_MAX: usize = 64 << 10;
const CIE_MAX: usize = 4 << 10;
/// An `.eh_frame` without its table is read as a whole, up to this size.
const EH_FRAME_MAX: u64 = 64 << 20;

/// What a lookup found.
#[derive(Clone, Debug)]
pub struct FoundRule {
    pub rule: Arc<Rule>,
    /// First address of the FDE: of the function, or of the part of it that was moved away.
    pub start: u64,
    pub end: u64,
    /// The addresses for which the answer is this one.
    pub holds: (u64, u64),
}

/// Where the FDEs of a file stand. Addresses are the file's own.
pub struct UnwindTable {
    elf: Elf,
    search: Option<Search>,
    linear: OnceLock<Vec<(u64, u64)>>,
}

/// The sorted table of `.eh_frame_hdr`: pairs of signed 32-bit distances from the header's own address.
struct Search {
    base: u64,
    first: u64,
    count: u64,
}

impl UnwindTable {
    pub fn new(elf: Elf) -> Self {
        let search = Search::parse(&elf);
        Self {
            elf,
            search,
            linear: OnceLock::new(),
        }
    }

    /// The rule at an address, or nothing where the file says nothing of it.
    pub fn find(&self, vaddr: u64) -> Option<FoundRule> {
        let (fde, next) = match &self.search {
            Some(search) => search.find(&self.elf, vaddr)?,
            None => self.find_linear(vaddr)?,
        };
        let mut found = self.rule_of_fde(fde, vaddr)?;
        found.holds.1 = found.holds.1.min(next);
        Some(found)
    }

    /// Place of the FDE, and where the next one starts.
    fn find_linear(&self, vaddr: u64) -> Option<(u64, u64)> {
        let list = self
            .linear
            .get_or_init(|| list_of_fdes(&self.elf).unwrap_or_default());
        let i = list.partition_point(|e| e.0 <= vaddr).checked_sub(1)?;
        Some((list[i].1, list.get(i + 1).map_or(u64::MAX, |next| next.0)))
    }

    fn rule_of_fde(&self, fde_vaddr: u64, vaddr: u64) -> Option<FoundRule> {
        let fde = self.entry(fde_vaddr, FDE_MAX)?;
        let back = u32::from_le_bytes(fde.get(4..8)?.try_into().ok()?);
        let cie_vaddr = fde_vaddr.checked_add(4)?.checked_sub(u64::from(back))?;
        let cie = self.entry(cie_vaddr, CIE_MAX)?;
        // The two are put next to each other, as a section of their own at an address that keeps the FDE's place.
        let at = cie.len();
        let mut b = cie;
        b.extend_from_slice(&fde);
        b.get_mut(at + 4..at + 8)?
            .copy_from_slice(&u32::try_from(at + 4).ok()?.to_le_bytes());
        let bases = BaseAddresses::default()
            .set_eh_frame(fde_vaddr.wrapping_sub(at as u64))
            .set_text(self.elf.section(".text").map_or(0, |s| s.vaddr))
            .set_got(self.elf.section(".got").map_or(0, |s| s.vaddr))
            .set_eh_frame_hdr(self.elf.eh_frame_hdr.map_or(0, |h| h.0));
        let mut section = EhFrame::from(EndianSlice::new(&b, LittleEndian));
        section.set_address_size(8);
        if self.elf.machine == crate::elf::EM_AARCH64 {
            section.set_vendor(gimli::Vendor::AArch64);
        }
        let offset = gimli::EhFrameOffset(at);
        let fde = section
            .fde_from_offset(&bases, offset, |s, b, o| s.cie_from_offset(b, o))
            .ok()?;
        if !fde.contains(vaddr) {
            return None;
        }
        let mut context = UnwindContext::new();
        let row = fde
            .unwind_info_for_address(&section, &bases, &mut context, vaddr)
            .ok()?;
        let holds = (row.start_address(), row.end_address().min(fde.end_address()));
        let rule = Rule::of_row(
            &section,
            row,
            fde.cie().return_address_register(),
            fde.is_signal_trampoline(),
        )?;
        Some(FoundRule {
            rule: Arc::new(rule),
            start: fde.initial_address(),
            end: fde.end_address(),
            holds,
        })
    }

    /// The bytes of a CIE or FDE with its length field. 64-bit lengths do not occur in `.eh_frame`.
    fn entry(&self, vaddr: u64, limit: usize) -> Option<Vec<u8>> {
        let mut length = [0u8; 4];
        if !self.elf.read_vaddr(vaddr, &mut length) {
            return None;
        }
        let length = u32::from_le_bytes(length) as usize;
        if length < 8 || length > limit {
            return None;
        }
        let mut b = vec![0u8; length + 4];
        self.elf.read_vaddr(vaddr, &mut b).then_some(b)
    }
}

impl Search {
    fn parse(elf: &Elf) -> Option<Search> {
        let (base, size) = elf.eh_frame_hdr?;
        let mut head = [0u8; 12];
        if !elf.read_vaddr(base, &mut head) {
            return None;
        }
        // Version 1; the pointer to .eh_frame as signed 32 bit; the count as unsigned 32 bit; a table of signed
        // 32-bit distances from this header: what every linker writes.
        let known = head[0] == 1 && head[1] & 0x0f == 0x0b && head[2] == 0x03 && head[3] == 0x3b;
        let count = u64::from(u32::from_le_bytes(head[8..12].try_into().ok()?));
        (known && count > 0 && count <= size.saturating_sub(12) / 8).then_some(Search {
            base,
            first: base + 12,
            count,
        })
    }

    fn pair(&self, elf: &Elf, i: u64) -> Option<(u64, u64)> {
        let mut b = [0u8; 8];
        if !elf.read_vaddr(self.first + i * 8, &mut b) {
            return None;
        }
        let far = |b: &[u8]| Some(i64::from(i32::from_le_bytes(b.try_into().ok()?)));
        let (start, fde) = (far(&b[..4])?, far(&b[4..])?);
        Some((
            self.base.wrapping_add_signed(start),
            self.base.wrapping_add_signed(fde),
        ))
    }

    /// Place of the FDE, and where the next one starts.
    fn find(&self, elf: &Elf, vaddr: u64) -> Option<(u64, u64)> {
        let (mut from, mut to) = (0, self.count);
        while from < to {
            let middle = from + (to - from) / 2;
            if self.pair(elf, middle)?.0 <= vaddr {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        let fde = self.pair(elf, from.checked_sub(1)?)?.1;
        let next = if from < self.count {
            self.pair(elf, from)?.0
        } else {
            u64::MAX
        };
        Some((fde, next))
    }
}

/// Start and place of each FDE, sorted, of a file without `.eh_frame_hdr`.
fn list_of_fdes(elf: &Elf) -> Option<Vec<(u64, u64)>> {
    let section = elf.section(".eh_frame")?;
    if section.size > EH_FRAME_MAX || section.size > elf.source.len() {
        return None;
    }
    let mut b = vec![0u8; section.size as usize];
    if !elf.source.read_bulk(section.offset, &mut b) {
        return None;
    }
    let bases = BaseAddresses::default().set_eh_frame(section.vaddr);
    let mut eh_frame = EhFrame::from(EndianSlice::new(&b, LittleEndian));
    eh_frame.set_address_size(8);
    let mut list = Vec::new();
    let mut entries = eh_frame.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let Ok(fde) = partial.parse(|s, b, o| s.cie_from_offset(b, o)) else {
            continue;
        };
        list.push((
            fde.initial_address(),
            section.vaddr.wrapping_add(fde.offset() as u64),
        ));
    }
    list.sort_unstable();
    Some(list)
}
