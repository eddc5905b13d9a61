//! From registers and a copy of the stack to return addresses. Works with call frame information where there is some,
//! and by trial where there is none: MKL's hand-written kernels, generated code.

mod prologue;
mod registers;
mod rule;
mod table;
mod trail;
mod walk;

pub use prologue::{analyse, call_target, ends_in_call, Prologue, PROLOGUE_MAX};
pub use registers::{Arch, Registers};
pub use rule::{Cfa, RegisterPlace, Rule, Stop};
pub use table::{FoundRule, UnwindTable};
pub use trail::{NativeFrame, Trail};
pub use walk::{walk, walk_again, Code, Stack, Walked, FRAMES_MAX};
