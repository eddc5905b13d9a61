//! Which probes cost too much. Pure: rates and costs in, what must go out.

use std::fmt::Write;

/// What is taken off as one: the probes of a function, or (`function` is nothing) all of a group of which a part alone
/// would tell falsehoods. A block of memory whose `free` is not seen looks like a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit {
    /// Place in `GROUPS`.
    pub group: usize,
    /// Its number in the kernel's tables.
    pub function: Option<u32>,
}

/// What one unit did between two looks.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub unit: Unit,
    /// Per second, over all processes that run the code.
    pub entries: f64,
    pub exits: f64,
    /// Trap and program of one of each.
    pub entry_ns: f64,
    pub exit_ns: f64,
    /// Others depend on it: it counts, and is not taken off.
    pub stays: bool,
}

impl Load {
    pub fn none(unit: Unit, stays: bool) -> Load {
        Load {
            unit,
            entries: 0.0,
            exits: 0.0,
            entry_ns: 0.0,
            exit_ns: 0.0,
            stays,
        }
    }

    /// So many entries and exits more, at such a cost each.
    pub fn add(&mut self, entries: f64, entry_ns: f64, exits: f64, exit_ns: f64) {
        let mean = |mean: f64, weight: f64, other: f64, more: f64| {
            (mean * weight + other * more) / (weight + more).max(f64::MIN_POSITIVE)
        };
        self.entry_ns = mean(self.entry_ns, self.entries, entry_ns, entries);
        self.exit_ns = mean(self.exit_ns, self.exits, exit_ns, exits);
        self.entries += entries;
        self.exits += exits;
    }

    /// Percent of one CPU.
    pub fn cost_pct(&self) -> f64 {
        (self.entries * self.entry_ns + self.exits * self.exit_ns) / 1e7
    }
}

/// Why a unit is taken off.
#[derive(Clone, Debug, PartialEq)]
pub struct Removal {
    pub unit: Unit,
    pub calls_per_s: f64,
    pub cost_pct: f64,
}

/// The units that must go, dearest first, until what is left costs no more than the budget.
pub fn judge(loads: &[Load], budget_pct: f64) -> Vec<Removal> {
    let mut left: Vec<&Load> = loads.iter().filter(|l| l.cost_pct() > 0.0).collect();
    left.sort_by(|a, b| b.cost_pct().total_cmp(&a.cost_pct()).then(a.unit.cmp(&b.unit)));
    let mut total: f64 = left.iter().map(|l| l.cost_pct()).sum();
    let mut out = Vec::new();
    for load in left {
        if total <= budget_pct {
            break;
        }
        if load.stays {
            continue;
        }
        total -= load.cost_pct();
        out.push(Removal {
            unit: load.unit,
            calls_per_s: load.entries.max(load.exits),
            cost_pct: load.cost_pct(),
        });
    }
    out
}

/// What a user is told when probes of one group were taken off: `gone` with the names of their functions, dearest
/// first; `all`: nothing of the group is left.
pub fn note(group: &str, gone: &[(&str, &Removal)], all: bool, after_s: f64, budget_pct: f64) -> String {
    let calls: f64 = gone.iter().map(|(_, r)| r.calls_per_s).sum();
    let cost: f64 = gone.iter().map(|(_, r)| r.cost_pct).sum();
    let mut text = if all {
        format!("{group}: probes taken off")
    } else {
        format!("{group}: the dearest probes taken off")
    };
    let _ = write!(
        text,
        " after {after_s:.1} s: {} calls/s x {:.1} us would cost {cost:.0} % of a CPU (budget {budget_pct} %)",
        thousands(calls),
        cost * 1e4 / calls.max(f64::MIN_POSITIVE),
    );
    let names: Vec<&str> = gone.iter().map(|g| g.0).filter(|n| !n.is_empty()).collect();
    if names.is_empty() {
        text.push_str("; its counts are partial");
    } else {
        let _ = write!(text, "; counts are partial of {}", names.join(", "));
    }
    text
}

fn thousands(n: f64) -> String {
    let digits = format!("{n:.0}");
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(function: u32, rate: f64) -> Load {
        Load {
            unit: Unit {
                group: 0,
                function: Some(function),
            },
            entries: rate,
            exits: 0.0,
            entry_ns: 9500.0,
            exit_ns: 0.0,
            stays: false,
        }
    }

    fn functions(gone: &[Removal]) -> Vec<u32> {
        gone.iter().filter_map(|r| r.unit.function).collect()
    }

    #[test]
    fn the_dearest_goes_first_and_no_more_than_needed() {
        let loads = [load(1, 10.0), load(2, 48_000.0), load(3, 1_000.0)];
        assert_eq!(functions(&judge(&loads, 2.0)), [2]);
        assert!(judge(&loads[..1], 2.0).is_empty());
        assert_eq!(functions(&judge(&loads, 0.5)), [2, 3]);
    }

    #[test]
    fn what_is_rare_but_slow_to_probe_may_be_the_dearest() {
        let mut slow = load(1, 3_000.0);
        (slow.exits, slow.exit_ns) = (3_000.0, 40_000.0);
        assert_eq!(functions(&judge(&[slow, load(2, 10_000.0)], 10.0)), [1]);
    }

    #[test]
    fn a_note_names_what_is_partial() {
        let loads = [load(2, 48_000.0), load(3, 1_000.0)];
        let gone = judge(&loads, 0.0);
        assert_eq!(
            note("operators", &[("aten::add", &gone[0])], false, 1.2, 2.0),
            "operators: the dearest probes taken off after 1.2 s: 48,000 calls/s x 9.5 us would cost 46 % of a CPU \
             (budget 2 %); counts are partial of aten::add"
        );
        let both = [("a", &gone[0]), ("b", &gone[1])];
        assert_eq!(
            note("cuda", &both, true, 1.0, 2.0),
            "cuda: probes taken off after 1.0 s: 49,000 calls/s x 9.5 us would cost 47 % of a CPU (budget 2 %); counts \
             are partial of a, b"
        );
        let whole = note("malloc", &[("", &gone[0])], true, 1.0, 2.0);
        assert!(whole.ends_with("; its counts are partial"), "{whole}");
    }

    #[test]
    fn a_budget_of_nothing_takes_all_that_cost_and_what_is_idle_stays() {
        assert_eq!(functions(&judge(&[load(1, 1.0), load(2, 0.0)], 0.0)), [1]);
    }

    #[test]
    fn what_others_depend_on_counts_and_stays() {
        let mut needed = load(1, 1_000_000.0);
        needed.stays = true;
        assert_eq!(functions(&judge(&[needed, load(2, 1.0)], 2.0)), [2]);
    }

    #[test]
    fn what_is_left_is_within_the_budget_and_cheaper_than_all_that_went() {
        let mut seed = 7u64;
        for _ in 0..500 {
            let loads: Vec<Load> = (0..5)
                .map(|n| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                    load(n, (seed >> 40) as f64 / 1000.0)
                })
                .collect();
            let gone: Vec<_> = judge(&loads, 2.0).into_iter().map(|r| r.unit).collect();
            let left = || loads.iter().filter(|l| !gone.contains(&l.unit));
            assert!(left().map(Load::cost_pct).sum::<f64>() <= 2.0 + 1e-9);
            let largest_left = left().map(Load::cost_pct).fold(0.0, f64::max);
            for load in loads.iter().filter(|l| gone.contains(&l.unit)) {
                assert!(load.cost_pct() >= largest_left);
            }
        }
    }
}
