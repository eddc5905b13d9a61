//! What BPF needs to find a thread's Python frames: see `bpf/python.h`, which has the same layout.

/// `struct py_config` of `bpf/python.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PyConfig {
    /// 311 to 314; 0 where there is no Python.
    pub version: u32,
    pub flags: u32,
    /// Address of `_PyRuntime` in the target.
    pub runtime: u64,
    pub off_interp_head: u32,
    pub off_interp_next: u32,
    pub off_threads_head: u32,
    pub off_ts_next: u32,
    pub off_ts_thread_id: u32,
    pub off_ts_native_id: u32,
    pub off_ts_frame: u32,
    pub off_cframe_frame: u32,
    pub off_f_previous: u32,
    pub off_f_executable: u32,
    pub off_f_instr: u32,
    pub off_f_owner: u32,
    pub off_f_is_entry: u32,
    /// From a C frame to the one before it (3.11, 3.12).
    pub off_cframe_previous: u32,
}

impl PyConfig {
    /// The thread state points to a C frame that points to the current frame (3.11, 3.12).
    pub const CFRAME: u32 = 1;
    /// Frames say whether the interpreter was entered with them (3.11).
    pub const IS_ENTRY: u32 = 2;
    /// Frames of one sample; the rest is cut off.
    pub const FRAMES_MAX: usize = 128;

    /// `3.11`
    pub fn name(&self) -> String {
        format!("{}.{}", self.version / 100, self.version % 100)
    }
}

const _: () = assert!(std::mem::size_of::<PyConfig>() == 72);
