//! Arguments in, exit code out.

// What a call awaits is nested deep, and its layout is computed here.
#![recursion_limit = "256"]

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use pgsandbox::{app, cli, command};

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let Some(code) = command::supervise_if_asked(&arguments) {
        return code;
    }
    match cli::parse(&arguments, io::stdin().is_terminal()) {
        Ok(cli::Command::Mcp { toolsets, rows_in }) => {
            if io::stdin().is_terminal() {
                cli::tell_of_waiting();
            }
            app::main(app::Lifetime::Server, |app| async move { Box::pin(app.serve_stdio(&toolsets, &rows_in)).await })
                .unwrap_or_else(|refusal| cli::refused(&refusal, cli::Format::Text, None))
        }
        Ok(cli::Command::Apart(matches)) => cli::run_apart(&matches),
        Ok(cli::Command::Other(matches)) => {
            let (format, command) = (cli::format_asked(&matches), matches.subcommand_name().map(str::to_owned));
            app::main(app::Lifetime::OneShot, |app| async move { Box::pin(cli::run(&matches, &app)).await })
                .unwrap_or_else(|refusal| cli::refused(&refusal, format, command.as_deref()))
        }
        Err(error) => cli::misread(&error, &arguments),
    }
}
