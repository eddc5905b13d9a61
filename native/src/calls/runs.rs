//! Runs of models, from marks of the calls they make. Pure.

use rustc_hash::FxHashMap;

use super::groups::Mark;

/// Runs whose ends were seen before their many layers need no longer be.
const ENOUGH: u32 = 3;

/// Between two layers of a run there is less than this, or less than a quarter of what passed of it.
const PAUSE_NS: u64 = 2_000_000;

/// A run: process, thread, from, to.
pub type Run = (u32, u32, u64, u64);

#[derive(Clone, Copy, Debug)]
struct Open {
    begin: u64,
    /// The latest that belongs to it; 0: nothing but its begin.
    last: u64,
    begins: u32,
    ended: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    open: Option<Open>,
    /// How often tokens, positions and the like are looked up in one run.
    usual: u32,
    typical_ns: u64,
}

/// What is known of the threads that run models.
#[derive(Debug, Default)]
pub struct Runs {
    threads: FxHashMap<(u32, u32), Thread>,
    /// When a process last wrote to one that it serves.
    sent: FxHashMap<u32, u64>,
    /// Processes whose models look tokens up.
    embeds: FxHashMap<u32, ()>,
    by_ends: u32,
    done: Vec<Run>,
}

impl Runs {
    /// A call that says something of a run, from `start` to `end`.
    pub fn mark(&mut self, pid: u32, tid: u32, mark: Mark, start: u64, end: u64) {
        if mark == Mark::Begin {
            self.embeds.insert(pid, ());
        }
        let embeds = self.embeds.contains_key(&pid);
        let sent = self.sent.get(&pid).copied().unwrap_or(0);
        let thread = self.threads.entry((pid, tid)).or_default();
        let closed = match mark {
            Mark::Begin => thread.begins(start),
            Mark::Layer => thread.goes_on(start, embeds, sent),
            Mark::End => {
                thread.ends(start, end, &mut self.by_ends);
                None
            }
        };
        self.done.extend(closed.map(|(from, to)| (pid, tid, from, to)));
    }

    /// The process wrote to one that it serves.
    pub fn sent(&mut self, pid: u32, at: u64) {
        self.sent.insert(pid, at);
    }

    /// Whether calls of single layers still say what nothing else does.
    pub fn needs_layers(&self) -> bool {
        self.embeds.is_empty() || self.by_ends < ENOUGH
    }

    /// Runs that are over. One that goes on stays for the next time.
    pub fn take(&mut self) -> Vec<Run> {
        for (&(pid, tid), thread) in &mut self.threads {
            let sent = self.sent.get(&pid).copied().unwrap_or(0);
            let over = |o: &mut Open| o.last > 0 && (o.ended || sent > o.last);
            if let Some(open) = thread.open.take_if(over) {
                let (from, to) = thread.close(open, open.last);
                self.done.push((pid, tid, from, to));
            }
        }
        std::mem::take(&mut self.done)
    }
}

impl Thread {
    fn close(&mut self, open: Open, at: u64) -> (u64, u64) {
        if open.last > 0 && open.begins > 0 {
            self.usual = open.begins;
            self.typical_ns = at.saturating_sub(open.begin);
        }
        (open.begin, at.max(open.begin))
    }

    fn open_at(&mut self, begin: u64, begins: u32, last: u64) {
        self.open = Some(Open {
            begin,
            last,
            begins,
            ended: false,
        });
    }

    fn begins(&mut self, at: u64) -> Option<(u64, u64)> {
        let Some(mut open) = self.open else {
            self.open_at(at, 1, 0);
            return None;
        };
        if open.last == 0 && (self.usual == 0 || open.begins < self.usual) {
            open.begins += 1;
            self.open = Some(open);
            return None;
        }
        // Where nothing but begins is seen any more, a run is as long as those before.
        let until = match open.last {
            0 => at.min(open.begin + self.typical_ns),
            last => last,
        };
        let closed = self.close(open, until);
        self.open_at(at, 1, 0);
        Some(closed)
    }

    fn goes_on(&mut self, at: u64, embeds: bool, sent: u64) -> Option<(u64, u64)> {
        let Some(mut open) = self.open else {
            if !embeds {
                self.open_at(at, 0, at);
            }
            return None;
        };
        let by_layers = open.begins == 0;
        let pause = (open.last.saturating_sub(open.begin) / 4).max(PAUSE_NS);
        let answered = (open.last..at).contains(&sent) && at - open.last > pause;
        if by_layers && (open.ended || answered) {
            let closed = self.close(open, open.last);
            self.open_at(at, 0, at);
            return Some(closed);
        }
        if !open.ended {
            open.last = at;
            self.open = Some(open);
        }
        None
    }

