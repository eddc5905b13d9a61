//! Where each version of CPython keeps what is read here. From 3.13 on the interpreter says so itself
//! (`_Py_DebugOffsets` at the start of `_PyRuntime`); for 3.11 and 3.12 it is a table, as their headers define it.

use super::config::PyConfig;
use crate::memory::Memory;

/// All offsets that are used, of one interpreter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub config: PyConfig,
    pub filename: u32,
    pub name: u32,
    pub qualname: u32,
    pub linetable: u32,
    pub firstlineno: u32,
    pub code_adaptive: u32,
    /// Where the characters of a string stand: pure ASCII ones, and others.
    pub ascii_data: u32,
    pub compact_data: u32,
    /// Address of `PyCode_Type`, or 0: what is at the address of a code object must be one.
    pub code_type: u64,
}

/// Offsets larger than this are nonsense.
const OFFSET_MAX: u64 = 16 << 20;
/// Words of `_Py_DebugOffsets` that are read.
const WORDS: usize = 50;

impl Layout {
    /// `version` is what the symbol `Py_Version` holds, where it was found. Errors say why there is no layout.
    pub fn find(
        memory: &dyn Memory,
        runtime: u64,
        version: Option<u32>,
        code_type: u64,
    ) -> Result<Layout, String> {
        let offsets = DebugOffsets::read(memory, runtime);
        let version = match (&offsets, version) {
            (Some(o), _) => o.version(),
            (None, Some(v)) => v,
            (None, None) => return Err("the version of its Python cannot be told".into()),
        };
        let (major, minor) = (version >> 24, (version >> 16) & 255);
        let mut layout = match (major, minor) {
            (3, 11) => PYTHON_3_11,
            (3, 12) => PYTHON_3_12,
            (3, 13 | 14) => match offsets {
                Some(o) => o.layout()?,
                None => return Err(format!("its Python {major}.{minor} has no table of offsets")),
            },
            _ => {
                return Err(format!(
                    "its Python {major}.{minor} is none of 3.11, 3.12, 3.13, 3.14"
                ))
            }
        };
        layout.config.version = major * 100 + minor;
        layout.config.runtime = runtime;
        layout.code_type = code_type;
        Ok(layout)
    }
}

const PYTHON_3_11: Layout = Layout {
    config: PyConfig {
        version: 311,
        flags: PyConfig::CFRAME | PyConfig::IS_ENTRY,
        runtime: 0,
        off_interp_head: 40,
        off_interp_next: 0,
        off_threads_head: 16,
        off_ts_next: 8,
        off_ts_thread_id: 152,
        off_ts_native_id: 160,
        off_ts_frame: 56,
        off_cframe_frame: 8,
        off_f_previous: 48,
        off_f_executable: 32,
        off_f_instr: 56,
        off_f_owner: 69,
        off_f_is_entry: 68,
        off_cframe_previous: 16,
    },
    filename: 112,
    name: 120,
    qualname: 128,
    linetable: 136,
    firstlineno: 72,
    code_adaptive: 184,
    ascii_data: 48,
    compact_data: 72,
    code_type: 0,
};

/// What moved since 3.11.
const PYTHON_3_12: Layout = Layout {
    config: PyConfig {
        version: 312,
        flags: PyConfig::CFRAME,
        off_threads_head: 72,
        off_ts_thread_id: 136,
        off_ts_native_id: 144,
        off_cframe_frame: 0,
        off_f_previous: 8,
        off_f_executable: 0,
        off_f_owner: 70,
        off_f_is_entry: 0,
        off_cframe_previous: 8,
        ..PYTHON_3_11.config
    },
    firstlineno: 68,
    code_adaptive: 192,
    ascii_data: 40,
    compact_data: 56,
    ..PYTHON_3_11
};

/// The words of `_Py_DebugOffsets`: cookie, version, free-threaded or not, then the groups in their order.
struct DebugOffsets([u64; WORDS]);

impl DebugOffsets {
    fn read(memory: &dyn Memory, runtime: u64) -> Option<DebugOffsets> {
        let mut b = [0u8; WORDS * 8];
        if !memory.read(runtime, &mut b) || &b[..8] != b"xdebugpy" {
            return None;
        }
        let mut words = [0u64; WORDS];
        for (word, b) in words.iter_mut().zip(b.chunks_exact(8)) {
            *word = u64::from_le_bytes(b.try_into().ok()?);
        }
        Some(DebugOffsets(words))
    }

    fn version(&self) -> u32 {
        self.0[1] as u32
    }

