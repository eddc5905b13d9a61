//! From the linker's names to names for people.

use cpp_demangle::{DemangleOptions, DemangleWrite, ParseOptions};

/// Demangling stops after this many bytes, so that a hostile name cannot grow without end.
const DEMANGLED_MAX: usize = 16 << 10;
/// Longer names lose what stands between `<` and `>`.
const TEMPLATES_UP_TO: usize = 120;
/// And what is still longer is cut off.
const SHOWN_MAX: usize = 240;

struct Bounded(String);

impl DemangleWrite for Bounded {
    fn write_string(&mut self, s: &str) -> std::fmt::Result {
        if self.0.len() + s.len() > DEMANGLED_MAX {
            return Err(std::fmt::Error);
        }
        self.0.push_str(s);
        Ok(())
    }
}

/// The name of a function without parameters and return type: `at::native::add_kernel`.
pub fn demangle(name: &str) -> String {
    if let Some(of) = name.strip_suffix("@plt") {
        return demangle(of) + "@plt";
    }
    // What stands behind a name is the version of the library that brought it.
    let plain = name.split('@').next().filter(|n| !n.is_empty()).unwrap_or(name);
    if plain.starts_with("_R") || (plain.starts_with("_ZN") && plain.contains("17h")) {
        if let Ok(rust) = rustc_demangle::try_demangle(plain) {
            return shorten(&format!("{rust:#}"));
        }
    }
    if plain.starts_with("_Z") {
        // `.cold`, `.part.0`, `.constprop.1` and the like say how the compiler cut a function up.
        let (mangled, rest) = plain.split_once('.').unwrap_or((plain, ""));
        if let Some(text) = demangle_cpp(mangled) {
            let cold = if rest.contains("cold") { " [cold]" } else { "" };
            return shorten(&text) + cold;
        }
    }
    cut(plain)
}

fn demangle_cpp(mangled: &str) -> Option<String> {
    let parse = ParseOptions::default().recursion_limit(128);
    let symbol = cpp_demangle::BorrowedSymbol::with_tail_and_options(mangled.as_bytes(), &parse);
    let (symbol, tail) = symbol.ok()?;
    if !tail.is_empty() {
        return None;
    }
    let options = DemangleOptions::new()
        .no_params()
        .no_return_type()
        .recursion_limit(128);
    let mut out = Bounded(String::new());
    // What was written before the bound was met is still the front of the name.
    let done = symbol.structured_demangle(&mut out, &options);
    (done.is_ok() || out.0.len() > DEMANGLED_MAX / 2).then_some(out.0)
}

fn shorten(name: &str) -> String {
    let name = without(name, '(', ')').replace(" >", ">");
    let name = name.trim_end_matches(" const");
    if name.len() <= TEMPLATES_UP_TO {
        return name.to_owned();
    }
    cut(&without(name, '<', '>'))
}

fn cut(name: &str) -> String {
    if name.len() <= SHOWN_MAX {
        return name.to_owned();
    }
    let end = (0..=SHOWN_MAX)
        .rev()
        .find(|&i| name.is_char_boundary(i))
        .unwrap_or(0);
    format!("{}...", &name[..end])
}

/// Drops what stands between a pair of brackets, but not what only looks like one: `operator()`, `operator<`, `->`,
/// `(anonymous namespace)`.
fn without(name: &str, open: char, close: char) -> String {
    let mut out = String::with_capacity(name.len());
    let mut depth = 0usize;
    let mut at = 0;
    while let Some(c) = name[at..].chars().next() {
        let rest = &name[at..];
        let kept = [
            "operator()",
            "operator<<",
            "operator<=",
            "operator<",
            "operator>>",
            "operator>",
            "operator->",
        ]
        .into_iter()
        .find(|k| rest.starts_with(k) && !identifier_goes_on(&name[..at]))
        .or_else(|| {
            ["(anonymous namespace)", "->"]
                .into_iter()
                .find(|k| rest.starts_with(k))
        });
        if let Some(kept) = kept {
            if depth == 0 {
                out.push_str(kept);
            }
            at += kept.len();
            continue;
        }
        if c == open {
            depth += 1;
        } else if c == close && depth > 0 {
            depth -= 1;
        } else if depth == 0 {
            out.push(c);
        }
        at += c.len_utf8();
    }
    out
}

fn identifier_goes_on(before: &str) -> bool {
    before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_and_long_templates_are_left_out() {
        assert_eq!(
            demangle("_ZN2at4_ops5addmm4callERKNS_6TensorES4_S4_RKN3c106ScalarES8_"),
            "at::_ops::addmm::call"
        );
        assert_eq!(
            demangle("_ZN4c10d16ProcessGroupGloo7runLoopEi.cold"),
            "c10d::ProcessGroupGloo::runLoop [cold]"
        );
        assert_eq!(
            demangle("_ZNKSt8functionIFvvEEclEv"),
            "std::function<void>::operator()"
        );
        assert_eq!(demangle("_PyEval_EvalFrameDefault"), "_PyEval_EvalFrameDefault");
        assert_eq!(demangle("memcpy@@GLIBC_2.14"), "memcpy");
        assert_eq!(demangle("clock_nanosleep@GLIBC_2.2.5"), "clock_nanosleep");
        assert_eq!(
            demangle("_ZN3c1010TensorImpl4sizeEv@plt"),
            "c10::TensorImpl::size@plt"
        );
        assert_eq!(
            demangle("_ZN4core3ptr13drop_in_place17h0123456789abcdefE"),
            "core::ptr::drop_in_place"
        );
        assert_eq!(
            shorten("a::(anonymous namespace)::f(int (*)(char))::{lambda(int)#1}::operator()(int) const"),
            "a::(anonymous namespace)::f::{lambda#1}::operator()"
        );
        let long = format!("void g<{}>::h", "X<Y>, ".repeat(60));
        assert_eq!(shorten(&long), "void g::h");
    }

    #[test]
    fn a_name_that_grows_without_end_is_bounded() {
        // Each substitution doubles what stands before it.
        let mut name = String::from("_ZN1aI1bE");
        for i in 0..40 {
            name.insert_str(3, &format!("1cIS{}_S{}_E", i, i));
        }
        assert!(demangle(&name).len() <= SHOWN_MAX + 3);
        assert!(demangle(&"é".repeat(5000)).len() <= SHOWN_MAX + 3);
        assert_eq!(without("))((<<", '(', ')'), "))");
    }
}
