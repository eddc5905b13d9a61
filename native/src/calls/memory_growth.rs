//! How memory of call sites went while it was looked at: what lived at some moments, at most [`MOST`] of them.
//!
//! Moments are a quarter of a second apart at first. When there are too many every second one is dropped and the time
//! between them doubles, so that a look of any length has between half and all of them, evenly spread.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::object::{SiteKey, SiteSum};

pub const MOST: usize = 64;
const FIRST_EVERY: Duration = Duration::from_millis(250);
const LONGEST_EVERY: Duration = Duration::from_secs(3600);
/// Reading the table may take this part of the agent's time at most.
const PART: u32 = 50;

/// Live bytes and blocks.
pub type Lives = (u64, u64);

/// What lived at each moment; a site that did not change since the moment before has no entry.
pub struct Growth {
    times: Vec<u64>,
    sites: FxHashMap<SiteKey, Vec<(u64, Lives)>>,
    every: Duration,
    next: Instant,
}

impl Default for Growth {
    fn default() -> Self {
        Growth {
            times: Vec::new(),
            sites: FxHashMap::default(),
            every: FIRST_EVERY,
            next: Instant::now() + FIRST_EVERY,
        }
    }
}

impl Growth {
    pub fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// A moment. `took`: how long the sums took to read.
    pub fn add(&mut self, time_ns: u64, sums: &[(SiteKey, SiteSum)], took: Duration) {
        if self.times.last().is_some_and(|&last| last >= time_ns) {
            return;
        }
        if self.times.len() >= MOST {
            self.thin();
            self.every = (self.every * 2).min(LONGEST_EVERY);
        }
        self.times.push(time_ns);
        for (key, sum) in sums {
            let now = (sum.live_bytes, sum.live);
            let known = self.sites.get(key).and_then(|s| s.last());
            if known.map_or((0, 0), |(_, lives)| *lives) != now {
                self.sites.entry(*key).or_default().push((time_ns, now));
            }
        }
        self.next = Instant::now() + self.every.max(took * PART);
    }

    /// Drops every second moment; what changed at one of them is told at the next that stays.
    fn thin(&mut self) {
        let last = self.times.len().saturating_sub(1);
        let kept: Vec<u64> = (0..=last)
            .filter(|n| n % 2 == last % 2)
            .filter_map(|n| self.times.get(n).copied())
            .collect();
        for series in self.sites.values_mut() {
            let mut fewer: Vec<(u64, Lives)> = Vec::with_capacity(series.len());
            for &(time, lives) in series.iter() {
                let at = kept.partition_point(|&k| k < time);
                let Some(&time) = kept.get(at) else { continue };
                match fewer.last_mut() {
                    Some(before) if before.0 == time => before.1 = lives,
                    _ => fewer.push((time, lives)),
                }
            }
            *series = fewer;
        }
        self.times = kept;
    }

    /// What lived of all these sites together at each moment; only moments at which it changed.
    pub fn of(&self, keys: &[SiteKey]) -> Vec<(u64, Lives)> {
        let mut changes: Vec<(u64, i128, i128)> = Vec::new();
        for series in keys.iter().filter_map(|key| self.sites.get(key)) {
            let mut before = (0, 0);
            for &(time, now) in series {
                changes.push((
                    time,
                    i128::from(now.0) - i128::from(before.0),
                    i128::from(now.1) - i128::from(before.1),
                ));
                before = now;
            }
        }
        changes.sort_unstable();
        let (mut bytes, mut blocks) = (0i128, 0i128);
        let mut out: Vec<(u64, Lives)> = Vec::new();
        for (time, more_bytes, more_blocks) in changes {
            bytes += more_bytes;
            blocks += more_blocks;
            let lives = (whole(bytes), whole(blocks));
            match out.last_mut() {
                Some(before) if before.0 == time => before.1 = lives,
                _ => out.push((time, lives)),
            }
        }
        out
    }

    /// Begins anew: what lives now is what the next look begins with.
    pub fn begin(&mut self, time_ns: u64, sums: &[(SiteKey, SiteSum)]) {
        *self = Growth::default();
        self.add(time_ns, sums, Duration::ZERO);
        self.next = Instant::now() + FIRST_EVERY;
    }

    pub fn forget(&mut self, gone: impl Fn(u32) -> bool) {
        self.sites.retain(|key, _| !gone(key.tgid));
    }
}

fn whole(n: i128) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(hash: u64) -> SiteKey {
        SiteKey {
            hash,
            tgid: 7,
            device: 0,
        }
    }

    fn sum(live_bytes: u64, live: u64) -> SiteSum {
        SiteSum {
            live,
            live_bytes,
            ..SiteSum::default()
        }
    }

    #[test]
    fn a_look_of_any_length_keeps_its_shape_in_a_bounded_number_of_moments() {
        let mut growth = Growth::default();
        let mut due = 0;
        for n in 1..=10_000u64 {
            if n < due && n < 10_000 {
                continue;
            }
            // One grows for ever, one only in the first tenth.
            let sums = [(key(1), sum(10 * n, n)), (key(2), sum(n.min(1000), 1))];
            growth.add(n, &sums, Duration::ZERO);
            due = n + (growth.every.as_millis() / FIRST_EVERY.as_millis()) as u64;
        }
        let (grows, fills) = (growth.of(&[key(1)]), growth.of(&[key(2)]));
        assert!(
            grows.len() <= MOST && grows.len() >= MOST / 2 - 1,
            "{}",
            grows.len()
        );
        assert!(grows.iter().all(|(time, lives)| *lives == (10 * time, *time)));
        assert_eq!(grows.last().unwrap().0, 10_000);
        assert_eq!(fills.last().unwrap().1, (1000, 1));
        assert!(fills.last().unwrap().0 <= 1500, "{fills:?}");
    }

    #[test]
    fn sites_of_one_place_are_added_at_each_moment() {
        let mut growth = Growth::default();
        growth.add(1, &[(key(1), sum(10, 1))], Duration::ZERO);
        growth.add(2, &[(key(1), sum(10, 1)), (key(2), sum(5, 2))], Duration::ZERO);
        growth.add(3, &[(key(1), sum(0, 0)), (key(2), sum(5, 2))], Duration::ZERO);
        let both = [key(1), key(2)];
        assert_eq!(growth.of(&both), [(1, (10, 1)), (2, (15, 3)), (3, (5, 2))]);
        growth.begin(4, &[(key(2), sum(5, 2))]);
        assert_eq!(growth.of(&both), [(4, (5, 2))]);
        growth.forget(|pid| pid == 7);
        assert_eq!(growth.of(&both), []);
    }
}
