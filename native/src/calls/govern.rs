//! Which probes cost too much. Pure: rates and costs in, names out.

/// What one group of probes did between two looks.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    pub group: &'static str,
    /// Per second, over all processes that run the code.
    pub entries: f64,
    pub exits: f64,
    /// Trap and program of one of each.
    pub entry_ns: f64,
    pub exit_ns: f64,
}

impl Load {
    /// Percent of one CPU.
    pub fn cost_pct(&self) -> f64 {
        (self.entries * self.entry_ns + self.exits * self.exit_ns) / 1e7
    }
}

/// Why a group was taken off.
#[derive(Clone, Debug, PartialEq)]
pub struct Removal {
    pub group: &'static str,
    pub calls_per_s: f64,
    pub call_ns: f64,
    pub cost_pct: f64,
}

impl Removal {
    pub fn note(&self, after_s: f64, budget_pct: f64) -> String {
        format!(
            "{}: probes taken off after {after_s:.1} s: {} calls/s x {:.1} us would cost {:.0} % of a CPU (budget {budget_pct} %)",
            self.group,
            thousands(self.calls_per_s),
            self.call_ns / 1e3,
            self.cost_pct,
        )
    }
}

/// The groups that must go, greediest first, until what is left costs no more than the budget.
pub fn judge(loads: &[Load], budget_pct: f64) -> Vec<Removal> {
    let mut left: Vec<&Load> = loads.iter().filter(|l| l.cost_pct() > 0.0).collect();
    left.sort_by(|a, b| b.cost_pct().total_cmp(&a.cost_pct()).then(a.group.cmp(b.group)));
    let mut total: f64 = left.iter().map(|l| l.cost_pct()).sum();
    let mut out = Vec::new();
    for load in left {
        if total <= budget_pct {
            break;
        }
        total -= load.cost_pct();
        let calls = load.entries.max(load.exits);
        out.push(Removal {
            group: load.group,
            calls_per_s: calls,
            call_ns: load.cost_pct() * 1e7 / calls,
            cost_pct: load.cost_pct(),
        });
    }
    out
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

    fn load(group: &'static str, rate: f64) -> Load {
        Load {
            group,
            entries: rate,
            exits: 0.0,
            entry_ns: 9500.0,
            exit_ns: 0.0,
        }
    }

    #[test]
    fn the_greediest_goes_first_and_no_more_than_needed() {
        let loads = [
            load("gc", 10.0),
            load("operators", 48_000.0),
            load("collectives", 1_000.0),
        ];
        let gone = judge(&loads, 2.0);
        assert_eq!(gone.len(), 1);
        assert_eq!(
            gone[0].note(1.2, 2.0),
            "operators: probes taken off after 1.2 s: 48,000 calls/s x 9.5 us would cost 46 % of a CPU (budget 2 %)"
        );
        assert!(judge(&loads[..1], 2.0).is_empty());
        assert_eq!(judge(&loads, 0.5).len(), 2);
    }

    #[test]
    fn a_budget_of_nothing_takes_all_that_cost_and_idle_groups_stay() {
        let loads = [load("a", 1.0), load("b", 0.0)];
        assert_eq!(
            judge(&loads, 0.0).iter().map(|r| r.group).collect::<Vec<_>>(),
            ["a"]
        );
    }

    #[test]
    fn what_is_left_is_within_the_budget() {
        let mut seed = 7u64;
        for _ in 0..500 {
            let loads: Vec<Load> = ["a", "b", "c", "d", "e"]
                .into_iter()
                .map(|g| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                    load(g, (seed >> 40) as f64 / 1000.0)
                })
                .collect();
            let gone: Vec<_> = judge(&loads, 2.0).into_iter().map(|r| r.group).collect();
            let left: f64 = loads
                .iter()
                .filter(|l| !gone.contains(&l.group))
                .map(Load::cost_pct)
                .sum();
            assert!(left <= 2.0 + 1e-9);
            let largest_left = loads
                .iter()
                .filter(|l| !gone.contains(&l.group))
                .map(Load::cost_pct)
                .fold(0.0, f64::max);
            for load in loads.iter().filter(|l| gone.contains(&l.group)) {
                assert!(load.cost_pct() >= largest_left);
            }
        }
    }
}
