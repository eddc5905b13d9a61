//! What a session wants to have counted.

use super::catalogue::GROUPS;
use super::groups::{Group, What};

pub const MALLOC: &str = "malloc";

/// What to probe, and how much it may cost.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Places in `GROUPS`.
    pub groups: Vec<usize>,
    pub tcp: bool,
    pub files: bool,
    pub rdma: bool,
    /// What passes on connections of a server, and runs of its model: where one of the processes listens.
    pub serving: bool,
    /// Children are watched too.
    pub follow: bool,
    /// Percent of one CPU that all uprobes together may cost, by the governor's measure.
    pub budget_pct: f64,
    /// The same for those that follow memory, which nobody has who did not ask for them.
    pub memory_budget_pct: f64,
    /// Try to attach many probes at once (kernel 6.6).
    pub multi: bool,
    /// Spans kept between two takes; the rest is counted.
    pub max_spans: usize,
}

/// Groups that tell runs of a model. They are wanted where a server is.
pub const FORWARDS: [&str; 3] = ["forwards", "forward ends", "forward layers"];

/// A name that a user may switch, and the groups behind it.
const SWITCHES: &[(&str, bool, &[&str])] = &[
    ("backward", true, &["backward", "engine"]),
    ("optimizer", true, &["optimizer"]),
    ("collectives", true, &["collectives", "nccl"]),
    ("cuda", true, &["cuda", "cuda driver"]),
    ("gc", true, &["gc"]),
    ("gil", false, &["gil"]),
    ("operators", false, &["operators"]),
    ("operator_times", false, &["operator times"]),
    (
        "memory",
        false,
        &[
            "tensor memory",
            "caching allocator",
            "cuda memory",
            "cuda driver memory",
        ],
    ),
    ("malloc", false, &["malloc"]),
    ("pages", false, &["pages"]),
];

impl Default for Wanted {
    fn default() -> Self {
        let mut wanted = Wanted {
            groups: Vec::new(),
            tcp: true,
            files: false,
            rdma: true,
            serving: true,
            follow: true,
            budget_pct: 2.0,
            memory_budget_pct: 50.0,
            multi: true,
            max_spans: 200_000,
        };
        for (name, on, _) in SWITCHES {
            wanted.switch(name, *on);
        }
        wanted
    }
}

impl Wanted {
    /// Nothing but what is switched on afterwards.
    pub fn nothing() -> Self {
        Wanted {
            groups: Vec::new(),
            tcp: false,
            files: false,
            rdma: false,
            serving: false,
            ..Wanted::default()
        }
    }

    /// Switches a thing on or off. False: there is none of that name.
    pub fn switch(&mut self, name: &str, on: bool) -> bool {
        match name {
            "tcp" => self.tcp = on,
            "files" => self.files = on,
            "rdma" => self.rdma = on,
            "serving" => self.serving = on,
            "follow" => self.follow = on,
            "multi" => self.multi = on,
            _ => {
                let Some((_, _, groups)) = SWITCHES.iter().find(|s| s.0 == name) else {
                    return false;
                };
                for (n, group) in GROUPS.iter().enumerate() {
                    if groups.contains(&group.name) {
                        self.groups.retain(|&g| g != n);
                        if on {
                            self.groups.push(n);
                        }
                    }
                }
                // The same calls are not counted twice; and a device is known from what sets it.
                if name == "operator_times" && on {
                    self.switch("operators", false);
                }
            }
        }
        true
    }

    pub fn names() -> Vec<&'static str> {
        let plain = [
            "tcp",
            "files",
            "rdma",
            "serving",
            "follow",
            "multi",
            "budget_pct",
            "memory_budget_pct",
            "max_spans",
        ];
        SWITCHES.iter().map(|s| s.0).chain(plain).collect()
    }

    /// Wants runs of models. False: they were wanted already.
    pub fn add_forwards(&mut self) -> bool {
        let before = self.groups.len();
        for (n, group) in GROUPS.iter().enumerate() {
            if FORWARDS.contains(&group.name) && !self.groups.contains(&n) {
                self.groups.push(n);
            }
        }
        self.groups.len() > before
    }

    /// Whether memory is followed.
    pub fn memory(&self) -> bool {
        self.groups.iter().any(|&n| is_memory(&GROUPS[n]))
    }
}

pub fn is_memory(group: &Group) -> bool {
    group
        .functions
        .iter()
        .any(|f| !matches!(f.what, What::Count | What::SetDevice))
}

/// Whether its functions are called thousands of times a second.
pub fn is_often(group: &Group) -> bool {
    is_memory(group) || group.name.starts_with("operator")
}

/// Operators by how likely they are, for kernels where only some can be probed: the place in a list, else behind it.
pub fn rank_of_operator(name: &str) -> usize {
    const COMMON: &[&str] = &[
        "linear",
        "matmul",
        "mm",
        "addmm",
        "bmm",
        "conv",
        "relu",
        "gelu",
        "softmax",
        "layer_norm",
        "batch_norm",
        "dropout",
        "embedding",
        "add",
        "mul",
        "sub",
        "div",
        "sum",
        "mean",
        "cat",
        "view",
        "reshape",
        "transpose",
        "t",
        "permute",
        "expand",
        "select",
        "slice",
        "index",
        "copy",
        "to",
        "_to_copy",
        "empty",
        "zeros",
        "clone",
        "detach",
        "contiguous",
        "cross_entropy",
        "nll_loss",
        "scaled_dot_product",
        "threshold",
        "zero_",
        "fill_",
        "item",
        "_local_scalar_dense",
        "sqrt",
        "addcmul",
        "addcdiv",
        "lerp",
        "_foreach",
    ];
    let plain = name.strip_prefix("aten::").unwrap_or(name);
    COMMON
        .iter()
        .position(|c| plain.starts_with(c))
        .unwrap_or(COMMON.len())
}

pub fn group_named(name: &str) -> Option<usize> {
    GROUPS.iter().position(|g| g.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_a_switch_and_every_switch_a_group() {
        for group in GROUPS {
            assert!(
                FORWARDS.contains(&group.name) || SWITCHES.iter().any(|s| s.2.contains(&group.name)),
                "{}",
                group.name
            );
        }
        for (_, _, groups) in SWITCHES {
            assert!(groups.iter().all(|name| GROUPS.iter().any(|g| g.name == *name)));
        }
    }

    #[test]
    fn operators_are_counted_once() {
        let mut wanted = Wanted::nothing();
        assert!(wanted.switch("operators", true) && wanted.switch("operator_times", true));
        assert_eq!(wanted.groups.len(), 1);
        assert!(!wanted.switch("operatros", true));
        assert!(!wanted.memory());
        wanted.switch("malloc", true);
        assert!(wanted.memory());
    }
}
