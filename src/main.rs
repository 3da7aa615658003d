//! The `mcm` binary.

fn main() {}
