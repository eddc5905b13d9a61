/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where CPython keeps what a stack walk needs. The same layout as PyConfig in src/python/config.rs: change both.
 * Offsets are in bytes. Addresses are those of the target. Works for 3.11 to 3.14; version 0 means: no Python here.
 *
 * Walk:
 *   interp = *(runtime + off_interp_head); next one at interp + off_interp_next
 *   ts     = *(interp + off_threads_head); next one at ts + off_ts_next
 *   it is the current thread's if *(ts + off_ts_thread_id) == fsbase (pthread_self of glibc and musl on x86-64)
 *   frame  = *(ts + off_ts_frame); with PY_CFRAME once more: frame = *(frame + off_cframe_frame)
 *   code   = *(frame + off_f_executable) & ~7; instr = *(frame + off_f_instr); owner = *(u8 *)(frame + off_f_owner)
 *   is_entry = *(u8 *)(frame + off_f_is_entry) with PY_IS_ENTRY, else 0; frame = *(frame + off_f_previous) until 0
 *
 * With PY_CFRAME one more look is needed: the interpreter's loop links its C frame before it has set the current frame
 * there. The first frame that ends a run (is_entry, or owner >= 3) must be followed by the current frame of the C frame
 * before: before = *(cframe + off_cframe_previous), expected = before ? *(before + off_cframe_frame) : 0. If *(frame +
 * off_f_previous) is another one, or the chain breaks before a run ends, what was walked is garbage: drop it and begin
 * anew at `expected`.
 */
#ifndef UNIDLE_PYTHON_H
#define UNIDLE_PYTHON_H

#define PY_CFRAME 1u   /* the thread state points to a C frame that points to the current frame (3.11, 3.12) */
#define PY_IS_ENTRY 2u /* frames have is_entry (3.11) */

#define PY_FRAMES_MAX 128    /* frames of one sample; the rest is cut off */
#define PY_FRAME_IS_ENTRY 1u /* py_frame.flags */

struct py_config {
	__u32 version; /* 311, 312, 313, 314; 0: none */
	__u32 flags;
	__u64 runtime; /* address of _PyRuntime */
	__u32 off_interp_head;
	__u32 off_interp_next;
	__u32 off_threads_head;
	__u32 off_ts_next;
	__u32 off_ts_thread_id;
	__u32 off_ts_native_id;
	__u32 off_ts_frame;
	__u32 off_cframe_frame;
	__u32 off_f_previous;
	__u32 off_f_executable;
	__u32 off_f_instr;
	__u32 off_f_owner;
	__u32 off_f_is_entry;
	__u32 off_cframe_previous; /* with PY_CFRAME */
};

struct py_frame { /* PyFrameRaw */
	__u64 code;
	__u64 instr;
	__u32 owner;
	__u32 flags;
};

#endif
