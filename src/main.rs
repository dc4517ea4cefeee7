//! Arguments in, exit code out.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use pgsandbox::{app, cli};

fn main() -> ExitCode {
    match cli::parse(std::env::args_os(), io::stdin().is_terminal()) {
        Ok(cli::Command::Mcp { toolsets, rows_in }) => {
            app::main(app::Lifetime::Server, |app| async move { app.serve_stdio(&toolsets, &rows_in).await })
        }
        Ok(cli::Command::Other(matches)) => {
            app::main(app::Lifetime::OneShot, |app| async move { cli::run(&matches, &app).await })
        }
        Err(error) => {
            // Help and version go to standard output, faults to standard error.
            drop(error.print());
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    }
}
