//! Symbols of the kernel, from `/proc/kallsyms`.

/// Functions of the kernel and its modules, sorted by address.
#[derive(Debug, Default)]
pub struct KernelSymbols {
    starts: Vec<u64>,
    /// Place and length of each name in `text`, and the number of its module.
    names: Vec<(u32, u16, u16)>,
    text: String,
    modules: Vec<String>,
    /// Addresses are hidden from this user (`kernel.kptr_restrict`): there are no symbols.
    pub hidden: bool,
}

/// No kernel has more text than this.
const TEXT_MAX: usize = 64 << 20;

impl KernelSymbols {
    pub fn of_this_machine() -> KernelSymbols {
        std::fs::read("/proc/kallsyms")
            .map(|text| Self::parse(&text))
            .unwrap_or_else(|_| KernelSymbols {
                hidden: true,
                ..KernelSymbols::default()
            })
    }

    /// Lines that make no sense are left out.
    pub fn parse(text: &[u8]) -> KernelSymbols {
        let mut found: Vec<(u64, &str, u16)> = Vec::new();
        let mut modules = vec![String::from("kernel")];
        let mut zeros = false;
        for line in text[..text.len().min(TEXT_MAX)].split(|&b| b == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else {
                continue;
            };
            let mut fields = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            if !matches!(kind, "T" | "t" | "W" | "w") {
                continue;
            }
            let Ok(address) = u64::from_str_radix(address, 16) else {
                continue;
            };
            if address == 0 {
                zeros = true;
                continue;
            }
            let module = fields.next().map(|m| m.trim_matches(['[', ']']));
            let module = module.map_or(0, |m| number_of(&mut modules, m));
            found.push((address, name, module));
        }
        found.sort_unstable_by_key(|f| f.0);
        let mut out = KernelSymbols {
            hidden: zeros && found.is_empty(),
            modules,
            ..KernelSymbols::default()
        };
        for (address, name, module) in found {
            let len = name.len().min(usize::from(u16::MAX));
            let Some(name) = name.get(..len) else {
                continue;
            };
            out.starts.push(address);
            out.names.push((out.text.len() as u32, len as u16, module));
            out.text.push_str(name);
        }
        out.starts.shrink_to_fit();
        out.names.shrink_to_fit();
        out.text.shrink_to_fit();
        out
    }

    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Function and module (`kernel` for the kernel's own code) at an address.
    pub fn find(&self, addr: u64) -> Option<(&str, &str)> {
        let i = self.starts.partition_point(|&s| s <= addr).checked_sub(1)?;
        let (at, len, module) = *self.names.get(i)?;
        let name = self.text.get(at as usize..at as usize + usize::from(len))?;
        Some((
            name,
            self.modules.get(usize::from(module)).map_or("kernel", |m| m),
        ))
    }
}

fn number_of(modules: &mut Vec<String>, name: &str) -> u16 {
    // Symbols of a module stand together: the last one is nearly always it.
    let found = modules.iter().rposition(|m| m == name);
    let i = found.unwrap_or_else(|| {
        modules.push(name.to_owned());
        modules.len() - 1
    });
    u16::try_from(i).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_between_two_symbols_belong_to_the_first() {
        let text =
            b"ffffffff81000000 T _text\nffffffff81000100 t do_it\nffffffffc0000000 t nic_poll\t[e1000]\n\
            ffffffff81000080 D data\nnonsense\n";
        let k = KernelSymbols::parse(text);
        assert_eq!(k.find(0xffffffff810001ff), Some(("do_it", "kernel")));
        assert_eq!(k.find(0xffffffff810000ff), Some(("_text", "kernel")));
        assert_eq!(k.find(0xffffffffc0000010), Some(("nic_poll", "e1000")));
        assert_eq!(k.find(5), None);
        assert!(!k.hidden);
    }

    #[test]
    fn hidden_addresses_are_noticed() {
        assert!(KernelSymbols::parse(b"0000000000000000 T _text\n0000000000000000 t do_it\n").hidden);
    }
}
