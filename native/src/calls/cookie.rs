//! The 64 bits that a probe carries: what calls.bpf.c does with the call. The layout is there too: change both.

use super::groups::{Address, Functions, Size};

const NONE: u64 = 15;

/// The exit is a return probe.
const RETURN: u64 = 16;
/// Its entry is told.
const MARK: u64 = 32;

/// `function` under 2^24, `group` under 32. `timed`: its exits are probed (by `by_return`: with a return probe).
pub fn cookie(function: u32, group: u8, of: &Functions, timed: bool, by_return: bool) -> u64 {
    let (size, by, elements) = match of.size {
        Size::None => (NONE, NONE, false),
        Size::Arg(n) => (u64::from(n), NONE, false),
        Size::Product(a, b) => (u64::from(a), u64::from(b), false),
        Size::Elements(a, b) => (u64::from(a), u64::from(b), true),
    };
    let address = match of.address {
        Address::Return => NONE,
        Address::Arg(n) => u64::from(n),
    };
    let flags = u64::from(timed && of.timed)
        | u64::from(timed && of.timed && of.span) << 1
        | u64::from(elements) << 2
        | u64::from(of.status) << 3
        | if by_return { RETURN } else { 0 }
        | if of.mark.is_some() && !of.span { MARK } else { 0 };
    u64::from(function & 0xff_ffff)
        | u64::from(group & 31) << 24
        | (of.what as u64) << 32
        | size << 40
        | by << 44
        | flags << 48
        | address << 56
        | (of.place as u64) << 60
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::GROUPS;
    use super::super::groups::What;
    use super::*;

    #[test]
    fn fields_lie_where_the_program_looks() {
        let memory = GROUPS.iter().find(|g| g.name == "cuda memory").unwrap();
        let malloc = &memory.functions[0];
        assert_eq!(malloc.what, What::Alloc);
        let c = cookie(0x123456, 12, malloc, true, true);
        assert_eq!(c & 0xff_ffff, 0x123456);
        assert_eq!(c >> 24 & 31, 12);
        assert_eq!(c >> 32 & 0xff, 1);
        assert_eq!((c >> 40 & 15, c >> 44 & 15), (1, 15));
        assert_eq!(c >> 48 & 0xff, 1 | 8 | 16);
        assert_eq!((c >> 56 & 15, c >> 60), (0, 1));
    }
}
