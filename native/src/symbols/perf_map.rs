//! `/tmp/perf-PID.map`: names that a runtime gives to the code it makes (`START SIZE NAME`, hexadecimal).

/// At most this many lines are read.
const LINES_MAX: usize = 1 << 20;
const NAME_MAX: usize = 512;

/// Names of generated code, sorted by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfMap {
    list: Vec<(u64, u64, String)>,
}

impl PerfMap {
    /// Lines that make no sense are left out; of two for one address the later one counts, as code is replaced.
    pub fn parse(text: &[u8]) -> PerfMap {
        let mut list: Vec<(u64, u64, String)> = text
            .split(|&b| b == b'\n')
            .take(LINES_MAX)
            .filter_map(parse_line)
            .collect();
        list.sort_by_key(|e| e.0);
        list.reverse();
        list.dedup_by_key(|e| e.0);
        list.reverse();
        PerfMap { list }
    }

    pub fn find(&self, addr: u64) -> Option<(u64, &str)> {
        let i = self.list.partition_point(|e| e.0 <= addr).checked_sub(1)?;
        let (start, size, name) = self.list.get(i)?;
        (addr - start < *size).then_some((*start, name))
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

fn parse_line(line: &[u8]) -> Option<(u64, u64, String)> {
    let line = std::str::from_utf8(line).ok()?;
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    let hex = |s: &str| u64::from_str_radix(s.trim_start_matches("0x"), 16).ok();
    let name: String = name.trim().chars().take(NAME_MAX).collect();
    (!name.is_empty()).then_some((hex(start)?, hex(size)?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_line_wins_and_nonsense_is_left_out() {
        let map = PerfMap::parse(b"1000 20 py::f:/a b.py\nxx\n\xff\xff 1 a\n1000 10 py::g:/a.py\n0x2000 ffffffffffffffff z\n3000 4\n");
        assert_eq!(map.find(0x100f), Some((0x1000, "py::g:/a.py")));
        assert_eq!(map.find(0x1010), None);
        assert_eq!(map.find(u64::MAX), Some((0x2000, "z")));
    }
}
