//! The binary `loadtest`.

use std::process::ExitCode;

// As the service: the benchmark's baselines run in this program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    seckill_loadtest::main()
}