    fn layout(&self) -> Result<Layout, String> {
        if self.0[2] != 0 {
            return Err("its Python is a free-threaded build: native stacks only".into());
        }
        // Later versions added fields at the end of groups, so that a group starts further on.
        let (thread, frame, code) = match (self.version() >> 16) & 255 {
            13 => (19, 28, 34),
            _ => (22, 31, 39),
        };
        let at = |i: usize| match self.0.get(i) {
            Some(&v) if v < OFFSET_MAX => Ok(v as u32),
            _ => Err("the offsets of its Python make no sense".to_string()),
        };
        Ok(Layout {
            config: PyConfig {
                off_interp_head: at(5)?,
                off_interp_next: at(8)?,
                off_threads_head: at(9)?,
                off_ts_next: at(thread + 2)?,
                off_ts_frame: at(thread + 4)?,
                off_ts_thread_id: at(thread + 5)?,
                off_ts_native_id: at(thread + 6)?,
                off_f_previous: at(frame + 1)?,
                off_f_executable: at(frame + 2)?,
                off_f_instr: at(frame + 3)?,
                off_f_owner: at(frame + 5)?,
                ..PyConfig::default()
            },
            filename: at(code + 1)?,
            name: at(code + 2)?,
            qualname: at(code + 3)?,
            linetable: at(code + 4)?,
            firstlineno: at(code + 5)?,
            code_adaptive: at(code + 9)?,
            ascii_data: 40,
            compact_data: 56,
            code_type: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::RecordedMemory;

    fn runtime_of(words: &[u64]) -> RecordedMemory {
        let mut b = b"xdebugpy".to_vec();
        b.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        b.resize(WORDS * 8, 0);
        let mut m = RecordedMemory::default();
        m.put(0x1000, &b);
        m
    }

    /// Of Debian's 3.14.10.
    const WORDS_3_14: [u64; 48] = [
        0x30e0af0, 0, 316616, 784, 808, 225864, 7280, 7272, 7344, 7360, 7408, 7688, 7672, 7680, 16, 7784, 0,
        7800, 7792, 7992, 0, 832, 0, 8, 16, 72, 152, 160, 232, 32, 88, 8, 0, 56, 80, 74, 64, 0, 216, 112,
        120, 128, 136, 68, 52, 96, 104, 208,
    ];
    /// Of Debian's 3.13.5.
    const WORDS_3_13: [u64; 43] = [
        0x30d05f0, 0, 283376, 608, 632, 194976, 7272, 7264, 7344, 7400, 7656, 7640, 7648, 16, 7752, 0, 7768,
        7760, 304, 0, 8, 16, 72, 152, 160, 232, 32, 80, 8, 0, 56, 72, 70, 208, 112, 120, 128, 136, 68, 52,
        96, 104, 200,
    ];

    #[test]
    fn the_offsets_that_3_13_and_3_14_publish_are_found_in_their_groups() {
        let l = Layout::find(&runtime_of(&WORDS_3_14), 0x1000, None, 7).expect("3.14");
        let c = l.config;
        assert_eq!((c.version, c.flags, c.runtime, l.code_type), (314, 0, 0x1000, 7));
        assert_eq!(
            (c.off_interp_head, c.off_interp_next, c.off_threads_head),
            (808, 7272, 7344)
        );
        assert_eq!(
            (
                c.off_ts_next,
                c.off_ts_frame,
                c.off_ts_thread_id,
                c.off_ts_native_id
            ),
            (8, 72, 152, 160)
        );
        assert_eq!(
            (c.off_f_previous, c.off_f_executable, c.off_f_instr, c.off_f_owner),
            (8, 0, 56, 74)
        );
        assert_eq!(
            (l.filename, l.linetable, l.firstlineno, l.code_adaptive),
            (112, 136, 68, 208)
        );
        let l = Layout::find(&runtime_of(&WORDS_3_13), 0x1000, Some(5), 0).expect("3.13");
        let c = l.config;
        assert_eq!(
            (c.version, c.off_interp_head, c.off_interp_next, c.off_f_owner),
            (313, 632, 7264, 70)
        );
        assert_eq!(
            (c.off_ts_frame, c.off_ts_native_id, l.qualname, l.code_adaptive),
            (72, 160, 128, 200)
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_reason() {
        let mut free = WORDS_3_14;
        free[1] = 1;
        let refused = |m: &RecordedMemory, version| Layout::find(m, 0x1000, version, 0).expect_err("refused");
        assert!(refused(&runtime_of(&free), None).contains("free-threaded"));
        let mut mad = WORDS_3_14;
        mad[4] = u64::MAX;
        assert!(refused(&runtime_of(&mad), None).contains("no sense"));
        let empty = RecordedMemory::default();
        assert!(refused(&empty, None).contains("cannot be told"));
        assert!(refused(&empty, Some(0x30a0cf0)).contains("3.10"));
        assert!(refused(&empty, Some(0x30d00f0)).contains("no table"));
        assert_eq!(
            Layout::find(&empty, 9, Some(0x30b07f0), 0).map(|l| l.config.version),
            Ok(311)
        );
    }
}
