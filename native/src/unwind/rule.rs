//! How one frame leads to its caller, in the terms of DWARF call frame information.

use gimli::{
    CfaRule, Encoding, EndianSlice, Evaluation, EvaluationResult, Format, LittleEndian, Location, Register,
    RegisterRule, UnwindContextStorage, UnwindExpression, UnwindSection, UnwindTableRow, Value,
};

use super::registers::{Registers, REGISTERS};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Bytes of a DWARF expression. Longer ones are refused.
const EXPRESSION_MAX: usize = 256;
/// Operations of one evaluation, so that a loop in an expression ends.
const OPERATIONS_MAX: u32 = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cfa {
    Register(u8, i64),
    /// What lies at register + offset: functions that align their stack (AVX code) keep it so.
    Deref(u8, i64),
    Expression(Box<[u8]>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterPlace {
    Same,
    /// For the return address: here the stack ends.
    Undefined,
    /// Saved at CFA + offset.
    At(i64),
    /// Is CFA + offset.
    Is(i64),
    Register(u8),
    /// Saved where the expression says.
    Expression(Box<[u8]>),
    /// Is what the expression says.
    IsExpression(Box<[u8]>),
}

/// One row of call frame information.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub cfa: Cfa,
    pub return_address: RegisterPlace,
    /// Other registers that have a place; those that are not named are unchanged or lost, as the ABI says.
    pub places: Box<[(u8, RegisterPlace)]>,
    /// The frame that the kernel made to call a signal handler: its caller was interrupted, it did not call.
    pub signal: bool,
}

/// Why a rule could not be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The unwind data says that the stack ends here.
    End,
    /// A register is needed that is not known.
    Unknown,
    /// The stack cannot be read there.
    Unread,
    /// The rule leads nowhere: backwards, to an odd address.
    Nonsense,
}

impl Rule {
    pub(super) fn of_row<'a, S>(
        section: &impl UnwindSection<Slice<'a>>,
        row: &UnwindTableRow<usize, S>,
        return_address: Register,
        signal: bool,
    ) -> Option<Rule>
    where
        S: UnwindContextStorage<usize>,
    {
        let bytes = |e: &UnwindExpression<usize>| -> Option<Box<[u8]>> {
            let b = e.get(section).ok()?.0.slice();
            (b.len() <= EXPRESSION_MAX).then(|| b.into())
        };
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => Cfa::Register(number(*register)?, *offset),
            CfaRule::Expression(e) => {
                let b = bytes(e)?;
                deref(&b).map_or(Cfa::Expression(b), |(r, o)| Cfa::Deref(r, o))
            }
        };
        let place = |rule: &RegisterRule<usize>| {
            Some(match rule {
                RegisterRule::Undefined => RegisterPlace::Undefined,
                RegisterRule::SameValue => RegisterPlace::Same,
                RegisterRule::Offset(o) => RegisterPlace::At(*o),
                RegisterRule::ValOffset(o) => RegisterPlace::Is(*o),
                RegisterRule::Register(r) => RegisterPlace::Register(number(*r)?),
                RegisterRule::Expression(e) => RegisterPlace::Expression(bytes(e)?),
                RegisterRule::ValExpression(e) => RegisterPlace::IsExpression(bytes(e)?),
                _ => return None,
            })
        };
        let mut places = Vec::new();
        for (register, rule) in row.registers() {
            if let (Some(n), true) = (number(*register), *register != return_address) {
                places.push((n, place(rule)?));
            }
        }
        Some(Rule {
            cfa,
            return_address: match row.register(return_address) {
                Some(rule) => place(&rule)?,
                None => RegisterPlace::Same,
            },
            places: places.into(),
            signal,
        })
    }

    /// Turns the registers of a frame into those of its caller. `first`: nothing was called from this frame.
    pub fn follow<F>(&self, regs: &mut Registers, first: bool, read: &mut F) -> Result<(), Stop>
    where
        F: FnMut(u64) -> Option<u64>,
    {
        let cfa = match &self.cfa {
            Cfa::Register(r, o) => regs.get(*r).ok_or(Stop::Unknown)?.wrapping_add_signed(*o),
            Cfa::Deref(r, o) => {
                let at = regs.get(*r).ok_or(Stop::Unknown)?.wrapping_add_signed(*o);
                read(at).ok_or(Stop::Unread)?
            }
            Cfa::Expression(e) => evaluate(e, None, regs, read)?,
        };
        let return_address = match &self.return_address {
            RegisterPlace::Undefined => return Err(Stop::End),
            // Without a place the return address is still in the link register, if there is one.
            RegisterPlace::Same => regs.link(first).ok_or(Stop::End)?,
            place => value(place, cfa, None, regs, read)?,
        };
        let forward = self.signal || cfa > regs.sp() || (first && cfa == regs.sp());
        if !forward || cfa % 8 != 0 {
            return Err(Stop::Nonsense);
        }
        let before = *regs;
        regs.called();
        for (register, place) in self.places.iter() {
            // A register that cannot be restored is not known; whoever needs it further up notices.
            let old = before.get(*register);
            match value(place, cfa, old, &before, read) {
                Ok(v) => regs.set(*register, v),
                Err(_) => regs.forget(*register),
            }
        }
        // With a signal, the interrupted stack pointer is the CFA as well.
        regs.set_sp(cfa);
        regs.set_ip(return_address);
        Ok(())
    }
}

