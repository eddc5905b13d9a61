//! What is known of ranges of addresses that do not overlap: one answer for every address in them.

use std::collections::BTreeMap;

/// Ranges that are kept; one more and all are forgotten.
const RANGES_MAX: usize = 1 << 14;

/// Answers by range.
#[derive(Debug)]
pub struct Ranges<T> {
    /// By their first address: the address after the last, and the answer.
    known: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Ranges {
            known: BTreeMap::new(),
        }
    }
}

impl<T: Clone> Ranges<T> {
    pub fn find(&self, addr: u64) -> Option<T> {
        let (_, (end, answer)) = self.known.range(..=addr).next_back()?;
        (addr < *end).then(|| answer.clone())
    }

    /// Keeps an answer for `from..to`. The caller sees to it that ranges with different answers do not overlap.
    pub fn keep(&mut self, from: u64, to: u64, answer: T) {
        if from >= to {
            return;
        }
        if self.known.len() >= RANGES_MAX {
            self.known.clear();
        }
        self.known.insert(from, (to, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_holds_for_its_range_and_no_further() {
        let mut ranges = Ranges::default();
        ranges.keep(10, 20, 'a');
        ranges.keep(20, 21, 'b');
        ranges.keep(30, 30, 'c');
        let found = [9, 10, 19, 20, 21, 30].map(|addr| ranges.find(addr));
        assert_eq!(found, [None, Some('a'), Some('a'), Some('b'), None, None]);
    }

    #[test]
    fn more_ranges_than_the_bound_are_not_kept() {
        let mut ranges = Ranges::default();
        for i in 0..4 * RANGES_MAX as u64 {
            ranges.keep(i * 2, i * 2 + 1, i);
            assert_eq!(ranges.find(i * 2), Some(i));
        }
        assert!(ranges.known.len() <= RANGES_MAX);
    }
}