    fn ends(&mut self, start: u64, end: u64, by_ends: &mut u32) {
        let Some(open) = &mut self.open else {
            return;
        };
        // What is chosen from and read right after one another is one end; later reads are of something else.
        let together = open.ended && start.saturating_sub(open.last) <= open.last.saturating_sub(open.begin);
        if !open.ended || together {
            *by_ends += u32::from(!open.ended);
            open.last = end;
            open.ended = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(marks: &[(Mark, u64)]) -> Vec<(u64, u64)> {
        let mut runs = Runs::default();
        for &(mark, at) in marks {
            runs.mark(1, 1, mark, at, at + 1);
        }
        runs.take()
            .into_iter()
            .map(|(_, _, from, to)| (from, to))
            .collect()
    }

    use Mark::{Begin, End, Layer};

    #[test]
    fn a_run_is_from_the_first_look_up_to_where_its_token_is_read() {
        let one = |at| {
            [
                (Begin, at),
                (Begin, at + 1),
                (Layer, at + 5),
                (Layer, at + 8),
                (End, at + 9),
                (End, at + 10),
            ]
        };
        let marks: Vec<_> = (1..=4).flat_map(|n| one(100 * n)).collect();
        let want: Vec<_> = (1..=4).map(|n| (100 * n, 100 * n + 11)).collect();
        assert_eq!(told(&marks), want);
    }

    #[test]
    fn ends_alone_and_layers_alone_are_enough() {
        let marks = [(Begin, 10), (End, 20), (Begin, 30), (End, 40)];
        assert_eq!(told(&marks), [(10, 21), (30, 41)]);
        // The last one goes on: nothing says that it is over.
        let marks = [(Begin, 10), (Layer, 20), (Begin, 30), (Layer, 40)];
        assert_eq!(told(&marks), [(10, 20)]);
    }

    #[test]
    fn begins_alone_are_counted_as_was_learned() {
        let mut marks = vec![(Begin, 10), (Begin, 11), (Layer, 20)];
        for n in 1..=5 {
            marks.extend([(Begin, 100 * n), (Begin, 100 * n + 1)]);
        }
        let found = told(&marks);
        assert_eq!(found.len(), 5); // the sixth goes on
        assert_eq!(found[1], (100, 110));
    }

    #[test]
    fn a_later_read_is_no_part_of_the_run() {
        assert_eq!(told(&[(Begin, 10), (End, 20), (End, 500)]), [(10, 21)]);
    }

    #[test]
    fn a_model_without_look_ups_runs_from_layer_to_layer_until_it_is_answered() {
        let mut runs = Runs::default();
        let ms = 1_000_000;
        for n in 1..=3u64 {
            for k in 0..5 {
                runs.mark(1, 1, Layer, (1000 * n + 10 * k) * ms, 0);
            }
            runs.sent(1, (1000 * n + 60) * ms);
        }
        let found: Vec<_> = runs.take().into_iter().map(|r| (r.2 / ms, r.3 / ms)).collect();
        assert_eq!(found, [(1000, 1040), (2000, 2040), (3000, 3040)]);
        assert!(runs.needs_layers());
    }

    #[test]
    fn threads_run_for_themselves() {
        let mut runs = Runs::default();
        for at in [10, 30, 50] {
            runs.mark(1, 1, Begin, at, at);
            runs.mark(1, 2, Begin, at + 1, at + 1);
            runs.mark(1, 1, End, at + 5, at + 6);
            runs.mark(1, 2, End, at + 6, at + 7);
        }
        assert_eq!(runs.take().len(), 6);
        assert!(!runs.needs_layers());
    }

    #[test]
    fn no_order_of_marks_makes_a_run_end_before_it_begins() {
        let mut seed = 3u64;
        let mut runs = Runs::default();
        for _ in 0..5000 {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let at = seed >> 50;
            let mark = [Begin, Layer, End][(seed >> 40) as usize % 3];
            runs.mark(1, (seed >> 30) as u32 % 3, mark, at, at + 3);
            if seed & 64 == 0 {
                runs.sent(1, at);
            }
        }
        assert!(runs.take().iter().all(|r| r.2 <= r.3));
    }
}
