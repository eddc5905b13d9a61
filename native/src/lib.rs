//! The profiler's hot path.
