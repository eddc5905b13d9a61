//! How fast this machine reads its memory: measured once, where a server's model is compared with it.

use std::time::{Duration, Instant};

use super::CallRow;

const ROUNDS: usize = 2;
const THREADS_MAX: usize = 32;
/// More than the caches of most machines; not so much that the look would be felt.
const LEAST_BYTES: usize = 64 << 20;
const MOST_BYTES: usize = 256 << 20;

/// The best of some rounds.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub bytes: u64,
    pub time: Duration,
}

impl Measured {
    pub fn row(self) -> CallRow {
        CallRow {
            pid: 0,
            tid: 0,
            name: "memory read".to_owned(),
            kind: "machine",
            count: 1,
            ns: Some(self.time.as_nanos() as u64),
            bytes: self.bytes,
        }
    }
}

/// Reads memory by all CPUs at once, for a tenth of a second or so. What others read meanwhile is missing from it.
pub fn measure() -> Measured {
    let threads = std::thread::available_parallelism()
        .map_or(1, |n| n.get())
        .min(THREADS_MAX);
    let bytes = (2 * cache_bytes()).clamp(LEAST_BYTES, MOST_BYTES);
    let share = bytes / threads / 8;
    let pieces: Vec<Vec<u64>> = (0..threads).map(|n| vec![n as u64 + 1; share]).collect();
    let round = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for piece in &pieces {
                // Where no thread can be had, its share is read here.
                let read = || std::hint::black_box(sum(piece));
                if std::thread::Builder::new().spawn_scoped(scope, read).is_err() {
                    read();
                }
            }
        });
        start.elapsed()
    };
    let time = (0..ROUNDS).map(|_| round()).min().unwrap_or(Duration::MAX);
    Measured {
        bytes: (share * threads * 8) as u64,
        time: time.max(Duration::from_nanos(1)),
    }
}

/// Independent sums, so that waiting for one addition does not hold the next read up.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    for chunk in words.chunks_exact(16) {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |all, one| all.wrapping_add(*one))
}

/// The last level's; 0 where it is not told.
fn cache_bytes() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").unwrap_or_default();
    let text = text.trim();
    let (digits, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let by = match unit {
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => 1,
    };
    digits
        .parse::<usize>()
        .map_or(0, |n| n.saturating_mul(by))
        .min(MOST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let words: Vec<u64> = (0..64).collect();
        assert_eq!(sum(&words), 63 * 64 / 2);
    }
}
