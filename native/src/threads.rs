//! What the agent keeps of every watched thread between two looks, and its exact times. Pure.

use rustc_hash::FxHashMap;

use crate::kernel::{state, ThreadPlace};
use crate::quality::Marks;
use crate::table::{StackId, ThreadKey};

/// Times since the thread was first seen, with the state that lasts still counted up to now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub on: u64,
    pub off: u64,
    pub runq: u64,
}

impl Times {
    /// By state, on a CPU first; nothing of the states that are not looked at.
    pub fn known(&self, off_cpu: bool) -> [Option<u64>; 3] {
        let off = |ns| off_cpu.then_some(ns);
        [Some(self.on), off(self.off), off(self.runq)]
    }

    pub fn total(&self) -> u64 {
        self.on + self.off + self.runq
    }

    /// As they stand at `now_ns`. `on + off + runq` is exactly the time since `first`.
    pub fn of(place: &ThreadPlace, now_ns: u64) -> Times {
        let mut times = Times {
            on: place.on,
            off: place.off,
            runq: place.runq,
        };
        let open = now_ns.saturating_sub(place.since);
        match place.state {
            state::ON => times.on += open,
            state::OFF => times.off += open,
            // RUNNABLE: had it been on a CPU, the clock would have found it there.
            state::RUNQ | state::RUNNABLE => times.runq += open,
            _ => {}
        }
        times
    }

    /// What came since `before`. Which of its states a runnable thread was in may turn out later: the total is right
    /// then too, and what one state had too much is taken from the others.
    pub fn since(&self, before: &Times) -> Times {
        let mut change = [
            self.on as i64 - before.on as i64,
            self.off as i64 - before.off as i64,
            self.runq as i64 - before.runq as i64,
        ];
        for i in 0..3 {
            while change[i] < 0 {
                let Some(largest) = (0..3).max_by_key(|&j| change[j]).filter(|&j| change[j] > 0) else {
                    change[i] = 0;
                    break;
                };
                let moved = change[largest].min(-change[i]);
                change[largest] -= moved;
                change[i] += moved;
            }
        }
        Times {
            on: change[0] as u64,
            off: change[1] as u64,
            runq: change[2] as u64,
        }
    }
}

/// A stack that may be used again, as long as the table's generation is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stand {
    pub generation: u32,
    pub stack: StackId,
    pub marks: Marks,
}

/// A thread with a place in BPF's table.
#[derive(Clone, Debug)]
pub struct Seen {
    pub key: ThreadKey,
    /// What was told of it at the last take, and when that was.
    told: Times,
    told_ns: u64,
    /// When it was last looked at.
    pub tick_ns: u64,
    /// Where it has stood since its `seq` had this value.
    pub stands: Option<(u32, Stand)>,
    /// What its stack was made from when it was last read while it was blocked, and what came out.
    pub looked: Option<(u64, Stand)>,
}

/// A row of `Profile.threads`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadRow {
    pub name: String,
    pub times: Times,
    pub first_ns: u64,
    pub last_ns: u64,
}

impl Seen {
    pub fn new(place: &ThreadPlace) -> Seen {
        Seen {
            key: (place.pid, place.tid),
            told: Times::default(),
            told_ns: place.first,
            tick_ns: place.first,
            stands: None,
            looked: None,
        }
    }

    /// The row since the last time, up to `now_ns`.
    pub fn tell(&mut self, place: &ThreadPlace, now_ns: u64) -> ThreadRow {
        // A place that BPF wrote after the clock was read is already further.
        let now_ns = now_ns.max(place.since);
        self.tell_at(place, now_ns)
    }

    /// The last row of a thread that has ended.
    pub fn tell_end(&mut self, place: &ThreadPlace) -> ThreadRow {
        self.tell_at(place, place.since)
    }

    fn tell_at(&mut self, place: &ThreadPlace, at_ns: u64) -> ThreadRow {
        let times = Times::of(place, at_ns);
        let row = ThreadRow {
            name: comm(&place.comm),
            times: times.since(&self.told),
            first_ns: self.told_ns,
            last_ns: at_ns.max(self.told_ns),
        };
        self.told = times;
        self.told_ns = row.last_ns;
        row
    }
}