fn number(register: Register) -> Option<u8> {
    let n = usize::from(register.0);
    (n < REGISTERS).then_some(n as u8)
}

/// `DW_OP_breg R, offset; DW_OP_deref`, which is what compilers write for frames they align.
fn deref(b: &[u8]) -> Option<(u8, i64)> {
    const BREG0: u8 = 0x70;
    const DEREF: u8 = 0x06;
    let register = b.first()?.checked_sub(BREG0).filter(|&r| r < 32)?;
    let rest = b.get(1..)?.strip_suffix(&[DEREF])?;
    let mut value = 0i64;
    for (i, &byte) in rest.iter().enumerate() {
        if i > 8 {
            return None;
        }
        value |= i64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            let shift = 64 - 7 * (i as u32 + 1);
            return (i + 1 == rest.len()).then_some((register, value << shift >> shift));
        }
    }
    None
}

fn value<F>(
    place: &RegisterPlace,
    cfa: u64,
    old: Option<u64>,
    regs: &Registers,
    read: &mut F,
) -> Result<u64, Stop>
where
    F: FnMut(u64) -> Option<u64>,
{
    match place {
        RegisterPlace::Same => old.ok_or(Stop::Unknown),
        RegisterPlace::Undefined => Err(Stop::Unknown),
        RegisterPlace::At(o) => read(cfa.wrapping_add_signed(*o)).ok_or(Stop::Unread),
        RegisterPlace::Is(o) => Ok(cfa.wrapping_add_signed(*o)),
        RegisterPlace::Register(r) => regs.get(*r).ok_or(Stop::Unknown),
        RegisterPlace::Expression(e) => {
            let at = evaluate(e, Some(cfa), regs, read)?;
            read(at).ok_or(Stop::Unread)
        }
        RegisterPlace::IsExpression(e) => evaluate(e, Some(cfa), regs, read),
    }
}

fn evaluate<F>(expression: &[u8], cfa: Option<u64>, regs: &Registers, read: &mut F) -> Result<u64, Stop>
where
    F: FnMut(u64) -> Option<u64>,
{
    let encoding = Encoding {
        address_size: 8,
        format: Format::Dwarf32,
        version: 4,
    };
    let mut evaluation = Evaluation::new(EndianSlice::new(expression, LittleEndian), encoding);
    evaluation.set_max_iterations(OPERATIONS_MAX);
    if let Some(cfa) = cfa {
        evaluation.set_initial_value(cfa);
    }
    let nonsense = |_| Stop::Nonsense;
    let mut state = evaluation.evaluate().map_err(nonsense)?;
    // Each turn is an operation that the evaluation counts, so this ends; asking a result before the end would panic.
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let v = number(register).and_then(|r| regs.get(r)).ok_or(Stop::Unknown)?;
                evaluation
                    .resume_with_register(Value::Generic(v))
                    .map_err(nonsense)?
            }
            EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                let v = read(address).ok_or(Stop::Unread)?;
                evaluation
                    .resume_with_memory(Value::Generic(v))
                    .map_err(nonsense)?
            }
            _ => return Err(Stop::Nonsense),
        };
    }
    match evaluation.value_result() {
        Some(Value::Generic(v)) => Ok(v),
        _ => match evaluation.as_result().last().map(|p| &p.location) {
            Some(Location::Address { address }) => Ok(*address),
            _ => Err(Stop::Nonsense),
        },
    }
}
