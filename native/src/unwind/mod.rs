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
pub use rule::{Cfa, Place, Rule, Stop};
pub use table::{Found, UnwindTable};
pub use trail::Trail;
pub use walk::{walk, walk_again, Code, NativeFrame, Stack, Walked, FRAMES_MAX};