fn comm(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Rows in the order of processes and threads.
pub fn sorted(rows: FxHashMap<ThreadKey, ThreadRow>) -> Vec<(ThreadKey, ThreadRow)> {
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_unstable_by_key(|(key, _)| *key);
    rows
}

/// Rows by thread. A number that was used twice in one window (a thread that ended and one that began, or an exec by a
/// thread that was not the first) gives one row: between the two it was blocked for good.
pub fn merge(rows: &mut FxHashMap<ThreadKey, ThreadRow>, key: ThreadKey, row: ThreadRow) {
    use std::collections::hash_map::Entry;
    match rows.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert(row);
        }
        Entry::Occupied(mut entry) => {
            let old = entry.get_mut();
            let (early, late) = if old.first_ns <= row.first_ns {
                (old.clone(), row)
            } else {
                (row, old.clone())
            };
            // Two that overlap cannot both be told: the later one's beginning is the earlier one's end.
            let gap = late.first_ns.saturating_sub(early.last_ns);
            let times = Times {
                on: early.times.on + late.times.on,
                off: early.times.off + late.times.off + gap,
                runq: early.times.runq + late.times.runq,
            };
            *old = ThreadRow {
                name: if late.name.is_empty() {
                    early.name
                } else {
                    late.name
                },
                first_ns: early.first_ns,
                last_ns: early.first_ns + times.total(),
                times,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(state: u32, first: u64, since: u64, on: u64, off: u64, runq: u64) -> ThreadPlace {
        ThreadPlace {
            state,
            first,
            since,
            on,
            off,
            runq,
            ..ThreadPlace::default()
        }
    }

    #[test]
    fn the_three_times_sum_to_the_whole_exactly() {
        let mut seen = Seen::new(&place(state::ON, 100, 100, 0, 0, 0));
        let row = seen.tell(&place(state::OFF, 100, 150, 40, 0, 10), 170);
        assert_eq!(
            row.times,
            Times {
                on: 40,
                off: 20,
                runq: 10
            }
        );
        assert_eq!((row.first_ns, row.last_ns), (100, 170));
        let row = seen.tell(&place(state::ON, 100, 200, 40, 45, 15), 205);
        assert_eq!(
            row.times,
            Times {
                on: 5,
                off: 25,
                runq: 5
            }
        );
        assert_eq!(row.times.total(), row.last_ns - row.first_ns);
        let row = seen.tell_end(&place(state::ENDED, 100, 300, 135, 50, 15));
        assert_eq!(row.times.total(), row.last_ns - row.first_ns);
        assert_eq!(row.last_ns, 300);
    }

    #[test]
    fn a_place_that_is_ahead_of_the_clock_is_told_at_its_own_time() {
        let mut seen = Seen::new(&place(state::ON, 100, 100, 0, 0, 0));
        let row = seen.tell(&place(state::OFF, 100, 210, 110, 0, 0), 200);
        assert_eq!((row.last_ns, row.times.total()), (210, 110));
    }

    #[test]
    fn what_a_runnable_thread_did_may_turn_out_later_and_the_sum_stays_exact() {
        let mut seen = Seen::new(&place(state::RUNNABLE, 100, 100, 0, 0, 0));
        let first = seen.tell(&place(state::RUNNABLE, 100, 100, 0, 0, 0), 150);
        assert_eq!(first.times.runq, 50);
        // It was on a CPU all the time.
        let second = seen.tell(&place(state::OFF, 100, 160, 60, 0, 0), 200);
        assert_eq!(second.times.total(), 50);
        assert_eq!(first.times.total() + second.times.total(), 100);
    }

    #[test]
    fn a_number_used_twice_gives_one_row_whose_sum_is_exact() {
        let mut rows = FxHashMap::default();
        let row = |first_ns, last_ns| ThreadRow {
            name: "x".into(),
            times: Times {
                on: last_ns - first_ns,
                off: 0,
                runq: 0,
            },
            first_ns,
            last_ns,
        };
        merge(&mut rows, (1, 1), row(500, 600));
        merge(&mut rows, (1, 1), row(100, 300));
        let told = &rows[&(1, 1)];
        assert_eq!(
            told.times,
            Times {
                on: 300,
                off: 200,
                runq: 0
            }
        );
        assert_eq!(told.times.total(), told.last_ns - told.first_ns);
    }
}
